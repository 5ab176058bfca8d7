//! Containers on the host's network: they get all of their plan but a move, where the host's
//! administrator allows that.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::alone;
use serde_json::{Value, json};
use testkit::{Container, Host};

const ALLOWED: &str = "host_network = true\n";

/// A container with a low limit that has the host's network.
fn on_host(id: &str, annotations: Value) -> Container {
    let mut command = Command::new("prlimit");
    let enter = command.args(["--memlock=65536:65536", "unshare", "--mount"]);
    Container::start(id, enter).annotated(annotations)
}

fn asking() -> Value {
    json!({"rdmaprep.io/plan": "default", "rdmaprep.io/host-network": "true"})
}

fn memlock(container: &Container) -> String {
    let limits = fs::read_to_string(format!("/proc/{}/limits", container.pid())).unwrap();
    let mut lines = limits.lines();
    let line = lines.find(|l| l.starts_with("Max locked memory")).unwrap();
    line.split_whitespace().nth(3).unwrap().to_owned()
}

/// A bridge of a container is a default route of the host.
fn way_out(host: &Host) {
    host.ip(
        "link add up0 type veth peer name qup0\nlink set up0 up\nlink set qup0 up
        address add 192.168.9.2/24 dev up0\nroute add default via 192.168.9.1 dev up0",
    );
}

