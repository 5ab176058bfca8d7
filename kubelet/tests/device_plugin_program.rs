//! The program: what it prints, and its codes. Rails that are nowhere, so that every machine has
//! them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::process::Command;

use tempfile::TempDir;

const CDI: &str = r#"{"cdiVersion": "0.3.0", "kind": "rdmaprep.io/rail", "devices": [
  {"name": "nowhere0", "containerEdits": {"env": ["RDMAPREP_RAIL_nowhere0=mlx5_900"],
    "hooks": [{"hookName": "createRuntime", "path": "/usr/bin/rdmaprep",
      "args": ["rdmaprep", "hook", "createRuntime", "--plan", "cdi", "--rail", "nowhere0"]}]}},
  {"name": "all", "containerEdits": {"hooks": [
    {"hookName": "createRuntime", "path": "/usr/bin/rdmaprep",
      "args": ["--rail", "nowhere0"]}]}}]}"#;

struct Tree(TempDir);

impl Tree {
    fn new(config: &str) -> Tree {
        let tree = TempDir::new().unwrap();
        fs::write(tree.path().join("cdi.json"), CDI).unwrap();
        fs::write(tree.path().join("config.toml"), config).unwrap();
        Tree(tree)
    }

    /// Code, stdout and stderr.
    fn run(&self, args: &[&str]) -> (i32, String, String) {
        let at = |name: &str| self.0.path().join(name);
        let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep-device-plugin"));
        program
            .env_clear()
            .args(args)
            .arg("--config")
            .arg(at("config.toml"))
            .arg("--cdi")
            .arg(at("cdi.json"));
        program
            .arg("--run-dir")
            .arg(at("run"))
            .arg("--kubelet-dir")
            .arg(at("kubelet"));
        let done = program.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (
            done.status.code().unwrap(),
            text(&done.stdout),
            text(&done.stderr),
        )
    }
}

