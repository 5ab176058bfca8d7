//! The `/etc/nccl.conf` of a container whose root is out of reach when its NICs arrive: a file of
//! the host's, which is mounted in the container before, and filled then.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hmac_sha256::Hash as Sha256;
use rustix::fs::{self, Mode, OFlags};

use super::Store;
use crate::disk::replace::{self, Replacement};
use crate::disk::{doing, files};
use crate::kernel::process::pidfd;

/// Ids are unique only within a runtime, so the bundle counts, too.
pub(super) fn digest(id: &str, bundle: &str) -> String {
    let digest = Sha256::hash(format!("{id}\0{bundle}").as_bytes());
    digest
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Whether the process that a file's name has is no more; `None` where the name has none.
pub(super) fn is_widowed(name: &str) -> Option<bool> {
    let mut parts = name.split('-').skip(1);
    let (pid, start) = (
        parts.next()?.parse::<i32>().ok()?,
        parts.next()?.parse::<u64>().ok()?,
    );
    Some(pidfd::start_time(pid) != Some(start))
}

impl Store {
    fn late_confs(&self) -> PathBuf {
        self.run.join("conf")
    }

    /// Those of a container: one, unless a hook was killed.
    fn late_confs_of(&self, id: &str, bundle: &str) -> Result<Vec<PathBuf>> {
        let digest = digest(id, bundle);
        Ok(files::list(&self.late_confs())?
            .iter()
            .filter(|n| n.split('-').next() == Some(&digest))
            .map(|n| self.late_confs().join(n))
            .collect())
    }

    /// Stores what the image has, for the users who may read it there, under a name that has the
    /// process whose mount namespace shows it: gVisor's gofer, which lives as long as its
    /// container.
    pub fn put_late_conf(
        &self,
        id: &str,
        bundle: &str,
        image: &[u8],
        (uid, gid, mode): (u32, u32, u32),
    ) -> Result<File> {
        files::private_dir(&self.run)?;
        files::private_dir(&self.late_confs())?;
        let holder = pidfd::parent_in_proc()
            .map(|(pid, start)| format!("-{pid}-{start}"))
            .unwrap_or_default();
        let path = self.late_confs().join(digest(id, bundle) + &holder);
        // Those of another container of that name and bundle, which has ended.
        self.late_confs_of(id, bundle)?
            .iter()
            .filter(|older| **older != path)
            .try_for_each(|p| files::remove(p))?;
        // No lock is held here: a sweep must not take the unfinished file of a hook that still
        // writes.
        let replacement = Replacement::with_mode(mode).in_shared_folder().unsynced();
        replacement.write(&path, image)?;
        chown(&path, Some(uid), Some(gid))
            .with_context(|| format!("giving {} its owner", path.display()))?;
        open(&path).with_context(|| format!("opening {}", path.display()))
    }

    /// Makes of the file what `merge` makes of the image's; nothing where there is none. In place:
    /// the container has this very file.
    pub fn fill_late_conf(
        &self,
        id: &str,
        bundle: &str,
        merge: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> Result<bool> {
        let Some(path) = self.late_confs_of(id, bundle)?.into_iter().next() else {
            return Ok(false);
        };
        let doing = doing("filling", &path);
        let mut file = match open(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            other => other.with_context(doing)?,
        };
        let mut image = Vec::new();
        file.read_to_end(&mut image).with_context(doing)?;
        let merged = merge(&image);
        file.rewind()
            .and_then(|()| file.write_all(&merged))
            .with_context(doing)?;
        file.set_len(merged.len() as u64).with_context(doing)?;
        Ok(true)
    }

    pub fn remove_late_conf(&self, id: &str, bundle: &str) -> Result<()> {
        self.late_confs_of(id, bundle)?
            .iter()
            .try_for_each(|path| files::remove(path))
    }

    /// Spares the file of a gofer that lives: the container may have been started again under its
    /// id, and waits for its NICs.
    pub fn remove_ended_late_conf(&self, id: &str, bundle: &str) -> Result<()> {
        for path in self.late_confs_of(id, bundle)? {
            let name = path.file_name().and_then(|n| n.to_str());
            if name.and_then(is_widowed) != Some(false) {
                files::remove(&path)?;
            }
        }
        Ok(())
    }

    /// Removes those of containers that have ended without a stop hook, and what a killed
    /// createContainer hook left. It waits for no lock: a file belongs to one container.
    pub fn sweep_late_confs(&self) -> Result<()> {
        replace::sweep(&self.late_confs())?;
        let names = files::list(&self.late_confs())?;
        names
            .iter()
            .filter(|name| is_widowed(name) == Some(true))
            .try_for_each(|name| files::remove(&self.late_confs().join(name)))
    }
}

fn open(path: &Path) -> io::Result<File> {
    Ok(fs::open(
        path,
        OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_hook_left_goes_with_a_write_or_a_sweep() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path(), folder.path());
        let owner = (
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw(),
            0o644,
        );
        let left = store.late_confs().join(".new-file");
        let put = || {
            store
                .put_late_conf("g", "/b", b"NCCL_DEBUG=WARN\n", owner)
                .unwrap()
        };
        put();
        let names = files::list(&store.late_confs()).unwrap();
        std::fs::write(&left, "half").unwrap();
        put();
        assert_eq!(files::list(&store.late_confs()).unwrap(), names);
        std::fs::write(&left, "half").unwrap();
        assert_eq!(store.sweep(), [""; 0]);
        // Its holder is this test's parent, which lives.
        assert_eq!(files::list(&store.late_confs()).unwrap(), names);
    }
}
