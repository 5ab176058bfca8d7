//! Allocations at random.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rdmaprep_kubelet::device_plugin::api;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::pools::BY_SPEED;
use crate::stand_in::{Kubelet, Plugin, RESOURCE, allocate, list, next, plugin, prefer};

/// splitmix64: the same numbers for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// A resource, as the kubelet knows it.
struct Counted {
    channel: Channel,
    stream: Streaming<api::Devices>,
    healthy: BTreeSet<String>,
    pods: Vec<Vec<String>>,
}

impl Counted {
    async fn new(kubelet: &mut Kubelet, pods: Vec<Vec<String>>) -> Counted {
        let (_, channel) = kubelet.plugin().await;
        let mut stream = list(&channel).await;
        let healthy = next(&mut stream).await.0.into_iter().collect();
        Counted {
            channel,
            stream,
            healthy,
            pods,
        }
    }

    fn has_given(&self, rail: &String) -> bool {
        self.pods.iter().flatten().any(|r| r == rail)
    }

    /// The kubelet counts each resource by itself: it does not know that two name the same rail.
    async fn available(&mut self) -> Vec<String> {
        while let Ok(Some(shown)) = timeout(Duration::from_millis(1), self.stream.next()).await {
            let shown = shown.unwrap().devices.into_iter();
            self.healthy = shown
                .filter(|d| d.health == api::HEALTHY)
                .map(|d| d.id)
                .collect();
        }
        self.healthy
            .iter()
            .filter(|r| !self.has_given(r))
            .cloned()
            .collect()
    }
}

/// A node with two resources in the hands of chance.
struct Game {
    dice: Dice,
    plugin: Plugin,
    kubelet: Kubelet,
    counted: Vec<Counted>,
    /// Rails that no pod can have, with the reason.
    gone: BTreeMap<String, &'static str>,
    given: usize,
    refused: usize,
}

impl Game {
    fn is_taken(&self, rail: &String) -> bool {
        self.counted.iter().any(|resource| resource.has_given(rail))
    }

    /// A rail goes, or comes back. What a pod has is not on the host: nothing else takes it, but
    /// its speed may be another one or unknown by now.
    async fn rail_changes(&mut self) {
        let rail = format!("rdma{}", self.dice.below(8));
        let speed = [Some(400), Some(200), None][self.dice.below(3)];
        self.plugin.fake.set_speed(&rail, speed);
        let why = ["no carrier", "held by container abc", "not on this host"][self.dice.below(3)];
        if !self.is_taken(&rail) {
            let back = self.gone.remove(&rail).is_some();
            self.plugin.fake.set(&rail, (!back).then_some(why));
            if !back {
                self.gone.insert(rail, why);
            }
        }
        // Half of the events are late: the kubelet then asks for what it was shown.
        if self.dice.below(2) == 0 {
            self.plugin.node.refresh().await.unwrap();
        }
    }

    async fn kubelet_restarts(&mut self) {
        self.kubelet.server.abort();
        self.kubelet = Kubelet::start(self.plugin.folder.path(), Ok(()));
        for at in 0..self.counted.len() {
            let pods = std::mem::take(&mut self.counted[at].pods);
            self.counted[at] = Counted::new(&mut self.kubelet, pods).await;
        }
    }

    fn pod_ends(&mut self, resource: usize) {
        let pods = &mut self.counted[resource].pods;
        if !pods.is_empty() {
            let ended = self.dice.below(pods.len());
            pods.swap_remove(ended);
        }
    }

    /// Healthy ones that no pod of this resource has, those of them that are preferred, then
    /// Allocate.
    async fn pod_starts(&mut self, resource: usize) {
        let counted = &mut self.counted[resource];
        let (available, channel) = (counted.available().await, counted.channel.clone());
        if available.is_empty() {
            return counted.pods.clear();
        }
        let size = 1 + self.dice.below(available.len());
        let must = &available[..self.dice.below(size + 1)];
        let chosen = prefer(&channel, &available, must, size as i32).await;
        let distinct: BTreeSet<&String> = chosen.iter().collect();
        assert_eq!((chosen.len(), distinct.len()), (size, size), "{chosen:?}");
        assert!(
            chosen.iter().all(|r| available.contains(r)) && must.iter().all(|r| chosen.contains(r)),
            "{chosen:?}"
        );
        assert_eq!(
            chosen,
            prefer(&channel, &available, must, size as i32).await
        );
        match allocate(&channel, &chosen).await {
            Ok(cdi) => {
                assert_eq!(
                    cdi,
                    chosen
                        .iter()
                        .map(|r| format!("{RESOURCE}={r}"))
                        .collect::<Vec<_>>()
                );
                assert!(
                    !chosen.iter().any(|r| self.gone.contains_key(r)),
                    "{chosen:?} of {:?}",
                    self.gone
                );
                assert!(
                    !chosen.iter().any(|r| self.is_taken(r)),
                    "{chosen:?}: given twice"
                );
                self.counted[resource].pods.push(chosen);
                self.given += 1;
            }
            Err(status) => {
                let why = chosen
                    .iter()
                    .find_map(|r| Some(format!("rail {r}: {}", self.gone.get(r)?)));
                assert_eq!(Some(status.message()), why.as_deref());
                self.refused += 1;
            }
        }
    }
}

/// 1,000 allocations as the kubelet makes them, of two resources. Between them rails lose their
/// carrier, come up with another speed, are taken by containers outside Kubernetes, pods end, and
/// the kubelet starts again. The seed is printed, which a failed test shows.
#[tokio::test]
async fn no_rail_is_given_twice() {
    let seed = std::env::var("RDMAPREP_RANDOM_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(21);
    println!("RDMAPREP_RANDOM_SEED={seed}");
    let plugin = plugin(BY_SPEED);
    let mut kubelet = Kubelet::start(plugin.folder.path(), Ok(()));
    let run = plugin.run();
    let counted = vec![
        Counted::new(&mut kubelet, Vec::new()).await,
        Counted::new(&mut kubelet, Vec::new()).await,
    ];
    let mut game = Game {
        dice: Dice(seed),
        plugin,
        kubelet,
        counted,
        gone: BTreeMap::new(),
        given: 0,
        refused: 0,
    };
    let mut restarts = 0;
    while game.given < 1000 {
        let resource = game.dice.below(2);
        match game.dice.below(12) {
            0..=2 => game.pod_ends(resource),
            3 | 4 => game.rail_changes().await,
            5 if game.dice.below(20) == 0 => {
                game.kubelet_restarts().await;
                restarts += 1;
            }
            _ => game.pod_starts(resource).await,
        }
    }
    println!(
        "{} given, {} refused, {restarts} restarts of the kubelet",
        game.given, game.refused
    );
    assert!(game.refused > 10 && restarts > 1, "too tame");
    run.abort();
}
