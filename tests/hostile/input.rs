//! Time and memory are proportional to the size of the input; and regressions of what fuzzing
//! (scripts/fuzz) has found.

use rdma_model::moved_nic::MovedNic;
use std::collections::BTreeMap;
use std::fs;
use std::hint::black_box;
use std::path::Path;

use nccl_rules::conf::merge;
use nccl_rules::explain::{check, explain_named};
use nccl_rules::ifname::Patterns;
use nccl_rules::settings::Settings;
use nccl_rules::version::Version;
use rdma_model::ids::{Hex, IfName};
use rdma_model::snapshot::{Netdev, Nexthop, Route, Rule, Snapshot};
use rdma_netlink::nexthop;
use rdmaprep::cli::{Global, SelectArgs};
use rdmaprep::config::file::ConfigFile;
use rdmaprep::config::host::Host;
use rdmaprep::config::request::Request;
use rdmaprep::kernel::mount::mountinfo;
use rdmaprep::oci::bundle::Bundle;
use rdmaprep::oci::config::Config;
use rdmaprep::oci::edit::{self, Edit};
use rdmaprep::oci::state::State;
use rdmaprep::record::{Record, salvage};
use rdmaprep::report::explanation_table;
use rdmaprep::restore::plan::{Goal, plan_restore, reassert};
use rdmaprep::select::judge;
use rdmaprep::verify::drift;
use serde_json::json;

/// Nanoseconds that this thread has run: what else the machine does is not in it.
fn spent() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Insists that four times as much takes less than ten times as long; what is quadratic takes
/// sixteen times. `prepare` makes the input of a size and returns the work.
fn in_proportion<W: FnOnce()>(what: &str, size: usize, prepare: impl Fn(usize) -> W) {
    let time = |size: usize| {
        let work = prepare(size);
        let start = spent();
        work();
        spent() - start
    };
    // The first one also pays for what is made once.
    time(size / 10);
    let (one, four) = (time(size), time(4 * size));
    println!(
        "{what}: {size} in {} us, four times as many in {} us",
        one / 1000,
        four / 1000
    );
    assert!(
        four < 10 * one + 20_000_000,
        "{what}: {size} in {one} ns, four times as many in {four} ns"
    );
}

fn case(name: &str) -> Snapshot {
    let case = testkit::repository("tests/cases/select").join(name);
    testkit::golden::host(&case)
}

fn anything() -> Request {
    let config = ConfigFile::new("[select]\nexclude = ''").config().unwrap();
    let host = Host::new(&Global::default(), &config);
    Request::new(None, &SelectArgs::default(), host, config.select, |_| None).unwrap()
}

/// Short texts that differ.
fn word(i: usize) -> String {
    format!("a{i:x}")
}

fn words(count: usize, separator: &str) -> String {
    (0..count).map(word).collect::<Vec<_>>().join(separator)
}

#[test]
fn what_a_container_asks_for() {
    let seen = case("plain-rail-order-is-pci");
    in_proportion("names in an annotation", 20_000, |count| {
        let state =
            json!({"id": "c", "pid": 7, "annotations": {"rdmaprep.io/ifaces": words(count, ",")}})
                .to_string();
        let seen = &seen;
        move || {
            let state = State::parse(state.as_bytes()).unwrap();
            let request = anything().narrow(&state.annotations).unwrap();
            black_box(judge(&request, seen, &[]).unwrap());
        }
    });
    in_proportion("annotations", 20_000, |count| {
        let all: BTreeMap<String, String> = (0..count).map(|i| (word(i), word(i))).collect();
        let state = json!({"id": "c", "pid": 7, "annotations": all}).to_string();
        move || {
            drop(
                anything()
                    .narrow(&State::parse(state.as_bytes()).unwrap().annotations)
                    .unwrap(),
            )
        }
    });
}

