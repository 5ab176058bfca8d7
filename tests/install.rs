//! `rdmaprep install` and `uninstall`, by golden folders: `tests/cases/install/NAME/{args,tree/}`; what `--dry-run` says is
//! `expected.txt`, with the exit code first. `UPDATE_GOLDEN=1` writes what comes out; read the diff. Of each case that can be
//! installed, twice is once, and uninstalling gives the tree back.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]
mod support;
mod support_golden;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;
use proptest::prelude::*;
use rdmaprep::cli::{self, Cli};
use rdmaprep::deadline;
use rdmaprep::install::{self, Change, InstallRequest, Installation, Manifest, Target};
use rdmaprep::kernel::host::host_tree::{Content, ReadTree};
use serde_json::{Value, json};
use support::{Container, Said, alone, run, sh};
use tempfile::TempDir;

fn rdmaprep(command: &str, root: &Path, args: &[&str]) -> Said {
    let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
    run(program.env_clear().arg(command).arg("--root").arg(root).args(args), "")
}

/// A copy of a case's tree, links as they are.
fn copy(case: &Path) -> TempDir {
    let root = TempDir::new().unwrap();
    let tree = case.join("tree");
    if tree.exists() {
        assert!(Command::new("cp").arg("-a").arg(tree.join(".")).arg(root.path()).status().unwrap().success());
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
        all.insert(path, format!("{:o} {}:{} {content}", meta.mode(), meta.uid(), meta.gid()));
    }
    all
}

#[test]
fn golden_cases() {
    let cases = support_golden::cases("install", 41);
    let (mut wrong, mut installed) = (Vec::new(), 0);
    for case in &cases {
        let args = fs::read_to_string(case.join("args")).unwrap();
        let args: Vec<&str> = args.lines().filter(|line| !line.is_empty()).collect();
        let root = copy(case);
        let before = all(root.path());
        let said = rdmaprep("install", root.path(), &[&args[..], &["--dry-run"]].concat());
        let place = root.path().display().to_string();
        let text = format!("exit {}\n{}{}", said.code.unwrap(), said.out, said.err).replace(&place, "ROOT");
        assert_eq!(before, all(root.path()), "{}: a dry run has changed something", case.display());
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(case.join("expected.txt"), &text).unwrap();
        }
        if fs::read_to_string(case.join("expected.txt")).unwrap_or_default() != text {
            wrong.push(format!("{}:\n{text}", case.display()));
        }
        if said.code != Some(0) {
            rdmaprep("install", root.path(), &args).fails(said.code.unwrap(), &[]);
            assert_eq!(before, all(root.path()), "{}: a refusal has changed something", case.display());
            continue;
        }
        let made = rdmaprep("install", root.path(), &args).ok().out;
        let once = all(root.path());
        assert_eq!(once == before, made.contains("nothing to change"), "{}: {made}", case.display());
        assert!(rdmaprep("install", root.path(), &args).ok().out.contains("nothing to change"), "{}", case.display());
        assert_eq!(once, all(root.path()), "{}: twice is not once", case.display());
        rdmaprep("uninstall", root.path(), &["--dry-run"]).ok();
        assert_eq!(once, all(root.path()), "{}: a dry run has changed something", case.display());
        rdmaprep("uninstall", root.path(), &[]).ok();
        assert_eq!(before, all(root.path()), "{}: not as it was", case.display());
        installed += 1;
    }
    assert!(wrong.is_empty(), "UPDATE_GOLDEN=1 accepts these:\n{}", wrong.join("\n"));
    assert!(installed > 20, "{installed}");
}

#[test]
fn json_tells_the_same() {
    let root = TempDir::new().unwrap();
    fs::create_dir_all(root.path().join("usr/bin")).unwrap();
    fs::write(root.path().join("usr/bin/podman"), "").unwrap();
    let said: Value = serde_json::from_str(&rdmaprep("install", root.path(), &["--json"]).ok().out).unwrap();
    assert_eq!(said["found"], json!([{"target": "podman", "by": "/usr/bin/podman"}]));
    assert_eq!(said["changes"].as_array().unwrap().len(), 5);
    assert_eq!((&said["changes"][0]["change"], &said["dry_run"]), (&json!("create"), &json!(false)));
    let said: Value = serde_json::from_str(&rdmaprep("uninstall", root.path(), &["--json"]).ok().out).unwrap();
    assert!(said["changes"].as_array().unwrap().iter().all(|c| c["change"] == "remove"), "{said}");
}

#[test]
fn an_edited_file_keeps_its_owner_and_mode_and_a_new_one_is_for_all_to_read() {
    let root = TempDir::new().unwrap();
    let daemon = root.path().join("etc/docker/daemon.json");
    fs::create_dir_all(daemon.parent().unwrap()).unwrap();
    fs::write(&daemon, "{}").unwrap();
    fs::set_permissions(&daemon, fs::Permissions::from_mode(0o640)).unwrap();
    let mut program = Command::new("sh");
    program.args(["-c", "umask 0077; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_rdmaprep"), "install"]);
    run(program.env_clear().args(["--docker", "--systemd", "--root"]).arg(root.path()), "").ok();
    let mode = |path: &str| fs::metadata(root.path().join(path)).unwrap().mode() & 0o7777;
    assert_eq!(mode("etc/docker/daemon.json"), 0o640);
    assert_eq!(mode("etc/systemd/system/rdmaprep-stale.timer"), 0o644);
    assert_eq!(mode("etc/systemd/system/timers.target.wants"), 0o755);
    assert_eq!(mode("var/lib"), 0o755);
    // It has what was in files that not everybody may read.
    assert_eq!((mode("var/lib/rdmaprep"), mode("var/lib/rdmaprep/installed.json")), (0o700, 0o600));
}

