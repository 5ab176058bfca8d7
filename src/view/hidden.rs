use rdma_model::snapshot::{Hca, Netdev, PciFunction, Snapshot};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;

use rdma_model::ids::{BusId, HcaName, IfName};
use rdma_model::tree::{Node, Tree, parent};

use super::{Keep, end, joined, mads};

const FUNCTIONS: &str = "bus/pci/devices";

/// Drivers that drive functions of any kind: that one of theirs is a NIC says nothing of the
/// others.
const SHARED: [&str; 7] = [
    "virtio-pci",
    "vfio-pci",
    "pci-stub",
    "pci-pf-stub",
    "uio_pci_generic",
    "igb_uio",
    "pcieport",
];

pub(super) struct Hidden {
    pub(super) dirs: Dirs,
    links: HashSet<String>,
}

pub(super) struct Fate {
    pub(super) is_seen: bool,
    pub(super) end: Option<String>,
}

impl Hidden {
    pub(super) fn find(keep: &Keep, seen: &Snapshot, tree: &Tree) -> Hidden {
        let mut hidden = Hidden {
            dirs: Dirs::default(),
            links: HashSet::new(),
        };
        hidden.hcas(keep, seen, tree);
        hidden.functions(keep, seen, tree);
        hidden.subfunctions(keep, tree);
        hidden
    }

    /// RDMA devices, and the nodes of those: what is not known to be a kept one's is hidden.
    fn hcas(&mut self, keep: &Keep, seen: &Snapshot, tree: &Tree) {
        // These get new numbers.
        let moved: BTreeSet<&HcaName> = keep.moved(seen).map(|(name, _)| name).collect();
        let mut kept: Vec<&Hca> = seen.hcas.iter().collect();
        kept.retain(|h| keep.hcas.contains(&h.name) && !moved.contains(&h.name));
        let verbs = kept.iter().filter_map(|h| h.uverbs.as_ref());
        let verbs: BTreeSet<String> = verbs.map(|node| node.name.clone()).collect();
        let mads: BTreeSet<String> = kept.into_iter().flat_map(mads).collect();
        let names: BTreeSet<String> = keep.hcas.iter().map(ToString::to_string).collect();
        let classes = [
            ("class/infiniband", &names),
            ("class/infiniband_cm", &names),
            ("class/infiniband_verbs", &verbs),
            ("class/infiniband_mad", &mads),
        ];
        for (class, kept) in classes {
            for name in tree
                .names(class)
                .filter(|name| *name != "abi_version" && !kept.contains(*name))
            {
                self.hide(tree, format!("{class}/{name}"));
            }
        }
    }

    /// A name of a directory of links, and what it leads to.
    pub(super) fn hide(&mut self, tree: &Tree, path: String) {
        if let Some(dir) = end(tree, &path) {
            self.dirs.add(dir);
        }
        self.links.insert(path);
    }

    /// PCI functions: dropped NICs, and what kept NICs' cards have besides.
    fn functions(&mut self, keep: &Keep, seen: &Snapshot, tree: &Tree) {
        let functions: BTreeMap<BusId, &PciFunction> =
            seen.pci.iter().map(|f| (f.address, f)).collect();
        let (nics, kept) = (nics(seen, &functions), kept_functions(keep, seen));
        let cards: BTreeSet<BusId> = kept.iter().flat_map(|id| card(*id, &functions)).collect();
        let mut places = HashSet::new();
        // A function may be there twice, under two spellings: names are read, not made.
        for name in tree.names(FUNCTIONS) {
            let Some(id) = name
                .parse()
                .ok()
                .filter(|id| nics.contains(id) && !kept.contains(id))
            else {
                continue;
            };
            let path = format!("{FUNCTIONS}/{name}");
            if cards.contains(&id) || functions.get(&id).is_some_and(|f| is_accelerator(f)) {
                places.extend(end(tree, &path));
            } else {
                self.hide(tree, path);
            }
        }
        if !places.is_empty() {
            self.all_in(&places, tree);
        }
    }

