//! NICs that have everything that can be lost.

use std::fs;

use crate::{Host, sh};

/// Three NICs with everything that a move destroys: r0 and r1 up, r2 down; up0 is the uplink and
/// stays.
pub fn rich(host: &Host) {
    host.rails(3);
    host.ip("link add up0 type veth peer name qup0
        link set up0 up
        link set qup0 up
        address add 192.168.9.2/24 dev up0
        address add fd99::2/64 dev up0 nodad
        route add default via 192.168.9.1 dev up0 metric 100
        link set r0 mtu 4200 txqueuelen 777 alias \"rail zero, cage 4\" group 7
        link property add dev r0 altname fabric-rail-0-slot-00
        link property add dev r0 altname enp17s0f0np0
        address add 10.0.0.2/24 dev r0
        address add 10.0.1.1/24 broadcast 10.0.1.255 label r0:rail dev r0
        address add 10.0.2.1 peer 10.0.2.2/32 dev r0
        address add 10.0.3.1/24 dev r0 noprefixroute
        address add 10.0.4.1/24 dev r0 metric 50
        address add fd00::1/64 dev r0 nodad
        address add fd00::2/64 dev r0 nodad noprefixroute
        address add fd01::1/64 dev r1 nodad
        link set r2 down
        address add fd02::1/64 dev r2 nodad
        route add default via 10.0.0.9 dev r0 metric 900
        route add 10.20.0.0/16 via 10.0.0.9 dev r0 src 10.0.0.2 metric 7
        route add 10.21.0.0/16 via 10.0.0.9 dev r0 mtu 3000 advmss 2900 table 100
        route add default via 10.0.0.9 dev r0 table 100
        route add 10.22.0.0/16 nexthop via 10.0.0.9 dev r0 weight 1 nexthop via 10.1.0.9 dev r1 \
        weight 3
        route add 10.23.0.0/16 nexthop via 10.0.0.9 dev r0 nexthop via 192.168.9.9 dev up0
        route add 10.24.0.0/16 dev r1 scope link table 101
        route add fd20::/32 via fd00::9 dev r0 metric 77
        route add fd22::/32 nexthop via fd00::9 dev r0 nexthop via fd01::9 dev r1
        route add fd23::/32 nexthop via fd00::9 dev r0 nexthop via fd99::9 dev up0
        rule add from 10.0.0.1 table 100 priority 1000
        rule add iif r0 table 100 priority 1001
        rule add oif r1 table 101 priority 1002
        rule add from 172.16.0.0/12 table 100 priority 1003
        neighbour add 10.0.0.9 lladdr 02:00:00:00:00:09 dev r0 nud permanent
        neighbour add fd00::9 lladdr 02:00:00:00:00:09 dev r0 nud permanent
        neighbour add proxy 10.0.0.77 dev r0
        neighbour add proxy fd00::77 dev r0");
    sh("ip -6 rule add from fd00::1 table 100 priority 1000");
    for (leaf, value) in [
        ("ipv4/conf/r0/arp_announce", "1"),
        ("ipv4/conf/r0/forwarding", "1"),
        ("ipv4/conf/r1/rp_filter", "2"),
        ("ipv4/neigh/r0/gc_stale_time", "91"),
        ("ipv6/conf/r0/accept_ra", "0"),
        ("ipv6/conf/r1/autoconf", "0"),
        ("ipv6/neigh/r1/retrans_time_ms", "1500"),
    ] {
        fs::write(format!("/proc/sys/net/{leaf}"), value).unwrap();
    }
}
