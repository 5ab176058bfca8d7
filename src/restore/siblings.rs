//! Links that a container made beside a NIC that is no hardware. A macvlan that is made on a
//! macvlan sits on the device below (macvlan_common_newlink() in drivers/net/macvlan.c), which is
//! the host's; and a link that root puts into a further namespace keeps sending through that
//! device, beside the one that a restore makes.

use rdma_model::moved_nic::MovedNic;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use rdma_model::ids::IfName;
use rdma_model::snapshot::{Snapshot, Stranger};
use rdma_model::step::Side;

use crate::kernel::netns::search::{FoundLink, Search};
use crate::kernel::{Depth, Scope, World};
use crate::record::Record;
use crate::restore::locate::{inside_of, is_moved_on};

const LOST: &str = "has been deleted or moved on";

#[derive(Debug, Default)]
pub(super) struct Siblings {
    /// A sentence for each that was deleted, and for each that is another container's.
    pub(super) notes: Vec<String>,
    /// A sentence for each that may use the card, and of which no one can tell whose it is.
    pub(super) remaining: Vec<String>,
    moved_on: BTreeSet<IfName>,
}

/// What a link on the device below is.
enum Kin<'a> {
    /// A NIC of the record, which was moved on.
    MovedOn(&'a MovedNic),
    /// In the container's namespace.
    Own,
    /// There too, by a CNI plugin.
    Given,
    /// Another container's.
    Others,
    Unknown,
}

/// Deletes the container's links on devices below its NICs. It comes before the restore, which
/// makes the NICs again: the kernel takes a VLAN's number and a macvlan's address once.
pub(super) fn delete(
    world: &mut dyn World,
    record: &Record,
    others: &[Record],
) -> Result<Siblings> {
    let mut siblings = Siblings::default();
    if !record.held.iter().any(|h| h.nic.over.is_some()) {
        return Ok(siblings);
    }
    let links = Scope::only(Depth::Links);
    let host = world.observe(Side::Host, &links)?;
    let inside = if world.has_inside() {
        Some(world.observe(Side::Inside, &links)?)
    } else {
        None
    };
    siblings.delete_on(world, &host, (record, others), inside.as_ref())?;
    if let Some(inside) = inside.filter(|inside| lacking(record, inside).is_some()) {
        siblings.delete_inside(world, &inside, record)?;
    }
    Ok(siblings)
}

/// The devices of the host below the record's NICs, by index.
fn below_on_host<'a>(record: &'a Record, host: &Snapshot) -> BTreeMap<u32, &'a IfName> {
    let names = record.held.iter().filter_map(|h| h.nic.over.as_ref());
    names
        .filter_map(|name| Some((host.netdev(name)?.ifindex, name)))
        .collect()
}

/// Those that the container has as well, whatever they are called by now.
fn below_inside<'a>(record: &'a Record, inside: &Snapshot) -> BTreeMap<u32, &'a IfName> {
    let below: Vec<&IfName> = record
        .held
        .iter()
        .filter_map(|h| h.nic.over.as_ref())
        .collect();
    let below = record.held.iter().filter(|h| below.contains(&name_of(h)));
    below
        .filter_map(|h| Some((inside_of(h, &record.held, inside)?.ifindex, name_of(h))))
        .collect()
}

fn name_of(held: &MovedNic) -> &IfName {
    &held.nic.identity.name
}

/// A NIC that is no hardware, and is not in the container's namespace any more.
fn lacking<'a>(record: &'a Record, inside: &Snapshot) -> Option<&'a IfName> {
    let stacked = record.held.iter().filter(|h| h.nic.over.is_some());
    stacked
        .filter(|h| inside_of(h, &record.held, inside).is_none())
        .map(name_of)
        .next()
}

impl Siblings {
    /// A plan calls a NIC that was moved on deleted, since it is in neither namespace.
    pub(super) fn correct(&self, notes: &mut Vec<String>) {
        for name in &self.moved_on {
            let wrong = format!("{name} had been deleted");
            notes.retain(|note| *note != wrong);
        }
    }

