//! How rank 0 ends: it writes the verdict, waits until the others have read it, and deletes its
//! keys.

use std::time::Duration;

use anyhow::Result;

use super::{Leader, State};
use crate::events::{Action, Agreement, Stage, failed};
use crate::keys::Turn;
use crate::message::{self, Verdict};
use crate::{Offer, Value};

/// How long rank 0 waits for the others to read the verdict: the store may end with its process.
const FAREWELL: Duration = Duration::from_secs(2);

impl Leader {
    pub(super) fn write_commit(&mut self, agreement: Agreement) -> Action {
        let value = match message::encode(&Verdict::Commit(agreement.digest.clone())) {
            Ok(value) => value,
            Err(e) => return failed(format!("{e:#}")),
        };
        let pairs = self.verdict_pairs(value);
        self.remember(&pairs);
        self.state = State::WritingVerdict(Box::new(Ok(agreement)), self.others().collect());
        Action::Commit(pairs)
    }

    /// The keys of a verdict: one for the nodes that take part, one for those that come later.
    pub(super) fn verdict_pairs(&self, value: Value) -> Vec<(String, Value)> {
        let run = &self.setup.run;
        vec![
            (run.verdict(&self.turn()), value.clone()),
            (run.over(&self.setup.offer.nonce), value),
        ]
    }

    pub(super) fn check_successor(&mut self, result: Box<Result<Agreement>>) -> Action {
        self.state = State::CheckingSuccessor(result);
        Action::TryRead(vec![self.setup.run.leader()])
    }

    /// Deletes its keys, and none of a later rank 0. After an abort the reason stays, for nodes
    /// that come later.
    pub(super) fn clean_up(
        &mut self,
        result: Box<Result<Agreement>>,
        values: &[Option<Value>],
    ) -> Action {
        let (leader, over) = (
            self.setup.run.leader(),
            self.setup.run.over(&self.setup.offer.nonce),
        );
        let found = values.iter().flatten().any(|value| self.is_own(value));
        let mut keys = self.own_keys();
        match result.is_ok() {
            true => keys.retain(|key| found || *key != leader),
            false => keys.retain(|key| *key != leader && *key != over),
        }
        self.state = State::CleaningUp(result);
        Action::Delete(keys)
    }

    pub(super) fn is_own(&self, value: &Value) -> bool {
        Offer::parse(value).is_ok_and(|offer| offer.nonce == self.setup.offer.nonce)
    }

    fn own_keys(&mut self) -> Vec<String> {
        let mut keys = std::mem::take(&mut self.written);
        keys.extend(self.offer_keys());
        keys.push(self.setup.run.refusal(&self.setup.offer.nonce));
        keys.extend(self.others().map(|rank| self.setup.run.here(rank)));
        for count in 0..=self.turn {
            let turn = Turn {
                leader: &self.setup.offer.nonce,
                count,
            };
            keys.extend(self.others().map(|rank| self.setup.run.ack(&turn, rank)));
            keys.extend(self.others().map(|rank| self.setup.run.done(&turn, rank)));
        }
        keys
    }

    pub(super) fn await_readers(
        &mut self,
        result: Box<Result<Agreement>>,
        ranks: &[u32],
    ) -> Action {
        let keys = ranks
            .iter()
            .map(|rank| self.setup.run.done(&self.turn(), *rank))
            .collect();
        self.state = State::AwaitingReaders(result);
        Action::Await {
            keys,
            slice: FAREWELL,
            stage: Stage::Farewell,
        }
    }
}
