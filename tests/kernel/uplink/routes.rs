//! Routes and rules: which of them lead the host out.

use super::*;

#[test]
fn default_in_a_table_by_a_rule_for_all_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip route add default via 10.0.0.254 dev r0 table 100; ip rule add from all lookup 100");
        case.keeps(
            "9.9.9.9",
            "r0",
            "carries the default route 0.0.0.0/0 with metric 0 of table 100",
        );
    });
}

#[test]
fn default_in_a_table_by_the_nics_address_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh(
            "ip route add default via 10.0.0.254 dev r0 table 100; ip rule add from 10.0.0.1 \
            lookup 100",
        );
        let why =
            "leads out to the internet (9.9.9.9 from 10.0.0.1: via 10.0.0.254 dev r0, table 100)";
        case.keeps("9.9.9.9 from 10.0.0.1", "r0", why);
    });
}

#[test]
fn default_in_table_253_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip route add default via 10.0.0.254 dev r0 table 253");
        case.keeps(
            "9.9.9.9",
            "r0",
            "carries the default route 0.0.0.0/0 with metric 0 of table 253",
        );
    });
}

#[test]
fn default_beside_a_blackhole_in_main_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        // The rule is for one protocol and port, so that no table is used for all packets.
        sh(
            "ip route add blackhole default; ip route add default via 10.0.0.254 dev r0 table 100
            ip rule add ipproto tcp dport 443 lookup 100",
        );
        case.keeps(
            "9.9.9.9 ipproto tcp dport 443",
            "r0",
            "leads out to the internet (9.9.9.9 of protocol 6 to port 443",
        );
        sh("ip rule delete ipproto tcp dport 443 lookup 100");
        asking("used", "used").create(host).ok();
    });
}

#[test]
fn default_that_a_blackhole_beats_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh(
            "ip route add blackhole default metric 5; ip route add default via 10.0.0.254 dev r0 \
            metric 10",
        );
        assert!(
            get("9.9.9.9").contains("Invalid argument"),
            "{}",
            get("9.9.9.9")
        );
        case.refuses("carries the default route 0.0.0.0/0 with metric 10");
        sh(
            "ip route flush table main; ip route add 10.0.0.0/24 dev r0; ip route add blackhole \
            default
            ip route add default via 10.0.0.254 dev r0 table 253",
        );
        case.refuses("carries the default route 0.0.0.0/0 with metric 0 of table 253");
    });
}

#[test]
fn halves_and_quarters_of_the_internet_are_kept() {
    alone(|host| {
        let case = Case::new(host);
        for (to, route) in [
            ("9.9.9.9", "0.0.0.0/1"),
            ("149.112.112.112", "128.0.0.0/1"),
            ("75.75.75.75", "64.0.0.0/2"),
        ] {
            sh(&format!("ip route add {route} via 10.0.0.254"));
            case.keeps(
                to,
                "r0",
                &format!("leads out to the internet ({to}: via 10.0.0.254 dev r0, table main)"),
            );
            sh(&format!("ip route delete {route}"));
        }
    });
}

#[test]
fn what_ipv6_gives_out_is_kept() {
    alone(|host| {
        let case = Case::with(host, "ip address add fd00::1/64 dev r0 nodad", &[]);
        for (to, route) in [("2620:fe::fe", "2000::/3"), ("3ffe::1", "3000::/4")] {
            sh(&format!("ip route add {route} via fd00::fe"));
            case.keeps(
                to,
                "r0",
                &format!("leads out to the internet ({to}: via fd00::fe dev r0, table main)"),
            );
            sh(&format!("ip route delete {route}"));
        }
    });
}

#[test]
fn rule_that_overrides_main_is_heard() {
    alone(|host| {
        let case = Case::new(host);
        sh(
            "ip route add default via 10.2.0.254; ip route add default via 10.0.0.254 table 100
            ip rule add to 8.0.0.0/5 lookup 100",
        );
        let why = "leads out to the internet (9.9.9.9: via 10.0.0.254 dev r0, table 100)";
        case.keeps("9.9.9.9", "r0", why);
        // As wg-quick(8) does it.
        sh(
            "ip rule delete to 8.0.0.0/5; ip rule add not fwmark 77 lookup 100 priority 900
            ip rule add lookup main suppress_prefixlength 0 priority 800",
        );
        case.keeps("9.9.9.9", "r0", why);
    });
}

