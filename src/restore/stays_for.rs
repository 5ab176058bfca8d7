//! What NICs stay in their namespace for. A hook asks that; so do what returns NICs for which no
//! hook came, and what shows them.

use crate::kernel::Namespaces;
use crate::record::{Phase, Record};
use crate::store::Store;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StaysFor {
    /// The claim of their pod, whether or not a container of it runs.
    Claim,
    /// A container that lives, by its id.
    Container(String),
    /// A process in the namespace that is none of their containers, by its pid.
    Process(i32),
}

/// Whose question it is, which decides what counts.
#[derive(Clone, Copy)]
pub enum AskedBy<'a> {
    /// A container's hook. As containers have hooks, another process counts only in what `rdmaprep
    /// hold` has made, for any to join; and the one with that pid does not.
    Hook(&'a Store, Option<i32>),
    /// What returns NICs for which no hook came: any process may be left of their container.
    Reclaim(&'a Store),
    /// Who would take them from those that use them: a claim is no matter then.
    NextUser,
}

/// What the NICs of a record stay for, if for anything. Those that are back do not: all that is
/// left is for their manager.
pub fn stays_for(machine: &dyn Namespaces, record: &Record, asked_by: AskedBy) -> Option<StaysFor> {
    if record.is_back() {
        return None;
    }
    if let AskedBy::Hook(store, _) | AskedBy::Reclaim(store) = asked_by
        && store.claim_keeps_nics(record)
    {
        return Some(StaysFor::Claim);
    }
    let mut members = record.members.iter();
    if let Some(member) = members.find(|m| machine.is_alive(record, m)) {
        return Some(StaysFor::Container(member.id.clone()));
    }
    let (processes_count, except_pid) = match asked_by {
        AskedBy::Hook(_, pid) => (record.hold.is_some(), pid),
        // Before the record says that they are attached, none was promised any.
        _ => (record.phase != Phase::Attaching, None),
    };
    if !processes_count {
        return None;
    }
    machine
        .occupant(record.netns, except_pid)
        .map(StaysFor::Process)
}
