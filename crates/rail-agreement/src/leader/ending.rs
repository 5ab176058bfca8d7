//! How rank 0 ends: it tells all how, stays until they have heard it, and tidies up.

use std::time::Duration;

use anyhow::Result;
use rdma_model::error_class::ErrorClass;

use super::{Leader, State};
use crate::keys::Turn;
use crate::message::{self, Proposal, Verdict, clipped, ranks};
use crate::node::{Act, Agreement, Stage, failed};
use crate::{MAX_VALUE, Offer, Value};

/// How long rank 0 stays for the others to find out how it ended: the store may go with it.
const FAREWELL: Duration = Duration::from_secs(2);
/// How many of the nodes that have not answered are named.
const NAMED: usize = 8;
/// The longest reason that is sent.
const REASON: usize = MAX_VALUE / 2;

impl Leader {
    /// Tells all that it holds.
    pub(super) fn end(&mut self, agreement: Agreement) -> Act {
        let value = match message::print(&Verdict::Commit(agreement.digest.clone())) {
            Ok(value) => value,
            Err(e) => return failed(format!("{e:#}")),
        };
        let pairs = self.told(value);
        self.note(&pairs);
        self.state = State::Ending(Box::new(Ok(agreement)), self.others().collect());
        Act::Commit(pairs)
    }

    /// Tells all that are there that nothing holds.
    pub(super) fn abort(&mut self, why: String) -> Act {
        let why = clipped(&why, REASON);
        let ranks: Vec<u32> = self.others().collect();
        let mut pairs = self.verdict(&why);
        // Who has not read its proposal yet, or was never given one.
        if let Ok(value) = (Proposal::Abort { turn: self.turn, why: why.clone() }).print() {
            if self.offers.len() == self.setup.nodes() as usize {
                pairs.extend(self.address(&value));
            }
        }
        let result = Err(self.own.take().unwrap_or_else(|| ErrorClass::Disagreed.error(why)));
        self.put(State::Ending(Box::new(result), ranks), pairs)
    }

    /// The deadline has passed while all were asked: who refused, has not answered, or has taken back its offer?
    pub(super) fn name(&mut self, values: &[Option<Value>]) -> Act {
        let (acks, offers) = values.split_at(values.len() / 2);
        let said = self.others().zip(acks).filter_map(|(rank, ack)| Some((rank, ack.as_ref()?)));
        if let Some(why) = self.refusal(said) {
            return self.abort(why);
        }
        let gone = |(_, (ack, offer)): &(u32, (&Option<Value>, &Option<Value>))| ack.is_none() || offer.is_none();
        let silent: Vec<u32> = self.others().zip(acks.iter().zip(offers)).filter(gone).map(|(rank, _)| rank).collect();
        let mut named: Vec<String> = silent.iter().take(NAMED).map(|rank| self.called(*rank)).collect();
        if silent.len() > NAMED {
            named.push(format!("{} more nodes", silent.len() - NAMED));
        }
        let who = if named.is_empty() { String::new() } else { format!(": missing {}", named.join(", ")) };
        self.abort(format!("not all nodes have answered in time{who}"))
    }

    pub(super) fn verdict(&self, why: &str) -> Vec<(String, Value)> {
        message::print(&Verdict::Abort(why.to_owned())).map(|value| self.told(value)).unwrap_or_default()
    }

    /// How it ended, for those who take part and for who comes later.
    fn told(&self, value: Value) -> Vec<(String, Value)> {
        let run = &self.setup.run;
        vec![(run.verdict(&self.turn()), value.clone()), (run.over(&self.setup.offer.nonce), value)]
    }

    /// The same when some have not published, or one published nonsense: only those whose offer can be read are told.
    pub(super) fn give_up(&mut self, values: &[Option<Value>]) -> Act {
        let absent: Vec<u32> = self.others().zip(values).filter(|(_, v)| v.is_none()).map(|(rank, _)| rank).collect();
        self.tell(values, format!("missing {}: nothing was published in time", ranks(&absent)))
    }

    pub(super) fn refuse(&mut self, values: &[Value], why: String) -> Act {
        let values: Vec<Option<Value>> = values.iter().cloned().map(Some).collect();
        self.tell(&values, why)
    }

    pub(super) fn tell(&mut self, values: &[Option<Value>], why: String) -> Act {
        let why = clipped(&why, REASON);
        let mut pairs = self.verdict(&why);
        let mut told = Vec::new();
        let abort = Proposal::Abort { turn: self.turn, why: why.clone() }.print();
        for (rank, value) in self.others().zip(values) {
            let offer = value.as_ref().and_then(|v| Offer::parse(v).ok());
            if let (Some(offer), Ok(abort)) = (offer, &abort) {
                pairs.push((self.proposal_key(rank, offer.nonce), abort.clone()));
                told.push(rank);
            }
        }
        let result = Err(ErrorClass::Disagreed.error(why));
        self.put(State::Ending(Box::new(result), told), pairs)
    }

    /// All have heard how it ended. Is this attempt still the one that others find?
    pub(super) fn part(&mut self, result: Box<Result<Agreement>>) -> Act {
        self.state = State::Parting(result);
        Act::Peek(vec![self.setup.run.leader()])
    }

    /// Deletes what it has left, and nothing of a later rank 0. Where nothing holds, that stays which tells who comes later why.
    pub(super) fn sweep(&mut self, result: Box<Result<Agreement>>, values: &[Option<Value>]) -> Act {
        let (leader, over) = (self.setup.run.leader(), self.setup.run.over(&self.setup.offer.nonce));
        let found = values.iter().flatten().any(|value| self.is_own(value));
        let mut keys = self.litter();
        match result.is_ok() {
            true => keys.retain(|key| found || *key != leader),
            false => keys.retain(|key| *key != leader && *key != over),
        }
        self.state = State::Sweeping(result);
        Act::Delete(keys)
    }

    /// Whether that is what it has published.
    pub(super) fn is_own(&self, value: &Value) -> bool {
        Offer::parse(value).is_ok_and(|offer| offer.nonce == self.setup.offer.nonce)
    }

    /// All that this attempt has left in the store.
    fn litter(&mut self) -> Vec<String> {
        let mut keys = std::mem::take(&mut self.written);
        keys.extend(self.offer_keys());
        keys.push(self.setup.run.refusal(&self.setup.offer.nonce));
        keys.extend(self.others().map(|rank| self.setup.run.here(rank)));
        for count in 0..=self.turn {
            let turn = Turn { leader: &self.setup.offer.nonce, count };
            keys.extend(self.others().map(|rank| self.setup.run.ack(&turn, rank)));
            keys.extend(self.others().map(|rank| self.setup.run.done(&turn, rank)));
        }
        keys
    }

    pub(super) fn leave(&mut self, result: Box<Result<Agreement>>, ranks: &[u32]) -> Act {
        let keys = ranks.iter().map(|rank| self.setup.run.done(&self.turn(), *rank)).collect();
        self.state = State::Leaving(result);
        Act::Await { keys, slice: FAREWELL, stage: Stage::Farewell }
    }
}
