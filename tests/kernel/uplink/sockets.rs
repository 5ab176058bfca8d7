//! Connections and sockets that the host has.

use super::*;

/// A connected UDP socket that some options are set of; it lives until it is dropped.
fn udp(from: &str, to: &str, options: &str) -> Alive {
    let script = format!(
        "import socket, sys\ns = socket.socket(socket.AF_INET, \
        socket.SOCK_DGRAM)\n{options}\ns.bind(('{from}', 0))\n\
         s.connect(('{to}', 5000))\nprint(flush=True)\nsys.stdin.read()"
    );
    let mut process = Command::new("python3")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "\n", "the socket could not be made");
    Alive(process)
}

#[test]
fn socket_with_a_type_of_service_goes_by_the_rule_for_it() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip address add 10.44.0.1/32 dev lo; ip route add 10.60.0.0/16 via 10.2.0.254");
        goes_by_a_rule("10.60.0.1", "tos 0x10");
        // The lowest bits are ECN's.
        let _socket = udp(
            "10.44.0.1",
            "10.60.0.1",
            "s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x12)",
        );
        case.refuses("is in use: a connection to 10.60.0.1 goes by r0 (UDP from 10.44.0.1:");
    });
}

#[test]
fn socket_that_sends_to_a_group_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip route add 224.0.0.0/4 dev r0");
        let _socket = udp("0.0.0.0", "239.2.11.71", "");
        case.keeps(
            "239.2.11.71",
            "r0",
            "is in use: a connection to 239.2.11.71 goes by r0 (UDP from 10.0.0.1:",
        );
    });
}

#[test]
fn socket_of_a_dhcp_client_guards_nothing() {
    alone(|host| {
        Case::new(host);
        let client = UdpSocket::bind("10.0.0.1:68").unwrap();
        client.connect("10.0.0.9:67").unwrap();
        let six = UdpSocket::bind("[::1]:546").unwrap();
        six.connect("[::1]:547").unwrap();
        prepare(host, "again", "r0", &[]).ok();
        client.connect("10.0.0.9:5000").unwrap();
        prepare(host, "again", "r0", &[]).fails(4, &["a connection to 10.0.0.9 goes by r0"]);
    });
}

/// Its local route is another host's for now.
#[test]
fn standby_address_that_another_host_has_is_far() {
    alone(|host| {
        let case = Case::new(host);
        sh(
            "ip link add d0 type bridge; ip link set d0 up; ip address add 10.0.0.9/32 dev d0
            ip route delete table local local 10.0.0.9 dev d0",
        );
        let _socket = udp("0.0.0.0", "10.0.0.9", "");
        case.keeps(
            "10.0.0.9",
            "r0",
            "is in use: a connection to 10.0.0.9 goes by r0 (UDP from 10.0.0.1:",
        );
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

#[test]
fn ssh_that_comes_in_by_a_subnet_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        let peer = Peer::new();
        let listener = TcpListener::bind("0.0.0.0:22").unwrap();
        let _out = peer.within(|| TcpStream::connect("10.0.0.1:22").unwrap());
        let _in = listener.accept().unwrap();
        case.keeps(
            "10.0.0.9",
            "r0",
            "is in use: ssh from 10.0.0.9 comes in by r0 (TCP from 10.0.0.1:22 to 10.0.0.9:",
        );
    });
}

#[test]
fn ssh_that_is_answered_elsewhere_guards_both_ways() {
    alone(|host| {
        let case = Case::with(host, "ip address add 10.40.0.1/32 dev r0", &[]);
        let peer = Peer::new();
        peer.of
            .sh("ip address add 10.50.0.9/32 dev lo; ip route add 10.40.0.1 via 10.0.0.1");
        sh("ip route add 10.50.0.9 via 10.0.0.9");
        let listener = TcpListener::bind("10.40.0.1:22").unwrap();
        let at: SocketAddr = "10.40.0.1:22".parse().unwrap();
        let _out = peer.within(|| TcpStream::connect(at).unwrap());
        let _in = listener.accept().unwrap();
        sh("ip route replace 10.0.0.9 via 10.2.0.254");
        assert!(get("10.0.0.9 from 10.40.0.1").contains("dev r2 "));
        case.refuses("is in use: ssh from 10.0.0.9 comes in by r0, whose address it owns");
        prepare(host, "again", "r2", &[])
            .fails(4, &["r2 is in use: ssh from 10.0.0.9 comes in by r2"]);
    });
}

