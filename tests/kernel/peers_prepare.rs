//! `prepare` on all nodes of a job: each node a process, most of them in a network namespace of its
//! own, over a file or a TCPStore.
#[path = "../../crates/rail-agreement/tests/support/mod.rs"]
mod support_peers;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{abreast, alone};
use rdma_model::snapshot::StoreRoute;
use rdma_model::step::Side;
use rdmaprep::kernel::links::RouteSocket;
use rdmaprep::kernel::netns::Netns;
use rdmaprep::kernel::{Kernel, Scope, World};
use rdmaprep::select::protected_ifaces::store_links;
use serde_json::{Value, json};
use support_peers::fake::{Fake, Manner};
use testkit::{Container, Host, Said, run};

/// What all nodes of a test share: named after the process that started them.
fn shared(what: &str) -> PathBuf {
    let starter = std::os::unix::process::parent_id();
    std::env::temp_dir().join(format!("rdmaprep-{what}-{starter}"))
}

/// Where that test's own process finds the same.
fn of_nodes(what: &str) -> PathBuf {
    std::env::temp_dir().join(format!("rdmaprep-{what}-{}", std::process::id()))
}

fn meet<'a>(url: &'a str, rank: &'a str, nodes: &'a str, timeout: &'a str) -> Vec<&'a str> {
    let flags = [
        "--rendezvous",
        url,
        "--rank",
        rank,
        "--nodes",
        nodes,
        "--run-id",
        "job.7",
    ];
    [&flags[..], &["--rendezvous-timeout", timeout]].concat()
}

/// The stored plan.
fn plan_of(host: &Host) -> Value {
    serde_json::from_str(&fs::read_to_string(host.run.join("plans/default.json")).unwrap()).unwrap()
}