/// Both commands replace a file by a new one: it has all of the old one's attributes.
#[test]
fn a_replaced_file_keeps_mode_bits_owner_and_acl() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    alone(|_| {
        let root = TempDir::new_in("/run").unwrap();
        let daemon = root.path().join("etc/docker/daemon.json");
        fs::create_dir_all(daemon.parent().unwrap()).unwrap();
        // Version 2; user::rw-, user:0:r--, group::r--, mask::rw-, other::--- (include/uapi/linux/posix_acl_xattr.h).
        let entry = |tag: u16, perm: u16, id: u32| {
            [tag.to_le_bytes(), perm.to_le_bytes()].concat().into_iter().chain(id.to_le_bytes())
        };
        let (none, entries) = (u32::MAX, [(0x01, 6), (0x02, 4), (0x04, 4), (0x10, 6), (0x20, 0)]);
        let acl: Vec<u8> = 2u32
            .to_le_bytes()
            .into_iter()
            .chain(entries.into_iter().flat_map(|(tag, perm)| entry(tag, perm, if tag == 2 { 0 } else { none })))
            .collect();
        let value = |name: &str| {
            let mut buffer = vec![0; 256];
            getxattr(&daemon, name, buffer.as_mut_slice()).map(|length| buffer[..length].to_vec())
        };
        for mode in [0o2664, 0o4660, 0o1640, 0o6775, 0o600] {
            fs::write(&daemon, "{}").unwrap();
            setxattr(&daemon, "system.posix_acl_access", &acl, XattrFlags::empty()).unwrap();
            fs::set_permissions(&daemon, fs::Permissions::from_mode(mode)).unwrap();
            let kept = value("system.posix_acl_access").unwrap();
            let now = || {
                let meta = fs::metadata(&daemon).unwrap();
                (meta.mode() & 0o7777, meta.uid(), meta.gid(), value("system.posix_acl_access").unwrap())
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
        setxattr(folder, "system.posix_acl_default", &acl, XattrFlags::empty()).unwrap();
        rdmaprep("install", root.path(), &["--docker"]).ok();
        assert_eq!(fs::metadata(&daemon).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(value("system.posix_acl_access"), Err(rustix::io::Errno::NODATA));
    });
}

#[test]
fn what_stands_in_the_way_is_told_and_nothing_is_left_behind() {
    type Setup = fn(&Path);
    let cases: [(Setup, i32, &str); 4] = [
        (|root| fs::create_dir_all(root.join("etc/docker/daemon.json")).unwrap(), 2, "no plain file"),
        (
            |root| {
                fs::create_dir_all(root.join("etc/docker")).unwrap();
                assert!(Command::new("mkfifo").arg(root.join("etc/docker/daemon.json")).status().unwrap().success());
            },
            2,
            "no plain file",
        ),
        // Seen only when folders are made, after those for the targets before it.
        (|root| symlink("nowhere", root.join("etc")).unwrap(), 2, "etc"),
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
fn what_was_changed_since_is_left_and_told() {
    let root = TempDir::new().unwrap();
    let daemon = root.path().join("etc/docker/daemon.json");
    fs::create_dir_all(daemon.parent().unwrap()).unwrap();
    fs::write(&daemon, "{\n  \"debug\": true\n}\n").unwrap();
    rdmaprep("install", root.path(), &["--docker", "--crio", "--default-runtime"]).ok();
    // Somebody adds a runtime, and another one to our hook.
    let text = fs::read_to_string(&daemon).unwrap();
    fs::write(&daemon, text.replace("\"runtimes\": {", "\"runtimes\": {\n    \"kata\": {\"path\": \"/k\"},")).unwrap();
    let hook = root.path().join("usr/share/containers/oci/hooks.d/rdmaprep-poststop.json");
    let ours = fs::read_to_string(&hook).unwrap();
    fs::write(&hook, ours.replace("\"timeout\": 300", "\"timeout\": 30")).unwrap();
    rdmaprep("install", root.path(), &["--crio"]).fails(3, &["rdmaprep-poststop.json"]);
    rdmaprep("uninstall", root.path(), &[]).fails(8, &["rdmaprep-poststop.json"]);
    let text = fs::read_to_string(&daemon).unwrap();
    assert_eq!(text, "{\n  \"debug\": true,\n  \"runtimes\": {\n    \"kata\": {\"path\": \"/k\"}\n  }\n}\n");
    assert!(hook.exists());
    // As soon as that is seen to, the rest goes, too.
    fs::write(&hook, ours).unwrap();
    rdmaprep("uninstall", root.path(), &[]).ok();
    assert!(!root.path().join("usr").exists() && !root.path().join("var").exists());
    assert!(rdmaprep("uninstall", root.path(), &[]).ok().out.contains("nothing to change"));
}

#[test]
fn a_ledger_that_cannot_be_read_stops_both() {
    let root = TempDir::new().unwrap();
    rdmaprep("install", root.path(), &["--crio"]).ok();
    let manifest = root.path().join("var/lib/rdmaprep/installed.json");
    let whole = fs::read_to_string(&manifest).unwrap();
    for damaged in [whole.replacen("\"schema\": 1", "\"schema\": 99", 1), whole[..whole.len() / 2].to_owned()] {
        fs::write(&manifest, &damaged).unwrap();
        let before = all(root.path());
        rdmaprep("uninstall", root.path(), &[]).fails(2, &["installed.json"]);
        rdmaprep("install", root.path(), &["--docker"]).fails(2, &["installed.json"]);
        assert_eq!(before, all(root.path()));
    }
    // Fields that a later version adds are no damage.
    fs::write(&manifest, whole.replacen("\"schema\": 1,", "\"schema\": 1, \"later\": [],", 1)).unwrap();
    rdmaprep("uninstall", root.path(), &[]).ok();
    assert!(!root.path().join("usr").exists());
}

#[test]
fn another_place_of_the_program_takes_the_first_ones_place() {
    let root = TempDir::new().unwrap();
    let at = |path: &str| rdmaprep("install", root.path(), &["--docker", "--systemd", "--program", path]).ok();
    at("/opt/rdmaprep");
    at("/usr/bin/rdmaprep");
    let timer = fs::read_to_string(root.path().join("etc/systemd/system/rdmaprep-stale.service")).unwrap();
    let daemon = fs::read_to_string(root.path().join("etc/docker/daemon.json")).unwrap();
    assert!(timer.contains("ExecStart=/usr/bin/rdmaprep ") && daemon.contains("/usr/bin/rdmaprep-runtime"), "{daemon}");
    rdmaprep("uninstall", root.path(), &[]).ok();
    assert_eq!(all(root.path()), BTreeMap::new());
}

#[test]
fn nobody_takes_it_out_while_nics_are_away() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let mut c = Container::new("busy");
        c.create(host).ok();
        host.rdmaprep(&["uninstall"]).fails(9, &["busy", "rdmaprep restore"]);
        host.rdmaprep(&["uninstall", "--dry-run"]).fails(9, &["busy"]);
        c.stop(host).ok();
        assert!(host.rdmaprep(&["uninstall"]).ok().out.contains("nothing to change"));
    });
}

/// The files below a folder, without the ledger of an installation.
fn files(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut files = all(root);
    files.retain(|path, _| !path.is_dir() && !path.ends_with("installed.json"));
    files.into_iter().map(|(path, content)| (path.strip_prefix(root).unwrap().to_owned(), content)).collect()
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Whatever was asked for before, and whatever has happened since: what is there is what one install by the last words makes.
#[test]
fn a_later_install_is_the_whole_of_what_it_wants() {
    type Edit = fn(&Path);
    const NOTHING: Edit = |_| {};
    let cases: [(&[&str], Edit, &[&str]); 8] = [
        (&["--docker", "--program", "/opt/rdmaprep"], NOTHING, &["--docker", "--program", "/usr/bin/rdmaprep"]),
        (&["--docker", "--default-runtime"], NOTHING, &["--docker"]),
        (&["--podman", "--command", "^a$"], NOTHING, &["--podman"]),
        (&["--podman", "--crio", "--command", "^a$"], NOTHING, &["--crio", "--podman"]),
        (&["--network-managers", "--ifaces", "r0 r1"], NOTHING, &["--network-managers"]),
        (&["--systemd", "--cdi"], NOTHING, &["--systemd"]),
        (
            &["--systemd", "--cdi"],
            // A package has come.
            |root| {
                for unit in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("hooks/systemd")).unwrap() {
                    put(root, &format!("usr/lib/systemd/system/{}", unit.unwrap().file_name().display()), "[Unit]\n");
                }
            },
            &["--systemd", "--cdi"],
        ),
        (
            &["--containerd"],
            // From a drop-in to the file itself.
            |root| {
                let path = "etc/containerd/config.toml";
                let text = fs::read_to_string(root.join(path)).unwrap_or_else(|_| "version = 2\n".to_owned());
                put(root, path, &format!("{text}[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = '/b'\n"));
            },
            &["--containerd"],
        ),
    ];
    for (first, edit, last) in cases {
        let (root, fresh) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        rdmaprep("install", root.path(), first).ok();
        edit(root.path());
        edit(fresh.path());
        let edited = files(fresh.path());
        let dry = rdmaprep("install", root.path(), &[last, &["--dry-run"]].concat()).ok().out;
        let goes = !first.contains(&"--default-runtime") && !first.contains(&"--containerd");
        assert!(dry.contains("\n+++ /dev/null\n") || !goes, "{dry}");
        rdmaprep("install", root.path(), last).ok();
        rdmaprep("install", fresh.path(), last).ok();
        assert_eq!(files(root.path()), files(fresh.path()), "{first:?}, then {last:?}");
        assert!(rdmaprep("install", root.path(), last).ok().out.contains("nothing to change"), "{first:?}");
        rdmaprep("uninstall", root.path(), &[]).ok();
        assert_eq!(files(root.path()), edited, "{first:?}, then {last:?}");
    }
}

#[test]
fn what_another_target_wants_stays() {
    let root = TempDir::new().unwrap();
    let manifest = root.path().join("var/lib/rdmaprep/installed.json");
    let (link, hook) = ("opt/rdmaprep-runtime", "usr/share/containers/oci/hooks.d/rdmaprep-command-poststop.json");
    let is_there = |path: &str| fs::symlink_metadata(root.path().join(path)).is_ok();
    let install = |args: &[&str]| rdmaprep("install", root.path(), args).ok();
    // A ledger of an older version does not tell for whom a path is.
    for older in [false, true] {
        install(&["--docker", "--containerd", "--podman", "--crio", "--program", "/opt/rdmaprep", "--command", "x"]);
        if older {
            let mut value: Value = serde_json::from_str(&fs::read_to_string(&manifest).unwrap()).unwrap();
            for entry in value["entries"].as_array_mut().unwrap() {
                entry.as_object_mut().unwrap().remove("wanted_by").unwrap();
            }
            fs::write(&manifest, value.to_string()).unwrap();
        }
        install(&["--docker", "--podman"]);
        assert!(is_there(link) && is_there(hook));
        let of_podman = "etc/containers/oci/podman-hooks.d/rdmaprep-command-precreate.json";
        // One that no other engine has is nobody else's, whatever the ledger tells.
        assert!(!is_there(of_podman));
        install(&["--containerd"]);
        assert!(!is_there(link) && is_there(hook));
        install(&["--crio"]);
        assert!(!is_there(hook));
        rdmaprep("uninstall", root.path(), &[]).ok();
        assert_eq!(all(root.path()), BTreeMap::new());
    }
}

#[test]
fn what_is_not_wanted_any_more_but_was_changed_is_told_first() {
    let root = TempDir::new().unwrap();
    rdmaprep("install", root.path(), &["--crio", "--command", "x"]).ok();
    let hook = "usr/share/containers/oci/hooks.d/rdmaprep-command-poststop.json";
    put(root.path(), hook, "{}");
    let before = all(root.path());
    rdmaprep("install", root.path(), &["--crio"]).fails(3, &[hook, "is not needed any more, but was changed"]);
    assert_eq!(before, all(root.path()));
    // Who has taken it out has seen to it.
    fs::remove_file(root.path().join(hook)).unwrap();
    rdmaprep("install", root.path(), &["--crio"]).ok();
    rdmaprep("uninstall", root.path(), &[]).ok();
    assert_eq!(all(root.path()), BTreeMap::new());
}

#[test]
fn a_target_that_wants_nothing_any_more_leaves_nothing() {
    let root = TempDir::new().unwrap();
    rdmaprep("install", root.path(), &["--containerd"]).ok();
    let config = "etc/containerd/config.toml";
    let made = fs::read_to_string(root.path().join(config)).unwrap();
    put(root.path(), config, &format!("disabled_plugins = [\"cri\"]\n{made}"));
    let said = rdmaprep("install", root.path(), &["--containerd"]).ok().out;
    assert!(
        said.contains("disables the CRI plugin") && said.contains("removed /usr/local/bin/rdmaprep-runtime"),
        "{said}"
    );
    let left: Vec<PathBuf> = all(root.path()).into_keys().filter(|path| !path.is_dir()).collect();
    assert_eq!(left, [root.path().join(config)]);
    assert!(!root.path().join("var").exists() && !root.path().join("usr").exists());
}

const OUR_DEVICES: &str = r#"{"cdiVersion":"0.3.0","kind":"rdmaprep.io/rail","devices":[],"containerEdits":{}}"#;

/// `cdi generate`'s file goes where it came after an install; somebody else's in its place stays.
#[test]
fn the_file_of_devices_goes_if_it_is_ours() {
    let cases = [(OUR_DEVICES, true), (r#"{"cdiVersion":"0.3.0","kind":"vendor.com/net"}"#, false), ("", false)];
    for (text, is_ours) in cases {
        for installed in [true, false] {
            let (root, goes) = (TempDir::new().unwrap(), is_ours && installed);
            if installed {
                let said = rdmaprep("install", root.path(), &["--systemd", "--cdi"]).ok().out;
                assert!(said.contains("then: systemctl start rdmaprep-cdi.path rdmaprep-cdi.service"), "{said}");
            }
            put(root.path(), "etc/cdi/rdmaprep.json", text);
            let before = all(root.path());
            let dry = rdmaprep("uninstall", root.path(), &["--dry-run"]).ok().out;
            assert_eq!(dry.contains("--- /etc/cdi/rdmaprep.json"), goes);
            assert_eq!(dry.contains("note: /etc/cdi/rdmaprep.json stays"), is_ours && !installed, "{dry}");
            assert_eq!(before, all(root.path()));
            let said = rdmaprep("uninstall", root.path(), &[]).ok().out;
            assert_eq!(said.contains("systemctl stop rdmaprep-cdi.path rdmaprep-cdi.service"), installed, "{said}");
            assert_eq!(said.contains("daemon-reload"), installed, "{said}");
            assert_eq!(files(root.path()).len(), usize::from(!goes));
            // The folder that `install` made for it goes with it.
            assert_eq!(root.path().join("etc/cdi").exists(), !goes);
        }
    }
}

/// What there was at the first install is there after uninstalling, whatever was installed later, and however often.
#[test]
fn a_file_of_devices_that_was_there_first_stays() {
    let root = TempDir::new().unwrap();
    put(root.path(), "etc/cdi/rdmaprep.json", OUR_DEVICES);
    let before = all(root.path());
    rdmaprep("install", root.path(), &["--crio"]).ok();
    rdmaprep("install", root.path(), &["--systemd", "--cdi", "--program", "/opt/rdmaprep"]).ok();
    // What somebody has changed has the ledger stay.
    let hook = "usr/share/containers/oci/hooks.d/rdmaprep-poststop.json";
    let ours = fs::read_to_string(root.path().join(hook)).unwrap();
    put(root.path(), hook, "{}");
    rdmaprep("uninstall", root.path(), &[]).fails(8, &[hook]);
    put(root.path(), hook, &ours);
    for _ in 0..2 {
        let said = rdmaprep("uninstall", root.path(), &[]).ok().out;
        assert!(said.contains("note: /etc/cdi/rdmaprep.json stays"), "{said}");
        assert_eq!(before, all(root.path()));
    }
}

/// Of units that a package has brought and `systemctl enable` has enabled there is nothing to write, and nothing to make room for.
#[test]
fn where_all_is_there_nothing_is_made() {
    let root = TempDir::new().unwrap();
    for unit in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("hooks/systemd")).unwrap() {
        let name = unit.unwrap().file_name().into_string().unwrap();
        let packaged = format!("usr/lib/systemd/system/{name}");
        put(root.path(), &packaged, "[Unit]\n");
        let wants = match name.as_str() {
            "rdmaprep-stale.service" => continue,
            "rdmaprep-stale.timer" => "etc/systemd/system/timers.target.wants",
            _ => "etc/systemd/system/multi-user.target.wants",
        };
        fs::create_dir_all(root.path().join(wants)).unwrap();
        symlink(format!("/{packaged}"), root.path().join(wants).join(&name)).unwrap();
    }
    let before = all(root.path());
    for _ in 0..2 {
        let said = rdmaprep("install", root.path(), &["--systemd", "--cdi"]).ok().out;
        assert!(said.contains("nothing to change"), "{said}");
        assert_eq!(before, all(root.path()));
    }
    rdmaprep("uninstall", root.path(), &[]).ok();
    assert_eq!(before, all(root.path()));
    // Beside something to write there is room for the devices, too, and it goes with that.
    let link = root.path().join("etc/systemd/system/timers.target.wants/rdmaprep-stale.timer");
    let leads = fs::read_link(&link).unwrap();
    fs::remove_file(&link).unwrap();
    rdmaprep("install", root.path(), &["--systemd", "--cdi"]).ok();
    assert!(root.path().join("etc/cdi").exists());
    rdmaprep("uninstall", root.path(), &[]).ok();
    symlink(leads, &link).unwrap();
    assert_eq!(before, all(root.path()));
}

/// The units have it that a runtime's path is known to engines as long as a container is there.
#[test]
fn nobody_takes_it_out_while_an_engine_calls_the_runtime() {
    alone(|host| {
        let task = Path::new("/run/containerd/io.containerd.runtime.v2.task/moby/c1");
        fs::create_dir_all(task).unwrap();
        for name in ["rdmaprep-runtime", "rdmaprep-runtime-runsc"] {
            fs::write(task.join("runtime"), format!("/usr/bin/{name}")).unwrap();
            host.rdmaprep(&["uninstall"]).fails(9, &["moby/c1", &format!("/usr/bin/{name}")]);
            host.rdmaprep(&["uninstall", "--dry-run"]).fails(9, &["moby/c1"]);
        }
        for other in ["", "runc", "/usr/bin/runc", "/usr/bin/rdmaprep", "/usr/bin/rdmaprep-runtimes"] {
            fs::write(task.join("runtime"), other).unwrap();
            host.rdmaprep(&["uninstall"]).ok();
        }
    });
}

#[test]
fn what_was_changed_is_no_failure_where_that_is_asked_for() {
    let root = TempDir::new().unwrap();
    rdmaprep("install", root.path(), &["--crio"]).ok();
    let hook = "usr/share/containers/oci/hooks.d/rdmaprep-poststop.json";
    put(root.path(), hook, "{}");
    let said = rdmaprep("uninstall", root.path(), &["--leave-changed"]).ok().out;
    assert!(
        said.contains("note: changed since and left: /usr/share/containers/oci/hooks.d/rdmaprep-poststop.json"),
        "{said}"
    );
    assert_eq!(files(root.path()).into_keys().collect::<Vec<_>>(), [PathBuf::from(hook)]);
    rdmaprep("uninstall", root.path(), &[]).fails(8, &[hook]);
}

const CRI: &str = "plugins.\"io.containerd.grpc.v1.cri\".containerd";

/// A runtime that lost its type or its path would keep its engine from starting.
#[test]
fn a_runtime_that_somebody_added_to_goes_or_stays_as_a_whole() {
    let root = TempDir::new().unwrap();
    let (daemon, config) = (root.path().join("etc/docker/daemon.json"), root.path().join("etc/containerd/config.toml"));
    put(root.path(), "etc/containerd/config.toml", "version = 2\n");
    rdmaprep("install", root.path(), &["--docker", "--containerd"]).ok();
    let text = fs::read_to_string(&daemon).unwrap().replace("\"path\":", "\"runtimeArgs\": [\"--debug\"],\n\"path\":");
    fs::write(&daemon, text.replace("\"runtimes\": {", "\"runtimes\": {\n    \"kata\": {\"path\": \"/k\"},")).unwrap();
    let added = format!(
        "\n[{CRI}.runtimes.runc.options]\nSystemdCgroup = true\n[{CRI}.runtimes.rdmaprep.options.more]\nx = 1\n"
    );
    fs::write(&config, fs::read_to_string(&config).unwrap() + &added).unwrap();
    rdmaprep("uninstall", root.path(), &[]).ok();
    let left: Value = serde_json::from_str(&fs::read_to_string(&daemon).unwrap()).unwrap();
    assert_eq!(left, json!({"runtimes": {"kata": {"path": "/k"}}}));
    let left: Value = toml::from_str(&fs::read_to_string(&config).unwrap()).unwrap();
    let runc = json!({"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": true}});
    let cri = json!({"io.containerd.grpc.v1.cri": {"containerd": {"runtimes": {"runc": runc}}}});
    assert_eq!(left, json!({"version": 2, "plugins": cri}));
    assert!(!root.path().join("var").exists());
}

#[test]
fn a_runtime_that_somebody_made_the_default_one_stays() {
    for (target, path, before, default) in [
        ("--docker", "etc/docker/daemon.json", "{}", "{\"default-runtime\": \"rdmaprep\", "),
        ("--containerd", "etc/containerd/config.toml", "version = 2\n", "default_runtime_name"),
        ("--containerd", "etc/containerd/conf.d/mine.toml", "version = 3\n", "default_runtime_name"),
    ] {
        let root = TempDir::new().unwrap();
        put(root.path(), path, before);
        if path.contains("conf.d") {
            put(
                root.path(),
                "etc/containerd/config.toml",
                "version = 3\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n",
            );
        }
        rdmaprep("install", root.path(), &[target]).ok();
        let place = root.path().join(path);
        let ours = fs::read_to_string(&place).unwrap();
        let cri = if before.contains('3') { "plugins.\"io.containerd.cri.v1.runtime\".containerd" } else { CRI };
        let theirs = match target {
            "--docker" => ours.replacen('{', default, 1),
            _ => format!("{ours}\n[{cri}]\n{default} = \"rdmaprep\"\n"),
        };
        fs::write(&place, theirs).unwrap();
        let now = all(root.path());
        for more in [&[][..], &["--leave-changed"], &["--dry-run"]] {
            rdmaprep("uninstall", root.path(), more).fails(3, &[path, "rdmaprep as the default runtime"]);
        }
        assert_eq!(all(root.path()), now);
        fs::write(&place, ours).unwrap();
        rdmaprep("uninstall", root.path(), &[]).ok();
        assert_eq!(fs::read_to_string(&place).unwrap(), before);
    }
}

/// Up to 0.1 a config.toml of version 2 without the CRI plugin's section got a drop-in, which hid what was written there later.
#[test]
fn a_drop_in_that_hides_what_config_toml_says_goes() {
    let root = TempDir::new().unwrap();
    put(root.path(), "etc/containerd/config.toml", "version = 3\n");
    rdmaprep("install", root.path(), &["--containerd"]).ok();
    let config = root.path().join("etc/containerd/config.toml");
    let text = fs::read_to_string(&config).unwrap();
    assert!(root.path().join("etc/containerd/conf.d/rdmaprep.toml").exists() && text.contains("imports"));
    fs::write(&config, text.replace("version = 3", "version = 2")).unwrap();
    rdmaprep("install", root.path(), &["--containerd"]).ok();
    assert!(!root.path().join("etc/containerd/conf.d/rdmaprep.toml").exists());
    let text = fs::read_to_string(&config).unwrap();
    assert!(text.contains(&format!("[{CRI}.runtimes.rdmaprep]")) && !text.contains("imports"), "{text}");
    rdmaprep("uninstall", root.path(), &[]).ok();
    assert_eq!(fs::read_to_string(&config).unwrap(), "version = 2\n");
}

/// A package has to go, too, where somebody has made a file unreadable.
#[test]
fn what_can_no_longer_be_read_is_left_where_that_is_asked_for() {
    let root = TempDir::new().unwrap();
    rdmaprep("install", root.path(), &["--docker", "--crio"]).ok();
    put(root.path(), "etc/docker/daemon.json", "{\"runtimes\": ");
    let now = all(root.path());
    rdmaprep("uninstall", root.path(), &[]).fails(2, &["/etc/docker/daemon.json"]);
    assert_eq!(all(root.path()), now);
    let said = rdmaprep("uninstall", root.path(), &["--leave-changed"]).ok().out;
    assert!(said.contains("note: changed since and left: /etc/docker/daemon.json: is not JSON"), "{said}");
    let left: Vec<PathBuf> = files(root.path()).into_keys().filter(|path| !path.starts_with("var")).collect();
    assert_eq!(left, [PathBuf::from("etc/docker/daemon.json")]);
}

/// What did not come about need not be undone: a file that is a mount cannot be replaced.
#[test]
fn the_change_that_fails_is_the_only_thing_told() {
    alone(|_| {
        let root = TempDir::new().unwrap();
        put(root.path(), "etc/docker/daemon.json", "{}");
        let daemon = root.path().join("etc/docker/daemon.json");
        let before = all(root.path());
        sh(&format!("mount --bind {0} {0}", daemon.display()));
        let said = rdmaprep("install", root.path(), &["--docker", "--crio"]).fails(1, &["daemon.json"]);
        assert!(!said.err.contains("incomplete"), "{said:?}");
        sh(&format!("umount {}", daemon.display()));
        assert_eq!(all(root.path()), before);
        // Nor does a file system that is read-only hide behind what was never made there.
        sh(&format!("mkdir {0}/usr; mount -t tmpfs -o ro none {0}/usr", root.path().display()));
        let said = rdmaprep("install", root.path(), &["--crio"]).fails(1, &["creating", "Read-only"]);
        assert!(!said.err.contains("incomplete") && !said.err.contains("removing"), "{said:?}");
        sh(&format!("umount {0}/usr; rmdir {0}/usr", root.path().display()));
        assert_eq!(all(root.path()), before);
    });
}

#[test]
fn lines_of_a_toml_file_end_as_they_did() {
    let root = TempDir::new().unwrap();
    let text = "\u{feff}version = 2\r\nroot = \"/data\" # large\r\n\r\n[grpc]\r\naddress = \"/x\"\r\n";
    put(root.path(), "etc/containerd/config.toml", text);
    let config = root.path().join("etc/containerd/config.toml");
    rdmaprep("install", root.path(), &["--containerd"]).ok();
    let ours = fs::read_to_string(&config).unwrap();
    assert!(
        ours.starts_with(&text[..text.len() - 2]) && ours.matches('\n').count() == ours.matches("\r\n").count(),
        "{ours}"
    );
    fs::write(&config, ours + "[debug]\r\nlevel = \"info\"\r\n").unwrap();
    rdmaprep("uninstall", root.path(), &[]).ok();
    let left = fs::read_to_string(&config).unwrap();
    assert!(left.starts_with(text) && left.ends_with("[debug]\r\nlevel = \"info\"\r\n"), "{left:?}");
}

/// The package's script, with a program that says what it was called with, and what is to be run afterwards.
#[test]
fn the_packages_removal_runs_what_comes_next_and_hides_no_failure() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let script = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/deb/prerm")).unwrap();
    assert_eq!(script.matches("/run/systemd/system").count(), 1);
    let script = script.replace("/run/systemd/system", at("booted").to_str().unwrap());
    assert_eq!(script.matches("/etc/cdi/rdmaprep.json").count(), 1);
    fs::write(at("prerm"), script.replace("/etc/cdi/rdmaprep.json", at("devices").to_str().unwrap())).unwrap();
    let make = |name: &str, text: &str| {
        fs::write(at(name), text).unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o755)).unwrap();
    };
    make("systemctl", &format!("#!/bin/sh\necho \"$@\" >> {}\nexit 1\n", at("units").display()));
    let units = || {
        let said = fs::read_to_string(at("units")).unwrap_or_default();
        let _ = fs::remove_file(at("units"));
        said
    };
    const OURS: &str = "rdmaprep-stale.timer rdmaprep-boot.service rdmaprep-cdi.path rdmaprep-cdi.service\n";
    let removal = |code: i32, booted: bool, word: &str| {
        let _ = fs::remove_file(at("ran"));
        let _ = fs::remove_dir(at("booted"));
        if booted {
            fs::create_dir(at("booted")).unwrap();
        }
        let ran = at("ran").display().to_string();
        let says = format!(
            "echo 'removed /x'; echo 'then: echo one >> {ran}'; echo 'then: false'; echo 'then: cat; echo two >> {ran}'"
        );
        make("rdmaprep", &format!("#!/bin/sh\necho \"$@\" > {}\n{says}\nexit {code}\n", at("args").display()));
        if !at("devices").exists() {
            fs::write(at("devices"), OUR_DEVICES).unwrap();
        }
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        let mut program = Command::new("sh");
        let said = run(program.arg(at("prerm")).arg(word).env("PATH", path), "");
        (said, fs::read_to_string(at("ran")).unwrap_or_default())
    };
    let (said, ran) = removal(0, true, "remove");
    assert_eq!((said.code, ran.as_str()), (Some(0), "one\ntwo\n"), "{said:?}");
    assert!(said.out.contains("removed /x") && said.err.contains("this failed: false"), "{said:?}");
    assert_eq!(fs::read_to_string(at("args")).unwrap(), "uninstall --leave-changed\n");
    // Whoever has enabled the units, and made the devices: they name a program that is to go.
    assert_eq!((units(), at("devices").exists()), (format!("disable --now {OURS}"), false));
    assert_eq!(removal(0, false, "deconfigure").1, "");
    assert_eq!((units(), at("devices").exists()), (format!("disable {OURS}"), false));
    fs::remove_file(at("args")).unwrap();
    for code in [8, 9] {
        let (said, ran) = removal(code, true, "remove");
        assert_eq!((said.code, ran.as_str()), (Some(code), ""), "{said:?}");
    }
    fs::remove_file(at("args")).unwrap();
    assert_eq!(removal(8, true, "upgrade").0.code, Some(0));
    assert!(!at("args").exists());
    assert_eq!((units(), at("devices").exists()), (String::new(), true));
    // Somebody else's devices.
    fs::write(at("devices"), r#"{"cdiVersion":"0.3.0","kind":"vendor.com/net"}"#).unwrap();
    assert_eq!((removal(0, true, "remove").0.code, at("devices").exists()), (Some(0), true));
}

