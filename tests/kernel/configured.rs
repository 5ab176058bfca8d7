//! `rdmaprep prepare --configured`: the plans of the config file, as after a boot.

use crate::alone;
use serde_json::{Value, json};
use testkit::{Container, Host, Said, run};

/// With a variable that would choose other NICs, were it heard.
fn configured(host: &Host, more: &[&str]) -> Said {
    let words = [&["prepare", "--configured"], more].concat();
    run(host.command(&words).env("RDMA_IFACES", "r1"), "")
}

fn plan(name: &str, ifaces: &str) -> String {
    format!("[[plans]]\nname = \"{name}\"\nifaces = [\"{ifaces}\"]\n")
}

fn unstored(host: &Host) -> Value {
    let said = host.rdmaprep(&["status", "--json"]).ok();
    let status: Value = serde_json::from_str(&said.out).unwrap();
    status["unstored"].clone()
}

fn stored(host: &Host, name: &str) -> Value {
    let said = host.rdmaprep(&["plan", "show", name, "--json"]).ok();
    let plan: Value = serde_json::from_str(&said.out).unwrap();
    let names = plan["nics"].as_array().unwrap().iter();
    names.map(|nic| nic["identity"]["name"].clone()).collect()
}

#[test]
fn plans_of_the_config_file_are_stored_and_kept() {
    alone(|host| {
        host.rails(2);
        let said = configured(host, &[]).ok();
        assert!(said.out.contains("no [[plans]]"), "{said:?}");
        host.configure(&[plan("a", "r0"), plan("b", "r1")].concat());
        let said = configured(host, &["--dry-run"]).ok();
        assert!(said.out.contains("plan a: 1 NIC"), "{said:?}");
        assert_eq!(
            host.rdmaprep(&["plan", "list"]).ok().out,
            "no plan is stored\n"
        );
        let said = host.rdmaprep(&["status"]).ok();
        assert!(said.out.contains("nothing has tried"), "{said:?}");

        configured(host, &[]).ok();
        assert_eq!(stored(host, "a"), json!(["r0"]));
        assert_eq!(stored(host, "b"), json!(["r1"]));
        let mut c = Container::new("c").annotated(json!({"rdmaprep.io/plan": "a"}));
        c.create(host).ok();
        c.stop(host).ok();

        // With --keep a stored plan stays, whatever the file says by now; else it is made again.
        host.configure(&[plan("a", "r1"), plan("b", "r1")].concat());
        let said = configured(host, &["--keep"]).ok();
        assert_eq!(
            said.out,
            "plan a is stored, and stays\nplan b is stored, and stays\n"
        );
        assert_eq!(stored(host, "a"), json!(["r0"]));
        configured(host, &[]).ok();
        assert_eq!(stored(host, "a"), json!(["r1"]));
    });
}

#[test]
fn a_plan_that_cannot_be_stored_is_in_status_until_it_is() {
    alone(|host| {
        host.rails(1);
        host.configure(&[plan("a", "r0"), plan("late", "x0")].concat());
        let said = configured(host, &["--keep", "--json"]);
        let outcomes: Value = serde_json::from_str(&said.out).unwrap();
        said.fails(2, &["rdmaprep: plan late: "]);
        assert_eq!(outcomes[0]["outcome"], "stored");
        assert_eq!(outcomes[1]["outcome"], "failed");
        assert_eq!(stored(host, "a"), json!(["r0"]));

        let missing = unstored(host);
        assert_eq!(missing[0]["plan"], "late");
        let why = missing[0]["why"].as_str().unwrap();
        assert!(why.contains("x0"), "{why}");
        let said = host.rdmaprep(&["status"]).ok();
        assert!(
            said.out
                .contains("plan late of the config file is not stored"),
            "{said:?}"
        );

        // It comes, as a card that is found late does.
        host.ip(
            "link add x0 type veth peer name y0\nlink set y0 up\nlink set x0 up\n\
             address add 10.9.0.1/24 dev x0",
        );
        configured(host, &["--keep"]).ok();
        assert_eq!(stored(host, "late"), json!(["x0"]));
        assert_eq!(unstored(host), Value::Null);
        assert!(!host.run.join("unstored.json").exists());
    });
}

#[test]
fn several_plans_that_cannot_be_stored_are_one_line() {
    alone(|host| {
        host.rails(1);
        host.configure(&[plan("a", "x0"), plan("b", "x1")].concat());
        let said = configured(host, &[]);
        said.fails(2, &["2 plans of the config file", "plan a: ", "plan b: "]);
        for (text, words) in [
            (
                "[[plans]]\nname = \"a\"\nnic = \"r0\"\n",
                "unknown field `nic`",
            ),
            (
                "[[plans]]\nname = \"a\"\n[[plans]]\nname = \"a\"\n",
                "two plans",
            ),
        ] {
            host.configure(text);
            configured(host, &[]).fails(2, &["config.toml", "line ", words]);
        }
        host.configure(&plan("a", "r0"));
        configured(host, &["--ifaces", "r0"]).fails(2, &["--ifaces would change nothing"]);
        configured(host, &["--plan", "a"]).fails(2, &["--plan"]);
        host.rdmaprep(&["prepare", "--keep"])
            .fails(2, &["--configured"]);
    });
}
