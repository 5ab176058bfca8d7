//! What `uninstall` takes out, leaves and says.

use super::*;

#[test]
fn what_was_changed_since_is_left_and_reported() {
    let root = TempDir::new().unwrap();
    let daemon = root.path().join("etc/docker/daemon.json");
    fs::create_dir_all(daemon.parent().unwrap()).unwrap();
    fs::write(&daemon, "{\n  \"debug\": true\n}\n").unwrap();
    rdmaprep(
        "install",
        root.path(),
        &["--docker", "--crio", "--default-runtime"],
    )
    .ok();
    // An administrator adds a runtime, and edits our hook.
    let text = fs::read_to_string(&daemon).unwrap();
    fs::write(
        &daemon,
        text.replace(
            "\"runtimes\": {",
            "\"runtimes\": {\n    \"kata\": {\"path\": \"/k\"},",
        ),
    )
    .unwrap();
    let hook = root
        .path()
        .join("usr/share/containers/oci/hooks.d/rdmaprep-poststop.json");
    let ours = fs::read_to_string(&hook).unwrap();
    fs::write(&hook, ours.replace("\"timeout\": 300", "\"timeout\": 30")).unwrap();
    rdmaprep("install", root.path(), &["--crio"]).fails(3, &["rdmaprep-poststop.json"]);
    let json = rdmaprep("uninstall", root.path(), &["--json", "--dry-run"]);
    assert_eq!(json.code, Some(8));
    let json: Value = serde_json::from_str(&json.out).unwrap();
    let left = json["left"][0].as_str().unwrap();
    assert!(left.contains("rdmaprep-poststop.json"), "{json}");
    rdmaprep("uninstall", root.path(), &[]).fails(8, &["rdmaprep-poststop.json"]);
    let text = fs::read_to_string(&daemon).unwrap();
    assert_eq!(
        text,
        "{\n  \"debug\": true,\n  \"runtimes\": {\n    \"kata\": {\"path\": \"/k\"}\n  }\n}\n"
    );
    assert!(hook.exists());
    // As soon as that is seen to, the rest goes, too.
    fs::write(&hook, ours).unwrap();
    rdmaprep("uninstall", root.path(), &[]).ok();
    assert!(!root.path().join("usr").exists() && !root.path().join("var").exists());
    assert!(
        rdmaprep("uninstall", root.path(), &[])
            .ok()
            .out
            .contains("nothing to change")
    );
}

#[test]
fn uninstall_is_refused_while_nics_are_away() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        // An engine's id, of which people see the first twelve digits.
        let id = "c1".repeat(32);
        let short = &id[..12];
        let mut c = Container::new(&id);
        c.create(host).ok();
        let held = format!("is held by container {short}: stop that first");
        Container::new("other").create(host).fails(9, &[&held]);
        host.rdmaprep(&["uninstall"]).fails(
            9,
            &[
                &format!("hold NICs: {short}: stop them"),
                "rdmaprep restore --all",
                "run `rdmaprep uninstall` again",
            ],
        );
        // Removing the package with --purge removes this folder, and so the lock.
        assert!(
            Path::new("/run/rdmaprep/install.lock").exists()
                && !Path::new("/run/rdmaprep-install.lock").exists()
        );
        host.rdmaprep(&["uninstall", "--dry-run"])
            .fails(9, &[short]);
        c.stop(host).ok();
        assert!(
            host.rdmaprep(&["uninstall"])
                .ok()
                .out
                .contains("nothing to change")
        );
    });
}