/// A hook that a runtime kills leaves more behind than one that gives up and undoes what it did.
#[test]
fn hooks_give_up_before_they_are_killed() {
    let mut seen = 0;
    for folder in ["hooks/oci-hooks.d", "hooks/podman-hooks.d"] {
        for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
            let value: Value = serde_json::from_str(&fs::read_to_string(file.unwrap().path()).unwrap()).unwrap();
            let args: Vec<String> = serde_json::from_value(value["hook"]["args"].clone()).unwrap();
            let timeout = u32::try_from(value["hook"]["timeout"].as_u64().unwrap()).unwrap();
            match Cli::read(&args).unwrap().command {
                cli::Command::Hook(hook) => {
                    // They know when they are ended, and reckon with it by the number of their NICs: see src/deadline.rs.
                    assert_eq!((hook.deadline, hook.hook_timeout), (None, Some(timeout)), "{args:?}");
                    assert!(timeout >= deadline::timeout(512), "{args:?}");
                    seen += 1;
                }
                other => assert!(matches!(other, cli::Command::Spec(_)), "{args:?}"),
            }
        }
    }
    assert_eq!(seen, 3);
}

/// A tree in memory.
#[derive(Clone, Default, PartialEq, Debug)]
struct Files(BTreeMap<String, Content>);