fn nics(plan: &Value) -> Vec<String> {
    plan["nics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n["identity"]["name"].as_str().unwrap().to_owned())
        .collect()
}

/// The same command on a host of that name.
fn called(name: &str, command: &Command) -> Command {
    let mut named = Command::new("unshare");
    named.args([
        "--uts",
        "sh",
        "-ec",
        "hostname \"$0\"; exec env -i \"$@\"",
        name,
    ]);
    named.arg(command.get_program()).args(command.get_args());
    named
}

#[test]
fn eight_namespaces_print_the_same_line_and_name_what_two_lack() {
    abreast(8, |host, number| {
        let rails = host.rails(4);
        if number == 3 {
            host.ip("address flush dev r2");
        }
        // No NIC of a namespace has an HCA whose port could be down: that node decides from what
        // was recorded of another machine.
        let recorded = snapshot(host.run.parent().unwrap(), "recorded", "DOWN", "r")
            .display()
            .to_string();
        let more: &[&str] = if number == 5 {
            &["--snapshot", &recorded]
        } else {
            &["--ifaces", &rails]
        };
        let store = shared("eight");
        let url = format!("file://{}", store.display());
        let rank = number.to_string();
        let command =
            host.command(&[&["prepare"][..], more, &meet(&url, &rank, "8", "60")].concat());
        let said = run(&mut called(&format!("node-{number}"), &command), "").ok();
        assert_eq!(
            said.out.lines().last(),
            Some("RDMA_PEER_IFACES=\"r0\""),
            "{}",
            said.out
        );
        for line in [
            "8 nodes agreed on r0 (run job.7, --match name --family 4, digest ",
            "r1: missing on node-5: port down\n",
            "r2: missing on node-3: no IPv4 address, on node-5: no such NIC\n",
            "r3: missing on node-5: no such NIC\n",
        ] {
            assert!(said.out.contains(line), "{line}{}", said.out);
        }
        let plan = plan_of(host);
        assert_eq!(nics(&plan), ["r0"]);
        assert!(plan["env"].to_string().contains("NCCL_IGNORE_NET_MISMATCH"));
        fs::write(
            shared(&format!("eight-digest-{number}")),
            plan["agreement"]["digest"].to_string(),
        )
        .unwrap();
    });
    if std::env::var("RDMAPREP_TEST_INSIDE").is_err() {
        let digest = |n: usize| fs::read_to_string(of_nodes(&format!("eight-digest-{n}"))).unwrap();
        assert!((1..8).all(|n| digest(n) == digest(0)));
        (0..8).for_each(|n| fs::remove_file(of_nodes(&format!("eight-digest-{n}"))).unwrap());
        fs::remove_file(of_nodes("eight")).unwrap();
    }
}

/// A snapshot of two RoCE NICs, the port of the second in that state, its name made of that.
fn snapshot(folder: &Path, name: &str, state: &str, prefix: &str) -> PathBuf {
    let nic = |i: u32, state: &str| {
        let gid = json!({"index": 3, "address": format!("::ffff:10.0.{i}.1"), "kind": "RoCE v2",
            "netdev": format!("{prefix}{i}")});
        let hca = json!({"name": format!("mlx5_{i}"), "protocol": "roce",
            "pci": format!("0000:{:02x}:00.0", 16 + i), "ports": [{
            "number": 1, "state": state, "link_layer": "Ethernet", "netdev": format!("{prefix}{i}"),
            "gids": [gid]}]});
        let netdev = json!({"name": format!("{prefix}{i}"), "ifindex": i + 2, "link_type": 1,
            "pci": format!("0000:{:02x}:00.0", 16 + i),
            "up": true, "running": true,
            "addresses": [{"address": format!("10.0.{i}.1"), "prefix": 24}]});
        (hca, netdev)
    };
    let ((h0, n0), (h1, n1)) = (nic(0, "ACTIVE"), nic(1, state));
    let path = folder.join(format!("{name}.json"));
    fs::write(
        &path,
        json!({"schema": 1, "hcas": [h0, h1], "netdevs": [n0, n1]}).to_string(),
    )
    .unwrap();
    path
}

/// A node that decides from a snapshot: no namespace is needed.
fn node(folder: &Path, snapshot: &Path, flags: &[&str]) -> std::process::Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
    let at = |name: String| folder.join(name).display().to_string();
    let own = snapshot.file_stem().unwrap().to_str().unwrap();
    fs::write(folder.join("config.toml"), "").unwrap();
    command
        .env_clear()
        .args(["prepare", "--snapshot", snapshot.to_str().unwrap()])
        .args(flags);
    for (flag, place) in [
        ("--run-dir", format!("run-{own}")),
        ("--state-dir", format!("state-{own}")),
    ] {
        if !flags.contains(&flag) {
            command.args([flag, &at(place)]);
        }
    }
    if !flags.contains(&"--config") {
        command.args(["--config", &at("config.toml".to_owned())]);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn ends(child: std::process::Child) -> Said {
    child.wait_with_output().unwrap().into()
}

#[test]
fn port_that_is_down_is_named_in_each_way_of_matching() {
    for manner in [Manner::Libuv, Manner::Legacy] {
        let folder = tempfile::tempdir().unwrap();
        let server = Fake::start(manner);
        let url = format!("c10d://{}", server.address);
        let run = |by: &[&str], second: &Path, nth: &str| {
            let first = snapshot(folder.path(), "first", "ACTIVE", "rdma");
            let run_id = format!("job.{nth}");
            let part = |rank: &'static str, snapshot: &Path| {
                let flags = [
                    "--rendezvous",
                    &url,
                    "--rank",
                    rank,
                    "--nodes",
                    "2",
                    "--run-id",
                    &run_id,
                    "--rendezvous-timeout",
                    "30",
                ];
                node(folder.path(), snapshot, &[&flags[..], by].concat())
            };
            let (a, b) = (part("0", &first), part("1", second));
            (ends(a), ends(b))
        };
        let down = snapshot(folder.path(), "down", "DOWN", "rdma");
        let (a, b) = run(&[], &down, "1");
        for said in [a.ok(), b.ok()] {
            assert_eq!(said.out.lines().last(), Some("RDMA_PEER_IFACES=\"rdma0\""));
            assert!(said.out.contains(": port down\n"), "{}", said.out);
        }
        // Other names, the same places and subnets: each node has its own names in the common
        // order.
        let other = snapshot(folder.path(), "other", "ACTIVE", "ens");
        let (a, b) = run(&[], &other, "2");
        for said in [a, b] {
            said.fails(
                10,
                &["no rail is on all nodes: rdma0: missing on ", "no such NIC"],
            );
        }
        for (nth, by, key) in [
            ("3", "index", "1 (ens1)"),
            ("4", "subnet", "10.0.1.0/24 (ens1)"),
        ] {
            let (a, b) = run(&["--match", by], &other, nth);
            assert_eq!(
                a.ok().out.lines().last(),
                Some("RDMA_PEER_IFACES=\"rdma0 rdma1\"")
            );
            let b = b.ok();
            assert_eq!(b.out.lines().last(), Some("RDMA_PEER_IFACES=\"ens0 ens1\""));
            assert!(
                b.out.contains(key) && b.out.contains("NCCL_IB_HCA==mlx5_0,mlx5_1"),
                "{}",
                b.out
            );
        }
        let labels = "ens0=leaf1,ens1=leaf0 rdma0=leaf0 rdma1=leaf1";
        let (a, b) = run(&["--match", "label", "--rail-labels", labels], &other, "5");
        assert_eq!(
            a.ok().out.lines().last(),
            Some("RDMA_PEER_IFACES=\"rdma0 rdma1\"")
        );
        let b = b.ok().out;
        assert_eq!(
            b.lines().last(),
            Some("RDMA_PEER_IFACES=\"ens1 ens0\""),
            "in rank 0's order: {b}"
        );
        assert!(b.contains("NCCL_IB_HCA==mlx5_1,mlx5_0"), "{b}");
    }
}

/// HCAs without a netdev are rails as well: a rail that not all nodes have is dropped, and the
/// order is rank 0's.
#[test]
fn bare_infiniband_hcas_are_agreed_on_like_nics() {
    let folder = tempfile::tempdir().unwrap();
    let with = |name: &str, hcas: &[u32], nics: bool| {
        let path = snapshot(folder.path(), name, "ACTIVE", "rdma");
        let mut seen: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        if !nics {
            (seen["hcas"], seen["netdevs"]) = (json!([]), json!([]));
        }
        let hca = |i: &u32| {
            json!({"name": format!("ib{i}"), "protocol": "infiniband",
                "pci": format!("0000:{:02x}:00.0", 64 + i),
            "ports": [{"number": 1, "state": "ACTIVE", "link_layer": "InfiniBand", "gids": []}]})
        };
        seen["hcas"]
            .as_array_mut()
            .unwrap()
            .extend(hcas.iter().map(hca));
        fs::write(&path, seen.to_string()).unwrap();
        path
    };
    let run = |nth: &str, first: &Path, second: &Path, more: [&[&str]; 2]| {
        let url = format!("file://{}/store{nth}", folder.path().display());
        let part = |rank: &str, snapshot: &Path, more: &[&str]| {
            node(
                folder.path(),
                snapshot,
                &[&["--json"], more, &meet(&url, rank, "2", "60")[..]].concat(),
            )
        };
        let (a, b) = (part("0", first, more[0]), part("1", second, more[1]));
        [ends(a), ends(b)]
    };
    let plans = |said: [Said; 2]| {
        said.map(|s| serde_json::from_str::<Value>(&s.ok().out).unwrap()["plan"].clone())
    };
    let (three, two) = (with("three", &[0, 1, 2], true), with("two", &[0, 2], true));
    // Both link layers, which --ib alone does not keep.
    let ib: [&[&str]; 2] = [&["--ib", "--hca", "all"]; 2];
    for plan in plans(run("1", &three, &two, ib)) {
        assert_eq!(
            (nics(&plan), &plan["ib"]),
            (vec!["rdma0".into(), "rdma1".into()], &json!(["ib0", "ib2"]))
        );
        assert_eq!(
            plan["agreement"]["rails"][2],
            json!(["ib0", {"hca": "ib0"}])
        );
        assert_eq!(
            plan["agreement"]["lost"].as_array().unwrap().len(),
            1,
            "{}",
            plan["agreement"]["lost"]
        );
        assert!(
            plan["agreement"]["lost"][0]
                .as_str()
                .unwrap()
                .starts_with("ib1: missing on ")
        );
        assert!(
            plan["env"].to_string().contains("=mlx5_0,mlx5_1,ib0,ib2"),
            "{}",
            plan["env"]
        );
    }
    // A node without --ib lacks the HCAs: all nodes drop them and keep the NICs.
    for plan in plans(run("2", &three, &two, [&["--ib", "--hca", "all"], &[]])) {
        assert_eq!((nics(&plan).len(), &plan["ib"]), (2, &json!([])));
        assert!(
            plan["agreement"]["lost"][0]
                .as_str()
                .unwrap()
                .contains("InfiniBand, without --ib")
        );
    }
    let bare = with("bare", &[2, 1], false);
    for plan in plans(run("3", &three, &bare, ib)) {
        assert_eq!(
            (nics(&plan).len(), &plan["ib"]),
            (0, &json!(["ib1", "ib2"]))
        );
    }
    let labels: [&[&str]; 2] = [
        &["--ib", "--match", "label", "--rail-labels", "ib1=x,ib2=y"],
        &["--ib", "--match", "label", "--rail-labels", "ib0=y,ib2=x"],
    ];
    let [a, b] = plans(run("4", &three, &two, labels));
    assert_eq!(
        (&a["ib"], &b["ib"]),
        (&json!(["ib1", "ib2"]), &json!(["ib2", "ib0"])),
        "in rank 0's order"
    );
}

#[test]
fn node_without_a_nic_says_so_and_the_others_end_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let whole = snapshot(folder.path(), "whole", "ACTIVE", "rdma");
    let bare = snapshot(folder.path(), "bare", "DOWN", "rdma");
    // As rank 0, and as any other.
    for (run, [one, other]) in [("1", ["0", "1"]), ("2", ["1", "0"])] {
        let url = format!("file://{}/store{run}", folder.path().display());
        let start = Instant::now();
        let good = node(folder.path(), &whole, &meet(&url, one, "2", "60"));
        let empty = [&["--exclude", "rdma0"][..], &meet(&url, other, "2", "60")].concat();
        ends(node(folder.path(), &bare, &empty))
            .fails(4, &["no NIC is left for the container", "rdma1"]);
        let said = ends(good).fails(
            10,
            &[
                "no rail is on all nodes: rdma0: missing on ",
                ": excluded; rdma1: missing on ",
            ],
        );
        assert!(said.err.contains(": port down"), "{}", said.err);
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{:?}",
            start.elapsed()
        );
        assert!(
            !folder.path().join("run-bare/plans").exists()
                && !folder.path().join("run-whole/plans").exists()
        );
    }
}

