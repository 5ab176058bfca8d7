//! Two containers on the real kernel, four or eight rails each, in one subnet, in a subnet per
//! rail, or behind a leaf router per rail: which rail reaches which, by which NIC.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use crate::alone;
use rdmaprep::kernel::netns::Netns;
use serde_json::json;
use testkit::{Container, Host, Said, same, sh};

/// How rails are wired and addressed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    /// All of both nodes in one subnet.
    OneSubnet,
    /// Rail i of both nodes in subnet i; still one bridge, on which every rail receives every ARP
    /// request.
    Apart,
    /// Rail i of each node in a subnet of its own, with a leaf router between both that has routes
    /// to no other rail; each has a route to its own leaf's subnets.
    Leaves,
    /// The same, with one route to everything for each rail.
    Overlapping,
    /// The same, with a default route for each rail.
    Defaults,
}

/// Rails a0 … and b0 …, and what is between them.
#[derive(Clone, Copy, Debug)]
struct Fabric {
    rails: usize,
    layout: Layout,
}

const V4: bool = false;
const V6: bool = true;
const NODES: [&str; 2] = ["a", "b"];

impl Fabric {
    fn routed(&self) -> bool {
        !matches!(self.layout, Layout::OneSubnet | Layout::Apart)
    }

    /// The address of rail i of a node.
    fn ip(&self, v6: bool, node: usize, i: usize) -> String {
        let (net, node) = (i + 1, node + 1);
        match (self.layout, v6) {
            (Layout::OneSubnet, V4) => format!("10.0.0.{node}{i}"),
            (Layout::OneSubnet, V6) => format!("fd00::{node}{i}"),
            (Layout::Apart, V4) => format!("10.{net}.0.{node}"),
            (Layout::Apart, V6) => format!("fd00:{net}::{node}"),
            (_, V4) => format!("10.{net}.{node}.1"),
            (_, V6) => format!("fd00:{net}:{node}::1"),
        }
    }

    /// Its leaf's.
    fn gateway(&self, v6: bool, node: usize, i: usize) -> String {
        let (net, node) = (i + 1, node + 1);
        if v6 {
            format!("fd00:{net}:{node}::fe")
        } else {
            format!("10.{net}.{node}.254")
        }
    }

    /// What its leaf leads to.
    fn far(&self, v6: bool, i: usize) -> String {
        match (self.layout, v6) {
            (Layout::Leaves, V4) => format!("10.{}.0.0/16", i + 1),
            (Layout::Leaves, V6) => format!("fd00:{}::/32", i + 1),
            (Layout::Overlapping, V4) => "10.0.0.0/8".into(),
            (Layout::Overlapping, V6) => "fd00::/16".into(),
            (_, V4) => "0.0.0.0/0".into(),
            (_, V6) => "::/0".into(),
        }
    }

    /// Makes it; the leaves live as long as what is returned.
    fn build(&self, host: &Host) -> Vec<Container> {
        let mut batch = String::new();
        if !self.routed() {
            batch += "link add br0 type bridge mcast_snooping 0\nlink set br0 up\n";
        }
        let count = if self.routed() { self.rails } else { 0 };
        let leaves: Vec<Container> = (0..count)
            .map(|i| undetecting(&format!("leaf{i}")))
            .collect();
        for (n, node) in NODES.iter().enumerate() {
            for i in 0..self.rails {
                let to = leaves.get(i).map_or("master br0 up".to_owned(), |leaf| {
                    format!("netns {}", leaf.pid())
                });
                let (v4, v6) = (self.ip(V4, n, i), self.ip(V6, n, i));
                batch += &format!(
                    "link add {node}{i} type veth peer name p{node}{i}\nlink set p{node}{i} \
                    {to}\nlink set {node}{i} up\n\
                     address add {v4}/24 dev {node}{i}\naddress add {v6}/64 dev {node}{i} nodad\n"
                );
            }
        }
        host.ip(&batch);
        for (i, leaf) in leaves.iter().enumerate() {
            let port = |n: usize| {
                let (v4, v6) = (self.gateway(V4, n, i), self.gateway(V6, n, i));
                let dev = format!("p{}{i}", NODES[n]);
                format!(
                    "address add {v4}/24 dev {dev}\naddress add {v6}/64 dev {dev} nodad\nlink set \
                    {dev} up\n"
                )
            };
            leaf.sh(&format!(
                "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > \
                /proc/sys/net/ipv6/conf/all/forwarding
                ip -batch - << E\n{}{}E",
                port(0),
                port(1)
            ));
        }
        host.ip(&self.routes());
        leaves
    }

