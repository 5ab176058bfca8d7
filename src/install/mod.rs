//! Registers with engines, systemd and network managers by files. Every file is decided before the
//! first is written. What was there and what was written is kept in a [`Manifest`], so that
//! `uninstall` restores the bytes of each file; from a file that was edited since, it removes our
//! keys alone.

mod configured;
mod containerd;
mod cri;
mod daemon;
mod distribution;
mod docker;
mod hooks_d;
mod imports;
mod manifest;
mod program;
mod registered;
mod revert;
mod target;
mod units;
pub mod unmanaged;

use std::fmt;
use std::path::Path;

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::IfName;
use serde::{Deserialize, Serialize};

use crate::cdi;
use crate::config::host::CONFIG;
use crate::disk::host_tree::{Content, ReadTree};
pub use imports::with_imports;
pub use manifest::{Entry, MANIFEST, Manifest, uninstall};
use program::shim;
pub use program::{is_runtime, program};
pub use registered::unregistered_engines;
pub use target::{Target, has_gvisor};

/// Where the program is expected: hook definitions name it, and containers that run keep that path
/// until they stop, so that it is the same for every version.
pub const PLACES: [&str; 2] = ["/usr/bin/rdmaprep", DEFAULT_PLACE];

/// Our runtime's name, in Docker and in containerd, where it is a RuntimeClass's handler, too.
const NAME: &str = "rdmaprep";

/// U+FEFF, with which some editors begin a file.
const BOM: char = '\u{feff}';

/// The place that the files below hooks/ name.
const DEFAULT_PLACE: &str = "/usr/local/bin/rdmaprep";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    Own,
    Json,
    Toml,
}

#[derive(Clone, Debug, Default)]
pub struct InstallRequest {
    pub targets: Vec<Target>,
    pub program: String,
    pub default_runtime: bool,
    pub nics: Vec<Nic>,
    /// Containers whose command matches this get hooks without an annotation.
    pub command: Option<Command>,
    /// Whether systemd keeps the file of devices ([`crate::cdi::FILE`]) as the rails are.
    pub cdi: bool,
    /// Where systemd has metrics written, if anywhere.
    pub textfile: Option<String>,
    /// A file of systemd-networkd's with a rule whose priority the kernel chooses.
    pub rule_without_priority: Option<std::path::PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    pub name: IfName,
    pub pci: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// For the first word of the command.
    pub regex: String,
    pub plan: String,
}

#[derive(Clone)]
struct Piece {
    path: String,
    how: How,
    content: Content,
}

impl Piece {
    fn whole_file(path: impl Into<String>, text: impl Into<String>) -> Piece {
        Piece {
            path: path.into(),
            how: How::Own,
            content: Content::Text(text.into()),
        }
    }

    fn link(path: impl Into<String>, target: impl Into<String>) -> Piece {
        Piece {
            path: path.into(),
            how: How::Own,
            content: Content::Link(target.into()),
        }
    }
}

#[derive(Default)]
struct Part {
    pieces: Vec<Piece>,
    notes: Vec<String>,
    /// Paths that something else will write, into folders that have to be there.
    rooms: Vec<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub path: String,
    pub target: Target,
    pub before: Option<Content>,
    pub after: Option<Content>,
}

#[derive(Clone, Debug, Default)]
pub struct Installation {
    pub changes: Vec<Change>,
    pub notes: Vec<String>,
    pub next: Vec<String>,
    pub manifest: Manifest,
    rooms: Vec<&'static str>,
    /// What the manifest need not name any more once all is changed: no target wants it.
    pub gone: Vec<Entry>,
}

pub fn found(tree: &dyn ReadTree) -> Vec<(Target, &'static str)> {
    let mut found = Vec::new();
    for target in Target::ALL {
        let trace = target.traces().into_iter().find(|path| tree.exists(path));
        found.extend(trace.map(|path| (target, path)));
    }
    found
}

