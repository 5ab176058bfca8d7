//! What the host itself uses: its way out in each family, layers, sockets.

use std::net::IpAddr;

use super::{Draft, Talk};

/// How a host reaches the rest of the world over IPv4.
const WAYS: [&str; 17] = [
    "default in main",
    "two defaults",
    "default in a table for all",
    "default in table 253",
    "halves",
    "rule over main",
    "bridge",
    "macvlan",
    "vxlan dev",
    "vxlan remote",
    "nexthop object",
    "nexthop group",
    "multipath",
    "blackhole in main",
    "subnets alone",
    "first default without carrier",
    "tun",
];
const WAYS6: [&str; 6] = [
    "none",
    "default in main",
    "default in a table for all",
    "halves",
    "two routers",
    "nexthop object",
];

impl Draft {
    /// Chooses the NICs that the host uses, and how.
    pub(super) fn used(&mut self) {
        let (way, way6) = (
            WAYS[self.rng.below(WAYS.len())],
            WAYS6[self.rng.below(WAYS6.len())],
        );
        // Without a carrier one of two next hops is dead: see `layers`.
        let is_dead = way == "first default without carrier" && way6 == "two routers";
        let way6 = if is_dead { "default in main" } else { way6 };
        self.host.layout.extend([way, way6]);
        let count = self.host.nics.len();
        let first = self.rng.below(count);
        let second = (first + 1 + self.rng.below(count - 1)) % count;
        self.host.nics[first].idle = false;
        self.way4(way, first, second);
        let for6 = if self.rng.chance(70) { first } else { second };
        self.way6(way6, for6, first);
        for nic in 0..count {
            if !self.host.nics[nic].idle {
                self.sockets(nic);
            }
        }
        self.layers();
    }

    fn way4(&mut self, way: &'static str, a: usize, b: usize) {
        let (first, second) = (self.name(a), self.name(b));
        let (via, via2) = (
            format!("via 10.{a}.0.254 dev {first}"),
            format!("via 10.{b}.0.254 dev {second}"),
        );
        self.gateways(way, a, b);
        match way {
            "default in main" => self.ip(format!("route add default {via} proto static")),
            "two defaults" => {
                self.ip(format!("route add default {via} metric 100"));
                self.ip(format!("route add default {via2} metric 200"));
            }
            "default in a table for all" => {
                self.ip(format!("route add default {via} table 77"));
                self.ip("rule add from all lookup 77 priority 500");
            }
            "default in table 253" => self.ip(format!("route add default {via} table 253")),
            "halves" => {
                self.ip(format!("route add 0.0.0.0/1 {via}"));
                self.ip(format!("route add 128.0.0.0/1 {via}"));
            }
            "rule over main" => {
                self.ip(format!("route add default {via}"));
                self.ip(format!("route add default {via2} table 78"));
                self.ip("rule add from all lookup 78 priority 600");
            }
            "nexthop object" => {
                self.ip(format!("nexthop add id 7 {via}"));
                self.ip("route add default nhid 7");
            }
            "nexthop group" => {
                self.ip(format!("nexthop add id 7 {via}"));
                self.ip(format!("nexthop add id 8 {via2}"));
                self.ip("nexthop add id 9 group 7/8");
                self.ip("route add default nhid 9");
            }
            "multipath" => self.ip(format!(
                "route add default nexthop {via} nexthop {via2} weight 2"
            )),
            "blackhole in main" => {
                self.ip("route add blackhole default metric 4000");
                self.ip(format!("route add default {via} table 79"));
                self.ip("rule add from all lookup 79 priority 700");
            }
            "first default without carrier" => {
                self.ip(format!("route add default {via} metric 10"));
                self.ip(format!("route add default {via2} metric 20"));
                self.sh("echo 1 > /proc/sys/net/ipv4/conf/all/ignore_routes_with_linkdown");
                self.fabric(format!("link set f{a} down"));
            }
            _ => self.way4_by_layer(way, a, &first),
        }
    }

