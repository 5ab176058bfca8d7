//! Names in the store, all below `rdmaprep/v1/RUN/`.
//!
//! | key | by | value |
//! |---|---|---|
//! | `here/RANK` | others | that it has come, for people |
//! | `in/0` | rank 0 | its [`super::Offer`], whose nonce is LEADER |
//! | `in/LEADER/RANK` | others | their offers, when they know who leads |
//! | `out/LEADER/RANK/NONCE/N` | rank 0 | the N-th [`super::message::Proposal`] to that attempt of that rank |
//! | `no/LEADER` | others | that one of them refuses: rank 0 looks for it while it waits |
//! | `ack/LEADER.TURN/RANK` | others | [`super::message::Ack`] |
//! | `end/LEADER.TURN` | rank 0 | [`super::message::Verdict`] |
//! | `over/LEADER` | rank 0 | the last one, for who comes when rank 0 has gone |
//! | `done/LEADER.TURN/RANK` | others | that it was read: rank 0 leaves last, and may take the store along |
//!
//! LEADER and NONCE are nonces, so that nobody waits for a key that an earlier attempt has left; only `in/0` may be an old one,
//! and is looked at again and again, whether it can be read or not, as is whether that attempt is over.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::Nonce;

/// What all nodes of a job call this run: 1 to 128 printable ASCII characters without `/`. `none` is nobody's name: it is what
/// torchrun says when it was given no id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunId(String);

impl FromStr for RunId {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        let good = (1..=128).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
        ensure!(good, "{s:?} is no run id (1 to 128 printable ASCII characters without '/')");
        ensure!(s != "none", "the run id \"none\" is no identity: other jobs have it as well");
        Ok(RunId(s.to_owned()))
    }
}

impl TryFrom<String> for RunId {
    type Error = anyhow::Error;
    fn try_from(s: String) -> Result<Self> {
        s.parse()
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> String {
        id.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Whose key it is, where it ends in a rank.
pub fn rank_of(key: &str) -> Option<u32> {
    key.rsplit('/').next()?.parse().ok()
}

/// One proposal to all, by the leader's nonce and a count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn<'a> {
    /// The leader's nonce.
    pub leader: &'a Nonce,
    /// From 0.
    pub count: u32,
}

impl RunId {
    /// Where a rank says that it has come: nothing depends on it.
    pub fn here(&self, rank: u32) -> String {
        format!("rdmaprep/v1/{self}/here/{rank}")
    }

    /// Where rank 0 publishes.
    pub fn leader(&self) -> String {
        format!("rdmaprep/v1/{self}/in/0")
    }

    /// Where any other rank publishes.
    pub fn offer(&self, leader: &Nonce, rank: u32) -> String {
        format!("rdmaprep/v1/{self}/in/{leader}/{rank}")
    }

    /// Where a node that refuses lets rank 0 know that there is one.
    pub fn refusal(&self, leader: &Nonce) -> String {
        format!("rdmaprep/v1/{self}/no/{leader}")
    }

    /// Where that attempt of a rank finds the n-th proposal to it.
    pub fn proposal(&self, leader: &Nonce, rank: u32, nonce: &Nonce, n: u32) -> String {
        format!("rdmaprep/v1/{self}/out/{leader}/{rank}/{nonce}/{n}")
    }

    /// Where a rank acknowledges.
    pub fn ack(&self, turn: &Turn, rank: u32) -> String {
        format!("rdmaprep/v1/{self}/ack/{}.{}/{rank}", turn.leader, turn.count)
    }

    /// Where all find out how it ended.
    pub fn verdict(&self, turn: &Turn) -> String {
        format!("rdmaprep/v1/{self}/end/{}.{}", turn.leader, turn.count)
    }

    /// The same whatever the turn, for who was never given one.
    pub fn over(&self, leader: &Nonce) -> String {
        format!("rdmaprep/v1/{self}/over/{leader}")
    }

    /// Where a rank says that it found out.
    pub fn done(&self, turn: &Turn, rank: u32) -> String {
        format!("rdmaprep/v1/{self}/done/{}.{}/{rank}", turn.leader, turn.count)
    }
}
