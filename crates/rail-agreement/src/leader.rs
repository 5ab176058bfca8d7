//! Rank 0: reads the offers, proposes the rails that all nodes have, and commits when all said yes.

mod abort;
mod commit;
mod propose;

use std::time::Duration;

use anyhow::Result;

use super::events::{Action, Agreement, Backoff, Event, Setup, Stage, failed};
use super::keys::Turn;
use super::message::{self, Ack, Verdict, clip_line};
use super::{Nonce, Offer, Value};

use abort::Notified;

#[derive(Debug)]
enum State {
    Begin,
    Publishing,
    AwaitingOffers,
    Judging(Box<Agreement>),
    CheckingRefusal,
    /// There is a refusal: reads which nodes are there to be notified.
    ReadingOffers,
    NotifyingNodes,
    AwaitingLateNodes,
    Proposing,
    AwaitingAcks,
    /// All said yes: checks that the nodes still find this rank 0.
    ConfirmingLeadership,
    CheckingNo,
    /// Reads which node said no; `true`: a node has withdrawn its offer.
    ReadingAcks(bool),
    /// Checks whether a node has restarted; `true`: all said yes.
    RecheckingOffers(bool),
    /// Takes the proposal back; the new offers, if all are there.
    Restarting(Vec<Value>),
    /// The deadline passed before all had published: reads who did.
    CountingOffers,
    CountingAcks,
    WritingVerdict(Box<Result<Agreement>>, Vec<u32>),
    AwaitingReaders(Box<Result<Agreement>>),
    /// Checks whether another rank 0 has published since, whose key must stay.
    CheckingSuccessor(Box<Result<Agreement>>),
    CleaningUp(Box<Result<Agreement>>),
    Ended,
}

#[derive(Debug)]
pub struct Leader {
    setup: Setup,
    persists: bool,
    state: State,
    backoff: Backoff,
    /// All offers by rank, this node's first.
    offers: Vec<Offer>,
    agreement: Option<Agreement>,
    own_refusal: Option<anyhow::Error>,
    notified: Option<Notified>,
    turn: u32,
    /// By rank: the nonce of its attempt, and the number of the last proposal to it.
    proposed: Vec<Option<(Nonce, u32)>>,
    written: Vec<String>,
}

impl Leader {
    pub(super) fn new(setup: Setup, persists: bool) -> Leader {
        let proposed = vec![None; setup.nodes() as usize];
        Leader {
            offers: Vec::new(),
            agreement: None,
            own_refusal: None,
            notified: None,
            state: State::Begin,
            backoff: Backoff::from_millis(250),
            turn: 0,
            proposed,
            written: Vec::new(),
            setup,
            persists,
        }
    }

    pub(super) fn next(&mut self, event: Event) -> Action {
        match (std::mem::replace(&mut self.state, State::Ended), event) {
            (State::Begin, Event::Begin) => match self.setup.offer.encode() {
                Ok(value) => self.put(State::Publishing, vec![(self.setup.run.leader(), value)]),
                Err(e) => failed(format!("publishing: {e:#}")),
            },
            (State::Publishing, Event::Done) => self.gather(),
            (State::AwaitingOffers, Event::Values(values)) => self.propose(&values),
            (State::AwaitingOffers, Event::Missing) => self.check_refusal(),
            (State::CheckingRefusal, Event::Missing) => {
                self.wait(State::AwaitingOffers, Stage::Offers)
            }
            (State::CheckingRefusal, Event::Values(_)) => self.read_offers(),
            (State::ReadingOffers, Event::Read(values)) => self.notify(&values),
            (State::NotifyingNodes, Event::Done) => self.await_late_nodes(),
            (State::AwaitingLateNodes, _) => self.read_offers(),
            (State::AwaitingOffers | State::CheckingRefusal, Event::Late) => {
                self.state = State::CountingOffers;
                Action::Read(self.offer_keys())
            }
            (State::CountingOffers, Event::Read(values)) => self.abort_naming_absent(&values),
            (State::Judging(agreement), Event::Judged(Ok(()))) => self.send_proposal(*agreement),
            (State::Judging(_), Event::Judged(Err(e))) => self.abort_own_refusal(e),
            (State::Proposing, Event::Done) => self.wait(State::AwaitingAcks, Stage::Acks),
            (State::AwaitingAcks, Event::Values(acks)) => {
                match self.refusal(self.others().zip(&acks)) {
                    Some(why) => self.abort(why),
                    None => {
                        self.state = State::ConfirmingLeadership;
                        Action::Await {
                            keys: vec![self.setup.run.leader()],
                            slice: Duration::ZERO,
                            stage: Stage::Acks,
                        }
                    }
                }
            }
            // A second rank 0 may have been started: the nodes follow it then, and their yes to
            // this one does not count.
            (State::ConfirmingLeadership, Event::Values(values))
                if values.iter().all(|value| self.is_own(value)) =>
            {
                self.recheck_offers(true)
            }
            (State::ConfirmingLeadership, _) => {
                self.abort("another rank 0 has begun this run, too".to_owned())
            }
            (State::AwaitingAcks, Event::Missing) => self.check_no(),
            (State::RecheckingOffers(yes), Event::Values(values)) => {
                self.offers_rechecked(yes, values)
            }
            (State::CheckingNo, Event::Values(_)) => self.read_acks(false),
            (State::CheckingNo, Event::Missing) => self.recheck_offers(false),
            (State::ReadingAcks(gone), Event::Read(acks)) => self.acks_read(gone, &acks),
            // A node has withdrawn its offer: it gave up, or restarts.
            (State::RecheckingOffers(_), Event::Missing) => self.read_acks(true),
            (State::AwaitingAcks | State::CheckingNo | State::RecheckingOffers(_), Event::Late) => {
                self.state = State::CountingAcks;
                Action::Read(
                    self.ack_keys()
                        .into_iter()
                        .chain(self.offer_keys())
                        .collect(),
                )
            }
            (State::CountingAcks, Event::Read(values)) => self.abort_naming_silent(&values),
            (State::Restarting(values), Event::Done) if values.is_empty() => self.gather(),
            (State::Restarting(values), Event::Done) => {
                self.turn += 1;
                self.propose(&values)
            }
            (State::WritingVerdict(result, ranks), Event::Done) => {
                self.await_readers(result, &ranks)
            }
            (State::AwaitingReaders(result), Event::Late) if result.is_ok() => failed(
                "not all nodes have come to hear of the commit in time: here nothing was moved",
            ),
            // Nodes that have not read the verdict may still read it later.
            (State::AwaitingReaders(result), Event::Values(_)) if self.persists => {
                self.check_successor(result)
            }
            (State::CheckingSuccessor(result), Event::Read(values)) => {
                self.clean_up(result, &values)
            }
            (State::AwaitingReaders(result) | State::CleaningUp(result), _) => Action::End(*result),
            (state, event) => failed(format!("rank 0: {event:?} in {state:?}")),
        }
    }

