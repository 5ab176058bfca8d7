//! Hooks below gVisor's runtime. Stand-in: a shell under the name runsc, with runsc's command line;
//! no sandbox is made.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::alone;
use serde_json::{Value, json};
use testkit::{Container, Host, Said, run};

/// The stand-in, beside this test's folders.
fn runsc(host: &Host) -> PathBuf {
    let place = host.run.parent().unwrap().join("runsc");
    if !place.exists() {
        fs::copy(fs::canonicalize("/bin/sh").unwrap(), &place).unwrap();
    }
    place
}

/// The create hook as the child of runsc with these flags.
fn create(host: &Host, flags: &[&str], state: &str) -> Said {
    let hook = host.command(&["hook", "createRuntime"]);
    let words: Vec<&str> = [hook.get_program()]
        .into_iter()
        .chain(hook.get_args())
        .map(|w| w.to_str().unwrap())
        .collect();
    let mut command = Command::new(runsc(host));
    command
        .env_clear()
        .env("HOOK", words.join(" "))
        .args(["-c", "$HOOK; exit $?", "runsc"])
        .args(flags);
    run(command.arg("create"), state)
}

/// The state of a container whose bundle is in a folder of its id, as engines have it; the bundle
/// has these device nodes.
fn bundled(host: &Host, c: &Container, annotations: &Value, nodes: &[&str]) -> String {
    let mut annotations = annotations.clone();
    annotations["rdmaprep.io/plan"] = json!("default");
    let devices: Vec<Value> = nodes
        .iter()
        .map(|path| json!({"path": path, "type": "c", "major": 231, "minor": 192}))
        .collect();
    let config = json!({
        "ociVersion": "1.1.0", "root": {"path": "rootfs"}, "annotations": annotations,
        "process": {"env": []},
        "linux": {"devices": devices, "namespaces": [{"type": "network"}, {"type": "mount"}]},
    });
    let bundle = host.run.parent().unwrap().join("bundles").join(&c.id);
    fs::create_dir_all(&bundle).unwrap();
    fs::write(bundle.join("config.json"), config.to_string()).unwrap();
    json!({"ociVersion": "1.2.0", "id": c.id, "status": "created", "pid": c.pid(), "bundle": bundle,
        "annotations": annotations})
    .to_string()
}

/// Ends it, as `runsc delete` does: poststop has the same bundle.
fn delete(host: &Host, mut c: Container, state: &str) {
    c.kill();
    host.hook("poststop", state).ok();
    host.is_clean();
}

#[test]
fn hook_reads_the_proxy_from_its_parent() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let none = json!({});
        let allowed = json!({"dev.gvisor.flag.rdmaproxy": "true"});
        let overridden = json!({"dev.gvisor.flag.rdmaproxy": "false"});
        let proxy = "by gVisor's RDMA proxy";
        let blind = "off: the sandbox has a /sys of its own, which is settled before hooks run";
        for (flags, annotations, sysfs) in [
            (&["--rdmaproxy"][..], &none, proxy),
            (&["--network=host", "--rdmaproxy=true"], &none, proxy),
            (&["--allow-flag-override"], &allowed, proxy),
            (&["--rdmaproxy=false"], &none, blind),
            (
                &["--rdmaproxy", "--allow-flag-override"],
                &overridden,
                blind,
            ),
            (&[], &none, blind),
        ] {
            let c = Container::new("g");
            let state = bundled(host, &c, annotations, &[]);
            create(host, flags, &state).ok();
            let report = host.report("g");
            assert_eq!(report["sysfs"], sysfs, "{flags:?}: {report:#}");
            delete(host, c, &state);
        }
    });
}

#[test]
fn sandbox_without_the_proxy_is_refused() {
    alone(|host| {
        let rails = host.rails(1);
        let reason = "the container's runtime is not `runsc --rdmaproxy`";
        let by_runsc = |state: &str| create(host, &[], state);
        let by_another = |state: &str| host.hook("createRuntime", state);
        for hook in [&by_runsc as &dyn Fn(&str) -> Said, &by_another] {
            host.rdmaprep(&["prepare", "--ifaces", &rails, "--sysfs", "proxy"])
                .ok();
            let c = Container::new("g");
            let state = bundled(host, &c, &json!({}), &[]);
            hook(&state).fails(3, &[reason, "--sysfs proxy=warn"]);
            host.is_clean();
            host.rdmaprep(&["prepare", "--ifaces", &rails, "--sysfs", "proxy=warn"])
                .ok();
            hook(&state).ok();
            let notes = host.report("g")["notes"].to_string();
            assert!(notes.contains(reason), "{notes}");
            delete(host, c, &state);
        }
    });
}

