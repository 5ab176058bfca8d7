//! Where NICs are, whatever they are called by now, and their names.

use rdma_model::moved_nic::MovedNic;
use rdma_model::nic::{Identity, same_nic};
use std::collections::BTreeSet;

use rdma_model::ids::IfName;
use rdma_model::snapshot::{Netdev, Snapshot, Stranger};
use rdma_model::step::{Side, Step, VirtualLink};

use rdma_model::upper_lower;

/// Where a NIC is now.
pub(super) enum Place<'a> {
    Inside(&'a Netdev),
    Host(&'a Netdev),
    /// Nowhere: it is created again like this.
    Recreated(VirtualLink),
}

/// Whether this very NIC is in the container under its name.
pub(super) fn in_place(held: &MovedNic, all: &[MovedNic], snapshot: &Snapshot) -> bool {
    find(held, all, snapshot, Side::Inside).is_some_and(|dev| dev.name == *held.name())
}

/// What is made again on the host counts as there, even if it could not be deleted inside. Any
/// other NIC is looked for inside first: on the host one with its name and index may be another,
/// which was put there meanwhile.
pub(super) fn place<'a>(
    held: &MovedNic,
    all: &[MovedNic],
    host: &'a Snapshot,
    inside: Option<&'a Snapshot>,
) -> Option<Place<'a>> {
    if let Some(dev) = find(held, all, host, Side::Host).filter(|_| is_made(held)) {
        return Some(Place::Host(dev));
    }
    if let Some(dev) = inside.and_then(|i| inside_of(held, all, i)) {
        return Some(Place::Inside(dev));
    }
    find(held, all, host, Side::Host).map(Place::Host)
}

/// What was re-created here although it could not be deleted there.
pub(super) fn double<'a>(
    held: &MovedNic,
    all: &[MovedNic],
    inside: &'a Snapshot,
) -> Option<&'a Netdev> {
    inside_of(held, all, inside).filter(|_| is_made(held))
}

/// The NIC in its container, under whatever name.
pub fn inside_of<'a>(
    held: &MovedNic,
    all: &[MovedNic],
    inside: &'a Snapshot,
) -> Option<&'a Netdev> {
    known(held, held.inside.netdev.ifindex, inside)
        .or_else(|| find(held, all, inside, Side::Inside))
}

/// Whether a link on the device below is this NIC, which was moved on. A link keeps its index where
/// that is free; two macvlans on one device cannot both use an address (macvlan_addr_busy() in
/// drivers/net/macvlan.c), and all other kinds share that of the device.
pub(super) fn is_moved_on(held: &MovedNic, link: &Stranger) -> bool {
    let was = &held.before.netdev;
    let index = [was.ifindex, held.inside.netdev.ifindex].contains(&link.ifindex);
    let is_same = match link.kind.as_deref() {
        Some("macvlan") => has_its_address(held, link),
        _ => link.name == was.name,
    };
    index && link.kind == was.kind && is_same
}

pub(super) fn has_its_address(held: &MovedNic, link: &Stranger) -> bool {
    let (was, inside) = (&held.before.netdev, &held.inside.netdev);
    let is_macvlan = link.kind.as_deref() == Some("macvlan") && link.kind == was.kind;
    is_macvlan && link.mac.is_some() && [&was.mac, &inside.mac].contains(&&link.mac)
}

/// Whether it is not moved to the host, but re-created there.
fn is_made(held: &MovedNic) -> bool {
    held.nic.over.is_some() || upper_lower::is_bond(&held.before.netdev)
}

/// Whether a permanent address or a PCI function identifies it. An ipvlan counts the address of the
/// device below as its own permanent one (ipvlan_link_new() in drivers/net/ipvlan/ipvlan_main.c).
fn is_hardware(held: &MovedNic) -> bool {
    let was = &held.before.netdev;
    held.nic.over.is_none() && (was.pci.is_some() || was.permanent_mac.is_some())
}

/// A virtual NIC that arrived: the record knows its index inside (0: not yet), which cannot be
/// changed. Root there can change all else that identifies it.
fn known<'a>(held: &MovedNic, index: u32, inside: &'a Snapshot) -> Option<&'a Netdev> {
    let was = &held.before.netdev;
    let mut all = inside.netdevs.iter().filter(|_| !is_hardware(held));
    all.find(|d| d.ifindex == index && d.link_type == was.link_type && d.kind == was.kind)
}

