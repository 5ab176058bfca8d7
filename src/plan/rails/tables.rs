//! What a rail's table holds: the main table's routes over this rail, as if it were the only one.

use rdma_model::arp::TableRange;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use rdma_model::ids::{Hex, IfName};
use rdma_model::snapshot::{
    FRA_PROTOCOL, FRA_SUPPRESS_PREFIXLEN, Hop, INVERT, Netdev, Route, Rule, Snapshot, TABLE_MAIN,
    TO_TABLE, UNICAST,
};
use rdma_model::step::{NetdevAddresses, NicState, derived};

use super::{COLUMNS, link_local, listed};
use crate::plan::rule_carry;

/// RTPROT_STATIC (include/uapi/linux/rtnetlink.h): the kernel takes back only what it made itself.
const RTPROT_STATIC: u8 = 4;

pub(super) struct Table {
    rail: IfName,
    /// Each gets a rule.
    addresses: Vec<IpAddr>,
    routes: Vec<Route>,
}

/// The tables that rails need, where the container's namespace is known with regard to its rules.
/// One that has no routes, or whose addresses all have rules of the user's, needs none.
pub(super) fn tables(rails: &[NicState], inside: Option<&Snapshot>) -> Vec<Table> {
    let rules: Vec<&Rule> = rails
        .iter()
        .flat_map(|s| &s.rules)
        .chain(inside.iter().flat_map(|i| &i.rules))
        .collect();
    let mut tables = Vec::new();
    for state in rails {
        tables.extend(table(state, rails, &rules));
    }
    tables
}

fn table(state: &NicState, rails: &[NicState], rules: &[&Rule]) -> Option<Table> {
    let mut routes: Vec<Route> = Vec::new();
    for route in state.routes.iter().filter_map(|r| alone(r, &state.netdev)) {
        if !routes.contains(&route) {
            routes.push(route);
        }
    }
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in state.netdev.addresses.iter().filter(|_| state.netdev.up) {
        let ip = address.address;
        let owners = rails.iter().filter(|s| owns(&s.netdev, ip)).count();
        let is_routed = routes.iter().any(|r| are_of_one_family(r, ip));
        let is_policed = rules
            .iter()
            .any(|r| r.source == Some(IpNet::from(ip)) && r.flags & INVERT == 0);
        if !link_local(ip)
            && owners == 1
            && is_routed
            && !is_policed
            && !rule_carry::leads(state, ip, rails)
        {
            addresses.push(ip);
        }
    }
    addresses.sort();
    addresses.dedup();
    routes.retain(|r| addresses.iter().any(|ip| are_of_one_family(r, *ip)));
    (!addresses.is_empty()).then(|| Table {
        rail: state.netdev.name.clone(),
        addresses,
        routes,
    })
}

fn are_of_one_family(route: &Route, ip: IpAddr) -> bool {
    route.destination.addr().is_ipv4() == ip.is_ipv4()
}

fn owns(dev: &Netdev, ip: IpAddr) -> bool {
    dev.addresses.iter().any(|a| a.address == ip)
}

/// A route of the main table as it is with this rail alone. A rule has chosen the source already;
/// what an IPv6 route prefers would have to wait for duplicate address detection.
pub(super) fn alone(route: &Route, dev: &Netdev) -> Option<Route> {
    if route.table != TABLE_MAIN || route.kind != UNICAST || derived(route) {
        return None;
    }
    let hops: Vec<Hop> = route
        .hops
        .iter()
        .filter(|h| h.dev.as_ref() == Some(&dev.name))
        .cloned()
        .collect();
    let prefsrc = route.prefsrc.filter(|ip| ip.is_ipv4() && owns(dev, *ip));
    (!hops.is_empty()).then(|| Route {
        prefsrc,
        protocol: RTPROT_STATIC,
        ..route.with(hops)
    })
}

/// Those numbers that are neither a table nor a priority of the namespace, or of what comes into
/// it.
pub(super) fn free(numbers: TableRange, rails: &[NicState], inside: &Snapshot) -> Vec<u32> {
    let routes = rails.iter().flat_map(|s| &s.routes).chain(&inside.routes);
    let rules = rails.iter().flat_map(|s| &s.rules).chain(&inside.rules);
    let used: Vec<u32> = routes
        .map(|r| r.table)
        .chain(rules.flat_map(|r| [r.table, r.priority]))
        .collect();
    numbers.iter().filter(|n| !used.contains(n)).collect()
}

impl Table {
    /// Adds routes and rules to the states of all rails that they concern: one may prefer an
    /// address that another has, too.
    pub(super) fn assign(&self, number: u32, rails: &mut [NicState]) {
        let routes: Vec<Route> = self
            .routes
            .iter()
            .map(|r| Route {
                table: number,
                ..r.clone()
            })
            .collect();
        let rules: Vec<Rule> = self.addresses.iter().map(|ip| rule(*ip, number)).collect();
        for state in rails {
            let own = NetdevAddresses::new(&state.netdev);
            state
                .routes
                .extend(routes.iter().filter(|r| own.loses(r)).cloned());
            state
                .rules
                .extend(rules.iter().filter(|r| own.concerns(r)).cloned());
        }
    }
}

/// As the kernel reports it: without a prefix length to suppress (-1), and with the program that
/// made it.
fn rule(from: IpAddr, number: u32) -> Rule {
    let other = BTreeMap::from([
        (FRA_SUPPRESS_PREFIXLEN, Hex(vec![0xff; 4])),
        (FRA_PROTOCOL, Hex(vec![RTPROT_STATIC])),
    ]);
    Rule {
        family: if from.is_ipv4() { 4 } else { 6 },
        priority: number,
        source: Some(IpNet::from(from)),
        destination: None,
        iif: None,
        oif: None,
        table: number,
        action: TO_TABLE,
        tos: 0,
        flags: 0,
        other,
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut routes = Vec::new();
        for r in &self.routes {
            let mut text = match r.destination.prefix_len() {
                0 => "default".to_owned(),
                _ => r.destination.to_string(),
            };
            if let Some(gateway) = r.hops.iter().find_map(|h| h.gateway) {
                text += &format!(" via {gateway}");
            }
            routes.push(text);
        }
        let from = listed(&self.addresses, COLUMNS / 2, "addresses");
        let whose = format!("{}: from {from} by its own table: ", self.rail);
        write!(
            f,
            "{whose}{}",
            listed(&routes, COLUMNS.saturating_sub(whose.len()), "routes")
        )
    }
}
