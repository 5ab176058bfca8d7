//! What NCCL's released libraries said, and what `rdmaprep nccl explain` prints.

use std::cell::Cell;
use std::fs;
use std::process::Command;

use crate::alone;
use serde_json::{Value, json};
use testkit::nccl_case::Case;
use testkit::{Said, run, same};

#[test]
fn explain_says_what_the_libraries_said() {
    let folder = Case::folder();
    let mut names: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
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
    command
        .env_clear()
        .args(["nccl", "explain", "--snapshot", SNAPSHOT])
        .args(args);
    run(&mut command, "")
}

#[test]
fn what_it_prints_fits_a_terminal() {
    let seventeen = (0..16).map(|i| format!("x{i},")).collect::<String>() + "rdma0";
    let env = [
        format!("NCCL_SOCKET_IFNAME=^{seventeen}"),
        "NCCL_IB_HCA=rxe1:1,rxe9".to_owned(),
    ];
    let text = explain(&[
        "--env",
        &env[0],
        "--env",
        &env[1],
        "--nccl-version",
        "2.30.7",
    ])
    .ok()
    .out;
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/cases/report/nccl_explain.txt"
    );
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(path, &text).unwrap();
    }
    same(
        "nccl_explain.txt",
        &fs::read_to_string(path).unwrap(),
        &text,
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
}

/// A captured /sys has no addresses, and may lack the state of a port.
#[test]
fn explain_judges_hcas_of_a_capture_without_addresses() {
    let port =
        |state: Option<&str>| json!([{"number": 1, "state": state, "link_layer": "InfiniBand"}]);
    let hca = |name: &str, ports: Value| json!({"name": name, "ports": ports});
    let hcas = [
        hca("mlx5_0", port(Some("ACTIVE"))),
        hca("mlx5_1", port(None)),
        hca("mlx5_2", json!([])),
    ];
    let netdevs = json!([{"name": "eth0", "ifindex": 2}]);
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(
        &file,
        json!({"schema": 1, "hcas": hcas, "netdevs": netdevs}).to_string(),
    )
    .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
    command.env_clear().args([
        "nccl",
        "explain",
        "--snapshot",
        file.path().to_str().unwrap(),
    ]);
    let text = run(command.args(["--env", "NCCL_IB_HCA=mlx5"]), "")
        .ok()
        .out;
    for line in [
        "bootstrap    unknown: this snapshot has no addresses",
        "data by HCA  mlx5_0:1",
        "eth0       unknown  its addresses are not in this snapshot",
        "mlx5_0:1  taken    NCCL_IB_HCA names it",
        "mlx5_1:1  unknown  NCCL takes it if it is ACTIVE, and its state is not known",
        "mlx5_2    unknown  no port of it is in this snapshot",
    ] {
        assert!(text.lines().any(|l| l == line), "{line:?} in\n{text}");
    }
    assert!(!text.contains("does not start"), "{text}");
}

/// A host with an HCA of each link layer, and settings that name another network.
#[test]
fn capture_without_addresses_says_nothing_of_a_start() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let netdev = json!({"name": "eth0", "ifindex": 2, "up": true, "running": true});
    let node = json!({"schema": 1, "hcas": [], "netdevs": [netdev]});
    fs::write(file.path(), node.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
    let command = command
        .env_clear()
        .args(["nccl", "explain", "--snapshot"])
        .arg(file.path());
    let text = run(command, "").ok().out;
    assert!(
        text.contains("unknown: this snapshot has no addresses"),
        "{text}"
    );
    assert!(!text.contains("fatal"), "{text}");
}

#[test]
fn explain_tells_link_layers_and_networks_apart() {
    let hca = |index: u32, name: &str, layer: &str| {
        let port = json!({"number": 1, "state": "ACTIVE", "link_layer": layer});
        json!({"name": name, "index": index, "ports": [port]})
    };
    let hcas = [hca(0, "mlx5_0", "InfiniBand"), hca(1, "mlx5_1", "Ethernet")];
    let address = json!([{"address": "198.51.100.21", "prefix": 24}]);
    let netdev = json!({"name": "mgmt0", "ifindex": 2, "up": true, "running": true,
        "addresses": address});
    let host = json!({"schema": 1, "netns": 1, "hcas": hcas, "netdevs": [netdev]});
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, host.to_string()).unwrap();
    let explain = |env: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        let path = file.path().to_str().unwrap();
        command
            .env_clear()
            .args(["nccl", "explain", "--snapshot", path, "--env", env]);
        run(&mut command, "").ok().out
    };
    for (env, text) in [
        (
            "NCCL_IB_HCA=mlx5",
            "mlx5_0:1 of InfiniBand and mlx5_1:1 of Ethernet",
        ),
        ("NCCL_NET=gIB", "data by HCA  unknown"),
        ("NCCL_NET=ROCM-IB", "data by HCA  unknown"),
        ("NCCL_NET=Socket", "data by HCA  none"),
    ] {
        let said = explain(env);
        assert!(said.contains(text), "{env}: {text:?} in\n{said}");
    }
}

/// A node with twelve HCAs, mlx5_0 to mlx5_11, whose second netdev is down.
fn large() -> tempfile::NamedTempFile {
    let mut node: Value = serde_json::from_str(&fs::read_to_string(SNAPSHOT).unwrap()).unwrap();
    let hca = node["hcas"][0].clone();
    let named = |i| {
        let mut hca = hca.clone();
        (hca["name"], hca["index"]) = (json!(format!("mlx5_{i}")), json!(i));
        hca
    };
    node["hcas"] = (0..12).map(named).collect();
    let netdevs = node["netdevs"].as_array_mut().unwrap();
    let down = netdevs.iter_mut().find(|n| n["name"] == "rdma1").unwrap();
    (down["up"], down["running"]) = (json!(false), json!(false));
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, node.to_string()).unwrap();
    file
}

