//! What a container leaves on its NIC at link level, on the real kernel: the host gets back what it
//! gave.

use crate::alone;
use testkit::{Container, Host, same, sh, until};

/// As many names of 127 bytes as that, in one message of ip each.
fn altnames(dev: &str, count: usize) -> String {
    let name = |i: usize| {
        format!(
            "link property add dev {dev} altname {i:03}{}\n",
            "x".repeat(124)
        )
    };
    (0..count).map(name).collect()
}

/// What ip tells of the names of a link, whatever bytes they have.
fn names(dev: &str) -> String {
    sh(&format!(
        "ip link show dev {dev} | grep -a -e alias -e altname | od -An -tx1"
    ))
}

/// A link message of more than 32 KiB, and one of nearly 64: the kernel leaves such a link out of a
/// list, and all behind it.
#[test]
fn nic_with_hundreds_of_altnames_comes_back() {
    alone(|host| {
        host.rails(3);
        host.prepare("r0,r1");
        let before = host.look();
        for (count, how) in [(240, "stop"), (480, "restore")] {
            let mut c = Container::new(how);
            c.create(host).ok();
            c.sh(&format!("ip -batch - <<END\n{}END", altnames("r0", count)));
            assert_eq!(
                c.sh("ip link show dev r0 | grep -c altname").trim(),
                count.to_string()
            );
            if how == "stop" {
                c.stop(host).ok();
            } else {
                c.kill();
                // It is there, so it is not given up.
                host.rdmaprep(&["restore", "--forget", how])
                    .fails(3, &["can still be restored"]);
                host.rdmaprep(&["restore", "--all"]).ok();
            }
            host.is_as(&before);
            host.is_clean();
        }
        let mut next = Container::new("next");
        next.create(host).ok();
        assert!(!next.sh("ip link show dev r0").contains("altname"));
        next.stop(host).ok();
        host.is_as(&before);
    });
}

/// Adds IPv4 and IPv6 routes over r0 with so many legs: no ip takes that many.
const MANY_LEGS: &str = r#"
import socket, struct, sys
index = socket.if_nametoindex("r0")
def attribute(kind, value):
    return struct.pack("HH", 4 + len(value), kind) + value
def add(family, destination, bits, gateways):
    legs = b"".join(struct.pack("HBBi", 12 + len(g), 0, 0, index) + attribute(5, g)
                    for g in gateways)
    body = struct.pack("BBBBBBBBI", family, bits, 0, 0, 254, 4, 0, 1, 0)
    body += attribute(1, destination) + attribute(9, legs)
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    s.send(struct.pack("IHHII", 16 + len(body), 24, 0x405, 1, 0) + body)
    assert struct.unpack("i", s.recv(65536)[16:20])[0] == 0
