//! A bundle's config.json: the edit is made once however often it is asked for, and what the user
//! set stays.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use rdmaprep::oci::bundle::Bundle;
use rdmaprep::oci::config::Config;
use rdmaprep::oci::edit::{self, Edit};

static EDITS: LazyLock<Vec<Edit>> = LazyLock::new(|| {
    let texts = [
        include_str!("../../tests/cases/inject/plain/edit.json"),
        include_str!("../../tests/cases/inject/view_live/edit.json"),
        include_str!("../../tests/cases/inject/view_snapshot/edit.json"),
        include_str!("../../tests/cases/inject/view_is_taken_out/edit.json"),
    ];
    texts
        .iter()
        .map(|text| serde_json::from_str(text).expect("an edit"))
        .collect()
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    rdmaprep_fuzz::json::mutate(data, size, max_size, seed)
});

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    read(text);
    for edit in EDITS.iter() {
        let Ok(once) = edit::apply(text, edit) else {
            continue;
        };
        let twice = edit::apply(&once.json, edit).expect("what was edited can be edited");
        assert_eq!(twice.json, once.json, "an edit is idempotent");
        assert!(twice.changes.is_empty(), "{:?}", twice.changes);
        assert_eq!(once.changes.is_empty(), once.json == text);
        let (before, after) = (edit::environment(text), edit::environment(&once.json));
        assert!(
            before
                .iter()
                .all(|(name, value)| after.get(name) == Some(value)),
            "the user's value wins"
        );
        edit::diff(text, &once.json);
        read(&once.json);
    }
    rdmaprep_fuzz::print_heap();
});

/// Everything that looks at one.
fn read(text: &str) {
    if let Ok(config) = Config::parse(text) {
        let _ = Bundle::new(&config, Path::new("/bundle"), 7, "/run/rdmaprep/views");
    }
    edit::annotations(text);
    edit::has_own_dev(text);
    edit::netns_path(text);
    let _ = edit::no_mounts(text);
    for below in edit::below_sys(text).unwrap_or_default() {
        assert!(
            below
                .split('/')
                .all(|part| !matches!(part, "" | "." | "..")),
            "{below:?}"
        );
    }
}