#[test]
fn pod_without_devices_in_its_root_is_refused() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let of_pod = json!({
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.sandbox-id": "pause",
        });
        let app = Container::new("app");
        let pause = Container::beside("pause", &app);
        let state = bundled(host, &app, &of_pod, &[]);
        let rule = "a pod's sandbox has the RDMA devices of its root container alone, and ";
        create(host, &["--rdmaproxy"], &state)
            .fails(3, &[rule, "/bundles/pause/config.json does not exist"]);
        bundled(host, &pause, &json!({}), &["/dev/null"]);
        create(host, &["--rdmaproxy"], &state)
            .fails(3, &[rule, "/bundles/pause/config.json lists none"]);
        host.is_clean();
        // Another container that joins what the root container has.
        let root = bundled(host, &pause, &json!({}), &[]);
        create(host, &["--rdmaproxy"], &root).ok();
        create(host, &["--rdmaproxy"], &state).fails(3, &[rule, "lists none"]);
        bundled(host, &pause, &json!({}), &["/dev/infiniband/uverbs0"]);
        create(host, &["--rdmaproxy"], &state).ok();
        drop(pause);
        host.hook("poststop", &root).ok();
        delete(host, app, &state);
    });
}

/// A sandbox's process, by its executable and command line, with that bundle and flag.
fn sandbox(host: &Host, bundle: &str, flag: &str) -> Container {
    let mut command = Command::new("unshare");
    let boot = ["boot", &format!("--bundle={bundle}"), flag];
    command
        .arg("--net")
        .arg(runsc(host))
        .args(["-c", "shift 3; \"$@\"; exit", "runsc-sandbox"])
        .args(boot);
    Container::start("g", &mut command)
}

/// What doctor says of it, about the sandbox, NCCL and memory.
fn examined(host: &Host, name: &str) -> String {
    let said = host.rdmaprep(&["doctor", "--json", "--container", name]);
    let findings = serde_json::from_str::<Value>(&said.out).unwrap()["findings"].take();
    let about = |f: &&Value| {
        matches!(
            f["check"].as_str(),
            Some("verbs_nodes" | "nccl" | "memlock")
        )
    };
    let seen = |f: &Value| {
        format!(
            "{}: {}\n",
            f["severity"].as_str().unwrap(),
            f["seen"].as_str().unwrap()
        )
    };
    findings
        .as_array()
        .unwrap()
        .iter()
        .filter(about)
        .map(seen)
        .collect()
}

#[test]
fn doctor_says_what_a_sandbox_hides() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let c = sandbox(host, "/nowhere", "--rdmaproxy=true");
        let state = bundled(host, &c, &json!({}), &["/dev/infiniband/uverbs0"]);
        create(host, &["--rdmaproxy"], &state).ok();
        let known = "unknown: the container is in a sandbox (gVisor): which files NCCL reads \
            there, and whether its device nodes \
                     open, is unknown\n";
        // The proxy pins memory as that process: its limit counts, which is the test's own here.
        let said = examined(host, "g");
        let rest: String = said
            .split_inclusive('\n')
            .filter(|line| !line.contains("RLIMIT_MEMLOCK"))
            .collect();
        assert_eq!(rest, known, "by the record");
        host.hook("poststop", &state).ok();
        host.is_clean();
        let said = examined(host, &c.pid().to_string());
        assert!(
            said.contains("what it was given is unknown: /nowhere/config.json does not exist"),
            "{said}"
        );
        drop(c);
        let bundle = host.run.parent().unwrap().join("bundles/g");
        let c = sandbox(host, bundle.to_str().unwrap(), "--network=host");
        let blind =
            "warning: the container is in a sandbox (gVisor) that runs without --rdmaproxy\n";
        assert_eq!(
            examined(host, &c.pid().to_string()),
            format!("{blind}{known}"),
            "by its command line"
        );
        drop(c);
        let c = sandbox(host, bundle.to_str().unwrap(), "--rdmaproxy=true");
        bundled(
            host,
            &c,
            &json!({"dev.gvisor.flag.rdmaproxy": "false"}),
            &[],
        );
        let said = examined(host, &c.pid().to_string());
        assert!(
            said.starts_with(blind),
            "runsc overrides a flag by its annotation: {said}"
        );
        // Of any other program all is looked at.
        let other = Container::new("other");
        assert!(!examined(host, &other.pid().to_string()).contains("sandbox"));
    });
}