/// What installing changes, where `manifest` is what an earlier one has left. Of each target that
/// is asked for it is the whole: what such a target had and wants no longer is removed, unless
/// another one wants it. [`ErrorClass::Usage`]: a file cannot be read as what it is;
/// [`ErrorClass::Refused`]: something else is in the way, or what has to go was changed.
pub fn install(
    wanted: &InstallRequest,
    tree: &dyn ReadTree,
    manifest: &Manifest,
) -> Result<Installation> {
    let ground = Ground { tree, manifest };
    let mut done = Installation {
        manifest: manifest.clone(),
        ..Installation::default()
    };
    done.manifest.disown(&wanted.targets);
    for target in Target::ALL
        .into_iter()
        .filter(|t| wanted.targets.contains(t))
    {
        let part = match target {
            Target::Podman => hooks_d::podman(wanted, &ground)?,
            Target::Crio => hooks_d::crio(wanted, &ground)?,
            Target::Docker => docker::part(wanted, &ground)?,
            Target::Containerd => containerd::part(wanted, &ground)?,
            Target::Systemd => units::part(wanted, &ground),
            Target::NetworkManagers => unmanaged::part(wanted),
        };
        done.notes.extend(part.notes);
        for path in &part.rooms {
            done.manifest.make_room(path, tree);
        }
        done.rooms.extend(part.rooms);
        part.pieces
            .into_iter()
            .try_for_each(|piece| done.add(target, piece, &ground))?;
    }
    done.forsake(tree)?;
    done.manifest.begin(manifest, tree);
    let gone = done.manifest.folders().iter();
    let gone: Vec<String> = gone
        .filter(|folder| !tree.exists(folder) && !done.fills(folder))
        .cloned()
        .collect();
    done.manifest.forget(&gone);
    done.notes.extend(unmanaged::restarts(&done.changes));
    done.next = [next(&done.changes), units::starts(&done.changes)].concat();
    Ok(done)
}

/// What makes those whose files changed read them again.
fn next(changes: &[Change]) -> Vec<String> {
    let read = changes
        .iter()
        .filter(|c| !is_runtime(&c.path) && c.path != cdi::FILE);
    let read: Vec<&Change> = read.collect();
    let mut all = Vec::new();
    for target in Target::ALL {
        match target {
            Target::Containerd => all.extend(daemon::restarts(&read)),
            target if read.iter().any(|c| c.target == target) => {
                all.extend(target.next().map(str::to_owned));
            }
            _ => {}
        }
    }
    all.extend(unmanaged::next(changes));
    all
}

impl Installation {
    /// Whether anything comes into a folder, or below it. One that an earlier installation made may
    /// have gone with its engine.
    pub fn fills(&self, folder: &str) -> bool {
        let written = self.changes.iter().filter(|c| c.after.is_some());
        let written = written.map(|c| c.path.as_str());
        let mut all = written.chain(self.rooms.iter().copied());
        all.any(|path| Path::new(path).starts_with(folder))
    }

    fn add(&mut self, target: Target, piece: Piece, ground: &Ground) -> Result<()> {
        self.manifest.record_owner(&piece.path, target);
        if self.changes.iter().any(|c| c.path == piece.path) {
            // Two engines want the same link or definition.
            return Ok(());
        }
        let before = ground.tree.content(&piece.path)?;
        let base = ground.base(&piece.path)?;
        if before.as_ref() == Some(&piece.content) {
            return Ok(());
        }
        ensure!(
            piece.how != How::Own || base.is_none(),
            ErrorClass::Refused.error(in_the_way(&piece.path, base.as_ref()))
        );
        self.manifest.enter(Entry {
            path: piece.path.clone(),
            target,
            how: piece.how,
            was: before.clone().filter(|now| base.as_ref() != Some(now)),
            before: base,
            after: piece.content.clone(),
            wanted_by: Some([target].into()),
        });
        self.manifest.make_room(&piece.path, ground.tree);
        self.changes.push(Change {
            path: piece.path,
            target,
            before,
            after: Some(piece.content),
        });
        Ok(())
    }

