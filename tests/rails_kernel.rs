//! Two containers on the real kernel, four rails each, all in one subnet behind a bridge: who reaches whom, by which NIC.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]
mod support;

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use rdmaprep::world::netns::Netns;
use serde_json::json;
use support::{Container, Host, Said, alone, same, sh, until};

const RAILS: usize = 4;

/// Rails a0 … and b0 … of 10.0.0.0/24 and fd00::/64, their peers all in one bridge.
fn fabric(host: &Host) {
    host.ip("link add br0 type bridge mcast_snooping 0\nlink set br0 up");
    for (node, tens) in [("a", 1), ("b", 2)] {
        for i in 0..RAILS {
            host.ip(&format!(
                "link add {node}{i} type veth peer name p{node}{i}\nlink set p{node}{i} master br0 up\n\
                 link set {node}{i} up\naddress add 10.0.0.{tens}{i}/24 dev {node}{i}\n\
                 address add fd00::{tens}{i}/64 dev {node}{i} nodad"
            ));
        }
    }
}

/// The host in normal form, and its rules as iproute2 sees them: what it shows of a bridge has clocks in it.
fn look(host: &Host) -> String {
    host.normal()
        + &sh("ip rule; ip -6 rule; ip -4 route show table all | sort; ip -6 route show table all | grep fd00 | sort")
}

fn prepare(host: &Host, node: &str, profile: &str) -> Said {
    let rails: Vec<String> = (0..RAILS).map(|i| format!("{node}{i}")).collect();
    let args = ["prepare", "--plan", node, "--ifaces", &rails.join(","), "--arp-profile", profile];
    host.rdmaprep(&args).ok()
}

/// Two containers that have their rails under that profile, and link-local addresses that are settled.
fn nodes(host: &Host, profile: &str) -> [Container; 2] {
    ["a", "b"].map(|node| {
        prepare(host, node, profile);
        let c = Container::new(node).annotated(json!({"rdmaprep.io/plan": node}));
        c.create(host).ok();
        until("addresses are settled", || !c.sh("ip -6 address show tentative").contains("inet6"));
        c
    })
}

/// Whether a datagram from that address comes back from the other container's.
fn answered(a: &Container, b: &Container, from: &str, to: &str) -> bool {
    let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 0);
    let socket = |c: &Container, ip: &str| {
        let bind = || Ok(UdpSocket::bind(at(ip))?);
        Netns::of(c.pid() as i32).unwrap().visit(bind).unwrap()
    };
    let (near, far) = (socket(a, from), socket(b, to));
    let wait = |s: &UdpSocket| s.set_read_timeout(Some(Duration::from_millis(1500))).unwrap();
    wait(&near);
    wait(&far);
    near.connect(far.local_addr().unwrap()).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut buffer = [0; 8];
            let Ok((_, sender)) = far.recv_from(&mut buffer) else { return };
            assert_eq!(sender, near.local_addr().unwrap());
            let _ = far.send_to(b"pong", sender);
        });
        near.send(b"ping").is_ok() && near.recv(&mut [0; 8]).is_ok()
    })
}

/// Which of the rails reach their peers, in both directions.
fn reached(nodes: &[Container; 2], net: &str) -> [Vec<usize>; 2] {
    let [a, b] = nodes;
    std::thread::scope(|threads| {
        let probe = |from: &'static str, to: &'static str, x, y| {
            let all: Vec<_> = (0..RAILS)
                .map(|i| threads.spawn(move || answered(x, y, &format!("{net}{from}{i}"), &format!("{net}{to}{i}"))))
                .collect();
            let yes: Vec<bool> = all.into_iter().map(|t| t.join().unwrap()).collect();
            (0..RAILS).filter(|i| yes[*i]).collect()
        };
        [probe("1", "2", a, b), probe("2", "1", b, a)]
    })
}

/// Each rail has learnt its peer rail's link-layer address, on itself.
fn right_neighbours(nodes: &[Container; 2], net: &str) {
    for ([near, tens], [far, _]) in [(["a", "2"], ["b", "1"]), (["b", "1"], ["a", "2"])] {
        let [x, y] = if near == "a" { [&nodes[0], &nodes[1]] } else { [&nodes[1], &nodes[0]] };
        for i in 0..RAILS {
            let mac = y.sh(&format!("cat /sys/class/net/{far}{i}/address 2>/dev/null || ip -o link show {far}{i}"));
            let mac = mac.split_whitespace().skip_while(|w| *w != "link/ether").nth(1).unwrap_or(mac.trim()).to_owned();
            let known = x.sh(&format!("ip neighbour show to {net}{tens}{i}"));
            let want = format!("{net}{tens}{i} dev {near}{i} lladdr {mac} ");
            assert!(known.starts_with(&want) && known.lines().count() == 1, "no {want:?} but {known:?}");
        }
    }
}

