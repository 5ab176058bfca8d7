//! What the host has while its NICs are away.

use crate::alone;
use testkit::{Container, Host, sh};

/// Two rails, two links that stay, and a way out by the second.
fn host_with_routes(host: &Host, routes: &str) -> String {
    let nics = host.rails(2);
    for i in [8, 9] {
        host.ip(&format!(
            "link add up{i} type veth peer name q{i}\nlink set q{i} up\nlink set up{i} \
            up\naddress add 192.168.{i}.2/24 dev up{i}"
        ));
    }
    host.ip(&format!(
        "route add default via 192.168.9.1 dev up9\n{routes}"
    ));
    nics
}

fn way(to: &str) -> String {
    sh(&format!("ip route get {to} | head -1"))
}

const UP: &str = "nexthop via 192.168.8.9 dev up8";
const RAIL: &str = "nexthop via 10.0.0.9 dev r0";

/// Whichever leg is the first one, with equal routes before and behind.
#[test]
fn legs_that_stay_serve_while_a_nic_is_away() {
    alone(|host| {
        let other = "nexthop via 192.168.8.7 dev up8 weight 3";
        let nics = host_with_routes(
            host,
            &format!(
                "route add 10.90.0.0/16 {RAIL} weight 3 {UP} weight 2\nroute add 10.91.0.0/16 \
                {UP} {RAIL}\n\
                 route add 10.92.0.0/16 metric 5 proto static {RAIL} {UP} {other}\nroute add \
                 10.93.0.0/16 table 7 {RAIL} {UP}\n\
                 route add 10.94.0.0/16 {UP} {RAIL}\nroute append 10.94.0.0/16 via 192.168.9.7 \
                 dev up9\n\
                 route add 10.95.0.0/16 via 192.168.9.7 dev up9\nroute append 10.95.0.0/16 {UP} \
                 {RAIL}\n\
                 route add 10.96.0.0/16 via 10.0.0.9 dev r0\nroute append 10.96.0.0/16 {UP} \
                 {RAIL}\n\
                 route add 10.97.0.0/16 {UP} {RAIL} nexthop via 10.1.0.9 dev r1\n\
                 route add 10.98.0.0/16 proto bird {UP} {RAIL}\nroute add 10.99.0.0/16 src \
                 10.0.0.1 {UP} {RAIL}\n\
                 address add fd08::2/64 dev up8 nodad\naddress add fd00::1/64 dev r0 nodad\n\
                 route add fd90::/32 nexthop via fd00::9 dev r0 nexthop via fd08::9 dev up8"
            ),
        );
        let before = host.look();
        host.prepare(&nics);
        for round in ["stop", "restore"] {
            let mut c = Container::new(round);
            c.create(host).ok();
            for net in [
                "10.90.0.1",
                "10.91.0.1",
                "10.92.0.1",
                "10.94.0.1",
                "10.96.0.1",
                "10.97.0.1",
                "fd90::1",
            ] {
                assert!(way(net).contains("dev up8"), "{}", way(net));
            }
            assert!(sh("ip route show table 7").contains("10.93.0.0/16 via 192.168.8.9 dev up8"));
            assert_eq!(
                sh("ip route show 10.92.0.0/16").matches("nexthop").count(),
                2
            );
            assert!(
                way("10.95.0.1").contains("via 192.168.9.7 dev up9"),
                "the first one of its key: {}",
                way("10.95.0.1")
            );
            assert_eq!(
                sh("ip route show 10.98.0.0/16") + &sh("ip route show 10.99.0.0/16"),
                "",
                "of a daemon, or its source"
            );
            match round {
                "stop" => drop(c.stop(host).ok()),
                _ => drop(host.rdmaprep(&["restore", "--all"]).ok()),
            }
            // As the daemon does.
            host.ip(&format!("route add 10.98.0.0/16 proto bird {UP} {RAIL}"));
            host.is_as(&before);
            host.is_clean();
        }
    });
}

/// Each NIC in a container of its own, in every order of start and stop.
#[test]
fn legs_of_several_containers_come_back_one_by_one() {
    alone(|host| {
        host_with_routes(
            host,
            &format!("route add 10.90.0.0/16 {RAIL} nexthop via 10.1.0.9 dev r1 weight 4 {UP}"),
        );
        let before = host.look();
        let legs = || -> Vec<String> {
            let text = sh("ip route show 10.90.0.0/16");
            ["r0", "r1", "up8"]
                .iter()
                .filter(|dev| text.contains(*dev))
                .map(|dev| (*dev).to_owned())
                .collect()
        };
        let nics = ["r0", "r1"];
        for (first, then) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut containers = nics.map(Container::new);
            for at in [first, 1 - first] {
                host.prepare(nics[at]);
                containers[at].create(host).ok();
                assert!(way("10.90.0.1").contains("dev"), "{}", way("10.90.0.1"));
            }
            assert_eq!(legs(), ["up8"]);
            containers[then].stop(host).ok();
            assert!(
                legs().contains(&"up8".to_owned()) && legs().contains(&nics[then].to_owned()),
                "{:?}",
                legs()
            );
            containers[1 - then].stop(host).ok();
            host.is_as(&before);
            host.is_clean();
        }
    });
}

/// Its port lost the carrier meanwhile: duplicate address detection of its addresses does not
/// begin.
#[test]
fn ipv6_route_with_a_source_comes_back_without_a_carrier() {
    alone(|host| {
        host.rails(1);
        sh(
            "ip address add fd00::1/64 dev r0 nodad; ip -6 route add fd55::/32 via fd00::9 src \
            fd00::1
            ip address change fd00::1/64 dev r0",
        );
        let text = || {
            sh(
                "ip -6 route show fd55::/32; ip -6 -o address show dev r0 scope global | grep -o \
                'fd00.*nodad' || :",
            )
        };
        let before = text();
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        sh("ip link set p0 down");
        let begun = std::time::Instant::now();
        c.stop(host).ok();
        assert!(
            begun.elapsed() < std::time::Duration::from_secs(8),
            "{:?}",
            begun.elapsed()
        );
        assert_eq!(text().replace(" linkdown", ""), before);
        host.is_clean();
    });
}
