//! Links that a container made beside a NIC that is no hardware. A macvlan that is made on a
//! macvlan sits on the device below (macvlan_common_newlink() in drivers/net/macvlan.c), which is
//! the host's; and a link that root puts into a further namespace keeps sending through that
//! device, beside the one that a restore makes.

use rdma_model::moved_nic::MovedNic;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use rdma_model::ids::{IfName, Mac};
use rdma_model::snapshot::{Snapshot, Stranger};
use rdma_model::step::Side;

use crate::kernel::netns::search::{FoundLink, Processes, Search};
use crate::kernel::{Depth, Scope, World};
use crate::record::Record;
use crate::restore::children::{Doomed, few, sweep};
use crate::restore::locate::{has_its_address, inside_of, is_moved_on};

const LOST: &str = "has been deleted or moved on";

#[derive(Debug, Default)]
pub(super) struct Siblings {
    /// A sentence for each that was deleted, and for each that is another container's.
    pub(super) notes: Vec<String>,
    /// A sentence for each that may use the card, and of which no one can tell whose it is.
    pub(super) remaining: Vec<String>,
    /// NICs that were moved on, or may have been.
    moved_on: BTreeSet<IfName>,
}

/// What a link on the device below is.
enum Kin<'a> {
    /// A NIC of the record, which was moved on.
    MovedOn(&'a MovedNic),
    /// In the container's namespace.
    Own,
    /// Where a CNI plugin has put it.
    Given,
    /// In the container's namespace, where its engine may have put it.
    MayBeGiven,
    /// Another container's.
    Others,
    /// In another container's namespace, while this NIC is missing.
    MayBe(&'a MovedNic),
    Unknown,
}

/// A NIC that is no hardware, and is not in the container's namespace any more.
struct Absent<'a> {
    held: &'a MovedNic,
    /// Whether no restore had made it on the host, and it was not found elsewhere.
    is_lost: bool,
}

/// Deletes the container's links on devices below its NICs. It comes before the restore, which
/// makes the NICs again: the kernel takes a VLAN's number and a macvlan's address once.
pub(super) fn delete(
    world: &mut dyn World,
    record: &Record,
    others: &[Record],
) -> Result<Siblings> {
    let mut siblings = Siblings::default();
    let swept = sweep(|| siblings.look(world, record, others))?;
    siblings.notes.extend(few(swept.deleted));
    siblings.remaining.extend(swept.left);
    siblings.remaining = few(siblings.remaining);
    Ok(siblings)
}

/// Looks again once the NICs are back: until then a container that runs can make links from them.
pub(super) fn delete_again(
    world: &mut dyn World,
    record: &Record,
    others: &[Record],
    siblings: &mut Siblings,
) -> Result<()> {
    let again = delete(world, record, others)?;
    // What it says of links that stay has been said, with the NICs still missing.
    let new = again
        .notes
        .into_iter()
        .filter(|note| note.ends_with("deleted"));
    siblings.notes.extend(new);
    for text in again.remaining {
        if !siblings.remaining.contains(&text) {
            siblings.remaining.push(text);
        }
    }
    Ok(())
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

fn absent_from<'a>(record: &'a Record, inside: Option<&Snapshot>) -> Vec<&'a MovedNic> {
    let stacked = record.held.iter().filter(|h| h.nic.over.is_some());
    stacked
        .filter(|h| inside.is_none_or(|i| inside_of(h, &record.held, i).is_none()))
        .collect()
}

/// Whether it is missing in the namespace, and not since a restore made it on the host: by the next
/// try it is there.
fn is_lost(held: &MovedNic, record: &Record, host: &Snapshot) -> bool {
    let lost = format!("{} {LOST}", name_of(held));
    let was_lost = record.held_back.iter().any(|why| why.ends_with(&lost));
    was_lost || host.netdev(name_of(held)).is_none()
}

impl Siblings {
    /// A plan calls a NIC that was moved on deleted, since it is in neither namespace.
    pub(super) fn correct(&self, notes: &mut Vec<String>) {
        for name in &self.moved_on {
            let wrong = format!("{name} had been deleted");
            notes.retain(|note| *note != wrong);
        }
    }

