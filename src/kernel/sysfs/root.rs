//! Reading below a /sys root that may be a captured one: no step leaves the root, no read is long,
//! nothing panics. What was read is remembered as long as the root is open, so that no file is read
//! and no directory listed twice. A path is resolved in what was listed: the kernel is never asked
//! to follow a link.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::{fs, io};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, openat, openat2, readlinkat, statat,
};
use rustix::io::{Errno, read};

/// An attribute is at most a page (`sysfs_emit()` in fs/sysfs/file.c).
pub(super) const ATTRIBUTE: usize = 4096;

const LISTED: usize = 16 << 10;

/// The most that is read of one file: `meminfo` and the like in a copy of a /sys may be longer than
/// a page.
const LIMIT: usize = 64 << 10;

/// As many links as the kernel follows in one path (MAXSYMLINKS, include/linux/namei.h).
const MAX_LINKS: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Dir,
    File,
    Link,
}

#[derive(Clone, Debug)]
pub(super) enum Contents {
    Bytes(Arc<[u8]>),
    /// EINVAL: an unused entry of a GID table, or the speed of a link that is down.
    Invalid,
    Unreadable,
}

pub(super) enum Entry {
    Dir,
    File(OnceLock<Contents>),
    Link(OnceLock<Option<Arc<str>>>),
}

impl Entry {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Entry::Dir => Kind::Dir,
            Entry::File(_) => Kind::File,
            Entry::Link(_) => Kind::Link,
        }
    }
}

/// What is in a directory, sorted by name. A table of GIDs has hundreds of names of a few bytes:
/// they are one text.
pub(super) struct Names {
    text: Box<str>,
    entries: Box<[(Range<u32>, Entry)]>,
}

impl Names {
    pub(super) fn get(&self, name: &str) -> Option<&Entry> {
        let at = self
            .entries
            .binary_search_by(|(known, _)| part(&self.text, known).cmp(name))
            .ok()?;
        self.entries.get(at).map(|(_, entry)| entry)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries
            .iter()
            .map(|(name, entry)| (part(&self.text, name), entry))
    }
}

fn part<'t>(text: &'t str, at: &Range<u32>) -> &'t str {
    text.get(at.start as usize..at.end as usize)
        .unwrap_or_default()
}

pub(super) type Listing = Arc<Names>;

struct Memory {
    top: OwnedFd,
    /// By their real paths, those that could be listed. A second thread waits for the first one's
    /// listing.
    dirs: Mutex<HashMap<String, Arc<OnceLock<Option<Listing>>>>>,
}

/// A /sys, or a copy of one: one thread's hold on it.
pub(super) struct Root {
    memory: Arc<Memory>,
    /// The directory that was opened last: one after the other, its files need no walk from the
    /// top.
    last: RefCell<Option<(String, OwnedFd)>>,
}

impl Memory {
    fn known(&self, dir: &str) -> Option<Arc<OnceLock<Option<Listing>>>> {
        self.dirs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(dir)
            .cloned()
    }

    fn slot(&self, dir: &str) -> Arc<OnceLock<Option<Listing>>> {
        let mut dirs = self.dirs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = dirs.get(dir) {
            return slot.clone();
        }
        dirs.entry(dir.to_owned()).or_default().clone()
    }
}

