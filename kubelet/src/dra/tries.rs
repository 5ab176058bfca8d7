//! Something to be written at the API server that may fail: when it is tried again, and one line
//! for each new reason.

use std::time::{Duration, Instant};

use anyhow::Result;

/// Between two tries, and from that on twice as long after each that failed, up to the other.
pub const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

pub struct Tries {
    pub not_before: Instant,
    pub failures: u32,
    /// Why the last one failed.
    why: Option<String>,
}

impl Default for Tries {
    fn default() -> Tries {
        Tries {
            not_before: Instant::now(),
            failures: 0,
            why: None,
        }
    }
}

impl Tries {
    /// `what` is written, or not.
    pub fn note(&mut self, what: &str, done: Result<()>, log: fn(&str)) {
        let why = done.err().map(|e| format!("{e:#}"));
        match (&why, &self.why) {
            (Some(why), known) if known.as_ref() != Some(why) => {
                log(&format!("{what} is not written: {why}"));
            }
            (None, Some(_)) => log(&format!("{what} is written")),
            _ => {}
        }
        match why.is_some() {
            true => self.failures += 1,
            false => self.failures = 0,
        }
        // From when it has failed, which may have taken long.
        let pause = PAUSE.0 * 2_u32.saturating_pow(self.failures.min(16));
        self.not_before = Instant::now() + pause.min(PAUSE.1);
        self.why = why;
    }
}
