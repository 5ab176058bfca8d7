use std::collections::HashSet;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::ids::IfName;
use crate::snapshot::{Address, Netdev, Nexthop, Route, Rule, Snapshot};

use super::derived;

/// A NIC's network state: what a move destroys, and what the host gets back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NicState {
    /// Without temporary addresses.
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
        let mut netdev = snapshot.netdev(name)?.clone();
        netdev.temporary = netdev.addresses.iter().any(Address::is_temporary);
        netdev.addresses.retain(|a| !a.is_temporary());
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
    /// it. Whose rules they are is not known where other NICs than `leaving` have routes there.
    pub fn rules_to_tables(&self, host: &Snapshot, leaving: &[IfName]) -> Vec<Rule> {
        let mut tables: HashSet<(u32, bool)> = self.routes.iter().map(table).collect();
        for route in &host.routes {
            let mut devices = route.devs();
            if devices.any(|dev| !leaving.contains(dev)) {
                tables.remove(&table(route));
            }
        }
        host.rules
            .iter()
            .filter(|r| r.leads_to_own_table() && tables.contains(&(r.table, r.family == 6)))
            .filter(|r| !self.rules.contains(r))
            .cloned()
            .collect()
    }
}

/// The number of a route's table, of IPv6 or not.
fn table(route: &Route) -> (u32, bool) {
    (route.table, route.destination.addr().is_ipv6())
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

    /// Whether a namespace loses this route when the NIC leaves it: one with a leg over the NIC, or
    /// an IPv4 route that prefers an address of it as its source and that the kernel would not make
    /// again by itself.
    pub fn loses(&self, route: &Route) -> bool {
        let over = route.hops.iter().any(|h| h.dev.as_ref() == Some(self.name));
        let source = route.prefsrc.filter(|ip| ip.is_ipv4());
        over || source.is_some_and(|ip| self.addresses.contains(&ip)) && !derived(route)
    }

    /// Whether a rule names the NIC or one of its addresses.
    pub fn concerns(&self, rule: &Rule) -> bool {
        let mut names = [&rule.iif, &rule.oif].into_iter().flatten();
        let mut nets = [rule.source, rule.destination].into_iter().flatten();
        names.any(|name| name == self.name.as_str())
            || nets.any(|net| {
                net.prefix_len() == net.max_prefix_len() && self.addresses.contains(&net.addr())
            })
    }
}

#[cfg(test)]
mod tests {
    use crate::snapshot::{Hop, TO_TABLE};

    use super::*;

    fn route(dev: &str) -> Route {
        Route {
            destination: "10.1.0.0/16".parse().unwrap(),
            source: None,
            table: 400,
            protocol: 4,
            scope: 0,
            kind: 1,
            tos: 0,
            metric: None,
            prefsrc: None,
            hops: vec![Hop {
                dev: Some(dev.parse().unwrap()),
                ..Hop::default()
            }],
            other: Default::default(),
        }
    }

    #[test]
    fn a_rule_to_a_table_of_others_is_no_nics() {
        let [a, b]: [IfName; 2] = ["r0", "r1"].map(|name| name.parse().unwrap());
        let rule = Rule {
            family: 4,
            priority: 100,
            source: None,
            destination: "10.1.0.0/16".parse().ok(),
            iif: None,
            oif: None,
            table: 400,
            action: TO_TABLE,
            tos: 0,
            flags: 0,
            other: Default::default(),
        };
        let netdevs = vec![Netdev::new(a.clone(), 2), Netdev::new(b.clone(), 3)];
        let mut host = Snapshot {
            netdevs,
            rules: vec![rule.clone()],
            routes: vec![route("r0")],
            ..Snapshot::default()
        };
        let rules = |host: &Snapshot, leaving: &[IfName]| {
            let state = NicState::of(host, &a).unwrap();
            state.rules_to_tables(host, leaving)
        };
        let its = [rule];
        assert_eq!(rules(&host, std::slice::from_ref(&a)), its);
        host.routes.push(route("r1"));
        assert!(rules(&host, std::slice::from_ref(&a)).is_empty());
        assert_eq!(rules(&host, &[a.clone(), b]), its);
    }
}
