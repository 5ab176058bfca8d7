//! The links that the host uses stay, however it uses them. Each layout is made on the real kernel, which says by `ip route get`
//! which way packets go; `prepare` and the create hook then refuse the NIC, take one that the host does not use, and leave the
//! host's ways as they were.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};

use rdmaprep::kernel::netns::Netns;
use serde_json::json;
use support::{Container, Host, alone, alone_as_root, same, sh, until};

/// What the hook says before its reason.
const LOST: &str = "the host would lose its network: r0 ";

/// The kernel's own answer, without what it caches.
fn get(question: &str) -> String {
    let said = sh(&format!("ip route get {question} 2>&1 || :"));
    said.lines().next().unwrap_or_default().trim().to_owned()
}

fn prepare(host: &Host, name: &str, ifaces: &str, more: &[&str]) -> support::Said {
    host.rdmaprep(&[&["prepare", "--plan", name, "--ifaces", ifaces], more].concat())
}

fn asking(id: &str, plan: &str) -> Container {
    Container::new(id).annotated(json!({ "rdmaprep.io/plan": plan }))
}

/// A host with r0, which it will use, r1, which it never does, and r2. Plans are made before the host uses r0.
struct Case<'a> {
    host: &'a Host,
    flags: &'a [&'a str],
}

impl<'a> Case<'a> {
    fn new(host: &'a Host) -> Case<'a> {
        Case::with(host, "", &[])
    }

    /// With more set up, and with flags, before the plans are made.
    fn with(host: &'a Host, before: &str, flags: &'a [&'a str]) -> Case<'a> {
        host.rails(3);
        sh(before);
        prepare(host, "used", "r0", flags).ok();
        prepare(host, "free", "r1", flags).ok();
        Case { host, flags }
    }

    /// The host uses r0 now: the kernel says that what is asked for goes by `dev`, and r0 stays for that reason.
    fn keeps(&self, question: &str, dev: &str, reason: &str) {
        let (host, way) = (self.host, get(question));
        assert!(way.contains(&format!("dev {dev} ")), "the layout is another one: {way}");
        self.refuses(reason);
        let mut free = asking("free", "free");
        free.create(host).ok();
        assert_eq!(get(question), way, "a NIC that the host does not use is away");
        free.stop(host).ok();
        assert_eq!(get(question), way, "it is back");
        host.is_clean();
    }

    /// `prepare` and the hook refuse r0, and nothing moves.
    fn refuses(&self, reason: &str) {
        let host = self.host;
        let reason = format!("r0 {reason}");
        prepare(host, "again", "r0", self.flags).fails(4, &[&reason, "--allow-bootstrap-iface"]);
        prepare(host, "again", "r0 r1", self.flags).ok();
        let before = host.normal();
        asking("used", "used").create(host).fails(3, &[&reason, LOST, "--allow-bootstrap-iface"]);
        same("the host", &before, &host.normal());
        host.is_clean();
    }
}

/// A machine at the other end of r0's cable, with 10.0.0.9.
struct Peer {
    of: Container,
}

impl Peer {
    fn new() -> Peer {
        let of = Container::new("peer");
        sh(&format!("ip link set p0 netns {}", of.pid()));
        of.sh("ip link set lo up; ip link set p0 up; ip address add 10.0.0.9/24 dev p0");
        until("r0 has a carrier again", || sh("ip link show r0").contains("LOWER_UP"));
        Peer { of }
    }

    fn within<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        Netns::of_process(self.of.pid() as i32).unwrap().visit(|| Ok(body())).unwrap()
    }

    /// A connection of the host's to the peer.
    fn connect(&self, to: &str) -> (TcpStream, TcpListener) {
        let listener = self.within(|| TcpListener::bind(to).unwrap());
        (TcpStream::connect(to).unwrap(), listener)
    }
}

#[test]
fn default_in_a_table_by_a_rule_for_all_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip route add default via 10.0.0.254 dev r0 table 100; ip rule add from all lookup 100");
        case.keeps("9.9.9.9", "r0", "carries the default route 0.0.0.0/0 with metric 0 of table 100");
    });
}

#[test]
fn default_in_a_table_by_the_nics_address_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip route add default via 10.0.0.254 dev r0 table 100; ip rule add from 10.0.0.1 lookup 100");
        let why = "leads out to the internet (9.9.9.9 from 10.0.0.1: via 10.0.0.254 dev r0, table 100)";
        case.keeps("9.9.9.9 from 10.0.0.1", "r0", why);
    });
}

#[test]
fn default_in_table_253_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip route add default via 10.0.0.254 dev r0 table 253");
        case.keeps("9.9.9.9", "r0", "carries the default route 0.0.0.0/0 with metric 0 of table 253");
    });
}

#[test]
fn default_beside_a_blackhole_in_main_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        // The rule is for one protocol and port, so that no table is anybody's.
        sh("ip route add blackhole default; ip route add default via 10.0.0.254 dev r0 table 100
            ip rule add ipproto tcp dport 443 lookup 100");
        case.keeps(
            "9.9.9.9 ipproto tcp dport 443",
            "r0",
            "leads out to the internet (9.9.9.9 of protocol 6 to port 443",
        );
        sh("ip rule delete ipproto tcp dport 443 lookup 100");
        asking("used", "used").create(host).ok();
    });
}

#[test]
fn default_that_a_blackhole_beats_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip route add blackhole default metric 5; ip route add default via 10.0.0.254 dev r0 metric 10");
        assert!(get("9.9.9.9").contains("Invalid argument"), "{}", get("9.9.9.9"));
        case.refuses("carries the default route 0.0.0.0/0 with metric 10");
        sh("ip route flush table main; ip route add 10.0.0.0/24 dev r0; ip route add blackhole default
            ip route add default via 10.0.0.254 dev r0 table 253");
        case.refuses("carries the default route 0.0.0.0/0 with metric 0 of table 253");
    });
}

#[test]
fn halves_and_quarters_of_the_internet_are_kept() {
    alone(|host| {
        let case = Case::new(host);
        for (to, route) in [("9.9.9.9", "0.0.0.0/1"), ("149.112.112.112", "128.0.0.0/1"), ("75.75.75.75", "64.0.0.0/2")]
        {
            sh(&format!("ip route add {route} via 10.0.0.254"));
            case.keeps(to, "r0", &format!("leads out to the internet ({to}: via 10.0.0.254 dev r0, table main)"));
            sh(&format!("ip route delete {route}"));
        }
    });
}