/// A tenant may give any program that name, and a command line.
#[test]
fn a_tenants_runsc_is_no_sandbox() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let bundle = host.run.parent().unwrap().join("bundles/g");
        let boot = [
            "boot",
            &format!("--bundle={}", bundle.display()),
            "--rdmaproxy=true",
        ]
        .map(str::to_owned);
        let start = |enter: &mut Command, program: &str| {
            let words =
                [program, "-c", "shift 3; \"$@\"; exit", "runsc-sandbox"].map(str::to_owned);
            Container::start("g", enter.args(words.iter().chain(&boot)))
        };
        // By the record: it was made by a runtime that is none of gVisor's, and the program is on
        // the host's own mounts.
        let c = start(
            Command::new("unshare").arg("--net"),
            runsc(host).to_str().unwrap(),
        );
        let state = bundled(host, &c, &json!({}), &["/dev/infiniband/uverbs0"]);
        host.hook("createRuntime", &state).ok();
        assert!(!examined(host, "g").contains("sandbox"), "by the record");
        delete(host, c, &state);
        // Without one, by where the program is: on a mount of the container's.
        let apart = ["--net", "--mount", "--propagation", "private"];
        let c = start(
            Command::new("unshare").args(apart),
            runsc(host).to_str().unwrap(),
        );
        assert!(
            !examined(host, &c.pid().to_string()).contains("sandbox"),
            "in a mount namespace of its own"
        );
        drop(c);
        // Or below the container's root, which is a folder of the host's.
        let root = host.run.parent().unwrap().join("root");
        fs::create_dir_all(&root).unwrap();
        let ldd = "for f in $(ldd \"$1\" | grep -o '/[^ ]*') \"$1\" /bin/sh /bin/cat; do mkdir \
            -p \"$2${f%/*}\"; cp -L \"$f\" \"$2$f\"; done";
        let shell = runsc(host);
        let done = Command::new("sh")
            .args(["-c", ldd, "sh"])
            .args([&shell, &root])
            .status()
            .unwrap();
        assert!(done.success());
        let mut enter = Command::new("unshare");
        enter.arg("--net").arg("--root").arg(&root);
        let c = start(&mut enter, shell.to_str().unwrap());
        assert!(
            !examined(host, &c.pid().to_string()).contains("sandbox"),
            "below a root of its own"
        );
    });
}

#[test]
fn status_names_the_command_that_returns_nics() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let mut c = Container::new("g");
        let state = bundled(host, &c, &json!({}), &[]);
        create(host, &[], &state).ok();
        let says = |words: &str| {
            let status = host.rdmaprep(&["status"]).ok().out;
            assert!(status.contains(words), "{status}");
            status
        };
        let status = says(
            "stop g (by hand: runsc delete --force g; kill is not enough), or: rdmaprep restore g",
        );
        assert!(status.lines().all(|line| line.len() <= 100), "{status}");
        c.kill();
        says("to get back runsc delete g, or: rdmaprep restore --all --stale");
        host.hook("poststop", &state).ok();
        host.is_clean();
        // Docker's runsc keeps its containers elsewhere, and the plain command would say nothing of
        // one that it does not find.
        for (flag, runsc) in [
            ("--root=/run/docker/moby", "runsc --root=/run/docker/moby"),
            ("--root=/var/run/runsc", "runsc"),
            (
                "--allow-flag-override=true",
                "runsc --allow-flag-override=true",
            ),
        ] {
            let c = sandbox(host, "/nowhere", flag);
            let state = bundled(host, &c, &json!({}), &[]);
            create(host, &[], &state).ok();
            says(&format!("by hand: {runsc} delete --force g;"));
            delete(host, c, &state);
        }
        // Of other runtimes a stopped container's hooks run by themselves.
        let mut c = Container::new("other");
        c.create(host).ok();
        says("stop other, or: rdmaprep restore other");
        c.stop(host).ok();
        host.is_clean();
    });
}

/// The createContainer hook as gVisor's gofer calls it, in a mount namespace of its own, with what
/// comes before and after it there.
fn in_gofer(host: &Host, bundle: &str, before: &str, state: &str, after: &str) -> Said {
    let hook = host.command(&["hook", "createContainer"]);
    let words: Vec<&str> = [hook.get_program()]
        .into_iter()
        .chain(hook.get_args())
        .map(|w| w.to_str().unwrap())
        .collect();
    let script = format!(
        "cd {bundle}; mount --bind rootfs rootfs; {before}
        cat >../state; {} <../state || exit $?; touch ../placed
        until [ -e ../filled ]; do sleep 0.05; done; {after}",
        words.join(" ")
    );
    let mut command = Command::new("unshare");
    command
        .env_clear()
        .args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    run(&mut command, state)
}

