//! What an administrator deletes of routes and nexthop groups while a NIC is away stays deleted, as
//! far as Linux tells that apart from what it drops by itself.

use crate::alone;
use testkit::{Container, Host, sh};

/// r0 is away while that is done.
fn while_away(host: &Host, work: impl FnOnce()) -> String {
    host.prepare("r0");
    let mut c = Container::new("c");
    c.create(host).ok();
    work();
    let said = c.stop(host).ok().err;
    host.is_clean();
    said
}

/// The links of a route's legs.
fn legs(route: &str) -> Vec<String> {
    let family = if route.contains(':') { "-6" } else { "-4" };
    let text = sh(&format!("ip {family} route show {route}"));
    let words: Vec<&str> = text.split_whitespace().collect();
    let devs = words.windows(2).filter(|pair| pair[0] == "dev");
    devs.map(|pair| pair[1].to_owned()).collect()
}

#[test]
fn a_leg_that_was_deleted_meanwhile_stays_deleted() {
    alone(|host| {
        host.rails(3);
        for i in 0..3 {
            host.ip(&format!("address add fd0{i}::1/64 dev r{i} nodad"));
        }
        host.ip(
            "route add 10.97.0.0/16 nexthop via 10.0.0.9 dev r0 nexthop via 10.1.0.9 dev r1 \
            nexthop via 10.2.0.9 dev r2
            route add fd97::/64 nexthop via fd00::9 dev r0 nexthop via fd01::9 dev r1 nexthop via \
            fd02::9 dev r2",
        );
        while_away(host, || {
            host.ip("route replace 10.97.0.0/16 via 10.1.0.9 dev r1
                route delete fd97::/64 via fd02::9 dev r2");
        });
        assert_eq!(legs("10.97.0.0/16"), ["r0", "r1"]);
        assert_eq!(legs("fd97::/64"), ["r0", "r1"]);
    });
}

/// Linux takes the legs of a deleted IPv6 route out of a whole one that is there.
#[test]
fn what_is_left_of_an_ipv6_route_goes_before_the_whole() {
    alone(|host| {
        host.rails(3);
        for i in 0..3 {
            host.ip(&format!("address add fd0{i}::1/64 dev r{i} nodad"));
        }
        host.ip(
            "route add fd97::/64 nexthop via fd00::9 dev r0 nexthop via fd01::9 dev r1 nexthop via \
            fd02::9 dev r2",
        );
        host.prepare("r0");
        let c = Container::new("c");
        c.create(host).ok();
        host.ip("route delete fd97::/64 via fd02::9 dev r2");
        let points = host.run.join("points");
        let mut stop = host.command(&["hook", "poststop"]);
        stop.env("RDMAPREP_FAULT_POINTS", &points);
        testkit::run(&mut stop, &c.stopped()).ok();
        let points = std::fs::read_to_string(points).unwrap();
        let (_, since) = points.split_once("adding route fd97::/64").unwrap();
        assert!(!since.contains("deleting route fd97::/64"), "{points}");
        assert_eq!(legs("fd97::/64"), ["r0", "r1"]);
        host.is_clean();
    });
}

#[test]
fn a_group_that_was_deleted_meanwhile_stays_deleted() {
    alone(|host| {
        host.rails(2);
        host.ip("nexthop add id 1 via 10.0.0.9 dev r0
            nexthop add id 2 via 10.1.0.9 dev r1
            nexthop add id 10 group 1/2
            nexthop add id 20 group 1/2
            route add 10.95.0.0/16 nhid 10
            route add 10.94.0.0/16 nhid 20");
        while_away(host, || host.ip("nexthop delete id 10"));
        let objects = sh("ip nexthop");
        assert!(!objects.contains("id 10 "), "{objects}");
        assert!(objects.contains("id 20 group 1/2"), "{objects}");
        assert_eq!(sh("ip route show 10.95.0.0/16"), "");
        assert_ne!(sh("ip route show 10.94.0.0/16"), "");
    });
}

/// With every NIC at home Linux leads by such a leg no more.
#[test]
fn a_leg_over_a_link_without_address_is_left_out() {
    alone(|host| {
        host.rails(2);
        host.ip(
            "route add 10.97.0.0/16 nexthop via 10.0.0.9 dev r0 nexthop via 10.1.0.9 dev r1
            route add 10.96.0.0/16 nexthop via 10.0.0.9 dev r0 nexthop via 10.9.0.9 dev r1 onlink",
        );
        while_away(host, || host.ip("address flush dev r1"));
        assert_eq!(legs("10.97.0.0/16"), ["r0"]);
        assert_eq!(legs("10.96.0.0/16"), ["r0"]);
    });
}

/// A link that is set down takes the last legs of routes along, as their deletion does.
#[test]
fn the_last_leg_that_stayed_comes_back() {
    alone(|host| {
        host.rails(2);
        host.ip("route add 10.97.0.0/16 nexthop via 10.0.0.9 dev r0 nexthop via 10.1.0.9 dev r1");
        let mut seen = Vec::new();
        for work in [
            "route delete 10.97.0.0/16",
            "link set r1 down\nlink set r1 up",
        ] {
            while_away(host, || {
                host.ip(work);
                seen.push(sh("ip -d route; ip -d -4 address show dev r1"));
            });
            assert_eq!(legs("10.97.0.0/16"), ["r0", "r1"], "{work}");
        }
        assert_eq!(seen[0], seen[1], "nothing tells them apart");
    });
}
