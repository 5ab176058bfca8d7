//! Lives of pods at random, with kills of containers and of the driver: in any order a rail has one
//! claim at most, is free only when it is back, and none is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rdmaprep_kubelet::dra::api;
use serde_json::Value;

use crate::kubelet::{Kubelet, find};
use crate::machine::{Machine, Running};

/// splitmix64: the same numbers for the same seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

struct Pod {
    claim: api::Claim,
    rails: Vec<usize>,
    is_prepared: bool,
    runs: bool,
}

struct Cluster {
    machine: Machine,
    running: Option<Running>,
    kubelet: Kubelet,
    pods: BTreeMap<usize, Pod>,
    made: usize,
    prepared: usize,
    /// Pods that have ended.
    lives: usize,
}

impl Cluster {
    async fn new() -> Cluster {
        let mut machine = Machine::new();
        // What is waited for in other tests is an error at once in these.
        machine.patience = Duration::from_millis(400);
        machine.gone_for = Duration::ZERO;
        let running = Some(machine.start());
        let kubelet = find(machine.folder.path()).await;
        Cluster {
            machine,
            running,
            kubelet,
            pods: BTreeMap::new(),
            made: 0,
            prepared: 0,
            lives: 0,
        }
    }

    /// As a scheduler that believes the API server: rails of pods that were deleted by force are
    /// free to it.
    fn create(&mut self, dice: &mut Dice) {
        let rails: BTreeSet<usize> = (0..=dice.below(2)).map(|_| dice.below(4)).collect();
        let rails: Vec<usize> = rails.into_iter().collect();
        self.made += 1;
        let claim = self.machine.claim(&format!("{:06}", self.made), &rails);
        let pod = Pod {
            claim,
            rails,
            is_prepared: false,
            runs: false,
        };
        self.pods.insert(self.made, pod);
    }

    async fn prepare(&mut self, at: usize) {
        let pod = self.pods.get_mut(&at).unwrap();
        if let Ok(ids) = self.kubelet.one(&pod.claim).await {
            assert_eq!(ids.len(), pod.rails.len());
            (pod.is_prepared, self.prepared) = (true, self.prepared + 1);
        }
    }

    /// Its containers start or end; its NICs go and are back. Without the CDI file, the engine
    /// starts none.
    fn containers(&mut self, at: usize) {
        let pod = self.pods.get_mut(&at).unwrap();
        let file = format!("cdi/rdmaprep.io-claim-{}.json", pod.claim.uid);
        if pod.runs || pod.is_prepared && self.machine.path(&file).exists() {
            pod.runs = !pod.runs;
            for rail in &pod.rails {
                self.machine.away(*rail, pod.runs);
            }
        }
    }

    async fn end(&mut self, at: usize, by_kubelet: bool) {
        let pod = &self.pods[&at];
        let key = format!("jobs/{}", pod.claim.name);
        let deleted = || drop(self.machine.server.state().claims.remove(&key));
        // By force: the API server knows it no more. Else it is reserved until its pod has ended.
        let by_force = !by_kubelet || at.is_multiple_of(2);
        if by_force {
            deleted();
        }
        match by_kubelet {
            true => {
                let released = self.kubelet.unprepare(&pod.claim).await;
                assert_eq!(released.is_err(), pod.runs, "{released:?}");
                if released.is_ok() {
                    deleted();
                }
            }
            false => {
                let driver = &self.running.as_ref().unwrap().driver;
                driver.follow_claims().await.unwrap();
                driver.follow_claims().await.unwrap();
            }
        }
        if !self.pods[&at].runs {
            self.pods.remove(&at);
            self.lives += 1;
        }
    }

    /// It finds the driver again, and asks again for pods whose sandbox has to be made again: their
    /// rails may be away.
    async fn kubelet_restarts(&mut self) {
        self.kubelet = find(self.machine.folder.path()).await;
        let prepared = self.pods.values().filter(|pod| pod.is_prepared);
        for pod in prepared {
            let answer = self.kubelet.one(&pod.claim).await;
            let key = format!("jobs/{}", pod.claim.name);
            let is_there = self.machine.server.state().claims.contains_key(&key);
            let ids = answer.as_ref().map_or(0, Vec::len);
            let expected = if is_there { pod.rails.len() } else { 0 };
            assert_eq!(ids, expected, "{answer:?}");
        }
    }

    /// The kubelet gets no answer, and asks the next driver.
    async fn killed_in_a_call(&mut self, at: usize, after: Duration) {
        let claim = self.pods[&at].claim.clone();
        tokio::select! {
            _ = self.kubelet.one(&claim) => {}
            () = tokio::time::sleep(after) => {}
        }
        let store = self.running.as_ref().unwrap().driver.store.clone();
        self.restart().await;
        // What a process that was killed had begun does not go on; here it does, with the lock.
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(
            store
                .lock(Instant::now() + Duration::from_secs(20))
                .unwrap(),
        );
    }

    async fn restart(&mut self) {
        self.running.take().unwrap().end().await;
        self.running = Some(self.machine.start());
        self.kubelet = find(self.machine.folder.path()).await;
    }

    /// No rail has two claims, and each that runs has its own.
    fn check(&self) {
        let mut taken = BTreeSet::new();
        let claims = self.machine.path("run/claims");
        for entry in std::fs::read_dir(claims).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let binding: Value = serde_json::from_str(&text).unwrap();
            for rail in binding["rails"].as_array().unwrap() {
                let rail = rail["rail"].as_str().unwrap().to_owned();
                assert!(taken.insert(rail), "{binding}");
            }
        }
        let mut inside = BTreeSet::new();
        for pod in self.pods.values().filter(|pod| pod.runs) {
            for at in &pod.rails {
                assert!(taken.contains(&format!("rdma{at}")));
                assert!(inside.insert(*at), "two pods have rdma{at}");
            }
        }
    }
}

#[tokio::test]
async fn a_thousand_lives_of_pods() {
    let mut cluster = Cluster::new().await;
    let mut dice = Dice(38);
    while cluster.lives < 1000 {
        let known: Vec<usize> = cluster.pods.keys().copied().collect();
        let at = (!known.is_empty()).then(|| known[dice.below(known.len())]);
        match (dice.below(60), at) {
            (0..=14, _) if known.len() < 6 => cluster.create(&mut dice),
            (15..=29, Some(at)) => cluster.prepare(at).await,
            (30..=44, Some(at)) => cluster.containers(at),
            (45..=54, Some(at)) => cluster.end(at, true).await,
            (55, Some(at)) => cluster.end(at, false).await,
            (56, Some(at)) if dice.below(8) == 0 => {
                let after = Duration::from_millis(dice.below(12) as u64);
                cluster.killed_in_a_call(at, after).await;
            }
            (57, _) if dice.below(8) == 0 => cluster.restart().await,
            (58, _) => cluster.kubelet_restarts().await,
            _ => {}
        }
        cluster.check();
    }
    let all: Vec<usize> = cluster.pods.keys().copied().collect();
    for at in all {
        if cluster.pods[&at].runs {
            cluster.containers(at);
        }
        cluster.end(at, true).await;
    }
    assert!(cluster.prepared > 500, "{}", cluster.prepared);
    // The node is as it was, and the next pod can have all of it.
    let machine = &cluster.machine;
    assert!(machine.files().is_empty(), "{:?}", machine.files());
    let records = std::fs::read_dir(machine.path("run/records")).unwrap();
    assert_eq!(records.count(), 0);
    let last = machine.claim("last", &[0, 1, 2, 3]);
    assert_eq!(cluster.kubelet.one(&last).await.unwrap().len(), 4);
}
