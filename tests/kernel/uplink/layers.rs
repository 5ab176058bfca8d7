//! Tunnels and what lies on a NIC.

use super::*;

#[test]
fn other_end_of_ipsec_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        let policy = |mode: &str| {
            sh(&format!(
                "ip xfrm policy flush; ip xfrm policy add dir out src 10.8.0.0/16 dst 10.9.0.0/16 \
                 tmpl src 10.0.0.1 dst 10.0.0.9 proto esp {mode}"
            ));
        };
        policy("mode transport");
        prepare(host, "again", "r0", &[]).ok();
        policy("mode tunnel");
        case.keeps(
            "10.0.0.9",
            "r0",
            "leads to 10.0.0.9, the other end of an IPsec tunnel (dev r0, table main)",
        );
    });
}

#[test]
fn segments_of_srv6_are_followed() {
    alone(|host| {
        let ends = "ip address add fd00::1/64 dev r0 nodad; ip address add fd02::1/64 dev r2 nodad";
        let case = Case::with(host, ends, &[]);
        let seg6 = |to: &str, segments: &str| {
            sh(&format!(
                "ip -6 route add {to} encap seg6 mode encap segs {segments} dev r2"
            ))
        };
        seg6("2000::/3", "fd00::9,fd02::9");
        let why =
            "leads to fd00::9, a segment that packets of this host go by (dev r0, table main)";
        case.keeps("fd00::9", "r0", why);
        // A segment by another, of one leg of two.
        sh("ip -6 route delete 2000::/3");
        sh(
            "ip -6 route add 2000::/3 nexthop via fd02::8 dev r2 nexthop via fd02::7 encap seg6 \
            mode encap segs fd77::9 dev r2",
        );
        seg6("fd77::/64", "fd00::9");
        case.keeps("fd00::9", "r0", why);
        sh(
            "ip -6 route delete 2000::/3; ip -6 nexthop add id 7 encap seg6 mode encap segs \
            fd00::9 dev r2
            echo 0 > /proc/sys/net/ipv4/nexthop_compat_mode; ip -6 route add 2000::/3 nhid 7",
        );
        case.keeps("fd00::9", "r0", why);
    });
}

#[test]
fn tunnel_is_asked_for_as_its_packets_go() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip route add 10.66.0.0/16 via 10.2.0.254
            ip link add vx0 type vxlan id 5 dstport 4789 remote 10.66.0.9; ip link set vx0 up
            ip address add 10.9.0.1/24 dev vx0; ip route add default via 10.9.0.254");
        goes_by_a_rule("10.66.0.9", "ipproto udp dport 4789");
        case.refuses("is tied to vx0, which carries the default route 0.0.0.0/0 with metric 0");
    });
}

/// EVPN: the address of the tunnel is the host's own, on lo.
#[test]
fn forwarding_table_ends_are_looked_up_from_the_tunnel_address() {
    alone(|host| {
        let case = Case::new(host);
        sh(
            "ip address add 10.44.0.1/32 dev lo; ip route add 10.66.0.0/16 via 10.2.0.254
            ip link add vx0 type vxlan id 5 dstport 4789 local 10.44.0.1 nolearning
            bridge fdb append 00:00:00:00:00:00 dev vx0 dst 10.66.0.9; ip link set vx0 up
            ip address add 10.9.0.1/24 dev vx0; ip route add default via 10.9.0.254",
        );
        goes_by_a_rule("10.66.0.9", "from 10.44.0.1");
        case.refuses("is tied to vx0, which carries the default route 0.0.0.0/0 with metric 0");
    });
}