    fn look(
        &mut self,
        world: &mut dyn World,
        record: &Record,
        others: &[Record],
    ) -> Result<Vec<Doomed>> {
        if !record.held.iter().any(|h| h.nic.over.is_some()) {
            return Ok(Vec::new());
        }
        self.notes.clear();
        self.remaining.clear();
        let links = Scope::only(Depth::Links);
        let host = world.observe(Side::Host, &links)?;
        let inside = world.observe_inside(&links)?;
        let mut doomed = self.look_on(world, &host, (record, others), inside.as_ref())?;
        if let Some(inside) = inside.filter(|i| !absent_from(record, Some(i)).is_empty()) {
            doomed.extend(self.look_inside(world, &inside, record)?);
        }
        Ok(doomed)
    }

    fn look_on(
        &mut self,
        world: &mut dyn World,
        host: &Snapshot,
        (record, others): (&Record, &[Record]),
        inside: Option<&Snapshot>,
    ) -> Result<Vec<Doomed>> {
        let below = below_on_host(record, host);
        if below.is_empty() {
            return Ok(Vec::new());
        }
        let cards = below.keys().copied().collect();
        let container = Processes::of(record);
        // What it hides ends with it. A link that comes after this look is none.
        let forwarded = match container.live() {
            true => world.forwarded(&cards)?,
            false => Vec::new(),
        };
        let Search { mut found, gap } = world.search(Side::Host, &cards)?;
        if gap.is_none() {
            self.find_hidden(&forwarded, &below, (record, host), &found);
        }
        let mut absent: Vec<Absent> = absent_from(record, inside)
            .into_iter()
            .map(|held| Absent {
                held,
                is_lost: inside.is_some()
                    && !self.moved_on.contains(name_of(held))
                    && is_lost(held, record, host),
            })
            .collect();
        // One that is missing may be where the search did not get to.
        match absent.iter().find(|nic| nic.is_lost) {
            Some(nic) => self
                .remaining
                .extend(gap.map(|gap| format!("{gap}; {} {LOST}", name_of(nic.held)))),
            None => self.notes.extend(gap),
        }
        let in_place: BTreeSet<u32> = inside
            .into_iter()
            .flat_map(|i| nics_in(record, i))
            .collect();
        self.notes.extend(
            found
                .iter()
                .filter_map(|found| taken(&found.link, record, others)),
        );
        found.retain(|found| !is_expected(&found.link, (record, others), &in_place));
        for nic in &mut absent {
            let mut links = found.iter().map(|found| &found.link);
            nic.is_lost &= !links.any(|link| is_moved_on(nic.held, link));
        }
        let mut doomed = Vec::new();
        for found in found {
            let Some(card) = found.link.lowers.iter().find_map(|index| below.get(index)) else {
                continue;
            };
            let kin = kin(&found, card, (record, others), (&absent, &container));
            doomed.extend(self.settle(kin, found, card));
        }
        Ok(doomed)
    }

    /// A macvlan in a namespace that only a mount, an open file or a thread keeps is found by its
    /// address alone.
    fn find_hidden(
        &mut self,
        forwarded: &[(u32, Mac)],
        below: &BTreeMap<u32, &IfName>,
        (record, host): (&Record, &Snapshot),
        found: &[FoundLink],
    ) {
        let mut known: BTreeSet<&Mac> = host.netdevs.iter().flat_map(|n| &n.mac).collect();
        known.extend(found.iter().flat_map(|found| &found.link.mac));
        known.extend(record.held.iter().flat_map(|h| &h.before.netdev.mac));
        for (index, mac) in forwarded.iter().filter(|(_, mac)| !known.contains(mac)) {
            self.remaining.push(format!(
                "{} takes packets for {mac}, the address of no link that could be found: end the \
                container, or `rdmaprep restore --forget` if that is none of its macvlans",
                below[index]
            ));
        }
    }

    /// A device below that the container had as well: no other program can have put anything on it.
    fn look_inside(
        &mut self,
        world: &mut dyn World,
        inside: &Snapshot,
        record: &Record,
    ) -> Result<Vec<Doomed>> {
        let below = below_inside(record, inside);
        let mut doomed = Vec::new();
        if below.is_empty() {
            return Ok(doomed);
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
            doomed.extend(self.settle(kin, found, card));
        }
        Ok(doomed)
    }

