//! The links that the host uses stay, however it uses them. Each layout is made on the real kernel,
//! which says by `ip route get` which way packets go; `prepare` and the create hook then refuse the
//! NIC, take one that the host does not use, and leave the host's ways as they were.

mod layers;
mod names;
mod routes;
mod sockets;
mod sources;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};

use crate::{alone, alone_as_root};
use rdmaprep::kernel::netns::Netns;
use serde_json::json;
use testkit::{Container, Host, same, sh, until};

/// What the hook says before its reason.
const LOST: &str = "the host would lose its network: r0 ";

/// The kernel's own answer, without what it caches.
fn get(question: &str) -> String {
    let said = sh(&format!("ip route get {question} 2>&1 || :"));
    said.lines().next().unwrap_or_default().trim().to_owned()
}

fn prepare(host: &Host, name: &str, ifaces: &str, more: &[&str]) -> testkit::Said {
    host.rdmaprep(&[&["prepare", "--plan", name, "--ifaces", ifaces], more].concat())
}

fn asking(id: &str, plan: &str) -> Container {
    Container::new(id).annotated(json!({ "rdmaprep.io/plan": plan }))
}

/// A host with r0, which it will use, r1, which it never does, and r2. Plans are made before the
/// host uses r0.
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

    /// The host uses r0 now: the kernel says that what is asked for goes by `dev`, and r0 stays for
    /// that reason.
    fn keeps(&self, question: &str, dev: &str, reason: &str) {
        let (host, way) = (self.host, get(question));
        assert!(
            way.contains(&format!("dev {dev} ")),
            "the layout is another one: {way}"
        );
        self.refuses(reason);
        let mut free = asking("free", "free");
        free.create(host).ok();
        assert_eq!(
            get(question),
            way,
            "a NIC that the host does not use is away"
        );
        free.stop(host).ok();
        assert_eq!(get(question), way, "it is back");
        host.is_clean();
    }

    /// `prepare` and the hook refuse r0, and nothing moves.
    fn refuses(&self, reason: &str) {
        let host = self.host;
        let reason = format!("r0 {reason}");
        prepare(host, "again", "r0", self.flags).fails(4, &[&reason, "--allow-bootstrap-iface"]);
        prepare(host, "again", "r0 r1", self.flags).fails(4, &["--ifaces names NICs", &reason]);
        let before = host.normal();
        asking("used", "used")
            .create(host)
            .fails(3, &[&reason, LOST, "--allow-bootstrap-iface"]);
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
        until("r0 has a carrier again", || {
            sh("ip link show r0").contains("LOWER_UP")
        });
        Peer { of }
    }

    fn within<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        Netns::of_process(self.of.pid() as i32)
            .unwrap()
            .visit(|| Ok(body()))
            .unwrap()
    }

    /// A connection of the host's to the peer.
    fn connect(&self, to: &str) -> (TcpStream, TcpListener) {
        let listener = self.within(|| TcpListener::bind(to).unwrap());
        (TcpStream::connect(to).unwrap(), listener)
    }
}

/// What the kernel says with another selector than the destination, where all else goes by r2.
fn goes_by_a_rule(to: &str, rule: &str) {
    sh(&format!(
        "ip route add {to} via 10.0.0.254 table 100; ip rule add {rule} lookup 100"
    ));
    let way = get(&format!("{to} {rule}"));
    assert!(way.contains("dev r0 "), "{way}");
    assert!(get(to).contains("dev r2 "), "{}", get(to));
}

struct Alive(std::process::Child);

