//! Shared libraries below a container's root, as its loader finds them for dlopen(3): in the
//! folders of the program's RPATH ([`crate::kernel::mount::program`]), of LD_LIBRARY_PATH, by
//! /etc/ld.so.cache, in the default folders (ld.so(8)). A root is untrusted: see
//! [`crate::kernel::mount::rootfs`].

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io::Read;
use std::os::fd::OwnedFd;

use rdma_model::escape::is_unsafe;

use super::budget::Budget;
use crate::kernel::mount::rootfs::{self, Root};
use crate::kernel::mount::{elf, program};

const CACHE: &str = "etc/ld.so.cache";
const CONF: &str = "etc/ld.so.conf";
/// What ld.so.conf and the files that it includes may have; they have a line for each package.
const CONF_BYTES: usize = 1 << 20;
/// Folders that RPATH and LD_LIBRARY_PATH may have.
const FIRST: usize = 64;
/// PATH_MAX: what is longer names no file.
const NAME: usize = 4096;

/// The default folders of glibc: Debian's by architecture, then those of others
/// (sysdeps/unix/sysv/linux/*/ldconfig.h, and Debian's patch local-multiarch).
#[cfg(target_arch = "aarch64")]
const FOLDERS: [&str; 6] = [
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];
#[cfg(not(target_arch = "aarch64"))]
const FOLDERS: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// The loader itself, by the ABI of each architecture.
pub(super) const PROGRAM: &str = if cfg!(target_arch = "aarch64") {
    "/lib/ld-linux-aarch64.so.1"
} else {
    "/lib64/ld-linux-x86-64.so.2"
};

/// EM_X86_64 and EM_AARCH64 of elf(5).
const MACHINE: u16 = if cfg!(target_arch = "aarch64") {
    183
} else {
    62
};

pub(super) struct Loader<'l> {
    root: &'l Root,
    budget: &'l Budget<'l>,
    cache: Vec<u8>,
    /// The folders of RPATH, then those of LD_LIBRARY_PATH.
    first: Vec<String>,
}

