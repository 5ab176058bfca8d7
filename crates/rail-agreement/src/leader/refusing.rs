//! What rank 0 does as soon as a node cannot take part at all, itself included: all that are there hear of it, and who comes a
//! little later, without anybody's waiting for the deadline.

use std::time::Duration;

use rdma_model::error_class::ErrorClass;

use super::{Leader, State};
use crate::message::{Proposal, clipped};
use crate::node::{Act, Slices, Stage};
use crate::rail::common;
use crate::{Nonce, Offer, Value};

/// The longest wait for late nodes, of waits that double: they add up to twice that.
const LAST_CALL: Duration = Duration::from_secs(4);
/// How many of the nodes that refuse are named.
const NAMED: usize = 8;
/// The longest reason of one of them.
const EACH: usize = 256;

/// How far all have been told.
#[derive(Debug)]
pub(super) struct Calls {
    slices: Slices,
    /// By rank: which attempt of it.
    told: Vec<Option<Nonce>>,
    /// What they were told last.
    why: String,
}

impl Leader {
    /// Not all have published yet: does one of those that have refuse?
    pub(super) fn hear(&mut self) -> Act {
        if self.setup.offer.hopeless() {
            return self.call();
        }
        self.state = State::Hearing;
        Act::Await { keys: vec![self.refusal_key()], slice: Duration::ZERO, stage: Stage::Offers }
    }

    /// Not all have answered yet: has one said no?
    pub(super) fn doubt(&mut self) -> Act {
        self.state = State::Doubting;
        Act::Await { keys: vec![self.refusal_key()], slice: Duration::ZERO, stage: Stage::Acks }
    }

    /// Looks who has said no; one that has may have taken back its offer since.
    pub(super) fn consult(&mut self, gone: bool) -> Act {
        self.state = State::Consulting(gone);
        Act::Peek(self.ack_keys())
    }

    /// Who says no ends it, whoever else has not answered.
    pub(super) fn consulted(&mut self, gone: bool, acks: &[Option<Value>]) -> Act {
        let said = self.others().zip(acks).filter_map(|(rank, ack)| Some((rank, ack.as_ref()?)));
        match self.refusal(said) {
            Some(why) => self.abort(why),
            None if gone => self.again(Vec::new()),
            None => self.look(false),
        }
    }

    fn refusal_key(&self) -> String {
        self.setup.run.refusal(&self.setup.offer.nonce)
    }

    /// Who is there?
    pub(super) fn call(&mut self) -> Act {
        self.state = State::Calling;
        Act::Peek(self.offer_keys())
    }

    /// Tells those that were not told yet. That somebody refuses may be a stranger's word: then nothing has happened.
    pub(super) fn called_together(&mut self, values: &[Option<Value>]) -> Act {
        let parse = |value: &Option<Value>| value.as_ref().and_then(|v| Offer::parse(v).ok());
        let there: Vec<(u32, Offer)> =
            self.others().zip(values).filter_map(|(rank, value)| Some((rank, parse(value)?))).collect();
        let before = self.calls.as_ref().map(|calls| calls.why.clone());
        let Some(why) = self.hopeless(&there).or(before) else { return self.wait(State::Gathering, Stage::Offers) };
        let mut pairs = if self.calls.is_none() { self.verdict(&why) } else { Vec::new() };
        let mut calls = self.calls.take().unwrap_or_else(|| Calls {
            slices: Slices::from(250),
            told: vec![None; self.setup.nodes() as usize],
            why: String::new(),
        });
        let abort = Proposal::Abort { turn: self.turn, why: why.clone() }.print();
        for (rank, offer) in there {
            let Some(slot) = calls.told.get_mut(rank as usize) else { continue };
            if let (Ok(abort), true) = (&abort, slot.as_ref() != Some(&offer.nonce)) {
                *slot = Some(offer.nonce.clone());
                pairs.push((self.proposal_key(rank, offer.nonce), abort.clone()));
            }
        }
        calls.why = why;
        self.calls = Some(calls);
        self.put(State::Telling, pairs)
    }

    /// Waits for the late ones a while, then leaves.
    pub(super) fn call_again(&mut self) -> Act {
        let Some(mut calls) = self.calls.take() else { return self.gather() };
        let told = |rank: u32| calls.told.get(rank as usize).is_some_and(Option::is_some);
        let (heard, late): (Vec<u32>, Vec<u32>) = self.others().partition(|rank| told(*rank));
        let slice = calls.slices.slice();
        if late.is_empty() || slice > LAST_CALL {
            let result = Err(self.own.take().unwrap_or_else(|| ErrorClass::Disagreed.error(&calls.why)));
            return self.leave(Box::new(result), &heard);
        }
        self.calls = Some(calls);
        self.state = State::Recalling;
        let keys = late.iter().map(|rank| self.setup.run.offer(&self.setup.offer.nonce, *rank)).collect();
        Act::Await { keys, slice, stage: Stage::Offers }
    }

    /// Why nothing can come of it, by what those say that are there.
    pub(super) fn hopeless(&self, there: &[(u32, Offer)]) -> Option<String> {
        let all: Vec<(u32, &Offer)> =
            std::iter::once((0, &self.setup.offer)).chain(there.iter().map(|(rank, offer)| (*rank, offer))).collect();
        let refusals = all.iter().filter_map(|(rank, offer)| Some((rank, offer, offer.refuses.as_ref()?)));
        let mut said: Vec<String> = refusals
            .map(|(rank, offer, why)| format!("{} (rank {rank}) refuses: {}", offer.host, clipped(why, EACH)))
            .collect();
        if said.len() > NAMED {
            let more = format!("{} more nodes", said.len() - NAMED);
            said.truncate(NAMED);
            said.push(more);
        }
        if said.is_empty() && all.iter().any(|(_, offer)| offer.rails.is_empty()) {
            return Some(no_rail(&common(&all.into_iter().map(|(_, offer)| offer.clone()).collect::<Vec<_>>()).lost));
        }
        (!said.is_empty()).then(|| said.join("; "))
    }
}

/// That no rail is left, and who lacks what.
pub(super) fn no_rail(lost: &[String]) -> String {
    let lost = if lost.is_empty() { "no node has a NIC to offer".to_owned() } else { lost.join("; ") };
    format!("no rail is on all nodes: {lost}")
}
