//! The [`Store`] over an etcd.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;

use super::call::Client;
use super::login::Login;
use super::url::Cluster;
use super::wire::{self, Done, Lease};
use crate::{MAX_VALUE, Store, Value, poll};

const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// How much longer than the limit keys live, as etcd's clock and this machine's may differ.
const LONGER: Duration = Duration::from_secs(60);
const SHORT: u64 = 1 << 16;
const TXN: &str = "/v3/kv/txn";

#[derive(Debug)]
pub struct Etcd {
    client: Client,
    prefix: String,
    addresses: Option<(IpAddr, IpAddr)>,
    /// The lease of our keys, granted with the first one.
    lease: Option<String>,
}

impl Etcd {
    /// No wait, here or later, goes beyond `limit`; `jitter` spreads nodes that start at once. The
    /// error names each member that was tried, with the reason.
    pub fn connect(
        cluster: Cluster,
        login: Option<Login>,
        limit: Instant,
        jitter: Duration,
    ) -> Result<Etcd> {
        let prefix = cluster.prefix.clone();
        let mut client = Client::new(cluster, login, limit, jitter)?;
        client.begin()?;
        let addresses = client.addresses();
        Ok(Etcd {
            client,
            prefix,
            addresses,
            lease: None,
        })
    }

    pub fn with_limit(mut self, limit: Instant) -> Etcd {
        self.client.limit = limit;
        self
    }

    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        self.addresses
    }

    pub fn warning(&self) -> Option<&'static str> {
        let bare = self.client.sends_plain_password();
        bare.then_some("the password for etcd goes over the network as it is: etcds:// encrypts it")
    }

    fn key(&self, key: &str) -> String {
        format!("{}/{key}", self.prefix)
    }

    fn lease(&mut self) -> Result<String> {
        if let Some(lease) = &self.lease {
            return Ok(lease.clone());
        }
        let left = self.client.limit.saturating_duration_since(Instant::now()) + LONGER;
        let Lease { id } = self.client.call(
            "/v3/lease/grant",
            &json!({"TTL": left.as_secs().to_string()}),
            SHORT,
        )?;
        self.lease = Some(id.clone());
        Ok(id)
    }

    fn there(&mut self, keys: &[String]) -> Result<Vec<bool>> {
        let request = wire::look(keys.iter().map(|key| self.key(key)), false);
        self.client
            .call::<Done>(TXN, &request, wire::ANSWER)?
            .there(keys.len())
    }

    fn values(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>> {
        let request = wire::look(keys.iter().map(|key| self.key(key)), true);
        self.client
            .call::<Done>(TXN, &request, wire::ANSWER)?
            .values(keys.len())
    }

    /// How many of the first keys exist, in whole requests.
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
            ensure!(
                length <= MAX_VALUE,
                "{key}: a value of {length} bytes, {MAX_VALUE} are the most"
            );
        }
        let lease = self.lease()?;
        let mut rest = pairs;
        while !rest.is_empty() {
            // A transaction may not set a key twice.
            let mut seen = BTreeSet::new();
            let count = rest
                .iter()
                .take(wire::MOST)
                .take_while(|(key, _)| seen.insert(key))
                .count();
            let (now, later) = rest.split_at(count);
            let request = wire::put(
                now.iter().map(|(key, value)| (self.key(key), value)),
                &lease,
            );
            self.client.call::<Done>(TXN, &request, wire::ANSWER)?;
            rest = later;
        }
        Ok(())
    }

    fn get(&mut self, keys: &[String], until: Instant) -> Result<Option<Vec<Value>>> {
        let mut found = 0;
        poll(PAUSE, until, || {
            // More keys than one request takes: their values are read only when all exist.
            if keys.len() > wire::MOST {
                found += self.ahead(keys.get(found..).unwrap_or_default())?;
                if found < keys.len() {
                    return Ok(None);
                }
                found = 0;
            }
            Ok(self.read(keys)?.into_iter().collect())
        })
    }

    fn check(&mut self, keys: &[String]) -> Result<bool> {
        Ok(self.ahead(keys)? == keys.len())
    }

    fn delete(&mut self, keys: &[String]) -> Result<()> {
        for piece in keys.chunks(wire::MOST) {
            let request = wire::delete(piece.iter().map(|key| self.key(key)));
            self.client.call::<Done>(TXN, &request, wire::ANSWER)?;
        }
        Ok(())
    }

    /// The lease would keep the keys for a minute longer.
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
            missing.extend(
                there
                    .into_iter()
                    .enumerate()
                    .filter(|(_, t)| !t)
                    .map(|(at, _)| n * wire::MOST + at),
            );
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
