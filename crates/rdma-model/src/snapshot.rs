//! What was observed in one network namespace of one host: facts, no decisions.
//! `rdmaprep snapshot --json` prints this type, and `--snapshot FILE` reads it back. Live snapshots
//! come from netlink, NETLINK_RDMA and sysfs, captured ones from a /sys tree alone; what a source
//! does not report is `None` or empty.

use crate::escape;
use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::ids::{HcaName, IfName};

mod display;
mod hca;
mod netdev;
mod paths;
mod pci;
mod route;
mod sysctls;

pub use display::protocol_name;
pub use hca::{Gid, GidKind, Hca, Port, Protocol, is_doubled};
pub use netdev::{
    Address, LinkOptions, Neighbour, Netdev, Program, ProgramHook, Qdisc, Stranger, Tunnel, UNTOLD,
};
pub use pci::{Cpu, NumaNode, PciFunction};
pub use route::*;
pub use sysctls::SysctlValues;

pub use paths::{
    Answer, Connection, HostPath, HostPaths, JobAddresses, Leg, LinkUse, Matched, Purpose,
    Question, RdmaUse, StoreRoute, TunnelPath,
};

/// Version of the JSON form; a reader refuses any other.
pub const SCHEMA: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    pub schema: u32,
    /// `/proc/sys/kernel/random/boot_id`; empty for a captured tree.
    #[serde(default)]
    pub boot_id: String,
    /// Inode of the network namespace that was observed (nsfs); absent for a captured tree.
    pub netns: Option<u64>,
    /// Whether RDMA devices are shared by all network namespaces or belong to one (`rdma system`).
    pub rdma_mode: Option<RdmaMode>,
    pub rdma_cm: Option<CharDevice>,
    pub hcas: Vec<Hca>,
    /// Numbers of the verbs nodes that devices of other namespaces have, which only the exclusive
    /// mode hides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verbs_elsewhere: Vec<u32>,
    /// Network devices, by ifindex.
    pub netdevs: Vec<Netdev>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strangers: Vec<Stranger>,
    /// Why these may not be all; absent: they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strangers_gap: Option<String>,
    /// Routes of all tables, in the kernel's order.
    #[serde(default)]
    pub routes: Vec<Route>,
    /// Families of which the kernel has not listed all routes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes_cut: Vec<u8>,
    #[serde(default)]
    pub nexthops: Vec<Nexthop>,
    /// Policy rules of both families, in the kernel's order.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// Which links the host uses; absent where the kernel was not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths: Option<HostPaths>,
    /// `net/<family>/conf/{all,default}/<leaf>` of the sysctls that we touch, by that path; of a
    /// NIC's host, all defaults.
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
    #[serde(default)]
    pub pci: Vec<PciFunction>,
    #[serde(default)]
    pub numa_nodes: Vec<NumaNode>,
    pub cpu: Option<Cpu>,
    /// What two sources report differently, or could not be read: one sentence each.
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
            strangers: Vec::new(),
            strangers_gap: None,
            routes: Vec::new(),
            routes_cut: Vec::new(),
            nexthops: Vec::new(),
            rules: Vec::new(),
            paths: None,
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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CharDevice {
    /// Name below `/dev/infiniband`: `uverbs0`, `umad0`, `rdma_cm`.
    pub name: String,
    pub major: u32,
    pub minor: u32,
}

impl Snapshot {
    pub fn unlisted_routes(&self) -> Option<String> {
        let family = self.routes_cut.first()?;
        Some(format!(
            "the host has an IPv{family} route of more than 32 KiB, behind which the kernel lists \
            no others: they would be lost; put its legs into a group of nexthop objects"
        ))
    }

    /// The links that packets to an address leave by: the longest-prefix match over the tables main
    /// and local, with the legs of all winners. An unreachable or blackhole route can win and has
    /// no legs; broadcast, anycast, multicast and throw routes (RTN_BROADCAST 3, 4, 5, 9 in
    /// include/uapi/linux/rtnetlink.h) lead to no peer.
    pub fn links_towards(&self, peer: IpAddr) -> Vec<IfName> {
        let mut by_rank: BTreeMap<_, Vec<IfName>> = BTreeMap::new();
        for r in &self.routes {
            let leads =
                matches!(r.table, TABLE_MAIN | TABLE_LOCAL) && !matches!(r.kind, 3 | 4 | 5 | 9);
            if leads && r.tos == 0 && r.destination.contains(&peer) {
                let length = std::cmp::Reverse(r.destination.prefix_len());
                let legs = by_rank.entry((length, r.metric.unwrap_or(0))).or_default();
                legs.extend(r.hops.iter().filter_map(|h| h.dev.clone()));
            }
        }
        by_rank.into_values().next().unwrap_or_default()
    }

    pub fn netdev(&self, name: &IfName) -> Option<&Netdev> {
        self.netdevs.iter().find(|n| n.name == *name)
    }

    pub fn hca(&self, name: &HcaName) -> Option<&Hca> {
        self.hcas.iter().find(|h| h.name == *name)
    }

    pub fn routes_of<'a>(&'a self, name: &'a IfName) -> impl Iterator<Item = &'a Route> {
        self.routes
            .iter()
            .filter(move |r| r.hops.iter().any(|h| h.dev.as_ref() == Some(name)))
    }

    /// Whether it is of a /sys alone, which has no addresses and no routes: what needs them is
    /// unknown, and not absent.
    pub fn lacks_network(&self) -> bool {
        self.netns.is_none()
            && self.routes.is_empty()
            && self.netdevs.iter().all(|n| n.addresses.is_empty())
    }

    /// Whether it is of a /sys without netdevs; each namespace has one, lo.
    pub fn lacks_netdevs(&self) -> bool {
        self.netdevs.is_empty() && self.lacks_network()
    }

    /// The netdev of an HCA that shows no port: the only one of its PCI function, if no other HCA
    /// is on that.
    pub fn netdev_beside(&self, hca: &Hca) -> Option<&Netdev> {
        let pci = hca.pci.filter(|_| hca.ports.is_empty())?;
        let alone = self.hcas.iter().filter(|h| h.pci == Some(pci)).count() == 1;
        let mut on_function = self
            .netdevs
            .iter()
            .filter(|n| n.pci == Some(pci) && n.link.is_none());
        on_function
            .next()
            .filter(|_| alone && on_function.next().is_none())
    }

    /// A host with GPUs has cards whose RDMA driver is not there, as a hint.
    pub fn lacks_rdma_driver(&self) -> Option<String> {
        let drivers = self.pci.iter().map(|f| f.driver.as_deref());
        let count = drivers
            .filter(|driver| *driver == Some("mlx5_core"))
            .count();
        let text = format!(
            "mlx5_core drives {}, and there is no HCA: load mlx5_ib (modprobe mlx5_ib), unless \
            another network namespace has the HCAs",
            escape::count(count, "PCI function")
        );
        (count > 0 && self.hcas.is_empty() && self.gpus().next().is_some()).then_some(text)
    }

    pub fn gpus(&self) -> impl Iterator<Item = &PciFunction> {
        self.pci.iter().filter(|f| f.is_gpu())
    }
}
