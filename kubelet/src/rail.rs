//! A rail, as all ways for the kubelet know it.

use ipnet::IpNet;
use rdma_model::ids::{BusId, Mac};
use serde::Serialize;

/// A rail as the CDI file names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rail {
    pub name: String,
    /// Absent where the platform does not say.
    pub numa: Option<i64>,
    /// Of its port; absent where that is not known.
    pub speed_gbps: Option<u32>,
    pub addresses: Vec<IpNet>,
    /// To each GPU of the node, in their order; 0 is the nearest kind.
    #[serde(skip)]
    pub distances: Vec<u8>,
    /// Why no container can have it now.
    pub unhealthy: Option<String>,
    /// No notification says when that is over.
    #[serde(skip)]
    pub unreported: bool,
    #[serde(skip)]
    pub facts: Facts,
}

/// What a claim may ask for besides. Of a rail that is away as it was on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Among the rails of the CDI file.
    pub place: usize,
    /// As the config file says: the same on all nodes.
    pub number: Option<usize>,
    /// Whether a container has it.
    pub is_away: bool,
    /// Whether that one has it by no claim.
    pub is_others: bool,
    /// The claim that it is prepared for, or why that is not known.
    pub claim: Option<String>,
    /// Whether its return was tried, and it is not whole.
    pub held_back: bool,
    /// An HCA that no netdev moves with.
    pub is_hca: bool,
    pub netdev: Option<String>,
    pub mac: Option<Mac>,
    pub hca: Option<String>,
    pub port: Option<u32>,
    /// `roce`, `ib` or `iwarp`.
    pub kind: Option<&'static str>,
    pub speed_gbps: Option<u32>,
    pub mtu: u32,
    pub driver: Option<String>,
    /// Of the PCI function: vendor and device.
    pub model: Option<(u16, u16)>,
    pub firmware: Option<String>,
    pub pci: Option<BusId>,
    /// `pci0000:15`.
    pub pcie_root: Option<String>,
}

impl Rail {
    /// Why no pod can have it without a claim.
    pub fn why_not_counted(&self) -> Option<String> {
        let claimed = self
            .facts
            .claim
            .as_ref()
            .map(|claim| format!("claimed: {claim}"));
        self.unhealthy.clone().or(claimed)
    }

    /// Why no claim can have it.
    pub fn why_not_claimed(&self) -> Option<&str> {
        let others = self
            .facts
            .is_others
            .then_some("a container has it without a claim");
        self.unhealthy.as_deref().or(others)
    }
}

/// By resource, in the order of the config file, its rails in the order of rails.
pub type Shown = Vec<(String, Vec<Rail>)>;
