//! The kubelet's two calls. What is given is decided here and not by the kubelet, which may have
//! forgotten, or be late: a pod that was deleted by force may still have its rails when the
//! scheduler gives them to the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use rdmaprep::cdi::RailName;
use rdmaprep::disk::files::Lock;
use rdmaprep::oci::pod::is_uid;
use rdmaprep::store::Store;
use rdmaprep::store::claims::{Binding, Bound, Named};
use serde_json::Value;
use tokio::sync::{Notify, watch};

use crate::dra::api_server::ApiServer;
use crate::dra::binding::{self, Bindings};
use crate::dra::claim::{self, Allocation};
use crate::dra::slice::{self, Device};
use crate::dra::{api, sharing};
use crate::host;
use crate::node::Node;
use crate::rail::Rail;

/// Of the kubelet's 45 s. When Prepare has failed, it tries again after 60 to 90 s
/// (kubernetes#139836), so what ends by itself is waited for.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Nothing says when another claim is released.
pub const AGAIN: Duration = Duration::from_millis(500);
/// A server that is being restored from a backup, or one behind the others, may lack what exists.
pub const GONE_FOR: Duration = Duration::from_secs(15);

pub struct Driver {
    pub node: Arc<Node>,
    pub name: String,
    pub server: Arc<ApiServer>,
    pub store: Store,
    pub bindings: Bindings,
    /// The CDI file of all rails.
    pub cdi: PathBuf,
    pub patience: Duration,
    /// To the publisher, and what it has published.
    pub wakes: SyncSender<()>,
    pub published: watch::Receiver<Value>,
    /// To what writes the status of claims.
    pub tells: SyncSender<()>,
    /// To those who ask what the API server says of claims that are bound.
    pub asks: Notify,
    /// Claims that are gone, and since when they have been whenever that was asked.
    pub gone: Mutex<BTreeMap<String, Instant>>,
    /// For how long they are, before they count as gone.
    pub gone_for: Duration,
}

/// Why a claim cannot have its rails now; and whether that may end by itself.
enum Refused {
    Now(anyhow::Error),
    ForGood(anyhow::Error),
}

struct Wanted {
    claim: api::Claim,
    allocation: Allocation,
}

type Bounds = BTreeMap<String, Vec<Bound>>;

impl Driver {
    /// All claims of a call, or none: they are of one pod.
    pub async fn prepare(self: &Arc<Self>, asked: api::Claims) -> api::Prepared {
        let until = Instant::now() + self.patience;
        let (mut wanted, mut wrong) = (Vec::new(), BTreeMap::new());
        for claim in asked.claims.iter().cloned() {
            let at = self.clone();
            let looked = blocking(move || at.allocation(claim)).await;
            match looked {
                Ok(found) => wanted.push(found),
                Err((claim, e)) => drop(wrong.insert(claim.uid, format!("{e:#}"))),
            }
        }
        let bound = match wrong.is_empty() {
            false => Err("another claim of the pod cannot be prepared".to_owned()),
            true => match self.bind_in_time(Arc::new(wanted), until).await {
                Err(e) => Err(format!("{e:#}")),
                Ok(bound) => Ok(bound),
            },
        };
        let answer = |claim: api::Claim| {
            let error = wrong.remove(&claim.uid).or(bound.as_ref().err().cloned());
            let error = error.unwrap_or_default();
            if !error.is_empty() {
                let (namespace, name) = (&claim.namespace, &claim.name);
                (self.node.log)(&format!("claim {namespace}/{name}: {error}"));
            }
            let bounds = bound.as_ref().ok().and_then(|all| all.get(&claim.uid));
            let devices = bounds.into_iter().flatten();
            let devices = devices
                .map(|bound| self.device(&claim.uid, bound))
                .collect();
            (claim.uid, api::PreparedClaim { devices, error })
        };
        api::Prepared {
            claims: asked.claims.into_iter().map(answer).collect(),
        }
    }

    fn device(&self, uid: &str, bound: &Bound) -> api::Device {
        api::Device {
            request_names: vec![bound.request.clone()],
            pool_name: self.name.clone(),
            device_name: bound.device.clone(),
            cdi_device_ids: vec![binding::cdi_id(uid, &bound.device)],
        }
    }

    fn allocation(&self, claim: api::Claim) -> Result<Wanted, (api::Claim, anyhow::Error)> {
        let look = || {
            if !is_uid(&claim.uid) {
                bail!("{:?} is no UID", claim.uid);
            }
            let object = self.server.get(&claim::path(&claim)?)?;
            Allocation::of(&claim, &object, &self.name)
        };
        match look() {
            Ok(allocation) => Ok(Wanted { claim, allocation }),
            Err(e) => Err((claim, e)),
        }
    }

    async fn bind_in_time(
        self: &Arc<Self>,
        wanted: Arc<Vec<Wanted>>,
        until: Instant,
    ) -> Result<Bounds> {
        let mut seen = self.node.subscribe();
        let mut last = None;
        loop {
            let (at, wanted) = (self.clone(), wanted.clone());
            let bound = match self.lock_and_look(until).await {
                // Why it has waited says more than who has the lock in the end.
                Err(e) => Err(Refused::Now(last.take().unwrap_or(e))),
                Ok(lock) => {
                    let bind = move || {
                        let _lock = lock;
                        at.bind(&wanted)
                    };
                    blocking(bind).await
                }
            };
            let e = match bound {
                Ok(bounds) => return Ok(bounds),
                Err(Refused::ForGood(e)) => return Err(e),
                Err(Refused::Now(e)) => e,
            };
            if Instant::now() + AGAIN > until {
                return Err(e);
            }
            last = Some(e);
            let _ = tokio::time::timeout(AGAIN, seen.changed()).await;
        }
    }

