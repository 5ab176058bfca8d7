//! Whether the NICs of a claim are back, by the records: the CDI file may list a rail no more, and
//! the binding may be gone.

use std::path::Path;

use anyhow::Result;
use rdmaprep::cdi::RailName;
use rdmaprep::disk::files;
use rdmaprep::kernel::ThisMachine;
use rdmaprep::kernel::process::pidfd;
use rdmaprep::record::{Record, short_id};
use rdmaprep::restore::stays_for::{AskedBy, StaysFor, stays_for};
use rdmaprep::store::Store;
use rdmaprep::store::claims::Binding;
use rdmaprep::store::records::Records;

/// What of a claim is in the records: its UID, and its rails where the binding names them.
pub struct Its<'a> {
    pub uid: &'a str,
    pub binding: Option<&'a Binding>,
}

impl Its<'_> {
    fn has(&self, name: &str) -> bool {
        self.binding.is_some_and(|binding| binding.has(name))
    }

    fn is_in(&self, record: &Record) -> bool {
        let rails = self.binding.into_iter().flat_map(|binding| &binding.rails);
        record.claims.iter().any(|uid| uid == self.uid)
            || rails
                .map(|bound| &bound.rail)
                .any(|rail| record_has(record, rail))
    }

    /// What cannot be read may be of any NIC that it does not name.
    fn may_be_in(&self, store: &Store, path: &Path) -> bool {
        let text = files::read(path).ok().flatten().unwrap_or_default();
        let nics = store.remains(path).nics;
        nics.is_empty() || text.contains(self.uid) || nics.iter().any(|nic| self.has(nic.as_str()))
    }
}

pub fn record_has(record: &Record, rail: &RailName) -> bool {
    match rail {
        RailName::Netdev(name) => record.held.iter().any(|h| h.name() == name),
        RailName::Hca(name) => record.given.iter().any(|plan| plan.ib.contains(name)),
    }
}

/// A container that lives and has NICs of the claim, by its id.
pub fn container_with(store: &Store, boot_id: &str, its: &Its) -> Result<Option<String>> {
    let machine = ThisMachine::new()?;
    let records = Records::read(store, boot_id)?;
    let mut its = records.readable().filter(|record| its.is_in(record));
    Ok(its.find_map(
        |record| match stays_for(&machine, record, AskedBy::NextUser) {
            Some(StaysFor::Container(id)) => Some(id),
            _ => None,
        },
    ))
}

/// Why NICs of the claim are, or may be, away. Those whose return was tried and is not whole are
/// not among them: no other pod gets these.
pub fn why_away(store: &Store, boot_id: &str, its: &Its) -> Result<Option<String>> {
    let machine = ThisMachine::new()?;
    for (path, record) in Records::read(store, boot_id)?.iter() {
        match record {
            Ok(record) if record.is_back() || !record.held_back.is_empty() => {}
            Ok(record) if its.is_in(record) => return Ok(Some(keeper(&machine, record))),
            Err(e) if its.may_be_in(store, path) => {
                return Ok(Some(format!(
                    "its NICs may be away: {}",
                    store.unreadable(path, e)
                )));
            }
            _ => {}
        }
    }
    Ok(None)
}

fn keeper(machine: &ThisMachine, record: &Record) -> String {
    let nics: Vec<&str> = record.names().map(|name| name.as_str()).collect();
    let by = match stays_for(machine, record, AskedBy::NextUser) {
        Some(StaysFor::Container(id)) => format!("container {} runs", short_id(&id)),
        Some(StaysFor::Process(pid)) => {
            let process = pidfd::in_words(pid);
            format!("{process} is still in the pod's network namespace: end it")
        }
        _ => "see `rdmaprep status`".to_owned(),
    };
    format!("its NICs ({}) are not back: {by}", nics.join(" "))
}
