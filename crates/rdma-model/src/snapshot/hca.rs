//! RDMA devices, their ports and GID tables.

use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use super::CharDevice;
use crate::ids::{BusId, Guid, HcaName, IfName};

/// How an RDMA device talks (RDMA_NLDEV_ATTR_DEV_PROTOCOL): `ib`, `roce`, `iw`, `opa`, `usnic`.
pub type Protocol = String;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hca {
    pub name: HcaName,
    /// RDMA_NLDEV_ATTR_DEV_INDEX: the kernel's handle for requests; changes when a device is
    /// re-created.
    pub index: Option<u32>,
    /// GUID of the node; all-zero on some VFs.
    pub node_guid: Option<Guid>,
    /// GUID of the card; shared by the functions of a dual-port card.
    pub sys_image_guid: Option<Guid>,
    pub firmware: Option<String>,
    /// Kernel driver of the parent PCI function, or `rxe`/`siw` for a software device.
    pub driver: Option<String>,
    pub protocol: Option<Protocol>,
    pub pci: Option<BusId>,
    /// NUMA node of the parent; −1 where the platform does not say.
    pub numa: Option<i32>,
    pub uverbs: Option<CharDevice>,
    #[serde(default)]
    pub umad: Vec<CharDevice>,
    pub ports: Vec<Port>,
    /// Facts on which netlink and sysfs disagree; a device with any is not moved.
    #[serde(default)]
    pub conflicts: Vec<String>,
}

impl Hca {
    /// The driver of soft-RoCE, and the kind of its links.
    pub const RXE: &str = "rxe";

    /// Whether it is made of a netdev by software, and has no PCI function.
    pub fn is_software(&self) -> bool {
        matches!(self.driver.as_deref(), Some(Hca::RXE | "siw"))
    }

    /// Whether this is soft-RoCE, whose link dies when its netdev changes namespace.
    pub fn is_rxe(&self) -> bool {
        self.driver.as_deref() == Some(Hca::RXE)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Port {
    pub number: u32,
    /// Logical state in capitals: `ACTIVE`, `DOWN`, `INIT`, `ARMED`; absent where unreadable.
    pub state: Option<String>,
    /// `InfiniBand`, `Ethernet`, or what the driver prints (`Unknown` on EFA).
    pub link_layer: Option<String>,
    /// Rate as sysfs prints it: `100 Gb/sec (4X EDR)`.
    pub rate: Option<String>,
    /// The netdev behind the port by kernel facts (nldev, else the function's netdev with the
    /// port's dev_port).
    pub netdev: Option<IfName>,
    #[serde(default)]
    pub gids: Vec<Gid>,
    /// Places of its GID table, used or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid_table: Option<u32>,
}

impl Port {
    pub fn is_infiniband(&self) -> bool {
        self.link_layer.as_deref() == Some("InfiniBand")
    }

    pub fn is_ethernet(&self) -> bool {
        self.link_layer.as_deref() == Some("Ethernet")
    }

    pub fn is_active(&self) -> bool {
        self.state.as_deref() == Some("ACTIVE")
    }

    /// Its rate in Gb/s, as far as it is known.
    pub fn gigabits(&self) -> Option<f64> {
        self.rate.as_deref()?.split_once(" Gb/sec")?.0.parse().ok()
    }
}

/// One used entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    pub index: u32,
    /// The address; IPv4 appears IPv4-mapped (`::ffff:a.b.c.d`).
    pub address: Ipv6Addr,
    /// Absent where `gid_attrs/types` could not be read.
    pub kind: Option<GidKind>,
    /// `gid_attrs/ndevs`: the netdev that the entry belongs to, by its current name.
    pub netdev: Option<IfName>,
}

impl Gid {
    pub fn ip(&self) -> IpAddr {
        match self.address.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(self.address),
        }
    }
}

/// Whether two entries are the same but for their index. The kernel looks for an equal one before
/// it adds one (__ib_cache_gid_add() in drivers/infiniband/core/cache.c), the default entry at
/// index 0 aside, which it writes whatever there is.
pub fn is_doubled(gids: &[Gid]) -> bool {
    let mut seen = Vec::new();
    gids.iter().any(|gid| {
        let entry = (gid.address, gid.kind, &gid.netdev);
        let is_known = seen.contains(&entry);
        seen.push(entry);
        is_known
    })
}

/// `gid_attrs/types/N`: the kernel's words (drivers/infiniband/core/cache.c, `gid_type_str`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GidKind {
    /// InfiniBand, or RoCE v1: the kernel has one word for both.
    #[serde(rename = "IB/RoCE v1")]
    IbRoceV1,
    #[serde(rename = "RoCE v2")]
    RoceV2,
}