#[test]
fn what_ipv6_gives_out_is_kept() {
    alone(|host| {
        let case = Case::with(host, "ip address add fd00::1/64 dev r0 nodad", &[]);
        for (to, route) in [("2620:fe::fe", "2000::/3"), ("3ffe::1", "3000::/4")] {
            sh(&format!("ip route add {route} via fd00::fe"));
            case.keeps(to, "r0", &format!("leads out to the internet ({to}: via fd00::fe dev r0, table main)"));
            sh(&format!("ip route delete {route}"));
        }
    });
}

#[test]
fn rule_that_overrides_main_is_heard() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip route add default via 10.2.0.254; ip route add default via 10.0.0.254 table 100
            ip rule add to 8.0.0.0/5 lookup 100");
        let why = "leads out to the internet (9.9.9.9: via 10.0.0.254 dev r0, table 100)";
        case.keeps("9.9.9.9", "r0", why);
        // As wg-quick(8) does it.
        sh("ip rule delete to 8.0.0.0/5; ip rule add not fwmark 77 lookup 100 priority 900
            ip rule add lookup main suppress_prefixlength 0 priority 800");
        case.keeps("9.9.9.9", "r0", why);
    });
}

/// All that the host sends comes in by lo.
#[test]
fn rule_for_what_the_host_sends_is_for_all() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip route add default via 10.2.0.254; ip rule add iif lo lookup 100; ip route add blackhole default table 100
            ip route add default via 10.0.0.254 table 100 metric 9");
        assert!(get("9.9.9.9").contains("Invalid argument"), "{}", get("9.9.9.9"));
        case.refuses("carries the default route 0.0.0.0/0 with metric 9 of table 100");
        sh("ip route delete blackhole default table 100");
        case.keeps("9.9.9.9", "r0", "carries the default route 0.0.0.0/0 with metric 9 of table 100");
    });
}

#[test]
fn rule_for_a_protocol_that_the_kernel_does_not_look_up_is_not_asked() {
    alone(|host| {
        Case::new(host);
        sh("ip rule add ipproto sctp lookup 100; ip route add default via 10.0.0.254 table 100");
        let why = "a rule is for protocol 132, and the kernel looks up TCP, UDP and ICMP alone";
        let said = prepare(host, "again", "r1", &[]).ok();
        assert_eq!(said.err.matches(why).count(), 1, "{said:?}");
        asking("free", "free").create(host).fails(3, &["could not be asked", why, "--allow-bootstrap-iface"]);
    });
}

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
        case.keeps("10.0.0.9", "r0", "leads to 10.0.0.9, the other end of an IPsec tunnel (dev r0, table main)");
    });
}

#[test]
fn segments_of_srv6_are_followed() {
    alone(|host| {
        let ends = "ip address add fd00::1/64 dev r0 nodad; ip address add fd02::1/64 dev r2 nodad";
        let case = Case::with(host, ends, &[]);
        let seg6 = |to: &str, segments: &str| {
            sh(&format!("ip -6 route add {to} encap seg6 mode encap segs {segments} dev r2"))
        };
        seg6("2000::/3", "fd00::9,fd02::9");
        let why = "leads to fd00::9, a segment that packets of this host go by (dev r0, table main)";
        case.keeps("fd00::9", "r0", why);
        // A segment by another, of one leg of two.
        sh("ip -6 route delete 2000::/3");
        sh(
            "ip -6 route add 2000::/3 nexthop via fd02::8 dev r2 nexthop via fd02::7 encap seg6 mode encap segs fd77::9 dev r2",
        );
        seg6("fd77::/64", "fd00::9");
        case.keeps("fd00::9", "r0", why);
        sh("ip -6 route delete 2000::/3; ip -6 nexthop add id 7 encap seg6 mode encap segs fd00::9 dev r2
            echo 0 > /proc/sys/net/ipv4/nexthop_compat_mode; ip -6 route add 2000::/3 nhid 7");
        case.keeps("fd00::9", "r0", why);
    });
}

/// What the kernel says with another selector than the destination, where all else goes by r2.
fn goes_by_a_rule(to: &str, rule: &str) {
    sh(&format!("ip route add {to} via 10.0.0.254 table 100; ip rule add {rule} lookup 100"));
    let way = get(&format!("{to} {rule}"));
    assert!(way.contains("dev r0 "), "{way}");
    assert!(get(to).contains("dev r2 "), "{}", get(to));
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
fn ends_of_a_forwarding_table_are_asked_for_from_the_tunnels_address() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip address add 10.44.0.1/32 dev lo; ip route add 10.66.0.0/16 via 10.2.0.254
            ip link add vx0 type vxlan id 5 dstport 4789 local 10.44.0.1 nolearning
            bridge fdb append 00:00:00:00:00:00 dev vx0 dst 10.66.0.9; ip link set vx0 up
            ip address add 10.9.0.1/24 dev vx0; ip route add default via 10.9.0.254");
        goes_by_a_rule("10.66.0.9", "from 10.44.0.1");
        case.refuses("is tied to vx0, which carries the default route 0.0.0.0/0 with metric 0");
    });
}

#[test]
fn name_server_is_asked_for_by_its_port() {
    alone(|host| {
        let case = Case::new(host);
        let file = host.run.parent().unwrap().join("resolv");
        fs::write(&file, "nameserver 10.66.0.53\n").unwrap();
        sh(&format!("mount --bind {} /etc/resolv.conf; ip route add default via 10.2.0.254", file.display()));
        goes_by_a_rule("10.66.0.53", "ipproto udp dport 53");
        case.refuses("leads to the name server 10.66.0.53 (via 10.0.0.254 dev r0, table 100)");
    });
}

/// A connected UDP socket that some options are set of; it lives until it is dropped.
fn udp(from: &str, to: &str, options: &str) -> Alive {
    let script = format!(
        "import socket, sys\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n{options}\ns.bind(('{from}', 0))\n\
         s.connect(('{to}', 5000))\nprint(flush=True)\nsys.stdin.read()"
    );
    let mut process =
        Command::new("python3").args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "\n", "the socket could not be made");
    Alive(process)
}

