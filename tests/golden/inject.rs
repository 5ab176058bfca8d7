//! Golden cases of the config.json edit: tests/cases/inject/NAME/{config.json,edit.json} give
//! expected.diff and expected.txt (what was changed and kept), or expected.err (exit code and
//! text). `UPDATE_GOLDEN=1` rewrites them. A case without one of its two files has that of the case
//! `plain`; with a `.diff` in its place, what that makes of it.

use std::fs;
use std::path::{Path, PathBuf};

use rdma_model::error_class::ErrorClass;
use rdmaprep::oci::edit::{self, Edit, Stage};
use rdmaprep::plan::Plan;

fn cases() -> Vec<PathBuf> {
    testkit::golden::cases("inject", 31)
}

/// The config.json and the edit of a case.
fn given(case: &Path) -> (String, Edit) {
    let edit = text(case, "edit");
    (text(case, "config"), serde_json::from_str(&edit).unwrap())
}

fn text(case: &Path, name: &str) -> String {
    let read = |path: PathBuf| fs::read_to_string(path).ok();
    if let Some(whole) = read(case.join(format!("{name}.json"))) {
        return whole;
    }
    let plain = read(case.with_file_name("plain").join(format!("{name}.json"))).unwrap();
    let Some(diff) = read(case.join(format!("{name}.diff"))) else {
        return plain;
    };
    applied(&plain, &diff)
}

fn applied(text: &str, diff: &str) -> String {
    let patch = diffy::Patch::from_str(diff).unwrap_or_else(|e| panic!("{e}: {diff}"));
    diffy::apply(text, &patch).unwrap_or_else(|e| panic!("{e}: {diff}"))
}

fn golden(file: &Path, actual: Option<&str>) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        match actual {
            Some(text) => fs::write(file, text).unwrap(),
            None => drop(fs::remove_file(file)),
        }
    }
    assert_eq!(
        actual,
        fs::read_to_string(file).ok().as_deref(),
        "{}",
        file.display()
    );
}

fn says(injected: &edit::Injected) -> String {
    let changes = injected.changes.iter().map(|c| format!("changed: {c}\n"));
    changes
        .chain(injected.kept.iter().map(|k| format!("kept: {k}\n")))
        .collect()
}

#[test]
fn golden_cases() {
    for dir in cases() {
        let (config, edit) = given(&dir);
        let result = edit::apply(&config, &edit);
        let error = result
            .as_ref()
            .err()
            .map(|e| format!("{}: {e:#}\n", ErrorClass::of(e).code()));
        golden(&dir.join("expected.err"), error.as_deref());
        let once = result.ok();
        let diff = once.as_ref().map(|i| edit::diff(&config, &i.json));
        golden(&dir.join("expected.diff"), diff.as_deref());
        // It says all that is different.
        if let (Some(diff), Some(once)) = (diff.filter(|diff| !diff.is_empty()), &once) {
            assert_eq!(applied(&config, &diff), once.json, "{}", dir.display());
        }
        golden(
            &dir.join("expected.txt"),
            once.as_ref().map(says).as_deref(),
        );
    }
}

#[test]
fn twice_is_once() {
    let mut edited = 0;
    for dir in cases() {
        let (config, edit) = given(&dir);
        let Ok(once) = edit::apply(&config, &edit) else {
            continue;
        };
        let twice = edit::apply(&once.json, &edit).unwrap();
        assert_eq!(twice.json, once.json, "{}", dir.display());
        assert_eq!(twice.changes, Vec::<String>::new(), "{}", dir.display());
        assert_eq!(twice.kept, once.kept, "{}", dir.display());
        edited += 1;
    }
    assert!(edited > 15);
}

