//! NICs that are back and wait for their manager: an administrator may do what he likes with them.

use std::fs;

use crate::alone;
use serde_json::Value;

use crate::managed::{away, index, says, state_file, stop_beside, stop_beside_work};
use testkit::{Container, Host, sh, until};

fn stale(host: &Host) -> String {
    host.rdmaprep(&["restore", "--all", "--stale"]).ok().out
}

/// r0 is back, and its manager has not configured it.
pub fn waiting(host: &Host) {
    let (mut c, _) = away(host, "first");
    stop_beside(host, &mut c, "configuring");
    assert_eq!(host.records().len(), 1);
}

/// Linux may tell of a carrier up to a second later (net/core/link_watch.c).
fn set_carrier(host: &Host, state: &str) {
    host.ip(&format!("link set p0 {state}"));
    until("r0 has noticed its carrier", || {
        sh("ip -o link show r0").contains("NO-CARRIER") == (state == "down")
    });
}

#[test]
fn a_waiting_nic_that_is_set_up_otherwise_is_left_alone() {
    alone(|host| {
        waiting(host);
        says(&index(), "unmanaged");
        host.ip(
            "address flush dev r0\naddress add 10.5.0.1/24 dev r0\nroute add 10.9.0.0/16 via \
            10.5.0.9",
        );
        let now = host.look();
        let said = stale(host);
        assert!(said.contains("r0 has 10.5.0.1/24 now"), "{said}");
        host.is_as(&now);
        host.is_clean();
        assert_eq!(stale(host), "");
        let mut next = Container::new("next");
        host.prepare("r0");
        next.create(host).ok();
        next.stop(host).ok();
        host.is_as(&now);
    });
}

#[test]
fn settings_of_a_waiting_nic_are_the_administrators() {
    alone(|host| {
        waiting(host);
        host.ip("link set r0 mtu 1400 alias mine\nlink property add dev r0 altname hers");
        sh("sysctl -qw net.ipv4.conf.r0.rp_filter=2");
        let link = || sh("ip -d link show dev r0; sysctl net.ipv4.conf.r0.rp_filter");
        let now = link();
        stale(host);
        assert_eq!(link(), now);
        host.ip("address add 10.0.0.1/24 dev r0");
        says(&index(), "configured");
        stale(host);
        assert_eq!(link(), now);
        assert!(sh("ip route; ip rule").contains("10.20.0.0/16 via 10.0.0.9"));
        host.is_clean();
    });
}

