//! What a /sys tells, live or captured, and how it joins with what RDMA netlink tells.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::{HcaName, IfName};
use rdma_model::snapshot::{CharDevice, Cpu, Gid, Hca, Netdev, NumaNode, PciFunction, Port, Snapshot};
use rdma_model::tree::Tree;
use rdma_netlink::nldev::{self, CharDev};

use super::netns::Netns;
use super::rdma::{NlFacts, NlHca};
use super::sysfs_root::Root;
use super::{newmount, sysfs_hca, sysfs_net, sysfs_numa, sysfs_pci, sysfs_tree};

/// Facts of one /sys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SysTree {
    /// RDMA devices, by name; conflicts are about the netdevs behind ports.
    pub hcas: Vec<Hca>,
    /// Netdevs of the namespace for which this /sys was mounted, by ifindex.
    pub netdevs: Vec<Netdev>,
    /// PCI functions, by address.
    pub pci: Vec<PciFunction>,
    /// NUMA nodes, by number.
    pub numa_nodes: Vec<NumaNode>,
    /// The processor.
    pub cpu: Option<Cpu>,
    /// `/dev/infiniband/rdma_cm`.
    pub rdma_cm: Option<CharDevice>,
    /// What could not be read, one sentence each.
    pub warnings: Vec<String>,
}

/// How much to read: a hook has no use for the slow parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// All PCI functions, hundreds on a GPU node, and each link speed is read from the device; and what they hang from.
    pub pci: bool,
    /// GID tables: 256 entries per mlx5 port.
    pub gids: bool,
    /// Netdevs without hardware: sysfs tells of them only what netlink tells as well.
    pub virtual_netdevs: bool,
}

impl Scope {
    /// Everything.
    pub const FULL: Scope = Scope { pci: true, gids: true, virtual_netdevs: true };
    /// What the joining of a live host's netdevs and HCAs needs.
    pub const BRIEF: Scope = Scope { pci: false, gids: false, virtual_netdevs: false };
}

/// Reads everything below a /sys root. What cannot be read is left out, with a warning where that matters.
pub fn read(root: &Path) -> SysTree {
    read_scope(root, Scope::FULL)
}

/// Reads that much below a /sys root.
pub fn read_scope(root: &Path, scope: Scope) -> SysTree {
    match Root::open(root) {
        Ok(root) => read_root(&root, scope),
        Err(e) => SysTree { warnings: vec![format!("{} cannot be read: {e}", root.display())], ..SysTree::default() },
    }
}

fn read_root(root: &Root, scope: Scope) -> SysTree {
    let mut warnings = Vec::new();
    let netdevs = sysfs_net::netdevs(root, scope.virtual_netdevs, &mut warnings);
    let mut hcas = sysfs_hca::hcas(root, scope.gids, &mut warnings);
    hcas.iter_mut().for_each(|hca| sysfs_net::put_behind_ports(hca, &netdevs));
    SysTree {
        hcas: hcas.into_iter().map(|found| found.hca).collect(),
        netdevs: netdevs.into_iter().map(|found| found.netdev).collect(),
        pci: if scope.pci { sysfs_pci::functions(root, &mut warnings) } else { Vec::new() },
        numa_nodes: if scope.pci { sysfs_numa::nodes(root) } else { Vec::new() },
        cpu: if scope.pci { sysfs_numa::cpu(root) } else { None },
        rdma_cm: sysfs_hca::rdma_cm(root),
        warnings,
    }
}

/// The used entries of one port's GID table in a /sys that is held open; empty where there is no such port. Made for polling.
pub fn gids(sys: &OwnedFd, hca: &HcaName, port: u32) -> io::Result<Vec<Gid>> {
    Ok(sysfs_hca::gids(&Root::at(sys.try_clone()?), hca, port))
}

/// Numbers of the verbs nodes of all namespaces: the class has none of its own in any mode.
pub fn verbs_numbers(root: &Path) -> Vec<u32> {
    let Ok(root) = Root::open(root) else { return Vec::new() };
    let names = root.dir("class/infiniband_verbs").map(|dir| dir.names()).unwrap_or_default();
    names.iter().filter_map(|name| name.strip_prefix("uverbs")?.parse().ok()).collect()
}

/// A /sys that is looked at: facts, and what a container may see of it. No file of it is read twice, whatever is asked.
pub struct Survey(Root);

impl Survey {
    /// `root` is a /sys, or a directory that holds one as `sys`.
    ///
    /// # Errors
    /// [`ErrorClass::Usage`] where it is none.
    pub fn open(root: &Path) -> Result<Survey> {
        Root::open(root).map(Survey).class(ErrorClass::Usage, format!("reading {} as a /sys tree", root.display()))
    }

