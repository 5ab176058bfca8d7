//! The only part that touches the machine.
//!
//! [`World`] is what the executor needs: look, and do one step. [`Kernel`] is the kernel; tests bring a small one of their own.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;
use rdma_model::ids::IfName;
use rdma_model::snapshot::{HostPaths, JobAddresses, Snapshot};

use rdma_model::step::{NicState, Side, Step};

pub mod device;
pub mod faults;
pub mod host;
mod host_paths;
pub mod link_managers;
pub mod links;
mod live;
pub mod mount;
pub mod netns;
pub mod probe;
pub mod process;
pub mod rdma;
pub mod store;
pub mod sysctl;
pub mod sysfs;

pub use live::{Kernel, boot_id};

/// What to look at.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Which per-device sysctls are read.
    pub sysctls: Sysctls,
    /// Whether RDMA devices, their GIDs and PCI functions are read from sysfs as well; without it only what netlink tells.
    pub sysfs: bool,
    /// Of which NICs what can be set on the device is read as well, see [`rdma_model::snapshot::Netdev::device`].
    pub devices: Vec<IfName>,
    /// Whether other network namespaces are searched for links that sit on netdevs of the host, see [`netns::search`].
    pub elsewhere: bool,
}

/// Per-device sysctls: a NIC has some 130, each a file.
#[derive(Clone, Debug)]
pub enum Sysctls {
    /// All of all NICs.
    All,
    /// All of these NICs.
    Of(Vec<IfName>),
    /// Those of each NIC that are named here, as in [`rdma_model::snapshot::Netdev::sysctls`].
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
        Scope::for_nics(Vec::new())
    }

    /// What netlink tells, with all sysctls and device settings of these NICs.
    pub fn for_nics(nics: Vec<IfName>) -> Scope {
        Scope { devices: nics.clone(), sysctls: Sysctls::Of(nics), sysfs: false, elsewhere: false }
    }

    /// What netlink tells, with the sysctls that these states name: what comparing with them takes.
    pub fn against(states: &[NicState]) -> Scope {
        let keys = |s: &NicState| (s.netdev.name.clone(), s.netdev.sysctls.keys().cloned().collect());
        let sysctls = Sysctls::Named(states.iter().map(keys).collect());
        Scope { sysctls, sysfs: false, elsewhere: false, devices: Vec::new() }
    }

    /// Everything that `rdmaprep snapshot` shows.
    pub fn full() -> Scope {
        Scope { sysctls: Sysctls::All, sysfs: true, elsewhere: true, devices: Vec::new() }
    }
}

/// The machine as the executor sees it.
pub trait World {
    /// Whether there is a container's namespace.
    fn has_inside(&self) -> bool;
    /// Observes one side.
    fn observe(&mut self, side: Side, scope: &Scope) -> Result<Snapshot>;
    /// Asks which links the host uses, now; `host` is a fresh look at it. What could not be asked is part of the answer.
    fn host_paths(&mut self, host: &Snapshot, job: &JobAddresses) -> HostPaths;
    /// Does one step; steps that wait give up at the deadline.
    fn perform(&mut self, step: &Step, deadline: Instant) -> Result<()>;
}
