//! Records while hooks may be at work: one that looks stale may be of a hook that runs, and holds
//! the lock.

use std::time::Instant;

use anyhow::Result;
use rdma_model::error_class::ErrorClass;

use crate::doctor::facts::Stale;
use crate::kernel::{Namespaces, ThisMachine};
use crate::record::{Phase, Record};
use crate::restore::stays_for::{AskedBy, StaysFor, stays_for};
use crate::store::Store;
use crate::store::records::Records;

/// Whether a hook, or another rdmaprep that changes something, is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtWork {
    Yes,
    No,
    /// No record makes it a question, or the lock cannot be asked.
    Unknown,
}

pub(super) fn records<'a>(
    store: &'a Store,
    machine: &ThisMachine,
) -> Result<(Records<'a>, AtWork)> {
    let records = Records::read(store, machine.boot_id())?;
    let is_clear = |record| matches!(stale(store, machine, record), None | Some(Stale::Waiting));
    if records.readable().all(is_clear) {
        return Ok((records, AtWork::Unknown));
    }
    match store.lock(Instant::now()) {
        Ok(_lock) => Ok((Records::read(store, machine.boot_id())?, AtWork::No)),
        Err(e) if ErrorClass::of(&e) == ErrorClass::Locked => Ok((records, AtWork::Yes)),
        Err(_) => Ok((records, AtWork::Unknown)),
    }
}

/// Why no hook will end a record, unless one is at work.
pub(super) fn stale(store: &Store, machine: &ThisMachine, record: &Record) -> Option<Stale> {
    if record.is_back() {
        return Some(Stale::Waiting);
    }
    match stays_for(machine, record, AskedBy::Reclaim(store)) {
        None => Some(Stale::Abandoned),
        // A container that has joined a hold keeps the NICs when that ends.
        Some(StaysFor::Process(_)) if record.hold.is_none() => Some(Stale::Lingering),
        Some(StaysFor::Container(_)) if record.phase != Phase::Attached => Some(Stale::Unfinished),
        Some(_) => None,
    }
}
