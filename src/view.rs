//! The filtered sysfs: what a container sees of the kept NICs, the GPUs and all bridges above them, and of no other NIC.
//!
//! A NIC is what has an RDMA device or a netdev, what a driver of such a one drives, or a network controller that no driver
//! drives; the PCI class alone proves nothing (real RDMA NICs carry 0x0200, 0x0207, 0x0280 and 0x0c06).
//!
//! Two carriers: *live*, farms of the kept links that are mounted over the kernel's own directories, so that all beneath stays
//! the kernel's; and *snapshot*, the whole tree as files, for sandboxes with a kernel of their own.

use std::collections::{BTreeMap, BTreeSet};

use std::str::FromStr;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::ident::{BusId, HcaName, IfName};
use crate::outfit::Cover;
use crate::plan::{Nic, Plan};
use crate::snapshot::{CharDevice, PciFunction, Snapshot};
use crate::tree::{Node, Tree};

/// How a view reaches a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Carrier {
    /// Directories of the kept links, over those of the kernel's own /sys: counters, states and GIDs stay live
    Live,
    /// The whole tree as it was, for a sandbox with a kernel of its own
    Snapshot,
}

/// What is asked of a container's /sys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Sysfs {
    /// `live` where that can be done, else nothing, with the reason
    #[default]
    Auto,
    /// The kernel's own /sys with directories of the kept links over it, or the container does not start
    Live,
    /// A tree of files in place of /sys: for sandboxes that have a kernel of their own
    Snapshot,
    /// All that the host has
    Off,
}

impl FromStr for Sysfs {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Sysfs> {
        <Sysfs as ValueEnum>::from_str(text, false)
            .map_err(|_| anyhow!("{text:?} is none of auto, live, snapshot, off"))
    }
}

impl Sysfs {
    /// What of it a container gets that gVisor will run, as its annotations show, and why not the rest. gVisor's own proxy for
    /// RDMA builds a /sys of the device nodes that config.json lists (runsc/boot/vfs.go); without it nothing below the sandbox's
    /// own /sys leads anywhere, so that links alone are of no use.
    pub fn for_annotations(self, annotations: &BTreeMap<String, String>) -> (Sysfs, Option<&'static str>) {
        let gvisor = annotations.keys().any(|key| key.starts_with("dev.gvisor."));
        let proxy = annotations.get("dev.gvisor.flag.rdmaproxy").is_some_and(|value| value == "true");
        match self {
            Sysfs::Auto if proxy => (Sysfs::Off, Some("gVisor's RDMA proxy builds the container's /sys itself")),
            Sysfs::Auto if gvisor => (Sysfs::Snapshot, Some("gVisor has a /sys of its own: it gets a tree of files")),
            other => (other, None),
        }
    }
}

/// What stays visible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// RDMA devices.
    pub hcas: BTreeSet<HcaName>,
    /// Netdevs, besides `lo`; those of another namespace are not there in any case.
    pub netdevs: BTreeSet<IfName>,
    /// Verbs nodes that soft-RoCE will have inside, where it is re-created.
    pub verbs: BTreeMap<HcaName, CharDevice>,
}

impl Keep {
    /// What a plan gives to a container.
    pub fn of(plan: &Plan) -> Keep {
        let soft = |n: &Nic| Some((n.hca.clone().filter(|_| n.rxe)?, n.uverbs.clone()?));
        Keep {
            hcas: plan.nics.iter().filter_map(|n| n.hca.clone()).chain(plan.ib.iter().cloned()).collect(),
            netdevs: plan.nics.iter().map(|n| n.identity.name.clone()).collect(),
            verbs: plan.nics.iter().filter_map(soft).collect(),
        }
    }

    /// These RDMA devices with the netdevs behind their ports.
    pub fn hcas(names: BTreeSet<HcaName>, seen: &Snapshot) -> Keep {
        let kept = seen.hcas.iter().filter(|h| names.contains(&h.name));
        let netdevs = kept.flat_map(|h| h.ports.iter().filter_map(|p| p.netdev.clone())).collect();
        Keep { hcas: names, netdevs, verbs: BTreeMap::new() }
    }
}

