//! Runs a [`Node`] over a [`Store`], within one deadline.

use std::time::{Duration, Instant};

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};

use super::keys::rank_of;
use super::node::{Act, Agreement, Event, Node, Setup, Stage};
use super::{Store, message};

/// What a node is waiting for, for people.
#[derive(Debug)]
pub struct Waiting {
    /// What for.
    pub stage: Stage,
    /// The first ranks that it waits for; empty where that is rank 0.
    pub missing: Vec<u32>,
    /// Since when.
    pub elapsed: Duration,
}

impl Waiting {
    /// `12 s: waiting for ranks 4, 7`.
    pub fn line(&self) -> String {
        let whom = match self.missing.is_empty() {
            true => "rank 0".to_owned(),
            false => message::ranks(&self.missing),
        };
        let what = match self.stage {
            Stage::Offers | Stage::Leader => "to publish",
            Stage::Proposal => "to propose",
            Stage::Acks => "to answer",
            Stage::Verdict | Stage::Refused => "to decide",
            Stage::Farewell => "to hear of the end",
        };
        format!("{} s: waiting for {whom} {what}", self.elapsed.as_secs())
    }
}

/// What every failure of the store is told as.
const LOST: &str = "the rendezvous store";
/// The same for the commit.
const UNSURE: &str =
    "the rendezvous store was lost as the commit was written (others may have committed; here nothing was moved)";
/// The same for who has said yes.
const PLEDGED: &str =
    "the rendezvous store was lost after this node's yes (others may have committed; here nothing was moved)";
/// How many of those that are waited for are looked up.
const NAMED: usize = 8;

/// Rank 0 gives up a little earlier than the others, who can hear why then.
fn own_deadline(rank: u32, deadline: Instant) -> Instant {
    let left = deadline.saturating_duration_since(Instant::now());
    let early = if rank == 0 { (left / 10).min(Duration::from_secs(2)) } else { Duration::ZERO };
    deadline.checked_sub(early).unwrap_or(deadline)
}

/// Agrees with all other nodes, or fails by the deadline with the missing ranks, or what else the reason is.
/// `judge` says whether this node can do with what is proposed: a node that says yes is counted on, so all that can fail is to fail
/// there, where it is a no that ends it for all.
///
/// # Errors
/// What `judge` said; else [`ErrorClass::Disagreed`]: nothing holds, and each node that hears of it says so. Nothing was changed but keys in the store.
pub fn agree(
    store: &mut dyn Store,
    setup: Setup,
    deadline: Instant,
    judge: &mut dyn FnMut(&Agreement) -> Result<()>,
    mut watch: Option<&mut dyn FnMut(Waiting)>,
) -> Result<Agreement> {
    let (rank, start) = (setup.rank, Instant::now());
    let (last, deadline) = (deadline, own_deadline(rank, deadline));
    let mut node = Node::new(setup, store.persists())?;
    let mut event = Event::Begin;
    loop {
        event = match node.next(event) {
            Act::Put(pairs) => store.put(&pairs).map(|()| Event::Done).class(ErrorClass::Disagreed, LOST)?,
            Act::Commit(pairs) => store.put(&pairs).map(|()| Event::Done).class(ErrorClass::Disagreed, UNSURE)?,
            Act::Peek(keys) => Event::Read(store.read(&keys).unwrap_or_else(|_| vec![None; keys.len()])),
            Act::Judge(agreement) => Event::Judged(judge(&agreement)),
            // What cannot be tidied up does not change what was decided.
            Act::Delete(keys) => store.delete(&keys).map_or(Event::Done, |()| Event::Done),
            Act::Tell(pairs) => store.tell(&pairs).map(|()| Event::Done).class(ErrorClass::Disagreed, LOST)?,
            // Whoever cannot say that it has heard the end has heard it all the same.
            Act::Hint(pairs) => {
                store.hint(&pairs);
                Event::Done
            }
            Act::Read(keys) => store.read(&keys).map(Event::Read).class(ErrorClass::Disagreed, LOST)?,
            // Nor does it that somebody may not have heard of it; but that nobody could.
            Act::Await { keys, slice, stage: Stage::Farewell } => match store.settle(last) {
                Ok(true) => {
                    store.farewell(&keys, Instant::now() + slice).ok().flatten().map_or(Event::Missing, Event::Values)
                }
                _ => Event::Late,
            },
            Act::Await { keys, slice, stage } => {
                let until = deadline.min(Instant::now() + slice);
                let got = store.get(&keys, until);
                if got.is_err() && stage == Stage::Refused {
                    event = Event::Late;
                    continue;
                }
                match got.class(ErrorClass::Disagreed, if stage == Stage::Verdict { PLEDGED } else { LOST })? {
                    Some(values) => Event::Values(values),
                    None if Instant::now() >= deadline => Event::Late,
                    None => {
                        if let Some(watch) = watch.as_mut().filter(|_| !slice.is_zero()) {
                            let missing = if rank == 0 {
                                store.missing(&keys, NAMED).class(ErrorClass::Disagreed, LOST)?
                            } else {
                                Vec::new()
                            };
                            // Not all may be waited for.
                            let missing = missing.into_iter().filter_map(|at| rank_of(keys.get(at)?)).collect();
                            watch(Waiting { stage, missing, elapsed: start.elapsed() });
                        }
                        Event::Missing
                    }
                }
            }
            Act::End(result) => return result,
        };
    }
}
