use rdma_model::nic::Nic;
use rdma_model::{natural, upper_lower};
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use anyhow::{Result, ensure};
use rdma_model::ids::{BusId, HcaName, IfName};
use rdma_model::snapshot::{CharDevice, Snapshot};
use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// How the name of an HCA without a netdev begins in a hook's argument: no netdev's name has a
/// colon.
const HCA: &str = "hca:";

/// What a device gives a container: a netdev with its HCA, or an InfiniBand HCA without one. As
/// text `rdma0` or `hca:mlx5_0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RailName {
    Netdev(IfName),
    /// An HCA that nothing moves with (`--ib`).
    Hca(HcaName),
}

impl RailName {
    pub fn as_str(&self) -> &str {
        match self {
            RailName::Netdev(name) => name.as_str(),
            RailName::Hca(name) => name.as_str(),
        }
    }

    pub fn is_in(&self, plan: &Plan) -> bool {
        match self {
            RailName::Netdev(name) => plan.has_rail(name),
            RailName::Hca(name) => plan.ib.contains(name),
        }
    }
}

impl FromStr for RailName {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        Ok(match s.strip_prefix(HCA) {
            Some(name) => RailName::Hca(name.parse()?),
            None => RailName::Netdev(s.parse()?),
        })
    }
}

rdma_model::serde_as_text!(RailName);

impl fmt::Display for RailName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RailName::Netdev(name) => f.pad(name.as_str()),
            RailName::Hca(name) => f.pad(&format!("{HCA}{name}")),
        }
    }
}

pub fn names<'t>(texts: impl IntoIterator<Item = &'t String>) -> Result<Vec<RailName>> {
    let (mut names, mut seen) = (Vec::new(), HashSet::new());
    for text in texts {
        ensure!(text.len() <= 128, "a rail's name of {} bytes", text.len());
        if seen.insert(text) {
            names.push(text.parse()?);
        }
    }
    Ok(names)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rail {
    pub name: RailName,
    /// `HCA:port`, where it has one.
    pub hca: Option<String>,
    /// Its device nodes: uverbs, also of what comes along with it, and rdma_cm.
    pub nodes: Vec<CharDevice>,
    pci: Option<BusId>,
}

impl Rail {
    /// The rails of a plan, in its order. `host` is where an HCA without a netdev has its node.
    pub fn rails_of_plan(plan: &Plan, host: &Snapshot) -> Vec<Rail> {
        let nics = plan.rails().map(|nic| Rail::of_nic(plan, nic));
        let ib = plan.ib.iter().map(|name| Rail::of_hca(plan, name, host));
        nics.chain(ib).collect()
    }

    /// With the nodes of what comes along with it.
    fn of_nic(plan: &Plan, nic: &Nic) -> Rail {
        let own = &nic.identity;
        let verbs = plan
            .nics
            .iter()
            .filter(|n| upper_lower::moved_root(n, &plan.nics).identity.name == own.name)
            .filter_map(|n| n.uverbs.clone());
        let hca = nic.hca.as_ref().map(|hca| {
            nic.port
                .map_or(hca.to_string(), |port| format!("{hca}:{port}"))
        });
        Rail {
            name: RailName::Netdev(own.name.clone()),
            hca,
            nodes: with_rdma_cm(verbs.collect(), plan),
            pci: own.pci,
        }
    }

    fn of_hca(plan: &Plan, name: &HcaName, host: &Snapshot) -> Rail {
        let hca = host.hca(name);
        let verbs = hca.and_then(|h| h.uverbs.clone());
        Rail {
            name: RailName::Hca(name.clone()),
            hca: Some(name.to_string()),
            nodes: with_rdma_cm(verbs.into_iter().collect(), plan),
            pci: hca.and_then(|h| h.pci),
        }
    }

    pub fn rank(&self) -> impl Ord + use<> {
        (
            self.pci.is_none(),
            self.pci,
            natural::key(self.name.as_str()),
            self.name.clone(),
        )
    }
}

fn with_rdma_cm(mut verbs: Vec<CharDevice>, plan: &Plan) -> Vec<CharDevice> {
    if !verbs.is_empty() {
        let cm = plan.devices.iter().find(|d| d.name == "rdma_cm");
        verbs.extend(cm.cloned());
    }
    verbs
}
