//! The order of equals on the real kernel: rules of one priority, and routes of one key. The kernel
//! goes by it, so `ip` shows the host afterwards in the order in which it showed it before.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::alone;
use rdma_model::snapshot::{HostPaths, JobAddresses, Snapshot};
use rdma_model::step::{Side, Step};
use rdmaprep::kernel::netns::Netns;
use rdmaprep::kernel::netns::search::Search;
use rdmaprep::kernel::{Kernel, Observed, Pin, Scope, World};
use rdmaprep::precedence::Precedence;
use rdmaprep::restore::order::put_in_order;
use serde_json::Value;
use testkit::{Container, Host, same, sh, until};

/// What `ip` shows, in its order. The kernel makes link-local and multicast routes again some time
/// after a link goes up, and each is asked for by interface.
fn listed() -> String {
    let mut text = String::new();
    for command in [
        "ip -4 -d -j rule",
        "ip -6 -d -j rule",
        "ip -4 -d -j route show table all",
        "ip -6 -d -j route show table all",
    ] {
        let out = sh(command);
        let all: Value =
            serde_json::from_str(if out.trim().is_empty() { "[]" } else { &out }).unwrap();
        for mut one in all.as_array().unwrap().clone() {
            let by_kernel =
                one["protocol"] == "kernel" && one["type"] != "unicast" && command.contains("-6");
            if by_kernel || one["dst"].as_str().is_some_and(|d| d.starts_with("fe80")) {
                continue;
            }
            let flags = one.get_mut("flags").and_then(Value::as_array_mut);
            flags
                .into_iter()
                .for_each(|all| all.retain(|f| f != "linkdown"));
            text.push_str(&format!("{command}: {one}\n"));
        }
    }
    text
}

/// What the kernel answers for these destinations.
fn answers(destinations: &[&str]) -> String {
    destinations
        .iter()
        .map(|to| format!("{to}: {}", sh(&format!("ip -o route get {to} 2>&1 || :"))))
        .collect()
}

/// The host's lists, its answers and its normal form.
#[derive(Clone)]
struct Was {
    listed: String,
    answers: String,
    normal: String,
    asked: Vec<&'static str>,
}

impl Was {
    fn seen(host: &Host, asked: &[&'static str]) -> Was {
        Was {
            listed: listed(),
            answers: answers(asked),
            normal: host.normal(),
            asked: asked.to_vec(),
        }
    }

    fn is_again(&self, host: &Host, when: &str) {
        same(
            &format!("answers, {when}"),
            &self.answers,
            &answers(&self.asked),
        );
        same(&format!("what ip lists, {when}"), &self.listed, &listed());
        same(
            &format!("the normal form, {when}"),
            &self.normal,
            &host.normal(),
        );
        host.is_clean();
    }
}

/// Into a container and back, once for each choice of NICs, by the stop hook and by `restore`.
fn journeys(host: &Host, choices: &[&str], asked: &[&'static str]) {
    let was = Was::seen(host, asked);
    for nics in choices {
        host.prepare(nics);
        for round in ["stop", "restore"] {
            let mut c = Container::new(round);
            c.create(host).ok();
            match round {
                "stop" => drop(c.stop(host).ok()),
                _ => drop(host.rdmaprep(&["restore", "--all"]).ok()),
            }
            was.is_again(host, &format!("{nics} after {round}"));
        }
    }
}

/// NICs in one subnet of either family, in that order.
fn one_subnet(host: &Host, nics: &[&str]) {
    for (i, nic) in nics.iter().enumerate() {
        let n = i + 1;
        host.ip(&format!(
            "link add {nic} type veth peer name p{nic}\nlink set {nic} up\nlink set p{nic} up\n\
             address add 192.168.1.{n}/24 broadcast 192.168.1.255 dev {nic}\naddress add \
             fd00::{n}/64 dev {nic} nodad"
        ));
    }
}

const SUBNET: [&str; 4] = [
    "192.168.1.77",
    "192.168.1.255",
    "fd00::77",
    "192.168.1.77 oif up0",
];

#[test]
fn subnet_of_several_nics_keeps_its_first() {
    alone(|host| {
        one_subnet(host, &["r0", "r1", "r2", "up0"]);
        journeys(host, &["r0", "r1", "r0,r1", "r2,r0", "r2"], &SUBNET);
    });
}

#[test]
fn subnet_with_the_uplink_in_the_middle_keeps_its_order() {
    alone(|host| {
        one_subnet(host, &["r0", "up0", "r1", "up1", "r2"]);
        journeys(host, &["r0", "r1", "r2", "r0,r2", "r1,r2,r0"], &SUBNET);
    });
}

/// A NIC that stays can be used at every moment: its route is never absent.
#[test]
fn route_of_another_nic_is_never_absent() {
    alone(|host| {
        one_subnet(host, &["up0", "r0", "up1", "r1"]);
        let was = Was::seen(host, &SUBNET);
        host.prepare("r0,r1");
        let over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            // Whatever fails below, the watch has to end.
            let journeys = threads.spawn(|| {
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    for _ in 0..5 {
                        let mut c = Container::new("c");
                        c.create(host).ok();
                        c.stop(host).ok();
                        was.is_again(host, "after a stop");
                    }
                }));
                over.store(true, Ordering::Relaxed);
                result.unwrap();
            });
            let mut asked = 0;
            while !over.load(Ordering::Relaxed) {
                let out = sh(
                    "for i in 1 2 3 4 5 6 7 8 9; do for to in 192.168.1.88 fd00::88; do for dev \
                    in up0 up1; do \
                     ip -o route get $to oif $dev || echo LOST; done; done; done 2>&1",
                );
                assert!(
                    !out.contains("LOST") && !out.contains("unreachable"),
                    "{out}"
                );
                asked += out.lines().count();
            }
            journeys.join().unwrap();
            println!("asked {asked} times");
            assert!(asked >= 100);
        });
    });
}

