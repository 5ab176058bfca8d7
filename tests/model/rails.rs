//! Rails of one subnet: which share one, what profile they get, what is in their tables, and what
//! the kernel makes of it.

use rdma_model::arp::{ArpChoice, ArpProfile, TABLES, TableRange};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use rdma_model::error_class::ErrorClass;
use rdma_model::snapshot::{Hop, Netdev, Route, Rule, Snapshot};
use rdma_model::step::{NicState, Side, Step};
use rdmaprep::apply::apply;
use rdmaprep::attach::{AttachPlan, plan_attach};
use rdmaprep::plan::{Plan, rails};
use rdmaprep::verify;
use testkit::fake_kernel::hosts::{name, plan_for};
use testkit::fake_kernel::{Kernel, naked, plain, v4, v6};

fn netdev(name: &str, up: bool, addresses: &[&str]) -> Netdev {
    let address = |text: &&str| {
        let (ip, prefix) = text.split_once('/').unwrap();
        plain(ip.parse().unwrap(), prefix.parse().unwrap())
    };
    Netdev {
        up,
        addresses: addresses.iter().map(address).collect(),
        ..naked(name, 1, [2; 6])
    }
}

/// What is said of each group.
fn groups(rails: &[(&str, &[&str])]) -> Vec<String> {
    let state = |netdev| NicState {
        netdev,
        routes: Vec::new(),
        nexthops: Vec::new(),
        rules: Vec::new(),
    };
    let rails: Vec<NicState> = rails
        .iter()
        .map(|(name, addresses)| state(netdev(name, true, addresses)))
        .collect();
    described(&rails)
}

fn described(rails: &[NicState]) -> Vec<String> {
    rails::groups(rails)
        .iter()
        .map(ToString::to_string)
        .collect()
}

/// A rail that is up, with that address, and routes `DESTINATION GATEWAY`.
fn leaf(name: &str, address: &str, routes: &[&str]) -> NicState {
    let routed = |(i, text): (usize, &&str)| {
        let (destination, gateway) = text.split_once(' ').unwrap();
        let hop = Hop {
            dev: Some(name.parse().unwrap()),
            gateway: gateway.parse().ok(),
            ..Hop::default()
        };
        route(destination, i as u32, hop)
    };
    let routes = routes.iter().enumerate().map(routed).collect();
    NicState {
        netdev: netdev(name, true, &[address]),
        routes,
        nexthops: Vec::new(),
        rules: Vec::new(),
    }
}

#[test]
fn rails_are_grouped_by_subnet() {
    assert_eq!(
        groups(&[
            ("a", &["10.0.0.1/24"]),
            ("b", &["10.0.1.1/24"]),
            ("c", &["fd00::1/64"])
        ]),
        [""; 0]
    );
    assert_eq!(
        groups(&[("a", &["10.0.0.1/24"]), ("b", &["10.0.0.2/24"])]),
        ["10.0.0.0/24 is shared by a, b"]
    );
    // One wire, whatever each thinks of its width; a host address within a subnet is on it, too.
    assert_eq!(
        groups(&[("a", &["10.0.0.1/16"]), ("b", &["10.0.9.2/24"])]),
        ["10.0.0.0/16 is shared by a, b"]
    );
    assert_eq!(
        groups(&[("a", &["10.0.0.1/24"]), ("b", &["10.0.0.2/32"])]),
        ["10.0.0.0/24 is shared by a, b"]
    );
    // Several addresses of one rail are no conflict; nor are link-local ones, nor host addresses
    // alone.
    assert_eq!(
        groups(&[
            ("a", &["10.0.0.1/24", "10.0.0.2/24"]),
            ("b", &["10.1.0.1/24"])
        ]),
        [""; 0]
    );
    assert_eq!(
        groups(&[("a", &["fe80::1/64"]), ("b", &["fe80::2/64"])]),
        [""; 0]
    );
    assert_eq!(
        groups(&[("a", &["10.0.0.1/32"]), ("b", &["10.0.0.1/32"])]),
        [""; 0]
    );
    let mixed: [(&str, &[&str]); 3] = [
        ("a", &["10.0.0.1/24", "fd00::1/64"]),
        ("b", &["10.0.0.2/24"]),
        ("c", &["fd00::3/64"]),
    ];
    assert_eq!(
        groups(&mixed),
        [
            "10.0.0.0/24 is shared by a, b",
            "fd00::/64 is shared by a, c"
        ]
    );
    let mut down = [leaf("a", "10.0.0.1/24", &[]), leaf("b", "10.0.0.2/24", &[])];
    down[1].netdev.up = false;
    assert_eq!(rails::groups(&down), []);
}

