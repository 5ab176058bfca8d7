//! No stop hook is called: `restore --all --stale` restores the NICs of dead containers, and no
//! others.

use std::fs::{self, File};

use crate::alone;
use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;
use testkit::{Container, Host, Said};

fn stale(host: &Host) -> Said {
    host.rdmaprep(&["restore", "--all", "--stale"])
}

/// Ends well and says nothing.
fn nothing(host: &Host) {
    let said = stale(host).ok();
    assert_eq!((said.out.as_str(), said.err.as_str()), ("", ""));
}

fn advice(host: &Host) -> String {
    host.status()[0]["advice"].as_str().unwrap().to_owned()
}

#[test]
fn only_nics_of_dead_containers_are_restored() {
    alone(|host| {
        host.rails(2);
        let before = host.look();
        host.rdmaprep(&["prepare", "--ifaces", "r0", "--plan", "a"])
            .ok();
        host.rdmaprep(&["prepare", "--ifaces", "r1", "--plan", "b"])
            .ok();
        let asks = |plan: &str| {
            Container::new(plan).annotated(serde_json::json!({"rdmaprep.io/plan": plan}))
        };
        let (mut a, mut b) = (asks("a"), asks("b"));
        a.create(host).ok();
        b.create(host).ok();
        nothing(host);
        assert_eq!(
            advice(host).split(',').next(),
            Some(format!("stop {}", first(host)).as_str())
        );
        a.kill();
        let of_a = host
            .status()
            .as_array()
            .unwrap()
            .iter()
            .find(|h| h["members"][0][0] == "a")
            .unwrap()
            .clone();
        assert_eq!(of_a["advice"], "rdmaprep restore --all --stale");
        assert!(
            of_a["pin"]
                .as_str()
                .unwrap()
                .contains(&of_a["netns"].to_string()),
            "{of_a}"
        );
        let said = stale(host).ok();
        assert!(
            said.out.contains("container a:") && !said.out.contains("container b:"),
            "{said:?}"
        );
        assert!(testkit::sh("ip -br link").contains("r0@") && b.sh("ip -br link").contains("r1@"));
        nothing(host);
        b.stop(host).ok();
        nothing(host);
        host.is_as(&before);
        host.is_clean();
    });
}

/// As a job's epilogue does: its containers may live or not, and others' NICs are not its own.
#[test]
fn only_nics_of_the_named_plan_are_restored() {
    alone(|host| {
        host.rails(3);
        let before = host.look();
        let mut all = Vec::new();
        for (plan, nics) in [("job-7", "r0 r1"), ("job-8", "r2")] {
            host.rdmaprep(&["prepare", "--ifaces", nics, "--plan", plan])
                .ok();
        }
        for (id, plan, nic) in [
            ("a", "job-7", "r0"),
            ("b", "job-7", "r1"),
            ("c", "job-8", "r2"),
        ] {
            let container = Container::new(id).annotated(
                serde_json::json!({"rdmaprep.io/plan": plan, "rdmaprep.io/ifaces": nic}),
            );
            container.create(host).ok();
            all.push(container);
        }
        let job = |more: &[&str]| host.rdmaprep(&[&["restore", "--plan", "job-7"], more].concat());
        all[0].kill();
        let foretold = job(&["--dry-run"]).ok().out;
        assert!(
            foretold.contains("r0") && foretold.contains("r1") && !foretold.contains("r2"),
            "{foretold}"
        );
        let said = job(&[]).ok().out;
        assert!(
            said.contains("container a:")
                && said.contains("container b:")
                && !said.contains("container c:"),
            "{said}"
        );
        assert_eq!(
            job(&[]).ok().out,
            "No container of plan job-7 holds a NIC.\n"
        );
        assert!(all[2].sh("ip -br link").contains("r2@"));
        // Another job's record is torn: only the commands that need it report it.
        let torn = host.records().pop().unwrap();
        let text = fs::read(&torn).unwrap();
        fs::write(&torn, &text[..text.len() / 2]).unwrap();
        job(&[]).ok();
        host.rdmaprep(&["restore", "--plan", "job-8"])
            .fails(8, &["r2"]);
        fs::write(&torn, &text).unwrap();
        job(&["--all"]).fails(2, &["--all"]);
        for container in &mut all {
            container.stop(host).ok();
        }
        host.is_as(&before);
        host.is_clean();
    });
}

