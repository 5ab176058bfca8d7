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
pub use merge::{adorn, merge};
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

/// How much to read: a hook has no use for the slow parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// All PCI functions, hundreds on a GPU node, and each link speed is read from the device; and
    /// what they hang from.
    pub pci: bool,
    /// GID tables: 256 entries per mlx5 port.
    pub gids: bool,
    /// Netdevs without hardware: sysfs shows of them only what netlink reports as well.
    pub virtual_netdevs: bool,
}

impl Scope {
    pub const FULL: Scope = Scope {
        pci: true,
        gids: true,
        virtual_netdevs: true,
    };
    /// What the joining of a live host's netdevs and HCAs needs.
    pub const BRIEF: Scope = Scope {
        pci: false,
        gids: false,
        virtual_netdevs: false,
    };
}

pub fn read(root: &Path) -> SysTree {
    read_scope(root, Scope::FULL)
}

pub fn read_scope(root: &Path, scope: Scope) -> SysTree {
    match Root::open(root) {
        Ok(root) => read_root(&root, scope),
        Err(e) => SysTree {
            warnings: vec![format!("{} cannot be read: {e}", root.display())],
            ..SysTree::default()
        },
    }
}

fn read_root(root: &Root, scope: Scope) -> SysTree {
    let mut warnings = Vec::new();
    let netdevs = netdev::netdevs(root, scope.virtual_netdevs, &mut warnings);
    let mut hcas = hca::hcas(root, scope.gids, &mut warnings);
    for hca in &mut hcas {
        netdev::put_behind_ports(hca, &netdevs);
    }
    SysTree {
        hcas: hcas.into_iter().map(|found| found.hca).collect(),
        netdevs: netdevs.into_iter().map(|found| found.netdev).collect(),
        pci: if scope.pci {
            pci::functions(root, &mut warnings)
        } else {
            Vec::new()
        },
        numa_nodes: if scope.pci {
            numa::nodes(root)
        } else {
            Vec::new()
        },
        cpu: if scope.pci { numa::cpu(root) } else { None },
        rdma_cm: hca::rdma_cm(root),
        warnings,
    }
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

    pub fn facts(&self, scope: Scope) -> SysTree {
        read_root(&self.0, scope)
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
    Ok(merge(Survey::open(root)?.facts(Scope::FULL), None, None))
}