/// Whatever keeps a node from taking part: the others hear it at once, though a third one never
/// comes.
#[test]
fn a_node_that_withdraws_says_why_and_the_others_do_not_wait() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let whole = snapshot(folder.path(), "whole", "ACTIVE", "rdma");
    let less = snapshot(folder.path(), "less", "DOWN", "rdma");
    fs::write(at("bad.toml"), "allow = 7\n").unwrap();
    let (config, nowhere) = (at("bad.toml"), at("nowhere"));
    for (nth, flags, code, words) in [
        (
            "a",
            &["--ifaces", "nosuch"][..],
            2,
            "--ifaces: there is no nosuch; there are: rdma0, rdma1",
        ),
        ("b", &["--ifaces", "a/b"], 2, "--ifaces (RDMA_IFACES)"),
        ("c", &["--config", &config], 2, "bad.toml"),
        ("d", &["--bundle", &nowhere], 5, "has no config.json"),
        ("e", &["--peer-address", "x"], 2, "--peer-address"),
    ] {
        for (run, [one, other]) in [("1", ["0", "1"]), ("2", ["1", "0"])] {
            let url = format!("file://{}/store{nth}{run}", folder.path().display());
            let start = Instant::now();
            let good = node(folder.path(), &whole, &meet(&url, one, "3", "90"));
            let said = ends(node(
                folder.path(),
                &less,
                &[flags, &meet(&url, other, "3", "90")].concat(),
            ));
            said.fails(code, &[words]);
            ends(good).fails(10, &[&format!("(rank {other}) refuses: "), words]);
            assert!(
                start.elapsed() < Duration::from_secs(40),
                "{:?}",
                start.elapsed()
            );
            assert!(
                !folder.path().join("run-less").exists()
                    && !folder.path().join("run-whole").exists()
            );
        }
    }
}

