//! What `status` says of NICs that came back, of failures that are solved, and of names.

use std::fs;

use crate::alone;
use serde_json::{Value, json};
use testkit::{Container, Host};

fn status(host: &Host) -> Value {
    let said = host.rdmaprep(&["status", "--json"]).ok().out;
    serde_json::from_str(&said).unwrap()
}

/// The lines that begin so, without the time.
fn lines(host: &Host, begin: &str) -> Vec<String> {
    let said = host.rdmaprep(&["status"]).ok().out;
    let lines = said.lines().filter(|line| line.starts_with(begin));
    let words = lines.map(|line| {
        let (nics, rest) = line.split_once(", ").unwrap();
        format!("{nics}: {}", rest.split_once(" ago: ").unwrap().1)
    });
    words.collect()
}

#[test]
fn status_says_what_came_back_and_why() {
    alone(|host| {
        let rails = host.rails(2);
        host.prepare(&rails);
        assert_eq!(status(host)["returned"], Value::Null);
        let mut stopped = Container::new("stopped");
        stopped.create(host).ok();
        assert_eq!(lines(host, "returned"), [""; 0]);
        stopped.stop(host).ok();
        let stop = "returned: r0 r1: stopped stopped";
        assert_eq!(lines(host, "returned"), [stop]);
        // A second stop returns nothing.
        host.hook("poststop", &stopped.stopped()).ok();
        assert_eq!(lines(host, "returned"), [stop]);
        let mut killed = Container::new("killed");
        killed.create(host).ok();
        killed.kill();
        host.rdmaprep(&["restore", "--all", "--stale"]).ok();
        let taken = Container::new("taken");
        taken.create(host).ok();
        host.rdmaprep(&["restore", "taken"]).ok();
        let mut said = lines(host, "returned");
        said.sort();
        let why = "it, its runtime or what watches it was killed";
        let stale = format!("returned: r0 r1: killed had ended, and no stop hook ran: {why}");
        let command = "returned: r0 r1: `rdmaprep restore` took them from taken";
        assert_eq!(said, [command, &stale, stop]);
        let returned = status(host)["returned"].clone();
        assert_eq!(returned[0]["nics"], json!(["r0", "r1"]));
        // What is older than an hour is history.
        for id in ["stopped", "killed", "taken"] {
            let mut report = host.report(id);
            report["time"] = json!(report["time"].as_u64().unwrap() - 3601);
            fs::write(
                host.run.join(format!("reports/{id}.json")),
                report.to_string(),
            )
            .unwrap();
        }
        assert_eq!(status(host)["returned"], Value::Null);
    });
}

#[test]
fn status_folds_failures_that_are_solved() {
    alone(|host| {
        host.rails(1);
        for id in ["a", "b"] {
            Container::new(id).create(host).fails(3, &["not stored"]);
        }
        let said = host.rdmaprep(&["status"]).ok().out;
        assert_eq!(said.matches("failed: hook createRuntime").count(), 2);
        host.prepare("r0");
        // Reports count seconds.
        std::thread::sleep(std::time::Duration::from_millis(1100));
        let mut c = Container::new("c");
        c.create(host).ok();
        let said = host.rdmaprep(&["status"]).ok().out;
        assert_eq!(said.matches("failed: ").count(), 0, "{said}");
        assert!(
            said.contains("\nsolved since: 2 failures of the last hour;"),
            "{said}"
        );
        let failures = status(host)["failures"].clone();
        assert_eq!(failures[1]["solved"], true, "{failures}");
        // Another plan's success solves nothing.
        let other = Container::new("d").annotated(json!({"rdmaprep.io/plan": "other"}));
        other.create(host).fails(3, &["not stored"]);
        let said = host.rdmaprep(&["status"]).ok().out;
        assert_eq!(said.matches("failed: ").count(), 1, "{said}");
        c.stop(host).ok();
    });
}

#[test]
fn status_has_the_names_that_an_engine_keeps() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let id = "0123456789abcdef".repeat(4);
        let storage = host.run.with_file_name("overlay-containers");
        let bundle = storage.join(&id).join("userdata");
        fs::create_dir_all(&bundle).unwrap();
        let list = json!([{"id": id, "names": ["train\u{1b}er"]}]);
        fs::write(storage.join("containers.json"), list.to_string()).unwrap();
        let mut container = Container::new(&id).in_bundle(bundle.to_str().unwrap());
        container.create(host).ok();
        let said = host.rdmaprep(&["status"]).ok().out;
        assert!(
            said.contains("  held by     train\\u{1b}er (0123456789ab)\n"),
            "{said}"
        );
        assert_eq!(host.status()[0]["names"][&id], "train\u{1b}er");
        container.stop(host).ok();
    });
}
