//! What goes with a record whose NICs are back, and what stays of it.

use anyhow::Result;
use rdma_model::host_objects::HostObjects;
use rdma_model::ids::IfName;
use rdma_model::moved_nic::MovedNic;

use super::of_host::is_networkds;
use super::settle::WaitingNic;
use crate::kernel::{Namespaces, Pin};
use crate::record::Record;
use crate::store::Store;
use crate::store::records::Records;

/// Forgets a record whose NICs are back, but for those that wait for their managers.
pub fn close_record(
    machine: &dyn Namespaces,
    records: &mut Records,
    record: &Record,
    waiting: &[WaitingNic],
) -> Result<()> {
    let nics: Vec<IfName> = waiting.iter().map(|w| w.nic.clone()).collect();
    let waits_for = waiting.iter().map(|w| w.why.clone()).collect();
    let mut rest =
        record.reduced_to_waiting(number_when_back(records, record, &nics), &nics, waits_for);
    // A stop may end before networkd has begun with each of its links: one more look is for them.
    rest.keep_objects_until_back = not_begun_by_networkd(record, waiting);
    if rest.keep_objects_until_back.is_empty() {
        rest.host_objects = HostObjects::default();
    }
    if !nics.is_empty() && rest != *record {
        records.save(&rest)?;
    }
    if !record.is_back() {
        release_netns(machine, records.store(), record)?;
    }
    if nics.is_empty() || !record.is_back() {
        records.forget(record)?;
    }
    Ok(())
}

/// NICs with which networkd may have yet to begin: until then it may delete what is of the host.
pub fn not_begun_by_networkd(record: &Record, waiting: &[WaitingNic]) -> Vec<IfName> {
    let mut not_begun: Vec<IfName> = waiting
        .iter()
        .filter(|w| !record.is_back() || !w.has_begun)
        .map(|w| w.nic.clone())
        .collect();
    let its: Vec<&MovedNic> = record.held.iter().filter(|h| is_networkds(h)).collect();
    not_begun.retain(|name| its.iter().any(|h| h.name() == name));
    not_begun
}

/// That of an earlier try which could not forget the record of these NICs, or one that is free.
fn number_when_back(records: &Records, record: &Record, nics: &[IfName]) -> u64 {
    if record.is_back() {
        return record.netns;
    }
    let mut earlier = records.readable();
    if let Some(earlier) = earlier.find(|r| r.is_back() && r.names().eq(nics)) {
        return earlier.netns;
    }
    let mut numbers = record.numbers_when_back();
    let free = numbers.find(|number| records.of_netns(*number).is_none());
    free.unwrap_or_default()
}

/// Drops what keeps a record's namespace, and what was written for its containers.
pub fn release_netns(machine: &dyn Namespaces, store: &Store, record: &Record) -> Result<()> {
    // While ours still keeps it, its number is no other namespace's.
    if let Some(hold) = &record.hold {
        machine.unpin(Pin::Named(&hold.path), record.netns)?;
    }
    machine.unpin(Pin::Own(&store.pin(record.netns)), record.netns)?;
    for m in &record.members {
        store.remove_ended_late_conf(&m.id, &m.bundle)?;
    }
    store.remove_settings_file(record.netns)
}