/// All that the host sends comes in by lo.
#[test]
fn rule_for_what_the_host_sends_is_for_all() {
    alone(|host| {
        let case = Case::new(host);
        sh(
            "ip route add default via 10.2.0.254; ip rule add iif lo lookup 100; ip route add \
            blackhole default table 100
            ip route add default via 10.0.0.254 table 100 metric 9",
        );
        assert!(
            get("9.9.9.9").contains("Invalid argument"),
            "{}",
            get("9.9.9.9")
        );
        case.refuses("carries the default route 0.0.0.0/0 with metric 9 of table 100");
        sh("ip route delete blackhole default table 100");
        case.keeps(
            "9.9.9.9",
            "r0",
            "carries the default route 0.0.0.0/0 with metric 9 of table 100",
        );
    });
}

#[test]
fn rule_for_a_protocol_without_a_lookup_is_not_asked_for() {
    alone(|host| {
        Case::new(host);
        sh("ip rule add ipproto sctp lookup 100; ip route add default via 10.0.0.254 table 100");
        let why = "a rule is for protocol 132, and the kernel looks up TCP, UDP and ICMP alone";
        let said = prepare(host, "again", "r1", &[]).ok();
        assert_eq!(said.err.matches(why).count(), 1, "{said:?}");
        asking("free", "free")
            .create(host)
            .fails(3, &["could not be asked", why, "--allow-bootstrap-iface"]);
    });
}

#[test]
fn default_of_a_route_for_a_type_of_service_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip route add default via 10.2.0.254; ip route add 0.0.0.0/1 tos 0x10 via 10.0.0.254");
        let why =
            "leads out to the internet (9.9.9.9 with TOS 0x10: via 10.0.0.254 dev r0, table main)";
        case.keeps("9.9.9.9 tos 0x10", "r0", why);
    });
}

/// One half of the internet by r0 where `host` sends by r2.
fn half(of: &str, table: &str) -> String {
    format!("ip route add 0.0.0.0/1 via 10.{of}.0.254 table {table}")
}

#[test]
fn packets_that_a_negated_rule_leaves_out_are_asked_for() {
    alone(|host| {
        let case = Case::new(host);
        sh(&format!(
            "{}; ip route add default via 10.2.0.254 table 100",
            half("0", "main")
        ));
        for (rule, packet) in [
            ("not fwmark 7", "mark 7"),
            ("not ipproto tcp", "ipproto tcp dport 443"),
        ] {
            sh(&format!("ip rule add {rule} lookup 100"));
            assert!(get("9.9.9.9").contains("dev r2 "));
            case.keeps(
                &format!("9.9.9.9 {packet}"),
                "r0",
                "leads out to the internet (9.9.9.9",
            );
            sh(&format!("ip rule delete {rule} lookup 100"));
        }
    });
}

#[test]
fn last_port_of_a_range_is_asked_for() {
    alone(|host| {
        let case = Case::new(host);
        sh(&format!(
            "{}; ip route add default via 10.2.0.254; ip rule add pref 10 ipproto tcp dport 443 \
            lookup main
             ip rule add pref 20 ipproto tcp dport 443-8443 lookup 100",
            half("0", "100")
        ));
        case.keeps(
            "9.9.9.9 ipproto tcp dport 8443",
            "r0",
            "leads out to the internet (9.9.9.9 of protocol 6 to port 8443",
        );
    });
}

#[test]
fn default_of_marked_packets_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh(
            "ip route add default via 10.2.0.254; ip route add default via 10.0.0.254 table 100
            ip rule add fwmark 7 lookup 100",
        );
        let why =
            "leads out to the internet (9.9.9.9 with mark 0x7: via 10.0.0.254 dev r0, table 100)";
        case.keeps("9.9.9.9 mark 7", "r0", why);
        sh("ip rule delete fwmark 7; ip rule add not fwmark 0/0x30 lookup 100");
        let why =
            "leads out to the internet (9.9.9.9 with mark 0x10: via 10.0.0.254 dev r0, table 100)";
        case.keeps("9.9.9.9 mark 0x10", "r0", why);
    });
}

/// ssh sets a type of service.
#[test]
fn default_of_a_type_of_service_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh(
            "ip route add default via 10.2.0.254; ip route add default via 10.0.0.254 table 100
            ip rule add tos 0x10 lookup 100",
        );
        let why =
            "leads out to the internet (9.9.9.9 with TOS 0x10: via 10.0.0.254 dev r0, table 100)";
        case.keeps("9.9.9.9 tos 0x10", "r0", why);
    });
}

