//! Devices of the Container Device Interface: what the file says, and what becomes of a container
//! that asks for some.
//!
//! `tests/cases/cdi/NAME/{snapshot,args}` give expected.json, or expected.txt with the exit code
//! and the message; `snapshot` is the path of one in this repository. `UPDATE_GOLDEN=1` rewrites
//! them; read the diff.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process;

use crate::alone;
use anyhow::Result;
use proptest::prelude::*;
use rdma_model::error_class::ErrorClass;
use rdma_model::snapshot::Snapshot;
use rdmaprep::cdi::{ALL, CdiDevice, Edits, FLAG, Rail, RailName, Spec};
use rdmaprep::cli::{Cli, Command, Global};
use rdmaprep::config::device_request::DeviceRequest;
use rdmaprep::config::host::{Config, Host as Policy};
use rdmaprep::config::options::SelectOptions;
use rdmaprep::config::request::Request;
use rdmaprep::nccl_env::Options;
use rdmaprep::oci::config::Config as ConfigJson;
use rdmaprep::oci::edit::{Stage, hooks, hooks_for};
use rdmaprep::plan::Plan;
use rdmaprep::select::select;
use serde_json::{Value, json};
use testkit::{Container, Host, sh};

/// The specification as `spec`, and what `cdi generate` prints besides it as `notes`.
fn made(case: &Path) -> Result<Value> {
    let read = |name: &str| fs::read_to_string(case.join(name)).unwrap_or_default();
    // The file of a snapshot, or the case that has the host.
    let host = Path::new(env!("CARGO_MANIFEST_DIR")).join(read("snapshot").trim());
    let snapshot: Snapshot = match host.is_dir() {
        true => testkit::golden::host(&host),
        false => serde_json::from_str(&fs::read_to_string(host).unwrap()).unwrap(),
    };
    let args = read("args");
    let line = ["rdmaprep", "cdi", "generate"]
        .into_iter()
        .chain(args.lines());
    let Command::Cdi(rdmaprep::cli::CdiCommand::Generate(args)) = Cli::read(line).unwrap().command
    else {
        panic!()
    };
    let policy = Policy::new(&Global::default(), &Config::default());
    let request = Request::new(
        Some(&args.plan),
        &args.select,
        policy,
        SelectOptions::default(),
        |_| None,
    )?;
    let selection = select(&request, &snapshot, &[])?;
    let plan = Plan::new(
        &args.plan,
        &request,
        &snapshot,
        &selection,
        &Options::default(),
    );
    let stages = if case.ends_with("gvisor") {
        &Stage::WITH_GOFER[..]
    } else {
        &Stage::ALL
    };
    let hooks = hooks_for(
        stages,
        &plan,
        plan.nics.len(),
        "/usr/bin/rdmaprep",
        args.hook_timeout,
    );
    let (spec, notes) = Spec::from_rails(&Rail::rails_of_plan(&plan, &snapshot), &hooks);
    obeys(&spec);
    Ok(json!({"spec": spec, "notes": notes}))
}

#[test]
fn golden_cases() {
    let cases = testkit::golden::cases("cdi", 5);
    let mut wrong = Vec::new();
    for case in &cases {
        let (name, text) = match made(case) {
            Ok(value) => (
                "expected.json",
                serde_json::to_string_pretty(&value).unwrap() + "\n",
            ),
            Err(e) => (
                "expected.txt",
                format!(
                    "exit {}: {}\n",
                    ErrorClass::of(&e).code(),
                    rdmaprep::report::error_text(&e)
                ),
            ),
        };
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(case.join(name), &text).unwrap();
        }
        if fs::read_to_string(case.join(name)).unwrap_or_default() != text {
            wrong.push(format!("{}/{name}:\n{text}", case.display()));
        }
    }
    assert!(
        wrong.is_empty(),
        "UPDATE_GOLDEN=1 accepts these:\n{}",
        wrong.join("\n")
    );
}

