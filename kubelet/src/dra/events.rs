//! The create hook's words in the events of the pod whose container it refused. A container that
//! is refused is tried again for as long as its pod lives: the same words are an event once in a
//! while, and other words, as with a time in them, are not one each.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use rdma_model::escape::printable;
use rdmaprep::store::claims::{Binding, Named};
use serde_json::{Value, json};

use crate::dra::api_server::{ApiServer, is_missing, is_status};
use crate::dra::refused::Refused;
use crate::dra::status::bounded;
use crate::dra::tries::Tries;
use crate::dra::{api, claim};

/// Between two events of a pod, and between two of the same words. The server forgets an event
/// after an hour.
const PAUSE: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_secs(600);
/// An older refusal is history, as one of which a driver reads that has just started.
const OLD: Duration = Duration::from_secs(3600);
/// Of the words, and of a node's name, in bytes (pkg/apis/core/validation of Kubernetes 1.36).
const LONGEST_NOTE: usize = 1024;
const LONGEST_INSTANCE: usize = 128;

pub struct Events {
    /// This node.
    pub node: String,
    pods: BTreeMap<String, Told>,
}

/// What was said of a pod.
#[derive(Default)]
struct Told {
    last: Option<Refused>,
    /// When, by words.
    said: BTreeMap<String, Instant>,
    tries: Tries,
}

impl Events {
    pub fn new(node: &str) -> Events {
        Events {
            node: node.to_owned(),
            pods: BTreeMap::new(),
        }
    }

    /// Writes the newest refusal of each pod, where that is new; and says when one is to be written
    /// next.
    pub fn write(
        &mut self,
        server: &ApiServer,
        refused: &[Refused],
        bound: &[Binding],
        log: fn(&str),
    ) -> Option<Instant> {
        self.pods
            .retain(|uid, _| refused.iter().any(|refusal| refusal.pod == *uid));
        let mut next = None;
        for refusal in refused {
            let binding = bound.iter().find(|b| b.claim.uid == refusal.claim);
            let told = self.pods.entry(refusal.pod.clone()).or_default();
            let Some(binding) = binding.filter(|_| told.is_due(refusal)) else {
                continue;
            };
            if told.tries.not_before <= Instant::now() {
                let done = create(server, &self.node, refusal, binding);
                told.note(done, refusal, binding, log);
            }
            if told.last.as_ref() != Some(refusal) {
                let at = told.tries.not_before;
                next = Some(next.map_or(at, |next: Instant| next.min(at)));
            }
        }
        next
    }
}

impl Told {
    /// What is not, will not be.
    fn is_due(&mut self, refusal: &Refused) -> bool {
        if self.last.as_ref() == Some(refusal) {
            return false;
        }
        self.said.retain(|_, at| at.elapsed() < AGAIN);
        let age = SystemTime::now().duration_since(at(refusal));
        let is_old = age.is_ok_and(|age| age >= OLD);
        if is_old || self.said.contains_key(&refusal.words) {
            self.last = Some(refusal.clone());
            return false;
        }
        true
    }

    fn note(&mut self, done: Result<()>, refusal: &Refused, binding: &Binding, log: fn(&str)) {
        let is_done = done.is_ok();
        let (namespace, pod) = (&binding.namespace, &refusal.pod);
        let what = format!("the event of pod {pod} in {namespace}");
        self.tries.note(&what, done, log);
        if is_done {
            let now = Instant::now();
            self.said.insert(refusal.words.clone(), now);
            self.tries.not_before = now + PAUSE;
            self.last = Some(refusal.clone());
        }
    }
}

fn at(refusal: &Refused) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(refusal.time)
}

/// Nothing where no pod of the claim is that one.
fn create(server: &ApiServer, node: &str, refusal: &Refused, binding: &Binding) -> Result<()> {
    let own = binding.pod.iter().find(|pod| pod.uid == refusal.pod);
    let pod = match own {
        Some(pod) => Some(pod.clone()),
        None => among_others(server, refusal, binding)?,
    };
    let Some(pod) = pod else {
        return Ok(());
    };
    let namespace = &binding.namespace;
    let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    match server.create(&path, &event(node, namespace, &pod, refusal)) {
        // By a driver that ran before this one.
        Err(e) if is_status(&e, 409) => Ok(()),
        done => done.map(drop),
    }
}

/// A second pod that names the claim: of it, the kubelet says nothing to the driver.
fn among_others(server: &ApiServer, refusal: &Refused, binding: &Binding) -> Result<Option<Named>> {
    let claim = api::Claim {
        namespace: binding.namespace.clone(),
        uid: binding.claim.uid.clone(),
        name: binding.claim.name.clone(),
    };
    match server.get(&claim::path(&claim)?) {
        Ok(object) => {
            let mut pods = claim::pods(&object).into_iter();
            Ok(pods.find(|pod| pod.uid == refusal.pod))
        }
        Err(e) if is_missing(&e, "resourceclaims") => Ok(None),
        Err(e) => Err(e),
    }
}

/// Its name is made of what it says: the server itself refuses it while it has it.
fn event(node: &str, namespace: &str, pod: &Named, refusal: &Refused) -> Value {
    let mut hash = DefaultHasher::new();
    (&pod.uid, &refusal.words).hash(&mut hash);
    let words = printable(&refusal.words);
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": format!("rdmaprep.{:016x}", hash.finish()), "namespace": namespace},
        "eventTime": humantime::format_rfc3339_micros(at(refusal)).to_string(),
        "type": "Warning",
        "reason": "RefusedByCreateHook",
        "action": "CreateContainer",
        "note": bounded(&words, LONGEST_NOTE),
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace,
            "name": pod.name, "uid": pod.uid},
        "reportingController": "rdmaprep.io/dra",
        "reportingInstance": bounded(node, LONGEST_INSTANCE),
    })
}