    fn delete_on(
        &mut self,
        world: &mut dyn World,
        host: &Snapshot,
        (record, others): (&Record, &[Record]),
        inside: Option<&Snapshot>,
    ) -> Result<()> {
        let below = below_on_host(record, host);
        if below.is_empty() {
            return Ok(());
        }
        let Search { found, gap } = world.search(Side::Host, &below.keys().copied().collect())?;
        // One that is missing may be where the search did not get to. By the next try it has been
        // made again.
        let was_lost = record.held_back.iter().any(|why| why.ends_with(LOST));
        let lacking = inside.and_then(|inside| lacking(record, inside));
        match lacking.filter(|nic| was_lost || host.netdev(nic).is_none()) {
            Some(nic) => self
                .remaining
                .extend(gap.map(|gap| format!("{gap}; {nic} {LOST}"))),
            None => self.notes.extend(gap),
        }
        let in_place: BTreeSet<u32> = inside
            .into_iter()
            .flat_map(|i| nics_in(record, i))
            .collect();
        for found in found {
            let link = &found.link;
            if is_expected(link, (record, others), &in_place) {
                continue;
            }
            let Some(card) = link.lowers.iter().find_map(|index| below.get(index)) else {
                continue;
            };
            self.settle(kin(&found, record, others), found, card);
        }
        Ok(())
    }

    /// A device below that the container had as well: no other program can have put anything on it.
    fn delete_inside(
        &mut self,
        world: &mut dyn World,
        inside: &Snapshot,
        record: &Record,
    ) -> Result<()> {
        let below = below_inside(record, inside);
        if below.is_empty() {
            return Ok(());
        }
        for found in world
            .search(Side::Inside, &below.keys().copied().collect())?
            .found
        {
            let Some(card) = found.link.lowers.iter().find_map(|index| below.get(index)) else {
                continue;
            };
            let kin = record
                .held
                .iter()
                .find(|h| is_moved_on(h, &found.link))
                .map_or(Kin::Own, Kin::MovedOn);
            self.settle(kin, found, card);
        }
        Ok(())
    }

    fn settle(&mut self, kin: Kin, found: FoundLink, card: &IfName) {
        let link = found.link.clone();
        let deleted = match kin {
            Kin::MovedOn(held) => {
                self.moved_on.insert(name_of(held).clone());
                format!("{link} had been moved on and is deleted")
            }
            Kin::Own => format!("{link} had been put on {card} and is deleted"),
            Kin::Given => {
                let text = format!("{link} sits on {card}, too, and is of a CNI plugin: it stays");
                self.notes.push(text);
                return;
            }
            Kin::Others => {
                self.notes.push(format!(
                    "{link} sits on {card}, too, and is another container's: it stays"
                ));
                return;
            }
            Kin::Unknown => {
                self.remaining.push(format!(
                    "{link} has been put on {card} since, and may be the \
                        container's: delete it there"
                ));
                return;
            }
        };
        match found.delete() {
            Ok(()) => self.notes.push(deleted),
            Err(e) => self.remaining.push(format!(
                "{link} sits on {card} and cannot be deleted: {e:#}"
            )),
        }
    }
}

/// The record's NICs that are where they belong: the plan takes them back.
fn nics_in(record: &Record, inside: &Snapshot) -> Vec<u32> {
    record
        .held
        .iter()
        .filter_map(|h| inside_of(h, &record.held, inside))
        .map(|dev| dev.ifindex)
        .collect()
}

/// Whether it was there before the container, or is the NIC of a record.
fn is_expected(
    link: &Stranger,
    (record, others): (&Record, &[Record]),
    in_place: &BTreeSet<u32>,
) -> bool {
    let mut beside = record.held.iter().flat_map(|h| &h.beside);
    let mut there = others.iter().filter(|r| r.netns == link.netns);
    beside.any(|s| (s.netns, s.ifindex) == (link.netns, link.ifindex))
        || link.netns == record.netns && in_place.contains(&link.ifindex)
        || there.any(|r| r.held.iter().any(|h| is_moved_on(h, link)))
}

fn kin<'a>(found: &FoundLink, record: &'a Record, others: &[Record]) -> Kin<'a> {
    let link = &found.link;
    if link.netns == record.netns {
        return if found.is_of_cni() {
            Kin::Given
        } else {
            Kin::Own
        };
    }
    let began = record.members.iter().map(|m| m.start_time).min();
    match record.held.iter().find(|h| is_moved_on(h, link)) {
        Some(held) => Kin::MovedOn(held),
        None if others.iter().any(|r| r.netns == link.netns) => Kin::Others,
        None if found.is_anothers() => Kin::Others,
        None if began.is_some_and(|began| found.is_older_than(began)) => Kin::Others,
        None => Kin::Unknown,
    }
}
