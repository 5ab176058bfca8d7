//! Restoring NICs: after a stop, after a failure, and for containers that died without a stop.

use rdma_model::drift::Drift;
use rdma_model::moved_nic::MovedNic;
use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;

use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::host_objects::HostObjects;
use rdma_model::snapshot::Route;
use rdma_model::step::{Side, Step};

use crate::apply::{apply_all, apply_each};
use crate::deadline;
use crate::kernel::{Depth, Namespaces, RoutesOf, Scope, World};
use crate::link_managers::Managers;
use crate::record::{Phase, Record};
use crate::restore::forget::{close_record, owed_by_networkd};
use crate::restore::of_host;
use crate::restore::owed::{order_of, owed, unseen};
use crate::restore::plan::{AbsentNics, RestorePlan, superseded, without};
use crate::restore::{Restored, SETTLE};
use crate::store::records::Records;
use crate::verify;

use crate::restore::arrange::{Arranged, arrange};
use crate::restore::awaited;
use crate::restore::bare_hcas;
use crate::restore::children;
use crate::restore::find_and_plan::{find_and_plan, plan_now, routes_of};
use crate::restore::settle::{Returned, Waiting, settle};
use crate::restore::siblings::{self, Siblings};

/// The kernel marks files with the time of its last tick, which may be 10 ms old (`CONFIG_HZ_100`).
const CLOCK: Duration = Duration::from_millis(10);

/// Opens both namespaces of a record and restores its NICs.
pub fn restore(
    machine: &dyn Namespaces,
    records: &mut Records,
    record: Record,
) -> Result<Restored> {
    restore_within(machine, records, record, SETTLE)
}

/// Restores where no command asks for it now. A record that was waited for once is not waited for
/// again: not every container shall wait, and what was not there then will hardly come now.
pub fn restore_again(
    machine: &dyn Namespaces,
    records: &mut Records,
    record: Record,
) -> Result<Restored> {
    let patience = if record.phase == Phase::Restoring {
        Duration::ZERO
    } else {
        SETTLE
    };
    restore_within(machine, records, record, patience)
}

fn restore_within(
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
    restore_with(machine, &mut *world, records, record, patience)
}

