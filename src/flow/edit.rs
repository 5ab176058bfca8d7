//! What a decision makes of a config.json.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use super::prepare::Decision;
use super::warn;
use crate::decide::options;
use crate::fault::Fault;
use crate::ident::HcaName;
use crate::inject::{self, Edit, Injected, MountEdit, NoMounts};
use crate::nccl;
use crate::nccl::topology::{Circumstances, topology, wanted};
use crate::plan::EnvVar;
use crate::request::Request;
use crate::snapshot::Snapshot;
use crate::step::Side;
use crate::tree::{Node, Tree};
use crate::view::{self, Sysfs};
use crate::world::netns::Netns;
use crate::world::store::Store;
use crate::world::{Live, Scope, World};

/// Where a container finds its topology file: below a file system of its own, so that no mount point is made in its image.
const TOPO_DIR: &str = "/dev/rdmaprep";
const TOPO_FILE: &str = "nccl_topo.xml";

const TOPO_VARIABLE: &str = "NCCL_TOPO_FILE";

/// A config.json that was edited, and what it mounts besides the view.
pub(super) struct Edited {
    pub(super) injected: Injected,
    /// Its environment, as far as it is ours.
    pub(super) given: Vec<EnvVar>,
    topology: Option<(String, Tree)>,
}

impl Edited {
    /// Writes out what it mounts.
    pub(super) fn lay_out(&self, decision: &Decision, store: &Store) -> Result<()> {
        if let Some((name, tree)) = &self.topology {
            store.save_view(name, tree)?;
            store.lay_out(name, tree)?;
        }
        match (&decision.plan.view, &decision.view) {
            (Some(name), Some(view)) if self.injected.mounts_view => store.lay_out(name, view).map(|_| ()),
            _ => Ok(()),
        }
    }
}

/// Edits one; nothing is written.
pub(super) fn edit(text: &str, decision: &Decision, store: &Store, request: &Request, timeout: u32) -> Result<Edited> {
    let program = std::env::current_exe().context("finding our own path")?;
    let program = program.to_str().context("our own path is no UTF-8")?;
    let mut edit = Edit::of(&decision.plan, program, timeout);
    // An earlier edit's file is made anew, or goes.
    let (place, mut own) = (format!("{TOPO_DIR}/{TOPO_FILE}"), inject::environment(text));
    if own.get(TOPO_VARIABLE) == Some(&place) {
        own.remove(TOPO_VARIABLE);
        edit.stale.push(format!("{TOPO_VARIABLE}={place}"));
    }
    nccl::meet(&mut edit.env, &own, &decision.plan.nics, decision.pod.as_ref());
    nccl::yield_to(&mut edit.env, &own);
    edit.annotations.extend(nccl::runsc_annotations(&options(request)));
    let (mut mounts, why) = mounts(text, decision, store)?;
    let set = edit.env.iter().find(|v| v.name == TOPO_VARIABLE).map(|v| &v.value).or(own.get(TOPO_VARIABLE));
    let sandboxed = inject::annotations(text).keys().any(|key| key.starts_with("dev.gvisor."));
    let blind = sandboxed && mounts.is_empty();
    let by = Circumstances { own: set.map(String::as_str), asked: request.topo, blind };
    let mut topology = None;
    if let Some((tree, why)) = topology_file(text, decision, by)? {
        let name = Store::view_name(&tree)?;
        let source = store.views().join(&name).join(TOPO_FILE);
        let source = source.to_str().context("the run folder's path is no UTF-8")?.to_owned();
        edit.stale.clear();
        edit.env.push(EnvVar { name: TOPO_VARIABLE.to_owned(), value: place.clone(), why });
        mounts.push(MountEdit { destination: place, source });
        topology = Some((name, tree));
    }
    edit.mounts = Some(mounts);
    edit.views = store.views().to_str().unwrap_or_default().to_owned();
    let mut injected = inject::apply(text, &edit)?;
    injected.kept.extend(why.map(|why| format!("no mounts for /sys: {why}")));
    let given = edit.env.into_iter().filter(|v| !own.contains_key(&v.name)).collect();
    Ok(Edited { injected, given, topology })
}

/// The topology file as a tree, and why it is given.
fn topology_file(text: &str, decision: &Decision, by: Circumstances) -> Result<Option<(Tree, String)>> {
    let plan = &decision.plan;
    let kept: BTreeSet<HcaName> = plan.nics.iter().filter_map(|n| n.hca.clone()).chain(plan.ib.clone()).collect();
    let wanted = wanted(&decision.host, &kept, by);
    let without = |why: &dyn std::fmt::Display| {
        if by.asked == Some(true) {
            warn(&[format!("no topology file: {why}")]);
        }
        Ok(None)
    };
    if !wanted.file {
        return without(&wanted.why);
    }
    if let Some(why @ (NoMounts::Shared | NoMounts::Labelled)) = inject::no_mounts(text)? {
        return without(&why);
    }
    if !inject::has_own_dev(text) {
        return without(&"config.json mounts no tmpfs at /dev, where it would be found");
    }
    // A stored plan is narrowed by a look that leaves PCI out.
    let seen: Snapshot;
    let host = if decision.host.pci.is_empty() && !decision.recorded {
        seen = Live::open(Netns::current()?, None)?.observe(Side::Host, &Scope::full())?;
        &seen
    } else {
        &decision.host
    };
    let topology = topology(host, &kept);
    if topology.unplaced.len() == kept.len() {
        return without(&"none of the container's NICs is on PCI");
    }
    let left: Vec<String> =
        topology.unplaced.iter().map(|(hca, why)| format!("left out of the topology file: {hca}: {why}")).collect();
    warn(&left);
    warn(&topology.warnings);
    let mut tree = Tree::default();
    tree.put(TOPO_FILE, Node::File(topology.xml()?.into_bytes().into()));
    Ok(Some((tree, format!("a topology file of this host: {}", wanted.why))))
}

/// The mounts that show a container its view, and why there are none.
fn mounts(text: &str, decision: &Decision, store: &Store) -> Result<(Vec<MountEdit>, Option<NoMounts>)> {
    let plan = &decision.plan;
    let (Some(name), Some(view)) = (&plan.view, &decision.view) else { return Ok((Vec::new(), None)) };
    if let Some(why) = inject::no_mounts(text)? {
        return match (plan.sysfs, why) {
            (_, NoMounts::Labelled) | (Sysfs::Auto, _) => Ok((Vec::new(), Some(why))),
            _ => Err(Fault::Refused.error(format!("--sysfs: {why}"))),
        };
    }
    let source = store.views().join(name);
    let source = source.to_str().context("the run folder's path is no UTF-8")?.to_owned();
    if plan.sysfs == Sysfs::Snapshot {
        return Ok((vec![MountEdit { destination: "/sys".to_owned(), source }], None));
    }
    let mount = |at: String| MountEdit { destination: format!("/sys/{at}"), source: format!("{source}/{at}") };
    Ok((view::covers(view).into_iter().map(|c| mount(c.at)).collect(), None))
}
