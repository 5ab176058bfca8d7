//! Bringing the NICs of one record back to the host, from the first look to the record's end.

mod held_back;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;

use rdma_model::drift::Drift;
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::Route;
use rdma_model::step::{Side, Step};

use crate::apply::apply_all;
use crate::deadline;
use crate::kernel::{Namespaces, RoutesOf, Scope, World};
use crate::link_managers::Managers;
use crate::record::{Phase, Record};
use crate::restore::bare_hcas;
use crate::restore::find_and_plan::{Planned, find_and_plan, plan_now, routes_of};
use crate::restore::forget::close_record;
use crate::restore::legs::{await_absent_parts, hand_over, other_records};
use crate::restore::links_beside::{self, LinksBeside};
use crate::restore::links_on::{self, LinksOn};
use crate::restore::of_host;
use crate::restore::order::{Ordered, put_in_order};
use crate::restore::plan::{
    AbsentParts, Purpose, RestorePlan, StuckNic, delete_on_host, superseded,
};
use crate::restore::refusals;
use crate::restore::settle::{Returned, Settled, WaitingNic, settle};
use crate::restore::to_put_back::{not_begun, order_of, to_put_back};
use crate::restore::{Restored, SETTLE, time_for_steps};
use crate::store::records::Records;

/// The kernel marks files with the time of its last tick, which may be 10 ms old (`CONFIG_HZ_100`).
const TICK: Duration = Duration::from_millis(10);

pub(super) fn bring_back(
    machine: &dyn Namespaces,
    world: &mut dyn World,
    records: &mut Records,
    record: Record,
    patience: Duration,
) -> Result<Restored> {
    let mut back = BringBack::begin(machine, world, records, record, patience)?;
    // The container may have made links on its NICs (`on`), or on the device below a virtual NIC
    // (`beside`), and may have moved them to any namespace.
    let mut beside = back.delete_links_beside()?;
    let planned = back.find_and_plan(patience)?;
    let mut ran = back.run_steps(&planned.plan, patience);
    ran.add(back.put_in_order()?);
    let here = back.nics_here(&planned.plan);
    let on_nics = back.delete_links_on(&planned.plan, &here)?;
    back.delete_links_beside_again(&mut beside)?;
    let settled = back.settle(&planned, &here, patience)?;
    back.finish(planned, ran, on_nics, beside, settled)
}

/// A restore under way.
struct BringBack<'a, 'r> {
    machine: &'a dyn Namespaces,
    world: &'a mut dyn World,
    records: &'a mut Records<'r>,
    record: Record,
    found_in: Phase,
    others: Vec<Record>,
    managers: Managers,
    begun_at: SystemTime,
    absent: AbsentParts,
    /// What has gone for good, a sentence for each.
    gone_notes: Vec<String>,
    /// On a full disk the record stays as it was: in any phase it says all that a restore takes.
    unsaved: Option<anyhow::Error>,
}

/// What the steps came to.
struct Ran {
    /// Those that failed, too.
    steps: usize,
    errors: Vec<anyhow::Error>,
    /// What the kernel took for the moves alone.
    moving: Duration,
}

impl Ran {
    fn add(&mut self, ordered: Ordered) {
        self.steps += ordered.steps;
        self.errors.extend(ordered.errors);
    }
}

impl<'a, 'r> BringBack<'a, 'r> {
    /// Records what the host has now, waits for what may come in a moment, and saves that, before
    /// NICs return.
    fn begin(
        machine: &'a dyn Namespaces,
        world: &'a mut dyn World,
        records: &'a mut Records<'r>,
        mut record: Record,
        patience: Duration,
    ) -> Result<BringBack<'a, 'r>> {
        let begun_at = SystemTime::now()
            .checked_sub(TICK)
            .unwrap_or(SystemTime::UNIX_EPOCH);
        let mut managers = Managers::of(machine.root());
        let found_in = record.phase;
        record.phase = Phase::Restoring;
        let was_tried = found_in == Phase::Restoring;
        of_host::record_objects(world, &mut managers, &mut record, was_tried)?;
        let others = other_records(records, &record);
        let (absent, gone_notes) =
            await_absent_parts(world, records, &record, &others, found_in, patience)?;
        absent.take_deleted_out(&mut record);
        absent.record_parts(&mut record);
        let unsaved = records.save(&record).err();
        Ok(BringBack {
            machine,
            world,
            records,
            record,
            found_in,
            others,
            managers,
            begun_at,
            absent,
            gone_notes,
            unsaved,
        })
    }

    fn save(&mut self) {
        let failed = self.records.save(&self.record).err();
        self.unsaved = self.unsaved.take().or(failed);
    }

    fn delete_links_beside(&mut self) -> Result<LinksBeside> {
        let looked = links_beside::delete(self.world, &self.record, &self.others);
        let beside = match looked {
            // The undo of a create has to bring its NICs back first.
            Err(e) if self.found_in == Phase::Attaching => LinksBeside::not_seen(&e),
            looked => looked?,
        };
        if self.record.lost != beside.lost {
            self.record.lost.clone_from(&beside.lost);
            self.save();
        }
        Ok(beside)
    }

