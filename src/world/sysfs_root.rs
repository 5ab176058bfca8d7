//! Reading below a /sys root that may be a captured one: no step leaves the root, no read is long, nothing panics.
//!
//! What was read is remembered as long as the root is open, so that whoever asks, no file is read and no directory listed
//! twice. A path is resolved in what was listed: the kernel is never asked to follow a link.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;

use rustix::fs::{
    AtFlags, CWD, Dir as DirStream, FileType, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat, statat,
};
use rustix::io::{Errno, read};

use crate::ident::BusId;

/// An attribute is at most a page (`sysfs_emit()` in fs/sysfs/file.c).
const ATTRIBUTE: usize = 4096;

/// The most that is read of one file: `meminfo` and the like in a copy of a /sys may be longer than a page.
const LIMIT: usize = 64 << 10;

/// As many links as the kernel follows in one path (MAXSYMLINKS, include/linux/namei.h).
const MAX_LINKS: usize = 40;

/// What a name in a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Dir,
    File,
    Link,
}

/// What reading a file gave.
#[derive(Clone, Debug)]
pub(super) enum Contents {
    Bytes(Rc<[u8]>),
    /// EINVAL: an unused entry of a GID table, or the speed of a link that is down.
    Invalid,
    Unreadable,
}

type Listing = Rc<BTreeMap<String, Kind>>;

#[derive(Default)]
struct Seen {
    dirs: HashMap<String, Option<Listing>>,
    files: HashMap<String, Contents>,
    links: HashMap<String, Option<Rc<str>>>,
}

/// A /sys, or a copy of one.
pub(super) struct Root {
    top: OwnedFd,
    seen: RefCell<Seen>,
}

impl Root {
    /// `path` is a /sys, or a directory that holds one as `sys`.
    pub(super) fn open(path: &Path) -> io::Result<Root> {
        let path = fs::canonicalize(path)?;
        let is_sys = |p: &PathBuf| ["class", "bus", "devices"].iter().any(|d| p.join(d).is_dir());
        let Some(sys) = [path.clone(), path.join("sys")].into_iter().find(is_sys) else {
            return Err(io::Error::new(io::ErrorKind::NotFound, "neither class, bus nor devices is in it"));
        };
        let top = openat(CWD, &sys, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Root { top, seen: RefCell::default() })
    }

    /// A directory below the root.
    pub(super) fn dir(&self, path: &str) -> Option<Dir<'_>> {
        Dir { root: self, path: String::new() }.sub(path)
    }

    /// Where a path ends when its links are followed, and what is there; none where it dangles, turns in a circle, or leads
    /// out of the root.
    fn find(&self, path: &str) -> Option<(String, Kind)> {
        let mut todo: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
        let (mut at, mut kind, mut links) = (String::new(), Kind::Dir, 0);
        while let Some(part) = todo.pop() {
            match part.as_str() {
                "" | "." => continue,
                ".." if at.is_empty() => return None,
                ".." => {
                    at.truncate(at.rfind('/').unwrap_or(0));
                    kind = Kind::Dir;
                    continue;
                }
                _ => {}
            }
            kind = *self.listing(&at)?.get(&part)?;
            if kind == Kind::Link {
                links += 1;
                let target = self.target(&join(&at, &part)).filter(|t| links <= MAX_LINKS && !t.starts_with('/'))?;
                todo.extend(target.split('/').rev().map(str::to_owned));
                kind = Kind::Dir;
            } else {
                at = join(&at, &part);
            }
        }
        Some((at, kind))
    }

    /// The names in a directory that is given by its real path; those that are no UTF-8 are left out, since no kernel object
    /// has such a name here, and so is what is neither directory, file nor link.
    fn listing(&self, dir: &str) -> Option<Listing> {
        if let Some(known) = self.seen.borrow().dirs.get(dir) {
            return known.clone();
        }
        let listing = self.list(dir).ok().map(Rc::new);
        self.seen.borrow_mut().dirs.insert(dir.to_owned(), listing.clone());
        listing
    }

    fn list(&self, dir: &str) -> Result<BTreeMap<String, Kind>, Errno> {
        let fd = self.open_at(dir, OFlags::DIRECTORY)?;
        let mut names = BTreeMap::new();
        for entry in DirStream::new(fd)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let told = match entry.file_type() {
                // Some filesystems that a copy may lie on do not say.
                FileType::Unknown => FileType::from_raw_mode(
                    statat(&self.top, join(dir, name), AtFlags::SYMLINK_NOFOLLOW).map(|s| s.st_mode)?,
                ),
                told => told,
            };
            let kind = match told {
                FileType::Directory => Kind::Dir,
                FileType::RegularFile => Kind::File,
                FileType::Symlink => Kind::Link,
                _ => continue,
            };
            if !matches!(name, "." | "..") {
                names.insert(name.to_owned(), kind);
            }
        }
        Ok(names)
    }

    /// A link's target, verbatim.
    fn target(&self, link: &str) -> Option<Rc<str>> {
        if let Some(known) = self.seen.borrow().links.get(link) {
            return known.clone();
        }
        let target = readlinkat(&self.top, link, Vec::new()).ok().and_then(|t| t.into_string().ok()).map(Rc::from);
        self.seen.borrow_mut().links.insert(link.to_owned(), target.clone());
        target
    }

    fn contents(&self, file: &str) -> Contents {
        if let Some(known) = self.seen.borrow().files.get(file) {
            return known.clone();
        }
        let contents = match self.read(file) {
            Ok(bytes) => Contents::Bytes(bytes.into()),
            Err(Errno::INVAL) => Contents::Invalid,
            Err(_) => Contents::Unreadable,
        };
        self.seen.borrow_mut().files.insert(file.to_owned(), contents.clone());
        contents
    }

    fn read(&self, file: &str) -> Result<Vec<u8>, Errno> {
        // All of configuration space takes a device a millisecond; what lspci and hwloc want of it is in the first part.
        let limit = if file.ends_with("/config") { 256 } else { LIMIT };
        let fd = self.open_at(file, OFlags::NONBLOCK)?;
        let mut page = [0; ATTRIBUTE];
        let mut bytes = Vec::new();
        loop {
            let room = ATTRIBUTE.min(limit - bytes.len());
            let got = read(&fd, page.get_mut(..room).unwrap_or_default())?;
            bytes.extend_from_slice(page.get(..got).unwrap_or_default());
            // The kernel gives an attribute at once: only a full page may have more behind it.
            if got < ATTRIBUTE || bytes.len() >= limit {
                return Ok(bytes);
            }
        }
    }

    /// Opens a real path. What somebody exchanged for a link since it was listed is not followed.
    fn open_at(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { "." } else { path };
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        openat2(&self.top, path, flags | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty(), how)
    }
}

