//! This node's part in the agreement of all nodes: its plan's rails, under the names by which the
//! nodes compare them.

use std::collections::BTreeMap;

use ipnet::IpNet;
use rail_agreement::{BareHca, Device, DroppedRail, Match, Offer, Policy, Rail, RailKey};
use rdma_model::ids::{HcaName, IfName};
use rdma_model::natural;
use rdma_model::snapshot::Snapshot;

use crate::plan::Plan;
use crate::select::candidates::counts;
use crate::select::{DropCode, Selection, Verdict};

pub struct RailNames<'a> {
    policy: Policy,
    labels: &'a BTreeMap<IfName, RailKey>,
    seen: &'a Snapshot,
    /// RDMA NICs in PCI order, kept or not.
    places: Vec<&'a IfName>,
}

impl<'a> RailNames<'a> {
    pub fn new(
        policy: Policy,
        labels: &'a BTreeMap<IfName, RailKey>,
        selection: &'a Selection,
        seen: &'a Snapshot,
    ) -> RailNames<'a> {
        // A netdev on top of a NIC, or one without RDMA, has no index of its own, unless it is
        // kept.
        let mut all: Vec<&Verdict> = selection.verdicts.iter().collect();
        all.retain(|v| match &v.dropped {
            None => true,
            Some(drop) => v.hca.is_some() && drop.code != DropCode::Child,
        });
        all.sort_by_cached_key(|v| (v.pci.is_none(), v.pci, natural::key(&v.label())));
        let places = all.into_iter().filter_map(|v| v.netdev.as_ref()).collect();
        RailNames {
            policy,
            labels,
            seen,
            places,
        }
    }

    /// The rail of an InfiniBand HCA without a netdev: its label or its own name, as it has no
    /// address.
    fn hca_key(&self, hca: &HcaName) -> Option<RailKey> {
        match self.policy.by {
            Match::Label => self.labels.get(&hca.as_str().parse().ok()?).cloned(),
            _ => hca.as_str().parse().ok(),
        }
    }

    pub fn requirement(&self) -> &'static str {
        match self.policy.by {
            Match::Name => "name that others could have",
            Match::Label => "label",
            Match::Index => "place",
            Match::Subnet => "address with a subnet",
        }
    }

    /// The rail of a netdev; `None` if it has no name by this policy.
    pub fn key(&self, netdev: &IfName) -> Option<RailKey> {
        match self.policy.by {
            Match::Name => netdev.as_str().parse().ok(),
            Match::Label => self.labels.get(netdev).cloned(),
            Match::Index => self
                .places
                .iter()
                .position(|n| *n == netdev)?
                .to_string()
                .parse()
                .ok(),
            Match::Subnet => {
                let mut addresses = self.seen.netdev(netdev)?.addresses.iter();
                let first = addresses.find(|a| counts(a, self.policy.family))?;
                let at = first.peer.unwrap_or(first.address);
                IpNet::new(at, first.prefix)
                    .ok()?
                    .trunc()
                    .to_string()
                    .parse()
                    .ok()
            }
        }
    }
}

/// Fills an offer with the plan's rails, and with the NICs that were dropped. Also returns the
/// devices of the plan that have no name by the policy.
pub fn fill_offer(
    offer: Offer,
    plan: &Plan,
    selection: &Selection,
    names: &RailNames,
) -> (Offer, Vec<String>) {
    let (mut rails, mut nameless) = (Vec::new(), Vec::new());
    for nic in plan.rails() {
        let iface = nic.name().clone();
        match names.key(&iface) {
            Some(key) => rails.push(Rail(key, Device::Netdev(iface))),
            None => nameless.push(iface.to_string()),
        }
    }
    for hca in &plan.ib {
        match names.hca_key(hca) {
            Some(key) => rails.push(Rail(key, Device::Bare(BareHca { hca: hca.clone() }))),
            None => nameless.push(hca.to_string()),
        }
    }
    let dropped = selection.dropped().filter_map(|(v, drop)| {
        let plain = drop.code == DropCode::NotRdma && v.hca.is_none();
        let key = match (&v.netdev, &v.hca) {
            (Some(netdev), _) => names.key(netdev)?,
            (None, hca) => names.hca_key(hca.as_ref()?)?,
        };
        (!plain && !rails.iter().any(|Rail(k, _)| *k == key))
            .then_some(DroppedRail(key, known(drop.code)))
    });
    let dropped = dropped.collect();
    (
        Offer {
            rails,
            dropped,
            ..offer
        },
        nameless,
    )
}

/// A code that all versions of the protocol's messages have.
fn known(code: DropCode) -> DropCode {
    match code {
        DropCode::SlowerHca | DropCode::OtherLinkLayer => DropCode::Excluded,
        code => code,
    }
}
