//! What sits on what. A VLAN outlives the move of the device below into another namespace
//! (vlan_device_event() in net/8021q/vlan.c), down and without a peer, and can follow it. A
//! namespace that ends takes with it whatever is not hardware.

use crate::ids::{HcaName, IfName};
use crate::link_kind::LinkKind;
use crate::moved_nic::MovedNic;
use crate::nic::Nic;
use crate::snapshot::{Netdev, Snapshot, Stranger};
use crate::step::{NicState, Settings, Side, Step, VirtualLink};

/// No stack is higher; indexes of other namespaces can make a snapshot's links go round.
const MOST: usize = 8;

/// The device below a VLAN, macvlan, tunnel and the like: the one that it is made on, if any.
pub fn lower<'a>(snapshot: &'a Snapshot, device: &Netdev) -> Option<&'a Netdev> {
    let link = device.link.filter(|l| *l != device.ifindex)?;
    snapshot
        .netdevs
        .iter()
        .find(|n| !device.is_paired() && n.ifindex == link)
}

/// Whether a netdev sits on another one or sends through it. What was recorded or captured earlier
/// has `link` alone.
fn sits_on(device: &Netdev, below: &Netdev) -> bool {
    let linked = device.link == Some(below.ifindex) && !device.is_paired();
    device.ifindex != below.ifindex && (linked || device.lowers.contains(&below.ifindex))
}

/// All devices that a netdev sits on or sends through, of whatever kind it is. Members of a master:
/// see [`members`].
pub fn lowers<'a>(snapshot: &'a Snapshot, device: &'a Netdev) -> impl Iterator<Item = &'a Netdev> {
    snapshot
        .netdevs
        .iter()
        .filter(|below| sits_on(device, below))
}

pub fn down<'a>(snapshot: &'a Snapshot, device: &'a Netdev) -> impl Iterator<Item = &'a Netdev> {
    std::iter::successors(Some(device), |dev| lower(snapshot, dev)).take(MOST)
}

/// What sits on a netdev: VLANs, macvlans, vxlans and the like, which a move of it would leave
/// behind or delete.
pub fn upper<'a>(snapshot: &'a Snapshot, device: &'a Netdev) -> impl Iterator<Item = &'a Netdev> {
    snapshot
        .netdevs
        .iter()
        .filter(|above| sits_on(above, device))
}

/// Links of other namespaces that sit on a netdev: their namespace and that of the NIC share the
/// card.
pub fn strangers<'a>(
    snapshot: &'a Snapshot,
    device: &'a Netdev,
) -> impl Iterator<Item = &'a Stranger> {
    snapshot
        .strangers
        .iter()
        .filter(|s| s.lowers.contains(&device.ifindex))
}

/// Whether a netdev is a part of the NIC below.
pub fn follows(device: &Netdev) -> bool {
    device.has_kind(LinkKind::follows) && device.made.is_some()
}

pub fn described(device: &Netdev) -> String {
    device.kind.as_ref().map_or_else(
        || device.name.to_string(),
        |kind| format!("{} ({kind})", device.name),
    )
}

pub fn fate(device: &Netdev) -> &'static str {
    if device.has_kind(LinkKind::ends_with_lower) {
        "deleted, with all that is set on it"
    } else {
        "left without it"
    }
}

pub fn is_ipoib(device: &Netdev) -> bool {
    device.kind.as_deref() == Some("ipoib")
}

pub fn is_bond(device: &Netdev) -> bool {
    device.kind.as_deref() == Some("bond") && device.made.is_some()
}

pub fn members<'a>(snapshot: &'a Snapshot, bond: &'a Netdev) -> impl Iterator<Item = &'a Netdev> {
    snapshot
        .netdevs
        .iter()
        .filter(|n| n.master.as_ref() == Some(&bond.name))
}

/// Whether a NIC comes along with one of these: it sits on it, or is a member of it.
pub fn is_along(nic: &Nic, nics: &[Nic]) -> bool {
    leader(nic, nics).is_some()
}