fn first(host: &Host) -> String {
    host.status()[0]["members"][0][0]
        .as_str()
        .unwrap()
        .to_owned()
}

/// A pod's other containers need not have asked for NICs.
#[test]
fn a_namespace_with_a_process_keeps_its_nics() {
    alone(|host| {
        let rails = host.rails(2);
        let before = host.look();
        host.prepare(&rails);
        let mut init = Container::new("init");
        let mut pause = Container::beside("pause", &init);
        init.create(host).ok();
        init.kill();
        nothing(host);
        assert!(
            pause.sh("ip -br link").contains("r0@"),
            "it was taken from a living namespace"
        );
        let advised = advice(host);
        assert!(
            advised.contains(&format!(
                "end process {} (cat), which is still in the namespace",
                pause.pid()
            )),
            "{advised}"
        );
        assert!(advised.ends_with("rdmaprep restore init"), "{advised}");
        let next = Container::new("next");
        next.create(host).fails(
            9,
            &["r0 is held by container init, which has ended: `rdmaprep status`"],
        );
        // Nor does another container's hook take them.
        let mut other =
            Container::new("other").annotated(serde_json::json!({"rdmaprep.io/plan": "small"}));
        host.ip(
            "link add s0 type veth peer name q0\nlink set q0 up\nlink set s0 up\naddress add \
            10.9.0.1/24 dev s0",
        );
        host.rdmaprep(&["prepare", "--ifaces", "s0", "--plan", "small"])
            .ok();
        other.create(host).ok();
        assert!(
            pause.sh("ip -br link").contains("r0@"),
            "the hook took them"
        );
        other.stop(host).ok();
        assert!(
            pause.sh("ip -br link").contains("r0@"),
            "the hook took them"
        );
        host.ip("link delete s0");
        pause.kill();
        assert!(advice(host).ends_with("--stale"));
        assert!(stale(host).ok().out.contains("r0 r1 of"));
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn an_init_containers_end_leaves_the_jobs_nics_alone() {
    alone(|host| {
        let rails = host.rails(2);
        let before = host.look();
        host.prepare(&rails);
        let mut init = Container::new("init");
        init.create(host).ok();
        let mut job = Container::beside("job", &init);
        job.create(host).ok();
        let inside = job.sh("ip -o -4 address");
        // Twice over: its stop hook runs, and the timer.
        init.stop(host).ok();
        nothing(host);
        assert_eq!(job.sh("ip -o -4 address"), inside);
        assert_eq!(first(host), "job");
        // The job is killed, and no hook runs.
        job.kill();
        assert!(stale(host).ok().out.contains("container job:"));
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn a_reused_pid_is_not_the_container() {
    alone(|host| {
        let rails = host.rails(1);
        let before = host.look();
        host.prepare(&rails);
        let mut c = Container::new("c");
        c.create(host).ok();
        let path = host.records().remove(0);
        let mut record: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        record["members"][0]["pid"] = std::process::id().into();
        fs::write(&path, record.to_string()).unwrap();
        // Its namespace has a process all the same.
        nothing(host);
        c.kill();
        stale(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn the_timer_waits_for_no_lock_without_stale_records() {
    alone(|host| {
        nothing(host);
        assert!(
            !host.run.exists() && !host.state.exists(),
            "it left something"
        );
        let rails = host.rails(1);
        let before = host.look();
        host.prepare(&rails);
        let mut c = Container::new("c");
        c.create(host).ok();
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(host.run.join("lock"))
            .unwrap();
        let held = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, e)| e)
            .unwrap();
        nothing(host);
        assert_eq!(
            host.rdmaprep(&["restore", "--all", "--stale", "--json"])
                .ok()
                .out
                .trim(),
            "[]"
        );
        c.kill();
        stale(host).fails(9, &["another rdmaprep holds"]);
        drop(held);
        let foretold = host
            .rdmaprep(&["restore", "--all", "--stale", "--dry-run"])
            .ok()
            .out;
        assert!(foretold.contains("moving r0 home"), "{foretold}");
        stale(host).ok();
        host.rdmaprep(&["restore", "c", "--stale"])
            .fails(2, &["--stale"]);
        host.is_as(&before);
        host.is_clean();
    });
}
