//! What a tree of a /sys leaves out. Directories are listed for it, and no file is opened.

use std::collections::BTreeMap;

use rdma_model::tree::Tree;

use super::root::{Kind, Root, join};

/// Files and links below a folder that a tree does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lacking {
    pub folder: String,
    pub files: usize,
    pub links: usize,
}

/// By the folder two levels down (`devices/pci0000:00`), or the one at the top where the tree has
/// nothing of it.
pub(super) fn count(root: &Root, tree: &Tree) -> Vec<Lacking> {
    let mut found: BTreeMap<String, Lacking> = BTreeMap::new();
    let mut todo = vec![String::new()];
    while let Some(path) = todo.pop() {
        let Some(dir) = root.dir(&path) else { continue };
        for name in dir.names() {
            let entry = join(&path, &name);
            match dir.kind(&name) {
                Some(Kind::Dir) => todo.push(entry),
                Some(kind) if tree.get(&entry).is_none() => {
                    let folder = folder(&path, tree);
                    let lacking = found.entry(folder.to_owned()).or_default();
                    *(if kind == Kind::File {
                        &mut lacking.files
                    } else {
                        &mut lacking.links
                    }) += 1;
                }
                _ => {}
            }
        }
    }
    found
        .into_iter()
        .map(|(folder, lacking)| Lacking { folder, ..lacking })
        .collect()
}

fn folder<'p>(path: &'p str, tree: &Tree) -> &'p str {
    let top = path.split('/').next().unwrap_or_default();
    let second = path
        .match_indices('/')
        .nth(1)
        .map_or(path, |(at, _)| path.get(..at).unwrap_or(path));
    if tree.get(top).is_some() { second } else { top }
}
