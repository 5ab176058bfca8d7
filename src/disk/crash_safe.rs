//! Files that one process at a time writes, under a lock: an unfinished file has a fixed name, so
//! that the next writer finds and removes what a killed one left.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::attributes::Attributes;
use super::files;
use super::files::New;
use crate::faults;

/// The name ends in nothing that engines and systemd look for.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = OsString::from(files::UNFINISHED);
    name.push(path.file_name().unwrap_or_default());
    name.push("~");
    path.with_file_name(name)
}

pub fn tidy(path: &Path) -> Result<()> {
    let left = unfinished(path);
    if fs::symlink_metadata(&left).is_ok() {
        files::remove(&left)
    } else {
        Ok(())
    }
}

pub fn replace(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    replace_as(path, content, mode, &New::Mode(mode))
}

pub fn replace_keeping_attributes(path: &Path, content: &[u8]) -> Result<()> {
    let kept = Attributes::read(path).with_context(|| format!("writing {}", path.display()))?;
    replace_as(path, content, 0o600, &New::Kept(kept))
}

fn replace_as(path: &Path, content: &[u8], mode: u32, new: &New) -> Result<()> {
    tidy(path)?;
    let unfinished = unfinished(path);
    let name = unfinished.file_name().unwrap_or_default();
    let mut named = tempfile::Builder::new();
    named
        .prefix(name)
        .rand_bytes(0)
        .permissions(Permissions::from_mode(mode));
    files::replace_as(path, content, new, &named)
}

pub fn link(target: &str, path: &Path) -> Result<()> {
    let doing = || format!("writing {}", path.display());
    tidy(path)?;
    let new = unfinished(path);
    symlink(target, &new).with_context(doing)?;
    let renamed = faults::point(format_args!("while writing {}", path.display()))
        .and_then(|()| fs::rename(&new, path).with_context(doing));
    if renamed.is_err() {
        // The error tells more than that this one failed, too.
        let _ = fs::remove_file(&new);
    }
    renamed
}