#[test]
fn common_failures_are_reported_in_one_line_each() {
    let node = large();
    let many = (0..16).map(|i| format!("x{i},")).collect::<String>() + "rdma0";
    for (setting, line) in [
        ("NCCL_IB_HCA==mlx5_1", None),
        (
            "NCCL_IB_HCA=mlx5_1",
            Some("NCCL_IB_HCA: mlx5_1 also takes mlx5_10, mlx5_11; =mlx5_1 is exact"),
        ),
        (
            "NCCL_IB_HCA==mlx5_0,mlx5_99",
            Some("NCCL_IB_HCA: there is no mlx5_99"),
        ),
        (
            "NCCL_IB_HCA==mlx5_0,a,b:2,a",
            Some("NCCL_IB_HCA: there is no a, b:2"),
        ),
        (
            "NCCL_SOCKET_IFNAME=^docker",
            Some(
                "NCCL_SOCKET_IFNAME=^docker takes lo for the bootstrap, which no other host \
                reaches",
            ),
        ),
        (
            "NCCL_SOCKET_IFNAME=eth7",
            Some("NCCL does not start: NCCL_SOCKET_IFNAME=eth7 fits no interface that can be used"),
        ),
        (
            "NCCL_SOCKET_IFNAME==rdma0,rdma1",
            Some("rdma1 is down: NCCL uses running interfaces only since 2.28.3"),
        ),
        (
            &format!("NCCL_SOCKET_IFNAME={many}"),
            Some(
                "NCCL_SOCKET_IFNAME has 17 entries and NCCL reads 16: it drops rdma0 and what \
                follows",
            ),
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        command
            .env_clear()
            .args(["nccl", "explain", "--snapshot"])
            .arg(node.path())
            .args(["--env", setting]);
        let text = run(&mut command, "").ok().out;
        let warnings: Vec<&str> = text
            .lines()
            .filter_map(|l| l.strip_prefix("warning").or(l.strip_prefix("fatal")))
            .map(str::trim)
            .collect();
        let found = warnings
            .iter()
            .filter(|warning| line == Some(**warning))
            .count();
        assert!(
            if line.is_none() {
                warnings.is_empty()
            } else {
                found == 1
            },
            "{setting}: {warnings:#?}"
        );
    }
}

#[test]
fn a_bundles_environment_is_asked_about() {
    let bundle = tempfile::tempdir().unwrap();
    let config = json!({"process": {"env": ["NCCL_SOCKET_IFNAME=eth7", "NCCL_SOCKET_IFNAME==rdma1",
        "NCCL_IB_HCA==rxe0"]}});
    fs::write(bundle.path().join("config.json"), config.to_string()).unwrap();
    let said = explain(&[
        "--json",
        "--bundle",
        bundle.path().to_str().unwrap(),
        "--env",
        "NCCL_IB_HCA==rxe1",
    ])
    .ok()
    .out;
    let json: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (&json["bootstrap"]["uses"]["interface"], &json["hcas"]),
        (&json!("rdma1"), &json!(["rxe1:1"]))
    );
}

/// What HCAs lack in the image of a bundle is said beside them.
#[test]
fn a_bundles_image_may_lack_libibverbs() {
    let bundle = tempfile::tempdir().unwrap();
    let at = |path: &str| {
        let path = bundle.path().join("rootfs").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    };
    fs::write(at("etc/nccl.conf"), "NCCL_IB_HCA==rxe1\n").unwrap();
    let machine: u8 = if cfg!(target_arch = "aarch64") {
        183
    } else {
        62
    };
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(18, 0);
    elf.extend([machine, 0]);
    for loader in ["lib64/ld-linux-x86-64.so.2", "lib/ld-linux-aarch64.so.1"] {
        fs::write(at(loader), &elf).unwrap();
    }
    let config = json!({"ociVersion": "1.0.2", "root": {"path": "rootfs"}});
    fs::write(bundle.path().join("config.json"), config.to_string()).unwrap();
    let place = bundle.path().to_str().unwrap();
    let said = explain(&["--json", "--bundle", place]).ok().out;
    let json: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(json["hcas"], json!(["rxe1:1"]));
    let lacks = |w: &&Value| w["trap"] == "libraries";
    let warnings = json["warnings"].as_array().unwrap().iter().filter(lacks);
    let texts: Vec<&Value> = warnings.map(|w| &w["text"]).collect();
    let text = "the loader of the image finds no libibverbs.so.1: install rdma-core in the image";
    assert_eq!(texts, [&json!(text)]);
}