#[test]
fn lower_layers_of_a_vxlan_are_kept() {
    alone(|host| {
        let case = Case::new(host);
        let over = |vxlan: &str| {
            sh(&format!(
                "ip link add vx0 type vxlan id 5 dstport 4789 {vxlan}; ip link set vx0 up
                 ip address add 10.9.0.1/24 dev vx0; ip route add default via 10.9.0.254"
            ));
        };
        let why = "is tied to vx0, which carries the default route";
        for vxlan in [
            "remote 10.0.0.9 dev r0",
            "remote 10.0.0.9",
            "group 239.1.1.1 dev r0",
        ] {
            over(vxlan);
            case.keeps("9.9.9.9", "vx0", why);
            sh("ip link delete vx0");
        }
        // The other ends are in its forwarding table alone.
        over("nolearning");
        sh("bridge fdb append 00:00:00:00:00:00 dev vx0 dst 10.0.0.9");
        case.keeps("9.9.9.9", "vx0", why);
        sh("ip link delete vx0");
        // One in another, over a macvlan: every layer is gone through.
        sh(
            "ip link add mv0 link r0 type macvlan mode bridge; ip link set mv0 up; ip address add \
            10.7.0.1/24 dev mv0
            ip link add vx1 type vxlan id 6 dstport 4790 remote 10.7.0.9; ip link set vx1 up
            ip address add 10.8.0.1/24 dev vx1",
        );
        over("remote 10.8.0.9");
        assert!(get("10.8.0.9").contains("dev vx1 ") && get("10.7.0.9").contains("dev mv0 "));
        case.keeps("9.9.9.9", "vx0", why);
    });
}

#[test]
fn vxlan_that_the_host_does_not_use_guards_nothing() {
    alone(|host| {
        Case::new(host);
        sh("ip route add default via 10.2.0.254
            ip link add vx0 type vxlan id 5 dstport 4789 remote 10.0.0.9; ip link set vx0 up; ip \
            address add 10.9.0.1/24 dev vx0");
        prepare(host, "again", "r0", &[]).ok();
        prepare(host, "again", "r2", &[]).fails(4, &["r2 carries the default route"]);
    });
}

/// It sends in the namespace where it was made.
#[test]
fn vxlan_of_another_namespace_guards_nothing_below_it() {
    alone(|host| {
        Case::new(host);
        let other = Container::new("other");
        let r0 = sh("ip -o link show r0 | cut -d: -f1");
        other.sh(&format!(
            "ip link add d0 index {} type veth peer name d1; ip link add vx0 type vxlan id 5 \
            dstport 4789 remote 10.0.0.9 dev d0
             ip link set vx0 netns {}",
            r0.trim(),
            std::process::id()
        ));
        sh(
            "ip link set vx0 up; ip address add 10.9.0.1/24 dev vx0; ip route add default via \
            10.9.0.254",
        );
        assert!(get("9.9.9.9").contains("dev vx0 "));
        prepare(host, "again", "r0", &[]).ok();
        let mut used = asking("used", "used");
        used.create(host).ok();
        used.stop(host).ok();
        prepare(host, "again", "vx0", &[]).fails(4, &["vx0 carries the default route"]);
    });
}

#[test]
fn veth_whose_other_end_is_here_is_followed() {
    alone(|host| {
        let case = Case::new(host);
        sh(
            "ip link add v0 type veth peer name v1; ip link set v0 up; ip link set v1 up
            ip link add vx0 type vxlan id 5 dstport 4789 remote 10.0.0.9; ip link set vx0 up
            ip link add br0 type bridge; ip link set br0 up; ip link set v1 master br0; ip link \
            set vx0 master br0
            ip link add br1 type bridge; ip link set p1 master br1
            ip address add 10.9.0.1/24 dev v0; ip route add default via 10.9.0.254",
        );
        let why = "is tied to v0, which carries the default route";
        case.keeps("9.9.9.9", "v0", why);
        prepare(host, "again", "r2", &[]).ok();
        sh("ip link set p2 master br0");
        prepare(host, "again", "r2", &[]).fails(4, &[&format!("r2 {why}")]);
        sh("ip link set v1 nomaster");
        prepare(host, "again", "r0 r2", &[]).ok();
    });
}

#[test]
fn external_vxlan_that_the_host_uses_is_not_known() {
    alone(|host| {
        Case::new(host);
        sh(
            "ip link add vx0 type vxlan dstport 4789 external; ip link set vx0 up
            ip address add 10.9.0.1/24 dev vx0; ip route add default via 10.9.0.254",
        );
        let why = "what carries vx0: this vxlan learns its other ends from each packet";
        let said = prepare(host, "again", "r1", &[]).ok();
        assert_eq!(said.err.matches(why).count(), 1, "{said:?}");
        asking("free", "free")
            .create(host)
            .fails(3, &["could not be asked", why, "--allow-bootstrap-iface"]);
        prepare(host, "free", "r1", &["--allow-bootstrap-iface"]).ok();
        let mut free = asking("free", "free");
        free.create(host).ok();
        free.stop(host).ok();
    });
}

#[test]
fn socket_of_a_tuns_owner_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        let peer = Peer::new();
        let _tunnel = peer.connect("10.0.0.9:443");
        sh(
            "ip tuntap add tun0 mode tun; ip link set tun0 up; ip address add 10.9.0.1/24 dev tun0
            ip route add default via 10.9.0.254",
        );
        let why = "is in use: a connection to 10.0.0.9 goes by r0 (TCP from 10.0.0.1:";
        assert!(get("9.9.9.9").contains("dev tun0 "));
        case.keeps("10.0.0.9", "r0", why);
    });
}