    /// The host's own way out has the lowest metric.
    fn routes(&self) -> String {
        if !self.routed() {
            return String::new();
        }
        let mut batch =
            "link add up0 type veth peer name qup0\nlink set up0 up\nlink set qup0 up\n\
            address add 192.168.9.2/24 dev up0\naddress add fd99::2/64 dev up0 nodad\n\
            route add 0.0.0.0/0 via 192.168.9.1 dev up0 metric 10\nroute add ::/0 via fd99::1 dev \
            up0 metric 10\n"
                .to_owned();
        for (n, node) in NODES.iter().enumerate() {
            for (i, v6) in (0..self.rails).flat_map(|i| [(i, V4), (i, V6)]) {
                let (far, gateway, metric) =
                    (self.far(v6, i), self.gateway(v6, n, i), 100 + 20 * n + i);
                batch += &format!("route add {far} via {gateway} dev {node}{i} metric {metric}\n");
            }
        }
        batch
    }

    fn prepare(&self, host: &Host, node: &str, profile: &str) -> Said {
        let rails: Vec<String> = (0..self.rails).map(|i| format!("{node}{i}")).collect();
        let args = [
            "prepare",
            "--plan",
            node,
            "--ifaces",
            &rails.join(","),
            "--arp-profile",
            profile,
        ];
        host.rdmaprep(&args).ok()
    }

    /// Two containers that have their rails under that profile; and what `prepare` said.
    fn nodes(&self, host: &Host, profile: &str) -> ([Container; 2], String) {
        let mut said = String::new();
        let nodes = NODES.map(|node| {
            said += &self.prepare(host, node, profile).out;
            let c = undetecting(node).annotated(json!({"rdmaprep.io/plan": node}));
            c.create(host).ok();
            c
        });
        (nodes, said)
    }

    /// Which of the rails reach their peers, in both directions.
    fn reached(&self, nodes: &[Container; 2], v6: bool) -> [Vec<usize>; 2] {
        [(0, 1), (1, 0)].map(|(near, far)| {
            let probe = |i| {
                answered(
                    &nodes[near],
                    &nodes[far],
                    &self.ip(v6, near, i),
                    &self.ip(v6, far, i),
                )
            };
            let yes: Vec<bool> = std::thread::scope(|threads| {
                let all: Vec<_> = (0..self.rails)
                    .map(|i| {
                        threads.spawn({
                            let probe = &probe;
                            move || probe(i)
                        })
                    })
                    .collect();
                all.into_iter().map(|t| t.join().unwrap()).collect()
            });
            (0..self.rails).filter(|i| yes[*i]).collect()
        })
    }

    /// Each rail has learnt the link-layer address of its peer rail, or of its own leaf; on itself
    /// alone, where rules say so.
    fn right_neighbours(
        &self,
        nodes: &[Container; 2],
        leaves: &[Container],
        v6: bool,
        on_itself: bool,
    ) {
        let links: Vec<String> = nodes
            .iter()
            .chain(leaves)
            .map(|c| c.sh("ip -o link"))
            .collect();
        for (near, far) in [(0, 1), (1, 0)] {
            let known = nodes[near].sh(if v6 {
                "ip -6 neighbour"
            } else {
                "ip -4 neighbour"
            });
            for i in 0..self.rails {
                let (next, dev, links) = match self.routed() {
                    true => (
                        self.gateway(v6, near, i),
                        format!("p{}{i}", NODES[near]),
                        &links[2 + i],
                    ),
                    false => (
                        self.ip(v6, far, i),
                        format!("{}{i}", NODES[far]),
                        &links[far],
                    ),
                };
                let (mac, of) = (mac(links, &dev), format!("{next} dev "));
                let mut entries = known
                    .lines()
                    .filter(|l| l.starts_with(&of) && !l.ends_with("FAILED"));
                let here = format!("{of}{}{i} ", NODES[near]);
                let right = |l: &str| {
                    l.contains(&format!(" lladdr {mac} ")) && (!on_itself || l.starts_with(&here))
                };
                assert!(
                    entries.clone().next().is_some() && entries.all(right),
                    "not {here}{mac} but {known}"
                );
            }
        }
    }
}

/// A container whose link-local addresses can be used at once: without one, the kernel sends no
/// neighbour solicitation.
fn undetecting(id: &str) -> Container {
    let c = Container::new(id);
    c.sh("echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad");
    c
}

/// The link-layer address of a link, in what `ip -o link` says.
fn mac(links: &str, dev: &str) -> String {
    let line = links
        .lines()
        .find(|l| l.contains(&format!(": {dev}@")))
        .unwrap();
    line.split_whitespace()
        .skip_while(|w| *w != "link/ether")
        .nth(1)
        .unwrap()
        .to_owned()
}

