mod counters;
mod dir;
mod hca;
mod lacking;
mod merge;
mod netdev;
mod numa;
mod pci;
mod root;
mod threads;
mod tree;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::HcaName;
use rdma_model::snapshot::{CharDevice, Cpu, Gid, Hca, Netdev, NumaNode, PciFunction, Snapshot};
use rdma_model::tree::Tree;

use super::mount::fsmount;
use super::netns::Netns;
use root::Root;

pub use counters::PortCounters;
pub use hca::driver;
pub use lacking::Lacking;
pub use merge::merge;
pub(super) use numa::this_cpu;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SysTree {
    /// RDMA devices, by name; conflicts are about the netdevs behind ports.
    pub hcas: Vec<Hca>,
    /// Netdevs of the namespace for which this /sys was mounted, by ifindex.
    pub netdevs: Vec<Netdev>,
    pub pci: Vec<PciFunction>,
    pub numa_nodes: Vec<NumaNode>,
    pub cpu: Option<Cpu>,
    pub rdma_cm: Option<CharDevice>,
    pub warnings: Vec<String>,
}

/// The used entries of one port's GID table in a /sys that is held open; empty where there is no
/// such port. Made for polling.
pub fn gids(sys: &OwnedFd, hca: &HcaName, port: u32) -> io::Result<Vec<Gid>> {
    Ok(hca::gids(&Root::at(sys.try_clone()?), hca, port))
}

/// Numbers of the verbs nodes of all namespaces: the class has none of its own in any mode.
pub fn verbs_numbers(root: &Path) -> Vec<u32> {
    let Ok(root) = Root::open(root) else {
        return Vec::new();
    };
    let names = root
        .dir("class/infiniband_verbs")
        .map(|dir| dir.names())
        .unwrap_or_default();
    names
        .iter()
        .filter_map(|name| name.strip_prefix("uverbs")?.parse().ok())
        .collect()
}

/// A /sys that is looked at: facts, and what a container may see of it. No file of it is read
/// twice, whatever is asked.
pub struct Survey(Root);

impl Survey {
    /// `root` is a /sys, or a directory that holds one as `sys`; else [`ErrorClass::Usage`].
    pub fn open(root: &Path) -> Result<Survey> {
        Root::open(root).map(Survey).class(
            ErrorClass::Usage,
            format!("reading {} as a /sys tree", root.display()),
        )
    }

    /// The /sys of a network namespace, mounted for this survey alone.
    pub fn of_netns(netns: &Netns) -> Result<Survey> {
        let mounted = netns.visit(|| Ok(fsmount::create("sysfs", &[], fsmount::PLAIN)?));
        mounted
            .map(|top| Survey(Root::at(top)))
            .context("mounting a sysfs of the container's namespace")
    }

    pub fn facts(&self) -> SysTree {
        let root = &self.0;
        let mut warnings = Vec::new();
        let netdevs = netdev::netdevs(root, &mut warnings);
        let mut hcas = hca::hcas(root, &mut warnings);
        for hca in &mut hcas {
            netdev::put_behind_ports(hca, &netdevs);
        }
        SysTree {
            hcas: hcas.into_iter().map(|found| found.hca).collect(),
            netdevs: netdevs.into_iter().map(|found| found.netdev).collect(),
            pci: pci::functions(root, &mut warnings),
            numa_nodes: numa::nodes(root),
            cpu: numa::cpu(root),
            rdma_cm: hca::rdma_cm(root),
            warnings,
        }
    }

    pub fn links(&self) -> Tree {
        tree::links(&self.0)
    }

    /// The files that were read so far, each once: what a survey costs is to be compared with
    /// reading just these.
    pub fn files(&self) -> Vec<String> {
        self.0.files()
    }

    pub fn whole(&self) -> Tree {
        tree::whole(&self.0)
    }

    /// What is here and not in such a tree of it, counted.
    pub fn beyond(&self, tree: &Tree) -> Vec<Lacking> {
        lacking::count(&self.0, tree)
    }
}

pub fn tree_snapshot(root: &Path) -> Result<Snapshot> {
    Ok(merge(Survey::open(root)?.facts(), None, None))
}
