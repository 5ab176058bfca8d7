//! The doctor, by golden folders: `tests/cases/doctor/healthy` has a node with nothing wrong, and
//! each other folder a `planted.json`: what of it is changed, by JSON pointer (`/-` at the end
//! appends), and what else is given; and, where the case needs them, `args`. What comes out is
//! `expected.txt`, as the terminal shows it. `UPDATE_GOLDEN=1` writes what comes out; read the
//! diff.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::alone;
use clap::FromArgMatches;
use clap::builder::Resettable;
use nccl_rules::settings::Settings;
use rdma_model::ids::HcaName;
use rdma_model::snapshot::{CharDevice, Snapshot};
use rdmaprep::cli::{self, Cli, Command as Subcommand};
use rdmaprep::config::file::ConfigFile;
use rdmaprep::config::host::Host;
use rdmaprep::config::recipe::{Besides, Recipe};
use rdmaprep::config::request::Request;
use rdmaprep::doctor::facts::{Machine, Trace};
use rdmaprep::doctor::{Check, Diagnosis, Examination, Severity, doctor};
use rdmaprep::kernel::probe::access::NodeAccess;
use rdmaprep::kernel::probe::devnode_probe;
use rdmaprep::nccl_env::Options;
use rdmaprep::plan::Plan;
use rdmaprep::report;
use rdmaprep::select::{BusyNic, select};
use serde::Deserialize;
use serde_json::{Value, json};
use testkit::sh;
use testkit::trees::{TREES, captured, unpacked};

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Planted {
    snapshot: BTreeMap<String, Value>,
    /// What of the healthy node is otherwise already when the plans are made.
    well: BTreeMap<String, Value>,
    machine: BTreeMap<String, Value>,
    traces: Vec<Trace>,
    /// What containers have.
    held: Vec<BusyNic>,
    env: BTreeMap<String, String>,
    /// Why the settings cannot be read.
    untold: Option<String>,
    /// Stored plans of the healthy node, by name.
    plans: BTreeMap<String, Stored>,
    /// Whether it is a file that is examined, and not the node.
    recorded: bool,
    container: Option<String>,
}

/// What of the healthy node a plan has, and InfiniBand HCAs that it has besides.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Stored {
    ifaces: String,
    family: Option<String>,
    ib: Vec<HcaName>,
    /// More flags, a line each.
    flags: String,
    /// What of the plan itself is otherwise.
    planted: BTreeMap<String, Value>,
}

impl Stored {
    fn plan(&self, name: &str, healthy: &Snapshot) -> Plan {
        let family = self
            .family
            .as_ref()
            .map_or(String::new(), |family| format!("\n--family={family}"));
        let mut flags = vec![format!("--ifaces={}", self.ifaces)];
        let more = format!("{family}\n{}", self.flags);
        flags.extend(more.lines().filter(|l| !l.is_empty()).map(str::to_owned));
        let mut request = request(&flags.join("\n"));
        let besides = Besides {
            bundle: None,
            runtime: None,
            hook_timeout: None,
        };
        request.recipe = Some(Recipe::new(BTreeMap::new(), flags, &besides));
        let selection = select(&request, healthy, &[]).unwrap();
        let plan = Plan::new(name, &request, healthy, &selection, &Options::default());
        let nodes = self.ib.iter().map(|_| CharDevice {
            name: "uverbs3".to_owned(),
            major: 231,
            minor: 195,
        });
        let plan = Plan {
            ib: self.ib.clone(),
            devices: plan.devices.iter().cloned().chain(nodes).collect(),
            ..plan
        };
        let mut plan = serde_json::to_value(plan).unwrap();
        plant(&mut plan, &self.planted);
        serde_json::from_value(plan).unwrap()
    }
}

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/doctor")
}

/// `rdmaprep doctor ARGS`, without the environment of the test process; behind ARGS the config file
/// from `[select]` on.
fn request(args: &str) -> Request {
    let (args, file) = args.split_at(args.find("[select]").unwrap_or(args.len()));
    let deaf = |c: clap::Command| c.mut_args(|a| a.env(Resettable::Reset));
    let line = ["rdmaprep", "doctor"].into_iter().chain(args.lines());
    let matches = deaf(cli::command())
        .mut_subcommands(deaf)
        .try_get_matches_from(line)
        .unwrap();
    let cli = Cli::from_arg_matches(&matches).unwrap();
    let Subcommand::Doctor(args) = cli.command else {
        panic!("another command")
    };
    let config = ConfigFile::new(file).config().unwrap();
    Request::new(
        None,
        &args.select,
        Host::new(&cli.global, &config),
        config.select,
        |_| None,
    )
    .unwrap()
}

fn plant(whole: &mut Value, changes: &BTreeMap<String, Value>) {
    for (pointer, value) in changes {
        let (parent, last) = pointer.rsplit_once('/').unwrap();
        match whole
            .pointer_mut(parent)
            .unwrap_or_else(|| panic!("nothing is at {parent}"))
        {
            Value::Array(items) if last == "-" => items.push(value.clone()),
            Value::Array(items) => items[last.parse::<usize>().unwrap()] = value.clone(),
            Value::Object(map) => drop(map.insert(last.replace("~1", "/"), value.clone())),
            other => panic!("{parent} is {other}"),
        }
    }
}

