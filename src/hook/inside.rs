//! The NICs as they are in the container, against what was meant.

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::snapshot::Snapshot;
use rdma_model::step::{NicState, Side};

use crate::kernel::{Depth, RoutesOf, Scope, World};
use crate::plan::{rails, rdma_mode};
use crate::record::Record;
use crate::report::Report;
use crate::restore::order::put_in_order;
use crate::verify;

pub(super) fn states_inside(record: &Record) -> Vec<NicState> {
    record.held.iter().map(|h| h.inside.clone()).collect()
}

/// Root there may have made any number of routes that are no NIC's.
pub(super) fn scope_inside(record: &Record, states: &[NicState]) -> Scope {
    Scope::against(states).with(RoutesOf::of_moved(&record.held, []))
}

/// Gives equal routes and rules inside the order that they had on the host; where one cannot have
/// it, a note says so.
pub(super) fn order_inside(
    world: &mut dyn World,
    record: &Record,
    report: &mut Report,
) -> Result<()> {
    let precedence = record.precedence.inside(&record.held);
    if precedence.is_empty() {
        return Ok(());
    }
    let scope = Scope::network().with(RoutesOf::of_moved(&record.held, &precedence.routes));
    let now = world.observe(Side::Inside, &scope)?;
    let ordered = put_in_order(world, Side::Inside, &precedence, &now)?;
    report.steps_done += ordered.steps;
    if ordered.steps > 0 || !ordered.errors.is_empty() {
        let now = world.observe(Side::Inside, &scope)?;
        let drift = precedence.drift(&now);
        report
            .notes
            .extend(drift.iter().map(|d| format!("inside: {d}")));
    }
    Ok(())
}

/// The sysctls `conf/all` inside, which may defeat the NICs' own values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ConfAll {
    /// By this create, as the NICs need them.
    JustSet,
    /// A runtime writes the sysctls of config.json after the create hooks. What defeats the NICs'
    /// own is noted then, and keeps no container from running.
    MaybeChanged,
}

/// [`ErrorClass::Kernel`] where the NICs inside are not what they should be.
pub(super) fn verify_inside(
    world: &mut dyn World,
    record: &Record,
    conf_all: ConfAll,
    report: &mut Report,
) -> Result<Snapshot> {
    let states = states_inside(record);
    let now = world.observe(Side::Inside, &scope_inside(record, &states))?;
    let mut drift = verify::drift(&states, &now);
    drift.extend(verify::rdma_drift(&record.held, &now));
    match conf_all {
        ConfAll::JustSet => drift.extend(rails::drift(&states, &now)),
        ConfAll::MaybeChanged => note_overruled(&states, &now, report),
    }
    if let Some(plan) = record.given.as_ref().filter(|plan| plan.exclusive) {
        drift.extend(rdma_mode::drift(
            plan,
            &world.observe(Side::Host, &Scope::only(Depth::Links))?,
            &now,
        ));
    }
    report.rails = rails::describe(&states, &now);
    report.drift = drift.iter().map(ToString::to_string).collect();
    if report.drift.is_empty() {
        return Ok(now);
    }
    Err(ErrorClass::Kernel.error(format!(
        "the NICs inside differ from the plan: {}",
        report.drift.join("; ")
    )))
}

/// Notes where `conf/all` inside defeats the NICs' own values.
pub(super) fn note_overruled(states: &[NicState], now: &Snapshot, report: &mut Report) {
    let overruled = rails::drift(states, now);
    report.note_once(overruled.iter().map(ToString::to_string));
}
