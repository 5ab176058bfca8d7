//! What an installation did: the bytes before and after of each path, and the folders that it made.
//! It is what `uninstall` goes by.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::revert::{Reversal, reverse};
use super::{
    Change, Content, Ground, How, Installation, NAME, ReadTree, Target, about, containerd, docker,
    is_runtime, next, toml_document, toml_text, toml_trouble, units, unmanaged,
};
use crate::cdi;
use crate::oci::json_rewrite;

pub const MANIFEST: &str = "installed.json";

/// Version of the JSON form. Fields are added, never required.
const SCHEMA: u32 = 1;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    schema: u32,
    /// Paths, in the order in which they were first written.
    entries: Vec<Entry>,
    #[serde(default)]
    folders: Vec<String>,
    /// Whether a file of devices ([`cdi::FILE`]) was there before the first installation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    had_devices: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Absolute, within the tree.
    pub path: String,
    pub target: Target,
    pub how: How,
    pub before: Option<Content>,
    pub after: Content,
    /// What was there when that was decided, if it was not `before`: it is still there if the
    /// change to `after` was never made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<Content>,
    /// All targets for which it is: engines share links and definitions. An empty set: it is to be
    /// removed. Older versions wrote `target` alone; then this is a guess.
    pub wanted_by: Option<BTreeSet<Target>>,
}

pub(super) struct Undone {
    pub content: Option<Content>,
    pub left: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Removal {
    pub done: Installation,
    pub left: Vec<String>,
}

impl Manifest {
    pub fn parse(text: &str) -> Result<Manifest> {
        let mut manifest: Manifest =
            serde_json::from_str(text).class(ErrorClass::Usage, "what an installation left")?;
        anyhow::ensure!(
            manifest.schema <= SCHEMA,
            ErrorClass::Usage.error(format!(
                "what an installation left has schema {}",
                manifest.schema
            ))
        );
        manifest.entries.iter_mut().for_each(Entry::guess);
        Ok(manifest)
    }

    pub fn print(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(&Manifest {
            schema: SCHEMA,
            ..self.clone()
        })? + "\n")
    }

    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|e| e.path.as_str())
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn entry(&self, path: &str) -> Option<&Entry> {
        self.entries.iter().find(|e| e.path == path)
    }

    pub(super) fn enter(&mut self, entry: Entry) {
        match self.entries.iter_mut().find(|e| e.path == entry.path) {
            Some(known) => {
                let wanted_by = known.wanted_by.take();
                *known = Entry { wanted_by, ..entry };
            }
            None => self.entries.push(entry),
        }
    }

    pub(super) fn disown(&mut self, targets: &[Target]) {
        for w in self.entries.iter_mut().filter_map(|e| e.wanted_by.as_mut()) {
            w.retain(|t| !targets.contains(t));
        }
    }

    pub(super) fn record_owner(&mut self, path: &str, target: Target) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.path == path) {
            entry.wanted_by.get_or_insert_default().insert(target);
        }
    }

    pub(super) fn take_unwanted(&mut self) -> Vec<Entry> {
        let (gone, kept) = std::mem::take(&mut self.entries)
            .into_iter()
            .partition(|e| e.wanted_by.as_ref().is_some_and(BTreeSet::is_empty));
        self.entries = kept;
        gone
    }

    /// This one, which tells of these paths, too: as long as they are there.
    pub fn with(&self, gone: &[Entry]) -> Manifest {
        let mut manifest = self.clone();
        manifest.entries.extend_from_slice(gone);
        manifest
    }

    pub fn make_room(&mut self, path: &str, tree: &dyn ReadTree) {
        let ends = path
            .match_indices('/')
            .map(|(at, _)| at)
            .filter(|at| *at > 0);
        for folder in ends.filter_map(|at| path.get(..at)) {
            if !tree.exists(folder) && !self.folders.iter().any(|f| f == folder) {
                self.folders.push(folder.to_owned());
            }
        }
        // One that went may be needed again, below one that went later.
        self.folders.sort();
    }

    pub(super) fn forget(&mut self, folders: &[String]) {
        self.folders.retain(|folder| !folders.contains(folder));
    }

    /// Notes the rest of what was there before the first installation, where `earlier` is what was
    /// known of one. Nothing is made for something else where there is nothing of ours.
    pub(super) fn begin(&mut self, earlier: &Manifest, tree: &dyn ReadTree) {
        match self.is_empty() {
            true => self.folders.clone_from(&earlier.folders),
            false if earlier.is_empty() => self.had_devices = devices(tree).is_some(),
            false => {}
        }
    }

    pub fn folders(&self) -> &[String] {
        &self.folders
    }
}

