//! How gVisor and its RDMA proxy are detected: tests/cases/sandbox has what an administrator or an
//! engine writes, expected.txt what is made of it. `UPDATE_GOLDEN=1` rewrites that.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::alone;
use rdma_model::error_class::ErrorClass;
use rdmaprep::config::sandbox::{RunscHandler, Sandbox};
use rdmaprep::config::sysfs_mode::SysfsMode;
use rdmaprep::disk::host_tree::HostTree;
use rdmaprep::install;
use serde_json::{Value, json};
use testkit::{Host, Said, run, same, sh};

fn cases() -> PathBuf {
    testkit::repository("tests/cases/sandbox")
}

fn read(name: &str) -> String {
    fs::read_to_string(cases().join(name)).unwrap()
}

fn files(dir: &str) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(cases().join(dir))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
        .into_iter()
        .map(|name| format!("{dir}/{name}"))
        .collect()
}

fn verdict(sandbox: Option<Sandbox>) -> String {
    let (sysfs, why) = SysfsMode::Auto.within(sandbox);
    let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
    format!(
        "{sandbox:?}: auto is {}{why}",
        json!(sysfs).as_str().unwrap()
    )
}

#[test]
fn sandbox_is_known_by_each_sign() {
    let mut now = String::new();
    for line in read("command.txt").lines() {
        let mut words = line.split(' ');
        let program = Path::new(words.next().unwrap());
        now += &format!(
            "{line} -> {}\n",
            verdict(Sandbox::of_command(program, words))
        );
    }
    for line in read("annotations.txt").lines() {
        let pair = line
            .split_once('=')
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .unwrap();
        now += &format!(
            "annotation {line} -> {}\n",
            verdict(Sandbox::of_annotations(&BTreeMap::from([pair])))
        );
    }
    for name in [
        "runsc",
        "runsc-rdma",
        "runsc-off",
        "shim",
        "crun",
        "missing",
    ] {
        let sandbox = Sandbox::of_docker(&read("docker/daemon.json"), name);
        now += &format!(
            "docker/daemon.json, runtime {name} -> {}\n",
            verdict(sandbox)
        );
    }
    for name in ["runsc", "typed", "typed-bare", "runsc-by-type"] {
        let (text, file) = (read("docker/daemon.json"), "docker/daemon.json");
        let handler = RunscHandler::of_docker(&text, name);
        now += &format!(
            "{file}, runtime {name} by its type -> {handler:?}, {:?}\n",
            Sandbox::of_docker(&text, name)
        );
    }
    for file in files("containerd") {
        for name in ["runc", "runsc", "runsc-rdma"] {
            now += &format!(
                "{file}, runtime {name} -> {:?}\n",
                RunscHandler::find(&[read(&file)], name)
            );
        }
    }
    for tree in files("imports") {
        let files = install::with_imports(
            "/etc/containerd/config.toml",
            &HostTree::new(&cases().join(&tree)).unwrap(),
        );
        let said = files.map(|files| format!("{:?}", RunscHandler::find(&files, "runsc")));
        now += &format!(
            "{tree} -> {}\n",
            said.unwrap_or_else(|e| format!("exit {}: {e:#}", ErrorClass::of(&e).code()))
        );
    }
    for file in files("runsc") {
        let said =
            Sandbox::of_runsc_toml(&read(&file)).map_or("no TOML".to_owned(), |s| verdict(Some(s)));
        now += &format!("{file} -> {said}\n");
    }
    let path = cases().join("expected.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &now).unwrap();
    }
    same(
        "expected.txt",
        &fs::read_to_string(&path).unwrap_or_default(),
        &now,
    );
}

