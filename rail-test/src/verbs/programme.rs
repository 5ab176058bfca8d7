//! What is sent on one lane, in order, and what came of it. Times come from outside.
//!
//! Straight lanes: 200 writes of 8 bytes, each when the one before has ended, for two seconds at
//! most; one write of the path's MTU; writes of 1 MiB for some time, and a last one; a farewell.
//! The other end compares what arrives. Lanes between different rails: one write of 8 bytes.

use std::time::{Duration, Instant};

use rdma_verbs::{Ended, Lane, Memory, Room};

use crate::transport::{Far, Fault, LaneId, Measured, Why, mtu_bytes};

const SMALL: (usize, u32) = (0, 8);
const WRITES: usize = 200;
/// A slow lane has had its small writes after this time: its round ends.
const SMALL_FOR: Duration = Duration::from_secs(2);
const AT_MTU: usize = 4096;
const AT_LARGE: usize = 8192;
const LARGE: u32 = 1 << 20;
/// Large writes at once.
const DEPTH: u32 = 4;
/// How long a lane that has failed still listens after the last word of its other end.
const QUIET: Duration = Duration::from_millis(300);

/// Numbers that writes carry.
const A_SMALL: u32 = 1;
const THE_MTU: u32 = 2;
const THE_LAST: u32 = 3;
const FAREWELL: u32 = 4;

pub const ROOM_CROSSED: Room = Room {
    bytes: 64,
    sends: 2,
    receives: 4,
};

