//! Everything that an administrator can set on a NIC, on the real kernel: into a container and
//! back, what `ip` and `tc` print of the host is what they printed before.

use std::time::{Duration, Instant};

use crate::alone;
use serde_json::Value;
use testkit::{Container, Host, ipv6, same, sh, until};

/// Commands of ip and tc that print state of a NIC.
const COMMANDS: [&str; 12] = [
    "ip -d -j address",
    "ip -4 -d -j route show table all",
    "ip -6 -d -j route show table all",
    "ip -4 -d -j rule",
    "ip -6 -d -j rule",
    "ip -d -j neighbour show nud permanent",
    "ip -d -j neighbour show nud noarp",
    "ip -4 -d -j neighbour show proxy",
    "ip -6 -d -j neighbour show proxy",
    "ip -d -j nexthop",
    "ip -j token",
    "tc -d -j qdisc",
];

/// What changes by itself: another index, the carrier, time and packets.
const PASSING: [&str; 7] = [
    "ifindex",
    "link_index",
    "operstate",
    "valid_life_time",
    "preferred_life_time",
    "unbalanced_time",
    "direct_packets_stat",
];

/// Lines that the kernel makes by itself, some time after the call, or that come and go.
fn derived(line: &str) -> bool {
    let own = [
        "\"fe80::",
        "\"ff00::",
        "anycast",
        "\"multicast\"",
        "33:33:",
        "01:00:5e:",
    ];
    own.iter().any(|word| line.contains(word)) && !line.contains("\"permanent\"")
}

fn settle(value: &mut Value) {
    match value {
        Value::Object(all) => {
            PASSING.iter().for_each(|key| drop(all.remove(*key)));
            all.entry("expires")
                .and_modify(|seconds| *seconds = "some".into());
            let carrier = |f: &Value| {
                ["LOWER_UP", "NO-CARRIER", "M-DOWN", "linkdown", "dead"]
                    .iter()
                    .any(|c| f == c)
            };
            if let Some(Value::Array(flags)) = all.get_mut("flags") {
                flags.retain(|f| !carrier(f));
            }
            if let Some(Value::Array(addresses)) = all.get_mut("addr_info") {
                addresses.retain(|a| a["scope"] != "link" || a["family"] != "inet6");
            }
            all.values_mut().for_each(settle);
        }
        Value::Array(all) => all.iter_mut().for_each(settle),
        _ => {}
    }
}

/// All of it, a line for each thing, when the kernel has done what it does by itself.
fn printed() -> String {
    ipv6::settled(sh);
    let mut text = String::new();
    for command in COMMANDS {
        let out = sh(command);
        let mut all: Value =
            serde_json::from_str(if out.trim().is_empty() { "[]" } else { &out }).unwrap();
        settle(&mut all);
        let mut lines: Vec<String> = all
            .as_array()
            .unwrap()
            .iter()
            .map(|v| format!("{command}: {v}\n"))
            .collect();
        lines.retain(|l| !derived(l));
        lines.sort();
        text.extend(lines);
    }
    text
}

/// There and back; `inside` looks at the container meanwhile.
fn journey(host: &Host, nics: &str, inside: impl Fn(&Container)) {
    host.prepare(nics);
    let (before, normal) = (printed(), host.normal());
    // By the stop hook, and as after a crash.
    for round in ["stop", "restore"] {
        let mut c = Container::new(round);
        c.create(host).ok();
        inside(&c);
        assert_ne!(printed(), before, "nothing has gone");
        match round {
            "stop" => drop(c.stop(host).ok()),
            _ => drop(host.rdmaprep(&["restore", "--all"]).ok()),
        }
        same(
            &format!("the normal form after {round}"),
            &normal,
            &host.normal(),
        );
        is_as(&before);
        host.is_clean();
    }
}

/// What the kernel makes by itself comes some time after the call.
fn is_as(before: &str) {
    let start = Instant::now();
    while printed() != before && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    same("what ip and tc tell of the host", before, &printed());
}

#[test]
fn legs_with_all_that_they_have() {
    alone(|host| {
        let nics = host.rails(2);
        host.ip("address add fd00::1/64 dev r0 nodad\naddress add fd01::1/64 dev r1 nodad");
        host.ip(
            "route add 10.98.0.0/16 nexthop via 10.0.0.9 dev r0 weight 2 nexthop via 10.77.1.8 \
            dev r1 onlink weight 200\n\
             route add 10.97.0.0/16 nexthop via 10.0.0.9 dev r0 realms 5 nexthop via 10.1.0.9 dev \
             r1 realms 6/7\n\
             route add 10.96.0.0/16 realms 3/4 via 10.0.0.9 dev r0 mtu lock 1400 advmss 1300 \
             initcwnd 20 quickack 1\n\
             route add 10.95.0.0/16 encap ip id 5 dst 10.0.0.9 src 10.0.0.1 ttl 7 tos 4 dev r0\n\
             route add 10.94.0.0/16 nexthop encap ip id 6 dst 10.0.0.9 via 10.0.0.9 dev r0 \
             nexthop via 10.1.0.9 dev r1 weight 4\n\
             route add 10.93.0.0/16 via inet6 fd00::9 dev r0\n\
             route add 10.92.0.0/16 nexthop via inet6 fd00::9 dev r0 nexthop via inet6 fd01::9 \
             dev r1\n\
             route add fd05::/64 encap seg6 mode encap segs fc00::1,fc00::2 dev r0\n\
             route add fd06::/64 encap ip6 id 5 dst fd00::9 hoplimit 9 dev r0\n\
             route add fd07::/64 via fd00::9 dev r0 pref high expires 900\n\
             route add fd08::/64 nexthop via fd00::9 dev r0 weight 3 nexthop via fd01::9 dev r1 \
             weight 5",
        );
        journey(host, &nics, |c| {
            let routes = c.sh("ip -4 route; ip -6 route");
            for words in [
                "realms 6/7",
                "onlink",
                "weight 200",
                "encap ip id 6",
                "encap seg6",
                "pref high",
                "mtu lock 1400",
            ] {
                assert!(routes.contains(words), "no {words} in {routes}");
            }
            assert!(!routes.contains("expires"), "{routes}");
        });
        // One of the two alone: IPv4 drops the whole route, IPv6 the leg.
        journey(host, "r1", |c| {
            let routes = c.sh("ip -4 route; ip -6 route");
            for line in [
                "10.98.0.0/16 via 10.77.1.8 dev r1 onlink",
                "10.97.0.0/16 via 10.1.0.9 dev r1 realms 6/7",
            ] {
                assert!(routes.contains(line), "no {line} in {routes}");
            }
            assert!(!routes.contains("r0"), "{routes}");
        });
    });
}

