//! create: NICs go in, all or none.

mod choose;
mod join;

use rdma_model::values::PlanName;
use std::time::{Duration, Instant};

use anyhow::Result;
use rdma_model::effect::{compare_rules, missing_addresses, missing_routes};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::IfName;
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::{Address, Route, Rule, Snapshot};
use rdma_model::step::{NicState, Side, Step};

use crate::apply::apply;
use crate::attach::{Attach, attach};
use crate::config::request::Request;
use crate::container::running_setup::RunningSetup;
use crate::container::sandbox;
use crate::container::setup::{SetupContext, SetupNotes, SetupPlan, plan_setup};
use crate::journal::{Member, Phase, Record, SCHEMA};
use crate::kernel::link_managers::Managers;
use crate::kernel::netns::pins;
use crate::kernel::records::Records;
use crate::kernel::{Container, Pin, Scope, World};
use crate::nccl_env::Namespace;
use crate::oci::bundle::Bundle;
use crate::oci::state::State;
use crate::plan::Plan;
use crate::planner;
use crate::precedence::Precedence;
use crate::report::{PhaseName, Report};
use crate::restore::run::{reclaim, restore_with};
use crate::restore::{SETTLE, nic_names};

use super::{Hook, Target, put_in_order, verify_inside};
use choose::choose;
use join::Joined;

/// create: the container has its namespaces and nothing of the user's runs. Gives it the plan's
/// NICs, all or none. `request` is what was asked by flags, variables and the config file, narrowed
/// by the container's annotations.
pub fn create(hook: &Hook, request: &Request, report: &mut Report) -> Result<()> {
    Create {
        hook,
        request,
        report,
    }
    .run()
}

struct Create<'a> {
    hook: &'a Hook<'a>,
    request: &'a Request,
    report: &'a mut Report,
}

/// One try, with the lock held: the container, both namespaces, and the records as they are.
struct Attempt<'a> {
    container: &'a dyn Container,
    host_netns: u64,
    world: Box<dyn World>,
    records: Records<'a>,
}