fn read(path: PathBuf) -> Value {
    serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap()
}

/// The healthy node with that planted; without a machine it is one of a file.
fn diagnosis(planted: &Planted, args: &str, live: bool) -> Diagnosis {
    let healthy = cases().join("healthy");
    let (mut snapshot, mut machine) = (
        read(healthy.join("snapshot.json")),
        read(healthy.join("machine.json")),
    );
    plant(&mut snapshot, &planted.well);
    let well: Snapshot = serde_json::from_value(snapshot.clone()).unwrap();
    let plans: Vec<Plan> = planted
        .plans
        .iter()
        .map(|(name, stored)| stored.plan(name, &well))
        .collect();
    plant(&mut snapshot, &planted.snapshot);
    plant(&mut machine, &planted.machine);
    let snapshot: Snapshot = serde_json::from_value(snapshot).unwrap();
    let machine: Machine = serde_json::from_value(machine).unwrap();
    let settings = Settings::of(planted.env.clone(), "the environment");
    let examination = Examination {
        request: &request(args),
        snapshot: &snapshot,
        held: &planted.held,
        machine: live.then_some(&machine),
        traces: &planted.traces,
        plans: &plans,
        settings: planted.untold.as_deref().map_or(Ok(&settings), Err),
        container: planted.container.as_deref(),
    };
    doctor(&examination).unwrap()
}

/// What switches do with flow control is never known: only this is reported of every node.
fn is_healthy(d: &Diagnosis) -> bool {
    d.findings
        .iter()
        .all(|f| f.check == Check::FlowControl && f.severity == Severity::Unknown)
}

#[test]
fn nothing_is_wrong_with_a_healthy_node() {
    let d = diagnosis(&Planted::default(), "", true);
    assert!(
        is_healthy(&d) && d.not_checked.is_empty(),
        "{}",
        report::diagnosis_table(&d)
    );
    assert_eq!((d.breaks, d.warnings, d.unknown), (0, 0, 1));
    // Of a container's network the host's own addresses are none.
    let env = BTreeMap::from([("NCCL_IB_HCA".to_owned(), "=mlx5_0,mlx5_1".to_owned())]);
    let inside = Planted {
        container: Some("c1".to_owned()),
        env,
        ..Planted::default()
    };
    assert!(is_healthy(&diagnosis(
        &inside,
        "--ifaces=rdma0,rdma1\n--bootstrap-address=10.9.9.9",
        true
    )));
}

#[test]
fn a_plan_of_several_nodes_has_the_rail_test_named() {
    let hint = |nodes: u32| {
        let digest = "0".repeat(64);
        let agreement = json!({"run": "job.7", "rank": 0, "nodes": nodes, "nonces": digest,
            "policy": {"match": "name", "family": "4"}, "digest": digest, "rails": []});
        let stored = Stored {
            ifaces: "rdma0,rdma1".to_owned(),
            planted: BTreeMap::from([("/agreement".to_owned(), agreement)]),
            ..Stored::default()
        };
        let planted = Planted {
            plans: BTreeMap::from([("train".to_owned(), stored)]),
            env: BTreeMap::from([("NCCL_CROSS_NIC".to_owned(), "0".to_owned())]),
            ..Planted::default()
        };
        diagnosis(&planted, "", true).hint.unwrap_or_default()
    };
    assert!(
        hint(2).contains("`rdmaprep test-rails --plan train`"),
        "{}",
        hint(2)
    );
    assert_eq!(hint(1), "");
}

/// A job runs: with its NICs go their routes, and in exclusive mode their HCAs.
#[test]
fn nothing_is_wrong_with_a_node_whose_nics_are_lent() {
    let held = |netdev: &str, hca: &str| {
        json!({ "netdev": netdev, "hca": hca, "port": 1,
            "by": "container c1" })
    };
    let trace = |nics: Value| {
        json!([{ "id": "c1", "nics": nics, "stale": null, "advice": "",
            "tables": [100] }])
    };
    // The second rail: the one next to a GPU; a rule of its subnet stays, and a list for the whole
    // node.
    let gone = json!({
        "/hcas/1/ports/0/netdev": null, "/netdevs/2/name": "other9", "/netdevs/2/mac": null,
        "/netdevs/2/addresses": [],
        "/netdevs/2/permanent_mac": "02:00:00:00:00:99", "/netdevs/2/pci": null,
        "/rules/-": { "family": 4, "priority": 1000, "source": "198.51.100.0/24", "table": 100,
            "action": 1 },
    });
    let one = json!({
        "snapshot": gone, "held": [held("rdma1", "mlx5_1")], "traces": trace(json!(["rdma1"])),
        "env": { "NCCL_IB_HCA": "=mlx5_0,mlx5_1" }, "plans": { "a": { "ifaces": "rdma0 rdma1" } },
    });
    // In exclusive mode, all.
    let mut all = gone.clone();
    for (key, value) in [
        ("/hcas", json!([])),
        ("/rdma_mode", json!("exclusive")),
        ("/netdevs/1/name", json!("other8")),
        ("/netdevs/1/addresses", json!([])),
    ] {
        all[key] = value;
    }
    all.as_object_mut()
        .unwrap()
        .retain(|key, _| !key.starts_with("/hcas/"));
    let every = json!({
        "snapshot": all, "held": [held("rdma0", "mlx5_0"), held("rdma1", "mlx5_1")],
        "traces": trace(json!(["rdma0", "rdma1"])),
    });
    // Where the rail is that is away is known by its HCA, while that stays.
    for (planted, not_checked) in [(one, &[][..]), (every, &[Check::Numa][..])] {
        let planted: Planted = serde_json::from_value(planted).unwrap();
        let d = diagnosis(&planted, "", true);
        assert!(is_healthy(&d), "{}", report::diagnosis_table(&d));
        assert_eq!(d.not_checked, not_checked);
    }
}

