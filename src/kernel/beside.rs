//! Threads that read something while another one goes on.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
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

/// What it does that work with is held by the caller: until the thread ends, if there is one.
fn do_once<H, T>(
    work: &Mutex<Option<(H, impl FnOnce(&H) -> T)>>,
    answers: &Sender<T>,
) -> Option<H> {
    let (with, work) = work.lock().ok()?.take()?;
    // Where something else has failed, its answer is not waited for.
    let _ = answers.send(work(&with));
    Some(with)
}

impl<T: Send + 'static> Beside<T> {
    /// Where no thread can be started, as in a cgroup that has too many, the work is done here.
    /// What it is done `with` is let go as the thread ends: that may take long as well.
    pub(super) fn begin<H: Send + 'static>(
        with: H,
        work: impl FnOnce(&H) -> T + Send + 'static,
    ) -> Beside<T> {
        let ((answers, answer), (end, ended)) = (channel(), channel());
        let work = Arc::new(Mutex::new(Some((with, work))));
        let (its_work, its_answers) = (work.clone(), answers.clone());
        let run = move || {
            let _with = do_once(&its_work, &its_answers);
            let _ = ended.recv();
        };
        if Builder::new().spawn(run).is_err() {
            do_once(&work, &answers);
        }
        Beside { answer, end }
    }

    pub(super) fn answer(self, idle: &mut Idle) -> Result<T> {
        idle.0.push(self.end);
        self.answer.recv().context("a thread has panicked")
    }
}