impl Entry {
    /// For whom a path of an older version may be: what is below /etc is one engine's own, but for
    /// a runtime's link.
    fn guess(&mut self) {
        let (target, is_shared) = (
            self.target,
            is_runtime(&self.path) || !self.path.starts_with("/etc/"),
        );
        self.wanted_by.get_or_insert_with(|| {
            Target::ALL
                .into_iter()
                .filter(|t| *t == target || is_shared && t.shares(target))
                .collect()
        });
    }

    pub(super) fn now(&self, tree: &dyn ReadTree) -> Result<(Option<Content>, Undone)> {
        let now = tree.content(&self.path)?;
        let undone = self.undone(now.as_ref()).map_err(about(&self.path))?;
        Ok((now, undone))
    }

    /// What becomes of the path without us, where `now` is there; an error where that can no longer
    /// be read as what it is.
    pub(super) fn undone(&self, now: Option<&Content>) -> Result<Undone> {
        let whole = |content: Option<&Content>| Undone {
            content: content.cloned(),
            left: Vec::new(),
        };
        let Some(now) = now else {
            return Ok(whole(None));
        };
        if *now == self.after || Some(now) == self.was.as_ref() {
            return Ok(whole(self.before.as_ref()));
        }
        if Some(now) == self.before.as_ref() {
            return Ok(whole(Some(now)));
        }
        let before = match &self.before {
            Some(Content::Text(text)) => text.as_str(),
            _ => "",
        };
        let (Content::Text(now_text), Content::Text(after), How::Json | How::Toml) =
            (now, &self.after, self.how)
        else {
            return Ok(Undone {
                content: Some(now.clone()),
                left: vec!["all of it, and in force".to_owned()],
            });
        };
        let (text, undo) = match self.how {
            How::Toml => toml_without(before, after, now_text)?,
            _ => json_without(before, after, now_text)?,
        };
        let is_gone = self.before.is_none() && matches!(text.trim(), "" | "{}");
        Ok(Undone {
            content: (!is_gone).then_some(Content::Text(text)),
            left: undo.left,
        })
    }
}

fn json_without(before: &str, after: &str, now: &str) -> Result<(String, Reversal)> {
    let parse = |text: &str| match text.trim() {
        "" => Ok(Value::Object(serde_json::Map::new())),
        text => serde_json::from_str(text).class(ErrorClass::Usage, "is not JSON"),
    };
    let old = parse(now)?;
    let undo = reverse(&parse(before)?, &parse(after)?, &old);
    let new = undo.out_of_json(&old);
    let text = json_rewrite::rewrite(now, &old, &new).unwrap_or_else(|| now.to_owned());
    Ok((text, undo))
}

fn toml_without(before: &str, after: &str, now: &str) -> Result<(String, Reversal)> {
    let value = |text: &str| {
        toml::from_str::<Value>(text).map_err(|e| toml_trouble(text, e.message(), e.span()))
    };
    let undo = reverse(&value(before)?, &value(after)?, &value(now)?);
    let mut document = toml_document(now)?;
    let version = document.get("version").cloned();
    undo.out_of_toml(&mut document);
    // What was added since is of that version, and containerd takes a file without one for the
    // first.
    if let (Some(version), false) = (version, document.is_empty()) {
        document.entry("version").or_insert(version);
    }
    Ok((toml_text(now, &document), undo))
}

