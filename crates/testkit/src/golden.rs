//! The golden cases: a folder each below tests/cases. `CASE=bond cargo test --test golden select`
//! runs those whose name has it.

use std::path::PathBuf;

/// The folders of a kind of case, by name; at least that many, where none is chosen by `CASE`.
pub fn cases(kind: &str, at_least: usize) -> Vec<PathBuf> {
    let root = crate::repository("tests/cases").join(kind);
    let mut all: Vec<PathBuf> = std::fs::read_dir(&root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    all.sort();
    assert!(all.len() >= at_least, "cases are missing: {all:?}");
    let Some(chosen) = chosen() else { return all };
    all.retain(|path| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().contains(&chosen))
    });
    assert!(
        !all.is_empty(),
        "no case of {} has {chosen} in its name",
        root.display()
    );
    all
}

/// Whether all cases are run: only then a test may insist that each of some list has one.
pub fn are_all() -> bool {
    chosen().is_none()
}

fn chosen() -> Option<String> {
    std::env::var("CASE").ok()
}