    fn delete_links_beside_again(&mut self, beside: &mut LinksBeside) -> Result<()> {
        links_beside::delete_again(self.world, &self.record, &self.others, beside)?;
        self.record.lost.clone_from(&beside.lost);
        Ok(())
    }

    fn find_and_plan(&mut self, patience: Duration) -> Result<Planned> {
        let possible = self.absent.possible(&self.record);
        let managers = &mut self.managers;
        let planned = find_and_plan(self.machine, self.world, managers, &possible, patience)?;
        // Where none was searched, the next one that does begins where the last one ended.
        if !patience.is_zero() {
            self.record.searched = planned.searched;
        }
        let planned = self.without_stuck(planned)?;
        // A restore that was killed before it could save them has moved nothing.
        if self.record.rules_beside.is_none() {
            let rules = of_host::rules_beside(&self.record.held, &planned.rules);
            self.record.rules_beside = rules;
            if self.record.rules_beside.is_some() {
                self.save();
            }
        }
        Ok(planned)
    }

    /// The plan, with what can be there while NICs are stuck.
    fn without_stuck(&mut self, planned: Planned) -> Result<Planned> {
        if planned.plan.stuck.is_empty() {
            return Ok(planned);
        }
        let scope = Scope::network().with(RoutesOf::deviceless());
        let host = self.world.observe(Side::Host, &scope)?;
        let stuck = planned.plan.stuck_nics();
        self.absent.add_stuck(&stuck, &mut self.record, &host);
        self.save();
        let possible = self.absent.possible(&self.record);
        let again = plan_now(self.world, &mut self.managers, &possible, Purpose::Restore)?;
        let mut restore = again.plan;
        // One that has come since lacks its part of the routes: the next try gives it that.
        let still = restore.stuck_nics();
        for name in stuck.into_iter().filter(|name| !still.contains(name)) {
            let why = "has come only now".to_owned();
            restore.stuck.push(StuckNic { name, why });
            restore.superseded.clear();
        }
        Ok(Planned {
            plan: restore,
            ..planned
        })
    }

    fn run_steps(&mut self, plan: &RestorePlan, patience: Duration) -> Ran {
        // The steps that wait for the kernel need theirs beside the moves.
        let time = time_for_steps(patience) + deadline::moves(&self.record.held);
        let (mut since, mut moving) = (Instant::now(), Duration::ZERO);
        let done = refusals::carry_out(plan, self.world, Instant::now() + time, |step| {
            if is_move(step) {
                moving += since.elapsed();
            }
            since = Instant::now();
        });
        Ran {
            steps: plan.steps.len() + plan.superseded.len(),
            errors: done.errors,
            moving,
        }
    }

    /// The NICs that the plan brings to the host.
    fn nics_here(&self, plan: &RestorePlan) -> Vec<MovedNic> {
        let mut here = self.absent.possible(&self.record).held;
        here.retain(|h| !plan.is_stuck(h));
        here
    }

    fn delete_links_on(&mut self, plan: &RestorePlan, here: &[MovedNic]) -> Result<LinksOn> {
        // While it was attaching, nothing of the container's could make links.
        let is_first_try = self.found_in == Phase::Attached;
        let owned = links_on::nics_of_container_alone(&plan.steps, &self.record.held, is_first_try);
        let on_nics = links_on::delete(self.world, here, &owned, &self.record)?;
        self.record.children_gone = on_nics.remaining.is_empty();
        Ok(on_nics)
    }

    /// Waits for what managers do with the NICs, and puts back what they lack.
    fn settle(
        &mut self,
        planned: &Planned,
        here: &[MovedNic],
        patience: Duration,
    ) -> Result<Settled> {
        let order = self.absent.possible(&self.record).precedence;
        let back = Returned {
            held: here,
            order: &order,
            host_objects: &self.record.host_objects,
            arriving: &planned.arriving,
            begun: self.begun_at,
            rules: self.record.rules_beside.as_deref(),
        };
        let mut settled = settle(self.world, &mut self.managers, back, patience)?;
        let hcas = bare_hcas::move_again(self.world, &self.record)?;
        settled.drift.extend(hcas);
        // The routes of a NIC whose profile someone has ended do not come back: what stood in for
        // them is the host's own now, and stays.
        let held = self.record.held.iter_mut();
        for ended in held.filter(|h| settled.ended.contains(h.name())) {
            ended.stand_ins.clear();
        }
        if planned.plan.stuck.is_empty() {
            let mut complete = without_waiting(here, &settled.waiting);
            complete.retain(|h| !settled.ended.contains(h.name()));
            let stand_ins = delete_stand_ins(self.world, &complete, &settled.drift)?;
            settled.drift.extend(stand_ins);
        }
        Ok(settled)
    }