#[test]
fn with_rules_every_rail_reaches_its_peer() {
    alone(|host| {
        fabric(host);
        let before = look(host);
        for profile in ["auto", "strict"] {
            let said = prepare(host, "a", profile).out;
            for line in [
                "ARP profile 2/1/1/1 (strict): a routing table and rules for each rail",
                "10.0.0.0/24 is shared by a0, a1, a2, a3",
                "a3: from 10.0.0.13, fd00::13 by its own table: 10.0.0.0/24, fd00::/64",
            ] {
                assert!(said.lines().any(|l| l == line), "no {line:?} in {said}");
            }
            let mut nodes = nodes(host, profile);
            for net in ["10.0.0.", "fd00::"] {
                let all: Vec<usize> = (0..RAILS).collect();
                assert_eq!(reached(&nodes, net), [all.clone(), all], "{profile} {net}");
                right_neighbours(&nodes, net);
            }
            println!("{}", nodes[0].sh("ip rule; ip -6 rule; ip route show table 29001; ip -6 route show table 29001"));
            assert_eq!(host.report("a")["rails"][1], "a1: effective ARP profile 2/1/1/1, table 29001");
            nodes.iter_mut().for_each(|c| drop(c.stop(host).ok()));
            same("the host", &before, &look(host));
            host.is_clean();
        }
    });
}

/// Why there are rules: the known recipe alone leaves three of four rails unable to resolve their peers.
#[test]
fn without_rules_one_rail_reaches_its_peer() {
    alone(|host| {
        fabric(host);
        let before = look(host);
        let mut nodes = nodes(host, "2/1/1/1");
        let [there, back] = reached(&nodes, "10.0.0.");
        println!("reached under 2/1/1/1 without rules: {there:?} {back:?}");
        assert_eq!((there.len(), back.len()), (1, 1));
        nodes.iter_mut().for_each(|c| drop(c.stop(host).ok()));
        same("the host", &before, &look(host));
    });
}

#[test]
fn loose_needs_no_rules() {
    alone(|host| {
        fabric(host);
        let mut nodes = nodes(host, "loose");
        assert_eq!(nodes[0].sh("ip rule | wc -l"), "3\n");
        assert_eq!(reached(&nodes, "10.0.0.").map(|r| r.len()), [RAILS; 2]);
        assert_eq!(host.report("b")["rails"][0], "b0: effective ARP profile 2/1/0/2");
        nodes.iter_mut().for_each(|c| drop(c.stop(host).ok()));
    });
}

/// The namespace of a pod outlives a container: it gets back its own values, and nothing of ours stays.
#[test]
fn a_pod_gets_back_what_would_have_defeated_the_profile() {
    alone(|host| {
        fabric(host);
        let before = look(host);
        prepare(host, "a", "auto");
        let pod = Container::new("pod");
        let mut c = Container::beside("a", &pod).annotated(json!({"rdmaprep.io/plan": "a"}));
        let all = "cd /proc/sys/net/ipv4/conf/all; echo $(cat arp_announce arp_ignore arp_filter rp_filter)";
        c.sh("cd /proc/sys/net/ipv4/conf/all; echo 2 > rp_filter; echo 2 > arp_ignore; echo 1 > arp_announce
            ip rule add from 10.9.9.9 table 29002 priority 7");
        let inside = "ip rule; ip -6 rule; ip route show table all; ip -6 route show table all";
        let pods = pod.sh(inside);
        assert_eq!(pod.sh(all), "1 2 0 2\n");
        c.create(host).ok();
        assert_eq!(c.sh(all), "1 1 0 1\n");
        let rails = host.report("a")["rails"].clone();
        let line = |i: usize, table: u32| format!("a{i}: effective ARP profile 2/1/1/1, table {table}");
        assert_eq!(rails, json!([line(0, 29000), line(1, 29001), line(2, 29003), line(3, 29004)]));
        c.stop(host).ok();
        assert_eq!((pod.sh(all), pod.sh(inside)), ("1 2 0 2\n".into(), pods));
        same("the host", &before, &look(host));
        host.is_clean();

        // What somebody has changed meanwhile is theirs; poststart tells what it does to the profile.
        let mut again = Container::beside("a", &pod).annotated(json!({"rdmaprep.io/plan": "a"}));
        again.create(host).ok();
        pod.sh("echo 2 > /proc/sys/net/ipv4/conf/all/rp_filter");
        host.hook("poststart", &again.state()).ok();
        let note = host.report("a")["notes"][0].to_string();
        assert!(note.contains("a0 effective ipv4/conf/rp_filter: 2 instead of 1"), "{note}");
        pod.sh("echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter");
        again.stop(host).ok();
        assert_eq!(pod.sh(all), "1 2 0 0\n");
        assert_eq!(sh("ip rule | wc -l"), "3\n");
    });
}
