//! What a container is shown: the topology file, and the mounts of its view.

use crate::commands::decision::Decision;
use crate::commands::warn;
use crate::config::sysfs_mode::SysfsMode;
use crate::kernel::netns::Netns;
use crate::kernel::{Kernel, Scope, World};
use crate::nccl_env::topo_file;
use crate::oci::edit::{self, MountEdit, NoMounts};
use crate::store::Store;
use crate::view;
use anyhow::{Context, Result};
use nccl_rules::topology_xml::{Circumstances, topology, wanted};
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::HcaName;
use rdma_model::snapshot::Snapshot;
use rdma_model::step::Side;
use rdma_model::tree::Tree;
use std::collections::BTreeSet;

pub(super) fn topology_file(
    text: &str,
    decision: &Decision,
    by: Circumstances,
) -> Result<Option<(Tree, String)>> {
    let plan = &decision.plan;
    let kept: BTreeSet<HcaName> = plan
        .nics
        .iter()
        .filter_map(|n| n.hca.clone())
        .chain(plan.ib.clone())
        .collect();
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
    if let Some(why @ (NoMounts::Shared | NoMounts::Labelled)) = edit::no_mounts(text)? {
        return without(&why);
    }
    if !edit::has_own_dev(text) {
        return without(&"config.json mounts no tmpfs at /dev, where it would be found");
    }
    // A stored plan is narrowed by a look that leaves PCI out.
    let seen: Snapshot;
    let host = if decision.host.pci.is_empty() && !decision.recorded {
        seen = Kernel::open(Netns::current()?, None)?.observe(Side::Host, &Scope::full())?;
        &seen
    } else {
        &decision.host
    };
    let topology = topology(host, &kept);
    if topology.unplaced.len() == kept.len() {
        return without(&"none of the container's NICs is on PCI");
    }
    let left: Vec<String> = topology
        .unplaced
        .iter()
        .map(|(hca, why)| format!("left out of the topology file: {hca}: {why}"))
        .collect();
    warn(&left);
    warn(&topology.warnings);
    Ok(Some((
        topo_file::tree(&topology.xml()?),
        format!("a topology file of this host: {}", wanted.why),
    )))
}

/// The mounts that show a container its view, and why there are none.
pub(super) fn mounts(
    text: &str,
    decision: &Decision,
    store: &Store,
) -> Result<(Vec<MountEdit>, Option<NoMounts>)> {
    let plan = &decision.plan;
    let (Some(name), Some(view)) = (&plan.view, &decision.view) else {
        return Ok((Vec::new(), None));
    };
    if let Some(why) = edit::no_mounts(text)? {
        return match (plan.sysfs, why) {
            (_, NoMounts::Labelled) | (SysfsMode::Auto, _) => Ok((Vec::new(), Some(why))),
            _ => Err(ErrorClass::Refused.error(format!("--sysfs: {why}"))),
        };
    }
    let source = store.views().join(name);
    let source = source
        .to_str()
        .context("the run folder's path is no UTF-8")?
        .to_owned();
    if plan.sysfs == SysfsMode::Snapshot {
        return Ok((
            vec![MountEdit {
                destination: "/sys".to_owned(),
                source,
            }],
            None,
        ));
    }
    let covers = view::covers(view).into_iter();
    let mounts = covers.map(|cover| MountEdit {
        destination: format!("/sys/{}", cover.at),
        source: format!("{source}/{}", cover.at),
    });
    Ok((mounts.collect(), None))
}