/// Two NICs by one name are no offer: the others hear that as well.
#[test]
fn node_that_offers_nothing_says_why_and_the_others_end() {
    let folder = tempfile::tempdir().unwrap();
    let whole = snapshot(folder.path(), "whole", "ACTIVE", "rdma");
    let twice = snapshot(folder.path(), "twice", "ACTIVE", "rdma");
    let words = "this node cannot take part: two of its NICs are rail leaf0";
    for [one, other] in [["0", "1"], ["1", "0"]] {
        let url = format!("file://{}/store{one}", folder.path().display());
        let start = Instant::now();
        let labels = |labels| ["--match", "label", "--rail-labels", labels];
        let good = [
            &labels("rdma0=leaf0,rdma1=leaf1")[..],
            &meet(&url, one, "2", "60"),
        ]
        .concat();
        let bad = [
            &labels("rdma0=leaf0,rdma1=leaf0")[..],
            &meet(&url, other, "2", "60"),
        ]
        .concat();
        let good = node(folder.path(), &whole, &good);
        ends(node(folder.path(), &twice, &bad)).fails(3, &[words]);
        ends(good).fails(10, &[&format!("(rank {other}) refuses: {words}")]);
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "{:?}",
            start.elapsed()
        );
    }
}

/// The other nodes may read it as late as the deadline; the node with the mistake does not wait for
/// them.
#[test]
fn a_mistake_is_reported_before_the_other_nodes_join() {
    let folder = tempfile::tempdir().unwrap();
    let file = snapshot(folder.path(), "whole", "DOWN", "rdma");
    let url = format!("file://{}/store", folder.path().display());
    for (flags, words) in [
        (
            ["--ifaces", "nosuch"],
            "--ifaces: there is no nosuch; there are: rdma0, rdma1; telling the other nodes\n",
        ),
        (
            ["--exclude", "rdma0"],
            "no NIC is left for the container; telling the other nodes\n",
        ),
    ] {
        let mut node = node(
            folder.path(),
            &file,
            &[&flags[..], &meet(&url, "1", "2", "300")].concat(),
        );
        let (mut line, start) = (String::new(), Instant::now());
        BufReader::new(node.stderr.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(
            line.starts_with("rdmaprep: warning: ") && line.ends_with(words),
            "{line}"
        );
        assert!(start.elapsed() < Duration::from_secs(60) && node.try_wait().unwrap().is_none());
        node.kill().unwrap();
        node.wait().unwrap();
    }
}

/// A node checks the agreement before it accepts it: if one node refuses, no node stores anything.
#[test]
fn node_that_rejects_the_agreement_keeps_all_from_storing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let whole = snapshot(folder.path(), "whole", "ACTIVE", "rdma");
    let less = snapshot(folder.path(), "less", "ACTIVE", "rdma");
    fs::write(at("one.toml"), "max_nics = 1\n").unwrap();
    fs::write(at("file"), "").unwrap();
    fs::create_dir(at("bundle")).unwrap();
    fs::write(
        at("bundle/config.json"),
        r#"{"ociVersion": "1.2.0", "process": {"env": 7}, "linux": {}}"#,
    )
    .unwrap();
    let (config, bundle, run_dir) = (at("one.toml"), at("bundle"), at("file/run"));
    for (nth, flags, code, words) in [
        ("a", &["--config", &config][..], 3, "2 NICs"),
        ("b", &["--bundle", &bundle], 5, "config.json"),
        ("c", &["--run-dir", &run_dir], 1, "Not a directory"),
        ("d", &["--dry-run"], 10, "--dry-run"),
    ] {
        for (run, [one, other]) in [("1", ["0", "1"]), ("2", ["1", "0"])] {
            let url = format!("file://{}/store{nth}{run}", folder.path().display());
            let good = node(folder.path(), &whole, &meet(&url, one, "2", "60"));
            let refusing = [flags, &meet(&url, other, "2", "60")].concat();
            let start = Instant::now();
            ends(node(folder.path(), &less, &refusing)).fails(code, &[words]);
            ends(good).fails(10, &[words]);
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{:?}",
                start.elapsed()
            );
            assert!(
                !folder.path().join("run-less").exists()
                    && !folder.path().join("run-whole").exists()
            );
        }
    }
    // With --dry-run the nodes agree, and no node stores anything.
    let url = format!("file://{}/store", folder.path().display());
    let dry = |rank, snapshot| {
        node(
            folder.path(),
            snapshot,
            &[&["--dry-run"], &meet(&url, rank, "2", "60")[..]].concat(),
        )
    };
    let (a, b) = (dry("0", &whole), dry("1", &less));
    for said in [ends(a).ok(), ends(b).ok()] {
        assert!(said.out.contains(
            "2 nodes agreed on rdma0, rdma1 (run job.7, --match name --family 4 --dry-run, "
        ));
    }
    assert!(!folder.path().join("run-less").exists() && !folder.path().join("run-whole").exists());
}

