//! What a test is asked for, alike on all nodes; and the keys of what nodes say.

use std::time::Duration;

use rail_agreement::message::HostName;
use rail_agreement::{Digest, RunId};
use serde::{Deserialize, Serialize};

use crate::addresses::Own;
use crate::pairs::Schedule;
use crate::transport::LaneId;

pub const LOST: &str = "the rendezvous store";
/// A pair of more rails is not crossed: the queue pairs grow with the square.
pub const MOST_CROSSED: usize = 16;

/// The end of a test, of few nodes, and for each node more: over a file they read the verdict and
/// say so one after the other.
const FAREWELL: Duration = Duration::from_secs(10);
const FAREWELL_EACH: Duration = Duration::from_millis(50);

/// How long after the last round rank 0 may take to say what all found, as the others wait; and
/// how long it then waits for them to read it, since the store may end with its process.
pub fn farewell(nodes: u32) -> Duration {
    FAREWELL + FAREWELL_EACH * nodes
}

/// Which rounds also send from each rail to each other rail of the partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cross {
    First,
    All,
    None,
}

/// What all nodes have to ask for alike, and this node's own part.
#[derive(Clone, Debug)]
pub struct Asked {
    pub run: RunId,
    /// Of the agreement: no key of an earlier test is like one of this.
    pub digest: Digest,
    pub rank: u32,
    pub nodes: u32,
    pub host: HostName,
    pub schedule: Schedule,
    pub cross: Cross,
    pub rails: Vec<String>,
    /// Rails that only some nodes have, a line each: NCCL would take different ones.
    pub lost: Vec<String>,
    /// How long a round takes at most, by what the lanes may take.
    pub round: Duration,
    pub own: Own,
}

/// Keys of a test, all below those of the run.
#[derive(Clone, Debug)]
pub struct Keys(String);

impl Keys {
    pub fn new(run: &RunId, digest: &Digest) -> Keys {
        let digest = digest.as_str().get(..32).unwrap_or_default();
        Keys(format!("rdmaprep/v1/{run}/test/{digest}"))
    }

    pub fn card(&self, round: u32, rank: u32, part: usize) -> String {
        format!("{}/card/{round}/{rank}/{part}", self.0)
    }

    pub fn ready(&self, round: u32, rank: u32) -> String {
        format!("{}/ready/{round}/{rank}", self.0)
    }

    pub fn told(&self, rank: u32, part: usize) -> String {
        format!("{}/told/{rank}/{part}", self.0)
    }

    pub fn wish(&self) -> String {
        format!("{}/wish", self.0)
    }

    pub fn verdict(&self) -> String {
        format!("{}/verdict", self.0)
    }

    pub fn done(&self, rank: u32) -> String {
        format!("{}/done/{rank}", self.0)
    }
}

/// What rank 0 asks for, and all nodes do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    pub pattern: String,
    pub cross: Cross,
    /// How long the rate is measured, in milliseconds; at most [`LONGEST`].
    pub flow: u32,
    /// When a rail on which nothing moves is given up, in seconds; at most [`LONGEST`].
    pub patience: u32,
}

/// Of a node that asks for more no one hears again.
const LONGEST: Duration = Duration::from_secs(600);

impl Wish {
    pub fn flow(&self) -> Duration {
        Duration::from_millis(self.flow.into()).min(LONGEST)
    }

    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.patience.into()).min(LONGEST)
    }
}

impl Asked {
    /// The lanes of a round, straight ones first: of the card's size at both ends.
    pub fn lanes(&self, round: u32) -> Vec<LaneId> {
        let rails = u8::try_from(self.rails.len()).unwrap_or(u8::MAX);
        let mut lanes: Vec<LaneId> = (0..rails).map(|rail| LaneId(rail, rail)).collect();
        if self.crosses(round) {
            let all = (0..rails).flat_map(|own| (0..rails).map(move |theirs| LaneId(own, theirs)));
            lanes.extend(all.filter(|lane| !lane.is_straight()));
        }
        lanes
    }

    pub fn crosses(&self, round: u32) -> bool {
        let is_asked = match self.cross {
            Cross::First => self.schedule.is_first(round),
            Cross::All => true,
            Cross::None => false,
        };
        is_asked && self.rails.len() <= MOST_CROSSED
    }
}
