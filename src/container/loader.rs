//! Shared libraries below a container's root, as its loader finds them for dlopen(3): in the
//! folders of LD_LIBRARY_PATH, by /etc/ld.so.cache, in the default folders (ld.so(8)). The RUNPATH
//! of the library that asks is not known here. A root is untrusted: see
//! [`crate::kernel::mount::rootfs`].

use std::io::Read;
use std::os::fd::OwnedFd;

use crate::kernel::mount::rootfs::{self, Root};

const CACHE: &str = "etc/ld.so.cache";
const CONF: &str = "etc/ld.so.conf";
/// What a file may have. libibverbs of distributions has 0.1 to 0.2 MB, a cache no more.
const LIMIT: u64 = 16 << 20;

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

pub(super) struct Loader<'r> {
    root: &'r Root,
    cache: Vec<u8>,
    /// The folders of LD_LIBRARY_PATH.
    first: Vec<&'r str>,
}

impl<'r> Loader<'r> {
    pub(super) fn new(root: &'r Root, library_path: Option<&'r str>) -> Loader<'r> {
        let folders = library_path.unwrap_or_default().split([':', ';']);
        Loader {
            root,
            cache: bytes(root, CACHE).unwrap_or_default(),
            first: folders.filter(|f| f.starts_with('/')).collect(),
        }
    }

    /// Where a library is.
    pub(super) fn find(&self, name: &str) -> Option<(String, OwnedFd)> {
        let cached = entries(&self.cache).filter(|(key, _)| *key == name);
        let cached = cached.map(|(_, path)| path.to_owned());
        let first = self.first.iter().map(|folder| join(folder, name));
        let last = FOLDERS.iter().map(|folder| join(folder, name));
        first
            .chain(cached)
            .chain(last)
            .find_map(|path| Some((library(self.root, &path)?, path)))
            .map(|(found, path)| (path, found))
    }

    /// The folder of ld.so.conf that has a library which the cache lacks: ldconfig was not run.
    pub(super) fn uncached(&self, name: &str) -> Option<String> {
        let mut folders = configured(self.root).into_iter();
        folders.find(|folder| library(self.root, &join(folder, name)).is_some())
    }

    /// The names of this form that [`Loader::find`] may find.
    pub(super) fn names(&self, prefix: &str, suffix: &str) -> Vec<String> {
        let cached = entries(&self.cache).map(|(key, _)| key.to_owned());
        let folders = self.first.iter().chain(&FOLDERS);
        let listed = folders.flat_map(|folder| list(self.root, folder));
        let fits = |name: &String| name.starts_with(prefix) && name.ends_with(suffix);
        let mut names: Vec<String> = cached.chain(listed).filter(fits).collect();
        names.sort();
        names.dedup();
        names
    }
}

fn join(folder: &str, name: &str) -> String {
    format!("{}/{name}", folder.trim_end_matches('/'))
}

/// A whole file below the root, if it is a plain one that is not too large.
fn bytes(root: &Root, path: &str) -> Option<Vec<u8>> {
    contents(root, &root.find(path).ok()?)
}

pub(super) fn contents(root: &Root, found: &OwnedFd) -> Option<Vec<u8>> {
    rootfs::read(&root.open_file(found).ok()?, LIMIT).ok()
}

pub(super) fn text(root: &Root, path: &str) -> Option<String> {
    String::from_utf8(bytes(root, path)?).ok()
}

/// The names in a folder below the root.
pub(super) fn list(root: &Root, folder: &str) -> Vec<String> {
    root.find(folder)
        .and_then(rootfs::names)
        .unwrap_or_default()
}

/// Finds a file that is an ELF file of this machine: the loader passes over others.
pub(super) fn library(root: &Root, path: &str) -> Option<OwnedFd> {
    let found = root.find(path).ok()?;
    let mut file = root.open_file(&found).ok()?;
    let mut head = [0; 20];
    file.read_exact(&mut head).ok()?;
    let is_elf = head.starts_with(b"\x7fELF\x02");
    let machine = u16::from_le_bytes([head[18], head[19]]);
    (is_elf && machine == MACHINE).then_some(found)
}

const OLD: &[u8] = b"ld.so-1.7.0";
const NEW: &[u8] = b"glibc-ld.so.cache1.1";

/// Names and paths in a cache (sysdeps/generic/dl-cache.h of glibc): a head of 48 bytes, then
/// entries of 24, whose strings are counted from the head. An older format may come before it.
fn entries(cache: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    let old = || number(cache, OLD.len() + 1).map(|n| (16 + n * 12).next_multiple_of(8));
    let start = match cache.starts_with(OLD) {
        true => old().unwrap_or(cache.len()),
        false => 0,
    };
    let new = cache
        .get(start..)
        .filter(|rest| rest.starts_with(NEW))
        .unwrap_or_default();
    let count = number(new, NEW.len()).unwrap_or(0).min(new.len() / 24);
    (0..count).filter_map(|at| {
        let at = 48 + at * 24;
        Some((
            string(new, number(new, at + 4)?)?,
            string(new, number(new, at + 8)?)?,
        ))
    })
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let four = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(four)).ok()
}

fn string(bytes: &[u8], at: usize) -> Option<&str> {
    let text = bytes.get(at..)?.split(|b| *b == 0).next()?;
    std::str::from_utf8(text).ok()
}

/// The folders that ldconfig reads, without those of an include inside an included file.
fn configured(root: &Root) -> Vec<String> {
    let text_of = |path: &str| text(root, path).unwrap_or_default();
    let own = text_of(CONF);
    let mut all = own.clone();
    for pattern in own.lines().filter_map(|line| line.strip_prefix("include ")) {
        let Some((folder, name)) = pattern.trim().rsplit_once('/') else {
            continue;
        };
        let suffix = name.trim_start_matches('*');
        for name in list(root, folder).iter().filter(|n| n.ends_with(suffix)) {
            all += &format!("\n{}", text_of(&join(folder, name)));
        }
    }
    all.lines()
        .map(str::trim)
        .filter(|line| line.starts_with('/'))
        .map(str::to_owned)
        .collect()
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

    #[test]
    fn a_cache_is_read_in_both_formats() {
        let libraries = [("liba.so.1", "/opt/a/liba.so.1"), ("libb.so", "/b/libb.so")];
        let new = cache(&libraries);
        assert_eq!(entries(&new).collect::<Vec<_>>(), libraries);
        let mut old = [OLD, b"\0", &1_u32.to_le_bytes(), &[7; 12]].concat();
        old.resize(old.len().next_multiple_of(8), 0);
        let both = [old, new.clone()].concat();
        assert_eq!(entries(&both).collect::<Vec<_>>(), libraries);
        for cut in 0..new.len() {
            let _ = entries(&new[..cut]).count();
        }
        let mut wild = new;
        wild[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(entries(&wild).count() < 20, "no more than there is room");
    }
}