/// A program that holds a device, and perhaps a socket; it ends when this is dropped.
struct Holding(std::process::Child);

impl Holding {
    fn new(device: &str, socket: &str) -> Holding {
        // TUNSETIFF; struct ifreq with IFF_TUN and IFF_NO_PI.
        let script = format!(
            "use Socket; open(T, '+<', '/dev/net/tun') or die; $r = pack('a16 s x22', '{device}', \
            0x1001);
            ioctl(T, 0x400454ca, $r) or die;
            {socket}; $| = 1; print qq(\\n); <STDIN>"
        );
        let mut perl = Command::new("perl")
            .args(["-e", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(perl.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "\n", "the device could not be made");
        Holding(perl)
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// As OpenVPN's client does; Tailscale's has no such route, and none of its NICs is kept for it.
#[test]
fn server_of_a_tun_that_leads_out_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        let out = "ip link set tun0 up; ip address add 10.9.0.1/24 dev tun0; ip route add default \
            via 10.9.0.254";
        let any = "socket(S, PF_INET, SOCK_DGRAM, 0); bind(S, sockaddr_in(0, INADDR_ANY)) or die";
        let _program = Holding::new("tun0", any);
        sh(out);
        prepare(host, "again", "r0", &[]).ok();
        sh("ip route add 10.77.0.1 via 10.0.0.254");
        prepare(host, "again", "r0", &[]).ok();
        sh("ip route add 203.0.113.5 via 10.0.0.254");
        let why = "is tied to tun0, which carries the default route 0.0.0.0/0 with metric 0";
        case.keeps("203.0.113.5", "r0", why);
    });
}

#[test]
fn bridge_with_the_nic_as_a_port_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh(
            "ip link add br0 type bridge; ip link set br0 up; ip link set r0 master br0
            ip address add 10.9.0.1/24 dev br0; ip route add default via 10.9.0.254",
        );
        case.keeps(
            "9.9.9.9",
            "br0",
            "is tied to br0, which carries the default route",
        );
        // And a layer more.
        sh(
            "ip route delete default; ip link add mv0 link br0 type macvlan; ip link set mv0 up
            ip address add 10.7.0.1/24 dev mv0; ip route add 0.0.0.0/1 via 10.7.0.254",
        );
        case.keeps(
            "9.9.9.9",
            "mv0",
            "is tied to mv0, which leads out to the internet",
        );
    });
}

#[test]
fn macvlan_with_the_default_route_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh(
            "ip link add mv0 link r0 type macvlan; ip link set mv0 up; ip address add 10.9.0.1/24 \
            dev mv0
            ip route add default via 10.9.0.254 table 100; ip rule add lookup 100",
        );
        case.keeps(
            "9.9.9.9",
            "mv0",
            "is tied to mv0, which carries the default route 0.0.0.0/0 with metric 0 of table 100",
        );
    });
}