/// Each of three nodes is killed at some moment; nothing of any node's is written unless it says so
/// with success.
#[test]
fn node_that_is_killed_leaves_all_others_with_one_plan_or_none() {
    for (victim, millis) in (0..3).flat_map(|v| [0, 10, 20, 40, 80].map(move |m| (v, m))) {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("file://{}/store", folder.path().display());
        let start = Instant::now();
        let mut all: Vec<_> = ["0", "1", "2"]
            .iter()
            .map(|rank| {
                let snapshot = snapshot(folder.path(), rank, "ACTIVE", "rdma");
                node(folder.path(), &snapshot, &meet(&url, rank, "3", "4"))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(millis));
        let _ = all[victim].kill();
        let all: Vec<Said> = all.into_iter().map(ends).collect();
        assert!(
            start.elapsed() < Duration::from_secs(12),
            "{:?}",
            start.elapsed()
        );
        // A warning besides says that a recorded host without routes is not checked.
        let errors = |said: &Said| {
            said.err
                .lines()
                .filter(|l| !l.starts_with("rdmaprep: warning: "))
                .count()
        };
        let left: Vec<_> = all
            .iter()
            .enumerate()
            .filter(|(rank, _)| *rank != victim)
            .collect();
        for (rank, said) in &left {
            let stored = folder
                .path()
                .join(format!("run-{rank}/plans/default.json"))
                .exists();
            match said.code {
                Some(0) => assert!(stored),
                Some(10) => assert!(!stored && errors(said) == 1, "{said:?}"),
                _ => panic!("{victim} killed after {millis} ms: {said:?}"),
            }
        }
        assert_eq!(
            left[0].1.code, left[1].1.code,
            "{victim} killed after {millis} ms: {left:?}"
        );
    }
}

#[test]
fn a_hook_takes_what_was_committed_or_nothing() {
    alone(|host| {
        let rails = host.rails(3);
        let one = [
            "--rendezvous",
            "file:///run/store",
            "--rank",
            "0",
            "--nodes",
            "1",
            "--run-id",
            "job",
        ];
        host.rdmaprep(&[&["prepare", "--ifaces", &rails][..], &one].concat())
            .ok();
        let digest = plan_of(host)["agreement"]["digest"]
            .as_str()
            .unwrap()
            .to_owned();
        // A bundle names the digest in its hooks.
        let bundle = PathBuf::from("/run/bundle");
        fs::create_dir_all(&bundle).unwrap();
        let config = json!({"ociVersion": "1.2.0", "process": {"args": ["sh"], "cwd": "/"},
            "root": {"path": "r"},
            "linux": {"namespaces": [{"type": "network"}, {"type": "mount"}]}});
        fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        host.rdmaprep(
            &[
                &["prepare", "--ifaces", &rails, "--bundle", "/run/bundle"][..],
                &one,
            ]
            .concat(),
        )
        .ok();
        let again = plan_of(host)["agreement"]["digest"]
            .as_str()
            .unwrap()
            .to_owned();
        assert_ne!(digest, again, "every attempt has its own");
        let text = fs::read_to_string(bundle.join("config.json")).unwrap();
        let edited: Value = serde_json::from_str(&text).unwrap();
        assert!(
            edited["hooks"]["createRuntime"][0]["args"]
                .to_string()
                .contains(&format!("\"--agreed\",\"{again}\"")),
            "{text}"
        );
        let before = host.look();
        let hook = |c: &Container, agreed: &str| {
            run(
                &mut host.command(&["hook", "createRuntime", "--agreed", agreed]),
                &c.state(),
            )
        };
        // Another plan than the committed one.
        let c = Container::new("other");
        hook(&c, &digest).fails(3, &["prepare the bundle again, on all nodes"]);
        // Less than all: an annotation takes one away.
        let less = Container::new("less")
            .annotated(json!({"rdmaprep.io/plan": "default", "rdmaprep.io/exclude": "r1"}));
        hook(&less, &again).fails(
            3,
            &["1 nodes agreed on r0 r1 r2, but this container would get r0 r2"],
        );
        // A plan that was edited.
        let path = host.run.join("plans/default.json");
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(
            &path,
            whole.replacen("\"r1\",\n        \"r1\"", "\"r9\",\n        \"r1\"", 1),
        )
        .unwrap();
        assert_ne!(whole, fs::read_to_string(&path).unwrap());
        hook(&c, &again).fails(3, &["plan default: its rails are not those of digest"]);
        // A plan without an agreement.
        host.prepare(&rails);
        hook(&c, &again).fails(3, &["is not the one that all nodes agreed on"]);
        host.is_as(&before);
        host.is_clean();
        fs::write(&path, whole).unwrap();
        let mut fine = Container::new("fine");
        hook(&fine, &again).ok();
        assert!(fine.sh("ip -o link").contains("r2"));
        fine.stop(host).ok();
        host.is_as(&before);
    });
}

#[test]
fn the_route_to_the_store_is_guarded_and_reported() {
    alone(|host| {
        let rails = host.rails(3);
        // The store listens on an address of r1, which is therefore not taken.
        let server = Fake::at("10.1.0.1:0", Manner::Libuv);
        let url = format!("c10d://{}", server.address);
        let said = host
            .rdmaprep(
                &[
                    &["prepare", "--ifaces", &rails][..],
                    &meet(&url, "0", "1", "20"),
                ]
                .concat(),
            )
            .ok();
        assert_eq!(nics(&plan_of(host)), ["r0", "r2"]);
        assert!(
            said.out
                .contains("r1 leads to the rendezvous store 10.1.0.1"),
            "{}",
            said.out
        );
        assert!(
            said.out.contains("the store was reached over r1\n"),
            "{}",
            said.out
        );
    });
}

/// What the kernel says of the way counts, not what the main table looks like: a rule may send
/// these packets elsewhere.
#[test]
fn the_way_to_the_store_is_the_kernels_own_word() {
    alone(|host| {
        host.rails(3);
        let mut live = Kernel::open(Netns::current().unwrap(), None).unwrap();
        let seen = live.observe(Side::Host, &Scope::network()).unwrap();
        let index = |name: &str| {
            seen.netdevs
                .iter()
                .find(|n| n.name.as_str() == name)
                .map(|n| n.ifindex)
        };
        let (store, local) = ("198.51.100.9".parse().unwrap(), "10.1.0.1".parse().unwrap());
        host.ip("route add 198.51.100.0/24 dev r0\nroute add 198.51.100.9/32 dev r2 table 100");
        let way = || RouteSocket::open().unwrap().way(store, local).unwrap();
        assert_eq!(way(), index("r0"));
        host.ip("rule add from 10.1.0.1 to 198.51.100.9 lookup 100 pref 90");
        assert_eq!(way(), index("r2"));
        let seen = live.observe(Side::Host, &Scope::network()).unwrap();
        let names = |over| {
            let way = StoreRoute { store, local, over };
            store_links(&way, &seen)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        // The owner of our own address as well; without the kernel's word, the main table's.
        assert_eq!(
            (names(way()), names(None)),
            (
                vec!["r1".into(), "r2".into()],
                vec!["r0".into(), "r1".into()]
            )
        );
        assert!(
            RouteSocket::open()
                .unwrap()
                .way("::1".parse().unwrap(), "::1".parse().unwrap())
                .unwrap()
                .is_some()
        );
    });
}

#[test]
fn missing_store_and_missing_ranks_change_nothing() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let path = host.run.join("plans/default.json");
        let before = fs::read_to_string(&path).unwrap();
        let start = Instant::now();
        for (url, words) in [
            (
                "c10d://127.0.0.1:9",
                &["no connection to the store 127.0.0.1:9", "refused"][..],
            ),
            (
                "file:///nonexistent/store",
                &["the rendezvous store: opening /nonexistent/store"],
            ),
            (
                "file:///run/alone",
                &["missing ranks 1-2: nothing was published in time"],
            ),
        ] {
            let args = [
                &["prepare", "--ifaces", &rails][..],
                &meet(url, "0", "3", "1"),
            ]
            .concat();
            host.rdmaprep(&args).fails(10, words);
        }
        assert!(start.elapsed() < Duration::from_secs(20));
        assert_eq!(before, fs::read_to_string(&path).unwrap());
    });
}