/// The host in normal form, and its rules as iproute2 sees them: what it shows of a bridge has
/// clocks in it.
fn look(host: &Host) -> String {
    host.normal()
        + &sh(
            "ip rule; ip -6 rule; ip -4 route show table all | sort; ip -6 route show table all | \
            grep fd00 | sort",
        )
}

/// Whether a datagram from that address comes back from the other container's.
fn answered(a: &Container, b: &Container, from: &str, to: &str) -> bool {
    let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 0);
    let socket = |c: &Container, ip: &str| {
        let bind = || Ok(UdpSocket::bind(at(ip))?);
        Netns::of_process(c.pid() as i32)
            .unwrap()
            .visit(bind)
            .unwrap()
    };
    let (near, far) = (socket(a, from), socket(b, to));
    let wait = |s: &UdpSocket| {
        s.set_read_timeout(Some(Duration::from_millis(1500)))
            .unwrap()
    };
    wait(&near);
    wait(&far);
    if near.connect(far.local_addr().unwrap()).is_err() {
        return false;
    }
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut buffer = [0; 8];
            let Ok((_, sender)) = far.recv_from(&mut buffer) else {
                return;
            };
            assert_eq!(sender, near.local_addr().unwrap());
            let _ = far.send_to(b"pong", sender);
        });
        near.send(b"ping").is_ok() && near.recv(&mut [0; 8]).is_ok()
    })
}

/// Every rail of both nodes reaches its peer under these profiles, and the host is afterwards what
/// it was. `says` is in what `prepare` says of strict profiles.
fn everyone(host: &Host, fabric: Fabric, profiles: &[&str], says: &[&str]) {
    let leaves = fabric.build(host);
    let before = look(host);
    let all: Vec<usize> = (0..fabric.rails).collect();
    for profile in profiles {
        let strict = *profile != "loose";
        let (mut nodes, said) = fabric.nodes(host, profile);
        let lines = says.iter().filter(|_| strict);
        lines.for_each(|line| assert!(said.lines().any(|l| l == *line), "no {line:?} in {said}"));
        let tables = strict && !matches!(fabric.layout, Layout::Apart | Layout::Leaves);
        let rules = nodes[0]
            .sh("ip rule; ip -6 rule")
            .lines()
            .filter(|l| l.starts_with("29"))
            .count();
        assert_eq!(
            rules,
            if tables { 2 * fabric.rails } else { 0 },
            "{profile}"
        );
        for v6 in [V4, V6] {
            assert_eq!(
                fabric.reached(&nodes, v6),
                [all.clone(), all.clone()],
                "{profile}, IPv6 {v6}"
            );
            fabric.right_neighbours(&nodes, &leaves, v6, strict);
        }
        let table = if tables { ", table 29001" } else { "" };
        let values = if strict { "2/1/1/1" } else { "2/1/0/2" };
        assert_eq!(
            host.report("a")["rails"][1],
            format!("a1: effective ARP profile {values}{table}")
        );
        nodes.iter_mut().for_each(|c| drop(c.stop(host).ok()));
        same("the host", &before, &look(host));
        host.is_clean();
    }
}

const TABLES: &str = "ARP profile 2/1/1/1 (strict): a routing table and rules for each rail";
const PROFILES: [&str; 3] = ["auto", "strict", "loose"];

#[test]
fn four_rails_of_one_subnet() {
    alone(|host| {
        let says = [
            TABLES,
            "10.0.0.0/24 is shared by a0, a1, a2, a3",
            "a3: from 10.0.0.13, fd00::13 by its own table: 10.0.0.0/24, fd00::/64",
        ];
        everyone(
            host,
            Fabric {
                rails: 4,
                layout: Layout::OneSubnet,
            },
            &PROFILES,
            &says,
        );
    });
}

#[test]
fn eight_rails_of_one_subnet() {
    alone(|host| {
        let says = [
            TABLES,
            "10.0.0.0/24 is shared by a0, a1, a2, a3, a4, a5, a6, a7",
        ];
        everyone(
            host,
            Fabric {
                rails: 8,
                layout: Layout::OneSubnet,
            },
            &PROFILES,
            &says,
        );
    });
}

const APART: &str = "ARP profile 2/1/1/1 (strict): no two rails share a subnet or a destination";

#[test]
fn four_rails_of_a_subnet_each() {
    alone(|host| {
        everyone(
            host,
            Fabric {
                rails: 4,
                layout: Layout::Apart,
            },
            &PROFILES,
            &[APART],
        )
    });
}

