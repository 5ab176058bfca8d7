//! What a container that died without a stop left behind.

use anyhow::Result;

use rdma_model::error_class::{ErrorClass, WithClass};

use super::nic_names;
use super::pinned::drop_unrecorded;
use super::run::restore_abandoned;
use super::stays_for::{AskedBy, stays_for};
use crate::kernel::Namespaces;
use crate::record::{Record, short_id};
use crate::store::records::Records;

/// Restores the NICs of containers that have died without a stop hook, other than those in the
/// namespace `except`; goes on with NICs that are back and wait for their manager; removes records
/// of an earlier boot and what killed writers left; drops pins without a record, but for those of
/// namespaces with links, and settings files without one. Returns a sentence for each restore, for
/// what failed, and for each record that cannot be read.
pub fn reclaim(
    machine: &dyn Namespaces,
    records: &mut Records,
    except: Option<u64>,
) -> Result<Vec<String>> {
    let store = records.store();
    let mut notes = Vec::new();
    let mut known = Vec::new();
    for path in records.paths() {
        match records.at(&path) {
            Some(Ok(record)) => {
                known.push(record.netns);
                let stays = stays_for(machine, record, AskedBy::Reclaim(store)).is_some();
                if except != Some(record.netns) && !stays {
                    let record = record.clone();
                    notes.extend(restore_one(machine, records, record));
                }
            }
            Some(Err(e)) => {
                notes.push(format!("{e:#}"));
                // Its pin keeps its NICs together until the record is repaired.
                known.extend(store.netns_of(&path));
            }
            None => {}
        }
    }
    notes.extend(records.sweep());
    for netns in store.all_pins()?.into_iter().filter(|p| !known.contains(p)) {
        let dropped = drop_unrecorded(machine, store, netns);
        match dropped.class(ErrorClass::Other, "dropping a pin that nothing uses") {
            Ok(true) => {}
            Ok(false) => notes.push(format!(
                "the namespace {netns} has links and no record: `rdmaprep status` says how they \
                come back"
            )),
            Err(e) => notes.push(format!("{e:#}")),
        }
    }
    let files = store.all_settings_files()?.into_iter();
    for netns in files.filter(|p| !known.contains(p)) {
        let removed = store.remove_settings_file(netns);
        removed.unwrap_or_else(|e| notes.push(format!("{e:#}")));
    }
    Ok(notes)
}

fn restore_one(machine: &dyn Namespaces, records: &mut Records, record: Record) -> Vec<String> {
    let nics = joined(nic_names(&record.held).iter().map(ToString::to_string));
    let of = joined(record.members.iter().map(|m| short_id(&m.id).to_owned()));
    let was_back = record.is_back();
    match restore_abandoned(machine, records, record) {
        Ok(done) if was_back && done.waits_for.is_empty() => {
            let mut notes = vec![format!("{nics} of {of}: configured again")];
            notes.extend(done.notes.iter().map(|note| format!("{of}: {note}")));
            notes
        }
        Ok(_) if was_back => Vec::new(),
        Ok(_) => vec![format!("restored {nics}: their container has died ({of})")],
        Err(e) => vec![format!("{nics} of {of}: {e:#}")],
    }
}

fn joined(all: impl Iterator<Item = String>) -> String {
    all.collect::<Vec<_>>().join(" ")
}