#[test]
fn rails_are_grouped_by_what_their_gateways_lead_to() {
    let pair = |a: &[&str], b: &[&str]| {
        described(&[leaf("a", "10.1.1.1/24", a), leaf("b", "10.2.1.1/24", b)])
    };
    // Each its own: nothing to tell apart.
    assert_eq!(
        pair(&["10.1.0.0/16 10.1.1.9"], &["10.2.0.0/16 10.2.1.9"]),
        [""; 0]
    );
    let both = ["routes into 10.0.0.0/8 lead over a, b"];
    assert_eq!(
        pair(&["10.0.0.0/8 10.1.1.9"], &["10.0.0.0/8 10.2.1.9"]),
        both
    );
    assert_eq!(
        pair(
            &["10.0.0.0/8 10.1.1.9", "10.1.0.0/16 10.1.1.9"],
            &["10.2.0.0/16 10.2.1.9"]
        ),
        both
    );
    // The other one's subnet is within.
    assert_eq!(pair(&["10.0.0.0/8 10.1.1.9"], &["10.2.1.0/24 -"]), both);
    assert_eq!(
        pair(&["fd00::/8 fe80::9"], &["fd00:9::/32 fe80::9"]),
        ["routes into fd00::/8 lead over a, b"]
    );
    // One default route is enough: the container's main table does not get it.
    assert_eq!(
        pair(&["0.0.0.0/0 10.1.1.9"], &[]),
        ["IPv4 default routes of the host lead over a"]
    );
    let four = [
        "IPv4 default routes of the host lead over a, b",
        "IPv6 default routes of the host lead over b",
    ];
    assert_eq!(
        pair(
            &["0.0.0.0/0 10.1.1.9"],
            &["0.0.0.0/0 10.2.1.9", "::/0 fe80::9"]
        ),
        four
    );
    // Another table's routes are the user's own affair; an unreachable one leads nowhere.
    let mut a = leaf(
        "a",
        "10.1.1.1/24",
        &["10.0.0.0/8 10.1.1.9", "0.0.0.0/0 10.1.1.9"],
    );
    a.routes[0].table = 100;
    a.routes[1].kind = 7;
    assert_eq!(
        described(&[a, leaf("b", "10.2.1.1/24", &["10.0.0.0/8 10.2.1.9"])]),
        [""; 0]
    );
    // One route over both.
    let mut a = leaf("a", "10.1.1.1/24", &["10.9.0.0/16 10.1.1.9"]);
    a.routes[0].hops.push(Hop {
        dev: "b".parse().ok(),
        gateway: "10.2.1.9".parse().ok(),
        ..Hop::default()
    });
    let b = NicState {
        routes: a.routes.clone(),
        ..leaf("b", "10.2.1.1/24", &[])
    };
    assert_eq!(
        described(&[a, b]),
        ["routes into 10.9.0.0/16 lead over a, b"]
    );
}