#[test]
fn nexthop_objects_and_their_groups() {
    alone(|host| {
        let nics = host.rails(3);
        host.ip("address add fd00::1/64 dev r0 nodad\naddress add fd01::1/64 dev r1 nodad");
        host.ip("nexthop add id 1 via 10.0.0.9 dev r0 proto static\n\
             nexthop add id 2 via 10.1.0.9 dev r1\n\
             nexthop add id 3 via 10.66.0.9 dev r1 onlink\n\
             nexthop add id 4 dev r0\n\
             nexthop add id 5 blackhole\n\
             nexthop add id 6 via fd00::9 dev r0\n\
             nexthop add id 7 via fd01::9 dev r1\n\
             nexthop add id 8 via 10.2.0.9 dev r2\n\
             nexthop add id 9 encap ip id 6 dst 10.0.0.9 via 10.0.0.9 dev r0\n\
             nexthop add id 20 group 1/2,3\n\
             nexthop add id 21 group 1,4/8,200 type resilient buckets 8 idle_timer 10 \
             unbalanced_timer 60\n\
             nexthop add id 22 group 6/7,5\n\
             nexthop add id 23 group 8\n\
             route add 10.99.0.0/16 nhid 1\n\
             route add 10.98.0.0/16 nhid 20 metric 7\n\
             route add 10.97.0.0/16 nhid 21\n\
             route add 10.96.0.0/16 nhid 4\n\
             route add 10.95.0.0/16 nhid 3 table 500 proto 77\n\
             route add 10.94.0.0/16 nhid 5\n\
             route add 10.93.0.0/16 nhid 9\n\
             route add fd08::/64 nhid 22\n\
             route add fd09::/64 nhid 6 metric 30");
        for (taken, route) in [
            (nics.as_str(), "10.98.0.0/16 metric 7"),
            ("r0", "10.99.0.0/16 via 10.0.0.9 dev r0"),
        ] {
            journey(host, taken, |c| {
                assert_eq!(c.sh("ip nexthop").trim(), "");
                let routes = c.sh("ip -4 route");
                assert!(
                    routes.contains(route) && !routes.contains("nhid"),
                    "{routes}"
                );
            });
        }
        // What the kernel does not tell, is in the objects.
        sh("echo 0 > /proc/sys/net/ipv4/nexthop_compat_mode");
        journey(host, &nics, |c| {
            let routes = c.sh("ip -4 route");
            assert!(
                routes.contains("nexthop via 10.1.0.9 dev r1 weight 3"),
                "{routes}"
            );
        });
    });
}

/// Without the object it is a route that Linux refuses beside the other one.
#[test]
fn an_ipv6_object_beside_a_route_to_its_gateway() {
    alone(|host| {
        host.rails(1);
        host.ip("address add fd00::1/64 dev r0 nodad\nnexthop add id 6 via fd00::9 dev r0");
        let object = "nhid 6";
        let leg = "via fd00::9 dev r0 proto static mtu 1400";
        let direct = "dev r0 proto boot";
        for routes in [
            [object, leg, direct],
            [object, direct, leg],
            [leg, object, direct],
            [leg, direct, object],
            [direct, object, leg],
            [direct, leg, object],
        ] {
            for route in routes {
                host.ip(&format!("route append fd53::/48 {route}"));
            }
            journey(host, "r0", |c| {
                let inside = c.sh("ip -6 route show fd53::/48");
                assert_eq!(inside.lines().count(), 2, "{routes:?}: {inside}");
                assert_eq!(inside.matches("via fd00::9").count(), 1, "{inside}");
            });
            for route in routes {
                host.ip(&format!("route delete fd53::/48 {route}"));
            }
        }
    });
}

/// An administrator, or the kernel where none is asked for, gives a free number.
#[test]
fn a_nexthop_object_whose_number_was_taken() {
    alone(|host| {
        host.rails(3);
        host.ip("address add fd00::1/64 dev r0 nodad\n\
             nexthop add id 1 via 10.0.0.9 dev r0\n\
             nexthop add id 2 via 10.1.0.9 dev r1\n\
             nexthop add id 3 via fd00::9 dev r0\n\
             nexthop add id 20 group 1/2,3\n\
             route add 10.99.0.0/16 nhid 1 metric 7\n\
             route add 10.98.0.0/16 nhid 20\n\
             route add 10.97.0.0/16 nhid 2\n\
             route add fd09::/64 nhid 3 metric 30");
        host.prepare("r0,r1");
        let mut c = Container::new("c");
        c.create(host).ok();
        host.ip("nexthop add id 1 via 10.2.0.9 dev r2\nroute add 10.96.0.0/16 nhid 1");
        let taken = sh("ip nexthop show id 1");
        assert!(taken.contains("r2"), "{taken}");
        c.stop(host).ok();
        let notes = host.report("c")["notes"].to_string();
        assert!(notes.contains("nexthop object 1 is another one"), "{notes}");
        for (route, leads) in [
            ("10.99.0.0/16", "via 10.0.0.9 dev r0 metric 7"),
            ("10.98.0.0/16", "nexthop via 10.1.0.9 dev r1 weight 3"),
            ("10.97.0.0/16", "nhid 2 via 10.1.0.9 dev r1"),
            ("10.96.0.0/16", "nhid 1 via 10.2.0.9 dev r2"),
            ("fd09::/64", "nhid 3 via fd00::9 dev r0"),
        ] {
            let text = sh(&format!(
                "ip -o -4 route | grep ^{route} || ip -6 route show {route}"
            ));
            assert!(text.contains(leads), "{text}");
        }
        assert_eq!(sh("ip nexthop show id 1"), taken);
        host.is_clean();
        let before = printed();
        host.prepare("r0,r1");
        let mut c = Container::new("d");
        c.create(host).ok();
        c.stop(host).ok();
        is_as(&before);
        host.is_clean();
    });
}