/// `name` in `dir`, where the top has no name.
pub(super) fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}

/// A directory by its real path, which lies below the root.
#[derive(Clone)]
pub(super) struct Dir<'r> {
    root: &'r Root,
    path: String,
}

impl<'r> Dir<'r> {
    /// Its path below the root.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// A directory in it, through links; none where they dangle, turn in a circle, or lead out of the root.
    pub(super) fn sub(&self, name: &str) -> Option<Dir<'r>> {
        let (path, kind) = self.root.find(&join(&self.path, name))?;
        (kind == Kind::Dir).then_some(Dir { root: self.root, path })
    }

    /// The names in it, sorted.
    pub(super) fn names(&self) -> Vec<String> {
        self.root.listing(&self.path).map(|l| l.keys().cloned().collect()).unwrap_or_default()
    }

    /// What a name in it is.
    pub(super) fn kind(&self, name: &str) -> Option<Kind> {
        self.root.listing(&self.path)?.get(name).copied()
    }

    /// Whether the name is a plain file, such as `class/net/bonding_masters`.
    pub(super) fn is_file(&self, name: &str) -> bool {
        self.kind(name) == Some(Kind::File)
    }

    /// Whether the name is a directory of its own.
    pub(super) fn is_dir(&self, name: &str) -> bool {
        self.kind(name) == Some(Kind::Dir)
    }

    /// What is in a file; a copy's pipes and devices are not there.
    pub(super) fn contents(&self, name: &str) -> Contents {
        if self.is_file(name) { self.root.contents(&join(&self.path, name)) } else { Contents::Unreadable }
    }

    /// An attribute without the white space around it; none where it is absent, unreadable, or empty.
    pub(super) fn attr(&self, name: &str) -> Option<String> {
        let Contents::Bytes(value) = self.contents(name) else { return None };
        let value = String::from_utf8_lossy(value.get(..ATTRIBUTE).unwrap_or(&value));
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

    /// A link's target as it is written, which need not exist.
    pub(super) fn target(&self, name: &str) -> Option<Rc<str>> {
        if self.kind(name)? == Kind::Link { self.root.target(&join(&self.path, name)) } else { None }
    }

    /// The last component of a link's target.
    pub(super) fn link(&self, name: &str) -> Option<String> {
        let target = self.target(name)?;
        Some(Path::new(&*target).file_name()?.to_str()?.to_owned())
    }

    /// The nearest PCI function at or above it: its parent may be an auxiliary device or a virtio child of that.
    pub(super) fn pci(&self) -> Option<(BusId, Dir<'r>)> {
        let mut path = self.path.as_str();
        loop {
            let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
            if let Ok(id) = name.parse() {
                return Some((id, Dir { root: self.root, path: path.to_owned() }));
            }
            if above.is_empty() {
                return None;
            }
            path = above;
        }
    }

    /// The directory above it.
    pub(super) fn above(&self) -> Option<Dir<'r>> {
        let path = self.path.rsplit_once('/').map_or("", |(above, _)| above).to_owned();
        (!self.path.is_empty()).then_some(Dir { root: self.root, path })
    }
}
