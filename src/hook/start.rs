//! start: what a runtime took from the NICs is set again.

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::step::Side;

use super::inside::{
    ConfAll, note_overruled, order_inside, scope_inside, states_inside, verify_inside,
};
use super::{Hook, has_capabilities};
use crate::apply::apply;
use crate::plan::rails;
use crate::report::{Lap, Report};
use crate::restore::nic_names;
use crate::restore::plan::reassert;

/// poststart: the payload has begun. A runtime with its own network stack has removed the addresses
/// by now.
pub fn start(hook: &Hook, report: &mut Report) -> Result<()> {
    if !has_capabilities(hook)? {
        return Ok(());
    }
    match hook.ask_early(|records| hook.own_record(records).is_some()) {
        Ok(true) => {}
        Ok(false) => return Ok(()),
        // The container has started, and may be one without NICs.
        Err(e) => {
            report.notes.push(format!("{e:#}"));
            return Ok(());
        }
    }
    let _lock = hook.store.lock(hook.deadline)?;
    report.end_lap(hook.begun, Lap::Lock);
    let Some(record) = &hook.record()? else {
        return Ok(());
    };
    report.plan = Some(record.plan.clone());
    report.nics = nic_names(&record.held);
    let mut world = hook.machine.open(record, &hook.store.pin(record.netns))?;
    if !world.has_inside() {
        return Err(ErrorClass::State.error("the container's network namespace has gone"));
    }
    let states = states_inside(record);
    let now = world.observe(Side::Inside, &scope_inside(record, &states))?;
    note_overruled(&states, &now, report);
    report.rails = rails::describe(&states, &now);
    let steps = reassert(&record.held, &now);
    report.end_lap(hook.begun, Lap::Observe);
    if steps.is_empty() {
        return Ok(());
    }
    let applied = apply(&steps, &mut *world, hook.deadline, |_| {
        report.steps_done += 1
    });
    let ordered = applied.and_then(|()| order_inside(&mut *world, record, report));
    report.end_lap(hook.begun, Lap::Configure);
    ordered?;
    let verified = verify_inside(&mut *world, record, ConfAll::MaybeChanged, report);
    report.end_lap(hook.begun, Lap::Verify);
    verified?;
    Ok(())
}
