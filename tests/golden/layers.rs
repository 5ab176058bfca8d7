//! scripts/check-layers: the walls stand, and it sees one that is broken.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use regex::Regex;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn check(dir: &Path) -> Output {
    Command::new("python3")
        .arg(dir.join("scripts/check-layers"))
        .arg(dir)
        .output()
        .unwrap()
}

/// A copy of the sources with a line more in that file; what the check says of it.
fn planted(file: &str, line: &str) -> String {
    let copy = tempfile::tempdir().unwrap();
    let copied = Command::new("cp")
        .arg("-r")
        .args(["src", "scripts", "kubelet", "rail-test"])
        .arg(copy.path())
        .current_dir(ROOT)
        .status();
    assert!(copied.unwrap().success());
    let path = copy.path().join(file);
    fs::write(
        &path,
        format!("{line}\n{}", fs::read_to_string(&path).unwrap()),
    )
    .unwrap();
    let said = check(copy.path());
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    String::from_utf8(said.stderr).unwrap()
}

#[test]
fn layers_of_this_tree_hold() {
    let said = check(Path::new(ROOT));
    assert!(said.status.success(), "{said:?}");
}

/// The drawing in lib.rs has a line for each floor, the highest first; an indented one goes on with
/// the floor above it.
#[test]
fn drawing_in_lib_rs_has_the_floors() {
    let text = fs::read_to_string(Path::new(ROOT).join("scripts/layers.toml")).unwrap();
    let layers: toml::Table = toml::from_str(&text).unwrap();
    let rooms = |floor: &toml::Value| {
        floor
            .as_array()
            .unwrap()
            .iter()
            .map(|room| room.as_str().unwrap().to_owned())
            .collect::<BTreeSet<_>>()
    };
    let floors: Vec<BTreeSet<String>> = layers["floors"]
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .map(rooms)
        .collect();
    let lib = fs::read_to_string(Path::new(ROOT).join("src/lib.rs")).unwrap();
    let drawing = lib
        .split("//! ```text\n")
        .nth(1)
        .unwrap()
        .split("//! ```\n")
        .next()
        .unwrap();
    let mut drawn: Vec<BTreeSet<String>> = Vec::new();
    for line in drawing.lines() {
        let line = line.trim_start_matches("//!");
        let rooms = line
            .trim()
            .split("  ")
            .next()
            .unwrap()
            .split(", ")
            .map(str::to_owned);
        match drawn.last_mut().filter(|_| line.starts_with("   ")) {
            Some(floor) => floor.extend(rooms),
            None => drawn.push(rooms.collect()),
        }
    }
    assert_eq!(drawn, floors);
}

#[test]
fn import_from_a_floor_above_is_found() {
    let said = planted("src/select/rules.rs", "use crate::commands;");
    assert!(
        said.contains("select::rules imports commands, which is on a floor above"),
        "{said}"
    );
}

#[test]
fn circle_inside_a_crate_is_found() {
    let said = planted("kubelet/src/rail.rs", "use crate::pools::Pools;");
    assert!(
        said.contains("kubelet/src: circle of 2: pools rail"),
        "{said}"
    );
}

#[test]
fn room_that_touches_the_machine_is_found() {
    let said = planted("src/select/rules.rs", "use std::fs::File;");
    assert!(said.contains("select::rules touches the machine"), "{said}");
}

#[test]
fn plan_that_is_changed_elsewhere_is_found() {
    let said = planted("src/view.rs", "fn change(_: &mut Plan) {}");
    assert!(said.contains("view changes a plan"), "{said}");
}

#[test]
fn lowest_floor_imports_nothing() {
    let said = planted("src/deadline.rs", "use crate::apply::apply;");
    assert!(
        said.contains("deadline imports apply, which is on a floor above"),
        "{said}"
    );
}

#[test]
fn allowed_line_that_is_not_needed_is_found() {
    let copy = tempfile::tempdir().unwrap();
    let copied = Command::new("cp")
        .arg("-r")
        .args(["src", "scripts", "kubelet", "rail-test"])
        .arg(copy.path())
        .current_dir(ROOT)
        .status();
    assert!(copied.unwrap().success());
    let rules = copy.path().join("scripts/layers.toml");
    let text = fs::read_to_string(&rules).unwrap();
    fs::write(
        &rules,
        text.replace(
            "allowed = [",
            "allowed = [\n  \"view imports nothing of the kind\",",
        ),
    )
    .unwrap();
    let said = String::from_utf8(check(copy.path()).stderr).unwrap();
    assert!(
        said.contains("gone, take it out of scripts/layers.toml: view imports nothing of the kind"),
        "{said}"
    );
}

#[test]
fn names_of_tests_have_at_most_60_characters() {
    let find = Command::new("find")
        .args(["src", "tests", "crates", "-name", "*.rs"])
        .current_dir(ROOT)
        .output()
        .unwrap();
    let name = Regex::new(r"#\[test\]\s*(?:#\[[^\n]*\]\s*)*fn (\w+)").unwrap();
    let mut names = 0;
    for file in String::from_utf8(find.stdout).unwrap().lines() {
        let text = fs::read_to_string(Path::new(ROOT).join(file)).unwrap();
        for found in name.captures_iter(&text) {
            assert!(
                found[1].len() <= 60,
                "{file}: {} is {} characters long",
                &found[1],
                found[1].len()
            );
            names += 1;
        }
    }
    assert!(names > 700, "{names}");
}