/// The file that [`in_gofer`] waits for, which a test that fails makes, too.
struct Filled(PathBuf);

impl Drop for Filled {
    fn drop(&mut self) {
        let _ = fs::write(&self.0, "");
    }
}

fn settings_reach(host: &Host, image: Option<&str>) {
    let rails = host.rails(1);
    // Nothing here has an HCA.
    host.rdmaprep(&["prepare", "--ifaces", &rails, "--debug-all"])
        .ok();
    let c = Container::new("g");
    let state = bundled(host, &c, &json!({}), &[]);
    let gofers = state.replace(&format!("\"pid\":{}", c.pid()), "\"pid\":-1");
    assert_ne!(gofers, state);
    let bundles = host.run.parent().unwrap().join("bundles");
    let bundle = bundles.join("g");
    fs::create_dir_all(bundle.join("rootfs/etc")).unwrap();
    if let Some(text) = image {
        fs::write(bundle.join("rootfs/etc/nccl.conf"), text).unwrap();
    }
    let seen = std::thread::scope(|scope| {
        let path = bundle.to_str().unwrap();
        let look = "cat rootfs/etc/nccl.conf; echo x 2>&1 >>rootfs/etc/nccl.conf";
        let gofer = scope.spawn(|| in_gofer(host, path, "", &gofers, look));
        let filled = Filled(bundles.join("filled"));
        while !bundles.join("placed").exists() && !gofer.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        create(host, &[], &state).ok();
        drop(filled);
        gofer.join().unwrap()
    });
    assert!(
        seen.out.starts_with(&format!(
            "{}NCCL_DEBUG_",
            image.unwrap_or("NCCL_DEBUG=INFO\n")
        )),
        "{seen:?}"
    );
    assert!(
        format!("{}{}", seen.out, seen.err).contains("Read-only file system"),
        "{seen:?}"
    );
    let report = host.report("g");
    assert_eq!(
        report["settings"], "in the /etc/nccl.conf that the createContainer hook mounted",
        "{report:#}"
    );
    // The image is as it was.
    assert_eq!(
        fs::read_to_string(bundle.join("rootfs/etc/nccl.conf"))
            .ok()
            .as_deref(),
        image
    );
    delete(host, c, &state);
    assert_eq!(fs::read_dir(host.run.join("conf")).unwrap().count(), 0);
}

#[test]
fn settings_reach_a_sandbox_by_createcontainer() {
    alone(|host| settings_reach(host, None));
}

#[test]
fn settings_for_a_sandbox_yield_to_the_image() {
    alone(|host| settings_reach(host, Some("NCCL_DEBUG=WARN\n")));
}

/// A gofer that has called its createContainer hook. It ends with the test, also with one that
/// fails.
struct Gofer(Child);