impl Root {
    /// `path` is a /sys, or a directory that holds one as `sys`.
    pub(super) fn open(path: &Path) -> io::Result<Root> {
        let path = fs::canonicalize(path)?;
        let places = [path.clone(), path.join("sys")];
        let Some(sys) = places.into_iter().find(|place| is_sys(place)) else {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "neither class, bus nor devices is in it",
            ));
        };
        Ok(Root::at(openat(
            CWD,
            &sys,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?))
    }

    pub(super) fn at(top: OwnedFd) -> Root {
        Root {
            memory: Arc::new(Memory {
                top,
                dirs: Mutex::default(),
            }),
            last: RefCell::default(),
        }
    }

    /// Makes roots for other threads: what one of them reads, all know.
    pub(super) fn beside(&self) -> Box<dyn Fn() -> Root + Send + Sync> {
        let memory = self.memory.clone();
        Box::new(move || Root {
            memory: memory.clone(),
            last: RefCell::default(),
        })
    }

    /// What was listed of a directory by its real path.
    pub(super) fn known(&self, path: &str) -> Option<Listing> {
        self.memory.known(path)?.get()?.clone()
    }

    /// The directory at which a path from a real one ends when its links are followed: its real
    /// path, and its names if it can be listed. None where the path dangles, turns in a circle, or
    /// leads out of the root.
    pub(super) fn walk(&self, from: &str, path: &str) -> Option<(String, Option<Listing>)> {
        // Texts with where to go on in them.
        let mut todo: Vec<(Arc<str>, usize)> = vec![(path.into(), 0)];
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
            is_dir = !matches!(entry, Entry::File(_));
            if let Entry::Link(target) = entry {
                links += 1;
                let target = self
                    .target(&at, part, target)
                    .filter(|t| links <= MAX_LINKS && !t.starts_with('/'))?;
                todo.push((target, 0));
            } else {
                if !at.is_empty() {
                    at.push('/');
                }
                at.push_str(part);
            }
        }
        let listing = self.listing(&at);
        is_dir.then_some((at, listing))
    }

    /// The names in a directory that is given by its real path; those that are no UTF-8 are left
    /// out, since no kernel object has such a name here, and so is what is neither directory, file
    /// nor link.
    fn listing(&self, dir: &str) -> Option<Listing> {
        let slot = self.memory.slot(dir);
        slot.get_or_init(|| self.list(dir).ok().map(Arc::new))
            .clone()
    }

    fn list(&self, dir: &str) -> Result<Names, Errno> {
        let fd = self.open_dir(dir)?;
        let (mut text, mut found) = (String::new(), Vec::new());
        let mut buffer = Vec::with_capacity(LISTED);
        let mut entries = RawDir::new(&fd, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            let kind = match entry.file_type() {
                // Some filesystems that a copy may lie on do not say.
                FileType::Unknown => FileType::from_raw_mode(
                    statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW).map(|s| s.st_mode)?,
                ),
                kind => kind,
            };
            let entry = match kind {
                FileType::Directory => Entry::Dir,
                FileType::RegularFile => Entry::File(OnceLock::new()),
                FileType::Symlink => Entry::Link(OnceLock::new()),
                _ => continue,
            };
            if !matches!(name, "." | "..") {
                let start = text.len();
                text.push_str(name);
                found.push((place(start)?..place(text.len())?, entry));
            }
        }
        found.sort_unstable_by(|(a, _), (b, _)| part(&text, a).cmp(part(&text, b)));
        self.last.replace(Some((dir.to_owned(), fd)));
        Ok(Names {
            text: text.into(),
            entries: found.into(),
        })
    }

    pub(super) fn target(
        &self,
        dir: &str,
        name: &str,
        known: &OnceLock<Option<Arc<str>>>,
    ) -> Option<Arc<str>> {
        known.get_or_init(|| self.read_target(dir, name)).clone()
    }

    fn read_target(&self, dir: &str, name: &str) -> Option<Arc<str>> {
        let target = match &*self.last.borrow() {
            Some((at, fd)) if at == dir => readlinkat(fd, name, Vec::new()),
            _ => readlinkat(&self.memory.top, join(dir, name), Vec::new()),
        };
        target.ok()?.into_string().ok().map(Arc::from)
    }

    pub(super) fn contents(&self, dir: &str, name: &str) -> Contents {
        match self.read(dir, name) {
            Ok(bytes) => Contents::Bytes(bytes),
            Err(Errno::INVAL) => Contents::Invalid,
            Err(_) => Contents::Unreadable,
        }
    }

    fn read(&self, dir: &str, name: &str) -> Result<Arc<[u8]>, Errno> {
        // The header of configuration space is all that the kernel shows without CAP_SYS_ADMIN
        // (pci_read_config() in drivers/pci/pci-sysfs.c), and enough for lspci and hwloc; all of it
        // takes a device a millisecond.
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

    fn open_in(&self, dir: &str, name: &str) -> Result<OwnedFd, Errno> {
        let mut last = self.last.borrow_mut();
        if last.as_ref().is_none_or(|(at, _)| at != dir) {
            *last = Some((dir.to_owned(), self.open_dir(dir)?));
        }
        let (_, fd) = last.as_ref().ok_or(Errno::NOENT)?;
        openat(
            fd,
            name,
            OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )
    }

    pub(super) fn files(&self) -> Vec<String> {
        let dirs = self
            .memory
            .dirs
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::new();
        for (dir, slot) in dirs.iter() {
            let Some(Some(names)) = slot.get().map(Option::as_deref) else {
                continue;
            };
            for (name, entry) in names.iter() {
                if matches!(entry, Entry::File(contents) if contents.get().is_some()) {
                    all.push(join(dir, name));
                }
            }
        }
        all
    }

    /// Opens a real path. What was exchanged for a link since it was listed is not followed.
    fn open_dir(&self, path: &str) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { "." } else { path };
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        openat2(
            &self.memory.top,
            path,
            OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
            how,
        )
    }
}

fn is_sys(path: &Path) -> bool {
    ["class", "bus", "devices"]
        .iter()
        .any(|dir| path.join(dir).is_dir())
}

/// A directory whose names are longer than 4 GiB cannot be listed.
fn place(at: usize) -> Result<u32, Errno> {
    u32::try_from(at).map_err(|_| Errno::OVERFLOW)
}

/// `name` in `dir`, where the top has no name.
pub(super) fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() {
        return name.to_owned();
    }
    let mut path = String::with_capacity(dir.len() + 1 + name.len());
    path.push_str(dir);
    path.push('/');
    path.push_str(name);
    path
}
