//! NICs that are in neither of the two namespaces: whoever is root in a container can put them into one that it made.

use rdma_model::moved_nic::MovedNic;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use rdma_model::step::Side;

use super::SETTLE;
use crate::apply::apply_all;
use crate::journal::Record;
use crate::kernel::netns::{self, Netns};
use crate::kernel::{Kernel, Scope, World};
use crate::restore::plan::{is_surely_in, plan_restore};

/// How long to look: there may be thousands of namespaces, and others wait for the lock.
const PATIENCE: Duration = Duration::from_secs(2);

/// Brings home those of `missing` that are in a network namespace which a process has or `ip netns` keeps; returns a sentence
/// for each. What cannot be looked into is passed over: others' namespaces are none of our business, and whatever is wrong
/// there must not keep what is not missing.
pub(super) fn fetch(record: &Record, missing: &[MovedNic]) -> Vec<String> {
    let deadline = Instant::now() + PATIENCE;
    let mut told = Vec::new();
    for (_, other) in netns::others(&[record.netns, record.host_netns]) {
        if Instant::now() >= deadline {
            told.push(
                "there are more network namespaces than could be searched for NICs that were moved on".to_owned(),
            );
            break;
        }
        told.extend(from(other, missing).unwrap_or_default());
    }
    told
}

fn from(other: Netns, missing: &[MovedNic]) -> Result<Vec<String>> {
    let inode = other.inode();
    let mut live = Kernel::open(Netns::current()?, Some(other))?;
    let there = live.observe(Side::Inside, &Scope::links())?;
    // What they overruled was written in the container's namespace, not here.
    let bare = |h: &MovedNic| MovedNic { overruled: BTreeMap::new(), ..h.clone() };
    let strays: Vec<MovedNic> = missing.iter().filter(|h| is_surely_in(h, missing, &there)).map(bare).collect();
    if strays.is_empty() {
        return Ok(Vec::new());
    }
    let home = plan_restore(&strays, &live.observe(Side::Host, &Scope::links())?, Some(&there));
    let errors = apply_all(&home.steps, &mut live, Instant::now() + SETTLE);
    let what = |h: &MovedNic| format!("{} had been moved on to network namespace {inode}", h.nic.identity.name);
    let mut told: Vec<String> = strays.iter().map(what).collect();
    told.extend(home.notes);
    told.extend(errors.iter().map(|e| format!("{e:#}")));
    Ok(told)
}
