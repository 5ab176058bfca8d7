//! Links that a container made on its NICs and put into other namespaces. They outlive the move to
//! the host, and keep sending and receiving through the card, also while the next container has it:
//! a macvlan or VLAN follows the device below it wherever that goes (macvlan_device_event() in
//! drivers/net/macvlan.c lets moves pass).

use rdma_model::moved_nic::MovedNic;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use rdma_model::ids::IfName;
use rdma_model::step::{Side, Step};

use crate::kernel::netns::search::{FoundLink, Processes, Search, delete_all};
use crate::kernel::{Depth, RoutesOf, Scope, World};
use crate::record::Record;

#[derive(Debug, Default)]
pub(super) struct LinksOn {
    /// A sentence for each that was deleted.
    pub(super) notes: Vec<String>,
    /// A sentence for each that is still there: its NIC is not the host's alone.
    pub(super) remaining: Vec<String>,
}

/// NICs whose links only the container can have made: those that were just taken out of it, and on
/// the first try all. On a later try, a NIC that was back already may have links of the host's.
pub(super) fn nics_of_container_alone<'a>(
    steps: &'a [Step],
    held: &'a [MovedNic],
    is_first_try: bool,
) -> BTreeSet<&'a IfName> {
    let all = held.iter().map(|h| h.name());
    let mut owners: BTreeSet<&IfName> = all.filter(|_| is_first_try).collect();
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
) -> Result<LinksOn> {
    let mut on_nics = LinksOn::default();
    let swept = sweep(|| on_nics.look(world, here, owned, record))?;
    on_nics.notes.extend(few(swept.deleted));
    on_nics.remaining.extend(swept.left);
    on_nics.remaining = few(on_nics.remaining);
    Ok(on_nics)
}

impl LinksOn {
    fn look(
        &mut self,
        world: &mut dyn World,
        here: &[MovedNic],
        owned: &BTreeSet<&IfName>,
        record: &Record,
    ) -> Result<Vec<LinkToDelete>> {
        let nics = indexes(world, here)?;
        let Search { found, gap } = world.search(Side::Host, &nics.keys().copied().collect())?;
        self.notes = gap.into_iter().collect();
        self.remaining.clear();
        let mut to_delete = Vec::new();
        if found.is_empty() {
            return Ok(to_delete);
        }
        let container = Processes::of(record);
        for found in found {
            let link = &found.link;
            let Some(nic) = link.lowers.iter().find_map(|index| nics.get(index)) else {
                continue;
            };
            let is_inside = link.netns == record.netns;
            let is_owned = match owned.contains(nic) {
                true => is_inside || !found.is_of_cni(),
                // On a NIC that was back already its engine may have put one.
                false => is_inside && !found.is_of_cni() && !found.may_be_of_engine(&container),
            };
            if is_owned {
                let why = format!("had been put on {nic}");
                to_delete.push(LinkToDelete::new(found, nic, why));
            } else if found.is_of_cni() {
                let text = format!("{link} sits on {nic} by now, and is of a CNI plugin");
                self.notes.push(format!("{text}: it stays"));
            } else if record.children_gone && found.is_anothers(&container) {
                let text = format!("{link} sits on {nic} by now, and is another container's");
                self.notes.push(format!("{text}: it stays"));
            } else {
                let text = format!("{link} sits on {nic}: delete it there");
                self.remaining.push(text);
            }
        }
        Ok(to_delete)
    }
}

/// Of these NICs on the host. Most are back at the index that they had there, and the host may have
/// thousands of links: all are listed only where one is not.
fn indexes<'a>(world: &mut dyn World, here: &'a [MovedNic]) -> Result<BTreeMap<u32, &'a IfName>> {
    let links = Scope::only(Depth::Links);
    let near = links.clone().with(RoutesOf::of_moved(here, []));
    let mut nics = BTreeMap::new();
    for scope in [near, links] {
        let host = world.observe(Side::Host, &scope)?;
        let names = here.iter().map(|h| h.name());
        let found = names.filter_map(|name| Some((host.netdev(name)?.ifindex, name)));
        nics = found.collect();
        if nics.len() == here.len() {
            break;
        }
    }
    Ok(nics)
}

/// How often to look again: a container that runs may make further links from those that are left.
const ROUNDS: usize = 10;

/// As many sentences as a person reads: a container may have made thousands of links.
const FEW: usize = 4;

/// A link that goes.
pub(super) struct LinkToDelete {
    found: FoundLink,
    below: IfName,
    why: String,
}

impl LinkToDelete {
    pub(super) fn new(found: FoundLink, below: &IfName, why: String) -> LinkToDelete {
        let below = below.clone();
        LinkToDelete { found, below, why }
    }

    fn stays(&self, why: &str) -> String {
        format!("{} sits on {} and {why}", self.found.link, self.below)
    }
}

#[derive(Default)]
pub(super) struct Swept {
    pub(super) deleted: Vec<String>,
    pub(super) left: Vec<String>,
}

/// Deletes what is found until nothing is.
pub(super) fn sweep(mut look: impl FnMut() -> Result<Vec<LinkToDelete>>) -> Result<Swept> {
    let mut swept = Swept::default();
    for _ in 0..ROUNDS {
        let to_delete = look()?;
        swept.left.clear();
        if to_delete.is_empty() {
            return Ok(swept);
        }
        let links: Vec<&FoundLink> = to_delete.iter().map(|d| &d.found).collect();
        for (link, done) in to_delete.iter().zip(delete_all(&links)) {
            match done {
                Ok(()) => swept
                    .deleted
                    .push(format!("{} {} and is deleted", link.found.link, link.why)),
                Err(e) => swept
                    .left
                    .push(link.stays(&format!("cannot be deleted: {e:#}"))),
            }
        }
    }
    let again = "others are made as it goes: end the container's processes";
    let more = look()?;
    swept.left.extend(more.iter().map(|link| link.stays(again)));
    Ok(swept)
}

/// The first ones, and how many more there are.
pub(super) fn few(mut sentences: Vec<String>) -> Vec<String> {
    let more = sentences.len().saturating_sub(FEW);
    if more > 1 {
        sentences.truncate(FEW);
        sentences.push(format!("so it is with {more} more links"));
    }
    sentences
}
