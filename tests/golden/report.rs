//! Golden texts of the tables and summaries: tests/cases/report/NAME.txt. `UPDATE_GOLDEN=1`
//! rewrites them.

use rdma_model::nic::{EnvVar, Identity};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rdma_model::error_class::ErrorClass;
use rdma_model::snapshot::{Hca, Netdev, Snapshot};
use rdmaprep::plan::Plan;
use rdmaprep::report::{self, Lap, Report};
use rdmaprep::select::{Drop, DropCode, Selection, Verdict};
use serde_json::json;
use testkit::fake_kernel::hosts::{self, nic_of};

fn golden(name: &str, actual: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/cases/report")
        .join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, format!("{actual}\n")).unwrap();
    }
    assert_eq!(
        format!("{actual}\n"),
        fs::read_to_string(&file).unwrap(),
        "{}",
        file.display()
    );
}

fn narrow(text: &str) {
    for line in text.lines() {
        assert!(
            line.chars().count() <= 100,
            "{} columns: {line}",
            line.chars().count()
        );
        assert_eq!(line.trim_end(), line, "trailing blanks");
        assert!(!line.contains(|c: char| c.is_control()), "{line:?}");
    }
}

/// A rail as the k-th function of a large node has it.
fn rail(k: u32, netdev: &str, hca: &str) -> (Hca, Netdev) {
    let pci = format!("0000:{:02x}:00.0", 0x19 + k);
    let driver = "mlx5_core";
    let hca = json!({
        "name": hca, "node_guid": format!("0c42:a103:00fe:{k:04x}"), "driver": driver, "pci": pci,
        "numa": k % 2,
        "uverbs": {"name": format!("uverbs{k}"), "major": 231, "minor": 192 + k},
        "ports": [{
            "number": 1, "state": "ACTIVE", "link_layer": "Ethernet", "rate": "400 Gb/sec (4X \
                NDR)", "netdev": netdev,
            "gids": [
                {"index": 0, "address": "fe80::1", "kind": "IB/RoCE v1", "netdev": netdev},
                {"index": 1, "address": "fe80::1", "kind": "RoCE v2", "netdev": netdev},
                {"index": 2, "address": format!("::ffff:10.{k}.0.1"), "kind": "IB/RoCE v1",
                    "netdev": netdev},
                {"index": 3, "address": format!("::ffff:10.{k}.0.1"), "kind": "RoCE v2",
                    "netdev": netdev}
            ]
        }]
    });
    let dev = json!({
        "name": netdev, "ifindex": 10 + k, "mtu": 9000, "up": true, "running": true, "pci": pci,
        "driver": driver,
        "addresses": [{"address": format!("10.{k}.0.1"), "prefix": 24}]
    });
    (
        serde_json::from_value(hca).unwrap(),
        serde_json::from_value(dev).unwrap(),
    )
}

fn node() -> Snapshot {
    let mut snapshot: Snapshot = serde_json::from_value(json!({
        "schema": 1, "rdma_mode": "shared", "hcas": [],
        "netdevs": [
            {"name": "lo", "ifindex": 1, "mtu": 65536, "up": true, "running": true,
                "link_type": 772,
             "addresses": [{"address": "127.0.0.1", "prefix": 8},
                 {"address": "::1", "prefix": 128}]},
            {"name": "eno1", "ifindex": 2, "mtu": 1500, "up": true, "running": true,
                "driver": "tg3", "master": "bond0",
             "pci": "0000:01:00.0"},
            {"name": "bond0", "ifindex": 3, "mtu": 1500, "up": true, "running": false,
                "kind": "bond",
             "addresses": [{"address": "2001:db8:1111:2222:3333:4444:5555:6666", "prefix": 64}]},
            {"name": "docker0", "ifindex": 4, "mtu": 1500, "kind": "bridge"}
        ],
        "pci": [
            {"address": "0000:1a:00.0", "class": 0x30200, "vendor": 0x10de, "numa": 0},
            {"address": "0000:9a:00.0", "class": 0x30200, "vendor": 0x10de, "numa": -1},
            {"address": "0000:18:00.0", "class": 0x60400, "vendor": 0x1000}
        ],
        "warnings": ["mlx5_9: nldev and sysfs disagree on the node GUID"]
    }))
    .unwrap();
    for k in 0..2 {
        let (hca, dev) = rail(k, &format!("rdma{k}"), &format!("mlx5_{}", 3 * k));
        snapshot.hcas.push(hca);
        snapshot.netdevs.push(dev);
    }
    snapshot
}

