//! Hooks below gVisor's runtime. Stand-in: a shell under the name runsc, with runsc's command line; no sandbox is made.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

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
    let words: Vec<&str> =
        [hook.get_program()].into_iter().chain(hook.get_args()).map(|w| w.to_str().unwrap()).collect();
    let mut command = Command::new(runsc(host));
    command.env_clear().env("HOOK", words.join(" ")).args(["-c", "$HOOK; exit $?", "runsc"]).args(flags);
    run(command.arg("create"), state)
}

/// The state of a container whose bundle is in a folder of its id, as engines have it; the bundle has these device nodes.
fn bundled(host: &Host, c: &Container, annotations: &Value, nodes: &[&str]) -> String {
    let mut annotations = annotations.clone();
    annotations["rdmaprep.io/plan"] = json!("default");
    let devices: Vec<Value> =
        nodes.iter().map(|path| json!({"path": path, "type": "c", "major": 231, "minor": 192})).collect();
    let config = json!({
        "ociVersion": "1.1.0", "root": {"path": "rootfs"}, "annotations": annotations, "process": {"env": []},
        "linux": {"devices": devices, "namespaces": [{"type": "network"}, {"type": "mount"}]},
    });
    let bundle = host.run.parent().unwrap().join("bundles").join(&c.id);
    fs::create_dir_all(&bundle).unwrap();
    fs::write(bundle.join("config.json"), config.to_string()).unwrap();
    json!({"ociVersion": "1.2.0", "id": c.id, "status": "created", "pid": c.pid(), "bundle": bundle, "annotations": annotations})
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
        let proxy = "by gVisor's RDMA proxy";
        let blind = "off: the sandbox has a /sys of its own, which is settled before hooks run";
        for (flags, annotations, sysfs) in [
            (&["--rdmaproxy"][..], &none, proxy),
            (&["--network=host", "--rdmaproxy=true"], &none, proxy),
            (&["--allow-flag-override"], &allowed, proxy),
            (&["--rdmaproxy=false"], &none, blind),
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
            host.rdmaprep(&["prepare", "--ifaces", &rails, "--sysfs", "proxy"]).ok();
            let c = Container::new("g");
            let state = bundled(host, &c, &json!({}), &[]);
            hook(&state).fails(3, &[reason, "--sysfs proxy=warn"]);
            host.is_clean();
            host.rdmaprep(&["prepare", "--ifaces", &rails, "--sysfs", "proxy=warn"]).ok();
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
        create(host, &["--rdmaproxy"], &state).fails(3, &[rule, "/bundles/pause/config.json does not exist"]);
        bundled(host, &pause, &json!({}), &["/dev/null"]);
        create(host, &["--rdmaproxy"], &state).fails(3, &[rule, "/bundles/pause/config.json lists none"]);
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
