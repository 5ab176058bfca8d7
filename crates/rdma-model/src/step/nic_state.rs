use std::collections::HashSet;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::ids::IfName;
use crate::snapshot::{Netdev, Nexthop, Route, Rule, Snapshot};

use super::derived;

/// A NIC's network state: what a move destroys, and what the host gets back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NicState {
    pub netdev: Netdev,
    /// Routes of all tables with a leg over it, and IPv4 routes over others that prefer an address
    /// of it as their source: the kernel drops these together with the address (fib_sync_down_addr
    /// in net/ipv4/fib_semantics.c).
    pub routes: Vec<Route>,
    /// Nexthop objects that lead over it, and groups that have one of these as a member: they go,
    /// or lose a member, with the link (nexthop_flush_dev in net/ipv4/nexthop.c).
    #[serde(default)]
    pub nexthops: Vec<Nexthop>,
    pub rules: Vec<Rule>,
}

impl NicState {
    pub fn of(snapshot: &Snapshot, name: &IfName) -> Option<NicState> {
        let netdev = snapshot.netdev(name)?.clone();
        let own = NetdevAddresses::new(&netdev);
        let routes = snapshot.routes.iter().filter(|r| own.loses(r));
        let rules = snapshot.rules.iter().filter(|r| own.concerns(r));
        let all = &snapshot.nexthops;
        let over = all
            .iter()
            .filter(|n| n.dev.as_ref() == Some(name) && !n.blackhole);
        let legs: Vec<u32> = over.map(|n| n.id).collect();
        let nexthops = all
            .iter()
            .filter(|n| legs.contains(&n.id) || n.group.iter().any(|m| legs.contains(&m.id)));
        Some(NicState {
            routes: routes.cloned().collect(),
            nexthops: nexthops.cloned().collect(),
            rules: rules.cloned().collect(),
            netdev,
        })
    }

    /// Rules that lead to a table of its routes by something else than its name or an address of
    /// it.
    pub fn rules_to_tables(&self, host: &Snapshot) -> Vec<Rule> {
        let tables: HashSet<(u32, bool)> = self
            .routes
            .iter()
            .map(|r| (r.table, r.destination.addr().is_ipv6()))
            .collect();
        host.rules
            .iter()
            .filter(|r| r.leads_to_own_table() && tables.contains(&(r.table, r.family == 6)))
            .filter(|r| !self.rules.contains(r))
            .cloned()
            .collect()
    }
}

/// A set, since root in a container can add as many addresses, routes and rules as it likes.
pub struct NetdevAddresses<'a> {
    name: &'a IfName,
    addresses: HashSet<IpAddr>,
}

impl<'a> NetdevAddresses<'a> {
    pub fn new(dev: &'a Netdev) -> NetdevAddresses<'a> {
        NetdevAddresses {
            name: &dev.name,
            addresses: dev.addresses.iter().map(|a| a.address).collect(),
        }
    }

    pub fn loses(&self, route: &Route) -> bool {
        let over = route.hops.iter().any(|h| h.dev.as_ref() == Some(self.name));
        let source = route.prefsrc.filter(|ip| ip.is_ipv4());
        over || source.is_some_and(|ip| self.addresses.contains(&ip)) && !derived(route)
    }

    pub fn concerns(&self, rule: &Rule) -> bool {
        let mut names = [&rule.iif, &rule.oif].into_iter().flatten();
        let mut nets = [rule.source, rule.destination].into_iter().flatten();
        names.any(|name| name == self.name.as_str())
            || nets.any(|net| {
                net.prefix_len() == net.max_prefix_len() && self.addresses.contains(&net.addr())
            })
    }
}
