//! What the doctor makes of a node whose state others change while it looks, and of what it cannot
//! read: by the program itself; and of cards that no plan selects. Planted faults have golden
//! folders (tests/golden/doctor.rs).

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::alone;
use nccl_rules::settings::Settings;
use nix::fcntl::{Flock, FlockArg};
use rdma_model::snapshot::Snapshot;
use rdmaprep::cli::{Global, SelectArgs};
use rdmaprep::config::host::{self, Config};
use rdmaprep::config::request::Request;
use rdmaprep::doctor::facts::Machine;
use rdmaprep::doctor::{Check, Diagnosis, Examination, Finding, Severity, doctor};
use serde_json::{Value, json};
use testkit::{Container, Host, sh};

/// What it says of the host about that.
fn about(host: &Host, check: Check) -> Vec<Finding> {
    let said = host.rdmaprep(&["doctor", "--json"]);
    let d: Diagnosis = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"));
    d.findings
        .into_iter()
        .filter(|f| f.check == check)
        .collect()
}

/// A hook moves NICs for seconds, and its record says so all the time: that is no reason to take
/// them away from it.
#[test]
fn nics_are_not_taken_from_a_hook_at_work() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let mut c = Container::new("starts");
        c.create(host).ok();
        assert_eq!(about(host, Check::StaleRecords), []);
        let record = sh(&format!("echo {}/records/*.json", host.run.display()));
        let record = Path::new(record.trim());
        let attached = fs::read_to_string(record).unwrap();
        fs::write(
            record,
            attached.replace("\"phase\":\"attached\"", "\"phase\":\"attaching\""),
        )
        .unwrap();

        let lock = Flock::lock(
            File::open(host.run.join("lock")).unwrap(),
            FlockArg::LockExclusive,
        )
        .unwrap();
        let at_work = &about(host, Check::StaleRecords)[0];
        assert_eq!(at_work.severity, Severity::Unknown);
        assert!(
            at_work.run.is_empty() && !at_work.fix.contains("restore"),
            "{at_work:?}"
        );
        let advice = || host.status()[0]["advice"].as_str().unwrap().to_owned();
        assert_eq!(
            advice(),
            "wait for the hook that is at work, or: rdmaprep restore starts"
        );
        drop(lock.unlock().unwrap());
        assert_eq!(advice(), "stop starts, or: rdmaprep restore starts");
        assert_eq!(host.status()[0]["killed"], true);

        let killed = &about(host, Check::StaleRecords)[0];
        assert_eq!(
            (killed.severity, killed.run[0].as_str()),
            (Severity::Warning, "rdmaprep restore starts")
        );
        fs::write(record, &attached).unwrap();
        c.stop(host).ok();

        // As if what brought them had been killed at its end.
        let late = attached.replace("\"phase\":\"attached\"", "\"phase\":\"restoring\"");
        fs::write(record, late).unwrap();
        assert_eq!(host.status()[0]["here"], json!(["r0"]));
        let returned = &about(host, Check::StaleRecords)[0];
        assert!(
            returned.seen.contains("a restore of r0 was killed: back"),
            "{returned:?}"
        );
        host.rdmaprep(&["restore", "--all"]).ok();
    });
}

/// A rule of an empty table is reported, but not a rule of NICs that are in a container: their
/// routes are there, too.
#[test]
fn rules_of_nics_that_are_away_are_not_orphaned() {
    alone(|host| {
        host.rails(1);
        host.ip(
            "route add 10.20.0.0/16 via 10.0.0.9 dev r0 table 100\nrule add from 10.0.0.0/24 \
            table 100 priority 1000\n\
             rule add from 192.0.2.77 table 29000 priority 29000",
        );
        host.prepare("r0");
        let mut c = Container::new("away");
        c.create(host).ok();
        let orphaned = about(host, Check::OrphanedRules);
        assert_eq!(orphaned.len(), 1, "{orphaned:?}");
        assert_eq!(
            orphaned[0].run,
            ["ip rule delete from 192.0.2.77 lookup 29000 pref 29000"]
        );
        c.stop(host).ok();
    });
}

