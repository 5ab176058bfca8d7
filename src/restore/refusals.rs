//! What the kernel refuses to take back, and what stays on the host in its place.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use rdma_model::drift::Drift;
use rdma_model::ipv6_legs::is_rest_of;
use rdma_model::snapshot::Route;
use rdma_model::step::{Side, Step};

use super::plan::{RestorePlan, delete_on_host};
use super::settle::Settled;
use crate::apply::{apply_all, apply_each, is_refusal};
use crate::kernel::{World, clock};
use crate::record::Record;

/// A gateway may be the host's own address for a while, as when a virtual one fails over.
/// In seconds.
const PASSING: i64 = 10 * 60;

#[derive(Default)]
pub(super) struct Done {
    pub(super) errors: Vec<anyhow::Error>,
    /// What of routing the kernel refused, as in [`Drift::expected`].
    pub(super) refused: BTreeSet<String>,
}

/// Does all the steps of a plan, and then deletes what stood in for routes that have come. Of one
/// that has not, the part that had to go before it comes back.
pub(super) fn carry_out(
    plan: &RestorePlan,
    world: &mut dyn World,
    deadline: Instant,
    mut over: impl FnMut(&Step),
) -> Done {
    let mut done = Done::default();
    let mut missing: Vec<Route> = Vec::new();
    done.errors = apply_each(&plan.steps, world, deadline, |step, failed| {
        over(step);
        let Some(error) = failed else { return };
        done.refused
            .extend(added(step).filter(|_| is_refusal(error)));
        if let Step::RouteAdd { route, .. } | Step::LegsAdd { route, .. } = step {
            missing.push(route.clone());
        }
    });
    let mut superseded: Vec<&Route> = plan.superseded.iter().collect();
    superseded.retain(|r| !missing.iter().any(|whole| r.is_part_of(whole)));
    let mut last: Vec<Step> = superseded.into_iter().map(delete_on_host).collect();
    last.extend(plan.steps.iter().filter_map(|s| part_again(s, &missing)));
    done.errors.extend(apply_all(&last, world, deadline));
    done
}

fn added(step: &Step) -> Option<String> {
    match step {
        Step::RouteAdd { route, .. } | Step::LegsAdd { route, .. } => Some(route.to_string()),
        Step::NexthopAdd { nexthop, .. } => Some(nexthop.to_string()),
        _ => None,
    }
}

fn part_again(step: &Step, missing: &[Route]) -> Option<Step> {
    let Step::RouteDelete {
        side: Side::Host,
        route,
    } = step
    else {
        return None;
    };
    let was_left_of_missing = missing
        .iter()
        .any(|whole| route.is_part_of(whole) || is_rest_of(route, whole));
    was_left_of_missing.then(|| Step::RouteAdd {
        side: Side::Host,
        route: route.clone(),
    })
}

/// What the kernel has refused for some time is no reason to keep the record for ever: an
/// administrator may have made it impossible. What is from an address that is still `away` comes
/// with that one. Returns a sentence for each.
pub(super) fn leave_out_refused(
    settled: &mut Settled,
    record: &mut Record,
    away: &BTreeSet<IpAddr>,
) -> Vec<String> {
    let now = clock::since_boot();
    let routes = record.routes();
    let awaited = routes.filter(|r| r.prefsrc.is_some_and(|ip| away.contains(&ip)));
    let awaited: BTreeSet<String> = awaited.map(Route::to_string).collect();
    let refused = std::mem::take(&mut settled.refused).into_iter();
    let earlier = std::mem::take(&mut record.refused);
    record.refused = refused
        .filter(|text| !awaited.contains(text))
        .map(|text| {
            let since = earlier.get(&text).copied().unwrap_or(now);
            (text, since)
        })
        .collect();
    let drift = std::mem::take(&mut settled.drift).into_iter();
    let (left_out, left): (Vec<Drift>, Vec<Drift>) = drift.partition(|drift| {
        let since = drift
            .expected
            .as_ref()
            .and_then(|text| record.refused.get(text));
        since.is_some_and(|since| now - since >= PASSING)
    });
    settled.drift = without_followers(left, &left_out);
    let left_out = left_out.into_iter();
    left_out
        .map(|drift| format!("{} left out: the kernel refuses it by now", drift.field))
        .collect()
}

/// Routes to one destination are compared in their order: behind one that is left out, each is in
/// the place of the one before it, and the last one seems to be missing.
fn without_followers(mut left: Vec<Drift>, left_out: &[Drift]) -> Vec<Drift> {
    let mut gaps: Vec<Drift> = left_out.to_vec();
    while let Some(gap) = gaps.pop() {
        let follows = |drift: &Drift| {
            drift.dev == gap.dev && drift.expected.is_some() && drift.expected == gap.observed
        };
        let (followers, others) = left.into_iter().partition(follows);
        left = others;
        gaps.extend::<Vec<Drift>>(followers);
    }
    left
}
