//! The OCI hooks: one short function for each moment of a container's life.

mod create;

use std::time::Instant;

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;
use rdma_model::snapshot::Snapshot;
use rdma_model::step::{NicState, Side};

use crate::apply::apply;
use crate::config::sandbox::Sandbox;
use crate::container::facts::ContainerFacts;
use crate::container::late_conf;
use crate::journal::{Attachment, HeldNetns, Member, Phase, Record};
use crate::kernel::process::pidfd::Process;
use crate::kernel::records::Records;
use crate::kernel::store::Store;
use crate::kernel::{Container, Namespaces, Scope, World};
use crate::oci::state::State;
use crate::plan::{Plan, rails, rdma_mode};
use crate::report::{PhaseName, Report};
use crate::restore::arrange::arrange;
use crate::restore::nic_names;
use crate::restore::plan::reassert;
use crate::restore::run::{self, reclaim};
use crate::verify;

pub use create::create;

pub struct Hook<'a> {
    pub state: &'a State,
    pub store: &'a Store,
    pub machine: &'a dyn Namespaces,
    /// When the command began: times count from here.
    pub begun: Instant,
    /// When the work has to be done; an undo comes after it.
    pub deadline: Instant,
    /// Until when to wait for NICs that other containers hold.
    pub patience: Instant,
    pub target: Target<'a>,
}

/// What a hook is called for.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    Container(&'a ContainerFacts),
    /// There is no container yet, and this very process keeps the namespace.
    Hold(&'a NetnsKeeper<'a>),
    /// There is no container yet, and the CNI runtime that calls keeps the namespace. It is absent
    /// where NICs only leave it.
    Attachment(&'a Attachment, Option<&'a dyn Container>),
}

pub struct NetnsKeeper<'a> {
    pub container: &'a dyn Container,
    pub plan: &'a Plan,
    /// What goes into its record.
    pub hold: &'a HeldNetns,
}

impl<'a> Target<'a> {
    /// What is known of the container that is set up; a namespace without one has none.
    fn facts(self) -> Option<&'a ContainerFacts> {
        match self {
            Target::Container(facts) => Some(facts),
            Target::Hold(_) | Target::Attachment(..) => None,
        }
    }

    fn sandbox(self) -> Option<Sandbox> {
        self.facts()?.sandbox
    }

    fn keeper(self) -> Option<&'a NetnsKeeper<'a>> {
        match self {
            Target::Hold(keeper) => Some(keeper),
            Target::Container(_) | Target::Attachment(..) => None,
        }
    }

    fn attachment(self) -> Option<&'a Attachment> {
        match self {
            Target::Attachment(attachment, _) => Some(attachment),
            Target::Container(_) | Target::Hold(_) => None,
        }
    }
}

impl<'a> Hook<'a> {
    /// A hook that has no time left: [`Hook::until`] gives it some.
    pub fn new(
        target: Target<'a>,
        state: &'a State,
        store: &'a Store,
        machine: &'a dyn Namespaces,
        begun: Instant,
    ) -> Hook<'a> {
        Hook {
            state,
            store,
            machine,
            begun,
            deadline: begun,
            patience: begun,
            target,
        }
    }

    pub fn until(self, deadline: Instant, patience: Instant) -> Hook<'a> {
        Hook {
            deadline,
            patience: patience.min(deadline),
            ..self
        }
    }

    fn records(&self) -> Result<Records<'a>> {
        Records::read(self.store, self.machine.boot_id())
    }

    fn agreed(&self) -> Option<&'a str> {
        self.target.facts()?.agreed.as_deref()
    }

    /// Whether a member is what this hook is called for: ids are unique only within a runtime, so
    /// the bundle has to agree where both are known. A sandbox and its attachments have one id.
    fn is_for(&self, member: &Member) -> bool {
        let State { id, bundle, .. } = self.state;
        member.id == *id
            && match (&member.cni, self.target.attachment()) {
                (None, None) => {
                    bundle.is_empty() || member.bundle.is_empty() || member.bundle == *bundle
                }
                (Some(a), Some(b)) => a.network == b.network && a.ifname == b.ifname,
                _ => false,
            }
    }

    fn own<'r>(&self, records: &'r Records) -> Option<&'r Record> {
        let mut away = records.current().filter(|r| !r.is_back());
        away.find(|r| r.members.iter().any(|m| self.is_for(m)))
    }

    /// The record of its NICs.
    pub fn record(&self) -> Result<Option<Record>> {
        Ok(self.own(&self.records()?).cloned())
    }

    /// How many NICs it has, as far as that can be read.
    pub fn nics(&self) -> usize {
        let record = self.record().ok().flatten();
        record.map_or(0, |record| record.held.len())
    }
}