impl<'a> Create<'a> {
    fn run(&mut self) -> Result<()> {
        let Some(name) = self.request.plan() else {
            return Ok(());
        };
        self.report.plan = Some(name.to_string());
        let mut pause = Duration::from_millis(25);
        loop {
            match self.attach_once(name) {
                Err(e)
                    if ErrorClass::of(&e) == ErrorClass::Locked
                        && Instant::now() < self.hook.patience =>
                {
                    self.report.note_once(vec![format!("waited: {e:#}")]);
                }
                result => return result,
            }
            // Without the lock: who holds the NICs needs it to give them back.
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(400));
        }
    }

    /// One try: after each wait, the container's namespace may have other NICs, or its init may
    /// have ended.
    fn attach_once(&mut self, name: &PlanName) -> Result<()> {
        let hook = self.hook;
        hook.machine.require_capabilities()?;
        let entered;
        let container = match hook.target {
            Target::Hold(keeper) => keeper.container,
            Target::Attachment(_, Some(netns)) => netns,
            Target::Container(_) | Target::Attachment(_, None) => {
                entered = enter(hook)?;
                &*entered
            }
        };
        let netns = container.netns();
        let host_netns = hook.machine.host_netns()?;
        if host_netns == netns {
            // It is an error only where the container asked by itself: the host's default plan is
            // for containers that can use it.
            let refused = ErrorClass::Refused.error(
                "the container shares the host's network namespace: it has all NICs already; \
                start it with `--network none`, or on a bridge",
            );
            return if self.request.plan.is_some() {
                Err(refused)
            } else {
                Ok(())
            };
        }
        hook.store.prepare()?;
        let _lock = hook.store.lock(hook.deadline)?;
        self.lap(PhaseName::Lock);
        let mut records = hook.records()?;
        let notes = reclaim(hook.machine, &mut records, |r| r.netns == netns)?;
        self.report.note_once(notes);
        // The name of one that was killed is free by now.
        if let Some(keeper) = hook.target.keeper() {
            pins::is_vacant(&keeper.hold.path)?;
        }
        let mut attempt = Attempt {
            container,
            host_netns,
            world: container.open()?,
            records,
        };
        match self.join(&mut attempt)? {
            Joined::Already => Ok(()),
            Joined::Now(record) => self.set_up_too(attempt, &record),
            Joined::NoNics => self.attach_plan(name, attempt),
        }
    }

    fn attach_plan(&mut self, name: &PlanName, mut attempt: Attempt) -> Result<()> {
        let hook = self.hook;
        let netns = attempt.container.netns();
        let (plan, host, unplanned) = choose(hook, self.request, name, &mut attempt)?;
        self.report.note_once(unplanned);
        let bundle = self.bundle(attempt.container)?;
        let plan = self.plan_within(plan, Some(&host))?;
        planner::check_unclaimed(&attempt.records, netns, &plan, &host)?;
        let within = attempt.world.observe(Side::Inside, &Scope::links())?;
        self.lap(PhaseName::Observe);
        let plan = match &bundle {
            Some(bundle) => plan.for_container(&bundle.env, Namespace::Seen(&within)),
            None => plan,
        };
        let setup = self.plan_setup(bundle, &plan, Some(&within), &mut *attempt.world)?;
        self.report.notes.extend(
            setup
                .iter()
                .flat_map(|s| s.nccl_pitfalls(&plan, &host, &within)),
        );
        let mut managers = Managers::of(hook.machine.root());
        are_configured(&plan, &host, &mut managers)?;
        let Attach {
            steps,
            mut held,
            notes,
        } = attach(&plan, &host, &within)?;
        for h in &mut held {
            h.managed = managers.managed(&h.before);
            take_over(&attempt.records, h, &host);
        }
        self.report.notes.extend(notes);
        let same_host = attempt
            .records
            .readable()
            .filter(|r| r.host_netns == attempt.host_netns);
        let others: Vec<Precedence> = same_host.map(|r| r.precedence.clone()).collect();
        let precedence = Precedence::from_host(&host, held.iter().map(|h| &h.before), &others);
        self.lap(PhaseName::Plan);
        let (given, given_sysfs) = Record::giving(plan);
        let record = Record {
            schema: SCHEMA,
            boot_id: host.boot_id,
            netns,
            host_netns: attempt.host_netns,
            phase: Phase::Attaching,
            plan: given.name.clone(),
            members: vec![member(hook, attempt.container)?],
            given: Some(given),
            given_sysfs,
            held_back: Vec::new(),
            awaits: Vec::new(),
            host_rules: Vec::new(),
            hold: hook.target.keeper().map(|keeper| keeper.hold.clone()),
            held,
            precedence,
        };
        self.report.nics = nic_names(&record.held);
        self.carry_out(attempt, record, &steps, setup)
    }

    /// The plan in the container's sandbox, where it has one. A namespace without a container has
    /// none.
    fn plan_within(&mut self, plan: Plan, host: Option<&Snapshot>) -> Result<Plan> {
        let Some(facts) = self.hook.target.facts() else {
            return Ok(plan);
        };
        let (plan, notes) = sandbox::plan_within(plan, self.hook.state, facts.sandbox, host)?;
        self.report.notes.extend(notes);
        Ok(plan)
    }

    /// What its config.json says of the container.
    fn bundle(&self, container: &dyn Container) -> Result<Option<Bundle>> {
        let config = self.hook.target.facts().and_then(|f| f.bundle.as_ref());
        let views = self.hook.store.views();
        config
            .map(|config| config.bundle(container.pid(), &views))
            .transpose()
    }

    fn plan_setup(
        &mut self,
        bundle: Option<Bundle>,
        plan: &Plan,
        within: Option<&Snapshot>,
        world: &mut dyn World,
    ) -> Result<Option<SetupPlan>> {
        // A namespace without a container: each is set up as it joins.
        let Some(context) = self.setup_context() else {
            return Ok(None);
        };
        let (notes, setup) = plan_setup(&context, bundle, plan, within, world);
        self.add_setup(notes);
        setup
    }

    fn finish_setup(&mut self, running: RunningSetup, netns: u64) -> Result<()> {
        let Some(context) = self.setup_context() else {
            return Ok(());
        };
        let (notes, result) = running.end(&context, netns);
        self.add_setup(notes);
        result
    }

    fn lap(&mut self, phase: PhaseName) {
        self.report.lap(self.hook.begun, phase);
    }

    fn add_setup(&mut self, notes: SetupNotes) {
        let report = &mut *self.report;
        report.sysfs = notes.sysfs.or(report.sysfs.take());
        report.settings = notes.settings.or(report.settings.take());
        report.taken.extend(notes.taken);
        report.notes.extend(notes.notes);
    }

    fn setup_context(&self) -> Option<SetupContext<'a>> {
        Some(SetupContext {
            state: self.hook.state,
            facts: self.hook.target.facts()?,
            store: self.hook.store,
            deadline: self.hook.deadline,
        })
    }

    /// Records, moves, verifies; and undoes everything if any of these fails.
    fn carry_out(
        &mut self,
        mut attempt: Attempt,
        mut record: Record,
        steps: &[Step],
        setup: Option<SetupPlan>,
    ) -> Result<()> {
        if let Err(e) = attempt.records.save_first(&record) {
            // A record whose folder could not be synced is there, and speaks of NICs that never
            // left. What stays of it is harmless.
            let _ = attempt.records.forget(&record);
            return Err(e);
        }
        self.report
            .notes
            .extend(replace_returned(&mut attempt.records, &record)?);
        let result = self.move_and_copy(&mut attempt, &mut record, steps, setup);
        self.lap(PhaseName::Journal);
        let Err(e) = result else { return Ok(()) };
        let Attempt {
            mut world,
            mut records,
            ..
        } = attempt;
        let undone = restore_with(self.hook.machine, &mut *world, &mut records, record, SETTLE);
        self.report.steps_done = 0;
        self.lap(PhaseName::Undo);
        match undone {
            Ok(_) => Err(undone_too(e)),
            Err(u) => Err(u).class(
                ErrorClass::Incomplete,
                format!("{e:#}; and the undo is incomplete"),
            ),
        }
    }

    /// Moves while the record's copy is written: it is on disk before the hook ends.
    fn move_and_copy(
        &mut self,
        attempt: &mut Attempt,
        record: &mut Record,
        steps: &[Step],
        setup: Option<SetupPlan>,
    ) -> Result<()> {
        let copy = attempt.records.begin_copy(Record {
            phase: Phase::Attached,
            ..record.clone()
        })?;
        let moved = self.move_in(attempt, record, steps, setup);
        // Also before an undo, which removes it.
        let copied = copy.map_or(Ok(()), |copy| copy.end(self.hook.deadline));
        moved.and(copied)?;
        record.phase = Phase::Attached;
        attempt.records.save_first(record)
    }

    /// Pins the namespace, moves and verifies. What the container shall find is put there while the
    /// kernel moves the NICs.
    fn move_in(
        &mut self,
        attempt: &mut Attempt,
        record: &mut Record,
        steps: &[Step],
        setup: Option<SetupPlan>,
    ) -> Result<()> {
        let Attempt {
            container, world, ..
        } = attempt;
        let world = &mut **world;
        let pinned = pin(self.hook, world, record);
        self.lap(PhaseName::Journal);
        pinned?;
        let running = setup.map(RunningSetup::begin);
        let (begun, report) = (self.hook.begun, &mut *self.report);
        apply(steps, world, self.hook.deadline, |step| {
            report.steps_done += 1;
            report.lap(begun, phase_of(step));
        })?;
        put_in_order(world, record, report)?;
        let now = verify_inside(world, record, report)?;
        for held in &mut record.held {
            held.inside.netdev.ifindex = now
                .netdev(&held.nic.identity.name)
                .map_or(0, |dev| dev.ifindex);
        }
        report.lap(begun, PhaseName::Verify);
        if let Some(running) = running {
            self.finish_setup(running, record.netns)?;
            self.lap(PhaseName::Dress);
        }
        self.lift_memlock(*container);
        if !container.is_running() {
            return Err(ErrorClass::State.error(format!(
                "{} ended while its NICs were moved",
                whose(self.hook)
            )));
        }
        Ok(())
    }
}