/// A rule that leads to a table before `main` decides where the kernel looks for a gateway, too:
/// the table's default route comes last. So it does where the NIC is on the host already, as after
/// a hook that was killed before the move.
#[test]
fn a_default_route_comes_after_those_whose_gateway_it_covers() {
    alone(|host| {
        takes_its_routes_again(
            host,
            &[
                "fd00:77::/64 dev r0",
                // Sorted, the next one would come before this one, whose gateway it covers.
                "table 105 fd99::/32 via fd00:77::1 dev r0",
                "table 104 fd00:77::/48 via fd00::fd dev r0",
                "table 104 2000::/3 via fd00::fe dev r0",
                "table 105 fd20::/48 via fd00::fe dev r0",
                "table 104 ::/0 via fd00::fe dev r0",
                "table 104 fd00::/16 nhid 6",
            ],
        )
    });
}

#[test]
fn tables_of_two_rails_may_lead_to_each_other() {
    alone(|host| {
        takes_its_routes_again(
            host,
            &[
                "table 104 fd01::/64 via fd00::fd dev r0",
                "table 105 fd00::/64 via fd01::fd dev r1",
                "table 104 ::/0 via fd00::fe dev r0",
                "table 105 ::/0 via fd01::fe dev r1",
            ],
        )
    });
}

#[test]
fn a_default_route_by_a_nexthop_object_comes_last_too() {
    alone(|host| {
        takes_its_routes_again(
            host,
            &[
                "table 104 fd00::/16 via fd00::fe dev r0",
                "table 104 ::/0 nhid 6",
            ],
        )
    });
}

fn takes_its_routes_again(host: &Host, routes: &[&str]) {
    let rules = "ip -6 rule add oif r0 lookup 104 priority 20000; ip -6 rule add oif r1 lookup \
        105 priority 20001";
    let routes = routes
        .iter()
        .map(|route| format!("ip route add {route}\n"))
        .collect::<String>();
    let before = "ip address add fd00::1/64 dev r0 nodad; ip address add fd01::1/64 dev r1 nodad
                  ip nexthop add id 6 via fd00::fe dev r0";
    for compat in [1, 0] {
        // With 0 a route that names a nexthop object does not say its gateway.
        sh(&format!(
            "echo {compat} > /proc/sys/net/ipv4/nexthop_compat_mode"
        ));
        comes_back_whole(host, &format!("{before}\n{rules}\n{routes}"), rules);
        sh(
            "ip link delete r0; ip link delete r1; ip nexthop flush; ip -6 rule flush; ip -6 rule \
            add table main priority 32766",
        );
    }
}

/// Two rails with that configuration, away and back: by `restore`, and after an administrator has
/// moved them back and done that.
fn comes_back_whole(host: &Host, lines: &str, by_hand: &str) {
    let nics = host.rails(2);
    sh(lines);
    host.prepare(&nics);
    let (before, normal) = (printed(), host.normal());
    for moved in [false, true] {
        let c = Container::new("c");
        c.create(host).ok();
        if moved {
            let us = std::process::id();
            c.sh(&format!(
                "ip link set r0 netns {us}; ip link set r1 netns {us}"
            ));
            sh(by_hand);
        }
        host.rdmaprep(&["restore", "--all"]).ok();
        same("the normal form", &normal, &host.normal());
        is_as(&before);
    }
    host.is_clean();
}

/// A rule of the host's own, which stays, leads to a table that covers the gateway of the NIC's
/// other table.
#[test]
fn a_rule_that_stays_may_lead_to_what_covers_a_gateway() {
    let lines = "
        ip address add fd00:1::1/64 dev r0 nodad
        ip -6 rule add to fd00::/8 lookup 200 priority 1000
        ip -6 rule add from fd00:1::1 lookup 105 priority 2000
        ip -6 route add fd00::/8 via fd00:1::fe dev r0 table 105
        ip -6 route add fd00::/16 via fd00:1::fd dev r0 table 200";
    alone(|host| {
        comes_back_whole(
            host,
            lines,
            "ip -6 rule add from fd00:1::1 lookup 105 priority 2000",
        )
    });
}

/// The rule came when both were there: now each covers the other one's gateway, and no order is
/// left.
#[test]
fn two_routes_that_cover_each_others_gateway_come_back() {
    let lines = "
        ip address add fd00:1::1/64 dev r0 nodad
        ip -6 route add fd00::/8 via fd00:1::fe dev r0 table 200
        ip -6 route add fd00::/16 via fd00:1::fd dev r0 table 200
        ip -6 rule add to fd00::/8 lookup 200 priority 1000";
    let by_hand = "ip link set r0 up; ip address add fd00:1::1/64 dev r0 nodad; sleep 0.1
        ip -6 rule delete to fd00::/8 lookup 200 priority 1000; ip -6 route add fd00::/16 via \
        fd00:1::fd dev r0 table 200
        ip -6 rule add to fd00::/8 lookup 200 priority 1000";
    alone(|host| comes_back_whole(host, lines, by_hand));
}

