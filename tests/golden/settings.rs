//! `rdmaprep env` prints what a bundle gets.

use rdma_model::nic::EnvVar;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rdmaprep::nccl_env::format::{self, Format};
use serde_json::{Value, json};
use tempfile::TempDir;

const SNAPSHOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/snapshot.json");

/// On a machine that is recorded, with nothing of the host's own in the environment.
fn rdmaprep(dir: &Path, host: &[(&str, &str)], args: &[&str]) -> String {
    rdmaprep_on(Path::new(SNAPSHOT), dir, host, args)
}

fn rdmaprep_on(snapshot: &Path, dir: &Path, host: &[(&str, &str)], args: &[&str]) -> String {
    said(snapshot, dir, host, args).0
}

/// Its output, and what it said besides.
fn said(snapshot: &Path, dir: &Path, host: &[(&str, &str)], args: &[&str]) -> (String, String) {
    let (place, snapshot) = (dir.to_str().unwrap(), snapshot.to_str().unwrap());
    let output = Command::new(env!("CARGO_BIN_EXE_rdmaprep"))
        .args(args)
        .args([
            "--snapshot",
            snapshot,
            "--config",
            "/dev/null",
            "--state-dir",
            place,
            "--run-dir",
            place,
        ])
        .env_clear()
        .envs(host.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    (String::from_utf8(output.stdout).unwrap(), said)
}

fn pairs(lines: &str) -> BTreeMap<String, String> {
    lines
        .lines()
        .map(|line| line.split_once('=').unwrap())
        .map(|(n, v)| (n.to_owned(), v.to_owned()))
        .collect()
}

fn spec() -> Value {
    serde_json::from_str(include_str!("../../examples/spec.json")).unwrap()
}

fn bundle(dir: &TempDir, spec: &Value) -> PathBuf {
    let bundle = dir.path().join("bundle");
    fs::create_dir(&bundle).unwrap();
    fs::write(bundle.join("config.json"), spec.to_string()).unwrap();
    bundle
}

fn read(bundle: &Path) -> (Value, Vec<String>) {
    let config: Value =
        serde_json::from_slice(&fs::read(bundle.join("config.json")).unwrap()).unwrap();
    let env = serde_json::from_value(config["process"]["env"].clone()).unwrap();
    (config, env)
}

/// What an edit adds to the environment of a bundle, and what `env` says before that.
fn both(
    host: &[(&str, &str)],
    own: &[&str],
) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let mut spec = spec();
    spec["process"]["env"]
        .as_array_mut()
        .unwrap()
        .extend(own.iter().map(|v| (*v).into()));
    of_spec(host, &spec)
}

fn of_spec(
    host: &[(&str, &str)],
    spec: &Value,
) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let dir = tempfile::tempdir().unwrap();
    let bundle = bundle(&dir, spec);
    let before = read(&bundle).1;
    let place = bundle.to_str().unwrap();
    let printed = rdmaprep(
        dir.path(),
        host,
        &["env", "--format", "docker", "--bundle", place],
    );
    rdmaprep(dir.path(), host, &["prepare", "--bundle", place]);
    let after = read(&bundle).1;
    let added: Vec<&str> = after
        .iter()
        .filter(|v| !before.contains(v))
        .map(String::as_str)
        .collect();
    (pairs(&added.join("\n")), pairs(&printed))
}

#[test]
fn exactly_what_a_bundle_gets() {
    let (added, printed) = both(&[("NCCL_IB_TC", "106")], &[]);
    assert_eq!(added, printed);
    let expected = [
        ("GLOO_SOCKET_IFNAME", "rdma0"),
        ("NCCL_IB_GID_INDEX", "1"),
        ("NCCL_IB_HCA", "=rxe0,rxe1"),
        ("NCCL_IB_TC", "106"),
        ("NCCL_SOCKET_IFNAME", "=rdma0"),
    ];
    assert_eq!(
        printed,
        expected.map(|(n, v)| (n.to_owned(), v.to_owned())).into()
    );
}

#[test]
fn nothing_of_the_containers_own_is_overridden() {
    let (added, printed) = both(&[], &["NCCL_IB_GID_INDEX=-1", "NCCL_SOCKET_IFNAME="]);
    assert_eq!(added, printed);
    assert_eq!(printed.into_keys().collect::<Vec<_>>(), ["NCCL_IB_HCA"]);
}

#[test]
fn an_agreed_set_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let text = rdmaprep(
        dir.path(),
        &[("RDMA_PEER_IFACES", "rdma0 rdma1")],
        &["env", "--format", "conf"],
    );
    assert!(text.ends_with("NCCL_IGNORE_NET_MISMATCH=0\n"), "{text}");
}