/// The rules of SPEC.md, written down once more, on the text that engines read.
fn obeys(spec: &Spec) {
    let value = json!(spec);
    let name = regex::Regex::new("^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$").unwrap();
    assert_eq!(value["kind"], "rdmaprep.io/rail");
    let keys = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<BTreeSet<String>>()
    };
    assert_eq!(
        keys(&value),
        ["cdiVersion", "containerEdits", "devices", "kind"]
            .map(str::to_owned)
            .into()
    );
    let devices = value["devices"].as_array().unwrap();
    let names: Vec<&str> = devices
        .iter()
        .map(|d| d["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names.len(),
        names.iter().collect::<BTreeSet<_>>().len(),
        "each once: {names:?}"
    );
    assert!(names.iter().all(|n| name.is_match(n)), "{names:?}");
    // The versions are those of the table "Released versions", and of the device names' first
    // letter.
    let digit = names
        .iter()
        .any(|n| n.starts_with(|c: char| c.is_ascii_digit()));
    assert_eq!(value["cdiVersion"], if digit { "0.5.0" } else { "0.3.0" });
    let known = ["deviceNodes", "env", "hooks"].map(str::to_owned).into();
    for edits in devices
        .iter()
        .map(|d| &d["containerEdits"])
        .chain([&value["containerEdits"]])
    {
        assert!(
            !keys(edits).is_empty() && keys(edits).is_subset(&known),
            "{edits}"
        );
        let list = |key: &str| edits[key].as_array().cloned().unwrap_or_default();
        assert!(
            list("env")
                .iter()
                .all(|e| e.as_str().unwrap().find('=').is_some_and(|at| at > 0))
        );
        for node in list("deviceNodes") {
            assert!(
                node["path"]
                    .as_str()
                    .unwrap()
                    .starts_with("/dev/infiniband/"),
                "{node}"
            );
            assert!(!node["path"].as_str().unwrap().contains("umad"), "{node}");
            assert_eq!(
                (&node["type"], &node["permissions"]),
                (&json!("c"), &json!("rw"))
            );
            assert!(node["major"].as_u64().unwrap() > 0 && node["minor"].is_u64());
        }
        for hook in list("hooks") {
            assert!(
                ["createContainer", "createRuntime", "poststart", "poststop"]
                    .contains(&hook["hookName"].as_str().unwrap())
            );
            assert!(
                hook["path"].as_str().unwrap().starts_with('/')
                    && hook["timeout"].as_u64().unwrap() > 0
            );
            // What a hook is called with is what the program understands.
            let args: Vec<String> = serde_json::from_value(hook["args"].clone()).unwrap();
            let Command::Hook(parsed) = Cli::read(&args).unwrap().command else {
                panic!("{args:?}")
            };
            assert_eq!(parsed.stage.name(), hook["hookName"]);
        }
    }
}

/// What an engine makes of a config.json, as the CDI's own library does it: the common part once,
/// then each device in the order in which it was asked for; of the environment the last word
/// counts, of nodes the last of each path.
fn inject(config: &mut Value, spec: &Spec, asked: &[&str]) {
    let device = |name: &&str| {
        spec.devices
            .iter()
            .find(|d| d.name == **name)
            .unwrap_or_else(|| panic!("no {name}"))
    };
    let edits = std::iter::once(&spec.container_edits).chain(
        asked
            .iter()
            .map(device)
            .map(|d: &CdiDevice| &d.container_edits),
    );
    for Edits {
        env,
        device_nodes,
        hooks,
    } in edits
    {
        for entry in env {
            let list = config["process"]["env"].as_array_mut().unwrap();
            let name = entry.split_once('=').unwrap().0;
            list.retain(|e| e.as_str().unwrap().split_once('=').unwrap().0 != name);
            list.push(json!(entry));
        }
        for node in device_nodes {
            let list = config["linux"]["devices"].as_array_mut().unwrap();
            list.retain(|d| d["path"] != json!(node.path));
            list.push(
                json!({"path": node.path, "type": node.kind, "major": node.major,
                    "minor": node.minor}),
            );
        }
        for hook in hooks {
            let list = &mut config["hooks"][hook.hook_name.name()];
            if list.is_null() {
                *list = json!([]);
            }
            let entry = json!({"path": hook.path, "args": hook.args, "timeout": hook.timeout});
            list.as_array_mut().unwrap().push(entry);
        }
    }
}

fn config() -> Value {
    json!({
        "ociVersion": "1.1.0",
        "root": {"path": "/", "readonly": true},
        "process": {"env": ["HOME=/root"]},
        "mounts": [{"destination": "/sys", "type": "sysfs", "source": "sysfs"}],
        "linux": {"namespaces": [{"type": "network"}, {"type": "mount"}], "devices": []},
    })
}

