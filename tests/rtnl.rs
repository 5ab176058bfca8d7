//! Route netlink messages: what is written as bytes and read back is the same value, and attributes without a name of ours
//! survive.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage as Message;
use proptest::prelude::*;
use rdmaprep::ident::{Hex, IfName, Mac};
use rdmaprep::snapshot::{Address, Hop, Neighbour, Route, Rule};
use rdmaprep::world::rtnl::{self, Names};

/// Through the kernel's form and back.
fn carried(message: Message) -> Message {
    let mut sent = NetlinkMessage::from(message);
    sent.finalize();
    let mut bytes = vec![0; sent.buffer_len()];
    sent.serialize(&mut bytes);
    match NetlinkMessage::<Message>::deserialize(&bytes).unwrap().payload {
        NetlinkPayload::InnerMessage(m) => m,
        other => panic!("{other:?}"),
    }
}

fn names() -> Names {
    (1..5).map(|i| (i, format!("rail{i}").parse().unwrap())).collect()
}

fn index(dev: &IfName) -> anyhow::Result<u32> {
    Ok(names().into_iter().find(|(_, n)| n == dev).unwrap().0)
}

fn dev() -> impl Strategy<Value = IfName> {
    (1..5).prop_map(|i| format!("rail{i}").parse().unwrap())
}

fn ip(six: bool) -> BoxedStrategy<IpAddr> {
    if six {
        any::<u128>().prop_map(|b| IpAddr::V6(Ipv6Addr::from(b))).boxed()
    } else {
        any::<u32>().prop_map(|b| IpAddr::V4(Ipv4Addr::from(b))).boxed()
    }
}

fn net(six: bool) -> BoxedStrategy<IpNet> {
    let bits: u8 = if six { 128 } else { 32 };
    (ip(six), 0..=bits).prop_map(|(ip, prefix)| IpNet::new(ip, prefix).unwrap().trunc()).boxed()
}

fn mac() -> impl Strategy<Value = Mac> {
    prop::collection::vec(any::<u8>(), 6).prop_map(Mac)
}

fn some<T: std::fmt::Debug + Clone>(value: impl Strategy<Value = T>) -> impl Strategy<Value = Option<T>> {
    prop::option::of(value)
}

/// Attributes of later kernels, and ones that we do not read.
fn unknown(numbers: &'static [u16]) -> impl Strategy<Value = BTreeMap<u16, Hex>> {
    let value = prop::collection::vec(any::<u8>(), 0..12).prop_map(Hex);
    prop::collection::btree_map(prop::sample::select(numbers), value, 0..3)
}

fn hop(six: bool) -> impl Strategy<Value = Hop> {
    // IPv4 over IPv6 next hops, too (RFC 5549).
    let gateway = if six { ip(true).boxed() } else { prop_oneof![ip(false), ip(true)].boxed() };
    let flags = prop::sample::select(vec![0, 2, 4, 6]);
    (dev(), some(gateway), flags, any::<u8>()).prop_map(|(dev, gateway, flags, weight)| Hop {
        dev: Some(dev),
        gateway,
        flags,
        weight,
    })
}

