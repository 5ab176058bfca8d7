//! Lives of pods at random, where all but the cluster is real: NICs in namespaces, `rdmaprep-dra`,
//! which is killed, and the hooks that the CDI file of a claim names. NICs stay for a pod's life, a
//! claim has ended when they are back, and the host is what it was.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdmaprep_kubelet::dra::api;
use serde_json::{Value, json};
use testkit::{Container, Host, namespace, run, sh};
use tokio::runtime::{Builder, Runtime};

use crate::kubelet::{Kubelet, find};
use crate::random::Dice;
use crate::server::{NODE, Server, uid};

const RAILS: usize = 4;
const DEFAULT: u64 = 10;
const KUBELET: &str = "/run/kubelet";
const CDI: &str = "/run/cdi";
const OFFERED: &str = "/run/rails.json";

struct Pod {
    name: String,
    claim: api::Claim,
    rails: Vec<String>,
    /// None since it has died.
    sandbox: Option<Container>,
    containers: Vec<Container>,
    /// Since its first container.
    has_nics: bool,
}

struct Cluster<'h> {
    host: &'h Host,
    server: Server,
    runtime: Runtime,
    driver: Child,
    kubelet: Kubelet,
    pods: BTreeMap<usize, Pod>,
    dice: Dice,
    made: usize,
}

/// As `cargo test` of the workspace builds it, beside the driver.
fn rdmaprep() -> &'static str {
    let path = Path::new(env!("CARGO_BIN_EXE_rdmaprep-dra")).with_file_name("rdmaprep");
    assert!(path.exists(), "build it first: cargo build");
    Box::leak(
        path.into_os_string()
            .into_string()
            .unwrap()
            .into_boxed_str(),
    )
}

fn driver(host: &Host, server: &Server) -> Child {
    let access = server.access();
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open("/run/driver.log");
    Command::new(env!("CARGO_BIN_EXE_rdmaprep-dra"))
        .args([
            "--cdi",
            OFFERED,
            "--kubelet-root",
            KUBELET,
            "--cdi-folder",
            CDI,
        ])
        .args(["--node", NODE, "--api-server", &server.url])
        .arg("--token-file")
        .arg(access.token_file)
        .arg("--run-dir")
        .arg(&host.run)
        .stderr(log.unwrap())
        .spawn()
        .unwrap()
}

/// One that takes more than a second to say who it is, is asked again.
fn found(runtime: &Runtime) -> Kubelet {
    for _ in 0..20 {
        let asked = async { tokio::spawn(find(Path::new(KUBELET))).await };
        if let Ok(kubelet) = runtime.block_on(asked) {
            return kubelet;
        }
    }
    panic!(
        "no driver: {}",
        fs::read_to_string("/run/driver.log").unwrap()
    );
}

fn is_here(rail: &str) -> bool {
    sh("ip -br link").contains(&format!("{rail}@"))
}