/// Lines of a file that set nothing, as a shell's would.
#[test]
fn lines_that_set_nothing_are_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines = "export NCCL_IB_HCA==rxe0\nNCCL_NET IB\n# NCCL_NET IB\nNCCL_IB_ROCE_VERSION=2\n";
    fs::write(&file, lines).unwrap();
    let path = file.path().to_str().unwrap();
    let said = explain(&["--conf", path]).ok();
    let note = "has a line without =, which NCCL passes over: \"NCCL_NET IB\"";
    assert!(said.err.contains(note), "{}", said.err);
    assert_eq!(said.err.matches("passes over").count(), 1);
    let out = said.out.split_whitespace().collect::<Vec<_>>().join(" ");
    for text in [
        "export NCCL_IB_HCA is no setting of NCCL's: did you mean NCCL_IB_HCA?",
        "NCCL_IB_ROCE_VERSION is no setting of NCCL's: did you mean NCCL_IB_ROCE_VERSION_NUM?",
    ] {
        assert!(out.contains(text), "{text}: {out}");
    }
    let said = explain(&[
        "--env",
        "NCCL_IB_GID_INDEX =3",
        "--env",
        "NCCL_IB_HCA= rxe0",
    ])
    .ok();
    let out = said.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        out.contains("\"NCCL_IB_GID_INDEX \" is no setting of NCCL's"),
        "{out}"
    );
    assert!(out.contains("there is no \" rxe0\""), "{out}");
}

/// The release that an image names is worth a note; all else is by the newest, or by the one that
/// is asked about.
#[test]
fn a_bundles_release_is_a_note() {
    let bundle = tempfile::tempdir().unwrap();
    let config = json!({"process": {"env": ["NCCL_VERSION=2.27.7-1"]}});
    fs::write(bundle.path().join("config.json"), config.to_string()).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, with_card().to_string()).unwrap();
    let crashes = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        command
            .env_clear()
            .args(["nccl", "explain", "--json", "--bundle"])
            .arg(bundle.path());
        command.arg("--snapshot").arg(file.path()).args(more);
        let json: Value = serde_json::from_str(&run(&mut command, "").ok().out).unwrap();
        let crash = |w: &&Value| w["trap"] == "crash";
        let found = json["warnings"]
            .as_array()
            .unwrap()
            .iter()
            .filter(crash)
            .map(|w| (w["fatal"].clone(), w["text"].clone()));
        (json["version"].clone(), found.collect::<Vec<_>>())
    };
    let crash = "NCCL 2.27.7 crashes: rxe0 has no PCI path, and it is compared with that of mlx5_0";
    let note = format!(
        "{crash}; the image names 2.27.7 (NCCL_VERSION): if that is what runs, prepare \
        --nccl-version 2.27.7 leaves such HCAs out of the \
         list, NCCL 2.32.3 takes them"
    );
    assert_eq!(
        crashes(&[]),
        (json!("2.32.3"), vec![(json!(false), json!(note))])
    );
    assert_eq!(
        crashes(&["--nccl-version", "2.27.7"]),
        (json!("2.27.7"), vec![(json!(true), json!(crash))])
    );
    assert_eq!(
        crashes(&["--nccl-version", "2.30.7"]),
        (json!("2.30.7"), vec![])
    );
}

#[test]
fn json_has_it_all() {
    let out = explain(&[
        "--json",
        "--env",
        "NCCL_SOCKET_IFNAME==rdma1",
        "--nccl-version",
        "2.27.7",
    ])
    .ok()
    .out;
    let json: Value = serde_json::from_str(&out).unwrap();
    let uses = &json["bootstrap"]["uses"];
    assert_eq!(uses["interface"], "rdma1");
    assert_eq!(
        (&uses["step"], &json["version"]),
        (&json!("asked"), &json!("2.27.7"))
    );
    assert_eq!(json["settings"][0]["place"], "as asked");
    assert_eq!(json["hcas"], json!(["rxe0:1", "rxe1:1"]));
    let out = explain(&[
        "--json",
        "--env",
        "NCCL_SOCKET_IFNAME=gone",
        "--nccl-version",
        "2.23.4",
    ])
    .ok()
    .out;
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["bootstrap"]["fails"]["error"], "InternalError");
    assert_eq!(
        (&json["warnings"][0]["trap"], &json["warnings"][0]["fatal"]),
        (&json!("no_interface"), &json!(true))
    );
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
    // Of both flags the same is said, whatever is wrong with their file.
    for (path, why) in [
        ("nope", "nope does not exist"),
        ("/dev", "reading /dev: /dev is no plain file but a folder"),
    ] {
        for flag in ["--env-file", "--conf"] {
            let said = explain(&[flag, path]);
            assert_eq!(
                (said.code, said.err),
                (Some(2), format!("rdmaprep: {flag}: {why}\n"))
            );
        }
    }
    explain(&["--nccl-version", "3.0.0"]).fails(2, &["3.0.0", "2.32.3"]);
}

/// The example's node with a card beside the two of soft-RoCE.
fn with_card() -> Value {
    let mut node: Value = serde_json::from_str(&fs::read_to_string(SNAPSHOT).unwrap()).unwrap();
    let mut card = node["hcas"][0].clone();
    (card["name"], card["index"], card["pci"]) = (json!("mlx5_0"), json!(7), json!("0000:05:00.0"));
    card["ports"][0]["netdev"] = Value::Null;
    node["hcas"].as_array_mut().unwrap().push(card);
    node
}