    /// Of a function that stays for its place alone, nothing is seen that a class or bus leads to.
    fn all_in(&mut self, places: &HashSet<String>, tree: &Tree) {
        for (path, node) in tree.iter().filter(|(path, _)| is_top(path)) {
            let Node::Link(target) = node else { continue };
            let end = joined(path, target);
            let Some(at) =
                above(&end).find(|at| end.get(..*at).is_some_and(|dir| places.contains(dir)))
            else {
                continue;
            };
            let child = end
                .get(at + 1..)
                .and_then(|below| below.split('/').next())
                .unwrap_or_default();
            // Buses and functions below a function are no part of it.
            if child != "pci_bus" && !(child.contains(':') && child.parse::<BusId>().is_ok()) {
                if let Some(dir) = end.get(..at + 1 + child.len()) {
                    self.dirs.add(dir.to_owned());
                }
            }
        }
    }

    /// A sub-function (`mlx5_core.sf.N` on the auxiliary bus) is a NIC of its own below its card's
    /// function.
    fn subfunctions(&mut self, keep: &Keep, tree: &Tree) {
        let aux = "bus/auxiliary/devices";
        let dirs: HashSet<String> = tree
            .names(aux)
            .filter_map(|name| end(tree, &format!("{aux}/{name}")))
            .collect();
        let (hcas, netdevs): (HashSet<&str>, HashSet<&str>) = (
            keep.hcas.iter().map(HcaName::as_str).collect(),
            keep.netdevs.iter().map(IfName::as_str).collect(),
        );
        let mut holds: BTreeMap<String, bool> = BTreeMap::new();
        for (class, kept) in [("class/infiniband", hcas), ("class/net", netdevs)] {
            for name in tree.names(class) {
                let device = end(tree, &format!("{class}/{name}")).unwrap_or_default();
                for dir in above(&device)
                    .filter_map(|at| device.get(..at))
                    .filter(|dir| dirs.contains(*dir))
                {
                    *holds.entry(dir.to_owned()).or_default() |= kept.contains(name);
                }
            }
        }
        for (dir, _) in holds.into_iter().filter(|(_, is_kept)| !is_kept) {
            self.dirs.add(dir);
        }
    }

    /// What becomes of each entry of a tree, in its order.
    pub(super) fn fates(&self, tree: &Tree) -> Vec<Fate> {
        // The files of a directory come one after the other: what is above them is asked once.
        let mut dir = ("", false);
        let mut fates = Vec::with_capacity(tree.len());
        for (path, node) in tree.iter() {
            if parent(path) != dir.0 {
                dir = (parent(path), self.dirs.hold(parent(path)));
            }
            let end = if let Node::Link(to) = node {
                Some(joined(path, to))
            } else {
                None
            };
            let is_hidden = dir.1
                || match node {
                    Node::File(_) => false,
                    Node::Dir => self.dirs.hold(path),
                    Node::Link(_) => {
                        self.links.contains(path)
                            || end.as_ref().is_some_and(|end| self.dirs.hold(end))
                    }
                };
            fates.push(Fate {
                is_seen: !is_hidden,
                end,
            });
        }
        fates
    }
}

/// Directories, none of them below another one. Each ends in a slash here: so a path comes right
/// behind the one that it is in.
#[derive(Default)]
pub(super) struct Dirs(BTreeSet<String>);

impl Dirs {
    fn add(&mut self, mut dir: String) {
        if self.hold(&dir) {
            return;
        }
        dir.push('/');
        let below: Vec<String> = self
            .0
            .range(dir.clone()..)
            .take_while(|other| other.starts_with(&dir))
            .cloned()
            .collect();
        for other in &below {
            self.0.remove(other);
        }
        self.0.insert(dir);
    }

    /// Whether a path is one of them, or below one.
    pub(super) fn hold(&self, path: &str) -> bool {
        let path = [path, "/"].concat();
        self.0
            .range::<str, _>((Bound::Unbounded, Bound::Included(path.as_str())))
            .next_back()
            .is_some_and(|dir| path.starts_with(dir))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|dir| dir.strip_suffix('/'))
    }
}