    /// That of a network namespace, mounted for this look alone.
    pub fn of(netns: &Netns) -> Result<Survey> {
        let mounted = netns.visit(|| Ok(newmount::create("sysfs", &[], newmount::PLAIN)?));
        mounted.map(|top| Survey(Root::at(top))).context("mounting a sysfs of the container's namespace")
    }

    /// Its facts.
    pub fn facts(&self, scope: Scope) -> SysTree {
        read_root(&self.0, scope)
    }

    /// Every directory of links below class, bus and dev.
    pub fn links(&self) -> Tree {
        sysfs_tree::links(&self.0)
    }

    /// The files that were read so far, each once: what a survey costs is to be compared with reading just these.
    pub fn files(&self) -> Vec<String> {
        self.0.files()
    }

    /// All that a container may see of every device.
    pub fn whole(&self) -> Tree {
        sysfs_tree::whole(&self.0)
    }
}

/// A snapshot of a captured /sys, or of a directory that holds one as `sys`.
pub fn tree_snapshot(root: &Path) -> Result<Snapshot> {
    Ok(merge(Survey::open(root)?.facts(Scope::FULL), None, None))
}

/// Joins the sources into a snapshot: RDMA facts from netlink, then sysfs; netdevs from `live` (route netlink) where
/// given, to which sysfs adds function, driver and dev_port. Where two sources quarrel, netlink's word stays and the
/// HCA says so.
pub fn merge(tree: SysTree, nl: Option<NlFacts>, live: Option<Vec<Netdev>>) -> Snapshot {
    let SysTree { mut hcas, netdevs: seen, pci, numa_nodes, cpu, rdma_cm, mut warnings } = tree;
    let netdevs = match live {
        Some(mut live) => {
            let ours = adorn(&mut live, &seen);
            let elsewhere = |n: &IfName| seen.iter().any(|s| s.name == *n) && !ours.contains(n);
            let unknown = |n: &IfName| !live.iter().any(|l| l.name == *n);
            for port in hcas.iter_mut().flat_map(|h| &mut h.ports) {
                port.netdev.take_if(|n| elsewhere(n) || unknown(n));
            }
            live
        }
        None => seen,
    };
    let (mut rdma_mode, mut cm) = (None, None);
    if let Some(nl) = nl {
        (rdma_mode, cm) = (nl.mode, nl.rdma_cm.map(node));
        hcas = join_hcas(hcas, nl.hcas, &netdevs, &mut warnings);
    }
    shared_netdevs(&hcas, &mut warnings);
    let rdma_cm = cm.or(rdma_cm);
    Snapshot { rdma_mode, rdma_cm, hcas, netdevs, pci, numa_nodes, cpu, warnings, ..Snapshot::default() }
}

/// Adds what only sysfs knows to live netdevs, and says which ones it knew. /sys/class/net shows the namespace of its
/// mount, netlink that of the thread (net_ns_type_operations in net/core/net-sysfs.c): only an equal ifindex and
/// address prove one netdev.
pub fn adorn(live: &mut [Netdev], seen: &[Netdev]) -> BTreeSet<IfName> {
    let seen: BTreeMap<&IfName, &Netdev> = seen.iter().map(|n| (&n.name, n)).collect();
    let mut known = BTreeSet::new();
    for netdev in live {
        let Some(twin) = seen.get(&netdev.name).filter(|t| t.ifindex == netdev.ifindex && t.mac == netdev.mac) else {
            continue;
        };
        netdev.pci = netdev.pci.or(twin.pci);
        netdev.driver = netdev.driver.take().or_else(|| twin.driver.clone());
        netdev.dev_port = netdev.dev_port.or(twin.dev_port);
        let more: Vec<u32> = twin.lowers.iter().filter(|index| !netdev.lowers.contains(index)).copied().collect();
        netdev.lowers.extend(more);
        known.insert(netdev.name.clone());
    }
    known
}

fn join_hcas(sys: Vec<Hca>, nl: Vec<NlHca>, netdevs: &[Netdev], warnings: &mut Vec<String>) -> Vec<Hca> {
    let mut joined: BTreeMap<HcaName, Hca> = sys.into_iter().map(|h| (h.name.clone(), h)).collect();
    let mut told = BTreeSet::new();
    for one in nl {
        let name: HcaName = match one.device.name.parse() {
            Ok(name) => name,
            Err(e) => {
                warnings.push(format!("RDMA netlink: {e}"));
                continue;
            }
        };
        let hca = joined.entry(name.clone()).or_insert_with(|| {
            warnings.push(format!("{name} is in RDMA netlink, but not in sysfs"));
            unseen(name.clone())
        });
        told.insert(name);
        // What sysfs could not tell for sure, netlink knows.
        warnings.extend(hca.conflicts.drain(..).map(|c| format!("{}: {c}", hca.name)));
        join_hca(hca, one, netdevs, warnings);
    }
    for (name, hca) in joined.iter_mut().filter(|(name, _)| !told.contains(*name)) {
        hca.conflicts.push(format!("sysfs shows {name}, RDMA netlink does not"));
    }
    joined.into_values().collect()
}