/// Such a gateway is looked for in main, where a route over the other rail covers it.
#[test]
fn a_gateway_that_is_onlink_may_be_covered() {
    let lines = "
        ip address add fd00:1::1/128 dev r0 nodad; ip address add fd00:2::1/128 dev r1 nodad
        ip -6 rule add from fd00:1::1 lookup 101; ip -6 rule add from fd00:2::1 lookup 102
        ip -6 route add fd00::/16 via fd00:1::fe dev r0 onlink table 101
        ip -6 route add fd00::/16 via fd00:2::fe dev r1 onlink table 102
        ip -6 route add fd05::/64 via fd09::1 dev r0 onlink table 200
        ip -6 nexthop add id 7 via fd09::2 dev r0 onlink
        ip -6 route add fd06::/64 nhid 7
        ip -6 route add fd09::/64 dev r1
        ip -6 route add fd00::/16 via fd00:1::fe dev r0 onlink";
    alone(|host| comes_back_whole(host, lines, "true"));
}

/// The kernel looks for it by the rules alone.
#[test]
fn the_gateway_of_a_nexthop_object_may_be_covered() {
    let covers = "ip -6 route add fd00::/8 via fd00:1::fd dev r0 table 200";
    let lines = format!(
        "ip address add fd00:1::1/64 dev r0 nodad
        ip -6 nexthop add id 7 via fd00:1::fe dev r0
        ip -6 route add fd07::/64 nhid 7
        ip -6 rule add to fd00::/8 lookup 200 priority 1000
        {covers}"
    );
    let by_hand =
        format!("ip link set r0 up; ip address add fd00:1::1/64 dev r0 nodad; sleep 0.1; {covers}");
    alone(|host| comes_back_whole(host, &lines, &by_hand));
}

/// The subnet of the first was renumbered; the link of the second is in a table that a rule of the
/// host's leads to.
#[test]
fn an_ipv4_gateway_that_is_not_on_the_link_any_more_comes_back() {
    let lines = "
        ip address add 10.9.0.1/24 dev r0; ip route add 10.50.0.0/16 via 10.9.0.254
        ip nexthop add id 9 via 10.9.0.253 dev r0; ip route add 10.52.0.0/16 nhid 9
        ip route add 10.53.0.0/16 via 10.9.0.252 table 77; ip address delete 10.9.0.1/24 dev r0
        ip address add 10.66.0.1/24 dev r1 noprefixroute
        ip route add 10.66.0.0/24 dev r1 scope link src 10.66.0.1 table 166; ip rule add to \
        10.66.0.0/24 lookup 166
        ip route add 10.51.0.0/16 via 10.66.0.254 dev r1";
    alone(|host| comes_back_whole(host, lines, "true"));
}

