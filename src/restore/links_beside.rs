//! Links that a container made beside a NIC that is no hardware. A macvlan that is made on a
//! macvlan sits on the device below (macvlan_common_newlink() in drivers/net/macvlan.c), which is
//! the host's; and a link that root puts into a further namespace keeps sending through that
//! device, beside the one that a restore makes.

mod whose;

use rdma_model::moved_nic::MovedNic;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use rdma_model::ids::{IfName, Mac};
use rdma_model::snapshot::{Snapshot, Stranger};
use rdma_model::step::Side;

use crate::kernel::netns::search::{FoundLink, Processes, Search};
use crate::kernel::{Depth, Scope, World};
use crate::record::Record;
use crate::restore::links_on::{LinkToDelete, few, sweep};
use crate::restore::locate::{has_its_address, inside_of, is_moved_on};
use crate::restore::look_inside::look_inside;
use whose::{Absent, Whose, is_expected, is_of, whose};

#[derive(Debug, Default)]
pub(super) struct LinksBeside {
    /// A sentence for each that was deleted.
    pub(super) deleted: Vec<String>,
    /// A sentence for each that is another container's.
    pub(super) notes: Vec<String>,
    /// A sentence for each that may use the card, and of which no one can tell whose it is.
    pub(super) remaining: Vec<String>,
    /// See [`Record::lost`].
    pub(super) lost: BTreeSet<IfName>,
    /// NICs that were moved on, or may have been: a plan, which sees two namespaces, calls them
    /// deleted.
    pub(super) moved_on: BTreeSet<IfName>,
    /// Those of which that is certain: they are not lost, and no other link may be them.
    found_elsewhere: BTreeSet<IfName>,
    /// Whether the NICs have been brought back: what is in the place of one inside is another link.
    are_back: bool,
}

/// Deletes the container's links on devices below its NICs. It comes before the restore, which
/// makes the NICs again: the kernel takes a VLAN's number and a macvlan's address once.
pub(super) fn delete(
    world: &mut dyn World,
    record: &Record,
    others: &[Record],
) -> Result<LinksBeside> {
    LinksBeside::default().swept(world, record, others)
}

/// Looks again once the NICs are back: until then a container that runs can make links from them.
pub(super) fn delete_again(
    world: &mut dyn World,
    record: &Record,
    others: &[Record],
    beside: &mut LinksBeside,
) -> Result<()> {
    let again = LinksBeside {
        are_back: true,
        ..LinksBeside::default()
    };
    let again = again.swept(world, record, others)?;
    // What it notes of links that stay has been noted, with the NICs still missing.
    beside.deleted.extend(again.deleted);
    beside.remaining = again.remaining;
    beside.lost = again.lost;
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
    let below = record.held.iter().filter(|h| below.contains(&h.name()));
    below
        .filter_map(|h| Some((inside_of(h, &record.held, inside)?.ifindex, h.name())))
        .collect()
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
    let name = held.name();
    record.lost.contains(name) || host.netdev(name).is_none()
}

impl LinksBeside {
    /// What is said where none could be looked for.
    pub(super) fn not_seen(e: &anyhow::Error) -> LinksBeside {
        LinksBeside {
            notes: vec![format!(
                "links beside the NICs could not be looked for: {e:#}"
            )],
            ..LinksBeside::default()
        }
    }

    fn swept(
        mut self,
        world: &mut dyn World,
        record: &Record,
        others: &[Record],
    ) -> Result<LinksBeside> {
        let swept = sweep(|| self.look(world, record, others))?;
        self.deleted = few(swept.deleted);
        self.remaining.extend(swept.left);
        self.remaining = few(self.remaining);
        Ok(self)
    }