/// A process that calls itself as podman's watcher of that container does, until its stdin is
/// closed, and its child as the container: it has a network namespace of its own, without NICs.
fn conmon(host: &Host, id: &str, name: &str) -> Child {
    let pidfile = host.run.join("pidfile");
    let line = "exec -a /usr/bin/conmon awk 'BEGIN {system(ENVIRON[\"INIT\"])}' --cid \"$0\" \
        -n \"$1\" -p \"$PIDFILE\"";
    Command::new("bash")
        .args(["-c", line, id, name])
        .env(
            "INIT",
            "exec unshare --net sh -c 'echo $$ > $PIDFILE; read x'",
        )
        .env("NCCL_SOCKET_IFNAME", "=r0,r1,r2")
        .env("PIDFILE", pidfile)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What engines keep of their containers: podman of the first two, the first by a name, and Docker
/// of the last one.
fn engines_keep(storage: &Path, [of_podman, other, of_docker]: &[String; 3]) {
    fs::create_dir_all(storage).unwrap();
    let stored =
        json!([{"id": other, "names": []}, {"id": of_podman, "names": ["trainer"], "image": "x"}]);
    fs::write(storage.join("containers.json"), stored.to_string()).unwrap();
    let docker = Path::new("/var/lib/docker/containers").join(of_docker);
    fs::create_dir_all(&docker).unwrap();
    fs::write(
        docker.join("config.v2.json"),
        json!({"ID": of_docker, "Name": "/server"}).to_string(),
    )
    .unwrap();
}

/// What a person copies from `podman ps`: a short id, or a name.
#[test]
fn a_container_is_found_by_a_short_id_and_by_its_name() {
    alone(|host| {
        host.rails(3);
        sh("mount -t tmpfs tmpfs /var/lib");
        let storage = Path::new("/var/lib/containers/storage/overlay-containers");
        let ids =
            ["0123456789abcdef", "0123456fedcba987", "fedcba9876543210"].map(|half| half.repeat(4));
        let [of_podman, other, _] = &ids;
        engines_keep(storage, &ids);
        let all: Vec<Container> = (0..3)
            .map(|i| {
                let plan = format!("p{i}");
                host.rdmaprep(&["prepare", "--plan", &plan, "--ifaces", &format!("r{i}")])
                    .ok();
                let mut enter = Command::new("env");
                let c = Container::start(
                    &ids[i],
                    enter.args(["NCCL_SOCKET_IFNAME==r0,r1,r2", "unshare", "--net"]),
                );
                let c = c.annotated(json!({"rdmaprep.io/plan": plan}));
                let bundle = format!("\"bundle\":{:?}", storage.join(&ids[i]).join("userdata"));
                let state = if i < 2 {
                    c.state().replace("\"bundle\":\"/b\"", &bundle)
                } else {
                    c.state()
                };
                host.hook("createRuntime", &state).ok();
                c
            })
            .collect();
        let explained = |id: &str| {
            host.rdmaprep(&["nccl", "explain", "--container", id])
                .ok()
                .out
        };
        for (asked, nic) in [
            ("trainer", "r0"),
            (of_podman, "r0"),
            ("01234567", "r0"),
            ("0123456f", "r1"),
            ("server", "r2"),
        ] {
            let said = explained(asked);
            assert!(
                said.contains(&format!("bootstrap           {nic} 10.")),
                "{asked}: {said}"
            );
        }
        assert!(
            explained(&all[1].pid().to_string())
                .contains("NCCL_SOCKET_IFNAME  \"=r0,r1,r2\" (the environment of its init)")
        );
        let diagnosis = |id: &str| {
            let said = host.rdmaprep(&["doctor", "--json", "--container", id]).out;
            serde_json::from_str::<Diagnosis>(&said).unwrap().container
        };
        assert_eq!(diagnosis("trainer").as_ref(), Some(of_podman));
        // Restoring another one's NICs would break it.
        let both: [&str; 3] = [of_podman, other, "give more of the id"];
        host.rdmaprep(&["restore", "012345"]).fails(2, &both);
        host.rdmaprep(&["doctor", "--container", "0123456"])
            .fails(2, &both);
        for none in ["train", "trainer2", "01234", "fed", "x"] {
            host.rdmaprep(&["restore", none]).fails(
                2,
                &[
                    "no container that holds a NIC",
                    none,
                    "podman ps --no-trunc",
                ],
            );
        }
        host.rdmaprep(&["restore", "trainer"]).ok();
        host.rdmaprep(&["restore", "0123456f"]).ok();
        host.rdmaprep(&["restore", "server"]).ok();
        host.is_clean();
        // One that has no NICs is known by the engine alone.
        let conmon = conmon(host, of_podman, "lonely");
        testkit::until("the watcher", || {
            host.rdmaprep(&["doctor", "--container", "lonely"]).code != Some(2)
        });
        assert_eq!(diagnosis("lonely").as_ref(), Some(of_podman));
        assert!(explained(&of_podman[..12]).contains("NCCL_SOCKET_IFNAME  \"=r0,r1,r2\""));
        // It had opted in: that is no advice for it.
        let doctor = || {
            let said = host.rdmaprep(&["doctor", "--container", "lonely"]).out;
            said.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let said = doctor();
        assert!(
            said.contains("its NICs were returned to the host"),
            "{said}"
        );
        assert!(!said.contains("let it opt in"), "{said}");
        // One that no hook has seen.
        sh(&format!("rm {}/reports/*", host.run.display()));
        assert!(doctor().contains("→ let it opt in to a plan"));
        let bundle = storage.join(of_podman).join("userdata");
        fs::create_dir_all(&bundle).unwrap();
        let asks = json!({"annotations": {"rdmaprep.io/plan": "p0"}});
        fs::write(bundle.join("config.json"), asks.to_string()).unwrap();
        let said = doctor();
        assert!(said.contains("no hook was run for it"), "{said}");
        assert!(
            said.contains("→ register rdmaprep with its engine"),
            "{said}"
        );
        conmon.wait_with_output().unwrap();
        // What people name is one container's or none's.
        let train2 = Container::new("train2-worker").annotated(json!({"rdmaprep.io/plan": "p0"}));
        train2.create(host).ok();
        host.rdmaprep(&["restore", "train2"])
            .fails(2, &["no container that holds a NIC"]);
        host.rdmaprep(&["restore", "train2-worker"]).ok();
    });
}

/// A plan with which no container starts changes the exit code, whatever is wrong with its file.
#[test]
fn plans_that_are_none_break_jobs() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        assert_eq!(about(host, Check::Plans).len(), 0);
        let plans = host.run.join("plans");
        let whole = fs::read_to_string(plans.join("default.json")).unwrap();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let past = whole.replace(boot.trim(), "00000000-0000-4000-8000-000000000000");
        assert_ne!(past, whole);
        fs::write(plans.join("default.json"), past).unwrap();
        fs::write(plans.join("torn.json"), "{").unwrap();
        let said = about(host, Check::Plans);
        let seen: Vec<(Severity, &str)> =
            said.iter().map(|f| (f.severity, f.seen.as_str())).collect();
        assert_eq!(
            seen[0],
            (
                Severity::Breaks,
                "plan default was made before the last boot"
            )
        );
        assert!(
            seen[1].0 == Severity::Breaks && seen[1].1.contains("torn.json"),
            "{seen:?}"
        );
        host.rdmaprep(&["doctor"]).fails(11, &["break a job"]);
    });
}

