//! What may be on a NIC that the host does not use: all of it has to come back as it was, and in
//! its place.

use super::{Draft, Place, Tool};

/// Settings per NIC: below /proc/sys/net, with `NIC` for its name.
const SYSCTLS: [(&str, &[&str]); 39] = [
    ("ipv4/conf/NIC/arp_announce", &["0", "1", "2"]),
    ("ipv4/conf/NIC/arp_ignore", &["0", "1", "2"]),
    ("ipv4/conf/NIC/arp_filter", &["0", "1"]),
    ("ipv4/conf/NIC/arp_notify", &["1"]),
    ("ipv4/conf/NIC/arp_accept", &["1"]),
    ("ipv4/conf/NIC/rp_filter", &["0", "1", "2"]),
    ("ipv4/conf/NIC/forwarding", &["1"]),
    ("ipv4/conf/NIC/log_martians", &["1"]),
    ("ipv4/conf/NIC/accept_redirects", &["0"]),
    ("ipv4/conf/NIC/send_redirects", &["0"]),
    ("ipv4/conf/NIC/proxy_arp", &["1"]),
    ("ipv4/conf/NIC/promote_secondaries", &["1"]),
    ("ipv4/conf/NIC/ignore_routes_with_linkdown", &["1"]),
    ("ipv4/conf/NIC/route_localnet", &["1"]),
    ("ipv4/conf/NIC/accept_local", &["1"]),
    ("ipv4/conf/NIC/src_valid_mark", &["1"]),
    ("ipv4/conf/NIC/medium_id", &["3"]),
    ("ipv4/conf/NIC/disable_policy", &["1"]),
    ("ipv4/conf/NIC/force_igmp_version", &["2"]),
    ("ipv4/conf/NIC/drop_unicast_in_l2_multicast", &["1"]),
    ("ipv6/conf/NIC/accept_ra", &["0", "2"]),
    ("ipv6/conf/NIC/autoconf", &["0"]),
    ("ipv6/conf/NIC/forwarding", &["1"]),
    ("ipv6/conf/NIC/dad_transmits", &["0", "2"]),
    ("ipv6/conf/NIC/hop_limit", &["33"]),
    ("ipv6/conf/NIC/accept_redirects", &["0"]),
    ("ipv6/conf/NIC/keep_addr_on_down", &["1"]),
    ("ipv6/conf/NIC/router_solicitations", &["0"]),
    ("ipv6/conf/NIC/ndisc_notify", &["1"]),
    ("ipv6/conf/NIC/max_addresses", &["4"]),
    ("ipv6/conf/NIC/mtu", &["1300"]),
    ("ipv6/conf/NIC/ndisc_tclass", &["8"]),
    ("ipv6/conf/NIC/use_tempaddr", &["1"]),
    ("ipv4/neigh/NIC/gc_stale_time", &["91"]),
    ("ipv4/neigh/NIC/base_reachable_time_ms", &["12345"]),
    ("ipv4/neigh/NIC/proxy_qlen", &["7"]),
    ("ipv6/neigh/NIC/retrans_time_ms", &["1500"]),
    ("ipv6/neigh/NIC/mcast_solicit", &["5"]),
    ("ipv6/neigh/NIC/unres_qlen_bytes", &["65536"]),
];

/// Files below /sys/class/net/NIC.
const SYSFS: [(&str, &str); 7] = [
    ("gro_flush_timeout", "20000"),
    ("napi_defer_hard_irqs", "2"),
    ("threaded", "1"),
    ("queues/rx-0/rps_cpus", "3"),
    ("queues/rx-0/rps_flow_cnt", "64"),
    ("queues/tx-0/xps_cpus", "2"),
    ("queues/tx-0/xps_rxqs", "1"),
];

