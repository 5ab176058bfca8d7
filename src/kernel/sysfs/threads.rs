//! Reading a /sys with several threads: its devices have nothing to do with one another, and the
//! kernel answers each caller.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, available_parallelism, scope};

use super::root::Root;

/// More would wait for each other: every open takes the lock of its directory.
const MOST: usize = 8;

/// Fewer are read sooner than a thread is made.
const FEWEST: usize = 8;

/// Pieces for each thread, so that none waits long for another's last one.
const PIECES: usize = 4;

type Done<R> = Mutex<Vec<(usize, Vec<R>)>>;

/// What the work makes of all items, piece by piece, in their order. The caller is one of the
/// threads: where no other can be made, it does it all.
pub(super) fn each<T: Sync, R: Send>(
    root: &Root,
    items: &[T],
    work: impl Fn(&Root, &[T]) -> Vec<R> + Sync,
) -> Vec<R> {
    let threads = available_parallelism().map_or(1, usize::from).min(MOST);
    if threads == 1 || items.len() < FEWEST {
        return work(root, items);
    }
    let pieces: Vec<&[T]> = items
        .chunks(items.len().div_ceil(threads * PIECES))
        .collect();
    let (next, done, beside) = (AtomicUsize::new(0), Done::default(), root.beside());
    let help = |root: &Root| {
        while let Some((at, piece)) = take(&next, &pieces) {
            let made = work(root, piece);
            done.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((at, made));
        }
    };
    scope(|scope| {
        let mut helpers = Vec::new();
        for _ in 1..threads {
            helpers.extend(Builder::new().spawn_scoped(scope, || help(&beside())));
        }
        help(root);
        let panicked: Vec<_> = helpers
            .into_iter()
            .filter_map(|helper| helper.join().err())
            .collect();
        if let Some(panicked) = panicked.into_iter().next() {
            resume_unwind(panicked);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().flat_map(|(_, made)| made).collect()
}

fn take<'p, T>(next: &AtomicUsize, pieces: &[&'p [T]]) -> Option<(usize, &'p [T])> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    Some((at, *pieces.get(at)?))
}
