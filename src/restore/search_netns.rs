//! NICs that are in neither of the two namespaces: root in a container can put them into one that
//! it made.

use rdma_model::moved_nic::MovedNic;
use std::time::{Duration, Instant};

use anyhow::Result;
use rdma_model::step::Side;

use super::SETTLE;
use crate::kernel::{Depth, Namespaces, RoutesOf, Scope, World};
use crate::record::Record;
use crate::restore::plan::{Goal, is_surely_in, plan_restore};
use crate::restore::refusals::carry_out;

/// How long to look: there may be thousands of namespaces, and others wait for the lock.
const PATIENCE: Duration = Duration::from_secs(2);

const MORE: &str = "there are more network namespaces than could be searched for NICs that were \
    moved on; the next try begins where this one stopped";

#[derive(Debug, Default)]
pub(super) struct Fetched {
    /// A sentence for each NIC that was found, and for what was not searched.
    pub(super) notes: Vec<String>,
    /// See [`Record::searched`].
    pub(super) searched: Option<usize>,
}

/// Restores those of `missing` that are in a network namespace which a process has or `ip netns`
/// keeps. A namespace that cannot be observed is passed over: what is wrong there must not keep the
/// NICs that are not missing.
pub(super) fn fetch(machine: &dyn Namespaces, record: &Record, missing: &[MovedNic]) -> Fetched {
    fetch_until(machine, record, missing, Instant::now() + PATIENCE)
}

fn fetch_until(
    machine: &dyn Namespaces,
    record: &Record,
    missing: &[MovedNic],
    deadline: Instant,
) -> Fetched {
    let known = [record.netns, record.host_netns];
    let begin = record.searched.unwrap_or(0);
    let mut fetched = Fetched::default();
    let (later, earlier) = (machine.others(&known, begin), machine.others(&known, 0));
    for (done, world) in later.chain(earlier.take(begin)).enumerate() {
        // One at least: else none would ever be reached.
        if done > 0 && Instant::now() >= deadline {
            fetched.notes.push(MORE.to_owned());
            fetched.searched = Some(begin + done);
            break;
        }
        let found = world.and_then(|mut world| fetch_from(&mut *world, missing));
        fetched.notes.extend(found.unwrap_or_default());
    }
    fetched
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
    let scope = Scope::network().with(RoutesOf::of_moved(&strays, []));
    let plan = plan_restore(
        &strays,
        &world.observe(Side::Host, &scope)?,
        Some(&there),
        Goal::Effect,
    );
    let deadline = Instant::now() + SETTLE;
    let errors = carry_out(&plan, world, deadline, |_| {}).errors;
    let mut notes = Vec::new();
    for stray in &strays {
        let name = stray.name();
        notes.push(format!(
            "{name} had been moved on to network namespace {inode}"
        ));
    }
    notes.extend(plan.notes);
    notes.extend(errors.iter().map(|e| format!("{e:#}")));
    Ok(notes)
}