/// What a plan's container shall see, from the same look that the plan was made from; nothing where its /sys stays as it is.
pub fn of_plan(
    plan: &Plan,
    seen: &Snapshot,
    links: impl FnOnce() -> Tree,
    whole: impl FnOnce() -> Tree,
) -> Option<Tree> {
    let keep = Keep::of(plan);
    match plan.sysfs {
        Sysfs::Off => None,
        Sysfs::Auto | Sysfs::Live => Some(live(&keep, seen, &links())),
        Sysfs::Snapshot => Some(snapshot(&keep, seen, &whole())),
    }
}

/// What is left of the whole tree (`world::sysfs::Survey::whole`): the snapshot carrier.
pub fn snapshot(keep: &Keep, seen: &Snapshot, whole: &Tree) -> Tree {
    let mut hidden = Hidden::of(keep, seen, whole);
    for name in whole.names("class/net") {
        if name != "lo" && !keep.netdevs.iter().any(|n| n.as_str() == name) {
            hidden.dirs.extend(end(whole, &format!("class/net/{name}")));
            hidden.links.insert(format!("class/net/{name}"));
        }
    }
    let mut view = rest(whole, &hidden);
    for (hca, verbs) in &keep.verbs {
        let dir = soft_verbs(verbs);
        let text = |text: String| Node::File(format!("{text}\n").into_bytes());
        view.put(&format!("{dir}/ibdev"), text(hca.to_string()));
        view.put(&format!("{dir}/dev"), text(format!("{}:{}", verbs.major, verbs.minor)));
        view.put(&format!("{dir}/abi_version"), text("1".to_owned()));
        soft_links(verbs).into_iter().for_each(|(path, link)| view.put(&path, link));
    }
    view
}

/// What is not hidden; and of the directories only those that something is in or a link leads to, as before.
fn rest(whole: &Tree, hidden: &Hidden) -> Tree {
    let ends = |links: &mut dyn Iterator<Item = (&str, &Node)>| -> BTreeSet<String> {
        let end = |(path, node): (&str, &Node)| if let Node::Link(to) = node { Some(joined(path, to)) } else { None };
        links.filter_map(end).collect()
    };
    let seen = || whole.iter().filter(|(path, node)| !hidden.hides(path, node));
    let (before, after) = (ends(&mut whole.iter()), ends(&mut seen()));
    let bare = |path: &str| whole.names(path).next().is_none() && !before.contains(path);
    let stays = |(path, node): &(&str, &Node)| **node != Node::Dir || after.contains(*path) || bare(path);
    seen().filter(stays).map(|(path, node)| (path.to_owned(), node.clone())).collect()
}

/// The directories of links (`world::sysfs::Survey::links`) in which something is hidden, without it, and the places of dropped
/// NICs as empty directories: what [`covers`] makes mounts of.
pub fn live(keep: &Keep, seen: &Snapshot, links: &Tree) -> Tree {
    let hidden = Hidden::of(keep, seen, links);
    let mut view = Tree::default();
    let dirs = links.iter().filter(|(_, node)| **node == Node::Dir).map(|(path, _)| path);
    // Every namespace has a class/net of its own.
    for dir in dirs.filter(|dir| *dir != "class/net") {
        let entries = || links.names(dir).map(|name| format!("{dir}/{name}"));
        let is_hidden = |path: &String| links.get(path).is_some_and(|node| hidden.hides(path, node));
        if !entries().any(|path| is_hidden(&path)) {
            continue;
        }
        view.put(dir, Node::Dir);
        for path in entries().filter(|path| !is_hidden(path)) {
            if let Some(node) = links.get(&path).filter(|node| **node != Node::Dir) {
                view.put(&path, node.clone());
            }
        }
    }
    // The places of software devices come and go with them: nothing can be mounted there in advance.
    let places = hidden.dirs.iter().filter(|dir| !dir.starts_with("devices/virtual/") && !hidden.hides_above(dir));
    places.for_each(|dir| view.put(dir, Node::Dir));
    for (path, link) in keep.verbs.values().flat_map(soft_links) {
        let farm = path.rsplit_once('/').map_or("", |(dir, _)| dir);
        if view.get(farm).is_some() {
            view.put(&path, link);
        }
    }
    view
}

