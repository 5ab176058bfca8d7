//! NICs that are on the host and wait for their manager: what they lack is added when it has begun.
//! All else is the host's by now: an administrator may have set it up otherwise, or given it away.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use rdma_model::effect::same_address;
use rdma_model::ids::IfName;
use rdma_model::moved_nic::MovedNic;
use rdma_model::nic::is_same_netdev;
use rdma_model::snapshot::{Address, Netdev, Snapshot};
use rdma_model::step::{NicState, Side, Step, chosen_by_manager};

use super::diff::{additions, connect_all};
use super::forget::close_record;
use super::legs::{absent_parts, await_absent_parts, hand_over, other_records};

use super::of_host::is_networkds;
use super::plan::{Purpose, RestorePlan, superseded};
use super::settle::{
    WaitingNic, activate, assume_managers_done, final_words, why_waiting, words_of_earlier,
};
use super::to_put_back::{Words, is_strange, no_longer_ours, to_put_back};
use super::{MOMENT, Restored, nic_names, refusals, time_for_steps};
use crate::kernel::{Namespaces, RoutesOf, Scope, World};
use crate::link_managers::{Managers, Word};
use crate::record::Record;
use crate::store::records::Records;

/// A manager that has more to do takes no longer to notice that a NIC was away.
const NOTICE: Duration = Duration::from_secs(5);

/// Adds what the NICs of a waiting record lack, as far as their managers have begun by the end of
/// `patience`. Nothing that is there changes, and nothing is missing for ever: what cannot be added
/// beside a manager that is done is a note.
pub fn resume(
    machine: &dyn Namespaces,
    world: &mut dyn World,
    records: &mut Records,
    record: &Record,
    patience: Duration,
) -> Result<Restored> {
    let mut managers = Managers::of(machine.root());
    let others = other_records(records, record);
    let mut record = record.clone();
    let deadline = Instant::now() + patience;
    let mut steps = 0;
    let mut asked = BTreeSet::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let (absent, gone_notes) =
            await_absent_parts(world, records, &record, &others, record.phase, left)?;
        if absent.take_deleted_out(&mut record) | absent.record_parts(&mut record) {
            records.save(&record)?;
        }
        let host = observe(world, &record)?;
        let (here, mut notes) = waiting_still(&absent.possible(&record), &host, &mut managers);
        notes.extend(gone_notes);
        let is_over = Instant::now() >= deadline;
        let mut words = words_of_earlier(&here, &mut managers, &host);
        let mut nics = NicsOfManagers {
            here: &here,
            words: &mut words,
            asked: &mut asked,
        };
        nics.activate_again(Word::External, &host, &mut managers);
        if is_over {
            nics.activate_again(Word::Idle, &host, &mut managers);
            final_words(&mut words, managers.can_be_asked());
        }
        forget_unnoticed(&mut words, records.age(&record));
        let missing = plan_to_add(&record, &here, &words, &host);
        let until = Instant::now() + time_for_steps(patience);
        let errors = refusals::carry_out(&missing, world, until, |_| {}).errors;
        steps += missing.all_steps().len().saturating_sub(errors.len());
        let waiting: Vec<WaitingNic> = here
            .iter()
            .filter_map(|held| why_waiting(held, &words, &host, &mut managers))
            .collect();
        if waiting.is_empty() || is_over {
            notes.extend(errors.iter().map(|e| format!("left out: {e:#}")));
            notes.extend(here.iter().filter_map(|held| stalled_note(held, &words)));
            let settled = record.reduced_to(&settled_nics(&here, &waiting));
            hand_over(world, records, &absent, &settled, &others)?;
            close_record(machine, records, &record, &waiting)?;
            let waits_for: Vec<String> = waiting.into_iter().map(|w| w.why).collect();
            notes.extend(waits_for.iter().cloned());
            return Ok(Restored {
                steps,
                notes,
                waits_for,
                moving: Duration::ZERO,
            });
        }
        sleep(MOMENT);
    }
}

