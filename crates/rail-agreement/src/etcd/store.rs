//! The store in an etcd.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;

use super::call::Caller;
use super::login::Login;
use super::url::Cluster;
use super::wire::{self, Done, Lease};
use crate::{MAX_VALUE, Store, Value};

/// Between two looks: twice as long each time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// How much longer than the meeting keys live: clocks and pauses of this machine are none of etcd's business.
const LONGER: Duration = Duration::from_secs(60);
/// The most bytes of an answer without values.
const SHORT: u64 = 1 << 16;
const TXN: &str = "/v3/kv/txn";

/// An etcd.
#[derive(Debug)]
pub struct Etcd {
    caller: Caller,
    prefix: String,
    ends: Option<(IpAddr, IpAddr)>,
    /// What our keys hang on, from the first one on.
    lease: Option<String>,
}

impl Etcd {
    /// Connects to any member within `limit`, beyond which nothing is waited for later, either; `jitter` spreads nodes that
    /// start at once.
    ///
    /// # Errors
    /// Every member that was tried, with its reason; a certificate or a password that is not right.
    pub fn connect(cluster: Cluster, login: Option<Login>, limit: Instant, jitter: Duration) -> Result<Etcd> {
        let prefix = cluster.prefix.clone();
        let mut caller = Caller::new(cluster, login, limit, jitter)?;
        caller.begin()?;
        let ends = caller.ends();
        Ok(Etcd { caller, prefix, ends, lease: None })
    }

    /// The same with another limit: what comes after the meeting was to begin.
    pub fn until(mut self, limit: Instant) -> Etcd {
        self.caller.limit = limit;
        self
    }

    /// The address of the member that answered, and ours towards it, where they are known.
    pub fn ends(&self) -> Option<(IpAddr, IpAddr)> {
        self.ends
    }

    /// What the user should hear although it worked.
    pub fn remark(&self) -> Option<&'static str> {
        let bare = self.caller.bares_password();
        bare.then_some("the password for etcd goes over the network as it is: etcds:// encrypts it")
    }

    fn key(&self, key: &str) -> String {
        format!("{}/{key}", self.prefix)
    }

    /// The lease of what this node writes.
    fn lease(&mut self) -> Result<String> {
        if let Some(lease) = &self.lease {
            return Ok(lease.clone());
        }
        let left = self.caller.limit.saturating_duration_since(Instant::now()) + LONGER;
        let Lease { id } = self.caller.call("/v3/lease/grant", &json!({"TTL": left.as_secs().to_string()}), SHORT)?;
        self.lease = Some(id.clone());
        Ok(id)
    }

    fn there(&mut self, keys: &[String]) -> Result<Vec<bool>> {
        let request = wire::look(keys.iter().map(|key| self.key(key)), false);
        self.caller.call::<Done>(TXN, &request, wire::ANSWER)?.there(keys.len())
    }

    fn values(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>> {
        let request = wire::look(keys.iter().map(|key| self.key(key)), true);
        self.caller.call::<Done>(TXN, &request, wire::ANSWER)?.values(keys.len())
    }

    /// How many keys from the beginning on, by whole questions, are there.
    fn ahead(&mut self, keys: &[String]) -> Result<usize> {
        let mut found = 0;
        for piece in keys.chunks(wire::MOST) {
            if !self.there(piece)?.into_iter().all(|there| there) {
                break;
            }
            found += piece.len();
        }
        Ok(found)
    }
}

impl Store for Etcd {
    fn put(&mut self, pairs: &[(String, Value)]) -> Result<()> {
        for (key, value) in pairs {
            let length = value.len();
            ensure!(length <= MAX_VALUE, "{key}: a value of {length} bytes, {MAX_VALUE} are the most");
        }
        let lease = self.lease()?;
        let mut rest = pairs;
        while !rest.is_empty() {
            // A transaction sets no key twice.
            let mut seen = BTreeSet::new();
            let count = rest.iter().take(wire::MOST).take_while(|(key, _)| seen.insert(key)).count();
            let (now, later) = rest.split_at(count);
            let request = wire::put(now.iter().map(|(key, value)| (self.key(key), value)), &lease);
            self.caller.call::<Done>(TXN, &request, wire::ANSWER)?;
            rest = later;
        }
        Ok(())
    }

    fn get(&mut self, keys: &[String], until: Instant) -> Result<Option<Vec<Value>>> {
        let (mut pause, mut found) = (PAUSE.0, 0);
        loop {
            // Values of many are fetched when the last one has come.
            if keys.len() > wire::MOST {
                found += self.ahead(keys.get(found..).unwrap_or_default())?;
            }
            if keys.len() <= wire::MOST || found == keys.len() {
                if let Some(values) = self.read(keys)?.into_iter().collect() {
                    return Ok(Some(values));
                }
                found = 0;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    fn check(&mut self, keys: &[String]) -> Result<bool> {
        Ok(self.ahead(keys)? == keys.len())
    }

    fn delete(&mut self, keys: &[String]) -> Result<()> {
        for piece in keys.chunks(wire::MOST) {
            let request = wire::delete(piece.iter().map(|key| self.key(key)));
            self.caller.call::<Done>(TXN, &request, wire::ANSWER)?;
        }
        Ok(())
    }

    /// The lease would keep it for a minute, and of a meeting that is over nothing is wanted.
    fn persists(&self) -> bool {
        true
    }

    fn missing(&mut self, keys: &[String], most: usize) -> Result<Vec<usize>> {
        let mut missing = Vec::new();
        for (n, piece) in keys.chunks(wire::MOST).enumerate() {
            if missing.len() >= most {
                break;
            }
            let there = self.there(piece)?;
            missing.extend(there.into_iter().enumerate().filter(|(_, t)| !t).map(|(at, _)| n * wire::MOST + at));
        }
        missing.truncate(most);
        Ok(missing)
    }

    fn read(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>> {
        let mut values = Vec::with_capacity(keys.len());
        for piece in keys.chunks(wire::MOST) {
            values.extend(self.values(piece)?);
        }
        Ok(values)
    }
}
