//! A container whose namespace holds NICs already: the other stage of its own create, or a second
//! container.

use crate::kernel::namespaces::Container;
use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;
use rdma_model::step::Side;

use crate::container::running_setup::RunningSetup;
use crate::kernel::Scope;
use crate::plan::Plan;
use crate::planner;
use crate::record::{Phase, Record};
use crate::restore::{nic_names, run};

use super::entered::{member, whose};
use super::{Attempt, Create};

pub(super) enum Joined {
    NoNics,
    /// This very container: the other one of the two create stages has done all.
    Already,
    /// Other containers, which this one joins: their record with it, not saved yet.
    Now(Box<Record>),
}

impl Create<'_> {
    /// When the namespace holds NICs already: both stages of one container act once, and a second
    /// container joins the first. NICs of a namespace without users are restored.
    pub(super) fn join(&mut self, attempt: &mut Attempt) -> Result<Joined> {
        let (hook, request, container) = (self.hook, self.request, attempt.container);
        let Some(mut record) = attempt.records.of_netns(container.netns()).cloned() else {
            return Ok(Joined::NoNics);
        };
        if record.phase != Phase::Attached || !self.is_used(&record, container) {
            // A hook died in the middle, or all that held the namespace did: start again.
            run::restore(hook.machine, &mut attempt.records, record)?;
            return Ok(Joined::NoNics);
        }
        if let Some(plan) = request.plan.as_ref().filter(|p| p.as_str() != record.plan) {
            let holder = record
                .members
                .first()
                .map_or("another container", |m| m.id.as_str());
            return Err(ErrorClass::Refused.error(format!(
                "{holder} has plan {} in this namespace, not {plan}",
                record.plan
            )));
        }
        if let Some(given) = &record.given {
            planner::check_agreed(given, hook.agreed())?;
            let left = request.narrowed_plan(Plan::clone(given), None);
            if left.nics.len() < given.nics.len() {
                let note =
                    "it asks for fewer NICs, but a namespace has one set for all of its containers";
                self.report.notes.push(note.to_owned());
            }
            request.check_devices(&left)?;
        }
        self.report.nics = nic_names(&record.held);
        let newcomer = member(hook, container)?;
        if record.members.contains(&newcomer) {
            return Ok(Joined::Already);
        }
        let first = record
            .members
            .first()
            .map_or("a container", |m| m.id.as_str());
        self.report
            .notes
            .push(format!("joined {first}, which has the namespace's NICs"));
        // One that was restarted without its stop hook comes back under its id, as another process.
        record.members.retain(|m| !hook.is_for(m));
        record.members.push(newcomer);
        Ok(Joined::Now(Box::new(record)))
    }

    /// Whether a member lives, or processes in the namespace of a `rdmaprep hold` that has ended.
    fn is_used(&self, record: &Record, container: &dyn Container) -> bool {
        let machine = self.hook.machine;
        let mut members = record.members.iter();
        members.any(|m| machine.is_alive(record, m))
            || record.hold.is_some()
                && machine
                    .occupant(record.netns, Some(container.pid()))
                    .is_some()
    }

    /// A second container in a namespace has a /sys, an environment and device nodes of its own:
    /// for the NICs of its devices, where it has any, else for all that the first one asked for. It
    /// is a member only then.
    pub(super) fn set_up_member(&mut self, mut attempt: Attempt, record: &Record) -> Result<()> {
        if let Some(given) = record.given.as_deref() {
            let host = match given.ib.is_empty() {
                true => None,
                false => Some(attempt.world.observe(Side::Host, &Scope::links())?),
            };
            let plan = self.request.share(given, host.as_ref());
            // The namespace was not observed: its netdevs are those that the plan gave.
            if let Some(setup) = self.fit(plan, None, None, &mut attempt)?.setup {
                self.finish_setup(RunningSetup::begin(setup), record.netns)?;
            }
        }
        self.check_runs(attempt.container)?;
        attempt.records.save(record)?;
        self.lift_memlock(attempt.container);
        self.check_runs(attempt.container)
    }

    /// [`ErrorClass::State`] if the container has ended meanwhile.
    pub(super) fn check_runs(&self, container: &dyn Container) -> Result<()> {
        let text = format!("{} has ended", whose(self.hook));
        ensure!(container.is_running(), ErrorClass::State.error(text));
        Ok(())
    }
}
