//! How all nodes of a job agree on the same rails, over a store that they run already: c10d, a file, etcd, PMI.
//!
//! ```text
//! Plan ─► Offer ─► store ─► rank 0: what all have ─► Proposal ─► store ─► acks ─► commit, or abort ─► Agreement
//! ```
//!
//! [`node`] is the agreement as a pure state machine, [`drive`] runs it over a [`Store`]. Rank 0 leads because it was told
//! so; nobody is elected. Nothing is written or moved before the commit, and a commit takes the word of every node: a node
//! that is late, dead or of another mind makes it an abort that names it. Runs may be repeated under one run id: every
//! attempt has a nonce, and what an earlier one has left in the store never matches.
//!
//! A store has neither guards nor walls: what comes from it is text of strangers. It is bounded before it is read, strictly
//! parsed, and can take rails away from this node, but never add one.

#![forbid(unsafe_code)]

pub mod asked;
#[cfg(feature = "c10d")]
pub mod c10d;
mod digest;
mod drive;
pub mod endpoint;
pub mod etcd;
#[cfg(feature = "file")]
pub mod file;
mod follower;
pub mod gather;
mod keys;
mod leader;
pub mod message;
pub mod node;
#[cfg(feature = "pmi")]
pub mod pmi;
mod rail;
#[cfg(any(feature = "c10d", feature = "etcd"))]
mod resolve;

use std::time::Instant;

use anyhow::Result;

pub use digest::{Digest, Nonce};
pub use drive::{Waiting, agree};
pub use keys::RunId;
pub use message::Offer;
pub use node::Agreement;
pub use rail::{Bare, Device, Lack, Match, Policy, Rail, RailKey};

/// The most nodes of a job.
pub const MAX_NODES: u32 = 16384;
/// The most rails of a node.
pub const MAX_RAILS: usize = 64;
/// The most bytes of a value: what does not fit is refused on the way in and on the way out.
pub const MAX_VALUE: usize = 4096;
/// The most bytes of a key.
pub const MAX_KEY: usize = 256;

/// A value of a store.
pub type Value = Vec<u8>;

/// What the agreement needs of a store. Keys are at most [`MAX_KEY`] bytes of printable ASCII, values [`MAX_VALUE`] bytes.
///
/// # Errors
/// Each call fails when the store is lost, or holds more than it may: an agreement ends with that.
pub trait Store {
    /// Sets keys, in their order: a store that was lost before it had them is an error here.
    fn put(&mut self, pairs: &[(String, Value)]) -> Result<()>;

    /// The same where a [`Store::get`] follows, which tells whether the store is lost: it may go with that.
    fn tell(&mut self, pairs: &[(String, Value)]) -> Result<()> {
        self.put(pairs)
    }

    /// The same for a last word on which nothing depends.
    fn hint(&mut self, pairs: &[(String, Value)]) {
        let _ = self.put(pairs);
    }

    /// The values of all these keys, as soon as all of them exist; nothing if they do not by then.
    fn get(&mut self, keys: &[String], until: Instant) -> Result<Option<Vec<Value>>>;

    /// Whether all these keys exist.
    fn check(&mut self, keys: &[String]) -> Result<bool>;

    /// Deletes keys; those that do not exist are fine.
    fn delete(&mut self, keys: &[String]) -> Result<()>;

    /// Whether what is written outlives the job, so that who wrote it has to delete it.
    fn persists(&self) -> bool {
        false
    }

    /// Whether by then all others can see what was put, where it takes more than that.
    fn settle(&mut self, _until: Instant) -> Result<bool> {
        Ok(true)
    }

    /// Waits for these keys when all is decided: rank 0 does, whose end may be that of the store.
    fn farewell(&mut self, keys: &[String], until: Instant) -> Result<Option<Vec<Value>>> {
        self.get(keys, until)
    }

    /// Which of these keys do not exist, the first `most` of them: a store tells of all keys at once, so halves are asked.
    fn missing(&mut self, keys: &[String], most: usize) -> Result<Vec<usize>> {
        let mut found = Vec::new();
        let mut open = vec![(0, keys.len())];
        while let Some((from, to)) = open.pop() {
            if from == to || found.len() == most || self.check(&keys[from..to])? {
                continue;
            }
            match to - from {
                1 => found.push(from),
                // The first half is looked at first.
                n => open.extend([(from + n / 2, to), (from, from + n / 2)]),
            }
        }
        Ok(found)
    }

    /// The values of those keys that exist.
    fn read(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>> {
        let mut values = vec![None; keys.len()];
        let mut open = vec![(0, keys.len())];
        while let Some((from, to)) = open.pop() {
            if from == to {
                continue;
            }
            // One may have gone since, or be no value of ours.
            let there = if self.check(&keys[from..to])? { self.get(&keys[from..to], Instant::now())? } else { None };
            match (there, to - from) {
                (Some(there), _) => {
                    values[from..].iter_mut().zip(there).for_each(|(slot, value)| *slot = Some(value));
                }
                (None, 1) => {}
                (None, n) => open.extend([(from + n / 2, to), (from, from + n / 2)]),
            }
        }
        Ok(values)
    }
}
