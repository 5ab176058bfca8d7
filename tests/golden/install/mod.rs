//! `rdmaprep install` and `uninstall`, by golden folders: `tests/cases/install/NAME/{args,tree/}`;
//! what `--dry-run` says is `expected.txt`, with the exit code first. `UPDATE_GOLDEN=1` writes what
//! comes out; read the diff. Of each case that can be installed, a second install changes nothing,
//! and uninstalling restores the tree.

mod converge;
mod devices;
mod edits;
mod uninstall;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::alone;
use anyhow::Result;
use proptest::prelude::*;
use rdmaprep::cli::{self, Cli};
use rdmaprep::deadline;
use rdmaprep::disk::host_tree::{Content, ReadTree};
use rdmaprep::install::{self, Change, InstallRequest, Installation, Manifest, Target};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{Container, Said, run, sh};

fn rdmaprep(command: &str, root: &Path, args: &[&str]) -> Said {
    let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
    run(
        program
            .env_clear()
            .arg(command)
            .arg("--root")
            .arg(root)
            .args(args),
        "",
    )
}

/// A copy of a case's tree, links as they are.
fn copy(case: &Path) -> TempDir {
    let root = TempDir::new().unwrap();
    let tree = case.join("tree");
    if tree.exists() {
        assert!(
            Command::new("cp")
                .arg("-a")
                .arg(tree.join("."))
                .arg(root.path())
                .status()
                .unwrap()
                .success()
        );
    }
    root
}

/// Everything below a folder: kind, mode, owner and content.
fn all(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(root).unwrap().map(Result::unwrap) {
        let (path, meta) = (entry.path(), entry.metadata().unwrap());
        let content = match meta.file_type() {
            kind if kind.is_dir() => String::new(),
            kind if kind.is_symlink() => fs::read_link(&path).unwrap().display().to_string(),
            kind if kind.is_file() => format!("{:?}", fs::read(&path).unwrap()),
            kind => format!("{kind:?}"),
        };
        if meta.is_dir() {
            all.extend(self::all(&path));
        }
        all.insert(
            path,
            format!("{:o} {}:{} {content}", meta.mode(), meta.uid(), meta.gid()),
        );
    }
    all
}

const OUR_DEVICES: &str =
    r#"{"cdiVersion":"0.3.0","kind":"rdmaprep.io/rail","devices":[],"containerEdits":{}}"#;

/// Below such a line is what an administrator adds to a file.
const TO_PASTE: &str = ": add this to it, and restart ";