#[test]
fn lines_have_room_for_the_longest_names() {
    let rail = |i: usize| {
        let (name, net) = (
            format!("enp200s0f{i}v1000"),
            format!("2001:db8:1234:5678:9abc:de{i:02x}:aaaa:1/64"),
        );
        let gateway = format!("2001:db8:1234:5678:9abc:de{i:02x}:aaaa:ffff");
        let far = [
            format!("2001:db8:8765:4321::/64 {gateway}"),
            format!("2001:db8:8765:4322::/64 {gateway}"),
            format!("::/0 {gateway}"),
        ];
        leaf(&name, &net, &far.each_ref().map(String::as_str))
    };
    let all: Vec<NicState> = (0..8).map(rail).collect();
    let (_, separation) = rails::decide(ArpChoice::Auto, TABLES, &all);
    assert_eq!(separation.notes.len(), 1 + 4 + 8);
    separation
        .notes
        .iter()
        .for_each(|line| assert!(line.len() <= 100, "{line}"));
    assert!(
        separation.notes[2].ends_with("enp200s0f1v1000 and 6 more"),
        "{:?}",
        separation.notes
    );
}

#[test]
fn what_is_asked_is_read() {
    let exact = ArpProfile {
        announce: 1,
        ignore: 8,
        filter: 0,
        rp_filter: 2,
    };
    let good = [
        ("auto", ArpChoice::Auto),
        ("strict", ArpChoice::Strict),
        ("loose", ArpChoice::Loose),
        ("off", ArpChoice::Off),
        ("1/8/0/2", ArpChoice::Exact(exact)),
    ];
    for (text, profile) in good {
        assert_eq!(text.parse::<ArpChoice>().unwrap(), profile);
    }
    for bad in [
        "",
        "Auto",
        "2/1/1",
        "2/1/1/1/1",
        "3/1/1/1",
        "2/4/1/1",
        "2/1/2/1",
        "2/1/1/3",
        "2/1/1/-1",
    ] {
        assert!(bad.parse::<ArpChoice>().is_err(), "{bad}");
    }
    assert_eq!("29000-29255".parse::<TableRange>().unwrap(), TABLES);
    assert_eq!(TABLES.to_string(), "29000-29255");
    for bad in ["", "300", "300-299", "255-300", "1-2", "300-32766", "300-x"] {
        assert!(bad.parse::<TableRange>().is_err(), "{bad}");
    }
}

/// Linux's own rule, spelled out for every pair of values.
#[test]
fn what_counts_is_the_higher_of_all_and_the_nics_own() {
    for all in 0..3u8 {
        for own in 0..3u8 {
            let keys = ArpProfile::STRICT.sysctls().map(|(k, _)| k);
            let mut dev = naked("r0", 1, [2; 6]);
            dev.sysctls = keys
                .iter()
                .map(|k| ((*k).to_owned(), own.to_string()))
                .collect();
            let sysctls = keys
                .iter()
                .map(|k| (k.replace("conf/", "conf/all/"), all.to_string()))
                .collect();
            let state = NicState {
                netdev: dev.clone(),
                routes: Vec::new(),
                nexthops: Vec::new(),
                rules: Vec::new(),
            };
            let inside = Snapshot {
                netdevs: vec![dev],
                sysctls,
                ..Snapshot::default()
            };
            let max = all.max(own);
            let want = ArpProfile {
                announce: max,
                ignore: max,
                filter: max,
                rp_filter: max,
            };
            assert_eq!(rails::effective(&inside, &state.netdev.name), Some(want));
            // Written only where it would defeat ours, and a drift only then.
            let overruled = rails::overruled(&state, &inside);
            assert_eq!(overruled.len(), if all > own { 4 } else { 0 });
            assert!(
                overruled
                    .values()
                    .all(|o| (o.was.as_str(), &o.now) == (&all.to_string(), &own.to_string()))
            );
            assert_eq!(rails::drift(&[state], &inside).len(), overruled.len());
        }
    }
}

