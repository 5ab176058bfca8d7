//! Equal routes and rules, in their order: after everything else is there.

use std::time::Instant;

use anyhow::Result;
use rdma_model::snapshot::Snapshot;
use rdma_model::step::{Side, Step};

use super::SETTLE;
use crate::apply::apply;
use crate::kernel::{RoutesOf, Scope, World};
use crate::precedence::Precedence;

/// What giving equals their order did.
#[derive(Debug, Default)]
pub struct Ordered {
    pub steps: usize,
    /// Changes that were left in the middle, each at the step that failed.
    pub errors: Vec<anyhow::Error>,
}

impl Ordered {
    fn carry_out(&mut self, changes: &[Vec<Step>], world: &mut dyn World) {
        let deadline = Instant::now() + SETTLE;
        for change in changes {
            let done = &mut self.steps;
            self.errors
                .extend(apply(change, world, deadline, |_| *done += 1).err());
        }
    }
}

/// Repairs what a crash left of an earlier change of the order, then gives equals the recorded
/// order. `now` is fresh.
///
/// # Errors
/// Where the namespace cannot be observed again after a repair.
pub fn put_in_order(
    world: &mut dyn World,
    side: Side,
    order: &Precedence,
    now: &Snapshot,
) -> Result<Ordered> {
    let mut ordered = Ordered::default();
    let repairs = order.repairs(side, now);
    ordered.carry_out(&repairs, world);
    let again = if repairs.is_empty() {
        None
    } else {
        // Equal routes have one destination: no other ones have a part in the order.
        let scope = Scope::network().with(RoutesOf::of_moved(&[], &order.routes));
        Some(world.observe(side, &scope)?)
    };
    ordered.carry_out(&order.steps(side, again.as_ref().unwrap_or(now)), world);
    Ok(ordered)
}