    /// What goes; else what there is to say of a link.
    fn settle(&mut self, kin: Kin, found: FoundLink, card: &IfName) -> Option<Doomed> {
        let link = &found.link;
        let why = match kin {
            Kin::MovedOn(held) => {
                self.moved_on.insert(name_of(held).clone());
                "had been moved on".to_owned()
            }
            Kin::Own => format!("had been put on {card}"),
            Kin::Given => {
                let text = format!("{link} sits on {card}, too, and is of a CNI plugin: it stays");
                self.notes.push(text);
                return None;
            }
            Kin::MayBeGiven => {
                self.remaining.push(format!(
                    "{link} has been put on {card} since, by the container or by its engine: \
                        delete it there, or `rdmaprep restore --forget` if it is the engine's"
                ));
                return None;
            }
            Kin::Others => {
                self.notes.push(format!(
                    "{link} sits on {card}, too, and is another container's: it stays"
                ));
                return None;
            }
            Kin::MayBe(held) => {
                let nic = name_of(held);
                self.moved_on.insert(nic.clone());
                self.remaining.push(format!(
                    "{link} has been put on {card} since, and may be {nic} under another name: \
                        delete it there, or `rdmaprep restore --forget` if it is another \
                        container's; {nic} {LOST}"
                ));
                return None;
            }
            Kin::Unknown => {
                self.remaining.push(format!(
                    "{link} has been put on {card} since, and may be the \
                        container's: delete it there"
                ));
                return None;
            }
        };
        Some(Doomed::new(found, card, why))
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

/// What another container's NIC has taken, since root there can change its address. That does not
/// matter while the link is down.
fn taken(link: &Stranger, record: &Record, others: &[Record]) -> Option<String> {
    let nic = record.held.iter().find(|h| has_its_address(h, link))?;
    is_of(others, link).then(|| {
        let nic = name_of(nic);
        format!("{link} has taken the address of {nic}: give it another one there")
    })
}

/// Whether it is a NIC of one of these records, in its place.
fn is_of(records: &[Record], link: &Stranger) -> bool {
    let mut there = records.iter().filter(|r| r.netns == link.netns);
    there.any(|r| r.held.iter().any(|h| is_nic_inside(h, link)))
}

/// Whether it was there before the container, or is the NIC of a record.
fn is_expected(
    link: &Stranger,
    (record, others): (&Record, &[Record]),
    in_place: &BTreeSet<u32>,
) -> bool {
    let mut beside = record.held.iter().flat_map(|h| &h.beside);
    beside.any(|s| (s.netns, s.ifindex) == (link.netns, link.ifindex))
        || link.netns == record.netns && in_place.contains(&link.ifindex)
        || is_of(others, link)
}

/// Whether a link of its container's namespace is that NIC: root there cannot change its index.
fn is_nic_inside(held: &MovedNic, link: &Stranger) -> bool {
    let has_its_index = link.ifindex == held.inside.netdev.ifindex;
    has_its_index && link.kind == held.before.netdev.kind || is_moved_on(held, link)
}

fn is_on(held: &MovedNic, card: &IfName) -> bool {
    held.nic.over.as_ref() == Some(card)
}

/// Whose namespace it is in does not say whose the link is: a container may put its own there.
fn kin<'a>(
    found: &FoundLink,
    card: &IfName,
    (record, others): (&'a Record, &[Record]),
    (absent, container): (&[Absent<'a>], &Processes),
) -> Kin<'a> {
    let link = &found.link;
    if link.netns == record.netns {
        return match found {
            _ if found.is_of_cni() => Kin::Given,
            _ if found.may_be_of_engine(container) => Kin::MayBeGiven,
            _ => Kin::Own,
        };
    }
    let mut on_card = absent.iter().filter(|nic| is_on(nic.held, card));
    if let Some(nic) = on_card.clone().find(|nic| is_moved_on(nic.held, link)) {
        return Kin::MovedOn(nic.held);
    }
    if found.is_of_cni() {
        return Kin::Given;
    }
    let began = record.members.iter().map(|m| m.start_time).min();
    let is_anothers = others.iter().any(|r| r.netns == link.netns)
        || found.is_anothers(container)
        || began.is_some_and(|began| found.is_older_than(began));
    let may_be = on_card.find(|nic| {
        let is_same_kind = nic.held.before.netdev.kind == link.kind;
        is_same_kind && nic.is_lost || has_its_address(nic.held, link)
    });
    match may_be {
        Some(nic) => Kin::MayBe(nic.held),
        None if is_anothers && !found.is_fed_from_inside => Kin::Others,
        None => Kin::Unknown,
    }
}
