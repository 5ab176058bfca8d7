//! The only part that touches the machine.
//!
//! [`World`] is what the executor needs: look, and do one step. [`Live`] is the kernel; tests bring a small one of their own.

use std::time::Instant;

use anyhow::Result;

use crate::ident::IfName;
use crate::snapshot::Snapshot;
use crate::step::{Side, Step};

pub mod files;
pub mod handle;
mod live;
pub mod mount;
pub mod netns;
pub mod nldev;
pub mod nlreplies;
pub mod rdma;
pub mod route;
pub mod rtnl;
pub mod store;
pub mod sysctl;
pub mod sysfs;
mod sysfs_hca;
mod sysfs_net;
mod sysfs_pci;
mod sysfs_root;

pub use live::Live;

/// What to look at.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// NICs of which all sysctls are read.
    pub sysctls: Vec<IfName>,
    /// Whether RDMA devices, their GIDs and PCI functions are read from sysfs as well; without it only what netlink tells.
    pub sysfs: bool,
}

/// The machine as the executor sees it.
pub trait World {
    /// Observes one side.
    fn observe(&mut self, side: Side, scope: &Scope) -> Result<Snapshot>;
    /// Does one step; steps that wait give up at the deadline.
    fn perform(&mut self, step: &Step, deadline: Instant) -> Result<()>;
}
