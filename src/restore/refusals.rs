//! What the kernel refuses to take back.

use std::collections::BTreeSet;
use std::time::Instant;

use rdma_model::drift::Drift;
use rdma_model::step::Step;

use super::SETTLE;
use super::settle::Settled;
use crate::apply::{apply_each, is_refusal};
use crate::kernel::World;
use crate::record::Record;

/// Does all the steps. Returns whether one failed, and what of routing the kernel refused, as in
/// [`Drift::expected`].
pub(super) fn apply(steps: &[Step], world: &mut dyn World) -> (bool, BTreeSet<String>) {
    let mut refused = BTreeSet::new();
    let errors = apply_each(steps, world, Instant::now() + SETTLE, |step, failed| {
        refused.extend(added(step).filter(|_| failed.is_some_and(is_refusal)));
    });
    (!errors.is_empty(), refused)
}

fn added(step: &Step) -> Option<String> {
    match step {
        Step::RouteAdd { route, .. } => Some(route.to_string()),
        Step::NexthopAdd { nexthop, .. } => Some(nexthop.to_string()),
        _ => None,
    }
}

/// What the kernel refuses at a second try is no reason to keep the record for ever: an
/// administrator may have made it impossible. Returns a sentence for each.
pub(super) fn give_up(settled: &mut Settled, record: &mut Record) -> Vec<String> {
    let now = std::mem::take(&mut settled.refused);
    let drift = std::mem::take(&mut settled.drift).into_iter();
    let (given_up, left): (Vec<Drift>, Vec<Drift>) = drift.partition(|drift| {
        let text = drift.expected.as_ref();
        text.is_some_and(|text| now.contains(text) && record.refused.contains(text))
    });
    settled.drift = left;
    record.refused = now;
    let given_up = given_up.into_iter();
    given_up
        .map(|drift| format!("{} left out: the kernel refuses it by now", drift.field))
        .collect()
}
