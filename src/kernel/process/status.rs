//! What /proc says of a process, by its folder there.

use std::fs;
use std::path::{Path, PathBuf};

use crate::disk::files;

/// The first number of a field in proc_pid_status(5).
pub fn status(process: &Path, field: &str) -> Option<u32> {
    let text = files::read(&process.join("status")).ok()??;
    text.lines()
        .find_map(|line| line.strip_prefix(field))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

pub fn pid_namespace(process: &Path) -> Option<PathBuf> {
    fs::read_link(process.join("ns/pid")).ok()
}
