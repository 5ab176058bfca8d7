//! The OCI hooks: one short function for each moment of a container's life.

mod create;

use std::time::Instant;

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::snapshot::Snapshot;
use rdma_model::step::{NicState, Side};

use crate::apply::apply;
use crate::journal::{HeldNetns, Member, Record};
use crate::kernel::netns::{self, Netns};
use crate::kernel::process::capabilities;
use crate::kernel::process::pidfd::Process;
use crate::kernel::store::Store;
use crate::kernel::{Kernel, Scope, World, boot_id};
use crate::oci::state::State;
use crate::plan::{Plan, rails, rdma_mode};
use crate::report::{PhaseName, Report, Stopwatch};
use crate::restore::arrange::arrange;
use crate::restore::nic_names;
use crate::restore::plan::reassert;
use crate::restore::run::{self, is_alive, reclaim};
use crate::verify;

pub use create::create;

/// What every hook works with.
pub struct Hook<'a> {
    /// The container.
    pub state: &'a State,
    /// Where plans and records live.
    pub store: &'a Store,
    /// When the work has to be done; an undo comes after it.
    pub deadline: Instant,
    /// Until when to wait for NICs that other containers hold.
    pub patience: Instant,
    /// The digest that config.json was edited for: all nodes agreed on it.
    pub agreed: Option<&'a str>,
    /// Set where there is no container yet, and this very process keeps the namespace.
    pub keeper: Option<&'a NetnsKeeper<'a>>,
}

/// A namespace that waits for containers.
pub struct NetnsKeeper<'a> {
    /// The namespace.
    pub netns: &'a Netns,
    /// What was rendered: the plan is not read again.
    pub plan: &'a Plan,
    /// What goes into its record.
    pub hold: &'a HeldNetns,
}

/// Whether a member is this container: ids are unique only within a runtime, so the bundle has to agree where it is told.
fn is_of(member: &Member, state: &State) -> bool {
    member.id == state.id && (state.bundle.is_empty() || member.bundle.is_empty() || member.bundle == state.bundle)
}

/// The records that can be read; a damaged one is told by `status` and `restore`.
fn records(store: &Store) -> Result<Vec<Record>> {
    Ok(store.all_records()?.into_iter().filter_map(|(_, r)| r.ok()).collect())
}

fn states_inside(record: &Record) -> Vec<NicState> {
    record.held.iter().map(|h| h.inside.clone()).collect()
}

/// Gives equal routes and rules inside the order that they had on the host; what cannot have it is reported.
fn put_in_order(live: &mut Kernel, record: &Record, report: &mut Report) -> Result<()> {
    let order = record.precedence.inside(&record.held);
    if order.is_empty() {
        return Ok(());
    }
    let now = live.observe(Side::Inside, &Scope::links())?;
    let arranged = arrange(live, Side::Inside, &order, &now)?;
    report.steps_done += arranged.steps;
    if arranged.steps > 0 || !arranged.errors.is_empty() {
        let now = live.observe(Side::Inside, &Scope::links())?;
        report.notes.extend(order.drift(&now).iter().map(|d| format!("inside: {d}")));
    }
    Ok(())
}

fn verify_inside(live: &mut Kernel, record: &Record, report: &mut Report) -> Result<Snapshot> {
    let states = states_inside(record);
    let now = live.observe(Side::Inside, &Scope::against(&states))?;
    let mut drift = verify::drift(&states, &now);
    drift.extend(verify::rdma_drift(&record.held, &now));
    drift.extend(rails::drift(&states, &now));
    if let Some(plan) = record.given.as_ref().filter(|plan| plan.exclusive) {
        drift.extend(rdma_mode::drift(plan, &live.observe(Side::Host, &Scope::links())?, &now));
    }
    report.rails = rails::describe(&states, &now);
    report.drift = drift.iter().map(ToString::to_string).collect();
    if drift.is_empty() {
        return Ok(now);
    }
    Err(ErrorClass::Kernel.error(format!("the NICs inside differ from the plan: {}", report.drift.join("; "))))
}

/// Whether it can do anything at all. A user's runtime calls hooks that are installed for all, of containers that never had a
/// NIC: that is no failure.
///
/// # Errors
/// That of [`capabilities::require`] where NICs are in the container.
fn is_able(hook: &Hook) -> Result<bool> {
    let Err(lacking) = capabilities::require() else { return Ok(true) };
    match of_container(hook) {
        Ok(Some(_)) => Err(lacking),
        // Such a user may not even read the records.
        Ok(None) | Err(_) => Ok(false),
    }
}