/// The rails of each createRuntime hook that a config.json has, in order.
fn calls(config: &Value) -> Vec<Vec<String>> {
    let list = config["hooks"]["createRuntime"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let args = |hook: &Value| serde_json::from_value::<Vec<String>>(hook["args"].clone()).unwrap();
    let rails = |args: Vec<String>| match Cli::read(&args).unwrap().command {
        Command::Hook(hook) => hook.rail,
        other => panic!("{other:?}"),
    };
    list.iter().map(args).map(rails).collect()
}

/// That many rails, each with nodes of its own.
fn rails(count: usize) -> Vec<Rail> {
    let snapshot: Snapshot =
        serde_json::from_str(include_str!("../../examples/snapshot.json")).unwrap();
    let policy = Policy::new(&Global::default(), &Config::default());
    let request = Request::new(
        None,
        &Default::default(),
        policy,
        SelectOptions::default(),
        |_| None,
    )
    .unwrap();
    let selection = select(&request, &snapshot, &[]).unwrap();
    let plan = Plan::new(
        "default",
        &request,
        &snapshot,
        &selection,
        &Options::default(),
    );
    let one = Rail::rails_of_plan(&plan, &snapshot).remove(0);
    let numbered = |i: usize| {
        let mut rail = one.clone();
        rail.name = RailName::Netdev(format!("r{i}").parse().unwrap());
        rail.nodes[0].name = format!("uverbs{i}");
        rail
    };
    (0..count).map(numbered).collect()
}

/// A file with them.
fn spec(count: usize) -> Spec {
    let plan: Plan = serde_json::from_str(include_str!("../../examples/plan.json")).unwrap();
    Spec::from_rails(
        &rails(count),
        &hooks(
            &Plan {
                name: "default".into(),
                ..plan
            },
            "/usr/bin/rdmaprep",
            None,
        ),
    )
    .0
}

fn parsed(config: &Value) -> ConfigJson {
    ConfigJson::parse(&config.to_string()).unwrap()
}

proptest! {
    /// Whatever is asked for, in whatever order and however often: one hook works, for just that.
    #[test]
    fn what_devices_ask_for_adds_up(asked in prop::collection::vec(0usize..6, 1..8)) {
        let spec = spec(5);
        let names: Vec<&str> = asked.iter().map(|i| spec.devices[*i].name.as_str()).collect();
        let mut config = config();
        inject(&mut config, &spec, &names);
        let all = asked.contains(&5);
        let want: BTreeSet<String> = (0..5).filter(|i| all || asked.contains(i))
            .map(|i| format!("r{i}")).collect();
        let calls = calls(&config);
        prop_assert_eq!(calls.len(), names.len());
        for (i, mine) in calls.iter().enumerate() {
            let (stage, plan) = (Stage::CreateRuntime, Some("default"));
            let turn = DeviceRequest::of_all_if_first(&parsed(&config), stage, plan, mine).unwrap();
            // A device that was asked for twice has two hooks with the same words: the second finds
            // the work done.
            prop_assert_eq!(turn.is_some(), *mine == calls[0], "hook {}", i);
            let got: Option<BTreeSet<String>> = turn
                .map(|a| a.netdevs().map(ToString::to_string).collect());
            prop_assert!(got.is_none_or(|got| got == want));
        }
        let env = config["process"]["env"].as_array().unwrap();
        let rails: BTreeSet<String> = env.iter().filter_map(|e| {
            Some(e.as_str().unwrap().strip_prefix("RDMAPREP_RAIL_")?.split_once('=').unwrap().0
                .to_owned())
        }).collect();
        prop_assert_eq!(&rails, &want, "no device overwrites another one's variable");
        prop_assert!(!config.to_string().contains("NCCL_"), "what depends on all of them is no \
            device's to say");
        let nodes: BTreeSet<&str> = config["linux"]["devices"].as_array().unwrap().iter()
            .map(|d| d["path"].as_str().unwrap()).collect();
        prop_assert_eq!(nodes.len(), want.len() + 1, "{:?}", nodes);
    }

    /// No text is a panic, and none is believed that does not have the very hook that runs.
    #[test]
    fn a_strange_config_is_one_line(text in "\\PC{0,200}") {
        let (stage, plan, mine) = (Stage::CreateRuntime, Some("default"), ["r0".to_owned()]);
        let result = ConfigJson::parse(&text)
            .and_then(|c| DeviceRequest::of_all_if_first(&c, stage, plan, &mine));
        let error = result.err().map(|e| (ErrorClass::of(&e), format!("{e:#}").lines().count()));
        prop_assert_eq!(error, Some((ErrorClass::State, 1)));
    }

    /// A rail's name comes back from an argument.
    #[test]
    fn names_round_trip(name in "(hca:[a-z0-9_.-]{1,20}|[!-9;-~]{1,15})") {
        if let Ok(rail) = name.parse::<RailName>() {
            prop_assert_eq!(rail.to_string(), name);
        }
    }
}

#[test]
fn only_hooks_of_this_stage_and_plan_count() {
    let spec = spec(3);
    let mut config = config();
    inject(&mut config, &spec, &["r0"]);
    let list = config["hooks"]["createRuntime"].as_array_mut().unwrap();
    for (args, why) in [
        (
            json!([
                "rdmaprep",
                "hook",
                "createRuntime",
                "--plan",
                "other",
                "--rail",
                "r1"
            ]),
            "another plan",
        ),
        (
            json!([
                "rdmaprep", "hook", "prestart", "--plan", "default", "--rail", "r1"
            ]),
            "another stage",
        ),
        (
            json!([
                "rdmaprep",
                "restore",
                "createRuntime",
                "--plan",
                "default",
                "--rail",
                "r1"
            ]),
            "no hook",
        ),
        (
            json!(["rdmaprep", "hook", "createRuntime", "--plan", "default"]),
            "no rail",
        ),
        (json!(["--rail", "r1"]), "no program"),
        (Value::Null, "no arguments"),
    ] {
        list.insert(
            0,
            json!({"path": "/usr/bin/rdmaprep", "args": args, "note": why}),
        );
    }
    let asked = DeviceRequest::of_all_if_first(
        &parsed(&config),
        Stage::CreateRuntime,
        Some("default"),
        &["r0".to_owned()],
    )
    .unwrap();
    assert_eq!(
        asked
            .unwrap()
            .netdevs()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        ["r0"]
    );
    // A word that is no name is not passed over: something else than was asked for would be given.
    let bad = json!({"path": "/x",
        "args": ["x", "hook", "createRuntime", "--plan", "default", FLAG, "a/b"]});
    config["hooks"]["createRuntime"]
        .as_array_mut()
        .unwrap()
        .push(bad);
    let e = DeviceRequest::of_all_if_first(
        &parsed(&config),
        Stage::CreateRuntime,
        Some("default"),
        &["r0".to_owned()],
    )
    .unwrap_err();
    assert_eq!(ErrorClass::of(&e), ErrorClass::State);
}

/// In exclusive mode the share of a container that joins a pod is unknown: the host sees none of
/// the HCAs.
#[test]
fn a_joiner_in_exclusive_mode_has_all_rails_or_is_refused() {
    let snapshot = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/snapshot.json");
    let snapshot: Snapshot = serde_json::from_str(&fs::read_to_string(snapshot).unwrap()).unwrap();
    let policy = Policy::new(&Global::default(), &Config::default());
    let name = "default";
    let mut request = Request::new(
        Some(name),
        &Default::default(),
        policy,
        SelectOptions::default(),
        |_| None,
    )
    .unwrap();
    let selection = select(&request, &snapshot, &[]).unwrap();
    let mut given = Plan::new(name, &request, &snapshot, &selection, &Options::default());
    assert!(given.nics.len() > 1);
    let first = given.nics[0].name().to_string();
    let args = json!([
        "rdmaprep",
        "hook",
        "createRuntime",
        "--plan",
        "default",
        FLAG,
        first
    ]);
    let config = parsed(&json!({"hooks": {"createRuntime": [{"path": "/x", "args": args}]}}));
    request.narrowing.devices =
        DeviceRequest::of_all_if_first(&config, Stage::CreateRuntime, Some("default"), &[first])
            .unwrap();
    let nodes = |plan: &Plan| {
        plan.devices
            .iter()
            .filter(|d| d.name.starts_with("uverbs"))
            .count()
    };
    let part = request.part_of(&given, None);
    assert_eq!((part.nics.len(), nodes(&part)), (1, 1));
    given.exclusive = true;
    let part = request.part_of(&given, None);
    assert_eq!(
        (part.nics.len(), nodes(&part)),
        (given.nics.len(), nodes(&given))
    );
}

#[test]
fn names_that_no_device_can_have_are_part_of_all() {
    let renamed = |names: &[&str]| {
        let of = |name: &&str| {
            let mut rail = rails(1).remove(0);
            rail.name = name.parse().unwrap();
            rail
        };
        let (spec, notes) = Spec::from_rails(&names.iter().map(of).collect::<Vec<_>>(), &[]);
        let devices: Vec<String> = spec.devices.iter().map(|d| d.name.clone()).collect();
        (devices.join(" "), spec.cdi_version, notes)
    };
    assert_eq!(
        renamed(&["a", "b.5"]).2.len() + renamed(&["eth0.5", "hca:mlx5_0", "x-1_y"]).2.len(),
        0
    );
    assert_eq!(renamed(&["1g0"]).1, "0.5.0");
    for (name, why) in [
        ("all", "all rails"),
        ("é0", "CDI allows"),
        ("e0-", "CDI allows"),
        (".e", "CDI allows"),
        ("a=b", "CDI allows"),
    ] {
        let (devices, version, notes) = renamed(&["r0", name]);
        assert_eq!((devices.as_str(), version.as_str()), ("r0 all", "0.3.0"));
        assert!(notes.len() == 1 && notes[0].contains(why), "{notes:?}");
    }
    let (devices, _, notes) = renamed(&["r0", "hca:r0"]);
    assert_eq!((devices.as_str(), notes.len()), ("r0 all", 1));
}

/// The file, and a container whose engine has read it.
struct Node<'h> {
    host: &'h Host,
    file: String,
}

