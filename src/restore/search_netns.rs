//! NICs that are in neither of the two namespaces: root in a container can put them into one that
//! it made.

use rdma_model::moved_nic::MovedNic;
use std::time::{Duration, Instant};

use anyhow::Result;
use rdma_model::step::Side;

use super::SETTLE;
use crate::apply::apply_all;
use crate::kernel::{Depth, Namespaces, Scope, World};
use crate::record::Record;
use crate::restore::plan::{Goal, is_surely_in, plan_restore};

/// How long to look: there may be thousands of namespaces, and others wait for the lock.
const PATIENCE: Duration = Duration::from_secs(2);

/// Restores those of `missing` that are in a network namespace which a process has or `ip netns`
/// keeps; returns a sentence for each. A namespace that cannot be observed is passed over: what is
/// wrong there must not keep the NICs that are not missing.
pub(super) fn fetch(
    machine: &dyn Namespaces,
    record: &Record,
    missing: &[MovedNic],
) -> Vec<String> {
    let deadline = Instant::now() + PATIENCE;
    let mut notes = Vec::new();
    for world in machine.others(&[record.netns, record.host_netns]) {
        if Instant::now() >= deadline {
            notes.push(
                "there are more network namespaces than could be searched for NICs that were \
                moved on"
                    .to_owned(),
            );
            break;
        }
        notes.extend(
            world
                .and_then(|mut world| fetch_from(&mut *world, missing))
                .unwrap_or_default(),
        );
    }
    notes
}

fn fetch_from(world: &mut dyn World, missing: &[MovedNic]) -> Result<Vec<String>> {
    let links = world.observe(Side::Inside, &Scope::only(Depth::Links))?;
    let mut strays = missing.to_vec();
    strays.retain(|h| is_surely_in(h, missing, &links));
    for stray in &mut strays {
        // What they overruled was written in the container's namespace, not here.
        stray.overruled.clear();
    }
    if strays.is_empty() {
        return Ok(Vec::new());
    }
    let there = world.observe(Side::Inside, &Scope::only(Depth::Netdevs))?;
    let inode = there.netns.unwrap_or_default();
    let plan = plan_restore(
        &strays,
        &world.observe(Side::Host, &Scope::links())?,
        Some(&there),
        Goal::Effect,
    );
    let errors = apply_all(&plan.steps, world, Instant::now() + SETTLE);
    let mut notes = Vec::new();
    for stray in &strays {
        let name = &stray.nic.identity.name;
        notes.push(format!(
            "{name} had been moved on to network namespace {inode}"
        ));
    }
    notes.extend(plan.notes);
    notes.extend(errors.iter().map(|e| format!("{e:#}")));
    Ok(notes)
}