    fn look(
        &mut self,
        world: &mut dyn World,
        record: &Record,
        others: &[Record],
    ) -> Result<Vec<LinkToDelete>> {
        if !record.held.iter().any(|h| h.nic.over.is_some()) {
            return Ok(Vec::new());
        }
        self.notes.clear();
        self.remaining.clear();
        self.lost.clear();
        let links = Scope::only(Depth::Links);
        let host = world.observe(Side::Host, &links)?;
        let inside = look_inside(world, &record.held)?;
        let mut to_delete = self.look_on(world, &host, (record, others), inside.as_ref())?;
        if let Some(inside) = inside.filter(|i| !absent_from(record, Some(i)).is_empty()) {
            to_delete.extend(self.look_inside(world, &inside, record)?);
        }
        Ok(to_delete)
    }

    fn look_on(
        &mut self,
        world: &mut dyn World,
        host: &Snapshot,
        (record, others): (&Record, &[Record]),
        inside: Option<&Snapshot>,
    ) -> Result<Vec<LinkToDelete>> {
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
        let records = std::iter::once(record).chain(others);
        let theirs = records
            .flat_map(|r| &r.held)
            .filter(|h| h.nic.over.is_some());
        let theirs = theirs.flat_map(|h| [&h.before.netdev.mac, &h.inside.netdev.mac]);
        let mut known: BTreeSet<&Mac> = theirs.flatten().collect();
        known.extend(addresses_on(&below, host));
        known.extend(found.iter().flat_map(|found| &found.link.mac));
        for (index, mac) in forwarded.iter().filter(|(_, mac)| !known.contains(mac)) {
            self.remaining
                .push(hidden(below[index], mac, gap.is_some(), record));
        }
        let mut absent: Vec<Absent> = absent_from(record, inside)
            .into_iter()
            .map(|held| Absent {
                held,
                is_lost: inside.is_some()
                    && !self.found_elsewhere.contains(held.name())
                    && is_lost(held, record, host),
            })
            .collect();
        // One that is missing may be where the search did not get to.
        let lost = absent.iter().filter(|nic| nic.is_lost);
        match gap {
            Some(gap) if lost.clone().next().is_some() => {
                self.lost.extend(lost.map(|nic| nic.held.name().clone()));
                let lost: Vec<&str> = self.lost.iter().map(IfName::as_str).collect();
                let text = format!("{gap}; {} may be there", lost.join(" "));
                self.remaining.push(text);
            }
            gap => self.notes.extend(gap),
        }
        let are_back = self.are_back;
        let is_home = |h: &MovedNic| are_back && host.netdev(h.name()).is_some();
        let in_place: BTreeSet<u32> = inside
            .into_iter()
            .flat_map(|i| nics_in(record, i, is_home))
            .collect();
        self.notes.extend(
            found
                .iter()
                .filter_map(|found| taken_address(&found.link, record, others)),
        );
        found.retain(|found| !is_expected(&found.link, (record, others), &in_place));
        for nic in &mut absent {
            let mut links = found.iter().map(|found| &found.link);
            nic.is_lost &= !links.any(|link| is_moved_on(nic.held, link));
        }
        let mut to_delete = Vec::new();
        for found in found {
            let Some(card) = found.link.lowers.iter().find_map(|index| below.get(index)) else {
                continue;
            };
            let whose = whose(&found, card, (record, others), (&absent, &container));
            to_delete.extend(self.judge(whose, (found, card), record));
        }
        Ok(to_delete)
    }

    /// A device below that the container had as well: no other program can have put anything on it.
    fn look_inside(
        &mut self,
        world: &mut dyn World,
        inside: &Snapshot,
        record: &Record,
    ) -> Result<Vec<LinkToDelete>> {
        let below = below_inside(record, inside);
        let mut to_delete = Vec::new();
        if below.is_empty() {
            return Ok(to_delete);
        }
        for found in world
            .search(Side::Inside, &below.keys().copied().collect())?
            .found
        {
            let Some(card) = found.link.lowers.iter().find_map(|index| below.get(index)) else {
                continue;
            };
            let whose = record
                .held
                .iter()
                .find(|h| is_moved_on(h, &found.link))
                .map_or(Whose::Own, Whose::MovedOn);
            to_delete.extend(self.judge(whose, (found, card), record));
        }
        Ok(to_delete)
    }

