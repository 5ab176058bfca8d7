//! A list of routes, of which those are read that matter: a host may have a million, and root in a
//! container can make as many. A route takes a microsecond to read and 200 bytes to keep; to look
//! where it leads takes a tenth of that, and nothing is kept.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;
use rdma_model::manager::is_daemon;
use rdma_model::snapshot::{KERNEL_TABLES, Nexthop, Route};

use crate::nla::{self, Nla};
use crate::raw::{ip, word};
use crate::route::{
    RTA_DST, RTA_MULTIPATH, RTA_NH_ID, RTA_OIF, RTA_PREFSRC, RTA_PRIORITY, RTA_SRC, RTA_TABLE,
    RTM_F_CLONED, RTMSG, TABLE_LOCAL, leg_indices, net, route,
};
use crate::rtnl::Names;

/// What makes a route one that is read. One over none of the links is in no NIC's way.
#[derive(Debug, Default)]
pub struct Wanted {
    /// By index.
    pub links: BTreeSet<u32>,
    /// Preferred sources: a route over any link goes with the address.
    pub sources: HashSet<IpAddr>,
    pub destinations: BTreeSet<IpNet>,
    /// Whether those without a device count, too: what is no NIC's, and no routing daemon's.
    pub deviceless: bool,
    /// Besides, what may decide how the host's own packets leave: default routes, those for a type
    /// of service, and those that share all by which the kernel compares routes.
    pub ways: Option<Ways>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    /// Addresses to which each way is asked for.
    pub towards: Vec<IpAddr>,
    /// Whether routes to single addresses count, as they do beside a tunnel of a program.
    pub to_machines: bool,
}

/// What makes routes equal: these stand beside each other in the kernel's list, since it keeps them
/// so (fib_insert_alias() in net/ipv4/fib_trie.c, fib6_add_rt2node() in net/ipv6/ip6_fib.c).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    family: u8,
    length: u8,
    tos: u8,
    table: u32,
    to: Option<IpAddr>,
    from: Option<IpAddr>,
    metric: Option<u32>,
}

/// What of a message decides whether it is read.
struct Outline<'a> {
    key: Key,
    link: Option<u32>,
    legs: &'a [u8],
    source: Option<IpAddr>,
    object: Option<u32>,
    protocol: u8,
    kind: u8,
}

#[derive(Debug, Default)]
pub struct RouteList {
    pub routes: Vec<Route>,
    /// Whether any is in the table local, see [`crate::route::is_cut`].
    pub has_local: bool,
    last: Option<Key>,
    /// Links that have routes in tables that are not the kernel's: whose rules lead there depends
    /// on them.
    in_tables: HashSet<(u32, u8, u32)>,
    /// The bytes of the last one, if it was passed over.
    passed: Vec<u8>,
}

impl RouteList {
    /// Takes the payload of the next message; without `wanted` each is read.
    pub fn feed(&mut self, payload: &[u8], wanted: Option<(&Wanted, &Objects)>, names: &Names) {
        let Some(outline) = outline(payload) else {
            return;
        };
        self.has_local |= outline.key.table == TABLE_LOCAL;
        let Some((wanted, objects)) = wanted else {
            self.routes.extend(route(payload, names));
            return;
        };
        let is_equal = wanted.ways.is_some() && self.last.as_ref() == Some(&outline.key);
        let is_first = wanted.ways.is_some() && self.is_first(&outline);
        if !is_equal && !is_first && !wanted.has(&outline, objects) {
            // What comes next may be equal, which counts for ways alone.
            if wanted.ways.is_some() {
                self.passed.clear();
                self.passed.extend_from_slice(payload);
                self.last = Some(outline.key);
            }
            return;
        }
        if is_equal && !self.passed.is_empty() {
            self.routes.extend(route(&self.passed, names));
        }
        self.passed.clear();
        self.last = Some(outline.key);
        self.routes.extend(route(payload, names));
    }
}

impl RouteList {
    /// Whether it is a link's first route in a table of its own.
    fn is_first(&mut self, outline: &Outline) -> bool {
        let Key { table, family, .. } = outline.key;
        if KERNEL_TABLES.contains(&table) {
            return false;
        }
        let mut is_first = false;
        for link in outline.links() {
            is_first |= self.in_tables.insert((table, family, link));
        }
        is_first
    }
}

