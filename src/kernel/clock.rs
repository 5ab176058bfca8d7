//! A clock that no one can set.

use rustix::time::{ClockId, clock_gettime};

/// Seconds since this machine has booted, with those that it slept.
pub fn since_boot() -> i64 {
    clock_gettime(ClockId::Boottime).tv_sec
}