struct Alive(std::process::Child);

impl Drop for Alive {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn socket_with_a_type_of_service_goes_by_the_rule_for_it() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip address add 10.44.0.1/32 dev lo; ip route add 10.60.0.0/16 via 10.2.0.254");
        goes_by_a_rule("10.60.0.1", "tos 0x10");
        // The lowest bits are ECN's.
        let _socket = udp("10.44.0.1", "10.60.0.1", "s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x12)");
        case.refuses("is in use: a connection to 10.60.0.1 goes by r0 (UDP from 10.44.0.1:");
    });
}

#[test]
fn default_of_a_route_for_a_type_of_service_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip route add default via 10.2.0.254; ip route add 0.0.0.0/1 tos 0x10 via 10.0.0.254");
        let why = "leads out to the internet (9.9.9.9 with TOS 0x10: via 10.0.0.254 dev r0, table main)";
        case.keeps("9.9.9.9 tos 0x10", "r0", why);
    });
}

#[test]
fn socket_that_sends_to_a_group_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip route add 224.0.0.0/4 dev r0");
        let _socket = udp("0.0.0.0", "239.2.11.71", "");
        case.keeps("239.2.11.71", "r0", "is in use: a connection to 239.2.11.71 goes by r0 (UDP from 10.0.0.1:");
    });
}

/// Its local route is another host's for now.
#[test]
fn standby_address_that_another_host_has_is_far() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip link add d0 type bridge; ip link set d0 up; ip address add 10.0.0.9/32 dev d0
            ip route delete table local local 10.0.0.9 dev d0");
        let _socket = udp("0.0.0.0", "10.0.0.9", "");
        case.keeps("10.0.0.9", "r0", "is in use: a connection to 10.0.0.9 goes by r0 (UDP from 10.0.0.1:");
    });
}

#[test]
fn socket_bound_to_a_link_without_a_route_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip address add 10.0.0.1/32 dev lo");
        let bound = "s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'r0')";
        let _socket = udp("10.0.0.1", "10.99.0.1", bound);
        case.keeps(
            "10.99.0.1 oif r0",
            "r0",
            "is in use: a connection to 10.99.0.1 goes by r0, to which it is bound (UDP",
        );
    });
}

/// One half of the internet by r0 where `host` sends by r2.
fn half(of: &str, table: &str) -> String {
    format!("ip route add 0.0.0.0/1 via 10.{of}.0.254 table {table}")
}

#[test]
fn packets_that_a_negated_rule_leaves_out_are_asked_for() {
    alone(|host| {
        let case = Case::new(host);
        sh(&format!("{}; ip route add default via 10.2.0.254 table 100", half("0", "main")));
        for (rule, packet) in [("not fwmark 7", "mark 7"), ("not ipproto tcp", "ipproto tcp dport 443")] {
            sh(&format!("ip rule add {rule} lookup 100"));
            assert!(get("9.9.9.9").contains("dev r2 "));
            case.keeps(&format!("9.9.9.9 {packet}"), "r0", "leads out to the internet (9.9.9.9");
            sh(&format!("ip rule delete {rule} lookup 100"));
        }
    });
}

#[test]
fn last_port_of_a_range_is_asked_for() {
    alone(|host| {
        let case = Case::new(host);
        sh(&format!(
            "{}; ip route add default via 10.2.0.254; ip rule add pref 10 ipproto tcp dport 443 lookup main
             ip rule add pref 20 ipproto tcp dport 443-8443 lookup 100",
            half("0", "100")
        ));
        case.keeps(
            "9.9.9.9 ipproto tcp dport 8443",
            "r0",
            "leads out to the internet (9.9.9.9 of protocol 6 to port 8443",
        );
    });
}

#[test]
fn default_of_marked_packets_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip route add default via 10.2.0.254; ip route add default via 10.0.0.254 table 100
            ip rule add fwmark 7 lookup 100");
        let why = "leads out to the internet (9.9.9.9 with mark 0x7: via 10.0.0.254 dev r0, table 100)";
        case.keeps("9.9.9.9 mark 7", "r0", why);
        sh("ip rule delete fwmark 7; ip rule add not fwmark 0/0x30 lookup 100");
        let why = "leads out to the internet (9.9.9.9 with mark 0x10: via 10.0.0.254 dev r0, table 100)";
        case.keeps("9.9.9.9 mark 0x10", "r0", why);
    });
}

/// ssh sets a type of service.
#[test]
fn default_of_a_type_of_service_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip route add default via 10.2.0.254; ip route add default via 10.0.0.254 table 100
            ip rule add tos 0x10 lookup 100");
        let why = "leads out to the internet (9.9.9.9 with TOS 0x10: via 10.0.0.254 dev r0, table 100)";
        case.keeps("9.9.9.9 tos 0x10", "r0", why);
    });
}

