//! UCX reads the list that `env --libraries ucx` prints.

use std::process::Command;

const SNAPSHOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/snapshot.json");

/// The list for the HCAs of the recorded host.
fn devices() -> String {
    let mut rdmaprep = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
    rdmaprep.args(["env", "--libraries", "ucx", "--format", "docker"]);
    rdmaprep.args(["--snapshot", SNAPSHOT, "--config", "/dev/null"]);
    let output = rdmaprep.env_clear().output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let list = text.trim_end().strip_prefix("UCX_NET_DEVICES=");
    list.unwrap_or_else(|| panic!("{text}")).to_owned()
}

/// What UCX says when it opens these devices.
fn opened(devices: &str) -> String {
    let mut ucx = Command::new("ucx_info");
    ucx.args(["-e", "-u", "t", "-D", "net"]);
    let output = ucx.env("UCX_NET_DEVICES", devices).output();
    let output = output.expect("ucx_info (of Debian's ucx-utils) is needed");
    let said = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&said).into_owned()
}

/// The HCAs are those of another machine: UCX names each that it looked for.
#[test]
#[ignore = "needs ucx_info"]
fn ucx_looks_for_exactly_the_devices_of_the_list() {
    let list = devices();
    let quoted: Vec<String> = list.split(',').map(|d| format!("'{d}'")).collect();
    assert!(quoted.len() > 1, "{list}");
    let missing = format!("network devices {} are not available", quoted.join(","));
    let said = opened(&list);
    assert!(said.contains(&missing), "{said}");
    assert!(said.contains("no usable transports/devices"), "{said}");
    // With one that is there, it goes on with that one alone.
    let said = opened(&format!("{list},lo"));
    assert!(said.contains(&missing) && said.contains("tcp/lo"), "{said}");
}
