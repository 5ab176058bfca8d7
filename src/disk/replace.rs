//! Files that take the place of others: a crash leaves the old or the new content, never a mixture.
//! What is unfinished has a name of its own, by which the next writer, or a sweep, finds what a
//! killed one left.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rdma_model::tree::Tree;

use super::attributes::Attributes;
use super::doing;
use super::files::{self, Lock};
use crate::faults;

/// What names of unfinished files begin with.
pub(super) const UNFINISHED: &str = ".new-";
/// A file takes milliseconds, a view of a large host some hundred.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a file is replaced: by default beside any other writer, and synced to disk. What a link
/// there leads to stays as it is.
#[derive(Clone, Copy)]
pub struct Replacement {
    /// None: the owner, the mode and the extended attributes of the file that is there.
    mode: Option<u32>,
    unfinished: Unfinished,
    synced: bool,
}

/// What an unfinished file is called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unfinished {
    Random,
    OfFile,
    OfFolder,
}

impl Replacement {
    pub fn with_mode(mode: u32) -> Replacement {
        Replacement {
            mode: Some(mode),
            unfinished: Unfinished::Random,
            synced: true,
        }
    }

    /// For a file of another program.
    pub fn keeping_attributes() -> Replacement {
        Replacement {
            mode: None,
            ..Replacement::with_mode(0o600)
        }
    }

    /// For a writer that holds a lock: [`tidy`] finds what it left by the file's name.
    pub fn under_lock(self) -> Replacement {
        Replacement {
            unfinished: Unfinished::OfFile,
            ..self
        }
    }

    /// For a folder of ours into which several processes write, one at a time; [`sweep`] finds what
    /// one left.
    pub fn in_shared_folder(self) -> Replacement {
        Replacement {
            unfinished: Unfinished::OfFolder,
            ..self
        }
    }

    /// For a tmpfs, or what is no loss if the machine crashes.
    pub fn unsynced(self) -> Replacement {
        Replacement {
            synced: false,
            ..self
        }
    }

    pub fn write(&self, path: &Path, content: &[u8]) -> Result<()> {
        let doing = doing("writing", path);
        let folder = path.parent().context("a file needs a folder")?;
        let kept = match self.mode {
            Some(_) => None,
            None => Some(Attributes::read(path).with_context(doing)?),
        };
        let is_shared = self.unfinished == Unfinished::OfFolder;
        let _turn = is_shared.then(|| lock_for(folder)).transpose()?;
        let unfinished = match self.unfinished {
            Unfinished::Random => None,
            Unfinished::OfFile => Some(of_file(path)),
            Unfinished::OfFolder => Some(of_folder(folder)),
        };
        let mode = Permissions::from_mode(self.mode.unwrap_or(0o600));
        let mut named = tempfile::Builder::new();
        named.permissions(mode.clone());
        match &unfinished {
            None => named.prefix(UNFINISHED),
            Some(left) => {
                remove(left)?;
                named
                    .prefix(left.file_name().unwrap_or_default())
                    .rand_bytes(0)
            }
        };
        let mut temporary = named.tempfile_in(folder).with_context(doing)?;
        temporary.write_all(content).with_context(doing)?;
        match kept {
            Some(attributes) => attributes.apply(temporary.as_file()).with_context(doing)?,
            // Whatever umask we were started with.
            None => temporary
                .as_file()
                .set_permissions(mode)
                .with_context(doing)?,
        }
        if self.synced {
            temporary.as_file().sync_all().with_context(doing)?;
        }
        faults::point(format_args!("while writing {}", path.display()))?;
        temporary.persist(path).with_context(doing)?;
        if self.synced {
            let folder = files::open_folder(folder).with_context(doing)?;
            folder.sync_all().with_context(doing)?;
        }
        Ok(())
    }
}

/// The name ends in nothing that engines and systemd look for.
fn of_file(path: &Path) -> PathBuf {
    let mut name = OsString::from(UNFINISHED);
    name.push(path.file_name().unwrap_or_default());
    name.push("~");
    path.with_file_name(name)
}

/// The name ends in nothing that a list of plans or views looks for.
fn of_folder(folder: &Path) -> PathBuf {
    folder.join(format!("{UNFINISHED}file"))
}

fn lock_for(folder: &Path) -> Result<Lock> {
    lock(folder, Instant::now() + PATIENCE)
}

/// The kernel ends the lock with the process.
fn lock(folder: &Path, deadline: Instant) -> Result<Lock> {
    let doing = doing("waiting to write to", folder);
    files::lock_file(files::open_folder(folder).with_context(doing)?, deadline).with_context(doing)
}

/// Replaces what is at `path` by a link, all or nothing. The caller has the lock.
pub fn link(target: &str, path: &Path) -> Result<()> {
    let doing = doing("writing", path);
    tidy(path)?;
    let new = of_file(path);
    symlink(target, &new).with_context(doing)?;
    let renamed = faults::point(format_args!("while writing {}", path.display()))
        .and_then(|()| fs::rename(&new, path).with_context(doing));
    if renamed.is_err() {
        // The error tells more than that this one failed, too.
        let _ = fs::remove_file(&new);
    }
    renamed
}

/// Writes a folder with its files, all or nothing, unless it is there.
pub fn lay_out(path: &Path, tree: &Tree) -> Result<()> {
    let folder = path.parent().context("a folder needs a folder")?;
    if path.exists() {
        return Ok(());
    }
    let _turn = lock_for(folder)?;
    if path.exists() {
        return Ok(());
    }
    let new = of_folder(folder);
    remove(&new)?;
    files::write_tree(&new, tree)?;
    fs::rename(&new, path).with_context(|| format!("writing {}", path.display()))
}

/// Removes what a killed writer left of a file.
pub fn tidy(path: &Path) -> Result<()> {
    remove(&of_file(path))
}

/// Removes what a killed writer left in a shared folder. Does nothing while another process writes,
/// which removes it as well.
pub fn sweep(folder: &Path) -> Result<()> {
    let left = of_folder(folder);
    if fs::symlink_metadata(&left).is_err() {
        return Ok(());
    }
    let Ok(_turn) = lock(folder, Instant::now()) else {
        return Ok(());
    };
    remove(&left)
}

/// Removes all that killed writers left in a folder, into which no other process writes now.
pub fn sweep_all(folder: &Path) -> Result<()> {
    for name in files::list(folder)? {
        if name.starts_with(UNFINISHED) {
            files::remove(&folder.join(name))?;
        }
    }
    Ok(())
}

fn remove(left: &Path) -> Result<()> {
    if fs::symlink_metadata(left).is_ok() {
        files::remove_all(left)
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
        let (path, left) = (folder.path().join("a"), of_folder(folder.path()));
        fs::write(&left, "half").unwrap();
        let replacement = Replacement::with_mode(0o600).in_shared_folder().unsynced();
        replacement.write(&path, b"whole").unwrap();
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
        let left = of_folder(folder.path());
        fs::write(&left, "half").unwrap();
        let writes = lock(folder.path(), Instant::now()).unwrap();
        sweep(folder.path()).unwrap();
        assert!(left.exists());
        drop(writes);
        sweep(folder.path()).unwrap();
        assert!(!left.exists());
    }
}