#[test]
fn explain_says_on_what_a_release_crashes() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, with_card().to_string()).unwrap();
    let long = format!("NCCL_IB_HCA=^{}", "x".repeat(64));
    let listed = format!("NCCL_IB_HCA=^{}", "rxe7,".repeat(200));
    let crash = "crashes: rxe0 has no PCI path, and it is compared with that of";
    for (version, env, line) in [
        (
            "2.27.7",
            &["A=b"][..],
            Some(format!("NCCL 2.27.7 {crash} mlx5_0")),
        ),
        (
            "2.22.3",
            &["NCCL_IB_HCA==rxe0,rxe1"],
            Some(format!("NCCL 2.22.3 {crash} rxe1")),
        ),
        ("2.27.7", &["NCCL_IB_HCA==rxe0,rxe1"], None),
        ("2.32.3", &["A=b"], None),
        (
            "2.32.3",
            &["NCCL_IB_DEVICE_PCI_ORDER=0"],
            Some(format!("NCCL 2.32.3 {crash} mlx5_0")),
        ),
        (
            "2.30.4",
            &[&long],
            Some(format!(
                "NCCL_IB_HCA: a name of more than 63 bytes does not fit ({}): NCCL 2.30.4 writes \
                past its place, and may crash",
                "x".repeat(64)
            )),
        ),
        (
            "2.18.3",
            &[&listed, "NCCL_DEBUG=INFO", "NCCL_IB_MERGE_NICS=0"],
            Some(
                "NCCL_IB_HCA has 1001 bytes and NCCL 2.18.3 logs it with NCCL_DEBUG: it writes \
                past a line, and may crash"
                    .into(),
            ),
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        command
            .env_clear()
            .args([
                "nccl",
                "explain",
                "--json",
                "--nccl-version",
                version,
                "--snapshot",
            ])
            .arg(file.path());
        command.args(env.iter().flat_map(|pair| ["--env", *pair]));
        let json: Value = serde_json::from_str(&run(&mut command, "").ok().out).unwrap();
        let is_it = |w: &&Value| w["trap"] == "crash" || w["trap"] == "overrun";
        let said: Vec<&Value> = json["warnings"]
            .as_array()
            .unwrap()
            .iter()
            .filter(is_it)
            .collect();
        assert!(said.iter().all(|w| w["fatal"] == true), "{said:?}");
        let texts: Vec<&str> = said.iter().map(|w| w["text"].as_str().unwrap()).collect();
        // The list of soft-RoCE that is excluded is no longer than that of 2.18.3's places.
        assert_eq!(texts.first().copied(), line.as_deref(), "{version} {env:?}");
    }
}

#[test]
fn ports_of_a_card_are_named_as_one_device() {
    let mut node = with_card();
    let mut second = node["hcas"][2].clone();
    (second["name"], second["index"], second["pci"]) =
        (json!("mlx5_1"), json!(8), json!("0000:05:00.1"));
    node["hcas"].as_array_mut().unwrap().push(second);
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, node.to_string()).unwrap();
    for (version, said) in [
        ("2.19.3", false),
        ("2.20.5", true),
        ("2.23.4", true),
        ("2.24.3", false),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        command.env_clear().args([
            "nccl",
            "explain",
            "--env",
            "NCCL_IB_HCA=mlx5",
            "--nccl-version",
            version,
        ]);
        let text = run(command.arg("--snapshot").arg(file.path()), "").ok().out;
        let line = "one device   mlx5_0:1 and mlx5_1:1 (NCCL_IB_MERGE_NICS)";
        assert_eq!(text.lines().any(|l| l == line), said, "{version}\n{text}");
    }
}

/// What an image says of its release is worth a warning; the list is made for the one that the host
/// names.
#[test]
fn a_list_is_made_for_the_release_that_the_host_names() {
    let work = tempfile::tempdir().unwrap();
    let places = ["run", "state"].map(|name| work.path().join(name).display().to_string());
    let file = work.path().join("config.toml");
    // An empty one says nothing.
    let variable = Cell::new("");
    let rdmaprep = |args: &[&str], input: &str| {
        let places = [
            "--run-dir",
            &places[0],
            "--state-dir",
            &places[1],
            "--config",
            file.to_str().unwrap(),
        ];
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        command
            .env_clear()
            .env("RDMAPREP_NCCL_VERSION", variable.get());
        run(command.args(args).args(places), input)
    };
    fs::write(&file, "").unwrap();
    rdmaprep(&["prepare", "--plan", "a", "--snapshot", SNAPSHOT], "").ok();
    let list = |plan: &str, more: &[&str], image: &str| {
        let mut config: Value =
            serde_json::from_str(include_str!("../../examples/spec.json")).unwrap();
        let env = config["process"]["env"].as_array_mut().unwrap();
        env.extend((!image.is_empty()).then(|| json!(format!("NCCL_VERSION={image}"))));
        let said = rdmaprep(
            &[&["spec", "--plan", plan], more].concat(),
            &config.to_string(),
        )
        .ok();
        let edited: Value = serde_json::from_str(&said.out).unwrap();
        let env = edited["process"]["env"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str);
        env.filter_map(|pair| pair.strip_prefix("NCCL_IB_HCA="))
            .collect::<String>()
    };
    // 2.20 to 2.23 crash on any two of which one has no PCI path.
    for image in ["", "2.19.3-1", "2.22.3-1", "2.29.3-1"] {
        assert_eq!(list("a", &[], image), "=rxe0,rxe1", "{image}");
    }
    assert_eq!(list("a", &["--nccl-version", "2.22.3"], ""), "=rxe0");
    assert_eq!(
        list("a", &["--nccl-version", "2.29.3"], "2.22.3-1"),
        "=rxe0,rxe1"
    );
    fs::write(&file, "[select]\nnccl_version = \"2.22.3-1\"\n").unwrap();
    assert_eq!(list("a", &[], "2.32.3-1"), "=rxe0");
    let text = rdmaprep(&["prepare", "--plan", "b", "--snapshot", SNAPSHOT], "")
        .ok()
        .out;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("not rxe1: NCCL 2.22.3 crashes on HCAs without a PCI path"),
        "{text}"
    );
    fs::write(&file, "[select]\nnccl_version = \"2.x\"\n").unwrap();
    rdmaprep(&["env", "--snapshot", SNAPSHOT], "").fails(2, &["2.x", "no release of NCCL"]);
    fs::write(&file, "").unwrap();
    // A plan keeps the release that it was made for.
    rdmaprep(
        &[
            "prepare",
            "--plan",
            "c",
            "--snapshot",
            SNAPSHOT,
            "--nccl-version",
            "2.22.3",
        ],
        "",
    )
    .ok();
    assert!(
        rdmaprep(&["env", "--plan", "c", "--format", "conf"], "")
            .ok()
            .out
            .starts_with("NCCL_IB_HCA==rxe0\n")
    );
    rdmaprep(&["env", "--plan", "c", "--nccl-version", "2.29.3"], "")
        .fails(2, &["--nccl-version would change nothing"]);
    // A flag or a variable counts before a plan's own release, and that before what the config file
    // has for all plans.
    fs::write(&file, "[select]\nnccl_version = \"2.29.3\"\n").unwrap();
    assert_eq!(list("c", &[], ""), "=rxe0");
    assert_eq!(list("c", &["--nccl-version", "2.29.3"], ""), "=rxe0,rxe1");
    variable.set("2.29.3");
    assert_eq!(list("c", &[], ""), "=rxe0,rxe1");
}

