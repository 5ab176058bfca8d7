//! Addresses, routes, rules and the like as `ip` of iproute2 writes them. What it has no word for
//! here is `attr NUMBER=0x…`.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use ipnet::IpNet;

use super::route::*;
use super::{Address, Neighbour};
use crate::escape::printable;
use crate::ids::Hex;

/// A numbered list of iproute2 (lib/rt_names.c, lib/rtm_map.c).
type Names<T> = &'static [(T, &'static str)];

const TABLES: Names<u32> = &[(253, "default"), (254, "main"), (255, "local")];
const SCOPES: Names<u8> = &[
    (0, "global"),
    (200, "site"),
    (253, "link"),
    (254, "host"),
    (255, "nowhere"),
];
const PROTOCOLS: Names<u8> = &[
    (0, "unspec"),
    (1, "redirect"),
    (2, "kernel"),
    (3, "boot"),
    (4, "static"),
    (8, "gated"),
    (9, "ra"),
    (11, "zebra"),
    (12, "bird"),
    (14, "xorp"),
    (16, "dhcp"),
    (18, "keepalived"),
    (42, "babel"),
    (186, "bgp"),
    (187, "isis"),
    (188, "ospf"),
    (189, "rip"),
    (192, "eigrp"),
];
/// RTN_*, of which a route has `unicast` (1) unless it says otherwise.
const KINDS: Names<u8> = &[
    (0, "none"),
    (2, "local"),
    (3, "broadcast"),
    (4, "anycast"),
    (5, "multicast"),
    (6, "blackhole"),
    (7, "unreachable"),
    (8, "prohibit"),
    (9, "throw"),
];
const TRANSPORTS: Names<u8> = &[
    (1, "icmp"),
    (6, "tcp"),
    (17, "udp"),
    (58, "ipv6-icmp"),
    (132, "sctp"),
];
/// RTA_PREF: ICMPV6_ROUTER_PREF_*.
const PREFERENCES: Names<u8> = &[(0, "medium"), (1, "high"), (3, "low")];
/// FR_ACT_*.
const ACTIONS: Names<u8> = &[
    (3, "nop"),
    (6, "blackhole"),
    (7, "unreachable"),
    (8, "prohibit"),
];
/// RTNH_F_*.
const HOP_FLAGS: Names<u32> = &[(0x02, "pervasive"), (0x04, "onlink")];
/// IFA_F_*: the first of them has two meanings.
const ADDRESS_FLAGS: Names<u32> = &[
    (0x02, "nodad"),
    (0x04, "optimistic"),
    (0x08, "dadfailed"),
    (0x10, "home"),
    (0x20, "deprecated"),
    (0x40, "tentative"),
    (0x80, "permanent"),
    (0x100, "mngtmpaddr"),
    (0x200, "noprefixroute"),
    (0x400, "autojoin"),
    (0x800, "stable-privacy"),
];

fn named<T: Copy + PartialEq + Display>(number: T, names: Names<T>) -> String {
    let name = names
        .iter()
        .find(|(n, _)| *n == number)
        .map(|(_, name)| (*name).to_owned());
    name.unwrap_or_else(|| number.to_string())
}

/// The name of a route's protocol.
pub fn protocol_name(protocol: u8) -> String {
    named(protocol, PROTOCOLS)
}

/// `default` or the network, a host without its length.
fn network(net: IpNet) -> String {
    match net.prefix_len() {
        0 => "default".to_owned(),
        full if full == net.max_prefix_len() => net.addr().to_string(),
        _ => net.to_string(),
    }
}

#[derive(Default)]
struct Words(Vec<String>);

impl Words {
    fn put(&mut self, word: impl Display) {
        self.0.push(word.to_string());
    }

