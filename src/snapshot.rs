//! What was observed in one network namespace of one host: facts, no decisions.
//!
//! `rdmaprep snapshot --json` prints this type, and `--snapshot FILE` reads it back. Live snapshots come from netlink,
//! NETLINK_RDMA and sysfs (`world/`), captured ones from a /sys tree alone; what a source does not tell is `None` or empty.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ident::{HcaName, IfName};

mod hca;
mod netdev;
mod pci;
mod route;

pub use hca::{Gid, GidKind, Hca, Port, Protocol};
pub use netdev::{Address, Neighbour, Netdev, Qdisc};
pub use pci::{Cpu, NumaNode, PciFunction};
pub use route::{Hop, Member, Nexthop, RTA_EXPIRES, RTA_NH_ID, Route, Rule};

/// Version of the JSON form; a reader refuses any other.
pub const SCHEMA: u32 = 1;

/// Everything observed in one pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `/proc/sys/kernel/random/boot_id`; empty for a captured tree.
    #[serde(default)]
    pub boot_id: String,
    /// Inode of the network namespace that was observed (nsfs); absent for a captured tree.
    #[serde(default)]
    pub netns: Option<u64>,
    /// Whether RDMA devices are shared by all network namespaces or belong to one (`rdma system`).
    #[serde(default)]
    pub rdma_mode: Option<RdmaMode>,
    /// `/dev/infiniband/rdma_cm`.
    #[serde(default)]
    pub rdma_cm: Option<CharDevice>,
    /// RDMA devices, by name.
    pub hcas: Vec<Hca>,
    /// Numbers of the verbs nodes that devices of other namespaces have, which only the exclusive mode hides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verbs_elsewhere: Vec<u32>,
    /// Network devices, by ifindex.
    pub netdevs: Vec<Netdev>,
    /// Routes of all tables, in the kernel's order.
    #[serde(default)]
    pub routes: Vec<Route>,
    /// Nexthop objects, by id.
    #[serde(default)]
    pub nexthops: Vec<Nexthop>,
    /// Policy rules of both families, in the kernel's order.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// `net/<family>/conf/{all,default}/<leaf>` of the sysctls that we touch, by that path; of a NIC's host, all defaults.
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
    /// PCI functions, by address.
    #[serde(default)]
    pub pci: Vec<PciFunction>,
    /// NUMA nodes, by number.
    #[serde(default)]
    pub numa_nodes: Vec<NumaNode>,
    /// The processor; absent where /sys does not tell.
    #[serde(default)]
    pub cpu: Option<Cpu>,
    /// What two sources told differently, or could not be read: one sentence each.
    #[serde(default)]
    pub warnings: Vec<String>,
}

impl Default for Snapshot {
    fn default() -> Self {
        Snapshot {
            schema: SCHEMA,
            boot_id: String::new(),
            netns: None,
            rdma_mode: None,
            rdma_cm: None,
            hcas: Vec::new(),
            verbs_elsewhere: Vec::new(),
            netdevs: Vec::new(),
            routes: Vec::new(),
            nexthops: Vec::new(),
            rules: Vec::new(),
            sysctls: BTreeMap::new(),
            pci: Vec::new(),
            numa_nodes: Vec::new(),
            cpu: None,
            warnings: Vec::new(),
        }
    }
}

/// RDMA_NLDEV_SYS_ATTR_NETNS_MODE (include/uapi/rdma/rdma_netlink.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RdmaMode {
    /// Every namespace sees every RDMA device.
    Shared,
    /// An RDMA device belongs to one namespace.
    Exclusive,
}

/// A character device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CharDevice {
    /// Name below `/dev/infiniband`: `uverbs0`, `umad0`, `rdma_cm`.
    pub name: String,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl Snapshot {
    /// The netdev of that name.
    pub fn netdev(&self, name: &IfName) -> Option<&Netdev> {
        self.netdevs.iter().find(|n| n.name == *name)
    }

    /// The HCA of that name.
    pub fn hca(&self, name: &HcaName) -> Option<&Hca> {
        self.hcas.iter().find(|h| h.name == *name)
    }

    /// Routes with a leg over that netdev.
    pub fn routes_of<'a>(&'a self, name: &'a IfName) -> impl Iterator<Item = &'a Route> {
        self.routes.iter().filter(move |r| r.hops.iter().any(|h| h.dev.as_ref() == Some(name)))
    }

    /// GPUs among the PCI functions.
    pub fn gpus(&self) -> impl Iterator<Item = &PciFunction> {
        self.pci.iter().filter(|f| f.is_gpu())
    }
}
