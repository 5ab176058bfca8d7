//! stop: the NICs of a container return.

use anyhow::Result;
use rdma_model::error_class::ErrorClass;

use super::{Hook, has_capabilities};
use crate::kernel::process::pidfd;
use crate::oci::state::State;
use crate::report::{Lap, Report};
use crate::restore::nic_names;
use crate::restore::reclaim::reclaim;
use crate::restore::run;
use crate::restore::stays_for::{AskedBy, StaysFor, stays_for};
use crate::store::records::Records;

/// poststop, CNI's DEL and GC, and the end of `rdmaprep hold`: the container has ended. Its NICs
/// are restored, unless something else keeps them in the namespace.
pub fn stop(hook: &Hook, report: &mut Report) -> Result<()> {
    if !has_capabilities(hook)? {
        return Ok(());
    }
    let State { id, bundle, .. } = hook.state;
    // Files of this container alone: that needs no lock.
    let removed = hook.store.remove_late_conf(id, bundle);
    let also_removed = hook.store.remove_ended_settings_file(id, bundle);
    let failed = [removed, also_removed].into_iter().filter_map(Result::err);
    report.notes.extend(failed.map(|e| format!("{e:#}")));
    // Most containers have no NICs: their stop shall not wait for the lock.
    if !hook.ask_early(|records| has_record(records, hook, report))?? {
        return Ok(());
    }
    let _lock = hook.store.lock(hook.deadline)?;
    report.end_lap(hook.begun, Lap::Lock);
    // Another hook may have restored them during the wait.
    let mut records = hook.read_records()?;
    let Some(record) = hook.own_record(&records).cloned() else {
        return Ok(());
    };
    report.plan = Some(record.plan.clone());
    report.nics = nic_names(&record.held);
    let mut without_own = record.clone();
    without_own.members.retain(|m| !hook.is_for(m));
    if let Some(what) = stays_for(hook.machine, &without_own, AskedBy::Hook(hook.store, None)) {
        report.notes.push(keeps_nics(&what));
        // `what` may be a claim or a process: whether another container lives is another question.
        let mut members = without_own.members.iter();
        return match members.any(|m| hook.machine.is_alive(&without_own, m)) {
            true => records.save(&without_own),
            // No other container lives. This one stays in the record, since commands find the
            // record by its id.
            false => Ok(()),
        };
    }
    let done = run::restore(hook.machine, &mut records, record)?;
    // Of the time for the restore, the kernel's moves are a lap by themselves.
    let moving = done.moving.as_micros().try_into().unwrap_or(u64::MAX);
    report.take(done);
    report.book(Lap::Move, moving);
    report.end_lap(hook.begun, Lap::Undo);
    // NICs of containers that died without a stop.
    let notes = reclaim(hook.machine, &mut records, None)?;
    report.notes.extend(notes);
    Ok(())
}

/// Whether there is a record of the container's NICs. There is none at a second stop.
/// [`ErrorClass::Incomplete`] where a record that cannot be read is, or may be, the container's.
fn has_record(records: &Records, hook: &Hook, report: &mut Report) -> Result<bool> {
    if hook.own_record(records).is_some() {
        return Ok(true);
    }
    for (path, e) in records.damaged() {
        let ids = hook.store.remains(path).ids;
        let why = hook.store.unreadable(path, e);
        if ids.contains(&hook.state.id) || ids.is_empty() && may_have_nics(hook) {
            return Err(ErrorClass::Incomplete.error(why));
        }
        report.notes.push(why);
    }
    Ok(false)
}

/// Whether a container's NICs may be away, by the report of its last hook.
fn may_have_nics(hook: &Hook) -> bool {
    let text = hook.store.report(&hook.state.id).ok().flatten();
    let report = text.and_then(|text| serde_json::from_str::<Report>(&text).ok());
    report.is_some_and(|report| report.leaves_nics_away())
}

fn keeps_nics(what: &StaysFor) -> String {
    match what {
        StaysFor::Claim => "the claim of its pod keeps the NICs".to_owned(),
        StaysFor::Container(_) => "another container keeps the NICs".to_owned(),
        // A timer, or any hook, restores them when it has ended.
        StaysFor::Process(pid) => format!(
            "{} is still in the namespace and keeps the NICs; after it: rdmaprep restore --all \
            --stale",
            pidfd::in_words(*pid)
        ),
    }
}
