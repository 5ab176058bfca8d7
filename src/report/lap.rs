use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The time that one part of the work took, all its occurrences together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LapTime {
    pub name: Lap,
    pub micros: u64,
}

/// The parts of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Lap {
    Observe,
    Plan,
    Record,
    Lock,
    /// Link messages that change a NIC's namespace, and what makes RDMA links.
    Move,
    /// Addresses, routes, rules, neighbours, sysctls, links up.
    Configure,
    GidWait,
    Verify,
    /// Waiting for what else the container gets: its /sys, settings, device nodes. Most of it is
    /// done beside the moves.
    Setup,
    /// Bringing NICs back: a stop, a restore, and what a create that failed takes back.
    Undo,
}
