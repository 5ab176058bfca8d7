//! What a restore would do, and what is lost without one.

use serde_json::{Value, json};

use crate::alone;
use crate::awaited::waiting;
use crate::managed::{away, index, says, stop_beside, tell_owner};
use testkit::{Container, Host};

/// What its manager makes by itself is not lost, and what the NIC has is there.
#[test]
fn forgetting_a_waiting_nic_lists_what_no_one_puts_back() {
    alone(|host| {
        let (mut c, _) = away(host, "first");
        tell_owner(host, |one| one["destination"] == "10.20.0.0/16");
        stop_beside(host, &mut c, "configuring");
        host.ip("route delete 10.20.0.0/16");
        let said = host.rdmaprep(&["restore", "first", "--forget"]).ok().out;
        for words in ["not done", "10.20.0.0/16"] {
            assert!(said.contains(words), "no {words:?} in {said}");
        }
        for words in ["sysctls", "10.21.0.0/16", "10.0.0.1", "priority 1000"] {
            assert!(!said.contains(words), "{words:?} in {said}");
        }
        host.is_clean();
    });
}

#[test]
fn forgetting_a_nic_that_lacks_nothing_lists_nothing() {
    alone(|host| {
        let (mut c, _) = away(host, "first");
        tell_owner(host, |_| false);
        stop_beside(host, &mut c, "configuring");
        let said = host.rdmaprep(&["restore", "first", "--forget"]).ok().out;
        assert!(!said.contains("not done"), "{said}");
        host.is_clean();
    });
}

fn foretold(host: &Host, more: &[&str]) -> Value {
    let said = host.rdmaprep(&[&["restore", "--dry-run", "--json"], more].concat());
    serde_json::from_str(&said.ok().out).unwrap()
}

#[test]
fn a_restore_is_foretold_in_json() {
    alone(|host| {
        host.rails(1);
        assert_eq!(foretold(host, &["--all"]), json!([]));
        let said = host.rdmaprep(&["restore", "--all", "--dry-run"]).ok().out;
        assert_eq!(said, "No container holds a NIC.\n");
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        let said = foretold(host, &["c"]);
        let [one] = &said.as_array().unwrap()[..] else {
            panic!("{said}");
        };
        for (key, value) in [
            ("schema", json!(1)),
            ("dry_run", json!(true)),
            ("container", json!("c")),
            ("nics", json!(["r0"])),
            ("stuck", json!([])),
        ] {
            assert_eq!(one[key], value, "{said}");
        }
        let steps = one["steps"].as_array().unwrap();
        let moves = |step: &Value| step.as_str().unwrap().starts_with("moving r0 home");
        assert!(steps.iter().any(moves), "{said}");
        assert_eq!(host.records().len(), 1);
        c.stop(host).ok();
    });
}

#[test]
fn a_restore_that_has_nothing_to_do_is_foretold() {
    alone(|host| {
        waiting(host);
        host.ip(
            "address add 10.0.0.1/24 dev r0\nroute replace 10.20.0.0/16 via 10.0.0.9\n\
            route replace 10.21.0.0/16 via 10.0.0.9 table 100\n\
            rule add from 10.0.0.1 table 100 priority 1000",
        );
        says(&index(), "configured");
        let said = host.rdmaprep(&["restore", "--all", "--dry-run"]).ok().out;
        assert_eq!(
            said,
            "r0 of container first: nothing is lost; only the record goes\n"
        );
    });
}

#[test]
fn giving_up_is_foretold_and_changes_nothing() {
    alone(|host| {
        waiting(host);
        let forget = |more: &[&str]| {
            let said = host.rdmaprep(&[&["restore", "first", "--forget"], more].concat());
            said.ok().out
        };
        let lost = "note: not done: adding route 10.20.0.0/16 via 10.0.0.9 dev r0 on the host";
        assert!(forget(&["--dry-run"]).contains(lost));
        let said = foretold(host, &["first", "--forget"]);
        assert!(
            said[0]["notes"]
                .to_string()
                .contains("not done: adding route 10.20.0.0/16")
        );
        assert_eq!(host.records().len(), 1);
        assert!(forget(&[]).contains("the record is kept as"));
        host.is_clean();
    });
}

#[test]
fn a_restore_that_would_fail_is_foretold_with_its_code() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        host.ip("link add r0 type bridge");
        host.rdmaprep(&["restore", "--all", "--dry-run"])
            .fails(8, &["1 of these"]);
        let said = host.rdmaprep(&["restore", "--all", "--dry-run", "--json"]);
        let json: Value = serde_json::from_str(&said.out).unwrap();
        assert_eq!(json[0]["stuck"].as_array().unwrap().len(), 1, "{said:?}");
        host.ip("link delete r0");
        c.stop(host).ok();
    });
}

/// What an administrator has set up otherwise is not put back by any restore.
#[test]
fn forgetting_a_nic_that_was_set_up_otherwise_says_so() {
    alone(|host| {
        waiting(host);
        says(&index(), "unmanaged");
        host.ip("address add 10.5.0.1/24 dev r0");
        let said = host.rdmaprep(&["restore", "first", "--forget"]).ok().out;
        let note = "note        r0 has 10.5.0.1/24 now: what it lacked is given up";
        assert!(said.contains(note), "{said}");
        host.is_clean();
    });
}