/// A finding that several plans share is reported once, with the name of one plan.
#[test]
fn what_two_plans_share_is_reported_once() {
    let slow = json!({ "/hcas/1/ports/0/rate": "25 Gb/sec (1X EDR)" });
    let both = json!({ "a": { "ifaces": "rdma0 rdma1" }, "b": { "ifaces": "rdma0 rdma1" } });
    let planted: Planted =
        serde_json::from_value(json!({ "snapshot": slow, "plans": both })).unwrap();
    let d = diagnosis(&planted, "", true);
    let uneven: Vec<_> = d
        .findings
        .iter()
        .filter(|f| f.check == Check::AsymmetricRails)
        .collect();
    assert_eq!(uneven.len(), 1, "{}", report::diagnosis_table(&d));
    assert_eq!(
        uneven[0].run,
        ["rdmaprep prepare --plan a --ifaces \"rdma0\""]
    );
}

/// What is printed for a plan gives it the same again without one NIC, and loses nothing that it
/// was made with.
#[test]
fn no_command_loses_what_a_plan_has() {
    let uplink = json!({ "destination": "0.0.0.0/0", "table": 254, "hops": [{ "dev": "rdma1" }] });
    let faults = [
        (
            Check::Plans,
            json!({ "/netdevs/2/name": "other9", "/netdevs/2/permanent_mac": "02:00:00:00:00:99",
                "/netdevs/2/pci": null }),
        ),
        (Check::Uplink, json!({ "/routes/-": uplink })),
        (
            Check::AsymmetricRails,
            json!({ "/hcas/1/ports/0/rate": "25 Gb/sec (1X EDR)" }),
        ),
    ];
    let commands = |stored: &Value, with: Value| {
        let found = |(check, fault): &(Check, Value)| {
            let mut planted = json!({ "snapshot": fault, "plans": { "a": stored } });
            planted
                .as_object_mut()
                .unwrap()
                .extend(with.as_object().unwrap().clone());
            let d = diagnosis(&serde_json::from_value(planted).unwrap(), "", true);
            let mut about = d.findings.iter().filter(|f| f.check == *check);
            let found = about
                .next()
                .unwrap_or_else(|| panic!("{check}: {}", report::diagnosis_table(&d)));
            assert!(
                found.fix.contains("with the flags that it was made with"),
                "{found:?}"
            );
            assert!(found.fix.contains("its bundles again"), "{found:?}");
            found.run.clone()
        };
        faults.iter().map(found).collect::<Vec<_>>()
    };
    let plain = json!({ "ifaces": "rdma0 rdma1" });
    let again = vec!["rdmaprep prepare --plan a --ifaces \"rdma0\"".to_owned()];
    assert_eq!(
        commands(&plain, json!({})),
        [again.clone(), again.clone(), again.clone()]
    );
    let agreement = json!({
        "run": "r1", "rank": 0, "nodes": 2, "policy": { "match": "name", "family": "4" },
        "nonces": "0".repeat(64), "digest": "0".repeat(64),
        "rails": [["rdma0", "rdma0"], ["rdma1", "rdma1"]],
    });
    for (made, flags) in [
        (
            json!({ "flags": "--gid-timeout=60" }),
            Some(" --gid-timeout=60"),
        ),
        (
            json!({ "flags": "--freeze-lifetimes\n--ib" }),
            Some(" --freeze-lifetimes --ib"),
        ),
        (json!({ "planted": { "/agreement": agreement } }), None),
        (json!({ "planted": { "/recipe": null } }), None),
    ] {
        let mut stored = plain.clone();
        stored
            .as_object_mut()
            .unwrap()
            .extend(made.as_object().unwrap().clone());
        let with = |flags| vec![format!("{}{flags}", again[0])];
        let said = [0; 3].map(|_| flags.map_or(Vec::new(), with));
        assert_eq!(commands(&stored, json!({})), said, "{made}");
    }
    // Another NIC of the plan is with a container just then.
    let three = json!({ "ifaces": "rdma0 rdma1 \
        eth0", "flags": "--allow-bootstrap-iface", "planted": { "/allow_bootstrap": false } });
    let lent = json!({ "plans": { "a": three }, "snapshot": {
        "/netdevs/1/name": "other8", "/netdevs/1/permanent_mac": "02:00:00:00:00:98",
        "/netdevs/1/pci": null,
        "/netdevs/2/name": "other9", "/netdevs/2/permanent_mac": "02:00:00:00:00:99",
        "/netdevs/2/pci": null,
    }, "held": [{ "netdev": "rdma0", "hca": "mlx5_0", "port": 1, "by": "container c1" }] });
    let d = diagnosis(&serde_json::from_value(lent).unwrap(), "", true);
    assert!(d.findings.iter().any(|f| f.check == Check::Plans), "{d:?}");
    assert!(
        d.findings
            .iter()
            .flat_map(|f| &f.run)
            .all(|c| !c.contains("prepare")),
        "{d:?}"
    );
}