/// `count` rails in 10.0.0.0/24 and fd00::/64, with a gateway to 10.9.0.0/16 each.
fn host(count: usize) -> Kernel {
    let mut kernel = Kernel::new();
    let side = Side::Host;
    for i in 0..count {
        let mut link = naked(name(i).as_str(), 100 + i as u32, [2, 0, 0, 0, 0, i as u8]);
        link.pci = Some(format!("0000:{:02x}:00.0", i + 1).parse().unwrap());
        kernel.plug(side, link);
        let dev = name(i);
        let n = i as u8 + 1;
        kernel
            .does(Step::AddressAdd {
                side,
                dev: dev.clone(),
                address: plain(v4(0, 0, n), 24),
            })
            .unwrap();
        kernel
            .does(Step::Link {
                side,
                dev: dev.clone(),
                up: true,
            })
            .unwrap();
        kernel
            .does(Step::AddressAdd {
                side,
                dev,
                address: plain(v6(0, n.into()), 64),
            })
            .unwrap();
        let hop = Hop {
            dev: Some(name(i)),
            gateway: Some(v4(0, 0, 200 + n)),
            ..Hop::default()
        };
        kernel
            .does(Step::RouteAdd {
                side,
                route: route("10.9.0.0/16", i as u32, hop),
            })
            .unwrap();
    }
    kernel
}

fn route(destination: &str, metric: u32, hop: Hop) -> Route {
    Route {
        destination: destination.parse().unwrap(),
        source: None,
        table: 254,
        protocol: 3,
        scope: 0,
        kind: 1,
        tos: 0,
        metric: Some(metric),
        prefsrc: None,
        hops: vec![hop],
        other: BTreeMap::new(),
    }
}

fn from_rule(from: IpAddr, table: u32, priority: u32) -> Rule {
    Rule {
        family: 4,
        priority,
        source: Some(from.into()),
        destination: None,
        iif: None,
        oif: None,
        table,
        action: 1,
        tos: 0,
        flags: 0,
        other: BTreeMap::new(),
    }
}

/// The plan that `prepare` would make for all of them.
fn plan(kernel: &Kernel, count: usize, profile: ArpChoice, numbers: &str) -> Plan {
    let chosen: Vec<usize> = (0..count).collect();
    let host = kernel.see(Side::Host);
    let states: Vec<NicState> = chosen
        .iter()
        .map(|i| NicState::of(&host, &name(*i)).unwrap())
        .collect();
    let (arp, separation) = rails::decide(profile, numbers.parse().unwrap(), &states);
    Plan {
        arp,
        separation,
        ..plan_for(kernel, &chosen)
    }
}

fn lowered(kernel: &Kernel, plan: &Plan) -> anyhow::Result<AttachPlan> {
    plan_attach(plan, &kernel.see(Side::Host), &kernel.see(Side::Inside))
}

/// The container, as the small kernel has it afterwards.
fn carried_out(kernel: &Kernel, attach: &AttachPlan) -> Snapshot {
    let mut kernel = kernel.clone();
    apply(
        &attach.steps,
        &mut kernel,
        Instant::now() + Duration::from_secs(60),
        |_| (),
    )
    .unwrap();
    let inside = kernel.see(Side::Inside);
    let states: Vec<NicState> = attach.held.iter().map(|h| h.inside.clone()).collect();
    assert_eq!(verify::drift(&states, &inside), []);
    assert_eq!(rails::drift(&states, &inside), []);
    inside
}

/// The NIC by which Linux would send: rules by priority, in the table of each the longest prefix,
/// then the lowest metric.
fn way(inside: &Snapshot, from: IpAddr, to: IpAddr) -> (String, Option<IpAddr>) {
    let mut rules: Vec<&Rule> = inside
        .rules
        .iter()
        .filter(|r| (r.family == 4) == to.is_ipv4())
        .collect();
    rules.sort_by_key(|r| r.priority);
    for rule in rules
        .iter()
        .filter(|r| r.source.is_none_or(|s| s.contains(&from)))
    {
        let fits = |r: &&Route| r.table == rule.table && r.kind == 1 && r.destination.contains(&to);
        let key = |r: &&Route| (std::cmp::Reverse(r.destination.prefix_len()), r.metric);
        if let Some(route) = inside.routes.iter().filter(fits).min_by_key(key) {
            return (
                route.hops[0].dev.clone().unwrap().to_string(),
                route.hops[0].gateway,
            );
        }
    }
    panic!("no way from {from} to {to}")
}

