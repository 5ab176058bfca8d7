//! The filtered sysfs: what a container sees of the kept NICs, the GPUs and all bridges above them,
//! and of no other NIC.
//!
//! A NIC is a function that has an RDMA device or a netdev of its own, or is driven by a driver of
//! such a one, or has one for its PF or VF; and every network controller, whatever drives it. The
//! PCI class alone is not enough to know a NIC by: RDMA NICs carry 0x0200, 0x0207, 0x0280 and
//! 0x0c06.
//!
//! Two carriers: *live*, farms of the kept links that are mounted over the kernel's own
//! directories, so that all beneath stays the kernel's; and *snapshot*, the whole tree as files,
//! for sandboxes with a kernel of their own.

use crate::config::sysfs_mode::SysfsMode;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use rdma_model::ids::{BusId, HcaName, IfName};
use rdma_model::snapshot::{CharDevice, Hca, Snapshot};
use rdma_model::tree::{Node, Tree, parent};

use crate::plan::Plan;

mod hidden;

use hidden::{Fate, Hidden, above, is_top};

/// A tree that is mounted over a directory, read-only. What the container has mounted below that
/// directory stays seen; no cover is below another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cover {
    /// The directory below the container's root: `sys/class/infiniband`.
    pub at: String,
    pub tree: Tree,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    pub hcas: BTreeSet<HcaName>,
    /// Besides `lo`; those of another namespace are not there in any case.
    pub netdevs: BTreeSet<IfName>,
    /// PCI functions that others gave it.
    pub functions: BTreeSet<BusId>,
    /// Verbs nodes that HCAs will have inside, as far as the kernel assigns these again.
    pub verbs: BTreeMap<HcaName, CharDevice>,
}

impl Keep {
    pub fn for_plan(plan: &Plan) -> Keep {
        let mut keep = Keep {
            hcas: plan.ib.iter().cloned().collect(),
            ..Keep::default()
        };
        for n in &plan.nics {
            keep.netdevs.insert(n.name().clone());
            keep.hcas.extend(n.hca.clone());
            if plan.moves() && (n.rxe || plan.exclusive) {
                keep.verbs.extend(n.hca.clone().zip(n.uverbs.clone()));
            }
        }
        keep
    }

    /// Those of [`Keep::verbs`] that will be at another place: soft-RoCE's, which goes first, and
    /// what gets another number.
    fn moved<'a>(
        &'a self,
        seen: &'a Snapshot,
    ) -> impl Iterator<Item = (&'a HcaName, &'a CharDevice)> {
        self.verbs.iter().filter(move |(name, node)| {
            seen.hca(name)
                .is_none_or(|hca| hca.is_rxe() || hca.uverbs.as_ref() != Some(node))
        })
    }

    /// These RDMA devices with the netdevs behind their ports.
    pub fn hcas(names: BTreeSet<HcaName>, seen: &Snapshot) -> Keep {
        let mut netdevs = BTreeSet::new();
        for hca in seen.hcas.iter().filter(|h| names.contains(&h.name)) {
            netdevs.extend(hca.ports.iter().filter_map(|p| p.netdev.clone()));
            netdevs.extend(seen.netdev_beside(hca).map(|n| n.name.clone()));
        }
        Keep {
            hcas: names,
            netdevs,
            ..Keep::default()
        }
    }
}

/// Whether a view shows exactly these HCAs; one in which no HCA is hidden says nothing of them.
pub fn shows(view: &Tree, keep: &Keep) -> bool {
    let class = "class/infiniband";
    let seen: BTreeSet<&str> = view.names(class).collect();
    view.get(class).is_none() || seen == keep.hcas.iter().map(HcaName::as_str).collect()
}

/// What a plan's container shall see, from the observation that the plan was made from; nothing
/// where its /sys stays as it is.
pub fn of_plan(
    plan: &Plan,
    others: BTreeSet<BusId>,
    seen: &Snapshot,
    links: impl FnOnce() -> Tree,
    whole: impl FnOnce() -> Tree,
) -> Option<Tree> {
    let keep = Keep {
        functions: others,
        ..Keep::for_plan(plan)
    };
    match plan.sysfs {
        SysfsMode::Off | SysfsMode::Proxy | SysfsMode::ProxyWarn => None,
        SysfsMode::Auto | SysfsMode::Live => Some(live(&keep, seen, &links())),
        SysfsMode::Snapshot => Some(snapshot(&keep, seen, whole())),
    }
}

