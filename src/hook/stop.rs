use anyhow::Result;
use rdma_model::error_class::ErrorClass;

use super::{Hook, is_able};
use crate::record::Record;
use crate::report::{PhaseName, Report};
use crate::restore::nic_names;
use crate::restore::reclaim::reclaim;
use crate::restore::run;
use crate::store::records::Records;

/// poststop: the container has ended. Its NICs are restored with the last container of the
/// namespace.
pub fn stop(hook: &Hook, report: &mut Report) -> Result<()> {
    if !is_able(hook)? {
        return Ok(());
    }
    let removed = hook
        .store
        .remove_late_conf(&hook.state.id, &hook.state.bundle);
    report.notes.extend(removed.err().map(|e| format!("{e:#}")));
    if !has_record(hook, report)? {
        return Ok(());
    }
    let _lock = hook.store.lock(hook.deadline)?;
    report.lap(hook.begun, PhaseName::Lock);
    // Another hook may have restored them during the wait.
    let mut records = hook.records()?;
    let Some(record) = hook.own(&records).cloned() else {
        return Ok(());
    };
    report.plan = Some(record.plan.clone());
    report.nics = nic_names(&record.held);
    if leave_to_others(hook, &record, &mut records, report)? {
        return Ok(());
    }
    let done = run::restore(hook.machine, &mut records, record)?;
    report.steps_done = done.steps;
    report.notes.extend(done.notes);
    let moving = done.moving.as_micros().try_into().unwrap_or(u64::MAX);
    report.book(PhaseName::Move, moving);
    report.lap(hook.begun, PhaseName::Undo);
    let notes = reclaim(hook.machine, &mut records, |_| false)?;
    report.notes.extend(notes);
    Ok(())
}

fn has_record(hook: &Hook, report: &mut Report) -> Result<bool> {
    let records = hook.records()?;
    if hook.own(&records).is_some() {
        return Ok(true);
    }
    for (path, e) in records.damaged() {
        let ids = hook.store.remains(path).ids;
        let why = hook.store.unreadable(path, e);
        if ids.contains(&hook.state.id) || ids.is_empty() && got_nics(hook) {
            return Err(ErrorClass::Incomplete.error(why));
        }
        report.notes.push(why);
    }
    Ok(false)
}

/// Whether a container got NICs that no stop has brought back, by the report of its last hook.
fn got_nics(hook: &Hook) -> bool {
    let text = hook.store.report(&hook.state.id).ok().flatten();
    let report = text.and_then(|text| serde_json::from_str::<Report>(&text).ok());
    report.is_some_and(|r| match r.command.ends_with("stop") {
        true => r.exit_code == ErrorClass::Incomplete.code(),
        false => r.exit_code == 0 && !r.nics.is_empty(),
    })
}

/// Whether others in the namespace keep the NICs: this container alone leaves the record then.
fn leave_to_others(
    hook: &Hook,
    record: &Record,
    records: &mut Records,
    report: &mut Report,
) -> Result<bool> {
    let others = others(hook, record);
    if others > 0 {
        let note = match others {
            1 => "another container keeps the NICs".to_owned(),
            _ => format!("{others} other containers keep the NICs"),
        };
        let mut rest = record.clone();
        rest.members.retain(|m| !hook.is_for(m));
        report.notes.push(note);
        records.save(&rest)?;
        return Ok(true);
    }
    if record.hold.is_none() {
        return Ok(false);
    }
    // A process without hooks has joined what `rdmaprep hold` made for all.
    let occupant = hook.machine.occupant(record.netns, None);
    if let Some(pid) = occupant {
        let note = format!("process {pid} is still in the namespace and keeps the NICs");
        report.notes.push(note);
    }
    Ok(occupant.is_some())
}

/// Whether other containers that still run have the NICs as well.
pub fn has_others(hook: &Hook) -> bool {
    let Ok(records) = hook.records() else {
        return false;
    };
    hook.own(&records)
        .is_some_and(|record| others(hook, record) > 0)
}

fn others(hook: &Hook, record: &Record) -> usize {
    record
        .members
        .iter()
        .filter(|m| !hook.is_for(m) && hook.machine.is_alive(record, m))
        .count()
}