#[test]
fn default_of_one_user_is_kept() {
    // Root of a user namespace knows no other user.
    alone_as_root(|host| {
        let case = Case::new(host);
        sh("ip route add default via 10.2.0.254; ip route add default via 10.0.0.254 table 100
            ip rule add uidrange 1000-1007 lookup 100");
        let why = |user: &str| {
            format!("leads out to the internet (9.9.9.9 of user {user}: via 10.0.0.254 dev r0, table 100)")
        };
        case.keeps("9.9.9.9 uid 1000", "r0", &why("1000"));
        sh("ip rule delete uidrange 1000-1007; ip rule add not uidrange 0-99 lookup 100");
        case.keeps("9.9.9.9 uid 100", "r0", &why("100"));
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
        for vxlan in ["remote 10.0.0.9 dev r0", "remote 10.0.0.9", "group 239.1.1.1 dev r0"] {
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
        sh("ip link add mv0 link r0 type macvlan mode bridge; ip link set mv0 up; ip address add 10.7.0.1/24 dev mv0
            ip link add vx1 type vxlan id 6 dstport 4790 remote 10.7.0.9; ip link set vx1 up
            ip address add 10.8.0.1/24 dev vx1");
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
            ip link add vx0 type vxlan id 5 dstport 4789 remote 10.0.0.9; ip link set vx0 up; ip address add 10.9.0.1/24 dev vx0");
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
            "ip link add d0 index {} type veth peer name d1; ip link add vx0 type vxlan id 5 dstport 4789 remote 10.0.0.9 dev d0
             ip link set vx0 netns {}",
            r0.trim(),
            std::process::id()
        ));
        sh("ip link set vx0 up; ip address add 10.9.0.1/24 dev vx0; ip route add default via 10.9.0.254");
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
        sh("ip link add v0 type veth peer name v1; ip link set v0 up; ip link set v1 up
            ip link add vx0 type vxlan id 5 dstport 4789 remote 10.0.0.9; ip link set vx0 up
            ip link add br0 type bridge; ip link set br0 up; ip link set v1 master br0; ip link set vx0 master br0
            ip link add br1 type bridge; ip link set p1 master br1
            ip address add 10.9.0.1/24 dev v0; ip route add default via 10.9.0.254");
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
        sh("ip link add vx0 type vxlan dstport 4789 external; ip link set vx0 up
            ip address add 10.9.0.1/24 dev vx0; ip route add default via 10.9.0.254");
        let why = "what carries vx0: this vxlan learns its other ends from each packet";
        let said = prepare(host, "again", "r1", &[]).ok();
        assert_eq!(said.err.matches(why).count(), 1, "{said:?}");
        asking("free", "free").create(host).fails(3, &["could not be asked", why, "--allow-bootstrap-iface"]);
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
        sh("ip tuntap add tun0 mode tun; ip link set tun0 up; ip address add 10.9.0.1/24 dev tun0
            ip route add default via 10.9.0.254");
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
            "use Socket; open(T, '+<', '/dev/net/tun') or die; $r = pack('a16 s x22', '{device}', 0x1001);
            ioctl(T, 0x400454ca, $r) or die;
            {socket}; $| = 1; print qq(\\n); <STDIN>"
        );
        let mut perl =
            Command::new("perl").args(["-e", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(perl.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
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
        let out = "ip link set tun0 up; ip address add 10.9.0.1/24 dev tun0; ip route add default via 10.9.0.254";
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
fn second_default_counts_when_the_first_has_no_carrier() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip route add default via 10.2.0.254 metric 10; ip route add default via 10.0.0.254 metric 20
            echo 1 > /proc/sys/net/ipv4/conf/all/ignore_routes_with_linkdown; ip link set p2 down");
        until("the carrier has gone", || get("9.9.9.9").contains("dev r0 "));
        case.keeps("9.9.9.9", "r0", "leads out to the internet (9.9.9.9: via 10.0.0.254 dev r0, table main)");
    });
}

#[test]
fn ssh_that_comes_in_by_a_subnet_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        let peer = Peer::new();
        let listener = TcpListener::bind("0.0.0.0:22").unwrap();
        let _out = peer.within(|| TcpStream::connect("10.0.0.1:22").unwrap());
        let _in = listener.accept().unwrap();
        case.keeps("10.0.0.9", "r0", "is in use: ssh from 10.0.0.9 comes in by r0 (TCP from 10.0.0.1:22 to 10.0.0.9:");
    });
}

#[test]
fn ssh_that_is_answered_elsewhere_guards_both_ways() {
    alone(|host| {
        let case = Case::with(host, "ip address add 10.40.0.1/32 dev r0", &[]);
        let peer = Peer::new();
        peer.of.sh("ip address add 10.50.0.9/32 dev lo; ip route add 10.40.0.1 via 10.0.0.1");
        sh("ip route add 10.50.0.9 via 10.0.0.9");
        let listener = TcpListener::bind("10.40.0.1:22").unwrap();
        let at: SocketAddr = "10.40.0.1:22".parse().unwrap();
        let _out = peer.within(|| TcpStream::connect(at).unwrap());
        let _in = listener.accept().unwrap();
        sh("ip route replace 10.0.0.9 via 10.2.0.254");
        assert!(get("10.0.0.9 from 10.40.0.1").contains("dev r2 "));
        case.refuses("is in use: ssh from 10.0.0.9 comes in by r0, whose address it owns");
        prepare(host, "again", "r2", &[]).fails(4, &["r2 is in use: ssh from 10.0.0.9 comes in by r2"]);
    });
}

#[test]
fn nfs_and_others_over_a_host_route_are_kept() {
    alone(|host| {
        let case = Case::new(host);
        let peer = Peer::new();
        peer.of.sh("ip address add 10.77.0.9/32 dev lo; ip route add 10.44.0.1 via 10.0.0.1");
        // The address is nobody's but lo's, so that the route alone leads to r0.
        sh("ip address add 10.44.0.1/32 dev lo; ip route add 10.77.0.9 via 10.0.0.9 src 10.44.0.1");
        for (port, service) in [(2049, "NFS"), (3260, "iSCSI"), (10809, "NBD"), (22, "ssh")] {
            let _connection = peer.connect(&format!("10.77.0.9:{port}"));
            let why = format!("is in use: {service} to 10.77.0.9 goes out by r0 (TCP from 10.44.0.1:");
            case.keeps("10.77.0.9", "r0", &why);
        }
        let _connection = peer.connect("10.77.0.9:7777");
        case.keeps("10.77.0.9", "r0", "is in use: a connection to 10.77.0.9 goes by r0 (TCP from 10.44.0.1:");
    });
}

#[test]
fn connected_udp_is_kept_and_an_unconnected_one_is_not() {
    alone(|host| {
        let case = Case::new(host);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        prepare(host, "again", "r0", &[]).ok();
        socket.connect("10.0.0.9:5000").unwrap();
        case.keeps("10.0.0.9", "r0", "is in use: a connection to 10.0.0.9 goes by r0 (UDP from 10.0.0.1:");
    });
}

/// The server of a mount is down, and the client tries.
#[test]
fn connection_that_is_tried_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip neighbor add 10.0.0.9 lladdr 02:00:00:00:00:99 dev r0 nud permanent");
        let script = "exec 3<>/dev/tcp/10.0.0.9/2049";
        let mut client = Command::new("bash").args(["-c", script]).stderr(Stdio::null()).spawn().unwrap();
        let tried = || fs::read_to_string("/proc/net/tcp").unwrap().contains(":0801 02 ");
        until("a SYN is sent", tried);
        case.keeps("10.0.0.9", "r0", "is in use: NFS to 10.0.0.9 goes out by r0 (TCP from 10.0.0.1:");
        assert!(tried(), "it is tried still");
        client.kill().unwrap();
        client.wait().unwrap();
        until("the socket is gone", || !tried());
        prepare(host, "again", "r0", &[]).ok();
    });
}

