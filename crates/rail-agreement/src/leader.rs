//! Rank 0: gathers the offers, proposes what all have, and commits when all have said yes.

mod ending;
mod proposing;
mod refusing;

use std::time::Duration;

use anyhow::Result;

use super::keys::Turn;
use super::message::{self, Ack, Verdict, clipped};
use super::node::{Act, Agreement, Event, Setup, Slices, Stage, failed};
use super::{Nonce, Offer, Value};

use refusing::Calls;

/// Where rank 0 is.
#[derive(Debug)]
enum State {
    Begin,
    Publishing,
    /// Waiting for all offers.
    Gathering,
    /// Making up its own mind on what all have.
    Judging(Box<Agreement>),
    /// Looking whether one has published that it refuses.
    Hearing,
    /// One has: who is there to hear of it?
    Calling,
    /// They are told.
    Telling,
    /// Waiting for others to come and hear of it.
    Recalling,
    /// The proposals are being written.
    Proposing,
    /// Waiting for all acks.
    Asking,
    /// All have said yes: looking whether this is still the rank 0 that they find.
    Confirming,
    /// Looking whether one has said no.
    Doubting,
    /// Who is it? Or has one gone without a word?
    Consulting(bool),
    /// Looking whether anybody has begun anew; with all acks, or not yet.
    Looking(bool),
    /// What was proposed is taken back.
    Withdrawing(Vec<Value>),
    /// The deadline passed before all had published: who is there?
    Counting,
    /// It passed before all had answered: who has not?
    Naming,
    /// The verdict is being written, then told.
    Ending(Box<Result<Agreement>>, Vec<u32>),
    Leaving(Box<Result<Agreement>>),
    /// Looking whether another rank 0 has come since.
    Parting(Box<Result<Agreement>>),
    Sweeping(Box<Result<Agreement>>),
    Ended,
}

/// Rank 0.
#[derive(Debug)]
pub struct Leader {
    setup: Setup,
    persists: bool,
    state: State,
    slices: Slices,
    /// All of them, this node's first.
    offers: Vec<Offer>,
    /// What they have in common, when it has been proposed.
    agreement: Option<Agreement>,
    /// Why it refuses itself.
    own: Option<anyhow::Error>,
    /// Whom it has told that nothing can come of it.
    calls: Option<Calls>,
    turn: u32,
    /// By rank: to which attempt of it how many proposals were made.
    told: Vec<Option<(Nonce, u32)>>,
    /// What it has written, where it has to be deleted.
    written: Vec<String>,
}

impl Leader {
    pub(super) fn new(setup: Setup, persists: bool) -> Leader {
        let told = vec![None; setup.nodes() as usize];
        Leader {
            offers: Vec::new(),
            agreement: None,
            own: None,
            calls: None,
            state: State::Begin,
            slices: Slices::from(250),
            turn: 0,
            told,
            written: Vec::new(),
            setup,
            persists,
        }
    }

    pub(super) fn next(&mut self, event: Event) -> Act {
        match (std::mem::replace(&mut self.state, State::Ended), event) {
            (State::Begin, Event::Begin) => match self.setup.offer.print() {
                Ok(value) => self.put(State::Publishing, vec![(self.setup.run.leader(), value)]),
                Err(e) => failed(format!("publishing: {e:#}")),
            },
            (State::Publishing, Event::Done) => self.gather(),
            (State::Gathering, Event::Values(values)) => self.propose(&values),
            (State::Gathering, Event::Missing) => self.hear(),
            (State::Hearing, Event::Missing) => self.wait(State::Gathering, Stage::Offers),
            (State::Hearing, Event::Values(_)) => self.call(),
            (State::Calling, Event::Read(values)) => self.called_together(&values),
            (State::Telling, Event::Done) => self.call_again(),
            (State::Recalling, _) => self.call(),
            (State::Gathering | State::Hearing, Event::Late) => {
                self.state = State::Counting;
                Act::Read(self.offer_keys())
            }
            (State::Counting, Event::Read(values)) => self.give_up(&values),
            (State::Judging(agreement), Event::Judged(Ok(()))) => self.ask(*agreement),
            (State::Judging(_), Event::Judged(Err(e))) => self.decline(e),
            (State::Proposing, Event::Done) => self.wait(State::Asking, Stage::Acks),
            (State::Asking, Event::Values(acks)) => match self.refusal(self.others().zip(&acks)) {
                Some(why) => self.abort(why),
                None => {
                    self.state = State::Confirming;
                    Act::Await { keys: vec![self.setup.run.leader()], slice: Duration::ZERO, stage: Stage::Acks }
                }
            },
            // Others may follow a rank 0 that was started beside this one: what they said to this one is no word any more.
            (State::Confirming, Event::Values(values)) if values.iter().all(|value| self.is_own(value)) => {
                self.look(true)
            }
            (State::Confirming, _) => self.abort("another rank 0 has begun this run, too".to_owned()),
            (State::Asking, Event::Missing) => self.doubt(),
            (State::Looking(yes), Event::Values(values)) => self.looked(yes, values),
            (State::Doubting, Event::Values(_)) => self.consult(false),
            (State::Doubting, Event::Missing) => self.look(false),
            (State::Consulting(gone), Event::Read(acks)) => self.consulted(gone, &acks),
            // Somebody has withdrawn its offer: it gave up, or begins anew.
            (State::Looking(_), Event::Missing) => self.consult(true),
            (State::Asking | State::Doubting | State::Looking(_), Event::Late) => {
                self.state = State::Naming;
                Act::Read(self.ack_keys().into_iter().chain(self.offer_keys()).collect())
            }
            (State::Naming, Event::Read(values)) => self.name(&values),
            (State::Withdrawing(values), Event::Done) if values.is_empty() => self.gather(),
            (State::Withdrawing(values), Event::Done) => {
                self.turn += 1;
                self.propose(&values)
            }
            (State::Ending(result, ranks), Event::Done) => self.leave(result, &ranks),
            (State::Leaving(result), Event::Late) if result.is_ok() => {
                failed("not all nodes have come to hear of the commit in time: here nothing was moved")
            }
            // Who has not heard of the end may still come to read it.
            (State::Leaving(result), Event::Values(_)) if self.persists => self.part(result),
            (State::Parting(result), Event::Read(values)) => self.sweep(result, &values),
            (State::Leaving(result) | State::Sweeping(result), _) => Act::End(*result),
            (state, event) => failed(format!("rank 0: {event:?} in {state:?}")),
        }
    }