/// The mounts of a live view, each over the directory of that path below /sys: the directories that hold no further ones.
pub fn covers(view: &Tree) -> Vec<Cover> {
    let dirs = || view.iter().filter(|(_, node)| **node == Node::Dir).map(|(path, _)| path);
    let above: BTreeSet<&str> = dirs().filter_map(|path| Some(path.rsplit_once('/')?.0)).collect();
    let cover = |at: &str| {
        let node = |name: &str| Some((name.to_owned(), view.get(&format!("{at}/{name}"))?.clone()));
        Cover { at: at.to_owned(), tree: view.names(at).filter_map(node).collect() }
    };
    dirs().filter(|path| !above.contains(path)).map(cover).collect()
}

/// The directories of links as they are seen with the covers over them.
pub fn laid_over(links: &Tree, view: &Tree) -> Tree {
    let covers = covers(view);
    let covered =
        |path: &str| covers.iter().any(|c| path.strip_prefix(c.at.as_str()).is_some_and(|rest| rest.starts_with('/')));
    let mut seen: Tree =
        links.iter().filter(|(path, _)| !covered(path)).map(|(p, n)| (p.to_owned(), n.clone())).collect();
    for cover in covers.iter().filter(|c| links.get(&c.at).is_some()) {
        cover.tree.iter().for_each(|(name, node)| seen.put(&format!("{}/{name}", cover.at), node.clone()));
    }
    seen
}

/// A class device of soft-RoCE has no parent (drivers/infiniband/core/uverbs_main.c).
fn soft_verbs(verbs: &CharDevice) -> String {
    format!("devices/virtual/infiniband_verbs/{}", verbs.name)
}

fn soft_links(verbs: &CharDevice) -> [(String, Node); 2] {
    let link = || Node::Link(format!("../../{}", soft_verbs(verbs)));
    [
        (format!("class/infiniband_verbs/{}", verbs.name), link()),
        (format!("dev/char/{}:{}", verbs.major, verbs.minor), link()),
    ]
}

/// What is not to be seen.
struct Hidden {
    /// Directories with all that is in them.
    dirs: BTreeSet<String>,
    /// Links whatever they lead to.
    links: BTreeSet<String>,
}

impl Hidden {
    fn of(keep: &Keep, seen: &Snapshot, tree: &Tree) -> Hidden {
        let mut hidden = Hidden { dirs: BTreeSet::new(), links: BTreeSet::new() };
        hidden.hcas(keep, seen, tree);
        hidden.functions(keep, seen, tree);
        hidden
    }

    /// RDMA devices, and the nodes of those: what is not known to be a kept one's is hidden.
    fn hcas(&mut self, keep: &Keep, seen: &Snapshot, tree: &Tree) {
        let kept = || seen.hcas.iter().filter(|h| keep.hcas.contains(&h.name));
        let umad = |c: &CharDevice| Some(format!("issm{}", c.name.strip_prefix("umad")?));
        let mads: BTreeSet<String> = kept()
            .flat_map(|h| h.umad.iter().flat_map(|c| [Some(c.name.clone()), umad(c)].into_iter().flatten()))
            .collect();
        let firm = kept().filter(|h| !keep.verbs.contains_key(&h.name));
        let verbs: BTreeSet<String> = firm.filter_map(|h| Some(h.uverbs.as_ref()?.name.clone())).collect();
        let names: BTreeSet<String> = keep.hcas.iter().map(ToString::to_string).collect();
        let classes = [
            ("class/infiniband", &names),
            ("class/infiniband_cm", &names),
            ("class/infiniband_verbs", &verbs),
            ("class/infiniband_mad", &mads),
        ];
        for (class, kept) in classes {
            for name in tree.names(class).filter(|name| *name != "abi_version" && !kept.contains(*name)) {
                let path = format!("{class}/{name}");
                self.dirs.extend(end(tree, &path));
                self.links.insert(path);
            }
        }
    }