#[test]
fn env_has_the_libraries_that_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let names = |libraries: &[&str]| {
        let text = rdmaprep(
            dir.path(),
            &[],
            &[&["env", "--format", "docker"], libraries].concat(),
        );
        pairs(&text).into_keys().collect::<Vec<_>>()
    };
    let plain = names(&[]);
    assert!(
        plain.iter().all(|name| name.starts_with("NCCL_")),
        "{plain:?}"
    );
    assert_eq!(names(&["--libraries", "nccl,gloo"]), plain);
    let ucx = names(&["--libraries", "ucx"]);
    assert_eq!(ucx, ["UCX_NET_DEVICES"]);
    let all = names(&["--libraries=all"]);
    assert!(all.len() > plain.len() + 5, "{all:?}");
    let mut both = plain.clone();
    both.extend(all.iter().filter(|name| !plain.contains(name)).cloned());
    both.sort();
    assert_eq!(both, all);
}

#[test]
fn what_a_container_has_of_a_library_wins() {
    let own = [
        "UCX_NET_DEVICES=mlx5_9:1",
        "NVSHMEM_HCA_PE_MAPPING=mlx5_9:1:8",
    ];
    let (given, said) = both(&[("RDMAPREP_LIBRARIES", "all")], &own);
    assert_eq!(given, said);
    assert!(given.contains_key("MC_TE_FILTERS"), "{given:?}");
    assert!(
        given.keys().all(|name| !name.contains("HCA_LIST")),
        "{given:?}"
    );
    assert!(!given.contains_key("UCX_NET_DEVICES"), "{given:?}");
}

#[test]
fn nccl_list_has_just_the_chosen_hcas() {
    let case = |name: &str| {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/cases/select")
            .join(name)
    };
    for (machine, args, list) in [
        ("infiniband-slower", &["--ib"][..], "mlx5_0,mlx5_2,mlx5_10"),
        (
            "infiniband-slower",
            &["--ib", "--hca", "all", "--exclude-hca", "3d:00.0"],
            "mlx5_0,mlx5_1,mlx5_10,mlx5_11",
        ),
        (
            "infiniband-slower",
            &["--ib", "--hca", "100G mlx5_10"],
            "mlx5_1,mlx5_10,mlx5_11",
        ),
        (
            "infiniband-other-fabrics",
            &["--ib", "--hca", "fe80:0:0:2::/64"],
            "mlx5_1",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let snapshot = dir.path().join("snapshot.json");
        let host: Value = testkit::golden::host(&case(machine));
        fs::write(&snapshot, host.to_string()).unwrap();
        let text = rdmaprep_on(
            &snapshot,
            dir.path(),
            &[],
            &[&["env", "--format", "conf"], args].concat(),
        );
        assert!(
            text.lines()
                .any(|line| line == format!("NCCL_IB_HCA=={list}")),
            "{args:?}: {text}"
        );
    }
}

/// A stored plan has its NICs: a flag that chooses others says what is not so. A variable may be
/// there for another command.
#[test]
fn flags_beside_a_stored_plan_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    rdmaprep(dir.path(), &[], &["prepare", "--ifaces", "rdma0"]);
    let bundle = bundle(&dir, &spec());
    let place = dir.path().to_str().unwrap();
    let env = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        command.args([
            "env",
            "--config",
            "/dev/null",
            "--state-dir",
            place,
            "--run-dir",
            place,
            "--format",
            "conf",
        ]);
        testkit::run(
            command.env_clear().env("RDMA_IFACES", "rdma1").args(more),
            "",
        )
    };
    assert!(env(&[]).ok().out.contains("NCCL_IB_HCA==rxe0\n"));
    let idle = "would change nothing: plan default is stored, and has its NICs; `rdmaprep \
        prepare` with these flags";
    env(&["--ifaces", "rdma1"]).fails(2, &["--ifaces", idle]);
    env(&["--topo"]).fails(2, &["--topo", idle]);
    // A bundle's topology file is made when it is edited.
    let bundle = bundle.to_str().unwrap();
    env(&["--topo", "--hca", "rxe1", "--bundle", bundle])
        .fails(2, &["rdmaprep: --hca would change nothing"]);
    // Of a recorded machine the plan is made again.
    let text = rdmaprep(
        dir.path(),
        &[],
        &["env", "--format", "conf", "--ifaces", "rdma1"],
    );
    assert!(text.contains("NCCL_IB_HCA==rxe1\n"), "{text}");
}

#[test]
fn what_annotations_take_away_is_not_printed() {
    let mut spec = spec();
    spec["annotations"] = json!({"rdmaprep.io/exclude": "rdma0"});
    let (added, printed) = of_spec(&[("RDMA_PEER_IFACES", "rdma0 rdma1")], &spec);
    assert_eq!(added, printed);
    assert_eq!(
        (
            printed["NCCL_IB_HCA"].as_str(),
            printed["NCCL_SOCKET_IFNAME"].as_str()
        ),
        ("=rxe1", "=rdma1")
    );
}