pub fn room(flow: Duration) -> Room {
    Room {
        bytes: match flow.is_zero() {
            true => AT_LARGE,
            false => AT_LARGE + LARGE as usize,
        },
        sends: DEPTH + 1,
        receives: WRITES as u32 + 8,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Small,
    Mtu,
    Flow,
    Last,
    Farewell,
    Done,
}

/// What a programme needs of a lane.
pub trait Wire {
    fn fill(&mut self, at: usize, bytes: &[u8]);
    fn written(&self, at: usize, length: usize) -> Vec<u8>;
    /// An error is a request that the HCA does not take.
    fn write(&mut self, what: (usize, u32), to: &Memory, number: Option<u32>) -> Result<(), ()>;
}

impl Wire for Lane {
    fn fill(&mut self, at: usize, bytes: &[u8]) {
        Lane::fill(self, at, bytes);
    }

    fn written(&self, at: usize, length: usize) -> Vec<u8> {
        Lane::written(self, at, length)
    }

    fn write(&mut self, what: (usize, u32), to: &Memory, number: Option<u32>) -> Result<(), ()> {
        Lane::write(self, 0, what, to, number).map_err(|_| ())
    }
}

#[derive(Debug)]
pub struct Programme {
    id: LaneId,
    flow: Duration,
    mtu: u32,
    /// Of the other end's contents.
    seed: u32,
    stage: Stage,
    result: Option<Result<Measured, Fault>>,
    nanos: Vec<u32>,
    bytes: u64,
    rate: u32,
    at_once: u32,
    begun: Option<Instant>,
    sent: Option<Instant>,
    flows: Option<Instant>,
    /// When something happened last, here or from the other end.
    last: Option<Instant>,
    heard: Option<Instant>,
    is_taken_leave_of: bool,
}

impl Programme {
    pub fn new(id: LaneId, flow: Duration) -> Programme {
        Programme {
            id,
            flow,
            mtu: 0,
            seed: 0,
            stage: Stage::Small,
            result: None,
            nanos: Vec::new(),
            bytes: 0,
            rate: 0,
            at_once: 0,
            begun: None,
            sent: None,
            flows: None,
            last: None,
            heard: None,
            is_taken_leave_of: false,
        }
    }

    /// Lays out what is sent, before anything is: by this end's own numbers, which the other end
    /// knows from the card.
    pub fn fill(&mut self, lane: &mut Lane, far: &Far, mtu: u8) {
        let seed = lane.packet() ^ lane.queue_pair();
        self.lay_out(lane, seed, far.lane.packet ^ far.lane.queue_pair, mtu);
    }

    fn lay_out(&mut self, lane: &mut impl Wire, own: u32, theirs: u32, mtu: u8) {
        self.mtu = mtu_bytes(mtu);
        self.seed = theirs;
        lane.fill(SMALL.0, &contents(own, SMALL.1));
        if !self.id.is_straight() {
            return;
        }
        lane.fill(AT_MTU, &contents(own, self.mtu));
        if !self.flow.is_zero() {
            lane.fill(AT_LARGE, &contents(own, LARGE));
        }
    }

    pub fn start(&mut self, lane: &mut impl Wire, to: &Memory, now: Instant) {
        (self.begun, self.last) = (Some(now), Some(now));
        self.post(lane, to, SMALL, Some(A_SMALL), now);
    }

    fn post(
        &mut self,
        lane: &mut impl Wire,
        to: &Memory,
        what: (usize, u32),
        number: Option<u32>,
        now: Instant,
    ) {
        self.sent = Some(now);
        match lane.write(what, to, number) {
            Ok(()) => self.at_once += 1,
            Err(()) => self.fail(Fault::of(Why::Status)),
        }
    }

    fn fail(&mut self, fault: Fault) {
        // What follows the first failure is its consequence.
        if self.result.is_none_or(|result| result.is_ok()) {
            self.result = Some(Err(fault));
        }
    }

    pub fn take(&mut self, lane: &mut impl Wire, to: &Memory, ended: Ended, now: Instant) {
        self.last = Some(now);
        match ended {
            Ended::Sent(_) => {
                self.at_once = self.at_once.saturating_sub(1);
                if self.result.is_none() {
                    self.go_on(lane, to, now);
                }
            }
            Ended::Received(number) => {
                self.heard = Some(now);
                self.compare(lane, number);
            }
            Ended::Failed { status, .. } => self.fail(self.by_status(status)),
        }
    }

    fn is_slow(&self, now: Instant) -> bool {
        self.begun
            .is_some_and(|begun| now.duration_since(begun) >= SMALL_FOR)
    }

    fn go_on(&mut self, lane: &mut impl Wire, to: &Memory, now: Instant) {
        match self.stage {
            Stage::Small => {
                let took = self.sent.map(|sent| now.duration_since(sent).as_nanos());
                let took = took.and_then(|nanos| u32::try_from(nanos).ok());
                self.nanos.push(took.unwrap_or(u32::MAX));
                if !self.id.is_straight() {
                    self.end();
                } else if self.nanos.len() < WRITES && !self.is_slow(now) {
                    self.post(lane, to, SMALL, Some(A_SMALL), now);
                } else {
                    self.stage = Stage::Mtu;
                    self.post(lane, to, (AT_MTU, self.mtu), Some(THE_MTU), now);
                }
            }
            Stage::Mtu if self.flow.is_zero() => self.leave(lane, to, now),
            Stage::Mtu => {
                (self.stage, self.flows) = (Stage::Flow, Some(now));
                for _ in 0..DEPTH {
                    self.post(lane, to, (AT_LARGE, LARGE), None, now);
                }
            }
            Stage::Flow => {
                self.bytes += u64::from(LARGE);
                let took = self.flows.map_or(Duration::ZERO, |then| now - then);
                if took < self.flow {
                    self.post(lane, to, (AT_LARGE, LARGE), None, now);
                } else if self.at_once == 0 {
                    let rate = self.bytes as f64 / took.as_secs_f64() / 1e6;
                    self.rate = rate.max(1.0) as u32;
                    self.stage = Stage::Last;
                    self.post(lane, to, (AT_LARGE, LARGE), Some(THE_LAST), now);
                }
            }
            Stage::Last => self.leave(lane, to, now),
            Stage::Farewell => self.end(),
            Stage::Done => {}
        }
    }

    fn leave(&mut self, lane: &mut impl Wire, to: &Memory, now: Instant) {
        self.stage = Stage::Farewell;
        self.post(lane, to, SMALL, Some(FAREWELL), now);
    }

    fn end(&mut self) {
        self.stage = Stage::Done;
        self.nanos.sort_unstable();
        let at = |part: usize| self.nanos.get(self.nanos.len() * part / 100).copied();
        self.result = Some(Ok(Measured {
            median_ns: at(50).unwrap_or(0),
            p99_ns: at(99).unwrap_or(0),
            rate: self.rate,
        }));
    }

    fn compare(&mut self, lane: &impl Wire, number: u32) {
        let (at, length) = match number {
            A_SMALL => SMALL,
            FAREWELL => {
                self.is_taken_leave_of = true;
                SMALL
            }
            THE_MTU if self.id.is_straight() => (AT_MTU, self.mtu),
            THE_LAST if self.id.is_straight() && !self.flow.is_zero() => (AT_LARGE, LARGE),
            // This end measures no rate, and has no room for it.
            _ => return self.fail(Fault::of(Why::Contents)),
        };
        if lane.written(at, length as usize) != contents(self.seed, length) {
            self.fail(Fault::of(Why::Contents));
        }
    }

    /// enum ibv_wc_status: 5 is what was flushed, 9 to 11 what the other end refuses, 12 no answer.
    fn by_status(&self, status: u32) -> Fault {
        let why = match status {
            5 => Why::Stopped,
            9..=11 => Why::Access,
            12 => self.unanswered(),
            _ => Why::Status,
        };
        Fault {
            why,
            number: status,
        }
    }

    /// What no answer means, by what was answered before.
    fn unanswered(&self) -> Why {
        match self.stage {
            Stage::Small if self.nanos.is_empty() => Why::NoAnswer,
            Stage::Mtu => Why::TooLarge,
            _ => Why::Stopped,
        }
    }

    /// Whether nothing more is to come: this end has a result, and the other has said farewell, or
    /// is silent for too long.
    pub fn is_over(&mut self, limit: Duration, now: Instant) -> bool {
        let longest = limit * 3 + SMALL_FOR + self.flow;
        if self
            .begun
            .is_some_and(|begun| now.duration_since(begun) > longest)
        {
            // The other end may go on for ever, a little at a time.
            if self.result.is_none() {
                self.fail(Fault::of(self.unanswered()));
            }
            return true;
        }
        let silent = self
            .last
            .map_or(Duration::MAX, |last| now.duration_since(last));
        match self.result {
            None if silent > limit => self.fail(Fault::of(self.unanswered())),
            None => return false,
            Some(_) => {}
        }
        if !self.id.is_straight() || self.is_taken_leave_of {
            return true;
        }
        let quiet = match self.result {
            Some(Ok(_)) => limit,
            _ => QUIET,
        };
        let heard = self.heard.max(self.last);
        heard.is_none_or(|heard| now.duration_since(heard) > quiet)
    }

    pub fn result(&self) -> Option<Result<Measured, Fault>> {
        self.result
    }
}

/// Bytes that a sender with this seed sends, and no sender with another.
fn contents(seed: u32, length: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length as usize);
    let mut state = seed.wrapping_mul(0x9e37_79b1).max(1);
    while bytes.len() < length as usize {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length as usize);
    bytes
}

#[cfg(test)]
mod tests;