impl<'l> Loader<'l> {
    pub(super) fn new(
        root: &'l Root,
        rpath: Vec<String>,
        library_path: Option<&str>,
        budget: &'l Budget<'l>,
    ) -> Loader<'l> {
        let named = folders(library_path).map(str::to_owned);
        let first: Vec<String> = rpath.into_iter().chain(named).take(FIRST + 1).collect();
        if first.len() > FIRST {
            budget.give_up();
        }
        let mut loader = Loader {
            root,
            budget,
            cache: Vec::new(),
            first,
        };
        loader.cache = loader.bytes(CACHE).unwrap_or_default();
        loader
    }

    /// Where a library is.
    pub(super) fn find(&self, name: &str) -> Option<(String, OwnedFd)> {
        let cached = self.entries().filter(|entry| entry.is(name));
        let cached = cached.filter_map(|entry| entry.path().map(str::to_owned));
        let first = self.first.iter().map(|folder| join(folder, name));
        let last = FOLDERS.iter().map(|folder| join(folder, name));
        first
            .chain(cached)
            .chain(last)
            .find_map(|path| Some((self.library(&path)?, path)))
            .map(|(found, path)| (path, found))
    }

    /// Where a library may be found of which the cache has such names, and where the cache is.
    pub(super) fn places(&self, is_meant: impl Fn(&str) -> bool) -> Vec<String> {
        let mut all = self.first.clone();
        all.extend(FOLDERS.map(str::to_owned));
        all.push(format!("/{CACHE}"));
        let meant = self.entries().filter(|e| e.key().is_some_and(&is_meant));
        all.extend(meant.filter_map(|e| e.path().map(str::to_owned)));
        all
    }

    /// The folder of ld.so.conf that has a library which the cache lacks: ldconfig was not run.
    pub(super) fn uncached(&self, name: &str) -> Option<String> {
        let conf = self.configured();
        let lines = conf.lines().map(str::trim).filter(|l| l.starts_with('/'));
        lines
            .take_while(|_| self.budget.lasts())
            .filter_map(|line| printable(line.as_bytes()))
            .find(|folder| self.library(&join(folder, name)).is_some())
            .map(str::to_owned)
    }

    /// The names of this form that [`Loader::find`] may find.
    pub(super) fn names(&self, prefix: &str, suffix: &str) -> BTreeSet<String> {
        let first = self.first.iter().map(String::as_str);
        let folders = first.chain(FOLDERS);
        let mut names: BTreeSet<String> = folders.flat_map(|folder| self.list(folder)).collect();
        names.retain(|name| name.starts_with(prefix) && name.ends_with(suffix));
        for key in self.entries().filter_map(|entry| entry.key()) {
            let fits = key.starts_with(prefix) && key.ends_with(suffix);
            if fits && !names.contains(key) {
                self.budget.take(key.len());
                names.insert(key.to_owned());
            }
        }
        names
    }

    fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        entries(&self.cache).take_while(|_| self.budget.lasts())
    }

    /// A whole file below the root, if it is a plain one.
    fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        self.contents(&self.root.find(path).ok()?)
    }

    /// One that is too large, or cannot be read, ends the look: it might say anything.
    pub(super) fn contents(&self, found: &OwnedFd) -> Option<Vec<u8>> {
        if !self.budget.lasts() {
            return None;
        }
        let file = self.root.open_file(found).ok()?;
        let Ok(bytes) = rootfs::read(&file, self.budget.left() as u64) else {
            self.budget.give_up();
            return None;
        };
        self.budget.take(bytes.len());
        Some(bytes)
    }

    pub(super) fn text(&self, path: &str) -> Option<String> {
        String::from_utf8(self.bytes(path)?).ok()
    }

    /// The names in a folder below the root.
    pub(super) fn list(&self, folder: &str) -> Vec<String> {
        if !self.budget.lasts() {
            return Vec::new();
        }
        let found = self.root.find(folder).and_then(rootfs::names);
        let names = found.unwrap_or_default();
        self.budget.take(names.iter().map(String::len).sum());
        names
    }

    /// Finds a file that is an ELF file of this machine: the loader passes over others.
    pub(super) fn library(&self, path: &str) -> Option<OwnedFd> {
        if !self.budget.lasts() {
            return None;
        }
        let found = self.root.find(path).ok()?;
        let mut file = self.root.open_file(&found).ok()?;
        let mut head = [0; 20];
        file.read_exact(&mut head).ok()?;
        let is_elf = head.starts_with(b"\x7fELF\x02");
        let machine = u16::from_le_bytes([head[18], head[19]]);
        (is_elf && machine == MACHINE).then_some(found)
    }

    /// The first library that the loader does not find of those that a library needs, and these
    /// need.
    pub(super) fn lacking(&self, path: &str, file: OwnedFd) -> Option<String> {
        let (mut left, mut seen) = (vec![(path.to_owned(), file)], BTreeSet::new());
        while let Some((path, found)) = left.pop() {
            let dynamic = self
                .root
                .open_file(&found)
                .ok()
                .and_then(|f| elf::dynamic(&f));
            let dynamic = dynamic.unwrap_or_default();
            let own = dynamic.runpath.or(dynamic.rpath).unwrap_or_default();
            let origin = program::origin(self.root, &path).unwrap_or_default();
            let own = elf::folders(&own, &origin);
            for name in dynamic.needed {
                if !self.budget.lasts() {
                    return None;
                }
                if !seen.insert(name.clone()) || name.contains('/') {
                    continue;
                }
                let mut near = own.iter().map(|folder| join(folder, &name));
                let near = near.find_map(|path| Some((self.library(&path)?, path)));
                match near
                    .map(|(file, path)| (path, file))
                    .or_else(|| self.find(&name))
                {
                    Some(found) => left.push(found),
                    None => return Some(name),
                }
            }
        }
        None
    }

    /// What ldconfig reads, without the includes of an included file.
    fn configured(&self) -> String {
        let mut all = String::new();
        self.add_conf(&mut all, CONF);
        let own = all.clone();
        let patterns = own.lines().filter_map(|line| line.strip_prefix("include "));
        for pattern in patterns.take_while(|_| self.budget.lasts()) {
            let Some((folder, name)) = pattern.trim().rsplit_once('/') else {
                continue;
            };
            // A relative one is below the file's own folder (parse_conf_include() in glibc's
            // elf/ldconfig.c), as the Red Hat family has it.
            let folder = match folder.starts_with('/') {
                true => folder.to_owned(),
                false => format!("/etc/{folder}"),
            };
            let suffix = name.trim_start_matches('*');
            for name in self.list(&folder).iter().filter(|n| n.ends_with(suffix)) {
                self.add_conf(&mut all, &join(&folder, name));
            }
        }
        all
    }

    fn add_conf(&self, all: &mut String, path: &str) {
        let text = self.text(path).unwrap_or_default();
        if all.len() + text.len() > CONF_BYTES {
            self.budget.give_up();
            return;
        }
        *all += &text;
        all.push('\n');
    }
}