#[test]
fn connection_that_one_end_has_shut_down_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        let peer = Peer::new();
        let is_in = |state: &str| fs::read_to_string("/proc/net/tcp").unwrap().contains(&format!(" {state} "));
        let why = "is in use: a connection to 10.0.0.9 goes by r0 (TCP from 10.0.0.1:";
        let (stream, listener) = peer.connect("10.0.0.9:7777");
        let (accepted, _) = listener.accept().unwrap();
        accepted.shutdown(Shutdown::Write).unwrap();
        until("the host alone may send", || is_in("08"));
        case.keeps("10.0.0.9", "r0", why);
        drop(stream);
        drop(accepted);
        until("the connection is gone", || !is_in("08") && !is_in("09"));
        let (stream, listener) = peer.connect("10.0.0.9:7778");
        let accepted = listener.accept().unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        until("the peer alone may send", || is_in("05"));
        case.keeps("10.0.0.9", "r0", why);
        // The kernel waits for the other end; no process does.
        drop(stream);
        assert!(is_in("05"));
        prepare(host, "again", "r0", &[]).ok();
        drop(accepted);
    });
}

#[test]
fn connection_that_comes_in_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        let peer = Peer::new();
        // The answer goes to nobody, so that the other end never says that it has it.
        sh("ip neighbor replace 10.0.0.9 lladdr 02:00:00:00:00:99 dev r0 nud permanent");
        let _listener = TcpListener::bind("0.0.0.0:22").unwrap();
        let script = "exec 3<>/dev/tcp/10.0.0.1/22";
        let enter = format!("--net=/proc/{}/ns/net", peer.of.pid());
        let mut client =
            Command::new("nsenter").args([&enter, "bash", "-c", script]).stderr(Stdio::null()).spawn().unwrap();
        let comes = || fs::read_to_string("/proc/net/tcp").unwrap().contains(" 03 ");
        until("a SYN has come", comes);
        case.keeps("10.0.0.9", "r0", "is in use: ssh from 10.0.0.9 comes in by r0 (TCP from 10.0.0.1:22 to 10.0.0.9:");
        assert!(comes(), "it comes in still");
        client.kill().unwrap();
        client.wait().unwrap();
    });
}

#[test]
fn sockets_within_this_host_guard_nothing() {
    alone(|host| {
        Case::new(host);
        let listener = TcpListener::bind("10.0.0.1:22").unwrap();
        let _connection = TcpStream::connect("10.0.0.1:22").unwrap();
        let _accepted = listener.accept().unwrap();
        let mut used = asking("used", "used");
        used.create(host).ok();
        used.stop(host).ok();
    });
}

#[test]
fn socket_with_a_mark_goes_by_the_rule_for_it() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip route add 10.60.0.0/16 via 10.2.0.254; ip route add 10.60.0.0/16 via 10.0.0.254 table 100
            ip rule add fwmark 9 lookup 100; ip address add 10.44.0.1/32 dev lo");
        // SO_MARK is 36; perl-base is part of every Debian.
        let script =
            "use Socket; socket(S, PF_INET, SOCK_DGRAM, 0); setsockopt(S, SOL_SOCKET, 36, pack('i', 9)) or die;
            bind(S, sockaddr_in(0, inet_aton('10.44.0.1'))) or die;
            connect(S, sockaddr_in(5000, inet_aton('10.60.0.1'))) or die; $| = 1; print qq(\\n); <STDIN>";
        let mut perl =
            Command::new("perl").args(["-e", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(perl.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "\n", "the socket could not be made");
        case.keeps("10.60.0.1 mark 9", "r0", "is in use: a connection to 10.60.0.1 goes by r0 (UDP from 10.44.0.1:");
        perl.kill().unwrap();
        perl.wait().unwrap();
    });
}

#[test]
fn peer_address_by_a_rule_is_kept_and_asked_for_again() {
    alone(|host| {
        let flags = ["--peer-address", "10.88.0.1"];
        let case = Case::with(host, "ip route add 10.88.0.0/16 via 10.2.0.254", &flags);
        sh("ip rule add to 10.88.0.0/16 lookup 100; ip route add 10.88.0.0/16 via 10.0.0.254 table 100");
        case.keeps("10.88.0.1", "r0", "leads to the peer address 10.88.0.1 (via 10.0.0.254 dev r0, table 100)");
        sh("ip route delete 10.88.0.0/16 table 100; ip route delete 10.88.0.0/16");
        asking("used", "used")
            .create(host)
            .fails(3, &["no route here leads to the peer address 10.88.0.1: prepare again"]);
    });
}

#[test]
fn bootstrap_address_that_comes_to_a_nic_is_kept() {
    alone(|host| {
        let flags = ["--bootstrap-address", "10.70.0.1"];
        let case = Case::with(host, "ip address add 10.70.0.1/24 dev r2", &flags);
        sh("ip address delete 10.70.0.1/24 dev r2
            ip link add mv0 link r0 type macvlan; ip link set mv0 up; ip address add 10.70.0.1/24 dev mv0");
        case.keeps("10.70.0.9", "mv0", "is tied to mv0, which owns the bootstrap address 10.70.0.1");
        sh("ip link delete mv0");
        asking("used", "used")
            .create(host)
            .fails(3, &["no interface here owns the bootstrap address 10.70.0.1: prepare again"]);
    });
}

#[test]
fn bridge_with_the_nic_as_a_port_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip link add br0 type bridge; ip link set br0 up; ip link set r0 master br0
            ip address add 10.9.0.1/24 dev br0; ip route add default via 10.9.0.254");
        case.keeps("9.9.9.9", "br0", "is tied to br0, which carries the default route");
        // And a layer more.
        sh("ip route delete default; ip link add mv0 link br0 type macvlan; ip link set mv0 up
            ip address add 10.7.0.1/24 dev mv0; ip route add 0.0.0.0/1 via 10.7.0.254");
        case.keeps("9.9.9.9", "mv0", "is tied to mv0, which leads out to the internet");
    });
}

