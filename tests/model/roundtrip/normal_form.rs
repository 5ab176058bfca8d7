//! The normal form of a NIC does not see an order, and sees every single field.

use super::*;
use rdma_model::ids::Hex;
use rdma_model::snapshot::{Hop, Member, Neighbour, Netdev, Nexthop};

type Change = (&'static str, fn(&mut NicState));

/// A state with something in every field.
fn full() -> NicState {
    let mut dev = testkit::fake_kernel::naked("rail0", 7, [2, 0, 0, 0, 0, 1]);
    dev.kind = Some("veth".into());
    dev.permanent_mac = Some(Mac(vec![2, 0, 0, 0, 0, 9]));
    dev.alias = Some("a".into());
    dev.altnames = vec!["b".into(), "c".into()];
    let qdisc = |kind: &str, parent| Qdisc {
        kind: kind.into(),
        handle: 0x10000,
        parent,
        options: Some(Hex(vec![1])),
    };
    dev.qdiscs = Some(vec![qdisc("tbf", u32::MAX), qdisc("clsact", 0xfffffff1)]);
    let four = Address {
        label: Some("rail0:1".into()),
        broadcast: Some(v4(0, 0, 255)),
        ..plain(v4(0, 0, 1), 24)
    };
    dev.addresses = vec![four, plain(v4(0, 0, 2), 24), plain(v6(0, 1), 64)];
    let neighbour = |n| Neighbour {
        address: v4(0, 0, n),
        mac: dev.mac.clone(),
        proxy: false,
        protocol: Some(4),
        router: false,
        noarp: false,
        managed: false,
        extern_learn: false,
        stale: false,
    };
    dev.neighbours = vec![neighbour(50), neighbour(51)];
    dev.sysctls = BTreeMap::from([("ipv4/conf/rp_filter".into(), "1".into())]).into();
    let hop = |n| Hop {
        dev: Some(dev.name.clone()),
        gateway: Some(v4(0, 0, n)),
        ..Hop::default()
    };
    let route = |net: &str, n| Route {
        destination: net.parse().unwrap(),
        source: None,
        table: 254,
        protocol: 4,
        scope: 0,
        kind: 1,
        tos: 0,
        metric: Some(5),
        prefsrc: Some(v4(0, 0, 1)),
        hops: vec![hop(n), hop(n + 1)],
        other: BTreeMap::from([(8, Hex(vec![1]))]),
    };
    let routes = vec![
        route("10.5.0.0/16", 60),
        route("10.5.0.0/16", 70),
        route("10.6.0.0/16", 60),
    ];
    let rules = vec![
        rule_333(&dev.name),
        Rule {
            priority: 5,
            source: Some("10.0.0.1/32".parse().unwrap()),
            ..rule_333(&dev.name)
        },
    ];
    let object = |id, group: &[u32]| Nexthop {
        id,
        family: 4,
        protocol: 4,
        flags: 0,
        dev: Some(dev.name.clone()).filter(|_| group.is_empty()),
        gateway: Some(v4(0, 0, 60)).filter(|_| group.is_empty()),
        blackhole: false,
        group: group
            .iter()
            .map(|id| Member { id: *id, weight: 1 })
            .collect(),
        other: BTreeMap::new(),
    };
    let nexthops = vec![object(1, &[]), object(9, &[1, 2])];
    NicState {
        netdev: dev,
        routes,
        nexthops,
        rules,
    }
}

/// Every field that counts.
const CHANGES: &[Change] = &[
    ("name", |s| s.netdev.name = "rail1".parse().unwrap()),
    ("kind", |s| s.netdev.kind = None),
    ("link_type", |s| s.netdev.link_type = 32),
    ("mac", |s| s.netdev.mac = None),
    ("permanent_mac", |s| s.netdev.permanent_mac = None),
    ("mtu", |s| s.netdev.mtu += 1),
    ("txqlen", |s| s.netdev.txqlen += 1),
    ("group", |s| s.netdev.group += 1),
    ("alias", |s| s.netdev.alias = None),
    ("altname gone", |s| drop(s.netdev.altnames.pop())),
    ("altname", |s| s.netdev.altnames[0] = "d".into()),
    ("up", |s| s.netdev.up ^= true),
    ("promisc", |s| s.netdev.promisc ^= true),
    ("allmulti", |s| s.netdev.allmulti ^= true),
    ("master", |s| s.netdev.master = Some("br0".parse().unwrap())),
    ("xdp", |s| s.netdev.xdp ^= true),
    ("programs", |s| {
        s.netdev.programs = Some(vec![Program {
            hook: ProgramHook::XdpDriver,
            id: 7,
        }])
    }),
    ("arp", |s| {
        s.netdev.options.as_mut().unwrap().flags ^= LinkOptions::NOARP
    }),
    ("link mode", |s| {
        s.netdev.options.as_mut().unwrap().mode = Some(2)
    }),
    ("broadcast address", |s| {
        s.netdev.options.as_mut().unwrap().broadcast = None
    }),
    ("GRO size", |s| {
        s.netdev.options.as_mut().unwrap().gro_max_size = Some(1)
    }),
    ("qdisc gone", |s| s.netdev.qdiscs = Some(Vec::new())),
    ("qdisc kind", |s| {
        s.netdev.qdiscs.as_mut().unwrap()[0].kind = "fq".into()
    }),
    ("qdisc handle", |s| {
        s.netdev.qdiscs.as_mut().unwrap()[0].handle = 1
    }),
    ("qdisc options", |s| {
        s.netdev.qdiscs.as_mut().unwrap()[0].options = None
    }),
    ("qdisc lost", |s| {
        s.netdev.qdisc_lost = Some("filters".into())
    }),
    ("address gone", |s| drop(s.netdev.addresses.remove(0))),
    ("address", |s| s.netdev.addresses[0].address = v4(0, 0, 9)),
    ("address prefix", |s| s.netdev.addresses[0].prefix = 16),
    ("address peer", |s| {
        s.netdev.addresses[0].peer = Some(v4(9, 9, 9))
    }),
    ("address broadcast", |s| {
        s.netdev.addresses[0].broadcast = None
    }),
    ("address label", |s| s.netdev.addresses[0].label = None),
    ("address scope", |s| s.netdev.addresses[0].scope = 253),
    ("address flags", |s| s.netdev.addresses[0].flags ^= 0x200),
    ("address metric", |s| s.netdev.addresses[0].metric = Some(9)),
    ("neighbour gone", |s| drop(s.netdev.neighbours.pop())),
    ("neighbour address", |s| {
        s.netdev.neighbours[0].address = v4(0, 0, 99)
    }),
    ("neighbour mac", |s| s.netdev.neighbours[0].mac = None),
    ("neighbour proxy", |s| s.netdev.neighbours[0].proxy ^= true),
    ("address protocol", |s| {
        s.netdev.addresses[0].protocol = Some(1)
    }),
    ("device", |s| {
        drop(
            s.netdev
                .device
                .as_mut()
                .unwrap()
                .insert("ethtool rings rx".into(), "9".into()),
        )
    }),
    ("device gone", |s| s.netdev.device.as_mut().unwrap().clear()),
    ("token", |s| s.netdev.token = Some(5.into())),
    ("neighbour router", |s| s.netdev.neighbours[0].router = true),
    ("neighbour noarp", |s| s.netdev.neighbours[0].noarp = true),
    ("neighbour managed", |s| {
        s.netdev.neighbours[0].managed = true
    }),
    ("neighbour extern_learn", |s| {
        s.netdev.neighbours[0].extern_learn = true
    }),
    ("neighbour stale", |s| s.netdev.neighbours[0].stale = true),
    ("neighbour protocol", |s| {
        s.netdev.neighbours[0].protocol = None
    }),
    ("sysctl", |s| {
        drop(
            s.netdev
                .sysctls
                .insert("ipv4/conf/rp_filter".into(), "2".into()),
        )
    }),
    ("sysctl gone", |s| s.netdev.sysctls.clear()),
    ("route gone", |s| drop(s.routes.remove(0))),
    ("route twice gone", |s| drop(s.routes.remove(1))),
    ("route table", |s| s.routes[0].table = 7),
    ("route protocol", |s| s.routes[0].protocol = 2),
    ("route scope", |s| s.routes[0].scope = 253),
    ("route metric", |s| s.routes[0].metric = None),
    ("route prefsrc", |s| s.routes[0].prefsrc = None),
    ("route leg gone", |s| drop(s.routes[0].hops.pop())),
    ("route legs in another order", |s| {
        s.routes[0].hops.reverse()
    }),
    ("route gateway", |s| s.routes[0].hops[0].gateway = None),
    ("route weight", |s| s.routes[0].hops[0].weight = 1),
    ("route onlink", |s| s.routes[0].hops[0].flags = 4),
    ("route other", |s| s.routes[0].other.clear()),
    ("route leg other", |s| {
        drop(s.routes[0].hops[0].other.insert(11, Hex(vec![1])))
    }),
    ("route through an object", |s| {
        drop(s.routes[0].other.insert(30, Hex(vec![9, 0, 0, 0])))
    }),
    ("nexthop gone", |s| drop(s.nexthops.remove(0))),
    ("nexthop id", |s| s.nexthops[0].id = 3),
    ("nexthop protocol", |s| s.nexthops[0].protocol = 3),
    ("nexthop onlink", |s| s.nexthops[0].flags = 4),
    ("nexthop gateway", |s| s.nexthops[0].gateway = None),
    ("nexthop other", |s| {
        drop(s.nexthops[1].other.insert(3, Hex(vec![1, 0])))
    }),
    ("nexthop member gone", |s| s.nexthops[1].group.truncate(1)),
    ("nexthop weight", |s| s.nexthops[1].group[0].weight = 7),
    ("rule gone", |s| drop(s.rules.pop())),
    ("rule table", |s| s.rules[0].table = 9),
];

#[test]
fn every_single_change_shows() {
    let before = verify::lines(&full());
    for (what, change) in CHANGES {
        let mut state = full();
        change(&mut state);
        assert_ne!(verify::lines(&state), before, "{what}");
    }
    println!(
        "single changes that the normal form shows: {}",
        CHANGES.len()
    );
}

/// In words as `ip` has them; where these are the same, with all that there is.
#[test]
fn drift_says_what_differs_as_ip_writes_it() {
    let route = Route {
        hops: vec![Hop {
            dev: Some(name(0)),
            gateway: Some(v4(0, 0, 60)),
            ..Hop::default()
        }],
        ..full().routes[0].clone()
    };
    let rule = Rule {
        oif: None,
        iif: None,
        ..full().rules[1].clone()
    };
    let was = NicState {
        routes: vec![route.clone()],
        rules: vec![rule.clone()],
        ..full()
    };
    let said = |now: &NicState| {
        let kernel = Snapshot {
            netdevs: vec![now.netdev.clone()],
            routes: now.routes.clone(),
            rules: now.rules.clone(),
            nexthops: now.nexthops.clone(),
            ..Snapshot::default()
        };
        verify::drift(std::slice::from_ref(&was), &kernel)
            .iter()
            .map(Drift::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(said(&was), [""; 0]);
    assert_eq!(
        said(&NicState {
            rules: Vec::new(),
            ..was.clone()
        }),
        ["rail0 rule from 10.0.0.1 lookup main pref 5: nothing instead of present"]
    );
    let other = Route {
        metric: Some(6),
        ..route
    };
    let words = "10.5.0.0/16 via 10.0.0.60 dev rail0 proto static src 10.0.0.1 metric";
    assert_eq!(
        said(&NicState {
            routes: vec![other],
            ..was.clone()
        }),
        [format!(
            "rail0 route 10.5.0.0/16 table 254 #0: {words} 6 attr 8=0x01 instead of {words} 5 \
            attr 8=0x01"
        )]
    );
    let hidden = Rule {
        other: BTreeMap::from([(21, Hex(vec![0]))]),
        ..rule
    };
    let said = said(&NicState {
        rules: vec![hidden],
        ..was.clone()
    });
    assert!(
        said.len() == 1 && said[0].contains(r#""other":{"21":"00"}"#),
        "{said:?}"
    );
}

#[test]
fn what_is_left_out_does_not_show() {
    let mut state = full();
    let dev = &mut state.netdev;
    (dev.ifindex, dev.link, dev.running) = (99, Some(3), true);
    dev.temporary = true;
    (dev.operstate, dev.qdisc, dev.driver) = (
        Some("up".into()),
        Some("mq".into()),
        Some("mlx5_core".into()),
    );
    dev.addresses[0].flags |= 0x01 | 0x20 | 0x40 | 0x80;
    (dev.addresses[0].valid_lft, dev.addresses[0].preferred_lft) = (Some(9), Some(8));
    state.routes[0].other.insert(23, Hex(vec![9, 0, 0, 0]));
    assert_eq!(verify::lines(&state), verify::lines(&full()));
}

fn shuffled(dev: Netdev, by: Vec<usize>) -> Netdev {
    fn shuffle<T: Clone>(all: &[T], by: &[usize]) -> Vec<T> {
        let mut keyed: Vec<(usize, T)> = all
            .iter()
            .cloned()
            .enumerate()
            .map(|(i, x)| (by[i], x))
            .collect();
        keyed.sort_by_key(|(k, _)| *k);
        keyed.into_iter().map(|(_, x)| x).collect()
    }
    let altnames = shuffle(&dev.altnames, &by);
    let addresses = shuffle(&dev.addresses, &by);
    Netdev {
        altnames,
        addresses,
        neighbours: shuffle(&dev.neighbours, &by),
        ..dev
    }
}

#[test]
fn order_does_not_show() {
    let orders = (
        Just(vec![0, 1, 2]).prop_shuffle(),
        Just(vec![0, 1, 2]).prop_shuffle(),
    );
    for_all(40, orders, |(a, b)| {
        let mut state = full();
        state.netdev = shuffled(state.netdev, a.clone());
        state.routes = b.iter().map(|i| full().routes[*i].clone()).collect();
        state.rules.rotate_left(b[0] % 2);
        state.nexthops.rotate_left(b[0] % 2);
        state.netdev.qdiscs.as_mut().unwrap().rotate_left(a[0] % 2);
        assert_eq!(verify::lines(&state), verify::lines(&full()));
        assert_eq!(verify::normal(&state), verify::normal(&full()));
    });
}
