//! Which netdevs the host itself lives on: they are never moved unless the user insists.
//!
//! Two sets, each with the reason per netdev: uplinks, the winners of the default routes in the main table; and the
//! bootstrap interface, which owns the job's local address or leads to its peer. Both spread to what carries them: the
//! master and all of its members, and the device below a VLAN, macvlan or tunnel. Over PCI they spread from a VF to its PF,
//! which has to be up for it: another port or virtual function of an uplink's card can be taken without harm to it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Result;
use ipnet::IpNet;

use crate::fault::Fault;
use crate::ident::IfName;
use crate::request::Request;
use crate::snapshot::{Netdev, Route, Snapshot};
use crate::stack::lower;

/// Routing tables (RT_TABLE_*).
const MAIN: u32 = 254;
const LOCAL: u32 = 255;

/// How the store of a meeting was reached, as the kernel told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The store's address.
    pub store: IpAddr,
    /// This end's: who owns it must keep it, whatever the packets leave by.
    pub local: IpAddr,
    /// The index of the interface that packets between the two leave by, with all rules of routing.
    pub over: Option<u32>,
}

/// Netdevs with the clause that says why each is guarded.
pub type Guarded = BTreeMap<IfName, String>;

/// Winners of the lowest-metric default routes of both families: every leg, and every route of the same metric.
///
/// Routes for a type of service or a source range win beside the plain ones, not against them, so each such class has
/// its own winners. Without a default route there is no uplink; with one whose device is unknown the question has no
/// safe answer, and that is an error unless `allow_bootstrap` makes it moot.
pub fn uplinks(allow_bootstrap: bool, snapshot: &Snapshot) -> Result<Guarded> {
    let defaults: Vec<&Route> = snapshot.routes.iter().filter(|r| leads_everywhere(r)).collect();
    let class = |r: &Route| (r.destination, r.source, r.tos);
    let metric = |r: &Route| r.metric.unwrap_or(0);
    let mut seeds = Guarded::new();
    for route in &defaults {
        if defaults.iter().any(|r| class(r) == class(route) && metric(r) < metric(route)) {
            continue;
        }
        let why = format!("carries the default route {} with metric {}", route.destination, metric(route));
        if route.hops.iter().all(|h| h.dev.is_none()) && !allow_bootstrap {
            let text = format!("no interface is known for the default route {}: what is an uplink?", route.destination);
            return Err(Fault::Refused.error(text));
        }
        seeds.extend(legs(route).map(|dev| (dev, why.clone())));
    }
    Ok(spread(snapshot, seeds))
}

/// The interface with the default route of a container's namespace, if NCCL can use it: since 2.28.3 it has to be running
/// (src/os/linux.cc:401).
pub fn way_out(inside: &Snapshot) -> Option<&Netdev> {
    let uplinks = uplinks(true, inside).ok()?;
    let usable = |n: &&Netdev| n.up && n.running && uplinks.contains_key(&n.name) && !n.addresses.is_empty();
    inside.netdevs.iter().find(usable)
}

/// The owner of the bootstrap address, and what leads to the peer.
///
/// An address that nobody owns, or a peer without a route, is a mistake that would leave the real interface unguarded:
/// an error on a live system. A captured tree has neither addresses nor routes; there it is a warning.
pub fn bootstrap(request: &Request, snapshot: &Snapshot, warnings: &mut Vec<String>) -> Result<Guarded> {
    let mut seeds = Guarded::new();
    let mut missing = |text: String| {
        if snapshot.netns.is_some() && !request.allow_bootstrap {
            return Err(Fault::Usage.error(text));
        }
        warnings.push(text);
        Ok(())
    };
    if let Some(address) = request.bootstrap_address {
        let before = seeds.len();
        let owners = snapshot.netdevs.iter().filter(|n| n.addresses.iter().any(|a| a.address == address));
        seeds.extend(owners.map(|n| (n.name.clone(), format!("owns the bootstrap address {address}"))));
        if seeds.len() == before {
            missing(format!("no interface here owns the bootstrap address {address}"))?;
        }
    }
    if let Some(peer) = request.peer_address {
        let devs = towards(snapshot, peer);
        if devs.is_empty() {
            missing(format!("no route here leads to the peer address {peer}"))?;
        }
        seeds.extend(devs.into_iter().map(|dev| (dev, format!("leads to the peer address {peer}"))));
    }
    if let Some(way) = request.meeting {
        let (devs, store) = (way.devices(snapshot), way.store);
        if devs.is_empty() {
            warnings.push(format!(
                "no route here is known to lead to the rendezvous store {store}: nothing guards its way"
            ));
        }
        seeds.extend(devs.into_iter().map(|dev| (dev, format!("leads to the rendezvous store {store}"))));
    }
    Ok(spread(snapshot, seeds))
}