fn find<'a>(
    held: &MovedNic,
    all: &[MovedNic],
    snapshot: &'a Snapshot,
    side: Side,
) -> Option<&'a Netdev> {
    let was = &held.before.netdev;
    let mut alike = snapshot
        .netdevs
        .iter()
        .filter(|d| d.link_type == was.link_type && d.kind == was.kind);
    if is_hardware(held) {
        return alike.find(|dev| {
            let seen = Identity {
                name: dev.name.clone(),
                ifindex: dev.ifindex,
                pci: dev.pci,
                permanent_mac: dev.permanent_mac.clone(),
                node_guid: held.nic.identity.node_guid,
            };
            same_nic(&seen, &held.nic.identity)
        });
    }
    if held.nic.over.is_some() {
        return alike.find(|d| {
            // Its address may be that of all others on the same device.
            let is_it = d.name == was.name || d.ifindex == was.ifindex && d.mac == was.mac;
            is_it && sits_as_before(held, all, d, (snapshot, side))
        });
    }
    let mut best = None;
    for dev in alike {
        let score = [
            dev.ifindex == was.ifindex,
            dev.name == was.name,
            dev.mac == was.mac,
        ]
        .iter()
        .filter(|s| **s)
        .count();
        // One of the three may have been changed inside; two still tell it from any other.
        if score >= 2 && best.is_none_or(|(s, _)| score > s) {
            best = Some((score, dev));
        }
    }
    best.map(|(_, dev)| dev)
}

/// Whether it is certainly there, in a namespace that may be another container's: what is no
/// hardware has nothing that another container's NIC could not have, too, unless all of it fits.
pub fn is_surely_in(held: &MovedNic, all: &[MovedNic], snapshot: &Snapshot) -> bool {
    let (was, inside) = (&held.before.netdev, &held.inside.netdev);
    let Some(dev) = find(held, all, snapshot, Side::Inside) else {
        return false;
    };
    let is_as_before = dev.name == was.name && dev.mac == was.mac;
    let has_its_index = [was.ifindex, inside.ifindex].contains(&dev.ifindex);
    !is_made(held) && (is_hardware(held) || is_as_before && has_its_index)
}

/// Whether a netdev sits on what the NIC sat on, as far as that is in this namespace, too.
fn sits_as_before(
    held: &MovedNic,
    all: &[MovedNic],
    dev: &Netdev,
    (snapshot, side): (&Snapshot, Side),
) -> bool {
    let Some(over) = &held.nic.over else {
        return false;
    };
    let below = match all.iter().find(|h| h.name() == over) {
        Some(below) => find(below, all, snapshot, side),
        // It stays on the host. What has its name in the container is another one.
        None => snapshot.netdev(over).filter(|_| side == Side::Host),
    };
    dev.link == below.map(|d| d.ifindex)
}

/// Interfaces of the host, by index, whose names stay what they are: those that are none of the
/// NICs to restore, and of these such as cannot get their own names back, since one of the former
/// has one.
pub(super) fn fixed_names(placed: &[(&MovedNic, Option<Place>)], host: &Snapshot) -> BTreeSet<u32> {
    let ours: Vec<(&MovedNic, &Netdev)> = on_host(placed).collect();
    let mut fixed: BTreeSet<u32> = host.netdevs.iter().map(|d| d.ifindex).collect();
    for (_, dev) in &ours {
        fixed.remove(&dev.ifindex);
    }
    loop {
        let mut stuck = ours.clone();
        stuck.retain(|(held, dev)| {
            !fixed.contains(&dev.ifindex) && name_in_use(held, &fixed, host).is_some()
        });
        if stuck.is_empty() {
            return fixed;
        }
        fixed.extend(stuck.iter().map(|(_, dev)| dev.ifindex));
    }
}