/// A card of a family that has an RDMA driver, beside rails of another: it is the host's own
/// network, unless a flag names it.
#[test]
fn cards_that_are_not_selected_need_no_rdma_driver() {
    let healthy = |file: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/cases/doctor/healthy")
            .join(file);
        serde_json::from_str::<Value>(&fs::read_to_string(path).unwrap()).unwrap()
    };
    let machine: Machine = serde_json::from_value(healthy("machine.json")).unwrap();
    let lacking = |driver: &str, ifaces: &str| {
        let mut snapshot: Snapshot = serde_json::from_value(healthy("snapshot.json")).unwrap();
        let eth0 = snapshot
            .netdevs
            .iter()
            .find(|n| n.name.as_str() == "eth0")
            .unwrap()
            .pci;
        snapshot
            .pci
            .iter_mut()
            .find(|f| Some(f.address) == eth0)
            .unwrap()
            .driver = Some(driver.to_owned());
        let args = SelectArgs::default().with("ifaces", ifaces);
        let config = Config::default();
        let host = host::Host::new(&Global::default(), &config);
        let request = Request::new(None, &args, host, config.select, |_| None).unwrap();
        let examination = Examination {
            request: &request,
            snapshot: &snapshot,
            held: &[],
            machine: Some(&machine),
            traces: &[],
            plans: &[],
            settings: Ok(&Settings::default()),
            container: None,
        };
        let found = doctor(&examination).unwrap().findings.into_iter();
        found
            .filter(|f| f.check == Check::RdmaModules)
            .flat_map(|f| f.run)
            .collect::<Vec<String>>()
    };
    for driver in ["ice", "bnxt_en", "i40e"] {
        assert_eq!(lacking(driver, ""), [""; 0]);
    }
    assert_eq!(lacking("ice", "rdma0,eth0"), ["modprobe -a irdma"]);
}

