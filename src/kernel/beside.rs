//! Threads that read something while another one goes on.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

use anyhow::{Context, Result};

/// Some work on a thread of its own.
pub(super) struct Beside<T> {
    answer: Receiver<T>,
    end: Sender<()>,
}

/// Threads whose work is done. They end when this is dropped, after the NICs have moved: what a
/// thread leaves when it ends is freed by RCU, for which each move waits (docs/performance.md).
#[derive(Default)]
pub(super) struct Idle(Vec<Sender<()>>);

impl Idle {
    pub(super) fn end(&mut self) {
        self.0.clear();
    }
}

impl<T: Send + 'static> Beside<T> {
    pub(super) fn begin(work: impl FnOnce() -> T + Send + 'static) -> Result<Beside<T>> {
        let ((answers, answer), (end, ended)) = (channel(), channel());
        let run = move || {
            // Where something else has failed, its answer is not waited for.
            let _ = answers.send(work());
            let _ = ended.recv();
        };
        let begun = Builder::new().spawn(run).context("starting a thread")?;
        drop(begun);
        Ok(Beside { answer, end })
    }

    pub(super) fn answer(self, idle: &mut Idle) -> Result<T> {
        idle.0.push(self.end);
        self.answer.recv().context("a thread has panicked")
    }
}