impl Draft {
    /// Each NIC that is idle so far gets some of everything.
    pub(super) fn idle(&mut self) {
        let count = self.host.nics.len();
        let mut idle: Vec<usize> = (0..count).filter(|i| self.host.nics[*i].idle).collect();
        // NICs of one subnet: the order of their routes is the host's choice of one.
        if idle.len() > 1 && self.rng.chance(35) {
            for nic in idle.clone() {
                let name = self.name(nic);
                self.ip(format!("address add 10.100.0.{}/24 dev {name}", nic + 1));
                self.ip(format!("address add fd64::{}/64 dev {name} nodad", nic + 1));
            }
            self.host.layout.push("one subnet on several NICs");
        }
        for nic in idle.clone() {
            self.link(nic);
            self.addresses(nic);
            self.qdisc(nic);
        }
        // In any order: whose route is the first of its equals is not always the first NIC's.
        for _ in 0..idle.len() * 2 {
            let (a, b) = (self.rng.below(idle.len()), self.rng.below(idle.len()));
            idle.swap(a, b);
        }
        for round in 0..3 {
            for nic in idle.clone() {
                self.routes(nic, round);
                self.rules(nic, round);
            }
        }
        self.shared_routes(&idle);
        for nic in idle {
            self.neighbours(nic);
            self.settings(nic);
            if self.rng.chance(6) {
                let name = self.name(nic);
                self.ip(format!("link set {name} down"));
                // A leg of a route that it shares with others may be dead now, which keeps them
                // all.
                self.host.nics.iter_mut().for_each(|n| n.idle = false);
                self.host.layout.push("a NIC that is down");
            }
        }
    }

    fn link(&mut self, nic: usize) {
        let name = self.name(nic);
        if self.rng.chance(4) {
            self.sh(format!(
                "echo 1 > /proc/sys/net/ipv6/conf/{name}/disable_ipv6"
            ));
            self.host.nics.iter_mut().for_each(|n| n.idle = false);
        }
        let mut set = String::new();
        if self.rng.chance(40) {
            set += &format!(" mtu {}", [1400, 2048, 4200, 9000][self.rng.below(4)]);
        }
        if self.rng.chance(30) {
            set += &format!(" txqueuelen {}", 100 + self.rng.below(900));
        }
        if self.rng.chance(30) {
            set += &format!(" alias \"rail {nic}, cage {}\"", self.rng.below(9));
        }
        if self.rng.chance(20) {
            set += &format!(" group {}", 1 + self.rng.below(9));
        }
        if self.rng.chance(8) {
            set += self.rng.pick(&[
                " promisc on",
                " allmulticast on",
                " multicast off",
                " arp off",
            ]);
        }
        if !set.is_empty() {
            self.ip(format!("link set {name}{set}"));
        }
        for alt in 0..self.rng.below(4) {
            let style = self.rng.pick(&["enp17s0f", "fabric-rail-slot-", "z"]);
            self.ip(format!(
                "link property add dev {name} altname {style}{nic}x{}",
                9 - alt
            ));
        }
        if self.rng.chance(10) {
            let size = 30000 + self.rng.below(30000);
            self.ip(format!("link set {name} gso_max_size {size}"));
        }
    }

    fn addresses(&mut self, nic: usize) {
        let name = self.name(nic);
        let all = [
            format!("10.{nic}.0.2/24 dev {name}"),
            format!("10.{nic}.0.3/24 dev {name} noprefixroute"),
            format!("10.{nic}.1.1/24 broadcast 10.{nic}.1.255 label {name}:x dev {name}"),
            format!("10.{nic}.2.1 peer 10.{nic}.2.2/32 dev {name}"),
            format!("10.{nic}.3.1/24 dev {name} metric 50"),
            format!("10.{nic}.4.1/32 dev {name} scope link"),
            format!("10.{nic}.5.1/32 dev {name} scope host"),
            format!("169.254.{nic}.1/16 dev {name} scope link"),
            format!("fd00:{nic}::2/64 dev {name} nodad"),
            format!("fd00:{nic}::3/64 dev {name} nodad noprefixroute"),
            format!("fd00:{nic}:1::1/64 dev {name} nodad metric 300"),
            format!("fd00:{nic}:2::1 peer fd00:{nic}:2::2 dev {name} nodad"),
            format!("fd00:{nic}:3::1/128 dev {name} nodad home"),
            format!("fe80::{}/64 dev {name} nodad", 11 + nic),
            format!("fd00:{nic}:4::1/64 dev {name} nodad mngtmpaddr"),
        ];
        for _ in 0..self.rng.below(6) {
            let address = all[self.rng.below(all.len())].clone();
            self.ip(format!("address add {address}"));
        }
    }

    fn qdisc(&mut self, nic: usize) {
        let name = self.name(nic);
        let root = self.rng.pick(&[
            "root handle 5: tbf rate 1gbit burst 64kb latency 20ms",
            "root handle 8001: pfifo limit 77",
            "root bfifo limit 90000",
            "root pfifo_fast",
        ]);
        if self.rng.chance(20) {
            self.push(
                Place::Host,
                Tool::Tc,
                format!("qdisc add dev {name} {root}"),
            );
        }
        if self.rng.chance(12) {
            let kind = self.rng.pick(&["clsact", "ingress"]);
            self.push(
                Place::Host,
                Tool::Tc,
                format!("qdisc add dev {name} {kind}"),
            );
        }
    }