/// A gateway's card has been replaced meanwhile.
#[test]
fn a_neighbour_that_has_another_address_by_now_keeps_it() {
    alone(|host| {
        host.rails(1);
        let neighbours = || sh("ip -4 neigh show dev r0 nud permanent | sort");
        host.ip("neigh add 10.0.0.8 lladdr 02:00:00:00:00:08 dev r0
neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev r0");
        says("1", "unmanaged");
        says(&index(), "configured");
        let was = index();
        let mut c = Container::new("c");
        host.prepare("r0");
        c.create(host).ok();
        fs::remove_file(state_file(&was)).unwrap();
        stop_beside(host, &mut c, "configuring");
        assert_eq!(host.records().len(), 1);
        host.ip(
            "neigh replace 10.0.0.9 lladdr 02:00:00:00:00:99 dev r0 nud permanent
address add 10.0.0.1/24 dev r0",
        );
        says(&index(), "configured");
        stale(host);
        let now = neighbours();
        assert!(now.contains("10.0.0.8 lladdr 02:00:00:00:00:08"), "{now}");
        assert!(now.contains("10.0.0.9 lladdr 02:00:00:00:00:99"), "{now}");
        host.is_clean();
    });
}

fn is_given_up(host: &Host, gone: &str, words: &str) {
    waiting(host);
    sh(gone);
    let said = host.rdmaprep(&["restore", "--all"]).ok().out;
    assert!(said.contains(words), "{said}");
    host.is_clean();
    assert_eq!(stale(host), "");
}

#[test]
fn a_waiting_nic_that_was_deleted_is_given_up() {
    alone(|host| is_given_up(host, "ip link delete r0", "r0 is not on the host any more"));
}

#[test]
fn a_waiting_nic_in_a_bridge_is_given_up() {
    alone(|host| {
        is_given_up(
            host,
            "ip link add br0 type bridge; ip link set r0 master br0",
            "r0 belongs to br0 now",
        )
    });
}

#[test]
fn a_waiting_nic_that_was_set_down_is_given_up() {
    alone(|host| is_given_up(host, "ip link set r0 down", "r0 is down now"));
}

/// networkd deletes rules that it has not made when it begins with a link, which may be after the
/// stop.
#[test]
fn rules_of_the_host_come_back_when_networkd_begins_late() {
    alone(|host| {
        host.ip("rule add from 198.51.100.0/24 table 500 priority 900");
        let has = || sh("ip rule").contains("198.51.100.0/24");
        let (mut c, before) = away(host, "first");
        let record = fs::read_to_string(host.records().remove(0)).unwrap();
        let mut rule =
            serde_json::from_str::<Value>(&record).unwrap()["held"][0]["before"]["rules"][0]
                .clone();
        rule["source"] = "198.51.100.0/24".into();
        rule["table"] = 500.into();
        rule["priority"] = 900.into();
        stop_beside(host, &mut c, "configuring");
        // As where it had not begun by the end of the stop.
        let path = host.records().remove(0);
        let mut waiting: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        waiting["host_objects"]["rules"] = vec![rule].into();
        fs::write(&path, waiting.to_string()).unwrap();
        host.ip("rule delete priority 900");
        stale(host);
        assert!(has());
        host.ip("rule delete priority 900\naddress add 10.0.0.1/24 dev r0");
        says(&index(), "configured");
        stale(host);
        assert!(!has(), "it was put back once");
        host.ip("rule add from 198.51.100.0/24 table 500 priority 900");
        host.is_as(&before);
        host.is_clean();
    });
}

/// Without a bus, RTPROT_STATIC alone does not say that networkd has made a rule: it did not say so
/// as the NICs left.
#[test]
fn a_static_rule_that_is_not_networkds_comes_back() {
    alone(|host| {
        for (source, priority) in [("198.51.100.0/24", 900), ("198.51.101.0/24", 901)] {
            host.ip(&format!(
                "rule add from {source} table 500 priority {priority} proto static"
            ));
        }
        let (mut c, _) = away(host, "first");
        let path = host.records().remove(0);
        let mut record: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let mut rule = record["held"][0]["before"]["rules"][0].clone();
        rule["source"] = "198.51.100.0/24".into();
        rule["table"] = 500.into();
        rule["priority"] = 900.into();
        rule["other"]["21"] = "04".into();
        record["static_rules"] = vec![rule].into();
        fs::write(&path, record.to_string()).unwrap();
        stop_beside_work(host, &mut c, "r0", || {
            sh("ip rule delete priority 900; ip rule delete priority 901");
            sh("ip address add 10.0.0.1/24 dev r0");
            says(&index(), "configured");
        });
        let rules = sh("ip rule");
        assert!(rules.contains("198.51.100.0/24"), "{rules}");
        assert!(!rules.contains("198.51.101.0/24"), "networkd's: {rules}");
    });
}

/// What an earlier restore has yet to put back is in the next container's record, which remembers
/// what is there besides.
#[test]
fn a_next_container_loses_no_rule_of_the_host() {
    alone(|host| {
        host.ip("rule add from 198.51.100.0/24 table 500 priority 900");
        waiting(host);
        let path = host.records().remove(0);
        let mut record: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let mut rule = record["held"][0]["before"]["rules"][0].clone();
        rule["source"] = "198.51.101.0/24".into();
        rule["priority"] = 901.into();
        record["host_objects"]["rules"] = vec![rule].into();
        fs::write(&path, record.to_string()).unwrap();
        host.ip("address add 10.0.0.1/24 dev r0");
        says(&index(), "configured");
        host.prepare("r0");
        let was = index();
        let mut next = Container::new("next");
        next.create(host).ok();
        fs::remove_file(state_file(&was)).unwrap();
        stop_beside_work(host, &mut next, "r0", || {
            sh("ip rule delete priority 900; ip address add 10.0.0.1/24 dev r0");
            says(&index(), "configured");
        });
        let rules = sh("ip rule");
        assert!(rules.contains("198.51.100.0/24"), "{rules}");
        assert!(rules.contains("198.51.101.0/24"), "{rules}");
    });
}

#[test]
fn rules_that_were_deleted_after_a_failed_stop_stay_deleted() {
    alone(|host| {
        host.ip("rule add from 198.51.100.0/24 table 500 priority 900");
        let (mut c, _) = away(host, "first");
        host.ip("link add r0 type bridge");
        c.stop(host).fails(8, &["r0"]);
        host.ip("rule delete priority 900\nlink delete r0");
        host.rdmaprep(&["restore", "--all"]).ok();
        assert!(!sh("ip rule").contains("198.51.100.0/24"));
        host.is_clean();
    });
}

/// What comes between two rules decides where traffic goes.
#[test]
fn a_rule_behind_a_stricter_one_does_not_stand_for_it() {
    alone(|host| {
        host.rails(1);
        host.ip("rule add from 10.0.0.1 table 100 priority 100\n\
             rule add from 10.0.0.0/24 prohibit priority 150");
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        host.ip("rule add from 10.0.0.1 table 100 priority 200");
        c.stop(host).ok();
        let rules = sh("ip rule");
        assert!(rules.contains("100:\tfrom 10.0.0.1 "), "{rules}");
        host.is_clean();
    });
}

/// A lease or a profile of today has other addresses: a route by hand with yesterday's as its
/// source leads nowhere.
#[test]
fn a_route_whose_source_has_gone_is_left_out_with_a_note() {
    alone(|host| {
        let (mut c, _) = away(host, "first");
        c.stop(host).ok();
        host.ip("route add 10.30.0.0/16 via 10.0.0.9 src 10.0.0.1");
        says(&index(), "configured");
        host.prepare("r0");
        let was = index();
        let mut again = Container::new("again");
        again.create(host).ok();
        fs::remove_file(state_file(&was)).unwrap();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                until("the NIC is back", || {
                    fs::read_to_string("/proc/thread-self/net/dev")
                        .unwrap()
                        .contains("r0:")
                });
                sh("ip address add 10.0.0.7/24 dev r0");
                says(&index(), "configured");
            });
            again.stop(host);
        });
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_clean();
    });
}