/// That every planned address is there, where a manager has yet to configure its NIC;
/// [`ErrorClass::Locked`] says which one.
fn are_configured(plan: &Plan, host: &Snapshot, managers: &mut Managers) -> Result<()> {
    for nic in &plan.nics {
        let Some(state) = NicState::of(host, &nic.identity.name) else {
            continue;
        };
        let [missing, ..] = missing_addresses(&nic.addresses, &state.netdev.addresses)[..] else {
            continue;
        };
        if let Some(by) = managers.at_work(&state.netdev) {
            let (name, address, prefix) = (&nic.identity.name, missing.address, missing.prefix);
            let text = format!(
                "{name} has no {address}/{prefix} yet: {} is still configuring it",
                by.name()
            );
            return Err(ErrorClass::Locked.error(text));
        }
    }
    Ok(())
}

/// Takes over what an earlier restore has yet to add to a NIC.
fn take_over(records: &Records, held: &mut MovedNic, host: &Snapshot) {
    let name = &held.nic.identity.name;
    let state = &mut held.before;
    let earlier = records
        .current()
        .filter(|r| r.is_back())
        .flat_map(|r| &r.held);
    for earlier in earlier.filter(|h| h.nic.identity.name == *name) {
        let Some(managed) = &earlier.managed else {
            continue;
        };
        let was = &earlier.before;
        let addresses =
            missing_addresses(&was.netdev.addresses, &state.netdev.addresses).into_iter();
        let addresses: Vec<Address> = addresses
            .filter(|a| !managed.owns_address(a))
            .cloned()
            .collect();
        let routes = missing_routes(&was.routes, &state.routes).into_iter();
        let routes: Vec<Route> = routes.filter(|r| !managed.owns_route(r)).cloned().collect();
        let rules = compare_rules(&was.rules, &host.rules).missing.into_iter();
        let rules: Vec<Rule> = rules.filter(|r| !managed.owns_rule(r)).cloned().collect();
        if let Some(foreign) = held.managed.as_mut().and_then(|m| m.foreign.as_mut()) {
            foreign.addresses.extend(addresses.iter().cloned());
            foreign.routes.extend(routes.iter().cloned());
            foreign.rules.extend(rules.iter().cloned());
        }
        state.netdev.addresses.extend(addresses);
        state.routes.extend(routes);
        state.rules.extend(rules);
    }
}

