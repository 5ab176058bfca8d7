//! Rank 0: gathers the offers, proposes what all have, and commits when all have said yes.

mod ending;

use std::time::Duration;

use anyhow::Result;

use super::keys::Turn;
use super::message::{self, Ack, Proposal, Verdict, clipped};
use super::node::{Act, Agreement, Event, Setup, Slices, Stage, failed};
use super::rail::{Common, common};
use super::{Digest, Nonce, Offer, Rail, Value};

/// Where rank 0 is.
#[derive(Debug)]
enum State {
    Begin,
    Publishing,
    /// Waiting for all offers.
    Gathering,
    /// The proposals are being written.
    Proposing,
    /// Waiting for all acks.
    Asking,
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
    common: Common,
    nonces: Digest,
    digest: Digest,
    turn: u32,
    /// By rank: to which attempt of it how many proposals were made.
    told: Vec<Option<(Nonce, u32)>>,
    /// What it has written, where it has to be deleted.
    written: Vec<String>,
}

impl Leader {
    pub(super) fn new(setup: Setup, persists: bool) -> Leader {
        let none = Digest::of_nonces([].into_iter());
        let told = vec![None; setup.nodes() as usize];
        Leader {
            common: Common { rails: Vec::new(), lost: Vec::new() },
            offers: Vec::new(),
            nonces: none.clone(),
            digest: none,
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
            (State::Gathering, Event::Missing) => self.wait(State::Gathering, Stage::Offers),
            (State::Gathering, Event::Late) => {
                self.state = State::Counting;
                Act::Read(self.offer_keys())
            }
            (State::Counting, Event::Read(values)) => self.give_up(&values),
            (State::Proposing, Event::Done) => self.wait(State::Asking, Stage::Acks),
            (State::Asking, Event::Values(acks)) => match self.refusal(self.others().zip(&acks)) {
                Some(why) => self.abort(why),
                None => self.look(true),
            },
            (State::Asking, Event::Missing) => self.look(false),
            (State::Looking(yes), Event::Values(values)) => self.looked(yes, values),
            // Somebody has withdrawn its offer: it gave up, or begins anew.
            (State::Looking(_), Event::Missing) => self.again(Vec::new()),
            (State::Asking | State::Looking(_), Event::Late) => {
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
            (State::Leaving(result), Event::Values(_)) if self.persists => {
                self.state = State::Sweeping(result);
                Act::Delete(self.litter())
            }
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
        if self.persists {
            self.written.extend(pairs.iter().map(|(key, _)| key.clone()));
        }
        self.state = state;
        Act::Put(pairs)
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

    /// Reads all offers, and proposes what they have in common.
    fn propose(&mut self, values: &[Value]) -> Act {
        self.offers = vec![self.setup.offer.clone()];
        for (rank, value) in self.others().zip(values) {
            match Offer::parse(value) {
                Ok(offer) => self.offers.push(offer),
                Err(e) => return self.refuse(values, format!("what rank {rank} published cannot be used: {e:#}")),
            }
        }
        let (own, nodes) = (self.setup.offer.policy, self.setup.nodes());
        for (rank, offer) in self.offers.iter().enumerate() {
            if offer.nodes != nodes {
                return self
                    .abort(format!("{} (rank {rank}) counts {} nodes, rank 0 {nodes}", offer.host, offer.nodes));
            }
            if offer.policy != own {
                return self.abort(format!("{} (rank {rank}) has {}, rank 0 {own}", offer.host, offer.policy));
            }
        }
        self.common = common(&self.offers);
        if self.common.rails.is_empty() {
            let lost = self.common.lost.join("; ");
            let why = if lost.is_empty() { "no node has a NIC to offer".to_owned() } else { lost };
            return self.abort(format!("no rail is on all nodes: {why}"));
        }
        self.nonces = Digest::of_nonces(self.offers.iter().map(|o| &o.nonce));
        self.digest = Digest::of_result(&self.setup.run, nodes, own, &self.nonces, &self.common.rails);
        self.slices = Slices::from(250);
        let proposal = Proposal::Rails {
            turn: self.turn,
            rails: self.common.rails.clone(),
            nonces: self.nonces.clone(),
            digest: self.digest.clone(),
            lost: self.common.lost.iter().map(|line| clipped(line, 512)).collect(),
        };
        match proposal.print() {
            Ok(value) => {
                let pairs = self.address(&value);
                self.put(State::Proposing, pairs)
            }
            Err(e) => self.abort(format!("proposing: {e:#}")),
        }
    }

    /// A message for every node whose offer was read.
    fn address(&mut self, value: &Value) -> Vec<(String, Value)> {
        let nonces: Vec<(u32, Nonce)> =
            self.others().zip(self.offers.iter().skip(1).map(|o| o.nonce.clone())).collect();
        nonces.into_iter().map(|(rank, nonce)| (self.proposal_key(rank, nonce), value.clone())).collect()
    }

    /// Where that attempt of a rank looks next.
    fn proposal_key(&mut self, rank: u32, nonce: Nonce) -> String {
        let Some(slot) = self.told.get_mut(rank as usize) else { return String::new() };
        let n = slot.as_ref().filter(|(before, _)| *before == nonce).map_or(0, |(_, n)| n + 1);
        let key = self.setup.run.proposal(&self.setup.offer.nonce, rank, &nonce, n);
        *slot = Some((nonce, n));
        key
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
                Ok(Ack::Yes(digest)) if digest == self.digest => return None,
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
        let offer = &self.setup.offer;
        let rail = |key: &_| Some(Rail(super::RailKey::clone(key), offer.iface(key)?.clone()));
        let agreement = Agreement {
            run: self.setup.run.clone(),
            rank: 0,
            nodes: self.setup.nodes(),
            policy: offer.policy,
            nonces: self.nonces.clone(),
            digest: self.digest.clone(),
            rails: self.common.rails.iter().filter_map(rail).collect(),
            lost: self.common.lost.clone(),
            way: None,
        };
        self.end(&Verdict::Commit(self.digest.clone()), Ok(agreement))
    }
}