fn route() -> impl Strategy<Value = Route> {
    any::<bool>().prop_flat_map(|six| {
        let source = if six { some(net(true)).boxed() } else { Just(None).boxed() };
        let bytes = (any::<u8>(), any::<u8>(), any::<u8>(), any::<u8>());
        // RTA_EXPIRES and RTA_CACHEINFO are bookkeeping; RTA_METRICS, RTA_PREF and RTA_ENCAP have forms of their own below.
        let other = unknown(&[40, 77, 900]);
        let hops = prop::collection::vec(hop(six), 0..4);
        (net(six), source, any::<u32>(), bytes, some(any::<u32>()), some(ip(six)), hops, other).prop_map(
            |(destination, source, table, (protocol, scope, kind, tos), metric, prefsrc, mut hops, other)| {
                if let [only] = hops.as_mut_slice() {
                    only.weight = 0;
                }
                let source = source.filter(|s| s.prefix_len() > 0);
                Route { destination, source, table, protocol, scope, kind, tos, metric, prefsrc, hops, other }
            },
        )
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    any::<bool>().prop_flat_map(|six| {
        let name = || some(dev().prop_map(|d| d.to_string()));
        let flags = prop::sample::select(vec![0, 2]);
        let head = (any::<u32>(), any::<u32>(), any::<u8>(), any::<u8>(), flags);
        (head, some(net(six)), some(net(six)), name(), name(), unknown(&[40, 77, 900])).prop_map(
            move |((priority, table, action, tos, flags), source, destination, iif, oif, other)| Rule {
                family: if six { 6 } else { 4 },
                priority,
                source,
                destination,
                iif,
                oif,
                table,
                action,
                tos,
                flags,
                other,
            },
        )
    })
}

fn address() -> impl Strategy<Value = Address> {
    any::<bool>().prop_flat_map(|six| {
        let bits: u8 = if six { 128 } else { 32 };
        let only4 = |s: BoxedStrategy<IpAddr>| if six { Just(None).boxed() } else { some(s).boxed() };
        let label = if six { Just(None).boxed() } else { some("[a-z0-9:]{1,15}").boxed() };
        let flags = prop::sample::subsequence(vec![0x02, 0x04, 0x10, 0x100, 0x200, 0x400], 0..=6);
        let life = || some(0..u32::MAX);
        let rest = (some(any::<u32>()), some(any::<u8>()), life(), life());
        (ip(six), 0..=bits, some(ip(six)), only4(ip(false)), label, any::<u8>(), flags, rest).prop_map(
            |(address, prefix, peer, broadcast, label, scope, flags, (metric, protocol, valid_lft, preferred_lft))| {
                Address {
                    address,
                    prefix,
                    peer: peer.filter(|p| *p != address),
                    broadcast,
                    label,
                    scope,
                    flags: flags.iter().sum(),
                    valid_lft,
                    preferred_lft,
                    metric,
                    protocol,
                }
            },
        )
    })
}

fn neighbour() -> impl Strategy<Value = Neighbour> {
    (any::<bool>().prop_flat_map(ip), some(mac()), any::<bool>(), some(any::<u8>()))
        .prop_map(|(address, mac, proxy, protocol)| Neighbour { address, mac, proxy, protocol })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn routes(route in route()) {
        let Message::NewRoute(m) = carried(Message::NewRoute(rtnl::route_message(&route, index).unwrap())) else { panic!() };
        prop_assert_eq!(rtnl::route(&m, &names()), Some(route));
    }

    #[test]
    fn rules(rule in rule()) {
        let Message::NewRule(m) = carried(Message::NewRule(rtnl::rule_message(&rule))) else { panic!() };
        prop_assert_eq!(rtnl::rule(&m), Some(rule));
    }

    #[test]
    fn addresses(address in address()) {
        let Message::NewAddress(m) = carried(Message::NewAddress(rtnl::address_message(3, &address))) else { panic!() };
        prop_assert_eq!(rtnl::address(&m), Some((3, address)));
    }

    #[test]
    fn neighbours(neighbour in neighbour()) {
        let m = Message::NewNeighbour(rtnl::neighbour_message(3, &neighbour));
        let Message::NewNeighbour(m) = carried(m) else { panic!() };
        prop_assert_eq!(rtnl::neighbour(&m), Some((3, neighbour)));
    }
}

fn a_route() -> Route {
    Route {
        destination: "10.0.0.0/8".parse().unwrap(),
        source: None,
        table: 1000,
        protocol: 4,
        scope: 0,
        kind: 1,
        tos: 0,
        metric: None,
        prefsrc: None,
        hops: vec![Hop { dev: Some("rail1".parse().unwrap()), ..Hop::default() }],
        other: BTreeMap::new(),
    }
}

/// Attributes that the message library knows and we do not read: what was read goes back as it came.
#[test]
fn known_but_unread_attributes_stay() {
    let metrics = Hex(vec![8, 0, 2, 0, 0xdc, 5, 0, 0, 8, 0, 8, 0, 10, 0, 0, 0]);
    for (number, value) in [(8, metrics), (11, Hex(vec![7, 0, 0, 0])), (16, Hex(vec![9, 0, 0, 0])), (20, Hex(vec![1]))]
    {
        let route = Route { other: BTreeMap::from([(number, value)]), ..a_route() };
        let once = carried(Message::NewRoute(rtnl::route_message(&route, index).unwrap()));
        let Message::NewRoute(m) = once else { panic!() };
        assert_eq!(rtnl::route(&m, &names()), Some(route), "attribute {number}");
    }
    // FRA_FWMARK, FRA_FLOW, FRA_TUN_ID, FRA_SUPPRESS_PREFIXLEN, FRA_FWMASK, FRA_L3MDEV, FRA_UID_RANGE, FRA_PROTOCOL, FRA_IP_PROTO,
    // FRA_SPORT_RANGE, FRA_DPORT_RANGE.
    let word = |n: u8| Hex(vec![n, 0, 0, 0]);
    let two_words = Hex(vec![1, 0, 0, 0, 2, 0, 0, 0]);
    let all = [
        (10, word(5)),
        (11, word(6)),
        (12, Hex(vec![0, 0, 0, 0, 0, 0, 0, 9])),
        (14, word(0)),
        (16, word(255)),
        (19, Hex(vec![1])),
        (20, two_words),
        (21, Hex(vec![3])),
        (22, Hex(vec![17])),
        (23, word(1)),
        (24, word(2)),
    ];
    for (number, value) in all {
        let rule = Rule {
            family: 4,
            priority: 9,
            source: None,
            destination: None,
            iif: None,
            oif: None,
            table: 300,
            action: 1,
            tos: 0,
            flags: 0,
            other: BTreeMap::from([(number, value)]),
        };
        let Message::NewRule(m) = carried(Message::NewRule(rtnl::rule_message(&rule))) else { panic!() };
        assert_eq!(rtnl::rule(&m), Some(rule), "attribute {number}");
    }
}

/// FRR routes through nexthop objects: Linux tells id and legs, and takes only one of the two.
#[test]
fn a_nexthop_object_becomes_its_legs() {
    let route = Route { other: BTreeMap::from([(30, Hex(vec![7, 0, 0, 0]))]), ..a_route() };
    let Message::NewRoute(m) = carried(Message::NewRoute(rtnl::route_message(&route, index).unwrap())) else {
        panic!()
    };
    assert_eq!(rtnl::route(&m, &names()), Some(a_route()));
}
