//! Reading below a /sys root that may be a captured one: no step leaves the root, no read is long, nothing panics.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};

use crate::ident::BusId;

/// An attribute is at most a page (`sysfs_emit()` in fs/sysfs/file.c).
const ATTRIBUTE: u64 = 4096;

/// A /sys, or a copy of one.
pub(super) struct Root(PathBuf);

impl Root {
    /// `path` is a /sys, or a directory that holds one as `sys`.
    pub(super) fn open(path: &Path) -> io::Result<Root> {
        let path = fs::canonicalize(path)?;
        let is_sys = |p: &Path| ["class", "bus", "devices"].iter().any(|d| p.join(d).is_dir());
        match [path.clone(), path.join("sys")].into_iter().find(|p| is_sys(p)) {
            Some(sys) => Ok(Root(fs::canonicalize(sys)?)),
            None => Err(io::Error::new(io::ErrorKind::NotFound, "neither class, bus nor devices is in it")),
        }
    }

    /// A directory below the root.
    pub(super) fn dir(&self, path: &str) -> Option<Dir<'_>> {
        Dir { root: self, path: self.0.clone() }.sub(path)
    }
}

/// A directory by its real path, which lies below the root.
#[derive(Clone)]
pub(super) struct Dir<'r> {
    root: &'r Root,
    path: PathBuf,
}

impl<'r> Dir<'r> {
    /// Its path below the root.
    pub(super) fn path(&self) -> &Path {
        self.path.strip_prefix(&self.root.0).unwrap_or(Path::new(""))
    }

    /// A directory in it, through links; none where they dangle, turn in a circle, or lead out of the root.
    pub(super) fn sub(&self, name: &str) -> Option<Dir<'r>> {
        let path = fs::canonicalize(self.path.join(name)).ok()?;
        (path.starts_with(&self.root.0) && path.is_dir()).then_some(Dir { root: self.root, path })
    }

    /// The names in it, sorted; those that are no UTF-8 are left out, since no kernel object has such a name here.
    pub(super) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Whether the name is a plain file, such as `class/net/bonding_masters`.
    pub(super) fn is_file(&self, name: &str) -> bool {
        fs::symlink_metadata(self.path.join(name)).is_ok_and(|m| m.is_file())
    }

    /// Whether the name is a directory of its own.
    pub(super) fn is_dir(&self, name: &str) -> bool {
        fs::symlink_metadata(self.path.join(name)).is_ok_and(|m| m.is_dir())
    }

    /// An attribute without the white space around it; none where it is absent, unreadable, or empty.
    pub(super) fn attr(&self, name: &str) -> Option<String> {
        let value = read(&self.path.join(name)).ok()?;
        let value = String::from_utf8_lossy(&value);
        let value = value.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        (!value.is_empty()).then(|| value.to_owned())
    }

    /// An attribute as a value; none also where it is malformed.
    pub(super) fn parse<T: FromStr>(&self, name: &str) -> Option<T> {
        self.attr(name)?.parse().ok()
    }

    /// A hexadecimal attribute, `0x…`.
    pub(super) fn hex(&self, name: &str) -> Option<u32> {
        u32::from_str_radix(self.attr(name)?.strip_prefix("0x")?, 16).ok()
    }

    /// The last component of a link's target, which need not exist.
    pub(super) fn link(&self, name: &str) -> Option<String> {
        let target = fs::read_link(self.path.join(name)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// The nearest PCI function at or above it: its parent may be an auxiliary device or a virtio child of that.
    pub(super) fn pci(&self) -> Option<(BusId, Dir<'r>)> {
        let below = self.path.ancestors().take_while(|p| *p != self.root.0);
        below.into_iter().find_map(|p| {
            let id = p.file_name()?.to_str()?.parse().ok()?;
            Some((id, Dir { root: self.root, path: p.to_owned() }))
        })
    }

    /// The directory above it.
    pub(super) fn above(&self) -> Option<Dir<'r>> {
        let path = self.path.parent()?.to_owned();
        path.starts_with(&self.root.0).then_some(Dir { root: self.root, path })
    }
}

/// Attributes are plain files: a copy's pipes must not block us, its links must not lead us elsewhere.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file: File = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut value = Vec::new();
    file.take(ATTRIBUTE).read_to_end(&mut value)?;
    Ok(value)
}