    /// Routes of a NIC in main and in its own table, which none but its own addresses are looked up
    /// in.
    fn routes(&mut self, nic: usize, round: usize) {
        let (name, table) = (self.name(nic), 100 + nic);
        let (via, via6) = (
            format!("via 10.{nic}.0.254 dev {name}"),
            format!("via fd00:{nic}::fe dev {name}"),
        );
        let own = !self.host.layout.contains(&"subnets alone");
        let all = [
            format!("add 10.2{nic}.0.0/16 {via} metric {}", round + 1),
            format!("add 10.2{nic}.1.0/24 {via} src 10.{nic}.0.1 mtu lock 1300 advmss 1200"),
            format!("add 10.2{nic}.2.0/24 {via} proto 77 realm 3 initcwnd 20 rto_min 30ms"),
            format!("add 10.2{nic}.3.0/24 via 10.99.0.{nic} dev {name} onlink"),
            format!("add 10.2{nic}.4.0/24 dev {name} scope link"),
            format!("add 10.2{nic}.5.0/24 tos 0x10 {via}"),
            format!("add table {table} 10.{nic}.0.0/24 dev {name} scope link src 10.{nic}.0.1"),
            format!("add table {table} default {via}"),
            format!("add table {table} 0.0.0.0/1 {via}"),
            format!("add table {table} blackhole default metric 9000"),
            format!("add 10.2{nic}.6.0/24 nexthop {via} weight 1 nexthop {via} weight 4"),
            format!("add fd20:{nic}::/32 {via6} metric {}", 70 + round),
            format!("add fd20:{nic}:1::/48 {via6} mtu lock 1400 hoplimit 9"),
            format!("add table {table} ::/0 {via6}"),
            format!("add table {table} 2000::/3 {via6} proto static pref high"),
            format!("add fd20:{nic}:2::/48 dev {name}"),
            format!("add 10.2{nic}.7.0/24 via inet6 fd00:{nic}::fe dev {name}"),
        ];
        for _ in 0..self.rng.below(4) {
            let route = all[self.rng.below(all.len())].clone();
            // Without a way out of its own a host's only default would be this one.
            if own
                || !(route.contains("default")
                    || route.contains("::/0")
                    || route.contains("/1 ")
                    || route.contains("::/3"))
            {
                self.ip(format!("route {route}"));
            }
        }
        if round == 0 && self.rng.chance(25) {
            self.ip(format!("nexthop add id {} {via}", 30 + nic));
            self.ip(format!("nexthop add id {} {via6}", 40 + nic));
            self.ip(format!("route add 10.2{nic}.8.0/24 nhid {}", 30 + nic));
            self.ip(format!("route add fd20:{nic}:8::/48 nhid {}", 40 + nic));
        }
    }

    fn rules(&mut self, nic: usize, round: usize) {
        let (name, table) = (self.name(nic), 100 + nic);
        // One priority for all of them: the kernel goes by the order in which they were added.
        let priority = [1000, 1000 + nic, 20000 + round][self.rng.below(3)];
        let all = [
            format!("from 10.{nic}.0.1"),
            format!("from 10.{nic}.0.0/24"),
            format!("from all iif {name}"),
            format!("from all oif {name}"),
            format!("from 10.{nic}.0.2 fwmark 0x{}/0xff", nic + 1),
            format!("from all to 10.2{nic}.0.0/16"),
            format!("from 10.{nic}.0.1 to 10.77.0.0/16 tos 0x10"),
            format!("from 10.{nic}.0.1 ipproto tcp dport 4791"),
            format!("from 10.{nic}.0.1 suppress_prefixlength 0"),
        ];
        for _ in 0..self.rng.below(3) {
            let rule = all[self.rng.below(all.len())].clone();
            self.ip(format!(
                "rule add {rule} lookup {table} priority {priority}"
            ));
        }
        let six = [
            format!("from fd00:{nic}::1"),
            format!("from all oif {name}"),
            format!("from fd00:{nic}::/64 fwmark 7"),
        ];
        if self.rng.chance(50) {
            let rule = six[self.rng.below(3)].clone();
            self.ip6(format!(
                "rule add {rule} lookup {table} priority {priority}"
            ));
        }
        if self.rng.chance(15) {
            self.ip(format!(
                "rule add from 10.{nic}.0.1 to 192.0.2.{round} prohibit priority {priority}"
            ));
        }
        if self.rng.chance(15) {
            self.ip(format!(
                "rule add from 198.51.100.{round} lookup 250 priority {priority}"
            ));
        }
    }