impl Gofer {
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Gofer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn gofer(host: &Host, bundle: &Path, state: &str) -> Gofer {
    let hook = host.command(&["hook", "createContainer"]);
    let words: Vec<&str> = [hook.get_program()]
        .into_iter()
        .chain(hook.get_args())
        .map(|w| w.to_str().unwrap())
        .collect();
    fs::create_dir_all(bundle.join("rootfs/etc")).unwrap();
    fs::write(bundle.join("rootfs/etc/nccl.conf"), "").unwrap();
    fs::write(bundle.join("state"), state).unwrap();
    let script = format!(
        "mount --bind rootfs rootfs; {} <state || exit $?; touch placed; exec sleep 600",
        words.join(" ")
    );
    let mut command = Command::new("unshare");
    command
        .env_clear()
        .args(["--mount", "--propagation", "private", "sh", "-c", &script])
        .current_dir(bundle);
    let mut gofer = Gofer(command.spawn().unwrap());
    while !bundle.join("placed").exists() {
        assert_eq!(gofer.0.try_wait().unwrap(), None, "the hook failed");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    fs::remove_file(bundle.join("placed")).unwrap();
    gofer
}

#[test]
fn what_createcontainer_leaves_goes_with_its_container() {
    alone(|host| {
        let rails = host.rails(1);
        host.rdmaprep(&["prepare", "--ifaces", &rails, "--debug-all"])
            .ok();
        let left = || fs::read_dir(host.run.join("conf")).unwrap().count();
        let mut c = Container::new("g");
        let state = bundled(host, &c, &json!({}), &[]);
        let gofers = state.replace(&format!("\"pid\":{}", c.pid()), "\"pid\":-1");
        let bundle = host.run.parent().unwrap().join("bundles/g");
        // The create hook never comes: no record knows of the file.
        let mut first = gofer(host, &bundle, &gofers);
        host.rdmaprep(&["restore", "--all", "--stale"]).ok();
        assert_eq!(left(), 1, "its container may get its NICs yet");
        first.kill();
        host.rdmaprep(&["restore", "--all", "--stale"]).ok();
        assert_eq!(left(), 0);
        // A stale one does not stand in for the next container of that name; any restore or reclaim
        // removes it, too.
        let mut first = gofer(host, &bundle, &gofers);
        first.kill();
        let mut second = gofer(host, &bundle, &gofers);
        assert_eq!(left(), 1);
        create(host, &[], &state).ok();
        assert_eq!(
            host.report("g")["settings"],
            "in the /etc/nccl.conf that the createContainer hook mounted"
        );
        // When its NICs are returned by hand, the container still has what is mounted.
        host.rdmaprep(&["restore", "g"]).ok();
        assert_eq!(left(), 1, "its gofer lives");
        let mount = format!("--mount=/proc/{}/ns/mnt", second.0.id());
        let conf = bundle.join("rootfs/etc/nccl.conf");
        let seen = Command::new("nsenter")
            .args([mount.as_str(), "cat"])
            .arg(&conf)
            .output()
            .unwrap();
        assert!(
            String::from_utf8_lossy(&seen.stdout).starts_with("NCCL_DEBUG=INFO\n"),
            "{seen:?}"
        );
        second.kill();
        // NICs of a container that died without a stop hook, as the timer finds them.
        let mut third = gofer(host, &bundle, &gofers);
        create(host, &[], &state).ok();
        c.kill();
        third.kill();
        assert_eq!(left(), 1);
        host.rdmaprep(&["restore", "--all", "--stale"]).ok();
        assert_eq!(left(), 0);
        host.is_clean();
    });
}

#[test]
fn a_container_that_is_started_again_keeps_its_settings() {
    alone(|host| {
        let rails = host.rails(1);
        host.rdmaprep(&["prepare", "--ifaces", &rails, "--debug-all"])
            .ok();
        let left = || fs::read_dir(host.run.join("conf")).unwrap().count();
        let bundle = host.run.parent().unwrap().join("bundles/g");
        // The engine starts one again that has died without a stop hook. Its create hook reclaims
        // the NICs of the one before, and keeps its file.
        for settled in [false, true] {
            let mut c = Container::new("g");
            let state = bundled(host, &c, &json!({}), &[]);
            let gofers = state.replace(&format!("\"pid\":{}", c.pid()), "\"pid\":-1");
            let mut before = gofer(host, &bundle, &gofers);
            create(host, &[], &state).ok();
            c.kill();
            before.kill();
            let c = Container::new("g");
            let state = bundled(host, &c, &json!({}), &[]);
            let mut again = gofer(host, &bundle, &gofers);
            if settled {
                host.rdmaprep(&["restore", "--all", "--stale"]).ok();
                assert_eq!(left(), 1, "the timer came before the create hook");
            }
            create(host, &[], &state).ok();
            let report = host.report("g");
            assert_eq!(
                report["settings"], "in the /etc/nccl.conf that the createContainer hook mounted",
                "{report:#}"
            );
            assert_eq!(left(), 1);
            delete(host, c, &state);
            assert_eq!(left(), 0, "the stop hook asks for no gofer");
            again.kill();
        }
    });
}

#[test]
fn createcontainer_of_other_runtimes_does_nothing() {
    alone(|host| {
        for pid in ["0", "1", "4711"] {
            let state = json!({"id": "g", "pid": 1, "bundle": "/nowhere",
                "annotations": {"rdmaprep.io/plan": "default"}});
            let state = state
                .to_string()
                .replace("\"pid\":1", &format!("\"pid\":{pid}"));
            let said = host.hook("createContainer", &state).ok();
            assert_eq!(
                (said.out, said.err),
                (String::new(), String::new()),
                "pid {pid}"
            );
        }
        assert!(!host.run.join("conf").exists());
    });
}