    /// Which gateways the host has by then, and whether it uses the second NIC as well.
    fn gateways(&mut self, way: &'static str, a: usize, b: usize) {
        let gateway = match way {
            "macvlan" => "10.240.0.254".to_owned(),
            "vxlan dev" | "vxlan remote" => "10.241.0.254".to_owned(),
            _ => format!("10.{a}.0.254"),
        };
        // A way to one subnet is no default, and a tunnel's underlay is known by its sockets.
        if !matches!(way, "subnets alone" | "tun") {
            self.host.destinations.push(gateway.parse().unwrap());
        }
        let both = matches!(
            way,
            "two defaults"
                | "rule over main"
                | "nexthop group"
                | "multipath"
                | "first default without carrier"
        );
        if both {
            self.host.nics[b].idle = false;
        }
        // No packet goes by a second default with a worse metric: its link may be refused or had.
        if both && way != "two defaults" {
            self.host
                .destinations
                .push(format!("10.{b}.0.254").parse().unwrap());
        }
    }

    /// The way out is not the NIC itself but what sits on it.
    fn way4_by_layer(&mut self, way: &'static str, a: usize, nic: &str) {
        match way {
            "bridge" => {
                self.ip("link add br0 type bridge");
                self.ip(format!("address flush dev {nic}"));
                self.ip(format!("link set {nic} master br0"));
                self.ip(format!("address add 10.{a}.0.1/24 dev br0"));
                self.ip("link set br0 up");
                self.ip(format!("route add default via 10.{a}.0.254 dev br0"));
            }
            "macvlan" => {
                self.ip(format!("link add mv0 link {nic} type macvlan mode bridge"));
                self.ip("link set mv0 up");
                self.ip("address add 10.240.0.1/24 dev mv0");
                self.fabric(format!("address add 10.240.0.254/24 dev f{a}"));
                self.ip("route add default via 10.240.0.254 dev mv0");
            }
            "vxlan dev" | "vxlan remote" => {
                let dev = if way == "vxlan dev" {
                    format!(" dev {nic}")
                } else {
                    String::new()
                };
                self.ip(format!(
                    "link add vx0 type vxlan id 42 remote 10.{a}.0.254{dev} dstport 4789"
                ));
                self.fabric(format!(
                    "link add vx0 type vxlan id 42 remote 10.{a}.0.1 dstport 4789"
                ));
                self.ip("link set vx0 up");
                self.fabric("link set vx0 up");
                self.ip("address add 10.241.0.1/24 dev vx0");
                self.fabric("address add 10.241.0.254/24 dev vx0");
                self.ip("route add default via 10.241.0.254 dev vx0");
            }
            "tun" => {
                self.ip("tuntap add tun0 mode tun");
                self.ip("link set tun0 up");
                self.ip("address add 10.242.0.1/24 dev tun0");
                self.ip("route add default dev tun0");
            }
            // "subnets alone"
            _ => self.ip(format!(
                "route add 172.31.0.0/16 via 10.{a}.0.254 dev {nic}"
            )),
        }
    }

    fn way6(&mut self, way: &'static str, a: usize, b: usize) {
        if way == "none" {
            return;
        }
        self.host.nics[a].idle = false;
        let via = format!("via fd00:{a}::fe dev {}", self.name(a));
        self.host
            .destinations
            .push(format!("fd00:{a}::fe").parse().unwrap());
        match way {
            "default in main" => self.ip(format!("route add ::/0 {via} metric 512")),
            "default in a table for all" => {
                self.ip(format!("route add ::/0 {via} table 77"));
                self.ip6("rule add from all lookup 77 priority 500");
            }
            "halves" => {
                self.ip(format!("route add 2000::/4 {via}"));
                self.ip(format!("route add 3000::/4 {via}"));
            }
            "two routers" => {
                let via2 = format!("via fd00:{b}::fe dev {}", self.name(b));
                self.ip(format!("route add ::/0 {via} proto ra metric 1024"));
                self.ip(format!("route append ::/0 {via2} proto ra metric 1024"));
            }
            _ => {
                self.ip(format!("nexthop add id 17 {via}"));
                self.ip("route add ::/0 nhid 17");
            }
        }
    }

