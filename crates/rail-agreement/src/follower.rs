//! Any rank but 0: publishes its offer, reads the proposal, says yes or no, and reads the verdict.

use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::events::{Action, Agreement, Backoff, Event, Setup, Stage, failed};
use super::keys::Turn;
use super::message::{self, Ack, Proposal, REASON, Verdict, clip_line};
use super::{Digest, MAX_RAILS, MAX_VALUE, Nonce, Offer, Rail, Value};

mod ending;

#[derive(Debug)]
enum State {
    Begin,
    /// Writes that it is there, for people.
    Announcing,
    AwaitingLeader,
    Publishing,
    AwaitingProposal,
    CheckingLeader,
    /// Deletes the offer that it published for an earlier rank 0.
    WithdrawingOffer,
    Judging(u32, Agreement),
    Answering,
    AwaitingVerdict,
    ReportingDone(Box<Result<Agreement>>),
    CleaningUp(Box<Result<Agreement>>),
    CountingNodes,
    Ended,
}

#[derive(Debug)]
pub struct Follower {
    setup: Setup,
    persists: bool,
    state: State,
    backoff: Backoff,
    leader: Option<Nonce>,
    /// Why rank 0 may never propose anything: it refuses, has ended, or its offer cannot be read.
    leader_problem: Option<String>,
    /// This node said yes, and has not read since that the proposal was taken back.
    pledged: bool,
    read: u32,
    /// The turn that was answered: what it said yes to, or its own reason to say no.
    answered: Option<(u32, Result<Agreement>)>,
}

impl Follower {
    pub(super) fn new(setup: Setup, persists: bool) -> Follower {
        let (backoff, state) = (first_backoff(&setup), State::Begin);
        let (leader, leader_problem, answered) = (None, None, None);
        Follower {
            setup,
            persists,
            state,
            backoff,
            leader,
            leader_problem,
            pledged: false,
            read: 0,
            answered,
        }
    }

    pub(super) fn next(&mut self, event: Event) -> Action {
        let state = std::mem::replace(&mut self.state, State::Ended);
        match (state, event) {
            (State::Begin, Event::Begin) => {
                let key = self.setup.run.here(self.setup.rank);
                self.state = State::Announcing;
                Action::PutUnconfirmed(vec![(key, self.setup.offer.host.to_string().into_bytes())])
            }
            (State::Announcing, Event::Done) | (State::AwaitingLeader, Event::Missing) => {
                self.await_leader()
            }
            (State::AwaitingLeader, Event::Values(values)) => match values.into_iter().next() {
                Some(value) => self.follow(value),
                None => self.withdraw("the store gave no value".to_owned()),
            },
            (State::AwaitingProposal | State::AwaitingVerdict, Event::Missing) => {
                self.check_leader()
            }
            (State::CheckingLeader, Event::Read(values)) => self.leader_checked(&values),
            (State::WithdrawingOffer, Event::Done) => self.publish(),
            (State::AwaitingProposal, Event::Values(values)) => self.proposed(&values),
            (State::Judging(turn, agreement), Event::Judged(said)) => {
                self.answer(turn, said.map(|()| agreement))
            }
            (State::Publishing | State::Answering, Event::Done) => self.resume(),
            (State::AwaitingVerdict, Event::Values(values)) => self.read_verdict(&values),
            (State::ReportingDone(result), Event::Done) => self.clean_up(result),
            (State::CleaningUp(result), _) => Action::End(*result),
            (
                State::AwaitingLeader | State::AwaitingProposal | State::AwaitingVerdict,
                Event::Late,
            ) => self.late(),
            (State::CountingNodes, Event::Read(values)) => self.counted(&values),
            (state, event) => failed(format!("rank {}: {event:?} in {state:?}", self.setup.rank)),
        }
    }

    fn own_key(&self) -> Option<String> {
        Some(self.setup.run.offer(self.leader.as_ref()?, self.setup.rank))
    }

