//! What a NIC is in a container, and nothing beside it: whatever the namespace's defaults are.

use crate::{alone, netstate};
use testkit::{Container, Host, Said, sh, until};

const ROUNDS: usize = 20;

#[test]
fn ipv6_that_is_off_on_the_host_is_off_inside() {
    alone(|host| {
        host.rails(1);
        sh("echo 1 > /proc/sys/net/ipv6/conf/r0/disable_ipv6");
        let before = host.look();
        host.prepare("r0");
        for round in 0..ROUNDS {
            let mut c = Container::new("c");
            c.create(host).ok();
            let seen =
                c.sh("cat /proc/sys/net/ipv6/conf/r0/disable_ipv6; ip -6 -o address show dev r0");
            assert_eq!(seen, "1\n", "round {round}");
            c.stop(host).ok();
            host.is_as(&before);
        }
    });
}

/// Of two NICs the host hears routers on one: so it is inside, whatever a new NIC has there.
#[test]
fn router_is_heard_inside_where_the_host_hears_it() {
    alone(|host| {
        let nics = host.rails(3);
        std::fs::write("/run/advertise.py", netstate::ADVERTISES).unwrap();
        sh(
            "cd /proc/sys/net/ipv6/conf; echo 0 | tee r0/accept_ra p[012]/accept_ra; echo 1 > \
            r2/forwarding; echo 7 > r1/router_solicitations",
        );
        until("the routers' addresses", || {
            sh("ip -6 address show tentative scope link").is_empty()
        });
        let before = host.look();
        host.prepare(&nics);
        for round in 0..ROUNDS {
            let mut c = Container::new("c");
            let default = if round % 2 == 0 { 0 } else { 1 };
            c.sh(&format!(
                "echo {default} > /proc/sys/net/ipv6/conf/default/accept_ra"
            ));
            c.create(host).ok();
            let values = c.sh("cd /proc/sys/net/ipv6/conf; cat r[012]/accept_ra \
                r1/router_solicitations r1/autoconf");
            assert_eq!(values, "0\n1\n0\n7\n1\n", "round {round}");
            let learned = |nic: &str| {
                c.sh(&format!(
                    "ip -6 -o address show dev {nic}; ip -6 route show dev {nic}; ip -6 \
                    route show default"
                ))
            };
            until("the address by the router", || {
                sh("PREFIX=2001:db8:5:: python3 /run/advertise.py 1800 p0 p1 p2");
                learned("r1").contains("2001:db8:5:")
            });
            for nic in ["r0", "r2"] {
                let found = learned(nic);
                assert!(
                    !found.contains("2001:db8:5:")
                        && !found.contains(&format!("dev {nic} proto ra")),
                    "{found}"
                );
            }
            c.stop(host).ok();
            host.is_as(&before);
        }
    });
}

/// The kernel makes them by the link-layer address, by a secret, or not at all.
#[test]
fn link_local_addresses_inside_are_the_hosts() {
    alone(|host| {
        let secret = "echo 2001:db8:1:2:3:4:5:6 > stable_secret";
        for (set, mode) in [
            ("true", "0"),
            (secret, "1"),
            (
                "ip link set r0 down; echo 3 > addr_gen_mode; ip link set r0 up",
                "1",
            ),
            (
                "ip link set r0 down; echo 1 > addr_gen_mode; ip link set r0 up",
                "1",
            ),
            (
                "ip link set r0 down; echo 1 > addr_gen_mode; ip link set r0 up; ip address add \
                fe80::5/64 dev r0 nodad",
                "1",
            ),
        ] {
            host.rails(1);
            sh(&format!("cd /proc/sys/net/ipv6/conf/r0; {set}"));
            let addresses = "ip -6 -o address show dev r0 | awk '{print $4}' | sort";
            let ends = |shell: &dyn Fn(&str) -> String| {
                let none = set.ends_with("ip link set r0 up") && set.contains("echo 1");
                until("the kernel's address", || {
                    none || shell(addresses).contains("fe80")
                });
                shell(addresses)
            };
            let before = ends(&sh);
            host.prepare("r0");
            for default in ["0", "1", "3"] {
                let mut c = Container::new("c");
                c.sh(&format!(
                    "echo {default} > /proc/sys/net/ipv6/conf/default/addr_gen_mode"
                ));
                c.create(host).ok();
                assert_eq!(
                    ends(&|line| c.sh(line)),
                    before,
                    "{set:?} where the default is {default}"
                );
                assert_eq!(
                    c.sh("cat /proc/sys/net/ipv6/conf/r0/addr_gen_mode").trim(),
                    mode
                );
                c.stop(host).ok();
                assert_eq!(ends(&sh), before, "{set:?} after the stop");
            }
            host.is_clean();
            host.ip("link delete r0");
        }
    });
}