/// What is left of the whole tree (`kernel::sysfs::Survey::whole`): the snapshot carrier.
pub fn snapshot(keep: &Keep, seen: &Snapshot, whole: Tree) -> Tree {
    let mut hidden = Hidden::find(keep, seen, &whole);
    let kept: BTreeSet<&str> = keep
        .netdevs
        .iter()
        .map(IfName::as_str)
        .chain(["lo"])
        .collect();
    for name in whole.names("class/net").filter(|name| !kept.contains(name)) {
        hidden.hide(&whole, format!("class/net/{name}"));
    }
    let moved: Vec<_> = keep
        .moved(seen)
        .map(|(hca, verbs)| (hca, verbs, place(&whole, seen, hca, verbs)))
        .collect();
    let mut view = rest(whole, &hidden);
    for (hca, verbs, dir) in moved {
        let files = [
            ("ibdev", format!("{hca}\n")),
            ("dev", format!("{}:{}\n", verbs.major, verbs.minor)),
            ("abi_version", "1\n".to_owned()),
        ];
        for (name, text) in files {
            view.put(
                &format!("{dir}/{name}"),
                Node::File(text.into_bytes().into()),
            );
        }
        for (path, link) in links_to(verbs, &dir) {
            view.put(&path, link);
        }
    }
    view
}

/// What is not hidden; and of the directories only those that something is in or a link leads to,
/// as before.
fn rest(whole: Tree, hidden: &Hidden) -> Tree {
    let fates = hidden.fates(&whole);
    let stay = stays(&whole, &fates);
    whole.only(&stay)
}

fn stays(tree: &Tree, fates: &[Fate]) -> Vec<bool> {
    let all = || tree.iter().zip(fates).enumerate();
    let dirs: HashMap<&str, usize> = all()
        .filter(|(_, ((_, node), _))| is_dir(node))
        .map(|(at, ((path, _), _))| (path, at))
        .collect();
    // Whether something is in a directory, a link leads to it, a link that is seen does.
    let mut marks = vec![(false, false, false); tree.len()];
    let mut stay = vec![false; tree.len()];
    // The files of a directory come one after the other: what is above them is marked once.
    let (mut within, mut is_told) = ("", false);
    for (at, ((path, node), fate)) in all() {
        if parent(path) != within {
            (within, is_told) = (parent(path), false);
            if let Some(dir) = dirs.get(within) {
                marks[*dir].0 = true;
            }
        }
        if let Some(dir) = fate.end.as_deref().and_then(|end| dirs.get(end)) {
            (marks[*dir].1, marks[*dir].2) = (true, marks[*dir].2 || fate.is_seen);
        }
        if fate.is_seen && !is_dir(node) {
            stay[at] = true;
            if !std::mem::replace(&mut is_told, true) {
                keep_above(path, &dirs, &mut stay);
            }
        }
    }
    for (at, ((path, node), _)) in all().filter(|(_, (_, fate))| fate.is_seen) {
        let (is_full, was_led_to, is_led_to) = marks[at];
        if is_dir(node) && (is_led_to || is_farm(path) || !(is_full || was_led_to)) {
            stay[at] = true;
            keep_above(path, &dirs, &mut stay);
        }
    }
    stay
}

fn is_dir(node: &Node) -> bool {
    *node == Node::Dir
}

/// The kernel's own directories of links are there with nothing in them as well.
fn is_farm(path: &str) -> bool {
    is_top(path) && !path.contains("/drivers/")
}

/// With something that stays, the directories above it do.
fn keep_above(path: &str, dirs: &HashMap<&str, usize>, stay: &mut [bool]) {
    let mut dir = parent(path);
    while let Some(at) = dirs.get(dir) {
        if std::mem::replace(&mut stay[*at], true) {
            return;
        }
        dir = parent(dir);
    }
}

/// The directories of links (`kernel::sysfs::Survey::links`) in which something is hidden, without
/// it, and the places of dropped NICs as empty directories: what [`covers`] makes mounts of.
pub fn live(keep: &Keep, seen: &Snapshot, links: &Tree) -> Tree {
    let hidden = Hidden::find(keep, seen, links);
    let fates = hidden.fates(links);
    let mut farms = BTreeSet::new();
    for ((path, _), fate) in links.iter().zip(&fates) {
        // Every namespace has a class/net of its own.
        if !fate.is_seen && parent(path) != "class/net" {
            farms.insert(parent(path));
        }
    }
    let left = links.iter().zip(&fates).filter(|((path, node), fate)| {
        fate.is_seen && **node != Node::Dir && farms.contains(parent(path))
    });
    let mut view: Tree = left.map(|((path, node), _)| (path, node.clone())).collect();
    for dir in &farms {
        view.put(dir, Node::Dir);
    }
    // The places of software devices, and of nodes, come and go with them: nothing can be mounted
    // there in advance.
    let old: BTreeSet<String> = keep
        .moved(seen)
        .filter_map(|(hca, _)| seen.hca(hca))
        .flat_map(|h| nodes(links, h))
        .collect();
    for dir in hidden.dirs.iter() {
        if !dir.starts_with("devices/virtual/") && !old.contains(dir) {
            view.put(dir, Node::Dir);
        }
    }
    for (hca, verbs) in keep.moved(seen) {
        for (path, link) in links_to(verbs, &place(links, seen, hca, verbs)) {
            if farms.contains(parent(&path)) {
                view.put(&path, link);
            }
        }
    }
    view
}