/// The units have it that a runtime's path is known to engines as long as a container is there.
#[test]
fn uninstall_is_refused_while_an_engine_calls_the_runtime() {
    alone(|host| {
        let task = Path::new("/run/containerd/io.containerd.runtime.v2.task/moby/c1");
        fs::create_dir_all(task).unwrap();
        for name in ["rdmaprep-runtime", "rdmaprep-runtime-runsc"] {
            fs::write(task.join("runtime"), format!("/usr/bin/{name}")).unwrap();
            host.rdmaprep(&["uninstall"])
                .fails(9, &["moby/c1", &format!("/usr/bin/{name}")]);
            host.rdmaprep(&["uninstall", "--dry-run"])
                .fails(9, &["moby/c1"]);
        }
        for other in [
            "",
            "runc",
            "/usr/bin/runc",
            "/usr/bin/rdmaprep",
            "/usr/bin/rdmaprep-runtimes",
        ] {
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
    rdmaprep("uninstall", root.path(), &[]).fails(8, &["`rdmaprep uninstall --leave-changed`"]);
    let said = rdmaprep("uninstall", root.path(), &["--leave-changed"])
        .ok()
        .out;
    assert!(
        said.contains(
            "note: changed since and left: /usr/share/containers/oci/hooks.d/rdmaprep-poststop.json"
        ),
        "{said}"
    );
    assert_eq!(
        files(root.path()).into_keys().collect::<Vec<_>>(),
        [PathBuf::from(hook)]
    );
    let said = rdmaprep("uninstall", root.path(), &[]).ok().out;
    assert!(!said.contains("hooks.d"), "{said}");
    assert!(root.path().join(hook).exists());
    rdmaprep("install", root.path(), &["--crio"]).fails(3, &[hook, "move it away"]);
}

/// Every way on from a failure ends it.
#[test]
fn an_edited_file_fails_no_uninstall_once_it_is_settled() {
    let root = TempDir::new().unwrap();
    let hook = "usr/share/containers/oci/hooks.d/rdmaprep-poststop.json";
    rdmaprep("install", root.path(), &["--crio"]).ok();
    let ours = fs::read_to_string(root.path().join(hook)).unwrap();
    for settle in ["removed", "as it was", "left"] {
        rdmaprep("install", root.path(), &["--crio"]).ok();
        put(root.path(), hook, "{}");
        for _ in 0..2 {
            let words = [hook, "all of it, and in force", "--leave-changed"];
            rdmaprep("uninstall", root.path(), &[]).fails(8, &words);
        }
        match settle {
            "removed" => fs::remove_file(root.path().join(hook)).unwrap(),
            "as it was" => put(root.path(), hook, &ours),
            _ => drop(rdmaprep("uninstall", root.path(), &["--leave-changed"]).ok()),
        }
        rdmaprep("uninstall", root.path(), &[]).ok();
        rdmaprep("uninstall", root.path(), &[]).ok();
        let left = files(root.path()).into_keys().collect::<Vec<_>>();
        let stays = (settle == "left").then(|| PathBuf::from(hook));
        assert_eq!(left, Vec::from_iter(stays), "{settle}");
    }
}

/// An engine's file that is mended after that is still cleared of our keys.
#[test]
fn a_file_that_could_not_be_read_is_undone_when_it_is_mended() {
    let root = TempDir::new().unwrap();
    let daemon = "etc/docker/daemon.json";
    put(root.path(), daemon, "{\"debug\": true}\n");
    rdmaprep("install", root.path(), &["--docker"]).ok();
    let ours = fs::read_to_string(root.path().join(daemon)).unwrap();
    put(root.path(), daemon, "{\"runtimes\": ");
    rdmaprep("uninstall", root.path(), &["--leave-changed"]).ok();
    put(root.path(), daemon, &ours.replace("true", "false"));
    rdmaprep("uninstall", root.path(), &[]).ok();
    let now = fs::read_to_string(root.path().join(daemon)).unwrap();
    assert_eq!(now, "{\"debug\": false}\n");
}

const CRI: &str = "plugins.\"io.containerd.grpc.v1.cri\".containerd";

/// A runtime that lost its type or its path would keep its engine from starting.
#[test]
fn an_edited_runtime_entry_is_removed_or_stays_as_a_whole() {
    let root = TempDir::new().unwrap();
    let (daemon, config) = (
        root.path().join("etc/docker/daemon.json"),
        root.path().join("etc/containerd/config.toml"),
    );
    put(root.path(), "etc/containerd/config.toml", "version = 2\n");
    rdmaprep("install", root.path(), &["--docker", "--containerd"]).ok();
    let text = fs::read_to_string(&daemon)
        .unwrap()
        .replace("\"path\":", "\"runtimeArgs\": [\"--debug\"],\n\"path\":");
    fs::write(
        &daemon,
        text.replace(
            "\"runtimes\": {",
            "\"runtimes\": {\n    \"kata\": {\"path\": \"/k\"},",
        ),
    )
    .unwrap();
    let added = format!(
        "\n[{CRI}.runtimes.runc.options]\nSystemdCgroup = \
        true\n[{CRI}.runtimes.rdmaprep.options.more]\nx = 1\n"
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
fn a_runtime_made_the_default_one_stays() {
    for (target, path, before, default) in [
        (
            "--docker",
            "etc/docker/daemon.json",
            "{}",
            "{\"default-runtime\": \"rdmaprep\", ",
        ),
        (
            "--containerd",
            "etc/containerd/config.toml",
            "version = 2\n",
            "default_runtime_name",
        ),
        (
            "--containerd",
            "etc/containerd/conf.d/mine.toml",
            "version = 3\n",
            "default_runtime_name",
        ),
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
        let cri = if before.contains('3') {
            "plugins.\"io.containerd.cri.v1.runtime\".containerd"
        } else {
            CRI
        };
        let theirs = match target {
            "--docker" => ours.replacen('{', default, 1),
            _ => format!("{ours}\n[{cri}]\n{default} = \"rdmaprep\"\n"),
        };
        fs::write(&place, theirs).unwrap();
        let now = all(root.path());
        for more in [&[][..], &["--leave-changed"], &["--dry-run"]] {
            rdmaprep("uninstall", root.path(), more)
                .fails(3, &[path, "rdmaprep as the default runtime"]);
        }
        assert_eq!(all(root.path()), now);
        fs::write(&place, ours).unwrap();
        rdmaprep("uninstall", root.path(), &[]).ok();
        assert_eq!(fs::read_to_string(&place).unwrap(), before);
    }
}

/// k3s makes that file itself: what is to be changed is its template.
#[test]
fn a_default_of_a_template_is_looked_for_there() {
    let k3s = "var/lib/rancher/k3s/agent/etc/containerd";
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/install/k3s");
    let root = copy(&case);
    rdmaprep("install", root.path(), &["--containerd"]).ok();
    let config = root.path().join(k3s).join("config.toml");
    let cri = "plugins.'io.containerd.cri.v1.runtime'.containerd";
    let default = format!("\n[{cri}]\ndefault_runtime_name = \"rdmaprep\"\n");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text + &default).unwrap();
    let template = format!("{{{{ template \"base\" . }}}}\n{default}");
    put(
        root.path(),
        &format!("{k3s}/config-v3.toml.tmpl"),
        &template,
    );
    rdmaprep("uninstall", root.path(), &[]).fails(
        3,
        &["config-v3.toml.tmpl has rdmaprep as the default runtime"],
    );
}

/// Up to 0.1 a config.toml of version 2 without the CRI plugin's section got a drop-in, which hid
/// what was written there later.
#[test]
fn a_drop_in_that_hides_what_config_toml_says_goes() {
    let root = TempDir::new().unwrap();
    put(root.path(), "etc/containerd/config.toml", "version = 3\n");
    rdmaprep("install", root.path(), &["--containerd"]).ok();
    let config = root.path().join("etc/containerd/config.toml");
    let text = fs::read_to_string(&config).unwrap();
    assert!(
        root.path()
            .join("etc/containerd/conf.d/rdmaprep.toml")
            .exists()
            && text.contains("imports")
    );
    fs::write(&config, text.replace("version = 3", "version = 2")).unwrap();
    rdmaprep("install", root.path(), &["--containerd"]).ok();
    assert!(
        !root
            .path()
            .join("etc/containerd/conf.d/rdmaprep.toml")
            .exists()
    );
    let text = fs::read_to_string(&config).unwrap();
    assert!(
        text.contains(&format!("[{CRI}.runtimes.rdmaprep]")) && !text.contains("imports"),
        "{text}"
    );
    rdmaprep("uninstall", root.path(), &[]).ok();
    assert_eq!(fs::read_to_string(&config).unwrap(), "version = 2\n");
}

/// A package can be removed even if a file has become unreadable.
#[test]
fn what_can_no_longer_be_read_is_left_where_that_is_asked_for() {
    let root = TempDir::new().unwrap();
    rdmaprep("install", root.path(), &["--docker", "--crio"]).ok();
    put(root.path(), "etc/docker/daemon.json", "{\"runtimes\": ");
    let now = all(root.path());
    rdmaprep("uninstall", root.path(), &[]).fails(2, &["/etc/docker/daemon.json"]);
    assert_eq!(all(root.path()), now);
    let said = rdmaprep("uninstall", root.path(), &["--leave-changed"])
        .ok()
        .out;
    assert!(
        said.contains("note: changed since and left: /etc/docker/daemon.json: is not JSON"),
        "{said}"
    );
    let left: Vec<PathBuf> = files(root.path())
        .into_keys()
        .filter(|path| !path.starts_with("var"))
        .collect();
    assert_eq!(left, [PathBuf::from("etc/docker/daemon.json")]);
}

/// The package's script, with a program that says what it was called with, and what is to be run
/// afterwards.
#[test]
fn package_removal_runs_to_its_end_and_hides_no_failure() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let script =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/deb/prerm"))
            .unwrap();
    assert_eq!(script.matches("/run/systemd/system").count(), 1);
    let script = script.replace("/run/systemd/system", at("booted").to_str().unwrap());
    assert_eq!(script.matches("/etc/cdi/rdmaprep.json").count(), 1);
    fs::write(
        at("prerm"),
        script.replace("/etc/cdi/rdmaprep.json", at("devices").to_str().unwrap()),
    )
    .unwrap();
    let make = |name: &str, text: &str| {
        fs::write(at(name), text).unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o755)).unwrap();
    };
    make(
        "systemctl",
        &format!(
            "#!/bin/sh\necho \"$@\" >> {}\nexit 1\n",
            at("units").display()
        ),
    );
    let units = || {
        let said = fs::read_to_string(at("units")).unwrap_or_default();
        let _ = fs::remove_file(at("units"));
        said
    };
    const OURS: &str = "rdmaprep-stale.timer rdmaprep-plans.path rdmaprep-plans.service \
        rdmaprep-cdi.path rdmaprep-cdi.service rdmaprep-metrics.timer\n";
    let removal = |code: i32, booted: bool, word: &str| {
        let _ = fs::remove_file(at("ran"));
        let _ = fs::remove_dir(at("booted"));
        if booted {
            fs::create_dir(at("booted")).unwrap();
        }
        let ran = at("ran").display().to_string();
        let says = format!(
            "echo 'removed /x'; echo 'then: echo one >> {ran}'; echo 'then: false'; echo 'then: \
            cat; echo two >> {ran}'"
        );
        make(
            "rdmaprep",
            &format!(
                "#!/bin/sh\necho \"$@\" > {}\n{says}\nexit {code}\n",
                at("args").display()
            ),
        );
        if !at("devices").exists() {
            fs::write(at("devices"), OUR_DEVICES).unwrap();
        }
        let path = format!(
            "{}:{}",
            folder.path().display(),
            std::env::var("PATH").unwrap()
        );
        let mut program = Command::new("sh");
        let said = run(program.arg(at("prerm")).arg(word).env("PATH", path), "");
        (said, fs::read_to_string(at("ran")).unwrap_or_default())
    };
    let (said, ran) = removal(0, true, "remove");
    assert_eq!(
        (said.code, ran.as_str()),
        (Some(0), "one\ntwo\n"),
        "{said:?}"
    );
    assert!(
        said.out.contains("removed /x") && said.err.contains("this failed: false"),
        "{said:?}"
    );
    assert_eq!(
        fs::read_to_string(at("args")).unwrap(),
        "uninstall --leave-changed\n"
    );
    // Even units that an administrator enabled, and devices: they name a program that is removed.
    assert_eq!(
        (units(), at("devices").exists()),
        (format!("daemon-reload\nstop {OURS}disable {OURS}"), false)
    );
    assert_eq!(removal(0, false, "deconfigure").1, "");
    assert_eq!(
        (units(), at("devices").exists()),
        (format!("disable {OURS}"), false)
    );
    fs::remove_file(at("args")).unwrap();
    for code in [8, 9] {
        let (said, ran) = removal(code, true, "remove");
        assert_eq!((said.code, ran.as_str()), (Some(code), ""), "{said:?}");
    }
    fs::remove_file(at("args")).unwrap();
    assert_eq!(removal(8, true, "upgrade").0.code, Some(0));
    assert!(!at("args").exists());
    assert_eq!((units(), at("devices").exists()), (String::new(), true));
    // Another vendor's devices.
    fs::write(
        at("devices"),
        r#"{"cdiVersion":"0.3.0","kind":"vendor.com/net"}"#,
    )
    .unwrap();
    assert_eq!(
        (removal(0, true, "remove").0.code, at("devices").exists()),
        (Some(0), true)
    );
}

#[test]
fn a_damaged_config_file_is_reported_once() {
    alone(|host| {
        fs::write(&host.config, "no_such_key = 1\n").unwrap();
        let said = host.rdmaprep(&["uninstall", "--dry-run"]).ok();
        assert_eq!(said.err.matches("no_such_key").count(), 1, "{said:?}");
    });
}

/// A tree with that /etc/containerd/config.toml, where rdmaprep is installed.
fn with_containerd(text: &str) -> (TempDir, PathBuf) {
    let root = TempDir::new().unwrap();
    let config = root.path().join("etc/containerd/config.toml");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    fs::write(&config, text).unwrap();
    rdmaprep("install", root.path(), &["--containerd"]).ok();
    (root, config)
}

/// containerd 1.6 and 1.7 load no CRI where a file names runtimes and lacks the default one.
#[test]
fn runc_stays_as_long_as_another_runtime_is_there() {
    let (root, config) = with_containerd("version = 2\n");
    let text = fs::read_to_string(&config).unwrap();
    let runtimes = "plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes";
    let theirs = format!("\n[{runtimes}.kata]\nruntime_type = \"io.containerd.kata.v2\"\n");
    fs::write(&config, text + &theirs).unwrap();
    rdmaprep("uninstall", root.path(), &[]).ok();
    let text = fs::read_to_string(&config).unwrap();
    for (name, is_there) in [("runc", true), ("kata", true), ("rdmaprep", false)] {
        assert_eq!(
            text.contains(&format!("{runtimes}.{name}]")),
            is_there,
            "{text}"
        );
    }
}

/// containerd does not start where a file that it imports is missing.
#[test]
fn a_drop_in_that_is_imported_by_name_stays() {
    let (root, config) = with_containerd("version = 3\nimports = [\"conf.d/*.toml\"]\n");
    let drop_in = root.path().join("etc/containerd/conf.d/rdmaprep.toml");
    assert!(drop_in.exists());
    let listed = "version = 3\nimports = [\"conf.d/rdmaprep.toml\"]\n";
    fs::write(&config, listed).unwrap();
    let words = ["config.toml imports /etc/containerd/conf.d/rdmaprep.toml by its name"];
    rdmaprep("uninstall", root.path(), &["--leave-changed"]).fails(3, &words);
    assert!(drop_in.exists());
    fs::write(&config, "version = 3\n").unwrap();
    rdmaprep("uninstall", root.path(), &[]).ok();
    assert!(!drop_in.exists());
}
