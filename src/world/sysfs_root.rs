//! Reading below a /sys root that may be a captured one: no step leaves the root, no read is long, nothing panics.
//!
//! What was read is remembered as long as the root is open, so that whoever asks, no file is read and no directory listed
//! twice. A path is resolved in what was listed: the kernel is never asked to follow a link.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, openat, openat2, readlinkat, statat};
use rustix::io::{Errno, read};

use crate::ident::BusId;

/// An attribute is at most a page (`sysfs_emit()` in fs/sysfs/file.c).
const ATTRIBUTE: usize = 4096;

/// Room for what one call tells of a directory.
const LISTED: usize = 16 << 10;

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

/// A name in a directory, and what is behind it once somebody asked.
struct Entry {
    kind: Kind,
    contents: OnceCell<Contents>,
    target: OnceCell<Option<Rc<str>>>,
}

type Listing = Rc<BTreeMap<String, Entry>>;

/// A /sys, or a copy of one.
pub(super) struct Root {
    top: OwnedFd,
    /// Directories by their real paths, those that could be listed.
    dirs: RefCell<HashMap<String, Option<Listing>>>,
    /// The directory that was opened last: one after the other, its files need no walk from the top.
    last: RefCell<Option<(String, OwnedFd)>>,
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
        Ok(Root { top, dirs: RefCell::default(), last: RefCell::default() })
    }

    /// A directory below the root.
    pub(super) fn dir(&self, path: &str) -> Option<Dir<'_>> {
        // What was listed is a real path.
        if let Some(Some(listing)) = self.dirs.borrow().get(path) {
            return Some(Dir { root: self, path: path.to_owned(), listing: Some(listing.clone()) });
        }
        self.find("", path)
    }

    /// The directory at which a path from a real one ends when its links are followed; none where it dangles, turns in a
    /// circle, or leads out of the root.
    fn find(&self, from: &str, path: &str) -> Option<Dir<'_>> {
        // Texts with where to go on in them.
        let mut todo: Vec<(Rc<str>, usize)> = vec![(path.into(), 0)];
        let (mut at, mut is_dir, mut links) = (from.to_owned(), true, 0);
        while let Some((text, start)) = todo.pop() {
            let left = text.get(start..).unwrap_or_default();
            let (part, rest) = left.split_once('/').unwrap_or((left, ""));
            if !rest.is_empty() {
                todo.push((text.clone(), start + part.len() + 1));
            }
            match part {
                "" | "." => continue,
                ".." if at.is_empty() => return None,
                ".." => {
                    at.truncate(at.rfind('/').unwrap_or(0));
                    is_dir = true;
                    continue;
                }
                _ => {}
            }
            let listing = self.listing(&at)?;
            let entry = listing.get(part)?;
            is_dir = entry.kind != Kind::File;
            if entry.kind == Kind::Link {
                links += 1;
                let target = self.target(&at, part, entry).filter(|t| links <= MAX_LINKS && !t.starts_with('/'))?;
                todo.push((target, 0));
            } else {
                if !at.is_empty() {
                    at.push('/');
                }
                at.push_str(part);
            }
        }
        is_dir.then(|| Dir { root: self, listing: self.listing(&at), path: at })
    }

    /// The names in a directory that is given by its real path; those that are no UTF-8 are left out, since no kernel object
    /// has such a name here, and so is what is neither directory, file nor link.
    fn listing(&self, dir: &str) -> Option<Listing> {
        if let Some(known) = self.dirs.borrow().get(dir) {
            return known.clone();
        }
        let listing = self.list(dir).ok().map(Rc::new);
        self.dirs.borrow_mut().insert(dir.to_owned(), listing.clone());
        listing
    }

    fn list(&self, dir: &str) -> Result<BTreeMap<String, Entry>, Errno> {
        let fd = self.open_at(dir, OFlags::DIRECTORY)?;
        let mut names = BTreeMap::new();
        let mut buffer = Vec::with_capacity(LISTED);
        let mut entries = RawDir::new(&fd, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let told = match entry.file_type() {
                // Some filesystems that a copy may lie on do not say.
                FileType::Unknown => {
                    FileType::from_raw_mode(statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW).map(|s| s.st_mode)?)
                }
                told => told,
            };
            let kind = match told {
                FileType::Directory => Kind::Dir,
                FileType::RegularFile => Kind::File,
                FileType::Symlink => Kind::Link,
                _ => continue,
            };
            if !matches!(name, "." | "..") {
                names.insert(name.to_owned(), Entry { kind, contents: OnceCell::new(), target: OnceCell::new() });
            }
        }
        self.last.replace(Some((dir.to_owned(), fd)));
        Ok(names)
    }

    /// A link's target, verbatim.
    fn target(&self, dir: &str, name: &str, entry: &Entry) -> Option<Rc<str>> {
        let read = || {
            let target = match &*self.last.borrow() {
                Some((at, fd)) if at == dir => readlinkat(fd, name, Vec::new()),
                _ => readlinkat(&self.top, join(dir, name), Vec::new()),
            };
            target.ok().and_then(|t| t.into_string().ok()).map(Rc::from)
        };
        entry.target.get_or_init(read).clone()
    }

    fn contents(&self, dir: &str, name: &str) -> Contents {
        match self.read(dir, name) {
            Ok(bytes) => Contents::Bytes(bytes),
            Err(Errno::INVAL) => Contents::Invalid,
            Err(_) => Contents::Unreadable,
        }
    }

    fn read(&self, dir: &str, name: &str) -> Result<Rc<[u8]>, Errno> {
        // The header of configuration space is all that the kernel shows without CAP_SYS_ADMIN (pci_read_config() in
        // drivers/pci/pci-sysfs.c), and enough for lspci and hwloc; all of it takes a device a millisecond.
        let limit = if name == "config" { 64 } else { LIMIT };
        let fd = self.open_in(dir, name)?;
        let mut page = [0; ATTRIBUTE];
        let mut bytes = Vec::new();
        loop {
            let room = ATTRIBUTE.min(limit - bytes.len());
            let got = read(&fd, page.get_mut(..room).unwrap_or_default())?;
            let part = page.get(..got).unwrap_or_default();
            // The kernel gives an attribute at once: only a full page may have more behind it.
            let is_last = got < ATTRIBUTE || bytes.len() + got >= limit;
            if is_last && bytes.is_empty() {
                return Ok(part.into());
            }
            bytes.extend_from_slice(part);
            if is_last {
                return Ok(bytes.into());
            }
        }
    }

    /// Opens a file in a directory.
    fn open_in(&self, dir: &str, name: &str) -> Result<OwnedFd, Errno> {
        let mut last = self.last.borrow_mut();
        if last.as_ref().is_none_or(|(at, _)| at != dir) {
            *last = Some((dir.to_owned(), self.open_at(dir, OFlags::DIRECTORY)?));
        }
        let (_, fd) = last.as_ref().ok_or(Errno::NOENT)?;
        openat(fd, name, OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }

    /// The files that were read, by their real paths.
    pub(super) fn files(&self) -> Vec<String> {
        let dirs = self.dirs.borrow();
        let read = |dir: &str, listing: &Listing| -> Vec<String> {
            let known = listing.iter().filter(|(_, entry)| entry.contents.get().is_some());
            known.map(|(name, _)| join(dir, name)).collect()
        };
        dirs.iter().filter_map(|(dir, listing)| Some(read(dir, listing.as_ref()?))).flatten().collect()
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
    /// None where it cannot be listed.
    listing: Option<Listing>,
}

impl<'r> Dir<'r> {
    /// Its path below the root.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// A directory in it, through links; none where they dangle, turn in a circle, or lead out of the root.
    pub(super) fn sub(&self, name: &str) -> Option<Dir<'r>> {
        self.root.find(&self.path, name)
    }

    /// The names in it, sorted.
    pub(super) fn names(&self) -> Vec<String> {
        self.listing.as_ref().map(|l| l.keys().cloned().collect()).unwrap_or_default()
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.listing.as_ref()?.get(name)
    }

    /// What a name in it is.
    pub(super) fn kind(&self, name: &str) -> Option<Kind> {
        Some(self.entry(name)?.kind)
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
        match self.entry(name).filter(|entry| entry.kind == Kind::File) {
            Some(entry) => entry.contents.get_or_init(|| self.root.contents(&self.path, name)).clone(),
            None => Contents::Unreadable,
        }
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
        let entry = self.entry(name).filter(|entry| entry.kind == Kind::Link)?;
        self.root.target(&self.path, name, entry)
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
            // An error that nobody reads takes its time to be made.
            if let Some(id) = name.contains(':').then(|| name.parse().ok()).flatten() {
                return self.root.dir(path).map(|dir| (id, dir));
            }
            if above.is_empty() {
                return None;
            }
            path = above;
        }
    }

    /// The directory above it.
    pub(super) fn above(&self) -> Option<Dir<'r>> {
        let path = self.path.rsplit_once('/').map_or("", |(above, _)| above);
        if self.path.is_empty() { None } else { self.root.dir(path) }
    }
}
