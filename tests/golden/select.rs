//! Selection, by golden folders: `tests/cases/select/<name>/{host.json,args}` and, where the case
//! needs them, `config.toml`, `annotations.json`, `held.json`, `failed.json`, `env`. `host.json`
//! says what is different from a host of `tests/cases/hosts` (`testkit::golden::host`);
//! `snapshot.json` in its place is a whole host. What comes out is `expected.json`, or
//! `expected.txt` with the exit code and the message. `UPDATE_GOLDEN=1` writes what comes out; read
//! the diff.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Result;
use clap::FromArgMatches;
use clap::builder::Resettable;
use proptest::prelude::*;
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::IfName;
use rdma_model::snapshot::Snapshot;
use rdmaprep::cli::{self, Cli, Command, PrepareArgs};
use rdmaprep::config::file::ConfigFile;
use rdmaprep::config::host::Host;
use rdmaprep::config::request::Request;
use rdmaprep::nccl_env::Options;
use rdmaprep::plan::Plan;
use rdmaprep::report;
use rdmaprep::select::{DropCode, Selection, judge, select};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// `rdmaprep prepare ARGS`, without the environment of the test process.
fn arguments(args: &[&str]) -> (cli::Global, PrepareArgs) {
    let deaf = |c: clap::Command| c.mut_args(|a| a.env(Resettable::Reset));
    let command = deaf(cli::command()).mut_subcommands(deaf);
    let line = ["rdmaprep", "prepare"].iter().chain(args);
    let matches = command
        .try_get_matches_from(line)
        .unwrap_or_else(|e| panic!("{args:?}: {e}"));
    let cli = Cli::from_arg_matches(&matches).unwrap();
    match cli.command {
        Command::Prepare(args) => (cli.global, *args),
        other => panic!("{other:?}"),
    }
}

fn request(args: &[&str], config: &str) -> Result<Request> {
    request_with(args, config, "")
}

/// With a host's environment of such lines.
fn request_with(args: &[&str], config: &str, env: &str) -> Result<Request> {
    let (global, prepare) = arguments(args);
    let config = ConfigFile::new(config).config()?;
    Request::new(
        Some(&prepare.plan),
        &prepare.select,
        Host::new(&global, &config),
        config.select,
        |name| {
            let mut pairs = env.lines().filter_map(|line| line.split_once('='));
            pairs.find(|(n, _)| *n == name).map(|(_, v)| v.to_owned())
        },
    )
}

fn optional<T: DeserializeOwned + Default>(path: &Path) -> T {
    fs::read_to_string(path).map_or_else(
        |_| T::default(),
        |text| serde_json::from_str(&text).unwrap(),
    )
}

fn run(case: &Path) -> Result<Selection> {
    let read = |name: &str| fs::read_to_string(case.join(name)).unwrap_or_default();
    let args = read("args");
    let annotations: BTreeMap<String, String> = optional(&case.join("annotations.json"));
    let mut request = request_with(
        &args.lines().collect::<Vec<_>>(),
        &read("config.toml"),
        &read("env"),
    )?
    .narrow(&annotations)?;
    request.failed = optional(&case.join("failed.json"));
    let snapshot: Snapshot = testkit::golden::host(case);
    let held: Vec<rdmaprep::select::BusyNic> = optional(&case.join("held.json"));
    select(&request, &snapshot, &held)
}

/// Leaves out what is null: half of a verdict is.
fn compact(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .filter(|(_, v)| !v.is_null())
                .map(|(k, v)| (k, compact(v)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(compact).collect()),
        other => other,
    }
}

#[test]
fn golden_cases() {
    let cases = testkit::golden::cases("select", 41);
    let mut wrong = Vec::new();
    let mut untested: Vec<String> = CODES.iter().map(DropCode::to_string).collect();
    for case in &cases {
        let (name, text) = match run(case) {
            Ok(s) => (
                "expected.json",
                serde_json::to_string_pretty(&compact(json!(s))).unwrap() + "\n",
            ),
            Err(e) => (
                "expected.txt",
                format!(
                    "exit {}: {}\n",
                    ErrorClass::of(&e).code(),
                    report::error_text(&e)
                ),
            ),
        };
        untested.retain(|code| !text.contains(&format!("\"code\": \"{code}\"")));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            for stale in ["expected.json", "expected.txt"] {
                let _ = fs::remove_file(case.join(stale));
            }
            fs::write(case.join(name), &text).unwrap();
        }
        let expected = fs::read_to_string(case.join(name)).unwrap_or_default();
        if expected != text {
            wrong.push(format!("{}/{name}:\n{text}", case.display()));
        }
    }
    assert!(
        wrong.is_empty(),
        "UPDATE_GOLDEN=1 accepts these:\n{}",
        wrong.join("\n")
    );
    assert!(
        untested.is_empty() || !testkit::golden::are_all(),
        "reasons without a case: {untested:?}"
    );
}

