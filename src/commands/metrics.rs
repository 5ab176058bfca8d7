//! `rdmaprep metrics`: rails wherever they are, who holds them, and how the hooks did, for
//! monitoring. The programs for the kubelet serve the same.

mod owner;
mod patience;
mod rails;

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;

use super::config_file::{config_to_look, warned};
use super::status::reports;
use super::{at_work, say, store, warn};
use crate::cli::{Global, MetricsArgs};
use crate::config::host::Host;
use crate::disk::replace::Replacement;
use crate::doctor::facts::Stale;
use crate::kernel::{Namespaces, ThisMachine, clock};
use crate::metrics::{Holder, RecordState, Runs, Seen, openmetrics, prometheus};
use crate::record::{Member, Phase, Record};
use crate::store::Store;
use crate::store::records::Records;
use patience::Patience;

/// USER_HZ: clock ticks of /proc in a second (include/uapi/asm-generic/param.h).
const TICKS: f64 = 100.0;

pub(super) fn metrics(global: &Global, args: &MetricsArgs) -> Result<()> {
    let host = Host::new(global, &warned(config_to_look(global)?));
    let mut monitor = Monitor::new(store(&host))?;
    let seen = monitor.look()?;
    warn(&monitor.missed());
    match &args.textfile {
        None => say(openmetrics(seen)?.trim_end()),
        Some(file) => {
            let text = prometheus(seen)?;
            // Whatever reads it is another user's; its folder may be anybody's.
            let replacement = Replacement::with_mode(0o644).unsynced();
            replacement.write(file, text.as_bytes())
        }
    }
}

/// Looks again and again. What does not answer is asked again when it has answered.
pub struct Monitor {
    store: Store,
    machine: ThisMachine,
    patience: Patience,
}

impl Monitor {
    pub fn new(store: Store) -> Result<Monitor> {
        Ok(Monitor {
            store,
            machine: ThisMachine::new()?,
            patience: Patience::default(),
        })
    }

    /// What the next scrape is answered with.
    pub fn text(&mut self) -> Result<String> {
        Ok(openmetrics(self.look()?)?)
    }

    /// Changes nothing, and ends in time. Fails where the records cannot be listed: then nothing is
    /// known of any rail.
    fn look(&mut self) -> Result<Seen> {
        let begun = Instant::now();
        self.patience.begin();
        let records = Records::read(&self.store, self.machine.boot_id())?;
        let reports = reports(&self.store)?;
        let mut seen = Seen {
            hooks: Runs::of(reports.iter().map(|(_, report)| report)),
            records: self.states(&records),
            ..Seen::default()
        };
        for record in records.readable() {
            seen.holders.push(self.holder(record));
        }
        seen.rails = rails::all(&self.store, &self.machine, &mut self.patience, &records);
        seen.seconds = begun.elapsed().as_secs_f64();
        Ok(seen)
    }

    /// What could not be read at the last look, a sentence each.
    fn missed(&self) -> Vec<String> {
        self.patience.missed.clone()
    }

    fn states(&self, records: &Records) -> BTreeMap<RecordState, u64> {
        let damaged = records.damaged().count() as u64;
        let mut all = BTreeMap::from([(RecordState::Damaged, damaged)]);
        for record in records.readable() {
            *all.entry(self.state(record)).or_default() += 1;
        }
        all
    }

    fn state(&self, record: &Record) -> RecordState {
        if !record.held_back.is_empty() {
            return RecordState::HeldBack;
        }
        if at_work::stale(&self.store, &self.machine, record) == Some(Stale::Abandoned) {
            return RecordState::Abandoned;
        }
        match record.phase {
            Phase::Attaching => RecordState::Attaching,
            Phase::Attached => RecordState::Attached,
            Phase::Restoring => RecordState::Restoring,
            Phase::Waiting => RecordState::Waiting,
        }
    }

    fn holder(&self, record: &Record) -> Holder {
        let mut members = record.members.iter();
        let living = members.find(|member| self.machine.is_alive(record, member));
        Holder {
            netns: record.netns,
            plan: record.plan.clone(),
            owner: owner::of(&self.store, record, living),
            nics: record.held.len(),
            seconds: living.map(age),
        }
    }
}

fn age(member: &Member) -> f64 {
    let began = member.start_time as f64 / TICKS;
    (clock::since_boot() as f64 - began).max(0.0)
}