impl ReadTree for Files {
    fn content(&self, path: &str) -> Result<Option<Content>> {
        Ok(self.0.get(path).cloned())
    }
    fn list(&self, folder: &str) -> Result<Vec<String>> {
        let name = |path: &String| Some(path.strip_prefix(folder)?.strip_prefix('/')?.to_owned());
        Ok(self.0.keys().filter_map(name).filter(|name| !name.contains('/')).collect())
    }
    fn exists(&self, path: &str) -> bool {
        self.0.keys().any(|p| p.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    }
    fn followed(&self, path: &str) -> Result<String> {
        Ok(path.to_owned())
    }
}

impl Files {
    fn one(path: &str, text: &str) -> Files {
        Files([(path.to_owned(), Content::Text(text.to_owned()))].into())
    }
    fn text(&self, path: &str) -> String {
        match &self.0[path] {
            Content::Text(text) => text.clone(),
            other => panic!("{other:?}"),
        }
    }
    fn after(mut self, changes: &[Change]) -> Files {
        for change in changes {
            assert_eq!(self.0.get(&change.path), change.before.as_ref());
            match &change.after {
                Some(content) => drop(self.0.insert(change.path.clone(), content.clone())),
                None => drop(self.0.remove(&change.path)),
            }
        }
        self
    }
    fn installed(&self, target: Target) -> Result<(Files, Installation)> {
        let wanted =
            InstallRequest { targets: vec![target], program: "/usr/bin/rdmaprep".into(), ..InstallRequest::default() };
        let done = install::install(&wanted, self, &Manifest::default())?;
        let after = self.clone().after(&done.changes);
        let again = install::install(&wanted, &after, &done.manifest)?;
        assert_eq!((again.changes, &again.manifest), (Vec::new(), &done.manifest), "twice is not once");
        Ok((after, done))
    }
    fn uninstalled(self, manifest: &Manifest) -> Files {
        let removal = install::uninstall(manifest, &self, false).unwrap();
        assert_eq!(removal.left, Vec::<String>::new());
        self.after(&removal.done.changes)
    }
}

const DAEMON: &str = "/etc/docker/daemon.json";
const CONFIG: &str = "/etc/containerd/config.toml";

/// What may be in daemon.json.
fn daemon() -> impl Strategy<Value = (Value, String)> {
    let scalar = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[ -~]{0,8}".prop_map(Value::from)
    ];
    let value = scalar.prop_recursive(3, 16, 4, |inner| {
        let map = prop::collection::vec(("[a-z]{1,6}", inner.clone()), 0..4)
            .prop_map(|m| Value::Object(m.into_iter().collect()));
        prop_oneof![prop::collection::vec(inner, 0..4).prop_map(Value::Array), map]
    });
    let runtimes = prop::option::of(prop::collection::vec(("[a-q]{1,6}", value.clone()), 0..3));
    let rest = prop::collection::vec(("[a-q]{1,6}", value), 0..5);
    (rest, runtimes, any::<bool>()).prop_map(|(rest, runtimes, pretty)| {
        let mut all: serde_json::Map<String, Value> = rest.into_iter().collect();
        let runtimes = runtimes.map(|list| Value::Object(list.into_iter().collect()));
        all.extend(runtimes.map(|r| ("runtimes".to_owned(), r)));
        let value = Value::Object(all);
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
        (value, text.unwrap())
    })
}

