//! The smallest hosts on which a property once failed.

use super::*;
use rdma_model::snapshot::Hop;
use testkit::fake_kernel::hosts::{plan_for, three};

const SIDE: Side = Side::Host;

fn route(destination: &str, hops: Vec<Hop>) -> Route {
    Route {
        destination: destination.parse().unwrap(),
        source: None,
        table: 254,
        protocol: 4,
        scope: 0,
        kind: 1,
        tos: 0,
        metric: Some(1024),
        prefsrc: None,
        hops,
        other: BTreeMap::new(),
    }
}

fn hop(i: usize, gateway: Option<std::net::IpAddr>) -> Hop {
    Hop {
        dev: Some(name(i)),
        gateway,
        ..Hop::default()
    }
}

/// The chosen ones of three NICs go and come back; what they look like inside is what was planned.
fn round(steps: Vec<Step>, chosen: &[usize]) {
    let mut kernel = three();
    steps.into_iter().for_each(|s| kernel.does(s).unwrap());
    let plan = plan_for(&kernel, chosen);
    let case = Case::of(kernel, &plan);
    let attached = case.attached().unwrap();
    let states: Vec<NicState> = case.attach.held.iter().map(|h| h.inside.clone()).collect();
    assert_eq!(verify::drift(&states, &attached.see(Side::Inside)), []);
    case.assert_restored(attached, "after a whole attach");
}

/// A rule stays in a namespace when its NIC leaves: the container's kept ours.
#[test]
fn rules_leave_the_container() {
    round(
        vec![Step::RuleAdd {
            side: SIDE,
            rule: rule_333(&name(0)),
        }],
        &[0],
    );
}

/// NetworkManager marks addresses NOPREFIXROUTE and adds the subnet's route itself, under the
/// kernel's name.
#[test]
fn routes_that_only_look_made_by_the_kernel() {
    let (side, dev) = (SIDE, name(0));
    let address = Address {
        flags: 0x200,
        ..plain(v4(50, 0, 1), 24)
    };
    let route = Route {
        protocol: 2,
        scope: 253,
        metric: Some(101),
        ..route("10.50.0.0/24", vec![hop(0, None)])
    };
    let route = Route {
        prefsrc: Some(address.address),
        ..route
    };
    round(
        vec![
            Step::AddressAdd { side, dev, address },
            Step::RouteAdd { side, route },
        ],
        &[0],
    );
}

/// IPv4 drops a route over another NIC together with the address that it prefers as its source.
#[test]
fn the_source_of_another_nics_route() {
    let route = Route {
        prefsrc: Some(v4(0, 0, 1)),
        ..route("10.60.0.0/24", vec![hop(1, None)])
    };
    round(vec![Step::RouteAdd { side: SIDE, route }], &[0]);
}

/// Inside, an address that did not come along cannot be preferred.
#[test]
fn a_source_that_stays() {
    let route = Route {
        prefsrc: Some(v4(0, 0, 1)),
        ..route("10.60.0.0/24", vec![hop(1, None)])
    };
    round(vec![Step::RouteAdd { side: SIDE, route }], &[1]);
}

/// The leg that stays keeps an IPv6 multipath route from being added again.
#[test]
fn one_leg_of_an_ipv6_multipath_route() {
    let hops = vec![hop(0, Some(v6(0, 99))), hop(1, Some(v6(1, 99)))];
    let add = Step::RouteAdd {
        side: SIDE,
        route: route("2001:db8::/64", hops),
    };
    round(vec![add.clone()], &[0]);
    round(vec![add], &[1]);
}

/// Each of two routes covers the other one's gateway, since a rule leads to their table.
#[test]
fn ipv6_routes_that_cover_each_others_gateway() {
    let add = |net: &str, host: u16| {
        let route = Route {
            table: 200,
            ..route(net, vec![hop(0, Some(v6(0, host)))])
        };
        Step::RouteAdd { side: SIDE, route }
    };
    let rule = Rule {
        family: 6,
        source: None,
        destination: None,
        iif: None,
        oif: None,
        table: 200,
        ..rule_333(&name(0))
    };
    let wide = ["fc00::/6", "fc00::/7"];
    round(
        vec![
            add(wide[0], 98),
            add(wide[1], 99),
            Step::RuleAdd { side: SIDE, rule },
        ],
        &[0],
    );
}

/// Where addr_gen_mode is none, another program added the address that the kernel would have made;
/// on a NIC that is down, too.
#[test]
fn link_local_addresses_that_only_look_made_by_the_kernel() {
    let (side, dev) = (SIDE, name(0));
    let values = BTreeMap::from([("ipv6/conf/addr_gen_mode".to_owned(), "1".to_owned())]).into();
    let eui64 = std::net::IpAddr::from([0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 1]);
    let address = Address {
        scope: 253,
        ..plain(eui64, 64)
    };
    let add = Step::AddressAdd {
        side,
        dev: dev.clone(),
        address,
    };
    let down = Step::Link {
        side,
        dev: dev.clone(),
        up: false,
    };
    let none = Step::Sysctls {
        side,
        dev: dev.clone(),
        values,
    };
    round(
        vec![
            down.clone(),
            none,
            Step::Link {
                side,
                dev,
                up: true,
            },
            add.clone(),
        ],
        &[0],
    );
    round(vec![down, add], &[0]);
}