#[test]
fn eight_rails_of_a_subnet_each() {
    alone(|host| {
        everyone(
            host,
            Fabric {
                rails: 8,
                layout: Layout::Apart,
            },
            &PROFILES,
            &[APART],
        )
    });
}

#[test]
fn four_rails_with_a_leaf_each() {
    alone(|host| {
        everyone(
            host,
            Fabric {
                rails: 4,
                layout: Layout::Leaves,
            },
            &PROFILES,
            &[APART],
        )
    });
}

#[test]
fn eight_rails_with_a_leaf_each() {
    alone(|host| {
        everyone(
            host,
            Fabric {
                rails: 8,
                layout: Layout::Leaves,
            },
            &["auto"],
            &[APART],
        )
    });
}

#[test]
fn four_rails_whose_leaves_lead_to_one_destination() {
    alone(|host| {
        let says = [
            TABLES,
            "routes into 10.0.0.0/8 lead over a0, a1, a2, a3",
            "routes into fd00::/16 lead over a0, a1, a2, a3",
        ];
        everyone(
            host,
            Fabric {
                rails: 4,
                layout: Layout::Overlapping,
            },
            &["auto", "strict"],
            &says,
        );
    });
}

#[test]
fn eight_rails_whose_leaves_lead_to_one_destination() {
    alone(|host| {
        everyone(
            host,
            Fabric {
                rails: 8,
                layout: Layout::Overlapping,
            },
            &["auto"],
            &[TABLES],
        )
    });
}

#[test]
fn four_rails_whose_leaves_lead_everywhere() {
    alone(|host| {
        let says = [
            TABLES,
            "IPv4 default routes of the host lead over a0, a1, a2, a3",
            "IPv6 default routes of the host lead over a0, a1, a2, a3",
        ];
        everyone(
            host,
            Fabric {
                rails: 4,
                layout: Layout::Defaults,
            },
            &["auto", "strict"],
            &says,
        );
    });
}

#[test]
fn eight_rails_whose_leaves_lead_everywhere() {
    alone(|host| {
        everyone(
            host,
            Fabric {
                rails: 8,
                layout: Layout::Defaults,
            },
            &["auto"],
            &[TABLES],
        )
    });
}

/// How many of the rails reach their peers by IPv4 under 2/1/1/1 alone, the known recipe.
fn without_rules(host: &Host, fabric: Fabric) -> [usize; 2] {
    let _leaves = fabric.build(host);
    let before = look(host);
    let (mut nodes, _) = fabric.nodes(host, "2/1/1/1");
    let reached = fabric.reached(&nodes, V4);
    println!("reached under 2/1/1/1 without rules: {reached:?}");
    nodes.iter_mut().for_each(|c| drop(c.stop(host).ok()));
    same("the host", &before, &look(host));
    reached.map(|rails| rails.len())
}

/// Why there are rules: the recipe leaves all rails of a subnet but one unable to resolve their
/// peers.
#[test]
fn without_rules_one_of_four_rails_reaches_its_peer() {
    alone(|host| {
        assert_eq!(
            without_rules(
                host,
                Fabric {
                    rails: 4,
                    layout: Layout::OneSubnet
                }
            ),
            [1, 1]
        )
    });
}

#[test]
fn without_rules_one_of_eight_rails_reaches_its_peer() {
    alone(|host| {
        assert_eq!(
            without_rules(
                host,
                Fabric {
                    rails: 8,
                    layout: Layout::OneSubnet
                }
            ),
            [1, 1]
        )
    });
}

#[test]
fn without_rules_all_rails_use_one_leaf() {
    alone(|host| {
        assert_eq!(
            without_rules(
                host,
                Fabric {
                    rails: 4,
                    layout: Layout::Overlapping
                }
            ),
            [1, 1]
        )
    });
}

#[test]
fn without_rules_no_rail_has_a_default_route() {
    alone(|host| {
        assert_eq!(
            without_rules(
                host,
                Fabric {
                    rails: 4,
                    layout: Layout::Defaults
                }
            ),
            [0, 0]
        )
    });
}