#[test]
fn golden_cases() {
    let cases = testkit::golden::cases("install", 72);
    let (mut wrong, mut installed) = (Vec::new(), 0);
    for case in &cases {
        let args = fs::read_to_string(case.join("args")).unwrap();
        let args: Vec<&str> = args.lines().filter(|line| !line.is_empty()).collect();
        let root = copy(case);
        let before = all(root.path());
        let said = rdmaprep(
            "install",
            root.path(),
            &[&args[..], &["--dry-run"]].concat(),
        );
        let place = root.path().display().to_string();
        let text = format!("exit {}\n{}{}", said.code.unwrap(), said.out, said.err)
            .replace(&place, "ROOT");
        assert_eq!(
            before,
            all(root.path()),
            "{}: a dry run has changed something",
            case.display()
        );
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(case.join("expected.txt"), &text).unwrap();
        }
        if fs::read_to_string(case.join("expected.txt")).unwrap_or_default() != text {
            wrong.push(format!("{}:\n{text}", case.display()));
        }
        if said.code != Some(0) {
            let refused = rdmaprep("install", root.path(), &args);
            match said.err.contains(TO_PASTE) {
                true => assert_eq!((refused.code, &refused.err), (said.code, &said.err)),
                false => drop(refused.fails(said.code.unwrap(), &[])),
            }
            assert_eq!(
                before,
                all(root.path()),
                "{}: a refusal has changed something",
                case.display()
            );
            continue;
        }
        let made = rdmaprep("install", root.path(), &args).ok().out;
        let once = all(root.path());
        assert_eq!(
            once == before,
            made.contains("nothing to change"),
            "{}: {made}",
            case.display()
        );
        assert!(
            rdmaprep("install", root.path(), &args)
                .ok()
                .out
                .contains("nothing to change"),
            "{}",
            case.display()
        );
        assert_eq!(
            once,
            all(root.path()),
            "{}: twice is not once",
            case.display()
        );
        // What an administrator has added is his to take out.
        let mut forced = Vec::new();
        if let Ok(refusal) = fs::read_to_string(case.join("uninstall")) {
            rdmaprep("uninstall", root.path(), &[]).fails(3, &[refusal.trim()]);
            forced.push("--leave-changed");
        }
        rdmaprep(
            "uninstall",
            root.path(),
            &[&forced[..], &["--dry-run"]].concat(),
        )
        .ok();
        assert_eq!(
            once,
            all(root.path()),
            "{}: a dry run has changed something",
            case.display()
        );
        rdmaprep("uninstall", root.path(), &forced).ok();
        assert_eq!(
            before,
            all(root.path()),
            "{}: not as it was",
            case.display()
        );
        installed += 1;
    }
    assert!(
        wrong.is_empty(),
        "UPDATE_GOLDEN=1 accepts these:\n{}",
        wrong.join("\n")
    );
    assert!(installed > 20, "{installed}");
}

#[test]
fn json_tells_the_same() {
    let root = TempDir::new().unwrap();
    fs::create_dir_all(root.path().join("usr/bin")).unwrap();
    fs::write(root.path().join("usr/bin/podman"), "").unwrap();
    let said: Value =
        serde_json::from_str(&rdmaprep("install", root.path(), &["--json"]).ok().out).unwrap();
    assert_eq!(
        said["found"],
        json!([{"target": "podman", "by": "/usr/bin/podman"}])
    );
    assert_eq!(
        (&said["targets"], said["examples"].as_array().unwrap().len()),
        (&json!(["podman"]), 1)
    );
    assert_eq!(said["changes"].as_array().unwrap().len(), 5);
    assert_eq!(
        (&said["changes"][0]["change"], &said["dry_run"]),
        (&json!("create"), &json!(false))
    );
    let said: Value =
        serde_json::from_str(&rdmaprep("uninstall", root.path(), &["--json"]).ok().out).unwrap();
    assert!(
        said["changes"]
            .as_array()
            .unwrap()
            .iter()
            .all(|c| c["change"] == "remove"),
        "{said}"
    );
}

#[test]
fn edited_file_keeps_owner_and_mode_and_a_new_one_is_readable() {
    let root = TempDir::new().unwrap();
    let daemon = root.path().join("etc/docker/daemon.json");
    fs::create_dir_all(daemon.parent().unwrap()).unwrap();
    fs::write(&daemon, "{}").unwrap();
    fs::set_permissions(&daemon, fs::Permissions::from_mode(0o640)).unwrap();
    let mut program = Command::new("sh");
    program.args([
        "-c",
        "umask 0077; exec \"$@\"",
        "sh",
        env!("CARGO_BIN_EXE_rdmaprep"),
        "install",
    ]);
    run(
        program
            .env_clear()
            .args(["--docker", "--systemd", "--root"])
            .arg(root.path()),
        "",
    )
    .ok();
    let mode = |path: &str| fs::metadata(root.path().join(path)).unwrap().mode() & 0o7777;
    assert_eq!(mode("etc/docker/daemon.json"), 0o640);
    assert_eq!(mode("etc/systemd/system/rdmaprep-stale.timer"), 0o644);
    assert_eq!(mode("etc/systemd/system/timers.target.wants"), 0o755);
    assert_eq!(mode("var/lib"), 0o755);
    // The manifest contains the text of files that only root can read.
    assert_eq!(
        (
            mode("var/lib/rdmaprep"),
            mode("var/lib/rdmaprep/installed.json")
        ),
        (0o700, 0o600)
    );
}