/// The subnet of the leg that stays was renumbered.
#[test]
fn a_leg_stays_whose_gateway_is_not_on_the_link_any_more() {
    alone(|host| {
        host.rails(2);
        sh("ip address add 10.9.0.1/24 dev r1
            ip route add 10.50.0.0/16 nexthop via 10.9.0.254 dev r1 nexthop via 10.0.0.254 dev r0
            ip address delete 10.9.0.1/24 dev r1");
        host.prepare("r0");
        let (before, normal) = (printed(), host.normal());
        let mut c = Container::new("c");
        c.create(host).ok();
        let stays = sh("ip route show 10.50.0.0/16");
        assert!(stays.contains("via 10.9.0.254 dev r1"), "{stays}");
        c.stop(host).ok();
        same("the normal form", &normal, &host.normal());
        is_as(&before);
        host.is_clean();
    });
}

/// The line of `ip route show` with a value behind it.
#[test]
fn a_subnets_route_with_metrics_comes_along() {
    let lines = "
        ip route change 10.0.0.0/24 dev r0 proto kernel scope link src 10.0.0.1 mtu 1400
        ip address add fd00::1/64 dev r0 nodad; ip -6 route change fd00::/64 dev r0 proto kernel \
        metric 256 mtu 1300";
    alone(|host| comes_back_whole(host, lines, "true"));
}

/// As NetworkManager has them, and others that the kernel does not make.
#[test]
fn link_local_routes_under_the_kernels_name_come_back() {
    let lines = "
        ip link set r0 down; ip link set r0 addrgenmode none; ip link set r0 up
        ip address add fe80::abcd:1/64 dev r0 noprefixroute; ip -6 route add fe80::/64 dev r0 \
        proto kernel metric 1024
        ip -6 route add fe80::/10 dev r1 proto kernel metric 300; ip -6 route add fe80::/64 dev \
        r1 proto kernel table 50";
    let routes = || sh("ip -6 route show table all | grep -E '^fe80.*(1024|300|table 50)' | sort");
    alone(|host| {
        comes_back_whole(host, lines, "true");
        assert_eq!(routes().lines().count(), 3, "{}", routes());
    });
}

/// A router advertisement of that lifetime, as each of these interfaces sends it: ICMPV6 type 134,
/// with hop limit 255. Where PREFIX is set, hosts make addresses of it.
pub const ADVERTISES: &str = r#"
import os, socket, struct, sys
prefix = os.environ.get("PREFIX")
option = b""
if prefix:
    option = struct.pack("!BBBBIII", 3, 4, 64, 0xc0, 86400, 14400, 0)
    option += socket.inet_pton(socket.AF_INET6, prefix)
for name in sys.argv[2:]:
    s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    index = socket.if_nametoindex(name)
    s.setsockopt(41, 18, 255)
    s.setsockopt(41, 17, struct.pack("I", index))
    head = b"\x86\x00\x00\x00" + struct.pack("!BBHII", 64, 0, int(sys.argv[1]), 0, 0)
    s.sendto(head + option, ("ff02::1", 0, 0, index))
"#;

/// Two rails whose switches advertise a default route. Added by netlink, the two would be one
/// multipath route, or one with the uplink's, and no router could withdraw them.
#[test]
fn routes_that_routers_advertise_are_left_to_the_routers() {
    alone(|host| {
        let nics = host.rails(2);
        sh(
            "echo 1 | tee /proc/sys/net/ipv6/conf/r[01]/accept_ra; ip link add up0 type veth peer \
            name q0
            ip link set up0 up; ip link set q0 up; ip address add fd99::2/64 dev up0 nodad
            ip address add fd00::1/64 dev r0 nodad; ip address add fd01::1/64 dev r1 nodad
            ip -6 route add default via fd99::1 metric 100",
        );
        std::fs::write("/run/advertise.py", ADVERTISES).unwrap();
        let of_routers = || sh("ip -6 route show default proto ra");
        let advertise = |lifetime: u32| {
            sh(&format!("python3 /run/advertise.py {lifetime} p0 p1"));
            until("the routes of the routers", || {
                of_routers().matches("expires").count() == if lifetime > 0 { 2 } else { 0 }
            });
        };
        until("the routers' addresses", || {
            sh("ip -6 address show tentative scope link").is_empty()
        });
        advertise(1800);
        let (learned, normal) = (of_routers().lines().count(), host.normal());
        host.prepare(&nics);
        for _ in 0..2 {
            let mut c = Container::new("c");
            c.create(host).ok();
            let inside = c.sh("ip -6 route show table all default");
            assert_eq!(
                inside.matches("via fe80").count(),
                2,
                "each rail's own table has its router: {inside}"
            );
            c.stop(host).ok();
            same("the normal form", &normal, &host.normal());
            assert!(!of_routers().contains("nexthop"), "{}", of_routers());
            until("the routers' addresses", || {
                sh("ip -6 address show tentative scope link").is_empty()
            });
            advertise(1800);
            assert_eq!(of_routers().lines().count(), learned);
        }
        advertise(0);
        host.is_clean();
    });
}

/// An administrator moves a NIC back by hand and configures it otherwise: that is not the state
/// that it had.
#[test]
fn what_came_meanwhile_goes() {
    alone(|host| {
        let nics = host.rails(2);
        host.ip(
            "nexthop add id 1 via 10.0.0.9 dev r0\nnexthop add id 20 group 1\nroute add \
            10.99.0.0/16 nhid 20",
        );
        host.prepare(&nics);
        let (before, normal) = (printed(), host.normal());
        let c = Container::new("moved");
        c.create(host).ok();
        c.sh(&format!("ip link set r0 netns {}", std::process::id()));
        host.ip("link set r0 up\naddress add 10.0.0.1/24 dev r0");
        host.ip(
            "nexthop add id 1 dev r0\nnexthop add id 2 via 10.0.0.9 dev r0\nnexthop add id 21 \
            group 2\n\
             route add 10.88.0.0/16 nhid 21\nroute add 10.77.0.0/16 nhid 1",
        );
        host.rdmaprep(&["restore", "--all"]).ok();
        same("the normal form", &normal, &host.normal());
        is_as(&before);
        host.is_clean();
    });
}

/// The kernel reuses the id of a nexthop that was moved: the new object keeps the id, and the
/// report says so.
#[test]
fn a_strangers_object_is_not_touched() {
    alone(|host| {
        host.rails(3);
        host.ip(
            "link add up0 type veth peer name q\nlink set q up\nlink set up0 up\naddress add \
            192.168.9.2/24 dev up0\n\
             nexthop add id 1 via 10.0.0.9 dev r0\nnexthop add id 2 via 10.1.0.9 dev r1\n\
             nexthop add id 3 via 10.2.0.9 dev r2\nnexthop add id 20 group 1/2\n\
             route add 10.98.0.0/16 nhid 1\nroute add 10.99.0.0/16 nhid 20",
        );
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        host.ip(
            "nexthop add id 1 via 192.168.9.1 dev up0\nroute add default nhid 1\nnexthop \
            replace id 20 group 3",
        );
        let theirs = || sh("ip nexthop; ip route show default; ip route show 10.99.0.0/16");
        let before = theirs();
        c.stop(host).ok();
        let notes = host.report("c")["notes"].to_string();
        for id in [1, 20] {
            let said = format!("nexthop object {id} is another one by now");
            assert!(notes.contains(&said), "{notes}");
        }
        assert_eq!(theirs(), before);
        let own = sh("ip route show 10.98.0.0/16");
        assert!(own.contains("via 10.0.0.9 dev r0"), "{own}");
        assert!(sh("ip -o -4 address show dev r0").contains("10.0.0.1/24"));
        host.is_clean();
    });
}

/// A NIC that is back on the host gets into a group, or into a route, together with another one: a
/// restore must not delete those.
#[test]
fn legs_of_others_are_not_touched() {
    alone(|host| {
        host.rails(1);
        host.ip(
            "link add up0 type veth peer name q\nlink set q up\nlink set up0 up\naddress add \
            192.168.9.2/24 dev up0",
        );
        host.prepare("r0");
        let normal = host.normal();
        let c = Container::new("c");
        c.create(host).ok();
        c.sh(&format!("ip link set r0 netns {}", std::process::id()));
        host.ip("link set r0 up\naddress add 10.0.0.1/24 dev r0\n\
             nexthop add id 5 via 192.168.9.1 dev up0\nnexthop add id 6 via 10.0.0.9 dev \
             r0\nnexthop add id 21 group 5/6\n\
             route add default nhid 21\n\
             route add 10.44.0.0/16 nexthop via 192.168.9.1 dev up0 nexthop via 10.0.0.9 dev r0");
        host.rdmaprep(&["restore", "--all"]).ok();
        assert!(
            sh("ip route show default").contains("nhid 21"),
            "the host has lost its default route"
        );
        assert!(sh("ip route show 10.44.0.0/16").contains("via 192.168.9.1 dev up0"));
        host.is_clean();
        host.ip("route delete 10.44.0.0/16\nroute delete default\nnexthop delete id 5");
        same("the normal form", &normal, &host.normal());
    });
}

/// The route to a rail's own subnet, deleted so that others lead there, is added neither inside nor
/// on the host.
#[test]
fn a_subnet_whose_route_was_deleted() {
    alone(|host| {
        let nics = host.rails(2);
        host.ip(
            "address add fd00::1/64 dev r0 nodad\naddress add 10.0.0.2/24 dev r0\naddress add \
            10.0.9.1/24 dev r0\n\
             route delete 10.0.0.0/24 dev r0",
        );
        sh("ip -6 route delete fd00::/64 dev r0");
        journey(host, &nics, |c| {
            let routes = c.sh("ip route show dev r0; ip -6 route show dev r0");
            assert!(
                routes.contains("10.0.9.0/24")
                    && !routes.contains("10.0.0.0/24")
                    && !routes.contains("fd00::/64"),
                "{routes}"
            );
        });
    });
}

#[test]
fn queueing_disciplines() {
    alone(|host| {
        for qdisc in [
            "root handle 5: pfifo limit 77",
            "root bfifo limit 7000",
            "root pfifo_head_drop limit 9",
            "root pfifo_fast",
            "root noqueue",
            "root handle 3: mq",
            "root handle 1: tbf rate 1mbit burst 32kb latency 400ms",
            "root tbf rate 40gbit burst 4mb limit 8mb peakrate 90gbit mtu 9000 mpu 64 overhead 24 \
            linklayer ethernet",
            "clsact",
            "ingress",
        ] {
            sh(
                "ip link add r0 numtxqueues 4 type veth peer name p0; ip link set p0 up; ip link \
                set r0 up",
            );
            sh(&format!(
                "ip address add 10.0.0.1/24 dev r0; tc qdisc replace dev r0 {qdisc}"
            ));
            journey(host, "r0", |c| {
                let inside = c.sh("tc qdisc show dev r0");
                assert_eq!(inside.trim(), "qdisc noqueue 0: root refcnt 2", "{qdisc}");
            });
            sh("ip link delete r0");
        }
        // Two at once, on a NIC that is down, and one of the container's own.
        sh(
            "ip link add r0 type veth peer name p0; ip link set p0 up; ip address add 10.0.0.1/24 \
            dev r0",
        );
        sh("tc qdisc replace dev r0 root handle 7: pfifo limit 5; tc qdisc replace dev r0 clsact");
        journey(host, "r0", |c| {
            drop(c.sh("tc qdisc replace dev r0 root handle 9: htb; tc qdisc add dev r0 clsact"))
        });
    });
}

#[test]
fn a_discipline_that_could_not_be_given_back_keeps_its_nic_here() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let filter = "protocol ip u32 match ip dst 10.0.0.0/8";
        for (set, why) in [
            (
                "tc qdisc add dev r0 root handle 1: htb",
                "its queueing discipline htb 1:",
            ),
            (
                "tc qdisc add dev r0 root handle 1: tbf rate 1mbit burst 32kb limit 9000; \
                 tc qdisc add dev r0 parent 1:1 handle 10: bfifo limit 9000",
                "its queueing discipline bfifo 10: below 1:1",
            ),
            (
                "tc qdisc add dev r0 root handle 1: stab mtu 2047 tsize 512 mpu 0 overhead 8 \
                linklayer ethernet \
                 tbf rate 1mbit burst 32kb limit 9000",
                "the size table of its queueing discipline tbf 1:",
            ),
            (
                "tc qdisc add dev r0 ingress_block 3 clsact",
                "the shared block of its queueing discipline clsact ffff:",
            ),
            (
                &format!("tc qdisc add dev r0 ingress; tc filter add dev r0 ingress {filter}"),
                "the filters of its queueing discipline ingress ffff:",
            ),
            (
                &format!("tc qdisc add dev r0 clsact; tc filter add dev r0 egress {filter}"),
                "the filters of its queueing discipline clsact ffff:",
            ),
        ] {
            sh(set);
            let before = printed();
            let sentence = format!("a move would take {why} from r0");
            // Where it was there already when the plan was made, and where it came later.
            host.rdmaprep(&["prepare", "--plan", "other", "--ifaces", "r0"])
                .fails(4, &[&sentence]);
            Container::new("refused")
                .create(host)
                .fails(3, &[&format!("{sentence}; delete it first")]);
            same("the host", &before, &printed());
            sh(
                "for at in root ingress clsact; do tc qdisc delete dev r0 $at 2>/dev/null || :; \
                done",
            );
            host.is_clean();
        }
    });
}