/// Whatever order edits come in, and however often, the outcome says the same and its other parts
/// are the given ones.
#[test]
fn nothing_else_changes() {
    for dir in cases() {
        let (config, edit) = given(&dir);
        let Ok(once) = edit::apply(&config, &edit) else {
            continue;
        };
        let mut after: serde_json::Value = serde_json::from_str(&once.json).unwrap();
        let before: serde_json::Value = serde_json::from_str(&config).unwrap();
        let ours = [
            "/process/env",
            "/process/rlimits",
            "/linux/devices",
            "/linux/resources",
            "/hooks",
            "/annotations",
            "/mounts",
        ];
        for path in ours {
            let (parent, key) = path.rsplit_once('/').unwrap();
            let parent = after.pointer_mut(parent).unwrap().as_object_mut().unwrap();
            match before.pointer(path) {
                Some(value) => parent.insert(key.into(), value.clone()),
                None => parent.remove(key),
            };
        }
        assert_eq!(after, before, "{}", dir.display());
        // Of the mounts, all but views of ours stay as they are, in their order.
        let others = |text: &str| -> Vec<serde_json::Value> {
            let config: serde_json::Value = serde_json::from_str(text).unwrap();
            let mounts = config
                .get("mounts")
                .and_then(|m| m.as_array())
                .cloned()
                .unwrap_or_default();
            let view = |m: &serde_json::Value| {
                m["source"]
                    .as_str()
                    .is_some_and(|s| edit::view_name(s, "/run/rdmaprep/views").is_some())
            };
            mounts.into_iter().filter(|m| !view(m)).collect()
        };
        assert_eq!(others(&once.json), others(&config), "{}", dir.display());
    }
}

#[test]
fn an_empty_edit_returns_the_text_as_it_is() {
    for dir in cases() {
        let config = text(&dir, "config");
        if let Ok(same) = edit::apply(&config, &Edit::default()) {
            assert_eq!(same.json, config);
            assert_eq!(edit::diff(&config, &same.json), "");
        }
    }
}

/// Cut anywhere, a config.json is an error of one line, never a panic.
#[test]
fn truncated_text_is_refused() {
    let text = include_str!("../../examples/spec.json");
    for end in 0..text.trim_end().len() {
        let error = edit::apply(&text[..end], &Edit::default()).unwrap_err();
        assert_eq!(ErrorClass::of(&error), ErrorClass::State);
        assert!(!format!("{error:#}").contains('\n'));
    }
}

#[test]
fn huge_text_is_refused() {
    let text = format!(
        "{}{}",
        include_str!("../../examples/spec.json"),
        " ".repeat(edit::MAX_BYTES)
    );
    let error = edit::apply(&text, &Edit::default()).unwrap_err();
    assert_eq!(ErrorClass::of(&error), ErrorClass::State);
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(
        ErrorClass::of(&edit::apply(&deep, &Edit::default()).unwrap_err()),
        ErrorClass::State
    );
}

#[test]
fn a_plan_becomes_an_edit() {
    let plan = Plan {
        name: "rails".into(),
        ..testkit::fake_kernel::hosts::plan(Vec::new())
    };
    let edit = Edit::for_plan(&plan, "/usr/bin/rdmaprep", None);
    assert_eq!(
        edit.hooks.iter().map(|h| h.stage).collect::<Vec<_>>(),
        Stage::ALL
    );
    assert_eq!(
        edit.hooks[1].args,
        [
            "rdmaprep",
            "hook",
            "createRuntime",
            "--plan",
            "rails",
            "--deadline",
            "55"
        ]
    );
    // 512 NICs take their time, and so does their undo; a timeout that is asked for stays.
    let many = |timeout| {
        edit::hooks_for(&Stage::ALL, &plan, 512, "/usr/bin/rdmaprep", timeout).swap_remove(1)
    };
    assert_eq!(
        (many(None).timeout, many(None).args[6].as_str()),
        (119, "62")
    );
    assert_eq!(
        (many(Some(100)).timeout, many(Some(100)).args[6].as_str()),
        (100, "50")
    );
    assert_eq!(
        edit.annotations,
        [("rdmaprep.io/plan".to_owned(), "rails".to_owned())]
    );
    let injected = edit::apply(include_str!("../../examples/spec.json"), &edit).unwrap();
    serde_json::from_str::<oci_spec::runtime::Spec>(&injected.json).unwrap();
}

/// The example states are what OCI runtimes hand to hooks, and stay readable as such.
#[test]
fn example_states_are_oci_states() {
    for text in [
        include_str!("../../examples/state-create.json"),
        include_str!("../../examples/state-create-crun.json"),
        include_str!("../../examples/state-stop.json"),
        include_str!("../../examples/state-stop-runsc.json"),
    ] {
        let state: oci_spec::runtime::State = serde_json::from_str(text).unwrap();
        assert_eq!(state.id(), "trainer-0");
    }
}
