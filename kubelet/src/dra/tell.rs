//! Writes into the status of bound claims how their devices are, and into the events of their pods
//! why the create hook refused a container. Nothing waits for it: it is a thread of its own, what
//! fails is tried again later, and no call of the kubelet's depends on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use rdmaprep::store::Store;
use rdmaprep::store::claims::Binding;
use rdmaprep::store::records::Records;
use serde_json::{Value, json};

use crate::dra::api_server::{ApiServer, is_missing};
use crate::dra::binding::Bindings;
use crate::dra::events::Events;
use crate::dra::refused::Refusals;
use crate::dra::status::{self, Look};
use crate::dra::tries::{PAUSE, Tries};
use crate::dra::{api, claim};
use crate::node::Node;

/// Entries of others stay: the server keeps apart who has applied what.
const MANAGER: &str = "fieldManager=rdmaprep-dra&force=true";
const GROUP: Duration = Duration::from_millis(100);
/// How often it is tried to say of a claim that was released that its rails are back: its end
/// deletes what the status says.
const LAST_TRIES: u32 = 5;

pub struct Teller {
    pub server: Arc<ApiServer>,
    pub node: Arc<Node>,
    /// As slices name it.
    pub pool: String,
    pub store: Store,
    pub bindings: Bindings,
    pub refusals: Arc<Refusals>,
    claims: BTreeMap<String, Told>,
    events: Events,
}

/// A claim as it was last seen here.
struct Told {
    binding: Binding,
    /// What its status says.
    said: Option<Vec<Value>>,
    tries: Tries,
}

impl Teller {
    pub fn new(
        server: Arc<ApiServer>,
        node: Arc<Node>,
        pool: &str,
        store: Store,
        bindings: Bindings,
        refusals: Arc<Refusals>,
    ) -> Teller {
        Teller {
            server,
            node,
            pool: pool.to_owned(),
            store,
            bindings,
            refusals,
            claims: BTreeMap::new(),
            events: Events::new(pool),
        }
    }

    /// Until the sender of `wakes` is gone.
    pub fn run(&mut self, wakes: &Receiver<()>) {
        let mut failed = None;
        loop {
            let done = self.step();
            let why = done.as_ref().err().map(|e| format!("{e:#}"));
            if let Some(why) = why.as_ref().filter(|why| failed.as_ref() != Some(*why)) {
                (self.node.log)(&format!("the status of claims is not written: {why}"));
            }
            failed = why;
            let next = done.unwrap_or_else(|_| Some(Instant::now() + PAUSE.1));
            let woken = match next {
                None => wakes.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => wakes.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match woken {
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) => thread::sleep(GROUP),
            }
        }
    }

    /// Says what has changed; and when something is to be said next.
    fn step(&mut self) -> Result<Option<Instant>> {
        let all = self.bindings.all()?;
        let store = self.store.clone();
        let records = Records::read(&store, self.bindings.boot_id())?;
        let shown = self.node.shown();
        let pool = self.pool.clone();
        let look = Look {
            pool: &pool,
            shown: &shown,
            records: &records,
        };
        for told in self.claims.values_mut() {
            // Unless it is still bound, as is seen next.
            told.binding.ended = true;
        }
        let uids: Vec<String> = all.iter().map(|b| b.claim.uid.clone()).collect();
        self.refusals.keep(&uids);
        for binding in &all {
            match self.claims.get_mut(&binding.claim.uid) {
                Some(told) => told.binding = binding.clone(),
                None => {
                    let uid = binding.claim.uid.clone();
                    self.claims.insert(uid, Told::new(binding.clone()));
                }
            }
        }
        let mut next = None;
        let mut over = Vec::new();
        let now = Instant::now();
        for (uid, told) in &mut self.claims {
            let wanted = look.devices(&told.binding, self.refusals.words(&told.binding));
            let is_bound = uids.contains(uid);
            if told.said.as_ref() != Some(&wanted) && told.tries.not_before <= now {
                let done = write(&self.server, &told.binding, &wanted, &pool);
                told.note(done, wanted.clone(), self.node.log);
            }
            let is_said = told.said.as_ref() == Some(&wanted);
            if !is_bound && (is_said || told.tries.failures >= LAST_TRIES) {
                over.push(uid.clone());
            } else if !is_said {
                let at = told.tries.not_before;
                next = Some(next.map_or(at, |next: Instant| next.min(at)));
            }
        }
        over.iter().for_each(|uid| drop(self.claims.remove(uid)));
        let (refused, log) = (self.refusals.of_pods(), self.node.log);
        let event = self.events.write(&self.server, &refused, &all, log);
        Ok(next.into_iter().chain(event).min())
    }
}

impl Told {
    fn new(binding: Binding) -> Told {
        Told {
            binding,
            said: None,
            tries: Tries::default(),
        }
    }

    fn note(&mut self, done: Result<()>, wanted: Vec<Value>, log: fn(&str)) {
        let (namespace, claim) = (&self.binding.namespace, &self.binding.claim.name);
        let what = format!("the status of claim {namespace}/{claim}");
        if done.is_ok() {
            self.said = Some(wanted);
        }
        self.tries.note(&what, done, log);
    }
}

/// Nothing where the claim is gone, or another one has its name or its devices: then there is
/// nothing to say.
fn write(server: &ApiServer, binding: &Binding, wanted: &[Value], pool: &str) -> Result<()> {
    let claim = api::Claim {
        namespace: binding.namespace.clone(),
        uid: binding.claim.uid.clone(),
        name: binding.claim.name.clone(),
    };
    let path = claim::path(&claim)?;
    let object = match server.get(&path) {
        Ok(object) => object,
        Err(e) if is_missing(&e, "resourceclaims") => return Ok(()),
        Err(e) => return Err(e),
    };
    if !claim::is_allocated(&claim, &object, pool) {
        return Ok(());
    }
    let mut devices = status::allocated(wanted, &object);
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    status::with_times(&mut devices, &object, &now);
    if devices.is_empty() || status::is_told(&devices, &object, pool) {
        return Ok(());
    }
    let applied = json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
        "status": {"devices": devices},
    });
    server.apply(&format!("{path}/status?{MANAGER}"), &applied)?;
    Ok(())
}
