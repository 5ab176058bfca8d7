//! How rank 0 aborts: at the deadline, and as soon as one node, itself included, cannot take part.
//! All nodes that are there read the reason at once, and so do those that come a little later; none
//! waits for the deadline.

use std::time::Duration;

use rdma_model::error_class::ErrorClass;

use super::{Leader, State};
use crate::events::{Action, Backoff, Stage};
use crate::message::{self, Proposal, Verdict, clip_line, ranks};
use crate::rail::common_rails;
use crate::{MAX_VALUE, Nonce, Offer, Value};

/// The longest wait for late nodes. The waits double, so that all of them take at most twice that.
const LAST_CALL: Duration = Duration::from_secs(4);
const NAMED: usize = 8;
const EACH: usize = 256;
const ABORT_REASON: usize = MAX_VALUE / 2;

#[derive(Debug)]
pub(super) struct Notified {
    backoff: Backoff,
    nonces: Vec<Option<Nonce>>,
    why: String,
}

impl Leader {
    pub(super) fn abort(&mut self, why: String) -> Action {
        let why = clip_line(&why, ABORT_REASON);
        let ranks: Vec<u32> = self.others().collect();
        let mut pairs = self.abort_pairs(&why);
        // Nodes that have not read their proposal yet, or never had one, look there.
        if let Ok(value) = (Proposal::Abort {
            turn: self.turn,
            why: why.clone(),
        })
        .encode()
        {
            if self.offers.len() == self.setup.nodes() as usize {
                pairs.extend(self.proposal_pairs(&value));
            }
        }
        let result = Err(self
            .own_refusal
            .take()
            .unwrap_or_else(|| ErrorClass::Disagreed.error(why)));
        self.put(State::WritingVerdict(Box::new(result), ranks), pairs)
    }

    pub(super) fn abort_naming_absent(&mut self, values: &[Option<Value>]) -> Action {
        let absent: Vec<u32> = self
            .others()
            .zip(values)
            .filter(|(_, v)| v.is_none())
            .map(|(rank, _)| rank)
            .collect();
        self.abort_to(
            values,
            format!("missing {}: nothing was published in time", ranks(&absent)),
        )
    }

    pub(super) fn abort_unreadable(&mut self, values: &[Value], why: String) -> Action {
        let values: Vec<Option<Value>> = values.iter().cloned().map(Some).collect();
        self.abort_to(&values, why)
    }

    /// Ends before a proposal, and writes the reason for those nodes whose offer can be read.
    pub(super) fn abort_to(&mut self, values: &[Option<Value>], why: String) -> Action {
        let why = clip_line(&why, ABORT_REASON);
        let mut pairs = self.abort_pairs(&why);
        let mut notified = Vec::new();
        let abort = Proposal::Abort {
            turn: self.turn,
            why: why.clone(),
        }
        .encode();
        for (rank, value) in self.others().zip(values) {
            let offer = value.as_ref().and_then(|v| Offer::parse(v).ok());
            if let (Some(offer), Ok(abort)) = (offer, &abort) {
                pairs.push((self.proposal_key(rank, offer.nonce), abort.clone()));
                notified.push(rank);
            }
        }
        let result = Err(ErrorClass::Disagreed.error(why));
        self.put(State::WritingVerdict(Box::new(result), notified), pairs)
    }

    /// The deadline passed before all answered: names the node that refused, or those that did not
    /// answer or withdrew their offer.
    pub(super) fn abort_naming_silent(&mut self, values: &[Option<Value>]) -> Action {
        let (acks, offers) = values.split_at(values.len() / 2);
        let said = self
            .others()
            .zip(acks)
            .filter_map(|(rank, ack)| Some((rank, ack.as_ref()?)));
        if let Some(why) = self.refusal(said) {
            return self.abort(why);
        }
        let silent: Vec<u32> = self
            .others()
            .zip(acks.iter().zip(offers))
            .filter(|(_, (ack, offer))| ack.is_none() || offer.is_none())
            .map(|(rank, _)| rank)
            .collect();
        let mut named: Vec<String> = silent
            .iter()
            .take(NAMED)
            .map(|rank| self.node_name(*rank))
            .collect();
        if silent.len() > NAMED {
            named.push(format!("{} more nodes", silent.len() - NAMED));
        }
        let who = if named.is_empty() {
            String::new()
        } else {
            format!(": missing {}", named.join(", "))
        };
        self.abort(format!("not all nodes have answered in time{who}"))
    }

    pub(super) fn abort_pairs(&self, why: &str) -> Vec<(String, Value)> {
        message::encode(&Verdict::Abort(why.to_owned()))
            .map(|value| self.verdict_pairs(value))
            .unwrap_or_default()
    }

    pub(super) fn check_refusal(&mut self) -> Action {
        if self.setup.offer.cannot_agree() {
            return self.read_offers();
        }
        self.state = State::CheckingRefusal;
        Action::Await {
            keys: vec![self.refusal_key()],
            slice: Duration::ZERO,
            stage: Stage::Offers,
        }
    }

    pub(super) fn check_no(&mut self) -> Action {
        self.state = State::CheckingNo;
        Action::Await {
            keys: vec![self.refusal_key()],
            slice: Duration::ZERO,
            stage: Stage::Acks,
        }
    }

