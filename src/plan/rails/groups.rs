//! Why rails need tables of their own: what the main table, which has one answer for all, cannot
//! tell apart.

use std::fmt;

use ipnet::IpNet;
use rdma_model::ids::IfName;
use rdma_model::snapshot::Route;
use rdma_model::step::NicState;

use super::tables::alone;
use super::{COLUMNS, link_local, listed};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub why: Why,
    /// At least two, or one with a default route.
    pub rails: Vec<IfName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The widest subnet of any of them: one wire.
    Subnet(IpNet),
    /// The widest destination of routes that overlap, some of them through gateways.
    Routes(IpNet),
    /// All zeros: a default route of the host's main table, which does not come into the
    /// container's.
    Default(IpNet),
}

/// Networks of a rail.
type Nets<'a> = (&'a IfName, Vec<IpNet>);

/// Groups rails. A subnet inside another is the same wire; a NIC that is down has no routes.
pub fn groups(rails: &[NicState]) -> Vec<Group> {
    let up: Vec<&NicState> = rails.iter().filter(|s| s.netdev.up).collect();
    let wires: Vec<Nets> = up.iter().map(|s| (&s.netdev.name, subnets(s))).collect();
    let shared: Vec<_> = crowded(&wires)
        .filter(|(net, _)| net.prefix_len() < net.max_prefix_len())
        .collect();
    let (mut gateways, mut defaults, mut led) = (Vec::new(), Vec::new(), Vec::new());
    for state in up {
        let routes = state.routes.iter().filter_map(|r| alone(r, &state.netdev));
        let (everywhere, somewhere): (Vec<_>, Vec<_>) =
            routes.partition(|r| r.destination.prefix_len() == 0);
        let far = somewhere
            .iter()
            .filter(|r| r.hops.iter().any(|h| h.gateway.is_some()));
        gateways.extend(far.map(|r| r.destination));
        defaults.push((&state.netdev.name, destinations(&everywhere)));
        led.push((&state.netdev.name, destinations(&somewhere)));
    }
    let overlapping: Vec<_> = crowded(&led)
        .filter(|(net, _)| gateways.iter().any(|gateway| net.contains(gateway)))
        .filter(|(net, _)| shared.iter().all(|(wire, _)| wire != net))
        .collect();
    let mut all = Vec::new();
    for (net, rails) in shared {
        let why = Why::Subnet(net);
        all.push(Group { why, rails });
    }
    for (net, rails) in overlapping {
        let why = Why::Routes(net);
        all.push(Group { why, rails });
    }
    for (net, rails) in members(&defaults) {
        let why = Why::Default(net);
        all.push(Group { why, rails });
    }
    all
}

/// The subnets of its addresses, but for link-local ones, which are everybody's.
fn subnets(state: &NicState) -> Vec<IpNet> {
    let addresses = state.netdev.addresses.iter();
    addresses
        .filter(|a| !link_local(a.address))
        .filter_map(|a| IpNet::new(a.peer.unwrap_or(a.address), a.prefix).ok())
        .map(|net| net.trunc())
        .collect()
}

fn destinations(routes: &[Route]) -> Vec<IpNet> {
    routes.iter().map(|r| r.destination).collect()
}

/// The widest networks, each with the rails that have a part of it.
fn members<'a>(nets: &'a [Nets<'a>]) -> impl Iterator<Item = (IpNet, Vec<IfName>)> + 'a {
    let all: Vec<IpNet> = nets.iter().flat_map(|(_, nets)| nets).copied().collect();
    let mut widest: Vec<IpNet> = all
        .iter()
        .filter(|n| !all.iter().any(|o| o != *n && o.contains(*n)))
        .copied()
        .collect();
    widest.sort();
    widest.dedup();
    widest.into_iter().map(|wide| {
        let within = nets
            .iter()
            .filter(move |(_, nets)| nets.iter().any(|n| wide.contains(n)));
        (wide, within.map(|(name, _)| (*name).clone()).collect())
    })
}

fn crowded<'a>(nets: &'a [Nets<'a>]) -> impl Iterator<Item = (IpNet, Vec<IfName>)> + 'a {
    members(nets).filter(|(_, rails)| rails.len() > 1)
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match &self.why {
            Why::Subnet(net) => format!("{net} is shared by "),
            Why::Routes(net) => format!("routes into {net} lead over "),
            Why::Default(net) => format!("{} default routes of the host lead over ", family(net)),
        };
        write!(
            f,
            "{reason}{}",
            listed(&self.rails, COLUMNS.saturating_sub(reason.len()), "rails")
        )
    }
}

fn family(net: &IpNet) -> &'static str {
    if net.addr().is_ipv4() { "IPv4" } else { "IPv6" }
}