/// The mounts of a live view, each over the directory of that path below /sys: the directories that
/// hold no further ones.
pub fn covers(view: &Tree) -> Vec<Cover> {
    let dirs = view.iter().filter(|(_, node)| **node == Node::Dir);
    let dirs: Vec<&str> = dirs.map(|(path, _)| path).collect();
    let above: BTreeSet<&str> = dirs.iter().map(|path| parent(path)).collect();
    let lowest = dirs.iter().filter(|path| !above.contains(*path));
    lowest.map(|at| cover(view, at)).collect()
}

fn cover(view: &Tree, at: &str) -> Cover {
    let nodes = view.names(at).filter_map(|name| {
        let node = view.get(&format!("{at}/{name}"))?;
        Some((name.to_owned(), node.clone()))
    });
    Cover {
        at: at.to_owned(),
        tree: nodes.collect(),
    }
}

/// The directories of links as they are seen with the covers over them.
pub fn laid_over(links: &Tree, view: &Tree) -> Tree {
    let covers = covers(view);
    let dirs: HashSet<&str> = covers.iter().map(|c| c.at.as_str()).collect();
    let left = links.iter().filter(|(path, _)| {
        !above(path).any(|at| path.get(..at).is_some_and(|dir| dirs.contains(dir)))
    });
    let mut seen: Tree = left.map(|(p, n)| (p.to_owned(), n.clone())).collect();
    for cover in covers.iter().filter(|c| links.get(&c.at).is_some()) {
        for (name, node) in cover.tree.iter() {
            seen.put(&format!("{}/{name}", cover.at), node.clone());
        }
    }
    seen
}

/// Where an HCA's verbs node will be: beside where it is. A class device of soft-RoCE has no parent
/// (drivers/infiniband/core/uverbs_main.c).
fn place(links: &Tree, seen: &Snapshot, hca: &HcaName, verbs: &CharDevice) -> String {
    let hardware = seen
        .hca(hca)
        .filter(|h| !h.is_rxe())
        .and_then(|h| verbs_of(links, h.uverbs.as_ref()?));
    let dir = hardware
        .as_deref()
        .map_or("devices/virtual/infiniband_verbs", parent);
    format!("{dir}/{}", verbs.name)
}

/// The places of an HCA's nodes, which it leaves when it gets others.
fn nodes(links: &Tree, hca: &Hca) -> Vec<String> {
    let mads = mads(hca).filter_map(|name| end(links, &format!("class/infiniband_mad/{name}")));
    hca.uverbs
        .iter()
        .filter_map(|node| verbs_of(links, node))
        .chain(mads)
        .collect()
}

/// The nodes of an HCA for management datagrams: umad, and the issm beside each.
fn mads(hca: &Hca) -> impl Iterator<Item = String> {
    hca.umad.iter().flat_map(|node| {
        let number = node.name.strip_prefix("umad");
        std::iter::once(node.name.clone()).chain(number.map(|number| format!("issm{number}")))
    })
}

fn verbs_of(links: &Tree, node: &CharDevice) -> Option<String> {
    end(links, &format!("class/infiniband_verbs/{}", node.name))
}

fn links_to(verbs: &CharDevice, dir: &str) -> [(String, Node); 2] {
    let link = Node::Link(format!("../../{dir}").into());
    let class = format!("class/infiniband_verbs/{}", verbs.name);
    let node = format!("dev/char/{}:{}", verbs.major, verbs.minor);
    [(class, link.clone()), (node, link)]
}

/// Where a name of a directory of links leads, by its text alone: what is there need not be in the
/// tree.
fn end(tree: &Tree, path: &str) -> Option<String> {
    match tree.get(path)? {
        Node::Link(target) => Some(joined(path, target)),
        Node::Dir => Some(path.to_owned()),
        Node::File(_) => None,
    }
}

/// A link's target from the top, by its text.
fn joined(link: &str, target: &str) -> String {
    let mut path = link
        .rsplit_once('/')
        .map_or(String::new(), |(dir, _)| dir.to_owned());
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => path.truncate(path.rfind('/').unwrap_or(0)),
            part if path.is_empty() => path.push_str(part),
            part => {
                path.push('/');
                path.push_str(part);
            }
        }
    }
    path
}