/// Of a bundle of a recorded machine: its settings make NCCL crash by what its image says, by the
/// newest release as well, or by what the host says.
#[test]
fn a_bundle_is_refused_where_the_crash_is_certain() {
    let work = tempfile::tempdir().unwrap();
    let place = work.path().to_str().unwrap();
    let snapshot = work.path().join("snapshot.json");
    // A card that is no rail of its own: NCCL_IB_HCA of the image names it beside soft-RoCE.
    let mut node = with_card();
    let mut port = json!({"name": "card0", "ifindex": 77, "link_type": 1, "mtu": 9000, "up": true,
        "running": true,
        "operstate": "up", "pci": "0000:05:00.0",
        "addresses": [{"address": "198.51.100.77", "prefix": 24}]});
    port["mac"] = json!("02:00:00:00:00:77");
    node["netdevs"].as_array_mut().unwrap().push(port);
    (
        node["hcas"][2]["driver"],
        node["hcas"][2]["ports"][0]["netdev"],
    ) = (json!("mlx5_core"), json!("card0"));
    node["hcas"][2]["ports"][0]["gids"] = json!([{"index": 0, "address": "::ffff:198.51.100.77",
        "kind": "RoCE v2", "netdev": "card0"}]);
    fs::write(&snapshot, node.to_string()).unwrap();
    let bundle = work.path().join("bundle");
    let edited = |command: &str, own: &[&str], more: &[&str]| {
        let mut config: Value =
            serde_json::from_str(include_str!("../../examples/spec.json")).unwrap();
        config["process"]["env"]
            .as_array_mut()
            .unwrap()
            .extend(own.iter().map(|v| json!(v)));
        fs::create_dir_all(&bundle).unwrap();
        fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        program.env_clear().arg(command).args([
            "--config",
            "/dev/null",
            "--state-dir",
            place,
            "--run-dir",
            place,
        ]);
        program.args([
            "--bundle",
            bundle.to_str().unwrap(),
            "--snapshot",
            snapshot.to_str().unwrap(),
        ]);
        run(
            program.args(["--ifaces", "rdma0,rdma1,card0"]).args(more),
            "",
        )
    };
    let list = "NCCL_IB_HCA==rxe0,rxe1,mlx5_0";
    let old = "NCCL_VERSION=2.27.7-1";
    let crash = "NCCL 2.27.7 crashes: rxe0 has no PCI path, and it is compared with that of mlx5_0";
    let said = edited("prepare", &[list, old], &[]).ok().err;
    let fix =
        "if that is what runs, prepare --nccl-version 2.27.7 leaves such HCAs out of the list";
    assert!(
        said.contains(&format!(
            "{crash}; the image names 2.27.7 (NCCL_VERSION): {fix}"
        )),
        "{said}"
    );
    edited("prepare", &[list], &["--nccl-version", "2.27.7"]).fails(3, &[crash, "--exclude-hca"]);
    edited("prepare", &[list, old, "NCCL_IB_DEVICE_PCI_ORDER=0"], &[])
        .fails(3, &["NCCL 2.32.3 crashes: rxe0"]);
    // A list of ours leaves them out there.
    edited("prepare", &[old], &["--nccl-version", "2.27.7"]).ok();
    for (own, more, list) in [
        (&[old][..], &[][..], "=rxe0,rxe1,mlx5_0"),
        (&["NCCL_IB_DEVICE_PCI_ORDER=0"], &[], "=mlx5_0"),
        (&[], &["--nccl-version", "2.27.7"], "=mlx5_0"),
    ] {
        let said = edited("env", own, &[&["--format", "conf"], more].concat())
            .ok()
            .out;
        assert!(
            said.lines()
                .any(|line| line == format!("NCCL_IB_HCA={list}")),
            "{own:?} {more:?}: {said}"
        );
    }
}