/// Stores a plan with these NICs, although the host may use them itself.
fn insist(host: &Host, nics: &str) -> Said {
    host.rdmaprep(&["prepare", "--ifaces", nics, "--allow-bootstrap-iface"])
        .ok()
}

/// As netplan has it: a table for each rail, and a rule of the whole subnet, whose place the kernel
/// chooses.
#[test]
fn rule_of_a_whole_subnet_comes_along_with_its_table() {
    alone(|host| {
        let nics = host.rails(2);
        host.ip("address add fd00::1/64 dev r0 nodad");
        sh(
            "for i in 0 1; do ip route add default via 10.$i.0.9 dev r$i table 10$i; ip rule add \
            from 10.$i.0.0/24 table 10$i; done
            ip -6 route add default via fd00::9 dev r0 table 100; ip -6 rule add from fd00::/64 \
            table 100 pref 7
            ip rule add tos 0x10 table 102; ip route add 172.16.0.0/12 via 10.0.0.9 dev r0 table 102
            ip rule add to 192.0.2.0/24 table 103
            ip route add default via 10.1.0.9 dev r1 table 103
            ip rule add from 10.7.0.0/16 table 100 pref 9",
        );
        let before = host.look();
        let rules = |line: &str| -> Vec<String> { line.lines().map(str::to_owned).collect() };
        let of_host = rules(&sh("ip -4 rule; ip -6 rule"));
        let said = insist(host, &nics);
        assert!(!said.err.contains("the rule"), "{}", said.err);
        for round in ["stop", "restore"] {
            let mut c = Container::new(round);
            c.create(host).ok();
            let there = rules(&c.sh("ip -4 rule; ip -6 rule"));
            let foreign: Vec<&String> = there
                .iter()
                .filter(|rule| !of_host.contains(rule))
                .collect();
            assert!(
                foreign.is_empty() && there.len() == of_host.len() - 1,
                "{there:#?}"
            );
            let way = |to: &str| c.sh(&format!("ip route get {to}"));
            assert!(way("198.51.100.1 from 10.0.0.1").contains("via 10.0.0.9 dev r0"));
            assert!(way("198.51.100.1 from 10.1.0.1").contains("via 10.1.0.9 dev r1"));
            assert!(way("2001:db8::1 from fd00::1").contains("via fd00::9 dev r0"));
            assert!(way("172.16.0.1 tos 0x10").contains("via 10.0.0.9 dev r0"));
            assert!(way("192.0.2.7").contains("via 10.1.0.9 dev r1"));
            assert_eq!(
                rules(&sh("ip -4 rule; ip -6 rule")),
                of_host,
                "while they are away"
            );
            match round {
                "stop" => drop(c.stop(host).ok()),
                _ => {
                    // The namespace lives on.
                    host.rdmaprep(&["restore", &c.id]).ok();
                    assert_eq!(c.sh("ip -4 rule; ip -6 rule").lines().count(), 5);
                }
            }
            host.is_as(&before);
            host.is_clean();
        }
    });
}

#[test]
fn rule_that_would_take_other_traffic_inside_stays_and_is_named() {
    alone(|host| {
        host.rails(2);
        sh(
            "ip route add default via 10.0.0.9 dev r0 table 200; ip rule add fwmark 0x1100 table \
            200 pref 80
            ip rule add uidrange 0-0 table 200 pref 81; ip rule add iif r1 table 200 pref 82
            ip rule add table 200 pref 83; ip rule add not from 10.1.0.0/24 table 200 pref 84
            ip rule add from 10.0.0.0/8 table 200 pref 85; ip rule add to 10.0.0.0/8 table 200 \
            pref 86",
        );
        let before = host.look();
        let said = insist(host, "r0")
            .err
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        for rule in [
            "from all fwmark 0x1100 lookup 200 pref 80",
            "from all uidrange 0-0 lookup 200 pref 81",
            "from all iif r1 lookup 200 pref 82",
            "from all lookup 200 pref 83",
            "not from 10.1.0.0/24 lookup 200 pref 84",
        ] {
            assert!(
                said.contains(&format!("the rule `{rule}` stays on the host: ")),
                "{rule}: {said}"
            );
        }
        let mut c = Container::new("c");
        c.sh(
            "ip link add eth0 type veth peer name e0; ip link set eth0 up; ip address add \
            10.88.0.5/16 dev eth0",
        );
        c.create(host).ok();
        let notes = host.report("c")["notes"].to_string();
        for words in [
            "from 10.0.0.0/8 lookup 200 pref 85` stays on the host: it would take what is sent \
            from 10.88.0.5 as well",
            "from all to 10.0.0.0/8 lookup 200 pref 86` stays on the host: it would take what is \
            sent to 10.88.0.0/16 as well",
        ] {
            assert!(notes.contains(words), "{words}: {notes}");
        }
        assert_eq!(c.sh("ip rule").lines().count(), 3, "{}", c.sh("ip rule"));
        c.stop(host).ok();
        host.is_as(&before);
    });
}