fn settled_nics(here: &[MovedNic], waiting: &[WaitingNic]) -> Vec<IfName> {
    let mut settled = nic_names(here);
    settled.retain(|name| !waiting.iter().any(|w| w.nic == *name));
    settled
}

/// Of what a manager has not noticed after some time, nothing more comes.
fn forget_unnoticed(words: &mut Words, age: Duration) {
    let unnoticed = words.values_mut().filter(|w| **w == Word::NeverMissedIt);
    for word in unnoticed.filter(|_| age >= NOTICE) {
        *word = Word::Done;
    }
}

struct NicsOfManagers<'a> {
    here: &'a [MovedNic],
    words: &'a mut Words,
    /// Those whose profile has been activated again.
    asked: &'a mut BTreeSet<IfName>,
}

impl NicsOfManagers<'_> {
    /// A profile that failed is tried again, as NetworkManager does with those that it activates by
    /// itself; so is one that it could not take as it started, since all was there.
    fn activate_again(&mut self, which: Word, host: &Snapshot, managers: &mut Managers) {
        for held in self.here {
            let name = held.name();
            let Some(word) = self.words.get_mut(name).filter(|word| **word == which) else {
                continue;
            };
            if self.asked.contains(name) || activate(held, managers, host) {
                *word = Word::Configuring;
                self.asked.insert(name.clone());
            }
        }
    }
}

/// A NIC that is not waited for any longer.
fn stalled_note(held: &MovedNic, words: &Words) -> Option<String> {
    let name = held.name();
    let by = held.managed.as_ref()?.by.name();
    (words.get(name) == Some(&Word::Stalled)).then(|| {
        format!(
            "{name}: {by} has been configuring it for minutes, and there is no D-Bus to ask what \
            is its own: all but what is learned is put back"
        )
    })
}

/// What [`resume`] would do now.
pub fn preview(
    machine: &dyn Namespaces,
    world: &mut dyn World,
    records: &Records,
    record: &Record,
    purpose: Purpose,
) -> Result<RestorePlan> {
    let mut managers = Managers::of(machine.root());
    let others = other_records(records, record);
    let (absent, gone_notes) = absent_parts(world, records, record, &others, record.phase)?;
    let host = observe(world, record)?;
    let (here, mut notes) = waiting_still(&absent.possible(record), &host, &mut managers);
    notes.extend(gone_notes);
    let mut words = words_of_earlier(&here, &mut managers, &host);
    forget_unnoticed(&mut words, records.age(record));
    if purpose == Purpose::Forget {
        assume_managers_done(&mut words);
    }
    let plan = plan_to_add(record, &here, &words, &host);
    // Of what is forgotten nothing is awaited.
    for held in here.iter().filter(|_| purpose != Purpose::Forget) {
        notes.extend(why_waiting(held, &words, &host, &mut managers).map(|w| w.why));
        notes.extend(reactivation_note(held, &words));
    }
    Ok(RestorePlan { notes, ..plan })
}

/// NetworkManager came back when all was there, and took it for another program's.
fn reactivation_note(held: &MovedNic, words: &Words) -> Option<String> {
    let (name, managed) = (held.name(), held.managed.as_ref()?);
    let is_to_activate = managed.uuid.is_some() && words.get(name) == Some(&Word::External);
    is_to_activate.then(|| {
        format!(
            "{name} is back; the next look has its profile activated, and it lacks its addresses \
            for a moment"
        )
    })
}

fn observe(world: &mut dyn World, record: &Record) -> Result<Snapshot> {
    let scope = Scope::for_nics(nic_names(&record.held));
    let besides = record.precedence.routes.iter();
    let besides = besides.chain(&record.host_objects.routes);
    let routes = RoutesOf::of_moved(&record.held, besides);
    world.observe(Side::Host, &scope.with(routes))
}

