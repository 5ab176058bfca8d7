//! After a restore: a network manager of this host sees NICs appear, and configures them. What is
//! its own it makes again; what is not comes when it has begun, since before that it deletes what
//! it finds.

mod put_back;
mod returned;

use rdma_model::drift::Drift;
use rdma_model::moved_nic::MovedNic;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Result;
use rdma_model::ids::IfName;
use rdma_model::snapshot::Snapshot;
use rdma_model::step::{NicState, Side};

use super::to_put_back::{Words, is_configured_as_before, note_if_no_longer_ours};
use super::{MOMENT, SETTLE, nic_names};
use crate::apply::apply_all;
use crate::kernel::{Defaults, Routes, RoutesOf, Scope, World};
use crate::link_managers::advice::{Outcome, Present, sentence};
use crate::link_managers::{self, Managers, Word};
use crate::restore::plan::devices;
use crate::verify;
pub use returned::{
    Returned, WaitingNic, activate, assume_managers_done, final_words, is_about, why_waiting,
    words_of_earlier,
};
use returned::{ends_the_wait, has_carrier};

/// Between observations where only the kernel may still be busy.
const PAUSE: Duration = Duration::from_millis(20);
/// udev's events may be of anything: what it does to our NICs comes first.
const UDEV: Duration = Duration::from_millis(500);
/// A manager may take a link of which it has said nothing yet.
const NETWORKD: Duration = Duration::from_secs(1);
/// Scripts that a manager runs when it is done, and its next NIC, come within this time.
const QUIET: Duration = Duration::from_millis(250);
/// How long a manager's own is awaited. What takes longer, such as a lease, comes after the stop.
const OWN: Duration = Duration::from_secs(3);
/// How long it is awaited without a carrier, which a link has only some time after it goes up.
const NO_CARRIER: Duration = Duration::from_millis(300);
/// How often what is missing is put back, if all of it was taken again.
const TRIES: usize = 3;

/// NICs that do not change any more.
#[derive(Debug, Default)]
pub struct Settled {
    /// What they lack.
    pub drift: Vec<Drift>,
    /// What a link manager changed meanwhile, and which one.
    pub fought: Option<String>,
    /// Which device settings had been changed, and what is left out, a sentence for each.
    pub notes: Vec<String>,
    /// NICs whose manager is not done.
    pub waiting: Vec<WaitingNic>,
    /// NICs whose profile someone has ended.
    pub ended: Vec<IfName>,
    /// See [`crate::record::Record::refused`].
    pub refused: BTreeSet<String>,
}

/// Waits until NICs do not change any more, and puts back what is missing.
pub fn settle(
    world: &mut dyn World,
    managers: &mut Managers,
    back: Returned,
    patience: Duration,
) -> Result<Settled> {
    let watched = managers.are_present() || back.held.iter().any(|h| h.managed.is_some());
    let settling = Settling {
        world,
        managers,
        back,
        patience,
        watched,
        begun: Instant::now(),
        waited: Duration::ZERO,
        last: None,
        looks: 0,
        device_notes: None,
        activated: Vec::new(),
        lacked: None,
        tries: 0,
        failed: false,
        refused: BTreeSet::new(),
        tried_late: false,
    };
    settling.run()
}

struct Settling<'a> {
    world: &'a mut dyn World,
    managers: &'a mut Managers,
    back: Returned<'a>,
    patience: Duration,
    watched: bool,
    begun: Instant,
    /// How long the last look is after that: all that follows from one look is of one time.
    waited: Duration,
    /// What the last look showed, and since when.
    last: Option<(Look, Instant)>,
    looks: usize,
    /// Set when device settings have been put back.
    device_notes: Option<Vec<String>>,
    /// NICs whose profile has been activated.
    activated: Vec<IfName>,
    /// What was missing when it was first put back.
    lacked: Option<Vec<Drift>>,
    tries: usize,
    /// Whether a step of the last try failed.
    failed: bool,
    /// What the kernel refused then.
    refused: BTreeSet<String>,
    /// Whether the last try, which comes when the time is over, has been.
    tried_late: bool,
}

#[derive(PartialEq)]
struct Look {
    words: Words,
    drift: Vec<Drift>,
}

/// How it goes on.
enum Next {
    Look,
    End(Vec<Drift>),
}