#[test]
fn a_config_json() {
    let edit = include_str!("../cases/inject/view_live/edit.json");
    let more: Edit = serde_json::from_str(include_str!("../cases/inject/plain/edit.json")).unwrap();
    let edit = Edit {
        mounts: serde_json::from_str::<Edit>(edit).unwrap().mounts,
        ..more
    };
    in_proportion("lists of a config.json", 1_000, |count| {
        let env: Vec<String> = (0..count)
            .map(|i| format!("{}={}", word(i), word(i)))
            .collect();
        let all: BTreeMap<String, String> = (0..count).map(|i| (word(i), word(i))).collect();
        let list =
            |make: &dyn Fn(usize) -> serde_json::Value| (0..count).map(make).collect::<Vec<_>>();
        let config = json!({
            "ociVersion": "1.2.0",
            "process": {"env": env, "cwd": "/", "args": ["x"], "user": {"uid": 0, "gid": 0}},
            "root": {"path": "rootfs"},
            "annotations": all,
            "hooks": {"prestart": list(&|i| json!({"path": format!("/{i}"), "args": ["x"]}))},
            "mounts": list(&|i| json!({"destination": format!("/sys/{}", word(i)), "type": "tmpfs",
                "source": word(i)})),
            "linux": {
                "namespaces": [{"type": "network"}, {"type": "mount"}],
                "devices": list(&|i| json!({"path": format!("/dev/{i}"), "type": "c", "major": 1,
                    "minor": i})),
                "resources": {"devices": list(&|i| json!({"allow": true, "type": "c", "major": 1,
                    "minor": i, "access": "r"}))},
            },
        })
        .to_string();
        let edit = &edit;
        move || {
            let once = edit::apply(&config, edit).unwrap();
            black_box(edit::diff(&config, &once.json));
            let read = Config::parse(&config).unwrap();
            black_box(Bundle::new(&read, Path::new("/b"), 7, "/views").unwrap());
            black_box(edit::below_sys(&config).unwrap());
        }
    });
}

#[test]
fn settings_for_nccl() {
    let there = |count: usize| {
        let dev = |i| {
            json!({"name": word(i), "ifindex": i + 1, "up": true, "running": true, "addresses": [
            {"address": format!("10.{}.{}.{}", i >> 16, i >> 8 & 255, i & 255), "prefix": 32}]})
        };
        let netdevs: Vec<Netdev> = (0..count)
            .map(|i| serde_json::from_value(dev(i)).unwrap())
            .collect();
        Snapshot {
            netdevs,
            ..Snapshot::default()
        }
    };
    in_proportion("interfaces that fit a list", 2_000, |count| {
        let inside = there(count);
        let env = [
            ("NCCL_SOCKET_IFNAME", words(16, ",")),
            ("NCCL_IB_HCA", "^a".to_owned()),
        ];
        move || drop(black_box(check(env, &inside, None)))
    });
    in_proportion("entries of a list", 10_000, |count| {
        let inside = there(20);
        let env = [
            ("NCCL_SOCKET_IFNAME", words(count, ",")),
            ("NCCL_IB_HCA", words(count, ",")),
            ("NCCL_COMM_ID", "a:1".into()),
        ];
        move || drop(black_box(check(env, &inside, None)))
    });
    for separator in [",", ""] {
        in_proportion("the table of a list", 10_000, |count| {
            let inside = there(20);
            let settings = Settings::of([("NCCL_IB_HCA", words(count, separator))], "as asked");
            move || {
                let explanation = explain_named(&settings, &inside, None, &|_| None);
                assert!(explanation_table(&explanation).len() < 8_000);
            }
        });
    }
    in_proportion("lines of a nccl.conf", 20_000, |count| {
        let text = (0..count)
            .map(|i| format!("{}={i}\n", word(i)))
            .collect::<String>();
        move || drop(black_box(merge(text.as_bytes(), &[])))
    });
    // What no process can have in its environment is not worth the memory.
    let long = "é,".repeat(5 << 20);
    for value in [long.clone(), format!(",{long}")] {
        let patterns = Patterns::hcas(Some(&value), Version::NEWEST);
        assert!(patterns.entries.len() + patterns.dropped.len() < 64 << 10);
    }
}

/// NICs that are away, from a record of the ordinary tests.
fn held() -> Vec<MovedNic> {
    let path = format!(
        "{}/tests/cases/record/current.json",
        env!("CARGO_MANIFEST_DIR")
    );
    Record::parse(&fs::read_to_string(path).unwrap())
        .unwrap()
        .held
}

