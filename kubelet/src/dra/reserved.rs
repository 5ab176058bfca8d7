//! What the API server says by now of the claims that are bound: for which pods they are reserved,
//! and which of them are gone. The kubelet says neither.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use rdmaprep::disk::files::Lock;
use rdmaprep::store::claims::{Binding, Named};

use crate::dra::api_server::is_missing;
use crate::dra::driver::{Driver, blocking};
use crate::dra::sharing::{self, Shared};
use crate::dra::{api, claim};

/// By claim its pods; nothing where the claim is gone.
type Said = BTreeMap<String, Option<Vec<Named>>>;

impl Driver {
    /// Releases what the kubelet has forgotten, as when its state was wiped: claims that do not
    /// exist any more, or are allocated no more. And gives those that pods share to the next one.
    pub async fn follow_claims(self: &Arc<Self>) -> Result<()> {
        let at = self.clone();
        let (said, failed) = blocking(move || at.ask()).await?;
        for uid in self.gone_for_good(&said) {
            match self.release_gone(&uid).await {
                Ok(()) => (self.node.log)(&format!("released claim {uid}, which is gone")),
                Err(e) => (self.node.log)(&format!("claim {uid} is gone: {e:#}")),
            }
        }
        // Most often there is nothing to do, and a hook may have the lock.
        if self
            .bindings
            .all()?
            .iter()
            .any(|b| has_lost_its_pod(b, &said))
        {
            let lock = self.lock_and_look(Instant::now() + self.patience).await?;
            let at = self.clone();
            blocking(move || at.hand_over(&said, &lock)).await?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Those that are, and have been for long enough.
    fn gone_for_good(&self, said: &Said) -> Vec<String> {
        let now = Instant::now();
        let mut gone = self.gone();
        // One that could not be asked for is as it was.
        gone.retain(|uid, _| said.get(uid).is_none_or(Option::is_none));
        let mut good = Vec::new();
        for (uid, _) in said.iter().filter(|(_, pods)| pods.is_none()) {
            let since = *gone.entry(uid.clone()).or_insert(now);
            if since + self.gone_for <= now {
                good.push(uid.clone());
            }
        }
        good
    }

    /// Of each claim that could be asked for, and the last error.
    fn ask(&self) -> Result<(Said, Option<anyhow::Error>)> {
        let (mut said, mut failed) = (Said::new(), None);
        for binding in self.bindings.all()? {
            match self.pods_of(&binding) {
                Ok(pods) => drop(said.insert(binding.claim.uid, pods)),
                Err(e) => failed = Some(e),
            }
        }
        Ok((said, failed))
    }

    pub(super) fn pods_of(&self, binding: &Binding) -> Result<Option<Vec<Named>>> {
        let claim = api::Claim {
            namespace: binding.namespace.clone(),
            uid: binding.claim.uid.clone(),
            name: binding.claim.name.clone(),
        };
        match self.server.get(&claim::path(&claim)?) {
            Ok(object) if claim::is_allocated(&claim, &object, &self.name) => {
                Ok(Some(claim::pods(&object)))
            }
            Ok(_) => Ok(None),
            Err(e) if is_missing(&e, "resourceclaims") => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn hand_over(&self, said: &Said, _lock: &Lock) -> Result<()> {
        let all = self.bindings.all()?.into_iter();
        let all: Vec<Shared> = all.filter_map(|b| self.shared(b, said)).collect();
        for (binding, pod) in sharing::turns(&all) {
            self.bindings.hand_over(binding, pod)?;
            let _ = self.tells.try_send(());
            let (namespace, claim) = (&binding.namespace, &binding.claim.name);
            (self.node.log)(&format!(
                "claim {namespace}/{claim} is pod {}'s now",
                pod.name
            ));
        }
        Ok(())
    }

    fn shared(&self, binding: Binding, said: &Said) -> Option<Shared> {
        let pods = said.get(&binding.claim.uid)?.clone()?;
        let shown = self.node.shown();
        let mut away = shown
            .iter()
            .flat_map(|(_, rails)| rails)
            .filter(|rail| rail.facts.is_away);
        let is_used = away.any(|rail| binding.has(&rail.name));
        Some(Shared {
            binding,
            pods,
            is_used,
        })
    }
}

fn has_lost_its_pod(binding: &Binding, said: &Said) -> bool {
    let Some(Some(pods)) = said.get(&binding.claim.uid) else {
        return false;
    };
    let has_it = |pod: &Named| !binding.ended && pods.contains(pod);
    !pods.is_empty() && !binding.pod.as_ref().is_some_and(has_it)
}
