//! The dynamic section of an ELF file (elf(5)): what it needs, and where it has the loader look.
//! The file is an image's, and may be a sparse one of any size: no more is read than stands here,
//! where a crate such as `object` reads a segment whole.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rdma_model::escape::is_unsafe;

/// Segments, bytes of the dynamic section, and bytes of a text that are looked at.
pub(super) const SEGMENTS: u16 = 64;
const DYNAMIC: u64 = 64 << 10;
const TEXT: usize = 4096;

/// PT_LOAD and PT_DYNAMIC.
const LOAD: u32 = 1;
const OF_DYNAMIC: u32 = 2;
/// DT_NULL, DT_NEEDED, DT_STRTAB, DT_RPATH and DT_RUNPATH.
const END: u64 = 0;
const NEEDED: u64 = 1;
const STRTAB: u64 = 5;
const RPATH: u64 = 15;
const RUNPATH: u64 = 29;

#[derive(Debug, Default)]
pub struct Dynamic {
    pub needed: Vec<String>,
    pub rpath: Option<String>,
    pub runpath: Option<String>,
}

pub fn dynamic(file: &File) -> Option<Dynamic> {
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
    let (mut strings, mut texts) = (None, Vec::new());
    for step in 0..size / 16 {
        let entry: [u8; 16] = read(file, at.checked_add(step * 16)?)?;
        match (number(&entry, 0)?, number(&entry, 8)?) {
            (END, _) => break,
            (STRTAB, value) => strings = Some(value),
            (kind @ (NEEDED | RPATH | RUNPATH), value) => texts.push((kind, value)),
            _ => {}
        }
    }
    let mut found = Dynamic::default();
    let Some(place) = strings.and_then(|strings| place(&segments, strings)) else {
        return Some(found);
    };
    for (kind, value) in texts.into_iter().take(usize::from(SEGMENTS)) {
        let Some(text) = place.checked_add(value).and_then(|at| text(file, at, 0)) else {
            continue;
        };
        match kind {
            NEEDED => found.needed.push(text),
            RPATH => found.rpath = Some(text),
            _ => found.runpath = Some(text),
        }
    }
    Some(found)
}

/// Where in the file an address of memory is.
fn place(segments: &[[u8; 56]], address: u64) -> Option<u64> {
    let load = segments.iter().find(|s| {
        let (from, size) = (number(*s, 16), number(*s, 32));
        let within = from.and_then(|from| address.checked_sub(from));
        is(s, LOAD) && within.is_some_and(|at| size.is_some_and(|size| at < size))
    })?;
    number(load, 8)?.checked_add(address - number(load, 16)?)
}

/// The folders of such a text: below `origin`, where it says $ORIGIN.
pub fn folders(path: &str, origin: &str) -> Vec<String> {
    let parts = path.split(':');
    let whole = parts.map(|part| {
        part.replace("${ORIGIN}", "$ORIGIN")
            .replace("$ORIGIN", origin)
    });
    whole.filter(|folder| folder.starts_with('/')).collect()
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
pub(super) fn text(file: &File, at: u64, end: u8) -> Option<String> {
    let mut bytes = vec![0; TEXT];
    let count = file.read_at(&mut bytes, at).ok()?;
    bytes.truncate(count);
    let text = bytes.split(|b| *b == end).next()?;
    let text = String::from_utf8(text.to_vec()).ok()?;
    (!text.contains(is_unsafe)).then_some(text)
}