    /// Routes of one key over several NICs, in an order that has a meaning, and over several at
    /// once.
    fn shared_routes(&mut self, idle: &[usize]) {
        for key in 0..3 {
            for nic in idle {
                let name = self.name(*nic);
                if self.rng.chance(35) {
                    let how = self.rng.pick(&["append", "prepend", "append"]);
                    self.ip(format!(
                        "route {how} 172.21.{key}.0/24 via 10.{nic}.0.254 dev {name}"
                    ));
                }
                if self.rng.chance(25) {
                    self.ip(format!(
                        "route append fd21:{key}::/32 via fd00:{nic}::fe dev {name}"
                    ));
                }
            }
        }
        if idle.len() > 1 && self.rng.chance(50) {
            let hops: Vec<String> = idle
                .iter()
                .map(|n| {
                    format!(
                        "nexthop via 10.{n}.0.254 dev {} weight {}",
                        self.host.nics[*n].name,
                        n + 1
                    )
                })
                .collect();
            self.ip(format!("route add 172.22.0.0/16 {}", hops.join(" ")));
            self.ip(format!(
                "route add 172.22.0.0/16 metric 9 table 99 {}",
                hops[..2].join(" ")
            ));
        }
        if idle.len() > 1 && self.rng.chance(25) {
            for n in &idle[..2] {
                self.ip(format!(
                    "nexthop add id {} via 10.{n}.0.254 dev {}",
                    50 + n,
                    self.host.nics[*n].name.clone()
                ));
            }
            self.ip(format!(
                "nexthop add id 60 group {}/{}",
                50 + idle[0],
                50 + idle[1]
            ));
            self.ip("route add 172.23.0.0/16 nhid 60");
        }
    }

    fn neighbours(&mut self, nic: usize) {
        let name = self.name(nic);
        let all = [
            format!("add 10.{nic}.0.9 lladdr 02:00:00:00:00:09 dev {name} nud permanent"),
            format!(
                "add 10.{nic}.0.10 lladdr 02:00:00:00:00:0a dev {name} nud permanent extern_learn"
            ),
            format!(
                "add 10.{nic}.0.11 lladdr 02:00:00:00:00:0b dev {name} nud reachable extern_learn"
            ),
            format!("add 10.{nic}.0.254 dev {name} managed"),
            format!("add 10.{nic}.0.254 dev {name} managed extern_learn"),
            format!("add fd00:{nic}::9 lladdr 02:00:00:00:00:09 dev {name} nud permanent router"),
            format!(
                "add fd00:{nic}::a lladdr 02:00:00:00:00:0a dev {name} nud permanent protocol zebra"
            ),
            format!("add proxy 10.{nic}.0.77 dev {name}"),
            format!("add proxy fd00:{nic}::77 dev {name}"),
            format!("add fd00:{nic}::b lladdr 02:00:00:00:00:0b dev {name} nud noarp"),
        ];
        for _ in 0..self.rng.below(4) {
            let neighbour = all[self.rng.below(all.len())].clone();
            self.ip(format!("neighbour {neighbour}"));
        }
    }

    fn settings(&mut self, nic: usize) {
        let name = self.name(nic);
        for _ in 0..self.rng.below(8) {
            let (leaf, values) = SYSCTLS[self.rng.below(SYSCTLS.len())];
            let value = self.rng.pick(values);
            self.sh(format!(
                "echo {value} > /proc/sys/net/{}",
                leaf.replace("NIC", &name)
            ));
        }
        for _ in 0..self.rng.below(3) {
            if self.rng.chance(40) {
                let (leaf, value) = SYSFS[self.rng.below(SYSFS.len())];
                self.sh(format!("echo {value} > /sys/class/net/{name}/{leaf}"));
            }
        }
        if self.rng.chance(10) {
            let feature = self.rng.pick(&["tx off", "gro on", "tso off", "sg off"]);
            self.sh(format!("ethtool -K {name} {feature} > /dev/null 2>&1"));
        }
    }
}
