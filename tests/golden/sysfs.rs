//! `rdmaprep sysfs` and `rdmaprep spec` as commands: what they print, and what they refuse.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{Said, run};

fn rdmaprep(args: &[&str], input: &str) -> Said {
    run(
        Command::new(env!("CARGO_BIN_EXE_rdmaprep"))
            .env_clear()
            .args(args),
        input,
    )
}

/// Two NICs on one root bus, and what leads to them.
fn sys() -> TempDir {
    let dir = TempDir::new().unwrap();
    let at = |path: &str| dir.path().join(path);
    let link = |path: &str, target: &str| {
        fs::create_dir_all(at(path).parent().unwrap()).unwrap();
        symlink(target, at(path)).unwrap();
    };
    for (n, slot) in [(0, "0000:00:05.0"), (1, "0000:00:06.0")] {
        let function = format!("devices/pci0000:00/{slot}");
        let (hca, verbs) = (
            format!("{function}/infiniband/mlx5_{n}"),
            format!("{function}/infiniband_verbs/uverbs{n}"),
        );
        for (file, text) in [
            (format!("{function}/class"), "0x020700\n".to_owned()),
            (format!("{function}/vendor"), "0x15b3".to_owned()),
            (
                format!("{hca}/node_guid"),
                format!("0000:0000:0000:000{n}\n"),
            ),
            (format!("{hca}/ports/1/state"), "4: ACTIVE\n".to_owned()),
            (
                format!("{hca}/ports/1/counters/port_xmit_data"),
                "7\n".to_owned(),
            ),
            (format!("{verbs}/ibdev"), format!("mlx5_{n}\n")),
            (format!("{verbs}/dev"), format!("231:19{}\n", n + 2)),
        ] {
            fs::create_dir_all(at(&file).parent().unwrap()).unwrap();
            fs::write(at(&file), text).unwrap();
        }
        link(
            &format!("bus/pci/devices/{slot}"),
            &format!("../../../{function}"),
        );
        link(
            &format!("class/infiniband/mlx5_{n}"),
            &format!("../../{hca}"),
        );
        link(
            &format!("class/infiniband_verbs/uverbs{n}"),
            &format!("../../{verbs}"),
        );
        link(&format!("{hca}/device"), &format!("../../../{slot}"));
    }
    dir
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn what_is_exported_is_written_out_and_exported_again() {
    let root = sys();
    let work = TempDir::new().unwrap();
    let (document, copy) = (work.path().join("a.json"), work.path().join("copy"));
    for hca in ["all", "mlx5_1", "mlx5_0, mlx5_1"] {
        let export = rdmaprep(
            &["sysfs", "export", "--root", text(root.path()), "--hca", hca],
            "",
        )
        .ok()
        .out;
        assert!(!export.contains("counters"), "{export}");
        assert_eq!(
            export.contains("mlx5_0"),
            hca != "mlx5_1",
            "{hca}: {export}"
        );
        assert_eq!(serde_json::from_str::<Value>(&export).unwrap()["schema"], 1);
        fs::write(&document, &export).unwrap();
        rdmaprep(
            &[
                "sysfs",
                "materialize",
                "--from",
                text(&document),
                text(&copy),
            ],
            "",
        )
        .ok();
        assert_eq!(
            fs::read_to_string(copy.join("bus/pci/devices/0000:00:06.0/vendor")).unwrap(),
            "0x15b3\n"
        );
        let again = rdmaprep(&["sysfs", "export", "--root", text(&copy)], "")
            .ok()
            .out;
        assert_eq!(again, export, "{hca}");
        let same = rdmaprep(
            &[
                "sysfs",
                "diff",
                "--root",
                text(&copy),
                "--from",
                text(&document),
            ],
            "",
        )
        .ok()
        .out;
        assert_eq!(same, "no difference\n", "{hca}");
        // The document from stdin, into a folder that is there and empty.
        fs::remove_dir_all(&copy).unwrap();
        fs::create_dir(&copy).unwrap();
        rdmaprep(
            &["sysfs", "materialize", "--from", "-", text(&copy)],
            &export,
        )
        .ok();
        rdmaprep(
            &["sysfs", "materialize", "--from", "-", text(&copy)],
            &export,
        )
        .fails(2, &["not empty"]);
        fs::remove_dir_all(&copy).unwrap();
    }
}

#[test]
fn a_difference_is_described_in_words() {
    let root = sys();
    let diff = |mode: &str| {
        rdmaprep(
            &[
                "sysfs",
                "diff",
                "--root",
                text(root.path()),
                "--hca",
                "mlx5_0",
                "--mode",
                mode,
            ],
            "",
        )
        .ok()
        .out
    };
    assert_eq!(
        diff("live"),
        "bus/pci/devices: not seen: 0000:00:06.0\nclass/infiniband: not seen: mlx5_1\n\
         class/infiniband_verbs: not seen: uverbs1\ndevices/pci0000:00/0000:00:06.0: empty\n"
    );
    assert_eq!(
        diff("snapshot"),
        "bus/pci/devices: not seen: 0000:00:06.0\nclass/infiniband: not seen: mlx5_1\n\
         class/infiniband_verbs: not seen: uverbs1\ndevices/pci0000:00: not seen: 0000:00:06.0\n\
         devices/pci0000:00: not in a snapshot: 2 files\n"
    );
    let lines: Value = serde_json::from_str(
        &rdmaprep(
            &[
                "sysfs",
                "diff",
                "--root",
                text(root.path()),
                "--hca",
                "mlx5_0",
                "--json",
            ],
            "",
        )
        .ok()
        .out,
    )
    .unwrap();
    assert_eq!(lines.as_array().unwrap().len(), 5);
}

#[test]
fn what_a_snapshot_never_has_is_counted_by_folder() {
    let root = sys();
    let diff = || {
        rdmaprep(
            &["sysfs", "diff", "--root", text(root.path()), "--hca", "all"],
            "",
        )
        .ok()
        .out
    };
    assert_eq!(diff(), "devices/pci0000:00: not in a snapshot: 2 files\n");
    let put = |path: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "1\n").unwrap();
    };
    let more = [
        "module/a/refcnt",
        "module/b/refcnt",
        "module/b/parameters/x",
        "class/infiniband/extra",
        "top",
    ];
    more.into_iter().for_each(put);
    symlink("../module/a", root.path().join("module/b/link")).unwrap();
    symlink(
        "/nowhere",
        root.path()
            .join("devices/pci0000:00/0000:00:05.0/firmware_node"),
    )
    .unwrap();
    assert_eq!(
        diff(),
        ".: not in a snapshot: 1 file\nclass/infiniband: not in a snapshot: 1 file\n\
         devices/pci0000:00: not in a snapshot: 2 files, 1 link\nmodule: not in a snapshot: 3 \
         files, 1 link\n"
    );
    // A tree that was written from a snapshot has all that one of it would have.
    let copy = TempDir::new().unwrap();
    let document = rdmaprep(&["sysfs", "export", "--root", text(root.path())], "")
        .ok()
        .out;
    let copy = copy.path().join("copy");
    rdmaprep(
        &["sysfs", "materialize", "--from", "-", text(&copy)],
        &document,
    )
    .ok();
    let again = rdmaprep(
        &["sysfs", "diff", "--root", text(&copy), "--hca", "all"],
        "",
    )
    .ok()
    .out;
    assert_eq!(again, "no difference\n");
}