/// A stored plan of other NICs is not written over.
#[test]
fn the_default_plan_is_of_no_other_container() {
    let slow = json!({ "/hcas/1/ports/0/rate": "25 Gb/sec (1X EDR)" });
    let run = |plans: Value| {
        let planted = json!({ "snapshot": slow, "plans": plans });
        let d = diagnosis(
            &serde_json::from_value(planted).unwrap(),
            "--ifaces=rdma0,rdma1",
            true,
        );
        d.findings
            .iter()
            .find(|f| f.check == Check::AsymmetricRails)
            .unwrap()
            .run
            .clone()
    };
    assert_eq!(
        run(json!({ "b": { "ifaces": "rdma1" } })),
        ["rdmaprep prepare --ifaces \"rdma0\""]
    );
    assert!(run(json!({ "default": { "ifaces": "rdma1" } })).is_empty());
}

/// It is no error of the doctor's that a NIC has no address.
#[test]
fn without_auto_skip_all_is_looked_at() {
    let bare = json!({ "snapshot": { "/netdevs/2/addresses": [] } });
    let planted: Planted = serde_json::from_value(bare).unwrap();
    let (d, strict) = (
        diagnosis(&planted, "", true),
        diagnosis(&planted, "[select]\nauto_skip_no_ipv4 = false", true),
    );
    assert_eq!(
        report::diagnosis_table(&strict),
        report::diagnosis_table(&d)
    );
}

