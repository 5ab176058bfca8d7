//! The program that a container runs, and its RPATH (elf(5)): glibc looks there for what dlopen(3)
//! wants, before LD_LIBRARY_PATH, where neither the program nor the library that asks has a RUNPATH
//! (`_dl_map_object` in elf/dl-load.c). Python of conda has one; NVIDIA's libnccl.so.2 has neither,
//! from 2.18.3 to 2.32.3.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use super::elf;
use super::rootfs::Root;

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
    let rpath = found.and_then(|(file, path)| {
        let dynamic = elf::dynamic(&file).filter(|dynamic| dynamic.runpath.is_none())?;
        Some(elf::folders(&dynamic.rpath?, &origin(root, &path)?))
    });
    rpath.unwrap_or_default()
}

fn locate(root: &Root, env: &BTreeMap<String, String>, program: &str) -> Option<String> {
    if program.starts_with('/') {
        return Some(program.to_owned());
    }
    let path = env.get("PATH").map_or("", String::as_str).split(':');
    let mut all = path
        .take(usize::from(elf::SEGMENTS))
        .map(|folder| format!("{folder}/{program}"));
    all.find(|path| !program.contains('/') && open(root, path).is_some())
}

fn open(root: &Root, path: &str) -> Option<File> {
    root.open_file(&root.find(path).ok()?).ok()
}

/// Of a script: the program of its first line, and behind env(1) the program that it names.
fn interpreter(file: &File) -> Option<String> {
    let text = elf::text(file, 0, b'\n')?;
    let mut words = text.strip_prefix("#!")?.split_ascii_whitespace();
    let first = words.next()?;
    let named = words.next().filter(|_| first.ends_with("/env"));
    Some(named.unwrap_or(first).to_owned())
}

/// The folder that a path ends in, below the root: `$ORIGIN`.
pub fn origin(root: &Root, path: &str) -> Option<String> {
    let top = root.find("/").ok()?;
    let (top, end) = (root.path_of(top.as_fd()).ok()?, root.find(path).ok()?);
    let end = root.path_of(end.as_fd()).ok()?;
    let below = end.strip_prefix(&top).map(|end| Path::new("/").join(end));
    let end = below.unwrap_or_else(|_| Path::new(path).to_owned());
    Some(end.parent()?.to_str()?.to_owned())
}
