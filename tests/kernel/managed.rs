//! NICs that a manager configures: here a stand-in for systemd-networkd, of which there are only
//! its state files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::alone;
use serde_json::{Value, json};
use testkit::{Container, Host, Look, sh, until};

pub fn state_file(index: &str) -> PathBuf {
    PathBuf::from("/run/systemd/netif/links").join(index)
}

pub fn says(index: &str, state: &str) {
    fs::create_dir_all("/run/systemd/netif/links").unwrap();
    fs::write(state_file(index), format!("ADMIN_STATE={state}\n")).unwrap();
}

pub fn index() -> String {
    index_of("r0")
}

pub fn index_of(dev: &str) -> String {
    let link = sh(&format!("ip -o link show dev {dev} | cut -d: -f1"));
    link.trim().to_owned()
}

/// r0 is the manager's, and in a container; the manager has taken its file away, as networkd does.
pub fn away(host: &Host, id: &str) -> (Container, Look) {
    host.rails(1);
    host.ip("route add 10.20.0.0/16 via 10.0.0.9 dev r0
        route add 10.21.0.0/16 via 10.0.0.9 dev r0 table 100
        rule add from 10.0.0.1 table 100 priority 1000");
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
    stop_beside_work(host, c, "r0", || says(&index(), state));
}

/// Stops the container; when that NIC is back its manager does that.
pub fn stop_beside_work(host: &Host, c: &mut Container, nic: &str, work: impl FnOnce() + Send) {
    std::thread::scope(|threads| {
        threads.spawn(|| {
            until("the NIC is back", || {
                let links = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
                links.contains(&format!("{nic}:"))
            });
            work();
        });
        c.stop(host).ok();
    });
}

/// What the manager would have said on a bus when the NICs left: all is its own but what that
/// chooses.
pub fn tell_owner(host: &Host, is_foreign: impl Fn(&Value) -> bool) {
    tell_owner_in(&host.records().remove(0), is_foreign);
}

pub fn tell_owner_in(path: &Path, is_foreign: impl Fn(&Value) -> bool) {
    let mut record: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    for held in record["held"].as_array_mut().unwrap() {
        let foreign = |all: &Value| -> Vec<Value> {
            let all = all.as_array().unwrap();
            all.iter().filter(|one| is_foreign(one)).cloned().collect()
        };
        let before = &held["before"];
        let foreign = json!({
            "addresses": foreign(&before["netdev"]["addresses"]),
            "routes": foreign(&before["routes"]),
            "rules": foreign(&before["rules"]),
        });
        held["managed"]["foreign"] = foreign;
    }
    fs::write(path, record.to_string()).unwrap();
}

/// A NIC with a route and a rule of its manager, which is done with it by this file.
fn managed_rail(host: &Host, more: &str) -> (Container, String) {
    host.rails(1);
    host.ip(&format!(
        "route add 10.20.0.0/16 via 10.0.0.9 dev r0 metric 50 proto static\n\
         rule add from 10.0.0.1 table 100 priority 1000 protocol static\n{more}"
    ));
    fs::create_dir_all("/run/systemd/network").unwrap();
    fs::write(PROFILE, "[Match]\nName=r0\n").unwrap();
    says("1", "unmanaged");
    says(&index(), CONFIGURED);
    host.prepare("r0");
    let index = index();
    let c = Container::new("first");
    c.create(host).ok();
    (c, index)
}

const PROFILE: &str = "/run/systemd/network/10-r0.network";
const CONFIGURED: &str = "configured\nNETWORK_FILE=/run/systemd/network/10-r0.network";

/// An administrator's route or rule may do the same as the manager's, with another metric or
/// priority.
#[test]
fn what_equals_a_managers_own_in_effect_comes_back_itself() {
    alone(|host| {
        let (mut c, index) = managed_rail(
            host,
            "route add 10.20.0.0/16 via 10.0.0.9 dev r0 metric 70\n\
             rule add from 10.0.0.1 table 100 priority 1100",
        );
        tell_owner(host, |one| one["metric"] == 70 || one["priority"] == 1100);
        fs::remove_file(state_file(&index)).unwrap();
        stop_beside_work(host, &mut c, "r0", || {
            sh("ip address add 10.0.0.1/24 dev r0; ip link set r0 up
                ip route add 10.20.0.0/16 via 10.0.0.9 dev r0 metric 51 proto static
                ip rule add from 10.0.0.1 table 100 priority 1001 protocol static");
            says(&self::index(), CONFIGURED);
        });
        let metrics = sh("ip route show 10.20.0.0/16 | grep -o 'metric [0-9]*'");
        assert_eq!(metrics, "metric 51\nmetric 70\n");
        let rules = sh("ip rule show from 10.0.0.1 | cut -d: -f1");
        assert_eq!(rules, "1001\n1100\n");
        host.is_clean();
    });
}

/// The manager adds it no more, and has read its file again while the NIC was away.
#[test]
fn what_an_administrator_took_from_a_profile_stays_away() {
    alone(|host| {
        for profile in ["[Match]\nName=r0\n", "[Match]\nName=r0 \n"] {
            let (mut c, index) = managed_rail(host, "route add 10.30.0.0/16 dev r0");
            tell_owner(host, |one| one["destination"] == "10.30.0.0/16");
            fs::remove_file(state_file(&index)).unwrap();
            fs::write(PROFILE, profile).unwrap();
            let is_same = !profile.contains("r0 ");
            let status = host.rdmaprep(&["status"]).ok().out;
            let is_told = status.contains("configuration of r0 by systemd-networkd has changed");
            assert_eq!(is_told, !is_same, "{status}");
            stop_beside_work(host, &mut c, "r0", || {
                sh("ip address add 10.0.0.1/24 dev r0; ip link set r0 up");
                says(&self::index(), CONFIGURED);
            });
            let routes = sh("ip route");
            assert_eq!(routes.contains("10.20.0.0/16"), is_same, "{routes}");
            assert!(routes.contains("10.30.0.0/16"), "{routes}");
            assert_eq!(sh("ip rule").contains("10.0.0.1"), is_same);
            host.is_clean();
            sh("ip link delete r0; ip rule delete from 10.0.0.1 || true");
        }
    });
}

/// Without a bus it is not known what it waits for, nor what is its own.
#[test]
fn a_manager_that_is_never_done_is_waited_for_only_so_long() {
    alone(|host| {
        let (mut c, before) = away(host, "first");
        stop_beside(host, &mut c, "configuring");
        host.rdmaprep(&["restore", "--all"]).ok();
        assert_eq!(addresses(), "");
        assert!(
            host.rdmaprep(&["status"])
                .ok()
                .out
                .contains("is configuring it")
        );
        let file = state_file(&index());
        sh(&format!("touch -d '5 minutes ago' {}", file.display()));
        let said = host.rdmaprep(&["restore", "--all"]).ok().out;
        assert!(
            said.contains("systemd-networkd has been configuring it"),
            "{said}"
        );
        host.is_as(&before);
        host.is_clean();
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
        assert_eq!(in_the_journal(host), "", "it asks six times a minute");
        Container::new("next")
            .create(host)
            .fails(9, &["r0 has no 10.0.0.1/24 yet: systemd-networkd is still"]);
        let doctor = host.rdmaprep(&["doctor"]);
        for words in ["r0 has no 10.0.0.1/24 yet", "`networkctl status r0`"] {
            assert!(doctor.out.contains(words), "no {words:?} in {doctor:?}");
        }
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

/// What the timer's unit writes into the journal.
fn in_the_journal(host: &Host) -> String {
    let journal = tempfile::NamedTempFile::new().unwrap();
    let file = journal.as_file().metadata().unwrap();
    let stream = format!("{}:{}", file.dev(), file.ino());
    let mut look = host.command(&["restore", "--all", "--stale"]);
    look.env("JOURNAL_STREAM", stream);
    look.stdout(journal.reopen().unwrap());
    assert!(look.status().unwrap().success());
    fs::read_to_string(journal.path()).unwrap()
}

#[test]
fn the_timer_logs_a_restore_in_one_line() {
    alone(|host| {
        let (mut c, _) = away(host, "first");
        c.kill();
        let said = in_the_journal(host);
        assert!(
            said.starts_with("command=restore container=first"),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
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

/// Each time it looked just before the restore's rule came: one of both stays.
#[test]
fn a_rule_that_a_script_makes_again_and_again_is_there_once() {
    alone(|host| {
        host.ip("rule add from 10.0.0.0/24 table 7 priority 950");
        let (mut c, _) = away(host, "first");
        tell_owner(host, |_| true);
        stop_beside_work(host, &mut c, "r0", || {
            says(&index(), "configured");
            let end = Instant::now() + Duration::from_secs(4);
            while Instant::now() < end {
                let rules = sh("ip rule");
                if rules.contains("1000:") && !rules.contains("900:") {
                    sh("ip rule add from 10.0.0.1 table 100 priority 900");
                }
            }
        });
        host.is_clean();
        let rules = sh("ip rule");
        assert_eq!(rules.matches("from 10.0.0.1 ").count(), 1, "{rules}");
    });
}
