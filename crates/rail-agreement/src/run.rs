//! Runs a [`Node`] over a [`Store`], within one deadline.

use std::time::{Duration, Instant};

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};

use super::keys::rank_of;
use super::node::{Action, Agreement, Event, Node, Setup, Stage};
use super::{Store, message};

#[derive(Debug)]
pub struct Waiting {
    pub stage: Stage,
    /// The first ranks that rank 0 waits for; empty on any other rank, which waits for rank 0.
    pub missing: Vec<u32>,
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

const LOST: &str = "the rendezvous store";
const UNSURE: &str = "the rendezvous store was lost as the commit was written (others may have \
    committed; here nothing was moved)";
const PLEDGED: &str = "the rendezvous store was lost after this node's yes (others may have \
    committed; here nothing was moved)";
const NAMED: usize = 8;

/// Rank 0 gives up 2 s earlier, or a tenth of the time, so that the others can still read why.
fn own_deadline(rank: u32, deadline: Instant) -> Instant {
    let left = deadline.saturating_duration_since(Instant::now());
    let early = if rank == 0 {
        (left / 10).min(Duration::from_secs(2))
    } else {
        Duration::ZERO
    };
    deadline.checked_sub(early).unwrap_or(deadline)
}

/// Agrees with all other nodes by the deadline. `judge` decides whether this node can carry out
/// just these rails. The others count on a yes, so it does everything that can fail short of
/// changing the machine; its error is this node's no, which ends the attempt for all. `watch` is
/// called between waits. The error is that of `judge`, else [`ErrorClass::Disagreed`]: nothing was
/// changed but keys in the store, and the text names the missing ranks, the node that refused, or
/// the failure of the store.
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
            Action::Put(pairs) => store
                .put(&pairs)
                .map(|()| Event::Done)
                .class(ErrorClass::Disagreed, LOST)?,
            Action::Commit(pairs) => store
                .put(&pairs)
                .map(|()| Event::Done)
                .class(ErrorClass::Disagreed, UNSURE)?,
            Action::TryRead(keys) => {
                Event::Read(store.read(&keys).unwrap_or_else(|_| vec![None; keys.len()]))
            }
            Action::Judge(agreement) => Event::Judged(judge(&agreement)),
            // A key that stays behind does not change the decision.
            Action::Delete(keys) => store.delete(&keys).map_or(Event::Done, |()| Event::Done),
            Action::PutUnconfirmed(pairs) => store
                .put_unconfirmed(&pairs)
                .map(|()| Event::Done)
                .class(ErrorClass::Disagreed, LOST)?,
            Action::PutBestEffort(pairs) => {
                store.put_best_effort(&pairs);
                Event::Done
            }
            Action::Read(keys) => store
                .read(&keys)
                .map(Event::Read)
                .class(ErrorClass::Disagreed, LOST)?,
            // Nor does a node that has not read it; but in a store that shows it only after a
            // flush, no node could.
            Action::Await {
                keys,
                slice,
                stage: Stage::Farewell,
            } => match store.flush(last) {
                Ok(true) => store
                    .await_readers(&keys, Instant::now() + slice)
                    .ok()
                    .flatten()
                    .map_or(Event::Missing, Event::Values),
                _ => Event::Late,
            },
            Action::Await { keys, slice, stage } => {
                let until = deadline.min(Instant::now() + slice);
                let got = store.get(&keys, until);
                if got.is_err() && stage == Stage::Refused {
                    event = Event::Late;
                    continue;
                }
                match got.class(
                    ErrorClass::Disagreed,
                    if stage == Stage::Verdict {
                        PLEDGED
                    } else {
                        LOST
                    },
                )? {
                    Some(values) => Event::Values(values),
                    None if Instant::now() >= deadline => Event::Late,
                    None => {
                        if let Some(watch) = watch.as_mut().filter(|_| !slice.is_zero()) {
                            let missing = if rank == 0 {
                                store
                                    .missing(&keys, NAMED)
                                    .class(ErrorClass::Disagreed, LOST)?
                            } else {
                                Vec::new()
                            };
                            // The keys may be those of some ranks alone.
                            let missing = missing
                                .into_iter()
                                .filter_map(|at| rank_of(keys.get(at)?))
                                .collect();
                            watch(Waiting {
                                stage,
                                missing,
                                elapsed: start.elapsed(),
                            });
                        }
                        Event::Missing
                    }
                }
            }
            Action::End(result) => return result,
        };
    }
}
