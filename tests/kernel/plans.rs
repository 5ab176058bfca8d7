//! `rdmaprep plan`: what is stored, and what goes with it.

use crate::alone;
use serde_json::{Value, json};
use testkit::Container;

#[test]
fn stored_plans_are_listed_shown_and_deleted() {
    alone(|host| {
        host.rails(2);
        let before = host.look();
        assert_eq!(
            host.rdmaprep(&["plan", "list"]).ok().out,
            "no plan is stored\n"
        );
        host.rdmaprep(&["plan", "show", "a"])
            .fails(3, &["plan a is not stored: no plan is stored"]);
        host.rdmaprep(&["prepare", "--plan", "a", "--ifaces", "r0"])
            .ok();
        host.rdmaprep(&["prepare", "--plan", "b", "--ifaces", "r0 r1"])
            .ok();
        let mut c = Container::new("c").annotated(json!({"rdmaprep.io/plan": "a"}));
        c.create(host).ok();
        let list: Value =
            serde_json::from_str(&host.rdmaprep(&["plan", "list", "--json"]).ok().out).unwrap();
        let line = |plan: &str, nics: &[&str], by: &[&str]| {
            json!({"plan": plan, "nics": nics,
                "ib": [], "containers": by})
        };
        assert_eq!(
            list,
            json!([line("a", &["r0"], &["c"]), line("b", &["r0", "r1"], &[])])
        );
        let shown = host.rdmaprep(&["plan", "show", "b"]).ok().out;
        assert!(
            shown.starts_with("plan b: 2 NICs") && shown.contains("r1") && shown.contains("kept"),
            "{shown}"
        );
        let whole: Value =
            serde_json::from_str(&host.rdmaprep(&["plan", "show", "b", "--json"]).ok().out)
                .unwrap();
        assert_eq!(whole["name"], "b");

        // All or none, and no other file of that folder.
        host.rdmaprep(&["plan", "delete", "a", "c"])
            .fails(3, &["plan c is not stored: stored are a, b"]);
        host.rdmaprep(&["plan", "delete", "../plans/a"])
            .fails(2, &["is no plan name"]);
        let said = host.rdmaprep(&["plan", "delete", "a", "--dry-run"]).ok();
        assert_eq!(
            said.out,
            "plan a: would be deleted; c keeps its NICs until it stops\n"
        );
        assert!(host.run.join("plans/a.json").exists());
        host.rdmaprep(&["plan", "delete", "a", "b"]).ok();
        assert_eq!(
            host.rdmaprep(&["plan", "list"]).ok().out,
            "no plan is stored\n"
        );
        // The record has what its NICs are restored by.
        c.stop(host).ok();
        host.is_as(&before);
        c = Container::new("c").annotated(json!({"rdmaprep.io/plan": "a"}));
        c.create(host).fails(3, &["plan a is not stored"]);
    });
}
