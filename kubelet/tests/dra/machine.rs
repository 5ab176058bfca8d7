//! A node whose rails a test sets, with the driver as its program runs it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, ensure};
use rdmaprep::kernel::process::pidfd::start_time;
use rdmaprep::store::Store;
use rdmaprep_kubelet::dra::binding::Bindings;
use rdmaprep_kubelet::dra::driver::Driver;
use rdmaprep_kubelet::dra::publish::{Publisher, follow};
use rdmaprep_kubelet::dra::refused::Refusals;
use rdmaprep_kubelet::dra::tell::Teller;
use rdmaprep_kubelet::dra::{api, refused, session, slice};
use rdmaprep_kubelet::node::{Inventory, Node};
use rdmaprep_kubelet::pools::Pools;
use rdmaprep_kubelet::rail::Rail;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::rails::rail;
use crate::server::{NODE, Server, reserved};

pub const BOOT: &str = "boot-1";

/// For the driver, how long a claim is gone before it counts as gone.
pub const GONE_FOR: Duration = Duration::from_millis(200);

/// The rails, whether they cannot be looked at, and how often they were.
#[derive(Default)]
pub struct Rails(pub Mutex<Vec<Rail>>, pub AtomicBool, pub AtomicUsize);

impl Inventory for Rails {
    fn look(&self) -> Result<Vec<Rail>> {
        self.2.fetch_add(1, Ordering::Relaxed);
        ensure!(
            !self.1.load(Ordering::Relaxed),
            "the config file is damaged"
        );
        Ok(self.0.lock().unwrap().clone())
    }
}

/// A node with four rails, its driver and what that runs beside.
pub struct Machine {
    pub folder: TempDir,
    pub server: Arc<Server>,
    pub rails: Arc<Rails>,
    pub patience: Duration,
    pub gone_for: Duration,
}

pub struct Running {
    pub driver: Arc<Driver>,
    sockets: JoinHandle<Result<()>>,
}

impl Running {
    /// As a kill: nothing is tidied up.
    pub async fn end(self) {
        self.sockets.abort();
        let _ = self.sockets.await;
    }
}