impl<'h> Node<'h> {
    fn new(host: &'h Host) -> Node<'h> {
        Node {
            host,
            file: host
                .run
                .with_file_name("cdi/rdmaprep.json")
                .display()
                .to_string(),
        }
    }

    fn generate(&self, args: &[&str]) -> testkit::Said {
        self.host
            .rdmaprep(&[&["cdi", "generate", "--output", &self.file], args].concat())
    }

    fn spec(&self) -> Spec {
        serde_json::from_str(&fs::read_to_string(&self.file).unwrap()).unwrap()
    }

    fn names(&self) -> Vec<String> {
        self.spec().devices.into_iter().map(|d| d.name).collect()
    }

    fn container(
        &self,
        id: &str,
        asked: &[&str],
        edit: impl FnOnce(&mut Value),
    ) -> (Container, Value) {
        let mut config = config();
        inject(&mut config, &self.spec(), asked);
        edit(&mut config);
        (
            Container::new(id)
                .annotated(json!({}))
                .bundled(self.host, &config),
            config,
        )
    }

    /// Runs its hooks of that stage one after the other, as a runtime does: until one fails.
    fn hooks(&self, stage: Stage, state: &str, config: &Value) -> testkit::Said {
        let mut last = None;
        for hook in config["hooks"][stage.name()].as_array().unwrap() {
            let args: Vec<String> = serde_json::from_value(hook["args"].clone()).unwrap();
            let args: Vec<&str> = args[1..].iter().map(String::as_str).collect();
            let said = testkit::run(&mut self.host.command(&args), state);
            if said.code != Some(0) {
                return said;
            }
            last = Some(said);
        }
        last.unwrap()
    }
}

fn inside(c: &Container) -> String {
    c.sh("ip -br link")
        .lines()
        .map(|l| l.split(['@', ' ']).next().unwrap().to_owned())
        .filter(|n| n != "lo")
        .collect::<Vec<_>>()
        .join(" ")
}

/// gVisor's hook comes once, however many devices are asked for, and with gVisor alone.
#[test]
fn hosts_with_gvisor_get_one_hook_more() {
    alone(|host| {
        host.rails(2);
        host.prepare("r0,r1");
        let node = Node::new(host);
        let calls = || {
            node.generate(&[]).ok();
            obeys(&node.spec());
            let (c, config) = node.container("c", &["r0", "r1"], |_| {});
            drop(c);
            config["hooks"]["createContainer"]
                .as_array()
                .cloned()
                .unwrap_or_default()
        };
        sh("mount -t tmpfs tmpfs /usr/local/sbin; touch /usr/local/sbin/runsc");
        let hooks = calls();
        assert_eq!(hooks.len(), 1);
        assert_eq!(
            hooks[0]["args"].as_array().unwrap()[1..5],
            ["hook", "createContainer", "--plan", "default"]
        );
        fs::remove_file("/usr/local/sbin/runsc").unwrap();
        assert_eq!(calls(), [] as [Value; 0]);
    });
}

/// A unit of systemd, which has no flags, makes the file again.
#[test]
fn hooks_have_the_timeout_that_the_config_file_gives_their_plan() {
    alone(|host| {
        host.rails(1);
        host.configure("[[plans]]\nname = \"default\"\nhook_timeout = 300\n");
        let node = Node::new(host);
        let timeouts = |args: &[&str]| -> BTreeSet<u64> {
            node.generate(args).ok();
            let (_, config) = node.container("c", &["r0"], |_| {});
            let stages = config["hooks"].as_object().unwrap().values();
            let hooks = stages.flat_map(|hooks| hooks.as_array().unwrap());
            hooks
                .map(|hook| hook["timeout"].as_u64().unwrap())
                .collect()
        };
        let r0 = ["--ifaces", "r0"];
        assert_eq!(timeouts(&r0), [300].into());
        let other = [&r0[..], &["--plan", "other"]].concat();
        assert_eq!(timeouts(&other), [60].into());
        host.prepare("r0");
        assert_eq!(timeouts(&["--keep"]), [300].into());
        assert_eq!(timeouts(&["--hook-timeout", "90"]), [90].into());
    });
}

fn whole(host: &Host, stored: bool) {
    host.rails(4);
    let node = Node::new(host);
    let before = host.look();
    match stored {
        true => {
            host.prepare("r0,r1,r2");
            node.generate(&[]).ok();
        }
        false => drop(node.generate(&["--ifaces", "r0,r1,r2"]).ok()),
    }
    assert_eq!(node.names(), ["r0", "r1", "r2", ALL]);
    for (asked, want, works) in [
        (&["r2", "r0"][..], "r0 r2", 1),
        (&["r1"], "r1", 1),
        (&[ALL], "r0 r1 r2", 1),
        (&["r1", ALL, "r1"], "r0 r1 r2", 2),
    ] {
        let (mut c, config) = node.container("c", asked, |_| {});
        fs::write(&host.log, "").unwrap();
        node.hooks(Stage::CreateRuntime, &c.state(), &config).ok();
        assert_eq!(inside(&c), want, "{asked:?}");
        let worked = fs::read_to_string(&host.log).unwrap().lines().count();
        assert_eq!(
            worked, works,
            "hooks that have something to say, of {asked:?}"
        );
        let list = host
            .rdmaprep(&["cdi", "list", "--file", &node.file])
            .ok()
            .out;
        assert!(
            list.contains("r1: container c") == want.contains("r1"),
            "{list}"
        );
        node.hooks(Stage::Poststart, &c.state(), &config).ok();
        c.kill();
        node.hooks(Stage::Poststop, &c.stopped(), &config).ok();
        host.is_as(&before);
        host.is_clean();
    }
}

#[test]
fn a_container_gets_what_its_devices_name_of_a_stored_plan() {
    alone(|host| whole(host, true));
}

#[test]
fn a_container_gets_what_its_devices_name_without_a_plan() {
    alone(|host| whole(host, false));
}

#[test]
fn all_that_was_asked_for_or_nothing() {
    alone(|host| {
        host.rails(3);
        let node = Node::new(host);
        node.generate(&["--ifaces", "r0,r1,r2"]).ok();
        let before = host.look();
        let fails = |id: &str, asked: &[&str], code: i32, word: &str, edit: &dyn Fn(&mut Value)| {
            let (c, config) = node.container(id, asked, edit);
            // The hooks of the unedited config.json, not those that are left in the edited one.
            let (_, unedited) = node.container(id, asked, |_| {});
            fs::write(
                host.run.with_file_name(format!("bundle-{id}/config.json")),
                config.to_string(),
            )
            .unwrap();
            node.hooks(Stage::CreateRuntime, &c.state(), &unedited)
                .fails(code, &[word]);
            host.is_as(&before);
            host.is_clean();
        };
        let keep = |_: &mut Value| {};
        host.configure("deny = [\"^r2$\"]");
        fails("denied", &["r0", "r2"], 3, "asks for r2 as devices", &keep);
        host.configure("max_nics = 1");
        fails("many", &["r0", "r2"], 3, "max_nics", &keep);
        host.configure("");
        fails("hookless", &["r0"], 5, "has no such hook", &|c| {
            c["hooks"] = json!({})
        });
        fails("broken", &["r0"], 5, "no OCI runtime configuration", &|c| {
            *c = json!({"hooks": 7})
        });
        // The plan that is stored meanwhile has less.
        host.prepare("r0,r1");
        fails(
            "less",
            &["r1", "r2"],
            3,
            "asks for r2 as devices, which plan default cannot give",
            &keep,
        );
        fails("nothing", &["r2"], 3, "asks for r2 as devices", &keep);
        let (c, config) = node.container("other", &["r0"], |_| {});
        let c = c.annotated(json!({"rdmaprep.io/plan": "theirs"}));
        node.hooks(Stage::CreateRuntime, &c.state(), &config)
            .fails(3, &["theirs"]);
        let nowhere = Container::new("nowhere").annotated(json!({}));
        node.hooks(Stage::CreateRuntime, &nowhere.state(), &config)
            .fails(5, &["no config.json"]);
        host.is_as(&before);
    });
}

#[test]
fn image_cannot_ask_nor_annotation_drop_nics_with_nodes() {
    alone(|host| {
        host.rails(3);
        let node = Node::new(host);
        node.generate(&["--ifaces", "r0,r1,r2"]).ok();
        let before = host.look();
        let env = |c: &mut Value| {
            let list = c["process"]["env"].as_array_mut().unwrap();
            list.extend(
                [
                    "RDMAPREP_RAIL_r1=x",
                    "RDMAPREP_RAIL=r1",
                    "RDMAPREP_PLAN=other",
                ]
                .map(|e| json!(e)),
            );
        };
        let (mut c, config) = node.container("image", &["r0"], env);
        node.hooks(Stage::CreateRuntime, &c.state(), &config).ok();
        assert_eq!(inside(&c), "r0");
        c.stop(host).ok();
        // The engine has given it the nodes of both.
        for annotation in ["rdmaprep.io/ifaces", "rdmaprep.io/exclude"] {
            let (c, config) = node.container("less", &["r0", "r1"], |_| {});
            let mut c = c.annotated(json!({(annotation): "r1"}));
            node.hooks(Stage::CreateRuntime, &c.state(), &config)
                .fails(3, &["its annotations"]);
            assert_eq!(inside(&c), "");
            c.kill();
        }
        host.is_as(&before);
        host.is_clean();
    });
}

/// A plan beside devices would give rails that were not asked for as devices: only the devices
/// count, in any order of the hooks.
#[test]
fn beside_a_plan_the_devices_count() {
    alone(|host| {
        host.rails(3);
        let node = Node::new(host);
        node.generate(&["--ifaces", "r0,r1,r2"]).ok();
        host.prepare("r0 r1 r2").ok();
        let before = host.look();
        for first in [true, false] {
            let (c, mut config) = node.container("both", &["r0"], |_| {});
            let mut c = c.annotated(json!({"rdmaprep.io/plan": "default"}));
            config["annotations"] = json!({"rdmaprep.io/plan": "default"});
            let text = serde_json::to_string_pretty(&config).unwrap();
            let said = testkit::run(&mut host.command(&["spec"]), &text).ok();
            assert_eq!(serde_json::from_str::<Value>(&said.out).unwrap(), config);
            assert!(
                said.err.contains("the container's devices name its rails"),
                "{said:?}"
            );
            if first {
                host.hook("createRuntime", &c.state()).ok();
                assert_eq!(inside(&c), "");
            }
            node.hooks(Stage::CreateRuntime, &c.state(), &config).ok();
            if !first {
                host.hook("createRuntime", &c.state()).ok();
            }
            assert_eq!(inside(&c), "r0");
            c.stop(host).ok();
        }
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn rails_in_a_container_stay_devices_and_go_to_no_other() {
    alone(|host| {
        host.rails(3);
        let node = Node::new(host);
        let generate = ["--ifaces", "r0,r1,r2"];
        node.generate(&generate).ok();
        let text = fs::read_to_string(&node.file).unwrap();
        let (mut first, config) = node.container("first", &["r1"], |_| {});
        node.hooks(Stage::CreateRuntime, &first.state(), &config)
            .ok();
        let said = node.generate(&generate).ok().out;
        assert!(
            said.contains("is as it should be (plan default)")
                && said.contains("r1: container first"),
            "{said}"
        );
        assert_eq!(fs::read_to_string(&node.file).unwrap(), text);
        let (second, config) = node.container("second", &["r0", "r1"], |_| {});
        node.hooks(Stage::CreateRuntime, &second.state(), &config)
            .fails(9, &["r1 is held by container first"]);
        assert_eq!(inside(&second), "");
        // In the first one's namespace there is r1, and r0 does not come after it.
        let (_, config) = node.container("joins", &["r0"], |_| {});
        let joins = Container::beside("joins", &first)
            .annotated(json!({}))
            .bundled(host, &config);
        node.hooks(Stage::CreateRuntime, &joins.state(), &config)
            .fails(3, &["asks for r0 as devices"]);
        first.stop(host).ok();
        host.is_clean();
    });
}

/// Gives the rails of the stored plan verbs nodes, which only HCAs have.
fn with_nodes(host: &Host) {
    let path = host.run.join("plans/default.json");
    let mut plan: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let mut nodes = vec![json!({"name": "rdma_cm", "major": 10, "minor": 122})];
    for (i, nic) in plan["nics"].as_array_mut().unwrap().iter_mut().enumerate() {
        nic["uverbs"] = json!({"name": format!("uverbs{i}"), "major": 231, "minor": 192 + i});
        nodes.insert(i, nic["uverbs"].clone());
    }
    plan["devices"] = json!(nodes);
    fs::write(path, plan.to_string()).unwrap();
}

fn members(host: &Host) -> Vec<String> {
    let files = fs::read_dir(host.run.join("records"))
        .unwrap()
        .map(|e| fs::read_to_string(e.unwrap().path()).unwrap());
    let records: Vec<Value> = files
        .map(|text| serde_json::from_str(&text).unwrap())
        .collect();
    let ids = |r: &Value| {
        r["members"]
            .as_array()
            .unwrap()
            .iter()
            .map(|m| m["id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(records.len(), 1);
    ids(&records[0])
}

/// A pod's containers ask for different devices each: the first one says what the pod has.
#[test]
fn a_second_container_may_ask_for_fewer_devices() {
    alone(|host| {
        host.rails(3);
        host.prepare("r0,r1,r2");
        with_nodes(host);
        let before = host.look();
        let node = Node::new(host);
        node.generate(&[]).ok();
        let (mut first, config) = node.container("first", &["r0", "r1"], |_| {});
        node.hooks(Stage::CreateRuntime, &first.state(), &config)
            .ok();
        let beside = |id: &str, asked: &[&str], edit: &dyn Fn(&mut Value)| {
            let mut config = self::config();
            inject(&mut config, &node.spec(), asked);
            edit(&mut config);
            // With a mount namespace of its own, in which the hook looks for nodes.
            let net = format!("--net=/proc/{}/ns/net", first.pid());
            let second = Container::start(
                id,
                process::Command::new("nsenter").args([&net, "unshare", "--mount"]),
            );
            let second = second.annotated(json!({})).bundled(host, &config);
            let said = node.hooks(Stage::CreateRuntime, &second.state(), &config);
            (second, said, config)
        };
        let (second, said, config) = beside("second", &["r1"], &|_| {});
        said.ok();
        assert_eq!(members(host), ["first", "second"]);
        let notes = host.report("second")["notes"].to_string();
        assert!(
            notes.contains("asks for fewer NICs") && notes.contains("joined first"),
            "{notes}"
        );
        // A container that is refused is no member: the runtime may never call its stop hook.
        let lacks = |config: &mut Value| config["linux"]["devices"].as_array_mut().unwrap().clear();
        let (_third, said, _) = beside("third", &["r1"], &lacks);
        said.fails(3, &["lacks device nodes", "uverbs1"]);
        assert_eq!(members(host), ["first", "second"]);
        let (_fourth, said, _) = beside("fourth", &["r1", "r2"], &|_| {});
        said.fails(3, &["asks for r2 as devices"]);
        assert_eq!(members(host), ["first", "second"]);
        first.kill();
        assert_eq!(inside(&second), "r0 r1");
        node.hooks(Stage::Poststop, &first.stopped(), &config).ok();
        assert_eq!(
            (members(host), inside(&second)),
            (vec!["second".to_owned()], "r0 r1".to_owned())
        );
        let mut second = second;
        second.kill();
        node.hooks(Stage::Poststop, &second.stopped(), &config).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// Hooks name the program by the path that it has in every version, whatever was called to write
/// the file.
#[test]
fn hooks_name_the_program_where_it_stays() {
    alone(|host| {
        host.rails(1);
        let node = Node::new(host);
        let paths = || {
            let spec = node.spec();
            let edits = spec
                .devices
                .iter()
                .map(|d| &d.container_edits)
                .chain([&spec.container_edits]);
            edits
                .flat_map(|e| &e.hooks)
                .map(|h| h.path.clone())
                .collect::<BTreeSet<String>>()
        };
        let said = node.generate(&["--ifaces", "r0"]).ok();
        let own = env!("CARGO_BIN_EXE_rdmaprep");
        assert!(
            said.err
                .contains("there is no /usr/local/bin/rdmaprep for hooks to call"),
            "{said:?}"
        );
        assert_eq!(paths(), [own.to_owned()].into());
        node.generate(&["--ifaces", "r0", "--program", "/bin/sh"])
            .ok();
        assert_eq!(paths(), ["/bin/sh".to_owned()].into());
        for (bad, word) in [
            ("/nonexistent/rdmaprep", "there is no"),
            ("rdmaprep", "no absolute path"),
        ] {
            node.generate(&["--ifaces", "r0", "--program", bad])
                .fails(2, &[word]);
        }
        sh("mount -t tmpfs none /usr/local/bin; touch /usr/local/bin/rdmaprep");
        let said = node.generate(&["--ifaces", "r0"]).ok();
        assert_eq!(paths(), ["/usr/local/bin/rdmaprep".to_owned()].into());
        assert!(!said.err.contains("for hooks to call"), "{said:?}");
    });
}

#[test]
fn the_file_is_written_with_care() {
    alone(|host| {
        host.rails(3);
        let node = Node::new(host);
        let said = node.generate(&["--ifaces", "r0,r1", "--dry-run"]).ok().out;
        assert!(
            said.contains("\n+      \"name\": \"r1\",") && said.contains("would be written"),
            "{said}"
        );
        assert!(
            !Path::new(&node.file).exists() && !Path::new(&node.file).parent().unwrap().exists()
        );
        assert!(said.lines().all(|l| l.chars().count() <= 100), "{said}");
        let said = node.generate(&["--ifaces", "r0,r1", "--json"]).ok().out;
        let json: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(
            (&json["changed"], &json["spec"]),
            (&json!(true), &json!(node.spec()))
        );
        assert_eq!(
            sh(&format!("stat -c %a {0} $(dirname {0})", node.file)),
            "644\n755\n"
        );
        let all = host
            .rdmaprep(&["cdi", "generate", "--ifaces", "r0,r1", "--output", "-"])
            .ok()
            .out;
        assert_eq!(all, fs::read_to_string(&node.file).unwrap());
        // A link that is down for a moment makes no list shorter.
        node.generate(&["--ifaces", "r1", "--keep"])
            .fails(3, &["would lose devices: r0 has no RDMA device"]);
        assert_eq!(node.names(), ["r0", "r1", ALL]);
        node.generate(&["--ifaces", "r1"]).ok();
        assert_eq!(node.names(), ["r1", ALL]);
        host.prepare("r2");
        node.generate(&["--keep"]).ok();
        assert_eq!(
            node.names(),
            ["r2", ALL],
            "a stored plan is the administrator's word"
        );
        let idle = "--ifaces, --exclude would change nothing: plan default is stored";
        node.generate(&["--ifaces", "r0", "--exclude", "r1"])
            .fails(2, &[idle, "`rdmaprep prepare` with these flags"]);
        assert_eq!(node.names(), ["r2", ALL]);
        for (text, word) in [
            ("{}", "is not ours"),
            ("", "is not ours"),
            (r#"{"cdiVersion":"0.6.0","kind":"a.b/c"}"#, "kind \"a.b/c\""),
        ] {
            fs::write(&node.file, text).unwrap();
            node.generate(&[]).fails(3, &[word]);
            assert_eq!(fs::read_to_string(&node.file).unwrap(), text);
            host.rdmaprep(&["cdi", "list", "--file", &node.file])
                .fails(3, &[word]);
        }
        fs::remove_file(&node.file).unwrap();
        host.rdmaprep(&["cdi", "list", "--file", &node.file])
            .fails(2, &["`rdmaprep cdi generate` writes it"]);
        host.rdmaprep(&["cdi", "generate", "--output", "x.json"])
            .fails(2, &["--output x.json"]);
        host.rdmaprep(&["cdi", "generate", "--output", "/run/x.yaml"])
            .fails(2, &["--output /run/x.yaml"]);
    });
}
