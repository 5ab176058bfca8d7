//! Any rank but 0: publishes, hears what rank 0 proposes, says yes or no, and hears how it ended.

use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::keys::Turn;
use super::message::{self, Ack, Proposal, Verdict, clipped};
use super::node::{Act, Agreement, Event, Setup, Slices, Stage, failed};
use super::{Digest, MAX_RAILS, Nonce, Offer, Rail, Value};

/// Where it is.
#[derive(Debug)]
enum State {
    Begin,
    Coming,
    /// Waiting for rank 0's nonce.
    Leader,
    Publishing,
    /// Waiting for a proposal.
    Proposal,
    /// Looking whether rank 0 has begun anew, or has gone.
    Looking,
    /// Taking back what it published for another rank 0.
    Turning,
    /// Making up its own mind on what is proposed in that turn.
    Judging(u32, Agreement),
    /// Saying yes or no.
    Acking,
    /// Waiting for the end.
    Verdict,
    /// Saying that it knows.
    Leaving(Box<Result<Agreement>>),
    /// Taking back what it wrote.
    Sweeping(Box<Result<Agreement>>),
    /// Nobody has answered: who is there at all?
    Counting,
    Ended,
}

/// How many nodes there may be for each of them to look who is missing: beyond that, only rank 0 does.
const FEW: u32 = 256;

/// Any rank but 0.
#[derive(Debug)]
pub struct Follower {
    setup: Setup,
    persists: bool,
    state: State,
    slices: Slices,
    /// Rank 0's attempt, as far as it is known.
    leader: Option<Nonce>,
    /// What is known of why it may never propose anything: it refuses, has gone, or cannot be read.
    gone: Option<String>,
    /// That it has said yes, and not heard since that this came to nothing.
    pledged: bool,
    /// How many proposals of it were read.
    read: u32,
    /// What was said yes to, or this node's own reason to say no, and in which turn.
    said: Option<(u32, Result<Agreement>)>,
}

impl Follower {
    pub(super) fn new(setup: Setup, persists: bool) -> Follower {
        let (slices, state) = (slices(&setup), State::Begin);
        Follower { setup, persists, state, slices, leader: None, gone: None, pledged: false, read: 0, said: None }
    }

    pub(super) fn next(&mut self, event: Event) -> Act {
        let state = std::mem::replace(&mut self.state, State::Ended);
        match (state, event) {
            (State::Begin, Event::Begin) => {
                let key = self.setup.run.here(self.setup.rank);
                self.state = State::Coming;
                Act::Tell(vec![(key, self.setup.offer.host.to_string().into_bytes())])
            }
            (State::Coming, Event::Done) | (State::Leader, Event::Missing) => self.lead(),
            (State::Leader, Event::Values(values)) => match values.into_iter().next() {
                Some(value) => self.led(value),
                None => self.withdraw("the store gave no value".to_owned()),
            },
            (State::Proposal | State::Verdict, Event::Missing) => self.look(),
            (State::Looking, Event::Read(values)) => self.looked(&values),
            (State::Turning, Event::Done) => self.publish(),
            (State::Proposal, Event::Values(values)) => self.proposed(&values),
            (State::Judging(turn, agreement), Event::Judged(said)) => self.answer(turn, said.map(|()| agreement)),
            (State::Publishing | State::Acking, Event::Done) => self.resume(),
            (State::Verdict, Event::Values(values)) => self.ended(&values),
            (State::Leaving(result), Event::Done) => self.sweep(result),
            (State::Sweeping(result), _) => Act::End(*result),
            (State::Leader | State::Proposal | State::Verdict, Event::Late) => self.late(),
            (State::Counting, Event::Read(values)) => self.counted(&values),
            (state, event) => failed(format!("rank {}: {event:?} in {state:?}", self.setup.rank)),
        }
    }

    /// Where this node has published.
    fn own(&self) -> Option<String> {
        Some(self.setup.run.offer(self.leader.as_ref()?, self.setup.rank))
    }

