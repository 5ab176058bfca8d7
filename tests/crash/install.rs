//! `install` and `uninstall` that fail, or are killed, at every point: nothing is changed by a
//! failure, and what is left of a kill is taken out by `uninstall`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Runs it with that fault; whether it succeeded, and whether the fault's point was passed.
fn rdmaprep(command: &str, root: &Path, fault: Option<(usize, &str)>) -> (bool, bool) {
    let passed = TempDir::new().unwrap();
    let points = passed.path().join("points");
    let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
    program.env_clear().env("RDMAPREP_FAULT_POINTS", &points);
    match command {
        "uninstall" => program.arg("uninstall"),
        "install" => program.args(["install", "--all", "--program", "/usr/local/bin/rdmaprep"]),
        // With a program elsewhere, each of our files has another text.
        "install again" => program.args(["install", "--all", "--program", "/opt/rdmaprep"]),
        "install elsewhere" => program.args(["install", "--all", "--program", "/srv/rdmaprep"]),
        "podman by command" => program.args(["install", "--podman", "--command", "^a$"]),
        "podman" => program.args(["install", "--podman"]),
        other => panic!("{other}"),
    };
    program.arg("--root").arg(root);
    if let Some((number, way)) = fault {
        program.env("RDMAPREP_FAULT", format!("{number}:{way}"));
    }
    let output = program.output().unwrap();
    let points = fs::read_to_string(&points)
        .unwrap_or_default()
        .lines()
        .count();
    (
        output.status.success(),
        fault.is_some_and(|(number, _)| points >= number),
    )
}

/// All that is there.
fn all(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for path in fs::read_dir(root).unwrap().map(|e| e.unwrap().path()) {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            all.extend(self::all(&path));
            all.insert(path, Vec::new());
        } else {
            let link = || {
                fs::read_link(&path)
                    .unwrap()
                    .into_os_string()
                    .into_encoded_bytes()
            };
            let content = if meta.is_symlink() {
                link()
            } else {
                fs::read(&path).unwrap()
            };
            all.insert(path, content);
        }
    }
    all
}

/// A host with files of its administrator's.
fn host() -> TempDir {
    let root = TempDir::new().unwrap();
    for (path, text) in [
        ("etc/docker/daemon.json", "{\n  \"debug\": true\n}\n"),
        (
            "etc/containerd/config.toml",
            "version = 2 # the second\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = '/b'\n",
        ),
        ("var/lib/other", ""),
    ] {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

#[test]
fn an_install_that_fails_has_changed_nothing() {
    for (command, least) in [("install", 30), ("install again", 15)] {
        let mut points = 0;
        loop {
            let host = host();
            if command != "install" {
                assert!(rdmaprep("install", host.path(), None).0);
            }
            let before = all(host.path());
            let (succeeded, passed) = rdmaprep(command, host.path(), Some((points + 1, "error")));
            if !passed {
                assert!(succeeded);
                break;
            }
            points += 1;
            assert!(!succeeded, "{command}, point {points}");
            assert_eq!(before, all(host.path()), "{command}, point {points}");
        }
        assert!(points > least, "{command}: {points}");
    }
}

#[test]
fn what_a_killed_one_left_is_taken_out() {
    for (command, least) in [("install", 30), ("install again", 5), ("uninstall", 15)] {
        for way in ["kill", "error"] {
            let mut points = 0;
            loop {
                let host = host();
                let before = all(host.path());
                if command != "install" {
                    assert!(rdmaprep("install", host.path(), None).0);
                }
                if !rdmaprep(command, host.path(), Some((points + 1, way))).1 {
                    break;
                }
                points += 1;
                assert!(
                    rdmaprep("uninstall", host.path(), None).0,
                    "{command}, {way}, point {points}"
                );
                let mut after = all(host.path());
                // The way to the ledger is made before it, and goes after it.
                after.remove(&host.path().join("var/lib/rdmaprep"));
                assert_eq!(before, after, "{command}, {way}, point {points}");
            }
            assert!(points > least, "{command}: {points}");
        }
    }
}

/// Whatever was killed on the way to it: what is there is what one install makes, and comes out
/// again.
#[test]
fn an_install_after_a_killed_one_is_the_whole_of_what_it_wants() {
    for (first, killed, last, least) in [
        ("install", "install again", "install", 15),
        ("install", "install again", "install elsewhere", 15),
        ("podman by command", "podman", "podman", 10),
        ("podman", "podman by command", "podman", 10),
    ] {
        let (fresh, ledger) = (host(), "var/lib/rdmaprep/installed.json");
        assert!(rdmaprep(last, fresh.path(), None).0);
        // A folder that is not needed any more goes with the last of all.
        let of = |root: &Path| {
            let files = all(root)
                .into_iter()
                .filter(|(path, _)| !path.is_dir() && !path.ends_with(ledger));
            files
                .map(|(path, is)| (path.strip_prefix(root).unwrap().to_owned(), is))
                .collect::<BTreeMap<_, _>>()
        };
        let mut points = 0;
        loop {
            let host = host();
            let before = all(host.path());
            assert!(rdmaprep(first, host.path(), None).0);
            if !rdmaprep(killed, host.path(), Some((points + 1, "kill"))).1 {
                break;
            }
            points += 1;
            let what = format!("{first}, {killed} killed at {points}, {last}");
            assert!(rdmaprep(last, host.path(), None).0, "{what}");
            let (expected, there) = (of(fresh.path()), of(host.path()));
            assert_eq!(
                expected.keys().collect::<Vec<_>>(),
                there.keys().collect::<Vec<_>>(),
                "{what}"
            );
            assert!(expected == there, "{what}");
            assert!(rdmaprep("uninstall", host.path(), None).0, "{what}");
            assert_eq!(before, all(host.path()), "{what}");
        }
        assert!(points > least, "{first}, {killed}: {points}");
    }
}

/// Each for another program, so that none of them finds what the one before it has decided.
#[test]
fn two_that_were_killed_leave_nothing_that_is_not_known() {
    let mut points = 0;
    loop {
        let host = host();
        let before = all(host.path());
        assert!(rdmaprep("install", host.path(), None).0);
        let passed = ["install again", "install elsewhere"]
            .map(|command| rdmaprep(command, host.path(), Some((points + 1, "kill"))).1);
        if passed == [false, false] {
            break;
        }
        points += 1;
        assert!(rdmaprep("uninstall", host.path(), None).0, "point {points}");
        assert_eq!(before, all(host.path()), "point {points}");
    }
    assert!(points > 15, "{points}");
}