impl Drop for Alive {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn peer_address_by_a_rule_is_kept_and_asked_for_again() {
    alone(|host| {
        let flags = ["--peer-address", "10.88.0.1"];
        let case = Case::with(host, "ip route add 10.88.0.0/16 via 10.2.0.254", &flags);
        sh(
            "ip rule add to 10.88.0.0/16 lookup 100; ip route add 10.88.0.0/16 via 10.0.0.254 \
            table 100",
        );
        case.keeps(
            "10.88.0.1",
            "r0",
            "leads to the peer address 10.88.0.1 (via 10.0.0.254 dev r0, table 100)",
        );
        sh("ip route delete 10.88.0.0/16 table 100; ip route delete 10.88.0.0/16");
        asking("used", "used").create(host).fails(
            3,
            &["no route here leads to the peer address 10.88.0.1: prepare again"],
        );
    });
}

#[test]
fn bootstrap_address_that_comes_to_a_nic_is_kept() {
    alone(|host| {
        let flags = ["--bootstrap-address", "10.70.0.1"];
        let case = Case::with(host, "ip address add 10.70.0.1/24 dev r2", &flags);
        sh("ip address delete 10.70.0.1/24 dev r2
            ip link add mv0 link r0 type macvlan; ip link set mv0 up; ip address add 10.70.0.1/24 \
            dev mv0");
        case.keeps(
            "10.70.0.9",
            "mv0",
            "is tied to mv0, which owns the bootstrap address 10.70.0.1",
        );
        sh("ip link delete mv0");
        asking("used", "used").create(host).fails(
            3,
            &["no interface here owns the bootstrap address 10.70.0.1: prepare again"],
        );
    });
}

#[test]
fn what_could_not_be_asked_is_refused() {
    alone(|host| {
        Case::new(host);
        // Root of a user namespace may not open it (devkmsg_open() and check_syslog_permissions()
        // in kernel/printk/printk.c).
        sh("mount --bind /proc/kmsg /etc/resolv.conf");
        let said = prepare(host, "again", "r1", &[]).ok();
        assert!(
            said.err
                .contains("which links the host uses is not known in full"),
            "{said:?}"
        );
        let before = host.normal();
        let why =
            "which links the host uses could not be asked: the name servers of /etc/resolv.conf";
        asking("free", "free")
            .create(host)
            .fails(3, &[why, "--allow-bootstrap-iface"]);
        same("the host", &before, &host.normal());
    });
}

/// What most multi-rail hosts look like: a table per rail, by rules for its address, and an uplink
/// of its own.
#[test]
fn rails_with_tables_of_their_own_are_taken() {
    alone(|host| {
        host.rails(3);
        sh(
            "ip link add up0 type veth peer name q0; ip link set q0 up; ip link set up0 up
            ip address add 192.0.2.1/24 dev up0; ip route add default via 192.0.2.254",
        );
        for i in 0..3 {
            sh(&format!(
                "ip route add default via 10.{i}.0.254 table 10{i}; ip rule add from 10.{i}.0.1 \
                lookup 10{i}
                 ip address add fd00:{i}::1/64 dev r{i} nodad; ip -6 rule add from fd00:{i}::1 \
                 lookup 10{i}
                 ip -6 route add default via fd00:{i}::fe table 10{i}
                 ip route add 10.{i}.0.0/16 via 10.{i}.0.254; ip route add default via \
                 10.{i}.0.254 metric 100{i}"
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

/// As above, on a host that is not on the internet: the only default routes are those by which
/// rails answer.
#[test]
fn rails_with_own_tables_are_taken_of_a_host_without_a_way_out() {
    alone(|host| {
        host.rails(3);
        sh(
            "ip link add up0 type veth peer name q0; ip link set q0 up; ip link set up0 up; ip \
            address add 192.0.2.1/24 dev up0",
        );
        for i in 0..3 {
            sh(&format!(
                "ip route add default via 10.{i}.0.254 table 10{i}; ip route add 10.{i}.0.0/24 \
                dev r{i} table 10{i}
                 ip rule add from 10.{i}.0.1 lookup 10{i}
                 ip address add fd00:{i}::1/64 dev r{i} nodad; ip -6 rule add from fd00:{i}::1 \
                 lookup 10{i}
                 ip -6 route add default via fd00:{i}::fe table 10{i}"
            ));
        }
        let way = get("9.9.9.9 from 10.0.0.1");
        assert!(
            get("9.9.9.9").contains("unreachable") && way.contains("dev r0 table 100"),
            "{way}"
        );
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
        let why =
            "r0 is in use: ssh from 10.0.0.9 comes in by r0 (TCP from 10.0.0.1:22 to 10.0.0.9:";
        Container::new("all").create(host).fails(3, &[why]);
        prepare(host, "default", "r1 r2", &[]).ok();
    });
}

#[test]
fn insisting_takes_what_the_host_uses() {
    alone(|host| {
        host.rails(2);
        sh("ip route add 0.0.0.0/1 via 10.0.0.254");
        let said = prepare(host, "default", "r0", &["--allow-bootstrap-iface"]).ok();
        assert!(
            said.out
                .contains("taken as asked, although it leads out to the internet"),
            "{said:?}"
        );
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
        let snapshot = host.rdmaprep(&["snapshot", "--json"]).ok().out;
        fs::write(&file, &snapshot).unwrap();
        let path = file.to_str().unwrap();
        let dry = |ifaces: &str| prepare(host, "again", ifaces, &["--dry-run", "--snapshot", path]);
        dry("r0").fails(4, &["r0 leads out to the internet"]);
        let mut recorded: serde_json::Value = serde_json::from_str(&snapshot).unwrap();
        recorded.as_object_mut().unwrap().remove("paths").unwrap();
        fs::write(&file, recorded.to_string()).unwrap();
        assert!(
            dry("r0")
                .ok()
                .err
                .contains("this recording has no route lookups")
        );
        recorded["routes"] = json!([]);
        fs::write(&file, recorded.to_string()).unwrap();
        let said = dry("r0").ok();
        assert!(
            said.err
                .contains("not checked: this recording has no routes"),
            "{said:?}"
        );
        let doctor = host.rdmaprep(&["doctor", "--snapshot", path]).out;
        assert!(
            doctor.contains("uplink") && doctor.contains("not checked"),
            "{doctor}"
        );
    });
}
