use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rdma_model::ids::IfName;
use rdma_model::snapshot::{Answer, HostPath, Leg, Netdev, Purpose, Question, Snapshot};

use super::asking::Asking;
use super::carriers::carriers;
use super::selectors::Selectors;
use super::ways::Ways;

/// An address out on the internet in each eighth of IPv4's space and each half of what IPv6 gives
/// out, so that no few wide routes beside a default route escape. All are those of public
/// resolvers, but the last, for which none exists. No packet is sent.
const INTERNET: [IpAddr; 9] = [
    IpAddr::V4(Ipv4Addr::new(9, 9, 9, 9)),
    IpAddr::V4(Ipv4Addr::new(45, 90, 28, 1)),
    IpAddr::V4(Ipv4Addr::new(75, 75, 75, 75)),
    IpAddr::V4(Ipv4Addr::new(101, 101, 101, 101)),
    IpAddr::V4(Ipv4Addr::new(149, 112, 112, 112)),
    IpAddr::V4(Ipv4Addr::new(185, 228, 168, 9)),
    IpAddr::V4(Ipv4Addr::new(208, 67, 222, 222)),
    IpAddr::V6(Ipv6Addr::new(0x2620, 0xfe, 0, 0, 0, 0, 0, 0xfe)),
    IpAddr::V6(Ipv6Addr::new(0x3ffe, 0, 0, 0, 0, 0, 0, 1)),
];

/// The ways out, by each kind of packet that rules tell apart. A host that packets leave by a link
/// without RDMA, in either family, can be reached there. Any other needs what it has of both: IPv6
/// over one rail is no way out for IPv4.
pub(super) fn ways_out(ways: &Ways, selectors: &Selectors, asking: &mut Asking) -> Vec<HostPath> {
    let mut found = Vec::new();
    for to in INTERNET {
        found.push(asking.path(Purpose::Internet, Question::to(to)));
    }
    let lives_elsewhere = found.iter().any(|path| leaves_without_rdma(ways, path));
    let bound_only = [4, 6].map(|family| {
        !lives_elsewhere
            && !found
                .iter()
                .any(|p| is_routed(p) && is_of(family, p.question.to))
    });
    for (family, variant) in &selectors.variants {
        for to in of(*family) {
            let question = Question {
                to,
                ..variant.clone()
            };
            found.push(asking.path(Purpose::Internet, question));
        }
    }
    if asking.waits() {
        return found;
    }
    for (family, _) in [4, 6].into_iter().zip(bound_only).filter(|(_, only)| *only) {
        let bound = bound(ways.snapshot).filter(|q| is_of(family, q.to));
        let paths = bound.map(|q| asking.path(Purpose::Internet, q)).collect();
        found.extend(lone(ways, paths));
    }
    found
}

fn of(family: u8) -> impl Iterator<Item = IpAddr> {
    INTERNET.into_iter().filter(move |to| is_of(family, *to))
}

fn is_of(family: u8, address: IpAddr) -> bool {
    address.is_ipv4() == (family == 4)
}

fn is_routed(path: &HostPath) -> bool {
    matches!(path.answer, Answer::Route(_))
}

/// Packets from each address of this host, which rules may name, and packets bound to each VRF.
fn bound(host: &Snapshot) -> impl Iterator<Item = Question> {
    let own: BTreeSet<IpAddr> = host
        .netdevs
        .iter()
        .flat_map(|n| &n.addresses)
        .filter(|a| a.scope == 0)
        .map(|a| a.address)
        .collect();
    let own = own.into_iter().flat_map(|from| {
        let all = of(if from.is_ipv4() { 4 } else { 6 });
        all.map(move |to| Question {
            from: Some(from),
            ..Question::to(to)
        })
    });
    let vrfs = host.netdevs.iter().filter(|n| n.is_vrf());
    own.chain(vrfs.flat_map(|n| {
        INTERNET.map(|to| Question {
            oif: Some(n.ifindex),
            ..Question::to(to)
        })
    }))
}

/// What remains of the ways out of a host whose packets have none unless they are bound to an
/// address or a VRF. One table that leads out is the host's. Several are those of rails, each of
/// which has its own to answer by, on a host that has no way out; so is the last that is left,
/// where the host has a card without RDMA to live on. A connection by such a table guards its link.
fn lone(ways: &Ways, mut paths: Vec<HostPath>) -> Vec<HostPath> {
    let mut tables: BTreeMap<bool, BTreeSet<u32>> = BTreeMap::new();
    for path in &paths {
        if let Answer::Route(matched) = &path.answer {
            tables
                .entry(path.question.to.is_ipv4())
                .or_default()
                .insert(matched.table);
        }
    }
    let host = ways.snapshot;
    let lives_elsewhere = host.netdevs.iter().any(|n| is_management(ways, n));
    paths.retain(|path| {
        let Answer::Route(matched) = &path.answer else {
            return true;
        };
        let is_rails = lives_elsewhere && matched.legs.iter().all(|leg| is_rail(ways, leg));
        let tables = tables.get(&path.question.to.is_ipv4());
        !is_rails && tables.is_none_or(|all| all.len() < 2)
    });
    paths
}

/// Whether the host can be reached by a link without any rail: it has an address, and is or sits on
/// a card without RDMA.
fn is_management(ways: &Ways, netdev: &Netdev) -> bool {
    let has_address = netdev.up && netdev.addresses.iter().any(|a| a.scope == 0);
    let below: Vec<&Netdev> = if has_address {
        carriers(ways, &netdev.name).collect()
    } else {
        Vec::new()
    };
    below.iter().any(|n| n.pci.is_some()) && !below.iter().any(|n| is_rdma(ways.snapshot, n))
}

/// Whether packets leave by links that are no rail and sit on none.
fn leaves_without_rdma(ways: &Ways, path: &HostPath) -> bool {
    let Answer::Route(matched) = &path.answer else {
        return false;
    };
    !matched.legs.is_empty() && !matched.legs.iter().any(|leg| is_rail(ways, leg))
}

fn is_rail(ways: &Ways, leg: &Leg) -> bool {
    carriers(ways, &leg.dev).any(|n| is_rdma(ways.snapshot, n))
}

fn is_rdma(host: &Snapshot, netdev: &Netdev) -> bool {
    let name: Option<&IfName> = Some(&netdev.name);
    host.hcas
        .iter()
        .flat_map(|h| &h.ports)
        .any(|p| p.netdev.as_ref() == name)
}