/// Its manager fills the table.
#[test]
fn rules_of_a_waiting_nic_are_not_orphaned() {
    alone(|host| {
        waiting(host);
        host.ip("rule add from 10.0.0.1 table 100 priority 1000");
        let said = host.rdmaprep(&["doctor"]).out;
        assert!(!said.contains("orphaned_rules"), "{said}");
        host.rdmaprep(&["restore", "first", "--forget"]).ok();
        let said = host.rdmaprep(&["doctor"]).out;
        assert!(said.contains("orphaned_rules"), "{said}");
    });
}

#[test]
fn a_restore_at_a_terminal_says_what_it_waits_for() {
    alone(|host| {
        waiting(host);
        let restore = host.command(&["restore", "--all"]);
        let words = std::iter::once(restore.get_program()).chain(restore.get_args());
        let line = words.map(|word| word.to_str().unwrap()).collect::<Vec<_>>();
        let said = sh(&format!("script -qec '{}' /dev/null", line.join(" ")));
        for words in [
            "putting back r0; waiting up to 5 s for systemd-networkd",
            "r0 of container first",
        ] {
            assert!(said.contains(words), "no {words:?} in {said}");
        }
        assert!(!said.contains("command="), "{said}");
    });
}

/// `status` names that command where there is no timer.
#[test]
fn a_look_by_hand_says_what_each_nic_waits_for() {
    alone(|host| {
        waiting(host);
        set_carrier(host, "down");
        let why = "r0 is back; systemd-networkd is configuring it; r0 has no carrier";
        let expected =
            format!("r0 of container first: back, and not done yet\n  state       {why}\n");
        assert_eq!(stale(host), expected);
        let all = host.rdmaprep(&["restore", "--all"]).ok().out;
        assert_eq!(all, expected);
        let json = host
            .rdmaprep(&["restore", "--all", "--stale", "--json"])
            .ok();
        let json: Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!(json[0]["awaits"], serde_json::json!([why]), "{json}");
        assert_eq!(json[0]["exit_code"], 0);
        set_carrier(host, "up");
        says(&index(), "configured");
        assert_eq!(stale(host), "r0 of container first: restored\n");
        host.is_clean();
        // The stop has brought it back, whatever was added since.
        let said = host.rdmaprep(&["status"]).ok().out;
        assert!(said.contains(" ago: first stopped\n"), "{said}");
    });
}

#[test]
fn a_container_that_has_ended_has_no_nics_by_a_plan() {
    alone(|host| {
        waiting(host);
        let listed = host.rdmaprep(&["plan", "list", "--json"]).ok().out;
        let listed: Value = serde_json::from_str(&listed).unwrap();
        assert_eq!(listed[0]["containers"], serde_json::json!([]), "{listed}");
    });
}

