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

/// A config.json that was edited, and what it mounts besides the view.
pub(super) struct Edited {
    pub(super) injected: Injected,
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
    let own = inject::environment(text);
    nccl::meet(&mut edit.env, &decision.plan.nics, decision.pod.as_ref());
    nccl::yield_to(&mut edit.env, &own);
    edit.annotations.extend(nccl::runsc_annotations(&options(request)));
    let (mut mounts, why) = mounts(text, decision, store)?;
    let set = edit.env.iter().find(|v| v.name == "NCCL_TOPO_FILE").map(|v| &v.value).or(own.get("NCCL_TOPO_FILE"));
    let sandboxed = inject::annotations(text).keys().any(|key| key.starts_with("dev.gvisor."));
    let blind = sandboxed && mounts.is_empty();
    let by = Circumstances { own: set.map(String::as_str), asked: request.topo, blind };
    let topology = topology_file(text, decision, by)?;
    let mut topology_at = None;
    if let Some((tree, why)) = topology {
        let name = Store::view_name(&tree)?;
        let source = store.views().join(&name).join(TOPO_FILE);
        let source = source.to_str().context("the run folder's path is no UTF-8")?.to_owned();
        let destination = format!("{TOPO_DIR}/{TOPO_FILE}");
        edit.env.push(EnvVar { name: "NCCL_TOPO_FILE".to_owned(), value: destination.clone(), why });
        mounts.push(MountEdit { destination, source });
        topology_at = Some((name, tree));
    }
    edit.mounts = Some(mounts);
    edit.views = store.views().to_str().unwrap_or_default().to_owned();
    let mut injected = inject::apply(text, &edit)?;
    injected.kept.extend(why.map(|why| format!("no mounts for /sys: {why}")));
    Ok(Edited { injected, topology: topology_at })
}

/// The topology file as a tree, and why it is given.
fn topology_file(text: &str, decision: &Decision, by: Circumstances) -> Result<Option<(Tree, String)>> {
    let plan = &decision.plan;
    let kept: BTreeSet<HcaName> = plan.nics.iter().filter_map(|n| n.hca.clone()).chain(plan.ib.clone()).collect();
    let wanted = wanted(&decision.host, &kept, by);
    if !wanted.file {
        return Ok(None);
    }
    if let Some(why @ (NoMounts::Shared | NoMounts::Labelled)) = inject::no_mounts(text)? {
        warn(&[format!("no topology file: {why}")]);
        return Ok(None);
    }
    // A stored plan is narrowed by a look that leaves PCI out.
    let seen: Snapshot;
    let host = if decision.host.pci.is_empty() {
        seen = Live::open(Netns::current()?, None)?.observe(Side::Host, &Scope::full())?;
        &seen
    } else {
        &decision.host
    };
    let topology = topology(host, &kept);
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
