//! Routes whose legs are over NICs of several containers, while restores are killed or wait.

use std::fs;

use crate::alone;
use crate::managed::{
    index, index_of, says, state_file, stop_beside, stop_beside_work, tell_owner_in,
};
use testkit::{Container, Host, sh};

const SHARED: &str = "10.50.0.0/16";

/// The links of all routes to that destination.
fn legs() -> Vec<String> {
    let text = sh(&format!("ip route show {SHARED}"));
    let words: Vec<&str> = text.split_whitespace().collect();
    let devs = words.windows(2).filter(|pair| pair[0] == "dev");
    devs.map(|pair| pair[1].to_owned()).collect()
}

/// Two NICs and an uplink, each with a leg of one route.
fn route_over_two_rails_and_the_uplink(host: &Host) {
    host.rails(2);
    host.ip(&format!(
        "link add up0 type veth peer name q0\nlink set q0 up\nlink set up0 up
address add 192.168.9.1/24 dev up0
route add {SHARED} nexthop via 10.0.0.9 dev r0 nexthop via 10.1.0.9 dev r1 nexthop via \
192.168.9.9 dev up0"
    ));
}

fn taken(host: &Host, nic: &str) -> Container {
    host.prepare(nic);
    let c = Container::new(nic);
    c.create(host).ok();
    c
}

/// The part that it has brought is not the whole any more when the other NIC is back.
#[test]
fn a_part_by_a_killed_stop_goes_when_the_whole_is_back() {
    alone(|host| {
        route_over_two_rails_and_the_uplink(host);
        let before = host.look();
        for point in (1..60).step_by(2) {
            let first = taken(host, "r0");
            let mut second = taken(host, "r1");
            let mut stop = host.command(&["hook", "poststop"]);
            stop.env("RDMAPREP_FAULT", format!("{point}:kill"));
            testkit::run(&mut stop, &first.stopped());
            second.stop(host).ok();
            host.rdmaprep(&["restore", "--all"]).ok();
            host.is_clean();
            host.is_as(&before);
        }
    });
}