impl Outline<'_> {
    fn links(&self) -> impl Iterator<Item = u32> {
        self.link.into_iter().chain(leg_indices(self.legs))
    }

    /// RTN_BLACKHOLE to RTN_THROW and RTPROT_KERNEL (include/uapi/linux/rtnetlink.h).
    fn is_deviceless(&self) -> bool {
        let leads_nowhere = matches!(self.kind, 6..=9) || self.object.is_some();
        leads_nowhere && self.protocol != 2 && !is_daemon(self.protocol)
    }
}

/// The numbers of nexthop objects over links that matter.
#[derive(Debug, Default)]
pub struct Objects(HashSet<u32>);

impl Objects {
    pub fn over(links: &BTreeSet<u32>, all: &[Nexthop], names: &Names) -> Objects {
        let devs: HashSet<_> = links.iter().filter_map(|index| names.get(index)).collect();
        let own = all
            .iter()
            .filter(|n| n.dev.as_ref().is_some_and(|dev| devs.contains(dev)));
        let mut objects: HashSet<u32> = own.map(|n| n.id).collect();
        let groups = all
            .iter()
            .filter(|n| n.group.iter().any(|member| objects.contains(&member.id)));
        let groups: Vec<u32> = groups.map(|n| n.id).collect();
        objects.extend(groups);
        Objects(objects)
    }
}

impl Wanted {
    fn has(&self, outline: &Outline, objects: &Objects) -> bool {
        let mut links = outline.links();
        links.any(|index| self.links.contains(&index))
            || outline.source.is_some_and(|ip| self.sources.contains(&ip))
            || outline.object.is_some_and(|id| objects.0.contains(&id))
            || self.deviceless && outline.is_deviceless()
            || !self.destinations.is_empty() && self.leads_to(&outline.key)
            || self
                .ways
                .as_ref()
                .is_some_and(|ways| ways.has(&outline.key))
    }

    fn leads_to(&self, key: &Key) -> bool {
        key.destination()
            .is_some_and(|net| self.destinations.contains(&net))
    }
}

impl Ways {
    fn has(&self, key: &Key) -> bool {
        key.length == 0
            || key.tos != 0
            || (self.to_machines || !self.towards.is_empty())
                && key.destination().is_some_and(|net| self.has_to(net))
    }

    fn has_to(&self, net: IpNet) -> bool {
        self.to_machines && net.prefix_len() == net.max_prefix_len()
            || self.towards.iter().any(|to| net.contains(to))
    }
}

impl Key {
    fn destination(&self) -> Option<IpNet> {
        net(self.to, self.length, self.family)
    }
}