#[test]
fn macvlan_with_the_default_route_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip link add mv0 link r0 type macvlan; ip link set mv0 up; ip address add 10.9.0.1/24 dev mv0
            ip route add default via 10.9.0.254 table 100; ip rule add lookup 100");
        case.keeps(
            "9.9.9.9",
            "mv0",
            "is tied to mv0, which carries the default route 0.0.0.0/0 with metric 0 of table 100",
        );
    });
}

#[test]
fn routers_of_one_preference_are_kept() {
    alone(|host| {
        let ends = "ip address add fd00::1/64 dev r0 nodad; ip address add fd02::1/64 dev r2 nodad";
        let case = Case::with(host, ends, &[]);
        // One without a gateway is no leg of the other's route, as those that come by advertisements.
        sh(
            "ip -6 route add 2000::/3 dev r0 proto ra metric 1024; ip -6 route append 2000::/3 via fd02::fe proto ra metric 1024",
        );
        let by = |dev: &str| (1..64).find(|i| get(&format!("2620:fe::{i:x}")).contains(&format!("dev {dev} ")));
        assert!(by("r0").is_some() || by("r2").is_some());
        case.refuses("leads out to the internet (2620:fe::fe: ");
        prepare(host, "again", "r2", &[]).fails(4, &["r2 leads out to the internet (2620:fe::fe: "]);
    });
}

#[test]
fn each_leg_of_a_multipath_route_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        let leg = |i: usize| format!("nexthop via 10.{i}.0.254");
        sh(&format!("ip route add 0.0.0.0/1 {} {}", leg(0), leg(2)));
        let why = "leads out to the internet (9.9.9.9: via 10.0.0.254 dev r0, table main)";
        let by_r0 = (1..64).map(|i| format!("9.9.9.{i}")).find(|to| get(to).contains("dev r0 ")).unwrap();
        case.keeps(&by_r0, "r0", why);
        prepare(host, "again", "r2", &[]).fails(4, &["r2 leads out to the internet (9.9.9.9: via 10.2.0.254 dev r2"]);
        // Its other leg is dead: this one is all that there is, and the dead one is nobody's way.
        sh("ip link set r2 down");
        case.keeps("9.9.9.9", "r0", why);
        prepare(host, "again", "r2", &[]).ok();
    });
}

#[test]
fn nexthop_objects_and_groups_are_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip nexthop add id 1 via 10.0.0.254 dev r0; ip nexthop add id 2 via 10.2.0.254 dev r2
            ip nexthop add id 3 group 1/2");
        let why = "leads out to the internet (9.9.9.9: via 10.0.0.254 dev r0, table main)";
        for compat in [1, 0] {
            sh(&format!("echo {compat} > /proc/sys/net/ipv4/nexthop_compat_mode"));
            sh("ip route replace 0.0.0.0/1 nhid 1");
            case.keeps("9.9.9.9", "r0", why);
            sh("ip route replace 0.0.0.0/1 nhid 3");
            let by_r0 = (1..64).map(|i| format!("9.9.9.{i}")).find(|to| get(to).contains("dev r0 ")).unwrap();
            case.keeps(&by_r0, "r0", why);
            prepare(host, "again", "r2", &[]).fails(4, &["r2 leads out to the internet (9.9.9.9: "]);
        }
    });
}

#[test]
fn ipv4_route_by_an_ipv6_gateway_is_kept() {
    alone(|host| {
        let case = Case::with(host, "ip address add fd00::1/64 dev r0 nodad", &[]);
        sh("ip route add 128.0.0.0/1 via inet6 fd00::fe dev r0");
        let why = "leads out to the internet (149.112.112.112: via fd00::fe dev r0, table main)";
        case.keeps("149.112.112.112", "r0", why);
    });
}

#[test]
fn name_server_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        let file = host.run.parent().unwrap().join("resolv.conf");
        fs::write(&file, "# a comment\nnameserver 127.0.0.53\nnameserver 10.66.0.53\nsearch example.com\n").unwrap();
        sh(&format!("mount --bind {} /etc/resolv.conf; ip route add 10.66.0.0/16 via 10.0.0.254", file.display()));
        let why = "leads to the name server 10.66.0.53 (via 10.0.0.254 dev r0, table main)";
        case.keeps("10.66.0.53", "r0", why);
    });
}

/// docker0 and many routers have the address `fe80::1`.
#[test]
fn link_local_name_server_is_not_another_links_address() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip link add br0 type bridge; ip link set br0 up; ip address add fe80::1/64 dev br0 nodad");
        let file = host.run.parent().unwrap().join("resolv.conf");
        fs::write(&file, "nameserver fe80::1%br0\n").unwrap();
        sh(&format!("mount --bind {} /etc/resolv.conf", file.display()));
        prepare(host, "again", "r0", &[]).ok();
        fs::write(&file, "nameserver fe80::1%r0\n").unwrap();
        case.refuses("leads to the name server fe80::1 (dev r0, table main)");
    });
}

/// As the first of equal routes serves them all, a connection over one rail leaves the others.
#[test]
fn connection_over_rails_in_one_subnet_guards_its_ways_alone() {
    alone(|host| {
        let near =
            "ip address add 10.5.0.2/16 dev r2; ip address add 10.5.0.1/16 dev r1; ip address add 10.5.0.3/16 dev r0
            ip address add fd05::2/64 dev r2 nodad; ip address add fd05::1/64 dev r1 nodad
            ip address add fd05::3/64 dev r0 nodad";
        let case = Case::with(host, near, &[]);
        let sockets = ["10.5.0.3:0", "[fd05::3]:0"].map(|from| UdpSocket::bind(from).unwrap());
        for (socket, to) in sockets.iter().zip(["10.5.0.9:5000", "[fd05::9]:5000"]) {
            socket.connect(to).unwrap();
        }
        assert!(get("10.5.0.9 from 10.5.0.3").contains("dev r2 "));
        case.refuses("is in use: a connection to ");
        prepare(host, "again", "r2", &[]).fails(4, &["r2 is in use: a connection to "]);
        let mut free = asking("free", "free");
        free.create(host).ok();
        free.stop(host).ok();
    });
}

