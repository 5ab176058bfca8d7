//! What a NIC is in a container, and nothing beside it: whatever the namespace's defaults are.

use crate::{alone, netstate};
use testkit::{Container, sh, until};

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
            let seen = c.sh("cat /proc/sys/net/ipv6/conf/r0/disable_ipv6; ip -6 -o address show dev r0");
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
            "cd /proc/sys/net/ipv6/conf; echo 0 | tee r0/accept_ra p[012]/accept_ra; echo 1 > r2/forwarding; echo 7 > r1/router_solicitations",
        );
        until("the routers' addresses", || sh("ip -6 address show tentative scope link").is_empty());
        let before = host.look();
        host.prepare(&nics);
        for round in 0..ROUNDS {
            let mut c = Container::new("c");
            let default = if round % 2 == 0 { 0 } else { 1 };
            c.sh(&format!("echo {default} > /proc/sys/net/ipv6/conf/default/accept_ra"));
            c.create(host).ok();
            let values = c.sh("cd /proc/sys/net/ipv6/conf; cat r[012]/accept_ra r1/router_solicitations r1/autoconf");
            assert_eq!(values, "0\n1\n0\n7\n1\n", "round {round}");
            let learned = |nic: &str| {
                c.sh(&format!("ip -6 -o address show dev {nic}; ip -6 route show dev {nic}; ip -6 route show default"))
            };
            until("the address by the router", || {
                sh("PREFIX=2001:db8:5:: python3 /run/advertise.py 1800 p0 p1 p2");
                learned("r1").contains("2001:db8:5:")
            });
            for nic in ["r0", "r2"] {
                let found = learned(nic);
                assert!(!found.contains("2001:db8:5:") && !found.contains(&format!("dev {nic} proto ra")), "{found}");
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
            ("ip link set r0 down; echo 3 > addr_gen_mode; ip link set r0 up", "1"),
            ("ip link set r0 down; echo 1 > addr_gen_mode; ip link set r0 up", "1"),
            (
                "ip link set r0 down; echo 1 > addr_gen_mode; ip link set r0 up; ip address add fe80::5/64 dev r0 nodad",
                "1",
            ),
        ] {
            host.rails(1);
            sh(&format!("cd /proc/sys/net/ipv6/conf/r0; {set}"));
            let addresses = "ip -6 -o address show dev r0 | awk '{print $4}' | sort";
            let ends = |shell: &dyn Fn(&str) -> String| {
                let none = set.ends_with("ip link set r0 up") && set.contains("echo 1");
                until("the kernel's address", || none || shell(addresses).contains("fe80"));
                shell(addresses)
            };
            let before = ends(&sh);
            host.prepare("r0");
            for default in ["0", "1", "3"] {
                let mut c = Container::new("c");
                c.sh(&format!("echo {default} > /proc/sys/net/ipv6/conf/default/addr_gen_mode"));
                c.create(host).ok();
                assert_eq!(ends(&|line| c.sh(line)), before, "{set:?} where the default is {default}");
                assert_eq!(c.sh("cat /proc/sys/net/ipv6/conf/r0/addr_gen_mode").trim(), mode);
                c.stop(host).ok();
                assert_eq!(ends(&sh), before, "{set:?} after the stop");
            }
            host.is_clean();
            host.ip("link delete r0");
        }
    });
}