#[test]
fn check_prints_resources_and_changes_nothing() {
    let tree = Tree::new("");
    let (code, out, _) = tree.run(&["--check"]);
    let line = "  nowhere0         NUMA -   -          unhealthy: not on this host";
    assert_eq!(
        (code, out),
        (0, format!("rdmaprep.io/rail: 0 of 1 healthy\n{line}\n"))
    );
    let (code, out, _) = tree.run(&["--check", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, &json[0]["rails"][0]["name"]),
        (0, &serde_json::json!("nowhere0"))
    );
    assert_eq!(json[0]["resource"], "rdmaprep.io/rail");
    let left: Vec<String> = fs::read_dir(tree.0.path())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn what_is_wrong_is_one_line_and_a_code() {
    let tree = Tree::new("[[resource]]\nname = 'a.example/x'\nspeeds = 1\n");
    let (code, _, said) = tree.run(&["--check"]);
    assert_eq!(code, 2);
    assert!(
        said.contains("config.toml: line 3: unknown field `speeds`"),
        "{said}"
    );
    let (code, _, said) = Tree::new("[[resource]]\nname = 'a.example/x'\nnuma = [0]\n").run(&[]);
    assert_eq!(
        (code, said.as_str()),
        (
            4,
            "rdmaprep-device-plugin: a.example/x fits none of the 1 rails of this node\n"
        )
    );
    let tree = Tree::new("");
    fs::write(tree.0.path().join("cdi.json"), "{}").unwrap();
    let (code, _, said) = tree.run(&["--check"]);
    assert_eq!((code, said.lines().count()), (3, 1), "{said}");
    fs::remove_file(tree.0.path().join("cdi.json")).unwrap();
    let (code, _, said) = tree.run(&["--check"]);
    assert!(
        code == 2
            && said
                .trim_end()
                .ends_with("cdi.json; `rdmaprep cdi generate` writes it"),
        "{said}"
    );
    let (code, _, said) = tree.run(&["--json"]);
    assert_eq!((code, said.lines().count()), (2, 1), "{said}");
}

#[test]
fn help_has_an_example_within_100_columns() {
    for args in [["--help"], ["--version"]] {
        let (code, out, _) = Tree::new("").run(&args);
        assert_eq!(code, 0);
        assert!(
            out.starts_with("Counts RDMA NICs") && out.contains("[[resource]]")
                || out.starts_with("rdmaprep-device-plugin 0")
        );
        assert!(out.lines().all(|line| line.chars().count() <= 100), "{out}");
    }
}

/// The file is as large as one of ours may be.
#[test]
fn cdi_file_with_20000_devices_is_read_in_time() {
    let tree = Tree::new("");
    let device = |at: usize| {
        let args = format!(r#""rdmaprep","hook","createRuntime","--plan","cdi","--rail","n{at}""#);
        let hook = format!(r#""hookName":"createRuntime","path":"/r","args":[{args}]"#);
        format!(r#"{{"name":"n{at}","containerEdits":{{"hooks":[{{{hook}}}]}}}}"#)
    };
    let devices: Vec<String> = (0..20_000).map(device).collect();
    let devices = devices.join(",");
    let text =
        format!(r#"{{"cdiVersion":"0.3.0","kind":"rdmaprep.io/rail","devices":[{devices}]}}"#);
    fs::write(tree.0.path().join("cdi.json"), text).unwrap();
    let begun = std::time::Instant::now();
    let (code, out, said) = tree.run(&["--check"]);
    assert_eq!(code, 0, "{said}");
    assert!(
        out.starts_with("rdmaprep.io/rail: 0 of 20000 healthy"),
        "{out:.80}"
    );
    let took = begun.elapsed();
    assert!(took < std::time::Duration::from_secs(10), "{took:?}");
}

const CHANGES: &str = r#"
set -e
umask 0
mkdir cdi && mv cdi.json cdi
expect() {
  for _ in {1..400}; do tail -n 1 log | grep -qF "$1" && return; sleep 0.05; done
  cat log; echo "no: $1"; exit 1
}
ip link add nowhere0 type veth peer name peer0
ip address add 192.0.2.1/24 dev nowhere0
ip link set nowhere0 up
ip link set peer0 up
"$PLUGIN" --config config.toml --cdi cdi/cdi.json --run-dir run \
  --kubelet-dir kubelet 2> log &
plugin=$!
trap 'kill $plugin' EXIT
expect 'waiting for the kubelet: there is no kubelet/kubelet.sock'
[ "$(stat -c %a kubelet/rdmaprep.io_rail.sock)" = 600 ]
ip link set peer0 down
expect 'nowhere0 is unhealthy: no carrier'
ip link set peer0 up
expect 'nowhere0 is healthy'
ip address del 192.0.2.1/24 dev nowhere0
expect 'nowhere0 is unhealthy: nowhere0 has no IPv4 address'
ip address add 192.0.2.1/24 dev nowhere0
expect 'nowhere0 is healthy'
ip link add br0 type bridge
ip link set nowhere0 master br0
expect 'nowhere0 is unhealthy: nowhere0 is a member of br0'
ip link del br0
expect 'nowhere0 is healthy'
ip route add default via 192.0.2.2
expect 'nowhere0 is unhealthy: nowhere0 '
ip route del default
expect 'nowhere0 is healthy'
mv cdi cdi.old
expect 'cdi.json; `rdmaprep cdi generate` writes it'
mkdir cdi
cp cdi.old/cdi.json cdi
expect 'nowhere0 is healthy'
mv cdi.old/cdi.json cdi.json
rm -r cdi.old
sed s/nowhere0/gone0/g cdi.json > cdi/new && mv cdi/new cdi/cdi.json
expect 'gone0 is unhealthy: not on this host'
cp cdi.json cdi/cdi.json
expect 'nowhere0 is healthy'
ip link set nowhere0 down
expect 'nowhere0 is unhealthy: the link is down'
ip link del nowhere0
expect 'nowhere0 is unhealthy: not on this host'
trap - EXIT
kill $plugin
wait $plugin
[ ! -e kubelet/rdmaprep.io_rail.sock ]
"#;

/// In namespaces of its own: a veth whose peer is its carrier. Each line is waited for.
#[test]
fn what_changes_a_rail_is_noticed() {
    let tree = Tree::new("");
    fs::write(tree.0.path().join("cdi.json"), CDI.replace("mlx5_900", "")).unwrap();
    let mut inside = Command::new("unshare");
    inside.args([
        "--net",
        "--mount",
        "--user",
        "--map-root-user",
        "--",
        "bash",
        "-c",
        CHANGES,
    ]);
    inside
        .current_dir(tree.0.path())
        .env("PLUGIN", env!("CARGO_BIN_EXE_rdmaprep-device-plugin"));
    let done = inside.output().expect("unshare (util-linux) is needed");
    assert!(
        done.status.success(),
        "{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
}
