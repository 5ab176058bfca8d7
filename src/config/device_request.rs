use std::collections::BTreeSet;

use rdma_model::ids::{HcaName, IfName};

/// The rails that a container's devices name, and no others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceRequest {
    pub(crate) netdevs: BTreeSet<IfName>,
    pub(crate) hcas: BTreeSet<HcaName>,
    /// UIDs of the claims that its hooks name.
    pub(crate) claims: BTreeSet<String>,
}

impl DeviceRequest {
    pub fn netdevs(&self) -> impl Iterator<Item = &IfName> {
        self.netdevs.iter()
    }

    pub fn has(&self, netdev: &IfName) -> bool {
        self.netdevs.contains(netdev)
    }

    pub fn has_all_rails_of(&self, other: &DeviceRequest) -> bool {
        self.netdevs.is_superset(&other.netdevs) && self.hcas.is_superset(&other.hcas)
    }

    pub fn has_hca(&self, hca: &str) -> bool {
        self.hcas.iter().any(|h| h.as_str() == hca)
    }
}