#[test]
fn plan_on_the_hosts_network_comes_without_a_move() {
    alone(|host| {
        let rails = host.rails(2);
        way_out(host);
        host.configure(ALLOWED);
        host.prepare(&rails);
        let before = host.look();
        let mut c = on_host("shares", asking());
        assert_eq!(memlock(&c), "65536");
        // Both stages of the create, as runc calls them.
        host.hook("prestart", &c.state()).ok();
        c.create(host).ok();
        let report = host.report("shares");
        assert_eq!(report["nics"], json!(["r0", "r1"]), "{report}");
        let notes = report["notes"].to_string();
        assert!(notes.contains("no NIC has moved"), "{report}");
        // In a user namespace, raising it is refused: it was tried.
        assert!(report["memlock"].is_string(), "{report}");
        host.hook("poststart", &c.state()).ok();
        // Later stages keep what the create has given.
        assert_eq!(host.report("shares")["plan"], "default");
        let env = host.rdmaprep(&["env", "--container", "shares"]).ok().out;
        assert!(env.contains("NCCL_SOCKET_IFNAME='=up0'"), "{env}");
        let pid = c.pid().to_string();
        let said = host.rdmaprep(&["doctor", "--container", &pid]).out;
        assert!(
            said.contains("RLIMIT_MEMLOCK of the container's init"),
            "{said}"
        );
        let said = host
            .rdmaprep(&["nccl", "explain", "--container", &pid])
            .ok()
            .out;
        assert!(said.contains("r0"), "{said}");
        // It holds nothing: another container may have the NICs.
        let mut moves = Container::new("moves");
        moves.create(host).ok();
        let late = on_host("late", asking());
        late.create(host)
            .fails(9, &["r0 is held by container moves"]);
        moves.stop(host).ok();
        c.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// As one that moves is.
#[test]
fn nic_that_was_made_again_is_refused_on_the_hosts_network() {
    alone(|host| {
        let rails = host.rails(2);
        host.configure(ALLOWED);
        let line = ["prepare", "--network-mode", "host", "--ifaces", &rails];
        host.rdmaprep(&line).ok();
        let c = on_host("c", json!({"rdmaprep.io/plan": "default"}));
        c.create(host).ok();
        host.ip("link delete r1");
        c.create(host).fails(3, &["r1 is not on the host"]);
        host.ip("link add r1 type veth peer name p1\nlink set p1 up\nlink set r1 up");
        c.create(host).fails(3, &["r1 has no 10.1.0.1/24 now"]);
        host.ip("address add 10.1.0.1/24 dev r1");
        c.create(host).ok();
        host.is_clean();
    });
}

#[test]
fn hosts_network_is_refused_unless_the_policy_has_it() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let before = host.look();
        let why = "`host_network = true` in the host's config file";
        let c = on_host("no", asking());
        c.create(host).fails(3, &[why]);
        host.rdmaprep(&["prepare", "--network-mode", "host", "--ifaces", "r0"])
            .fails(3, &[why]);
        host.configure(&format!("{ALLOWED}annotations = [\"plan\"]\n"));
        c.create(host).fails(3, &["not among `annotations`"]);
        assert_eq!(memlock(&c), "65536");
        // The error says how to ask for it.
        host.configure(ALLOWED);
        on_host("plain", json!({"rdmaprep.io/plan": "default"}))
            .create(host)
            .fails(3, &["rdmaprep.io/host-network=true"]);
        let odd = json!({"rdmaprep.io/plan": "default", "rdmaprep.io/host-network": "maybe"});
        on_host("odd", odd).create(host).fails(5, &["\"maybe\""]);
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn container_that_the_hosts_plan_passes_over_has_no_report() {
    alone(|host| {
        let rails = host.rails(1);
        host.configure("plan = \"default\"");
        host.prepare(&rails);
        on_host("bare", json!({})).create(host).ok();
        assert!(!host.run.join("reports/bare.json").exists());
        host.is_clean();
    });
}

#[test]
fn container_with_its_own_network_gets_no_plan_of_the_host() {
    alone(|host| {
        host.rails(1);
        // The host may live on what stays where it is.
        host.ip(
            "route add default dev r0\nrule add fwmark 4352 table 900 priority 900
            route add 10.20.0.0/16 dev r0 table 900",
        );
        host.configure(ALLOWED);
        let before = host.look();
        let line = ["prepare", "--network-mode", "host", "--ifaces", "r0"];
        let said = host.rdmaprep(&line).ok().err;
        assert!(!said.contains("stays on the host"), "{said}");
        let why = "this one has a network of its own";
        Container::new("own").create(host).fails(3, &[why]);
        Container::new("asks")
            .annotated(asking())
            .create(host)
            .fails(3, &[why]);
        on_host("plain", json!({"rdmaprep.io/plan": "default"}))
            .create(host)
            .ok();
        // A plan that is made at the start, too.
        let auto = json!({"rdmaprep.io/plan": "auto", "rdmaprep.io/host-network": "true"});
        let auto = on_host("auto", auto);
        let line = ["hook", "createRuntime", "--ifaces", "r0"];
        testkit::run(&mut host.command(&line), &auto.state()).ok();
        assert_eq!(host.report("auto")["nics"], json!(["r0"]));
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn bundle_on_the_hosts_network_is_prepared_where_allowed() {
    alone(|host| {
        host.rails(1);
        way_out(host);
        let dir = host.run.parent().unwrap().join("bundle");
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("config.json");
        let config = |namespaces: Value| {
            let config = json!({"ociVersion": "1.1.0", "root": {"path": "rootfs"},
                "annotations": {"rdmaprep.io/host-network": "true"},
                "process": {"args": ["sh"], "cwd": "/"},
                "linux": {"namespaces": namespaces}});
            fs::write(&path, config.to_string()).unwrap();
            config.to_string()
        };
        let bundle = dir.to_str().unwrap();
        let prepare = || host.rdmaprep(&["prepare", "--ifaces", "r0", "--bundle", bundle]);
        let before = config(json!([{"type": "mount"}]));
        prepare().fails(3, &["`host_network = true`"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), before);
        host.configure(ALLOWED);
        let own = config(json!([{"type": "mount"}, {"type": "network"}]));
        prepare().fails(3, &["gives this one a network of its own"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), own);
        config(json!([{"type": "mount"}]));
        prepare().ok();
        let edited: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        // NCCL meets over the link of the host's default route.
        let env = edited["process"]["env"].to_string();
        assert!(env.contains("NCCL_SOCKET_IFNAME==up0"), "{env}");
        assert_eq!(edited["process"]["rlimits"][0]["type"], "RLIMIT_MEMLOCK");
        assert!(edited["hooks"]["createRuntime"].is_array(), "{edited}");
        let plan = fs::read_to_string(host.run.join("plans/default.json")).unwrap();
        assert!(plan.contains("\"network_mode\": \"host\""), "{plan}");
        config(json!([{"type": "mount"}]));
        let said = host.rdmaprep(&["env", "--bundle", bundle]).ok();
        assert!(
            said.out.contains("NCCL_SOCKET_IFNAME='=up0'"),
            "{}",
            said.out
        );
    });
}

/// These have the mount namespace of the test: as good as ones that a hook cannot enter, so that
/// their settings are in a file to be sourced. Each has its own, for as long as it lives.
#[test]
fn each_container_on_the_hosts_network_has_its_profile() {
    alone(|host| {
        host.rails(3);
        way_out(host);
        host.configure(ALLOWED);
        for (plan, nic, more) in [
            ("one", "r0", "--debug-all"),
            ("two", "r1", "--sysfs=auto"),
            ("default", "r2", "--sysfs=auto"),
        ] {
            let line = ["prepare", "--plan", plan, "--ifaces", nic, more];
            host.rdmaprep(&line).ok();
        }
        let before = host.look();
        let started = |plan: &str| {
            let asking = json!({"rdmaprep.io/plan": plan, "rdmaprep.io/host-network": "true"});
            let config = json!({"root": {"path": "/", "readonly": true}, "process": {"env": []},
                "mounts": [{"destination": "/sys", "type": "sysfs", "source": "sysfs"}]});
            let c = Container::start(
                plan,
                Command::new("env").arg("-i").arg("PATH=/usr/bin:/bin"),
            );
            let c = c.annotated(asking).bundled(host, &config);
            host.hook("prestart", &c.state()).ok();
            c.create(host).ok();
            c
        };
        let profile = |id: &str| {
            let said = host.report(id)["settings"].as_str().unwrap().to_owned();
            let (_, path) = said.split_once("only in ").unwrap();
            PathBuf::from(path.split_once(" (").unwrap().0)
        };
        let count = || fs::read_dir(host.run.join("profiles")).unwrap().count();
        let mut one = started("one");
        let mut two = started("two");
        let (of_one, of_two) = (profile("one"), profile("two"));
        let debugs = |path: &Path| {
            let text = fs::read_to_string(path).unwrap();
            text.contains("NCCL_DEBUG_SUBSYS")
        };
        assert_eq!((debugs(&of_one), debugs(&of_two)), (true, false));
        // The hooks and the timer remove what has been left, and these live.
        Container::new("moves").create(host).ok();
        host.rdmaprep(&["restore", "--all"]).ok();
        host.rdmaprep(&["restore", "--all", "--stale"]).ok();
        host.hook("poststart", &one.state()).ok();
        assert_eq!((debugs(&of_one), debugs(&of_two)), (true, false));
        assert_eq!(count(), 2);
        one.stop(host).ok();
        assert_eq!((of_one.exists(), of_two.exists()), (false, true));
        // Without a stop hook, the timer's turn.
        two.kill();
        host.rdmaprep(&["restore", "--all", "--stale"]).ok();
        assert_eq!(count(), 0);
        // Or that of another container's hook.
        started("one").kill();
        let mut moves = Container::new("moves");
        moves.create(host).ok();
        assert_eq!(count(), 0);
        moves.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}