/// The folders that LD_LIBRARY_PATH has.
pub(super) fn folders(library_path: Option<&str>) -> impl Iterator<Item = &str> {
    let words = library_path.unwrap_or_default().split([':', ';']);
    words.filter(|folder| folder.starts_with('/'))
}

fn join(folder: &str, name: &str) -> String {
    format!("{}/{name}", folder.trim_end_matches('/'))
}

/// What can name a file, and be printed.
fn printable(text: &[u8]) -> Option<&str> {
    let short = Some(text).filter(|text| text.len() < NAME)?;
    let text = std::str::from_utf8(short).ok()?;
    (!text.contains(is_unsafe)).then_some(text)
}

const OLD: &[u8] = b"ld.so-1.7.0";
const NEW: &[u8] = b"glibc-ld.so.cache1.1";

/// A library in a cache: where its name and its path begin.
struct Entry<'c> {
    cache: &'c [u8],
    key: usize,
    path: usize,
}

impl<'c> Entry<'c> {
    /// In place: entries may share one name of megabytes.
    fn is(&self, name: &str) -> bool {
        let rest = self.cache.get(self.key..).unwrap_or_default();
        let rest = rest.strip_prefix(name.as_bytes());
        rest.is_some_and(|rest| rest.first() == Some(&0))
    }

    fn key(&self) -> Option<&'c str> {
        string(self.cache, self.key)
    }

    fn path(&self) -> Option<&'c str> {
        string(self.cache, self.path)
    }
}

/// What is in a cache (sysdeps/generic/dl-cache.h of glibc): a head of 48 bytes, then entries of
/// 24, whose strings are counted from the head. An older format may come before it.
fn entries(cache: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    let start = match cache.starts_with(OLD) {
        true => {
            number(cache, OLD.len() + 1).map_or(cache.len(), |n| (16 + n * 12).next_multiple_of(8))
        }
        false => 0,
    };
    let new = cache
        .get(start..)
        .filter(|rest| rest.starts_with(NEW))
        .unwrap_or_default();
    let count = number(new, NEW.len()).unwrap_or(0).min(new.len() / 24);
    (0..count).filter_map(|at| {
        let at = 48 + at * 24;
        Some(Entry {
            cache: new,
            key: number(new, at + 4)?,
            path: number(new, at + 8)?,
        })
    })
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let four = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(four)).ok()
}

fn string(bytes: &[u8], at: usize) -> Option<&str> {
    let rest = bytes.get(at..)?;
    let text = CStr::from_bytes_until_nul(&rest[..rest.len().min(NAME)]);
    printable(text.ok()?.to_bytes())
}

