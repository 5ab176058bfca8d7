//! Why rails need tables of their own: what the main table, which has one answer for all, cannot
//! tell apart.

use std::fmt;

use ipnet::IpNet;
use rdma_model::ids::IfName;
use rdma_model::snapshot::Address;
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

/// Groups rails. A subnet inside another is the same wire; link-local addresses are everybody's; a
/// NIC that is down has no routes.
pub fn groups(rails: &[NicState]) -> Vec<Group> {
    let up = || rails.iter().filter(|s| s.netdev.up);
    let subnet = |a: &Address| {
        IpNet::new(a.peer.unwrap_or(a.address), a.prefix)
            .ok()
            .map(|n| n.trunc())
    };
    let subnets = |s: &NicState| {
        s.netdev
            .addresses
            .iter()
            .filter(|a| !link_local(a.address))
            .filter_map(subnet)
            .collect()
    };
    let wires: Vec<_> = up()
        .map(|s: &NicState| (&s.netdev.name, subnets(s)))
        .collect();
    let hosts = |net: &IpNet| net.prefix_len() == net.max_prefix_len();
    let shared: Vec<(IpNet, Vec<IfName>)> =
        crowded(&wires).filter(|(net, _)| !hosts(net)).collect();

    let routes: Vec<_> = up()
        .map(|s| {
            (
                s,
                s.routes
                    .iter()
                    .filter_map(|r| alone(r, &s.netdev))
                    .collect::<Vec<_>>(),
            )
        })
        .collect();
    let (mut gateways, mut defaults, mut led) = (Vec::new(), Vec::new(), Vec::new());
    for (state, routes) in &routes {
        let (everywhere, somewhere): (Vec<_>, Vec<_>) =
            routes.iter().partition(|r| r.destination.prefix_len() == 0);
        let far = somewhere
            .iter()
            .filter(|r| r.hops.iter().any(|h| h.gateway.is_some()));
        gateways.extend(far.map(|r| r.destination));
        defaults.push((
            &state.netdev.name,
            everywhere
                .into_iter()
                .map(|r| r.destination)
                .collect::<Vec<_>>(),
        ));
        led.push((
            &state.netdev.name,
            somewhere
                .into_iter()
                .map(|r| r.destination)
                .collect::<Vec<_>>(),
        ));
    }
    let far = |net: &IpNet| {
        gateways.iter().any(|g| net.contains(g)) && !shared.iter().any(|(wire, _)| wire == net)
    };
    let overlapping: Vec<_> = crowded(&led).filter(|(net, _)| far(net)).collect();
    let of = |why: fn(IpNet) -> Why| {
        move |(net, rails)| Group {
            why: why(net),
            rails,
        }
    };
    let mut all: Vec<Group> = shared.into_iter().map(of(Why::Subnet)).collect();
    all.extend(overlapping.into_iter().map(of(Why::Routes)));
    all.extend(members(&defaults).map(of(Why::Default)));
    all
}

/// The widest networks, each with the rails that have a part of it.
fn members<'a>(
    nets: &'a [(&'a IfName, Vec<IpNet>)],
) -> impl Iterator<Item = (IpNet, Vec<IfName>)> + 'a {
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

fn crowded<'a>(
    nets: &'a [(&'a IfName, Vec<IpNet>)],
) -> impl Iterator<Item = (IpNet, Vec<IfName>)> + 'a {
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