#[test]
fn nfs_and_others_over_a_host_route_are_kept() {
    alone(|host| {
        let case = Case::new(host);
        let peer = Peer::new();
        peer.of
            .sh("ip address add 10.77.0.9/32 dev lo; ip route add 10.44.0.1 via 10.0.0.1");
        // Only lo has the address, so that only the route leads to r0.
        sh("ip address add 10.44.0.1/32 dev lo; ip route add 10.77.0.9 via 10.0.0.9 src 10.44.0.1");
        for (port, service) in [(2049, "NFS"), (3260, "iSCSI"), (10809, "NBD"), (22, "ssh")] {
            let _connection = peer.connect(&format!("10.77.0.9:{port}"));
            let why =
                format!("is in use: {service} to 10.77.0.9 goes out by r0 (TCP from 10.44.0.1:");
            case.keeps("10.77.0.9", "r0", &why);
        }
        let _connection = peer.connect("10.77.0.9:7777");
        case.keeps(
            "10.77.0.9",
            "r0",
            "is in use: a connection to 10.77.0.9 goes by r0 (TCP from 10.44.0.1:",
        );
    });
}

#[test]
fn connected_udp_is_kept_and_an_unconnected_one_is_not() {
    alone(|host| {
        let case = Case::new(host);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        prepare(host, "again", "r0", &[]).ok();
        socket.connect("10.0.0.9:5000").unwrap();
        case.keeps(
            "10.0.0.9",
            "r0",
            "is in use: a connection to 10.0.0.9 goes by r0 (UDP from 10.0.0.1:",
        );
    });
}

/// The server of a mount is down, and the client tries.
#[test]
fn connection_that_is_tried_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        sh("ip neighbor add 10.0.0.9 lladdr 02:00:00:00:00:99 dev r0 nud permanent");
        let script = "exec 3<>/dev/tcp/10.0.0.9/2049";
        let mut client = Command::new("bash")
            .args(["-c", script])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let tried = || {
            fs::read_to_string("/proc/net/tcp")
                .unwrap()
                .contains(":0801 02 ")
        };
        until("a SYN is sent", tried);
        case.keeps(
            "10.0.0.9",
            "r0",
            "is in use: NFS to 10.0.0.9 goes out by r0 (TCP from 10.0.0.1:",
        );
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
        let is_in = |state: &str| {
            fs::read_to_string("/proc/net/tcp")
                .unwrap()
                .contains(&format!(" {state} "))
        };
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
        // No host has the answer's MAC address, so that the peer never acknowledges it.
        sh("ip neighbor replace 10.0.0.9 lladdr 02:00:00:00:00:99 dev r0 nud permanent");
        let _listener = TcpListener::bind("0.0.0.0:22").unwrap();
        let script = "exec 3<>/dev/tcp/10.0.0.1/22";
        let enter = format!("--net=/proc/{}/ns/net", peer.of.pid());
        let mut client = Command::new("nsenter")
            .args([&enter, "bash", "-c", script])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let comes = || {
            fs::read_to_string("/proc/net/tcp")
                .unwrap()
                .contains(" 03 ")
        };
        until("a SYN has come", comes);
        case.keeps(
            "10.0.0.9",
            "r0",
            "is in use: ssh from 10.0.0.9 comes in by r0 (TCP from 10.0.0.1:22 to 10.0.0.9:",
        );
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
        sh(
            "ip route add 10.60.0.0/16 via 10.2.0.254; ip route add 10.60.0.0/16 via 10.0.0.254 \
            table 100
            ip rule add fwmark 9 lookup 100; ip address add 10.44.0.1/32 dev lo",
        );
        // SO_MARK is 36; perl-base is part of every Debian.
        let script =
            "use Socket; socket(S, PF_INET, SOCK_DGRAM, 0); setsockopt(S, SOL_SOCKET, 36, \
            pack('i', 9)) or die;
            bind(S, sockaddr_in(0, inet_aton('10.44.0.1'))) or die;
            connect(S, sockaddr_in(5000, inet_aton('10.60.0.1'))) or die; $| = 1; print qq(\\n); \
            <STDIN>";
        let mut perl = Command::new("perl")
            .args(["-e", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(perl.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "\n", "the socket could not be made");
        case.keeps(
            "10.60.0.1 mark 9",
            "r0",
            "is in use: a connection to 10.60.0.1 goes by r0 (UDP from 10.44.0.1:",
        );
        perl.kill().unwrap();
        perl.wait().unwrap();
    });
}

/// As the first of equal routes serves them all, a connection over one rail leaves the others.
#[test]
fn connection_over_rails_in_one_subnet_guards_its_ways_alone() {
    alone(|host| {
        let near =
            "ip address add 10.5.0.2/16 dev r2; ip address add 10.5.0.1/16 dev r1; ip address add \
            10.5.0.3/16 dev r0
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

/// A daemon of the host's has one session per rail.
#[test]
fn bgp_over_a_rail_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        let peer = Peer::new();
        let connection = peer.connect("10.0.0.9:179");
        let from = connection.0.local_addr().unwrap();
        let why = format!(
            "is in use: BGP to 10.0.0.9 goes out by r0 (TCP from {from} to 10.0.0.9:179: dev r0, \
            table main)"
        );
        // Which of its two ways comes first does not matter.
        case.keeps("10.0.0.9", "r0", why.split(": dev").next().unwrap());
    });
}