#[test]
fn what_comes_from_a_rail_leaves_by_it() {
    let kernel = host(4);
    let attach = lowered(&kernel, &plan(&kernel, 4, ArpChoice::Auto, "29000-29255")).unwrap();
    let inside = carried_out(&kernel, &attach);
    for i in 0..4 {
        let n = i as u8 + 1;
        let rail = name(i).to_string();
        assert_eq!(
            way(&inside, v4(0, 0, n), v4(0, 0, 99)),
            (rail.clone(), None)
        );
        assert_eq!(
            way(&inside, v4(0, 0, n), "10.9.1.1".parse().unwrap()),
            (rail.clone(), Some(v4(0, 0, 200 + n)))
        );
        assert_eq!(way(&inside, v6(0, n.into()), v6(0, 99)), (rail, None));
        // Its routes and rules are its own state: what a stop hook takes away, and a poststart hook
        // puts back.
        let state = &attach.held[i].inside;
        assert_eq!(
            state
                .routes
                .iter()
                .filter(|r| r.table == 29000 + i as u32)
                .count(),
            3,
            "{:#?}",
            state.routes
        );
        assert_eq!(
            state
                .rules
                .iter()
                .map(|r| (r.table, r.priority))
                .collect::<Vec<_>>(),
            [(29000 + i as u32, 29000 + i as u32); 2]
        );
    }
    let lines = rails::describe(
        &attach
            .held
            .iter()
            .map(|h| h.inside.clone())
            .collect::<Vec<_>>(),
        &inside,
    );
    assert_eq!(
        lines[3],
        "rail3: effective ARP profile 2/1/1/1, table 29003"
    );
    // The known recipe: without tables, all of them would leave by one.
    let recipe = lowered(
        &kernel,
        &plan(&kernel, 4, "2/1/1/1".parse().unwrap(), "29000-29255"),
    )
    .unwrap();
    let inside = carried_out(&kernel, &recipe);
    assert!((1..5).all(|n| way(&inside, v4(0, 0, n), v4(0, 0, 99)).0 == "rail0"));
}

#[test]
fn tables_are_made_only_where_rails_share_a_subnet() {
    let kernel = testkit::fake_kernel::hosts::three();
    for profile in [
        ArpChoice::Auto,
        ArpChoice::Strict,
        ArpChoice::Loose,
        ArpChoice::Off,
    ] {
        let attach = lowered(&kernel, &plan(&kernel, 3, profile, "29000-29255")).unwrap();
        assert!(attach.held.iter().all(|h| h.inside.rules.is_empty()));
        assert_eq!(
            attach.held[0]
                .inside
                .netdev
                .sysctls
                .contains_key("ipv4/conf/arp_filter"),
            profile != ArpChoice::Off
        );
    }
    // An annotation may leave one of two: alone it needs none.
    let kernel = host(2);
    let mut narrowed = plan(&kernel, 2, ArpChoice::Auto, "29000-29255");
    narrowed.nics.pop();
    assert!(
        lowered(&kernel, &narrowed).unwrap().held[0]
            .inside
            .rules
            .is_empty()
    );
}

