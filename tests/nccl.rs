//! What NCCL's released libraries said, and what `rdmaprep nccl explain` prints.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]
mod judge_support;
mod support;

use std::fs;
use std::process::Command;

use judge_support::case::Case;
use serde_json::{Value, json};
use support::{Said, alone, run, same};

#[test]
fn explain_says_what_the_libraries_said() {
    let folder = Case::folder();
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    names.sort();
    assert!(names.len() >= 15, "{} has only {names:?}", folder.display());
    for dir in names {
        let case = Case::read(&dir);
        assert!(case.says.len() >= 5, "{}", dir.display());
        assert_eq!(case.differences(), [""; 0], "{}", dir.display());
    }
}

const SNAPSHOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/snapshot.json");

/// Runs `rdmaprep nccl explain` on the example's node.
fn explain(args: &[&str]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
    command.env_clear().args(["nccl", "explain", "--snapshot", SNAPSHOT]).args(args);
    run(&mut command, "")
}

#[test]
fn what_it_prints_fits_a_terminal() {
    let seventeen = (0..16).map(|i| format!("x{i},")).collect::<String>() + "rdma0";
    let env = [format!("NCCL_SOCKET_IFNAME=^{seventeen}"), "NCCL_IB_HCA=rxe1:1,rxe9".to_owned()];
    let text = explain(&["--env", &env[0], "--env", &env[1], "--nccl-version", "2.30.7"]).ok().out;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/report/nccl_explain.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(path, &text).unwrap();
    }
    same("nccl_explain.txt", &fs::read_to_string(path).unwrap(), &text);
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn the_classic_failures_are_told_in_one_line_each() {
    let many = (0..16).map(|i| format!("x{i},")).collect::<String>() + "rdma0";
    for (setting, line) in [
        ("NCCL_IB_HCA=rxe", ""),
        ("NCCL_IB_HCA==rxe9", "warning  NCCL_IB_HCA: there is no rxe9"),
        ("NCCL_SOCKET_IFNAME=^docker", "warning  the bootstrap uses lo, which other hosts cannot reach"),
        ("NCCL_SOCKET_IFNAME=eth7", "warning  NCCL does not start: NCCL_SOCKET_IFNAME=eth7 fits no interface"),
        (
            &format!("NCCL_SOCKET_IFNAME={many}"),
            "warning  NCCL_SOCKET_IFNAME has 17 entries and NCCL reads 16: it drops rdma0",
        ),
    ] {
        let text = explain(&["--env", setting]).ok().out;
        let told: Vec<&str> = text.lines().filter(|l| l.starts_with("warning")).collect();
        let found = told.iter().filter(|l| l.starts_with(line)).count();
        assert!(if line.is_empty() { told.is_empty() } else { found == 1 }, "{setting}: {told:#?}");
    }
}

#[test]
fn json_has_it_all() {
    let out = explain(&["--json", "--env", "NCCL_SOCKET_IFNAME==rdma1", "--nccl-version", "2.27.7"]).ok().out;
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["bootstrap"]["uses"][0]["interface"], "rdma1");
    assert_eq!((&json["bootstrap"]["uses"][1], &json["version"]), (&json!("asked"), &json!("2.27.7")));
    assert_eq!(json["settings"][0]["place"], "as asked");
    assert_eq!(json["hcas"], json!(["rxe0:1", "rxe1:1"]));
    let out = explain(&["--json", "--env", "NCCL_SOCKET_IFNAME=gone", "--nccl-version", "2.23.4"]).ok().out;
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["bootstrap"]["fails"]["error"], "InternalError");
    assert_eq!((&json["warnings"][0]["trap"], &json["warnings"][0]["fatal"]), (&json!("no_interface"), &json!(true)));
}

