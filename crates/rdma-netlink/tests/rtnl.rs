//! Route netlink messages: what is written as bytes and read back is the same value, and attributes
//! without a name of ours survive.
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
use netlink_packet_core::{Emitable, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use proptest::prelude::*;
use rdma_model::ids::{Hex, IfName, Mac};
use rdma_model::snapshot::{Address, Hop, Member, Neighbour, Nexthop, Route, Rule};
use rdma_netlink::raw::{Packet, Raw, emitted};
use rdma_netlink::rtnl::{self, Names};
use rdma_netlink::{nexthop, route};

/// Through the kernel's form and back.
fn packed(packet: impl Into<Packet>) -> Packet {
    let mut sent = NetlinkMessage::from(packet.into());
    sent.finalize();
    let mut bytes = vec![0; sent.buffer_len()];
    sent.serialize(&mut bytes);
    match NetlinkMessage::<Packet>::deserialize(&bytes)
        .unwrap()
        .payload
    {
        NetlinkPayload::InnerMessage(m) => m,
        other => panic!("{other:?}"),
    }
}

fn carried(message: Message) -> Message {
    let Packet::Known(m) = packed(message) else {
        panic!()
    };
    *m
}

fn carried_raw(message: Raw) -> Raw {
    let Packet::Raw(m) = packed(message) else {
        panic!()
    };
    m
}

fn payload(message: &Raw) -> Vec<u8> {
    [message.header.clone(), emitted(&message.attributes)].concat()
}

fn carried_route(route: &Route) -> Option<Route> {
    let message = route::route_message(route, index).unwrap();
    route::route(&payload(&message), &names())
}

fn names() -> Names {
    (1..5)
        .map(|i| (i, format!("rail{i}").parse().unwrap()))
        .collect()
}

fn index(dev: &IfName) -> anyhow::Result<u32> {
    Ok(names().into_iter().find(|(_, n)| n == dev).unwrap().0)
}

fn dev() -> impl Strategy<Value = IfName> {
    (1..5).prop_map(|i| format!("rail{i}").parse().unwrap())
}

fn ip(six: bool) -> BoxedStrategy<IpAddr> {
    if six {
        any::<u128>()
            .prop_map(|b| IpAddr::V6(Ipv6Addr::from(b)))
            .boxed()
    } else {
        any::<u32>()
            .prop_map(|b| IpAddr::V4(Ipv4Addr::from(b)))
            .boxed()
    }
}

fn net(six: bool) -> BoxedStrategy<IpNet> {
    let bits: u8 = if six { 128 } else { 32 };
    (ip(six), 0..=bits)
        .prop_map(|(ip, prefix)| IpNet::new(ip, prefix).unwrap().trunc())
        .boxed()
}

fn mac() -> impl Strategy<Value = Mac> {
    prop::collection::vec(any::<u8>(), 6).prop_map(Mac)
}

fn some<T: std::fmt::Debug + Clone>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<T>> {
    prop::option::of(value)
}

/// Attributes of later kernels, and ones that we do not read.
fn unknown(numbers: &'static [u16]) -> impl Strategy<Value = BTreeMap<u16, Hex>> {
    let value = prop::collection::vec(any::<u8>(), 0..12).prop_map(Hex);
    prop::collection::btree_map(prop::sample::select(numbers), value, 0..3)
}

fn hop(six: bool) -> impl Strategy<Value = Hop> {
    // IPv4 over IPv6 next hops, too (RFC 5549).
    let gateway = if six {
        ip(true).boxed()
    } else {
        prop_oneof![ip(false), ip(true)].boxed()
    };
    let flags = prop::sample::select(vec![0, 2, 4, 6]);
    // RTA_FLOW, RTA_ENCAP_TYPE, RTA_ENCAP.
    let other = unknown(&[11, 21, 22, 900]);
    (dev(), some(gateway), flags, any::<u8>(), other).prop_map(
        |(dev, gateway, flags, weight, other)| Hop {
            dev: Some(dev),
            gateway,
            flags,
            weight,
            other,
        },
    )
}

fn object() -> impl Strategy<Value = Nexthop> {
    // NHA_GROUP_TYPE, NHA_ENCAP_TYPE, NHA_ENCAP, NHA_FDB.
    let other = unknown(&[3, 7, 8, 11, 900]);
    let member = (any::<u32>(), 1..=u16::MAX).prop_map(|(id, weight)| Member { id, weight });
    let group = prop::collection::vec(member, 0..4);
    let head = (
        any::<u32>(),
        prop::sample::select(vec![0, 4, 6]),
        any::<u8>(),
        prop::sample::select(vec![0, 4]),
    );
    let leads = (
        some(dev()),
        any::<bool>().prop_flat_map(ip),
        any::<bool>(),
        any::<bool>(),
    );
    (head, leads, group, other).prop_map(
        |((id, family, protocol, flags), (dev, gateway, via, blackhole), group, other)| Nexthop {
            id,
            family,
            protocol,
            flags,
            dev: dev.filter(|_| !blackhole),
            gateway: via.then_some(gateway),
            blackhole,
            group,
            other,
        },
    )
}

fn route() -> impl Strategy<Value = Route> {
    any::<bool>().prop_flat_map(|six| {
        let source = if six {
            some(net(true)).boxed()
        } else {
            Just(None).boxed()
        };
        let bytes = (any::<u8>(), any::<u8>(), any::<u8>(), any::<u8>());
        // RTA_METRICS, RTA_FLOW, RTA_PREF, RTA_ENCAP_TYPE, RTA_ENCAP, RTA_EXPIRES.
        let other = unknown(&[8, 11, 20, 21, 22, 23, 40, 77, 900]);
        let hops = prop::collection::vec(hop(six), 0..4);
        (
            net(six),
            source,
            any::<u32>(),
            bytes,
            some(any::<u32>()),
            some(ip(six)),
            hops,
            other,
        )
            .prop_map(
                |(
                    destination,
                    source,
                    table,
                    (protocol, scope, kind, tos),
                    metric,
                    prefsrc,
                    mut hops,
                    other,
                )| {
                    if let [only] = hops.as_mut_slice() {
                        (only.weight, only.other) = (0, BTreeMap::new());
                    }
                    let source = source.filter(|s| s.prefix_len() > 0);
                    Route {
                        destination,
                        source,
                        table,
                        protocol,
                        scope,
                        kind,
                        tos,
                        metric,
                        prefsrc,
                        hops,
                        other,
                    }
                },
            )
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    any::<bool>().prop_flat_map(|six| {
        let name = || some(dev().prop_map(|d| d.to_string()));
        let flags = prop::sample::select(vec![0, 2]);
        let head = (any::<u32>(), any::<u32>(), any::<u8>(), any::<u8>(), flags);
        (
            head,
            some(net(six)),
            some(net(six)),
            name(),
            name(),
            unknown(&[40, 77, 900]),
        )
            .prop_map(
                move |(
                    (priority, table, action, tos, flags),
                    source,
                    destination,
                    iif,
                    oif,
                    other,
                )| Rule {
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
        let only4 = |s: BoxedStrategy<IpAddr>| {
            if six {
                Just(None).boxed()
            } else {
                some(s).boxed()
            }
        };
        let label = if six {
            Just(None).boxed()
        } else {
            some("[a-z0-9:]{1,15}").boxed()
        };
        let flags = prop::sample::subsequence(vec![0x02, 0x04, 0x10, 0x100, 0x200, 0x400], 0..=6);
        let life = || some(0..u32::MAX);
        let rest = (some(any::<u32>()), some(any::<u8>()), life(), life());
        (
            ip(six),
            0..=bits,
            some(ip(six)),
            only4(ip(false)),
            label,
            any::<u8>(),
            flags,
            rest,
        )
            .prop_map(
                |(
                    address,
                    prefix,
                    peer,
                    broadcast,
                    label,
                    scope,
                    flags,
                    (metric, protocol, valid_lft, preferred_lft),
                )| {
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
    let kind = prop::sample::select(vec!["proxy", "permanent", "noarp", "managed", "stale"]);
    (
        any::<bool>().prop_flat_map(ip),
        mac(),
        kind,
        some(any::<u8>()),
        any::<[bool; 3]>(),
    )
        .prop_map(
            |(address, mac, kind, protocol, [router, extern_learn, has_mac])| {
                let [proxy, noarp, managed, stale] =
                    ["proxy", "noarp", "managed", "stale"].map(|k| k == kind);
                let mac = Some(mac).filter(|_| !managed && (has_mac || stale));
                let extern_learn = extern_learn || stale;
                Neighbour {
                    address,
                    mac,
                    proxy,
                    protocol,
                    router,
                    noarp,
                    managed,
                    extern_learn,
                    stale,
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn routes(route in route()) {
        prop_assert_eq!(carried_route(&route), Some(route));
    }

    #[test]
    fn nexthops(object in object()) {
        let m = carried_raw(nexthop::nexthop_message(&object, index).unwrap());
        prop_assert_eq!(nexthop::nexthop(&m, &names()), Some(object));
    }

    #[test]
    fn rules(rule in rule()) {
        let Message::NewRule(m) =
            carried(Message::NewRule(rtnl::rule_message(&rule))) else { panic!() };
        prop_assert_eq!(rtnl::rule(&m), Some(rule));
    }

    #[test]
    fn addresses(address in address()) {
        let Message::NewAddress(m) =
            carried(Message::NewAddress(rtnl::address_message(3, &address))) else { panic!() };
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
        hops: vec![Hop {
            dev: Some("rail1".parse().unwrap()),
            ..Hop::default()
        }],
        other: BTreeMap::new(),
    }
}

/// Attributes that the message library knows and we do not read: what was read goes back as it
/// came.
#[test]
fn known_but_unread_attributes_stay() {
    let metrics = Hex(vec![8, 0, 2, 0, 0xdc, 5, 0, 0, 8, 0, 8, 0, 10, 0, 0, 0]);
    for (number, value) in [
        (8, metrics),
        (11, Hex(vec![7, 0, 0, 0])),
        (16, Hex(vec![9, 0, 0, 0])),
        (20, Hex(vec![1])),
    ] {
        let route = Route {
            other: BTreeMap::from([(number, value)]),
            ..a_route()
        };
        assert_eq!(carried_route(&route), Some(route), "attribute {number}");
    }
    // FRA_FWMARK, FRA_FLOW, FRA_TUN_ID, FRA_SUPPRESS_PREFIXLEN, FRA_FWMASK, FRA_L3MDEV,
    // FRA_UID_RANGE, FRA_PROTOCOL, FRA_IP_PROTO, FRA_SPORT_RANGE, FRA_DPORT_RANGE.
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
        let Message::NewRule(m) = carried(Message::NewRule(rtnl::rule_message(&rule))) else {
            panic!()
        };
        assert_eq!(rtnl::rule(&m), Some(rule), "attribute {number}");
    }
}

/// FRR routes through nexthop objects: Linux tells id and legs, and takes only one of the two.
#[test]
fn a_route_through_a_nexthop_object_names_that_alone() {
    let route = Route {
        other: BTreeMap::from([(30, Hex(vec![7, 0, 0, 0]))]),
        ..a_route()
    };
    let got = carried_route(&route).unwrap();
    assert_eq!(
        (got.nexthop(), got.hops.as_slice(), &got.other),
        (Some(7), &[][..], &route.other)
    );
}

/// With net.ipv4.nexthop_compat_mode off, Linux does not tell the legs.
#[test]
fn legs_that_are_not_told_are_those_of_the_object() {
    let single = |id, dev: &str| Nexthop {
        id,
        dev: Some(dev.parse().unwrap()),
        ..of_group(Vec::new())
    };
    let group = of_group(vec![
        Member { id: 1, weight: 1 },
        Member { id: 2, weight: 3 },
    ]);
    let all = [single(1, "rail1"), single(2, "rail2"), group];
    let by = |id: u8| Route {
        hops: Vec::new(),
        other: BTreeMap::from([(30, Hex(vec![id, 0, 0, 0]))]),
        ..a_route()
    };
    let mut routes = [by(1), by(9), by(77), a_route()];
    nexthop::tell_legs(&mut routes, &all);
    let hop = |dev: &str, weight| Hop {
        dev: Some(dev.parse().unwrap()),
        weight,
        ..Hop::default()
    };
    assert_eq!(routes[0].hops, [hop("rail1", 0)]);
    assert_eq!(routes[1].hops, [hop("rail1", 0), hop("rail2", 2)]);
    assert_eq!((routes[2].hops.len(), &routes[3]), (0, &a_route()));
}

fn of_group(group: Vec<Member>) -> Nexthop {
    Nexthop {
        id: 9,
        family: 0,
        protocol: 4,
        flags: 0,
        dev: None,
        gateway: None,
        blackhole: false,
        group,
        other: BTreeMap::new(),
    }
}

/// How long a resilient group is out of balance (NHA_RES_GROUP_UNBALANCED_TIME) is a state, which
/// Linux refuses as a setting.
#[test]
fn of_a_resilient_group_the_settings_are_carried() {
    let buckets = [6, 0, 1, 0, 4, 0, 0, 0];
    let time = [12, 0, 4, 0, 9, 9, 9, 9, 9, 9, 9, 9];
    let got = |bytes: Vec<u8>| Nexthop {
        other: BTreeMap::from([(12, Hex(bytes))]),
        ..of_group(Vec::new())
    };
    let with = got([&buckets[..], &time].concat());
    let m = carried_raw(nexthop::nexthop_message(&with, index).unwrap());
    assert_eq!(nexthop::nexthop(&m, &names()), Some(got(buckets.to_vec())));
}

/// The seconds left of a route that ends: Linux tells them in rta_cacheinfo by the hundredth, and
/// takes them in RTA_EXPIRES.
#[test]
fn the_end_of_a_route() {
    let cacheinfo = |left: i32| [vec![0; 8], left.to_ne_bytes().to_vec(), vec![0; 20]].concat();
    for (left, expires) in [(0, None), (-5, None), (1, Some(1)), (29950, Some(299))] {
        let route = Route {
            other: BTreeMap::from([(12, Hex(cacheinfo(left)))]),
            ..a_route()
        };
        let got = carried_route(&route).unwrap();
        let other = expires.map(|seconds: u32| (23, Hex(seconds.to_ne_bytes().to_vec())));
        assert_eq!(
            got.other,
            other.into_iter().collect::<BTreeMap<_, _>>(),
            "{left}"
        );
    }
}

/// What is no whole leg, and all behind it, is left.
#[test]
fn malformed_legs_are_left() {
    let hops = vec![
        Hop {
            weight: 4,
            ..a_route().hops[0].clone()
        };
        2
    ];
    let whole = route::route_message(
        &Route {
            hops: hops.clone(),
            ..a_route()
        },
        index,
    )
    .unwrap();
    for cut in 0..16 {
        let mut m = whole.clone();
        m.attributes.get_mut(&9).unwrap().0.truncate(cut);
        let got = route::route(&payload(&m), &names()).unwrap();
        assert_eq!(got.hops, hops[..cut / 8], "{cut} bytes");
    }
}

mod qdiscs {
    use super::*;
    use rdma_model::snapshot::{Netdev, Qdisc};
    use rdma_netlink::qdisc;

    fn dev() -> Netdev {
        serde_json::from_value(serde_json::json!({"name": "rail3", "ifindex": 3})).unwrap()
    }

    fn root(kind: &str, options: &[u8]) -> Qdisc {
        Qdisc {
            kind: kind.into(),
            handle: 0x10000,
            parent: u32::MAX,
            options: Some(Hex(options.to_vec())),
        }
    }

    /// What the kernel would tell of a discipline on link 3: `edit` changes the message.
    fn seen(qdisc: &Qdisc, filtered: bool, edit: impl Fn(&mut Raw)) -> Netdev {
        let mut m = carried_raw(qdisc::add_message(3, qdisc));
        edit(&mut m);
        let elsewhere = qdisc::parse(&qdisc::add_message(4, &root("htb", &[]))).unwrap();
        let mut dev = dev();
        let mut here = qdisc::parse(&m).unwrap();
        here.filtered = filtered;
        qdisc::attach(&mut dev, &[elsewhere, here]);
        dev
    }

    #[test]
    fn as_told_they_go_back() {
        for kind in ["noqueue", "pfifo", "fq", "cake", "mq", "clsact"] {
            let parent = if kind == "clsact" {
                0xfffffff1
            } else {
                u32::MAX
            };
            let qdisc = Qdisc {
                parent,
                ..root(kind, &[8, 0, 1, 0, 9, 9, 9, 9])
            };
            let dev = seen(&qdisc, false, |_| ());
            assert_eq!((dev.qdiscs, dev.qdisc_lost), (Some(vec![qdisc]), None));
        }
    }

    /// Linux keeps codel's times in units of 1024 ns and tells them in whole microseconds; pie's in
    /// ticks of 64 ns.
    #[test]
    fn times_do_not_melt() {
        let codel = |us: u64| ((us * 1000) >> 10) * 1024 / 1000;
        let pie = |us: u64| ((us * 1000) >> 6) * 64 / 1000;
        type Keeps = fn(u64) -> u64;
        let keep: [(&str, u16, Keeps); 3] =
            [("fq_codel", 3, codel), ("codel", 5, codel), ("pie", 1, pie)];
        for (kind, number, keeps) in keep {
            for set in 1..5000 {
                let got = keeps(set) as u32;
                let option = |us: u32| {
                    [
                        &8u16.to_ne_bytes()[..],
                        &number.to_ne_bytes(),
                        &us.to_ne_bytes(),
                    ]
                    .concat()
                };
                let m = qdisc::add_message(3, &root(kind, &option(got)));
                let given = u32::from_ne_bytes(m.attributes[&2].0[4..].try_into().unwrap());
                assert_eq!(keeps(given.into()) as u32, got, "{kind}: {set} us");
            }
        }
    }

    #[test]
    fn the_kernels_own_are_none() {
        for kind in ["fq_codel", "noqueue", "htb"] {
            let dev = seen(
                &Qdisc {
                    handle: 0,
                    ..root(kind, &[])
                },
                false,
                |_| (),
            );
            assert_eq!(
                (dev.qdiscs, dev.qdisc_lost),
                (Some(Vec::new()), None),
                "{kind}"
            );
        }
    }

    #[test]
    fn what_is_not_told_whole_is_lost() {
        let lost = |qdisc: &Qdisc| seen(qdisc, false, |_| ()).qdisc_lost;
        assert_eq!(
            lost(&root("htb", &[])).unwrap(),
            "its queueing discipline htb 1:"
        );
        let child = Qdisc {
            parent: 0x20001,
            ..root("fq", &[])
        };
        assert_eq!(
            lost(&child).unwrap(),
            "its queueing discipline fq 1: below 2:1"
        );
        assert_eq!(seen(&child, false, |_| ()).qdiscs, Some(Vec::new()));
        // TCA_STAB and TCA_EGRESS_BLOCK.
        for (number, what) in [(8, "the size table"), (14, "the shared block")] {
            let dev = seen(&root("fq", &[]), false, |m| {
                drop(m.attributes.insert(number, Hex(vec![1, 0, 0, 0])))
            });
            assert_eq!(
                dev.qdisc_lost.unwrap(),
                format!("{what} of its queueing discipline fq 1:")
            );
        }
        let dev = seen(
            &Qdisc {
                handle: 0,
                ..root("fq_codel", &[])
            },
            true,
            |_| (),
        );
        assert_eq!(
            dev.qdisc_lost.unwrap(),
            "the filters of its queueing discipline fq_codel 0:"
        );
    }

    /// netem's distributions, which jitter and slots may follow, are not dumped.
    #[test]
    fn netem_without_chance_alone() {
        let steady = [[1; 20].to_vec(), vec![0; 4]].concat();
        let lost = |options: &[u8]| seen(&root("netem", options), false, |_| ()).qdisc_lost;
        assert_eq!(lost(&steady), None);
        assert_eq!(
            lost(&[steady.clone(), vec![8, 0, 6, 0, 1, 1, 1, 1]].concat()),
            None
        );
        let slots = [steady.clone(), vec![8, 0, 12, 0, 1, 1, 1, 1]].concat();
        for options in [&slots[..], &[1; 24], &steady[..23], &[]] {
            assert_eq!(lost(options).unwrap(), "its queueing discipline netem 1:");
        }
    }
}

/// As the kernel tells neighbours on tun; found by fuzzing: a record with an empty address could
/// not be read.
#[test]
fn an_empty_link_layer_address_is_none() {
    let mut m = NeighbourMessage::default();
    m.header.state = NeighbourState::Permanent;
    m.attributes = vec![
        NeighbourAttribute::Destination(NeighbourAddress::Inet(Ipv4Addr::LOCALHOST)),
        NeighbourAttribute::LinkLayerAddress(Vec::new()),
    ];
    let (_, got) = rtnl::neighbour(&m).unwrap();
    assert_eq!(got.mac, None);
    let mut m = LinkMessage::default();
    for empty in [Vec::new(), vec![0; 33]] {
        m.attributes = vec![
            LinkAttribute::IfName("tun0".to_owned()),
            LinkAttribute::Address(empty.clone()),
            LinkAttribute::PermAddress(empty),
        ];
        let dev = rtnl::netdev(&m, &names()).unwrap();
        assert_eq!((&dev.mac, &dev.permanent_mac), (&None, &None));
    }
}

#[test]
fn bytes_of_a_link_say_whether_it_may_be_a_stranger() {
    let linked = |kind: InfoKind, nsid: Option<i32>| {
        let mut link = LinkMessage::default();
        link.header.index = 7;
        link.attributes = vec![
            LinkAttribute::IfName("part0".to_owned()),
            LinkAttribute::Link(3),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]),
        ];
        link.attributes.extend(nsid.map(LinkAttribute::LinkNetNsId));
        link
    };
    for (kind, nsid, expected) in [
        (InfoKind::MacVlan, Some(4), true),
        (InfoKind::Other("a_later_one".to_owned()), Some(4), true),
        (InfoKind::MacVlan, None, false),
        (InfoKind::Veth, Some(4), false),
    ] {
        let link = linked(kind.clone(), nsid);
        let mut bytes = vec![0; link.buffer_len()];
        link.emit(&mut bytes);
        assert_eq!(rtnl::may_be_stranger(&bytes), expected, "{kind:?} {nsid:?}");
        let found = rtnl::stranger(&link).filter(|(_, stranger)| !stranger.lowers.is_empty());
        assert_eq!(found.is_some(), expected, "{kind:?} {nsid:?}");
        for length in 0..bytes.len() {
            rtnl::may_be_stranger(&bytes[..length]);
        }
    }
}