/// Rails of one subnet each, every one with a gateway of its own to all that is far.
#[test]
fn what_comes_from_a_rail_leaves_by_its_own_gateway() {
    for far in ["10.0.0.0/8", "0.0.0.0/0"] {
        let mut kernel = testkit::fake_kernel::hosts::three();
        for i in 0..3u8 {
            let hop = Hop {
                dev: Some(name(i.into())),
                gateway: Some(v4(i, 0, 9)),
                ..Hop::default()
            };
            kernel
                .does(Step::RouteAdd {
                    side: Side::Host,
                    route: route(far, 100 + u32::from(i), hop),
                })
                .unwrap();
        }
        let attach = lowered(&kernel, &plan(&kernel, 3, ArpChoice::Auto, "29000-29255")).unwrap();
        let inside = carried_out(&kernel, &attach);
        for i in 0..3u8 {
            let way = way(&inside, v4(i, 0, 1), "10.77.0.1".parse().unwrap());
            assert_eq!(
                way,
                (name(i.into()).to_string(), Some(v4(i, 0, 9))),
                "{far}"
            );
        }
        let main = inside
            .routes
            .iter()
            .filter(|r| r.table == 254 && r.destination.to_string() == far)
            .count();
        assert_eq!(main, if far == "0.0.0.0/0" { 0 } else { 3 });
        let loose = lowered(&kernel, &plan(&kernel, 3, ArpChoice::Loose, "29000-29255")).unwrap();
        assert!(loose.held.iter().all(|h| h.inside.rules.is_empty()));
    }
}

/// One route over two rails, with a realm for each leg (RTA_FLOW): in a rail's table there is one
/// leg, and the realm the route's.
#[test]
fn a_leg_that_is_alone_in_its_table_has_nothing_of_its_own() {
    let mut kernel = testkit::fake_kernel::hosts::three();
    let realm = |i: u8| BTreeMap::from([(11, rdma_model::ids::Hex(vec![i, 0, 0, 0]))]);
    let leg = |i: u8| Hop {
        dev: Some(name(i.into())),
        gateway: Some(v4(i, 0, 9)),
        weight: i,
        other: realm(i),
        ..Hop::default()
    };
    let both = Route {
        hops: vec![leg(1), leg(2)],
        ..route("10.77.0.0/16", 0, leg(1))
    };
    kernel
        .does(Step::RouteAdd {
            side: Side::Host,
            route: both,
        })
        .unwrap();
    let held = lowered(&kernel, &plan(&kernel, 3, ArpChoice::Auto, "29000-29255"))
        .unwrap()
        .held;
    for i in 1..3u8 {
        let routes = &held[usize::from(i)].inside.routes;
        let own = routes
            .iter()
            .find(|r| r.table > 29000 && r.destination.to_string() == "10.77.0.0/16")
            .unwrap();
        let bare = Hop {
            weight: 0,
            other: BTreeMap::new(),
            ..leg(i)
        };
        assert_eq!((&own.hops, &own.other), (&vec![bare], &realm(i)));
    }
}