fn states_inside(record: &Record) -> Vec<NicState> {
    record.held.iter().map(|h| h.inside.clone()).collect()
}

/// Gives equal routes and rules inside the order that they had on the host; where one cannot have
/// it, a note says so.
fn put_in_order(world: &mut dyn World, record: &Record, report: &mut Report) -> Result<()> {
    let order = record.precedence.inside(&record.held);
    if order.is_empty() {
        return Ok(());
    }
    let now = world.observe(Side::Inside, &Scope::links())?;
    let arranged = arrange(world, Side::Inside, &order, &now)?;
    report.steps_done += arranged.steps;
    if arranged.steps > 0 || !arranged.errors.is_empty() {
        let now = world.observe(Side::Inside, &Scope::links())?;
        let drift = order.drift(&now);
        report
            .notes
            .extend(drift.iter().map(|d| format!("inside: {d}")));
    }
    Ok(())
}

/// [`ErrorClass::Kernel`] where the NICs inside are not what they should be.
fn verify_inside(world: &mut dyn World, record: &Record, report: &mut Report) -> Result<Snapshot> {
    let states = states_inside(record);
    let now = world.observe(Side::Inside, &Scope::against(&states))?;
    let mut drift = verify::drift(&states, &now);
    drift.extend(verify::rdma_drift(&record.held, &now));
    drift.extend(rails::drift(&states, &now));
    if let Some(plan) = record.given.as_ref().filter(|plan| plan.exclusive) {
        drift.extend(rdma_mode::drift(
            plan,
            &world.observe(Side::Host, &Scope::links())?,
            &now,
        ));
    }
    report.rails = rails::describe(&states, &now);
    report.drift = drift.iter().map(ToString::to_string).collect();
    if report.drift.is_empty() {
        return Ok(now);
    }
    Err(ErrorClass::Kernel.error(format!(
        "the NICs inside differ from the plan: {}",
        report.drift.join("; ")
    )))
}

/// Whether the hook can do anything at all; an error only where NICs are in the container: a user's
/// runtime also calls hooks that are installed for all, of containers that never had a NIC.
fn is_able(hook: &Hook) -> Result<bool> {
    let Err(lacking) = hook.machine.require_capabilities() else {
        return Ok(true);
    };
    // Such a user may not even read the records.
    let has_nics = hook
        .records()
        .is_ok_and(|records| hook.own(&records).is_some());
    if has_nics { Err(lacking) } else { Ok(false) }
}

/// poststart: the payload has begun. A runtime with its own network stack has removed the addresses
/// by now.
pub fn start(hook: &Hook, report: &mut Report) -> Result<()> {
    if !is_able(hook)? {
        return Ok(());
    }
    match hook.records().map(|records| hook.own(&records).is_some()) {
        Ok(true) => {}
        Ok(false) => return Ok(()),
        // The container has started, and may be one without NICs.
        Err(e) => {
            report.notes.push(format!("{e:#}"));
            return Ok(());
        }
    }
    let _lock = hook.store.lock(hook.deadline)?;
    report.lap(hook.begun, PhaseName::Lock);
    let records = hook.records()?;
    let Some(record) = hook.own(&records) else {
        return Ok(());
    };
    report.plan = Some(record.plan.clone());
    report.nics = nic_names(&record.held);
    let mut world = hook.machine.open(record, &hook.store.pin(record.netns))?;
    if !world.has_inside() {
        return Err(ErrorClass::State.error("the container's network namespace has gone"));
    }
    let states = states_inside(record);
    let now = world.observe(Side::Inside, &Scope::against(&states))?;
    // A runtime writes config.json's sysctls after the create hooks: its conf/all is what the
    // container's config asks for.
    report.notes = rails::drift(&states, &now)
        .iter()
        .map(ToString::to_string)
        .collect();
    report.rails = rails::describe(&states, &now);
    let steps = reassert(&record.held, &now);
    report.lap(hook.begun, PhaseName::Observe);
    if steps.is_empty() {
        return Ok(());
    }
    apply(&steps, &mut *world, hook.deadline, |_| {
        report.steps_done += 1
    })?;
    put_in_order(&mut *world, record, report)?;
    report.lap(hook.begun, PhaseName::Configure);
    verify_inside(&mut *world, record, report)?;
    report.lap(hook.begun, PhaseName::Verify);
    Ok(())
}