    /// Reads who said no; that node may have withdrawn its offer since.
    pub(super) fn read_acks(&mut self, gone: bool) -> Action {
        self.state = State::ReadingAcks(gone);
        Action::TryRead(self.ack_keys())
    }

    /// One no aborts, however many answers are missing.
    pub(super) fn acks_read(&mut self, gone: bool, acks: &[Option<Value>]) -> Action {
        let said = self
            .others()
            .zip(acks)
            .filter_map(|(rank, ack)| Some((rank, ack.as_ref()?)));
        match self.refusal(said) {
            Some(why) => self.abort(why),
            None if gone => self.restart(Vec::new()),
            None => self.recheck_offers(false),
        }
    }

    fn refusal_key(&self) -> String {
        self.setup.run.refusal(&self.setup.offer.nonce)
    }

    pub(super) fn read_offers(&mut self) -> Action {
        self.state = State::ReadingOffers;
        Action::TryRead(self.offer_keys())
    }

    /// Notifies the nodes that were not notified yet. Anything may have written the key of a
    /// refusal: without an offer that refuses, the wait goes on.
    pub(super) fn notify(&mut self, values: &[Option<Value>]) -> Action {
        let parse = |value: &Option<Value>| value.as_ref().and_then(|v| Offer::parse(v).ok());
        let there: Vec<(u32, Offer)> = self
            .others()
            .zip(values)
            .filter_map(|(rank, value)| Some((rank, parse(value)?)))
            .collect();
        let before = self.notified.as_ref().map(|notified| notified.why.clone());
        let Some(why) = self.why_impossible(&there).or(before) else {
            return self.wait(State::AwaitingOffers, Stage::Offers);
        };
        let mut pairs = if self.notified.is_none() {
            self.abort_pairs(&why)
        } else {
            Vec::new()
        };
        let mut notified = self.notified.take().unwrap_or_else(|| Notified {
            backoff: Backoff::from_millis(250),
            nonces: vec![None; self.setup.nodes() as usize],
            why: String::new(),
        });
        let abort = Proposal::Abort {
            turn: self.turn,
            why: why.clone(),
        }
        .encode();
        for (rank, offer) in there {
            let Some(slot) = notified.nonces.get_mut(rank as usize) else {
                continue;
            };
            if let (Ok(abort), true) = (&abort, slot.as_ref() != Some(&offer.nonce)) {
                *slot = Some(offer.nonce.clone());
                pairs.push((self.proposal_key(rank, offer.nonce), abort.clone()));
            }
        }
        notified.why = why;
        self.notified = Some(notified);
        self.put(State::NotifyingNodes, pairs)
    }

    pub(super) fn await_late_nodes(&mut self) -> Action {
        let Some(mut notified) = self.notified.take() else {
            return self.gather();
        };
        let is_notified = |rank: u32| {
            notified
                .nonces
                .get(rank as usize)
                .is_some_and(Option::is_some)
        };
        let (heard, late): (Vec<u32>, Vec<u32>) =
            self.others().partition(|rank| is_notified(*rank));
        let slice = notified.backoff.next_pause();
        if late.is_empty() || slice > LAST_CALL {
            let result = Err(self
                .own_refusal
                .take()
                .unwrap_or_else(|| ErrorClass::Disagreed.error(&notified.why)));
            return self.await_readers(Box::new(result), &heard);
        }
        self.notified = Some(notified);
        self.state = State::AwaitingLateNodes;
        let keys = late
            .iter()
            .map(|rank| self.setup.run.offer(&self.setup.offer.nonce, *rank))
            .collect();
        Action::Await {
            keys,
            slice,
            stage: Stage::Offers,
        }
    }

    pub(super) fn why_impossible(&self, there: &[(u32, Offer)]) -> Option<String> {
        let all: Vec<(u32, &Offer)> = std::iter::once((0, &self.setup.offer))
            .chain(there.iter().map(|(rank, offer)| (*rank, offer)))
            .collect();
        let refusals = all
            .iter()
            .filter_map(|(rank, offer)| Some((rank, offer, offer.refuses.as_ref()?)));
        let mut said: Vec<String> = refusals
            .map(|(rank, offer, why)| {
                format!(
                    "{} (rank {rank}) refuses: {}",
                    offer.host,
                    clip_line(why, EACH)
                )
            })
            .collect();
        if said.len() > NAMED {
            let more = format!("{} more nodes", said.len() - NAMED);
            said.truncate(NAMED);
            said.push(more);
        }
        if said.is_empty() && all.iter().any(|(_, offer)| offer.rails.is_empty()) {
            return Some(no_common_rail(
                &common_rails(
                    &all.into_iter()
                        .map(|(_, offer)| offer.clone())
                        .collect::<Vec<_>>(),
                )
                .lost,
            ));
        }
        (!said.is_empty()).then(|| said.join("; "))
    }
}

pub(super) fn no_common_rail(lost: &[String]) -> String {
    let lost = if lost.is_empty() {
        "no node has a NIC to offer".to_owned()
    } else {
        lost.join("; ")
    };
    format!("no rail is on all nodes: {lost}")
}