#[test]
fn a_release_is_read_as_packages_write_it() {
    for (asked, read) in [
        ("2.26.2.post1", "2.26.2"),
        ("v2.30.7", "2.30.7"),
        ("2.30.7-1", "2.30.7"),
        ("2.21.5+cuda12.4", "2.21.5"),
        ("2.21.5-1+cuda12.4", "2.21.5"),
    ] {
        let json: Value =
            serde_json::from_str(&explain(&["--json", "--nccl-version", asked]).ok().out).unwrap();
        assert_eq!(json["version"], read, "{asked}");
    }
    for wrong in ["2.18.3.1", "2.18.3rc1", "2.18", "2.18.3.post"] {
        explain(&["--nccl-version", wrong]).fails(2, &[wrong, "2.32.3"]);
    }
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
        let home = at(
            ".nccl.conf",
            "NCCL_SOCKET_IFNAME==r1\nNCCL_SOCKET_FAMILY=AF_INET\n",
        )
        .replace("/.nccl.conf", "");
        let conf = at("conf", "NCCL_SOCKET_IFNAME==r2\n");
        let env_file = at("env", "# a comment\n\nNCCL_SOCKET_IFNAME==r0\n");
        let bootstrap = |vars: &[(&str, &str)], args: &[&str]| {
            let mut command = host.command(&["nccl", "explain", "--json"]);
            command.args(args).envs(vars.iter().copied());
            let json: Value = serde_json::from_str(&run(&mut command, "").ok().out).unwrap();
            let place = json["settings"][0]["place"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            (
                json["bootstrap"]["uses"]["interface"]
                    .as_str()
                    .unwrap()
                    .to_owned(),
                place,
            )
        };
        let is = |interface: &str, place: &str| (interface.to_owned(), place.to_owned());
        assert_eq!(
            bootstrap(&[("HOME", &home)], &[]),
            is("r1", &format!("{home}/.nccl.conf"))
        );
        assert_eq!(
            bootstrap(&[("HOME", &home), ("NCCL_CONF_FILE", &conf)], &[]),
            is("r2", &conf)
        );
        assert_eq!(
            bootstrap(&[("HOME", &home), ("NCCL_SOCKET_IFNAME", "=r0")], &[]),
            is("r0", "the environment")
        );
        // $NCCL_CONF_FILE has no such variable before 2.23.4, nor $HOME before 2.30.3.
        let old = [
            "--nccl-version",
            "2.18.3",
            "--env",
            &format!("NCCL_CONF_FILE={conf}"),
        ];
        assert_eq!(bootstrap(&[], &old).0, "r0");
        assert_eq!(
            bootstrap(&[("HOME", &home)], &["--conf", &conf]),
            is("r2", &conf)
        );
        assert_eq!(
            bootstrap(&[("RDMAPREP_NCCL_CONF", &format!("/dev/null:{conf}"))], &[]),
            is("r2", &conf)
        );
        let own = [("NCCL_SOCKET_IFNAME", "=r2")];
        assert_eq!(
            bootstrap(
                &own,
                &[
                    "--env",
                    "NCCL_SOCKET_FAMILY=AF_INET",
                    "--env",
                    "NCCL_SOCKET_IFNAME==r1"
                ]
            )
            .0,
            "r1"
        );
        assert_eq!(
            bootstrap(&own, &["--env-file", &env_file]),
            is("r0", "as asked")
        );
        assert_eq!(
            bootstrap(
                &own,
                &["--env-file", &env_file, "--env", "NCCL_SOCKET_IFNAME==r1"]
            )
            .0,
            "r1"
        );
        assert_eq!(
            bootstrap(
                &[("RDMAPREP_NCCL_SETTINGS", "A=1\nNCCL_SOCKET_IFNAME==r1")],
                &[]
            )
            .0,
            "r1"
        );
        assert_eq!(
            bootstrap(
                &[
                    ("RDMAPREP_NCCL_SETTINGS", ""),
                    ("NCCL_SOCKET_IFNAME", "=r2")
                ],
                &[]
            )
            .0,
            "r2"
        );
    });
}

/// A node whose HCAs have one port each, with these GIDs: index, address, and whether of RoCE v2.
fn with_gids(hcas: &[&[(u32, &str, bool)]]) -> tempfile::NamedTempFile {
    let port = |at: usize, gids: &[(u32, &str, bool)]| {
        let kind = |v2: bool| if v2 { "RoCE v2" } else { "IB/RoCE v1" };
        let netdev = format!("rdma{at}");
        let gid = |(index, address, v2): &(u32, &str, bool)| {
            json!({
                "index": index, "address": address, "kind": kind(*v2), "netdev": netdev,
            })
        };
        let gids: Vec<Value> = gids.iter().map(gid).collect();
        json!([{
            "number": 1, "state": "ACTIVE", "link_layer": "Ethernet",
            "gids": gids, "gid_table": 256,
        }])
    };
    let hca = |(at, gids): (usize, &&[(u32, &str, bool)])| {
        json!({
            "name": format!("mlx5_{at}"), "index": at,
            "pci": format!("0000:{at:02x}:00.0"), "ports": port(at, gids),
        })
    };
    let netdev = |(at, gids): (usize, &&[(u32, &str, bool)])| {
        let ip = |text: &str| text.trim_start_matches("::ffff:").to_owned();
        let addresses = gids.iter().filter(|(_, _, v2)| *v2);
        let addresses: Vec<Value> = addresses
            .map(|(_, a, _)| {
                let prefix = if a.contains("ffff") { 24 } else { 64 };
                json!({"address": ip(a), "prefix": prefix})
            })
            .collect();
        json!({
            "name": format!("rdma{at}"), "ifindex": at + 3,
            "up": true, "running": true, "addresses": addresses,
        })
    };
    let address = json!({"address": "198.51.100.5", "prefix": 24});
    let mut netdevs = vec![
        json!({"name": "eth0", "ifindex": 2, "up": true, "running": true, "addresses": [address]}),
    ];
    netdevs.extend(hcas.iter().enumerate().map(netdev));
    let hcas: Vec<Value> = hcas.iter().enumerate().map(hca).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    let node = json!({"schema": 1, "netns": 1, "hcas": hcas, "netdevs": netdevs});
    fs::write(file.path(), node.to_string()).unwrap();
    file
}

