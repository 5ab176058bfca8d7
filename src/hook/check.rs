//! CHECK of CNI.

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;

use super::Hook;
use super::inside::{ConfAll, verify_inside};
use crate::record::Phase;
use crate::report::Report;
use crate::restore::nic_names;

/// Whether what is inside is what the record says. An attachment without NICs is none
/// of ours.
pub fn check(hook: &Hook, report: &mut Report) -> Result<()> {
    hook.machine.require_capabilities()?;
    let _lock = hook.store.lock(hook.deadline)?;
    let Some(record) = &hook.record()? else {
        return Ok(());
    };
    report.nics = nic_names(&record.held);
    let recipient = hook.target.recipient();
    let is_here = recipient.is_some_and(|recipient| recipient.netns() == record.netns);
    ensure!(
        is_here && record.phase == Phase::Attached,
        ErrorClass::State
            .error("the NICs are in another namespace, or not all of them are attached")
    );
    let mut world = hook.machine.open(record, &hook.store.pin(record.netns))?;
    verify_inside(&mut *world, record, ConfAll::MaybeChanged, report).map(drop)
}