/// Both commands replace a file by a new one: it has all of the old one's attributes.
#[test]
fn a_replaced_file_keeps_mode_bits_owner_and_acl() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    alone(|_| {
        let root = TempDir::new_in("/run").unwrap();
        let daemon = root.path().join("etc/docker/daemon.json");
        fs::create_dir_all(daemon.parent().unwrap()).unwrap();
        // Version 2; user::rw-, user:0:r--, group::r--, mask::rw-, other::---
        // (include/uapi/linux/posix_acl_xattr.h).
        let entry = |tag: u16, perm: u16, id: u32| {
            [tag.to_le_bytes(), perm.to_le_bytes()]
                .concat()
                .into_iter()
                .chain(id.to_le_bytes())
        };
        let (none, entries) = (
            u32::MAX,
            [(0x01, 6), (0x02, 4), (0x04, 4), (0x10, 6), (0x20, 0)],
        );
        let acl: Vec<u8> = 2u32
            .to_le_bytes()
            .into_iter()
            .chain(
                entries
                    .into_iter()
                    .flat_map(|(tag, perm)| entry(tag, perm, if tag == 2 { 0 } else { none })),
            )
            .collect();
        let value = |name: &str| {
            let mut buffer = vec![0; 256];
            getxattr(&daemon, name, buffer.as_mut_slice()).map(|length| buffer[..length].to_vec())
        };
        for mode in [0o2664, 0o4660, 0o1640, 0o6775, 0o600] {
            fs::write(&daemon, "{}").unwrap();
            setxattr(
                &daemon,
                "system.posix_acl_access",
                &acl,
                XattrFlags::empty(),
            )
            .unwrap();
            fs::set_permissions(&daemon, fs::Permissions::from_mode(mode)).unwrap();
            let kept = value("system.posix_acl_access").unwrap();
            let now = || {
                let meta = fs::metadata(&daemon).unwrap();
                (
                    meta.mode() & 0o7777,
                    meta.uid(),
                    meta.gid(),
                    value("system.posix_acl_access").unwrap(),
                )
            };
            rdmaprep("install", root.path(), &["--docker"]).ok();
            assert!(fs::read_to_string(&daemon).unwrap().contains("rdmaprep"));
            assert_eq!(now(), (mode, 0, 0, kept.clone()), "install, {mode:o}");
            rdmaprep("uninstall", root.path(), &[]).ok();
            assert_eq!(fs::read_to_string(&daemon).unwrap(), "{}");
            assert_eq!(now(), (mode, 0, 0, kept), "uninstall, {mode:o}");
            fs::remove_file(&daemon).unwrap();
        }
        // What a folder gives to each new file in it is not the old one's.
        let folder = daemon.parent().unwrap();
        fs::write(&daemon, "{}").unwrap();
        fs::set_permissions(&daemon, fs::Permissions::from_mode(0o640)).unwrap();
        setxattr(
            folder,
            "system.posix_acl_default",
            &acl,
            XattrFlags::empty(),
        )
        .unwrap();
        rdmaprep("install", root.path(), &["--docker"]).ok();
        assert_eq!(fs::metadata(&daemon).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(
            value("system.posix_acl_access"),
            Err(rustix::io::Errno::NODATA)
        );
    });
}