const TWO_IPV4: [(u32, &str, bool); 6] = [
    (0, "fe80::ff:fe00:a", false),
    (1, "fe80::ff:fe00:a", true),
    (2, "::ffff:192.0.2.10", false),
    (3, "::ffff:192.0.2.10", true),
    (4, "::ffff:192.0.2.11", false),
    (5, "::ffff:192.0.2.11", true),
];

const IPV6: [(u32, &str, bool); 4] = [
    (0, "fe80::ff:fe00:b", false),
    (1, "fe80::ff:fe00:b", true),
    (2, "2001:db8:1::11", false),
    (3, "2001:db8:1::11", true),
];

/// What `explain` says of these HCAs, on one line.
fn explained(hcas: &[&[(u32, &str, bool)]], env: &[&str], release: &str) -> String {
    let file = with_gids(hcas);
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
    command
        .env_clear()
        .args(["nccl", "explain", "--nccl-version", release, "--snapshot"])
        .arg(file.path());
    for pair in env {
        command.args(["--env", pair]);
    }
    let text = run(&mut command, "").ok().out;
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn an_index_says_which_gid_it_is() {
    let index = |n: &str| explained(&[&TWO_IPV4], &[&format!("NCCL_IB_GID_INDEX={n}")], "2.32.3");
    let row = "HCA:port GID address type chosen by mlx5_0:1";
    for (n, says, warns) in [
        (
            "0",
            "0 fe80::ff:fe00:a IB/RoCE v1",
            "NCCL takes GID 0 (link-local, RoCE v1)",
        ),
        (
            "1",
            "1 fe80::ff:fe00:a RoCE v2",
            "NCCL takes GID 1 (link-local, RoCE v2)",
        ),
        (
            "2",
            "2 192.0.2.10 IB/RoCE v1",
            "NCCL takes GID 2 (192.0.2.10, RoCE v1)",
        ),
        (
            "4",
            "4 192.0.2.11 IB/RoCE v1",
            "NCCL takes GID 4 (192.0.2.11, RoCE v1)",
        ),
    ] {
        let text = index(n);
        assert!(
            text.contains(&format!("{row} {says} NCCL_IB_GID_INDEX")),
            "{text}"
        );
        assert!(
            text.contains(&format!("{warns} on mlx5_0:1; unset NCCL_IB_GID_INDEX")),
            "{text}"
        );
    }
    assert!(!index("3").contains("warning"), "{}", index("3"));
    let text = index("999");
    assert!(
        text.contains("is beyond the GID table of mlx5_0:1"),
        "{text}"
    );
    let unset = explained(&[&TWO_IPV4], &[], "2.21.5");
    assert!(
        unset.contains("3 192.0.2.10 RoCE v2 no NCCL_IB_GID_INDEX"),
        "{unset}"
    );
    assert!(!unset.contains("warning"), "{unset}");
    let old = explained(&[&TWO_IPV4], &[], "2.20.5");
    assert!(old.contains("which means 0 before 2.21.5"), "{old}");
    assert!(
        old.contains("on mlx5_0:1; set NCCL_IB_GID_INDEX=3"),
        "{old}"
    );
}

#[test]
fn ipv6_alone_needs_its_family() {
    let text = explained(&[&IPV6], &[], "2.32.3");
    let warns =
        "NCCL takes GID 0 (link-local, RoCE v1) on mlx5_0:1; set NCCL_IB_ADDR_FAMILY=AF_INET6";
    assert!(text.contains(warns), "{text}");
    let cured = explained(&[&IPV6], &["NCCL_IB_ADDR_FAMILY=AF_INET6"], "2.32.3");
    assert!(cured.contains("3 2001:db8:1::11 RoCE v2"), "{cured}");
    assert!(!cured.contains("warning"), "{cured}");
    let both = explained(&[&TWO_IPV4, &IPV6], &[], "2.32.3");
    let other = "on mlx5_1:1; no one setting is right for all ports: give their NICs addresses of \
        one family, or leave some out of NCCL_IB_HCA";
    assert!(both.contains(other), "{both}");
}

const BOTH: [(u32, &str, bool); 4] = [
    (3, "::ffff:192.0.2.11", true),
    (4, "fe80::ff:fe00:c", true),
    (5, "2001:db8:1::12", true),
    (6, "2001:db8:1::13", true),
];

#[test]
fn one_index_of_two_families_is_told() {
    let text = explained(&[&IPV6, &BOTH], &["NCCL_IB_GID_INDEX=3"], "2.32.3");
    let warns = "NCCL_IB_GID_INDEX=3: NCCL takes IPv4 GIDs on mlx5_1:1 and IPv6 ones on mlx5_0:1, \
        and no port of one connects to a port of the other; unset NCCL_IB_GID_INDEX and set \
        NCCL_IB_ADDR_FAMILY=AF_INET6";
    assert!(text.contains(warns), "{text}");
    let six = ["NCCL_IB_ADDR_FAMILY=AF_INET6"];
    let text = explained(&[&IPV6, &BOTH], &six, "2.32.3");
    assert!(!text.contains("warning"), "{text}");
}

#[test]
fn an_unused_first_gid_is_cured_by_a_newer_release() {
    for release in ["2.20.5", "2.21.5", "2.25.1"] {
        let text = explained(&[&IPV6[2..], &BOTH[2..]], &[], release);
        let cure = "no one setting is right for all ports: take NCCL 2.26.2 or later and set \
            NCCL_IB_ADDR_FAMILY=AF_INET6, or leave some out of NCCL_IB_HCA";
        assert!(text.contains(cure), "{release}: {text}");
    }
}

#[test]
fn the_network_may_be_another_than_verbs() {
    let socket = explained(&[&TWO_IPV4], &["NCCL_NET=socket"], "2.32.3");
    assert!(socket.contains("data by HCA none"), "{socket}");
    assert!(
        socket.contains("mlx5_0:1 no NCCL_NET=Socket uses no HCA"),
        "{socket}"
    );
    let plugin = explained(&[&TWO_IPV4], &["NCCL_NET=AWS Libfabric"], "2.32.3");
    assert!(
        plugin.contains("mlx5_0:1 unknown NCCL_NET=AWS Libfabric is a plugin's"),
        "{plugin}"
    );
    let none = explained(
        &[&TWO_IPV4],
        &["NCCL_NET=IB", "NCCL_IB_HCA==gone"],
        "2.32.3",
    );
    assert!(
        none.contains("NCCL_NET=IB and no HCA is taken: NCCL does not start"),
        "{none}"
    );
    let env = ["NCCL_NET_PLUGIN=aws-ofi", "NCCL_IB_DISABLE=1"];
    let both = explained(&[&TWO_IPV4], &env, "2.32.3");
    assert!(
        both.contains("NCCL_NET_PLUGIN=aws-ofi may use HCAs all the same"),
        "{both}"
    );
}

#[test]
fn names_planes_and_old_releases_are_told() {
    let near = explained(&[&TWO_IPV4], &["NCCL_SOCKET_IFNAME-=eth1"], "2.32.3");
    assert!(near.contains("did you mean NCCL_SOCKET_IFNAME?"), "{near}");
    let old = explained(&[&TWO_IPV4], &[], "2.10.3");
    assert!(old.contains("NCCL 2.10.3 was not judged"), "{old}");
    let early = explained(&[&TWO_IPV4], &["NCCL_IB_DATA_DIRECT=2"], "2.21.5");
    assert!(
        early.contains("NCCL_IB_DATA_DIRECT is read from NCCL 2.27.3 on"),
        "{early}"
    );
    let plane =
        |text: &str, release| explained(&[&TWO_IPV4], &[&format!("NCCL_IB_HCA=={text}")], release);
    for refused in ["mlx5_0:1:0:16384", "mlx5_0:1:0:-2"] {
        let text = plane(refused, "2.30.7");
        assert!(text.contains("data by HCA none"), "{text}");
        assert!(
            text.contains("refuses the list with ncclInvalidUsage"),
            "{text}"
        );
        assert!(
            !plane(refused, "2.29.7").contains("ncclInvalidUsage"),
            "{refused}"
        );
    }
    let many: Vec<&[(u32, &str, bool)]> = vec![&TWO_IPV4[..2]; 13];
    let list = (0..13)
        .map(|n| format!("mlx5_{n}:1:0:{n}"))
        .collect::<Vec<_>>();
    let list = format!("NCCL_IB_HCA=={}", list.join(","));
    let text = explained(&many, &[&list], "2.32.3");
    assert!(text.contains("has more than 12 planes"), "{text}");
}

/// What a container sets itself comes before what the host passes on.
#[test]
fn a_bundles_environment_decides_the_planned_gid() {
    let file = with_gids(&[&TWO_IPV4]);
    let work = tempfile::tempdir().unwrap();
    let planned = |own: &[&str], host: &[(&str, &str)]| {
        let spec = include_str!("../../examples/spec.json");
        let mut config: Value = serde_json::from_str(spec).unwrap();
        let env = config["process"]["env"].as_array_mut().unwrap();
        env.extend(own.iter().map(|pair| json!(pair)));
        fs::write(work.path().join("config.json"), config.to_string()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        command.env_clear().envs(host.iter().copied());
        command.args(["prepare", "--dry-run", "--json", "--config", "/dev/null"]);
        for place in ["--run-dir", "--state-dir", "--bundle"] {
            command.arg(place).arg(work.path());
        }
        let said = run(command.arg("--snapshot").arg(file.path()), "");
        // No log has the value of a container's setting.
        assert!(!said.err.contains("192.0.2.99"), "{}", said.err);
        let json: Value = serde_json::from_str(&said.out).unwrap_or_default();
        json["plan"]["nics"][0]["gid"]["index"].clone()
    };
    let range = "NCCL_IB_ADDR_RANGE=192.0.2.11/32";
    let index = ("NCCL_IB_GID_INDEX", "5");
    assert_eq!(planned(&[], &[]), 3);
    assert_eq!(planned(&[range], &[]), 5);
    assert_eq!(planned(&[], &[index]), 5);
    assert_eq!(planned(&["NCCL_IB_GID_INDEX=3"], &[index]), 3);
    assert_eq!(
        planned(&["NCCL_IB_ADDR_RANGE=192.0.2.99/32"], &[]),
        Value::Null
    );
}
