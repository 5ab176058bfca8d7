//! Which NICs a job gets, and why not the others.

use serde::{Deserialize, Serialize};

use crate::ident::{BusId, HcaName, IfName};
use crate::snapshot::Gid;

/// Every NIC of a snapshot, kept or dropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Selection {
    /// One verdict per NIC: kept ones first, in rail order (PCI address, then name).
    pub verdicts: Vec<Verdict>,
    /// Sentences for stderr.
    pub warnings: Vec<String>,
}

/// What became of one NIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The netdev; absent for an HCA without one.
    pub netdev: Option<IfName>,
    /// Its HCA; absent for a plain netdev.
    pub hca: Option<HcaName>,
    /// Port of the HCA.
    pub port: Option<u32>,
    /// The RoCE v2 GID chosen for it.
    pub gid: Option<Gid>,
    /// PCI address.
    pub pci: Option<BusId>,
    /// NUMA node.
    pub numa: Option<i32>,
    /// Absent: kept.
    pub dropped: Option<Drop>,
    /// Kept with this remark.
    pub note: Option<String>,
}

/// Why a NIC was dropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drop {
    /// Stable code for programs.
    pub code: DropCode,
    /// One sentence.
    pub why: String,
    /// What the user can do.
    pub fix: String,
}

/// Codes of the reasons, in the order in which they are tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropCode {
    /// The host's config file forbids it.
    Forbidden,
    /// A container holds it.
    Held,
    /// Facts about it disagree, or several HCAs share it.
    Ambiguous,
    /// iWARP has no RoCE GIDs.
    Iwarp,
    /// No RDMA device behind it.
    NotRdma,
    /// Matches the exclusion regex, or is not in the include list.
    Excluded,
    /// Carries the default route or shares its master.
    Uplink,
    /// Owns the bootstrap address.
    Bootstrap,
    /// Part of a bond or bridge.
    Enslaved,
    /// IPoIB child, VLAN, macvlan: a netdev on top of another.
    Child,
    /// No address of the wanted family.
    NoAddress,
    /// The port is not ACTIVE.
    PortDown,
    /// No RoCE v2 GID made from its address and carrying its netdev.
    NoGid,
    /// An address would expire inside the container.
    FiniteLifetime,
    /// InfiniBand without `--ib`.
    InfiniBand,
    /// The peer has no such NIC.
    NotInPeerSet,
}