/// poststart: the payload has begun. A runtime with its own network stack has removed the addresses by now.
pub fn start(hook: &Hook, report: &mut Report, watch: &mut Stopwatch) -> Result<()> {
    if !is_able(hook)? {
        return Ok(());
    }
    match of_container(hook) {
        Ok(Some(_)) => {}
        Ok(None) => return Ok(()),
        // It has begun without our help; and it may be none of ours.
        Err(e) => {
            report.notes.push(format!("{e:#}"));
            return Ok(());
        }
    }
    let _lock = hook.store.lock(hook.deadline)?;
    watch.lap(PhaseName::Lock);
    let Some(record) = of_container(hook)? else { return Ok(()) };
    report.plan = Some(record.plan.clone());
    report.nics = nic_names(&record.held);
    let inside = run::open_netns(hook.store, &record)
        .ok_or_else(|| ErrorClass::State.error("the container's network namespace has gone"))?;
    let mut live = Kernel::open(Netns::current()?, Some(inside))?;
    let states = states_inside(&record);
    let now = live.observe(Side::Inside, &Scope::against(&states))?;
    // A runtime writes config.json's sysctls after the create hooks: whoever set conf/all there wants it so.
    report.notes = rails::drift(&states, &now).iter().map(ToString::to_string).collect();
    report.rails = rails::describe(&states, &now);
    let steps = reassert(&record.held, &now);
    watch.lap(PhaseName::Observe);
    if steps.is_empty() {
        return Ok(());
    }
    apply(&steps, &mut live, hook.deadline, |_| report.steps_done += 1)?;
    put_in_order(&mut live, &record, report)?;
    watch.lap(PhaseName::Configure);
    verify_inside(&mut live, &record, report)?;
    watch.lap(PhaseName::Verify);
    Ok(())
}

fn of_container(hook: &Hook) -> Result<Option<Record>> {
    record_of(hook.state, hook.store)
}

fn record_of(state: &State, store: &Store) -> Result<Option<Record>> {
    let boot = boot_id()?;
    let ours = |r: &Record| r.boot_id == boot && r.members.iter().any(|m| is_of(m, state));
    Ok(records(store)?.into_iter().find(ours))
}

/// How many NICs a container has.
pub fn nics_of(state: &State, store: &Store) -> usize {
    record_of(state, store).ok().flatten().map_or(0, |record| record.held.len())
}

/// Whether this very process is a member of that namespace's record.
pub fn is_held_by_us(hook: &Hook, netns: u64) -> Result<bool> {
    let pid = Process::current()?.pid();
    let ours = |r: &Record| r.netns == netns && r.members.iter().any(|m| m.pid == pid && is_alive(m));
    Ok(records(hook.store)?.iter().any(ours))
}

/// Whether other containers that live have the NICs as well.
pub fn has_others(hook: &Hook) -> bool {
    let of_others = |r: &Record| r.members.iter().any(|m| !is_of(m, hook.state) && is_alive(m));
    of_container(hook).is_ok_and(|record| record.is_some_and(|r| of_others(&r)))
}

/// poststop: the container has ended. Its NICs go home with the last container of the namespace.
pub fn stop(hook: &Hook, report: &mut Report, watch: &mut Stopwatch) -> Result<()> {
    if !is_able(hook)? {
        return Ok(());
    }
    if of_container(hook)?.is_none() {
        // It may be the one of this very container.
        let damaged = hook.store.all_records()?.into_iter().filter_map(|(_, r)| r.err());
        report.notes = damaged.map(|e| format!("{e:#}")).collect();
        return Ok(());
    }
    let _lock = hook.store.lock(hook.deadline)?;
    watch.lap(PhaseName::Lock);
    // Another hook may have brought them home while we waited.
    let Some(mut record) = of_container(hook)? else { return Ok(()) };
    report.plan = Some(record.plan.clone());
    report.nics = nic_names(&record.held);
    let others = record.members.iter().filter(|m| !is_of(m, hook.state) && is_alive(m)).count();
    if others > 0 {
        report.notes.push(format!("{others} other containers keep the NICs"));
        record.members.retain(|m| !is_of(m, hook.state));
        return hook.store.save(&record);
    }
    if let Some(pid) = netns::occupant(record.netns).filter(|_| record.hold.is_some()) {
        // One that no hook has heard of has joined what `rdmaprep hold` made for all.
        report.notes.push(format!("process {pid} is still in the namespace and keeps the NICs"));
        return Ok(());
    }
    let done = run::restore(hook.store, record)?;
    report.steps_done = done.steps;
    report.notes.extend(done.notes);
    watch.lap(PhaseName::Undo);
    report.notes.extend(reclaim(hook.store, &boot_id()?, |_| false)?);
    Ok(())
}