/// What differs from the host's defaults comes along, but for what says how the host stands in its
/// network.
#[test]
fn sysctls_that_differ_from_the_default_come_along() {
    let all = |values: &[(&str, &str)]| -> SysctlValues {
        values
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    };
    let own = [
        ("ipv4/conf/rp_filter", "0"),
        ("ipv6/conf/accept_ra", "1"),
        ("ipv6/conf/addr_gen_mode", "0"),
        ("ipv6/conf/disable_ipv6", "0"),
    ];
    let heard = [
        ("ipv4/conf/rp_filter", "2"),
        ("ipv6/conf/accept_ra", "2"),
        ("ipv6/conf/addr_gen_mode", "0"),
        ("ipv6/conf/disable_ipv6", "0"),
    ];
    let kept = [
        ("ipv4/conf/promote_secondaries", "1"),
        ("ipv6/conf/keep_addr_on_down", "1"),
        ("ipv4/neigh/gc_stale_time", "30"),
    ];
    let stay = [("ipv6/conf/mtu", "1300")];
    let mut kernel = three();
    let values = all(&[&kept[..], &stay, &heard].concat());
    kernel
        .does(Step::Sysctls {
            side: SIDE,
            dev: name(0),
            values,
        })
        .unwrap();
    let plan = Plan {
        arp: None,
        ..plan_for(&kernel, &[0, 1])
    };
    let case = Case::of(kernel, &plan);
    let inside = |i: usize| case.attach.held[i].inside.netdev.sysctls.clone();
    assert_eq!(
        (inside(0), inside(1)),
        (all(&[&kept[..], &heard].concat()), all(&own))
    );
    case.assert_restored(case.attached().unwrap(), "after a whole attach");
}

/// A namespace dies in which two NICs had exchanged names, and one had the third's as an altname.
#[test]
fn names_exchanged() {
    let kernel = three();
    let case = Case::of(kernel.clone(), &plan_for(&kernel, &[0, 1, 2]));
    let mut attached = case.attached().unwrap();
    swap(&mut attached, &mut names(&case.attach.held), 0, 1);
    let (side, altname) = (Side::Inside, name(2).to_string());
    attached
        .does(Step::Rename {
            side,
            dev: name(2),
            name: "x".parse().unwrap(),
        })
        .unwrap();
    attached
        .does(Step::AltnameAdd {
            side,
            dev: name(0),
            altname,
        })
        .unwrap();
    attached.die();
    let (home, drift) = home(&mut attached, &case.attach.held, &case.precedence);
    assert_eq!((home.stuck, drift), (Vec::new(), Vec::new()));
    assert_eq!(diff(&case.host, &form(&attached.see(SIDE))), "");
}

/// While it was in the container, another interface got its name: that interface is not changed.
#[test]
fn a_stranger_with_its_name() {
    let kernel = three();
    let case = Case::of(kernel.clone(), &plan_for(&kernel, &[0]));
    let mut attached = case.attached().unwrap();
    attached
        .does(Step::Rename {
            side: SIDE,
            dev: name(1),
            name: name(0),
        })
        .unwrap();
    let mut dead = attached.clone();
    dead.die();
    for mut kernel in [attached, dead] {
        let before = form(&kernel.see(SIDE));
        let (home, _) = home(&mut kernel, &case.attach.held, &case.precedence);
        assert_eq!(home.stuck.len(), 1);
        assert_eq!(texts(&home.steps), [""; 0]);
        assert_eq!(diff(&before, &form(&kernel.see(SIDE))), "");
    }
}

/// A NIC came back under another's name, and a stranger has its own: neither gets what the other
/// one had.
#[test]
fn a_nic_that_is_kept_from_its_name_keeps_anothers() {
    let kernel = three();
    let case = Case::of(kernel.clone(), &plan_for(&kernel, &[0, 1]));
    let mut attached = case.attached().unwrap();
    for (dev, to) in [(name(0), "x".parse().unwrap()), (name(1), name(0))] {
        attached
            .does(Step::Rename {
                side: Side::Inside,
                dev,
                name: to,
            })
            .unwrap();
    }
    attached
        .does(Step::Rename {
            side: SIDE,
            dev: name(2),
            name: name(1),
        })
        .unwrap();
    attached.die();
    let before = form(&attached.see(SIDE));
    let (home, _) = home(&mut attached, &case.attach.held, &case.precedence);
    assert_eq!(home.stuck.len(), 2, "{:?}", home.stuck);
    assert_eq!(
        (
            texts(&home.steps),
            diff(&before, &form(&attached.see(SIDE)))
        ),
        (vec![], String::new())
    );
}
