//! Directories, files and symbolic links as data: what is read below /sys, and what a container
//! shall see. As JSON it is one document: `schema`, and `entries` in the order of the paths' bytes,
//! each a directory, a file with its contents verbatim, or a link with its target verbatim.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize, Serializer};

use crate::error_class::ErrorClass;

/// Version of the JSON form; a reader refuses any other.
pub const SCHEMA: u32 = 1;

/// What is read of a /sys is held once, however many trees it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    Dir,
    File(Arc<[u8]>),
    Link(Arc<str>),
}

/// A tree by path. Paths are relative to its top, without `.`, `..` or empty parts, and every
/// directory above an entry is an entry; the top itself is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Document<'static>")]
pub struct Tree {
    /// In path order, each path once. A list is filled at once and then read: nothing is faster to
    /// search or to walk.
    entries: Vec<(Box<str>, Node)>,
}

impl Tree {
    pub fn put(&mut self, path: &str, node: Node) {
        let above = path
            .rmatch_indices('/')
            .filter_map(|(at, _)| path.get(..at));
        for dir in above {
            match self.place(dir) {
                Ok(_) => break,
                Err(at) => self.entries.insert(at, (dir.into(), Node::Dir)),
            }
        }
        match self.place(path) {
            Ok(at) => self.entries[at].1 = node,
            Err(at) => self.entries.insert(at, (path.into(), node)),
        }
    }

    fn place(&self, path: &str) -> Result<usize, usize> {
        self.entries
            .binary_search_by(|(known, _)| known.as_ref().cmp(path))
    }

    /// Makes a directory, for something to be mounted on, where nothing stands in its way.
    pub fn make_room(&mut self, dir: &str) {
        let above = dir.match_indices('/').filter_map(|(at, _)| dir.get(..at));
        let free = above
            .chain([dir])
            .all(|path| matches!(self.get(path), None | Some(Node::Dir)));
        if free && self.get(dir).is_none() {
            self.put(dir, Node::Dir);
        }
    }

    /// Those of its entries, in their order, for which this says so: of a directory in which
    /// something stays, too.
    pub fn only(mut self, stay: &[bool]) -> Tree {
        let mut stay = stay.iter();
        self.entries.retain(|_| stay.next() == Some(&true));
        self
    }

    pub fn get(&self, path: &str) -> Option<&Node> {
        self.place(path)
            .ok()
            .and_then(|at| self.entries.get(at))
            .map(|(_, node)| node)
    }

    /// All entries in path order: a directory comes before what is in it.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.entries
            .iter()
            .map(|(path, node)| (path.as_ref(), node))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn names<'t>(&'t self, dir: &str) -> impl Iterator<Item = &'t str> + use<'t> {
        let prefix = if dir.is_empty() {
            String::new()
        } else {
            format!("{dir}/")
        };
        let start = self.place(&prefix).unwrap_or_else(|at| at);
        let below = self.entries.iter().skip(start).take_while({
            let prefix = prefix.clone();
            move |(path, _)| path.starts_with(&prefix)
        });
        below.filter_map(move |(path, _)| {
            path.get(prefix.len()..).filter(|name| !name.contains('/'))
        })
    }

    /// Where a path ends when its links are followed: a path of this tree. None where it dangles,
    /// turns in a circle or leaves the tree.
    pub fn resolve(&self, path: &str) -> Option<String> {
        let mut todo: Vec<&str> = path.split('/').rev().collect();
        let mut at: Vec<&str> = Vec::new();
        let mut links = 0;
        while let Some(part) = todo.pop() {
            match part {
                "" | "." => continue,
                ".." => {
                    at.pop()?;
                    continue;
                }
                _ => at.push(part),
            }
            if let Node::Link(target) = self.get(&at.join("/"))? {
                // As many as the kernel follows (MAXSYMLINKS, include/linux/namei.h).
                links += 1;
                if links > 40 || target.starts_with('/') {
                    return None;
                }
                at.pop();
                todo.extend(target.split('/').rev());
            }
        }
        Some(at.join("/"))
    }
}

/// In words, what another look at the same place shows otherwise: a line for each directory where
/// something is missing or new, and one for each file or link that reads otherwise.
pub fn differences(here: &Tree, there: &Tree) -> Vec<String> {
    let mut lines = only(here, there, "not seen");
    lines.extend(only(there, here, "seen there alone"));
    for (path, node) in here.iter() {
        match (node, there.get(path)) {
            (Node::File(a), Some(Node::File(b))) if a != b => {
                lines.push(format!("{path}: {} here, {} there", shown(a), shown(b)));
            }
            (Node::Link(a), Some(Node::Link(b))) if a != b => {
                lines.push(format!("{path}: leads to {a} here, to {b} there"))
            }
            (a, Some(b)) if std::mem::discriminant(a) != std::mem::discriminant(b) => {
                lines.push(format!("{path}: {} here, {} there", a.kind(), b.kind()));
            }
            _ => {}
        }
    }
    lines
}

fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes)
        .ok()
        .filter(|text| !text.contains('\0'))
    {
        Some(text) => format!("{:?}", text.trim_end()),
        None => format!("{} bytes", bytes.len()),
    }
}

