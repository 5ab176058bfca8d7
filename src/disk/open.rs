//! The one way to open what a bundle, a runtime's state, an engine or a configuration names. It
//! never waits, neither for the other end of a FIFO nor for a device. The type is checked first, as
//! some devices act on open(2) alone (a watchdog starts, a tape rewinds), and once more by the
//! descriptor, as a name may be another file by then.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::ErrorKind::NotFound;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use nix::libc::{O_CLOEXEC, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK};
use rustix::fs::{major, minor};

use super::doing;

const LINKS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    Followed,
    Refused,
}

/// Opens a plain file, or /dev/null for an empty one, for reading; `None` if there is none.
pub fn plain(path: &Path, links: Links) -> Result<Option<File>> {
    let doing = doing("opening", path);
    let found = match links {
        Links::Followed => fs::metadata(path),
        Links::Refused => fs::symlink_metadata(path),
    };
    match found {
        Err(e) if e.kind() == NotFound => return Ok(None),
        found => is_readable(path, &found.with_context(doing)?)?,
    }
    let nofollow = if links == Links::Refused {
        O_NOFOLLOW
    } else {
        0
    };
    let flags = O_CLOEXEC | O_NONBLOCK | O_NOCTTY | nofollow;
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(e) if e.kind() == NotFound => Ok(None),
        opened => {
            let file = opened.with_context(doing)?;
            is_readable(path, &file.metadata().with_context(doing)?)?;
            Ok(Some(file))
        }
    }
}

/// Opens a plain file for writing, and makes it, with mode 0600, where there is none. A link is not
/// followed.
pub fn to_write(path: &Path, append: bool) -> Result<File> {
    let doing = doing("opening", path);
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == NotFound => {}
        found => is_plain(path, &found.with_context(doing)?)?,
    }
    let mut options = OpenOptions::new();
    options
        .create(true)
        .truncate(false)
        .append(append)
        .write(true)
        .mode(0o600);
    options.custom_flags(O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW);
    let file = options.open(path).with_context(doing)?;
    is_plain(path, &file.metadata().with_context(doing)?)?;
    Ok(file)
}

/// Opens a log to append to it. A link of root's or our own is followed, as an administrator may
/// have put the log elsewhere; another user's is not. `None` where that leads to /dev/null: nothing
/// is to be kept.
pub fn log(path: &Path) -> Result<Option<File>> {
    let path = behind_own_links(path)?;
    if fs::symlink_metadata(&path).is_ok_and(|meta| is_null(&meta)) {
        return Ok(None);
    }
    to_write(&path, true).map(Some)
}

fn behind_own_links(path: &Path) -> Result<PathBuf> {
    let mut at = path.to_owned();
    let owner = nix::unistd::geteuid().as_raw();
    for _ in 0..LINKS {
        let Some(meta) = fs::symlink_metadata(&at).ok().filter(Metadata::is_symlink) else {
            return Ok(at);
        };
        ensure!(
            [0, owner].contains(&meta.uid()),
            "{} is a link of user {}",
            at.display(),
            meta.uid()
        );
        let target = fs::read_link(&at).with_context(|| format!("reading {}", at.display()))?;
        at = at
            .parent()
            .map_or(target.clone(), |folder| folder.join(&target));
    }
    bail!("{} leads over more than {LINKS} links", path.display())
}

fn is_null(meta: &Metadata) -> bool {
    meta.file_type().is_char_device() && (major(meta.rdev()), minor(meta.rdev())) == (1, 3)
}

fn is_readable(path: &Path, meta: &Metadata) -> Result<()> {
    if is_null(meta) {
        Ok(())
    } else {
        is_plain(path, meta)
    }
}

fn is_plain(path: &Path, meta: &Metadata) -> Result<()> {
    let kind = meta.file_type();
    let what = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_symlink() => "a link",
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    bail!("{} is no plain file but {what}", path.display())
}