fn devices(tree: &dyn ReadTree) -> Option<Content> {
    tree.content(cdi::FILE)
        .ok()
        .flatten()
        .filter(|c| matches!(c, Content::Text(text) if cdi::Spec::parse(text).is_ok()))
}

/// What uninstalling changes. What was changed since is the administrator's from then on, if
/// `lenient`: the manifest tells of it no more. A file that can no longer be read as what it is
/// counts as changed if `lenient`, else it is [`ErrorClass::Usage`], and may be mended: the
/// manifest tells of it. [`ErrorClass::Refused`] where an engine has come to
/// start containers by our runtime alone.
pub fn uninstall(manifest: &Manifest, tree: &dyn ReadTree, lenient: bool) -> Result<Removal> {
    let ground = Ground { tree, manifest };
    // What cannot be read is no engine's default.
    let named = || {
        [docker::named(&ground), containerd::named(&ground)]
            .into_iter()
            .filter_map(Result::ok)
            .flatten()
            .next()
    };
    if let Some(path) = manifest
        .entries
        .iter()
        .any(|e| is_runtime(&e.path))
        .then(named)
        .flatten()
    {
        let text = format!(
            "{path} has {NAME} as the default runtime: name another one there first, and restart \
            its engine"
        );
        return Err(ErrorClass::Refused.error(text));
    }
    let runtimes = manifest.entries.iter().map(|e| e.path.as_str());
    let runtimes: Vec<&str> = runtimes.filter(|path| is_runtime(path)).collect();
    let imported = containerd::importer(&ground).ok().flatten();
    let has_drop_in = manifest
        .entries
        .iter()
        .any(|e| e.path == containerd::DROP_IN);
    if let Some(path) = imported.filter(|_| has_drop_in) {
        return Err(ErrorClass::Refused.error(format!(
            "{path} imports {} by its name: take that out first, since containerd does not start \
            without a file that it imports",
            containerd::DROP_IN
        )));
    }
    let mut removal = Removal::default();
    if let Some(path) = containerd::caller(&ground, &runtimes).ok().flatten() {
        let text = format!("{path} has the runtime {NAME}, which `install` did not write there");
        ensure!(
            lenient,
            ErrorClass::Refused.error(format!("{text}: remove it first"))
        );
        removal.left.push(text);
    }
    removal.done.manifest.folders.clone_from(&manifest.folders);
    removal.done.manifest.had_devices = manifest.had_devices;
    for entry in manifest.entries.iter().rev() {
        let (before, undone) = match entry.now(tree) {
            Err(e) if lenient => {
                removal.left.push(format!("{e:#}"));
                removal.done.manifest.entries.insert(0, entry.clone());
                continue;
            }
            now => now?,
        };
        if !undone.left.is_empty() {
            removal
                .left
                .push(format!("{} ({})", entry.path, undone.left.join(", ")));
            if !lenient {
                removal.done.manifest.entries.insert(0, entry.clone());
            }
        }
        if undone.content != before {
            let (path, target) = (entry.path.clone(), entry.target);
            removal.done.changes.push(Change {
                path,
                target,
                before,
                after: undone.content,
            });
        }
    }
    // What `cdi generate` wrote names the program in its hooks.
    match devices(tree) {
        Some(before) if !manifest.is_empty() && !manifest.had_devices => {
            let (path, target) = (cdi::FILE.to_owned(), Target::Systemd);
            removal.done.changes.push(Change {
                path,
                target,
                before: Some(before),
                after: None,
            });
        }
        Some(_) => removal.done.notes.push(format!(
            "{} stays, as no install came before it: where the program goes, remove it, too",
            cdi::FILE
        )),
        None => {}
    }
    // They run on without their files.
    removal
        .done
        .notes
        .extend(unmanaged::restarts(&removal.done.changes));
    removal.done.next = units::stops(&removal.done.changes);
    removal.done.next.extend(next(&removal.done.changes));
    Ok(removal)
}