/// Restores a record's NICs, and forgets the record when all of them are on the host and equal to
/// what they were.
///
/// # Errors
/// [`ErrorClass::Incomplete`] with what is missing; the record stays, so that the next try starts
/// from it.
pub fn restore_with(
    machine: &dyn Namespaces,
    world: &mut dyn World,
    records: &mut Records,
    record: Record,
    patience: Duration,
) -> Result<Restored> {
    let restored = if record.is_back() {
        awaited::resume(machine, world, records, &record, patience)
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

fn bring_back(
    machine: &dyn Namespaces,
    world: &mut dyn World,
    records: &mut Records,
    mut record: Record,
    patience: Duration,
) -> Result<Restored> {
    let begun = SystemTime::now()
        .checked_sub(CLOCK)
        .unwrap_or(SystemTime::UNIX_EPOCH);
    let mut managers = Managers::of(machine.root());
    let was = record.phase;
    record.phase = Phase::Restoring;
    let was_tried = was == Phase::Restoring;
    of_host::remember(world, &mut managers, &mut record, was_tried)?;
    // On a full disk the record stays as it was: in any phase it says all that a restore takes.
    let mut unsaved = records.save(&record).err();
    let others = other_records(records, &record);
    let (absent, gone) = absent_nics(world, records, &record, &others)?;
    // Before it was attached, no program of the container has run.
    let mut siblings = match was {
        Phase::Attaching => Siblings::default(),
        _ => siblings::delete(world, &record, &others)?,
    };
    let view = absent.view(&record);
    let mut planned = find_and_plan(machine, world, &mut managers, &view, patience)?;
    record.searched = planned.searched;
    siblings.correct(&mut planned.plan.notes);
    if record.lost != siblings.lost {
        record.lost.clone_from(&siblings.lost);
        unsaved = unsaved.or(records.save(&record).err());
    }
    // A restore that was killed before it could save them has moved nothing.
    if record.rules_beside.is_none() {
        record.rules_beside = of_host::rules_beside(&record.held, &planned.rules);
        if record.rules_beside.is_some() {
            unsaved = unsaved.or(records.save(&record).err());
        }
    }
    let mut moved = move_back(world, &planned.plan.steps, &record);
    let arranged = put_in_order(world, records, &mut record, &absent)?;
    moved.errors.extend(arranged.errors);
    let view = absent.view(&record);
    let here = without_stuck(view.held, &planned.plan);
    let made_by_container =
        children::links_owners(&planned.plan.steps, &record.held, was == Phase::Attached);
    let children = children::delete(world, &here, &made_by_container, &record)?;
    if was != Phase::Attaching {
        siblings::delete_again(world, &record, &others, &mut siblings)?;
    }
    record.children_gone = children.remaining.is_empty();
    let back = Returned {
        held: &here,
        order: &view.precedence,
        host_objects: &record.host_objects,
        moved: &planned.moved,
        begun,
        rules: record.rules_beside.as_deref(),
    };
    let mut settled = settle(world, &mut managers, back, patience)?;
    settled.drift.extend(bare_hcas::move_again(world, &record)?);
    if planned.plan.stuck.is_empty() {
        let complete = without_waiting(&here, &settled.waiting);
        settled.drift.extend(delete_stand_ins(world, &complete)?);
    }
    // Where steps failed, a link manager need not be the reason.
    settled.fought = settled.fought.filter(|_| moved.errors.is_empty());
    let remaining = [children.remaining, siblings.remaining].concat();
    record.lost = siblings.lost;
    let notes = distinct([planned.notes, siblings.notes, children.notes, gone].concat());
    if planned.plan.stuck.is_empty() && settled.drift.is_empty() && remaining.is_empty() {
        hand_over(records, &absent, &record, others)?;
        close_record(machine, records, &record, &settled.waiting)?;
        let awaits: Vec<String> = settled.waiting.into_iter().map(|w| w.why).collect();
        let notes = distinct([notes, planned.plan.notes, settled.notes].concat());
        let notes = notes.into_iter().chain(settled.fought);
        return Ok(Restored {
            steps: planned.plan.steps.len() + arranged.steps,
            notes: notes.chain(awaits.iter().cloned()).collect(),
            awaits,
            moving: moved.moving,
        });
    }
    let stuck = &planned.plan.stuck;
    let mut what: Vec<String> = stuck
        .iter()
        .map(|(dev, why)| format!("{dev} {why}"))
        .collect();
    what.extend(
        unsaved
            .iter()
            .chain(&moved.errors)
            .map(|e| format!("{e:#}")),
    );
    what.extend(remaining);
    what.extend(settled.drift.iter().map(Drift::to_string));
    what.extend(settled.fought);
    what.extend(notes);
    if stuck.is_empty() {
        what.extend(advice(&settled.drift, &record));
    }
    let stuck = planned.plan.stuck.into_iter().map(|(name, _)| name);
    let kept_for = stuck.chain(owed_by_networkd(&record, &settled.waiting));
    record.kept_for = kept_for.collect();
    Err(hold_back(records, record, what))
}

/// Two looks at the same links say the same of those that stay.
fn distinct(notes: Vec<String>) -> Vec<String> {
    let mut known = BTreeSet::new();
    let mut notes = notes;
    notes.retain(|note| known.insert(note.clone()));
    notes
}

struct Moved {
    errors: Vec<anyhow::Error>,
    /// What the kernel took for the moves alone.
    moving: Duration,
}

fn move_back(world: &mut dyn World, steps: &[Step], record: &Record) -> Moved {
    // The steps that wait need theirs beside the moves.
    let deadline = Instant::now() + SETTLE + deadline::moves(&record.held);
    let (mut since, mut moving) = (Instant::now(), Duration::ZERO);
    let errors = apply_each(steps, world, deadline, |step| {
        if is_move(step) {
            moving += since.elapsed();
        }
        since = Instant::now();
    });
    Moved { errors, moving }
}

fn without_stuck(mut held: Vec<MovedNic>, plan: &RestorePlan) -> Vec<MovedNic> {
    for (name, _) in &plan.stuck {
        held.retain(|h| h.nic.identity.name != *name);
    }
    held
}

fn without_waiting(held: &[MovedNic], waiting: &[Waiting]) -> Vec<MovedNic> {
    let mut held = held.to_vec();
    for waiting in waiting {
        held.retain(|h| h.nic.identity.name != waiting.nic);
    }
    held
}

fn is_move(step: &Step) -> bool {
    matches!(step, Step::Move { .. } | Step::RdmaMove { .. })
}

/// How to give up what cannot be restored.
fn advice(drift: &[Drift], record: &Record) -> Option<String> {
    let restore = record.restore_command();
    if verify::lacks_program(drift) {
        return Some(format!(
            "a BPF program that has ended cannot be put back: `{restore} --forget` gives up, \
            then attach it again"
        ));
    }
    let is_of_device = !drift.is_empty() && drift.iter().all(Drift::is_of_device);
    is_of_device.then(|| {
        format!(
            "what the driver or the kernel refuses can be set by hand; `{restore} --forget` \
            gives it up"
        )
    })
}

/// `status` and `doctor` say why; without a place to write it they say only that the NICs are away.
fn hold_back(records: &mut Records, mut record: Record, what: Vec<String>) -> anyhow::Error {
    let text = format!(
        "{}; run `{}` when that is settled",
        what.join("; "),
        record.restore_command()
    );
    record.held_back = what;
    // Else they have been put back.
    if record.kept_for.is_empty() {
        record.host_objects = HostObjects::default();
    }
    let _ = records.save(&record);
    ErrorClass::Incomplete.error(text)
}

/// The records of other containers that have NICs of this host; of one that cannot be read, nothing
/// is known.
fn other_records(records: &Records, record: &Record) -> Vec<Record> {
    let others = records
        .readable()
        .filter(|r| r.netns != record.netns && r.host_netns == record.host_netns);
    others.cloned().collect()
}

/// What routes of the record need and the host does not have, with a sentence for each that comes
/// back by no other record.
fn absent_nics(
    world: &mut dyn World,
    records: &Records,
    record: &Record,
    others: &[Record],
) -> Result<(AbsentNics, Vec<String>)> {
    let has_objects = record.held.iter().any(|h| !h.before.nexthops.is_empty());
    let scope = match (has_objects, record.has_routes_of_others()) {
        (true, _) => Scope::links().with(RoutesOf::deviceless()),
        (false, false) if others.is_empty() => return Ok((AbsentNics::default(), Vec::new())),
        (false, _) => Scope::only(Depth::Netdevs),
    };
    let host = world.observe(Side::Host, &scope)?;
    let mut absent = AbsentNics::from_records(others.iter(), &host);
    let mut notes = absent.add_taken(record, &host);
    // Of one that cannot be read it is not known what is away with it.
    if records.damaged().next().is_none() {
        notes.extend(absent.add_gone(record, &host));
    }
    Ok((absent, notes))
}

/// Before the record goes: what it could not make whole goes to the records of those NICs that keep
/// the rest.
fn hand_over(
    records: &mut Records,
    absent: &AbsentNics,
    record: &Record,
    others: Vec<Record>,
) -> Result<()> {
    for mut other in others {
        if absent.hand_over(record, &mut other) {
            records.save(&other)?;
        }
    }
    Ok(())
}

/// Gives equal routes and rules the order that they had. Those that the host got meanwhile are
/// recorded first: they may be on their way to another place when a crash comes.
fn put_in_order(
    world: &mut dyn World,
    records: &mut Records,
    record: &mut Record,
    absent: &AbsentNics,
) -> Result<Arranged> {
    if record.precedence.is_empty() {
        return Ok(Arranged::default());
    }
    let scope = Scope::links().with(routes_of(record));
    let host = world.observe(Side::Host, &scope)?;
    let met = record.precedence.met(&host);
    let mut unsaved = None;
    if met != record.precedence {
        record.precedence = met;
        unsaved = records.save(record).err();
    }
    // A manager's own come in the order that it chooses, and not yet.
    let first = owed(&record.held, &unseen(&record.held), &host);
    let order = order_of(&absent.view(record).precedence, &record.held, &first);
    let mut arranged = arrange(world, Side::Host, &order, &host)?;
    arranged.errors.extend(unsaved);
    Ok(arranged)
}

/// Tries again to delete stand-ins that are beside the whole routes; returns those that stay.
fn delete_stand_ins(world: &mut dyn World, held: &[MovedNic]) -> Result<Vec<Drift>> {
    if held.iter().all(|h| h.stand_ins.is_empty()) {
        return Ok(Vec::new());
    }
    let scope = Scope::links().with(RoutesOf::returning(held, []));
    let host = world.observe(Side::Host, &scope)?;
    let again: Vec<Step> = superseded(held, &host).map(without).collect();
    if again.is_empty() {
        return Ok(Vec::new());
    }
    apply_all(&again, world, Instant::now() + SETTLE);
    let drift = |route: &Route| Drift {
        dev: "host".into(),
        field: "stand-in".into(),
        expected: None,
        observed: Some(route.to_string()),
    };
    let host = world.observe(Side::Host, &scope)?;
    Ok(superseded(held, &host).map(drift).collect())
}

/// What a restore would do now, while other containers have their NICs.
pub fn preview(
    machine: &dyn Namespaces,
    world: &mut dyn World,
    records: &Records,
    record: &Record,
) -> Result<RestorePlan> {
    if record.is_back() {
        return awaited::preview(machine, world, record);
    }
    let (absent, gone) = absent_nics(world, records, record, &other_records(records, record))?;
    let mut managers = Managers::of(machine.root());
    let plan = plan_now(world, &mut managers, &absent.view(record))?.plan;
    Ok(RestorePlan {
        notes: plan.notes.into_iter().chain(gone).collect(),
        ..plan
    })
}
