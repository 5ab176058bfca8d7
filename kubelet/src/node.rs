//! The rails of this node and the resources that they belong to, as they were last seen.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use tokio::sync::watch;

use crate::pools::Pools;
use crate::rail::{Rail, Shown};

/// Where rails are looked up: the machine, or a test.
pub trait Inventory: Send + Sync {
    /// All rails of the CDI file, in its order, which is that of rails.
    fn look(&self) -> Result<Vec<Rail>>;
}

pub struct Node {
    inventory: Arc<dyn Inventory>,
    /// Takes a line.
    pub log: fn(&str),
    pools: Mutex<Pools>,
    shown: watch::Sender<Arc<Shown>>,
    /// One look at a time: an older one must not be shown after a newer one.
    looking: tokio::sync::Mutex<()>,
}

impl Node {
    /// Looks once. Fails where a resource has no rail, or two have the same.
    pub fn new(inventory: Arc<dyn Inventory>, mut pools: Pools, log: fn(&str)) -> Result<Node> {
        let rails = inventory.look()?;
        pools.check(&rails)?;
        let shown = pools.sort(rails);
        Ok(Node {
            inventory,
            log,
            pools: Mutex::new(pools),
            shown: watch::Sender::new(Arc::new(shown)),
            looking: tokio::sync::Mutex::new(()),
        })
    }

    pub fn shown(&self) -> Arc<Shown> {
        self.shown.borrow().clone()
    }

    pub fn subscribe(&self) -> watch::Receiver<Arc<Shown>> {
        self.shown.subscribe()
    }

    pub fn rails(&self, resource: &str) -> Vec<Rail> {
        let shown = self.shown();
        shown
            .iter()
            .find(|(name, _)| name == resource)
            .map(|(_, rails)| rails.clone())
            .unwrap_or_default()
    }

    /// Looks again. What was seen last stays where that fails.
    pub async fn refresh(&self) -> Result<()> {
        let _one = self.looking.lock().await;
        let inventory = self.inventory.clone();
        let rails = tokio::task::spawn_blocking(move || inventory.look())
            .await
            .context("looking at the rails")??;
        self.show(
            self.pools
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .sort(rails),
        );
        Ok(())
    }

    /// What cannot be looked at cannot be given: no rail is healthy until a look succeeds.
    pub fn lost(&self, why: &str) {
        let mut shown = (*self.shown()).clone();
        for rail in shown.iter_mut().flat_map(|(_, rails)| rails) {
            rail.unhealthy.get_or_insert_with(|| why.to_owned());
        }
        self.show(shown);
    }

    /// Whether a rail may become healthy without a notification.
    pub fn is_unreported(&self) -> bool {
        self.shown()
            .iter()
            .flat_map(|(_, rails)| rails)
            .any(|rail| rail.unreported)
    }

    fn show(&self, shown: Shown) {
        let before = self.shown();
        if *before != shown {
            changes(&before, &shown)
                .iter()
                .for_each(|line| (self.log)(line));
            self.shown.send_replace(Arc::new(shown));
        }
    }
}

/// A line for each rail that has become healthy or unhealthy, is new or is not listed any more.
fn changes(before: &Shown, now: &Shown) -> Vec<String> {
    let states = |shown: &Shown| -> BTreeMap<String, Option<String>> {
        shown
            .iter()
            .flat_map(|(_, rails)| rails)
            .map(|r| (r.name.clone(), r.unhealthy.clone()))
            .collect()
    };
    let (before, now) = (states(before), states(now));
    let gone = before
        .keys()
        .filter(|name| !now.contains_key(*name))
        .map(|name| format!("{name} is listed no more"));
    let other = now
        .iter()
        .filter(|(name, state)| before.get(*name) != Some(*state))
        .map(|(name, state)| match state {
            Some(why) => format!("{name} is unhealthy: {why}"),
            None => format!("{name} is healthy"),
        });
    gone.chain(other).collect()
}