#[test]
fn rule_of_equal_priority_returns_to_its_place() {
    alone(|host| {
        host.rails(2);
        host.ip("route add default via 10.0.0.254 dev r0 table 100
            route add default via 10.1.0.254 dev r1 table 101
            rule add from 10.0.0.1 to 10.9.0.0/16 table 100 priority 1000
            rule add from 10.1.0.1 to 10.9.0.0/16 table 101 priority 1000
            rule add to 10.9.0.0/16 prohibit priority 1000
            rule add from all table 102 priority 1000
            rule add to 10.8.0.0/16 prohibit priority 999
            rule add oif r0 table 100 priority 1001
            rule add from 10.0.0.0/8 goto 1001 priority 1000");
        sh(
            "ip -6 rule add iif r0 table 100 priority 7; ip -6 rule add from all table 101 \
            priority 7",
        );
        let asked = [
            "10.9.0.1 from 10.0.0.1",
            "10.9.0.1 from 10.1.0.1",
            "10.9.0.1",
        ];
        assert!(
            answers(&asked[..1]).contains("via 10.0.0.254"),
            "{}",
            answers(&asked)
        );
        journeys(host, &["r0", "r1", "r1,r0"], &asked);
    });
}

#[test]
fn routes_of_one_key_keep_their_order() {
    alone(|host| {
        host.rails(3);
        for i in 0..3 {
            host.ip(&format!("address add fd0{i}::1/64 dev r{i} nodad"));
        }
        host.ip("link add up0 type veth peer name q0
            link set up0 up
            link set q0 up
            address add 192.168.9.1/24 dev up0
            route add 10.98.0.0/16 via 10.1.0.9 dev r1
            route append 10.98.0.0/16 via 192.168.9.9 dev up0
            route append 10.98.0.0/16 via 10.0.0.9 dev r0
            route append 10.98.0.0/16 dev r2 scope link
            route append 10.98.0.0/16 via 10.0.0.8 dev r0
            route add 10.97.0.0/16 via 10.0.0.9 dev r0 table 100 metric 9 proto static
            route prepend 10.97.0.0/16 dev up0 table 100 metric 9
            route add 10.96.0.0/16 via 10.0.0.9 dev r0 tos 0x10
            route append 10.96.0.0/16 via 10.1.0.9 dev r1 tos 0x10
            route append 10.96.0.0/16 via 192.168.9.9 dev up0 tos 0x10
            route add blackhole 10.95.0.0/16 metric 3
            route prepend 10.95.0.0/16 via 10.2.0.9 dev r2 metric 3
            nexthop add id 7 via 10.0.0.7 dev r0
            route add 10.94.0.0/16 nhid 7
            route append 10.94.0.0/16 via 10.1.0.9 dev r1
            route append 10.94.0.0/16 via 192.168.9.9 dev up0");
        sh(
            "ip -6 route append fd98::/64 dev r0 metric 5; ip -6 route append fd98::/64 dev up0 \
            metric 5
            ip -6 route append fd98::/64 dev r1 metric 5; ip -6 route append fd97::/64 via \
            fd00::9 dev r0 metric 5
            ip -6 route append fd97::/64 dev up0 metric 5; ip -6 route append fd96::/64 dev up0 \
            table 100
            ip -6 route append fd96::/64 via fd00::9 dev r0 table 100; ip -6 route append \
            fd96::/64 dev r0 table 100
            ip -6 route append fd96::/64 dev r2 table 100",
        );
        let asked = [
            "10.98.0.1",
            "10.97.0.1",
            "10.96.0.1 tos 0x10",
            "10.95.0.1",
            "10.94.0.1",
            "fd98::1",
            "fd97::1",
        ];
        journeys(host, &["r0", "r1", "r2", "r0,r1", "r2,r1,r0"], &asked);
    });
}

/// Linux takes a message that deletes `via 10.0.0.9 dev r0` for one of the multipath route as well,
/// if that is the first.
#[test]
fn single_routes_beside_a_multipath_of_both_keep_order() {
    let all = [
        "via 10.0.0.9 dev r0",
        "via 10.1.0.9 dev r1",
        "nexthop via 10.0.0.9 dev r0 nexthop via 10.1.0.9 dev r1",
        "via 10.0.0.8 dev r0",
    ];
    alone(|host| {
        host.rails(2);
        for order in [[0, 1, 2, 3], [2, 1, 0, 3], [1, 2, 3, 0], [3, 0, 2, 1]] {
            for i in order {
                host.ip(&format!("route append 10.54.0.0/16 {}", all[i]));
            }
            journeys(host, &["r0", "r1", "r0,r1"], &["10.54.0.1"]);
            sh("ip route flush 10.54.0.0/16");
        }
    });
}

#[test]
fn container_has_the_order_of_the_host() {
    alone(|host| {
        one_subnet(host, &["r2", "r0", "r1"]);
        host.ip("route add 10.98.0.0/16 via 192.168.1.9 dev r1
            route append 10.98.0.0/16 dev r0 scope link
            route append 10.98.0.0/16 via 192.168.1.9 dev r2
            rule add oif r1 table 100 priority 5
            rule add oif r0 table 101 priority 5
            rule add oif r2 table 100 priority 5");
        let was = Was::seen(host, &SUBNET);
        let order = "ip -4 route show 192.168.1.0/24 | cut -d' ' -f1-3; ip -4 route show \
            10.98.0.0/16
            ip -6 route show fd00::/64 | cut -d' ' -f1-3; ip rule show priority 5; ip route get \
            192.168.1.77 | head -1";
        let want = sh(order);
        host.rdmaprep(&["prepare", "--ifaces", "r0,r1,r2", "--arp-profile", "off"])
            .ok();
        let mut c = Container::new("c");
        c.create(host).ok();
        same("order inside", &want, &c.sh(order));
        assert_eq!(host.report("c")["notes"], serde_json::json!([]));
        c.stop(host).ok();
        was.is_again(host, "after a stop");
    });
}

/// Containers take NICs of one subnet and return them in any order.
#[test]
fn several_containers_give_back_one_order() {
    alone(|host| {
        one_subnet(host, &["r0", "r1", "up0", "r2"]);
        let was = Was::seen(host, &SUBNET);
        for (taken, returned) in [
            ([0, 1, 2], [0, 1, 2]),
            ([1, 0, 2], [1, 0, 2]),
            ([2, 1, 0], [0, 2, 1]),
        ] {
            let mut all: Vec<Option<Container>> = (0..3).map(|_| None).collect();
            for i in taken {
                host.prepare(&format!("r{i}"));
                let c = Container::new(&format!("c{i}"));
                c.create(host).ok();
                all[i] = Some(c);
            }
            for i in returned {
                all[i].take().unwrap().stop(host).ok();
            }
            was.is_again(host, &format!("taken {taken:?}, returned {returned:?}"));
        }
    });
}

/// What the host got meanwhile stays behind what it is behind.
#[test]
fn what_was_added_meanwhile_stays() {
    alone(|host| {
        one_subnet(host, &["r0", "up0"]);
        host.ip(
            "rule add from 192.168.1.1 table 100 priority 5\nrule add from all table 101 \
            priority 5",
        );
        let was = Was::seen(host, &SUBNET);
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        host.ip("route append 192.168.1.0/24 dev up0 proto static scope link
            rule add from 10.7.7.7 table 102 priority 5");
        c.stop(host).ok();
        host.is_clean();
        let lines = sh(
            "ip route show 192.168.1.0/24 | cut -d' ' -f3-5; ip rule show priority 5 | cut -d' ' \
            -f2",
        );
        assert_eq!(
            lines,
            "r0 proto kernel\nup0 proto kernel\nup0 proto static\n192.168.1.1\nall\n10.7.7.7\n"
        );
        host.ip("route delete 192.168.1.0/24 dev up0 proto static scope link
            rule delete from 10.7.7.7 table 102 priority 5");
        was.is_again(host, "without what was added");
    });
}

/// The normal form tells two hosts apart whose rules or routes differ in their order alone.
#[test]
fn normal_form_shows_the_order() {
    alone(|host| {
        one_subnet(host, &["r0", "r1"]);
        host.ip("rule add from all table 100 priority 5\nrule add oif r0 table 100 priority 5");
        let normal = host.normal();
        host.ip(
            "rule delete from all table 100 priority 5\nrule add from all table 100 priority 5",
        );
        assert_ne!(normal, host.normal());
        host.ip("rule delete oif r0 table 100 priority 5\nrule add oif r0 table 100 priority 5");
        same("normal form", &normal, &host.normal());
        sh(
            "ip route delete 192.168.1.0/24 dev r0 && ip route append 192.168.1.0/24 dev r0 proto \
            kernel scope link src 192.168.1.1",
        );
        assert_ne!(normal, host.normal());
    });
}

/// The legs of a route are in two containers: each stop brings back those that can be back, at
/// once, and blocks nothing.
#[test]
fn multipath_over_two_containers_is_whole_at_the_end() {
    alone(|host| {
        host.rails(3);
        for i in 0..3 {
            host.ip(&format!("address add fd0{i}::1/64 dev r{i} nodad"));
        }
        host.ip(
            "route add 10.98.0.0/16 nexthop via 10.0.0.9 dev r0 weight 2 nexthop via 10.1.0.9 \
            dev r1 weight 3
            route add 10.97.0.0/16 nexthop via 10.0.0.9 dev r0 nexthop via 10.1.0.9 dev r1 \
            nexthop via 10.2.0.9 dev r2
            route append 10.97.0.0/16 via 10.2.0.8 dev r2
            route add 10.96.0.0/16 dev r2 scope link src 10.0.0.1
            route add fd98::/64 nexthop via fd00::9 dev r0 weight 2 nexthop via fd01::9 dev r1 \
            weight 3
            route add fd97::/64 nexthop via fd00::9 dev r0 nexthop via fd01::9 dev r1 nexthop via \
            fd02::9 dev r2
            nexthop add id 1 via 10.0.0.9 dev r0
            nexthop add id 2 via 10.1.0.9 dev r1
            nexthop add id 3 via 10.2.0.9 dev r2
            nexthop add id 10 group 1,2/2,3
            nexthop add id 20 group 1/2
            route add 10.95.0.0/16 nhid 10
            route add 10.94.0.0/16 nhid 20",
        );
        let groups = || sh("ip nexthop");
        let (was, objects) = (Was::seen(host, &["10.96.0.1"]), groups());
        let kept =
            |dev: &str| sh("ip route show 10.97.0.0/16; ip -6 route show fd97::/64").contains(dev);
        let orders = [
            ([0, 1, 2], [0, 1, 2]),
            ([0, 1, 2], [2, 1, 0]),
            ([2, 0, 1], [1, 0, 2]),
            ([1, 2, 0], [1, 2, 0]),
        ];
        for (taken, returned) in orders {
            let mut all: Vec<Option<Container>> = (0..3).map(|_| None).collect();
            for i in taken {
                host.prepare(&format!("r{i}"));
                let c = Container::new(&format!("c{i}"));
                c.create(host).ok();
                all[i] = Some(c);
            }
            for i in returned {
                let begun = Instant::now();
                all[i].take().unwrap().stop(host).ok();
                assert!(
                    begun.elapsed() < Duration::from_secs(4),
                    "it waits for what cannot be there"
                );
                assert!(kept(&format!("dev r{i}")), "its leg is missing");
            }
            was.is_again(host, &format!("taken {taken:?}, returned {returned:?}"));
            same("nexthop objects", &objects, &groups());
        }
        // One that stays away keeps no other from being used again.
        host.prepare("r0");
        let mut first = Container::new("first");
        first.create(host).ok();
        host.rdmaprep(&["prepare", "--plan", "other", "--ifaces", "r1"])
            .ok();
        for _ in 0..2 {
            let mut second = Container::new("second")
                .annotated(serde_json::json!({"rdmaprep.io/plan": "other"}));
            second.create(host).ok();
            second.stop(host).ok();
        }
        first.stop(host).ok();
        was.is_again(host, "one of them twice");
        same("nexthop objects", &objects, &groups());
    });
}

/// A route to it alone, for as long as that takes, is for gateways that nothing else leads to.
#[test]
fn a_gateway_is_found_over_the_route_that_leads_to_it() {
    alone(|host| {
        host.rails(1);
        host.ip("route add 10.90.0.0/24 dev r0\nroute add 10.50.0.0/16 via 10.90.0.9 dev r0");
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        let changes = host.run.join("changes");
        let file = changes.display();
        sh(&format!(
            "timeout 30 ip -o monitor route > {file} 2>&1 &
            until [ -s {file} ]; do ip route add 198.51.100.0/24 dev lo
                ip route delete 198.51.100.0/24 dev lo; sleep 0.02; done"
        ));
        c.stop(host).ok();
        let changes = || std::fs::read_to_string(&changes).unwrap();
        until("the route is back", || changes().contains("10.50.0.0/16"));
        let changes = changes();
        let mut routes = changes.lines().map(|l| l.trim_start_matches("Deleted "));
        assert!(!routes.any(|r| r.starts_with("10.90.0.9 ")), "{changes}");
    });
}

/// The kernel, and how many routes each look has read.
struct Counted {
    kernel: Kernel,
    read: Vec<usize>,
}

impl World for Counted {
    fn has_inside(&self) -> bool {
        self.kernel.has_inside()
    }

    fn look(&mut self, side: Side, scope: &Scope) -> anyhow::Result<Observed> {
        let seen = self.kernel.look(side, scope)?;
        self.read.push(seen.snapshot.routes.len());
        Ok(seen)
    }

    fn host_paths(&mut self, host: &Snapshot, job: &JobAddresses) -> HostPaths {
        self.kernel.host_paths(host, job)
    }

    fn perform(&mut self, step: &Step, deadline: Instant) -> anyhow::Result<()> {
        self.kernel.perform(step, deadline)
    }

    fn pin(&mut self, pin: Pin) -> anyhow::Result<()> {
        self.kernel.pin(pin)
    }

    fn search(&self, side: Side, on: &BTreeSet<u32>) -> anyhow::Result<Search> {
        self.kernel.search(side, on)
    }
}

/// What a crash left is repaired, and the order is right then, without a look at the routes that
/// are not of it.
#[test]
fn a_repair_of_the_order_reads_no_other_routes() {
    alone(|host| {
        host.rails(2);
        host.ip(
            "route append 10.9.0.0/16 dev r0 metric 5\nroute append 10.9.0.0/16 dev r1 metric 5",
        );
        let others: Vec<String> = (0..200)
            .map(|n| format!("route add 10.77.{n}.0/24 dev r0"))
            .collect();
        host.ip(&others.join("\n"));
        let list = "ip -d route show 10.9.0.0/16";
        let listed = sh(list);
        let mut world = Counted {
            kernel: Kernel::open(Netns::current().unwrap(), None).unwrap(),
            read: Vec::new(),
        };
        let mut now = world.observe(Side::Host, &Scope::network()).unwrap();
        assert!(world.read[0] > 200);
        now.routes
            .retain(|route| route.destination.to_string() == "10.9.0.0/16");
        let order = Precedence {
            routes: now.routes,
            rules: Vec::new(),
        };
        assert_eq!(order.routes.len(), 2);
        // As the first one is being put before the second one.
        host.ip("route append 10.9.0.0/16 dev r0 metric 5 protocol 210
            route delete 10.9.0.0/16 dev r0 metric 5 protocol boot");
        let now = world.observe(Side::Host, &Scope::network()).unwrap();
        world.read.clear();
        let ordered = put_in_order(&mut world, Side::Host, &order, &now).unwrap();
        assert_eq!((ordered.errors.len(), world.read), (0, vec![2]));
        same("the order", &listed, &sh(list));
    });
}
