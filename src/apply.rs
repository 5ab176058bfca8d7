//! The only executor: steps, one after the other, until one fails or the deadline passes.

use std::time::Instant;

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::step::Step;

use crate::kernel::{World, faults};

/// Does the steps in order and stops at the first that fails. What was done until then is for the caller to undo, from the
/// record: [`crate::restore::plan`] finds NICs wherever a failure left them.
///
/// # Errors
/// [`ErrorClass::Kernel`] with the step that failed, [`ErrorClass::Timeout`] when the deadline passed before a step.
pub fn apply(steps: &[Step], world: &mut dyn World, deadline: Instant, mut done: impl FnMut(&Step)) -> Result<()> {
    for step in steps {
        if Instant::now() >= deadline {
            return Err(ErrorClass::Timeout.error(format!("the deadline passed before {step}")));
        }
        perform(step, world, deadline).or_else(|e| match ErrorClass::of(&e) {
            ErrorClass::Other => Err(e).class(ErrorClass::Kernel, step.to_string()),
            _ => Err(e),
        })?;
        done(step);
    }
    Ok(())
}

/// Does all the steps, whatever fails: one stubborn NIC must not keep the others away from the host.
pub fn apply_all(steps: &[Step], world: &mut dyn World, deadline: Instant) -> Vec<anyhow::Error> {
    let attempt = |step: &Step| perform(step, world, deadline).map_err(|e| e.context(step.to_string())).err();
    steps.iter().filter_map(attempt).collect()
}

fn perform(step: &Step, world: &mut dyn World, deadline: Instant) -> Result<()> {
    faults::around(format_args!("step {step}"), || world.perform(step, deadline))
}