#[allow(clippy::too_many_lines, reason = "a table of mistakes")]
#[test]
fn what_is_asked_wrongly_is_one_line_and_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = snapshot(folder.path(), "s", "ACTIVE", "rdma");
    for (flags, word) in [
        (
            &["--rendezvous", "redis://h"][..],
            "none of c10d://HOST:PORT, file:///PATH, etcd://HOST:PORT/PREFIX, pmi, static",
        ),
        (&["--rendezvous", "file://relative"], "no absolute path"),
        (&["--rendezvous", "c10d://"], "names no host"),
        (&["--rendezvous", "c10d://::1"], "ambiguous"),
        (&["--rendezvous", "c10d://h:0"], "no port"),
        (&["--rendezvous", "pmi"], "PMI_FD"),
        (
            &["--rendezvous", "file:///x", "--nodes", "2", "--run-id", "a"],
            "--rank is needed",
        ),
        (
            &["--rendezvous", "file:///x", "--rank", "0", "--run-id", "a"],
            "--nodes is needed",
        ),
        (
            &["--rendezvous", "file:///x", "--rank", "0", "--nodes", "2"],
            "--run-id is needed",
        ),
        (
            &[
                "--rendezvous",
                "file:///x",
                "--rank",
                "2",
                "--nodes",
                "2",
                "--run-id",
                "a",
            ],
            "rank 2 of 2",
        ),
        (
            &[
                "--rendezvous",
                "file:///x",
                "--rank",
                "0",
                "--nodes",
                "99999",
                "--run-id",
                "a",
            ],
            "99999 nodes",
        ),
        (
            &[
                "--rendezvous",
                "file:///x",
                "--rank",
                "-1",
                "--nodes",
                "2",
                "--run-id",
                "a",
            ],
            "-1",
        ),
        (
            &[
                "--rendezvous",
                "file:///x",
                "--rank",
                "0",
                "--nodes",
                "2",
                "--run-id",
                "none",
            ],
            "no identity",
        ),
        (
            &[
                "--rendezvous",
                "file:///x",
                "--rank",
                "0",
                "--nodes",
                "2",
                "--run-id",
                "a",
                "--match",
                "mac",
            ],
            "mac",
        ),
        (
            &[
                "--rendezvous",
                "file:///x",
                "--rank",
                "0",
                "--nodes",
                "2",
                "--run-id",
                "a",
                "--match",
                "label",
            ],
            "--rail-labels",
        ),
        (
            &[
                "--rendezvous",
                "file:///x",
                "--rank",
                "0",
                "--nodes",
                "2",
                "--run-id",
                "a",
                "--rail-labels",
                "x",
            ],
            "IFACE=LABEL",
        ),
        (
            &[
                "--rendezvous",
                "file:///x",
                "--rank",
                "0",
                "--nodes",
                "2",
                "--run-id",
                "a",
                "--rendezvous-timeout",
                "0",
            ],
            "1 to 86400",
        ),
        (&["--rank", "0"], "need --rendezvous"),
    ] {
        let said = ends(node(folder.path(), &file, flags));
        let said = said.fails(2, &[word]);
        assert!(said.out.is_empty(), "{said:?}");
    }
    assert!(!folder.path().join("run-s").exists());
}