/// Nothing of a message that is no route, or a cached clone.
fn outline(payload: &[u8]) -> Option<Outline<'_>> {
    let (header, rest) = payload.split_at_checked(RTMSG)?;
    if word(&header[8..])? & RTM_F_CLONED != 0 {
        return None;
    }
    let [family, length, _, tos, table, protocol, _, kind, ..] = *header else {
        return None;
    };
    let mut outline = Outline {
        key: Key {
            family,
            length,
            tos,
            table: u32::from(table),
            to: None,
            from: None,
            metric: None,
        },
        link: None,
        legs: &[],
        source: None,
        object: None,
        protocol,
        kind,
    };
    for attribute in nla::each(rest) {
        let Nla { kind, value, .. } = attribute?;
        match kind {
            RTA_DST => outline.key.to = ip(value),
            RTA_SRC => outline.key.from = ip(value),
            RTA_TABLE => outline.key.table = word(value).unwrap_or(outline.key.table),
            RTA_PRIORITY => outline.key.metric = word(value),
            RTA_OIF => outline.link = word(value),
            RTA_PREFSRC => outline.source = ip(value),
            RTA_MULTIPATH => outline.legs = value,
            RTA_NH_ID => outline.object = word(value),
            _ => {}
        }
    }
    Some(outline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::emitted;
    use crate::route::route_message;
    use rdma_model::ids::IfName;
    use rdma_model::snapshot::Hop;

    const NIC: u32 = 3;
    const STRANGER: u32 = 7;

    fn names() -> Names {
        let named = |(index, name): (u32, &str)| (index, name.parse().unwrap());
        [(NIC, "rdma0"), (STRANGER, "eth0")].map(named).into()
    }

    fn over(to: &str, devs: &[&str]) -> Route {
        let hop = |dev: &&str| Hop {
            dev: Some(dev.parse().unwrap()),
            ..Hop::default()
        };
        Route {
            destination: to.parse().unwrap(),
            source: None,
            table: 254,
            protocol: 4,
            scope: 0,
            kind: 1,
            tos: 0,
            metric: None,
            prefsrc: None,
            hops: devs.iter().map(hop).collect(),
            other: Default::default(),
        }
    }

    fn index(dev: &IfName) -> anyhow::Result<u32> {
        let names = names();
        let mut all = names.iter();
        Ok(*all.find(|(_, name)| *name == dev).unwrap().0)
    }

    /// What is read of a list of these.
    fn read(all: &[Route], wanted: &Wanted) -> Vec<Route> {
        let mut list = RouteList::default();
        for route in all {
            let message = route_message(route, index).unwrap();
            let payload = [message.header, emitted(&message.attributes)].concat();
            list.feed(&payload, Some((wanted, &Objects::default())), &names());
        }
        list.routes
    }

    fn nic() -> Wanted {
        Wanted {
            links: [NIC].into(),
            ..Wanted::default()
        }
    }

    #[test]
    fn routes_over_the_nic_are_read_and_those_of_others_are_not() {
        let all = [
            over("10.1.0.0/24", &["eth0"]),
            over("10.2.0.0/24", &["rdma0"]),
            over("0.0.0.0/0", &["eth0"]),
            over("10.3.0.0/24", &["eth0", "rdma0"]),
            over("2001:db8::/64", &["eth0"]),
        ];
        let expected = [all[1].clone(), all[3].clone()];
        assert_eq!(read(&all, &nic()), expected);
    }

    #[test]
    fn route_that_prefers_an_address_of_the_nic_is_read() {
        let source = Some("10.0.0.1".parse().unwrap());
        let prefers = |prefsrc| Route {
            prefsrc,
            ..over("10.1.0.0/24", &["eth0"])
        };
        let wanted = Wanted {
            sources: source.into_iter().collect(),
            ..nic()
        };
        let all = [prefers(None), prefers(source)];
        assert_eq!(read(&all, &wanted), all[1..]);
    }

    #[test]
    fn a_link_has_one_route_of_each_own_table_read() {
        let in_table = |net: &str| Route {
            table: 400,
            ..over(net, &["eth0"])
        };
        let all = ["10.1.0.0/24", "10.2.0.0/24"].map(in_table);
        assert_eq!(read(&all, &nic()), []);
        let wanted = Wanted {
            ways: Some(Ways::default()),
            ..nic()
        };
        assert_eq!(read(&all, &wanted), all[..1]);
    }

    #[test]
    fn routes_to_a_destination_that_is_asked_for_are_read() {
        let all = [
            over("10.1.0.0/24", &["eth0"]),
            over("10.1.0.0/16", &["eth0"]),
        ];
        let wanted = Wanted {
            destinations: [all[0].destination].into(),
            ..nic()
        };
        assert_eq!(read(&all, &wanted), all[..1]);
    }

    #[test]
    fn ways_out_and_equals_are_read_where_the_host_needs_them() {
        let with_tos = Route {
            tos: 0x10,
            ..over("10.5.0.0/24", &["eth0"])
        };
        let worse = Route {
            metric: Some(9),
            ..over("10.6.0.0/24", &["eth0"])
        };
        let all = [
            over("0.0.0.0/0", &["eth0"]),
            over("10.4.0.0/24", &["eth0"]),
            over("10.4.0.0/24", &["rdma0"]),
            over("10.4.0.0/24", &["eth0"]),
            with_tos,
            over("10.6.0.0/24", &["eth0"]),
            worse,
            over("10.7.0.0/24", &["eth0"]),
            over("192.0.2.1/32", &["eth0"]),
        ];
        let ways = Ways {
            towards: vec!["10.7.0.9".parse().unwrap()],
            to_machines: false,
        };
        let wanted = Wanted {
            ways: Some(ways),
            ..nic()
        };
        let expected = [&all[..5], &all[7..8]].concat();
        assert_eq!(read(&all, &wanted), expected);
        let ways = Ways {
            to_machines: true,
            ..Ways::default()
        };
        let wanted = Wanted {
            ways: Some(ways),
            ..nic()
        };
        assert_eq!(read(&all[8..], &wanted), all[8..]);
    }
}
