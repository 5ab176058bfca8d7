//! The OCI hooks, one function for each moment of a container's life, and CNI's CHECK.

mod check;
mod create;
mod inside;
mod start;
mod stop;
mod target;

use std::cell::RefCell;
use std::time::Instant;

use anyhow::Result;

use crate::container::late_conf;
use crate::deadline;
use crate::kernel::Namespaces;
use crate::kernel::process::pidfd::Process;
use crate::oci::state::State;
use crate::record::{Member, Record};
use crate::report::Report;
use crate::store::Store;
use crate::store::records::{Records, Seen};

pub use check::check;
pub use create::create;
pub use start::start;
pub use stop::stop;
pub use target::{NetnsKeeper, Target};

pub struct Hook<'a> {
    pub state: &'a State,
    pub store: &'a Store,
    pub machine: &'a dyn Namespaces,
    /// When the command began: times count from here.
    pub begun: Instant,
    /// When the work has to be done; an undo comes after it.
    pub deadline: Instant,
    /// Until when a create tries again, where it may not have the NICs yet: the deadline at most.
    pub retry_until: Instant,
    pub target: Target<'a>,
    /// The records as they were before the lock was there.
    seen: RefCell<Option<Seen>>,
}

impl<'a> Hook<'a> {
    /// A hook that has no time left: [`Hook::until`] gives it some.
    pub fn new(
        target: Target<'a>,
        state: &'a State,
        store: &'a Store,
        machine: &'a dyn Namespaces,
        begun: Instant,
    ) -> Hook<'a> {
        Hook {
            state,
            store,
            machine,
            begun,
            deadline: begun,
            retry_until: begun,
            target,
            seen: RefCell::default(),
        }
    }

    pub fn until(self, deadline: Instant, retry_until: Instant) -> Hook<'a> {
        Hook {
            deadline,
            retry_until: retry_until.min(deadline),
            ..self
        }
    }

    fn read_records(&self) -> Result<Records<'a>> {
        Records::read_again(self.store, self.machine.boot_id(), self.seen.take())
    }

    /// Asks the records before the lock is there: they are read once for all such questions.
    fn ask_early<T>(&self, ask: impl FnOnce(&Records) -> T) -> Result<T> {
        let seen = match self.seen.take() {
            Some(seen) => Records::of(self.store, seen),
            None => Records::peek(self.store, self.machine.boot_id())?,
        };
        let answer = ask(&seen);
        self.seen.replace(Some(seen.into()));
        Ok(answer)
    }

    /// That of the agreement for which config.json was edited.
    fn agreed_digest(&self) -> Option<&'a str> {
        self.target.facts()?.agreed_digest.as_deref()
    }

    /// Whether a member is what this hook is called for: ids are unique only within a runtime, so
    /// the bundle has to agree where both are known. A sandbox and its attachments have one id.
    fn is_for(&self, member: &Member) -> bool {
        let State { id, bundle, .. } = self.state;
        member.id == *id
            && match (&member.cni, self.target.attachment()) {
                (None, None) => {
                    bundle.is_empty() || member.bundle.is_empty() || member.bundle == *bundle
                }
                (Some(a), Some(b)) => a.network == b.network && a.ifname == b.ifname,
                _ => false,
            }
    }

    /// The record of its NICs that are away; not that of NICs which are back and wait.
    fn own_record<'r>(&self, records: &'r Records) -> Option<&'r Record> {
        let mut away = records.readable().filter(|r| !r.is_back());
        away.find(|r| r.members.iter().any(|m| self.is_for(m)))
    }

    pub fn record(&self) -> Result<Option<Record>> {
        Ok(self.own_record(&self.read_records()?).cloned())
    }

    /// What its NICs weigh for its deadline, as far as that can be read: one with many channels
    /// counts as several.
    pub fn deadline_weight(&self) -> usize {
        let weight = self.ask_early(|records| {
            self.own_record(records)
                .map_or(0, |record| deadline::weight_of_moved(&record.held))
        });
        weight.unwrap_or(0)
    }
}

/// Whether another container that lives has this one's id: the report of that id is its.
pub fn has_namesake(state: &State, store: &Store, machine: &dyn Namespaces) -> bool {
    let Ok(records) = Records::read(store, machine.boot_id()) else {
        return false;
    };
    records.readable().any(|r| {
        r.members.iter().any(|m| {
            m.id == state.id
                && m.cni.is_none()
                && Some(i64::from(m.pid)) != state.pid
                && machine.is_alive(r, m)
        })
    })
}

/// Whether this very process is a member of what has NICs in that namespace.
pub fn is_held_by_us(hook: &Hook, netns: u64) -> Result<bool> {
    let pid = Process::current()?.pid();
    let records = hook.read_records()?;
    let record = records.of_netns(netns);
    Ok(record.is_some_and(|r| {
        let mut ours = r.members.iter().filter(|m| m.pid == pid);
        ours.any(|m| hook.machine.is_alive(r, m))
    }))
}

/// createContainer, in gVisor's gofer: mounts a file for NCCL's settings. The create hook, which
/// knows them, comes later, and finds the sandbox closed: it fills that file.
pub fn create_container(hook: &Hook, report: &mut Report) -> Result<()> {
    let why = late_conf::mount_late_conf(hook.state, hook.store)?;
    report.notes.extend(why);
    Ok(())
}

/// Whether the hook may change links. Where it may not, that is an error only if the container has
/// NICs: a user's runtime also calls hooks that are installed for all containers.
fn has_capabilities(hook: &Hook) -> Result<bool> {
    let Err(lacking) = hook.machine.require_capabilities() else {
        return Ok(true);
    };
    // Such a user may not even read the records.
    let has_nics = matches!(hook.record(), Ok(Some(_)));
    if has_nics { Err(lacking) } else { Ok(false) }
}