/// Adds what is missing: nothing of a NIC whose manager has not begun.
fn plan_to_add(record: &Record, here: &[MovedNic], words: &Words, host: &Snapshot) -> RestorePlan {
    let parts = to_put_back(here, words, host);
    let (steps, added): (Vec<Vec<Step>>, Vec<NicState>) = parts
        .iter()
        .zip(here)
        .filter_map(|(part, held)| additions(&part.before, held.managed.as_ref(), host))
        .unzip();
    let mut steps: Vec<Step> = steps.into_iter().flatten().collect();
    steps.extend(connect_all(Side::Host, &added, host));
    steps.extend(
        here.iter()
            .flat_map(|held| delete_replaced(held, words, host)),
    );
    // What networkd takes for foreign is gone when it has begun with the last of its own.
    let mut networkds = here.iter().filter(|h| is_networkds(h));
    if networkds.all(|h| {
        let word = words.get(h.name());
        word.is_none_or(|word| word.has_begun())
    }) {
        steps.extend(record.host_objects.missing(host).steps());
    }
    RestorePlan {
        steps,
        superseded: superseded(&parts, host, &[]),
        ..RestorePlan::default()
    }
}

/// Deletes the link-local address that was put back of a manager which had not noticed that its NIC
/// was away, and has chosen another one since (NetworkManager 1.42, after six such times).
fn delete_replaced(held: &MovedNic, words: &Words, host: &Snapshot) -> Vec<Step> {
    let (name, was) = (held.name(), &held.before.netdev);
    let Some(now) = host.netdev(name) else {
        return Vec::new();
    };
    let is_of_before = |a: &&Address| was.addresses.iter().any(|had| same_address(had, a));
    let chosen = now.addresses.iter().filter(|a| chosen_by_manager(a, now));
    let (old, new): (Vec<&Address>, Vec<&Address>) = chosen.partition(is_of_before);
    let is_done = held.managed.is_some() && words.get(name) == Some(&Word::Done);
    match old[..] {
        [address] if is_done && !new.is_empty() => vec![Step::AddressDelete {
            side: Side::Host,
            dev: name.clone(),
            address: address.clone(),
        }],
        // Which of several was the manager's is not known.
        _ => Vec::new(),
    }
}

/// The NICs that only their manager has taken up since, and a sentence for each other one.
fn waiting_still(
    record: &Record,
    host: &Snapshot,
    managers: &mut Managers,
) -> (Vec<MovedNic>, Vec<String>) {
    let (mut here, mut notes) = (Vec::new(), Vec::new());
    for held in &record.held {
        match why_no_longer_ours(held, host, managers) {
            None => here.push(held.clone()),
            Some(why) => notes.push(no_longer_ours(held.name(), &why)),
        }
    }
    (here, notes)
}

/// Why a NIC is no matter of the record any more.
fn why_no_longer_ours(held: &MovedNic, host: &Snapshot, managers: &mut Managers) -> Option<String> {
    let was = &held.before.netdev;
    let Some(dev) = host
        .netdev(&was.name)
        .filter(|dev| is_same_netdev(was, dev))
    else {
        return Some("is not on the host any more".to_owned());
    };
    if let Some(master) = dev.master.as_ref().filter(|_| dev.master != was.master) {
        return Some(format!("belongs to {master} now"));
    }
    if was.up && !dev.up {
        return Some("is down now".to_owned());
    }
    let managed = held.managed.as_ref();
    if managed.is_some_and(|managed| managers.is_ended(managed.by, dev)) {
        return Some("has been disconnected".to_owned());
    }
    let unknown = strange_address(was, dev, host, managers)?;
    Some(format!("has {}/{} now", unknown.address, unknown.prefix))
}

/// An address that neither the record knows nor a manager has given.
fn strange_address<'a>(
    was: &Netdev,
    dev: &'a Netdev,
    host: &Snapshot,
    managers: &mut Managers,
) -> Option<&'a Address> {
    let state = NicState::of(host, &dev.name)?;
    let managed = managers.managed(&state);
    // Of a manager that cannot be asked it is not known what it has given.
    if managed.as_ref().is_some_and(|m| !m.was_asked()) {
        return None;
    }
    dev.addresses
        .iter()
        .find(|a| is_strange(a, was, dev) && !managed.as_ref().is_some_and(|m| m.owns_address(a)))
}