#[test]
fn only_torchruns_environment_gives_the_rendezvous() {
    let folder = tempfile::tempdir().unwrap();
    let server = Fake::start(Manner::Libuv);
    let port = server.address.port().to_string();
    let agent = |rank: &str, more: &[(&str, &str)]| {
        let file = snapshot(folder.path(), rank, "ACTIVE", "rdma");
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        command.env_clear().args([
            "prepare",
            "--snapshot",
            file.to_str().unwrap(),
            "--dry-run",
            "--json",
        ]);
        command.envs([
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", &port),
            ("GROUP_RANK", rank),
            ("GROUP_WORLD_SIZE", "2"),
        ]);
        command.envs([
            ("TORCHELASTIC_RUN_ID", "none"),
            ("TORCHELASTIC_RESTART_COUNT", "1"),
            ("LOCAL_WORLD_SIZE", "1"),
        ]);
        command
            .envs(more.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let on = [("TORCHELASTIC_USE_AGENT_STORE", "True")];
    let (a, b) = (agent("0", &on), agent("1", &on));
    for said in [ends(a).ok(), ends(b).ok()] {
        let agreed = &serde_json::from_str::<Value>(&said.out).unwrap()["plan"]["agreement"];
        assert_eq!(
            (&agreed["run"], &agreed["nodes"]),
            (&json!("none.1"), &json!(2))
        );
    }
    // The training process would serve the store, and it does not run yet; or the address of the
    // agents' store is unknown.
    let alone = "this torchrun shares no store: --rendezvous URL, or --rendezvous static to \
        prepare each node alone";
    let off = ("TORCHELASTIC_USE_AGENT_STORE", "False");
    for more in [
        &[off][..],
        &[],
        &[on[0], ("MASTER_ADDR", "")],
        &[off, ("PMI_FD", "0")],
    ] {
        ends(agent("0", more)).fails(2, &[alone]);
    }
    let said = ends(agent("0", &[off, ("GROUP_WORLD_SIZE", "1")])).ok();
    assert!(said.out.contains("\"agreement\": null"));
    // Up to PyTorch 2.4 always so: a user who names a store need not repeat what torchrun has set.
    let url = format!("c10d://127.0.0.1:{port}");
    let named = [
        off,
        ("RDMAPREP_RENDEZVOUS", &*url),
        ("TORCHELASTIC_RUN_ID", "job"),
    ];
    let (a, b) = (agent("0", &named), agent("1", &named));
    for said in [ends(a).ok(), ends(b).ok()] {
        assert_eq!(
            serde_json::from_str::<Value>(&said.out).unwrap()["plan"]["agreement"]["run"],
            json!("job.1")
        );
    }
    ends(agent("0", &[off, ("RDMAPREP_RENDEZVOUS", &url)])).fails(2, &["--run-id is needed"]);
    // Of an id that every job has, no other store makes one.
    let url = format!("c10d://localhost:{port}");
    ends(agent("0", &[on[0], ("RDMAPREP_RENDEZVOUS", &url)])).fails(2, &["--run-id is needed"]);
    ends(agent(
        "0",
        &[
            on[0],
            ("RDMAPREP_RENDEZVOUS", &url),
            ("TORCHELASTIC_RUN_ID", ""),
        ],
    ))
    .fails(2, &["--run-id is needed"]);
    // The innermost launcher counts, the agents' store by its own name is theirs still.
    let url = format!("c10d://127.0.0.1:{port}");
    for more in [("PMI_FD", "0"), ("RDMAPREP_RENDEZVOUS", &url)] {
        let (a, b) = (agent("0", &[on[0], more]), agent("1", &[on[0], more]));
        ends(a).ok();
        ends(b).ok();
    }
    let said = ends(agent("0", &[on[0], ("RDMAPREP_RENDEZVOUS", "static")])).ok();
    assert!(said.out.contains("\"agreement\": null"));
    ends(agent("0", &[on[0], ("LOCAL_WORLD_SIZE", "8")])).fails(2, &["--nproc-per-node 1"]);
    let said = ends(agent(
        "0",
        &[
            on[0],
            ("MASTER_ADDR", "no-such-host.invalid"),
            ("RDMAPREP_RENDEZVOUS_TIMEOUT", "1"),
        ],
    ));
    said.fails(10, &["resolving no-such-host.invalid"]);
    let both = [
        on[0],
        ("MASTER_ADDR", "no-such-host.invalid"),
        ("RDMAPREP_STORE_HOST", "127.0.0.1"),
    ];
    let (a, b) = (agent("0", &both), agent("1", &both));
    ends(a).ok();
    ends(b).ok();
}

#[test]
fn peers_reports_which_nodes_have_published_and_their_rails() {
    for manner in [Manner::Libuv, Manner::Legacy] {
        let folder = tempfile::tempdir().unwrap();
        let server = Fake::start(manner);
        let url = format!("c10d://{}", server.address);
        let look = |more: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
            command
                .env_clear()
                .args([
                    "job-status",
                    "--rendezvous",
                    &url,
                    "--nodes",
                    "3",
                    "--run-id",
                    "job.7",
                ])
                .args(more);
            run(&mut command, "")
        };
        let none = "run job.7: 0 of 3 nodes have published\nmissing: ranks 0-2\n";
        assert_eq!(look(&[]).ok().out, none);
        let part = |rank: &str, state: &str| {
            let snapshot = snapshot(folder.path(), rank, state, "rdma");
            node(folder.path(), &snapshot, &meet(&url, rank, "3", "15"))
        };
        let said = |wanted: &str| {
            let start = Instant::now();
            while !look(&[]).ok().out.contains(wanted) {
                assert!(
                    start.elapsed() < Duration::from_secs(10),
                    "{wanted}: {}",
                    look(&[]).out
                );
            }
        };
        let second = part("1", "ACTIVE");
        said("missing: ranks 0, 2\nwaiting for rank 0: rank 1\n");
        let first = part("0", "DOWN");
        said(
            "run job.7: 2 of 3 nodes have published\nmissing: rank 2\nrdma0: on all of \
            them\nrdma1: missing on ",
        );
        let seen: Value = serde_json::from_str(&look(&["--json"]).ok().out).unwrap();
        assert_eq!(seen["missing"], json!([2]));
        assert_eq!(
            seen["published"][0]["offer"]["lacks"],
            json!([["rdma1", "port_down"]])
        );
        let watch = std::thread::scope(|scope| {
            let watch = scope.spawn(|| look(&["--watch", "--rendezvous-timeout", "20"]));
            std::thread::sleep(Duration::from_millis(300));
            let third = part("2", "ACTIVE");
            let watch = watch.join().unwrap().ok().out;
            [first, second, third]
                .into_iter()
                .for_each(|node| drop(ends(node).ok()));
            watch
        });
        assert!(
            watch.contains("2 of 3 nodes") && watch.contains("3 of 3 nodes"),
            "{watch}"
        );
        server.set("rdmaprep/v1/job.7/in/0", b"\x1b[2J");
        let out = look(&[]).ok().out;
        assert!(
            out.contains("rank 0 cannot be used: it is no message of this version")
                && !out.contains('\x1b'),
            "{out}"
        );
    }
    let mut bare = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
    run(bare.env_clear().arg("job-status"), "").fails(2, &["--rendezvous: no store given"]);
    // Of a step's socket not a word is taken: this one is none.
    let mut step = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
    step.env_clear().env("PMI_FD", "99").args([
        "job-status",
        "--rendezvous",
        "pmi",
        "--nodes",
        "2",
    ]);
    run(&mut step, "").fails(2, &["only processes of the job step can read its store"]);
}

#[test]
fn peers_only_looks_into_a_file() {
    // A file that does not exist is the same as an empty one.
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("store");
    let url = format!("file://{}", at.display());
    let look = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        command.env_clear().args([
            "job-status",
            "--rendezvous",
            &url,
            "--nodes",
            "2",
            "--run-id",
            "job.7",
        ]);
        run(&mut command, "")
    };
    assert_eq!(
        look().ok().out,
        "run job.7: 0 of 2 nodes have published\nmissing: ranks 0-1\n"
    );
    assert!(!at.exists());
    let one = node(
        folder.path(),
        &snapshot(folder.path(), "one", "ACTIVE", "rdma"),
        &meet(&url, "1", "2", "5"),
    );
    let start = Instant::now();
    while !look().ok().out.contains("waiting for rank 0: rank 1") {
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    ends(one).fails(10, &["missing rank 0"]);
    let before = fs::read(&at).unwrap();
    look().ok();
    assert_eq!(before, fs::read(&at).unwrap());
    let mut nowhere = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
    nowhere.env_clear().args([
        "job-status",
        "--rendezvous",
        "file:///nonexistent/store",
        "--nodes",
        "2",
        "--run-id",
        "a",
    ]);
    run(&mut nowhere, "").fails(10, &["the folder /nonexistent does not exist"]);
}
