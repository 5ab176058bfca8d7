//! All nodes of a job agree on the same RDMA rails, or on none, over a store that they run already.
//!
//! ```text
//! Offer of each node ─► store ─► rank 0: the rails that all have ─► Proposal ─► store ─► Acks
//!     ─► commit or abort ─► Agreement
//! ```
//!
//! The caller says what its node has ([`Offer`]) and opens a [`Store`]: PyTorch's TCPStore, a
//! shared file, etcd or PMI-1, each behind a feature. [`agree`] then runs the protocol within one
//! deadline and returns an [`Agreement`] that is equal on all nodes, or an error that names the
//! node that is missing, or refuses, or has no such rail. A caller changes nothing before it has
//! the agreement.
//!
//! ```
//! use std::time::{Duration, Instant};
//!
//! use rail_agreement::message::HostName;
//! use rail_agreement::node::Setup;
//! use rail_agreement::{Agreement, Nonce, Offer, Policy, Rail, Store, agree};
//!
//! /// Node `rank` of 2 has the interfaces rdma0 and rdma1; `bits` are random.
//! fn join(store: &mut dyn Store, rank: u32, bits: [u8; 16]) -> anyhow::Result<Agreement> {
//!     let host = HostName::sanitized(&format!("node-{rank}"));
//!     let mut offer = Offer::new(Nonce::from_bits(bits), host, 2, Policy::default());
//!     for name in ["rdma0", "rdma1"] {
//!         offer.rails.push(Rail(name.parse()?, name.parse()?));
//!     }
//!     let setup = Setup { run: "job.4711".parse()?, rank, offer };
//!     let deadline = Instant::now() + Duration::from_secs(120);
//!     agree(store, setup, deadline, &mut |_| Ok(()), None)
//! }
//! ```
//!
//! [`protocol`] has states, messages, keys, invariants and failures.
//! Errors carry a class ([`rdma_model::error_class::ErrorClass`]): `Disagreed` where the nodes did
//! not agree or the store was lost, `Usage` for wrong settings, `Refused` for an offer that cannot
//! be published.
#![forbid(unsafe_code)]

#[cfg(feature = "c10d")]
pub mod c10d;
mod digest;
pub mod endpoint;
pub mod etcd;
mod events;
#[cfg(feature = "file")]
pub mod file;
mod follower;
mod keys;
mod leader;
pub mod message;
pub mod node;
pub mod options;
#[cfg(feature = "pmi")]
pub mod pmi;
#[doc = include_str!("../protocol.md")]
pub mod protocol {}
mod rail;
#[cfg(any(feature = "c10d", feature = "etcd"))]
mod resolve;
mod run;
pub mod status;

use std::time::Instant;

use anyhow::Result;

pub use digest::{Digest, Nonce};
pub use keys::RunId;
pub use message::Offer;
pub use node::Agreement;
pub use rail::{BareHca, Device, DroppedRail, Match, Policy, Rail, RailKey};
pub use run::{Waiting, agree};

pub const MAX_NODES: u32 = 16384;
pub const MAX_RAILS: usize = 64;
/// The most bytes of a value. Longer ones are neither written nor read.
pub const MAX_VALUE: usize = 4096;
pub const MAX_KEY: usize = 256;

pub type Value = Vec<u8>;

/// A key-value store that all nodes reach. Keys are at most [`MAX_KEY`] bytes of printable ASCII,
/// values 1 to [`MAX_VALUE`] bytes. A call fails when the store is lost, or holds a value that is
/// too long; [`agree`] ends with that error.
pub trait Store {
    /// Sets keys in their order. An error if the store was lost before it had all of them.
    fn put(&mut self, pairs: &[(String, Value)]) -> Result<()>;

    /// Sets keys, and may return before the store has them: a [`Store::get`] follows,
    /// which fails if the store is lost.
    fn put_unconfirmed(&mut self, pairs: &[(String, Value)]) -> Result<()> {
        self.put(pairs)
    }

    /// Sets keys that nothing depends on; errors are ignored.
    fn put_best_effort(&mut self, pairs: &[(String, Value)]) {
        let _ = self.put(pairs);
    }

