//! What a runtime writes to a hook's stdin, and the line that the log gets of it.
#![no_main]

use std::time::Instant;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use rdmaprep::config::request::asks_itself;
use rdmaprep::oci::state::State;
use rdmaprep::report::{Report, json};

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    rdmaprep_fuzz::json::mutate(data, size, max_size, seed)
});

fuzz_target!(|data: &[u8]| {
    let read = State::parse(data);
    let mut report = Report::new("hook prestart");
    if let Ok(state) = &read {
        assert!(!state.id.is_empty());
        assert!(state.init().is_err() || state.init().is_ok_and(|pid| pid > 1));
        let narrowed = rdmaprep_fuzz::anything().narrow(&state.annotations);
        assert!(
            asks_itself(None, &state.annotations) || narrowed.is_ok(),
            "annotations of other programs are ignored"
        );
        report.container = Some(state.id.clone());
        report.notes = state.annotations.values().cloned().collect();
    }
    report.finish(&read, Instant::now());
    assert!(
        !report.line().contains(|c: char| c.is_control()),
        "a log line is one line"
    );
    let text = json(&report).expect("a report as JSON");
    assert!(
        !text.contains(|c: char| c.is_control() && c != '\n'),
        "a report steers no terminal"
    );
    rdmaprep_fuzz::print_heap();
});
