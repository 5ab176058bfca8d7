use std::fmt;

use serde::{Deserialize, Serialize};

use crate::values::Family;

/// The reason why a NIC was dropped, in the order in which the rules are tested. Plans, reports and
/// the messages between nodes have it in snake case: a code does not change its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropCode {
    Forbidden,
    /// A container holds it, or its netdev is in another network namespace.
    Held,
    /// Facts about it disagree, or several HCAs share it.
    Ambiguous,
    /// iWARP has no RoCE GIDs.
    Iwarp,
    NotRdma,
    /// An RDMA device that has no netdev and is neither RoCE nor InfiniBand (EFA), or has no ports.
    NoNetdev,
    /// Matches the exclusion regex, is not in the include list, or left out by the container's
    /// annotations.
    Excluded,
    Uplink,
    Bootstrap,
    Enslaved,
    /// IPoIB child, VLAN, macvlan: a netdev on top of another.
    Child,
    /// Carries a VLAN, macvlan or tunnel that would lose it.
    Carries,
    /// Has classes, filters or the like of queueing disciplines, which could not be given back.
    QueueingDiscipline,
    NoAddress,
    PortDown,
    NoGid,
    FiniteLifetime,
    #[serde(rename = "infiniband")]
    InfiniBand,
    /// A rail on which the rail test fails, between any nodes.
    FailedTest,
    NotInPeerSet,
    /// An InfiniBand HCA whose rate is below that of others.
    SlowerHca,
    /// NCCL connects no InfiniBand port with one of Ethernet, and the job gets the others.
    OtherLinkLayer,
}

impl fmt::Display for DropCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl DropCode {
    /// Whether it is for what a move would break, so that where nothing moves it is no reason.
    pub fn is_about_moves(self) -> bool {
        matches!(
            self,
            DropCode::Uplink
                | DropCode::Bootstrap
                | DropCode::Carries
                | DropCode::QueueingDiscipline
                | DropCode::FiniteLifetime
        )
    }

    pub fn brief(self, family: Family) -> String {
        let words = match self {
            DropCode::Forbidden => "the host's policy forbids it",
            DropCode::Held => "another namespace has it",
            DropCode::Ambiguous => "the kernel reports contradictory data about it",
            DropCode::Iwarp => "it is an iWARP device",
            DropCode::NotRdma => "no RDMA device",
            DropCode::NoNetdev => "no netdev",
            DropCode::Excluded => "excluded",
            DropCode::Uplink => "the host's own network uses it",
            DropCode::Bootstrap => "the job's bootstrap traffic uses it",
            DropCode::Enslaved => "it is part of a bond or bridge",
            DropCode::Child => "it sits on another NIC",
            DropCode::Carries => "another netdev sits on it",
            DropCode::QueueingDiscipline => "a move would take its queueing discipline",
            DropCode::NoAddress => return format!("no {}", family.noun()),
            DropCode::PortDown => "port down",
            DropCode::NoGid => "no RoCE v2 GID",
            DropCode::FiniteLifetime => "an address with a finite lifetime",
            DropCode::InfiniBand => "InfiniBand, without --ib",
            DropCode::FailedTest => "it fails the rail test",
            DropCode::NotInPeerSet => "not in its --peer-ifaces",
            DropCode::SlowerHca => "slower than other InfiniBand HCAs",
            DropCode::OtherLinkLayer => "not of the link layer that the job gets",
        };
        words.to_owned()
    }
}