/// What the first look judged stays so.
#[test]
fn a_deleted_group_stays_deleted_after_a_refusal() {
    alone(|host| {
        host.rails(2);
        host.ip("nexthop add id 1 via 10.0.0.9 dev r0
nexthop add id 2 via 10.1.0.9 dev r1
nexthop add id 10 group 1/2
route add 10.95.0.0/16 nhid 10
address add fd00::1/64 dev r0 nodad
route add fd13::/48 via fd00::9 dev r0");
        let mut c = taken(host, "r0");
        host.ip("nexthop delete id 10\naddress add fd00::9/128 dev r1 nodad");
        c.stop(host).fails(8, &["fd13::/48"]);
        host.ip("address delete fd00::9/128 dev r1");
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_clean();
        let groups = sh("ip nexthop");
        assert!(!groups.contains("id 10 "), "{groups}");
        assert_eq!(sh("ip route show 10.95.0.0/16"), "");
        assert_ne!(sh("ip -6 route show fd13::/48"), "");
    });
}

/// A switch restarts and both jobs end: without a carrier Linux refuses a nexthop object, and each
/// stop puts a part of its own.
#[test]
fn parts_of_two_stops_without_a_carrier_go_with_the_whole() {
    alone(|host| {
        route_over_two_rails_and_the_uplink(host);
        host.ip("nexthop add id 60 via 10.0.0.9 dev r0\nnexthop add id 61 via 10.1.0.9 dev r1");
        let before = host.look();
        let mut first = taken(host, "r0");
        let mut second = taken(host, "r1");
        host.ip("link set p0 down\nlink set p1 down");
        second.stop(host).fails(8, &["61"]);
        first.stop(host).fails(8, &["60"]);
        host.ip("link set p0 up\nlink set p1 up");
        host.rdmaprep(&["restore", "r0"]).ok();
        host.rdmaprep(&["restore", "r1"]).ok();
        host.is_clean();
        host.is_as(&before);
    });
}

/// The second one has taken what the host had of the route while the first one waited.
#[test]
fn a_nic_that_waited_hands_over_its_leg() {
    alone(|host| {
        route_over_two_rails_and_the_uplink(host);
        says("1", "unmanaged");
        says(&index(), "configured");
        let was = index();
        let mut first = taken(host, "r0");
        fs::remove_file(state_file(&was)).unwrap();
        stop_beside(host, &mut first, "configuring");
        assert_eq!(legs(), ["r1", "up0"]);
        let mut second = taken(host, "r1");
        host.ip("address add 10.0.0.1/24 dev r0");
        says(&index(), "configured");
        host.rdmaprep(&["restore", "--all", "--stale"]).ok();
        second.stop(host).ok();
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_clean();
        assert_eq!(legs(), ["r0", "r1", "up0"]);
    });
}

/// Of equal routes Linux goes by the first: what stands in for the others may not come before.
#[test]
fn rails_that_come_and_go_in_turn_keep_each_leg() {
    alone(|host| {
        host.rails(4);
        host.ip(&format!(
            "route add {SHARED} nexthop via 10.0.0.9 dev r0 nexthop via 10.1.0.9 dev r1 nexthop \
            via 10.2.0.9 dev r2 nexthop via 10.3.0.9 dev r3"
        ));
        let before = host.look();
        let mut first = taken(host, "r0");
        let mut second = taken(host, "r1");
        first.stop(host).ok();
        assert_eq!(legs(), ["r0", "r2", "r3"]);
        let mut third = taken(host, "r2");
        assert_eq!(legs(), ["r0", "r3"]);
        second.stop(host).ok();
        assert_eq!(legs(), ["r0", "r1", "r3"]);
        third.stop(host).ok();
        host.is_clean();
        host.is_as(&before);
    });
}

/// What the third one has of the route is the second one's stand-in.
#[test]
fn rails_that_return_out_of_turn_keep_each_leg() {
    alone(|host| {
        host.rails(4);
        host.ip(&format!(
            "route add {SHARED} nexthop via 10.0.0.9 dev r0 nexthop via 10.1.0.9 dev r1 nexthop \
            via 10.2.0.9 dev r2 nexthop via 10.3.0.9 dev r3"
        ));
        let before = host.look();
        let mut first = taken(host, "r0");
        let mut second = taken(host, "r1");
        let mut third = taken(host, "r2");
        first.stop(host).ok();
        third.stop(host).ok();
        assert_eq!(legs(), ["r0", "r2", "r3"]);
        let mut again = taken(host, "r2");
        second.stop(host).ok();
        again.stop(host).ok();
        host.is_clean();
        host.is_as(&before);
    });
}

/// The stand-in is recorded with the NIC that is stuck.
#[test]
fn a_part_beside_a_stuck_nic_is_the_only_one() {
    alone(|host| {
        route_over_two_rails_and_the_uplink(host);
        let mut c = taken(host, "r0,r1");
        host.ip("link add r0 type veth peer name q9");
        c.stop(host).fails(8, &["r0 cannot be restored"]);
        assert_eq!(legs(), ["r1", "up0"]);
        host.ip("link delete r0");
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_clean();
        assert_eq!(legs(), ["r0", "r1", "up0"]);
    });
}

/// Linux refuses another route of the first NIC, whose part the third container takes along.
#[test]
fn a_part_beside_a_refused_route_is_no_whole() {
    alone(|host| {
        host.rails(3);
        host.ip(&format!(
            "address add fd00::1/64 dev r0 nodad\nroute add fd13::/48 via fd00::9 dev r0
route add {SHARED} nexthop via 10.0.0.9 dev r0 nexthop via 10.1.0.9 dev r1 nexthop via 10.2.0.9 \
dev r2"
        ));
        let mut first = taken(host, "r0");
        let mut second = taken(host, "r1");
        host.ip("address add fd00::9/128 dev lo nodad");
        first.stop(host).fails(8, &["fd13::/48"]);
        let mut third = taken(host, "r2");
        third.stop(host).ok();
        host.ip("address delete fd00::9/128 dev lo");
        host.rdmaprep(&["restore", "--all", "--stale"]).ok();
        second.stop(host).ok();
        host.is_clean();
        assert_eq!(legs(), ["r0", "r1", "r2"]);
    });
}

/// It has put it there itself since the first NIC is back.
#[test]
fn a_route_of_a_daemon_is_no_stand_in() {
    alone(|host| {
        host.rails(2);
        host.ip(&format!(
            "route add {SHARED} proto bird nexthop via 10.0.0.9 dev r0 nexthop via 10.1.0.9 dev r1"
        ));
        let mut first = taken(host, "r0");
        let mut second = taken(host, "r1");
        first.stop(host).ok();
        host.ip(&format!(
            "route add {SHARED} proto bird via 10.0.0.9 dev r0"
        ));
        second.stop(host).ok();
        host.is_clean();
        assert_eq!(legs(), ["r0"]);
    });
}

/// The manager of the first NIC, which begins late, deletes what leads over it.
#[test]
fn a_whole_route_over_a_nic_that_waits_comes_back() {
    alone(|host| {
        route_over_two_rails_and_the_uplink(host);
        says("1", "unmanaged");
        says(&index(), "configured");
        let mut second = taken(host, "r1");
        let was = index();
        let mut first = taken(host, "r0");
        fs::remove_file(state_file(&was)).unwrap();
        stop_beside(host, &mut first, "configuring");
        second.stop(host).ok();
        assert_eq!(legs(), ["r1", "up0"], "r0 has no address");
        host.ip("address add 10.0.0.1/24 dev r0");
        says(&index(), "configured");
        host.rdmaprep(&["restore", "--all", "--stale"]).ok();
        host.is_clean();
        assert_eq!(legs(), ["r0", "r1", "up0"]);
    });
}

const JOINED: &str = "fd53::/48";

/// What the kernel says of one leg of an IPv6 route, with what is its own.
fn ipv6_leg(dev: &str) -> String {
    let text = sh(&format!(
        "ip -6 route get fibmatch fd53::1 oif {dev} || true"
    ));
    let mut lines = text.lines().filter(|line| !line.contains("nexthop"));
    let route = lines.next().unwrap_or_default();
    let mut legs = text
        .lines()
        .filter(|line| line.contains(&format!("dev {dev} ")));
    format!("{route}: {}", legs.next().unwrap_or_default().trim())
}

fn delete_all_legs() {
    sh(&format!(
        "while ip -6 route delete {JOINED} 2>/dev/null; do :; done"
    ));
}

/// Legs that programs give one by one are one route for Linux, which names the protocol of the
/// first one. What stayed on the host stays as it is.
#[test]
fn ipv6_legs_of_two_protocols_come_back() {
    alone(|host| {
        host.rails(2);
        host.ip("address add fd00::1/64 dev r0 nodad
address add fd01::1/64 dev r1 nodad");
        let bare = host.look();
        host.ip(&format!(
            "route append {JOINED} via fd00::9 dev r0 proto static
route append {JOINED} via fd01::9 dev r1 proto boot mtu 1300"
        ));
        let before = ["r0", "r1"].map(ipv6_leg);
        let mut one = taken(host, "r0");
        one.stop(host).ok();
        assert_eq!(["r0", "r1"].map(ipv6_leg), before);
        for order in [["r0", "r1"], ["r1", "r0"]] {
            let mut both = order.map(|nic| taken(host, nic));
            for c in &mut both {
                c.stop(host).ok();
            }
            host.is_clean();
            assert_eq!(["r0", "r1"].map(ipv6_leg), before, "{order:?}");
        }
        delete_all_legs();
        host.is_as(&bare);
    });
}

/// Its manager has no word for a route that it never knew.
#[test]
fn what_is_handed_over_is_not_the_managers_own() {
    alone(|host| {
        route_over_two_rails_and_the_uplink(host);
        says("1", "unmanaged");
        for nic in ["r0", "r1"] {
            says(&index_of(nic), "configured");
        }
        let before = host.look();
        let mut both = ["r0", "r1"].map(|nic| {
            let was = index_of(nic);
            let c = taken(host, nic);
            fs::remove_file(state_file(&was)).unwrap();
            c
        });
        // As a lease gives them: they do not say that the profile is the same.
        for record in host.records() {
            tell_owner_in(&record, |_| true);
        }
        for (c, nic) in both.iter_mut().zip(["r0", "r1"]) {
            stop_beside_work(host, c, nic, || says(&index_of(nic), "configured"));
        }
        host.is_clean();
        host.is_as(&before);
    });
}

/// The record of the second NIC has no word of the leg over the first one, which was away.
#[test]
fn an_ipv6_leg_by_a_killed_stop_stays() {
    alone(|host| {
        host.rails(3);
        host.ip("address add fd00::1/64 dev r0 nodad
address add fd01::1/64 dev r1 nodad
address add fd02::1/64 dev r2 nodad
route add fd53::/48 nexthop via fd00::9 dev r0 nexthop via fd01::9 dev r1 nexthop via fd02::9 \
dev r2");
        let before = host.look();
        for point in (1..50).step_by(3) {
            let first = taken(host, "r0");
            let mut second = taken(host, "r1");
            let mut stop = host.command(&["hook", "poststop"]);
            stop.env("RDMAPREP_FAULT", format!("{point}:kill"));
            testkit::run(&mut stop, &first.stopped());
            second.stop(host).ok();
            host.rdmaprep(&["restore", "--all"]).ok();
            host.is_clean();
            host.is_as(&before);
        }
    });
}

/// A host with six uplinks.
fn six_uplinks(host: &Host) {
    for i in 0..6 {
        host.ip(&format!(
            "link add u{i} type veth peer name w{i}\nlink set w{i} up\nlink set u{i} up
address add fd1{i}::1/64 dev u{i} nodad"
        ));
    }
}

/// The kernel tells what is the first leg's own alone: the others must not come again.
#[test]
fn ipv6_legs_of_many_protocols_survive_a_killed_stop() {
    alone(|host| {
        host.rails(1);
        host.ip("address add fd00::1/64 dev r0 nodad");
        six_uplinks(host);
        let bare = host.look();
        host.ip(&format!("route append {JOINED} via fd00::9 dev r0 proto 4"));
        for (i, protocol) in [3, 16, 4, 9, 2, 17].into_iter().enumerate() {
            let leg = format!("via fd1{i}::9 dev u{i} proto {protocol} mtu 140{i}");
            host.ip(&format!("route append {JOINED} {leg}"));
        }
        let devs = ["r0", "u0", "u1", "u2", "u3", "u4", "u5"];
        let before = devs.map(ipv6_leg);
        for point in (1..40).step_by(2) {
            let c = taken(host, "r0");
            let mut stop = host.command(&["hook", "poststop"]);
            stop.env("RDMAPREP_FAULT", format!("{point}:kill"));
            testkit::run(&mut stop, &c.stopped());
            assert_eq!(devs.map(ipv6_leg)[1..], before[1..], "killed at {point}");
            host.rdmaprep(&["restore", "--all"]).ok();
            host.is_clean();
            assert_eq!(devs.map(ipv6_leg)[1..], before[1..], "killed at {point}");
            assert!(
                ipv6_leg("r0").contains("via fd00::9 dev r0"),
                "killed at {point}"
            );
        }
        delete_all_legs();
        host.is_as(&bare);
    });
}

/// A route of the record's own, to which another program adds a leg meanwhile.
#[test]
fn an_ipv6_leg_of_another_program_is_never_deleted() {
    alone(|host| {
        host.rails(1);
        host.ip("address add fd00::1/64 dev r0 nodad");
        six_uplinks(host);
        for point in (1..40).step_by(2) {
            host.ip(&format!(
                "route add {JOINED} nexthop via fd00::9 dev r0 nexthop via fd10::9 dev u0"
            ));
            let c = taken(host, "r0");
            host.ip(&format!(
                "route append {JOINED} via fd11::9 dev u1 src fd11::1"
            ));
            let stayed = ["u0", "u1"].map(ipv6_leg);
            let mut stop = host.command(&["hook", "poststop"]);
            stop.env("RDMAPREP_FAULT", format!("{point}:kill"));
            testkit::run(&mut stop, &c.stopped());
            assert_eq!(["u0", "u1"].map(ipv6_leg), stayed, "killed at {point}");
            host.rdmaprep(&["restore", "--all"]).ok();
            host.is_clean();
            assert_eq!(["u0", "u1"].map(ipv6_leg), stayed, "killed at {point}");
            assert!(
                ipv6_leg("r0").contains("via fd00::9 dev r0"),
                "killed at {point}"
            );
            delete_all_legs();
        }
    });
}

/// A lookup finds no leg in a table to which no rule leads: that says nothing of whose it is. The
/// kernel lists no route that stands between two legs.
#[test]
fn ipv6_legs_beside_others_and_out_of_reach_stay() {
    alone(|host| {
        host.rails(1);
        host.ip("address add fd00::1/64 dev r0 nodad");
        six_uplinks(host);
        let bare = host.look();
        let uplinks = [
            "via fd10::9 dev u0 proto boot mtu 1300",
            "via fd11::9 dev u1 proto 101",
        ];
        let beside = format!("route append {JOINED} dev r0 proto static");
        for (table, beside) in [("table 77", String::new()), ("", beside)] {
            let rail = "via fd00::9 dev r0 proto static".to_owned();
            for leg in [uplinks[0].to_owned(), rail, uplinks[1].to_owned()] {
                host.ip(&format!("route append {JOINED} {leg} {table}"));
            }
            host.ip(&beside);
            let mut c = taken(host, "r0");
            c.stop(host).ok();
            host.is_clean();
            let routes = || sh(&format!("ip -6 route show {JOINED} {table}"));
            assert!(routes().contains("dev r0"), "{}", routes());
            // The first leg shows what is its own.
            sh(&format!(
                "ip -6 route delete {JOINED} via fd10::9 dev u0 {table}"
            ));
            assert!(routes().contains("101"), "{}", routes());
            sh(&format!(
                "while ip -6 route delete {JOINED} {table} 2>/dev/null; do :; done"
            ));
            host.is_as(&bare);
        }
    });
}

/// Linux joins gateways alone: what else has the key of a route says nothing of its legs.
#[test]
fn a_deleted_ipv6_leg_stays_deleted_beside_others_of_its_key() {
    alone(|host| {
        host.rails(2);
        host.ip("address add fd00::1/64 dev r0 nodad
address add fd01::1/64 dev r1 nodad
link add u0 type veth peer name w0
link set w0 up
link set u0 up
address add fd10::1/64 dev u0 nodad
route append fd53::/48 via fd00::9 dev r0 proto 4
route append fd53::/48 via fd01::9 dev r1 proto 4
route append fd53::/48 via fd10::9 dev u0 proto 4
route append fd53::/48 dev u0 proto 3");
        for other in ["", "route append fd53::/48 via fd10::8 dev u0"] {
            let mut c = taken(host, "r0");
            host.ip("route delete fd53::/48 via fd01::9 dev r1 proto 4");
            host.ip(other);
            c.stop(host).ok();
            host.is_clean();
            let routes = sh("ip -6 route show fd53::/48");
            assert!(!routes.contains("dev r1"), "{routes}");
            assert!(routes.contains("dev r0"), "{routes}");
            host.ip("route append fd53::/48 via fd01::9 dev r1 proto 4");
        }
    });
}
