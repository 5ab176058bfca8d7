//! Signals that end a process of ours at a time of its own choosing.

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};

/// Signals that wait until they are asked for.
pub struct Signals(SigSet);

impl Signals {
    /// Keeps SIGTERM, SIGINT and SIGHUP from this thread and those that it starts: call it before there are others, of which any
    /// one would die of them.
    pub fn block() -> Result<Signals> {
        let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
        signals.thread_block().context("blocking signals")?;
        Ok(Signals(signals))
    }

    /// Sleeps until one of them comes, or has come.
    pub fn wait(&self) -> Result<()> {
        self.0.wait().context("waiting for a signal").map(drop)
    }
}
