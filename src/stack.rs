//! What sits on what: VLANs and the like on a NIC, which come along with it, and what makes them anew.
//!
//! A VLAN outlives the move of the device below into another namespace (vlan_device_event() in net/8021q/vlan.c), down and
//! without a peer, and can follow it. A namespace that ends takes with it whatever is not hardware.

use crate::journal::Held;
use crate::plan::Nic;
use crate::snapshot::{Netdev, Snapshot};
use crate::step::Made;

/// No stack is higher; indexes of other namespaces can make a snapshot's links go round.
const MOST: usize = 8;

/// The device below a VLAN, macvlan, tunnel and the like. A veth's or netkit's link is its peer, which may live in
/// another namespace under an index that means something else here.
pub fn lower<'a>(snapshot: &'a Snapshot, device: &Netdev) -> Option<&'a Netdev> {
    let link = device.link.filter(|l| *l != device.ifindex)?;
    let paired = matches!(device.kind.as_deref(), Some("veth" | "netkit"));
    snapshot.netdevs.iter().find(|n| !paired && n.ifindex == link)
}

/// What sits on a netdev: VLANs, macvlans and the like, which a move of it would leave behind.
pub fn upper<'a>(snapshot: &'a Snapshot, device: &'a Netdev) -> impl Iterator<Item = &'a Netdev> {
    snapshot.netdevs.iter().filter(|n| lower(snapshot, n).is_some_and(|l| l.ifindex == device.ifindex))
}

/// Whether a netdev is a part of the NIC below: a VLAN, an IPoIB partition. Macvlans and ipvlans are made to be given away, and
/// whose they are is not known.
pub fn follows(device: &Netdev) -> bool {
    matches!(device.kind.as_deref(), Some("vlan" | "ipoib")) && device.made.is_some()
}

/// Whether a NIC comes along with one of these, which it sits on.
pub fn is_along(nic: &Nic, nics: &[Nic]) -> bool {
    below(nic, nics).is_some()
}

fn below<'a>(nic: &Nic, nics: &'a [Nic]) -> Option<&'a Nic> {
    nics.iter().find(|n| nic.over.as_ref() == Some(&n.identity.name))
}

/// The NIC at the bottom of a stack.
pub fn root<'a>(nic: &'a Nic, nics: &'a [Nic]) -> &'a Nic {
    (0..MOST).try_fold(nic, |n, _| below(n, nics).ok_or(n)).unwrap_or_else(|bottom| bottom)
}

/// How many of these a NIC sits on: what is below comes first, both ways.
pub fn depth(nic: &Nic, nics: &[Nic]) -> usize {
    std::iter::successors(below(nic, nics), |n| below(n, nics)).take(MOST).count()
}

/// What makes a NIC anew that its container's namespace has taken with it; none for what is no such NIC.
pub fn made(held: &Held, all: &[Held], host: &Snapshot) -> Option<Made> {
    let was = &held.before.netdev;
    let over = held.nic.over.clone()?;
    let below = all.iter().map(|h| &h.before.netdev).find(|d| d.name == over).or_else(|| host.netdev(&over));
    Some(Made {
        kind: was.kind.clone()?,
        data: was.made.clone()?,
        // One that was set would not follow the device below any more (vlan_dev_inherit_address() in net/8021q/vlan_dev.c).
        mac: was.mac.clone().filter(|mac| below.and_then(|d| d.mac.as_ref()) != Some(mac)),
        over,
        ifindex: Some(was.ifindex),
    })
}
