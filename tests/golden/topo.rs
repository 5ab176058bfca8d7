//! `rdmaprep topo`: golden folders `tests/cases/topo/NAME`, where `tree` describes a /sys (see
//! `testkit::trees::made`; a line `keep LIST` is --hca) and `topo.xml` with what `topo.err` says,
//! `topo.txt` and `topo.svg` are what comes out of it; every captured tree; and the command.
//! `UPDATE_GOLDEN=1` writes what comes out; read the diff, and look at the picture.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nccl_rules::topology_xml::{Circumstances, topology, wanted};
use rdma_model::snapshot::Snapshot;
use rdmaprep::drawing::{self, picture};
use rdmaprep::kernel::sysfs;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::trees::made::{LARGE, Shape, Sys};
use testkit::trees::{TREES, captured, unpacked};
use testkit::{Said, run};

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

fn rdmaprep(args: &[&str]) -> Said {
    run(program().args(args), "")
}

/// Compares with a golden file, or writes it.
fn golden(path: &Path, now: &str) -> Option<String> {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        // Nothing said is no file.
        let done = if now.is_empty() {
            fs::remove_file(path).or(Ok(()))
        } else {
            fs::write(path, now)
        };
        done.unwrap();
    }
    let was = fs::read_to_string(path).unwrap_or_default();
    (was != now).then(|| format!("{}:\n{}", path.display(), diffy::create_patch(&was, now)))
}

fn cases() -> Vec<PathBuf> {
    testkit::golden::cases("topo", 10)
}