count = int(sys.argv[2])
if sys.argv[1] == "4":
    add(2, bytes([172, 20, 0, 0]), 16,
        [bytes([10, 0, 100 + i // 250, 1 + i % 250]) for i in range(count)])
else:
    add(10, socket.inet_pton(10, "fd30::"), 32,
        [socket.inet_pton(10, f"fd00::{i + 256:x}") for i in range(count)])
"#;

/// A route of more than 32 KiB ends the kernel's list: what is behind would not be recorded, and
/// lost.
#[test]
fn route_that_hides_others_keeps_nics_on_the_host() {
    alone(|host| {
        host.rails(2);
        host.ip("address replace 10.0.0.1/16 dev r0\naddress add fd00::1/64 dev r0 nodad");
        std::fs::write("/run/legs.py", MANY_LEGS).unwrap();
        for (family, few, many, delete) in [
            ("4", 1000, 2100, "172.20.0.0/16"),
            ("6", 500, 1200, "fd30::/32"),
        ] {
            sh(&format!("python3 /run/legs.py {family} {few}"));
            let before = host.look();
            host.prepare("r0,r1");
            let mut c = Container::new("few");
            c.create(host).ok();
            c.stop(host).ok();
            host.is_as(&before);
            sh(&format!(
                "ip -{family} route delete {delete}; python3 /run/legs.py {family} {many}"
            ));
            let words = [
                &format!("an IPv{family} route of more than 32 KiB"),
                "they would be lost",
            ];
            Container::new("many").create(host).fails(3, &words);
            let said = host.prepare("r0,r1");
            assert!(
                words.iter().all(|w| said.err.contains(w)),
                "prepare gives no warning: {said:#?}"
            );
            host.is_clean();
            sh(&format!("ip -{family} route delete {delete}"));
        }
    });
}

/// An administrator's own: all that is behind such a link on the host is seen as well.
#[test]
fn host_link_with_hundreds_of_altnames_hides_no_other() {
    alone(|host| {
        host.rails(3);
        host.ip(&altnames("r0", 300));
        let seen = host.normal();
        assert!(
            ["r0 ", "r1 ", "r2 ", "p2 "]
                .iter()
                .all(|dev| seen.lines().any(|l| l.starts_with(dev)))
        );
        host.prepare("r0,r2");
        let before = host.look();
        let mut c = Container::new("c");
        c.create(host).ok();
        c.stop(host).ok();
        host.is_as(&before);
    });
}

#[test]
fn altnames_that_are_no_text_are_deleted() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let before = host.look();
        for how in ["stop", "restore"] {
            let mut c = Container::new(how);
            c.create(host).ok();
            c.sh(
                "for name in '\\377\\376' '\\303' '\\364\\217\\277\\277' '?3'; do \
                  ip link property add dev r0 altname \"$(printf \"$name\")\"; done",
            );
            c.sh("ip link set r0 alias \"$(printf 'left \\377')\"");
            match how {
                "stop" => drop(c.stop(host).ok()),
                _ => {
                    // Its name is none, either.
                    c.sh("ip link set r0 down; ip link set r0 name \"$(printf '\\376x')\"");
                    c.kill();
                    drop(host.rdmaprep(&["restore", "--all"]).ok());
                }
            }
            host.is_as(&before);
            host.is_clean();
        }
    });
}

#[test]
fn link_name_with_a_question_mark_is_shown() {
    alone(|host| {
        let index = |name: &str| {
            sh(&format!("ip -o link show dev '{name}' | cut -d: -f1"))
                .trim()
                .to_owned()
        };
        sh(
            "ip link add name 'a?b' type veth peer name '?3'; ip link add name '?' type veth peer \
            name x",
        );
        let seen = host.normal();
        let is_there = |name: &str| seen.lines().any(|l| l.starts_with(&format!("{name} ")));
        // One that looks like ours for a link without a name goes by its index as well.
        assert!(
            is_there("a?b") && is_there("?") && is_there(&format!("?{}", index("?3"))),
            "{seen}"
        );
    });
}

/// The host's own, as bytes.
#[test]
fn host_names_that_are_no_text_come_back() {
    alone(|host| {
        host.rails(1);
        sh("ip link property add dev r0 altname \"$(printf 'rail\\377')\" altname plain");
        sh("ip link set r0 alias \"$(printf 'the \\374 first')\"");
        let before = names("r0");
        assert!(before.contains("ff") && before.contains("fc"), "{before}");
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        c.sh(
            "ip link property del dev r0 altname \"$(printf 'rail\\377')\" altname plain; ip \
            link set r0 alias x",
        );
        c.stop(host).ok();
        // The kernel lists them in the order in which they were given.
        same("the names of r0", &before, &names("r0"));
        host.is_clean();
    });
}

/// Sets IFLA_GSO_IPV4_MAX_SIZE and IFLA_GRO_IPV4_MAX_SIZE, which ip of today's distributions does
/// not know.
const SIZES: &str = "python3 - <<'END'
import socket, struct
index = socket.if_nametoindex('r0')
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
number = lambda kind, value: struct.pack('HHI', 8, kind, value)
body = struct.pack('BBHiII', 0, 0, 0, index, 0, 0) + number(63, 7000) + number(64, 6000)
s.send(struct.pack('IHHII', 16 + len(body), 19, 5, 1, 0) + body)
assert struct.unpack('i', s.recv(4096)[16:20])[0] == 0
END";

/// The peer cannot be reached without ARP, IPv6 has no neighbours without multicast, and a dormant
/// link does not run.
#[test]
fn link_flags_mode_and_sizes_come_back() {
    alone(|host| {
        host.rails(3);
        host.ip(
            "address add fd00::1/64 dev r0 nodad\nneighbour add 10.0.0.9 lladdr \
            02:00:00:00:00:09 dev r0",
        );
        // An administrator's own.
        host.ip(
            "link set r1 arp off multicast off dynamic on trailers off mode dormant gso_max_size \
            30000 gso_max_segs 9 \
             gro_max_size 20000 broadcast 01:00:00:00:00:01",
        );
        sh("ip link set r1 down; ip link set r1 up");
        until("r1 is dormant", || {
            sh("ip link show r1").contains("state DORMANT")
        });
        sh(
            "ip link add link r2 name v2 type macvlan mode private; ip link set v2 arp off \
            multicast off up; ip address add 10.2.0.2/24 dev v2",
        );
        host.prepare("r0,r1,v2");
        let before = host.look();
        let left = "ip link set r0 arp off multicast off dynamic on trailers off mode dormant \
            gso_max_size 10000 \
             gso_max_segs 7 gro_max_size 20000 broadcast 01:02:03:04:05:06; \
             ip link set r1 arp on multicast on dynamic off trailers on mode default gso_max_size \
             65536; \
             ip link set r0 state dormant; ip link set v2 arp on";
        for how in ["stop", "restore", "moved"] {
            let mut c = Container::new(how);
            c.create(host).ok();
            assert!(c.sh("ip link show r1").contains("BROADCAST,NOARP,"));
            c.sh(left);
            c.sh(SIZES);
            match how {
                "stop" => {
                    c.stop(host).ok();
                    let notes = host.report(how)["notes"].to_string();
                    let note = "r0 had been given other settings: arp, multicast, other flags, \
                        link mode, broadcast address, \
                         GSO or GRO sizes";
                    assert!(notes.contains(note), "{notes}");
                }
                "restore" => {
                    c.kill();
                    host.rdmaprep(&["restore", "--all"]).ok();
                }
                _ => {
                    // By hand, and up.
                    c.sh(&format!("ip link set r0 netns {}", std::process::id()));
                    host.ip("link set r0 up");
                    until("r0 is dormant", || {
                        sh("ip link show r0").contains("state DORMANT")
                    });
                    c.stop(host).ok();
                }
            }
            host.is_as(&before);
            host.is_clean();
        }
    });
}

/// How often each NIC lost its carrier and found one, which the kernel counts for a link wherever
/// it is.
fn carriers(container: Option<&Container>) -> Vec<(u32, u32)> {
    let line = "unshare --mount sh -ec 'mount -t sysfs sysfs /sys; cd /sys/class/net; \
        cat r0/carrier_down_count r0/carrier_up_count r1/carrier_down_count r1/carrier_up_count'";
    let text = container.map_or_else(|| sh(line), |c| c.sh(line));
    let counts: Vec<u32> = text.lines().map(|n| n.parse().unwrap()).collect();
    counts.chunks(2).map(|pair| (pair[0], pair[1])).collect()
}

fn once_more(counts: &[(u32, u32)]) -> Vec<(u32, u32)> {
    counts.iter().map(|(down, up)| (down + 1, up + 1)).collect()
}

/// Hardware takes half a second to open what a NIC with many channels has.
#[test]
fn nic_goes_down_once_and_up_once_each_way() {
    alone(|host: &Host| {
        host.prepare(&host.rails(2));
        let at_first = carriers(None);
        let mut c = Container::new("once");
        c.create(host).ok();
        let inside = carriers(Some(&c));
        assert_eq!(inside, once_more(&at_first));
        // The namespace lives on: a physical NIC would leave a dying one by itself, a veth goes.
        host.hook("poststop", &c.stopped()).ok();
        assert_eq!(carriers(None), once_more(&inside));
        c.kill();
        host.is_clean();
    });
}

/// Routes over a link that is no NIC, each to a network of its own.
fn routes_of_strangers(net: u8) -> String {
    let route = |i: usize| format!("route add {net}.0.{i}.0/24 dev other\n");
    let all: String = (0..250).map(route).collect();
    format!(
        "link add other type veth peer name beyond\nlink set beyond up\nlink set other up\n{all}"
    )
}

/// A router has a million, and root in a container can make as many: they are not read, and what of
/// a NIC's stands beside them is.
#[test]
fn routes_of_strangers_are_left_alone() {
    alone(|host: &Host| {
        host.prepare(&host.rails(2));
        host.ip(&routes_of_strangers(20));
        host.ip("route add 20.0.7.0/24 via 10.0.0.9 dev r0 metric 5");
        host.ip("route append 20.0.9.0/24 via 10.1.0.9 dev r1");
        let before = host.look();
        let mut c = Container::new("routes");
        c.create(host).ok();
        let routes = c.sh("ip route");
        assert!(routes.contains("20.0.7.0/24 via 10.0.0.9") && !routes.contains("20.0.8.0"));
        let theirs = routes_of_strangers(21);
        c.sh(&format!("ip -batch - <<END\n{theirs}END"));
        c.sh("ip route add 10.0.9.0/24 dev r0; ip route append 21.0.8.0/24 dev r1");
        host.hook("poststop", &c.stopped()).ok();
        host.is_as(&before);
        assert_eq!(c.sh("ip route | grep -c 'dev other'").trim(), "250");
        c.kill();
        host.is_clean();
    });
}