#[test]
fn resolv_conf_that_nothing_writes_to_is_not_waited_for() {
    alone(|host| {
        Case::new(host);
        let file = host.run.parent().unwrap().join("fifo");
        sh(&format!("mkfifo {0}; mount --bind {0} /etc/resolv.conf", file.display()));
        let said = prepare(host, "again", "r1", &[]).ok();
        assert!(said.err.contains("/etc/resolv.conf is no plain file but a FIFO"), "{said:?}");
        asking("free", "free").create(host).fails(3, &["could not be asked", "is no plain file but a FIFO"]);
    });
}

#[test]
fn what_could_not_be_asked_is_refused() {
    alone(|host| {
        Case::new(host);
        // Root of a user namespace may not open it (devkmsg_open() and check_syslog_permissions() in kernel/printk/printk.c).
        sh("mount --bind /proc/kmsg /etc/resolv.conf");
        let said = prepare(host, "again", "r1", &[]).ok();
        assert!(said.err.contains("which links the host uses is not known in full"), "{said:?}");
        let before = host.normal();
        let why = "which links the host uses could not be asked: the name servers of /etc/resolv.conf";
        asking("free", "free").create(host).fails(3, &[why, "--allow-bootstrap-iface"]);
        same("the host", &before, &host.normal());
    });
}

#[test]
fn resolv_conf_in_another_encoding_is_read() {
    alone(|host| {
        let case = Case::new(host);
        let file = host.run.parent().unwrap().join("latin1");
        fs::write(&file, b"# B\xfcro\nnameserver 10.0.0.9\n").unwrap();
        sh(&format!("mount --bind {} /etc/resolv.conf", file.display()));
        case.keeps("10.0.0.9", "r0", "leads to the name server 10.0.0.9 (dev r0, table main)");
    });
}

/// What most multi-rail hosts look like: a table per rail, by rules for its address, and an uplink of its own.
#[test]
fn rails_with_tables_of_their_own_are_taken() {
    alone(|host| {
        host.rails(3);
        sh("ip link add up0 type veth peer name q0; ip link set q0 up; ip link set up0 up
            ip address add 192.0.2.1/24 dev up0; ip route add default via 192.0.2.254");
        for i in 0..3 {
            sh(&format!(
                "ip route add default via 10.{i}.0.254 table 10{i}; ip rule add from 10.{i}.0.1 lookup 10{i}
                 ip address add fd00:{i}::1/64 dev r{i} nodad; ip -6 rule add from fd00:{i}::1 lookup 10{i}
                 ip -6 route add default via fd00:{i}::fe table 10{i}
                 ip route add 10.{i}.0.0/16 via 10.{i}.0.254; ip route add default via 10.{i}.0.254 metric 100{i}"
            ));
        }
        let way = get("9.9.9.9");
        assert!(way.contains("dev up0 "), "{way}");
        prepare(host, "default", "r0 r1 r2", &[]).ok();
        let mut all = Container::new("all");
        all.create(host).ok();
        assert_eq!(get("9.9.9.9"), way);
        all.stop(host).ok();
        assert_eq!(get("9.9.9.9"), way);
        prepare(host, "default", "up0", &[]).fails(4, &["up0 carries the default route"]);
    });
}

/// As above, on a host that is not on the internet: the only default routes are those by which rails answer.
#[test]
fn rails_with_tables_of_their_own_are_taken_from_a_host_without_a_way_out() {
    alone(|host| {
        host.rails(3);
        sh(
            "ip link add up0 type veth peer name q0; ip link set q0 up; ip link set up0 up; ip address add 192.0.2.1/24 dev up0",
        );
        for i in 0..3 {
            sh(&format!(
                "ip route add default via 10.{i}.0.254 table 10{i}; ip route add 10.{i}.0.0/24 dev r{i} table 10{i}
                 ip rule add from 10.{i}.0.1 lookup 10{i}
                 ip address add fd00:{i}::1/64 dev r{i} nodad; ip -6 rule add from fd00:{i}::1 lookup 10{i}
                 ip -6 route add default via fd00:{i}::fe table 10{i}"
            ));
        }
        let way = get("9.9.9.9 from 10.0.0.1");
        assert!(get("9.9.9.9").contains("unreachable") && way.contains("dev r0 table 100"), "{way}");
        prepare(host, "default", "r0 r1 r2", &[]).ok();
        let mut all = Container::new("all");
        all.create(host).ok();
        all.stop(host).ok();
        assert_eq!(get("9.9.9.9 from 10.0.0.1"), way);
        // What comes in by one is answered by its table.
        let peer = Peer::new();
        let listener = TcpListener::bind("10.0.0.1:22").unwrap();
        let _out = peer.within(|| TcpStream::connect("10.0.0.1:22").unwrap());
        let _in = listener.accept().unwrap();
        let why = "r0 is in use: ssh from 10.0.0.9 comes in by r0 (TCP from 10.0.0.1:22 to 10.0.0.9:";
        Container::new("all").create(host).fails(3, &[why]);
        prepare(host, "default", "r1 r2", &[]).ok();
    });
}

#[test]
fn default_that_no_packet_comes_to_guards_nothing() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip route add default via 10.2.0.254; ip route add default via 10.0.0.254 table 100
            ip rule add lookup 100 priority 40000");
        prepare(host, "again", "r0", &[]).ok();
        let mut used = asking("used", "used");
        used.create(host).ok();
        used.stop(host).ok();
        // Without one before it, it serves.
        sh("ip route delete default; ip rule add lookup main suppress_prefixlength 0 priority 30");
        case.keeps("9.9.9.9", "r0", "carries the default route 0.0.0.0/0 with metric 0 of table 100");
        sh("ip route add default via 10.2.0.254; ip rule delete lookup main priority 32766");
        case.keeps("9.9.9.9", "r0", "carries the default route 0.0.0.0/0 with metric 0 of table 100");
    });
}

