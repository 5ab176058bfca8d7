//! Folders of ours into which several processes write, one at a time. An unfinished file has one
//! name for the whole folder: what a killed writer left is replaced by the next one, or removed by
//! [`sweep`].

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rdma_model::tree::Tree;

use super::files::{self, Lock, New};

/// Behind [`files::UNFINISHED`]. It ends in nothing that a list of plans or views looks for.
const NAME: &str = "file";
/// A file takes milliseconds, a view of a large host some hundred.
const PATIENCE: Duration = Duration::from_secs(10);

fn unfinished(folder: &Path) -> std::path::PathBuf {
    folder.join(format!("{}{NAME}", files::UNFINISHED))
}

/// The kernel ends the lock with the process.
fn lock_for_writing(folder: &Path, deadline: Instant) -> Result<Lock> {
    let doing = || format!("waiting to write to {}", folder.display());
    files::lock_file(files::open_folder(folder).with_context(doing)?, deadline).with_context(doing)
}

/// Replaces a file as [`files::replace`] does if it is `synced`; else a crash of the machine may
/// leave nothing of it.
pub(crate) fn replace(path: &Path, content: &[u8], mode: u32, synced: bool) -> Result<()> {
    let folder = path.parent().context("a file needs a folder")?;
    let _turn = lock_for_writing(folder, Instant::now() + PATIENCE)?;
    remove(folder)?;
    let mut named = tempfile::Builder::new();
    named
        .prefix(files::UNFINISHED)
        .suffix(NAME)
        .rand_bytes(0)
        .permissions(Permissions::from_mode(mode));
    files::put(path, content, &New::Mode(mode), &named, synced)
}

pub(crate) fn lay_out(path: &Path, tree: &Tree) -> Result<()> {
    let folder = path.parent().context("a folder needs a folder")?;
    if path.exists() {
        return Ok(());
    }
    let _turn = lock_for_writing(folder, Instant::now() + PATIENCE)?;
    if path.exists() {
        return Ok(());
    }
    remove(folder)?;
    let new = unfinished(folder);
    files::write_tree(&new, tree)?;
    fs::rename(&new, path).with_context(|| format!("writing {}", path.display()))
}

/// Removes what a killed writer left. Does nothing while another process writes, which removes it
/// as well.
pub(crate) fn sweep(folder: &Path) -> Result<()> {
    if fs::symlink_metadata(unfinished(folder)).is_err() {
        return Ok(());
    }
    let Ok(_turn) = lock_for_writing(folder, Instant::now()) else {
        return Ok(());
    };
    remove(folder)
}

/// Only under the lock.
fn remove(folder: &Path) -> Result<()> {
    let left = unfinished(folder);
    if fs::symlink_metadata(&left).is_ok() {
        files::remove_all(&left)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remains_of_a_killed_writer_go_with_a_write_or_a_sweep() {
        let folder = tempfile::tempdir().unwrap();
        let (path, left) = (folder.path().join("a"), unfinished(folder.path()));
        fs::write(&left, "half").unwrap();
        replace(&path, b"whole", 0o600, false).unwrap();
        assert_eq!(
            (fs::read(&path).unwrap().as_slice(), left.exists()),
            (&b"whole"[..], false)
        );
        fs::create_dir_all(left.join("half")).unwrap();
        lay_out(&folder.path().join("b"), &Tree::default()).unwrap();
        assert_eq!(files::list(folder.path()).unwrap(), ["a", "b"]);
        fs::write(&left, "half").unwrap();
        sweep(folder.path()).unwrap();
        assert!(!left.exists());
    }

    #[test]
    fn a_writer_at_work_keeps_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let left = unfinished(folder.path());
        fs::write(&left, "half").unwrap();
        let writes = lock_for_writing(folder.path(), Instant::now()).unwrap();
        sweep(folder.path()).unwrap();
        assert!(left.exists());
        drop(writes);
        sweep(folder.path()).unwrap();
        assert!(!left.exists());
    }
}