fn verdicts(snapshot: &Snapshot) -> Vec<Verdict> {
    let verdict = |d: &Netdev| {
        let hca = snapshot
            .hcas
            .iter()
            .find(|h| h.ports[0].netdev.as_ref() == Some(&d.name));
        let plain = || Drop {
            code: DropCode::NotRdma,
            also: Vec::new(),
            why: "no RDMA device".into(),
            fix: String::new(),
        };
        Verdict {
            netdev: Some(d.name.clone()),
            hca: hca.map(|h| h.name.clone()),
            port: hca.map(|_| 1),
            gid: hca.map(|h| h.ports[0].gids[3].clone()),
            pci: d.pci,
            numa: hca.and_then(|h| h.numa),
            dropped: hca.is_none().then(plain),
            note: None,
        }
    };
    let mut all: Vec<Verdict> = snapshot.netdevs.iter().map(verdict).collect();
    all.sort_by_key(|v| v.dropped.is_some());
    all
}

fn dropped(verdict: &mut Verdict, code: DropCode, why: &str, fix: &str) {
    verdict.gid = None;
    verdict.dropped = Some(Drop {
        code,
        also: Vec::new(),
        why: why.into(),
        fix: fix.into(),
    });
}

fn plan(snapshot: &Snapshot) -> Plan {
    let nics = snapshot
        .netdevs
        .iter()
        .filter(|d| d.name.as_str().starts_with("rdma"))
        .map(|d| {
            let identity = Identity {
                name: d.name.clone(),
                ifindex: d.ifindex,
                pci: d.pci,
                permanent_mac: None,
                node_guid: None,
            };
            nic_of(identity, d)
        });
    let var = |name: &str, value: &str, why: &str| EnvVar {
        name: name.into(),
        value: value.into(),
        why: why.into(),
    };
    Plan {
        env: vec![
            var(
                "NCCL_IB_HCA",
                "=mlx5_0,mlx5_3",
                "exactly the 2 HCAs that the container gets, in rail order",
            ),
            var(
                "NCCL_DEBUG_FILE",
                "/a/very/long/path/for/logs/%h.%p.log",
                "long reasons, ".repeat(6).trim_end(),
            ),
        ],
        unset: vec!["NCCL_IB_GID_INDEX: it is 3 on mlx5_0 and 5 on mlx5_3".into()],
        ..hosts::plan(nics.collect())
    }
}

#[test]
fn snapshot_of_a_node() {
    let text = report::snapshot_table(&node());
    narrow(&text);
    golden("snapshot", &text);
}

/// The cards of such a host have no driver of RDMA: mlx5_ib is not loaded.
#[test]
fn snapshot_without_the_rdma_driver_has_a_hint() {
    let mut snapshot = node();
    snapshot.hcas.clear();
    let card = |at: &str| {
        json!({"address": at, "class": 0x20000, "vendor": 0x15b3,
            "driver": "mlx5_core"})
    };
    let cards = json!([card("0000:19:00.0"), card("0000:1a:00.1")]);
    snapshot
        .pci
        .extend(serde_json::from_value::<Vec<_>>(cards).unwrap());
    let text = report::snapshot_table(&snapshot);
    narrow(&text);
    golden("snapshot_no_driver", &text);
    // One such card is nothing strange on a host without GPUs.
    snapshot.pci.retain(|f| !f.is_gpu());
    assert!(!report::snapshot_table(&snapshot).contains("mlx5_ib"));
}

/// A capture without the files of a link says nothing of it.
#[test]
fn a_link_of_a_bare_capture_is_unknown() {
    let netdevs = json!([{"name": "rdma0", "ifindex": 2},
        {"name": "rdma1", "ifindex": 3, "mtu": 1500, "operstate": "down"}]);
    let snapshot: Snapshot =
        serde_json::from_value(json!({"schema": 1, "hcas": [], "netdevs": netdevs})).unwrap();
    let text = report::snapshot_table(&snapshot);
    let link = |name: &str| {
        text.lines()
            .find(|l| l.starts_with(name))
            .and_then(|l| l.split_whitespace().nth(1))
    };
    assert_eq!(
        (link("rdma0"), link("rdma1")),
        (Some("unknown"), Some("down")),
        "{text}"
    );
}