    /// The values of all keys, as soon as all exist; `None` if they do not all exist at `until`.
    fn get(&mut self, keys: &[String], until: Instant) -> Result<Option<Vec<Value>>>;

    fn check(&mut self, keys: &[String]) -> Result<bool>;

    /// A key that does not exist is no error.
    fn delete(&mut self, keys: &[String]) -> Result<()>;

    /// Whether keys outlive the job, so that the protocol deletes what it wrote.
    fn persists(&self) -> bool {
        false
    }

    /// Makes what was put visible to all other nodes; `false` if that takes longer than `until`.
    /// Most stores have nothing to do here.
    fn flush(&mut self, _until: Instant) -> Result<bool> {
        Ok(true)
    }

    /// Waits until these keys exist: the other nodes write them when they have read the end. Rank 0
    /// calls it last, as the store may end with its process.
    fn await_readers(&mut self, keys: &[String], until: Instant) -> Result<Option<Vec<Value>>> {
        self.get(keys, until)
    }

    /// Indexes of the keys that do not exist, at most `most` of them. [`Store::check`] answers for
    /// all keys at once, so this bisects.
    fn missing(&mut self, keys: &[String], most: usize) -> Result<Vec<usize>> {
        let mut found = Vec::new();
        let mut open = vec![(0, keys.len())];
        while let Some((from, to)) = open.pop() {
            if from == to || found.len() == most || self.check(&keys[from..to])? {
                continue;
            }
            match to - from {
                1 => found.push(from),
                // The first half is popped first.
                n => open.extend([(from + n / 2, to), (from, from + n / 2)]),
            }
        }
        Ok(found)
    }

    fn read(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>> {
        let mut values = vec![None; keys.len()];
        let mut open = vec![(0, keys.len())];
        while let Some((from, to)) = open.pop() {
            if from == to {
                continue;
            }
            // A key may be deleted between the two calls.
            let there = if self.check(&keys[from..to])? {
                self.get(&keys[from..to], Instant::now())?
            } else {
                None
            };
            match (there, to - from) {
                (Some(there), _) => {
                    for (slot, value) in values[from..].iter_mut().zip(there) {
                        *slot = Some(value);
                    }
                }
                (None, 1) => {}
                (None, n) => open.extend([(from + n / 2, to), (from, from + n / 2)]),
            }
        }
        Ok(values)
    }
}

/// Of the time of an answer, before the next question, up to so many times the longest pause.
#[cfg(any(feature = "file", feature = "etcd"))]
const IDLE: u32 = 4;
#[cfg(any(feature = "file", feature = "etcd"))]
const MOST_IDLE: u32 = 10;

/// Asks until there is an answer, at `until` for the last time; the first and the longest pause
/// between two questions, which doubles, are given. A store that takes long to answer has many who
/// ask, and is asked less.
#[cfg(any(feature = "file", feature = "etcd"))]
fn poll<T>(
    (mut pause, longest): (std::time::Duration, std::time::Duration),
    until: Instant,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    loop {
        let asked = Instant::now();
        if let Some(answer) = ask()? {
            return Ok(Some(answer));
        }
        let took = asked.elapsed();
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        std::thread::sleep(pause.max(idle(took, longest)).min(left));
        pause = (pause * 2).min(longest);
    }
}

/// The least time without a question after an answer that took so long.
#[cfg(any(feature = "file", feature = "etcd"))]
fn idle(took: std::time::Duration, longest: std::time::Duration) -> std::time::Duration {
    (took * IDLE).min(longest * MOST_IDLE)
}

#[cfg(all(test, feature = "file"))]
mod tests {
    use std::time::Duration;

    #[test]
    fn a_slow_store_is_asked_less() {
        let longest = Duration::from_millis(500);
        for (took, idle) in [(0, 0), (20, 80), (1250, 5000), (60_000, 5000)] {
            let idle = Duration::from_millis(idle);
            assert_eq!(super::idle(Duration::from_millis(took), longest), idle);
        }
    }
}