#[test]
fn addresses_and_neighbours() {
    alone(|host| {
        host.rails(1);
        host.ip("address add 10.0.0.2/24 brd + dev r0 label r0:second\n\
             address add 10.0.5.1/24 dev r0 noprefixroute metric 77\n\
             address add 10.0.6.1 peer 10.0.6.2/30 dev r0 scope link\n\
             address add 10.0.7.1/32 dev r0 scope host\n\
             address add fd00::1/64 dev r0 nodad metric 99\n\
             address add fd00::2/64 dev r0 nodad noprefixroute home\n\
             address add fd02::1 peer fd02::2/128 dev r0 nodad\n\
             address add fe80::77/64 dev r0 nodad scope link\n\
             neighbour add 10.0.0.50 lladdr 02:00:00:00:00:50 dev r0\n\
             neighbour add 10.0.0.51 lladdr 02:00:00:00:00:51 dev r0 protocol static nud noarp\n\
             neighbour add fd00::50 lladdr 02:00:00:00:00:52 dev r0 router\n\
             neighbour add fd00::51 lladdr 02:00:00:00:00:53 dev r0 nud noarp\n\
             neighbour add proxy 10.0.0.60 dev r0\n\
             neighbour add proxy fd00::60 dev r0 router protocol 42");
        // Without waiting for an answer: iproute2 then tells it as managed.
        sh("ip neighbour add 10.0.0.52 dev r0 managed 2>/dev/null || :");
        sh("ip token set ::5 dev r0");
        // What the kernel itself knows of multicast groups is no setting.
        sh("ip route add 239.1.1.1 dev r0; echo x > /dev/udp/239.1.1.1/9 2>/dev/null || :");
        sh(
            "ip link set r0 txqueuelen 77 alias 'the first' group 5 promisc on allmulticast on \
            mtu 2000",
        );
        sh("ip link property add dev r0 altname fabric0 altname fabric1");
        sh(
            "ip rule add iif r0 table 100 priority 1000; ip rule add from 10.0.0.1 table 100 \
            fwmark 1/3; \
            ip -6 rule add to fd00::1 lookup 100 suppress_prefixlength 0",
        );
        journey(host, "r0", |c| {
            let all = c.sh(
                "ip -d address show dev r0; ip neighbour; ip -6 neighbour show proxy; ip \
                    neighbour show nud noarp",
            );
            for words in [
                "r0:second",
                "peer 10.0.6.2/30",
                "noprefixroute",
                "home",
                "router",
                "10.0.0.51",
            ] {
                assert!(all.contains(words), "no {words} in {all}");
            }
        });
    });
}