    /// What is to be deleted; else notes what there is to say of a link.
    fn judge(
        &mut self,
        whose: Whose,
        (found, card): (FoundLink, &IfName),
        record: &Record,
    ) -> Option<LinkToDelete> {
        let forget = format!("{} --forget", record.restore_command());
        let link = &found.link;
        let (list, text) = match whose {
            Whose::MovedOn(held) => {
                self.moved_on.insert(held.name().clone());
                self.found_elsewhere.insert(held.name().clone());
                let why = "had been moved on".to_owned();
                return Some(LinkToDelete::new(found, card, why));
            }
            Whose::Own => {
                let why = format!("had been put on {card}");
                return Some(LinkToDelete::new(found, card, why));
            }
            Whose::Given => (
                &mut self.notes,
                format!("{link} sits on {card}, too, and is of a CNI plugin: it stays"),
            ),
            Whose::MayBeGiven => (
                &mut self.remaining,
                format!(
                    "{link} has been put on {card} since, by the container or by its engine: \
                        delete it there, or `{forget}` if it is the engine's"
                ),
            ),
            Whose::Others => (
                &mut self.notes,
                format!("{link} sits on {card}, too, and is another container's: it stays"),
            ),
            Whose::MayBe(held) => {
                let nic = held.name();
                self.moved_on.insert(nic.clone());
                self.lost.insert(nic.clone());
                // Before what may be left out.
                let text = format!(
                    "{link} has been put on {card} since, and may be {nic} under another name, \
                        which has been deleted or moved on: delete it there, or `{forget}` if it \
                        is another container's"
                );
                self.remaining.insert(0, text);
                return None;
            }
            Whose::Unknown => (
                &mut self.remaining,
                format!(
                    "{link} has been put on {card} since, and may be the container's: delete it \
                        there, or `{forget}` if it is not"
                ),
            ),
        };
        list.push(text);
        None
    }
}

/// The addresses of the host's own links on devices, and of these.
fn addresses_on<'h>(
    below: &BTreeMap<u32, &IfName>,
    host: &'h Snapshot,
) -> impl Iterator<Item = &'h Mac> {
    let mut on: BTreeSet<u32> = below.keys().copied().collect();
    loop {
        let count = on.len();
        for link in &host.netdevs {
            if link.lowers.iter().any(|lower| on.contains(lower)) {
                on.insert(link.ifindex);
            }
        }
        if on.len() == count {
            break;
        }
    }
    let links = host
        .netdevs
        .iter()
        .filter(move |link| on.contains(&link.ifindex));
    links.filter_map(|link| link.mac.as_ref())
}

/// A macvlan in a namespace that only a mount, an open file or a thread keeps is found by its
/// address alone.
fn hidden(card: &IfName, mac: &Mac, has_gap: bool, record: &Record) -> String {
    let restore = record.restore_command();
    let or = match has_gap {
        true => ", or of one in a namespace that was not searched",
        false => "",
    };
    format!(
        "{card} takes packets for {mac}, the address of no link that could be found{or}: end the \
        container, or `{restore} --forget` if that is none of its macvlans"
    )
}

/// The record's NICs that are where they belong, but for those that are `home`: the plan takes them
/// back.
fn nics_in(record: &Record, inside: &Snapshot, is_home: impl Fn(&MovedNic) -> bool) -> Vec<u32> {
    let away = record.held.iter().filter(|h| !is_home(h));
    away.filter_map(|h| inside_of(h, &record.held, inside))
        .map(|dev| dev.ifindex)
        .collect()
}

/// What another container's NIC has taken, since root there can change its address. That does not
/// matter while the link is down.
fn taken_address(link: &Stranger, record: &Record, others: &[Record]) -> Option<String> {
    let nic = record.held.iter().find(|h| has_its_address(h, link))?;
    is_of(others, link).then(|| {
        let nic = nic.name();
        format!("{link} has taken the address of {nic}: give it another one there")
    })
}
