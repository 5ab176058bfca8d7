//! The end of claims: the scheduler gives their rails to the next pod when this has succeeded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use rdmaprep::store::claims::{Binding, is_uid};
use serde_json::Value;

use crate::dra::api;
use crate::dra::driver::{AGAIN, Driver, blocking};
use crate::dra::slice::{self, Device};

impl Driver {
    /// Each claim for itself: one that is released is released.
    pub async fn unprepare(self: &Arc<Self>, asked: api::Claims) -> api::Unprepared {
        let until = Instant::now() + self.patience;
        let mut claims = BTreeMap::new();
        for claim in asked.claims {
            let released = self.release(&claim.uid, until).await;
            let error = released.err().map(|e| format!("{e:#}")).unwrap_or_default();
            if !error.is_empty() {
                let (namespace, name) = (&claim.namespace, &claim.name);
                (self.node.log)(&format!("claim {namespace}/{name}: {error}"));
            }
            claims.insert(claim.uid, api::UnpreparedClaim { error });
        }
        api::Unprepared { claims }
    }

    /// Only when its rails are back, or are offered to no one: when this has succeeded, the
    /// scheduler gives them to the next pod.
    pub(super) async fn release(self: &Arc<Self>, uid: &str, until: Instant) -> Result<()> {
        if !is_uid(uid) {
            bail!("{uid:?} is no UID");
        }
        let mut seen = self.node.subscribe();
        loop {
            let Some(binding) = self.bindings.of(uid)? else {
                break;
            };
            self.node.refresh().await?;
            let away = self.still_away(&binding);
            if away.is_some() && !binding.ended {
                let at = self.clone();
                blocking(move || {
                    let _lock = at.store.lock(until)?;
                    at.bindings.end(&binding)
                })
                .await?;
                continue;
            }
            match away {
                None => {
                    self.wait_until_withdrawn(&binding, until).await?;
                    break;
                }
                Some(why) if Instant::now() + AGAIN > until => bail!("{why}"),
                Some(_) => drop(tokio::time::timeout(AGAIN, seen.changed()).await),
            }
        }
        let (at, uid) = (self.clone(), uid.to_owned());
        blocking(move || {
            let _lock = at.store.lock(until)?;
            at.bindings.remove(&uid)
        })
        .await?;
        let _ = self.wakes.try_send(());
        Ok(())
    }

    fn still_away(&self, binding: &Binding) -> Option<String> {
        let shown = self.node.shown();
        let mut rails = shown.iter().flat_map(|(_, rails)| rails);
        let rail = rails
            .find(|rail| binding.has(&rail.name) && rail.facts.is_away && !rail.facts.held_back)?;
        let name = &rail.name;
        Some(format!("{name} is not back: see `rdmaprep status`"))
    }

    /// A rail that is not whole keeps no pod from ending, and no pod gets it.
    async fn wait_until_withdrawn(&self, binding: &Binding, until: Instant) -> Result<()> {
        let shown = self.node.shown();
        let (devices, _) = slice::devices(&shown);
        let its = |d: &&Device| binding.has(&d.rail.name);
        let broken: Vec<&Device> = devices
            .iter()
            .filter(|d| d.rail.facts.held_back)
            .filter(its)
            .collect();
        if broken.is_empty() {
            return Ok(());
        }
        let _ = self.wakes.try_send(());
        let mut published = self.published.clone();
        let is_out = |spec: &Value| {
            spec.is_object() && !broken.iter().any(|d| slice::is_offered(spec, &d.name))
        };
        let waited = tokio::time::timeout_at(until.into(), published.wait_for(is_out)).await;
        waited.context("a rail is not whole, and the API server does not know it yet")??;
        Ok(())
    }
}
