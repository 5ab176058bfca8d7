//! The only part that touches the machine.
//!
//! [`World`] is what the executor needs: look, and do one step. [`Live`] is the kernel; tests bring a small one of their own.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;

use crate::ident::IfName;
use crate::snapshot::Snapshot;
use crate::step::{NicState, Side, Step};

pub mod alone;
pub mod attempt;
pub mod dress;
mod dress_conf;
pub mod engines;
pub mod etc;
pub mod faults;
pub mod files;
mod gate;
pub mod handle;
pub mod legible;
mod live;
pub mod machine;
mod made;
pub mod managers;
pub mod memfd;
pub mod mntns;
pub mod mount;
pub mod mountinfo;
pub mod netns;
mod newmount;
pub mod nexthop;
pub mod nldev;
pub mod nlreplies;
pub mod privilege;
pub mod qdisc;
pub mod random;
pub mod rdma;
pub mod reach;
pub mod rootfs;
pub mod route;
pub mod rtnl;
pub mod rtroute;
pub mod runtime;
pub mod signals;
pub mod store;
pub mod sysctl;
pub mod sysfs;
mod sysfs_crew;
mod sysfs_dir;
mod sysfs_hca;
mod sysfs_net;
mod sysfs_numa;
mod sysfs_pci;
mod sysfs_root;
mod sysfs_tree;
pub mod user;
pub mod wire;

pub use live::{Live, boot_id};

/// What to look at.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Which per-device sysctls are read.
    pub sysctls: Sysctls,
    /// Whether RDMA devices, their GIDs and PCI functions are read from sysfs as well; without it only what netlink tells.
    pub sysfs: bool,
}

/// Per-device sysctls: a NIC has some 130, each a file.
#[derive(Clone, Debug)]
pub enum Sysctls {
    /// All of all NICs.
    All,
    /// All of these NICs.
    Of(Vec<IfName>),
    /// Those of each NIC that are named here, as in [`crate::snapshot::Netdev::sysctls`].
    Named(BTreeMap<IfName, Vec<String>>),
}

impl Sysctls {
    /// Whether all of some NIC are read: what they differ in from the defaults is of interest then.
    pub fn all_of_some(&self) -> bool {
        match self {
            Sysctls::All => true,
            Sysctls::Of(nics) => !nics.is_empty(),
            Sysctls::Named(_) => false,
        }
    }

    /// Whether any of this NIC are read.
    pub fn concern(&self, nic: &IfName) -> bool {
        match self {
            Sysctls::All => true,
            Sysctls::Of(nics) => nics.contains(nic),
            Sysctls::Named(keys) => keys.contains_key(nic),
        }
    }
}

impl Scope {
    /// What netlink tells, and no sysctls.
    pub fn links() -> Scope {
        Scope::of(Vec::new())
    }

    /// What netlink tells, with all sysctls of these NICs.
    pub fn of(nics: Vec<IfName>) -> Scope {
        Scope { sysctls: Sysctls::Of(nics), sysfs: false }
    }

    /// What netlink tells, with the sysctls that these states name: what comparing with them takes.
    pub fn against(states: &[NicState]) -> Scope {
        let keys = |s: &NicState| (s.netdev.name.clone(), s.netdev.sysctls.keys().cloned().collect());
        Scope { sysctls: Sysctls::Named(states.iter().map(keys).collect()), sysfs: false }
    }

    /// Everything that `rdmaprep snapshot` shows.
    pub fn full() -> Scope {
        Scope { sysctls: Sysctls::All, sysfs: true }
    }
}

/// The machine as the executor sees it.
pub trait World {
    /// Whether there is a container's namespace.
    fn has_inside(&self) -> bool;
    /// Observes one side.
    fn observe(&mut self, side: Side, scope: &Scope) -> Result<Snapshot>;
    /// Does one step; steps that wait give up at the deadline.
    fn perform(&mut self, step: &Step, deadline: Instant) -> Result<()>;
}