/// The /sys of a case and what is kept of it.
fn made(case: &Path) -> (TempDir, String) {
    let dir = TempDir::new().unwrap();
    let text = fs::read_to_string(case.join("tree")).unwrap();
    let mut kept = "all".to_owned();
    let mut sys = Sys::new(dir.path());
    for words in sys.describe(&text) {
        match words.as_slice() {
            ["keep", list] => kept = (*list).to_owned(),
            ["large"] => drop(
                Shape {
                    vfs: 0,
                    total: 0,
                    gids: 0,
                    ..LARGE
                }
                .write(dir.path()),
            ),
            ["numa", node, map] => {
                let node = dir.path().join(format!("devices/system/node/node{node}"));
                fs::create_dir_all(&node).unwrap();
                fs::write(node.join("cpumap"), format!("{map}\n")).unwrap();
            }
            ["cpu", modalias] => {
                fs::create_dir_all(dir.path().join("devices/system/cpu")).unwrap();
                fs::write(dir.path().join("devices/system/cpu/modalias"), modalias).unwrap();
            }
            ["link", at, speed, width] => {
                let place = fs::canonicalize(dir.path().join("bus/pci/devices").join(at)).unwrap();
                fs::write(place.join("max_link_speed"), format!("{speed} GT/s PCIe\n")).unwrap();
                fs::write(place.join("max_link_width"), format!("{width}\n")).unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
    (dir, kept)
}

#[test]
fn golden_cases() {
    let mut wrong = Vec::new();
    for case in cases() {
        let (dir, kept) = made(&case);
        let root = dir.path().to_str().unwrap();
        let topo =
            |what: &[&str]| rdmaprep(&[&["topo", "--root", root, "--hca", &kept], what].concat());
        let file = topo(&["--nccl-xml"]).ok();
        testkit::topo_xml::read(&file.out)
            .unwrap_or_else(|e| panic!("{}: {e}\n{}", case.display(), file.out));
        let text = topo(&[]).ok().out;
        assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
        wrong.extend(golden(&case.join("topo.xml"), &file.out));
        wrong.extend(golden(&case.join("topo.err"), &file.err));
        wrong.extend(golden(&case.join("topo.txt"), &text));
        if case.join("topo.svg").exists() {
            wrong.extend(golden(
                &case.join("topo.svg"),
                &topo(&["--draw", "-"]).ok().out,
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "run once with UPDATE_GOLDEN=1 and read the diff\n{}",
        wrong.join("\n")
    );
}

#[test]
#[ignore = "needs RDMAPREP_REALDATA"]
fn captured_trees_give_files_that_nccl_reads() {
    let trees = captured();
    for (name, hcas, _, _, gpus) in TREES {
        let (_dir, root) = unpacked(&trees, name);
        let snapshot = sysfs::tree_snapshot(&root).unwrap();
        let all: BTreeSet<_> = snapshot.hcas.iter().map(|h| h.name.clone()).collect();
        let made = topology(&snapshot, &all);
        let text = made.xml().unwrap();
        let read = testkit::topo_xml::read(&text).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
        let nets = read.all("net").count();
        assert_eq!(nets + made.unplaced.len(), hcas, "{name}");
        let leaves = read
            .all("pci")
            .filter(|p| p.children.iter().all(|c| c.tag != "pci"))
            .count();
        assert!(
            leaves >= gpus && leaves <= gpus + nets,
            "{name}: {leaves} leaves"
        );
        let drawn = picture(&snapshot, &drawing::listed(&all, &snapshot));
        assert_eq!((drawn.gpus.len(), drawn.nics.len()), (gpus, hcas), "{name}");
        println!(
            "{name}: {gpus} GPUs, {nets} NICs placed, {} not, {} elements",
            made.unplaced.len(),
            read.count()
        );
    }
}

#[test]
#[ignore = "needs RDMAPREP_REALDATA"]
fn captured_dgx_a100_rails_are_paired_as_its_board_is() {
    let trees = captured();
    let (_dir, root) = unpacked(&trees, "dgx-a100");
    let snapshot = sysfs::tree_snapshot(&root).unwrap();
    let all = snapshot.hcas.iter().map(|h| h.name.clone()).collect();
    let drawn = picture(&snapshot, &drawing::listed(&all, &snapshot));
    let pairs: Vec<_> = drawn
        .nics
        .iter()
        .map(|n| (n.hca.as_str(), n.nearest.as_ref().unwrap()))
        .collect();
    let close: Vec<_> = pairs
        .iter()
        .filter(|(_, n)| n.is_close())
        .map(|(h, n)| (*h, n.gpu, n.hops))
        .collect();
    // One NIC beside the switch of its GPU, the other's switch as far from either GPU.
    let expected = [
        (0, 1, 3),
        (1, 0, 5),
        (2, 3, 3),
        (3, 2, 5),
        (4, 5, 3),
        (5, 4, 5),
        (6, 7, 3),
        (7, 6, 5),
    ];
    let expected: Vec<_> = expected
        .iter()
        .map(|(h, gpu, hops)| (format!("mlx5_{h}"), *gpu, *hops))
        .collect();
    assert_eq!(
        close,
        expected
            .iter()
            .map(|(h, g, n)| (h.as_str(), *g, *n))
            .collect::<Vec<_>>()
    );
    let far: Vec<_> = pairs
        .iter()
        .filter(|(_, n)| !n.is_close())
        .map(|(h, n)| (*h, n.equals))
        .collect();
    assert_eq!(far, [("mlx5_8", 8), ("mlx5_9", 8)]);
}

#[test]
fn whether_a_file_is_wanted_has_a_reason() {
    let pci = |vendor: u16| json!({"address": "0000:05:00.0", "class": 0x20000, "vendor": vendor});
    let hca = json!({"name": "mlx5_0", "pci": "0000:05:00.0", "ports": []});
    let machine = |vendor| -> Snapshot {
        serde_json::from_value(
            json!({"schema": 1, "netdevs": [], "hcas": [hca], "pci": [pci(vendor)]}),
        )
        .unwrap()
    };
    let kept: BTreeSet<_> = ["mlx5_0".parse().unwrap()].into();
    let (mlx, efa, none) = (machine(0x15b3), machine(0x1d0f), BTreeSet::new());
    let by = |own, asked, blind| Circumstances { own, asked, blind };
    for (snapshot, kept, by, file, word) in [
        (
            &mlx,
            &kept,
            by(Some("/a.xml"), Some(true), true),
            false,
            "/a.xml is set already",
        ),
        (
            &mlx,
            &kept,
            by(Some(""), Some(true), true),
            false,
            "is set already",
        ),
        (
            &mlx,
            &kept,
            by(None, Some(false), true),
            false,
            "switched off",
        ),
        (&mlx, &none, by(None, Some(true), true), false, "no HCA"),
        (&efa, &kept, by(None, Some(true), false), true, "asked for"),
        (&efa, &kept, by(None, None, true), false, "aws-ofi-nccl"),
        (
            &mlx,
            &kept,
            by(None, None, true),
            true,
            "/sys does not show",
        ),
        (
            &mlx,
            &kept,
            by(None, None, false),
            false,
            "the same from /sys",
        ),
    ] {
        let said = wanted(snapshot, kept, by);
        assert!(
            said.file == file && said.why.contains(word),
            "{by:?}: {said:?}"
        );
    }
}

// ---- the command

/// A machine with a NIC that has a place, and one that has none.
fn two() -> (TempDir, String) {
    let (dir, _) = made(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/topo/soft"));
    let root = dir.path().to_str().unwrap().to_owned();
    (dir, root)
}

#[test]
fn topo_without_gpus_and_nics_says_so() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("class/net")).unwrap();
    let said = rdmaprep(&["topo", "--root", root.path().to_str().unwrap()]).ok();
    assert!(
        said.out.starts_with("no GPU and no RDMA device is here"),
        "{said:?}"
    );
}

#[test]
fn a_nic_without_a_place_is_left_out_or_refused() {
    let (_dir, root) = two();
    let file = rdmaprep(&["topo", "--nccl-xml", "--root", &root]).ok();
    assert!(
        file.err
            .contains("left out of the topology file: rxe0: no PCI function"),
        "{}",
        file.err
    );
    assert!(
        file.out.contains("mlx5_0") && !file.out.contains("rxe0"),
        "{}",
        file.out
    );
    rdmaprep(&["topo", "--nccl-xml", "--strict", "--root", &root]).fails(3, &["--strict", "rxe0"]);
    rdmaprep(&[
        "topo",
        "--nccl-xml",
        "--strict",
        "--root",
        &root,
        "--hca",
        "mlx5_0",
    ])
    .ok();
    rdmaprep(&["topo", "--strict", "--root", &root, "--run", "true"]).fails(3, &["rxe0"]);
}

#[test]
fn a_program_gets_a_file_that_cannot_be_changed() {
    let (_dir, root) = two();
    let file = rdmaprep(&["topo", "--nccl-xml", "--root", &root]).ok().out;
    let script = "cat \"$NCCL_TOPO_FILE\"; echo x >> \"$NCCL_TOPO_FILE\" || echo sealed; \
                  echo y 1<> \"$NCCL_TOPO_FILE\" || echo sealed; echo \"$0 $@\"; exit 7";
    let said = rdmaprep(&[
        "topo", "--root", &root, "--run", "sh", "-c", script, "--hca", "-x", "--", "y",
    ]);
    assert_eq!(
        (said.code, said.out),
        (Some(7), format!("{file}sealed\nsealed\n--hca -x -- y\n")),
        "{}",
        said.err
    );
    // Read again by a child of the child.
    let said = rdmaprep(&[
        "topo",
        "--root",
        &root,
        "--run",
        "sh",
        "-c",
        "sh -c 'cat $NCCL_TOPO_FILE'; true",
    ])
    .ok();
    assert_eq!(said.out, file);
    let mut own = program();
    own.env("NCCL_TOPO_FILE", "/own.xml").args([
        "topo",
        "--root",
        &root,
        "--run",
        "sh",
        "-c",
        "echo $NCCL_TOPO_FILE",
    ]);
    let said = run(&mut own, "").ok();
    assert!(
        said.out == "/own.xml\n" && said.err.contains("/own.xml is set already"),
        "{said:?}"
    );
    rdmaprep(&["topo", "--run"]).fails(2, &["CMD"]);
    rdmaprep(&["topo", "--root", &root, "true"]).fails(2, &["--run"]);
    rdmaprep(&["topo", "--root", &root, "--run", "/nonexistent/program"])
        .fails(2, &["/nonexistent/program"]);
}

#[test]
fn more_than_nccl_reads_is_refused_with_the_number() {
    let gpu = |n: usize| {
        json!({"address": format!("{n:04x}:00:00.0"), "class": 0x30200,
            "vendor": 0x10de})
    };
    let dir = TempDir::new().unwrap();
    let topo = |gpus: usize| {
        let pci: Vec<Value> = (0..gpus).map(gpu).collect();
        let machine = json!({"schema": 1, "netdevs": [], "hcas": [], "pci": pci});
        fs::write(dir.path().join("machine.json"), machine.to_string()).unwrap();
        rdmaprep(&[
            "topo",
            "--nccl-xml",
            "--hca",
            "all",
            "--snapshot",
            dir.path().join("machine.json").to_str().unwrap(),
        ])
    };
    // system, cpu, and the GPUs.
    assert!(!topo(229).ok().err.contains("elements:"));
    let full = topo(253).ok();
    testkit::topo_xml::read(&full.out).unwrap();
    assert!(
        full.err.contains("255 elements: NCCL adds up to 24"),
        "{}",
        full.err
    );
    assert!(
        full.err
            .contains("253 elements below one: NCCL up to 2.29.2 reads 128"),
        "{}",
        full.err
    );
    topo(254).fails(3, &["255", "256"]);
}

#[test]
fn fates_come_from_the_selection_or_from_a_list() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/snapshot.json");
    let read = |args: &[&str]| {
        let common = [
            "topo",
            "--json",
            "--snapshot",
            example,
            "--config",
            "/dev/null",
        ];
        serde_json::from_str::<Value>(&rdmaprep(&[&common, args].concat()).ok().out).unwrap()
    };
    let dropped = |all: &Value| -> Vec<(String, String)> {
        let nics = all["nics"].as_array().unwrap().iter();
        let text = |v: &Value| v.as_str().unwrap_or("kept").to_owned();
        nics.map(|n| (text(&n["hca"]), text(&n["dropped"]["code"])))
            .collect()
    };
    let pairs = |rxe0: &str, rxe1: &str| {
        vec![
            ("rxe0".to_owned(), rxe0.to_owned()),
            ("rxe1".to_owned(), rxe1.to_owned()),
        ]
    };
    assert_eq!(dropped(&read(&[])), pairs("kept", "kept"));
    assert_eq!(
        dropped(&read(&["--ifaces", "rdma1"])),
        pairs("excluded", "kept")
    );
    let none = read(&["--exclude", ".*"]);
    assert_eq!(dropped(&none), pairs("excluded", "excluded"));
    assert!(
        none["nics"][0]["dropped"]["why"]
            .as_str()
            .unwrap()
            .contains("rdma0"),
        "{none}"
    );
    assert_eq!(
        dropped(&read(&["--hca", "rxe1"])),
        pairs("excluded", "kept")
    );
    rdmaprep(&["topo", "--snapshot", example, "--hca", "rxe7"]).fails(2, &["rxe7", "rxe0, rxe1"]);
    // What counts for nothing is refused; a variable may be there for another command.
    let beside = ["--ifaces", "rdma1", "--ib"];
    let refused = "--ifaces, --ib would change nothing";
    let list = ["topo", "--snapshot", example, "--hca", "rxe1"];
    rdmaprep(&[&list[..], &beside].concat()).fails(2, &[refused, "--hca"]);
    let (_dir, root) = two();
    let tree = ["topo", "--root", &root];
    rdmaprep(&[&tree[..], &beside].concat()).fails(2, &[refused, "captured"]);
    run(program().args(tree).env("RDMA_IFACES", "rdma1"), "").ok();
    rdmaprep(&["topo", "--snapshot", example, "--nccl-xml", "--json"]).fails(2, &["--nccl-xml"]);
}

#[test]
fn a_picture_is_written_where_it_was_asked_for() {
    let (dir, root) = two();
    let file = dir.path().join("picture.svg");
    rdmaprep(&["topo", "--root", &root, "--draw", file.to_str().unwrap()]).ok();
    let drawn = fs::read_to_string(&file).unwrap();
    assert!(
        drawn.starts_with("<svg ")
            && drawn.ends_with("</svg>\n")
            && drawn.contains("prefers-color-scheme: dark")
    );
    // A netdev's name may hold what XML does not take, and what turns the reading direction.
    let hca = json!({"name": "mlx5_0", "ports": [{"number": 1, "netdev": "a<b&\u{202e}c"}]});
    let machine = json!({"schema": 1, "netdevs": [], "hcas": [hca]}).to_string();
    let drawn = picture(
        &serde_json::from_str(&machine).unwrap(),
        &drawing::Fates::new(),
    );
    assert!(
        drawing::svg(&drawn).contains(">a&lt;b&amp;\\u{202e}c</text>"),
        "{}",
        drawing::svg(&drawn)
    );
    assert!(
        drawing::text(&drawn).contains("NIC mlx5_0 a<b&\\u{202e}c"),
        "{}",
        drawing::text(&drawn)
    );
    rdmaprep(&["topo", "--root", &root, "--draw", "/nonexistent/x.svg"])
        .fails(2, &["/nonexistent/x.svg"]);
}

/// Where a snapshot has an HCA's address and not the function.
#[test]
fn a_function_that_the_snapshot_lacks_is_not_none() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/snapshot.json");
    let mut node: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut card = node["hcas"][0].clone();
    (card["name"], card["pci"]) = (json!("mlx5_0"), json!("0000:05:00.0"));
    node["hcas"].as_array_mut().unwrap().push(card);
    let snapshot: Snapshot = serde_json::from_value(node).unwrap();
    let hcas = snapshot.hcas.iter().map(|h| h.name.clone()).collect();
    let picture = picture(&snapshot, &drawing::listed(&hcas, &snapshot));
    let text = drawing::text(&picture);
    let (soft, lacking) = text
        .split_once("on PCI functions that the snapshot lacks\n")
        .unwrap();
    assert!(soft.contains("on no PCI function\n   NIC rxe0"), "{text}");
    assert!(
        lacking.contains("NIC mlx5_0") && lacking.contains("  0000:05:00.0"),
        "{text}"
    );
    assert!(!lacking.contains("rxe0"), "{text}");
    let svg = drawing::svg(&picture);
    assert!(svg.contains("On PCI functions that the snapshot lacks"));
}