#[test]
fn bad_input_is_refused_in_one_line() {
    let root = sys();
    let root = text(root.path());
    rdmaprep(&["sysfs", "export", "--root", "/nonexistent"], "").fails(2, &["/nonexistent"]);
    rdmaprep(&["sysfs", "export", "--root", root, "--hca", "mlx5_7"], "")
        .fails(2, &["mlx5_7", "mlx5_0, mlx5_1"]);
    rdmaprep(&["sysfs", "export", "--root", root, "--hca", "../x"], "").fails(2, &["../x"]);
    rdmaprep(&["sysfs", "export", "--root", root, "--mode", "dead"], "").fails(2, &["dead"]);
    rdmaprep(
        &["sysfs", "materialize", "--from", "/nonexistent", "/tmp/x"],
        "",
    )
    .fails(2, &["/nonexistent"]);
    rdmaprep(&["prepare", "--sysfs", "dead"], "").fails(2, &["--sysfs", "dead"]);
    let work = TempDir::new().unwrap();
    let (out, outside) = (work.path().join("out"), work.path().join("outside"));
    let entry =
        |kind: &str, path: &str, key: &str, value: &str| json!({kind: {"path": path, key: value}});
    let dir = |path: &str| json!({"dir": {"path": path}});
    for (entries, word) in [
        (vec![dir("..")], "no path"),
        (vec![dir("/etc")], "no path"),
        (vec![dir("a"), dir("a/../b")], "no path"),
        (vec![dir("a//b")], "no path"),
        (
            vec![entry("file", "a/b", "text", "x")],
            "before its directory",
        ),
        // A link that leads out, with something to be written below it.
        (
            vec![
                entry("link", "a", "target", text(work.path())),
                entry("file", "a/outside", "text", "x"),
            ],
            "directory",
        ),
        (vec![dir("a"), dir("a")], "twice"),
        (vec![entry("binary", "a", "hex", "f")], "hexadecimal"),
        (vec![entry("binary", "a", "hex", "zz")], "hexadecimal"),
        (vec![entry("socket", "a", "hex", "00")], "socket"),
    ] {
        let document = json!({"schema": 1, "entries": entries}).to_string();
        rdmaprep(
            &["sysfs", "materialize", "--from", "-", text(&out)],
            &document,
        )
        .fails(2, &[word]);
        assert!(!out.exists() && !outside.exists(), "{document}");
    }
    for document in [
        "",
        "{",
        "[]",
        "{\"schema\":2,\"entries\":[]}",
        "{\"schema\":1}",
    ] {
        rdmaprep(
            &["sysfs", "materialize", "--from", "-", text(&out)],
            document,
        )
        .fails(2, &["reading"]);
        assert!(!out.exists());
    }
}

