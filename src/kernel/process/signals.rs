use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};
use rustix::process::set_parent_process_death_signal;

/// This process is killed when the thread that started it ends, however that ends.
pub fn end_with_parent() -> Result<()> {
    set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .context("following the process that started this one")
}

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