#[test]
fn snapshot_of_nothing() {
    golden(
        "snapshot_empty",
        &report::snapshot_table(&Snapshot::default()),
    );
}

#[test]
fn snapshot_of_forty_nics_with_long_names() {
    let mut snapshot = Snapshot::default();
    for k in 0..40 {
        let (mut hca, mut dev) = rail(
            k,
            &format!("enp{k:02}s0f0np0abc"),
            &format!("rocep{k:03}s0f0{}", "x".repeat(46)),
        );
        hca.pci = Some(format!("{k:08x}:e1:00.0").parse().unwrap());
        hca.ports[0].gids[3].address = "2001:db8:1111:2222:3333:4444:5555:6666".parse().unwrap();
        for index in 4..20 {
            let gid = hca.ports[0].gids[3].clone();
            hca.ports[0]
                .gids
                .push(rdma_model::snapshot::Gid { index, ..gid });
        }
        hca.conflicts = vec!["netlink says ".to_owned() + &"one thing, sysfs another; ".repeat(6)];
        dev.driver = Some("a-driver-with-a-name-that-no-one-would-choose".into());
        dev.master = Some("a-fifteen-char-".parse().unwrap());
        dev.pci = hca.pci;
        snapshot.hcas.push(hca);
        snapshot.netdevs.push(dev);
    }
    let text = report::snapshot_table(&snapshot);
    narrow(&text);
    golden("snapshot_40", &text);
}

/// Strings of a captured tree may hold anything; nothing of it steers a terminal or forges a line.
#[test]
fn hostile_strings_are_escaped() {
    let mut snapshot = node();
    let evil = "\u{1b}[2J\r\nkept \u{202e}gnp\u{9b}31m\u{7f}";
    snapshot.warnings = vec![evil.repeat(20)];
    snapshot.netdevs[0].driver = Some(evil.into());
    snapshot.hcas[0].ports[0].state = Some(evil.repeat(40));
    snapshot.hcas[0].ports[0].rate = Some(evil.into());
    snapshot.hcas[0].uverbs.as_mut().unwrap().name = evil.repeat(40);
    let text = report::snapshot_table(&snapshot);
    narrow(&text);
    assert!(!text.contains('\u{202e}'));
    assert_eq!(report::printable("a\nb\u{1b}é"), "a\\nb\\u{1b}é");
    assert_eq!(
        report::printable_lines("a\tb\r\n\u{1b}c\n"),
        "a\tb\n\\u{1b}c\n"
    );
    let json = report::json(&snapshot).unwrap();
    assert!(json.chars().all(|c| c == '\n' || !c.is_control()));
    assert_eq!(serde_json::from_str::<Snapshot>(&json).unwrap(), snapshot);
}

