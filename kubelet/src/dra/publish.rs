//! Keeps the node's slice at the API server as it should be. The kubelet deletes all slices of its
//! node when it starts, and ours when this program was away for 30 s; anyone may change one.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::dra::DRIVER;
use crate::dra::api_server::ApiServer;

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const LONGEST: usize = 253;
const GROUP: Duration = Duration::from_millis(100);
/// Between two tries of what failed, from the first to the other; the first is also between two
/// writes.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

pub struct Publisher<W> {
    pub server: Arc<ApiServer>,
    pub node: String,
    /// The `spec` that should be there, with or without taints.
    pub wanted: W,
    pub log: fn(&str),
    taints: bool,
    /// What was sent last, and how it came back: what the server does not know, it drops, and it
    /// adds times.
    written: Option<(Value, Value)>,
    dropped: Vec<String>,
    /// What the server is known to have.
    published: watch::Sender<Value>,
}

impl<W: Fn(bool) -> Value> Publisher<W> {
    pub fn new(server: Arc<ApiServer>, node: &str, wanted: W, log: fn(&str)) -> Publisher<W> {
        Publisher {
            server,
            node: node.to_owned(),
            wanted,
            log,
            taints: true,
            written: None,
            dropped: Vec::new(),
            published: watch::Sender::new(Value::Null),
        }
    }

    pub fn published(&self) -> watch::Receiver<Value> {
        self.published.subscribe()
    }

    /// Until the sender of `wakes` is gone.
    pub fn run(&mut self, wakes: &Receiver<()>) {
        let (mut pause, mut said) = (PAUSE.0, None);
        loop {
            let done = self.step();
            let failed = done.as_ref().err().map(|e| format!("{e:#}"));
            match (&failed, &said) {
                (Some(why), _) if failed != said => {
                    (self.log)(&format!("the slice is not published: {why}"));
                }
                (None, Some(_)) => (self.log)("the slice is published"),
                _ => {}
            }
            said = failed;
            let woken = match done {
                Err(_) => {
                    pause = PAUSE.1.min(pause * 2);
                    wakes.recv_timeout(pause / 2)
                }
                Ok(wrote) => {
                    // What changes our slice again and again must not keep us busy.
                    pause = PAUSE.0;
                    thread::sleep(if wrote { PAUSE.0 } else { GROUP });
                    wakes.recv().map_err(|_| RecvTimeoutError::Disconnected)
                }
            };
            if woken == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }

    /// Looks what is there, and makes it what is wanted; whether it wrote anything.
    pub fn step(&mut self) -> Result<bool> {
        let wanted = (self.wanted)(self.taints);
        let list = self.server.get(&of_node(&self.node))?;
        let all = list["items"].as_array().into_iter().flatten();
        let (ours, others): (Vec<&Value>, Vec<&Value>) =
            all.partition(|slice| slice["metadata"]["name"] == self.name());
        for other in others {
            let name = other["metadata"]["name"].as_str().unwrap_or_default();
            self.server.delete(&format!("{SLICES}/{name}"))?;
            (self.log)(&format!(
                "deleted the slice {name}: another version made it"
            ));
        }
        let back = match ours.first() {
            Some(there) if self.is_right(&there["spec"], &wanted) => {
                self.published.send_replace(wanted);
                return Ok(false);
            }
            Some(there) => {
                let path = format!("{SLICES}/{}", self.name());
                let slice = slice(there["metadata"].clone(), &wanted);
                self.server.replace(&path, &slice)?
            }
            None => self
                .server
                .create(SLICES, &slice(self.metadata()?, &wanted))?,
        };
        let back = back["spec"].clone();
        let dropped = dropped(&wanted, &back);
        if !dropped.is_empty() && dropped != self.dropped {
            let names = dropped.join(", ");
            (self.log)(&format!(
                "the API server does not know these fields of a slice: {names}"
            ));
        }
        if self.taints && dropped.iter().any(|name| name == "taints") {
            // At once again: a rail that no container can have stands there as free.
            self.taints = false;
            self.dropped = dropped;
            return self.step();
        }
        self.published.send_replace(wanted.clone());
        (self.written, self.dropped) = (Some((wanted, back)), dropped);
        Ok(true)
    }

    fn is_right(&self, there: &Value, wanted: &Value) -> bool {
        let known = self.written.as_ref();
        there == wanted || known.is_some_and(|(sent, back)| sent == wanted && there == back)
    }

    fn name(&self) -> String {
        let mut name = format!("rdmaprep-{}", self.node);
        name.truncate(LONGEST);
        name.trim_end_matches(['-', '.']).to_owned()
    }

    /// With the node as its owner, it goes with it.
    fn metadata(&self) -> Result<Value> {
        let node = self.server.get(&format!("/api/v1/nodes/{}", self.node));
        let node = node.with_context(|| format!("looking for the node {}", self.node))?;
        Ok(json!({
            "name": self.name(),
            "ownerReferences": [{
                "apiVersion": "v1",
                "kind": "Node",
                "name": self.node,
                "uid": node["metadata"]["uid"],
            }],
        }))
    }
}

fn slice(metadata: Value, spec: &Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": spec,
    })
}

/// Sends a wake-up for each change of the node's slices, and whenever it begins to watch: a change
/// before that may have been missed.
pub fn follow(server: &ApiServer, node: &str, wakes: &SyncSender<()>) {
    let path = of_node(node);
    let mut pause = PAUSE.0;
    loop {
        let watched = server.get(&path).and_then(|list| {
            let version = list["metadata"]["resourceVersion"]
                .as_str()
                .unwrap_or_default();
            if let Err(TrySendError::Disconnected(())) = wakes.try_send(()) {
                return Ok(true);
            }
            pause = PAUSE.0;
            server.watch(&path, version, || {
                // One that waits to be taken is enough.
                let _ = wakes.try_send(());
            })?;
            Ok(false)
        });
        match watched {
            Ok(true) => return,
            // It ends each time after some minutes; a proxy may end it at once.
            Ok(false) => thread::sleep(PAUSE.0),
            Err(_) => {
                thread::sleep(pause);
                pause = PAUSE.1.min(pause * 2);
            }
        }
    }
}

fn of_node(node: &str) -> String {
    format!("{SLICES}?fieldSelector=spec.nodeName%3D{node}%2Cspec.driver%3D{DRIVER}")
}

/// Fields that were sent and did not come back.
fn dropped(sent: &Value, back: &Value) -> Vec<String> {
    let mut names = Vec::new();
    match (sent, back) {
        (Value::Object(sent), Value::Object(back)) => {
            for (name, value) in sent {
                match back.get(name) {
                    Some(there) => names.extend(dropped(value, there)),
                    None => names.push(name.clone()),
                }
            }
        }
        (Value::Array(sent), Value::Array(back)) => {
            let pairs = sent.iter().zip(back);
            names.extend(pairs.flat_map(|(value, there)| dropped(value, there)));
        }
        _ => {}
    }
    names.sort();
    names.dedup();
    names
}