/// Whether one of these has a name that this NIC needs.
pub(super) fn name_in_use(
    held: &MovedNic,
    fixed: &BTreeSet<u32>,
    host: &Snapshot,
) -> Option<String> {
    let names = [held.name().to_string()];
    let mut names = names.iter().chain(&held.before.netdev.altnames);
    let mut others: Vec<&Netdev> = host.netdevs.iter().collect();
    others.retain(|d| fixed.contains(&d.ifindex));
    let (name, other) = names.find_map(|n| Some((n, others.iter().find(|d| d.is_called(n))?)))?;
    Some(format!(
        "cannot be restored: the host has another interface {} that uses its name {name}; rename \
        that one",
        other.name
    ))
}

pub(super) fn on_host<'a>(
    placed: &'a [(&'a MovedNic, Option<Place<'a>>)],
) -> impl Iterator<Item = (&'a MovedNic, &'a Netdev)> {
    placed.iter().filter_map(|(h, p)| match p {
        Some(Place::Host(dev)) => Some((*h, *dev)),
        _ => None,
    })
}

/// The kernel brought NICs back under whatever names they had inside, which may be each other's;
/// udev may have made an old name an altname meanwhile. So the way is cleared first: no altname
/// that a NIC did not have, no name that another one needs.
pub(super) fn restore_names(
    placed: &[(&MovedNic, Option<Place>)],
    fixed: &BTreeSet<u32>,
    named: &mut Snapshot,
) -> Vec<Step> {
    let side = Side::Host;
    let ours: Vec<(&MovedNic, &Netdev)> = on_host(placed)
        .filter(|(h, _)| name_in_use(h, fixed, named).is_none())
        .collect();
    let mut steps = Vec::new();
    for (h, dev) in &ours {
        steps.extend(foreign_altnames(side, &h.before.netdev, dev));
    }
    let mut renames = Vec::new();
    for (h, dev) in ours
        .iter()
        .filter(|(h, dev)| dev.name != h.before.netdev.name)
    {
        let needed = ours
            .iter()
            .any(|(other, _)| other.before.netdev.name == dev.name);
        let spare = format!("rdmaprep{}", dev.ifindex)
            .parse()
            .ok()
            .filter(|_| needed);
        renames.extend(spare.clone().map(|spare| (dev.name.clone(), spare)));
        renames.push((
            spare.unwrap_or(dev.name.clone()),
            h.before.netdev.name.clone(),
        ));
    }
    // Out of each other's way first: a stable sort keeps each NIC's own order.
    renames.sort_by_key(|(_, to)| ours.iter().any(|(h, _)| h.before.netdev.name == *to));
    for (old, new) in renames {
        rename(named, &old, &new);
        steps.push(Step::Rename {
            side,
            dev: old,
            name: new,
        });
    }
    for (h, dev) in &ours {
        steps.extend(lost_altnames(&h.before.netdev, dev));
    }
    steps
}

/// Restores the alternative names that a NIC has lost.
pub(super) fn lost_altnames(was: &Netdev, now: &Netdev) -> impl Iterator<Item = Step> {
    let lost = was.altnames.iter().filter(|a| !now.altnames.contains(a));
    lost.map(|altname| Step::AltnameAdd {
        side: Side::Host,
        dev: was.name.clone(),
        altname: altname.clone(),
    })
}

/// Deletes the alternative names that a NIC did not have.
pub(super) fn foreign_altnames(side: Side, was: &Netdev, now: &Netdev) -> Option<Step> {
    let had: BTreeSet<&String> = was.altnames.iter().collect();
    let altnames: Vec<String> = now
        .altnames
        .iter()
        .filter(|a| !had.contains(a))
        .cloned()
        .collect();
    (!altnames.is_empty()).then(|| Step::AltnamesDelete {
        side,
        dev: now.name.clone(),
        altnames,
    })
}

/// The snapshot as it will be after a rename: the kernel keeps routes, and rules follow names.
pub(super) fn rename(snapshot: &mut Snapshot, old: &IfName, new: &IfName) {
    for d in snapshot.netdevs.iter_mut().filter(|d| d.name == *old) {
        d.name = new.clone();
    }
    let hops = snapshot.routes.iter_mut().flat_map(|r| &mut r.hops);
    for h in hops.filter(|h| h.dev.as_ref() == Some(old)) {
        h.dev = Some(new.clone());
    }
}