#[test]
fn a_conflict_is_reported_and_nothing_is_left_behind() {
    type Setup = fn(&Path);
    let cases: [(Setup, i32, &str); 4] = [
        (
            |root| fs::create_dir_all(root.join("etc/docker/daemon.json")).unwrap(),
            2,
            "no plain file",
        ),
        (
            |root| {
                fs::create_dir_all(root.join("etc/docker")).unwrap();
                assert!(
                    Command::new("mkfifo")
                        .arg(root.join("etc/docker/daemon.json"))
                        .status()
                        .unwrap()
                        .success()
                );
            },
            2,
            "no plain file",
        ),
        // Seen only when folders are made, after those for the targets before it.
        (
            |root| symlink("nowhere", root.join("etc")).unwrap(),
            2,
            "etc",
        ),
        (
            |root| {
                fs::create_dir_all(root.join("etc")).unwrap();
                fs::write(root.join("etc/systemd"), "").unwrap();
            },
            1,
            "etc/systemd/",
        ),
    ];
    for (setup, code, word) in cases {
        let root = TempDir::new().unwrap();
        setup(root.path());
        let before = all(root.path());
        rdmaprep("install", root.path(), &["--all"]).fails(code, &[word]);
        assert_eq!(before, all(root.path()));
    }
    rdmaprep("install", Path::new("/nonexistent"), &["--all"]).fails(2, &["/nonexistent"]);
}

#[test]
fn a_ledger_that_cannot_be_read_stops_both() {
    let root = TempDir::new().unwrap();
    rdmaprep("install", root.path(), &["--crio"]).ok();
    let manifest = root.path().join("var/lib/rdmaprep/installed.json");
    let whole = fs::read_to_string(&manifest).unwrap();
    for damaged in [
        whole.replacen("\"schema\": 1", "\"schema\": 99", 1),
        whole[..whole.len() / 2].to_owned(),
    ] {
        fs::write(&manifest, &damaged).unwrap();
        let before = all(root.path());
        rdmaprep("uninstall", root.path(), &[]).fails(2, &["installed.json"]);
        rdmaprep("install", root.path(), &["--docker"]).fails(2, &["installed.json"]);
        assert_eq!(before, all(root.path()));
    }
    // Fields that a later version adds are no damage.
    fs::write(
        &manifest,
        whole.replacen("\"schema\": 1,", "\"schema\": 1, \"later\": [],", 1),
    )
    .unwrap();
    rdmaprep("uninstall", root.path(), &[]).ok();
    assert!(!root.path().join("usr").exists());
}

#[test]
fn another_place_of_the_program_takes_the_first_ones_place() {
    let root = TempDir::new().unwrap();
    let at = |path: &str| {
        rdmaprep(
            "install",
            root.path(),
            &["--docker", "--systemd", "--program", path],
        )
        .ok()
    };
    at("/opt/rdmaprep");
    at("/usr/bin/rdmaprep");
    let timer = fs::read_to_string(
        root.path()
            .join("etc/systemd/system/rdmaprep-stale.service"),
    )
    .unwrap();
    let daemon = fs::read_to_string(root.path().join("etc/docker/daemon.json")).unwrap();
    assert!(
        timer.contains("ExecStart=/usr/bin/rdmaprep ")
            && daemon.contains("/usr/bin/rdmaprep-runtime"),
        "{daemon}"
    );
    rdmaprep("uninstall", root.path(), &[]).ok();
    assert_eq!(all(root.path()), BTreeMap::new());
}