#[test]
fn wrong_input_is_named() {
    let dir = tempfile::TempDir::new().unwrap();
    let file = dir.path().join("env");
    fs::write(&file, "NCCL_IB_HCA==rxe0\nno setting\n").unwrap();
    explain(&["--env", "NCCL_IB_HCA"]).fails(2, &["NCCL_IB_HCA", "NAME=VALUE"]);
    explain(&["--env-file", file.to_str().unwrap()]).fails(2, &["no setting"]);
    explain(&["--env-file", "/nonexistent/env"]).fails(2, &["/nonexistent/env"]);
    explain(&["--conf", "/nonexistent/nccl.conf"]).fails(2, &["/nonexistent/nccl.conf"]);
    explain(&["--nccl-version", "3.0.0"]).fails(2, &["3.0.0", "2.32.3"]);
}

#[test]
fn settings_come_from_flags_else_from_where_nccl_finds_them() {
    alone(|host| {
        host.rails(3);
        let root = host.run.parent().unwrap();
        let at = |name: &str, text: &str| {
            fs::write(root.join(name), text).unwrap();
            root.join(name).display().to_string()
        };
        let home = at(".nccl.conf", "NCCL_SOCKET_IFNAME==r1\nNCCL_SOCKET_FAMILY=AF_INET\n").replace("/.nccl.conf", "");
        let conf = at("conf", "NCCL_SOCKET_IFNAME==r2\n");
        let env_file = at("env", "# a comment\n\nNCCL_SOCKET_IFNAME==r0\n");
        let bootstrap = |vars: &[(&str, &str)], args: &[&str]| {
            let mut command = host.command(&["nccl", "explain", "--json"]);
            command.args(args).envs(vars.iter().copied());
            let json: Value = serde_json::from_str(&run(&mut command, "").ok().out).unwrap();
            let place = json["settings"][0]["place"].as_str().unwrap_or_default().to_owned();
            (json["bootstrap"]["uses"][0]["interface"].as_str().unwrap().to_owned(), place)
        };
        let is = |interface: &str, place: &str| (interface.to_owned(), place.to_owned());
        assert_eq!(bootstrap(&[("HOME", &home)], &[]), is("r1", &format!("{home}/.nccl.conf")));
        assert_eq!(bootstrap(&[("HOME", &home), ("NCCL_CONF_FILE", &conf)], &[]), is("r2", &conf));
        assert_eq!(bootstrap(&[("HOME", &home), ("NCCL_SOCKET_IFNAME", "=r0")], &[]), is("r0", "the environment"));
        // $NCCL_CONF_FILE has no such variable before 2.23.4, nor $HOME before 2.30.3.
        let old = ["--nccl-version", "2.18.3", "--env", &format!("NCCL_CONF_FILE={conf}")];
        assert_eq!(bootstrap(&[], &old).0, "r0");
        assert_eq!(bootstrap(&[("HOME", &home)], &["--conf", &conf]), is("r2", &conf));
        assert_eq!(bootstrap(&[("RDMAPREP_NCCL_CONF", &format!("/dev/null:{conf}"))], &[]), is("r2", &conf));
        let own = [("NCCL_SOCKET_IFNAME", "=r2")];
        assert_eq!(
            bootstrap(&own, &["--env", "NCCL_SOCKET_FAMILY=AF_INET", "--env", "NCCL_SOCKET_IFNAME==r1"]).0,
            "r1"
        );
        assert_eq!(bootstrap(&own, &["--env-file", &env_file]), is("r0", "as asked"));
        assert_eq!(bootstrap(&own, &["--env-file", &env_file, "--env", "NCCL_SOCKET_IFNAME==r1"]).0, "r1");
        assert_eq!(bootstrap(&[("RDMAPREP_NCCL_SETTINGS", "A=1\nNCCL_SOCKET_IFNAME==r1")], &[]).0, "r1");
        assert_eq!(bootstrap(&[("RDMAPREP_NCCL_SETTINGS", ""), ("NCCL_SOCKET_IFNAME", "=r2")], &[]).0, "r2");
    });
}