#[test]
fn rdmaprep_can_be_uninstalled_while_a_nic_waits() {
    alone(|host| {
        waiting(host);
        let said = host.rdmaprep(&["uninstall", "--dry-run"]).ok().out;
        let note = "note: r0 is back; systemd-networkd is configuring it: `rdmaprep restore";
        assert!(said.contains(note), "{said}");
    });
}

#[test]
fn status_says_what_a_waiting_nic_waits_for_now() {
    alone(|host| {
        waiting(host);
        let status = || host.rdmaprep(&["status"]).ok().out;
        let said = status();
        for words in [
            "systemd-networkd is configuring it",
            "first",
            "restore --all --stale` when its manager",
        ] {
            assert!(said.contains(words), "no {words:?} in {said}");
        }
        says(&index(), "configured");
        let said = status();
        assert!(said.contains("is put back at the next look"), "{said}");
        host.ip(
            "address add 10.0.0.1/24 dev r0\nroute replace 10.20.0.0/16 via 10.0.0.9\n\
            route replace 10.21.0.0/16 via 10.0.0.9 table 100\n\
            rule add from 10.0.0.1 table 100 priority 1000",
        );
        let said = status();
        assert!(said.contains("back with all that it had"), "{said}");
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_clean();
    });
}

/// A server that does not answer, and not the manager, is what to look at.
#[test]
fn prepare_names_the_lease_that_a_manager_waits_for() {
    alone(|host| {
        host.rails(1);
        host.ip("address flush dev r0 scope global");
        let file = "/run/systemd/network/10-r0.network";
        let drop_ins = format!("{file}.d");
        fs::create_dir_all(&drop_ins).unwrap();
        fs::write(file, "[Match]\nName=r0\n[Network]\nDHCP = ipv4\n").unwrap();
        says("1", "unmanaged");
        says(&index(), &format!("configuring\nNETWORK_FILE={file}"));
        let said = || {
            let said = host.rdmaprep(&["prepare", "--dry-run", "--ifaces", "r0"]);
            said.err.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let lease = said();
        for words in [
            "systemd-networkd waits for a lease of DHCP",
            "wait for the lease, or see to the DHCP server: `networkctl status r0`",
        ] {
            assert!(lease.contains(words), "no {words:?} in {lease}");
        }
        fs::write(format!("{drop_ins}/no.conf"), "[Network]\nDHCP=no\n").unwrap();
        let no_lease = said();
        assert!(no_lease.contains("is still configuring it"), "{no_lease}");
    });
}

#[test]
fn status_says_that_a_waiting_nic_has_no_carrier() {
    alone(|host| {
        waiting(host);
        set_carrier(host, "down");
        let said = host.rdmaprep(&["status"]).ok().out;
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        let words = "systemd-networkd is configuring it; r0 has no carrier";
        assert!(said.contains(words), "{said}");
    });
}

/// Its only address is by hand, and its manager's come later.
#[test]
fn prepare_says_of_a_nic_with_an_address_that_more_may_come() {
    alone(|host| {
        host.rails(1);
        says("1", "unmanaged");
        let warned = |state: &str| {
            says(&index(), state);
            let said = host.rdmaprep(&["prepare", "--ifaces", "r0"]).ok().err;
            said.contains(
                "r0 may have other addresses soon than those of the plan: it has no carrier",
            )
        };
        set_carrier(host, "down");
        assert!(warned("configuring"));
        set_carrier(host, "up");
        assert!(!warned("configured"));
    });
}

/// A server that does not answer is what to look at.
#[test]
fn status_and_restore_name_the_lease_that_is_awaited() {
    alone(|host| {
        let file = "/run/systemd/network/10-r0.network";
        fs::create_dir_all("/run/systemd/network").unwrap();
        fs::write(file, "[Match]\nName=r0\n[Network]\nDHCP=ipv4\n").unwrap();
        let (mut c, _) = away(host, "first");
        stop_beside(host, &mut c, &format!("configuring\nNETWORK_FILE={file}"));
        let why = "r0 is back; systemd-networkd waits for a lease of DHCP";
        for args in [&["status"][..], &["restore", "--all", "--stale"]] {
            let said = host.rdmaprep(args).ok().out;
            assert!(said.contains(why), "{said}");
        }
    });
}