/// What is in one tree alone, by the directory that it is missing from; what is below something
/// missing goes without saying.
fn only(one: &Tree, other: &Tree, how: &str) -> Vec<String> {
    let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (path, _) in one.iter().filter(|(path, _)| other.get(path).is_none()) {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        if dir.is_empty() || other.get(dir).is_some() {
            missing.entry(dir).or_default().push(name);
        }
    }
    let mut lines = Vec::new();
    for (dir, names) in missing {
        let dir = if dir.is_empty() { "." } else { dir };
        lines.push(format!("{dir}: {how}: {}", names.join(", ")));
    }
    lines
}

impl Node {
    fn kind(&self) -> &'static str {
        match self {
            Node::Dir => "a directory",
            Node::File(_) => "a file",
            Node::Link(_) => "a link",
        }
    }
}

impl<P: Into<Box<str>>> FromIterator<(P, Node)> for Tree {
    /// In any order; of what is there twice the last counts. Faster than to put one after the
    /// other, and fastest where it comes in long pieces that are sorted.
    fn from_iter<I: IntoIterator<Item = (P, Node)>>(entries: I) -> Tree {
        let mut entries: Vec<(Box<str>, Node)> = entries
            .into_iter()
            .map(|(path, node)| (path.into(), node))
            .collect();
        let missing: Vec<(Box<str>, Node)> = missing(&entries)
            .into_iter()
            .map(|dir| (dir.into(), Node::Dir))
            .collect();
        entries.extend(missing);
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        entries.dedup_by(|next, first| {
            let again = next.0 == first.0;
            if again {
                std::mem::swap(next, first);
            }
            again
        });
        Tree { entries }
    }
}

fn missing(entries: &[(Box<str>, Node)]) -> Vec<&str> {
    let given = entries
        .iter()
        .filter(|(_, node)| *node == Node::Dir)
        .map(|(path, _)| path.as_ref());
    let mut dirs: HashSet<&str> = given.chain([""]).collect();
    let mut missing = Vec::new();
    let mut last = "";
    for (path, _) in entries {
        let mut dir = parent(path);
        if std::mem::replace(&mut last, dir) == dir {
            continue;
        }
        while dirs.insert(dir) {
            missing.push(dir);
            dir = parent(dir);
        }
    }
    missing
}

pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<'t> {
    schema: u32,
    entries: Vec<Entry<'t>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Entry<'t> {
    Dir {
        path: Cow<'t, str>,
    },
    File {
        path: Cow<'t, str>,
        text: Cow<'t, str>,
    },
    /// Contents that are no UTF-8, such as PCI configuration space, as hexadecimal digits.
    Binary {
        path: Cow<'t, str>,
        hex: String,
    },
    Link {
        path: Cow<'t, str>,
        target: Cow<'t, str>,
    },
}

impl Serialize for Tree {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        Document {
            schema: SCHEMA,
            entries: self
                .iter()
                .map(|(path, node)| Entry::new(path, node))
                .collect(),
        }
        .serialize(serializer)
    }
}

impl<'t> Entry<'t> {
    fn new(path: &'t str, node: &'t Node) -> Entry<'t> {
        let path = path.into();
        match node {
            Node::Dir => Entry::Dir { path },
            Node::Link(target) => Entry::Link {
                path,
                target: target.as_ref().into(),
            },
            Node::File(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Entry::File {
                    path,
                    text: text.into(),
                },
                Err(_) => Entry::Binary {
                    path,
                    hex: bytes.iter().map(|b| format!("{b:02x}")).collect(),
                },
            },
        }
    }
}

impl TryFrom<Document<'_>> for Tree {
    type Error = anyhow::Error;

    fn try_from(document: Document<'_>) -> Result<Tree> {
        ensure!(
            document.schema == SCHEMA,
            ErrorClass::Usage.error(format!("schema {} is unknown", document.schema))
        );
        let mut tree = Tree::default();
        for entry in document.entries {
            let (path, node) = match entry {
                Entry::Dir { path } => (path, Node::Dir),
                Entry::File { path, text } => (path, Node::File(text.as_bytes().into())),
                Entry::Binary { path, hex } => (path, Node::File(bytes(&hex)?.into())),
                Entry::Link { path, target } => (path, Node::Link(target.as_ref().into())),
            };
            let is_odd = path.split('/').any(|part| matches!(part, "" | "." | ".."));
            ensure!(
                !is_odd && !path.contains('\0'),
                ErrorClass::Usage.error(format!("{path:?} is no path below the tree's top"))
            );
            let above = path.rsplit_once('/').map(|(above, _)| above);
            let held = above.is_none_or(|above| tree.get(above) == Some(&Node::Dir));
            ensure!(
                held,
                ErrorClass::Usage.error(format!("{path:?} comes before its directory"))
            );
            let is_next = tree
                .entries
                .last()
                .is_none_or(|(last, _)| last.as_ref() < path.as_ref());
            ensure!(
                is_next,
                ErrorClass::Usage.error(format!("{path:?} is there twice, or not in path order"))
            );
            tree.entries.push((path.into(), node));
        }
        Ok(tree)
    }
}

fn bytes(hex: &str) -> Result<Vec<u8>> {
    let pairs = hex.as_bytes().chunks(2);
    let bytes: Option<Vec<u8>> = pairs
        .map(|pair| {
            let pair = std::str::from_utf8(pair).ok()?;
            u8::from_str_radix(pair, 16)
                .ok()
                .filter(|_| pair.len() == 2)
        })
        .collect();
    bytes.ok_or_else(|| ErrorClass::Usage.error("a file's hexadecimal digits are not in pairs"))
}
