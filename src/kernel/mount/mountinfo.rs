//! `/proc/PID/mountinfo` as data (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its number; statx(2) returns the same one for an open file.
    pub id: u64,
    pub parent: u64,
    /// Where it is, seen from the reader's root.
    pub point: PathBuf,
    /// Its own options, not those of its file system: `ro`, `nosuid`, …
    pub options: Vec<String>,
    /// What is mounted on it shows up elsewhere, too.
    pub shared: bool,
    /// Whether it is a tmpfs that this program has made ([`super::fsmount::tmpfs`]).
    pub ours: bool,
}

pub fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|b| *b == b'\n').filter_map(mount).collect()
}

/// What a mount has of its file system, as the kernel writes it: a path, or the name of a
/// namespace.
pub fn root(text: &[u8], id: u64) -> Option<&[u8]> {
    let mut lines = text
        .split(|b| *b == b'\n')
        .map(|line| line.split(|b| *b == b' '));
    let id = id.to_string();
    lines.find_map(|mut fields| {
        (fields.next()? == id.as_bytes())
            .then(|| fields.nth(2))
            .flatten()
    })
}

fn mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let mut word = || fields.next();
    let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse().ok();
    let (id, parent) = (number(word()?)?, number(word()?)?);
    let (_device, _root, point, options) = (word()?, word()?, word()?, word()?);
    let tags: Vec<&[u8]> = fields.by_ref().take_while(|tag| *tag != b"-").collect();
    let shared = tags.iter().any(|tag| tag.starts_with(b"shared:"));
    let (kind, source) = (fields.next(), fields.next());
    let ours = kind == Some(b"tmpfs") && source == Some(b"rdmaprep");
    let options = String::from_utf8_lossy(options)
        .split(',')
        .map(str::to_owned)
        .collect();
    Some(Mount {
        id,
        parent,
        point: PathBuf::from(OsString::from_vec(unescape(point))),
        options,
        shared,
        ours,
    })
}

/// The kernel writes blank, tab, newline, backslash and number sign as a backslash and three octal
/// digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, more)) = rest.split_first() {
        let octal = more
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = more.get(3..).unwrap_or_default();
            }
            None => {
                plain.push(*first);
                rest = more;
            }
        }
    }
    plain
}

/// The mounts that are seen on the mount `on` below `dir`, by their paths from there. What lies on
/// or below one of them goes wherever it goes, so it is not among them.
pub fn below(mounts: &[Mount], on: u64, dir: &Path) -> Vec<PathBuf> {
    let mounts = mounts.iter().filter(|m| m.parent == on && m.point != dir);
    let mut all: Vec<PathBuf> = mounts
        .filter_map(|m| Some(m.point.strip_prefix(dir).ok()?.to_owned()))
        .collect();
    // Component by component, so that all that is below a path follows it.
    all.sort();
    let mut top: Vec<PathBuf> = Vec::new();
    for path in all {
        if !top.last().is_some_and(|above| path.starts_with(above)) {
            top.push(path);
        }
    }
    top
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
        30 22 0:20 / /b\\040x ro,nosuid shared:7 master:1 - sysfs sysfs rw\n\
        31 30 0:21 / /b\\040x/fs/cgroup rw master:2 - cgroup2 none rw\n\
        32 31 0:22 / /b\\040x/fs/cgroup/deep rw - tmpfs shared:9 rw\n\
        33 30 0:22 / /b\\040x/fs rw - tmpfs none rw\n\
        34 30 0:22 / /b\\040x/fs.x\\134 rw - tmpfs none rw\n\
        nonsense\n";

    #[test]
    fn lines_become_mounts() {
        let mounts = parse(TEXT);
        let shared: Vec<(u64, u64, bool)> =
            mounts.iter().map(|m| (m.id, m.parent, m.shared)).collect();
        let expected = [
            (22, 1, true),
            (30, 22, true),
            (31, 30, false),
            (32, 31, false),
            (33, 30, false),
            (34, 30, false),
        ];
        assert_eq!(shared, expected);
        assert_eq!(
            (mounts[1].point.as_path(), mounts[1].options.join("+")),
            (Path::new("/b x"), "ro+nosuid".into())
        );
    }

    #[test]
    fn only_what_is_seen_directly_is_below() {
        let seen = below(&parse(TEXT), 30, Path::new("/b x"));
        assert_eq!(seen, [Path::new("fs"), Path::new("fs.x\\")]);
    }
}