#[test]
fn default_route_comes_if_asked_and_never_as_the_second_one() {
    let far = |dev: usize, metric: u32| {
        let hop = Hop {
            dev: Some(name(dev)),
            gateway: Some(v4(dev as u8, 0, 9)),
            ..Hop::default()
        };
        route("0.0.0.0/0", metric, hop)
    };
    let mut kernel = testkit::fake_kernel::hosts::three();
    for (dev, metric) in [(0, 300), (1, 200), (2, 200)] {
        kernel
            .does(Step::RouteAdd {
                side: Side::Host,
                route: far(dev, metric),
            })
            .unwrap();
    }
    let mut plan = plan(&kernel, 3, ArpChoice::Auto, "29000-29255");
    let host = kernel.see(Side::Host);
    let carried = |kernel: &Kernel, plan: &Plan| {
        let attach = lowered(kernel, plan).unwrap();
        let inside = carried_out(kernel, &attach);
        let main = inside
            .routes
            .iter()
            .filter(|r| r.table == 254 && r.destination.prefix_len() == 0);
        (main.cloned().collect::<Vec<_>>(), attach.notes)
    };
    let foreseen = |plan: &Plan, pod: &Kernel| {
        let seen =
            rdmaprep::planner::inside_with_nics(plan, &host, Some(&pod.see(Side::Inside))).routes;
        seen.into_iter()
            .filter(|r| r.table == 254 && r.destination.prefix_len() == 0)
            .collect::<Vec<_>>()
    };
    assert_eq!(carried(&kernel, &plan), (vec![], vec![]));
    assert_eq!(foreseen(&plan, &kernel), []);
    plan.default_route = true;
    assert_eq!(carried(&kernel, &plan), (vec![far(1, 200)], vec![]));
    assert_eq!(foreseen(&plan, &kernel), [far(1, 200)]);
    kernel.plug(Side::Inside, netdev("eth0", false, &[]));
    kernel
        .does(Step::Link {
            side: Side::Inside,
            dev: "eth0".parse().unwrap(),
            up: true,
        })
        .unwrap();
    let hop = Hop {
        dev: Some("eth0".parse().unwrap()),
        ..Hop::default()
    };
    let theirs = route("0.0.0.0/0", 1000, hop);
    kernel
        .does(Step::RouteAdd {
            side: Side::Inside,
            route: theirs.clone(),
        })
        .unwrap();
    let note = "the IPv4 default route via 10.1.0.9 of rail1 stays behind: the container has a \
        default route of its own";
    assert_eq!(
        carried(&kernel, &plan),
        (vec![theirs.clone()], vec![note.to_owned()])
    );
    assert_eq!(foreseen(&plan, &kernel), [theirs]);
    let states: Vec<NicState> = (0..3)
        .map(|i| NicState::of(&host, &name(i)).unwrap())
        .collect();
    assert_eq!(
        rails::default_notes(true, &states),
        ["the IPv4 default route via 10.1.0.9 of rail1 comes along"]
    );
    assert_eq!(rails::default_notes(false, &states), [""; 0]);
    assert_eq!(
        rails::default_notes(true, &[]),
        ["--default-route: none of the NICs has a default route"]
    );
}

#[test]
fn numbers_in_use_are_left_alone() {
    let mut kernel = host(3);
    kernel
        .does(Step::RuleAdd {
            side: Side::Inside,
            rule: from_rule(v4(7, 0, 1), 29000, 100),
        })
        .unwrap();
    kernel
        .does(Step::RuleAdd {
            side: Side::Inside,
            rule: from_rule(v4(7, 0, 2), 100, 29001),
        })
        .unwrap();
    let eth0 = netdev("eth0", false, &[]);
    kernel.plug(Side::Inside, eth0);
    kernel
        .does(Step::Link {
            side: Side::Inside,
            dev: "eth0".parse().unwrap(),
            up: true,
        })
        .unwrap();
    let hop = Hop {
        dev: Some("eth0".parse().unwrap()),
        ..Hop::default()
    };
    let theirs = Route {
        table: 29003,
        ..route("10.77.0.0/16", 0, hop)
    };
    kernel
        .does(Step::RouteAdd {
            side: Side::Inside,
            route: theirs,
        })
        .unwrap();
    let tables = |numbers: &str, profile| {
        let attach = lowered(&kernel, &plan(&kernel, 3, profile, numbers))?;
        carried_out(&kernel, &attach);
        let rules = |h: &rdma_model::moved_nic::MovedNic| h.inside.rules.first().map(|r| r.table);
        let filter = attach.held[0].inside.netdev.sysctls["ipv4/conf/arp_filter"].clone();
        Ok::<_, anyhow::Error>((
            attach.held.iter().filter_map(rules).collect::<Vec<_>>(),
            filter,
        ))
    };
    assert_eq!(
        tables("29000-29255", ArpChoice::Auto).unwrap(),
        (vec![29002, 29004, 29005], "1".into())
    );
    // Two numbers are free of the three that it takes.
    let e = tables("29002-29004", ArpChoice::Strict).unwrap_err();
    assert_eq!(ErrorClass::of(&e), ErrorClass::Refused);
    assert!(format!("{e:#}").contains("rail_tables"), "{e:#}");
    assert_eq!(
        tables("29002-29004", ArpChoice::Auto).unwrap(),
        (vec![], "0".into())
    );
}