/// A namespace whose root has made that many interfaces, routes, rules and addresses.
fn crowded(count: usize, own: &[MovedNic]) -> Snapshot {
    let name = |i: usize| -> IfName { word(i).parse().unwrap() };
    let host = |i: usize| format!("10.{}.{}.{}", i >> 16, i >> 8 & 255, i & 255);
    let netdev = |i| json!({"name": word(i), "ifindex": 1000 + i});
    let mut netdevs: Vec<Netdev> = (0..count)
        .map(|i| serde_json::from_value(netdev(i)).unwrap())
        .collect();
    netdevs.extend(own.iter().map(|h| h.inside.netdev.clone()));
    let route = |i: usize| -> Route {
        let hop = json!({"dev": own[0].inside.netdev.name, "weight": 1});
        let route = json!({"destination": format!("{}/32", host(i)), "table": 7, "hops": [hop],
            "prefsrc": host(i)});
        serde_json::from_value(route).unwrap()
    };
    let rule = |i: usize| -> Rule {
        let rule = json!({"family": 4, "priority": i, "table": 7, "action": 1,
            "source": format!("{}/32", host(i)),
            "iif": name(i)});
        serde_json::from_value(rule).unwrap()
    };
    let address =
        |i: usize| serde_json::from_value(json!({"address": host(i), "prefix": 32})).unwrap();
    if let Some(dev) = netdevs.last_mut() {
        dev.addresses = (0..count).map(address).collect();
    }
    Snapshot {
        netdevs,
        routes: (0..count).map(route).collect(),
        rules: (0..count).map(rule).collect(),
        ..Snapshot::default()
    }
}

#[test]
fn a_namespace_that_its_root_has_filled() {
    let held = held();
    in_proportion("the way home", 10_000, |count| {
        let inside = crowded(count, &held);
        let held = &held;
        move || {
            drop(black_box(plan_restore(
                held,
                &Snapshot::default(),
                Some(&inside),
                Goal::Exact,
            )))
        }
    });
    in_proportion("what a runtime took away", 2_000, |count| {
        let inside = crowded(count, &held);
        let held = &held;
        move || drop(black_box(reassert(held, &inside)))
    });
    in_proportion("a report of the changes inside", 2_000, |count| {
        let inside = crowded(count, &held);
        let states: Vec<_> = held.iter().map(|h| h.inside.clone()).collect();
        move || drop(black_box(drift(&states, &inside)))
    });
    in_proportion("routes through nexthop objects", 5_000, |count| {
        let object = |i: usize| -> Nexthop {
            serde_json::from_value(json!({"id": i + 1, "dev": word(i)})).unwrap()
        };
        let all: Vec<Nexthop> = (0..count).map(object).collect();
        let route = |i: usize| -> Route {
            let id = Hex((i as u32 + 1).to_ne_bytes().to_vec());
            serde_json::from_value(
                json!({"destination": "10.0.0.0/8", "table": 7, "other": {"30": id}}),
            )
            .unwrap()
        };
        let mut routes: Vec<Route> = (0..count).map(route).collect();
        move || {
            nexthop::tell_legs(&mut routes, &all);
            assert!(routes.iter().all(|r| r.hops.len() == 1));
        }
    });
    in_proportion("mounts", 10_000, |count| {
        let text = (0..count)
            .map(|i| format!("{i} 1 0:1 / /sys/{} rw - tmpfs x rw\n", word(i)))
            .collect::<String>();
        move || {
            assert_eq!(
                mountinfo::below(&mountinfo::parse(text.as_bytes()), 1, Path::new("/sys")).len(),
                count
            )
        }
    });
}

#[test]
fn a_torn_record() {
    in_proportion("values without an end", 250, |count| {
        let text = format!("{{\"id\":\"{}", "a".repeat(2000)).repeat(count);
        move || drop(black_box(salvage(&text)))
    });
}

#[test]
fn a_port_number_at_the_edge_is_no_overflow() {
    let mut seen = case("infiniband-asked-ipoib-named");
    for dev in &mut seen.netdevs {
        dev.dev_port = Some(u32::MAX);
    }
    judge(&anything(), &seen, &[]).unwrap();
}