/// An HCA of which only its name is known.
fn unseen(name: HcaName) -> Hca {
    Hca {
        name,
        index: None,
        node_guid: None,
        sys_image_guid: None,
        firmware: None,
        driver: None,
        protocol: None,
        pci: None,
        numa: None,
        uverbs: None,
        umad: Vec::new(),
        ports: Vec::new(),
        conflicts: Vec::new(),
    }
}

fn join_hca(hca: &mut Hca, nl: NlHca, netdevs: &[Netdev], warnings: &mut Vec<String>) {
    let NlHca { device, ports, uverbs } = nl;
    if let Some(software) = uverbs.as_ref().and_then(CharDev::software) {
        // siw borrows the function of its netdev (siw_device_create()), yet nothing of it is hardware.
        (hca.driver, hca.pci, hca.numa) = (Some(software.into()), None, None);
    }
    let conflicts = &mut hca.conflicts;
    hca.index = Some(device.index);
    hca.node_guid = agree("node GUID", device.node_guid, hca.node_guid, conflicts);
    hca.sys_image_guid = agree("system image GUID", device.sys_image_guid, hca.sys_image_guid, conflicts);
    hca.firmware = device.firmware.or(hca.firmware.take());
    hca.protocol = device.protocol;
    let (known, seen) = (uverbs.map(node), hca.uverbs.take());
    let text = |n: &CharDevice| format!("{} {}:{}", n.name, n.major, n.minor);
    agree("verbs node", known.as_ref().map(text), seen.as_ref().map(text), conflicts);
    hca.uverbs = known.or(seen);
    for port in ports {
        join_port(hca, port, netdevs, warnings);
    }
    hca.ports.sort_by_key(|p| p.number);
}

fn join_port(hca: &mut Hca, nl: nldev::Port, netdevs: &[Netdev], warnings: &mut Vec<String>) {
    let number = nl.number;
    let at = hca.ports.iter().position(|p| p.number == number).unwrap_or_else(|| {
        let gids = Vec::new();
        hca.ports.push(Port { number, state: None, link_layer: None, rate: None, netdev: None, gids });
        hca.ports.len() - 1
    });
    let (port, conflicts) = (&mut hca.ports[at], &mut hca.conflicts);
    // A state is of the moment: a carrier may come between the two looks.
    port.state = nl.state_name().map(str::to_owned).or(port.state.take());
    let told = nl.netdev.as_ref().and_then(|n| n.parse::<IfName>().ok());
    // A bond stands for its member, in either source.
    let master = |n: &IfName| netdevs.iter().find(|d| d.name == *n).and_then(|d| d.master.clone());
    port.netdev = match (told, port.netdev.take()) {
        (Some(told), Some(seen)) if master(&seen).as_ref() == Some(&told) || master(&told).as_ref() == Some(&seen) => {
            Some(told)
        }
        (None, Some(seen)) if port.link_layer.as_deref() != Some("InfiniBand") => {
            // The netdev of a RoCE port that is in our namespace is always told (fill_port_info() in nldev.c).
            warnings.push(format!("{} port {number}: sysfs says {seen}, RDMA netlink no netdev", hca.name));
            None
        }
        (told, seen) => agree(&format!("netdev of port {number}"), told, seen, conflicts),
    };
}

/// Netlink's word, else that of sysfs; a sentence where they differ.
fn agree<T: PartialEq + std::fmt::Display>(
    what: &str,
    nl: Option<T>,
    sys: Option<T>,
    conflicts: &mut Vec<String>,
) -> Option<T> {
    if let (Some(nl), Some(sys)) = (&nl, &sys) {
        if nl != sys {
            conflicts.push(format!("{what}: RDMA netlink says {nl}, sysfs says {sys}"));
        }
    }
    nl.or(sys)
}

fn node(dev: CharDev) -> CharDevice {
    CharDevice { name: dev.name, major: dev.major, minor: dev.minor }
}

/// A netdev with two HCAs cannot be moved for one of them alone: say so, whatever is selected later.
fn shared_netdevs(hcas: &[Hca], warnings: &mut Vec<String>) {
    let mut users: BTreeMap<&IfName, BTreeSet<&str>> = BTreeMap::new();
    for hca in hcas {
        for netdev in hca.ports.iter().filter_map(|p| p.netdev.as_ref()) {
            users.entry(netdev).or_default().insert(hca.name.as_str());
        }
    }
    for (netdev, hcas) in users.into_iter().filter(|(_, hcas)| hcas.len() > 1) {
        let hcas = hcas.into_iter().collect::<Vec<_>>().join(" and ");
        warnings.push(format!("{netdev} is the netdev of {hcas}: they can only move together"));
    }
}