#[test]
fn an_address_that_has_a_rule_gets_no_second_one() {
    let mut kernel = host(2);
    let theirs = from_rule(v4(0, 0, 1), 100, 1000);
    kernel
        .does(Step::RuleAdd {
            side: Side::Host,
            rule: theirs.clone(),
        })
        .unwrap();
    let plan = plan(&kernel, 2, ArpChoice::Auto, "29000-29255");
    let held = lowered(&kernel, &plan).unwrap().held;
    let rules = |i: usize| {
        held[i]
            .inside
            .rules
            .iter()
            .map(|r| (r.family, r.table))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (rules(0), rules(1)),
        (vec![(4, 100), (6, 29000)], vec![(4, 29001), (6, 29001)])
    );
    assert!(
        !held[0]
            .inside
            .routes
            .iter()
            .any(|r| r.table == 29000 && r.destination.addr().is_ipv4())
    );
}

#[test]
fn prepare_says_what_it_chose() {
    let kernel = host(2);
    let said = |profile: &str| {
        plan(&kernel, 2, profile.parse().unwrap(), "300-400")
            .separation
            .notes
    };
    let group = [
        "10.0.0.0/24 is shared by rail0, rail1",
        "fd00::/64 is shared by rail0, rail1",
    ];
    let auto = said("auto");
    assert_eq!(
        auto[0],
        "ARP profile 2/1/1/1 (strict): a routing table and rules for each rail"
    );
    assert_eq!(auto[1..3], group);
    assert_eq!(auto[3], "routes into 10.9.0.0/16 lead over rail0, rail1");
    assert_eq!(
        auto[4],
        "rail0: from 10.0.0.1, fd00::1 by its own table: 10.0.0.0/24, fd00::/64, 10.9.0.0/16 via \
        10.0.0.201"
    );
    assert_eq!(auto.len(), 6);
    assert_eq!(
        said("loose")[0],
        "ARP profile 2/1/0/2 (loose): no routing tables"
    );
    assert_eq!(
        said("off")[0],
        "ARP profile the kernel's own values (off): no routing tables"
    );
    let recipe = "ARP profile 2/1/1/1 (as asked): no routing tables: of rails that share a \
        subnet, one can resolve its peers";
    assert_eq!(said("2/1/1/1")[0], recipe);
    // A recording without routes.
    let state = |name: &str, address: &str| NicState {
        netdev: netdev(name, true, &[address]),
        routes: Vec::new(),
        nexthops: Vec::new(),
        rules: Vec::new(),
    };
    let bare = [state("rail0", "10.0.0.1/24"), state("rail1", "10.0.0.2/24")];
    let said = rails::decide(ArpChoice::Auto, "300-400".parse().unwrap(), &bare)
        .1
        .notes;
    assert_eq!(
        said[0],
        "ARP profile 2/1/1/1 (strict): no rail has a route for a table of its own"
    );
    let apart = testkit::fake_kernel::hosts::three();
    let said = plan(&apart, 3, ArpChoice::Auto, "300-400").separation.notes;
    assert_eq!(
        said,
        ["ARP profile 2/1/1/1 (strict): no two rails share a subnet or a destination"]
    );
}

/// What was stored before there were tables.
#[test]
fn old_plans_and_records_are_read() {
    let kernel = host(2);
    let new = plan(&kernel, 2, ArpChoice::Auto, "29000-29255");
    let mut old = serde_json::to_value(&new).unwrap();
    for key in ["rails", "default_route"] {
        old.as_object_mut().unwrap().remove(key).unwrap();
    }
    let old: Plan = serde_json::from_value(old).unwrap();
    assert_eq!(
        (old.arp, old.separation),
        (Some(ArpProfile::STRICT), rails::Separation::default())
    );
    let held = lowered(&kernel, &new).unwrap().held.remove(0);
    let mut text = serde_json::to_value(&held).unwrap();
    text.as_object_mut().unwrap().remove("overruled");
    assert_eq!(
        serde_json::from_value::<rdma_model::moved_nic::MovedNic>(text).unwrap(),
        held
    );
}