/// What a container has beside the rails is nearer than what a rule of the host leads to.
#[test]
fn rule_that_would_take_the_containers_own_subnet_stays() {
    alone(|host| {
        host.rails(1);
        let stay = [
            ("to 10.88.5.0/24 lookup 100 pref 90", "10.88.0.0/16"),
            ("to 169.254.1.0/24 lookup 100 pref 91", "169.254.1.1/32"),
            ("lookup 101 pref 92", "10.88.0.0/16"),
            ("lookup 102 pref 93", "10.88.0.0/16"),
            ("lookup 103 pref 94", "169.254.1.1/32"),
        ];
        let come = [
            "lookup 104 suppress_prefixlength 16 pref 95",
            "to 10.77.0.0/16 lookup 100 pref 96",
        ];
        let routes = [
            ("10.88.0.0/16", 100),
            ("10.88.7.0/24", 101),
            ("0.0.0.0/1", 102),
            ("128.0.0.0/1", 102),
            ("169.254.0.0/16", 103),
            ("10.88.0.0/16", 104),
        ];
        for (to, table) in routes {
            host.ip(&format!("route add {to} via 10.0.0.9 dev r0 table {table}"));
        }
        for rule in stay.iter().map(|(rule, _)| rule).chain(&come) {
            host.ip(&format!("rule add {rule}"));
        }
        let before = host.look();
        insist(host, "r0");
        let mut c = Container::new("c");
        c.sh(
            "ip link add eth0 type veth peer name e0; ip link set eth0 up; ip link set e0 up; ip \
            address add 10.88.0.2/16 dev eth0; ip route add 169.254.1.1 dev eth0; ip route add \
            default via 169.254.1.1 dev eth0",
        );
        c.create(host).ok();
        let notes = host.report("c")["notes"].to_string();
        for (rule, net) in stay {
            let said = format!(
                "from all {rule}` stays on the host: it would take what is sent to {net} as well"
            );
            assert!(notes.contains(&said), "{said}: {notes}");
        }
        let there = c.sh("ip rule");
        assert_eq!(there.lines().count(), 3 + come.len(), "{there}");
        for to in ["10.88.7.7", "169.254.1.1", "198.51.100.1"] {
            let way = c.sh(&format!("ip route get {to}"));
            assert!(way.contains("dev eth0"), "{way}");
        }
        c.stop(host).ok();
        host.is_as(&before);
    });
}

