//! What a restore would do.

use rdma_model::ids::IfName;
use serde::Serialize;

use super::{SCHEMA, printable};
use crate::record::{Record, short_id};

/// Of one record.
#[derive(Clone, Debug, Serialize)]
pub struct Foretold {
    pub schema: u32,
    /// True: nothing of it was done.
    pub dry_run: bool,
    /// None of a record that cannot be read.
    pub container: Option<String>,
    pub nics: Vec<IfName>,
    /// In the order in which they would be done.
    pub steps: Vec<String>,
    /// NICs that cannot be restored now, and records that cannot be read, each with the reason.
    pub stuck: Vec<String>,
    pub notes: Vec<String>,
}

impl Foretold {
    pub fn new(record: Option<&Record>) -> Foretold {
        let first = record.and_then(|r| r.members.first());
        Foretold {
            schema: SCHEMA,
            dry_run: true,
            container: first.map(|m| m.id.clone()),
            nics: record.map_or_else(Vec::new, |r| r.names().cloned().collect()),
            steps: Vec::new(),
            stuck: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// A line for each.
    pub fn text(&self) -> String {
        let notes = self.notes.iter().map(|note| format!("note: {note}"));
        let all = self.stuck.iter().chain(&self.steps).cloned().chain(notes);
        let lines: Vec<String> = all.map(|line| printable(&line)).collect();
        match lines.is_empty() {
            true => self.nothing(),
            false => lines.join("\n"),
        }
    }

    fn nothing(&self) -> String {
        let names: Vec<&str> = self.nics.iter().map(IfName::as_str).collect();
        let container = self.container.as_deref().unwrap_or_default();
        format!(
            "{} of container {}: nothing is lost; only the record goes",
            names.join(" "),
            printable(short_id(container))
        )
    }
}