/// Ordinary differences between hosts are no findings.
#[test]
fn ordinary_differences_are_no_findings() {
    let healthy = |planted: Value, args: &str| {
        let planted: Planted = serde_json::from_value(planted.clone()).unwrap();
        let d = diagnosis(&planted, args, true);
        assert!(is_healthy(&d), "{}", report::diagnosis_table(&d));
    };
    let plans = json!({ "a": { "ifaces": "rdma0 rdma1" } });
    // A plan that fits.
    healthy(json!({ "plans": plans }), "");
    // A NIC for storage that is in no plan: slower, with small packets, in a subnet of its own.
    let storage = json!({
        "/netdevs/2/mtu": 1500, "/hcas/1/ports/0/rate": "25 Gb/sec (1X EDR)", "/pci/-": x710(),
    });
    healthy(
        json!({ "snapshot": storage, "plans": { "a": { "ifaces": "rdma0" } } }),
        "",
    );
    // Rails of different speed that no job has together.
    let slow = json!({ "/netdevs/2/mtu": 4200, "/hcas/1/ports/0/rate": "25 Gb/sec (1X EDR)" });
    let apart = json!({ "a": { "ifaces": "rdma0" }, "b": { "ifaces": "rdma1" } });
    healthy(json!({ "snapshot": slow, "plans": apart }), "");
    // One of IPv6 rails, whatever counts by default.
    let six = |n: u8| {
        json!([{ "address": format!("2001:db8:{n}::1"), "prefix": 64, "scope": 0,
            "flags": 128 }])
    };
    let gid = |n: u8, dev: &str| {
        json!([{ "index": 0, "address": format!("2001:db8:{n}::1"),
            "kind": "RoCE v2", "netdev": dev }])
    };
    let snapshot = json!({
        "/netdevs/1/addresses": six(1), "/hcas/0/ports/0/gids": gid(1, "rdma0"),
        "/netdevs/2/addresses": six(2), "/hcas/1/ports/0/gids": gid(2, "rdma1"),
    });
    let plans6 = json!({ "a": { "ifaces": "rdma0 rdma1", "family": "6" } });
    healthy(json!({ "well": snapshot, "plans": plans6 }), "");
    // Network managers configure the NICs of a host without a plan.
    let managers = json!([{ "manager": "network_manager", "spares": [] },
        { "manager": "networkd", "spares": [] }]);
    healthy(json!({ "machine": { "/managers": managers } }), "");
    // Or those that are in no plan.
    let managers = json!([{ "manager": "network_manager", "spares": ["rdma0", "rdma1"] }]);
    healthy(
        json!({ "machine": { "/managers": managers }, "plans": plans }),
        "",
    );
    // Or that have their addresses from one.
    let managers =
        json!([{ "manager": "networkd", "spares": [], "configures": ["rdma0", "rdma1"] }]);
    healthy(
        json!({ "machine": { "/managers": managers }, "plans": plans }),
        "",
    );
    // NCCL's list of one plan's HCAs, beside a NIC for storage; or of one of two plans'; or with
    // what is in none.
    let (a, two) = (
        json!({ "a": { "ifaces": "rdma0" } }),
        json!({ "a": { "ifaces": "rdma0" }, "b": { "ifaces": "rdma1" } }),
    );
    healthy(
        json!({ "plans": a, "env": { "NCCL_IB_HCA": "=mlx5_0" } }),
        "",
    );
    healthy(
        json!({ "plans": two, "env": { "NCCL_IB_HCA": "=mlx5_1" } }),
        "",
    );
    healthy(
        json!({ "plans": a, "env": { "NCCL_IB_HCA": "=mlx5_0,mlx5_1" } }),
        "",
    );
    // IP over InfiniBand, beside RoCE.
    let mut fabric = infiniband("mlx5_3", "ACTIVE");
    fabric["ports"][0]["netdev"] = json!("ib0");
    let ib0 = json!({ "name": "ib0", "ifindex": 9, "link_type": 32, "mtu": 2044, "up": true,
        "running": true,
        "addresses": [{ "address": "100.64.0.1", "prefix": 24, "scope": 0 }] });
    let ipoib = json!({ "snapshot": { "/hcas/-": fabric, "/netdevs/-": ib0 },
        "machine": { "/nodes/uverbs3": "opened" } });
    healthy(ipoib, "--ib\n--ifaces=rdma0,rdma1,ib0");
    // Ports that no plan has, and no address.
    let ib = infiniband("mlx5_3", "DOWN");
    let dark = json!({ "/hcas/1/ports/0/state": "DOWN", "/netdevs/2/addresses": [], "/hcas/-": ib,
        "/pci": [] });
    healthy(
        json!({ "snapshot": dark, "plans": { "a": { "ifaces": "rdma0" } } }),
        "",
    );
    // The second port of an InfiniBand card, as long as the plan has one.
    let mut two = infiniband("mlx5_3", "ACTIVE");
    let mut second = two["ports"][0].clone();
    (second["number"], second["state"]) = (json!(2), json!("DOWN"));
    two["ports"].as_array_mut().unwrap().push(second);
    let planned = json!({ "a": { "ifaces": "rdma0 rdma1", "ib": ["mlx5_3"] } });
    healthy(
        json!({ "snapshot": { "/hcas/-": two }, "machine": { "/nodes/uverbs3": "opened" } }),
        "",
    );
    let two: Planted =
        serde_json::from_value(json!({ "snapshot": { "/hcas/-": two }, "plans": planned }))
            .unwrap();
    assert!(
        diagnosis(&two, "", true)
            .findings
            .iter()
            .all(|f| f.check != Check::PortDown)
    );
    // A NIC of a plan that a container has.
    let away = json!({ "id": "c1", "nics": ["rdma1"], "stale": null, "advice": "" });
    let gone = json!({ "/hcas/1/ports/0/netdev": null, "/netdevs/2/name": "other9",
        "/netdevs/2/mac": null, "/netdevs/2/permanent_mac": "02:00:00:00:00:99",
        "/netdevs/2/pci": null,
        "/netdevs/2/addresses": [], "/pci": [] });
    healthy(
        json!({ "snapshot": gone, "traces": [away], "plans": plans }),
        "",
    );
    // A container with InfiniBand HCAs alone.
    let inside =
        json!({ "/hcas": [infiniband("mlx5_3", "ACTIVE")], "/netdevs/1/name": "eth9", "/pci": [] });
    healthy(
        json!({ "snapshot": inside, "container": "c1",
            "machine": { "/nodes": { "uverbs3": "opened" } } }),
        "",
    );
}

/// A card for the host's own network, of a family of which some do RDMA.
fn x710() -> Value {
    json!({ "address": "0000:31:00.0", "class": 0x02_0000, "driver": "i40e" })
}

/// As nldev and sysfs tell an InfiniBand HCA.
fn infiniband(name: &str, state: &str) -> Value {
    json!({
        "name": name, "driver": "mlx5_core", "protocol": "ib",
        "uverbs": { "name": "uverbs3", "major": 231, "minor": 195 },
        "ports": [{ "number": 1, "state": state, "link_layer": "InfiniBand", "rate": "400 Gb/sec \
            (4X NDR)" }],
    })
}

