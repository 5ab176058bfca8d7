//! NICs that are back, on a host where another program configures links: what is put back, and what
//! is said.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::alone;
use testkit::{Container, Host, Look, Said, sh, until};

/// A NIC with an address, a route and a rule, in a container; and what the host was.
fn away(host: &Host) -> (Container, Look) {
    host.rails(1);
    host.ip(
        "route add 10.20.0.0/16 via 10.0.0.9 dev r0\nrule add from 10.0.0.1 table 100 \
        priority 1000",
    );
    let before = host.look();
    host.prepare("r0");
    let c = Container::new("fought");
    c.create(host).ok();
    (c, before)
}

/// Whether the last of the NIC's routes is back.
fn routed() -> bool {
    fs::read_to_string("/proc/thread-self/net/route")
        .unwrap()
        .contains("\t0000140A\t")
}

/// Stops the container; as soon as its NIC is back, does that, until it says that it has done
/// enough.
fn fought(host: &Host, c: &mut Container, mut act: impl FnMut() -> bool + Send) -> Said {
    fs::create_dir_all("/run/udev").unwrap();
    fs::write("/run/udev/queue", "").unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            until("the NIC is back", routed);
            std::thread::sleep(Duration::from_millis(20));
            while !act() && !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(10));
            }
            fs::remove_file("/run/udev/queue").unwrap();
        });
        let said = c.stop(host);
        over.store(true, Ordering::Relaxed);
        said
    })
}

fn flush() {
    // Between its coming and going the NIC may be where it cannot be flushed.
    let _ = Command::new("ip")
        .args(["address", "flush", "dev", "r0"])
        .output()
        .unwrap();
}

/// A new host for a try that came too late: a busy machine may let the restore look on and end
/// before anything is changed.
fn tried(host: &Host, act: fn()) -> (Said, Look) {
    for _ in 0..5 {
        let (mut c, before) = away(host);
        let said = fought(host, &mut c, || {
            act();
            true
        });
        if said.code != Some(0) || notes(host).contains("changed after the restore") {
            return (said, before);
        }
        sh("ip link delete r0; ip rule delete priority 1000 || true");
    }
    panic!("five restores ended before anything was changed");
}

/// What the report of its stop hook notes.
fn notes(host: &Host) -> String {
    host.report("fought")["notes"].to_string()
}

#[test]
fn addresses_that_are_flushed_once_are_restored() {
    alone(|host| {
        fs::create_dir_all("/run/NetworkManager").unwrap();
        let (said, before) = tried(host, flush);
        said.ok();
        host.is_as(&before);
        host.is_clean();
        let notes = notes(host);
        assert!(
            notes.contains("r0 changed after the restore (address 10.0.0.1/24"),
            "{notes}"
        );
        assert!(
            notes.contains("NetworkManager, unless unmanaged-devices+=interface-name:r0 "),
            "{notes}"
        );
    });
}

#[test]
fn a_name_that_is_changed_once_is_restored() {
    alone(|host| {
        fs::create_dir_all("/run/udev").unwrap();
        fs::write("/run/udev/control", "").unwrap();
        let rename = || {
            sh(
                "ip link set r0 down; ip link set r0 name ens7; ip link set ens7 up; ip link \
                property add dev ens7 altname r0",
            );
        };
        let (said, before) = tried(host, rename);
        said.ok();
        host.is_as(&before);
        host.is_clean();
        let notes = notes(host);
        assert!(
            notes.contains("r0 changed after the restore (")
                && notes.contains("udev, unless a .link file"),
            "{notes}"
        );
    });
}

#[test]
fn foreign_rules_and_routes_deleted_once_are_restored() {
    alone(|host| {
        fs::create_dir_all("/run/systemd/netif/links").unwrap();
        fs::write("/run/systemd/netif/links/1", "").unwrap();
        let delete = || {
            sh("ip rule delete priority 1000; ip route delete 10.20.0.0/16");
        };
        let (said, before) = tried(host, delete);
        said.ok();
        host.is_as(&before);
        host.is_clean();
        let notes = notes(host);
        assert!(
            notes.contains("route 10.20.0.0/16 table 254 #0")
                && notes.contains("ManageForeignRoutes=no"),
            "{notes}"
        );
    });
}