    /// Connections over a NIC of the host's.
    fn sockets(&mut self, nic: usize) {
        let subnet = |host: &str| -> IpAddr { format!("10.{nic}.0.{host}").parse().unwrap() };
        let subnet6 = |host: &str| -> IpAddr { format!("fd00:{nic}::{host}").parse().unwrap() };
        for _ in 0..self.rng.below(4) {
            let six = self.rng.chance(35);
            let far = if six { subnet6("fe") } else { subnet("254") };
            let own = if six { subnet6("1") } else { subnet("1") };
            let inbound = self.rng.chance(40);
            let near = (inbound || self.rng.chance(30)).then_some(own);
            let public = super::PUBLIC[self.rng.below(2) + if six { 2 } else { 0 }]
                .parse()
                .unwrap();
            let far = if !inbound && self.rng.chance(40) {
                public
            } else {
                far
            };
            self.host.talks.push(Talk {
                tcp: inbound || self.rng.chance(60),
                inbound,
                far,
                near,
            });
        }
        if self.rng.chance(30) {
            self.host.name_servers.push(subnet("254"));
        }
    }

    /// Layers that keep a NIC with the host whatever the routes are.
    fn layers(&mut self) {
        let count = self.host.nics.len();
        let several = ["two routers", "multipath", "nexthop group"]
            .iter()
            .any(|way| self.host.layout.contains(way));
        for nic in 0..count {
            if !self.rng.chance(12) {
                continue;
            }
            let name = self.name(nic);
            self.host.nics[nic].idle = false;
            let layer = match self.rng.below(6) {
                // A bridge or a macvlan of mode passthru takes all that the NIC receives. Of
                // several next hops the kernel would choose the dead one at times, by hash or by
                // its neighbour's state, whatever rdmaprep does.
                2 | 5 if several => 3,
                layer => layer,
            };
            match layer {
                0 => {
                    self.ip(format!(
                        "link add mvl{nic} link {name} type macvlan mode bridge"
                    ));
                    self.ip(format!("address add 10.{}.0.1/24 dev mvl{nic}", 150 + nic));
                    self.ip(format!("link set mvl{nic} up"));
                    self.host.layout.push("a macvlan on a NIC");
                }
                1 => {
                    self.ip(format!(
                        "link add vxl{nic} type vxlan id {} dev {name} group 239.1.1.{nic} \
                        dstport 4790",
                        100 + nic
                    ));
                    self.ip(format!("link set vxl{nic} up"));
                    self.host.layout.push("a vxlan on a NIC");
                }
                2 => {
                    self.ip(format!("link add name brp{nic} type bridge"));
                    self.ip(format!("link set {name} master brp{nic}"));
                    self.ip(format!("link set brp{nic} up"));
                    self.host.layout.push("a bridge with a NIC");
                }
                3 => {
                    self.ip(format!(
                        "link add pod{nic} link {name} netns FABRIC_PID type macvlan mode bridge"
                    ));
                    self.fabric(format!("link set pod{nic} up"));
                    self.host.layout.push("a macvlan elsewhere");
                }
                4 => {
                    self.push(
                        super::Place::Host,
                        super::Tool::Tc,
                        format!("qdisc add dev {name} root handle 1: htb default 10"),
                    );
                    self.push(
                        super::Place::Host,
                        super::Tool::Tc,
                        format!("class add dev {name} parent 1: classid 1:10 htb rate 1gbit"),
                    );
                    self.host.layout.push("a qdisc with classes");
                }
                _ => {
                    self.ip(format!(
                        "link add mvp{nic} link {name} type macvlan mode passthru"
                    ));
                    self.host.layout.push("a macvlan passthru");
                }
            }
        }
    }
}