impl Machine {
    pub fn new() -> Machine {
        let machine = Machine {
            folder: TempDir::new().unwrap(),
            server: Arc::new(Server::start()),
            rails: Arc::new(Rails(
                Mutex::new((0..4).map(rail).collect()),
                AtomicBool::default(),
                AtomicUsize::default(),
            )),
            patience: Duration::from_millis(1200),
            gone_for: GONE_FOR,
        };
        let hook = |name: &str| {
            json!({"hookName": "createRuntime", "path": "/usr/bin/rdmaprep", "timeout": 90,
                "args": ["rdmaprep", "hook", "createRuntime", "--plan", "cdi", "--rail", name]})
        };
        let device = |name: String| {
            let edits = json!({"env": [format!("RDMAPREP_RAIL_{name}=")], "hooks": [hook(&name)]});
            json!({"name": name, "containerEdits": edits})
        };
        let devices: Vec<Value> = (0..4).map(|at| device(format!("rdma{at}"))).collect();
        let spec = json!({"cdiVersion": "0.3.0", "kind": "rdmaprep.io/rail", "devices": devices});
        std::fs::write(machine.path("rails.json"), spec.to_string()).unwrap();
        machine
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn start(&self) -> Running {
        let store = Store::new(&self.path("run"), &self.path("state"));
        store.make_folders().unwrap();
        let bindings = Bindings::new(&store, &self.path("cdi"), BOOT);
        bindings.prepare().unwrap();
        let pools = Pools::new(Vec::new()).unwrap();
        let node = Arc::new(Node::new(self.rails.clone(), pools, |_| ()).unwrap());
        let (wakes, woken) = sync_channel(1);
        let wanted = {
            let (node, bindings) = (node.clone(), bindings.clone());
            move |taints| slice::of_node(NODE, &node.shown(), &bindings, taints)
        };
        let mut publisher = Publisher::new(self.server.client(), NODE, wanted, |_| ());
        let published = publisher.published();
        std::thread::spawn(move || publisher.run(&woken));
        let (client, to) = (self.server.client(), wakes.clone());
        std::thread::spawn(move || follow(&client, NODE, &to));
        let (tells, told) = sync_channel(1);
        let (client, at) = (self.server.client(), node.clone());
        let refusals = Arc::new(Refusals::new(&self.path("run"), &self.path("host")));
        let its = (store.clone(), bindings.clone(), refusals.clone());
        let mut teller = Teller::new(client, at, NODE, its.0, its.1, its.2);
        std::thread::spawn(move || teller.run(&told));
        let to = tells.clone();
        tokio::spawn(async move { refused::follow(&refusals, &to).await });
        let driver = Arc::new(Driver {
            node,
            name: NODE.to_owned(),
            server: self.server.client(),
            store,
            bindings,
            cdi: self.path("rails.json"),
            patience: self.patience,
            wakes,
            published,
            tells,
            asks: tokio::sync::Notify::new(),
            gone: Mutex::default(),
            gone_for: self.gone_for,
        });
        let (at, folder) = (driver.clone(), self.folder.path().to_owned());
        let sockets = tokio::spawn(async move { session::run(&at, &folder).await });
        Running { driver, sockets }
    }

    pub fn set(&self, at: usize, how: impl FnOnce(&mut Rail)) {
        how(&mut self.rails.0.lock().unwrap()[at]);
    }

    /// As a container takes and returns it: with a record where a claim has it.
    pub fn away(&self, at: usize, is_away: bool) {
        self.set(at, |rail| rail.facts.is_away = is_away);
        if is_away {
            self.record(1000 + at as u64, &self.claims_of(at));
        } else {
            let _ = std::fs::remove_file(self.record_path(1000 + at as u64));
        }
    }

    fn claims_of(&self, at: usize) -> Vec<String> {
        let rail = format!("rdma{at}");
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.path("run/claims")).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
            let binding: Value = serde_json::from_str(&text).unwrap_or_default();
            let mut rails = binding["rails"].as_array().into_iter().flatten();
            if rails.any(|r| r["rail"] == rail.as_str()) {
                found.push(binding["claim"]["uid"].as_str().unwrap().to_owned());
            }
        }
        found
    }

    pub fn record_path(&self, netns: u64) -> PathBuf {
        self.path(&format!("run/records/{netns}.json"))
    }

    /// That these claims have NICs in that namespace.
    pub fn record(&self, netns: u64, claims: &[String]) {
        self.record_of(netns, claims, &[]);
    }

    /// With these containers, by their ids: this process is each one's.
    pub fn record_of(&self, netns: u64, claims: &[String], containers: &[&str]) {
        let pid = std::process::id() as i32;
        let start_time = start_time(pid).unwrap();
        let member =
            |id: &&str| json!({"id": id, "bundle": "", "pid": pid, "start_time": start_time});
        let members: Vec<Value> = containers.iter().map(member).collect();
        let record = json!({"schema": 2, "boot_id": BOOT, "netns": netns, "host_netns": 1,
            "phase": "attached", "plan": "default", "members": members, "given": null,
            "claims": claims, "held": []});
        std::fs::write(self.record_path(netns), record.to_string()).unwrap();
    }

    /// A claim of that pod, with these rails allocated.
    pub fn claim(&self, name: &str, rails: &[usize]) -> api::Claim {
        let devices: Vec<String> = rails.iter().map(|at| format!("rdma{at}")).collect();
        self.server.claim(name, &format!("pod-{name}"), &devices)
    }

    /// The claim is reserved for these pods.
    pub fn reserve(&self, name: &str, pods: &[&str]) {
        let pods: Vec<Value> = pods.iter().map(|pod| reserved(pod)).collect();
        self.change_claim(name, |c| c["status"]["reservedFor"] = json!(pods));
    }

    /// The pod that has the claim on this node.
    pub fn pod_of(&self, claim: &api::Claim) -> String {
        let path = self.path(&format!("run/claims/{}.json", claim.uid));
        let binding: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert!(binding.get("ended").is_none(), "{binding}");
        binding["pod"]["name"].as_str().unwrap().to_owned()
    }

    pub fn change_claim(&self, name: &str, how: impl FnOnce(&mut Value)) {
        let mut state = self.server.state();
        how(state.claims.get_mut(&format!("jobs/{name}")).unwrap());
    }

    /// Names of files below `cdi` and `run/claims`.
    pub fn files(&self) -> Vec<String> {
        let list = |folder: &str| {
            let mut names: Vec<String> = std::fs::read_dir(self.path(folder))
                .unwrap()
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        [list("cdi"), list("run/claims")].concat()
    }

    pub fn cdi(&self, claim: &api::Claim) -> Value {
        let path = format!("cdi/rdmaprep.io-claim-{}.json", claim.uid);
        serde_json::from_str(&std::fs::read_to_string(self.path(&path)).unwrap()).unwrap()
    }
}
