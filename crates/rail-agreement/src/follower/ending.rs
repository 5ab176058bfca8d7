//! How a node ends that is not rank 0: it says that it is done, and deletes what it published.

use anyhow::Result;

use super::{Follower, State, refused};
use crate::Value;
use crate::events::{Action, Agreement};
use crate::keys::Turn;
use crate::message;

/// The most nodes of which each looks up the missing ones. Beyond that, only rank 0 does.
const FEW: u32 = 256;

impl Follower {
    pub(super) fn end_aborted(&mut self, turn: u32, why: String) -> Action {
        self.report_done(turn, Err(refused(&why)))
    }

    pub(super) fn report_done(&mut self, turn: u32, result: Result<Agreement>) -> Action {
        let Some(leader) = self.leader.clone() else {
            return Action::End(result);
        };
        let key = self.setup.run.done(
            &Turn {
                leader: &leader,
                count: turn,
            },
            self.setup.rank,
        );
        self.state = State::ReportingDone(Box::new(result));
        Action::PutBestEffort(vec![(key, b"1".to_vec())])
    }

    /// Deletes its offer, so that no rank 0 counts on this attempt. After a commit that matters
    /// only in a store that persists.
    pub(super) fn clean_up(&mut self, result: Box<Result<Agreement>>) -> Action {
        if result.is_ok() && !self.persists {
            return Action::End(*result);
        }
        self.state = State::CleaningUp(result);
        Action::Delete(self.own_key().into_iter().collect())
    }

    pub(super) fn withdraw(&mut self, why: String) -> Action {
        self.clean_up(Box::new(Err(refused(&why))))
    }

    pub(super) fn late(&mut self) -> Action {
        match self.answered.take() {
            _ if self.pledged => {
                let why = "this node said yes, and has not heard how it ended: others may have \
                    committed; here nothing was moved";
                return self.withdraw(why.to_owned());
            }
            Some((_, own)) => return self.clean_up(Box::new(own)),
            None => {}
        }
        if let Some(why) = self.leader_problem.take() {
            return self.withdraw(why);
        }
        if self.setup.nodes() > FEW {
            let who = if self.leader.is_some() {
                "has proposed nothing in time; its message says why"
            } else {
                "is missing"
            };
            return self.withdraw(format!("rank 0 {who}"));
        }
        self.state = State::CountingNodes;
        Action::Read(
            (1..self.setup.nodes())
                .map(|rank| self.setup.run.here(rank))
                .collect(),
        )
    }

    pub(super) fn counted(&mut self, values: &[Option<Value>]) -> Action {
        let absent = (1..self.setup.nodes())
            .zip(values)
            .filter(|(_, v)| v.is_none())
            .map(|(rank, _)| rank);
        // A rank that died after its announcement counts as present; only rank 0 knows better.
        let zero = self.leader.is_none().then_some(0);
        let absent: Vec<u32> = zero.into_iter().chain(absent).collect();
        if absent.is_empty() {
            return self
                .withdraw("all have come, but rank 0 has proposed nothing in time".to_owned());
        }
        self.withdraw(format!(
            "missing {}: nothing was published in time",
            message::ranks(&absent)
        ))
    }
}
