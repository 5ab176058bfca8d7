//! The `/etc/nccl.conf` of a container whose root is out of reach when its NICs arrive: a file of the host's, which is mounted in
//! the container before, and filled then.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hmac_sha256::Hash as Sha256;
use rustix::fs::{self, Mode, OFlags};

use super::Store;
use crate::kernel::host::files;

impl Store {
    /// Ids are unique only within a runtime, so the bundle counts, too.
    fn late_conf(&self, id: &str, bundle: &str) -> PathBuf {
        let digest = Sha256::hash(format!("{id}\0{bundle}").as_bytes());
        self.run.join("conf").join(digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>())
    }

    /// Stores what the image has, for the users who may read it there.
    pub fn put_late_conf(
        &self,
        id: &str,
        bundle: &str,
        image: &[u8],
        (uid, gid, mode): (u32, u32, u32),
    ) -> Result<File> {
        files::private_dir(&self.run)?;
        files::private_dir(&self.run.join("conf"))?;
        let path = self.late_conf(id, bundle);
        files::replace_unsynced(&path, image, mode)?;
        chown(&path, Some(uid), Some(gid)).with_context(|| format!("giving {} its owner", path.display()))?;
        open(&path).with_context(|| format!("opening {}", path.display()))
    }

    /// Makes of the file what `merge` makes of the image's; nothing where there is none. In place: the container has this very file.
    pub fn fill_late_conf(&self, id: &str, bundle: &str, merge: impl FnOnce(&[u8]) -> Vec<u8>) -> Result<bool> {
        let path = self.late_conf(id, bundle);
        let doing = || format!("filling {}", path.display());
        let mut file = match open(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            other => other.with_context(doing)?,
        };
        let mut image = Vec::new();
        file.read_to_end(&mut image).with_context(doing)?;
        let merged = merge(&image);
        file.rewind().and_then(|()| file.write_all(&merged)).with_context(doing)?;
        file.set_len(merged.len() as u64).with_context(doing)?;
        Ok(true)
    }

    pub fn remove_late_conf(&self, id: &str, bundle: &str) -> Result<()> {
        files::remove(&self.late_conf(id, bundle))
    }
}

fn open(path: &Path) -> io::Result<File> {
    Ok(fs::open(path, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?.into())
}