#[test]
fn an_annotation_of_the_flag_overrides_the_runtimes() {
    let flag =
        |value: &str| BTreeMap::from([("dev.gvisor.flag.rdmaproxy".to_owned(), value.to_owned())]);
    let other = BTreeMap::from([("dev.gvisor.flag.debug".to_owned(), "true".to_owned())]);
    for (runtime, annotations, want) in [
        (
            Some(Sandbox::RdmaProxy),
            flag("false"),
            Some(Sandbox::Plain),
        ),
        (Some(Sandbox::Plain), flag("true"), Some(Sandbox::RdmaProxy)),
        (
            Some(Sandbox::RdmaProxy),
            other.clone(),
            Some(Sandbox::RdmaProxy),
        ),
        (None, other, Some(Sandbox::Plain)),
        (
            Some(Sandbox::RdmaProxy),
            BTreeMap::new(),
            Some(Sandbox::RdmaProxy),
        ),
        (None, BTreeMap::new(), None),
    ] {
        assert_eq!(
            Sandbox::of_both(runtime, &annotations),
            want,
            "{runtime:?} {annotations:?}"
        );
    }
}

#[test]
fn modes_that_are_asked_for_stay() {
    for sandbox in [None, Some(Sandbox::Plain), Some(Sandbox::RdmaProxy)] {
        for asked in ["live", "snapshot", "off", "proxy", "proxy=warn"] {
            let asked: SysfsMode = asked.parse().unwrap();
            assert_eq!(asked.within(sandbox), (asked, None));
        }
    }
}

