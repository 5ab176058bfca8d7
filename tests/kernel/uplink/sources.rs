//! What the host needs of a NIC without a route by it: its address, and what tc and the multicast
//! router send by it.

use super::*;

/// A link that is no NIC of a job, with an address of its own: p2's other end stays where it is.
const ELSEWHERE: &str =
    "ip link add e0 type veth peer name f0; ip link set f0 up; ip link set e0 up
    ip address add 192.168.0.2/24 dev e0; ip -6 address add fd99::2/64 dev e0 nodad";

#[test]
fn preferred_source_of_a_default_route_is_kept() {
    alone(|host| {
        let case = Case::with(host, ELSEWHERE, &[]);
        sh("ip route add default via 192.168.0.254 dev e0 src 10.0.0.1");
        assert!(get("9.9.9.9").contains("dev e0 src 10.0.0.1"));
        case.keeps(
            "9.9.9.9",
            "e0",
            "owns 10.0.0.1, the source address of packets to 9.9.9.9",
        );
        // One that another link has as well stays here.
        sh("ip address add 10.0.0.1/32 dev lo");
        prepare(host, "again", "r0", &[]).ok();
    });
}

#[test]
fn preferred_source_of_a_default_of_ipv6_is_kept() {
    alone(|host| {
        let before = format!("{ELSEWHERE}; ip -6 address add 2001:db8:1::1/64 dev r0 nodad");
        let case = Case::with(host, &before, &[]);
        sh("ip route add default via 192.168.0.254
            ip -6 route add default via fd99::fe dev e0 src 2001:db8:1::1");
        until("the address is there", || {
            get("2620:fe::fe").contains("src 2001:db8:1::1")
        });
        case.keeps(
            "2620:fe::fe",
            "e0",
            "owns 2001:db8:1::1, the source address of packets to 2620:fe::fe",
        );
    });
}

#[test]
fn address_of_a_host_with_an_unnumbered_uplink_is_kept() {
    alone(|host| {
        let case = Case::with(host, &format!("{ELSEWHERE}; ip address flush dev e0"), &[]);
        sh("ip route add default via 192.168.0.254 dev e0 onlink");
        case.keeps(
            "9.9.9.9",
            "e0",
            "owns 10.0.0.1, the source address of packets to 9.9.9.9",
        );
    });
}

#[test]
fn address_that_ipv6_would_choose_guards_nothing_beside_ipv4() {
    alone(|host| {
        Case::with(host, ELSEWHERE, &[]);
        sh(
            "ip -6 address flush dev e0; ip -6 address add fe80::2/64 dev e0 nodad
            ip -6 address add 2001:db8:1::1/64 dev r0 nodad; ip -6 route add default via fe80::1 \
            dev e0",
        );
        until("the address is there", || {
            get("2620:fe::fe").contains("src 2001:db8:1::1")
        });
        prepare(host, "again", "r0", &[]).fails(
            4,
            &["owns 2001:db8:1::1, the source address of packets to 2620:fe::fe"],
        );
        sh("ip route add default via 192.168.0.254");
        prepare(host, "again", "r0", &[]).ok();
    });
}

#[test]
fn target_of_tc_mirred_is_kept() {
    alone(|host| {
        let case = Case::with(host, ELSEWHERE, &[]);
        sh("ip route add default via 192.168.0.254; tc qdisc add dev e0 clsact");
        for what in ["redirect", "mirror"] {
            sh(&format!(
                "tc filter add dev e0 egress protocol all u32 match u32 0 0 action mirred egress \
                {what} dev r0"
            ));
            case.keeps(
                "9.9.9.9",
                "e0",
                "is in use: tc redirects or mirrors packets to it",
            );
            sh("tc filter delete dev e0 egress");
            // The kernel frees it later, in a work queue (net/sched/cls_api.c, tcf_exts_destroy).
            until("the action is gone", || {
                !sh("tc actions list action mirred").contains("mirred")
            });
        }
        prepare(host, "again", "r0", &[]).ok();
    });
}

#[test]
fn own_address_of_a_tunnel_is_kept() {
    alone(|host| {
        let case = Case::with(host, ELSEWHERE, &[]);
        sh("ip route add 172.16.0.0/12 via 192.168.0.254
            ip link add vx0 type vxlan id 5 dstport 4789 local 10.0.0.1 remote 172.16.0.9; ip \
            link set vx0 up
            ip address add 10.9.0.1/24 dev vx0; ip route add default via 10.9.0.254");
        assert!(get("172.16.0.9 from 10.0.0.1").contains("dev e0 "));
        case.keeps(
            "9.9.9.9",
            "vx0",
            "is tied to vx0, which carries the default route",
        );
    });
}

#[test]
fn forwarding_entry_by_a_link_without_a_route_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh(
            "ip link add vx0 type vxlan id 9 dstport 4789; ip link set vx0 up; ip address add \
            10.9.0.1/24 dev vx0
            ip route add default via 10.9.0.254; ip neighbour add 10.9.0.254 lladdr \
            02:00:00:00:00:05 dev vx0 nud permanent
            bridge fdb add 02:00:00:00:00:05 dev vx0 dst 172.31.0.9 via r0",
        );
        case.keeps(
            "9.9.9.9",
            "vx0",
            "is tied to vx0, which carries the default route",
        );
    });
}

#[test]
fn own_address_of_an_ipsec_tunnel_is_kept() {
    alone(|host| {
        let case = Case::with(host, ELSEWHERE, &[]);
        sh("ip route add 172.16.0.0/12 via 192.168.0.254
            ip xfrm policy add src 0.0.0.0/0 dst 10.50.0.0/16 dir out tmpl src 10.0.0.1 dst \
            172.16.0.9 proto esp mode tunnel");
        case.refuses("owns 10.0.0.1, this end of an IPsec tunnel to 172.16.0.9");
    });
}

#[test]
fn name_server_that_networkmanager_was_given_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        let run = host.run.parent().unwrap().to_owned();
        let stub = run.join("resolv.conf");
        fs::write(&stub, "nameserver 127.0.0.1\n").unwrap();
        sh(&format!(
            "mount --bind {} /etc/resolv.conf; mkdir -p /run/NetworkManager",
            stub.display()
        ));
        fs::write(
            "/run/NetworkManager/no-stub-resolv.conf",
            "nameserver 10.0.0.53\n",
        )
        .unwrap();
        case.keeps("10.0.0.53", "r0", "leads to the name server 10.0.0.53");
    });
}

#[test]
fn interface_of_the_multicast_router_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        // MRT_INIT, and MRT_ADD_VIF with VIFF_USE_IFINDEX (include/uapi/linux/mroute.h).
        let script = "import socket, struct, sys\n\
             s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_IGMP)\n\
             s.setsockopt(0, 200, struct.pack('i', 1))\n\
             s.setsockopt(0, 202, struct.pack('=HBBIII', 0, 8, 1, 0, socket.if_nametoindex('r0'), \
             0))\n\
             print(flush=True)\nsys.stdin.read()";
        let mut router = Command::new("python3")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(router.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let router = Alive(router);
        assert_eq!(
            sh("cat /proc/sys/net/ipv4/conf/r0/mc_forwarding").trim(),
            "1"
        );
        case.refuses("is in use: the multicast router of this host forwards by it");
        // With --allow-bootstrap-iface all else is restored: only the kernel writes mc_forwarding.
        prepare(host, "insisted", "r0", &["--allow-bootstrap-iface"]).ok();
        let mut container = asking("c", "insisted");
        container.create(host).ok();
        container.stop(host).ok();
        host.is_clean();
        drop(router);
    });
}
