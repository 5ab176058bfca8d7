//! HCAs without a NIC, which a container got where each device belongs to one namespace.

use std::time::Instant;

use anyhow::Result;

use rdma_model::drift::Drift;
use rdma_model::ids::HcaName;
use rdma_model::step::Side;

use super::SETTLE;
use crate::apply::apply_all;
use crate::kernel::{Depth, Scope, World};
use crate::plan::rdma_mode;
use crate::record::Record;

/// Tries again to move HCAs without a NIC, where devices belong to one namespace each; returns
/// those that the host lacks still.
pub(super) fn move_again(world: &mut dyn World, record: &Record) -> Result<Vec<Drift>> {
    let bare = of(record);
    if bare.is_empty() {
        return Ok(Vec::new());
    }
    let scope = Scope::only(Depth::Links);
    let inside = world.observe_inside(&scope)?;
    let steps = rdma_mode::restore_hcas(
        bare.iter(),
        &world.observe(Side::Host, &scope)?,
        inside.as_ref(),
    );
    apply_all(&steps, world, Instant::now() + SETTLE);
    Ok(rdma_mode::missing_on_host(
        bare,
        &world.observe(Side::Host, &scope)?,
    ))
}

/// Those that moved with the container's NICs.
pub fn of(record: &Record) -> &[HcaName] {
    record
        .given
        .as_ref()
        .filter(|plan| plan.exclusive)
        .map(|plan| plan.ib.as_slice())
        .unwrap_or_default()
}