    /// Takes out what is not wanted any more, after all that may have named it.
    fn forsake(&mut self, tree: &dyn ReadTree) -> Result<()> {
        self.gone = self.manifest.take_unwanted();
        for entry in self.gone.iter().rev() {
            let (before, undone) = entry.now(tree)?;
            if !undone.left.is_empty() {
                let (path, left) = (&entry.path, undone.left.join(", "));
                return Err(ErrorClass::Refused.error(format!(
                    "{path} is not needed any more, but was changed since ({left}): see to it"
                )));
            }
            if undone.content != before {
                let (path, target) = (entry.path.clone(), entry.target);
                self.changes.push(Change {
                    path,
                    target,
                    before,
                    after: undone.content,
                });
            }
        }
        Ok(())
    }
}

/// What is said of a path where something else is.
fn in_the_way(path: &str, there: Option<&Content>) -> String {
    match there {
        Some(Content::Link(to)) => {
            format!("{path} is a link to {to}, which rdmaprep did not make: move it away")
        }
        _ => format!("{path} is there, and is not as rdmaprep wrote it: move it away"),
    }
}

/// The tree as it would be without us.
struct Ground<'a> {
    tree: &'a dyn ReadTree,
    manifest: &'a Manifest,
}

impl Ground<'_> {
    /// What is at a path, less what an earlier installation put there.
    fn base(&self, path: &str) -> Result<Option<Content>> {
        let now = self.tree.content(path)?;
        match self.manifest.entry(path) {
            Some(entry) => Ok(entry.undone(now.as_ref())?.content),
            None => Ok(now),
        }
    }

    /// The text of a file, less what an earlier installation put there. A link in its place is an
    /// error.
    fn text(&self, path: &str) -> Result<Option<String>> {
        match self.base(path)? {
            Some(Content::Text(text)) => Ok(Some(text)),
            Some(Content::Link(_)) => Err(ErrorClass::Usage.error(format!("{path} is a link"))),
            None => Ok(None),
        }
    }
}

/// What a TOML file lacks to be one, in one line.
fn toml_trouble(text: &str, message: &str, span: Option<std::ops::Range<usize>>) -> anyhow::Error {
    let line = span
        .and_then(|span| text.get(..span.start))
        .map(|before| before.matches('\n').count() + 1);
    let at = line.map_or_else(String::new, |line| format!("line {line}: "));
    ErrorClass::Usage.error(format!("is not TOML: {at}{message}"))
}

fn toml_document(text: &str) -> Result<toml_edit::DocumentMut> {
    text.parse()
        .map_err(|e: toml_edit::TomlError| toml_trouble(text, e.message(), e.span()))
}

/// A TOML document as it is to be written in place of a text: the parser drops a mark of byte
/// order, and gives lines its own ends.
fn toml_text(before: &str, document: &toml_edit::DocumentMut) -> String {
    let text = document.to_string();
    let text = if before.contains("\r\n") {
        text.replace("\r\n", "\n").replace('\n', "\r\n")
    } else {
        text
    };
    if before.starts_with(BOM) && !text.starts_with(BOM) {
        format!("{BOM}{text}")
    } else {
        text
    }
}

/// What to know where an engine's default runtime is not the one that ours calls.
fn behind(engine: &str, name: &str, program: &str) -> String {
    format!(
        "{engine}'s default runtime is {name}, while ours calls runc: for {name} behind it (GPUs, \
        it may be), let {CONFIG} say runtime = {program:?}"
    )
}

/// What to know where an engine has a runtime for GPUs that pods name.
fn beside(engine: &str, name: &str, program: &str) -> String {
    format!(
        "{engine} has a runtime {name}, while ours calls runc: for pods with GPUs and NICs, let \
        {CONFIG} say runtime = {program:?}"
    )
}

/// Lines that an administrator has to add himself.
#[derive(Debug)]
pub struct Paste(pub String);

impl fmt::Display for Paste {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Paste {}

fn about(path: &str) -> impl Fn(anyhow::Error) -> anyhow::Error {
    move |e| ErrorClass::of(&e).error(format!("{path}: {e:#}"))
}