    fn turn(&self) -> Option<Turn<'_>> {
        Some(Turn {
            leader: self.leader.as_ref()?,
            count: self.answered.as_ref()?.0,
        })
    }

    fn verdict_stage(&self) -> Stage {
        if matches!(self.answered, Some((_, Err(_)))) {
            Stage::Refused
        } else {
            Stage::Verdict
        }
    }

    fn wait(&mut self, state: State, slice: Duration) -> Action {
        let (run, rank, nonce) = (&self.setup.run, self.setup.rank, &self.setup.offer.nonce);
        let (key, stage) = match (&state, &self.leader, self.turn()) {
            // No node writes that key: this is a pause before the next check.
            (State::AwaitingProposal, None, _) => (run.offer(nonce, rank), Stage::Leader),
            (State::AwaitingProposal, Some(zero), _) => {
                (run.proposal(zero, rank, nonce, self.read), Stage::Proposal)
            }
            (State::AwaitingVerdict, _, Some(turn)) => (run.verdict(&turn), self.verdict_stage()),
            _ => (run.leader(), Stage::Leader),
        };
        self.state = state;
        Action::Await {
            keys: vec![key],
            slice,
            stage,
        }
    }

    fn check_leader(&mut self) -> Action {
        let over = self
            .leader
            .as_ref()
            .map(|leader| self.setup.run.over(leader));
        self.state = State::CheckingLeader;
        Action::TryRead([self.setup.run.leader()].into_iter().chain(over).collect())
    }

    fn leader_checked(&mut self, values: &[Option<Value>]) -> Action {
        let over = values
            .get(1)
            .and_then(Option::as_ref)
            .map(|value| message::parse::<Verdict>(value));
        if let Some(how) = over.and_then(|said| said.ok()?.ended()) {
            self.leader_problem =
                Some(format!("rank 0 has ended this, and not begun again: {how}"));
            // It may restart at any time.
            self.backoff = first_backoff(&self.setup);
        }
        match values.first().cloned().flatten() {
            Some(value) => self.follow(value),
            None if self.leader.is_some() => self.resume(),
            None => self.await_leader(),
        }
    }

    fn await_leader(&mut self) -> Action {
        let slice = self.backoff.next_pause();
        self.wait(State::AwaitingLeader, slice)
    }

    fn follow(&mut self, value: Value) -> Action {
        let leader = match Offer::parse(&value) {
            Ok(offer) if self.leader.as_ref() == Some(&offer.nonce) => return self.resume(),
            Ok(offer) => {
                let refusal = |why: String| {
                    format!(
                        "{} (rank 0) refuses: {}",
                        offer.host,
                        clip_line(&why, REASON)
                    )
                };
                self.leader_problem = offer.refuses.clone().map(refusal);
                offer.nonce
            }
            // It may be left from an earlier attempt; rank 0 may still come.
            Err(e) => {
                self.leader_problem = Some(format!("what rank 0 published cannot be used: {e:#}"));
                return self.resume();
            }
        };
        let old = self.own_key();
        (self.leader, self.read, self.answered, self.backoff) =
            (Some(leader), 0, None, first_backoff(&self.setup));
        match old {
            // An earlier rank 0 may still run; it must not count on this node.
            Some(old) => {
                self.state = State::WithdrawingOffer;
                Action::Delete(vec![old])
            }
            None => self.publish(),
        }
    }

    fn publish(&mut self) -> Action {
        let (Some(leader), Some(key)) = (&self.leader, self.own_key()) else {
            return failed("no rank 0 to publish for");
        };
        let no = self
            .setup
            .offer
            .cannot_agree()
            .then(|| (self.setup.run.refusal(leader), b"1".to_vec()));
        match self.setup.offer.encode() {
            Ok(value) => {
                self.state = State::Publishing;
                Action::PutUnconfirmed([(key, value)].into_iter().chain(no).collect())
            }
            Err(e) => failed(format!("publishing: {e:#}")),
        }
    }

    /// Waits for the verdict if it has answered, else for a proposal.
    fn resume(&mut self) -> Action {
        let slice = self.backoff.next_pause();
        let state = if self.answered.is_some() {
            State::AwaitingVerdict
        } else {
            State::AwaitingProposal
        };
        self.wait(state, slice)
    }

    fn proposed(&mut self, values: &[Value]) -> Action {
        let proposal = values.first().map(|v| message::parse::<Proposal>(v));
        let (turn, judged) = match proposal {
            Some(Ok(Proposal::Rails {
                turn,
                rails,
                nonces,
                digest,
                lost,
            })) => (turn, self.judge(rails, nonces, digest, lost)),
            Some(Ok(Proposal::Abort { turn, why })) => {
                return self.end_aborted(turn, clip_line(&why, MAX_VALUE));
            }
            Some(Err(e)) => {
                return self.withdraw(format!("what rank 0 proposes cannot be used: {e:#}"));
            }
            None => return self.withdraw("the store gave no value".to_owned()),
        };
        match judged {
            Ok(agreement) => {
                let asked = Box::new(agreement.clone());
                self.state = State::Judging(turn, agreement);
                Action::Judge(asked)
            }
            Err(e) => self.answer(turn, Err(refused(&format!("{e:#}")))),
        }
    }

    /// Says yes, or no with the node's own reason, with which it ends. It waits for the verdict
    /// after a no as well: in PMI the no becomes visible only with a barrier of all nodes.
    fn answer(&mut self, turn: u32, judged: Result<Agreement>) -> Action {
        let Some(leader) = self.leader.clone() else {
            return failed("a proposal without a leader");
        };
        let key = self.setup.run.ack(
            &Turn {
                leader: &leader,
                count: turn,
            },
            self.setup.rank,
        );
        self.backoff = first_backoff(&self.setup);
        let (ack, no) = match &judged {
            Ok(agreement) => (Ack::Yes(agreement.digest.clone()), None),
            Err(e) => (
                Ack::No(clip_line(&format!("{e:#}"), REASON)),
                Some((self.setup.run.refusal(&leader), b"1".to_vec())),
            ),
        };
        self.pledged |= judged.is_ok();
        self.answered = Some((turn, judged));
        match message::encode(&ack) {
            Ok(value) => {
                self.state = State::Answering;
                Action::PutUnconfirmed([(key, value)].into_iter().chain(no).collect())
            }
            Err(e) => failed(format!("{e:#}")),
        }
    }

    /// Checks the proposal. Rank 0 can take rails away from this node and order them; it cannot add
    /// one.
    fn judge(
        &self,
        keys: Vec<super::RailKey>,
        nonces: Digest,
        digest: Digest,
        lost: Vec<String>,
    ) -> Result<Agreement> {
        let Setup { run, rank, offer } = &self.setup;
        ensure!(
            !keys.is_empty() && keys.len() <= MAX_RAILS,
            "rank 0 proposes {} rails",
            keys.len()
        );
        let mut rails: Vec<Rail> = Vec::new();
        for key in &keys {
            let Some(device) = offer.device(key) else {
                bail!("rank 0 proposes rail {key}, which this node did not offer")
            };
            ensure!(
                !rails.iter().any(|Rail(k, _)| k == key),
                "rank 0 proposes rail {key} twice"
            );
            rails.push(Rail(key.clone(), device.clone()));
        }
        let own = Digest::of_result(run, offer.nodes, offer.policy, &nonces, &keys);
        ensure!(
            own == digest,
            "rank 0's digest {} is not that of what it proposes",
            digest.short()
        );
        let lost = lost.iter().map(|line| clip_line(line, REASON)).collect();
        let (run, nodes) = (run.clone(), offer.nodes);
        Ok(Agreement {
            run,
            rank: *rank,
            nodes,
            policy: offer.policy,
            nonces,
            digest,
            rails,
            lost,
            store_ifaces: None,
        })
    }

    fn read_verdict(&mut self, values: &[Value]) -> Action {
        let (turn, agreement) = match self.answered.take() {
            Some((turn, Ok(agreement))) => (turn, agreement),
            Some((turn, own)) => return self.report_done(turn, own),
            None => return failed("a verdict on nothing"),
        };
        match values.first().map(|v| message::parse::<Verdict>(v)) {
            Some(Ok(Verdict::Commit(digest))) if digest == agreement.digest => {
                self.report_done(turn, Ok(agreement))
            }
            Some(Ok(Verdict::Commit(_))) => {
                self.withdraw("rank 0 commits to something else than it proposed".to_owned())
            }
            Some(Ok(Verdict::Abort(why))) => self.end_aborted(turn, clip_line(&why, MAX_VALUE)),
            Some(Ok(Verdict::Again)) => {
                self.pledged = false;
                self.read += 1;
                self.backoff = first_backoff(&self.setup);
                self.resume()
            }
            Some(Err(e)) => self.withdraw(format!("rank 0's verdict cannot be used: {e:#}")),
            None => self.withdraw("the store gave no value".to_owned()),
        }
    }
}

/// More nodes take longer to publish, and each cancelled wait costs the store a request: the first
/// pause is 1 s and 1 ms per node.
fn first_backoff(setup: &Setup) -> Backoff {
    Backoff::from_millis(1000 + u64::from(setup.nodes()))
}

fn refused(why: &str) -> anyhow::Error {
    rdma_model::error_class::ErrorClass::Disagreed.error(why)
}
