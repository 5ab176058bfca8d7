//! create: NICs go in, all or none.

use rdma_model::values::PlanName;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::snapshot::Snapshot;
use rdma_model::step::{Side, Step};

use crate::apply::apply;
use crate::attach::attach;
use crate::config::request::Request;
use crate::container::setup::{RunningSetup, SetupPlan, plan_setup};
use crate::journal::{Member, Phase, Record, SCHEMA};
use crate::kernel::netns::{self, Netns, pins};
use crate::kernel::process::capabilities;
use crate::kernel::process::pidfd::{Process, start_time};
use crate::kernel::{Kernel, Scope, World, boot_id};
use crate::oci::state::State;
use crate::plan::Plan;
use crate::planner::{self, fresh_plan};
use crate::precedence::Precedence;
use crate::report::{PhaseName, Report, Stopwatch};
use crate::restore::run::{self, is_alive, reclaim, restore_with};
use crate::restore::{SETTLE, nic_names};

use super::{Hook, is_of, put_in_order, records, verify_inside};

/// create: the container has its namespaces and nothing of the user's runs. Gives it the plan's NICs, all or none.
/// `request` is what was asked by flags, variables and the config file, narrowed by the container's annotations.
pub fn create(hook: &Hook, request: &Request, report: &mut Report, watch: &mut Stopwatch) -> Result<()> {
    let Some(name) = request.plan() else { return Ok(()) };
    report.plan = Some(name.to_string());
    let mut pause = Duration::from_millis(25);
    loop {
        match attach_once(hook, request, name, report, watch) {
            Err(e) if ErrorClass::of(&e) == ErrorClass::Locked && Instant::now() < hook.patience => {
                let waited = format!("waited: {e:#}");
                if !report.notes.contains(&waited) {
                    report.notes.push(waited);
                }
            }
            result => return result,
        }
        // Without the lock: who holds them needs it to give them back.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(400));
    }
}

/// One try: the container's namespace may be another's, or its init dead, after each wait.
fn attach_once(
    hook: &Hook,
    request: &Request,
    name: &PlanName,
    report: &mut Report,
    watch: &mut Stopwatch,
) -> Result<()> {
    capabilities::require()?;
    let (process, host, inside) = enter(hook)?;
    if host.inode() == inside.inode() {
        // Only one that asked by itself is told so: the host's default plan is for containers that can use it.
        let refused =
            ErrorClass::Refused.error("the container shares the host's network namespace: it has all NICs already");
        return if request.plan.is_some() { Err(refused) } else { Ok(()) };
    }
    hook.store.prepare()?;
    let _lock = hook.store.lock(hook.deadline)?;
    watch.lap(PhaseName::Lock);
    let notes = reclaim(hook.store, &boot_id()?, |r| r.netns == inside.inode())?;
    let damaged = !notes.is_empty();
    let said: Vec<String> = notes.into_iter().filter(|n| !report.notes.contains(n)).collect();
    report.notes.extend(said);
    // The name of one that was killed is free by now.
    hook.keeper.iter().try_for_each(|keeper| pins::is_vacant(&keeper.hold.path))?;
    let netns = inside.inode();
    let mut live = Kernel::open(host, Some(inside))?;
    match join(hook, request, &process, netns, report)? {
        Joined::Already => return Ok(()),
        Joined::Now(record) => return set_up_too(hook, request, &record, &process, &mut live, report),
        Joined::Nobody => {}
    }
    let (plan, outside) = chosen(hook, request, name, &mut live)?;
    // Reclaiming has told of each record that cannot be read.
    if damaged {
        planner::check_unclaimed(hook.store, netns, &plan)?;
    }
    let within = live.observe(Side::Inside, &Scope::links())?;
    watch.lap(PhaseName::Observe);
    let setup = plan_setup(hook, &plan, process.pid(), &within, &mut live, report)?;
    let plan = setup.as_ref().map(|setup| setup.container_plan(&plan)).unwrap_or(plan);
    report.notes.extend(setup.iter().flat_map(|f| f.traps(&plan, &outside, &within)));
    let attach = attach(&plan, &outside, &within)?;
    report.notes.extend(attach.notes);
    let away = records(hook.store)?.into_iter().filter(|r| r.host_netns == live.host_inode());
    let others: Vec<Precedence> = away.map(|r| r.precedence).collect();
    let precedence = Precedence::from_host(&outside, attach.held.iter().map(|h| &h.before), &others);
    watch.lap(PhaseName::Plan);
    let record = Record {
        schema: SCHEMA,
        boot_id: outside.boot_id,
        netns,
        host_netns: live.host_inode(),
        phase: Phase::Attaching,
        plan: plan.name.clone(),
        members: vec![member(hook.state, &process)?],
        given: Some(Box::new(plan)),
        held_back: Vec::new(),
        hold: hook.keeper.map(|keeper| keeper.hold.clone()),
        held: attach.held,
        precedence,
    };
    report.nics = nic_names(&record.held);
    carry_out(hook, &process, &mut live, record, &attach.steps, setup, report, watch)
}

