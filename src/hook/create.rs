//! create: NICs go in, all or none.

mod carry_out;
mod choose;
mod entered;
mod fit;
mod join;
mod on_host;
mod unfinished;

use std::time::{Duration, Instant};

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::Snapshot;
use rdma_model::step::Side;
use rdma_model::values::PlanName;

use crate::attach::{AttachPlan, plan_attach};
use crate::config::request::Request;
use crate::kernel::netns::pins;
use crate::kernel::{Container, Scope, World};
use crate::link_managers::Managers;
use crate::plan::Plan;
use crate::precedence::Precedence;
use crate::record::{Phase, Record, SCHEMA};
use crate::report::{PhaseName, Report};
use crate::restore::nic_names;
use crate::restore::reclaim::reclaim;
use crate::store::records::Records;

use super::Hook;
use choose::Chosen;
use entered::{Entered, member};
use fit::Fitted;
use join::Joined;
use unfinished::{adopt_unfinished, check_asked, check_configured, due_objects, record_manager};

/// create: the container has its namespaces and nothing of the user's runs. Gives it the plan's
/// NICs, all or none. `request` is what was asked by flags, variables and the config file, narrowed
/// by the container's annotations. While another container has the NICs, it tries again.
pub fn create(hook: &Hook, request: &Request, report: &mut Report) -> Result<()> {
    let Some(name) = request.plan() else {
        return Ok(());
    };
    report.plan = Some(name.to_string());
    let mut create = Create {
        hook,
        request,
        report,
    };
    let mut pause = Duration::from_millis(25);
    loop {
        match create.try_once(name) {
            Err(e) if is_locked(&e) && Instant::now() < hook.wait_until => {
                create.report.note_once([format!("waited: {e:#}")]);
            }
            done => return done,
        }
        // Without the lock: who holds the NICs needs it to give them back.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(400));
    }
}

fn is_locked(e: &anyhow::Error) -> bool {
    ErrorClass::of(e) == ErrorClass::Locked
}

struct Create<'a> {
    hook: &'a Hook<'a>,
    request: &'a Request,
    report: &'a mut Report,
}

/// One try: the container, both namespaces, and the records as they are while the lock is held.
struct Attempt<'a> {
    container: &'a dyn Container,
    host_netns: u64,
    world: Box<dyn World>,
    records: Records<'a>,
}

impl Create<'_> {
    /// From the container's namespace to the NICs in it. After a wait, the namespace may have
    /// other NICs, or the init may have ended.
    fn try_once(&mut self, name: &PlanName) -> Result<()> {
        let hook = self.hook;
        hook.machine.require_capabilities()?;
        let entered = Entered::of(hook)?;
        let container = entered.container();
        let host_netns = hook.machine.host_netns()?;
        if host_netns == container.netns() {
            return self.on_host(name, container, host_netns);
        }
        hook.store.prepare()?;
        let _lock = hook.store.lock(hook.deadline)?;
        self.lap(PhaseName::Lock);
        let mut attempt = Attempt {
            container,
            host_netns,
            records: self.reclaim_nics_of_the_dead(container.netns())?,
            world: container.open()?,
        };
        self.check_name_is_vacant()?;
        match self.join(&mut attempt)? {
            Joined::Already => return Ok(()),
            Joined::Now(record) => return self.set_up_member(attempt, &record),
            Joined::NoNics => {}
        }
        let Chosen { plan, host } = self.choose(name, &mut attempt)?;
        let inside = attempt.world.observe(Side::Inside, &Scope::links())?;
        self.lap(PhaseName::Observe);
        let Fitted { plan, setup } = self.fit(plan, Some(&host), Some(&inside), &mut attempt)?;
        if let Some(setup) = &setup {
            let pitfalls = setup.nccl_pitfalls(&plan, &host, &inside);
            self.report.notes.extend(pitfalls);
        }
        let AttachPlan { steps, held, .. } =
            self.plan_and_adopt(&plan, &host, &inside, &attempt)?;
        let record = self.new_record(plan, host, held, &attempt)?;
        self.lap(PhaseName::Plan);
        self.report.nics = nic_names(&record.held);
        self.carry_out(attempt, record, &steps, setup)
    }

    /// Their NICs may be the plan's. A record of the container's own namespace is left to
    /// [`Create::join`].
    fn reclaim_nics_of_the_dead<'h>(&mut self, own: u64) -> Result<Records<'h>>
    where
        Self: 'h,
    {
        let mut records = self.hook.records()?;
        let notes = reclaim(self.hook.machine, &mut records, |r| r.netns == own)?;
        self.report.note_once(notes);
        Ok(records)
    }

    /// The name of a holder that was killed is free by now.
    fn check_name_is_vacant(&self) -> Result<()> {
        match self.hook.target.keeper() {
            Some(keeper) => pins::check_vacant(&keeper.hold.path),
            None => Ok(()),
        }
    }

    /// The steps, and the NICs as they are to return, with what managers and earlier restores have
    /// to do with them.
    fn plan_and_adopt(
        &mut self,
        plan: &Plan,
        host: &Snapshot,
        inside: &Snapshot,
        attempt: &Attempt,
    ) -> Result<AttachPlan> {
        let mut managers = Managers::of(self.hook.machine.root());
        check_configured(plan, host, &mut managers)?;
        let mut attach = plan_attach(plan, host, inside)?;
        let moved = nic_names(&attach.held);
        managers.await_restart(attach.held.iter().map(|h| &h.before.netdev));
        for held in &mut attach.held {
            record_manager(held, &moved, host, &mut managers);
            adopt_unfinished(&attempt.records, held, host);
        }
        check_asked(&attach.held, &mut managers)?;
        self.report.notes.append(&mut attach.notes);
        Ok(attach)
    }

    /// What is written before the first step: all that a restore takes.
    fn new_record(
        &self,
        plan: Plan,
        host: Snapshot,
        held: Vec<MovedNic>,
        attempt: &Attempt,
    ) -> Result<Record> {
        let others = attempt
            .records
            .readable()
            .filter(|r| r.host_netns == attempt.host_netns);
        let others: Vec<Precedence> = others.map(|r| r.precedence.clone()).collect();
        let before = held.iter().map(|h| &h.before);
        let precedence = Precedence::from_host(&host, before, &others);
        let host_objects = due_objects(&attempt.records, &held, &host);
        Ok(Record {
            schema: SCHEMA,
            boot_id: host.boot_id,
            netns: attempt.container.netns(),
            host_netns: attempt.host_netns,
            phase: Phase::Attaching,
            plan: plan.name.clone(),
            members: vec![member(self.hook, attempt.container)?],
            given: Some(Box::new(plan)),
            held_back: Vec::new(),
            lost: std::collections::BTreeSet::new(),
            awaits: Vec::new(),
            host_objects,
            due_until_back: Vec::new(),
            children_gone: false,
            rules_beside: None,
            searched: None,
            hold: self.hook.target.keeper().map(|keeper| keeper.hold.clone()),
            held,
            precedence,
        })
    }

    fn lap(&mut self, phase: PhaseName) {
        self.report.lap(self.hook.begun, phase);
    }
}
