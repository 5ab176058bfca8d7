use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};

pub struct Signals(SigSet);

impl Signals {
    /// Keeps SIGTERM, SIGINT and SIGHUP from this thread and those that it starts: call it before
    /// there are others, since the signal would end the process through any of them.
    pub fn block() -> Result<Signals> {
        let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]
            .into_iter()
            .collect();
        signals.thread_block().context("blocking signals")?;
        Ok(Signals(signals))
    }

    /// Sleeps until one of them comes, or has come.
    pub fn wait(&self) -> Result<()> {
        self.0.wait().context("waiting for a signal").map(drop)
    }
}