/// What is left of the plan for this container, and the host at that moment.
fn chosen(hook: &Hook, request: &Request, name: &PlanName, live: &mut Kernel) -> Result<(Plan, Snapshot)> {
    let plan = match (hook.keeper, hook.store.plan(name.as_str())?) {
        (Some(keeper), _) => keeper.plan.clone(),
        (None, Some(plan)) => plan,
        (None, None) => {
            let request = request.of_devices();
            planner::check_named_free(&request, hook.store)?;
            fresh_plan(&request, name.as_str(), live, hook.store)?
        }
    };
    // Before the machine is looked at, where the policy asks for nothing of it: who only waits keeps nobody from the lock.
    if !request.host.policy.asks_for_hardware() {
        planner::check_free(&request.narrowed_plan(plan.clone(), &Snapshot::default()), hook.store)?;
    }
    let nics = plan.nics.iter().map(|n| n.identity.name.clone()).collect();
    let sysfs = request.host.policy.asks_for_hardware();
    let scope = Scope { sysfs, elsewhere: true, ..Scope::for_nics(nics) };
    let outside = live.observe(Side::Host, &scope)?;
    let plan = request.narrowed_plan(plan, &outside);
    if plan.nics.is_empty() && plan.ib.is_empty() {
        request.gives_devices(&plan)?;
        return Err(ErrorClass::Nothing.error(format!("annotations and policy leave no NIC of plan {name}")));
    }
    request.gives_devices(&plan)?;
    planner::check_agreed(&plan, hook.agreed)?;
    request.host.policy.limits(&plan)?;
    planner::check_free(&plan, hook.store)?;
    let paths = live.host_paths(&outside, &plan.job.clone().with(&request.job()));
    Ok((plan, Snapshot { paths: Some(paths), ..outside }))
}

/// A second container in a namespace has a /sys, an environment and device nodes of its own: for the NICs of its devices, where it
/// has any, else for all that the first one asked for. It is a member only then.
fn set_up_too(
    hook: &Hook,
    request: &Request,
    record: &Record,
    process: &Process,
    live: &mut Kernel,
    report: &mut Report,
) -> Result<()> {
    if let Some(given) = &record.given {
        let host = if given.ib.is_empty() { Snapshot::default() } else { live.observe(Side::Host, &Scope::links())? };
        let plan = request.share(given, &host);
        // Its netdevs are those that the plan gave.
        let within = Snapshot::default();
        if let Some(setup) = plan_setup(hook, &plan, process.pid(), &within, live, report)? {
            RunningSetup::begin(setup).end(hook, record.netns, report)?;
        }
    }
    let has_ended = || ErrorClass::State.error("the container's init has ended");
    ensure!(process.alive(), has_ended());
    hook.store.save(record)?;
    ensure!(process.alive(), has_ended());
    Ok(())
}