/// The kernel leaves a group when its address is deleted, not when the link leaves, and joins none
/// twice by one index.
#[test]
fn multicast_addresses_are_joined_again() {
    alone(|host| {
        host.rails(1);
        host.ip(
            "address add 239.1.1.7/32 dev r0 autojoin\naddress add ff05::77/128 dev r0 autojoin",
        );
        let groups = || sh("ip maddr show dev r0 | grep -e 239.1.1.7 -e ff05::77 | sort");
        let before = groups();
        assert_eq!(before.lines().count(), 2, "{before}");
        journey(host, "r0", |c| {
            assert_eq!(
                c.sh("ip address show dev r0 | grep -c autojoin").trim(),
                "2"
            );
            same(
                "the groups inside",
                &before,
                &c.sh("ip maddr show dev r0 | grep -e 239.1.1.7 -e ff05::77 | sort"),
            );
        });
        same("the groups", &before, &groups());
        // By the same container: its namespace, too, has to leave the groups.
        let c = Container::new("again");
        for _ in 0..2 {
            c.create(host).ok();
            host.rdmaprep(&["restore", "--all"]).ok();
        }
        same("the groups after that container", &before, &groups());
    });
}

/// Neighbours as `ip` shows them, without what passes: how far the kernel is with asking for one,
/// and what it has heard.
fn neighbours() -> String {
    let mut all = Vec::new();
    for command in [
        "ip -4 -j neighbour",
        "ip -6 -j neighbour",
        "ip -4 -j neighbour show proxy",
        "ip -6 -j neighbour show proxy",
    ] {
        let out = sh(command);
        let listed: Value =
            serde_json::from_str(if out.trim().is_empty() { "[]" } else { &out }).unwrap();
        for mut one in listed.as_array().unwrap().clone() {
            let is_set = |key: &str| one.get(key).is_some();
            if !["managed", "extern_learn", "proxy"]
                .iter()
                .any(|k| is_set(k))
            {
                continue;
            }
            let lasting = one["state"] == serde_json::json!(["PERMANENT"])
                || one["state"] == serde_json::json!(["NOARP"]);
            let managed = is_set("managed");
            let fields = one.as_object_mut().unwrap();
            if !lasting {
                fields.remove("state");
            }
            if managed {
                fields.remove("lladdr");
            }
            all.push(one.to_string());
        }
    }
    all.sort();
    all.join("\n")
}