/// Where the directories above a path end in it.
pub(super) fn above(path: &str) -> impl Iterator<Item = usize> {
    path.match_indices('/').map(|(at, _)| at)
}

/// Whether a path is below what leads to devices.
pub(super) fn is_top(path: &str) -> bool {
    ["class/", "bus/", "dev/"]
        .iter()
        .any(|top| path.starts_with(top))
}

fn nics(seen: &Snapshot, functions: &BTreeMap<BusId, &PciFunction>) -> BTreeSet<BusId> {
    let of_netdev = seen.netdevs.iter().filter_map(|n| {
        n.pci
            .filter(|id| functions.get(id).is_none_or(|f| is_of(n, f)))
    });
    let of_hca = seen.hcas.iter().filter_map(|h| h.pci);
    let mut nics: BTreeSet<BusId> = of_hca.chain(of_netdev).collect();
    let drivers: BTreeSet<&str> = nics
        .iter()
        .filter_map(|id| own_driver(functions.get(id)?))
        .collect();
    for function in &seen.pci {
        if is_network(function) || own_driver(function).is_some_and(|d| drivers.contains(d)) {
            nics.insert(function.address);
        }
    }
    // A VF is what its PF is, whatever drives the one or the other.
    for vf in &seen.pci {
        nics.extend(vf.physfn.filter(|_| nics.contains(&vf.address)));
    }
    for vf in &seen.pci {
        if vf.physfn.is_some_and(|pf| nics.contains(&pf)) {
            nics.insert(vf.address);
        }
    }
    nics.retain(|id| functions.get(id).is_none_or(|f| f.class >> 16 != 0x06));
    nics
}

/// Its driver, unless that drives functions of any kind.
fn own_driver(function: &PciFunction) -> Option<&str> {
    function.driver.as_deref().filter(|d| !SHARED.contains(d))
}

/// Whether a netdev is of its function itself. That of a USB adapter is below the function of a USB
/// controller.
fn is_of(netdev: &Netdev, function: &PciFunction) -> bool {
    is_network(function) || function.driver.is_none() || function.driver == netdev.driver
}

fn is_network(function: &PciFunction) -> bool {
    function.class >> 16 == 0x02
}

/// GPUs and their like, some of which have ports of their own (Gaudi): a container may use them
/// without these.
fn is_accelerator(function: &PciFunction) -> bool {
    matches!(function.class >> 16, 0x03 | 0x0b | 0x12)
}

fn kept_functions(keep: &Keep, seen: &Snapshot) -> BTreeSet<BusId> {
    let hcas = seen
        .hcas
        .iter()
        .filter(|h| keep.hcas.contains(&h.name))
        .filter_map(|h| h.pci);
    let netdevs = seen
        .netdevs
        .iter()
        .filter(|n| keep.netdevs.contains(&n.name))
        .filter_map(|n| n.pci);
    let mut kept: BTreeSet<BusId> = hcas
        .chain(netdevs)
        .chain(keep.functions.iter().copied())
        .collect();
    // NCCL asks mlx5 for the function of each HCA, and looks for its place (NCCL_IB_DATA_DIRECT).
    if has_mlx5(keep, seen) {
        let direct = seen.pci.iter().filter(|f| f.is_data_direct());
        kept.extend(direct.map(|f| f.address));
    }
    kept
}

fn has_mlx5(keep: &Keep, seen: &Snapshot) -> bool {
    let mut kept = seen.hcas.iter().filter(|h| keep.hcas.contains(&h.name));
    kept.any(|h| h.driver.as_deref() == Some("mlx5_core"))
}

/// The functions that stand for a kept function's card. NCCL sets the last digit of an address to
/// 0, and with NCCL_IB_MERGE_VFS the device's as well (src/transport/net_ib/init.cc:69 in 2.30.7),
/// and takes that function's place and link; a VF's `physfn` leads to its PF.
fn card(id: BusId, functions: &BTreeMap<BusId, &PciFunction>) -> Vec<BusId> {
    let first = BusId { function: 0, ..id };
    let mut card = vec![first, BusId { device: 0, ..first }];
    card.extend(functions.get(&id).and_then(|f| f.physfn));
    card
}
