//! The plan of a restore, once its NICs have been found.

use std::time::{Duration, Instant};

use anyhow::Result;

use rdma_model::ids::IfName;
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::{Rule, Snapshot};
use rdma_model::step::Side;

use super::bare_hcas;
use super::look_inside::look_inside;
use super::plan::{Goal, Purpose, RestorePlan, plan_restore};
use super::settle::{assume_managers_done, why_waiting, words_of_earlier};
use super::to_put_back::{Words, leave_settings, not_begun, note_if_no_longer_ours, to_put_back};
use super::{nic_names, search_netns};
use crate::kernel::{Namespaces, Routes, RoutesOf, Scope, World};
use crate::link_managers::{Managers, Word};
use crate::plan::rdma_mode;
use crate::record::Record;

pub(super) struct Planned {
    pub(super) plan: RestorePlan,
    /// A sentence for each NIC that was found in a further namespace.
    pub(super) notes: Vec<String>,
    /// NICs that the host lacked, or had down.
    pub(super) arriving: Vec<IfName>,
    /// The rules that the host had.
    pub(super) rules: Vec<Rule>,
    /// See [`Record::searched`].
    pub(super) searched: Option<usize>,
}

/// The plan, once all NICs have been found or `patience` is over: a namespace that has ended, the
/// container's or one that it made, returns its physical NICs some time later.
pub(super) fn find_and_plan(
    machine: &dyn Namespaces,
    world: &mut dyn World,
    managers: &mut Managers,
    record: &Record,
    patience: Duration,
) -> Result<Planned> {
    let deadline = Instant::now() + patience;
    let mut notes = Vec::new();
    // Every namespace of the machine is looked into: once, and by a try with patience alone.
    let mut has_searched = patience.is_zero();
    let mut searched = None;
    loop {
        let planned = plan_now(world, managers, record, Purpose::Restore)?;
        let plan = &planned.plan;
        let is_over = Instant::now() >= deadline;
        if plan.missing == 0 || is_over && has_searched {
            return Ok(Planned {
                notes,
                searched,
                ..planned
            });
        }
        if !has_searched {
            has_searched = true;
            let missing = record.held.iter().filter(|h| plan.is_stuck(h));
            let missing: Vec<MovedNic> = missing.cloned().collect();
            if !missing.is_empty() {
                let parts = to_put_back(&missing, &not_begun(&missing), &Snapshot::default());
                let fetched = search_netns::fetch(machine, record, &parts);
                notes.extend(fetched.notes);
                searched = fetched.searched;
                continue;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The plan by what is there now, of HCAs without a NIC, too; and which NICs the host lacks or has
/// down.
pub(super) fn plan_now(
    world: &mut dyn World,
    managers: &mut Managers,
    record: &Record,
    purpose: Purpose,
) -> Result<Planned> {
    let inside = look_inside(world, &record.held)?;
    let scope = match purpose {
        // To write a setting that is there takes less than to read all.
        Purpose::Restore => Scope::network(),
        Purpose::Preview | Purpose::Forget => Scope::for_nics(nic_names(&record.held)),
    };
    let scope = scope.with(routes_of(record));
    let host = world.observe(Side::Host, &scope)?;
    // One that was set down, and did not leave, is a new one for its manager as well.
    let is_down_or_absent = |h: &MovedNic| {
        host.netdev(h.name())
            .is_none_or(|dev| !dev.up && h.before.netdev.up)
    };
    let arriving: Vec<MovedNic> = record
        .held
        .iter()
        .filter(|h| is_down_or_absent(h))
        .cloned()
        .collect();
    let mut words = words_of_earlier(&record.held, managers, &host);
    for word in words.values_mut() {
        *word = match *word {
            // It may be restarting: nothing is put back yet that it would take for another's.
            Word::Absent => Word::NotBegun,
            // What else it has is the manager's or an administrator's.
            Word::NeverMissedIt => Word::Done,
            word => word,
        };
    }
    words.extend(not_begun(&arriving));
    if purpose == Purpose::Forget {
        assume_managers_done(&mut words);
    }
    let mut parts = to_put_back(&record.held, &words, &host);
    for nic in parts.iter_mut().filter(|h| is_down_or_absent(h)) {
        if nic
            .managed
            .as_ref()
            .is_some_and(|m| managers.will_change(m))
        {
            leave_settings(&mut nic.before.netdev);
        }
    }
    let mut restore_plan = plan_restore(&parts, &host, inside.as_ref(), Goal::Exact);
    let no_longer_ours = record
        .held
        .iter()
        .filter_map(|h| note_if_no_longer_ours(h, &words, &host));
    restore_plan.notes.extend(no_longer_ours);
    if purpose == Purpose::Preview {
        let away = nic_names(&arriving);
        let to_come = record
            .held
            .iter()
            .filter_map(|h| to_come(h, away.contains(h.name()), &words, &host, managers));
        restore_plan.notes.extend(to_come);
    }
    let bare = bare_hcas::of(record);
    restore_plan.steps.splice(
        0..0,
        rdma_mode::restore_hcas(bare.iter(), &host, inside.as_ref()),
    );
    let lost = rdma_mode::missing_everywhere(bare, &host, inside.as_ref());
    restore_plan.missing += lost.len();
    restore_plan.notes.extend(
        lost.iter()
            .map(|name| format!("{name} is neither in the container's namespace nor on the host")),
    );
    Ok(Planned {
        plan: restore_plan,
        notes: Vec::new(),
        arriving: nic_names(&arriving),
        rules: host.rules,
        searched: None,
    })
}

/// What no step tells: a manager has to do its part first.
fn to_come(
    held: &MovedNic,
    is_away: bool,
    words: &Words,
    host: &Snapshot,
    managers: &mut Managers,
) -> Option<String> {
    let first = match is_away {
        true => {
            let by = held.managed.as_ref()?.by.name();
            format!("{by} configures {} when it is back", held.name())
        }
        false => why_waiting(held, words, host, managers)?.why,
    };
    Some(format!("{first}; what else it had comes after that"))
}

/// Those that a restore of the record asks for.
pub(super) fn routes_of(record: &Record) -> Routes {
    RoutesOf::of_moved(&record.held, &record.precedence.routes)
}
