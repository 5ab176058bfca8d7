//! What `install` and `uninstall` did, or would do.

use serde::Serialize;

use super::{printable, printable_lines};
use crate::disk::host_tree::Content;
use crate::install::{Change, Target};
use crate::oci::edit::file_diff;

#[derive(Clone, Debug, Serialize)]
pub struct Installed<'a> {
    pub dry_run: bool,
    /// Targets that were asked for, or are on this host where none was.
    pub targets: &'a [Target],
    /// Targets that are on this host, and what shows it.
    pub found: Vec<Found>,
    pub changes: Vec<Changed<'a>>,
    /// What `uninstall` has not taken out, since it was changed.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub left: &'a [String],
    pub notes: &'a [String],
    pub next: &'a [String],
    /// How to start a container with NICs.
    pub examples: Vec<&'static str>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Found {
    pub target: Target,
    pub by: &'static str,
}

#[derive(Clone, Debug, Serialize)]
pub struct Changed<'a> {
    pub path: &'a str,
    pub target: Target,
    /// `create`, `edit` or `remove`.
    pub change: &'static str,
    pub diff: String,
}

impl<'a> Installed<'a> {
    pub fn new(
        targets: &'a [Target],
        found: &[(Target, &'static str)],
        changes: &'a [Change],
        notes: &'a [String],
        next: &'a [String],
    ) -> Self {
        Installed {
            dry_run: true,
            found: found
                .iter()
                .map(|(target, by)| Found {
                    target: *target,
                    by,
                })
                .collect(),
            changes: changes
                .iter()
                .map(|c| Changed {
                    path: &c.path,
                    target: c.target,
                    change: kind(c),
                    diff: change_diff(c),
                })
                .collect(),
            left: &[],
            notes,
            next,
            examples: targets
                .iter()
                .filter_map(|target| target.example())
                .collect(),
            targets,
        }
    }

    /// For people: diffs of what would be, or a line for each path of what was done.
    pub fn text(&self) -> String {
        let mut lines = Vec::new();
        if !self.targets.is_empty() {
            let names: Vec<&str> = self.targets.iter().map(|t| t.name()).collect();
            lines.push(format!("configures: {}", names.join(", ")));
        }
        let others = self
            .found
            .iter()
            .filter(|f| !self.targets.contains(&f.target));
        let others: Vec<String> = others.map(|f| format!("{} ({})", f.target, f.by)).collect();
        if !others.is_empty() {
            lines.push(format!("on this host, too: {}", others.join(", ")));
        }
        for change in &self.changes {
            lines.push(match (self.dry_run, change.change) {
                (true, _) => printable_lines(&change.diff).trim_end().to_owned(),
                (_, "create") => format!("made    {}", change.path),
                (_, "edit") => format!("edited  {}", change.path),
                _ => format!("removed {}", change.path),
            });
        }
        if self.changes.is_empty() {
            lines.push("nothing to change".to_owned());
        }
        lines.extend(
            self.notes
                .iter()
                .map(|note| format!("note: {}", printable(note))),
        );
        lines.extend(self.next.iter().map(|command| format!("then: {command}")));
        if !self.examples.is_empty() {
            lines.push("try: rdmaprep prepare --plan default".to_owned());
        }
        lines.extend(
            self.examples
                .iter()
                .map(|command| format!("try: {command}")),
        );
        lines.join("\n")
    }
}

fn kind(change: &Change) -> &'static str {
    match (&change.before, &change.after) {
        (None, _) => "create",
        (_, None) => "remove",
        _ => "edit",
    }
}

/// The change as a unified diff; a link is shown by where it leads.
fn change_diff(change: &Change) -> String {
    let path = change.path.as_str();
    let [(old, before), (new, after)] =
        [&change.before, &change.after].map(|content| match content {
            None => ("/dev/null", String::new()),
            Some(Content::Text(text)) => (path, text.clone()),
            Some(Content::Link(target)) => (path, format!("link to {target}\n")),
        });
    let diff = file_diff([old, new], &before, &after);
    diff.trim_end().to_owned()
}
