//! Restoring NICs: after a stop, after a failure, and for containers that died without a stop.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;

use rdma_model::error_class::{ErrorClass, WithClass};

use crate::kernel::{Namespaces, World};
use crate::link_managers::Managers;
use crate::record::{Phase, Record};
use crate::restore::bring_back::bring_back;
use crate::restore::find_and_plan::plan_now;
use crate::restore::legs::{absent_parts, other_records};
use crate::restore::plan::{Purpose, RestorePlan};
use crate::restore::waiting_record;
use crate::restore::{Restored, SETTLE};
use crate::store::records::Records;

/// Opens both namespaces of a record and restores its NICs.
pub fn restore(
    machine: &dyn Namespaces,
    records: &mut Records,
    record: Record,
) -> Result<Restored> {
    open_and_restore(machine, records, record, SETTLE)
}

/// Restores where no one waits for it. A record that was waited for once is not waited for again:
/// not every container shall wait, and what was not there then will hardly come now.
pub fn restore_abandoned(
    machine: &dyn Namespaces,
    records: &mut Records,
    record: Record,
) -> Result<Restored> {
    let patience = match record.phase {
        Phase::Restoring | Phase::Waiting => Duration::ZERO,
        Phase::Attaching | Phase::Attached => SETTLE,
    };
    open_and_restore(machine, records, record, patience)
}

fn open_and_restore(
    machine: &dyn Namespaces,
    records: &mut Records,
    record: Record,
    patience: Duration,
) -> Result<Restored> {
    if machine.host_netns()? != record.host_netns {
        return Err(ErrorClass::Refused
            .error("the NICs belong to another namespace than this one: run it there"));
    }
    let opened = machine.open(&record, &records.store().pin(record.netns));
    let mut world = opened.class(ErrorClass::Incomplete, "opening both namespaces")?;
    restore_opened(machine, &mut *world, records, record, patience)
}

/// Restores a record's NICs, and forgets the record when all of them are on the host and equal to
/// what they were.
///
/// # Errors
/// [`ErrorClass::Incomplete`] with what is missing; the record stays, so that the next try starts
/// from it.
pub fn restore_opened(
    machine: &dyn Namespaces,
    world: &mut dyn World,
    records: &mut Records,
    record: Record,
    patience: Duration,
) -> Result<Restored> {
    let restored = if record.is_back() {
        waiting_record::resume(machine, world, records, &record, patience)
    } else {
        bring_back(machine, world, records, record, patience)
    };
    restored.or_else(|e| match ErrorClass::of(&e) {
        ErrorClass::Other => Err(e).class(
            ErrorClass::Incomplete,
            "restoring NICs; `rdmaprep restore --all` tries again",
        ),
        _ => Err(e),
    })
}

/// What a restore would do now or, for [`Purpose::Forget`], what would stay undone without it.
/// Changes nothing; what other containers have is left out.
pub fn preview(
    machine: &dyn Namespaces,
    world: &mut dyn World,
    records: &Records,
    record: &Record,
    purpose: Purpose,
) -> Result<RestorePlan> {
    if record.is_back() {
        return waiting_record::preview(machine, world, records, record, purpose);
    }
    let (absent, gone_notes) = absent_parts(
        world,
        records,
        record,
        &other_records(records, record),
        record.phase,
    )?;
    let mut managers = Managers::of(machine.root());
    let plan = plan_now(world, &mut managers, &absent.possible(record), purpose)?.plan;
    Ok(RestorePlan {
        notes: plan
            .notes
            .iter()
            .cloned()
            .chain(plan.deleted_but(&BTreeSet::new()))
            .chain(gone_notes)
            .collect(),
        ..plan
    })
}
