//! One node in its rounds.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::time::Instant;

use anyhow::Result;
use rail_agreement::{Store, Value};
use rdma_model::error_class::{ErrorClass, WithClass};

use crate::asked::{Asked, Keys, LOST};

/// One node's way through the rounds.
pub(crate) struct Node<'a> {
    pub(crate) asked: &'a Asked,
    pub(crate) store: &'a mut dyn Store,
    pub(crate) keys: Keys,
    pub(crate) written: Vec<String>,
    pub(crate) begun: Instant,
    /// Addresses of partners, as they first said.
    pub(crate) known: BTreeMap<u32, Vec<Ipv6Addr>>,
    pub(crate) absent: Vec<u32>,
}

impl Node<'_> {
    pub(crate) fn put(&mut self, pairs: Vec<(String, Value)>) -> Result<()> {
        self.written
            .extend(pairs.iter().map(|(key, _)| key.clone()));
        self.store.put(&pairs).class(ErrorClass::Disagreed, LOST)
    }

    pub(crate) fn get(&mut self, keys: &[String], until: Instant) -> Result<Option<Vec<Value>>> {
        self.store
            .get(keys, until)
            .class(ErrorClass::Disagreed, LOST)
    }

    /// A partner may come late from its own rounds, each of which may have taken all its time.
    pub(crate) fn until(&self, round: u32) -> Instant {
        self.begun + self.asked.round * (round + 1)
    }
}