/// A VLAN's GIDs are beside those of the netdev that it sits on.
#[test]
fn a_plan_has_the_range_that_its_gids_need() {
    let mut cases = testkit::golden::cases("select", 1).into_iter();
    let Some(case) = cases.find(|c| c.ends_with("gid-range-of-two-vlans")) else {
        return;
    };
    let request = request(&["--ifaces", "rdma0.5,rdma1.5"], "").unwrap();
    let snapshot: Snapshot = testkit::golden::host(&case);
    let selection = select(&request, &snapshot, &[]).unwrap();
    let plan = Plan::new("p", &request, &snapshot, &selection, &Options::default());
    let range = plan.env.iter().find(|v| v.name == "NCCL_IB_ADDR_RANGE");
    assert_eq!(range.unwrap().value, "198.51.100.40/31");
}

#[test]
fn no_placeholder_is_named_where_none_is_taken() {
    let mut cases = testkit::golden::cases("select", 1).into_iter();
    let Some(case) = cases.find(|c| c.ends_with("placeholders-as-named")) else {
        return;
    };
    let snapshot: Snapshot = testkit::golden::host(&case);
    let has_note = |flags: &[&str]| {
        let selection = judge(&request(flags, "").unwrap(), &snapshot, &[]).unwrap();
        let mut warnings = selection.warnings.iter();
        warnings.any(|warning| warning.starts_with("no RDMA device here"))
    };
    assert!(has_note(&["--ifaces", "p2"]));
    assert!(!has_note(&["--exclude", "p"]));
}

const CODES: [DropCode; 22] = [
    DropCode::Forbidden,
    DropCode::Held,
    DropCode::Ambiguous,
    DropCode::Iwarp,
    DropCode::NotRdma,
    DropCode::NoNetdev,
    DropCode::Excluded,
    DropCode::Uplink,
    DropCode::Bootstrap,
    DropCode::Enslaved,
    DropCode::Child,
    DropCode::Carries,
    DropCode::QueueingDiscipline,
    DropCode::NoAddress,
    DropCode::PortDown,
    DropCode::NoGid,
    DropCode::FiniteLifetime,
    DropCode::InfiniBand,
    DropCode::FailedTest,
    DropCode::NotInPeerSet,
    DropCode::SlowerHca,
    DropCode::OtherLinkLayer,
];

/// The host of a case with this `host.json`.
fn changed(change: Value) -> Value {
    let case = tempfile::tempdir().unwrap();
    fs::write(case.path().join("host.json"), change.to_string()).unwrap();
    testkit::golden::host(case.path())
}

