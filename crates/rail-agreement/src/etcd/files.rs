//! Files that a URL names: a password, certificates. Opening one never blocks, as on a FIFO without
//! a writer, and never touches a device: the type is checked before open(2), and again by the
//! descriptor, as another file may have taken the name.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::ErrorKind::NotFound;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use nix::libc::{O_CLOEXEC, O_NOCTTY, O_NONBLOCK};
use nix::sys::stat::{major, minor};

const MOST: u64 = 1 << 20;

/// Reads a file of at most [`MOST`] bytes; a link is followed, /dev/null is an empty file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let file = open(path)?.with_context(|| format!("there is no {}", path.display()))?;
    let mut bytes = Vec::new();
    file.take(MOST + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("reading {}", path.display()))?;
    ensure!(
        bytes.len() as u64 <= MOST,
        "{} has more than {MOST} bytes",
        path.display()
    );
    Ok(bytes)
}

fn open(path: &Path) -> Result<Option<File>> {
    let doing = || format!("opening {}", path.display());
    match fs::metadata(path) {
        Err(e) if e.kind() == NotFound => return Ok(None),
        found => check(path, &found.with_context(doing)?)?,
    }
    match OpenOptions::new()
        .read(true)
        .custom_flags(O_CLOEXEC | O_NONBLOCK | O_NOCTTY)
        .open(path)
    {
        Err(e) if e.kind() == NotFound => Ok(None),
        opened => {
            let file = opened.with_context(doing)?;
            check(path, &file.metadata().with_context(doing)?)?;
            Ok(Some(file))
        }
    }
}

/// Checks that it is a plain file, or /dev/null (1:3, drivers/char/mem.c).
fn check(path: &Path, meta: &Metadata) -> Result<()> {
    let kind = meta.file_type();
    let what = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_char_device() && (major(meta.rdev()), minor(meta.rdev())) == (1, 3) => {
            return Ok(());
        }
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    bail!("{} is no plain file but {what}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_takes_plain_files_and_dev_null_alone() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("plain"), "secret").unwrap();
        std::os::unix::fs::symlink(at("plain"), at("link")).unwrap();
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::write(at("long"), vec![0; MOST as usize + 1]).unwrap();
        assert_eq!(
            (read(&at("plain")).unwrap(), read(&at("link")).unwrap()),
            (b"secret".to_vec(), b"secret".to_vec())
        );
        assert_eq!(read(Path::new("/dev/null")).unwrap(), b"");
        let why = |name: &str| format!("{:#}", read(&at(name)).unwrap_err());
        assert!(
            why("fifo").ends_with("is no plain file but a FIFO")
                && why("").ends_with("but a folder")
        );
        assert!(
            why("none").starts_with("there is no ")
                && why("long").ends_with("has more than 1048576 bytes")
        );
    }
}
