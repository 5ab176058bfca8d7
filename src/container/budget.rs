//! What a look at an image may cost: its author chooses how many files, names and entries there
//! are. Once the budget is spent, what was found so far proves nothing.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// A look at a distribution's image takes a few milliseconds and reads less than 1 MiB.
const TIME: Duration = Duration::from_secs(1);
const BYTES: usize = 16 << 20;

pub struct Budget<'w> {
    end: Instant,
    left: Cell<usize>,
    /// Its sender lives as long as the result is waited for.
    waiter: Option<&'w Receiver<()>>,
}

impl Budget<'_> {
    pub fn new(waiter: Option<&Receiver<()>>) -> Budget<'_> {
        Budget {
            waiter,
            ..Budget::of(TIME)
        }
    }

    /// A budget of that time, for a look that no channel ends.
    pub fn of(time: Duration) -> Budget<'static> {
        Budget {
            end: Instant::now() + time,
            left: Cell::new(BYTES),
            waiter: None,
        }
    }

    /// Every loop over what an image has asks this.
    pub fn lasts(&self) -> bool {
        let is_awaited =
            |waiter: &Receiver<()>| waiter.try_recv() != Err(TryRecvError::Disconnected);
        self.left.get() > 0 && Instant::now() < self.end && self.waiter.is_none_or(is_awaited)
    }

    /// Bytes that may still be read.
    pub(super) fn left(&self) -> usize {
        self.left.get()
    }

    pub(super) fn take(&self, bytes: usize) {
        self.left.set(self.left.get().saturating_sub(bytes));
    }

    pub fn give_up(&self) {
        self.left.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_budget_ends_by_time_by_bytes_and_with_its_waiter() {
        const LONG: Duration = Duration::from_secs(3600);
        assert!(!Budget::of(Duration::ZERO).lasts());
        let read = Budget::of(LONG);
        read.take(BYTES - 1);
        assert!(read.lasts());
        read.take(2);
        assert!(!read.lasts());
        let (waits, waiter) = mpsc::channel();
        let awaited = Budget {
            waiter: Some(&waiter),
            ..Budget::of(LONG)
        };
        assert!(awaited.lasts());
        drop(waits);
        assert!(!awaited.lasts());
    }
}
