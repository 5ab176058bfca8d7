//! containerd's `imports`, as resolveImports() of its config.go has it: a path is relative to the
//! folder of the file that names it; a pattern is that in 2.x alone, and in 1.x relative to where
//! the daemon runs, `/` under systemd.

use std::collections::VecDeque;

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;
use regex::Regex;
use toml_edit::{Array, DocumentMut, Item, value};

use super::{Ground, Manifest, ReadTree, about, toml_document};

const MOST: usize = 256;

/// What 2.2 and later import unasked (containerd#12323).
const DROP_INS: &str = "/etc/containerd/conf.d/*.toml";

/// containerd's configuration at `path`, then all that it may import; what counts more comes later.
pub fn with_imports(path: &str, tree: &dyn ReadTree) -> Result<Vec<String>> {
    let ground = Ground {
        tree,
        manifest: &Manifest::default(),
    };
    let text = ground.text(&tree.followed(path)?)?.unwrap_or_default();
    let mut document = toml_document(&text).map_err(about(path))?;
    let list = document
        .entry("imports")
        .or_insert_with(|| value(Array::new()))
        .as_array_mut();
    if let Some(list) = list.filter(|list| list.iter().all(|item| item.as_str() != Some(DROP_INS)))
    {
        list.insert(0, DROP_INS);
    }
    let others = imported(path, &document, &ground)?
        .into_iter()
        .map(|(_, document)| document.to_string());
    Ok([text].into_iter().chain(others).collect())
}

/// Each once, with their documents. A file of which it is not sure that it is imported is among
/// them.
pub(super) fn imported(
    path: &str,
    document: &DocumentMut,
    ground: &Ground,
) -> Result<Vec<(String, DocumentMut)>> {
    let mut all: Vec<(String, DocumentMut)> = Vec::new();
    let mut pending: VecDeque<String> = named(path, document, ground.tree).into();
    while let Some(next) = pending.pop_front() {
        if next == path || all.iter().any(|(known, _)| *known == next) {
            continue;
        }
        ensure!(
            all.len() < MOST,
            ErrorClass::Usage.error(format!("{path} imports more than {MOST} files"))
        );
        if !ground.tree.exists(&next) {
            continue;
        }
        let Some(text) = ground.text(&ground.tree.followed(&next)?)? else {
            continue;
        };
        let document = toml_document(&text).map_err(about(&next))?;
        pending.extend(named(&next, &document, ground.tree));
        all.push((next, document));
    }
    Ok(all)
}

/// Whether the document at `path` imports a file, whatever version of containerd reads it.
pub(super) fn surely(path: &str, document: &DocumentMut, file: &str) -> bool {
    patterns(document).any(|pattern| match is_pattern(pattern) {
        false => absolute(pattern, path) == file,
        true => {
            pattern.starts_with('/')
                && !pattern.contains(['[', '\\'])
                && like(pattern).is_some_and(|p| p.is_match(file))
        }
    })
}

/// Whether the document at `path` imports a file by its name, not by a pattern.
pub(super) fn by_name(path: &str, document: &DocumentMut, file: &str) -> bool {
    patterns(document).any(|one| !is_pattern(one) && absolute(one, path) == file)
}

fn patterns(document: &DocumentMut) -> impl Iterator<Item = &str> {
    document
        .get("imports")
        .and_then(Item::as_array)
        .into_iter()
        .flatten()
        .filter_map(|v| v.as_str())
}

/// Go's Glob is asked for paths with a star alone.
fn is_pattern(path: &str) -> bool {
    path.contains('*')
}

fn named(path: &str, document: &DocumentMut, tree: &dyn ReadTree) -> Vec<String> {
    let found = patterns(document).flat_map(|pattern| match is_pattern(pattern) {
        false => vec![absolute(pattern, path)],
        true => {
            let mut found = expanded(&absolute(pattern, path), tree);
            found.extend(expanded(&absolute(pattern, "/"), tree));
            found
        }
    });
    found.collect()
}

/// A path without `.` and `..`, as seen from the folder of the file at `parent`.
fn absolute(path: &str, parent: &str) -> String {
    let folder = if path.starts_with('/') {
        ""
    } else {
        parent.rsplit_once('/').unwrap_or_default().0
    };
    let mut words: Vec<&str> = Vec::new();
    for word in folder.split('/').chain(path.split('/')) {
        match word {
            "" | "." => {}
            ".." => drop(words.pop()),
            word => words.push(word),
        }
    }
    format!("/{}", words.join("/"))
}

fn expanded(pattern: &str, tree: &dyn ReadTree) -> Vec<String> {
    let mut found = vec![String::new()];
    for word in pattern.split('/').filter(|word| !word.is_empty()) {
        let names = |folder: &String| match is_pattern(word) || word.contains(['?', '[']) {
            false => vec![format!("{folder}/{word}")],
            true => {
                // A file among the folders has nothing below it.
                let all = tree
                    .list(if folder.is_empty() { "/" } else { folder })
                    .unwrap_or_default();
                let like = like(word);
                all.into_iter()
                    .filter(|name| like.as_ref().is_some_and(|like| like.is_match(name)))
                    .map(|name| format!("{folder}/{name}"))
                    .collect()
            }
        };
        found = found.iter().flat_map(names).take(MOST + 1).collect();
    }
    found
}

/// The pattern as a regular expression. Of a class of characters any counts, which is more than
/// enough to look at.
fn like(pattern: &str) -> Option<Regex> {
    let class = Regex::new(r"\\\[.*?\\\]").ok()?;
    let regex = regex::escape(pattern)
        .replace(r"\*", "[^/]*")
        .replace(r"\?", "[^/]");
    Regex::new(&format!("^{}$", class.replace_all(&regex, "[^/]"))).ok()
}
