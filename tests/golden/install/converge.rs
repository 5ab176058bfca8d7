//! An installation is the whole of what its targets want.

use super::*;

/// Whatever was asked for before, and whatever has happened since: what is there is what one
/// install by the last words makes.
#[test]
fn a_later_install_is_the_whole_of_what_it_wants() {
    type Edit = fn(&Path);
    const NOTHING: Edit = |_| {};
    let cases: [(&[&str], Edit, &[&str]); 8] = [
        (
            &["--docker", "--program", "/opt/rdmaprep"],
            NOTHING,
            &["--docker", "--program", "/usr/bin/rdmaprep"],
        ),
        (&["--docker", "--default-runtime"], NOTHING, &["--docker"]),
        (&["--podman", "--command", "^a$"], NOTHING, &["--podman"]),
        (
            &["--podman", "--crio", "--command", "^a$"],
            NOTHING,
            &["--crio", "--podman"],
        ),
        (
            &["--network-managers", "--ifaces", "r0 r1"],
            NOTHING,
            &["--network-managers"],
        ),
        (&["--systemd", "--cdi"], NOTHING, &["--systemd"]),
        (
            &["--systemd", "--cdi"],
            // A package has come.
            |root| {
                for unit in
                    fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("hooks/systemd"))
                        .unwrap()
                {
                    put(
                        root,
                        &format!(
                            "usr/lib/systemd/system/{}",
                            unit.unwrap().file_name().display()
                        ),
                        "[Unit]\n",
                    );
                }
            },
            &["--systemd", "--cdi"],
        ),
        (
            &["--containerd"],
            // From a drop-in to the file itself.
            |root| {
                let path = "etc/containerd/config.toml";
                let text = fs::read_to_string(root.join(path))
                    .unwrap_or_else(|_| "version = 2\n".to_owned());
                put(
                    root,
                    path,
                    &format!("{text}[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = '/b'\n"),
                );
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
        let dry = rdmaprep("install", root.path(), &[last, &["--dry-run"]].concat())
            .ok()
            .out;
        let goes = !first.contains(&"--default-runtime") && !first.contains(&"--containerd");
        assert!(dry.contains("\n+++ /dev/null\n") || !goes, "{dry}");
        rdmaprep("install", root.path(), last).ok();
        rdmaprep("install", fresh.path(), last).ok();
        assert_eq!(
            files(root.path()),
            files(fresh.path()),
            "{first:?}, then {last:?}"
        );
        assert!(
            rdmaprep("install", root.path(), last)
                .ok()
                .out
                .contains("nothing to change"),
            "{first:?}"
        );
        rdmaprep("uninstall", root.path(), &[]).ok();
        assert_eq!(files(root.path()), edited, "{first:?}, then {last:?}");
    }
}

#[test]
fn what_another_target_wants_stays() {
    let root = TempDir::new().unwrap();
    let manifest = root.path().join("var/lib/rdmaprep/installed.json");
    let (link, hook) = (
        "opt/rdmaprep-runtime",
        "usr/share/containers/oci/hooks.d/rdmaprep-command-poststop.json",
    );
    let is_there = |path: &str| fs::symlink_metadata(root.path().join(path)).is_ok();
    let install = |args: &[&str]| rdmaprep("install", root.path(), args).ok();
    // A ledger of an older version does not tell for whom a path is.
    for older in [false, true] {
        install(&[
            "--docker",
            "--containerd",
            "--podman",
            "--crio",
            "--program",
            "/opt/rdmaprep",
            "--command",
            "x",
        ]);
        if older {
            let mut value: Value =
                serde_json::from_str(&fs::read_to_string(&manifest).unwrap()).unwrap();
            for entry in value["entries"].as_array_mut().unwrap() {
                entry.as_object_mut().unwrap().remove("wanted_by").unwrap();
            }
            fs::write(&manifest, value.to_string()).unwrap();
        }
        install(&["--docker", "--podman"]);
        assert!(is_there(link) && is_there(hook));
        let of_podman = "etc/containers/oci/podman-hooks.d/rdmaprep-command-precreate.json";
        // No other engine uses this file, whatever the manifest says.
        assert!(!is_there(of_podman));
        install(&["--containerd"]);
        assert!(is_there(link) && is_there(hook));
        install(&["--crio"]);
        assert!(!is_there(link) && !is_there(hook));
        rdmaprep("uninstall", root.path(), &[]).ok();
        assert_eq!(all(root.path()), BTreeMap::new());
    }
}

#[test]
fn a_changed_file_that_is_no_longer_wanted_is_reported_first() {
    let root = TempDir::new().unwrap();
    rdmaprep("install", root.path(), &["--crio", "--command", "x"]).ok();
    let hook = "usr/share/containers/oci/hooks.d/rdmaprep-command-poststop.json";
    put(root.path(), hook, "{}");
    let before = all(root.path());
    rdmaprep("install", root.path(), &["--crio"])
        .fails(3, &[hook, "is not needed any more, but was changed"]);
    assert_eq!(before, all(root.path()));
    // A file that an administrator removed is no conflict.
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
    put(
        root.path(),
        config,
        &format!("disabled_plugins = [\"cri\"]\n{made}"),
    );
    let said = rdmaprep("install", root.path(), &["--containerd"]).ok().out;
    assert!(
        said.contains("disables the CRI plugin")
            && said.contains("removed /usr/local/bin/rdmaprep-runtime"),
        "{said}"
    );
    let left: Vec<PathBuf> = all(root.path())
        .into_keys()
        .filter(|path| !path.is_dir())
        .collect();
    assert_eq!(left, [root.path().join(config)]);
    assert!(!root.path().join("var").exists() && !root.path().join("usr").exists());
}

/// Of units that a package has brought and `systemctl enable` has enabled there is nothing to
/// write, and nothing to make room for.
#[test]
fn where_all_is_there_nothing_is_made() {
    let root = TempDir::new().unwrap();
    for unit in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("hooks/systemd")).unwrap() {
        let name = unit.unwrap().file_name().into_string().unwrap();
        let packaged = format!("usr/lib/systemd/system/{name}");
        put(root.path(), &packaged, "[Unit]\n");
        let wants = match name.as_str() {
            "rdmaprep-stale.service" => continue,
            name if name.starts_with("rdmaprep-metrics") => continue,
            "rdmaprep-stale.timer" => "etc/systemd/system/timers.target.wants",
            _ => "etc/systemd/system/multi-user.target.wants",
        };
        fs::create_dir_all(root.path().join(wants)).unwrap();
        symlink(format!("/{packaged}"), root.path().join(wants).join(&name)).unwrap();
    }
    let before = all(root.path());
    for _ in 0..2 {
        let said = rdmaprep("install", root.path(), &["--systemd", "--cdi"])
            .ok()
            .out;
        assert!(said.contains("nothing to change"), "{said}");
        assert_eq!(before, all(root.path()));
    }
    rdmaprep("uninstall", root.path(), &[]).ok();
    assert_eq!(before, all(root.path()));
    // Beside something to write there is room for the devices, too, and it goes with that.
    let link = root
        .path()
        .join("etc/systemd/system/timers.target.wants/rdmaprep-stale.timer");
    let leads = fs::read_link(&link).unwrap();
    fs::remove_file(&link).unwrap();
    rdmaprep("install", root.path(), &["--systemd", "--cdi"]).ok();
    assert!(root.path().join("etc/cdi").exists());
    rdmaprep("uninstall", root.path(), &[]).ok();
    symlink(leads, &link).unwrap();
    assert_eq!(before, all(root.path()));
}