#[test]
fn default_of_one_user_is_kept() {
    // Root of a user namespace knows no other user.
    alone_as_root(|host| {
        let case = Case::new(host);
        sh(
            "ip route add default via 10.2.0.254; ip route add default via 10.0.0.254 table 100
            ip rule add uidrange 1000-1007 lookup 100",
        );
        let why = |user: &str| {
            format!(
                "leads out to the internet (9.9.9.9 of user {user}: via 10.0.0.254 dev r0, table \
                100)"
            )
        };
        case.keeps("9.9.9.9 uid 1000", "r0", &why("1000"));
        sh("ip rule delete uidrange 1000-1007; ip rule add not uidrange 0-99 lookup 100");
        case.keeps("9.9.9.9 uid 100", "r0", &why("100"));
    });
}

#[test]
fn second_default_counts_when_the_first_has_no_carrier() {
    alone(|host| {
        let case = Case::new(host);
        sh(
            "ip route add default via 10.2.0.254 metric 10; ip route add default via 10.0.0.254 \
            metric 20
            echo 1 > /proc/sys/net/ipv4/conf/all/ignore_routes_with_linkdown; ip link set p2 down",
        );
        until("the carrier has gone", || {
            get("9.9.9.9").contains("dev r0 ")
        });
        case.keeps(
            "9.9.9.9",
            "r0",
            "leads out to the internet (9.9.9.9: via 10.0.0.254 dev r0, table main)",
        );
    });
}

#[test]
fn routers_of_one_preference_are_kept() {
    alone(|host| {
        let ends = "ip address add fd00::1/64 dev r0 nodad; ip address add fd02::1/64 dev r2 nodad";
        let case = Case::with(host, ends, &[]);
        // One without a gateway is no leg of the other's route, as those that come by
        // advertisements.
        sh(
            "ip -6 route add 2000::/3 dev r0 proto ra metric 1024; ip -6 route append 2000::/3 \
            via fd02::fe proto ra metric 1024",
        );
        let by = |dev: &str| {
            (1..64).find(|i| get(&format!("2620:fe::{i:x}")).contains(&format!("dev {dev} ")))
        };
        assert!(by("r0").is_some() || by("r2").is_some());
        case.refuses("leads out to the internet (2620:fe::fe: ");
        prepare(host, "again", "r2", &[])
            .fails(4, &["r2 leads out to the internet (2620:fe::fe: "]);
    });
}

#[test]
fn each_leg_of_a_multipath_route_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        let leg = |i: usize| format!("nexthop via 10.{i}.0.254");
        sh(&format!("ip route add 0.0.0.0/1 {} {}", leg(0), leg(2)));
        let why = "leads out to the internet (9.9.9.9: via 10.0.0.254 dev r0, table main)";
        let by_r0 = (1..64)
            .map(|i| format!("9.9.9.{i}"))
            .find(|to| get(to).contains("dev r0 "))
            .unwrap();
        case.keeps(&by_r0, "r0", why);
        prepare(host, "again", "r2", &[]).fails(
            4,
            &["r2 leads out to the internet (9.9.9.9: via 10.2.0.254 dev r2"],
        );
        // Its other hop is down: r0 has the only route, and no packet leaves by r2.
        sh("ip link set r2 down");
        case.keeps("9.9.9.9", "r0", why);
        prepare(host, "again", "r2", &[]).ok();
    });
}

#[test]
fn nexthop_objects_and_groups_are_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh(
            "ip nexthop add id 1 via 10.0.0.254 dev r0; ip nexthop add id 2 via 10.2.0.254 dev r2
            ip nexthop add id 3 group 1/2",
        );
        let why = "leads out to the internet (9.9.9.9: via 10.0.0.254 dev r0, table main)";
        for compat in [1, 0] {
            sh(&format!(
                "echo {compat} > /proc/sys/net/ipv4/nexthop_compat_mode"
            ));
            sh("ip route replace 0.0.0.0/1 nhid 1");
            case.keeps("9.9.9.9", "r0", why);
            sh("ip route replace 0.0.0.0/1 nhid 3");
            let by_r0 = (1..64)
                .map(|i| format!("9.9.9.{i}"))
                .find(|to| get(to).contains("dev r0 "))
                .unwrap();
            case.keeps(&by_r0, "r0", why);
            prepare(host, "again", "r2", &[])
                .fails(4, &["r2 leads out to the internet (9.9.9.9: "]);
        }
    });
}