    /// PCI functions: dropped NICs, and what kept NICs' cards have besides.
    fn functions(&mut self, keep: &Keep, seen: &Snapshot, tree: &Tree) {
        let kept = kept_functions(keep, seen);
        let cards: BTreeSet<BusId> = kept.iter().flat_map(|id| card(*id, seen)).collect();
        let mut anchors = BTreeSet::new();
        for id in nics(seen).difference(&kept) {
            let Some(dir) = end(tree, &format!("bus/pci/devices/{id}")) else { continue };
            if cards.contains(id) {
                anchors.insert(format!("{dir}/"));
            } else {
                self.dirs.insert(dir);
                self.links.insert(format!("bus/pci/devices/{id}"));
            }
        }
        if anchors.is_empty() {
            return;
        }
        // Of a card's function that stays for its place alone, nothing is seen that a class or bus leads to.
        for (path, node) in tree.iter().filter(|(path, _)| top(path)) {
            let Node::Link(target) = node else { continue };
            let end = joined(path, target);
            for anchor in &anchors {
                let child = end.strip_prefix(anchor.as_str()).and_then(|below| below.split('/').next());
                // The buses below a function are no devices of it.
                self.dirs.extend(child.filter(|child| *child != "pci_bus").map(|child| format!("{anchor}{child}")));
            }
        }
    }

    fn hides(&self, path: &str, node: &Node) -> bool {
        self.links.contains(path)
            || self.within(path)
            || matches!(node, Node::Link(to) if self.within(&joined(path, to)))
    }

    /// Whether a path is a hidden directory or below one.
    fn within(&self, path: &str) -> bool {
        self.dirs.contains(path) || self.hides_above(path)
    }

    fn hides_above(&self, path: &str) -> bool {
        path.match_indices('/').any(|(at, _)| path.get(..at).is_some_and(|above| self.dirs.contains(above)))
    }
}

/// Whether a path is below what leads to devices.
fn top(path: &str) -> bool {
    ["class/", "bus/", "dev/"].iter().any(|top| path.starts_with(top))
}

/// Where a name of a directory of links leads, by its text alone: what is there need not be in the tree.
fn end(tree: &Tree, path: &str) -> Option<String> {
    match tree.get(path)? {
        Node::Link(target) => Some(joined(path, target)),
        Node::Dir => Some(path.to_owned()),
        Node::File(_) => None,
    }
}

/// A link's target from the top, by its text.
fn joined(link: &str, target: &str) -> String {
    let mut parts: Vec<&str> = link.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// PCI functions that are NICs.
fn nics(seen: &Snapshot) -> BTreeSet<BusId> {
    let hcas = seen.hcas.iter().filter_map(|h| h.pci);
    let known: BTreeSet<BusId> = hcas.chain(seen.netdevs.iter().filter_map(|n| n.pci)).collect();
    let functions = || seen.pci.iter();
    // virtio-pci drives disks, too.
    let driver_of = |f: &&PciFunction| f.driver.clone().filter(|d| d != "virtio-pci");
    let drivers: BTreeSet<String> =
        functions().filter(|f| known.contains(&f.address)).filter_map(|f| driver_of(&f)).collect();
    let network = |class: u32| class >> 16 == 0x02;
    let is_nic = |f: &&PciFunction| {
        known.contains(&f.address) || driver_of(f).is_some_and(|d| drivers.contains(&d)) || network(f.class)
    };
    known.iter().copied().chain(functions().filter(is_nic).map(|f| f.address)).collect()
}

fn kept_functions(keep: &Keep, seen: &Snapshot) -> BTreeSet<BusId> {
    let hcas = seen.hcas.iter().filter(|h| keep.hcas.contains(&h.name)).filter_map(|h| h.pci);
    let netdevs = seen.netdevs.iter().filter(|n| keep.netdevs.contains(&n.name)).filter_map(|n| n.pci);
    hcas.chain(netdevs).collect()
}

/// The functions that stand for a kept function's card. NCCL sets the last digit of an address to 0, and with NCCL_IB_MERGE_VFS
/// the device's as well (src/transport/net_ib/init.cc:69 in 2.30.7), and takes that function's place and link; a VF's `physfn`
/// leads to its PF.
fn card(id: BusId, seen: &Snapshot) -> Vec<BusId> {
    let pf = seen.pci.iter().find(|f| f.address == id).and_then(|f| f.physfn);
    let first = BusId { function: 0, ..id };
    let mut card = vec![first, BusId { device: 0, ..first }];
    card.extend(pf);
    card
}