    fn others(&self) -> std::ops::Range<u32> {
        1..self.setup.nodes()
    }

    fn offer_keys(&self) -> Vec<String> {
        self.others()
            .map(|rank| self.setup.run.offer(&self.setup.offer.nonce, rank))
            .collect()
    }

    fn ack_keys(&self) -> Vec<String> {
        self.others()
            .map(|rank| self.setup.run.ack(&self.turn(), rank))
            .collect()
    }

    fn turn(&self) -> Turn<'_> {
        Turn {
            leader: &self.setup.offer.nonce,
            count: self.turn,
        }
    }

    fn put(&mut self, state: State, pairs: Vec<(String, Value)>) -> Action {
        self.remember(&pairs);
        self.state = state;
        Action::Put(pairs)
    }

    fn remember(&mut self, pairs: &[(String, Value)]) {
        if self.persists {
            self.written
                .extend(pairs.iter().map(|(key, _)| key.clone()));
        }
    }

    fn gather(&mut self) -> Action {
        self.backoff = Backoff::from_millis(250);
        self.wait(State::AwaitingOffers, Stage::Offers)
    }

    fn wait(&mut self, state: State, stage: Stage) -> Action {
        let keys = if stage == Stage::Acks {
            self.ack_keys()
        } else {
            self.offer_keys()
        };
        self.state = state;
        Action::Await {
            keys,
            slice: self.backoff.next_pause(),
            stage,
        }
    }

    fn recheck_offers(&mut self, all_said_yes: bool) -> Action {
        self.state = State::RecheckingOffers(all_said_yes);
        Action::Await {
            keys: self.offer_keys(),
            slice: Duration::ZERO,
            stage: Stage::Acks,
        }
    }

    /// Commits only if no node has restarted since its offer.
    fn offers_rechecked(&mut self, all_said_yes: bool, values: Vec<Value>) -> Action {
        let nonce = |value: &Value| Offer::parse(value).map(|o| o.nonce).ok();
        let same = self
            .offers
            .iter()
            .skip(1)
            .zip(&values)
            .all(|(o, value)| nonce(value).as_ref() == Some(&o.nonce));
        match all_said_yes {
            _ if !same => self.restart(values),
            false => self.wait(State::AwaitingAcks, Stage::Acks),
            true => self.commit(),
        }
    }

    fn restart(&mut self, values: Vec<Value>) -> Action {
        let key = self.setup.run.verdict(&self.turn());
        match message::encode(&Verdict::Again) {
            Ok(value) if !values.is_empty() => {
                self.put(State::Restarting(values), vec![(key, value)])
            }
            Ok(value) => {
                self.turn += 1;
                self.put(State::Restarting(Vec::new()), vec![(key, value)])
            }
            Err(e) => failed(format!("{e:#}")),
        }
    }

    fn refusal<'a>(&self, acks: impl Iterator<Item = (u32, &'a Value)>) -> Option<String> {
        let mut acks = acks;
        acks.find_map(|(rank, ack)| {
            let why = match message::parse::<Ack>(ack) {
                Ok(Ack::Yes(digest))
                    if self.agreement.as_ref().is_some_and(|a| a.digest == digest) =>
                {
                    return None;
                }
                Ok(Ack::Yes(_)) => "it said yes to something else".to_owned(),
                Ok(Ack::No(why)) => why,
                Err(e) => format!("its answer cannot be used: {e:#}"),
            };
            Some(format!(
                "{} refused: {}",
                self.node_name(rank),
                clip_line(&why, message::REASON)
            ))
        })
    }

    /// `node-17 (rank 17)`.
    fn node_name(&self, rank: u32) -> String {
        let host = self
            .offers
            .get(rank as usize)
            .map_or(String::new(), |o| o.host.to_string());
        format!("{host} (rank {rank})")
    }

    fn commit(&mut self) -> Action {
        match self.agreement.take() {
            Some(agreement) => self.write_commit(agreement),
            None => failed("a commit to nothing"),
        }
    }
}