    fn others(&self) -> std::ops::Range<u32> {
        1..self.setup.nodes()
    }

    /// Where all others publish.
    fn offer_keys(&self) -> Vec<String> {
        self.others().map(|rank| self.setup.run.offer(&self.setup.offer.nonce, rank)).collect()
    }

    /// Where all others answer.
    fn ack_keys(&self) -> Vec<String> {
        self.others().map(|rank| self.setup.run.ack(&self.turn(), rank)).collect()
    }

    fn turn(&self) -> Turn<'_> {
        Turn { leader: &self.setup.offer.nonce, count: self.turn }
    }

    fn put(&mut self, state: State, pairs: Vec<(String, Value)>) -> Act {
        self.note(&pairs);
        self.state = state;
        Act::Put(pairs)
    }

    fn note(&mut self, pairs: &[(String, Value)]) {
        if self.persists {
            self.written.extend(pairs.iter().map(|(key, _)| key.clone()));
        }
    }

    fn gather(&mut self) -> Act {
        self.slices = Slices::from(250);
        self.wait(State::Gathering, Stage::Offers)
    }

    fn wait(&mut self, state: State, stage: Stage) -> Act {
        let keys = if stage == Stage::Acks { self.ack_keys() } else { self.offer_keys() };
        self.state = state;
        Act::Await { keys, slice: self.slices.slice(), stage }
    }

    fn look(&mut self, all_said_yes: bool) -> Act {
        self.state = State::Looking(all_said_yes);
        Act::Await { keys: self.offer_keys(), slice: Duration::ZERO, stage: Stage::Acks }
    }

    /// Nobody may have begun anew between its offer and the commit.
    fn looked(&mut self, all_said_yes: bool, values: Vec<Value>) -> Act {
        let nonce = |value: &Value| Offer::parse(value).map(|o| o.nonce).ok();
        let same = self.offers.iter().skip(1).zip(&values).all(|(o, value)| nonce(value).as_ref() == Some(&o.nonce));
        match all_said_yes {
            _ if !same => self.again(values),
            false => self.wait(State::Asking, Stage::Acks),
            true => self.commit(),
        }
    }

    fn again(&mut self, values: Vec<Value>) -> Act {
        let key = self.setup.run.verdict(&self.turn());
        match message::print(&Verdict::Again) {
            Ok(value) if !values.is_empty() => self.put(State::Withdrawing(values), vec![(key, value)]),
            Ok(value) => {
                self.turn += 1;
                self.put(State::Withdrawing(Vec::new()), vec![(key, value)])
            }
            Err(e) => failed(format!("{e:#}")),
        }
    }

    /// The first node that did not say yes to just this.
    fn refusal<'a>(&self, acks: impl Iterator<Item = (u32, &'a Value)>) -> Option<String> {
        let mut acks = acks;
        acks.find_map(|(rank, ack)| {
            let why = match message::parse::<Ack>(ack) {
                Ok(Ack::Yes(digest)) if self.agreement.as_ref().is_some_and(|a| a.digest == digest) => return None,
                Ok(Ack::Yes(_)) => "it said yes to something else".to_owned(),
                Ok(Ack::No(why)) => why,
                Err(e) => format!("its answer cannot be used: {e:#}"),
            };
            Some(format!("{} refused: {}", self.called(rank), clipped(&why, 512)))
        })
    }

    /// `node-17 (rank 17)`.
    fn called(&self, rank: u32) -> String {
        let host = self.offers.get(rank as usize).map_or(String::new(), |o| o.host.to_string());
        format!("{host} (rank {rank})")
    }

    fn commit(&mut self) -> Act {
        match self.agreement.take() {
            Some(agreement) => self.end(agreement),
            None => failed("a commit to nothing"),
        }
    }
}
