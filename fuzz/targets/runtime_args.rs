//! What an engine calls a runtime with, and what an image has for `rdmaprep-runtime` to tell: a
//! command line is never more than read, and a line of the runtime's log stays one line.
#![no_main]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use rdmaprep::config::file::ConfigFile;
use rdmaprep::config::sandbox::Sandbox;
use rdmaprep::shim::{Call, choose_runtime, log_line, read};

/// Each has a grammar of its own; the last one is not known.
const PROGRAMS: [&str; 6] = [
    "/usr/bin/runc",
    "crun",
    "youki",
    "runsc",
    "nvidia-container-runtime",
    "kata",
];

fuzz_target!(|data: &[u8]| {
    // Words by NUL, as in /proc/PID/cmdline; behind a word that is empty, the host's config file.
    let at = data
        .windows(2)
        .position(|w| w == b"\0\0")
        .unwrap_or(data.len());
    let (line, config) = data.split_at(at);
    let words: Vec<OsString> = line
        .split(|b| *b == 0)
        .map(|word| OsString::from_vec(word.to_vec()))
        .collect();
    let text = String::from_utf8_lossy(config.get(2..).unwrap_or_default());
    let file = ConfigFile::new(&text);
    let _ = (file.config(), file.folders());
    let config = file.shim().unwrap_or_default();
    let call = Call::parse(words.iter().cloned());
    let _ = choose_runtime(
        call.as_ref().and_then(|c| c.named.as_deref()),
        config.runtime.as_deref(),
    );
    for program in PROGRAMS {
        let asked = read(Path::new(program), &words);
        let makes = |word: &OsString| matches!(word.to_str(), Some("create" | "run"));
        assert!(
            asked.config.is_none() || words.iter().any(makes),
            "{program}: {asked:?}"
        );
        // An option's value is the same in a word of its own.
        for value in &words {
            let mut inline = OsString::from("--bundle=");
            inline.push(value);
            let apart = read(
                Path::new(program),
                &[
                    "create".into(),
                    "--bundle".into(),
                    value.clone(),
                    "id".into(),
                ],
            );
            assert_eq!(
                read(Path::new(program), &["create".into(), inline, "id".into()]),
                apart,
                "{program}"
            );
            assert!(apart.config.is_some());
        }
        let _ = Sandbox::of_command(Path::new(program), &words);
        let text = words
            .iter()
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ");
        for json in [false, true] {
            let line = log_line(json, "error", &text, "2026-01-01T00:00:00Z");
            assert!(!line.contains('\n'), "{line:?}");
            if json {
                let value: serde_json::Value = serde_json::from_str(&line).expect("it is JSON");
                assert_eq!(value["msg"], text);
            }
        }
    }
    rdmaprep_fuzz::print_heap();
});