#[test]
fn equal_warnings_are_one_with_a_count() {
    let mut snapshot = node();
    let before = report::snapshot_table(&snapshot)
        .matches("\nwarning")
        .count();
    snapshot
        .warnings
        .extend((0..18).map(|i| format!("mlx5_{i} shows no ports")));
    snapshot
        .warnings
        .push("mlx5_99 is in RDMA netlink, but not in sysfs".to_owned());
    let text = report::snapshot_table(&snapshot);
    narrow(&text);
    assert_eq!(text.matches("\nwarning").count(), before + 2, "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = "warning mlx5_0 shows no ports, and 17 others: mlx5_1, mlx5_2, mlx5_3, mlx5_4, \
        mlx5_5, mlx5_6, mlx5_7, mlx5_8 + 9 more";
    assert!(
        words.contains(line) && words.contains("warning mlx5_99 is in RDMA netlink"),
        "{text}"
    );
}

#[test]
fn selection_with_reasons() {
    let mut snapshot = node();
    for k in 2..6 {
        let (hca, dev) = rail(k, &format!("rail{k}"), &format!("mlx5_{}", 3 * k));
        snapshot.hcas.push(hca);
        snapshot.netdevs.push(dev);
    }
    for k in 0..17 {
        let mut veth = snapshot.netdevs[3].clone();
        veth.name = format!("veth{k}").parse().unwrap();
        snapshot.netdevs.push(veth);
    }
    let mut verdicts = verdicts(&snapshot);
    verdicts[1].note = Some("its address comes from DHCP; frozen by --freeze-lifetimes".into());
    dropped(
        &mut verdicts[2],
        DropCode::Uplink,
        "it carries the default route (metric 100), so the host would lose its network",
        "name it in --ifaces and give --allow-bootstrap-iface if that is what you want",
    );
    for v in &mut verdicts[3..5] {
        dropped(
            v,
            DropCode::NoAddress,
            "it has no IPv4 address",
            "give it one, or use --family any",
        );
    }
    dropped(&mut verdicts[5], DropCode::PortDown, "port 1 is DOWN", "");
    let selection = Selection {
        verdicts,
        ..Selection::default()
    };
    let text = report::selection_table(&selection);
    narrow(&text);
    golden("selection", &text);
}

#[test]
fn selection_without_rdma() {
    let mut snapshot = node();
    snapshot.hcas.clear();
    let text = report::selection_table(&Selection {
        verdicts: verdicts(&snapshot),
        ..Selection::default()
    });
    narrow(&text);
    golden("selection_none", &text);
}

#[test]
fn summary_ends_with_what_to_paste() {
    let snapshot = node();
    let selection = Selection {
        verdicts: verdicts(&snapshot),
        ..Selection::default()
    };
    let mut plan = plan(&snapshot);
    let text = report::summary(&plan, &selection, true);
    narrow(&text);
    golden("summary", &text);
    assert_eq!(
        text.lines().last(),
        Some("RDMA_PEER_IFACES=\"rdma0 rdma1\"")
    );
    plan.nics[0].identity.name = "$(id)'`".parse().unwrap();
    let text = report::summary(&plan, &selection, true);
    assert_eq!(
        text.lines().last(),
        Some("RDMA_PEER_IFACES='$(id)'\\''` rdma1'")
    );
    plan.nics.clear();
    plan.env.clear();
    plan.unset.clear();
    assert!(
        report::summary(&plan, &selection, true)
            .ends_with("NCCL settings: none\n\nRDMA_PEER_IFACES=\"\"")
    );
}

#[test]
fn reports_say_how_it_ended_and_where_time_went() {
    let mut report = Report::new("hook createRuntime");
    report.container = Some("trainer 0\n".into());
    report.nics = vec!["rdma0".parse().unwrap(), "rdma1".parse().unwrap()];
    report.book(Lap::Observe, 1500);
    report.book(Lap::GidWait, 20);
    report.book(Lap::Observe, 500);
    let begun = Instant::now();
    report.finish(
        &Err::<(), _>(ErrorClass::Kernel.error("moving rdma0: EBUSY")),
        begun,
    );
    report.micros = 2345;
    assert_eq!(
        report.line(),
        "command=\"hook createRuntime\" container=\"trainer 0\\n\" outcome=kernel exit=6 \
        nics=rdma0,rdma1 steps=0 \
         total_ms=2.345 observe_ms=2.000 gid_wait_ms=0.020 message=\"moving rdma0: EBUSY\""
    );
    // A line of the log has an end, whatever a container wrote.
    let noted = Report {
        notes: vec!["x\u{1b}".repeat(100_000)],
        ..report.clone()
    };
    assert!(
        (4096..5 * 4096).contains(&noted.line().len()),
        "{}",
        noted.line().len()
    );
    let json = report::json(&report).unwrap();
    assert!(json.contains("\"gid_wait\""));
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    report.finish(&Ok(()), begun);
    assert_eq!(
        (
            report.outcome.as_str(),
            report.exit_code,
            report.message.take()
        ),
        ("ok", 0, None)
    );
    // Laps fill the time since the beginning.
    let earlier = begun - Duration::from_secs(1);
    report.end_lap(earlier, Lap::Plan);
    report.end_lap(earlier, Lap::Verify);
    let booked: u64 = report.laps.iter().map(|lap| lap.micros).sum();
    assert!(u128::from(booked) <= earlier.elapsed().as_micros());
    let last = report.laps.last().map(|lap| lap.name);
    assert_eq!(
        (last, report.laps[2].micros > 900_000),
        (Some(Lap::Verify), true)
    );
}