    /// Gives equal routes and rules the order that they had. Those that the host got meanwhile are
    /// recorded first: they may be on their way to another place when a crash comes.
    fn put_in_order(&mut self) -> Result<Ordered> {
        if self.record.precedence.is_empty() {
            return Ok(Ordered::default());
        }
        let scope = Scope::network().with(routes_of(&self.record));
        let host = self.world.observe(Side::Host, &scope)?;
        let order = self.record.precedence.with_newcomers(&host);
        if order != self.record.precedence {
            self.record.precedence = order;
            self.save();
        }
        let record = &self.record;
        // A manager's own come in the order that it chooses, and not yet.
        let first = to_put_back(&record.held, &not_begun(&record.held), &host);
        let order = order_of(
            &self.absent.possible(record).precedence,
            &record.held,
            &first,
        );
        put_in_order(self.world, Side::Host, &order, &host)
    }

    /// Of NICs that are not back, of other records as well.
    fn addresses_away(&self, plan: &RestorePlan) -> BTreeSet<IpAddr> {
        let stuck = self.record.reduced_to(&plan.stuck_nics());
        let away = stuck.held.iter();
        let away = away.chain(self.others.iter().flat_map(|r| &r.held));
        let addresses = away.flat_map(|h| &h.before.netdev.addresses);
        addresses.map(|a| a.address).collect()
    }

    fn finish(
        mut self,
        planned: Planned,
        ran: Ran,
        on_nics: LinksOn,
        beside: LinksBeside,
        mut settled: Settled,
    ) -> Result<Restored> {
        let away = self.addresses_away(&planned.plan);
        let left_out = refusals::leave_out_refused(&mut settled, &mut self.record, &away);
        // Where steps failed, a link manager need not be the reason.
        settled.fought = settled.fought.filter(|_| ran.errors.is_empty());
        let deleted = planned.plan.deleted_but(&beside.moved_on);
        let remaining = [on_nics.remaining, beside.remaining].concat();
        let found = [planned.notes, beside.deleted, beside.notes, on_nics.notes];
        let notes = distinct([found.concat(), self.gone_notes.clone(), left_out].concat());
        if planned.plan.stuck.is_empty() && settled.drift.is_empty() && remaining.is_empty() {
            let done = [
                planned.plan.notes,
                deleted,
                std::mem::take(&mut settled.notes),
            ];
            return self.close(ran, distinct([notes, done.concat()].concat()), settled);
        }
        Err(self.keep(planned.plan, ran, remaining, notes, settled))
    }

    /// Forgets the record. Errors of steps do not matter: by the last look nothing is missing.
    fn close(self, ran: Ran, mut notes: Vec<String>, settled: Settled) -> Result<Restored> {
        hand_over(
            self.world,
            self.records,
            &self.absent,
            &self.record,
            &self.others,
        )?;
        close_record(self.machine, self.records, &self.record, &settled.waiting)?;
        let waits_for: Vec<String> = settled.waiting.into_iter().map(|w| w.why).collect();
        notes.extend(settled.fought);
        notes.extend(waits_for.iter().cloned());
        Ok(Restored {
            steps: ran.steps,
            notes,
            waits_for,
            moving: ran.moving,
        })
    }
}

/// Two looks at the same links say the same of those that stay.
fn distinct(mut notes: Vec<String>) -> Vec<String> {
    let mut known = BTreeSet::new();
    notes.retain(|note| known.insert(note.clone()));
    notes
}

fn without_waiting(held: &[MovedNic], waiting: &[WaitingNic]) -> Vec<MovedNic> {
    let mut held = held.to_vec();
    for waiting in waiting {
        held.retain(|h| *h.name() != waiting.nic);
    }
    held
}

fn is_move(step: &Step) -> bool {
    matches!(step, Step::Move { .. } | Step::RdmaMove { .. })
}

/// Tries again to delete stand-ins that are beside the whole routes; returns those that stay, but
/// for those of routes that are missing.
fn delete_stand_ins(
    world: &mut dyn World,
    held: &[MovedNic],
    drift: &[Drift],
) -> Result<Vec<Drift>> {
    if held.iter().all(|h| h.stand_ins.is_empty()) {
        return Ok(Vec::new());
    }
    let lacking: BTreeSet<&String> = drift.iter().filter_map(|d| d.expected.as_ref()).collect();
    let mut missing: Vec<Route> = held.iter().flat_map(|h| h.before.routes.clone()).collect();
    missing.retain(|route| lacking.contains(&route.to_string()));
    let scope = Scope::network().with(RoutesOf::of_moved(held, []));
    let host = world.observe(Side::Host, &scope)?;
    let again = superseded(held, &host, &missing);
    let again: Vec<Step> = again.iter().map(delete_on_host).collect();
    if again.is_empty() {
        return Ok(Vec::new());
    }
    apply_all(&again, world, Instant::now() + SETTLE);
    let host = world.observe(Side::Host, &scope)?;
    let left = superseded(held, &host, &missing);
    Ok(left.iter().map(beside_the_whole).collect())
}

fn beside_the_whole(stand_in: &Route) -> Drift {
    Drift {
        dev: "host".into(),
        field: "stand-in".into(),
        expected: None,
        observed: Some(stand_in.to_string()),
    }
}
