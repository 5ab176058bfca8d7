//! NICs that a manager configures: here a stand-in for systemd-networkd, of which there are only
//! its state files.

use std::fs;
use std::path::PathBuf;

use crate::alone;
use testkit::{Container, Host, Look, sh, until};

pub fn state_file(index: &str) -> PathBuf {
    PathBuf::from("/run/systemd/netif/links").join(index)
}

pub fn says(index: &str, state: &str) {
    fs::create_dir_all("/run/systemd/netif/links").unwrap();
    fs::write(state_file(index), format!("ADMIN_STATE={state}\n")).unwrap();
}

pub fn index() -> String {
    sh("ip -o link show dev r0 | cut -d: -f1").trim().to_owned()
}

/// r0 is the manager's, and in a container; the manager has taken its file away, as networkd does.
pub fn away(host: &Host, id: &str) -> (Container, Look) {
    host.rails(1);
    host.ip(
        "route add 10.20.0.0/16 via 10.0.0.9 dev r0\nrule add from 10.0.0.1 table 100 \
        priority 1000",
    );
    says("1", "unmanaged");
    says(&index(), "configured");
    let before = host.look();
    host.prepare("r0");
    let index = index();
    let c = Container::new(id);
    c.create(host).ok();
    fs::remove_file(state_file(&index)).unwrap();
    (c, before)
}

/// Stops the container; when its NIC is back the manager says that.
pub fn stop_beside(host: &Host, c: &mut Container, state: &str) {
    std::thread::scope(|threads| {
        threads.spawn(|| {
            until("the NIC is back", || {
                fs::read_to_string("/proc/thread-self/net/dev")
                    .unwrap()
                    .contains("r0:")
            });
            says(&index(), state);
        });
        c.stop(host).ok();
    });
}

fn addresses() -> String {
    sh("ip -4 -o address show dev r0")
}

#[test]
fn a_stop_leaves_to_the_timer_what_a_manager_has_yet_to_do() {
    alone(|host| {
        let (mut c, before) = away(host, "first");
        stop_beside(host, &mut c, "configuring");
        assert_eq!(addresses(), "", "the manager has not set it yet");
        assert_eq!(host.records().len(), 1);
        let status = host.rdmaprep(&["status"]).ok().out;
        assert!(
            status.contains("r0 is back; systemd-networkd is configuring it"),
            "{status}"
        );
        assert_eq!(
            host.rdmaprep(&["restore", "--all", "--stale"]).ok().out,
            "",
            "the timer says nothing"
        );
        Container::new("next")
            .create(host)
            .fails(9, &["r0 has no 10.0.0.1/24 yet: systemd-networkd is still"]);
        assert_eq!(host.records().len(), 1);
        host.ip("address add 10.0.0.1/24 dev r0");
        says(&index(), "configured");
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn a_manager_that_has_gone_leaves_all_to_us() {
    alone(|host| {
        let (mut c, before) = away(host, "alone");
        c.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// A container that takes a NIC whose earlier restore waits takes over what that has yet to add.
#[test]
fn a_container_takes_over_what_an_earlier_restore_owes() {
    alone(|host| {
        let (mut c, before) = away(host, "first");
        stop_beside(host, &mut c, "configuring");
        host.ip("address add 10.0.0.1/24 dev r0");
        let was = index();
        let mut next = Container::new("first");
        next.create(host).ok();
        assert_eq!(host.records().len(), 1, "one record for the NIC");
        fs::remove_file(state_file(&was)).unwrap();
        stop_beside(host, &mut next, "configuring");
        host.ip("address add 10.0.0.1/24 dev r0");
        says(&index(), "configured");
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_as(&before);
        host.is_clean();
    });
}