/// Who says no target asks for what is found, and for no change of what is kept off NICs.
#[test]
fn an_install_without_targets_keeps_managers_off_the_same_nics() {
    let root = TempDir::new().unwrap();
    for program in ["usr/sbin/NetworkManager", "usr/bin/podman"] {
        put(root.path(), program, "");
    }
    let first = ["--podman", "--network-managers", "--ifaces", "r0 r1"];
    rdmaprep("install", root.path(), &first).ok();
    let before = all(root.path());
    let said = rdmaprep("install", root.path(), &[]).ok().out;
    assert_eq!(before, all(root.path()), "{said}");
    rdmaprep("install", root.path(), &["--network-managers"]).ok();
    let network = "etc/systemd/network/05-rdmaprep.network";
    assert!(!root.path().join(network).exists());
}

/// A manager would not be kept off the NIC that is meant.
#[test]
fn an_install_names_what_no_link_is_named() {
    alone(|host| {
        // /sys shows the links of the first namespace, of which each machine has this one.
        let install = ["install", "--dry-run", "--network-managers", "--ifaces"];
        let said = |names| host.rdmaprep(&[&install[..], &[names]].concat()).ok().out;
        let text = said("lo typo");
        assert!(
            text.contains("note: no link of this host is named typo: see"),
            "{text}"
        );
        let text = said("lo");
        assert!(!text.contains("no link of this host"), "{text}");
    });
}

/// k3s takes its folders with it when it goes. An install for what is still there goes on, one of
/// all has nothing to do with it any more, and both are taken back.
#[test]
fn an_install_goes_on_where_an_engine_is_gone() {
    let k3s = "var/lib/rancher/k3s/agent/etc/containerd";
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/install/k3s");
    let config = fs::read_to_string(case.join("tree").join(k3s).join("config.toml")).unwrap();
    for later in [&["--podman"][..], &[]] {
        let root = TempDir::new().unwrap();
        put(root.path(), "usr/bin/podman", "");
        let before = all(root.path());
        put(root.path(), "usr/local/bin/k3s", "");
        put(root.path(), &format!("{k3s}/config.toml"), &config);
        rdmaprep("install", root.path(), &["--containerd"]).ok();
        let drop_in = root.path().join(k3s).join("config-v3.toml.d/rdmaprep.toml");
        assert!(drop_in.exists());
        fs::remove_dir_all(root.path().join("var/lib/rancher")).unwrap();
        fs::remove_file(root.path().join("usr/local/bin/k3s")).unwrap();
        for _ in 0..2 {
            rdmaprep("install", root.path(), later).ok();
        }
        assert!(!root.path().join("var/lib/rancher").exists());
        // It comes back, and is known again.
        put(root.path(), "usr/local/bin/k3s", "");
        put(root.path(), &format!("{k3s}/config.toml"), &config);
        rdmaprep("install", root.path(), &["--containerd"]).ok();
        assert!(drop_in.exists());
        fs::remove_dir_all(root.path().join("var/lib/rancher")).unwrap();
        fs::remove_file(root.path().join("usr/local/bin/k3s")).unwrap();
        rdmaprep("uninstall", root.path(), &[]).ok();
        let mut left = all(root.path());
        left.retain(|path, _| !before.contains_key(path));
        let made = ["var", "var/lib", "usr/local", "usr/local/bin"];
        left.retain(|path, _| !made.iter().any(|one| *path == root.path().join(one)));
        assert_eq!(left, BTreeMap::new(), "{later:?}");
    }
}