impl Settling<'_> {
    fn run(mut self) -> Result<Settled> {
        loop {
            let host = self.observe()?;
            if self.restore_devices(&host) {
                continue;
            }
            let words = self.back.words(self.managers, &host);
            if self.is_over() || self.is_quiet(&words) {
                self.activate(|word| word == Word::Idle, &words, &host);
            }
            let words = self.with_what_was_done(words);
            let still = self.is_still(&host, &words);
            if still && self.activate(does_no_more, &words, &host) {
                self.last = None;
            } else if still && let Next::End(drift) = self.put_back(&host, &words)? {
                return Ok(self.end(drift, &words, &host));
            }
            std::thread::sleep(if self.watched { MOMENT } else { PAUSE });
        }
    }

    fn is_over(&self) -> bool {
        self.waited >= self.patience
    }

    /// A device has five files for each queue to be read: no other part of an observation takes as
    /// long. Where there are two observations at least, the second one finds what a manager has set
    /// on devices, too.
    fn is_brief(&self) -> bool {
        self.watched && self.device_notes.is_none() && self.looks == 1 && !self.is_over()
    }

    /// Those that matter to the NICs.
    fn routes(&self) -> Routes {
        let besides = self.back.order.routes.iter();
        let besides = besides.chain(&self.back.host_objects.routes);
        RoutesOf::of_moved(self.back.held, besides)
    }

    fn observe(&mut self) -> Result<Snapshot> {
        self.looks += 1;
        self.waited = self.begun.elapsed();
        let whole = Scope {
            defaults: Defaults::Unread,
            routes: self.routes(),
            ..Scope::for_nics(nic_names(self.back.held))
        };
        let brief = Scope {
            devices: Vec::new(),
            ..whole.clone()
        };
        let scope = if self.is_brief() { &brief } else { &whole };
        self.world.observe(Side::Host, scope)
    }

    /// At the first observation of devices, sets back what was set on them: that takes no waiting.
    /// Whether there was anything.
    fn restore_devices(&mut self, host: &Snapshot) -> bool {
        if self.device_notes.is_some() || self.is_brief() {
            return false;
        }
        let held = self.back.held;
        self.device_notes = Some(
            held.iter()
                .filter_map(|h| changed_device(h, host))
                .collect(),
        );
        let steps = devices(held, host);
        // What is refused stays drift.
        apply_all(&steps, self.world, Instant::now() + SETTLE);
        !steps.is_empty()
    }

    /// A profile that was activated a moment ago is no news yet; and waiting ends.
    fn with_what_was_done(&self, mut words: Words) -> Words {
        for (name, word) in &mut words {
            if *word == Word::Idle && self.activated.contains(name) {
                *word = Word::Configuring;
            }
        }
        if self.is_over() || self.waited >= OWN {
            final_words(&mut words, self.managers.can_be_asked());
        }
        words
    }

    /// Whether managers have said the same for some time: a profile that one activates by itself is
    /// activated some ms after a NIC has come.
    fn is_quiet(&self, words: &Words) -> bool {
        let last = self.last.as_ref();
        last.is_some_and(|(look, since)| look.words == *words && since.elapsed() >= QUIET)
    }

    /// Has profiles activated again that were active on NICs with that word.
    fn activate(&mut self, if_word: fn(Word) -> bool, words: &Words, host: &Snapshot) -> bool {
        let to_ask = self.back.held.iter().filter(|held| {
            let name = held.name();
            let word = words.get(name).copied();
            word.is_some_and(if_word)
                && !self.activated.contains(name)
                // Of those that were here, an administrator may have changed it.
                && (word == Some(Word::Idle) || self.back.arriving.contains(name))
        });
        let asked = to_ask.filter(|held| activate(held, self.managers, host));
        let asked: Vec<IfName> = asked.map(|h| h.name().clone()).collect();
        self.activated.extend(asked.iter().cloned());
        !asked.is_empty()
    }

    /// Whether nothing changes, and nothing is awaited.
    fn is_still(&mut self, host: &Snapshot, words: &Words) -> bool {
        let states: Vec<NicState> = self.back.held.iter().map(|h| h.before.clone()).collect();
        let look = Look {
            words: words.clone(),
            drift: verify::drift(&states, host),
        };
        let since = match &self.last {
            Some((last, since)) if *last == look => Some(*since),
            _ => None,
        };
        self.last = Some((look, since.unwrap_or_else(Instant::now)));
        if self.is_brief() {
            return false;
        }
        if !self.watched {
            return true;
        }
        if self.is_over() {
            return !self.keep_managers_off(host);
        }
        let quiet = if words.is_empty() {
            Duration::ZERO
        } else {
            QUIET
        };
        since.is_some_and(|since| since.elapsed() >= quiet)
            && !self.keep_managers_off(host)
            && !self.is_awaited(host, words)
    }

    /// Keeps NetworkManager from NICs that no manager had. Whether udev or a manager may yet take
    /// one.
    fn keep_managers_off(&mut self, host: &Snapshot) -> bool {
        let waited = self.waited;
        let mut nics: Vec<&MovedNic> = self.back.held.iter().collect();
        if self.patience.is_zero() {
            // Those that were here at an earlier try have been waited for.
            nics.retain(|h| self.back.arriving.contains(h.name()));
        }
        let is_any_new = !nics.is_empty();
        nics.retain(|h| h.managed.is_none());
        let mut is_any_awaited = false;
        for held in &nics {
            let Some(link) = host.netdev(held.name()) else {
                continue;
            };
            let limit = match self.managers.keep_off(link, &held.ended_profiles) {
                Word::NotBegun if link.running => NETWORKD,
                Word::NotBegun => NO_CARRIER,
                // A profile is activated some ms later.
                Word::Idle => QUIET,
                Word::Configuring => OWN,
                _ => Duration::ZERO,
            };
            is_any_awaited |= waited < limit;
        }
        if is_any_awaited {
            return true;
        }
        let root = self.managers.root();
        let links: Vec<u32> = nics.iter().map(|h| index(h, host)).collect();
        waited < UDEV && is_any_new && link_managers::busy(root)
            || waited < NETWORKD && !links.is_empty() && link_managers::may_configure(root, &links)
    }

    fn is_awaited(&self, host: &Snapshot, words: &Words) -> bool {
        let waited = self.waited;
        let limit = |name: &IfName, word: Word| match word {
            // It may be restarting.
            Word::Absent => OWN,
            word if ends_the_wait(word) => Duration::ZERO,
            _ if has_carrier(host, name) => OWN,
            _ => NO_CARRIER,
        };
        words.iter().any(|(name, word)| waited < limit(name, *word))
    }

    fn end(self, drift: Vec<Drift>, words: &Words, host: &Snapshot) -> Settled {
        let fought = match (&self.lacked, drift.is_empty()) {
            (Some(lacked), true) => self.describe_changes(lacked, Outcome::PutBack, host),
            (Some(lacked), false) if !lacked.is_empty() => {
                self.describe_changes(&drift, Outcome::Lost, host)
            }
            _ => None,
        };
        let waiting = self
            .back
            .held
            .iter()
            .filter_map(|held| why_waiting(held, words, host, self.managers));
        let waiting = waiting.collect();
        let (drift, left_out): (Vec<Drift>, Vec<Drift>) = drift
            .into_iter()
            .partition(|d| !self.is_excused(d, words, host));
        let notes = left_out.iter().map(|d| {
            format!(
                "{} left out: {} is configured otherwise now",
                d.field, d.dev
            )
        });
        let held = self.back.held.iter();
        let taken = held.filter_map(|h| note_if_no_longer_ours(h, words, host));
        let notes = self.device_notes.iter().flatten().cloned().chain(notes);
        let notes = notes.chain(taken);
        let ended = words.iter().filter(|(_, word)| **word == Word::Ended);
        Settled {
            drift,
            fought,
            waiting,
            notes: notes.collect(),
            ended: ended.map(|(name, _)| name.clone()).collect(),
            refused: self.refused,
        }
    }

    fn describe_changes(
        &self,
        changed: &[Drift],
        outcome: Outcome,
        host: &Snapshot,
    ) -> Option<String> {
        let root = self.managers.root();
        let all = link_managers::present(root).into_iter().map(|by| Present {
            manager: by,
            spares: self.names(|h| link_managers::spares(root, by, index(h, host))),
            configures: self.names(|h| h.managed.as_ref().is_some_and(|m| m.by == by)),
        });
        sentence(changed, outcome, &all.collect::<Vec<_>>())
    }

    fn names(&self, are: impl Fn(&MovedNic) -> bool) -> Vec<IfName> {
        let these = self.back.held.iter().filter(|h| are(h));
        these.map(|h| h.name().clone()).collect()
    }

    /// Whether a route leads where nothing is, since its NIC's manager is done and has configured
    /// it otherwise.
    fn is_excused(&self, drift: &Drift, words: &Words, host: &Snapshot) -> bool {
        let held = self
            .back
            .held
            .iter()
            .find(|h| h.name().as_str() == drift.dev);
        let is_done = |h: &&MovedNic| {
            let word = words.get(h.name());
            word.is_some_and(|word| word.has_configured())
        };
        drift.field.starts_with("route ")
            && held
                .filter(is_done)
                .is_some_and(|h| !is_configured_as_before(h, host))
    }
}

/// Whether a manager has taken another profile, or what it found there.
fn does_no_more(word: Word) -> bool {
    word.has_changed() || word == Word::External
}

fn changed_device(held: &MovedNic, host: &Snapshot) -> Option<String> {
    let name = held.name();
    let drift = verify::device_drift(&held.before.netdev, host.netdev(name)?);
    let fields = drift
        .iter()
        .map(|d| d.field.as_str())
        .collect::<Vec<_>>()
        .join(", ");
    (!drift.is_empty()).then(|| format!("{name} had other device settings: {fields}"))
}

/// The index of a link by now.
fn index(held: &MovedNic, host: &Snapshot) -> u32 {
    host.netdev(held.name())
        .map_or(held.before.netdev.ifindex, |dev| dev.ifindex)
}
