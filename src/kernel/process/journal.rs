//! Who reads what this process prints.

use std::os::unix::fs::MetadataExt;

/// Whether stdout is systemd's journal: JOURNAL_STREAM of systemd.exec(5), which processes inherit
/// that print elsewhere.
pub fn is_stdout() -> bool {
    let Some(stream) = std::env::var_os("JOURNAL_STREAM") else {
        return false;
    };
    let stdout = std::fs::metadata("/proc/self/fd/1");
    stdout.is_ok_and(|file| *stream == *format!("{}:{}", file.dev(), file.ino()))
}