fn leader<'a>(nic: &Nic, nics: &'a [Nic]) -> Option<&'a Nic> {
    let name = nic.name();
    nics.iter()
        .find(|n| nic.over.as_ref() == Some(n.name()) || n.members.contains(name))
}

/// The NIC that one comes along with in the end: itself, where it is asked for.
pub fn moved_root<'a>(nic: &'a Nic, nics: &'a [Nic]) -> &'a Nic {
    (0..MOST)
        .try_fold(nic, |n, _| leader(n, nics).ok_or(n))
        .unwrap_or_else(|root| root)
}

/// When a NIC's turn is among those that come along with one another, both ways: members, then what
/// they are members of, then what sits on it.
pub fn move_rank(nic: &Nic, nics: &[Nic]) -> usize {
    if nics.iter().any(|n| n.members.contains(nic.name())) {
        return 0;
    }
    1 + std::iter::successors(leader(nic, nics), |n| leader(n, nics))
        .take(MOST)
        .count()
}

/// What re-creates a NIC that ended with its container's namespace, or that cannot change
/// namespace; none for hardware.
pub fn virtual_link(held: &MovedNic, all: &[MovedNic], host: &Snapshot) -> Option<VirtualLink> {
    let was = &held.before.netdev;
    let over = held.nic.over.clone();
    if over.is_none() && !is_bond(was) {
        return None;
    }
    let mut all = all.iter().map(|h| &h.before.netdev);
    let below = all
        .find(|d| over.as_ref() == Some(&d.name))
        .or_else(|| host.netdev(over.as_ref()?));
    Some(VirtualLink {
        kind: was.kind.clone()?,
        data: was.made.clone()?,
        // One that was set would not follow the device below any more (vlan_dev_inherit_address()
        // in net/8021q/vlan_dev.c). An IPoIB interface has the number of its queue pair in its own.
        mac: was
            .mac
            .clone()
            .filter(|mac| !is_ipoib(was) && below.and_then(|d| d.mac.as_ref()) != Some(mac)),
        over,
        ifindex: Some(was.ifindex),
    })
}

/// Deletes what is no hardware, its soft-RoCE link first. The members of a bond are free then.
pub fn delete_steps(side: Side, dev: &IfName, link: Option<&HcaName>) -> Vec<Step> {
    let link = link.map(|hca| Step::RdmaLinkDelete {
        side,
        hca: hca.clone(),
    });
    link.into_iter()
        .chain([Step::Delete {
            side,
            dev: dev.clone(),
        }])
        .collect()
}

/// Re-creates what is no hardware: it gets its MTU before its members come, which take theirs from
/// it.
pub fn create_steps(side: Side, held: &MovedNic, made: VirtualLink) -> Vec<Step> {
    let was = &held.before.netdev;
    let dev = was.name.clone();
    let mut steps = vec![Step::Make { side, dev, made }];
    for altname in was.altnames.iter().cloned() {
        let dev = was.name.clone();
        steps.push(Step::AltnameAdd { side, dev, altname });
    }
    let mut settings = Settings::of(was);
    // It has that of the device below, or of its kind.
    if let Some(o) = &mut settings.options {
        o.broadcast = None;
    }
    let dev = was.name.clone();
    steps.push(Step::Settings {
        side,
        dev,
        settings,
    });
    steps.extend(enslave_members(side, held, &Snapshot::default()));
    steps
}

pub fn enslave_members(side: Side, bond: &MovedNic, observed: &Snapshot) -> Vec<Step> {
    let master = bond.name();
    let mut steps = Vec::new();
    for member in &bond.nic.members {
        let is = observed.netdev(member).and_then(|d| d.master.as_ref());
        if is != Some(master) {
            steps.push(Step::Enslave {
                side,
                dev: member.clone(),
                master: master.clone(),
            });
        }
    }
    steps
}

/// A member is raised by its bond, which takes none that is up.
pub fn without_master_up(state: &NicState) -> NicState {
    let mut state = state.clone();
    state.netdev.up &= state.netdev.master.is_none();
    state
}