impl<'h> Cluster<'h> {
    fn new(host: &'h Host) -> Cluster<'h> {
        let server = Server::start();
        let driver = driver(host, &server);
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let kubelet = found(&runtime);
        Cluster {
            host,
            server,
            runtime,
            driver,
            kubelet,
            pods: BTreeMap::new(),
            dice: Dice(number("RDMAPREP_RANDOM_SEED", 38)),
            made: 0,
        }
    }

    fn is_free(&self, rail: &str) -> bool {
        self.pods
            .values()
            .all(|pod| !pod.rails.iter().any(|own| own == rail))
    }

    /// A pod with a claim, which the kubelet has prepared before it makes the sandbox.
    fn pod(&mut self) {
        let mut rails: Vec<String> = (0..RAILS).map(|at| format!("r{at}")).collect();
        rails.retain(|rail| self.is_free(rail) && self.dice.below(2) == 0);
        if rails.is_empty() {
            return;
        }
        self.made += 1;
        let name = format!("p{:05}", self.made);
        let claim = self
            .server
            .claim(&format!("c{:05}", self.made), &name, &rails);
        let pod = Pod {
            name,
            claim,
            rails,
            sandbox: None,
            containers: Vec::new(),
            has_nics: false,
        };
        self.pods.insert(self.made, pod);
        self.prepare(self.made);
    }

    /// The first time, or again by a kubelet that was started again.
    fn prepare(&mut self, at: usize) {
        let pod = &self.pods[&at];
        let said = self.runtime.block_on(self.kubelet.one(&pod.claim));
        let device = |rail: &String| format!("rdmaprep.io/claim={}-{rail}", pod.claim.uid);
        assert_eq!(said, Ok(pod.rails.iter().map(device).collect()));
    }

    /// What the engine runs for these rails of the claim, and the config.json of a container in the
    /// cgroup of a pod of that UID.
    fn hooks(&self, pod: &Pod, rails: &[&String], pod_uid: &str, id: &str) -> (Value, Vec<Value>) {
        let path = format!("{CDI}/rdmaprep.io-claim-{}.json", pod.claim.uid);
        let spec: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let devices = spec["devices"].as_array().unwrap().iter();
        let is_asked = |d: &&Value| {
            let name = d["name"].as_str().unwrap();
            rails
                .iter()
                .any(|rail| name == format!("{}-{rail}", pod.claim.uid))
        };
        let hooks = devices
            .filter(is_asked)
            .flat_map(|d| d["containerEdits"]["hooks"].as_array());
        let hooks = hooks.flatten().filter(|h| h["hookName"] == "createRuntime");
        let hooks: Vec<Value> = hooks
            .map(|h| json!({"path": h["path"], "args": h["args"]}))
            .collect();
        assert_eq!(hooks.len(), rails.len());
        let config = json!({"ociVersion": "1.0.2", "process": {"args": ["x"], "cwd": "/"},
            "root": {"path": "/"}, "hooks": {"createRuntime": hooks},
            "linux": {"cgroupsPath": format!("/kubepods/besteffort/pod{pod_uid}/{id}")}});
        (config, hooks)
    }

    /// Runs these for a container; the first that fails is the last.
    fn created(&self, container: &Container, hooks: &[Value]) -> testkit::Said {
        let mut said = None;
        for hook in hooks {
            let args = hook["args"].as_array().unwrap().iter().skip(1);
            let args: Vec<&str> = args.map(|arg| arg.as_str().unwrap()).collect();
            let now = run(&mut self.host.command(&args), &container.state());
            let has_failed = now.code != Some(0);
            said = Some(now);
            if has_failed {
                break;
            }
        }
        said.unwrap()
    }

    /// One with some of the pod's rails, in a sandbox that is made where there is none.
    fn container(&mut self, at: usize) {
        let mut pod = self.pods.remove(&at).unwrap();
        let sandbox = pod
            .sandbox
            .take()
            .unwrap_or_else(|| Container::new("pause"));
        let mut rails: Vec<&String> = pod.rails.iter().collect();
        rails.retain(|_| self.dice.below(2) == 0);
        if rails.is_empty() {
            rails.push(&pod.rails[0]);
        }
        let id = format!("{}-{}", pod.name, pod.containers.len());
        let (config, hooks) = self.hooks(&pod, &rails, &uid(&pod.name), &id);
        let container = Container::beside(&id, &sandbox).annotated(json!({}));
        let container = container.bundled(self.host, &config);
        self.created(&container, &hooks).ok();
        pod.containers.push(container);
        (pod.sandbox, pod.has_nics) = (Some(sandbox), true);
        self.pods.insert(at, pod);
    }

    /// A container of another pod that names the claim, as the kubelet starts it without a word.
    fn another_pod(&mut self, at: usize) {
        let pod = &self.pods[&at];
        let rails: Vec<&String> = pod.rails.iter().collect();
        let (config, hooks) = self.hooks(pod, &rails, &uid("other"), "other");
        let other = Container::new("other")
            .annotated(json!({}))
            .bundled(self.host, &config);
        self.created(&other, &hooks)
            .fails(9, &[&format!("is pod {}'s", pod.name)]);
    }

    /// By its stop hook, without one, or with one that comes late.
    fn container_ends(&mut self, at: usize) {
        let (host, how) = (self.host, self.dice.below(3));
        let pod = self.pods.get_mut(&at).unwrap();
        let Some(mut container) = pod.containers.pop() else {
            return;
        };
        container.kill();
        if how == 0 {
            timer(host);
        }
        if how < 2 {
            host.hook("poststop", &container.stopped()).ok();
        }
    }

    /// With all that is in it: the next container has a new one.
    fn sandbox_dies(&mut self, at: usize) {
        let pod = self.pods.get_mut(&at).unwrap();
        pod.containers.clear();
        pod.sandbox = None;
    }

    fn driver_is_killed(&mut self) {
        self.driver.kill().unwrap();
        self.driver.wait().unwrap();
        self.driver = driver(self.host, &self.server);
        self.kubelet = found(&self.runtime);
    }

    /// Also by force: then the API server has forgotten both before the kubelet has stopped it.
    fn pod_ends(&mut self, at: usize) {
        self.sandbox_dies(at);
        let pod = self.pods.remove(&at).unwrap();
        let key = format!("jobs/{}", pod.claim.name);
        if self.dice.below(2) == 0 {
            self.server.state().claims.remove(&key);
        }
        let has_ended = AtomicBool::new(false);
        let released = std::thread::scope(|threads| {
            threads.spawn(|| {
                while !has_ended.load(Ordering::Relaxed) {
                    timer(self.host);
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
            // As the kubelet does: on a busy machine the return takes longer than a call waits.
            let call = || self.runtime.block_on(self.kubelet.unprepare(&pod.claim));
            let released = (0..5).map(|_| call()).find(Result::is_ok);
            has_ended.store(true, Ordering::Relaxed);
            released
        });
        assert_eq!(released, Some(Ok(())));
        self.server.state().claims.remove(&key);
    }

    fn step(&mut self) {
        let alive: Vec<usize> = self.pods.keys().copied().collect();
        if alive.is_empty() || self.dice.below(6) == 0 {
            return self.pod();
        }
        let at = alive[self.dice.below(alive.len())];
        match self.dice.below(10) {
            0..4 => self.container(at),
            4..6 => self.container_ends(at),
            6 => self.sandbox_dies(at),
            7 => self.another_pod(at),
            8 => self.prepare(at),
            _ => self.pod_ends(at),
        }
    }

    fn check(&self) {
        for rail in (0..RAILS).map(|at| format!("r{at}")) {
            let mut pods = self.pods.values();
            let holder = pods.find(|pod| pod.has_nics && pod.rails.contains(&rail));
            assert_eq!(is_here(&rail), holder.is_none(), "{rail}");
            if let Some(sandbox) = holder.and_then(|pod| pod.sandbox.as_ref()) {
                let links = sandbox.sh("ip -br link");
                assert!(links.contains(&format!("{rail}@")), "{rail}: {links}");
            }
        }
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// As each ten seconds. A hook may have the lock.
fn timer(host: &Host) {
    host.rdmaprep(&["restore", "--all", "--stale"]);
}

#[test]
fn random_lives_of_pods_leave_the_host_as_it_was() {
    let lives = number("RDMAPREP_POD_LIVES", DEFAULT) as usize;
    namespace::alone(rdmaprep(), |host| live(host, lives), true);
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |number| number.parse().unwrap())
}

fn live(host: &Host, lives: usize) {
    // The driver's state folder is the machine's.
    sh("mount -t tmpfs tmpfs /var/lib; mkdir /run/kubelet /run/cdi");
    let rails = host.rails(RAILS);
    let before = host.look();
    host.prepare(&rails);
    host.rdmaprep(&["cdi", "generate", "--output", OFFERED])
        .ok();
    let mut cluster = Cluster::new(host);
    while cluster.made < lives {
        cluster.step();
        cluster.check();
        if cluster.dice.below(10) == 0 {
            cluster.driver_is_killed();
        }
    }
    let alive: Vec<usize> = cluster.pods.keys().copied().collect();
    for at in alive {
        cluster.pod_ends(at);
        cluster.check();
    }
    drop(cluster);
    host.is_as(&before);
    host.is_clean();
    assert_eq!(fs::read_dir(CDI).unwrap().count(), 0);
}
