//! create: NICs go in, all or none.

mod carry_out;
mod claimed;
mod find_plan;
mod fit;
mod join;
mod managers;
mod on_host;
mod recipient;
mod waiting;

use std::borrow::Cow;
use std::time::{Duration, Instant};

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::Snapshot;
use rdma_model::step::Side;
use rdma_model::values::PlanName;

use crate::attach::{AttachPlan, plan_attach};
use crate::config::request::Request;
use crate::container::setup::Observations;
use crate::disk::files::Lock;
use crate::kernel::netns::pins;
use crate::kernel::{Recipient, Scope, World};
use crate::link_managers::Managers;
use crate::plan::Plan;
use crate::precedence::Precedence;
use crate::record::{Phase, Record, SCHEMA};
use crate::report::{Lap, Report};
use crate::restore::nic_names;
use crate::restore::of_host::static_rules;
use crate::restore::reclaim::reclaim;
use crate::restore::run;
use crate::restore::stays_for::{AskedBy, stays_for};
use crate::store::records::Records;

use super::Hook;
use find_plan::PlanAndHost;
use fit::Fitted;
use managers::{check_managers_are_done, check_managers_are_known, record_manager_and_its_rules};
use recipient::{member, running_init};
use waiting::{adopt_waiting, waiting_objects};

/// prestart and createRuntime, of which a runtime may call both, `rdmaprep hold`, and CNI's ADD:
/// the container has its namespaces and nothing of the user's runs. Gives it the plan's NICs, all
/// or none. `request` is what was asked by flags, variables and the config file, narrowed by the
/// container's annotations; where it names no plan, there is nothing to do. While someone else has
/// the NICs, it tries again, until [`Hook::retry_until`].
pub fn create(hook: &Hook, request: &Request, report: &mut Report) -> Result<()> {
    let Some(name) = request.plan_name() else {
        return Ok(());
    };
    report.plan = Some(name.to_string());
    let mut create = Create {
        hook,
        container_request: request,
        report,
    };
    let mut pause = Duration::from_millis(25);
    loop {
        let obstacle = match create.try_once(name) {
            Err(e) if may_pass(&e) => e,
            done => return done,
        };
        if Instant::now() >= hook.retry_until {
            return Err(end_of_wait(hook, obstacle));
        }
        create.report.note_once([format!("waited: {obstacle:#}")]);
        // Without the lock: who holds the NICs needs it to give them back.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(400));
    }
}

/// Whether it is an obstacle that may go away: another hook has the lock; another container, a
/// claim or another pod has the NICs; or a manager is still at work on them.
fn may_pass(e: &anyhow::Error) -> bool {
    ErrorClass::of(e) == ErrorClass::Locked
}

/// The obstacle that was left when the time for tries was over. If the deadline ended that time,
/// before --wait did, the error says so.
fn end_of_wait(hook: &Hook, obstacle: anyhow::Error) -> anyhow::Error {
    if hook.retry_until < hook.deadline {
        return obstacle;
    }
    ErrorClass::Locked.error(format!(
        "{obstacle:#}; the wait ended with the hook's deadline, before that of --wait or \
        hook_wait_s: see --deadline, and the engine's timeout of hooks"
    ))
}

/// A create, over all of its tries.
struct Create<'a> {
    hook: &'a Hook<'a>,
    /// What this container asks for. What moves may be more: [`Attempt::pod_request`].
    container_request: &'a Request,
    report: &'a mut Report,
}

/// One try, which has the lock: who gets the NICs, and what was read since it has it.
struct Attempt<'a> {
    recipient: &'a dyn Recipient,
    /// Inode of the host's namespace.
    host_netns: u64,
    /// Both namespaces.
    world: Box<dyn World>,
    records: Records<'a>,
    /// What moves: the rails of all claims of the pod. Without a claim, what the container asks
    /// for.
    pod_request: Cow<'a, Request>,
    _lock: Lock,
}

impl<'a> Create<'a> {
    /// After a wait all is observed again: the namespace may have other NICs, or the init may have
    /// ended.
    fn try_once(&mut self, name: &PlanName) -> Result<()> {
        self.hook.machine.require_capabilities()?;
        match self.hook.target.recipient() {
            Some(recipient) => self.give_nics(name, recipient),
            None => self.give_nics(name, &*running_init(self.hook)?),
        }
    }

