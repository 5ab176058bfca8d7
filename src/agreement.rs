//! What a node offers: its plan's rails under the names by which all nodes compare them.

use std::collections::BTreeMap;

use ipnet::IpNet;
use rail_agreement::message::{HostName, Offer, VERSION};
use rail_agreement::{Bare, Device, Lack, Match, Nonce, Policy, Rail, RailKey};
use rdma_model::ids::{HcaName, IfName};
use rdma_model::snapshot::Snapshot;

use crate::candidate::counts;
use crate::plan::Plan;
use crate::select::{DropCode, Selection, Verdict, natural};

/// How this node's NICs are named for the others.
pub struct Names<'a> {
    policy: Policy,
    labels: &'a BTreeMap<IfName, RailKey>,
    seen: &'a Snapshot,
    /// RDMA NICs in PCI order, kept or not.
    places: Vec<&'a IfName>,
}

impl<'a> Names<'a> {
    /// By that policy.
    pub fn new(
        policy: Policy,
        labels: &'a BTreeMap<IfName, RailKey>,
        selection: &'a Selection,
        seen: &'a Snapshot,
    ) -> Names<'a> {
        // What sits on a NIC, or carries no RDMA, has no place of its own; what is kept has one whatever it is.
        let own = |v: &&Verdict| match &v.dropped {
            None => true,
            Some(drop) => v.hca.is_some() && drop.code != DropCode::Child,
        };
        let mut all: Vec<&Verdict> = selection.verdicts.iter().filter(own).collect();
        let label = |v: &Verdict| natural(&v.label());
        all.sort_by_cached_key(|v| (v.pci.is_none(), v.pci, label(v)));
        let places = all.into_iter().filter_map(|v| v.netdev.as_ref()).collect();
        Names { policy, labels, seen, places }
    }

    /// What all call an InfiniBand HCA without a netdev: it has no address to go by, so its own name stands, or its label.
    pub fn hca_key(&self, hca: &HcaName) -> Option<RailKey> {
        match self.policy.by {
            Match::Label => self.labels.get(&hca.as_str().parse().ok()?).cloned(),
            _ => hca.as_str().parse().ok(),
        }
    }

    /// What a NIC needs to have one.
    pub fn wanted(&self) -> &'static str {
        match self.policy.by {
            Match::Name => "name that others could have",
            Match::Label => "label",
            Match::Index => "place",
            Match::Subnet => "address with a subnet",
        }
    }

    /// What all call the rail of that netdev; nothing where it has no such name.
    pub fn key(&self, netdev: &IfName) -> Option<RailKey> {
        match self.policy.by {
            Match::Name => netdev.as_str().parse().ok(),
            Match::Label => self.labels.get(netdev).cloned(),
            Match::Index => self.places.iter().position(|n| *n == netdev)?.to_string().parse().ok(),
            Match::Subnet => {
                let mut addresses = self.seen.netdev(netdev)?.addresses.iter();
                let first = addresses.find(|a| counts(a, self.policy.family))?;
                let at = first.peer.unwrap_or(first.address);
                IpNet::new(at, first.prefix).ok()?.trunc().to_string().parse().ok()
            }
        }
    }
}

/// What this node offers; and the devices of its plan that the policy has no name for.
pub fn offer(
    plan: &Plan,
    selection: &Selection,
    names: &Names,
    nodes: u32,
    host: HostName,
    nonce: Nonce,
) -> (Offer, Vec<String>) {
    let (mut rails, mut nameless) = (Vec::new(), Vec::new());
    for nic in plan.rails() {
        let iface = nic.identity.name.clone();
        match names.key(&iface) {
            Some(key) => rails.push(Rail(key, Device::Netdev(iface))),
            None => nameless.push(iface.to_string()),
        }
    }
    for hca in &plan.ib {
        match names.hca_key(hca) {
            Some(key) => rails.push(Rail(key, Device::Bare(Bare { hca: hca.clone() }))),
            None => nameless.push(hca.to_string()),
        }
    }
    let lack = |(v, drop): (&Verdict, &crate::select::Drop)| {
        let plain = drop.code == DropCode::NotRdma && v.hca.is_none();
        let key = match (&v.netdev, &v.hca) {
            (Some(netdev), _) => names.key(netdev)?,
            (None, hca) => names.hca_key(hca.as_ref()?)?,
        };
        (!plain && !rails.iter().any(|Rail(k, _)| *k == key)).then_some(Lack(key, drop.code))
    };
    let lacks = selection.dropped().filter_map(lack).collect();
    (Offer { v: VERSION, nonce, host, nodes, policy: names.policy, rails, lacks, refuses: None }, nameless)
}