/// A file that was made here and filled by somebody else stays of the version that it was filled for.
#[test]
fn what_somebody_added_to_a_file_of_ours_keeps_its_version() {
    let root = TempDir::new().unwrap();
    let run = |command: &str, more: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        let output = program.env_clear().arg(command).arg("--root").arg(root.path()).args(more).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    run("install", &["--containerd", "--program", "/usr/bin/rdmaprep"]);
    let path = root.path().join("etc/containerd/config.toml");
    let own = "[plugins.\"io.containerd.grpc.v1.cri\".registry]\nconfig_path = \"/etc/certs\"\n";
    let made = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{made}{own}")).unwrap();
    run("uninstall", &[]);
    assert_eq!(fs::read_to_string(&path).unwrap().trim(), format!("version = 2\n{own}").trim());
}

/// Each of them adds to what the others have written down.
#[test]
fn installs_at_once_are_all_taken_out() {
    let root = TempDir::new().unwrap();
    let start = |command: &str, more: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        let program = program.env_clear().arg(command).arg("--root").arg(root.path()).args(more);
        program.stdout(Stdio::null()).spawn().unwrap()
    };
    for _ in 0..5 {
        let all = ["--docker", "--crio", "--systemd", "--podman"]
            .map(|t| start("install", &[t, "--program", "/usr/bin/rdmaprep"]));
        all.into_iter().for_each(|mut child| assert!(child.wait().unwrap().success()));
        assert!(start("uninstall", &[]).wait().unwrap().success());
        let left: Vec<_> = fs::read_dir(root.path()).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(left, [] as [PathBuf; 0]);
    }
}