#[test]
fn default_without_a_rule_that_leads_to_it_guards_nothing() {
    alone(|host| {
        let case = Case::new(host);
        // Without a rule for main the kernel finds no router by itself: the routes name its link.
        sh("ip route add default via 10.0.0.254 dev r0 onlink; ip route add default via 10.0.0.254 dev r0 onlink table 253
            ip route add default via 10.2.0.254 table 100; ip rule add lookup 100 priority 40000");
        case.refuses("carries the default route 0.0.0.0/0 with metric 0");
        sh("ip rule delete lookup main; ip rule delete lookup default");
        let way = get("9.9.9.9");
        assert!(way.contains("dev r2 table 100 "), "{way}");
        prepare(host, "again", "r0", &[]).ok();
        let mut used = asking("used", "used");
        used.create(host).ok();
        used.stop(host).ok();
        prepare(host, "again", "r2", &[]).fails(4, &["r2 carries the default route"]);
    });
}

#[test]
fn rule_that_jumps_is_followed() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip route add default via 10.0.0.254 table 100; ip rule add lookup 100 priority 150
            ip route add default via 10.2.0.254; ip rule add goto 32766 priority 100");
        assert!(get("9.9.9.9").contains("dev r2 "));
        prepare(host, "again", "r0", &[]).ok();
        let mut used = asking("used", "used");
        used.create(host).ok();
        used.stop(host).ok();
        // To where no rule is: it is passed over. As is one that is for some packets alone, by the others.
        for jump in ["goto 200", "to 10.66.0.0/16 goto 32766"] {
            sh(&format!("ip rule delete priority 100; ip rule add {jump} priority 100"));
            case.keeps("9.9.9.9", "r0", "carries the default route 0.0.0.0/0 with metric 0 of table 100");
        }
        // What it jumps over hides nothing behind it.
        sh("ip rule delete priority 100; ip rule add goto 32766 priority 100
            ip route replace default via 10.2.0.254 table 100; ip route delete default
            ip route add blackhole default metric 5; ip route add default via 10.0.0.254 metric 10");
        case.refuses("carries the default route 0.0.0.0/0 with metric 10");
    });
}

#[test]
fn default_that_a_router_advertises_is_kept_and_can_be_insisted_on() {
    alone(|host| {
        let ends = "ip route add default via 10.2.0.254; ip address add fd00::1/64 dev r0 nodad";
        let case = Case::with(host, ends, &[]);
        sh("ip -6 route add default via fd00::fe dev r0 proto ra metric 1024");
        let why = "carries the default route ::/0 with metric 1024, which the router fd00::fe advertises";
        case.keeps("2620:fe::fe", "r0", why);
        prepare(host, "insisting", "r0", &["--allow-bootstrap-iface"]).ok();
        let mut insisting = asking("insisting", "insisting");
        insisting.create(host).ok();
        insisting.stop(host).ok();
        assert!(get("2620:fe::fe").contains("dev r0 "));
    });
}

/// A daemon of the host's has one session per rail.
#[test]
fn bgp_over_a_rail_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        let peer = Peer::new();
        let connection = peer.connect("10.0.0.9:179");
        let from = connection.0.local_addr().unwrap();
        let why =
            format!("is in use: BGP to 10.0.0.9 goes out by r0 (TCP from {from} to 10.0.0.9:179: dev r0, table main)");
        // Which of its two ways comes first does not matter.
        case.keeps("10.0.0.9", "r0", why.split(": dev").next().unwrap());
    });
}

#[test]
fn name_server_by_a_link_that_is_gone_guards_nothing() {
    alone(|host| {
        Case::new(host);
        let file = host.run.parent().unwrap().join("resolv.conf");
        fs::write(&file, "nameserver fe80::1%gone\nnameserver fe80::2\n").unwrap();
        sh(&format!("mount --bind {} /etc/resolv.conf", file.display()));
        let said = prepare(host, "again", "r0", &[]).ok();
        assert!(!said.err.contains("is not known"), "{said:?}");
        let mut used = asking("used", "used");
        used.create(host).ok();
        used.stop(host).ok();
    });
}

#[test]
fn insisting_takes_what_the_host_uses() {
    alone(|host| {
        host.rails(2);
        sh("ip route add 0.0.0.0/1 via 10.0.0.254");
        let said = prepare(host, "default", "r0", &["--allow-bootstrap-iface"]).ok();
        assert!(said.out.contains("taken as asked, although it leads out to the internet"), "{said:?}");
        let mut container = Container::new("c");
        container.create(host).ok();
        container.stop(host).ok();
        assert!(get("9.9.9.9").contains("dev r0 "));
    });
}

#[test]
fn plan_of_an_earlier_version_is_guarded_all_the_same() {
    alone(|host| {
        let case = Case::new(host);
        let path = host.run.join("plans/used.json");
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("\"job\""), "{text}");
        sh("ip route add 0.0.0.0/1 via 10.0.0.254");
        case.keeps("9.9.9.9", "r0", "leads out to the internet");
    });
}

#[test]
fn recorded_host_says_what_was_not_checked() {
    alone(|host| {
        Case::new(host);
        sh("ip route add 0.0.0.0/1 via 10.0.0.254");
        let file = host.run.parent().unwrap().join("host.json");
        let told = host.rdmaprep(&["snapshot", "--json"]).ok().out;
        fs::write(&file, &told).unwrap();
        let path = file.to_str().unwrap();
        let dry = |ifaces: &str| prepare(host, "again", ifaces, &["--dry-run", "--snapshot", path]);
        dry("r0").fails(4, &["r0 leads out to the internet"]);
        let mut recorded: serde_json::Value = serde_json::from_str(&told).unwrap();
        recorded.as_object_mut().unwrap().remove("paths").unwrap();
        fs::write(&file, recorded.to_string()).unwrap();
        assert!(dry("r0").ok().err.contains("this recording has no route lookups"));
        recorded["routes"] = json!([]);
        fs::write(&file, recorded.to_string()).unwrap();
        let said = dry("r0").ok();
        assert!(said.err.contains("not checked: this recording has no routes"), "{said:?}");
        let doctor = host.rdmaprep(&["doctor", "--snapshot", path]).out;
        assert!(doctor.contains("uplink") && doctor.contains("not checked"), "{doctor}");
    });
}
