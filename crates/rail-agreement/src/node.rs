//! The agreement as a state machine: what happened goes in, what to do next comes out. It reads no clock and no store, so that
//! tests can let any node die at any step.

use std::time::Duration;

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::{HcaName, IfName};
use serde::{Deserialize, Serialize};

use super::follower::Follower;
use super::leader::Leader;
use super::{Device, Digest, MAX_NODES, Offer, Policy, Rail, RailKey, RunId, Value};

/// What all nodes agreed on, as this one keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreement {
    /// What the nodes call this run.
    pub run: RunId,
    /// This node's rank.
    pub rank: u32,
    /// How many nodes there are.
    pub nodes: u32,
    /// What made two NICs the same rail.
    pub policy: Policy,
    /// [`Digest::of_nonces`].
    pub nonces: Digest,
    /// [`Digest::of_result`]: equal on all nodes.
    pub digest: Digest,
    /// The rails in the common order, each with this node's interface.
    pub rails: Vec<Rail>,
    /// What some nodes have and others lack: a line each.
    #[serde(default)]
    pub lost: Vec<String>,
    /// The interface that the store was reached over, where that is known.
    #[serde(default)]
    pub way: Option<String>,
}

impl Agreement {
    /// This node's interfaces in the common rail order.
    pub fn ifaces(&self) -> impl Iterator<Item = &IfName> {
        self.rails
            .iter()
            .filter_map(|Rail(_, device)| if let Device::Netdev(name) = device { Some(name) } else { None })
    }

    /// This node's InfiniBand HCAs without an interface, in the common rail order.
    pub fn hcas(&self) -> impl Iterator<Item = &HcaName> {
        self.rails
            .iter()
            .filter_map(|Rail(_, device)| if let Device::Bare(bare) = device { Some(&bare.hca) } else { None })
    }

    /// That the digest is of just these rails.
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

/// Who takes part, and with what.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What the nodes call this run.
    pub run: RunId,
    /// This node's rank: 0 leads.
    pub rank: u32,
    /// What this node has; its nonce is of this attempt alone.
    pub offer: Offer,
}

impl Setup {
    /// How many nodes there are.
    pub fn nodes(&self) -> u32 {
        self.offer.nodes
    }
}

/// What a node waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Rank 0: that all others publish.
    Offers,
    /// Others: that rank 0 publishes.
    Leader,
    /// Others: what rank 0 proposes.
    Proposal,
    /// Rank 0: what all others say to it.
    Acks,
    /// Others: how it ended.
    Verdict,
    /// The same after a no: that the store is lost does not change what this node ends with.
    Refused,
    /// Rank 0: that all others know how it ended.
    Farewell,
}

/// What to do next.
#[derive(Debug)]
pub enum Act {
    /// Set these, then go on with [`Event::Done`].
    Put(Vec<(String, Value)>),
    /// The same for the commit: where that fails, others may have read it.
    Commit(Vec<(String, Value)>),
    /// The same where an [`Act::Await`] follows, which fails if the store has not got them.
    Tell(Vec<(String, Value)>),
    /// The same where nothing depends on it any more.
    Hint(Vec<(String, Value)>),
    /// Delete these, then go on with [`Event::Done`].
    Delete(Vec<String>),
    /// Wait for all of these as long as the slice: [`Event::Values`], [`Event::Missing`], or [`Event::Late`].
    Await {
        /// The keys.
        keys: Vec<String>,
        /// How long, within the deadline; what comes after the decision has no other bound than this.
        slice: Duration,
        /// What for.
        stage: Stage,
    },
    /// Look which of these are there: [`Event::Read`].
    Read(Vec<String>),
    /// The same, where what cannot be read counts as absent.
    Peek(Vec<String>),
    /// Say whether this node can do with just these rails: [`Event::Judged`]. What it says yes to, it can still not carry out
    /// only if the machine fails.
    Judge(Box<Agreement>),
    /// That was it.
    End(Result<Agreement>),
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// The first one.
    Begin,
    /// What was to be set or deleted is.
    Done,
    /// All keys are there: their values, in order.
    Values(Vec<Value>),
    /// They are not all there yet.
    Missing,
    /// They are not all there, and the deadline has passed.
    Late,
    /// Those that are there.
    Read(Vec<Option<Value>>),
    /// What this node says to them itself.
    Judged(Result<()>),
}

/// A node that takes part.
#[derive(Debug)]
pub enum Node {
    /// Rank 0.
    Leader(Box<Leader>),
    /// Any other.
    Follower(Box<Follower>),
}

impl Node {
    /// `persists`: what is written outlives the job, and is deleted at the end, but for why nothing holds.
    pub fn new(setup: Setup, persists: bool) -> Result<Node> {
        let (rank, nodes) = (setup.rank, setup.nodes());
        let usage = |text: String| Err(ErrorClass::Usage.error(text));
        if !(1..=MAX_NODES).contains(&nodes) {
            return usage(format!("{nodes} nodes: there are 1 to {MAX_NODES}"));
        }
        if rank >= nodes {
            return usage(format!("rank {rank} of {nodes} nodes: ranks are 0 to {}", nodes - 1));
        }
        setup.offer.check().map_err(|e| ErrorClass::Refused.error(format!("this node cannot take part: {e:#}")))?;
        Ok(match rank {
            0 => Node::Leader(Box::new(Leader::new(setup, persists))),
            _ => Node::Follower(Box::new(Follower::new(setup, persists))),
        })
    }

    /// Takes what happened, and says what to do next.
    pub fn next(&mut self, event: Event) -> Act {
        match self {
            Node::Leader(leader) => leader.next(event),
            Node::Follower(follower) => follower.next(event),
        }
    }
}

/// The end of an attempt that came to nothing.
pub fn failed(why: impl std::fmt::Display) -> Act {
    Act::End(Err(ErrorClass::Disagreed.error(why)))
}

/// How long to wait before another look: twice as long each time.
#[derive(Clone, Copy, Debug)]
pub struct Slices(Duration);

impl Slices {
    /// The longest.
    const MOST: Duration = Duration::from_secs(8);

    /// From that on.
    pub fn from(millis: u64) -> Slices {
        Slices(Duration::from_millis(millis))
    }

    /// The next one.
    pub fn slice(&mut self) -> Duration {
        let now = self.0;
        self.0 = (now * 2).min(Slices::MOST);
        now
    }
}