/// Stops the container while another program flushes its NIC's addresses without end.
fn fight(host: &Host, c: &mut Container) -> Said {
    fought(host, c, || {
        flush();
        false
    })
}

#[test]
fn endless_changes_are_reported_and_the_record_stays() {
    alone(|host| {
        fs::create_dir_all("/run/NetworkManager").unwrap();
        let (mut c, mut before) = away(host);
        let mut said = fight(host, &mut c);
        for _ in 0..5 {
            if said.code == Some(8) {
                break;
            }
            // A busy machine may let the restore look on and end before the first flush: then once
            // more, on a new host.
            sh("ip link delete r0; ip rule delete priority 1000");
            (c, before) = away(host);
            said = fight(host, &mut c);
        }
        said.fails(
            8,
            &[
                "r0 address 10.0.0.1/24",
                "and again after it was put back: NetworkManager, unless ",
                "rdmaprep restore",
            ],
        );
        assert_eq!(host.records().len(), 1);
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// As a manager does with a new profile, which is the administrator's word.
#[test]
fn a_nic_that_the_host_puts_into_a_bridge_is_left_there() {
    alone(|host| {
        host.rails(2);
        let before = host.look();
        host.prepare("r0,r1");
        let c = Container::new("c");
        c.create(host).ok();
        host.ip("link add br9 type bridge");
        let takes =
            "for i in $(seq 500); do ip link set r0 master br9; sleep 0.02; done 2> /dev/null";
        let mut manager = Command::new("sh").args(["-c", takes]).spawn().unwrap();
        // r0 is up, and r1 is not yet.
        let mut stop = host.command(&["hook", "poststop"]);
        stop.env("RDMAPREP_FAULT", "16:hang=500");
        testkit::run(&mut stop, &c.stopped()).ok();
        let notes = host.report("c")["notes"].to_string();
        let note = "r0 belongs to br9 now: what it lacked is given up";
        assert!(notes.contains(note), "{notes}");
        assert!(sh("ip link show r0").contains("master br9"));
        host.is_clean();
        manager.kill().unwrap();
        manager.wait().unwrap();
        let of_r1 = |look: &Look| -> Vec<String> {
            let lines = look.normal.lines().filter(|line| line.contains("r1"));
            lines.map(str::to_owned).collect()
        };
        assert_eq!(of_r1(&host.look()), of_r1(&before));
    });
}

/// Nothing takes it out of the bridge again, and what other legs carry is carried still.
#[test]
fn a_nic_in_a_bridge_leaves_the_host_the_other_legs() {
    alone(|host| {
        host.rails(2);
        host.ip("route add 10.90.0.0/16 nexthop via 10.0.0.9 dev r0 nexthop via 10.1.0.9 dev r1");
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        c.sh(&format!("ip link set r0 netns {}", std::process::id()));
        host.ip("link add br9 type bridge");
        host.ip("link set r0 master br9");
        let foretold = host.rdmaprep(&["restore", "c", "--dry-run"]).ok().out;
        assert!(
            foretold.contains("note: r0 belongs to br9 now"),
            "{foretold}"
        );
        c.stop(host).ok();
        assert!(sh("ip link show r0").contains("master br9"));
        assert!(sh("ip route show 10.90.0.0/16").contains("via 10.1.0.9 dev r1"));
        host.is_clean();
    });
}

/// What the host had only while the other leg was away was recorded as the second NIC's own.
#[test]
fn a_stand_in_does_not_come_back_by_another_record() {
    alone(|host| {
        host.rails(2);
        host.ip("route add 10.90.0.0/16 nexthop via 10.0.0.9 dev r0 nexthop via 10.1.0.9 dev r1");
        let before = host.look();
        let of_plan = |id: &'static str, nic: &str| {
            host.rdmaprep(&["prepare", "--plan", id, "--ifaces", nic])
                .ok();
            let c = Container::new(id).annotated(serde_json::json!({"rdmaprep.io/plan": id}));
            c.create(host).ok();
            c
        };
        let (mut first, mut second) = (of_plan("first", "r0"), of_plan("second", "r1"));
        // As a stop leaves it that was killed.
        second.sh(&format!("ip link set r1 netns {}", std::process::id()));
        host.ip("link set r1 up\naddress add 10.1.0.1/24 dev r1");
        first.stop(host).ok();
        second.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}
