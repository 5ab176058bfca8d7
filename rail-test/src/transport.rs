//! What a test needs of the RDMA stack; the verbs are one way, and tests have another.

use std::net::Ipv6Addr;

use rdma_model::ids::Mac;
use serde::{Deserialize, Serialize};

/// One rail of a node, as the other end has to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailEnd(
    /// Zeros where it has none.
    pub Ipv6Addr,
    /// Of InfiniBand; 0 over Ethernet.
    pub u16,
    /// Its active MTU as verbs have it: 1 is 256 bytes, 5 is 4096, 0 is none.
    pub u8,
    pub Option<Mac>,
);

impl RailEnd {
    pub fn gid(&self) -> Ipv6Addr {
        self.0
    }
}

/// Bytes of an MTU as verbs number it.
pub fn mtu_bytes(mtu: u8) -> u32 {
    match mtu {
        1..=5 => 128 << mtu,
        _ => 0,
    }
}

/// From which of this node's rails to which of the partner's, by their places in the agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LaneId(pub u8, pub u8);

impl LaneId {
    pub fn is_straight(self) -> bool {
        self.0 == self.1
    }

    /// As the partner calls it.
    pub fn turned(self) -> LaneId {
        LaneId(self.1, self.0)
    }
}

/// One end of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneEnd {
    pub queue_pair: u32,
    pub packet: u32,
    pub key: u32,
    pub address: u64,
}

/// The other end, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Far {
    pub rail: RailEnd,
    pub lane: LaneEnd,
}

/// Why a direction of a lane does not work. The first ones say most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// This node's port is down, or went down meanwhile.
    PortDown,
    /// The GID is no longer in this port's table.
    NoGid,
    /// This node cannot make the queue pair.
    NoQueuePair,
    /// What the partner has published cannot be used.
    Refused,
    /// One end has an IPv4 address, or a global one, and the other has not.
    OtherFamily,
    /// The partner has this node's address.
    OwnAddress,
    /// The partner's address is in a network of this node that is no rail's.
    NoRail,
    /// An entry for the partner's address with another MAC than the partner has.
    WrongNeighbour,
    NoNeighbour,
    /// The partner takes the packet and refuses the access.
    Access,
    /// Small messages pass, those of the path's MTU do not.
    TooLarge,
    /// What arrived is not what was sent.
    Contents,
    NoAnswer,
    /// It worked, and stopped.
    Stopped,
    /// Any other status of a completion.
    Status,
    /// The partner has no queue pair for it.
    NoFarEnd,
    /// The partner has published nothing.
    Absent,
}

/// A failure, and the number that the kernel or the HCA gave for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub why: Why,
    /// errno, or enum ibv_wc_status.
    pub number: u32,
}

impl Fault {
    pub fn of(why: Why) -> Fault {
        Fault { why, number: 0 }
    }
}

/// A direction that works: from post to completion, which is there and back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    pub median_ns: u32,
    pub p99_ns: u32,
    /// In MB/s; 0 where it was not measured.
    pub rate: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub sent: Result<Measured, Fault>,
}

/// A counter that moved while the test ran: the rail, the counter, by how much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved(pub u8, pub String, pub u64);

pub trait Transport {
    /// This node's rails, in the agreement's order.
    fn rails(&self) -> Vec<RailEnd>;

    /// Makes the ends of a round; those of the round before stay for the partner's last packets,
    /// and older ones end.
    fn open(&mut self, lanes: &[LaneId]) -> Vec<Result<LaneEnd, Fault>>;

    /// Connects those lanes of which the other end is known, all at once.
    fn connect(&mut self, far: &[Option<Far>]) -> Vec<Option<Fault>>;

    /// Writes on all lanes that are connected and takes what comes; in the lanes' order, `None` for
    /// those that are not.
    fn run(&mut self) -> Vec<Option<Outcome>>;

    /// Ends all queue pairs.
    fn close(&mut self);

    fn moved(&self) -> Vec<Moved> {
        Vec::new()
    }
}