/// These decide before the rails' own rules, or end the search.
#[test]
fn rules_to_main_and_rules_that_forbid_come_along() {
    alone(|host| {
        host.rails(2);
        sh(
            "ip route add default via 10.0.0.9 dev r0 table 100; ip rule add from 10.0.0.1 table \
            100 pref 60
            ip route add default via 10.1.0.9 dev r1 table 101; ip rule add from 10.1.0.1 table \
            101 pref 61
            ip route add 10.50.0.0/16 via 10.1.0.9 dev r1; ip route add 10.51.0.0/16 via 10.1.0.9 \
            dev r1
            ip rule add lookup main suppress_prefixlength 16 pref 50
            ip rule add from 10.0.0.0/15 to 10.51.0.0/16 lookup main pref 51
            ip rule add from 10.0.0.0/24 to 10.67.0.0/16 prohibit pref 41",
        );
        let silent = [
            "to 192.0.2.5 lookup main pref 47",
            "fwmark 0x5 lookup main pref 48",
            "lookup main pref 62",
            "nop pref 46",
        ];
        let named = [
            "from all goto 60 pref 45",
            "from all unreachable pref 70",
            "from 10.0.0.1 goto 62 pref 44",
        ];
        for rule in silent.iter().chain(&named) {
            host.ip(&format!("rule add {rule}"));
        }
        let before = host.look();
        let said = insist(host, "r0,r1").err;
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        for rule in named {
            assert!(
                said.contains(&format!("the rule `{rule}` ")),
                "{rule}: {said}"
            );
        }
        for rule in silent {
            assert!(!said.contains(&format!("{rule}`")), "{rule}: {said}");
        }
        let mut c = Container::new("c");
        c.create(host).ok();
        let there = c.sh("ip rule");
        assert_eq!(there.lines().count(), 3 + 6, "{there}");
        let way = |to: &str| c.sh(&format!("ip route get {to} 2>&1 || true"));
        for (to, by) in [
            ("10.50.0.1 from 10.0.0.1", "via 10.0.0.9 dev r0"),
            ("10.51.0.1 from 10.0.0.1", "via 10.1.0.9 dev r1"),
            ("10.1.0.7 from 10.0.0.1", "dev r1"),
            ("10.67.0.1 from 10.0.0.1", "Permission denied"),
            ("10.67.0.1 from 10.1.0.1", "via 10.1.0.9 dev r1"),
        ] {
            assert!(way(to).contains(by), "{to}: {}", way(to));
        }
        c.stop(host).ok();
        host.is_as(&before);
    });
}

/// The table main names one rail for all of a subnet, and that rule asks it first.
#[test]
fn rails_of_a_subnet_are_loose_behind_a_rule_to_main() {
    alone(|host| {
        host.rails(2);
        sh("ip address flush dev r0; ip address flush dev r1
            ip address add 10.0.0.1/24 dev r0; ip address add 10.0.0.2/24 dev r1
            ip rule add lookup main suppress_prefixlength 0 pref 50");
        for rail in 0..2 {
            host.ip(&format!(
                "route add default via 10.0.0.9 dev r{rail} table 10{rail}\nrule add from \
                10.0.0.{} table 10{rail} pref 6{rail}",
                rail + 1
            ));
        }
        let before = host.look();
        let said = insist(host, "r0,r1");
        assert!(
            said.err.contains("a rule to main comes first")
                || said.out.contains("a rule to main comes first"),
            "{said:?}"
        );
        let mut c = Container::new("c");
        c.create(host).ok();
        for rail in ["r0", "r1"] {
            let filter =
                format!("sysctl -n net.ipv4.conf.{rail}.arp_filter net.ipv4.conf.{rail}.rp_filter");
            assert_eq!(c.sh(&filter), "0\n2\n");
        }
        assert_eq!(c.sh("ip rule").lines().count(), 3 + 3);
        c.stop(host).ok();
        host.is_as(&before);
    });
}

#[test]
fn rule_to_main_stays_where_the_container_has_a_rule_behind_it() {
    alone(|host| {
        host.rails(1);
        sh(
            "ip route add default via 10.0.0.9 dev r0 table 100; ip rule add from 10.0.0.1 table \
            100 pref 60; ip rule add lookup main suppress_prefixlength 0 pref 50",
        );
        let before = host.look();
        insist(host, "r0");
        let mut c = Container::new("c");
        c.sh("ip rule add from 10.88.0.2 lookup 7 pref 300");
        c.create(host).ok();
        let notes = host.report("c")["notes"].to_string();
        let said = "suppress_prefixlength 0 pref 50` stays on the host: it would come before the \
                    container's own `from 10.88.0.2 lookup 7 pref 300`";
        assert!(notes.contains(said), "{notes}");
        c.stop(host).ok();
        host.is_as(&before);
    });
}

/// Without the legs that stay on the host, one is the other.
#[test]
fn routes_that_are_equal_inside_are_one_there() {
    alone(|host| {
        host.rails(2);
        sh("ip route add 10.96.0.0/16 via 10.0.0.9 dev r0
            ip route append 10.96.0.0/16 nexthop via 10.1.0.9 dev r1 nexthop via 10.0.0.9 dev r0");
        let before = host.look();
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        assert_eq!(
            c.sh("ip route show 10.96.0.0/16").trim(),
            "10.96.0.0/16 via 10.0.0.9 dev r0"
        );
        c.stop(host).ok();
        host.is_as(&before);
    });
}