#[test]
fn neighbours_of_programs_return_with_their_flags() {
    alone(|host| {
        host.rails(1);
        host.ip("address add fd00::1/64 dev r0 nodad
            neighbour add 10.0.0.50 lladdr 02:00:00:00:00:50 dev r0 extern_learn
            neighbour add 10.0.0.51 lladdr 02:00:00:00:00:51 dev r0 extern_learn nud reachable
            neighbour add 10.0.0.52 dev r0 managed
            neighbour add 10.0.0.53 dev r0 managed extern_learn
            neighbour add 10.0.0.54 dev r0 use managed
            neighbour add 10.0.0.58 lladdr 02:00:00:00:00:58 dev r0 extern_learn nud noarp
            neighbour add 10.0.0.59 lladdr 02:00:00:00:00:59 dev r0 extern_learn nud stale \
            protocol zebra
            neighbour add proxy 10.0.0.60 dev r0 extern_learn
            neighbour add fd00::50 lladdr 02:00:00:00:00:5a dev r0 extern_learn router
            neighbour add fd00::51 lladdr 02:00:00:00:00:5b dev r0 extern_learn router nud stale");
        let before = neighbours();
        assert_eq!(before.lines().count(), 10, "{before}");
        host.prepare("r0");
        let normal = host.normal();
        for round in ["stop", "restore"] {
            let mut c = Container::new(round);
            c.create(host).ok();
            match round {
                "stop" => drop(c.stop(host).ok()),
                _ => drop(host.rdmaprep(&["restore", "--all"]).ok()),
            }
            same(&format!("neighbours after {round}"), &before, &neighbours());
            same(
                &format!("the normal form after {round}"),
                &normal,
                &host.normal(),
            );
            host.is_clean();
        }
    });
}

/// By whatever mode the kernel makes link-local addresses: after several stops they are those from
/// before the first.
#[test]
fn link_local_addresses_stay_the_same_after_many_stops() {
    alone(|host| {
        let secret = "echo 2001:db8:1:2:3:4:5:6 > stable_secret";
        for set in [
            "ip link set r0 down; echo 3 > addr_gen_mode; ip link set r0 up",
            "echo 3 > addr_gen_mode",
            &format!("ip link set r0 down; {secret}; ip link set r0 up"),
            &format!("ip link set r0 down; {secret}; echo 0 > addr_gen_mode; ip link set r0 up"),
            &format!("{secret}; echo 0 > addr_gen_mode; echo 2 > addr_gen_mode"),
            &format!("ip link set r0 down; {secret}; ip link set r0 up; echo 0 > addr_gen_mode"),
            secret,
            "ip link set r0 address 02:00:00:00:00:77",
            "ip link set r0 down; echo 1 > addr_gen_mode; ip link set r0 up; ip address add \
            fe80::5/64 dev r0 nodad",
        ] {
            host.rails(1);
            sh(&format!("cd /proc/sys/net/ipv6/conf/r0; {set}"));
            let all = || {
                sh(
                    "ip -6 -o address show dev r0 | awk '{print $4}' | sort; cat \
                    /proc/sys/net/ipv6/conf/r0/addr_gen_mode",
                )
            };
            // The kernel makes them when it has seen the carrier.
            until("there is a link-local address", || all().contains("fe80"));
            let before = all();
            host.prepare("r0");
            for round in 0..3 {
                let mut c = Container::new("c");
                c.create(host).ok();
                c.stop(host).ok();
                until("they are there again", || {
                    all().lines().count() >= before.lines().count()
                });
                same(
                    &format!("addresses of {set:?} after stop {round}"),
                    &before,
                    &all(),
                );
            }
            host.is_clean();
            host.ip("link delete r0");
        }
    });
}

/// The kernel lets a token stand that it would not take again: it could not be given back.
#[test]
fn a_token_that_could_not_be_given_back() {
    alone(|host| {
        host.rails(1);
        sh("ip token set ::77 dev r0; echo 0 > /proc/sys/net/ipv6/conf/r0/accept_ra");
        let before = host.look();
        host.prepare("r0");
        Container::new("c")
            .create(host)
            .fails(3, &["would not take the IPv6 token of r0 again"]);
        host.is_as(&before);
    });
}

/// Linux looks for a gateway by the rules: this one was not there when the route was added.
#[test]
fn a_rule_that_bars_a_gateway_keeps_its_nic_on_the_host() {
    alone(|host| {
        host.rails(1);
        host.ip("route add 10.77.0.0/16 via 10.0.0.9 dev r0\n\
             rule add to 10.0.0.9 prohibit priority 100");
        let before = host.look();
        host.prepare("r0");
        Container::new("c").create(host).fails(
            3,
            &["Linux would not take the route 10.77.0.0/16 via 10.0.0.9 dev r0"],
        );
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn route_with_a_dead_leg_keeps_its_nics_on_the_host() {
    alone(|host| {
        host.rails(2);
        host.ip(
            "address add fd00::1/64 dev r0 nodad\naddress add fd01::1/64 dev r1 nodad
            route add 172.22.0.0/16 nexthop via 10.0.0.9 dev r0 nexthop via 10.1.0.9 dev r1",
        );
        let attempt = |nics: &str, words: &[&str]| {
            let before = host.look();
            host.prepare(nics);
            Container::new("c").create(host).fails(3, words);
            host.is_as(&before);
            host.is_clean();
        };
        host.ip("link set r0 down");
        let words = [
            "a leg of the route 172.22.0.0/16 nexthop via",
            "is over r0, which is down",
            "ip link set r0 up",
        ];
        attempt("r0", &words);
        // Its other leg cannot leave, either: the route is made as a whole.
        attempt("r1", &words);
        host.ip(
            "link set r0 up\nroute del 172.22.0.0/16\naddress replace fd00::1/64 dev r0 nodad
            route append fd21::/32 via fd00::9 dev r0\nroute append fd21::/32 via fd01::9 dev r1",
        );
        sh("echo 1 > /proc/sys/net/ipv6/conf/r1/disable_ipv6");
        if sh("ip -6 route show fd21::/32").contains("dev r1") {
            attempt(
                "r0,r1",
                &[
                    "a leg of the route fd21::/32 via fd01::9 dev r1",
                    "is over r1, which is without IPv6",
                    "disable_ipv6=0",
                ],
            );
        }
    });
}

/// The kernel takes the one for the other (rule_exists() in net/core/fib_rules.c).
#[test]
fn rule_comes_back_beside_one_that_says_more() {
    alone(|host| {
        host.rails(1);
        let add = [
            "from 10.0.0.1 lookup 100 pref 60",
            "from 10.0.0.1 lookup main suppress_prefixlength 0 pref 50",
        ];
        add.iter()
            .for_each(|rule| host.ip(&format!("rule add {rule}")));
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        let more = [
            "from 10.0.0.1 to 10.9.0.0/16 lookup 100 pref 60",
            "from 10.0.0.1 tos 0x10 lookup 100 pref 60",
        ];
        more.iter()
            .for_each(|rule| host.ip(&format!("rule add {rule}")));
        c.stop(host).ok();
        let there = sh("ip rule");
        assert_eq!(there.lines().count(), 3 + add.len() + more.len(), "{there}");
        host.is_clean();
    });
}
