//! The program that a container runs, and its RPATH (elf(5)): glibc looks there for what dlopen(3)
//! wants, before LD_LIBRARY_PATH, where neither the program nor the library that asks has a RUNPATH
//! (`_dl_map_object` in elf/dl-load.c). Python of conda has one; NVIDIA's libnccl.so.2 has neither,
//! from 2.18.3 to 2.32.3.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rdma_model::escape::is_unsafe;

use super::rootfs::Root;

/// Segments, bytes of the dynamic section, and bytes of a text that are looked at.
const SEGMENTS: u16 = 64;
const DYNAMIC: u64 = 64 << 10;
const TEXT: usize = 4096;

/// PT_LOAD and PT_DYNAMIC.
const LOAD: u32 = 1;
const OF_DYNAMIC: u32 = 2;
/// DT_NULL, DT_STRTAB, DT_RPATH and DT_RUNPATH.
const END: u64 = 0;
const STRTAB: u64 = 5;
const RPATH: u64 = 15;
const RUNPATH: u64 = 29;

/// The folders of its RPATH. A script's are those of its interpreter. `program` is as exec has it:
/// without a slash it is looked for in PATH.
pub fn folders(root: &Root, env: &BTreeMap<String, String>, program: &str) -> Vec<String> {
    let found = locate(root, env, program).and_then(|path| {
        let file = open(root, &path)?;
        match interpreter(&file) {
            Some(words) => {
                let path = locate(root, env, &words)?;
                Some((open(root, &path)?, path))
            }
            None => Some((file, path)),
        }
    });
    let rpath = found.and_then(|(file, path)| Some((rpath(&file)?, origin(root, &path)?)));
    let Some((rpath, origin)) = rpath else {
        return Vec::new();
    };
    let parts = rpath.split(':');
    let whole = parts.map(|part| {
        part.replace("${ORIGIN}", "$ORIGIN")
            .replace("$ORIGIN", &origin)
    });
    whole.filter(|folder| folder.starts_with('/')).collect()
}

fn locate(root: &Root, env: &BTreeMap<String, String>, program: &str) -> Option<String> {
    if program.starts_with('/') {
        return Some(program.to_owned());
    }
    let path = env.get("PATH").map_or("", String::as_str).split(':');
    let mut all = path
        .take(usize::from(SEGMENTS))
        .map(|folder| format!("{folder}/{program}"));
    all.find(|path| !program.contains('/') && open(root, path).is_some())
}

fn open(root: &Root, path: &str) -> Option<File> {
    root.open_file(&root.find(path).ok()?).ok()
}

/// Of a script: the program of its first line, and behind env(1) the program that it names.
fn interpreter(file: &File) -> Option<String> {
    let text = text(file, 0, b'\n')?;
    let mut words = text.strip_prefix("#!")?.split_ascii_whitespace();
    let first = words.next()?;
    let named = words.next().filter(|_| first.ends_with("/env"));
    Some(named.unwrap_or(first).to_owned())
}

/// The folder that a path ends in, below the root: `$ORIGIN`.
fn origin(root: &Root, path: &str) -> Option<String> {
    let top = root.find("/").ok()?;
    let (top, end) = (root.path_of(top.as_fd()).ok()?, root.find(path).ok()?);
    let end = root.path_of(end.as_fd()).ok()?;
    let below = end.strip_prefix(&top).map(|end| Path::new("/").join(end));
    let end = below.unwrap_or_else(|_| Path::new(path).to_owned());
    Some(end.parent()?.to_str()?.to_owned())
}

fn rpath(file: &File) -> Option<String> {
    let head: [u8; 64] = read(file, 0)?;
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let start = number(&head, 32)?;
    let count = u16::from_le_bytes([head[56], head[57]]).min(SEGMENTS);
    let segments: Vec<[u8; 56]> = (0..u64::from(count))
        .map_while(|at| read(file, start.checked_add(at * 56)?))
        .collect();
    let dynamic = segments.iter().find(|s| is(s, OF_DYNAMIC))?;
    let (at, size) = (number(dynamic, 8)?, number(dynamic, 32)?.min(DYNAMIC));
    let (mut strings, mut rpath) = (None, None);
    for step in 0..size / 16 {
        let entry: [u8; 16] = read(file, at.checked_add(step * 16)?)?;
        let value = number(&entry, 8)?;
        match number(&entry, 0)? {
            END => break,
            RUNPATH => return None,
            STRTAB => strings = Some(value),
            RPATH => rpath = Some(value),
            _ => {}
        }
    }
    let strings = strings?;
    let load = segments.iter().find(|s| {
        let (from, size) = (number(*s, 16), number(*s, 32));
        let within = from.and_then(|from| strings.checked_sub(from));
        is(s, LOAD) && within.is_some_and(|at| size.is_some_and(|size| at < size))
    })?;
    let offset = strings - number(load, 16)?;
    let place = number(load, 8)?.checked_add(offset)?.checked_add(rpath?)?;
    text(file, place, 0)
}

fn is(segment: &[u8; 56], kind: u32) -> bool {
    segment[..4] == kind.to_le_bytes()
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let eight = bytes.get(at..at + 8)?.try_into().ok()?;
    Some(u64::from_le_bytes(eight))
}

fn read<const N: usize>(file: &File, at: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

/// Up to that byte, if it can be printed.
fn text(file: &File, at: u64, end: u8) -> Option<String> {
    let mut bytes = vec![0; TEXT];
    let count = file.read_at(&mut bytes, at).ok()?;
    bytes.truncate(count);
    let text = bytes.split(|b| *b == end).next()?;
    let text = String::from_utf8(text.to_vec()).ok()?;
    (!text.contains(is_unsafe)).then_some(text)
}