/// The files below a folder, without the ledger of an installation.
fn files(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut files = all(root);
    files.retain(|path, _| !path.is_dir() && !path.ends_with("installed.json"));
    files
        .into_iter()
        .map(|(path, content)| (path.strip_prefix(root).unwrap().to_owned(), content))
        .collect()
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// What did not come about need not be undone: a file that is a mount cannot be replaced.
#[test]
fn only_the_change_that_fails_is_reported() {
    alone(|_| {
        let root = TempDir::new().unwrap();
        put(root.path(), "etc/docker/daemon.json", "{}");
        let daemon = root.path().join("etc/docker/daemon.json");
        let before = all(root.path());
        sh(&format!("mount --bind {0} {0}", daemon.display()));
        let said =
            rdmaprep("install", root.path(), &["--docker", "--crio"]).fails(1, &["daemon.json"]);
        assert!(!said.err.contains("incomplete"), "{said:?}");
        sh(&format!("umount {}", daemon.display()));
        assert_eq!(all(root.path()), before);
        // Nor does a file system that is read-only hide behind what was never made there.
        sh(&format!(
            "mkdir {0}/usr; mount -t tmpfs -o ro none {0}/usr",
            root.path().display()
        ));
        let said =
            rdmaprep("install", root.path(), &["--crio"]).fails(1, &["creating", "Read-only"]);
        assert!(
            !said.err.contains("incomplete") && !said.err.contains("removing"),
            "{said:?}"
        );
        sh(&format!(
            "umount {0}/usr; rmdir {0}/usr",
            root.path().display()
        ));
        assert_eq!(all(root.path()), before);
    });
}

#[test]
fn lines_of_a_toml_file_end_as_they_did() {
    let root = TempDir::new().unwrap();
    let text =
        "\u{feff}version = 2\r\nroot = \"/data\" # large\r\n\r\n[grpc]\r\naddress = \"/x\"\r\n";
    put(root.path(), "etc/containerd/config.toml", text);
    let config = root.path().join("etc/containerd/config.toml");
    rdmaprep("install", root.path(), &["--containerd"]).ok();
    let ours = fs::read_to_string(&config).unwrap();
    assert!(
        ours.starts_with(&text[..text.len() - 2])
            && ours.matches('\n').count() == ours.matches("\r\n").count(),
        "{ours}"
    );
    fs::write(&config, ours + "[debug]\r\nlevel = \"info\"\r\n").unwrap();
    rdmaprep("uninstall", root.path(), &[]).ok();
    let left = fs::read_to_string(&config).unwrap();
    assert!(
        left.starts_with(text) && left.ends_with("[debug]\r\nlevel = \"info\"\r\n"),
        "{left:?}"
    );
}

/// A hook that a runtime kills leaves more behind than one that gives up and undoes what it did.
#[test]
fn hooks_give_up_before_they_are_killed() {
    let mut seen = 0;
    for folder in [
        "hooks/oci-hooks.d",
        "hooks/gvisor-hooks.d",
        "hooks/podman-hooks.d",
    ] {
        for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
            let value: Value =
                serde_json::from_str(&fs::read_to_string(file.unwrap().path()).unwrap()).unwrap();
            let args: Vec<String> = serde_json::from_value(value["hook"]["args"].clone()).unwrap();
            let timeout = u32::try_from(value["hook"]["timeout"].as_u64().unwrap()).unwrap();
            match Cli::read(&args).unwrap().command {
                cli::Command::Hook(hook) => {
                    // They know when they are ended, and reckon with it by the number of their
                    // NICs: see src/deadline.rs.
                    assert_eq!(
                        (hook.deadline, hook.hook_timeout),
                        (None, Some(timeout)),
                        "{args:?}"
                    );
                    assert!(timeout >= deadline::timeout(512), "{args:?}");
                    seen += 1;
                }
                other => assert!(matches!(other, cli::Command::Spec(_)), "{args:?}"),
            }
        }
    }
    assert_eq!(seen, 4);
}

/// Each of them adds to what the others have written down.
#[test]
fn installs_at_once_are_all_taken_out() {
    let root = TempDir::new().unwrap();
    let start = |command: &str, more: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        let program = program
            .env_clear()
            .arg(command)
            .arg("--root")
            .arg(root.path())
            .args(more);
        program.stdout(Stdio::null()).spawn().unwrap()
    };
    for _ in 0..5 {
        let all = ["--docker", "--crio", "--systemd", "--podman"]
            .map(|t| start("install", &[t, "--program", "/usr/bin/rdmaprep"]));
        all.into_iter()
            .for_each(|mut child| assert!(child.wait().unwrap().success()));
        assert!(start("uninstall", &[]).wait().unwrap().success());
        let left: Vec<_> = fs::read_dir(root.path())
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        assert_eq!(left, [] as [PathBuf; 0]);
    }
}