    fn turn(&self) -> Option<Turn<'_>> {
        Some(Turn { leader: self.leader.as_ref()?, count: self.said.as_ref()?.0 })
    }

    /// What it waits for after its answer.
    fn verdict(&self) -> Stage {
        if matches!(self.said, Some((_, Err(_)))) { Stage::Refused } else { Stage::Verdict }
    }

    /// Waits for what belongs to that state.
    fn wait(&mut self, state: State, slice: Duration) -> Act {
        let (run, rank, nonce) = (&self.setup.run, self.setup.rank, &self.setup.offer.nonce);
        let (key, stage) = match (&state, &self.leader, self.turn()) {
            // Nobody writes that one: it is a pause before another look.
            (State::Proposal, None, _) => (run.offer(nonce, rank), Stage::Leader),
            (State::Proposal, Some(leader), _) => (run.proposal(leader, rank, nonce, self.read), Stage::Proposal),
            (State::Verdict, _, Some(turn)) => (run.verdict(&turn), self.verdict()),
            _ => (run.leader(), Stage::Leader),
        };
        self.state = state;
        Act::Await { keys: vec![key], slice, stage }
    }

    /// Looks whether rank 0 has begun anew, or has gone.
    fn look(&mut self) -> Act {
        let over = self.leader.as_ref().map(|leader| self.setup.run.over(leader));
        self.state = State::Looking;
        Act::Peek([self.setup.run.leader()].into_iter().chain(over).collect())
    }

    fn looked(&mut self, values: &[Option<Value>]) -> Act {
        let over = values.get(1).and_then(Option::as_ref).map(|value| message::parse::<Verdict>(value));
        if let Some(how) = over.and_then(|said| said.ok()?.ended()) {
            self.gone = Some(format!("rank 0 has ended this, and not begun again: {how}"));
            // It may begin again at any time.
            self.slices = slices(&self.setup);
        }
        match values.first().cloned().flatten() {
            Some(value) => self.led(value),
            None if self.leader.is_some() => self.resume(),
            None => self.lead(),
        }
    }

    /// Waits for rank 0 to publish.
    fn lead(&mut self) -> Act {
        let slice = self.slices.slice();
        self.wait(State::Leader, slice)
    }

    /// Rank 0 is there, or there again.
    fn led(&mut self, value: Value) -> Act {
        let leader = match Offer::parse(&value) {
            Ok(offer) if self.leader.as_ref() == Some(&offer.nonce) => return self.resume(),
            Ok(offer) => {
                let refusal = |why: String| format!("{} (rank 0) refuses: {}", offer.host, clipped(&why, 512));
                self.gone = offer.refuses.clone().map(refusal);
                offer.nonce
            }
            // An earlier attempt may have left it, and rank 0 be yet to come.
            Err(e) => {
                self.gone = Some(format!("what rank 0 published cannot be used: {e:#}"));
                return self.resume();
            }
        };
        let old = self.own();
        (self.leader, self.read, self.said, self.slices) = (Some(leader), 0, None, slices(&self.setup));
        match old {
            // Nobody shall count on what was said to another rank 0, which may still be there.
            Some(old) => {
                self.state = State::Turning;
                Act::Delete(vec![old])
            }
            None => self.publish(),
        }
    }

    fn publish(&mut self) -> Act {
        let (Some(leader), Some(key)) = (&self.leader, self.own()) else { return failed("no rank 0 to publish for") };
        let no = self.setup.offer.hopeless().then(|| (self.setup.run.refusal(leader), b"1".to_vec()));
        match self.setup.offer.print() {
            Ok(value) => {
                self.state = State::Publishing;
                Act::Tell([(key, value)].into_iter().chain(no).collect())
            }
            Err(e) => failed(format!("publishing: {e:#}")),
        }
    }

    /// Waits for the verdict if it has said yes, else for a proposal.
    fn resume(&mut self) -> Act {
        let slice = self.slices.slice();
        let state = if self.said.is_some() { State::Verdict } else { State::Proposal };
        self.wait(state, slice)
    }

    fn proposed(&mut self, values: &[Value]) -> Act {
        let proposal = values.first().map(|v| message::parse::<Proposal>(v));
        let (turn, judged) = match proposal {
            Some(Ok(Proposal::Rails { turn, rails, nonces, digest, lost })) => {
                (turn, self.judge(rails, nonces, digest, lost))
            }
            Some(Ok(Proposal::Abort { turn, why })) => return self.leave(turn, clipped(&why, 4096)),
            Some(Err(e)) => return self.withdraw(format!("what rank 0 proposes cannot be used: {e:#}")),
            None => return self.withdraw("the store gave no value".to_owned()),
        };
        match judged {
            Ok(agreement) => {
                let asked = Box::new(agreement.clone());
                self.state = State::Judging(turn, agreement);
                Act::Judge(asked)
            }
            Err(e) => self.answer(turn, Err(refused(&format!("{e:#}")))),
        }
    }

    /// Says yes, or no with this node's own reason, with which it ends. It stays for the verdict after a no as well: in a store
    /// where what is put travels with a barrier of all, nobody else would hear of it.
    fn answer(&mut self, turn: u32, judged: Result<Agreement>) -> Act {
        let Some(leader) = self.leader.clone() else { return failed("a proposal without a leader") };
        let key = self.setup.run.ack(&Turn { leader: &leader, count: turn }, self.setup.rank);
        self.slices = slices(&self.setup);
        let (ack, no) = match &judged {
            Ok(agreement) => (Ack::Yes(agreement.digest.clone()), None),
            Err(e) => {
                (Ack::No(clipped(&format!("{e:#}"), 512)), Some((self.setup.run.refusal(&leader), b"1".to_vec())))
            }
        };
        self.pledged |= judged.is_ok();
        self.said = Some((turn, judged));
        match message::print(&ack) {
            Ok(value) => {
                self.state = State::Acking;
                Act::Tell([(key, value)].into_iter().chain(no).collect())
            }
            Err(e) => failed(format!("{e:#}")),
        }
    }

    /// Rank 0 can take rails away from this node, and order them; it cannot add one.
    fn judge(&self, keys: Vec<super::RailKey>, nonces: Digest, digest: Digest, lost: Vec<String>) -> Result<Agreement> {
        let Setup { run, rank, offer } = &self.setup;
        ensure!(!keys.is_empty() && keys.len() <= MAX_RAILS, "rank 0 proposes {} rails", keys.len());
        let mut rails: Vec<Rail> = Vec::new();
        for key in &keys {
            let Some(device) = offer.device(key) else {
                bail!("rank 0 proposes rail {key}, which this node did not offer")
            };
            ensure!(!rails.iter().any(|Rail(k, _)| k == key), "rank 0 proposes rail {key} twice");
            rails.push(Rail(key.clone(), device.clone()));
        }
        let own = Digest::of_result(run, offer.nodes, offer.policy, &nonces, &keys);
        ensure!(own == digest, "rank 0's digest {} is not that of what it proposes", digest.short());
        let lost = lost.iter().map(|line| clipped(line, 512)).collect();
        let (run, nodes) = (run.clone(), offer.nodes);
        Ok(Agreement { run, rank: *rank, nodes, policy: offer.policy, nonces, digest, rails, lost, way: None })
    }

    fn ended(&mut self, values: &[Value]) -> Act {
        let (turn, agreement) = match self.said.take() {
            Some((turn, Ok(agreement))) => (turn, agreement),
            Some((turn, own)) => return self.tell(turn, own),
            None => return failed("a verdict on nothing"),
        };
        match values.first().map(|v| message::parse::<Verdict>(v)) {
            Some(Ok(Verdict::Commit(digest))) if digest == agreement.digest => self.tell(turn, Ok(agreement)),
            Some(Ok(Verdict::Commit(_))) => {
                self.withdraw("rank 0 commits to something else than it proposed".to_owned())
            }
            Some(Ok(Verdict::Abort(why))) => self.leave(turn, clipped(&why, 4096)),
            Some(Ok(Verdict::Again)) => {
                self.pledged = false;
                self.read += 1;
                self.slices = slices(&self.setup);
                self.resume()
            }
            Some(Err(e)) => self.withdraw(format!("rank 0's verdict cannot be used: {e:#}")),
            None => self.withdraw("the store gave no value".to_owned()),
        }
    }

    fn leave(&mut self, turn: u32, why: String) -> Act {
        self.tell(turn, Err(refused(&why)))
    }

    fn tell(&mut self, turn: u32, result: Result<Agreement>) -> Act {
        let Some(leader) = self.leader.clone() else { return Act::End(result) };
        let key = self.setup.run.done(&Turn { leader: &leader, count: turn }, self.setup.rank);
        self.state = State::Leaving(Box::new(result));
        Act::Hint(vec![(key, b"1".to_vec())])
    }

    /// Nobody shall count on this attempt any more. After a commit that is of interest only where it would stay for good.
    fn sweep(&mut self, result: Box<Result<Agreement>>) -> Act {
        if result.is_ok() && !self.persists {
            return Act::End(*result);
        }
        self.state = State::Sweeping(result);
        Act::Delete(self.own().into_iter().collect())
    }

    fn withdraw(&mut self, why: String) -> Act {
        self.sweep(Box::new(Err(refused(&why))))
    }

    fn late(&mut self) -> Act {
        match self.said.take() {
            _ if self.pledged => {
                let why = "this node said yes, and has not heard how it ended: others may have committed; here nothing was \
                           moved";
                return self.withdraw(why.to_owned());
            }
            Some((_, own)) => return self.sweep(Box::new(own)),
            None => {}
        }
        if let Some(why) = self.gone.take() {
            return self.withdraw(why);
        }
        if self.setup.nodes() > FEW {
            let who =
                if self.leader.is_some() { "has proposed nothing in time; its message says why" } else { "is missing" };
            return self.withdraw(format!("rank 0 {who}"));
        }
        self.state = State::Counting;
        Act::Read((1..self.setup.nodes()).map(|rank| self.setup.run.here(rank)).collect())
    }

    fn counted(&mut self, values: &[Option<Value>]) -> Act {
        let absent = (1..self.setup.nodes()).zip(values).filter(|(_, v)| v.is_none()).map(|(rank, _)| rank);
        // A rank that has died since has come as well: it is rank 0 that knows.
        let zero = self.leader.is_none().then_some(0);
        let absent: Vec<u32> = zero.into_iter().chain(absent).collect();
        if absent.is_empty() {
            return self.withdraw("all have come, but rank 0 has proposed nothing in time".to_owned());
        }
        self.withdraw(format!("missing {}: nothing was published in time", message::ranks(&absent)))
    }
}

/// The more nodes there are, the longer all takes; a wait that is called off and repeated by each is dear.
fn slices(setup: &Setup) -> Slices {
    Slices::from(1000 + u64::from(setup.nodes()))
}

fn refused(why: &str) -> anyhow::Error {
    rdma_model::error_class::ErrorClass::Disagreed.error(why)
}
