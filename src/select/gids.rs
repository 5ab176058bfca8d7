//! Which rails stay, by the GIDs that NCCL takes of all of them together. A rail that is left out
//! is no reason to leave out another.

use super::candidates::Context;
use super::{Verdict, families, stay_behind, taken_gids};

/// What comes along with others, with what it was before, by its place.
type Along = [(usize, Verdict)];

/// The answer is that of [`taken_gids::follow`].
pub(super) fn settle(
    context: &Context,
    verdicts: &mut Vec<Verdict>,
    along: &Along,
) -> Option<String> {
    let planned = verdicts.clone();
    let mut range = judge(context, verdicts);
    let mut before = count(&planned);
    while count(verdicts) > before {
        before = count(verdicts);
        *verdicts = stay(context, &planned, verdicts, along, None);
        range = judge(context, verdicts);
    }
    for at in 0..planned.len() {
        if is_out(&planned[at]) || !is_out(&verdicts[at]) {
            continue;
        }
        let mut with = stay(context, &planned, verdicts, along, Some(at));
        let its = judge(context, &mut with);
        if is_out(&with[at]) {
            verdicts[at] = with.swap_remove(at);
        } else if count(&with) < count(verdicts) {
            (*verdicts, range) = (with, its);
        }
    }
    range
}

fn judge(context: &Context, verdicts: &mut [Verdict]) -> Option<String> {
    families::agree(context, verdicts);
    let range = taken_gids::follow(context, verdicts);
    families::share_index(context, verdicts);
    range
}

fn is_out(verdict: &Verdict) -> bool {
    verdict.dropped.is_some()
}

fn count(verdicts: &[Verdict]) -> usize {
    verdicts.iter().filter(|v| is_out(v)).count()
}

/// Those that stay, one more, and what comes along with them, as they were planned.
fn stay(
    context: &Context,
    planned: &[Verdict],
    verdicts: &[Verdict],
    along: &Along,
    more: Option<usize>,
) -> Vec<Verdict> {
    let mut all = verdicts.to_vec();
    for (at, verdict) in all.iter_mut().enumerate() {
        let comes = along.iter().any(|(other, _)| *other == at);
        if !is_out(verdict) || comes || Some(at) == more {
            *verdict = planned[at].clone();
        }
    }
    stay_behind(context.snapshot, &mut all, along);
    all
}