/// The strings of a file, as strings(1) finds them.
pub(super) fn strings(file: &[u8]) -> impl Iterator<Item = &str> {
    let texts = file.split(|b| *b == 0).filter(|text| !text.is_empty());
    texts.filter_map(printable)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache as ldconfig writes it.
    fn cache(libraries: &[(&str, &str)]) -> Vec<u8> {
        let mut strings = Vec::new();
        let mut bytes = [NEW, &(libraries.len() as u32).to_le_bytes()].concat();
        bytes.resize(48, 0);
        let start = 48 + libraries.len() * 24;
        for (name, path) in libraries {
            let key = start + strings.len();
            strings.extend([name.as_bytes(), b"\0"].concat());
            let value = start + strings.len();
            strings.extend([path.as_bytes(), b"\0"].concat());
            for number in [0x0303, key as u32, value as u32, 0, 0, 0] {
                bytes.extend(number.to_le_bytes());
            }
        }
        bytes.extend(strings);
        bytes
    }

    fn read(cache: &[u8]) -> Vec<(&str, &str)> {
        entries(cache)
            .filter_map(|entry| Some((entry.key()?, entry.path()?)))
            .collect()
    }

    #[test]
    fn a_cache_is_read_in_both_formats() {
        let libraries = [("liba.so.1", "/opt/a/liba.so.1"), ("libb.so", "/b/libb.so")];
        let new = cache(&libraries);
        assert_eq!(read(&new), libraries);
        let mut old = [OLD, b"\0", &1_u32.to_le_bytes(), &[7; 12]].concat();
        old.resize(old.len().next_multiple_of(8), 0);
        let both = [old, new.clone()].concat();
        assert_eq!(read(&both), libraries);
        for cut in 0..new.len() {
            let _ = read(&new[..cut]);
        }
        let names = entries(&new).map(|entry| (entry.is("liba.so.1"), entry.is("liba.so")));
        assert_eq!(Vec::from_iter(names), [(true, false), (false, false)]);
        let mut wild = new;
        wild[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(
            entries(&wild).count() < 20,
            "no more than there is room for"
        );
    }

    #[test]
    fn a_name_is_short_and_printable() {
        let long = "a".repeat(NAME);
        let libraries = [
            (long.as_str(), "/liba.so"),
            ("lib\nb.so", "/libb.so"),
            ("libc.so", "/libc.so"),
        ];
        assert_eq!(read(&cache(&libraries)), libraries[2..]);
        let file = [long.as_bytes(), b"\0\0/a\x1b\0\xff\0/b"].concat();
        assert_eq!(strings(&file).collect::<Vec<_>>(), ["/b"]);
    }

    /// 16 MiB: entries that share one name, and one path, of half of it. To copy each name, or to
    /// go through it, would take terabytes or hours.
    #[test]
    fn a_cache_of_one_long_name_has_no_library() {
        let image = tempfile::tempdir().unwrap();
        let half = 8 << 20;
        let count = (half - 48) / 24;
        let mut bytes = [NEW, &(count as u32).to_le_bytes()].concat();
        bytes.resize(48, 0);
        let long = 48 + count as u32 * 24;
        for _ in 0..count {
            for number in [0x0303, long, long, 0, 0, 0] {
                bytes.extend(number.to_le_bytes());
            }
        }
        bytes.extend(b"libibverbs.so");
        bytes.resize(2 * half - 8, b'a');
        std::fs::create_dir(image.path().join("etc")).unwrap();
        std::fs::write(image.path().join(CACHE), bytes).unwrap();
        let root = Root::open(image.path()).unwrap();
        let budget = Budget::of(std::time::Duration::from_secs(3600));
        let loader = Loader::new(&root, Vec::new(), None, &budget);
        let all: Vec<Entry> = entries(&loader.cache).collect();
        assert_eq!((all.len(), all[0].key), (count, long as usize));
        assert!(!all.iter().any(|entry| entry.is("libibverbs.so")));
        assert!(all.iter().all(|entry| entry.key().is_none()));
        assert!(loader.find("libibverbs.so").is_none());
        assert!(loader.names("lib", ".so").is_empty());
    }
}
