//! Links that a container made on its NICs and put into other namespaces. They outlive the move to
//! the host, and keep sending and receiving through the card, also while the next container has it:
//! a macvlan or VLAN follows the device below it wherever that goes (macvlan_device_event() in
//! drivers/net/macvlan.c lets moves pass).

use rdma_model::moved_nic::MovedNic;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use rdma_model::ids::IfName;
use rdma_model::snapshot::Stranger;
use rdma_model::step::{Side, Step};

use crate::kernel::netns::search::{Processes, Search};
use crate::kernel::{Depth, Scope, World};
use crate::record::Record;

#[derive(Debug, Default)]
pub(super) struct Children {
    /// A sentence for each that was deleted.
    pub(super) notes: Vec<String>,
    /// A sentence for each that is still there: its NIC is not the host's alone.
    pub(super) remaining: Vec<String>,
}

/// NICs whose links only the container can have made: those that were just taken out of it, and on
/// the first try all. On a later try, a NIC that was back already may have links of the host's.
pub(super) fn links_owners<'a>(
    steps: &'a [Step],
    held: &'a [MovedNic],
    first: bool,
) -> BTreeSet<&'a IfName> {
    let all = held.iter().map(|h| &h.nic.identity.name);
    let mut owners: BTreeSet<&IfName> = all.filter(|_| first).collect();
    for step in steps {
        if let Step::Move {
            from: Side::Inside,
            name,
            ..
        } = step
        {
            owners.insert(name);
        }
    }
    owners
}

/// Deletes links on NICs that the container `owned`, and reports the others. Another container's
/// stay once the container's are known to be gone: a restore that was killed may have left one that
/// the container put into that other one.
pub(super) fn delete(
    world: &mut dyn World,
    here: &[MovedNic],
    owned: &BTreeSet<&IfName>,
    record: &Record,
) -> Result<Children> {
    let host = world.observe(Side::Host, &Scope::only(Depth::Links))?;
    let found = here.iter().filter_map(|h| {
        Some((
            host.netdev(&h.nic.identity.name)?.ifindex,
            &h.nic.identity.name,
        ))
    });
    let nics: BTreeMap<u32, &IfName> = found.collect();
    let Search { found, gap } = world.search(Side::Host, &nics.keys().copied().collect())?;
    let mut children = Children {
        notes: gap.into_iter().collect(),
        ..Children::default()
    };
    for child in found {
        let link = child.link.clone();
        let Some(nic) = link.lowers.iter().find_map(|index| nics.get(index)) else {
            continue;
        };
        let may_stay = !owned.contains(nic) && record.children_gone;
        if may_stay && child.is_anothers(&Processes::of(record)) {
            let note = format!("{link} sits on {nic} by now, and is another container's: it stays");
            children.notes.push(note);
            continue;
        }
        if !owned.contains(nic) {
            children
                .remaining
                .push(format!("{link} sits on {nic}: delete it there"));
            continue;
        }
        match child.delete() {
            Ok(()) => children.notes.push(deleted(&link, nic)),
            Err(e) => children
                .remaining
                .push(format!("{link} sits on {nic} and cannot be deleted: {e:#}")),
        }
    }
    Ok(children)
}

fn deleted(link: &Stranger, nic: &IfName) -> String {
    format!("{link} had been put on {nic} and is deleted")
}