#[test]
fn every_planted_fault_is_found() {
    let mut wrong = Vec::new();
    let mut untested: Vec<String> = ALL.iter().map(Check::to_string).collect();
    let mut found = testkit::golden::cases("doctor", 2);
    found.retain(|path| !path.ends_with("healthy"));
    for case in &found {
        let name = case.file_name().unwrap().to_str().unwrap();
        let planted: Planted = serde_json::from_value(read(case.join("planted.json"))).unwrap();
        let args = fs::read_to_string(case.join("args")).unwrap_or_default();
        let d = diagnosis(&planted, &args, !planted.recorded);
        let check = name.split('-').next().unwrap();
        let about: Vec<_> = d
            .findings
            .iter()
            .filter(|f| f.check.to_string() == check)
            .collect();
        assert!(!about.is_empty(), "{name}: {check} says nothing");
        assert!(
            about
                .iter()
                .all(|f| !f.seen.is_empty() && !f.why.is_empty() && !f.fix.is_empty()),
            "{name}: {about:?}"
        );
        untested.retain(|c| c != check);
        let text = report::diagnosis_table(&d) + "\n";
        let commands: Vec<&String> = d.findings.iter().flat_map(|f| &f.run).collect();
        // What is made to be pasted is whole, and nothing but it is wider than a table may be.
        assert!(
            commands
                .iter()
                .all(|c| text.lines().any(|l| l == c.as_str())),
            "{name}: {text}"
        );
        let is_told = |l: &str| commands.iter().all(|c| c.as_str() != l);
        assert!(
            text.lines()
                .filter(|l| is_told(l))
                .all(|l| l.chars().count() <= 100),
            "{name}: {text}"
        );
        let golden = case.join("expected.txt");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&golden, &text).unwrap();
        }
        if fs::read_to_string(&golden).unwrap_or_default() != text {
            wrong.push(format!("{name}:\n{text}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "UPDATE_GOLDEN=1 accepts these:\n{}",
        wrong.join("\n")
    );
    assert!(
        untested.is_empty() || !testkit::golden::are_all(),
        "checks without a case: {untested:?}"
    );
}

#[test]
fn plan_for_the_hosts_network_may_have_what_the_host_uses() {
    let planted: Planted = serde_json::from_value(json!({
        "well": {"/routes/0/hops/0/dev": "rdma0", "/netdevs/1/qdisc_lost": "its discipline"},
        "plans": {"a": {"ifaces": "rdma0 rdma1", "flags": "--network-mode=host"}},
    }))
    .unwrap();
    let found = diagnosis(&planted, "", true).findings;
    let broken: Vec<_> = found
        .iter()
        .filter(|f| f.severity == Severity::Breaks || f.check == Check::LeftOut)
        .collect();
    assert!(broken.is_empty(), "{broken:?}");
}

const ALL: [Check; 25] = [
    Check::RdmaModules,
    Check::KernelFeatures,
    Check::VerbsNodes,
    Check::Userspace,
    Check::Memlock,
    Check::PeerMemory,
    Check::PortDown,
    Check::Gids,
    Check::LeftOut,
    Check::Plans,
    Check::Mtu,
    Check::Arp,
    Check::FlowControl,
    Check::Uplink,
    Check::AsymmetricRails,
    Check::Channels,
    Check::Acs,
    Check::Numa,
    Check::Nccl,
    Check::Libraries,
    Check::StaleRecords,
    Check::OrphanedRules,
    Check::RenameFights,
    Check::PodAnnotations,
    Check::EngineHooks,
];

/// Each fault, planted in a captured node, is found there as well, or reported as not checked:
/// never passed over.
#[test]
fn a_file_is_never_taken_for_a_healthy_node() {
    let d = diagnosis(&Planted::default(), "", false);
    let not: Vec<String> = d.not_checked.iter().map(Check::to_string).collect();
    let live = [
        "rdma_modules",
        "kernel",
        "verbs_nodes",
        "memlock",
        "peer_memory",
        "plans",
        "acs",
        "stale_records",
        "rename_fights",
        "pod_annotations",
        "engine_hooks",
    ];
    assert_eq!(not, live);
    let text = report::diagnosis_table(&d);
    assert!(
        text.contains("not checked, as what they look at is not here: rdma_modules, kernel,"),
        "{text}"
    );
}

/// A tree of /sys has no addresses and no routes: what asks for them is not checked, and its
/// absence is no finding.
#[test]
fn a_tree_of_sys_has_no_findings() {
    let mut bare: BTreeMap<String, Value> = [
        ("/netns", Value::Null),
        ("/routes", json!([])),
        ("/rules", json!([])),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    bare.extend((0..4).map(|n| (format!("/netdevs/{n}/addresses"), json!([]))));
    let d = diagnosis(
        &Planted {
            snapshot: bare.clone(),
            ..Planted::default()
        },
        "",
        false,
    );
    assert!(d.findings.is_empty(), "{}", report::diagnosis_table(&d));
    let network = [
        Check::Gids,
        Check::Mtu,
        Check::Arp,
        Check::FlowControl,
        Check::Uplink,
        Check::AsymmetricRails,
        Check::Nccl,
        Check::OrphanedRules,
    ];
    assert!(
        network.iter().all(|check| d.not_checked.contains(check)),
        "{:?}",
        d.not_checked
    );
    // What it does tell counts.
    bare.insert("/hcas/1/ports/0/state".to_owned(), json!("DOWN"));
    let d = diagnosis(
        &Planted {
            snapshot: bare,
            ..Planted::default()
        },
        "",
        false,
    );
    let findings: Vec<&str> = d.findings.iter().map(|f| f.seen.as_str()).collect();
    assert_eq!(
        findings,
        ["mlx5_1:1 of rdma1: not ACTIVE: whether a job wants it is not known"]
    );
}

/// The same of trees that others captured, by the program itself.
#[test]
#[ignore = "needs RDMAPREP_REALDATA"]
fn captured_trees_have_no_findings() {
    let trees = captured();
    // The others are long to unpack, and say nothing more.
    let some = TREES
        .map(|(name, ..)| name)
        .into_iter()
        .filter(|name| !name.starts_with("hwloc-"));
    for name in some {
        let (_dir, root) = unpacked(&trees, name);
        let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        let args = [
            "doctor",
            "--config",
            "/dev/null",
            "--json",
            "--root",
            root.to_str().unwrap(),
        ];
        let said = testkit::run(program.env_clear().args(args), "").ok();
        let d: Diagnosis = serde_json::from_str(&said.out).unwrap();
        assert_eq!((d.breaks, d.warnings), (0, 0), "{name}: {}", said.out);
        // A port whose state is unknown is reported as unknown.
        let unknown = d
            .findings
            .iter()
            .filter(|f| f.seen.starts_with("whether the ports of"))
            .count();
        let stateless = ["dgx-a100", "pcp-ib-root-001", "pcp-ib-root-002"].contains(&name);
        assert_eq!(unknown, usize::from(stateless), "{name}: {}", said.out);
    }
}

/// A program can parse the JSON form, and the example file shows the same form.
#[test]
fn the_json_form_is_what_it_says() {
    let planted = Planted {
        snapshot: BTreeMap::from([
            ("/hcas/1/ports/0/state".to_owned(), json!("DOWN")),
            ("/netdevs/2/up".to_owned(), json!(false)),
        ]),
        ..Planted::default()
    };
    let d = diagnosis(&planted, "", true);
    let text = report::json(&d).unwrap() + "\n";
    assert_eq!(serde_json::from_str::<Diagnosis>(&text).unwrap(), d);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/doctor.json");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &text).unwrap();
    }
    testkit::same(
        "examples/doctor.json",
        &fs::read_to_string(path).unwrap_or_default(),
        &text,
    );
}

/// The program itself: by its exit code, from a file.
#[test]
fn the_exit_code_is_by_the_worst() {
    let run = |snapshot: &Path, more: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        let args = [
            "doctor",
            "--config",
            "/dev/null",
            "--snapshot",
            snapshot.to_str().unwrap(),
        ];
        testkit::run(program.env_clear().args(args).args(more), "")
    };
    let healthy = cases().join("healthy/snapshot.json");
    let said = run(&healthy, &[]).ok();
    assert!(
        said.out
            .ends_with("breaks a job: 0, warnings: 0, unknown: 1\n"),
        "{said:?}"
    );
    // A warning is no failure.
    let said = run(&healthy, &["--ifaces", "rdma0"]).ok();
    assert!(
        said.out
            .ends_with("breaks a job: 0, warnings: 1, unknown: 1\n"),
        "{said:?}"
    );
    let mut broken = read(healthy);
    plant(
        &mut broken,
        &BTreeMap::from([("/hcas/0/ports/0/state".to_owned(), json!("DOWN"))]),
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), broken.to_string()).unwrap();
    run(file.path(), &[]).fails(11, &["one of these findings breaks a job"]);
    let said = run(file.path(), &["--json"]).fails(11, &["nothing was changed"]);
    assert_eq!(
        serde_json::from_str::<Diagnosis>(&said.out).unwrap().breaks,
        1
    );
    let said = run(file.path(), &["--ifaces", "rdma7"]).fails(11, &["nothing was changed"]);
    assert!(
        said.out.contains("--ifaces names rdma7: not on this host"),
        "{said:?}"
    );
    run(file.path(), &["--container", "c1"]).fails(2, &["--container"]);
    // The same by the host's config file; an address that no host has is no error.
    let config = tempfile::NamedTempFile::new().unwrap();
    fs::write(
        config.path(),
        "[select]\nifaces = [\"rdma0\", \"rdma1\", \"rdma7\"]\nbootstrap_address = \"10.9.9.9\"\n",
    )
    .unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
    let args = [
        "doctor",
        "--config",
        config.path().to_str().unwrap(),
        "--snapshot",
        file.path().to_str().unwrap(),
    ];
    let said = testkit::run(program.env_clear().args(args), "")
        .fails(11, &["3 of these findings break a job"]);
    for seen in [
        "--ifaces names rdma7: not on this host",
        "owns the bootstrap address 10.9.9.9",
        "mlx5_0:1 of rdma0 is DOWN",
    ] {
        assert!(said.out.contains(seen), "{seen}: {said:?}");
    }
}

