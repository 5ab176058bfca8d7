//! The only executor: steps, one after the other, until one fails or the deadline passes.

use std::io;
use std::time::Instant;

use anyhow::Result;
use nix::libc::{EACCES, EHOSTUNREACH, EINVAL, ENETDOWN, ENETUNREACH};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::step::{Step, links_to_gateways};

use crate::faults;
use crate::kernel::World;

/// Does the steps in order and stops at the first that fails. What was done until then is for the
/// caller to undo, from the record: [`crate::restore::plan`] finds NICs wherever a failure left
/// them.
///
/// # Errors
/// [`ErrorClass::Kernel`] with the step that failed, [`ErrorClass::Timeout`] when the deadline
/// passed before a step.
pub fn apply(
    steps: &[Step],
    world: &mut dyn World,
    deadline: Instant,
    mut done: impl FnMut(&Step),
) -> Result<()> {
    apply_timed(steps, world, deadline, |step, is_done| {
        if is_done {
            done(step);
        }
    })
}

/// [`apply`], which tells of the step that fails as well, and whether it was done: that takes time,
/// too.
pub fn apply_timed(
    steps: &[Step],
    world: &mut dyn World,
    deadline: Instant,
    mut over: impl FnMut(&Step, bool),
) -> Result<()> {
    for step in steps {
        if Instant::now() >= deadline {
            return Err(ErrorClass::Timeout.error(format!("the deadline passed before {step}")));
        }
        let done = perform(step, world, deadline);
        over(step, done.is_ok());
        done.or_else(|e| match ErrorClass::of(&e) {
            ErrorClass::Other => Err(e).class(ErrorClass::Kernel, step.to_string()),
            _ => Err(e),
        })?;
    }
    Ok(())
}

/// Does all the steps, whatever fails: one stubborn NIC must not keep the others away from the
/// host.
pub fn apply_all(steps: &[Step], world: &mut dyn World, deadline: Instant) -> Vec<anyhow::Error> {
    apply_each(steps, world, deadline, |_, _| {})
}

/// [`apply_all`], which tells of each step when it is over, and why it failed.
pub fn apply_each(
    steps: &[Step],
    world: &mut dyn World,
    deadline: Instant,
    mut over: impl FnMut(&Step, Option<&anyhow::Error>),
) -> Vec<anyhow::Error> {
    let mut errors = Vec::new();
    for step in steps {
        let failed = perform(step, world, deadline).err();
        over(step, failed.as_ref());
        errors.extend(failed.map(|e| e.context(step.to_string())));
    }
    errors
}

/// Whether the kernel finds no way to a gateway: a rule or route may be `unreachable`, `blackhole`
/// or `prohibit` there, or a gateway may be the host's own address.
fn is_about_gateway(error: &anyhow::Error) -> bool {
    let errno = errno(error);
    matches!(errno, Some(EHOSTUNREACH | ENETUNREACH | EINVAL | EACCES))
}

/// Whether what a step asks for cannot be, as the namespace is now. A nexthop object needs a link
/// with a carrier: else ENETDOWN (rtm_to_nh_config() in net/ipv4/nexthop.c).
pub fn is_refusal(error: &anyhow::Error) -> bool {
    is_about_gateway(error) || errno(error) == Some(ENETDOWN)
}

fn errno(error: &anyhow::Error) -> Option<i32> {
    let error = error.downcast_ref::<io::Error>();
    error.and_then(io::Error::raw_os_error)
}

/// Does a step. Where the kernel refuses one with a gateway, it is tried once more while routes
/// lead to its gateways, which are deleted then. No record has these routes, so a restore deletes
/// those that a crash leaves.
fn perform(step: &Step, world: &mut dyn World, deadline: Instant) -> Result<()> {
    let mut once = |step: &Step| {
        faults::around(format_args!("step {step}"), || {
            world.perform(step, deadline)
        })
    };
    let result = once(step);
    if !result.as_ref().is_err_and(is_about_gateway) {
        return result;
    }
    let mut links = links_to_gateways(step);
    links.retain(|(side, route)| {
        once(&Step::RouteAdd {
            side: *side,
            route: route.clone(),
        })
        .is_ok()
    });
    if links.is_empty() {
        return result;
    }
    let again = once(step);
    let undone = links
        .into_iter()
        .map(|(side, route)| once(&Step::RouteDelete { side, route }));
    let undone = undone.fold(Ok(()), Result::and);
    again.or(result).and(undone)
}
