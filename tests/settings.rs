//! `rdmaprep env` prints what a bundle gets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

const SNAPSHOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/snapshot.json");

/// On a machine that is recorded, with nothing of the host's own in the environment.
fn rdmaprep(dir: &Path, host: &[(&str, &str)], args: &[&str]) -> String {
    let place = dir.to_str().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_rdmaprep"))
        .args(args)
        .args(["--snapshot", SNAPSHOT, "--config", "/dev/null", "--state-dir", place, "--run-dir", place])
        .env_clear()
        .envs(host.iter().copied())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn pairs(lines: &str) -> BTreeMap<String, String> {
    lines.lines().map(|line| line.split_once('=').unwrap()).map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
}

/// What an edit adds to the environment of a bundle, and what `env` says before that.
fn both(host: &[(&str, &str)], own: &[&str]) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("bundle");
    fs::create_dir(&bundle).unwrap();
    let mut spec: serde_json::Value = serde_json::from_str(include_str!("../examples/spec.json")).unwrap();
    spec["process"]["env"].as_array_mut().unwrap().extend(own.iter().map(|v| (*v).into()));
    let before: Vec<String> = serde_json::from_value(spec["process"]["env"].clone()).unwrap();
    fs::write(bundle.join("config.json"), spec.to_string()).unwrap();
    let place = bundle.to_str().unwrap();
    let told = rdmaprep(dir.path(), host, &["env", "--format", "docker", "--bundle", place]);
    rdmaprep(dir.path(), host, &["prepare", "--bundle", place]);
    let after: serde_json::Value = serde_json::from_slice(&fs::read(bundle.join("config.json")).unwrap()).unwrap();
    let after: Vec<String> = serde_json::from_value(after["process"]["env"].clone()).unwrap();
    let added: Vec<&str> = after.iter().filter(|v| !before.contains(v)).map(String::as_str).collect();
    (pairs(&added.join("\n")), pairs(&told))
}

#[test]
fn exactly_what_a_bundle_gets() {
    let (added, told) = both(&[("NCCL_IB_TC", "106")], &[]);
    assert_eq!(added, told);
    let expected = [
        ("GLOO_SOCKET_IFNAME", "rdma0"),
        ("NCCL_IB_GID_INDEX", "1"),
        ("NCCL_IB_HCA", "=rxe0,rxe1"),
        ("NCCL_IB_TC", "106"),
        ("NCCL_SOCKET_IFNAME", "=rdma0"),
    ];
    assert_eq!(told, expected.map(|(n, v)| (n.to_owned(), v.to_owned())).into());
}

#[test]
fn nothing_of_the_containers_own_is_overridden() {
    let (added, told) = both(&[], &["NCCL_IB_GID_INDEX=-1", "NCCL_SOCKET_IFNAME="]);
    assert_eq!(added, told);
    assert_eq!(told.into_keys().collect::<Vec<_>>(), ["NCCL_IB_HCA"]);
}

#[test]
fn an_agreed_set_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let text = rdmaprep(dir.path(), &[("RDMA_PEER_IFACES", "rdma0 rdma1")], &["env", "--format", "conf"]);
    assert!(text.ends_with("NCCL_IGNORE_NET_MISMATCH=0\n"), "{text}");
}
