use rdma_model::natural;
use rdma_model::nic::Nic;
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use anyhow::{Result, ensure};
use rdma_model::ids::{BusId, HcaName, IfName};
use rdma_model::snapshot::{CharDevice, Snapshot};
use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use rdma_model::upper_lower;

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
        let cm = plan.devices.iter().find(|d| d.name == "rdma_cm");
        let rail = |name, hca: Option<String>, verbs: Vec<CharDevice>, pci| {
            let nodes = if verbs.is_empty() {
                Vec::new()
            } else {
                verbs.into_iter().chain(cm.cloned()).collect()
            };
            Rail {
                name,
                hca,
                nodes,
                pci,
            }
        };
        let nic = |nic: &Nic| {
            let its = |n: &&Nic| {
                upper_lower::moved_root(n, &plan.nics).identity.name == nic.identity.name
            };
            let verbs = plan
                .nics
                .iter()
                .filter(its)
                .filter_map(|n| n.uverbs.clone())
                .collect();
            let hca = nic.hca.as_ref().map(|hca| {
                nic.port
                    .map_or(hca.to_string(), |port| format!("{hca}:{port}"))
            });
            rail(
                RailName::Netdev(nic.identity.name.clone()),
                hca,
                verbs,
                nic.identity.pci,
            )
        };
        let ib = |name: &HcaName| {
            let hca = host.hca(name);
            let verbs = hca.and_then(|h| h.uverbs.clone()).into_iter().collect();
            rail(
                RailName::Hca(name.clone()),
                Some(name.to_string()),
                verbs,
                hca.and_then(|h| h.pci),
            )
        };
        plan.rails()
            .map(nic)
            .chain(plan.ib.iter().map(ib))
            .collect()
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
