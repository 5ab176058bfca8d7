//! What is written before the NICs move, the moves, and the undo.

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::snapshot::Snapshot;
use rdma_model::step::Step;

use crate::apply::apply_timed;
use crate::container::running_setup::RunningSetup;
use crate::container::setup::SetupPlan;
use crate::kernel::{Pin, World};
use crate::record::{Phase, Record};
use crate::report::Lap;
use crate::restore::SETTLE;
use crate::restore::run::restore_opened;
use crate::store::settings_files::SettingsFile;

use super::waiting::replace_waiting;
use super::{Attempt, Create};
use crate::hook::Hook;
use crate::hook::inside::{ConfAll, order_inside, verify_inside};

impl Create<'_> {
    /// Writes the record, before which nothing moves; then moves and verifies, and undoes
    /// everything if that fails.
    pub(super) fn carry_out(
        &mut self,
        mut attempt: Attempt,
        mut record: Record,
        steps: &[Step],
        setup: Option<SetupPlan>,
    ) -> Result<()> {
        if let Err(e) = attempt.records.save(&record) {
            // If a file is there all the same, and stays, it is of NICs that never left: a restore
            // finds nothing to do.
            let _ = attempt.records.forget(&record);
            return Err(e);
        }
        // If this fails, the record stays: what earlier restores owed may be in it alone by now.
        replace_waiting(&mut attempt.records, &record)?;
        self.attach(&mut attempt, &mut record, steps, setup)
            .or_else(|why| self.undo(attempt, record, &why))
    }

    /// Brings back what has moved. Always an error: `why` it had to.
    fn undo(&mut self, mut attempt: Attempt, record: Record, why: &anyhow::Error) -> Result<()> {
        let (machine, world) = (self.hook.machine, &mut *attempt.world);
        let undone = restore_opened(machine, world, &mut attempt.records, record, SETTLE);
        // Of the create's own none has an effect any more.
        self.report.steps_done = 0;
        self.end_lap(Lap::Undo);
        undone.class(
            ErrorClass::Incomplete,
            format!("{why:#}; and the undo is incomplete"),
        )?;
        Err(ErrorClass::of(why).error(format!("{why:#}; everything is undone")))
    }

    /// Pins the namespace, moves, verifies and records that. What the container shall find is put
    /// there while the kernel moves the NICs.
    fn attach(
        &mut self,
        attempt: &mut Attempt,
        record: &mut Record,
        steps: &[Step],
        setup: Option<SetupPlan>,
    ) -> Result<()> {
        let Attempt {
            recipient,
            world,
            records,
            ..
        } = attempt;
        let world = &mut **world;
        // After the record: `reclaim` drops a pin that has none.
        let pinned = pin(self.hook, world, record);
        self.end_lap(Lap::Record);
        pinned?;
        let setup = setup.map(RunningSetup::begin);
        let (begun, report) = (self.hook.begun, &mut *self.report);
        apply_timed(steps, world, self.hook.deadline, |step, is_done| {
            report.steps_done += usize::from(is_done);
            report.end_lap(begun, lap_of(step));
        })?;
        let ordered = order_inside(world, record, report);
        let verified =
            ordered.and_then(|()| verify_inside(world, record, ConfAll::JustSet, report));
        report.end_lap(begun, Lap::Verify);
        // A container may rename its NICs: a restore knows them by their indexes.
        learn_indexes(record, &verified?);
        self.finish_setup(setup, &SettingsFile::OfNamespace(record.netns), *recipient)?;
        let attached = Record {
            phase: Phase::Attached,
            ..record.clone()
        };
        // A copy: if it cannot be saved, `undo` has the record by which no container ran.
        let saved = records.save(&attached);
        self.end_lap(Lap::Record);
        saved
    }
}

fn learn_indexes(record: &mut Record, inside: &Snapshot) {
    for held in &mut record.held {
        let dev = inside.netdev(held.name());
        held.inside.netdev.ifindex = dev.map_or(0, |dev| dev.ifindex);
    }
}

fn pin(hook: &Hook, world: &mut dyn World, record: &Record) -> Result<()> {
    world.pin(Pin::Own(&hook.store.pin(record.netns)))?;
    record
        .hold
        .iter()
        .try_for_each(|hold| world.pin(Pin::Named(&hold.path)))
}

fn lap_of(step: &Step) -> Lap {
    match step {
        Step::Move { .. } | Step::RdmaMove { .. } => Lap::Move,
        Step::AwaitPort { .. } => Lap::GidWait,
        _ => Lap::Configure,
    }
}