/// Records, moves, verifies; and undoes everything when anything of that fails. What the container shall find is put there while
/// the kernel moves the NICs.
#[allow(clippy::too_many_arguments, reason = "the whole of a create comes together here")]
fn carry_out(
    hook: &Hook,
    process: &Process,
    live: &mut Kernel,
    mut record: Record,
    steps: &[Step],
    setup: Option<SetupPlan>,
    report: &mut Report,
    watch: &mut Stopwatch,
) -> Result<()> {
    if let Err(e) = hook.store.save(&record) {
        // A record whose folder could not be synced is there, and speaks of NICs that never left. What stays of it is harmless.
        let _ = hook.store.forget(&record);
        return Err(e);
    }
    let published = || record.hold.iter().try_for_each(|hold| live.publish(&hold.path));
    let pinned = live.pin(&hook.store.pin(record.netns)).and_then(|()| published());
    watch.lap(PhaseName::Journal);
    let result = pinned.and_then(|()| {
        let running = setup.map(RunningSetup::begin);
        apply(steps, live, hook.deadline, |step| {
            report.steps_done += 1;
            watch.lap(phase_of(step));
        })?;
        put_in_order(live, &record, report)?;
        let now = verify_inside(live, &record, report)?;
        for held in &mut record.held {
            held.inside.netdev.ifindex = now.netdev(&held.nic.identity.name).map_or(0, |dev| dev.ifindex);
        }
        watch.lap(PhaseName::Verify);
        if let Some(running) = running {
            running.end(hook, record.netns, report)?;
            watch.lap(PhaseName::Dress);
        }
        if !process.alive() {
            return Err(ErrorClass::State.error("the container's init died while its NICs were moved"));
        }
        record.phase = Phase::Attached;
        hook.store.save(&record)
    });
    watch.lap(PhaseName::Journal);
    let Err(e) = result else { return Ok(()) };
    let undone = restore_with(live, hook.store, record, SETTLE);
    report.steps_done = 0;
    watch.lap(PhaseName::Undo);
    match undone {
        Ok(_) => Err(undone_too(e)),
        Err(u) => Err(u).class(ErrorClass::Incomplete, format!("{e:#}; and the undo is incomplete")),
    }
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

/// The container's init and both namespaces; proves that they are two, and that the pid was not reused meanwhile.
fn enter(hook: &Hook) -> Result<(Process, Netns, Netns)> {
    if let Some(keeper) = hook.keeper {
        return Ok((Process::current()?, Netns::current()?, keeper.netns.again()?));
    }
    let pid = hook.state.init()?;
    let doing = || format!("looking at the container's init, pid {pid}");
    let process = Process::open(pid).class(ErrorClass::State, doing())?;
    let inside = Netns::of_process(pid).class(ErrorClass::State, doing())?;
    let host = Netns::current()?;
    if !process.alive() {
        return Err(ErrorClass::State.error(format!("the container's init, pid {pid}, has ended")));
    }
    Ok((process, host, inside))
}

fn member(state: &State, process: &Process) -> Result<Member> {
    let pid = process.pid();
    let start_time = start_time(pid).ok_or_else(|| ErrorClass::State.error(format!("pid {pid} has ended")))?;
    Ok(Member { id: state.id.clone(), bundle: state.bundle.clone(), pid, start_time })
}

/// What was found in a container's namespace.
enum Joined {
    /// No NIC of ours.
    Nobody,
    /// This very container: the other one of the two create stages has done all.
    Already,
    /// Other containers, which this one joins: their record with it, not saved yet.
    Now(Box<Record>),
}

/// When the namespace holds NICs already: both stages of one container act once, and a second container joins the first.
fn join(hook: &Hook, request: &Request, process: &Process, netns: u64, report: &mut Report) -> Result<Joined> {
    let boot = boot_id()?;
    let ours = |r: &Record| r.netns == netns && r.boot_id == boot;
    let Some(mut record) = records(hook.store)?.into_iter().find(ours) else { return Ok(Joined::Nobody) };
    // `rdmaprep hold` has ended and said that whoever is in its namespace keeps the NICs.
    let is_kept = || record.hold.is_some() && netns::occupant_but(record.netns, process.pid()).is_some();
    if record.phase != Phase::Attached || !record.members.iter().any(is_alive) && !is_kept() {
        // A hook died in the middle, or all that held the namespace did: start anew.
        run::restore(hook.store, record)?;
        return Ok(Joined::Nobody);
    }
    if let Some(plan) = request.plan.as_ref().filter(|p| p.as_str() != record.plan) {
        let holder = record.members.first().map_or("another container", |m| m.id.as_str());
        return Err(
            ErrorClass::Refused.error(format!("{holder} has plan {} in this namespace, not {plan}", record.plan))
        );
    }
    if let Some(given) = &record.given {
        planner::check_agreed(given, hook.agreed)?;
        let left = request.narrowed_plan(Plan::clone(given), &Snapshot::default());
        if left.nics.len() < given.nics.len() {
            let note = "it asks for fewer NICs, but a namespace has one set for all of its containers";
            report.notes.push(note.to_owned());
        }
        request.gives_devices(&left)?;
    }
    report.nics = nic_names(&record.held);
    let newcomer = member(hook.state, process)?;
    if record.members.contains(&newcomer) {
        return Ok(Joined::Already);
    }
    let first = record.members.first().map_or("a container", |m| m.id.as_str());
    report.notes.push(format!("joined {first}, which has the namespace's NICs"));
    // One that was restarted without its stop hook comes back under its id, as another process.
    record.members.retain(|m| !is_of(m, hook.state));
    record.members.push(newcomer);
    Ok(Joined::Now(Box::new(record)))
}