    fn pair(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.put(format_args!("{name} {value}"));
        }
    }

    fn when(&mut self, is_so: bool, word: &str) {
        if is_so {
            self.put(word);
        }
    }

    fn flags(&mut self, flags: u32, names: Names<u32>) {
        let mut rest = flags;
        for (flag, name) in names.iter().filter(|(flag, _)| flags & flag != 0) {
            self.put(name);
            rest &= !flag;
        }
        self.pair("flags", (rest != 0).then(|| format!("{rest:#x}")));
    }

    fn attributes(&mut self, rest: &BTreeMap<u16, Hex>) {
        for (kind, value) in rest {
            self.put(format_args!("attr {kind}=0x{value}"));
        }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

/// Takes an attribute of that many bytes; one of another length stays among those that are not
/// interpreted.
fn take<const LENGTH: usize>(rest: &mut BTreeMap<u16, Hex>, kind: u16) -> Option<[u8; LENGTH]> {
    let bytes = rest.get(&kind)?.0.as_slice().try_into().ok()?;
    rest.remove(&kind);
    Some(bytes)
}

/// `struct fib_rule_port_range`.
fn ports(rest: &mut BTreeMap<u16, Hex>, kind: u16) -> Option<String> {
    let [a, b, c, d] = take(rest, kind)?;
    let (first, last) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
    Some(if first == last {
        first.to_string()
    } else {
        format!("{first}-{last}")
    })
}

fn number(rest: &mut BTreeMap<u16, Hex>, kind: u16) -> Option<u32> {
    take(rest, kind).map(u32::from_ne_bytes)
}

impl Hop {
    fn words(&self, weight: Option<u16>) -> Words {
        let mut words = Words::default();
        words.pair("via", self.gateway);
        words.pair("dev", self.dev.as_ref());
        words.pair("weight", weight);
        words.flags(self.flags.into(), HOP_FLAGS);
        words.attributes(&self.other);
        words
    }

    fn share(&self) -> u16 {
        u16::from(self.weight) + 1
    }
}

impl Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.words(Some(self.share()).filter(|share| *share > 1))
            .write(f)
    }
}

/// One of several legs.
struct WithWeight<'a>(&'a Hop);

impl Display for WithWeight<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.words(Some(self.0.share())).write(f)
    }
}

impl Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Words::default();
        let mut rest = self.other.clone();
        words.when(self.kind != 1, &named(self.kind, KINDS));
        words.put(network(self.destination));
        words.pair("from", self.source);
        words.pair("tos", (self.tos > 0).then(|| format!("{:#04x}", self.tos)));
        words.pair("nhid", number(&mut rest, RTA_NH_ID));
        match self.hops.as_slice() {
            [only] => words.put(only),
            legs => legs
                .iter()
                .for_each(|leg| words.pair("nexthop", Some(WithWeight(leg)))),
        }
        words.pair(
            "table",
            (self.table != 254).then(|| named(self.table, TABLES)),
        );
        words.pair(
            "proto",
            (self.protocol != 3).then(|| named(self.protocol, PROTOCOLS)),
        );
        words.pair(
            "scope",
            (self.scope != 0).then(|| named(self.scope, SCOPES)),
        );
        words.pair("src", self.prefsrc);
        words.pair("metric", self.metric);
        words.pair(
            "expires",
            number(&mut rest, RTA_EXPIRES).map(|left| format!("{left}sec")),
        );
        let preference = take::<1>(&mut rest, RTA_PREF);
        words.pair(
            "pref",
            preference.map(|[preference]| named(preference, PREFERENCES)),
        );
        words.attributes(&rest);
        words.write(f)
    }
}