#[test]
fn spec_edits_a_container_that_asks_and_passes_on_others() {
    let work = TempDir::new().unwrap();
    let (run_dir, state) = (work.path().join("run"), work.path().join("state"));
    let places = [
        "--run-dir",
        text(&run_dir),
        "--state-dir",
        text(&state),
        "--config",
        "/dev/null",
    ];
    let snapshot = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/snapshot.json");
    rdmaprep(
        &[
            &["prepare", "--plan", "a", "--snapshot", snapshot][..],
            &places,
        ]
        .concat(),
        "",
    )
    .ok();
    let config = include_str!("../../examples/spec.json");
    let spec =
        |extra: &[&str], config: &str| rdmaprep(&[&["spec"][..], extra, &places].concat(), config);
    assert_eq!(spec(&[], config).ok().out, config);
    // Text that is no config.json is printed unchanged unless a plan is asked for.
    for text in ["", "no json", "{}", "{ \"hooks\": 7 }"] {
        assert_eq!(spec(&[], text).ok().out, text);
    }
    spec(&["--plan", "a"], "no json").fails(5, &["config.json"]);
    let mut asking: Value = serde_json::from_str(config).unwrap();
    asking["annotations"] = json!({"rdmaprep.io/plan": "a"});
    let by_annotation = spec(&[], &asking.to_string()).ok().out;
    let once = spec(&["--plan", "a"], config).ok().out;
    for edited in [&by_annotation, &once] {
        let edited: Value = serde_json::from_str(edited).unwrap();
        let env = edited["process"]["env"].as_array().unwrap();
        assert!(
            env.iter()
                .any(|e| e.as_str().unwrap().starts_with("NCCL_IB_HCA==")),
            "{env:?}"
        );
        assert_eq!(edited["hooks"].as_object().unwrap().len(), 4);
    }
    assert_eq!(spec(&["--plan", "a"], &once).ok().out, once);
    spec(&["--plan", "b"], &asking.to_string()).fails(3, &["plan a", "plan b"]);
}
