//! The protocol as a state machine: an event goes in, the next action comes out. It reads no clock
//! and no store, so that tests can stop any node at any step.

use anyhow::Result;
use rdma_model::error_class::ErrorClass;

use super::MAX_NODES;
pub use super::events::{Action, Agreement, Event, Setup, Stage};
use super::follower::Follower;
use super::leader::Leader;

#[derive(Debug)]
pub struct Node(Role);

#[derive(Debug)]
enum Role {
    Leader(Box<Leader>),
    Follower(Box<Follower>),
}

impl Node {
    /// `persists`: keys outlive the job ([`crate::Store::persists`]), so the node deletes them at
    /// the end, except the reason of an abort.
    pub fn new(setup: Setup, persists: bool) -> Result<Node> {
        let (rank, nodes) = (setup.rank, setup.nodes());
        let usage = |text: String| Err(ErrorClass::Usage.error(text));
        if !(1..=MAX_NODES).contains(&nodes) {
            return usage(format!("{nodes} nodes: there are 1 to {MAX_NODES}"));
        }
        if rank >= nodes {
            return usage(format!(
                "rank {rank} of {nodes} nodes: ranks are 0 to {}",
                nodes - 1
            ));
        }
        setup
            .offer
            .check()
            .map_err(|e| ErrorClass::Refused.error(format!("this node cannot take part: {e:#}")))?;
        Ok(Node(match rank {
            0 => Role::Leader(Box::new(Leader::new(setup, persists))),
            _ => Role::Follower(Box::new(Follower::new(setup, persists))),
        }))
    }

    /// Takes an event and returns the next action. After [`Action::End`] it must not be called
    /// again.
    pub fn next(&mut self, event: Event) -> Action {
        match &mut self.0 {
            Role::Leader(leader) => leader.next(event),
            Role::Follower(follower) => follower.next(event),
        }
    }
}