/// Names are the host's and a container's; nothing of them steers a terminal, or forges a line.
#[test]
fn what_others_named_is_printed_as_text() {
    let trace: Trace = serde_json::from_value(json!({
        "id": "c\u{1b}[2J\nbreaks a job: \
            0", "nics": ["rdma0"], "stale": "at_work", "advice": "a\u{202e}b",
    }))
    .unwrap();
    let d = diagnosis(
        &Planted {
            traces: vec![trace],
            ..Planted::default()
        },
        "",
        true,
    );
    let text = report::diagnosis_table(&d);
    assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
    assert_eq!(
        text.lines()
            .filter(|l| l.starts_with("breaks a job: 0"))
            .count(),
        1,
        "{text}"
    );
    assert!(!report::json(&d).unwrap().contains(['\u{1b}', '\u{202e}']));
}

/// Whatever is below a container's /dev/infiniband: nothing is opened but the very device that is
/// meant.
#[test]
fn only_the_right_node_is_opened() {
    alone(|host| {
        let null = host.run.join("null");
        fs::create_dir_all(&host.run).unwrap();
        sh(&format!(
            "touch {null}; mount --bind /dev/null {null}; mount -t tmpfs dev /dev; mkdir \
            /dev/infiniband; cd /dev/infiniband; \
             mkfifo uverbs0; ln -s /proc/self/mem uverbs1; mkdir uverbs2; touch uverbs3 uverbs4 \
             uverbs5; ln -s uverbs7 uverbs7; \
             mount --bind {null} uverbs3; mount --bind {null} uverbs4",
            null = null.display()
        ));
        let node = |number: u32, minor| CharDevice {
            name: format!("uverbs{number}"),
            major: 1,
            minor,
        };
        let tried = devnode_probe::here(&[
            node(0, 3),
            node(1, 3),
            node(2, 3),
            node(3, 3),
            node(4, 5),
            node(5, 3),
            node(6, 3),
            node(7, 3),
        ]);
        let wrong = |what: &str| NodeAccess::Wrong(what.to_owned());
        let access: Vec<&NodeAccess> = tried.values().collect();
        assert_eq!(access[0], &wrong("a fifo"));
        assert!(
            matches!(access[1], NodeAccess::Wrong(_) | NodeAccess::Refused(_)),
            "{:?}",
            access[1]
        );
        assert_eq!(access[2], &wrong("a directory"));
        assert_eq!(access[3], &NodeAccess::Opened);
        assert_eq!(access[4], &wrong("the device 1:3, not 1:5"));
        assert_eq!(access[5], &wrong("a regular file"));
        assert_eq!(access[6], &NodeAccess::Missing);
        assert!(
            matches!(access[7], NodeAccess::Refused(_)),
            "a link to itself: {:?}",
            access[7]
        );
    });
}

