use rdma_model::ids::IfName;
use rdma_model::link_kind::LinkKind;
use rdma_model::snapshot::{HostPaths, Netdev, Snapshot, TunnelPath};

use super::Guarded;
use super::ways::Ways;
use rdma_model::upper_lower::lowers;

/// Adds everything that carries a guarded netdev, until nothing is added.
pub(super) fn spread(ways: &Ways, seeds: Guarded) -> Guarded {
    let mut found = seeds.clone();
    for (origin, why) in &seeds {
        let mut todo = relatives(ways, origin);
        while let Some(name) = todo.pop() {
            found.entry(name).or_insert_with_key(|name| {
                todo.extend(relatives(ways, name));
                format!("is tied to {origin}, which {why}")
            });
        }
    }
    found
}

pub(super) fn carriers<'a>(ways: &Ways<'a>, name: &IfName) -> impl Iterator<Item = &'a Netdev> {
    let all = spread(ways, Guarded::from([(name.clone(), String::new())]));
    let snapshot = ways.snapshot;
    all.into_keys()
        .filter_map(move |name| snapshot.netdev(&name))
}

/// The lower device, the other end of a pair, the master, the members of a master, the links below
/// a tunnel; and of a VF its PF, whose link is that of the VF. A VRF carries none of its members.
fn relatives(ways: &Ways, name: &IfName) -> Vec<IfName> {
    let snapshot = ways.snapshot;
    let members = snapshot
        .netdevs
        .iter()
        .filter(|n| n.master.as_ref() == Some(name))
        .map(|n| n.name.clone());
    let device = snapshot.netdev(name);
    let lower = device
        .into_iter()
        .flat_map(|d| lowers(snapshot, d))
        .map(|d| d.name.clone());
    let master = device
        .and_then(|d| d.master.clone())
        .filter(|m| !snapshot.netdev(m).is_some_and(Netdev::is_vrf));
    let function = device
        .and_then(|d| d.pci)
        .and_then(|at| snapshot.pci.iter().find(|f| f.address == at));
    let pf = function.and_then(|f| f.physfn);
    let pfs = snapshot
        .netdevs
        .iter()
        .filter(|n| pf.is_some() && n.pci == pf)
        .map(|n| n.name.clone());
    let tunnels = snapshot
        .paths
        .iter()
        .flat_map(|paths| &paths.tunnels)
        .filter(|t| t.link == *name);
    let below = tunnels.flat_map(|t| below(ways, t));
    let pair = device
        .filter(|d| d.is_paired())
        .and_then(|d| snapshot.netdevs.iter().find(|n| d.link == Some(n.ifindex)));
    let peer = pair.map(|n| n.name.clone());
    lower
        .chain(peer)
        .chain(master)
        .chain(members)
        .chain(pfs)
        .chain(below)
        .collect()
}

/// The links that a tunnel's packets leave by, and the one that owns its own address.
fn below(ways: &Ways, tunnel: &TunnelPath) -> Vec<IfName> {
    let ends = tunnel
        .remotes
        .iter()
        .flat_map(|path| ways.leaving(path))
        .map(|leg| leg.dev);
    let bound = tunnel.remotes.iter().flat_map(|path| {
        ways.owner(path)
            .into_iter()
            .chain(ways.bound_without_route(path))
    });
    tunnel
        .below
        .iter()
        .cloned()
        .chain(ends)
        .chain(bound.cloned())
        .collect()
}

/// Why it is not known what a link sits on; none for hardware, for what is known, and for kinds
/// that end in this host or, as a pair, in another namespace.
pub(super) fn underlay_unknown(
    snapshot: &Snapshot,
    paths: &HostPaths,
    netdev: &Netdev,
) -> Option<String> {
    let kind = netdev.kind.as_deref()?;
    if let Some(tunnel) = paths.tunnels.iter().find(|t| t.link == netdev.name) {
        return tunnel.unknown.clone();
    }
    let known =
        netdev.has_kind(LinkKind::has_known_carrier) || lowers(snapshot, netdev).next().is_some();
    (!known).then(|| format!("a {kind} does not say"))
}
