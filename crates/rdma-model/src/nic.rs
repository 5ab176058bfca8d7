use crate::snapshot::{Hca, Netdev};
use crate::step::NicState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

use crate::ids::{BusId, Guid, HcaName, IfName, Mac};
use crate::manager::is_daemon;
use crate::snapshot::{Address, CharDevice, Gid};

/// What identifies a NIC while names and indexes change around it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub name: IfName,
    pub ifindex: u32,
    pub pci: Option<BusId>,
    /// IFLA_PERM_ADDRESS, where the driver reports one.
    pub permanent_mac: Option<Mac>,
    pub node_guid: Option<Guid>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nic {
    pub identity: Identity,
    /// Its HCA; absent for a placeholder (`--ifaces` on a machine without any RDMA data).
    pub hca: Option<HcaName>,
    pub port: Option<u32>,
    /// How many ports the HCA has: NCCL_IB_HCA names the port only where there are several.
    pub ports: usize,
    pub rxe: bool,
    /// The netdev that it sits on: a VLAN, macvlan, ipvlan or IPoIB interface.
    pub over: Option<IfName>,
    #[serde(default)]
    pub vfs: Vec<BusId>,
    #[serde(default)]
    pub members: Vec<IfName>,
    /// Whether the HCA's port is that of the netdev below, as a VLAN's is.
    #[serde(default)]
    pub borrowed: bool,
    /// See [`crate::snapshot::Netdev::channels`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<u32>,
    /// The RoCE v2 GID that was right when the plan was made; its index may differ inside.
    pub gid: Option<Gid>,
    pub numa: Option<i32>,
    /// The verbs node that the HCA will have inside: soft-RoCE gets the lowest free minor when it
    /// is re-created.
    pub uverbs: Option<CharDevice>,
    /// Addresses when the plan was made: a plan whose NIC has others by now is out of date.
    pub addresses: Vec<Address>,
    /// Protocols of routing daemons that had routes over the NIC when the plan was made.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub learned: BTreeSet<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvVar {
    pub name: String,
    pub value: String,
    pub why: String,
}

impl Nic {
    pub fn name(&self) -> &IfName {
        &self.identity.name
    }
}

/// Protocols of the routing daemons that have routes over a NIC.
pub fn learned(state: &NicState) -> BTreeSet<u8> {
    let protocols = state.routes.iter().map(|r| r.protocol);
    protocols.filter(|p| is_daemon(*p)).collect()
}

pub fn identity(state: &NicState, hca: Option<&Hca>) -> Identity {
    Identity {
        name: state.netdev.name.clone(),
        ifindex: state.netdev.ifindex,
        pci: state.netdev.pci,
        permanent_mac: state.netdev.permanent_mac.clone(),
        node_guid: hca.and_then(|h| h.node_guid),
    }
}

/// Whether a netdev may be the NIC that one was.
pub fn is_same_netdev(was: &Netdev, now: &Netdev) -> bool {
    was.permanent_mac == now.permanent_mac && was.kind == now.kind && was.pci == now.pci
}

/// Whether two identities are of one NIC: what both sources know of the hardware must agree, and
/// without any such fact the name decides. The ifindex proves nothing, since it may change when a
/// NIC has been away.
pub fn same_nic(a: &Identity, b: &Identity) -> bool {
    let pci = a.pci.zip(b.pci).map(|(x, y)| x == y);
    let mac = a
        .permanent_mac
        .as_ref()
        .zip(b.permanent_mac.as_ref())
        .map(|(x, y)| x == y);
    match (pci, mac) {
        (None, None) => a.name == b.name,
        _ => pci.unwrap_or(true) && mac.unwrap_or(true),
    }
}