/// What may be in config.toml: sections of others, comments, and ours in four forms.
fn config() -> impl Strategy<Value = String> {
    let section = prop_oneof![
        Just(""),
        Just("[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = \"/usr/lib/cni\" # there\n"),
        Just("[plugins]\n  [plugins.\"io.containerd.grpc.v1.cri\"]\n    # why\n    sandbox_image = 'x'\n"),
        Just("[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes]\n  # none yet\n"),
    ];
    let head =
        prop_oneof![Just(""), Just("# a file\n"), Just("imports = []\n"), Just("imports = [ '/x.toml', ] # two\n")];
    let other = prop_oneof![Just(""), Just("[grpc]\n  gid = 7\n"), Just("\n# end\n[debug]\nlevel='info'\n\n\n")];
    let root = prop_oneof![Just("root = '/r'\n"), Just("oom_score=-999\r\n"), Just("")];
    (head, root, other.clone(), section, other).prop_filter_map("twice", |(head, root, a, section, b)| {
        (a.is_empty() || a != b).then(|| format!("{head}version = 2\n{root}{a}{section}{b}"))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn daemon_json_comes_back((_, text) in daemon()) {
        let before = Files::one(DAEMON, &text);
        let (after, done) = before.installed(Target::Docker).unwrap();
        let new: Value = serde_json::from_str(&after.text(DAEMON)).unwrap();
        prop_assert_eq!(&new["runtimes"]["rdmaprep"]["path"], "/usr/bin/rdmaprep-runtime");
        prop_assert_eq!(after.uninstalled(&done.manifest), before);
    }

    /// Whoever edits the file in between keeps the edit, wherever it is.
    #[test]
    fn what_is_added_to_daemon_json_stays((value, text) in daemon(), below in any::<bool>(), replaced in any::<bool>()) {
        let (after, done) = Files::one(DAEMON, &text).installed(Target::Docker).unwrap();
        let edit = |mut value: Value| {
            let at = if below { &mut value["runtimes"] } else { &mut value };
            at["zeta"] = json!({"path": "/z"});
            if replaced && value.get("a").is_some() {
                value["a"] = json!([null]);
            }
            value
        };
        let edited = edit(serde_json::from_str(&after.text(DAEMON)).unwrap());
        let mut files = after;
        files.0.insert(DAEMON.into(), Content::Text(serde_json::to_string_pretty(&edited).unwrap()));
        let end = files.uninstalled(&done.manifest);
        let end: Value = serde_json::from_str(&end.text(DAEMON)).unwrap();
        prop_assert_eq!(end, edit(value));
    }

    #[test]
    fn config_toml_comes_back(text in config()) {
        let before = Files::one(CONFIG, &text);
        let (after, done) = before.installed(Target::Containerd).unwrap();
        let all: toml::Table = after.0.keys().filter(|path| path.ends_with(".toml")).map(|path| {
            let table: toml::Table = toml::from_str(&after.text(path)).unwrap();
            (path.clone(), toml::Value::Table(table))
        }).collect();
        let ours = |file: &toml::Value| {
            let runtimes = file.get("plugins")?.get("io.containerd.grpc.v1.cri")?.get("containerd")?.get("runtimes")?;
            Some(runtimes.get("rdmaprep")?.get("options")?.get("BinaryName")?.as_str()? == "/usr/bin/rdmaprep-runtime")
        };
        prop_assert_eq!(all.values().filter_map(ours).collect::<Vec<_>>(), [true]);
        prop_assert_eq!(after.uninstalled(&done.manifest), before);
    }

    /// A comment that somebody adds stays, and all that was there before us, to the byte.
    #[test]
    fn what_is_added_to_config_toml_stays(text in config()) {
        let (mut after, done) = Files::one(CONFIG, &text).installed(Target::Containerd).unwrap();
        let edit = |text: &str| format!("{text}\n[zeta] # new\nx = 1\n");
        let edited = edit(&after.text(CONFIG));
        after.0.insert(CONFIG.into(), Content::Text(edited));
        let end = after.uninstalled(&done.manifest);
        let (end, expected) = (end.text(CONFIG), edit(&text));
        prop_assert_eq!(toml::from_str::<toml::Table>(&end).unwrap(), toml::from_str::<toml::Table>(&expected).unwrap());
        let comments = |text: &str| text.split('#').skip(1).map(|c| c.lines().next().unwrap().to_owned()).collect::<Vec<_>>();
        prop_assert_eq!(comments(&end), comments(&expected));
    }
}