#[test]
fn case_changes_its_host_by_names_and_places() {
    let plain = changed(json!({"of": "two-rails"}));
    let names = |host: &Value| {
        let netdevs = host["netdevs"].as_array().unwrap().iter();
        let names = netdevs.map(|dev| dev["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&plain), ["lo", "mgmt0", "rdma0", "rdma1"]);
    let host = changed(json!({
        "of": "two-rails",
        "without": ["/netdevs/mgmt0", "/netdevs/0", "/pci"],
        "with": {
            "/netdevs/+rdma1": [{"name": "a"}, {"name": "b"}],
            "/netdevs/+": [{"name": "c"}],
            "/netdevs/rdma1/mtu": 1500,
            "/hcas/mlx5_0/ports/1/gids/3/index": 7,
            "/netns": null
        }
    }));
    assert_eq!(names(&host), ["rdma0", "a", "b", "rdma1", "c"]);
    assert_eq!(host["netdevs"][3]["mtu"], 1500);
    assert_eq!(host["hcas"][0]["ports"][0]["gids"][3]["index"], 7);
    assert_eq!((&host["netns"], host.get("pci")), (&Value::Null, None));
    assert_eq!(host["routes"], plain["routes"]);
}

#[test]
#[should_panic(expected = "no rdma7 among")]
fn case_that_changes_what_is_not_there_fails() {
    changed(json!({"of": "two-rails", "without": ["/netdevs/rdma7"]}));
}

/// A NIC gets free of a bridge, of HSR and of Open vSwitch in three ways.
#[test]
fn each_kind_of_master_has_advice_of_its_own() {
    let case = Path::new("tests/cases/select/enslaved-to-bridge");
    let text = testkit::golden::host::<Value>(case).to_string();
    for (kind, member, master) in [
        (
            "bridge",
            "remove it: ip link set rdma0 nomaster",
            "remove its members from it, and use them",
        ),
        (
            "hsr",
            "delete br1: ip link delete br1",
            "delete it, and use its ports",
        ),
        (
            "openvswitch",
            "remove it: ovs-vsctl del-port rdma0",
            "remove its members from it, and use them",
        ),
    ] {
        let mut snapshot: Snapshot = serde_json::from_str(&text).unwrap();
        let hca = snapshot.hcas.first().cloned().unwrap();
        for dev in snapshot
            .netdevs
            .iter_mut()
            .filter(|d| d.name.as_str() == "br1")
        {
            dev.kind = Some(kind.into());
        }
        for hca in snapshot.hcas.iter_mut().filter(|h| h.name == hca.name) {
            hca.ports
                .iter_mut()
                .for_each(|p| p.netdev = Some("br1".parse().unwrap()));
        }
        for (snapshot, name, fix) in [
            (
                &serde_json::from_str(&text.replace("\"bridge\"", &format!("{kind:?}"))).unwrap(),
                "rdma0",
                member,
            ),
            (&snapshot, "br1", master),
        ] {
            let all = select(&request(&[], "").unwrap(), snapshot, &[]).unwrap();
            let all = serde_json::to_value(&all).unwrap().to_string();
            assert!(all.contains(fix), "{kind}, {name}: no {fix:?} in {all}");
        }
    }
}

#[test]
fn every_flag_has_a_variable_and_help_the_exit_codes() {
    let mut command = cli::command();
    command.build();
    // One that is hidden is called by ourselves.
    for sub in command
        .get_subcommands()
        .filter(|s| s.get_name() != "help" && !s.is_hide_set())
    {
        let flags = sub.get_arguments();
        let flags = flags.filter(|a| a.get_long().is_some() && !a.is_hide_set());
        // No variable restores every container or gives up a NIC: it could be left set in a shell.
        let bare = ["help", "version", "all", "stale", "forget"];
        let whose = |id: &str| sub.get_name() == "restore" && id == "plan";
        let flags =
            flags.filter(|a| !bare.contains(&a.get_id().as_str()) && !whose(a.get_id().as_str()));
        for flag in flags {
            assert!(flag.get_env().is_some(), "{} {flag}", sub.get_name());
        }
    }
    let help = command.render_help().to_string();
    for fault in ErrorClass::ALL {
        assert!(help.contains(fault.meaning()), "{help}");
    }
}

#[test]
fn wrong_usage_has_the_exit_code_of_its_class() {
    for line in [
        "rdmaprep",
        "rdmaprep frobnicate",
        "rdmaprep restore",
        "rdmaprep restore --all x",
        "rdmaprep hook later",
        "rdmaprep hook prestart --deadline 0",
    ] {
        let e = Cli::read(line.split(' ')).unwrap_err();
        assert_eq!(
            e.exit_code(),
            i32::from(ErrorClass::Usage.code()),
            "{line}: {e}"
        );
    }
    for line in [
        "rdmaprep hook createRuntime --plan a",
        "rdmaprep restore x --dry-run",
        "rdmaprep status --json",
    ] {
        assert!(Cli::read(line.split(' ')).is_ok(), "{line}");
    }
}

/// Flags before the file before the defaults; empty texts, as variables often are, count as unset.
#[test]
fn flags_win_over_the_file() {
    let file = "[select]\nib = true\nfamily = \"6\"\nauto_skip_no_ipv4 = false\nexclude \
        = \"\"\nifaces = [\"a\"]\n";
    let select = |args: &[&str], file| request(args, file).unwrap().select;
    let r = select(&[], file);
    assert!(
        r.ib && r.no_auto_skip
            && r.exclude.pattern("eth0").is_none()
            && r.ifaces.len() == 1
            && !r.no_nccl_topo
    );
    let r = select(
        &[
            "--ib=no",
            "--family",
            "any",
            "--exclude",
            "^x$",
            "--ifaces",
            "b, c\tb",
            "--no-nccl-topo",
        ],
        file,
    );
    assert!(!r.ib && r.exclude.pattern("x").is_some() && r.no_nccl_topo);
    assert_eq!(
        r.ifaces.iter().map(IfName::as_str).collect::<Vec<_>>(),
        ["b", "c"]
    );
    let r = select(
        &["--ib=", "--ifaces=", "--bootstrap-address=", "--family="],
        "",
    );
    assert!(!r.ib && r.ifaces.is_empty() && r.bootstrap_address.is_none() && !r.no_auto_skip);
    let default_route = |args: &[&str], file| select(args, file).default_route;
    assert!(!default_route(&[], "") && default_route(&["--default-route"], ""));
    assert!(default_route(&[], "[select]\ndefault_route = true"));
    assert!(!default_route(
        &["--default-route=0"],
        "[select]\ndefault_route = true"
    ));
    let r = select(&["--bootstrap-address", "::ffff:192.0.2.1"], "");
    assert_eq!(r.bootstrap_address, "192.0.2.1".parse().ok());
}

#[test]
fn annotations_only_take_away() {
    let annotate = |r: &Request, key: &str, text: &str| {
        r.narrow(&BTreeMap::from([(key.to_owned(), text.to_owned())]))
    };
    let mut open = request(&[], "plan = \"site\"").unwrap();
    open.named_plan = None;
    assert_eq!(open.plan_name().map(|p| p.as_str()), Some("site"));
    let chosen = annotate(&open, "rdmaprep.io/plan", "mine").unwrap();
    assert_eq!(chosen.plan_name().map(|p| p.as_str()), Some("mine"));
    let fixed = request(&["--plan", "theirs"], "").unwrap();
    assert_eq!(
        annotate(&fixed, "rdmaprep.io/plan", "mine")
            .map_err(|e| ErrorClass::of(&e))
            .err(),
        Some(ErrorClass::Refused)
    );
    assert!(annotate(&fixed, "rdmaprep.io/plan", "theirs").is_ok());
    for (key, text) in [
        ("rdmaprep.io/allow-bootstrap", "1"),
        ("rdmaprep.io/plan", "../x"),
        ("rdmaprep.io/plan", ".x"),
        ("rdmaprep.io/exclude", "("),
        ("rdmaprep.io/exclude", "((a{1000}){1000}){1000}"),
        ("rdmaprep.io/ifaces", "a/b"),
    ] {
        let e = annotate(&open, key, text).unwrap_err();
        assert_eq!(ErrorClass::of(&e), ErrorClass::State, "{key}={text}");
        assert_eq!(format!("{e:#}").lines().count(), 1, "{e:#}");
    }
    let [a, b]: [IfName; 2] = ["a", "b"].map(|n| n.parse().unwrap());
    let once = annotate(&open, "rdmaprep.io/ifaces", "a b").unwrap();
    let twice = annotate(&once, "rdmaprep.io/ifaces", "b c").unwrap();
    assert!(once.narrowing.leaves_out(&a).is_none() && twice.narrowing.leaves_out(&a).is_some());
    assert!(twice.narrowing.leaves_out(&b).is_none() && !twice.names(&b));
    assert!(annotate(&open, "example.com/other", "x").is_ok());
}

#[test]
fn plan_names() {
    for good in ["default", "a", "A-1_b.c", &"x".repeat(64)] {
        assert!(
            good.parse::<rdma_model::values::PlanName>().is_ok(),
            "{good}"
        );
    }
    for bad in [
        "",
        ".",
        "..",
        ".a",
        "a/b",
        "a b",
        "é",
        "a\n",
        &"x".repeat(65),
    ] {
        assert!(
            bad.parse::<rdma_model::values::PlanName>().is_err(),
            "{bad}"
        );
    }
}

/// A small random host: RDMA rails that are right in every respect, wired in every way that can
/// make one an uplink.
fn host() -> impl Strategy<Value = Snapshot> {
    let device = (
        0..9usize,
        0..9usize,
        prop::sample::select(vec!["", "bond", "bridge", "vlan", "veth"]),
    );
    let route = (
        any::<bool>(),
        prop::sample::select(vec![0u32, 100, 200]),
        prop::collection::vec(0..8usize, 0..3),
    );
    let lists = (
        prop::collection::vec(device, 1..8),
        prop::collection::vec(route, 0..4),
    );
    lists.prop_map(|(devices, routes)| {
        let hcas = (0..devices.len()).map(|i| {
            let gid = json!({"index": 3, "address": format!("::ffff:192.0.2.{}", i + 1),
                "kind": "RoCE v2", "netdev": format!("r{i}")});
            json!({"name": format!("mlx5_{i}"), "protocol": "roce", "ports": [{
                "number": 1, "state": "ACTIVE",
                "link_layer": "Ethernet", "netdev": format!("r{i}"), "gids": [gid]}]})
        });
        let netdevs = devices.iter().enumerate().map(|(i, (master, link, kind))| {
            json!({"name": format!("r{i}"), "ifindex": i + 1, "link_type": 1,
                "kind": Some(kind).filter(|k| !k.is_empty()),
                "master": Some(master).filter(|m| **m < 8 && **m != i).map(|m| format!("r{m}")),
                "link": Some(link).filter(|l| **l < 8),
                "addresses": [{"address": format!("192.0.2.{}", i + 1), "prefix": 24}]})
        });
        let routes = routes.iter().map(|(v6, metric, legs)| {
            json!({"destination": if *v6 { "::/0" } else { "0.0.0.0/0" }, "table": 254, "kind": 1,
                "metric": metric,
                "hops": legs.iter().map(|l| json!({"dev": format!("r{l}")})).collect::<Vec<_>>()})
        });
        let [hcas, netdevs, routes]: [Vec<Value>; 3] =
            [hcas.collect(), netdevs.collect(), routes.collect()];
        let host = json!({"schema": 1, "hcas": hcas, "netdevs": netdevs, "routes": routes});
        serde_json::from_value(host).unwrap()
    })
}

proptest! {
    /// Whatever is named, nothing is kept that wins a default route, unless two words say so.
    #[test]
    fn no_uplink_without_permission(
        snapshot in host(), named in any::<bool>(), allow in any::<bool>(),
    ) {
        let all = snapshot.netdevs.iter().map(|n| n.name.as_str()).collect::<Vec<_>>().join(",");
        let mut args = Vec::new();
        if named { args.extend(["--ifaces", all.as_str()]) }
        if allow { args.push("--allow-bootstrap-iface") }
        let Ok(selection) = select(&request(&args, "").unwrap(), &snapshot,
            &[]) else { return Ok(()) };
        for v in selection.kept().filter(|_| !(named && allow)) {
            let name = v.netdev.as_ref().unwrap();
            let device = snapshot.netdev(name).unwrap();
            for route in &snapshot.routes {
                let rivals = snapshot.routes.iter().filter(|r| r.destination == route.destination);
                let wins = rivals.map(|r| r.metric).min() == Some(route.metric);
                for hop in route.hops.iter().filter(|_| wins) {
                    let leg = snapshot.netdev(hop.dev.as_ref().unwrap());
                    prop_assert_ne!(hop.dev.as_ref(), Some(name));
                    if let Some(leg) = leg {
                        prop_assert!(device.master.is_none() || leg.master != device.master);
                        prop_assert!(leg.kind.as_deref() != Some("vlan")
                            || leg.link != Some(device.ifindex));
                    }
                }
            }
        }
    }

    /// Selection is a function of its input, and no input makes it panic.
    #[test]
    fn selection_is_a_function(snapshot in host(), regex in ".{0,12}", names in "[a-z0-9, \
        ]{0,12}") {
        let Ok(request) = request(&["--exclude", &regex, &format!("--ifaces={names}")],
            "") else { return Ok(()) };
        let [a, b] = [(); 2]
            .map(|()| select(&request, &snapshot, &[]).map_err(|e| format!("{e:#}")));
        prop_assert_eq!(a, b);
    }
}
