use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The time that one part of the work took, all its occurrences together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    pub name: PhaseName,
    pub micros: u64,
}

/// The parts of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum PhaseName {
    Observe,
    Plan,
    Journal,
    Lock,
    /// Link messages that change a NIC's namespace, and what makes RDMA links.
    Move,
    /// Addresses, routes, rules, neighbours, sysctls, links up.
    Configure,
    GidWait,
    Verify,
    /// Waiting for what else the container gets: its /sys, settings, device nodes. Most of it is
    /// done beside the moves.
    Dress,
    /// Taking back after a failure.
    Undo,
}

/// Measures phases: each lap books the time since the one before.
#[derive(Clone, Debug)]
pub struct Stopwatch {
    start: Instant,
    last: Instant,
    spent: Vec<(PhaseName, Duration)>,
}

impl Stopwatch {
    pub fn start() -> Stopwatch {
        Stopwatch::since(Instant::now())
    }

    pub fn since(start: Instant) -> Stopwatch {
        Stopwatch {
            start,
            last: start,
            spent: Vec::new(),
        }
    }

    /// Books the time since the last lap, or since the start, to a phase.
    pub fn lap(&mut self, phase: PhaseName) {
        let now = Instant::now();
        self.add(phase, now - self.last);
        self.last = now;
    }

    /// Books time that was measured elsewhere.
    pub fn add(&mut self, phase: PhaseName, time: Duration) {
        match self.spent.iter_mut().find(|(name, _)| *name == phase) {
            Some((_, spent)) => *spent += time,
            None => self.spent.push((phase, time)),
        }
    }

    pub fn phases(&self) -> Vec<Phase> {
        self.spent
            .iter()
            .map(|(name, time)| Phase {
                name: *name,
                micros: time.as_micros() as u64,
            })
            .collect()
    }

    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}