/// A host whose HCAs are on PCI.
fn hardware() -> Value {
    let mut snapshot: Value =
        serde_json::from_str(include_str!("../../examples/snapshot.json")).unwrap();
    for at in 0..snapshot["hcas"].as_array().unwrap().len() {
        let (hca, address) = (&mut snapshot["hcas"][at], format!("0000:0{}:00.0", at + 1));
        (hca["driver"], hca["pci"]) = (json!("mlx5_core"), json!(address));
        let netdev = hca["ports"][0]["netdev"].clone();
        let netdevs = snapshot["netdevs"].as_array_mut().unwrap();
        netdevs.iter_mut().find(|n| n["name"] == netdev).unwrap()["pci"] = json!(address);
        snapshot["pci"]
            .as_array_mut()
            .unwrap()
            .push(json!({"address": address, "class": 0x020000}));
    }
    snapshot
}

/// A file that an earlier edit wrote is written again, or removed with its variable.
#[test]
fn a_topology_file_comes_and_goes_with_its_variable() {
    let dir = tempfile::tempdir().unwrap();
    let mut spec = spec();
    spec["mounts"] = json!([{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}]);
    let bundle = bundle(&dir, &spec);
    let snapshot = dir.path().join("snapshot.json");
    fs::write(&snapshot, hardware().to_string()).unwrap();
    let prepare = |args: &[&str]| {
        let place = bundle.to_str().unwrap();
        let first = ["prepare", "--bundle", place];
        rdmaprep_on(&snapshot, dir.path(), &[], &[&first, args].concat());
        let (config, env) = read(&bundle);
        let mounts = config["mounts"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|m| m["destination"] == PLACE)
            .count();
        (
            mounts,
            env.iter()
                .filter(|e| **e == format!("NCCL_TOPO_FILE={PLACE}"))
                .count(),
        )
    };
    const PLACE: &str = "/dev/rdmaprep/nccl_topo.xml";
    assert_eq!(prepare(&["--topo"]), (1, 1));
    assert_eq!(prepare(&["--topo"]), (1, 1));
    assert_eq!(prepare(&[]), (0, 0));
    assert_eq!(prepare(&[]), (0, 0));
}

/// The management network's route stays on the host, and with it the way to a master that is known
/// by its address there.
#[test]
fn an_unreachable_peer_is_reported() {
    let mut node: Value =
        serde_json::from_str(include_str!("../../examples/snapshot.json")).unwrap();
    let eth0 = json!({"name": "eth0", "ifindex": 90,
        "addresses": [{"address": "198.51.100.1", "prefix": 24}]});
    node["netdevs"].as_array_mut().unwrap().push(eth0);
    let route = json!({"destination": "198.51.100.0/24", "table": 254, "kind": 1,
        "hops": [{"dev": "eth0"}]});
    node["routes"].as_array_mut().unwrap().push(route);
    let dir = tempfile::tempdir().unwrap();
    let (bundle, snapshot) = (bundle(&dir, &spec()), dir.path().join("snapshot.json"));
    fs::write(&snapshot, node.to_string()).unwrap();
    let prepare = |peer: &str| {
        let names = ["--ifaces", "rdma0 rdma1", "--allow-bootstrap-iface"];
        let args = [
            &["prepare", "--dry-run", "--bundle", bundle.to_str().unwrap()][..],
            &names,
        ]
        .concat();
        said(&snapshot, dir.path(), &[("REMOTE_IP", peer)], &args).1
    };
    let words = "nothing in this container leads to the peer address 198.51.100.7";
    assert!(prepare("198.51.100.7").contains(words));
    assert!(!prepare("192.0.2.7").contains("nothing in this container leads"));
}

#[test]
fn a_bootstrap_interface_that_would_be_moved_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let prepare = |list: &str, ifaces: &str| {
        let args = ["prepare", "--dry-run", "--ifaces", ifaces];
        said(
            Path::new(SNAPSHOT),
            dir.path(),
            &[("NCCL_SOCKET_IFNAME", list)],
            &args,
        )
        .1
    };
    let words = "NCCL_SOCKET_IFNAME=rdma of this host fits nothing but rdma0, rdma1";
    assert!(prepare("rdma", "rdma0 rdma1").contains(words));
    assert!(!prepare("rdma", "rdma0").contains("fits nothing"));
    assert!(!prepare("=eth0", "rdma0 rdma1").contains("fits nothing"));
}

#[test]
fn a_shell_reads_back_what_was_written() {
    let value = "a'b\"c$HOME`id`\\ \n#é";
    let var = EnvVar {
        name: "NCCL_X".into(),
        value: value.into(),
        why: String::new(),
    };
    let (text, left) = format::write(&[var], Format::Sh);
    let shell = Command::new("sh")
        .arg("-c")
        .arg(format!("{text}printf %s \"$NCCL_X\""))
        .output()
        .unwrap();
    assert_eq!(
        (
            String::from_utf8(shell.stdout).unwrap().as_str(),
            left.len()
        ),
        (value, 0)
    );
}