    pub(super) fn gone(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those who say elsewhere what has changed here. A wake-up that waits to be taken is enough.
    pub fn wake(&self) {
        for to in [&self.wakes, &self.tells] {
            let _ = to.try_send(());
        }
    }

    /// What is seen stays so while the lock is held: a hook may have had it for long.
    pub(super) async fn lock_and_look(self: &Arc<Self>, until: Instant) -> Result<Lock> {
        let lock = self.lock(until).await?;
        self.node.refresh().await?;
        Ok(lock)
    }

    pub(super) async fn lock(self: &Arc<Self>, until: Instant) -> Result<Lock> {
        let at = self.clone();
        blocking(move || at.store.lock(until)).await
    }

    /// The caller has the lock.
    fn bind(&self, wanted: &[Wanted]) -> Result<Bounds, Refused> {
        use Refused::{ForGood, Now};
        let known = self.bindings.all().map_err(ForGood)?;
        let shown = self.node.shown();
        let (devices, _) = slice::devices(&shown);
        let mut new = Vec::new();
        let mut taken = BTreeSet::new();
        let caller = caller(wanted, &known);
        for Wanted { claim, allocation } in wanted {
            if allocation.devices.is_empty() {
                continue;
            }
            let own = known.iter().find(|b| b.claim.uid == claim.uid);
            let others: Vec<&Binding> = known.iter().filter(|b| b.claim.uid != claim.uid).collect();
            let mut rails = Vec::new();
            for allotted in &allocation.devices {
                let name = &allotted.device;
                let device = devices.iter().find(|d| d.name == *name);
                let device = device
                    .ok_or_else(|| ForGood(anyhow!("this node has no rail {name} any more")))?;
                let rail = rail_name(device.rail).map_err(ForGood)?;
                let had = own.and_then(|own| own.rails.iter().find(|b| b.rail == rail));
                if had.is_none() {
                    is_free(device, &others).map_err(Now)?;
                }
                let bound = Bound {
                    request: allotted.request.clone(),
                    device: name.clone(),
                    rail,
                    // Not known of each rail that is away.
                    pci: device.rail.facts.pci.or(had.and_then(|had| had.pci)),
                };
                if !taken.insert(name.clone()) {
                    return Err(ForGood(anyhow!("two claims of the pod have {name}")));
                }
                rails.push(bound);
            }
            let named = Named {
                name: claim.name.clone(),
                uid: claim.uid.clone(),
            };
            let given = own.filter(|own| !own.ended).and_then(|own| own.pod.clone());
            let given = given.filter(|pod| allocation.pods.contains(pod));
            let pod = given.or(caller.clone());
            let pod = pod.or(allocation.pods.first().cloned());
            let mut binding = self.bindings.bind(&claim.namespace, named, pod, rails);
            if let Some(own) = own {
                binding.past = own.of_next(binding.pod.clone()).past;
            }
            // A claim that is prepared again is not gone, whatever was last heard of it.
            self.gone().remove(&claim.uid);
            new.push(binding);
        }
        self.write(&new, &known).map_err(ForGood)?;
        let bounds = new.into_iter().map(|b| (b.claim.uid, b.rails));
        self.wake();
        // The pod may also have claims that are prepared, of which the kubelet says nothing.
        self.asks.notify_one();
        Ok(bounds.collect())
    }

    /// Each file again, whatever is known of it: after a boot the engine's is gone
    /// (kubernetes#141433).
    fn write(&self, new: &[Binding], known: &[Binding]) -> Result<()> {
        let spec = match new {
            [] => return Ok(()),
            _ => host::spec(&self.cdi)?,
        };
        self.bindings.prepare()?;
        let written = new.iter().try_for_each(|b| self.bindings.write(b, &spec));
        if written.is_err() {
            let is_new = |b: &&Binding| !known.iter().any(|k| k.claim.uid == b.claim.uid);
            for binding in new.iter().filter(is_new) {
                // What remains is as it would be for a claim that was prepared and is not used.
                let _ = self.bindings.remove(&binding.claim.uid);
            }
        }
        written
    }
}

/// One of their claims may have ended with the pod before.
fn caller(wanted: &[Wanted], known: &[Binding]) -> Option<Named> {
    let pods: Vec<&[Named]> = wanted
        .iter()
        .map(|w| w.allocation.pods.as_slice())
        .collect();
    let is_wanted = |b: &&Binding| wanted.iter().any(|w| w.claim.uid == b.claim.uid);
    let ended = known.iter().filter(|b| b.ended).filter(is_wanted);
    let ended: Vec<&Named> = ended.flat_map(|b| &b.pod).collect();
    sharing::caller(&pods, &ended)
}

/// As a hook's argument has it.
fn rail_name(rail: &Rail) -> Result<RailName> {
    match rail.facts.is_hca {
        true => Ok(RailName::Hca(rail.name.parse()?)),
        false => Ok(RailName::Netdev(rail.name.parse()?)),
    }
}

fn is_free(device: &Device, others: &[&Binding]) -> Result<()> {
    let (name, rail) = (&device.name, device.rail);
    let holder = others.iter().find(|b| b.has(&rail.name));
    if let Some(holder) = holder {
        let (namespace, claim) = (&holder.namespace, &holder.claim.name);
        let pod = holder.pod.as_ref();
        let pod = pod
            .map(|p| format!(" of pod {}", p.name))
            .unwrap_or_default();
        bail!("the claim {namespace}/{claim}{pod} has {name}");
    }
    if let Some(why) = &rail.unhealthy {
        bail!("{name}: {why}");
    }
    if rail.facts.is_away {
        bail!("a container has {name}");
    }
    Ok(())
}

pub async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(e) => std::panic::resume_unwind(e.into_panic()),
    }
}
