//! The end of claims: the scheduler gives their rails to the next pod when this has succeeded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rdmaprep::oci::pod::is_uid;
use rdmaprep::record::short_id;
use rdmaprep::store::claims::{Binding, Named};
use serde_json::Value;

use crate::dra::away::{Its, container_with, why_away};
use crate::dra::driver::{AGAIN, Driver, blocking};
use crate::dra::{api, slice};

impl Driver {
    /// Each claim for itself: one that is released is released.
    pub async fn unprepare(self: &Arc<Self>, asked: api::Claims) -> api::Unprepared {
        let until = Instant::now() + self.patience;
        let mut claims = BTreeMap::new();
        for claim in asked.claims {
            let released = self.release_for_kubelet(&claim.uid, until).await;
            let error = released.err().map(|e| format!("{e:#}")).unwrap_or_default();
            if !error.is_empty() {
                let (namespace, name) = (&claim.namespace, &claim.name);
                (self.node.log)(&format!("claim {namespace}/{name}: {error}"));
            }
            claims.insert(claim.uid, api::UnpreparedClaim { error });
        }
        api::Unprepared { claims }
    }

    /// A pod that shares the claim may come while the kubelet makes this call: it does not ask for
    /// that one again, and forgets it when the call succeeds.
    async fn release_for_kubelet(self: &Arc<Self>, uid: &str, until: Instant) -> Result<()> {
        if !is_uid(uid) {
            bail!("{uid:?} is no UID");
        }
        let (at, of) = (self.clone(), uid.to_owned());
        let next = blocking(move || at.next_pods(&of)).await?;
        self.release(uid, until, Ending::OfPod(next)).await
    }

    /// Now or never: the next time comes soon.
    pub(super) async fn release_gone(self: &Arc<Self>, uid: &str) -> Result<()> {
        self.release(uid, Instant::now(), Ending::Gone).await?;
        self.gone().remove(uid);
        Ok(())
    }

    /// For which the claim is reserved besides its pod; none where the API server does not say.
    fn next_pods(&self, uid: &str) -> Result<Vec<Named>> {
        let Some(binding) = self.bindings.of(uid)? else {
            return Ok(Vec::new());
        };
        let pods = self.pods_of(&binding).ok().flatten().unwrap_or_default();
        let is_next =
            |pod: &Named| binding.pod.as_ref() != Some(pod) && !binding.has_ended_for(pod);
        Ok(pods.into_iter().filter(is_next).collect())
    }

    /// Only when its rails are back, or are offered to no one: when this has succeeded, the
    /// scheduler gives them to the next pod.
    async fn release(self: &Arc<Self>, uid: &str, until: Instant, how: Ending) -> Result<()> {
        let how = Arc::new(how);
        let mut seen = self.node.subscribe();
        let (mut has_ended, mut is_withdrawn) = (false, false);
        let mut last = None;
        loop {
            let lock = self.lock(until).await;
            // Why it has waited says more than who has the lock in the end.
            let lock = lock.map_err(|e| last.take().unwrap_or(e))?;
            // The records say what is away, also where a damaged config file hides the rails.
            let _ = self.node.refresh().await;
            let (at, uid, how) = (self.clone(), uid.to_owned(), how.clone());
            let left = blocking(move || {
                let _lock = lock;
                at.try_release(&uid, &how, has_ended, is_withdrawn)
            });
            match left.await? {
                Left::Nothing => break,
                Left::Next(pod) => {
                    self.asks.notify_one();
                    bail!("pod {pod} has the claim next");
                }
                Left::NotWhole(devices) => self.wait_until_withdrawn(&devices, until).await?,
                Left::Away(why) if Instant::now() + AGAIN > until => bail!("{why}"),
                Left::Away(why) => {
                    has_ended = true;
                    last = Some(anyhow!(why));
                    let _ = self.tells.try_send(());
                    let _ = tokio::time::timeout(AGAIN, seen.changed()).await;
                    continue;
                }
            }
            (has_ended, is_withdrawn) = (true, true);
        }
        self.wake();
        Ok(())
    }

    /// With the lock: no hook gives a rail of it meanwhile, nor later, since it has ended.
    fn try_release(
        &self,
        uid: &str,
        how: &Ending,
        has_ended: bool,
        is_withdrawn: bool,
    ) -> Result<Left> {
        let binding = self.bindings.of(uid)?;
        if let (Ending::Gone, false) = (how, has_ended) {
            self.check_gone(uid, binding.as_ref())?;
        }
        if let Some(binding) = binding.as_ref().filter(|b| !b.ended) {
            let pod = binding.pod.as_ref().map_or("another", |pod| &pod.name);
            ensure!(!has_ended, "pod {pod} has the claim by now");
            self.bindings.end(binding)?;
        }
        let binding = binding.as_ref();
        let its = Its { uid, binding };
        if let Some(why) = why_away(&self.store, self.bindings.boot_id(), &its)? {
            return Ok(Left::Away(why));
        }
        let shown = self.node.shown();
        let (devices, _) = slice::devices(&shown);
        let broken = devices.iter().filter(|d| d.rail.facts.held_back);
        let broken = broken.filter(|d| binding.is_some_and(|b| b.has(&d.rail.name)));
        let names: Vec<String> = broken.map(|d| d.name.clone()).collect();
        if !names.is_empty() && !is_withdrawn {
            return Ok(Left::NotWhole(names));
        }
        if let Ending::OfPod(next) = how
            && let Some(pod) = next.first()
        {
            return Ok(Left::Next(pod.name.clone()));
        }
        self.bindings.remove(uid)?;
        Ok(Left::Nothing)
    }

    /// That it was not prepared again, and that no container has it: one that was deleted by force
    /// may run for a while.
    fn check_gone(&self, uid: &str, binding: Option<&Binding>) -> Result<()> {
        ensure!(self.gone().contains_key(uid), "it is prepared again");
        let its = Its { uid, binding };
        match container_with(&self.store, self.bindings.boot_id(), &its)? {
            Some(id) => bail!("container {} runs", short_id(&id)),
            None => Ok(()),
        }
    }

    /// A rail that is not whole keeps no pod from ending, and no pod gets it.
    async fn wait_until_withdrawn(&self, devices: &[String], until: Instant) -> Result<()> {
        let _ = self.wakes.try_send(());
        let mut published = self.published.clone();
        let is_out =
            |spec: &Value| spec.is_object() && !devices.iter().any(|d| slice::is_offered(spec, d));
        let waited = tokio::time::timeout_at(until.into(), published.wait_for(is_out)).await;
        waited.context("a rail is not whole, and the API server does not know it yet")??;
        Ok(())
    }
}

enum Ending {
    /// Its pod has ended, and these may have the claim next.
    OfPod(Vec<Named>),
    /// The API server does not have it any more.
    Gone,
}

/// What keeps a claim from being released.
enum Left {
    Nothing,
    /// The pod that has it next.
    Next(String),
    /// Why its rails are away.
    Away(String),
    /// Devices that are back, but not as they were.
    NotWhole(Vec<String>),
}