impl Way {
    /// The interfaces without which the store would be lost: those that own an address of either end, and what packets leave by;
    /// `lo` only where there is no other.
    pub fn devices(&self, snapshot: &Snapshot) -> Vec<IfName> {
        let ends = |n: &&Netdev| n.addresses.iter().any(|a| [self.store, self.local].contains(&a.address));
        let over = snapshot.netdevs.iter().find(|n| Some(n.ifindex) == self.over).map(|n| n.name.clone());
        // Without the kernel's word, the tables that everybody has are looked at.
        let leaving = over.map_or_else(|| towards(snapshot, self.store), |over| vec![over]);
        let owners = snapshot.netdevs.iter().filter(ends).map(|n| n.name.clone());
        let mut found: Vec<IfName> = owners.chain(leaving).collect();
        found.sort();
        found.dedup();
        if found.len() > 1 {
            found.retain(|name| name.as_str() != "lo");
        }
        found
    }
}

/// Whether packets to an address have a way out of a container's namespace: over a subnet of its own, or by a route.
pub fn leads(inside: &Snapshot, to: IpAddr) -> bool {
    let addresses = inside.netdevs.iter().flat_map(|n| &n.addresses);
    let mut subnets = addresses.filter_map(|a| IpNet::new(a.peer.unwrap_or(a.address), a.prefix).ok());
    subnets.any(|subnet| subnet.contains(&to)) || !towards(inside, to).is_empty()
}

/// Whether this is a default route of the main table over which packets can leave (RTN_UNICAST; 0 where not told).
pub fn leads_everywhere(route: &Route) -> bool {
    route.table == MAIN && route.destination.prefix_len() == 0 && route.kind <= 1
}

/// The interfaces of a route's legs.
fn legs(route: &Route) -> impl Iterator<Item = IfName> + '_ {
    route.hops.iter().filter_map(|h| h.dev.clone())
}

/// The longest-prefix match over the tables main and local: the legs of the winners. An unreachable or blackhole route
/// can win and has no legs; broadcast, anycast, multicast and throw routes (3, 4, 5, 9) lead to no peer.
pub fn towards(snapshot: &Snapshot, peer: IpAddr) -> Vec<IfName> {
    let fits = |r: &&Route| {
        let table = matches!(r.table, MAIN | LOCAL) && !matches!(r.kind, 3 | 4 | 5 | 9);
        table && r.tos == 0 && r.destination.contains(&peer)
    };
    let key = |r: &Route| (std::cmp::Reverse(r.destination.prefix_len()), r.metric.unwrap_or(0));
    let best = snapshot.routes.iter().filter(fits).map(key).min();
    let winners = snapshot.routes.iter().filter(fits).filter(|r| Some(key(r)) == best);
    winners.flat_map(legs).collect()
}

/// Adds everything that carries a guarded netdev, until nothing is added.
fn spread(snapshot: &Snapshot, seeds: Guarded) -> Guarded {
    let mut found = seeds.clone();
    for (origin, why) in &seeds {
        let mut todo = relatives(snapshot, origin);
        while let Some(name) = todo.pop() {
            found.entry(name).or_insert_with_key(|name| {
                todo.extend(relatives(snapshot, name));
                format!("is tied to {origin}, which {why}")
            });
        }
    }
    found
}

/// The lower device, the master, the members of a master; and of a VF its PF, whose link is that of the VF.
fn relatives(snapshot: &Snapshot, name: &IfName) -> Vec<IfName> {
    let members = snapshot.netdevs.iter().filter(|n| n.master.as_ref() == Some(name)).map(|n| n.name.clone());
    let device = snapshot.netdev(name);
    let lower = device.and_then(|d| lower(snapshot, d)).map(|d| d.name.clone());
    let master = device.and_then(|d| d.master.clone());
    let function = device.and_then(|d| d.pci).and_then(|at| snapshot.pci.iter().find(|f| f.address == at));
    let pf = function.and_then(|f| f.physfn);
    let pfs = snapshot.netdevs.iter().filter(|n| pf.is_some() && n.pci == pf).map(|n| n.name.clone());
    lower.into_iter().chain(master).chain(members).chain(pfs).collect()
}