/// The record of these NICs replaces those of earlier restores.
fn replace_returned(records: &mut Records, record: &Record) -> Result<Vec<String>> {
    let mut unsaved = Vec::new();
    let back: Vec<Record> = records.current().filter(|r| r.is_back()).cloned().collect();
    for earlier in back {
        let rest: Vec<IfName> = earlier
            .names()
            .filter(|name| !record.names().any(|n| n == *name))
            .cloned()
            .collect();
        if rest.len() == earlier.held.len() {
            continue;
        }
        let smaller = earlier.waiting(earlier.netns, &rest, earlier.awaits.clone());
        unsaved.extend(if rest.is_empty() {
            records.forget(&earlier)?
        } else {
            records.save_later(&smaller)?
        });
    }
    Ok(unsaved)
}

impl Create<'_> {
    /// For containers whose config.json this program did not edit. What they set there themselves,
    /// runc sets after its hooks.
    fn lift_memlock(&mut self, container: &dyn Container) {
        if self.hook.target.facts().is_none() || !self.request.host.lift_memlock {
            return;
        }
        let done = container.lift_memlock();
        self.report.memlock =
            Some(done.map_or_else(|e| format!("as it was: {e:#}"), |()| "unlimited".to_owned()));
    }
}

fn whose(hook: &Hook) -> &'static str {
    if hook.target.attachment().is_some() {
        "the namespace of CNI_NETNS"
    } else {
        "the container's init"
    }
}

fn pin(hook: &Hook, world: &mut dyn World, record: &Record) -> Result<()> {
    world.pin(Pin::Own(&hook.store.pin(record.netns)))?;
    record
        .hold
        .iter()
        .try_for_each(|hold| world.pin(Pin::Named(&hold.path)))
}

/// The same error, which says that nothing is left of the attempt.
fn undone_too(e: anyhow::Error) -> anyhow::Error {
    ErrorClass::of(&e).error(format!("{e:#}; everything is undone"))
}

fn phase_of(step: &Step) -> PhaseName {
    match step {
        Step::Move { .. } | Step::RdmaMove { .. } => PhaseName::Move,
        Step::AwaitPort { .. } => PhaseName::GidWait,
        _ => PhaseName::Configure,
    }
}

/// The container by its init; proves that the pid was not reused meanwhile.
fn enter(hook: &Hook) -> Result<Box<dyn Container>> {
    let pid = hook.state.init()?;
    let container = hook.machine.container(pid).class(
        ErrorClass::State,
        format!("looking at the container's init, pid {pid}"),
    )?;
    if !container.is_running() {
        return Err(ErrorClass::State.error(format!("the container's init, pid {pid}, has ended")));
    }
    Ok(container)
}

fn member(hook: &Hook, container: &dyn Container) -> Result<Member> {
    let (pid, State { id, bundle, .. }) = (container.pid(), hook.state);
    let start_time = hook.machine.start_time(pid);
    let start_time =
        start_time.ok_or_else(|| ErrorClass::State.error(format!("pid {pid} has ended")))?;
    Ok(Member {
        id: id.clone(),
        bundle: bundle.clone(),
        pid,
        start_time,
        sandboxed: hook.target.sandbox().is_some(),
        cni: hook.target.attachment().cloned(),
    })
}