#[test]
fn without_a_profile_rp_filter_is_in_effect_the_hosts() {
    alone(|host| {
        host.rails(3);
        sh(
            "cd /proc/sys/net/ipv4/conf; echo 0 > all/rp_filter; echo 0 > r0/rp_filter; \
            echo 2 > r1/rp_filter; echo 1 > r2/rp_filter",
        );
        host.rdmaprep(&["prepare", "--ifaces", "r0,r1,r2", "--arp-profile", "off"])
            .ok();
        let pod = Container::new("pod");
        let mut c = Container::beside("c", &pod);
        let conf = "cd /proc/sys/net/ipv4/conf; echo";
        c.sh(&format!(
            "{conf} 2 > all/rp_filter; {conf} 1 > default/rp_filter"
        ));
        c.create(host).ok();
        let own = "$(cat all/rp_filter r0/rp_filter r1/rp_filter r2/rp_filter)";
        assert_eq!(c.sh(&format!("{conf} {own}")), "0 0 2 1\n");
        c.stop(host).ok();
        assert_eq!(pod.sh(&format!("{conf} $(cat all/rp_filter)")), "2\n");
        host.is_clean();
    });
}

/// The namespace of a pod outlives a container: it gets back its own values, and nothing of ours
/// stays.
#[test]
fn a_pod_gets_back_what_would_have_defeated_the_profile() {
    alone(|host| {
        let fabric = Fabric {
            rails: 4,
            layout: Layout::OneSubnet,
        };
        fabric.build(host);
        let before = look(host);
        fabric.prepare(host, "a", "auto");
        let pod = Container::new("pod");
        let mut c = Container::beside("a", &pod).annotated(json!({"rdmaprep.io/plan": "a"}));
        let all = "cd /proc/sys/net/ipv4/conf/all; echo $(cat arp_announce arp_ignore arp_filter \
            rp_filter)";
        c.sh(
            "cd /proc/sys/net/ipv4/conf/all; echo 2 > rp_filter; echo 2 > arp_ignore; echo 1 > \
            arp_announce
            ip rule add from 10.9.9.9 table 29002 priority 7",
        );
        let inside = "ip rule; ip -6 rule; ip route show table all; ip -6 route show table all";
        let pods = pod.sh(inside);
        assert_eq!(pod.sh(all), "1 2 0 2\n");
        c.create(host).ok();
        assert_eq!(c.sh(all), "1 1 0 1\n");
        let rails = host.report("a")["rails"].clone();
        let line =
            |i: usize, table: u32| format!("a{i}: effective ARP profile 2/1/1/1, table {table}");
        assert_eq!(
            rails,
            json!([
                line(0, 29000),
                line(1, 29001),
                line(2, 29003),
                line(3, 29004)
            ])
        );
        c.stop(host).ok();
        assert_eq!((pod.sh(all), pod.sh(inside)), ("1 2 0 2\n".into(), pods));
        same("the host", &before, &look(host));
        host.is_clean();

        // A setting that was changed meanwhile stays; poststart reports what it does to the ARP
        // profile.
        let mut again = Container::beside("a", &pod).annotated(json!({"rdmaprep.io/plan": "a"}));
        again.create(host).ok();
        pod.sh("echo 2 > /proc/sys/net/ipv4/conf/all/rp_filter");
        host.hook("poststart", &again.state()).ok();
        let note = host.report("a")["notes"][0].to_string();
        assert!(
            note.contains("a0 effective ipv4/conf/rp_filter: 2 instead of 1"),
            "{note}"
        );
        pod.sh("echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter");
        again.stop(host).ok();
        assert_eq!(pod.sh(all), "1 2 0 0\n");
        assert_eq!(sh("ip rule | wc -l"), "3\n");
    });
}

/// The sysctls of a container's config.json, which its runtime writes between the create and
/// poststart.
#[test]
fn a_containers_own_conf_all_fails_no_poststart() {
    alone(|host| {
        host.rails(2);
        host.ip("address add fd00::1/64 dev r0 nodad");
        host.prepare("r0,r1");
        let before = host.look();
        for own in ["ipv4/conf/all/rp_filter", "ipv4/conf/all/arp_ignore"] {
            // What poststart puts back, as one runtime or another takes it away.
            for lost in [
                "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6",
                "echo 2001:db8::1 > /proc/sys/net/ipv6/conf/default/stable_secret",
                "ip address flush dev r0",
            ] {
                let mut c = Container::new("c");
                c.create(host).ok();
                c.sh(&format!("echo 2 > /proc/sys/net/{own}; {lost}"));
                host.hook("poststart", &c.state()).ok();
                let report = host.report("c");
                let notes = report["notes"].to_string();
                assert_ne!(report["steps_done"], 0, "{lost}");
                let (_, leaf) = own.split_once("all/").unwrap();
                let note = format!("r0 effective ipv4/conf/{leaf}: 2 instead of 1");
                assert!(notes.contains(&note), "{notes}");
                assert!(c.sh("ip -6 address show dev r0").contains("fd00::1/64"));
                c.stop(host).ok();
                host.is_as(&before);
            }
        }
    });
}