#[test]
fn ipv4_route_by_an_ipv6_gateway_is_kept() {
    alone(|host| {
        let case = Case::with(host, "ip address add fd00::1/64 dev r0 nodad", &[]);
        sh("ip route add 128.0.0.0/1 via inet6 fd00::fe dev r0");
        let why = "leads out to the internet (149.112.112.112: via fd00::fe dev r0, table main)";
        case.keeps("149.112.112.112", "r0", why);
    });
}

#[test]
fn default_that_no_packet_comes_to_guards_nothing() {
    alone(|host| {
        let case = Case::new(host);
        sh(
            "ip route add default via 10.2.0.254; ip route add default via 10.0.0.254 table 100
            ip rule add lookup 100 priority 40000",
        );
        prepare(host, "again", "r0", &[]).ok();
        let mut used = asking("used", "used");
        used.create(host).ok();
        used.stop(host).ok();
        // Without one before it, it serves.
        sh("ip route delete default; ip rule add lookup main suppress_prefixlength 0 priority 30");
        case.keeps(
            "9.9.9.9",
            "r0",
            "carries the default route 0.0.0.0/0 with metric 0 of table 100",
        );
        sh("ip route add default via 10.2.0.254; ip rule delete lookup main priority 32766");
        case.keeps(
            "9.9.9.9",
            "r0",
            "carries the default route 0.0.0.0/0 with metric 0 of table 100",
        );
    });
}

#[test]
fn default_without_a_rule_that_leads_to_it_guards_nothing() {
    alone(|host| {
        let case = Case::new(host);
        // Without a rule for main the kernel finds no router by itself: the routes name its link.
        sh(
            "ip route add default via 10.0.0.254 dev r0 onlink; ip route add default via \
            10.0.0.254 dev r0 onlink table 253
            ip route add default via 10.2.0.254 table 100; ip rule add lookup 100 priority 40000",
        );
        case.refuses("carries the default route 0.0.0.0/0 with metric 0");
        sh("ip rule delete lookup main; ip rule delete lookup default");
        let way = get("9.9.9.9");
        assert!(way.contains("dev r2 table 100 "), "{way}");
        prepare(host, "again", "r0", &[]).ok();
        let mut used = asking("used", "used");
        used.create(host).ok();
        used.stop(host).ok();
        prepare(host, "again", "r2", &[]).fails(4, &["r2 carries the default route"]);
    });
}

#[test]
fn rule_that_jumps_is_followed() {
    alone(|host| {
        let case = Case::new(host);
        sh(
            "ip route add default via 10.0.0.254 table 100; ip rule add lookup 100 priority 150
            ip route add default via 10.2.0.254; ip rule add goto 32766 priority 100",
        );
        assert!(get("9.9.9.9").contains("dev r2 "));
        prepare(host, "again", "r0", &[]).ok();
        let mut used = asking("used", "used");
        used.create(host).ok();
        used.stop(host).ok();
        // To where no rule is: it is passed over. As is one that is for some packets alone, by the
        // others.
        for jump in ["goto 200", "to 10.66.0.0/16 goto 32766"] {
            sh(&format!(
                "ip rule delete priority 100; ip rule add {jump} priority 100"
            ));
            case.keeps(
                "9.9.9.9",
                "r0",
                "carries the default route 0.0.0.0/0 with metric 0 of table 100",
            );
        }
        // What it jumps over hides nothing behind it.
        sh(
            "ip rule delete priority 100; ip rule add goto 32766 priority 100
            ip route replace default via 10.2.0.254 table 100; ip route delete default
            ip route add blackhole default metric 5; ip route add default via 10.0.0.254 metric 10",
        );
        case.refuses("carries the default route 0.0.0.0/0 with metric 10");
    });
}

#[test]
fn advertised_default_is_kept_and_can_be_insisted_on() {
    alone(|host| {
        let ends = "ip route add default via 10.2.0.254; ip address add fd00::1/64 dev r0 nodad";
        let case = Case::with(host, ends, &[]);
        sh("ip -6 route add default via fd00::fe dev r0 proto ra metric 1024");
        let why =
            "carries the default route ::/0 with metric 1024, which the router fd00::fe advertises";
        case.keeps("2620:fe::fe", "r0", why);
        prepare(host, "insisting", "r0", &["--allow-bootstrap-iface"]).ok();
        let mut insisting = asking("insisting", "insisting");
        insisting.create(host).ok();
        insisting.stop(host).ok();
        assert!(get("2620:fe::fe").contains("dev r0 "));
    });
}
