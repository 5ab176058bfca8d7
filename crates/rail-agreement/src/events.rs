//! What goes into a node of the protocol, and what comes out.

use std::time::Duration;

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::{HcaName, IfName};
use serde::{Deserialize, Serialize};

use super::{Device, Digest, Offer, Policy, Rail, RailKey, RunId, Value};

/// What all nodes agreed on, with this node's own interfaces. Programs store it as JSON; field
/// names do not change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreement {
    pub run: RunId,
    pub rank: u32,
    pub nodes: u32,
    pub policy: Policy,
    /// Which attempt of each node took part: [`Digest::of_nonces`].
    pub nonces: Digest,
    /// [`Digest::of_result`]: equal on all nodes.
    pub digest: Digest,
    /// The rails in the common order, each with this node's interface.
    pub rails: Vec<Rail>,
    /// Rails that only some nodes have: one line each.
    #[serde(default)]
    pub lost: Vec<String>,
    /// The local interfaces that the store was reached over, separated by `, `. The caller sets it,
    /// where it knows them.
    #[serde(default, rename = "way")]
    pub store_ifaces: Option<String>,
}

impl Agreement {
    pub fn ifaces(&self) -> impl Iterator<Item = &IfName> {
        self.rails.iter().filter_map(|Rail(_, device)| {
            if let Device::Netdev(name) = device {
                Some(name)
            } else {
                None
            }
        })
    }

    /// This node's InfiniBand HCAs without an interface, in the common rail order.
    pub fn hcas(&self) -> impl Iterator<Item = &HcaName> {
        self.rails.iter().filter_map(|Rail(_, device)| {
            if let Device::Bare(bare) = device {
                Some(&bare.hca)
            } else {
                None
            }
        })
    }

    pub fn check(&self) -> Result<()> {
        let keys: Vec<RailKey> = self.rails.iter().map(|Rail(key, _)| key.clone()).collect();
        let digest = Digest::of_result(&self.run, self.nodes, self.policy, &self.nonces, &keys);
        ensure!(
            digest == self.digest,
            "its rails are not those of digest {}, which was committed",
            self.digest.short()
        );
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub struct Setup {
    pub run: RunId,
    /// This node's rank: 0 leads.
    pub rank: u32,
    /// What this node has. Each attempt needs a fresh nonce.
    pub offer: Offer,
}

impl Setup {
    pub fn nodes(&self) -> u32 {
        self.offer.nodes
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Offers,
    Leader,
    Proposal,
    Acks,
    Verdict,
    /// Others that said no: rank 0's verdict. Losing the store does not change this node's result
    /// any more.
    Refused,
    Farewell,
}

#[derive(Debug)]
pub enum Action {
    /// Set these keys, then continue with [`Event::Done`].
    Put(Vec<(String, Value)>),
    /// As `Put`, for the commit: if it fails, others may have read it nevertheless.
    Commit(Vec<(String, Value)>),
    /// As `Put`, where an [`Action::Await`] follows that fails if the store is lost.
    PutUnconfirmed(Vec<(String, Value)>),
    /// As `Put`, where nothing depends on the keys.
    PutBestEffort(Vec<(String, Value)>),
    Delete(Vec<String>),
    /// Wait until all of these keys exist: [`Event::Values`], [`Event::Missing`] after `slice`, or
    /// [`Event::Late`] at the deadline.
    Await {
        keys: Vec<String>,
        /// How long to wait. [`Stage::Farewell`] may pass the deadline, as it comes after the
        /// decision.
        slice: Duration,
        stage: Stage,
    },
    Read(Vec<String>),
    /// As `Read`; a key that cannot be read counts as absent.
    TryRead(Vec<String>),
    /// Ask the caller whether this node can carry out just these rails: [`Event::Judged`]. After a
    /// yes only a failure of the machine may keep it from that.
    Judge(Box<Agreement>),
    End(Result<Agreement>),
}

#[derive(Debug)]
pub enum Event {
    Begin,
    Done,
    Values(Vec<Value>),
    Missing,
    /// Some keys do not exist, and the deadline has passed.
    Late,
    Read(Vec<Option<Value>>),
    Judged(Result<()>),
}

pub(crate) fn failed(why: impl std::fmt::Display) -> Action {
    Action::End(Err(ErrorClass::Disagreed.error(why)))
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff(Duration);

impl Backoff {
    const LONGEST: Duration = Duration::from_secs(8);

    pub fn from_millis(millis: u64) -> Backoff {
        Backoff(Duration::from_millis(millis))
    }

    pub fn next_pause(&mut self) -> Duration {
        let now = self.0;
        self.0 = (now * 2).min(Backoff::LONGEST);
        now
    }
}
