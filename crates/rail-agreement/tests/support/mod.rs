//! What the tests of the agreement share: offers, a store in memory, and a world of nodes with a
//! clock of its own.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod etcd;
pub mod fake;
pub mod pmi;
pub mod sim;

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use anyhow::Result;
use rail_agreement::message::{HostName, VERSION};
use rail_agreement::node::Setup;
use rail_agreement::{Match, Nonce, Offer, Policy, Rail, Store, Value};
use rdma_model::values::Family;

/// A nonce that is not random.
pub fn nonce(n: u64) -> Nonce {
    let mut bits = [7; 16];
    bits[..8].copy_from_slice(&n.to_le_bytes());
    Nonce::from_bits(bits)
}

/// The part of a rank that has these rails, by name.
pub fn setup(rank: u32, nodes: u32, rails: &[&str], attempt: u64) -> Setup {
    let rails = rails
        .iter()
        .map(|r| Rail(r.parse().unwrap(), r.parse().unwrap()))
        .collect();
    Setup {
        run: "job.1".parse().unwrap(),
        rank,
        offer: Offer {
            v: VERSION,
            nonce: nonce(attempt << 32 | u64::from(rank)),
            host: HostName::sanitized(&format!("node-{rank}")),
            nodes,
            policy: Policy {
                by: Match::Name,
                family: Family::V4,
                dry: false,
            },
            rails,
            dropped: Vec::new(),
            refuses: None,
        },
    }
}

/// A store in memory that threads share.
#[derive(Clone, Default)]
pub struct Memory(Arc<(Mutex<BTreeMap<String, Value>>, Condvar)>);

impl Memory {
    pub fn len(&self) -> usize {
        self.0.0.lock().unwrap().len()
    }
}

impl Store for Memory {
    fn put(&mut self, pairs: &[(String, Value)]) -> Result<()> {
        let mut map = self.0.0.lock().unwrap();
        map.extend(pairs.iter().cloned());
        self.0.1.notify_all();
        Ok(())
    }

    fn get(&mut self, keys: &[String], until: Instant) -> Result<Option<Vec<Value>>> {
        let mut map = self.0.0.lock().unwrap();
        loop {
            if let Some(values) = keys.iter().map(|key| map.get(key).cloned()).collect() {
                return Ok(Some(values));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            map = self.0.1.wait_timeout(map, left).unwrap().0;
        }
    }

    fn check(&mut self, keys: &[String]) -> Result<bool> {
        let map = self.0.0.lock().unwrap();
        Ok(keys.iter().all(|key| map.contains_key(key)))
    }

    fn delete(&mut self, keys: &[String]) -> Result<()> {
        let mut map = self.0.0.lock().unwrap();
        keys.iter().for_each(|key| drop(map.remove(key)));
        Ok(())
    }
}