/// Whether another container that lives has this one's id: the report of that id is its.
pub fn has_namesake(state: &State, store: &Store, machine: &dyn Namespaces) -> bool {
    let Ok(records) = Records::read(store, machine.boot_id()) else {
        return false;
    };
    let is_other = |r: &Record, m: &Member| {
        m.id == state.id
            && m.cni.is_none()
            && Some(i64::from(m.pid)) != state.pid
            && machine.is_alive(r, m)
    };
    records
        .current()
        .any(|r| r.members.iter().any(|m| is_other(r, m)))
}

pub fn is_held_by_us(hook: &Hook, netns: u64) -> Result<bool> {
    let pid = Process::current()?.pid();
    let ours = |r: &Record| {
        r.netns == netns
            && r.members
                .iter()
                .any(|m| m.pid == pid && hook.machine.is_alive(r, m))
    };
    Ok(hook.records()?.readable().any(ours))
}

/// CHECK of CNI: whether what is inside is what the record says. An attachment without NICs is none
/// of ours.
pub fn check(hook: &Hook, report: &mut Report) -> Result<()> {
    hook.machine.require_capabilities()?;
    let _lock = hook.store.lock(hook.deadline)?;
    let records = hook.records()?;
    let Some(record) = hook.own(&records) else {
        return Ok(());
    };
    report.nics = nic_names(&record.held);
    let is_here = match hook.target {
        Target::Attachment(_, Some(netns)) => netns.netns() == record.netns,
        _ => false,
    };
    ensure!(
        is_here && record.phase == Phase::Attached,
        ErrorClass::State
            .error("the NICs are in another namespace, or not all of them are attached")
    );
    let mut world = hook.machine.open(record, &hook.store.pin(record.netns))?;
    verify_inside(&mut *world, record, report).map(drop)
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

/// createContainer, in gVisor's gofer: the create hook comes later, and finds the sandbox closed.
pub fn create_container(hook: &Hook, report: &mut Report) -> Result<()> {
    let why = late_conf::mount_late_conf(hook.state, hook.store)?;
    report.notes.extend(why);
    Ok(())
}

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
    let records = hook.records()?;
    if hook.own(&records).is_none() {
        // It may be the one of this very container.
        report.notes.extend(
            records
                .damaged()
                .map(|(path, e)| hook.store.unreadable(path, e)),
        );
        return Ok(());
    }
    let _lock = hook.store.lock(hook.deadline)?;
    report.lap(hook.begun, PhaseName::Lock);
    // Another hook may have restored them during the wait.
    let mut records = hook.records()?;
    let Some(mut record) = hook.own(&records).cloned() else {
        return Ok(());
    };
    report.plan = Some(record.plan.clone());
    report.nics = nic_names(&record.held);
    let others = others(hook, &record);
    if others > 0 {
        report
            .notes
            .push(format!("{others} other containers keep the NICs"));
        record.members.retain(|m| !hook.is_for(m));
        report.notes.extend(records.save_later(&record)?);
        return Ok(());
    }
    if let Some(pid) = record
        .hold
        .as_ref()
        .and_then(|_| hook.machine.occupant(record.netns, None))
    {
        // A process without hooks has joined what `rdmaprep hold` made for all.
        report.notes.push(format!(
            "process {pid} is still in the namespace and keeps the NICs"
        ));
        return Ok(());
    }
    let done = run::restore(hook.machine, &mut records, record)?;
    report.steps_done = done.steps;
    report.notes.extend(done.notes);
    report.lap(hook.begun, PhaseName::Undo);
    report
        .notes
        .extend(reclaim(hook.machine, &mut records, |_| false)?);
    Ok(())
}