/// A process with these variables in a network namespace of its own.
fn with_env(env: &[&str]) -> Container {
    let mut enter = Command::new("env");
    Container::start("job", enter.args(env).args(["unshare", "--net"]))
}

/// Files and plugins, as each release looks for them.
#[test]
fn a_containers_settings_are_those_of_its_release() {
    alone(|host| {
        sh(
            "mount -t tmpfs tmpfs /opt; mount -t tmpfs tmpfs /root; mkdir /opt/home /opt/lib
            printf 'NCCL_NET=Socket\r\n' > /opt/file; echo NCCL_NET=IB > /opt/home/.nccl.conf
            echo NCCL_IB_DISABLE=1 > /root/.nccl.conf
            head -c 64 /bin/sh > /opt/lib/libnccl-net.so
            cp /opt/lib/libnccl-net.so /opt/lib/libnccl-net-ofi.so
            printf '\\0ncclNetPlugin_v9\\0' >> /opt/lib/libnccl-net-ofi.so",
        );
        let said = |job: &Container, release: &str| {
            let id = job.pid().to_string();
            let args = ["nccl", "explain", "--json", "--container", &id];
            let said = host.rdmaprep(&[&args[..], &["--nccl-version", release]].concat());
            serde_json::from_str::<Value>(&said.ok().out).unwrap()
        };
        let all = |job: &Container, release: &str| {
            let set = said(job, release)["settings"].clone();
            let each = set.as_array().unwrap().iter();
            let texts = each.map(|s| format!("{} {}", s["name"], s["value"]).replace('"', ""));
            texts.collect::<Vec<_>>()
        };
        let job = with_env(&["HOME=/opt/home", "NCCL_CONF_FILE=/opt/file"]);
        assert_eq!(all(&job, "2.22.3"), ["NCCL_IB_DISABLE 1"]);
        assert_eq!(all(&job, "2.29.7"), ["NCCL_NET Socket\\r"]);
        assert_eq!(all(&job, "2.30.3"), ["NCCL_NET Socket"]);
        let job = with_env(&["HOME=/opt/home"]);
        assert_eq!(all(&job, "2.29.7"), ["NCCL_IB_DISABLE 1"]);
        assert_eq!(all(&job, "2.30.3"), ["NCCL_NET IB"]);
        let plugin = |value: &str, release: &str| {
            let job = with_env(&["HOME=/", "LD_LIBRARY_PATH=/opt/lib", value]);
            let said = said(&job, release);
            let warned = said["warnings"]
                .to_string()
                .contains("has none of ncclNetPlugin_v");
            (said["plugin"].as_str().map(str::to_owned), warned)
        };
        let ofi = (Some("/opt/lib/libnccl-net-ofi.so".to_owned()), false);
        let file = "NCCL_NET_PLUGIN=/opt/lib/libnccl-net-ofi.so";
        assert_eq!(plugin(file, "2.24.3"), ofi);
        assert_eq!(plugin(file, "2.20.5"), (None, false));
        assert_eq!(plugin("NCCL_NET_PLUGIN=ofi", "2.24.3"), ofi);
        assert_eq!(plugin("NCCL_NET_PLUGIN=ofi", "2.20.5"), (None, true));
        assert_eq!(plugin("NCCL_NET_PLUGIN=a,ofi", "2.27.3"), ofi);
        assert_eq!(plugin("NCCL_NET_PLUGIN=a,ofi", "2.26.5"), (None, false));
        // The default one has no such symbol.
        assert_eq!(plugin("NCCL_NET_PLUGIN=", "2.26.5"), (None, true));
        assert_eq!(plugin("NCCL_NET_PLUGIN=", "2.27.3"), (None, false));
    });
}