impl Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Words::default();
        let mut rest = self.other.clone();
        words.when(self.flags & INVERT != 0, "not");
        words.put(format_args!(
            "from {}",
            self.source.map_or("all".to_owned(), network)
        ));
        words.pair("to", self.destination.map(network));
        words.pair("tos", (self.tos > 0).then(|| format!("{:#04x}", self.tos)));
        let (mark, mask) = (number(&mut rest, FRA_FWMARK), number(&mut rest, FRA_FWMASK));
        let mask = mask
            .filter(|mask| *mask != u32::MAX)
            .map_or(String::new(), |mask| format!("/{mask:#x}"));
        words.pair(
            "fwmark",
            (mark.is_some() || !mask.is_empty()).then(|| format!("{:#x}{mask}", mark.unwrap_or(0))),
        );
        words.pair("iif", self.iif.as_deref().map(printable));
        words.pair("oif", self.oif.as_deref().map(printable));
        let by_vrf = take::<1>(&mut rest, FRA_L3MDEV).is_some_and(|[is_on]| is_on != 0);
        words.when(by_vrf, "lookup [l3mdev-table]");
        let users = take::<8>(&mut rest, FRA_UID_RANGE).map(|[a, b, c, d, rest @ ..]| {
            format!(
                "{}-{}",
                u32::from_ne_bytes([a, b, c, d]),
                u32::from_ne_bytes(rest)
            )
        });
        words.pair("uidrange", users);
        let transport = take::<1>(&mut rest, FRA_IP_PROTO);
        words.pair(
            "ipproto",
            transport.map(|[transport]| named(transport, TRANSPORTS)),
        );
        words.pair("sport", ports(&mut rest, FRA_SPORT_RANGE));
        words.pair("dport", ports(&mut rest, FRA_DPORT_RANGE));
        let target = number(&mut rest, FRA_GOTO);
        match self.action {
            TO_TABLE if by_vrf && self.table == 0 => {}
            TO_TABLE => words.pair("lookup", Some(named(self.table, TABLES))),
            GOTO => words.pair("goto", Some(target.unwrap_or(0))),
            other => words.put(named(other, ACTIONS)),
        }
        // The kernel reports -1 where a rule has none.
        let length = number(&mut rest, FRA_SUPPRESS_PREFIXLEN).filter(|length| *length != u32::MAX);
        words.pair("suppress_prefixlength", length);
        words.flags(self.flags & !INVERT, &[]);
        let protocol = take::<1>(&mut rest, FRA_PROTOCOL).map(|[protocol]| protocol);
        // Of no program, or the kernel's own.
        let protocol = protocol.filter(|protocol| ![0, 2].contains(protocol));
        words.pair("proto", protocol.map(|protocol| named(protocol, PROTOCOLS)));
        words.attributes(&rest);
        words.pair("pref", Some(self.priority));
        let tells_family = self.source.is_some() || self.destination.is_some();
        words.when(self.family == 6 && !tells_family, "(IPv6)");
        words.write(f)
    }
}

impl Display for Nexthop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Words::default();
        words.pair("id", Some(self.id));
        let group: Vec<String> = self
            .group
            .iter()
            .map(|m| match m.weight {
                1 => m.id.to_string(),
                weight => format!("{},{weight}", m.id),
            })
            .collect();
        words.pair("group", (!group.is_empty()).then(|| group.join("/")));
        words.when(self.blackhole, "blackhole");
        words.pair("via", self.gateway);
        words.pair("dev", self.dev.as_ref());
        words.pair(
            "proto",
            (self.protocol != 0).then(|| named(self.protocol, PROTOCOLS)),
        );
        words.flags(self.flags, HOP_FLAGS);
        words.attributes(&self.other);
        words.when(self.family == 6 && self.gateway.is_none(), "(IPv6)");
        words.write(f)
    }
}

impl Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Words::default();
        match self.peer {
            Some(peer) => words.put(format_args!("{} peer {peer}/{}", self.address, self.prefix)),
            None => words.put(format_args!("{}/{}", self.address, self.prefix)),
        }
        words.pair("metric", self.metric);
        words.pair("brd", self.broadcast);
        words.pair("scope", Some(named(self.scope, SCOPES)));
        let first = if self.address.is_ipv4() {
            "secondary"
        } else {
            "temporary"
        };
        words.when(self.flags & Self::SECONDARY != 0, first);
        words.flags(self.flags & !Self::SECONDARY, ADDRESS_FLAGS);
        words.pair("proto", self.protocol);
        words.pair("valid_lft", self.valid_lft.map(|left| format!("{left}sec")));
        words.pair(
            "preferred_lft",
            self.preferred_lft.map(|left| format!("{left}sec")),
        );
        words.pair("label", self.label.as_deref().map(printable));
        words.write(f)
    }
}

impl Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Words::default();
        words.put(self.address);
        words.pair("lladdr", self.mac.as_ref());
        words.when(self.router, "router");
        words.when(self.proxy, "proxy");
        words.when(self.managed, "managed");
        words.when(self.extern_learn, "extern_learn");
        words.pair(
            "proto",
            self.protocol.map(|protocol| named(protocol, PROTOCOLS)),
        );
        words.put(match self {
            Neighbour { noarp: true, .. } => "NOARP",
            Neighbour { stale: true, .. } => "STALE",
            _ => "PERMANENT",
        });
        words.write(f)
    }
}