/// A container whose file system never answers: the doctor says so, and ends.
// tests/vm/cases-long/85-doctor.sh does the same where there is FUSE for sure.
#[test]
#[ignore = "needs FUSE in a user namespace"]
fn a_file_system_that_never_answers_is_not_waited_for() {
    alone(|host| {
        // Its server holds /dev/fuse open and never answers: a process that opens a file in it
        // waits.
        let script = "exec 3<>/dev/fuse && mount -i -t fuse -o \
            fd=3,rootmode=40000,user_id=0,group_id=0 none /etc && echo there \
                      && exec sleep 600";
        let mut held = Command::new("unshare");
        let mut held = held
            .args(["--net", "--mount", "--", "sh", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(held.stdout.take().unwrap())
            .read_line(&mut said)
            .unwrap();
        if said != "there\n" {
            held.wait().unwrap();
        }
        testkit::require!(said == "there\n", "FUSE in a user namespace");
        let began = Instant::now();
        let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        program.env_clear().args([
            "doctor",
            "--config",
            "/dev/null",
            "--json",
            "--container",
            &held.id().to_string(),
        ]);
        let said = program
            .arg("--state-dir")
            .arg(&host.run)
            .arg("--run-dir")
            .arg(&host.run)
            .output()
            .unwrap();
        let took = began.elapsed();
        held.kill().unwrap();
        held.wait().unwrap();
        assert!(took < Duration::from_secs(60), "{took:?}");
        let d: Diagnosis =
            serde_json::from_slice(&said.stdout).unwrap_or_else(|e| panic!("{e}: {said:?}"));
        let unread = d
            .findings
            .iter()
            .any(|f| f.check == Check::Nccl && f.seen.contains("do not answer"));
        assert!(unread, "{d:?}");
    });
}

/// `doctor --container ID`, where no container holds a NIC.
fn of_container(id: &str, more: &[&str]) -> testkit::Said {
    let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
    let empty = tempfile::tempdir().unwrap();
    program
        .env_clear()
        .args(["doctor", "--config", "/dev/null", "--container", id])
        .args(more);
    testkit::run(
        program
            .arg("--state-dir")
            .arg(empty.path())
            .arg("--run-dir")
            .arg(empty.path()),
        "",
    )
}

/// A process in the host's network namespace, and an unknown id, are refused with the reason.
#[test]
fn containers_that_are_none() {
    of_container("none", &[]).fails(
        2,
        &["no running container of podman", "no process has that pid"],
    );
    of_container("0", &[]).fails(2, &["no running container of podman"]);
    of_container(&std::process::id().to_string(), &[]).fails(
        3,
        &["is no container: it shares the host's network and mounts"],
    );
}

/// Flags that choose NICs say nothing of a container, which has its own; those that say what is
/// right of them count.
#[test]
fn flags_that_choose_no_nic_of_a_container_are_refused() {
    let why = "would change nothing: a container's NICs are those that it has";
    of_container("none", &["--ifaces", "rdma0"]).fails(2, &["--ifaces", why]);
    of_container("none", &["--hca", "mlx5_0", "--exclude-hca", "mlx5_1"])
        .fails(2, &["--exclude-hca", "--hca", why]);
    of_container("none", &["--family", "6", "--ib"]).fails(2, &["no running container of podman"]);
}