/// The example's node, with HCAs of that driver.
fn node(driver: &str) -> Value {
    let mut node: Value =
        serde_json::from_str(include_str!("../../examples/snapshot.json")).unwrap();
    node["hcas"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .for_each(|hca| hca["driver"] = json!(driver));
    node
}

fn prepare(host: &Host, node: &Value, args: &[&str]) -> Said {
    let file = host.run.parent().unwrap().join("node.json");
    fs::write(&file, node.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
    command
        .env_clear()
        .env("RDMAPREP_RUN_DIR", &host.run)
        .env("RDMAPREP_STATE_DIR", &host.state);
    command
        .args(["prepare", "--dry-run", "--json", "--snapshot"])
        .arg(&file)
        .args(args);
    run(&mut command, "")
}

fn plan(said: Said) -> Value {
    serde_json::from_str::<Value>(&said.ok().out).unwrap()["plan"].take()
}

#[test]
fn runtimes_are_found_in_the_engines_files() {
    alone(|host| {
        sh("mount -t tmpfs tmpfs /etc; mkdir /etc/docker /etc/containerd");
        fs::copy(
            cases().join("docker/daemon.json"),
            "/etc/docker/daemon.json",
        )
        .unwrap();
        fs::copy(
            cases().join("containerd/version3.toml"),
            "/etc/containerd/config.toml",
        )
        .unwrap();
        fs::copy(
            cases().join("runsc/text.toml"),
            "/etc/containerd/runsc.toml",
        )
        .unwrap();
        for (runtime, sysfs) in [
            ("runsc --rdmaproxy", "proxy"),
            ("runsc", "snapshot"),
            ("shim", "proxy"),
            ("runsc-rdma", "proxy"),
            ("typed", "proxy"),
            ("typed-bare", "snapshot"),
            ("/usr/bin/crun", "auto"),
        ] {
            assert_eq!(
                plan(prepare(host, &node("mlx5_core"), &["--runtime", runtime]))["sysfs"],
                sysfs,
                "{runtime}"
            );
        }
        fs::copy(cases().join("runsc/off.toml"), "/etc/containerd/runsc.toml").unwrap();
        prepare(host, &node("mlx5_core"), &["--runtime", "runsc-rdma"])
            .fails(2, &["of Docker and", "differ"]);
        fs::remove_file("/etc/docker/daemon.json").unwrap();
        assert_eq!(
            plan(prepare(
                host,
                &node("mlx5_core"),
                &["--runtime", "runsc-rdma"]
            ))["sysfs"],
            "snapshot"
        );
        fs::copy(
            cases().join("runsc/damaged.toml"),
            "/etc/containerd/runsc.toml",
        )
        .unwrap();
        prepare(host, &node("mlx5_core"), &["--runtime", "runsc-rdma"])
            .fails(2, &["/etc/containerd/runsc.toml"]);
        fs::remove_file("/etc/containerd/runsc.toml").unwrap();
        prepare(host, &node("mlx5_core"), &["--runtime", "runsc-rdma"])
            .fails(2, &["does not exist"]);
        fs::write(
            "/etc/containerd/config.toml",
            "imports = [\"imported.toml\"]\n",
        )
        .unwrap();
        fs::copy(
            cases().join("containerd/version3.toml"),
            "/etc/containerd/imported.toml",
        )
        .unwrap();
        fs::copy(
            cases().join("runsc/text.toml"),
            "/etc/containerd/runsc.toml",
        )
        .unwrap();
        assert_eq!(
            plan(prepare(
                host,
                &node("mlx5_core"),
                &["--runtime", "runsc-rdma"]
            ))["sysfs"],
            "proxy"
        );
        fs::write("/etc/containerd/imported.toml", "[plugins\n").unwrap();
        let words = [
            "/etc/containerd/imported.toml: is not TOML: line 1: ",
            "give the runtime's command line",
        ];
        prepare(host, &node("mlx5_core"), &["--runtime", "runsc-rdma"]).fails(2, &words);
        assert_eq!(
            plan(prepare(
                host,
                &node("mlx5_core"),
                &["--runtime", "runsc --rdmaproxy"]
            ))["sysfs"],
            "proxy"
        );
        fs::copy(
            cases().join("docker/daemon.json"),
            "/etc/docker/daemon.json",
        )
        .unwrap();
        assert_eq!(
            plan(prepare(
                host,
                &node("mlx5_core"),
                &["--runtime", "runsc-rdma"]
            ))["sysfs"],
            "proxy",
            "Docker's"
        );
    });
}

#[test]
fn what_the_proxy_cannot_serve_is_refused() {
    alone(|host| {
        let exclusive = || {
            let mut node = node("mlx5_core");
            node["rdma_mode"] = json!("exclusive");
            node
        };
        let far = || {
            let mut node = node("mlx5_core");
            node["hcas"][0]["uverbs"]["major"] = json!(240);
            node
        };
        for (node, reason) in [
            (
                node("rxe"),
                "rxe0 is software and has no PCI device: runsc refuses to create the container",
            ),
            (
                node("bnxt_en"),
                "rxe0 has driver bnxt_en, and the proxy takes mlx5_core, ",
            ),
            (node("mlx5_core.sf"), "rxe0 is a sub-function"),
            (exclusive(), "rdma system set netns shared"),
            (far(), "uverbs0 has major 240, and the proxy takes 231"),
        ] {
            for runtime in [
                &["--runtime", "runsc --rdmaproxy"][..],
                &["--sysfs", "proxy"],
            ] {
                prepare(host, &node, runtime)
                    .fails(3, &["gVisor's RDMA proxy: ", reason, "--sysfs proxy=warn"]);
            }
            let said = prepare(host, &node, &["--sysfs", "proxy=warn"]);
            assert!(said.err.contains(reason), "{said:?}");
            assert_eq!(plan(said)["sysfs"], "proxy=warn");
            prepare(host, &node, &[]).ok();
        }
    });
}

#[test]
fn rdma_cm_is_left_out_with_a_word() {
    alone(|host| {
        let devices = |args: &[&str], says: bool| {
            let said = prepare(host, &node("mlx5_core"), args);
            assert_eq!(
                said.err.contains("RDMA CM does not work in gVisor"),
                says,
                "{said:?}"
            );
            let devices = plan(said)["devices"].take();
            let names = devices
                .as_array()
                .unwrap()
                .iter()
                .map(|d| d["name"].as_str().unwrap().to_owned());
            names.collect::<Vec<_>>()
        };
        assert_eq!(devices(&["--sysfs", "proxy"], true), ["uverbs0", "uverbs1"]);
        assert_eq!(devices(&[], false), ["uverbs0", "uverbs1", "rdma_cm"]);
    });
}