    /// Puts the NICs into the recipient's namespace. The recipient is a container's init; where
    /// there is no container yet, the keeper of a namespace that `rdmaprep hold` gives a name, or
    /// the CNI plugin.
    fn give_nics(&mut self, name: &PlanName, recipient: &dyn Recipient) -> Result<()> {
        let hook = self.hook;
        let host_netns = hook.machine.host_netns()?;
        if recipient.netns() == host_netns {
            return self.set_up_on_host(name, recipient);
        }
        let mut attempt = self.lock_and_reclaim(recipient, host_netns)?;
        if let Some(keeper) = hook.target.keeper() {
            // Meanwhile another `rdmaprep hold` may have given its namespace that name.
            pins::check_vacant(&keeper.hold.path)?;
        }
        self.restore_claimed_elsewhere(&mut attempt)?;
        if let Some(record) = attempt.records.of_netns(recipient.netns()).cloned() {
            // The recipient is in the namespace itself, and keeps no NICs there.
            let asked_by = AskedBy::Hook(hook.store, Some(recipient.pid()));
            if record.phase == Phase::Attached
                && let Some(what) = stays_for(hook.machine, &record, asked_by)
            {
                return self.join(attempt, record, what);
            }
            // A hook or a restore was cut short, or nothing uses the NICs any more: start again.
            // What that notes is of the earlier container, and no matter of this one's report.
            run::restore(hook.machine, &mut attempt.records, record)?;
        }
        let PlanAndHost {
            plan: pod_plan,
            host,
        } = self.find_plan(name, &mut attempt)?;
        let inside = attempt.world.observe(Side::Inside, &Scope::network())?;
        self.end_lap(Lap::Observe);
        let observed = Observations {
            host: Some(&host),
            inside: Some(&inside),
        };
        let own_part = self.own_part(&attempt, &pod_plan, &host);
        let Fitted {
            plan: own_plan,
            setup,
        } = self.fit(own_part, observed, &mut attempt)?;
        // A pod's plan moves as it is: each of its containers is fitted as it joins.
        let to_move = match self.pod_has_more(&attempt) {
            true => pod_plan,
            false => own_plan,
        };
        let mut managers = Managers::of(hook.machine.root());
        let AttachPlan { steps, held, .. } =
            self.plan_steps(&to_move, &host, &inside, &attempt, &mut managers)?;
        let record = self.new_record(to_move, host, held, &attempt, &mut managers)?;
        self.end_lap(Lap::Plan);
        self.report.nics = nic_names(&record.held);
        self.carry_out(attempt, record, &steps, setup)
    }

    /// Takes the lock, and reads under it the pod's claims and all records. Restores NICs of
    /// containers that have died, which may be the plan's; but for those in the recipient's own
    /// namespace, of which the caller decides.
    fn lock_and_reclaim<'t>(
        &mut self,
        recipient: &'t dyn Recipient,
        host_netns: u64,
    ) -> Result<Attempt<'t>>
    where
        'a: 't,
    {
        let hook = self.hook;
        hook.store.make_folders()?;
        let lock = hook.store.lock(hook.deadline)?;
        self.end_lap(Lap::Lock);
        let pod_request = self.request_of_pod()?;
        let mut records = hook.read_records()?;
        let notes = reclaim(hook.machine, &mut records, Some(recipient.netns()))?;
        self.report.note_once(notes);
        Ok(Attempt {
            recipient,
            host_netns,
            world: recipient.open()?,
            records,
            pod_request,
            _lock: lock,
        })
    }

    /// The steps, and the NICs as they are to return, with what managers and earlier restores have
    /// to do with them.
    fn plan_steps(
        &mut self,
        plan: &Plan,
        host: &Snapshot,
        inside: &Snapshot,
        attempt: &Attempt,
        managers: &mut Managers,
    ) -> Result<AttachPlan> {
        // `plan_attach` refuses a NIC that lacks its address for good; while a manager is at work,
        // it is worth a wait.
        check_managers_are_done(plan, host, managers)?;
        let mut attach = plan_attach(plan, host, inside)?;
        let leaving = nic_names(&attach.held);
        // A NetworkManager that starts says what it does with a NIC only when it has decided: a
        // second at most.
        managers.await_start(attach.held.iter().map(|h| &h.before.netdev));
        // The steps are made; from here on only what a restore needs changes.
        for held in &mut attach.held {
            record_manager_and_its_rules(held, &leaving, host, managers);
            // Once the manager is recorded: what is adopted is not the manager's.
            adopt_waiting(&attempt.records, held, host);
        }
        check_managers_are_known(&attach.held, managers)?;
        self.report.note_once(attach.notes.drain(..));
        Ok(attach)
    }

    /// What is written before the first step: of all that a restore takes, what has to be known
    /// before the NICs leave.
    fn new_record(
        &self,
        plan: Plan,
        host: Snapshot,
        held: Vec<MovedNic>,
        attempt: &Attempt,
        managers: &mut Managers,
    ) -> Result<Record> {
        let mut others: Vec<Precedence> = Vec::new();
        for record in attempt.records.readable() {
            if record.host_netns == attempt.host_netns {
                others.push(record.precedence.clone());
            }
        }
        let before = held.iter().map(|h| &h.before);
        let precedence = Precedence::from_host(&host, before, &others);
        // Rules, routes and nexthop objects that are no NIC's are recorded when the NICs return
        // (restore/of_host.rs): here those that earlier restores owe, and static rules.
        let host_objects = waiting_objects(&attempt.records, &held, &host);
        // Whose they are only networkd can say, which may not run when the NICs return.
        let static_rules = static_rules(managers, &host);
        Ok(Record {
            schema: SCHEMA,
            boot_id: host.boot_id,
            netns: attempt.recipient.netns(),
            host_netns: attempt.host_netns,
            phase: Phase::Attaching,
            plan: plan.name.clone(),
            members: vec![member(self.hook, attempt.recipient)?],
            given: Some(Box::new(plan)),
            claims: attempt.claims().cloned().collect(),
            pod: self.hook.target.pod().unwrap_or_default(),
            host_objects,
            hold: self.hook.target.keeper().map(|keeper| keeper.hold.clone()),
            held,
            precedence,
            static_rules,
            // What only a restore fills.
            ..Record::default()
        })
    }

    /// Books the time since the last lap. That of work which failed with `?` before this is in the
    /// report's whole time alone.
    fn end_lap(&mut self, lap: Lap) {
        self.report.end_lap(self.hook.begun, lap);
    }
}
