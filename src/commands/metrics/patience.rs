//! Questions that a driver or the kernel's lock may keep from being answered: each is given up
//! after a while, and so are all together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use anyhow::Result;

/// For one question, and for all of a look: Prometheus gives up after 10 s.
const EACH: Duration = Duration::from_secs(2);
const ALL: Duration = Duration::from_secs(8);

type Job = Box<dyn FnOnce() + Send>;

/// One thread asks everything. It is left behind when a question is not answered, and ends once
/// that is.
#[derive(Default)]
pub(super) struct Patience {
    worker: Option<Sender<Job>>,
    /// Whether those that were given up have been answered since, by what was asked.
    given_up: BTreeMap<String, Arc<AtomicBool>>,
    deadline: Option<Instant>,
    /// What was not answered since [`Patience::begin`], and why.
    pub(super) missed: Vec<String>,
}

impl Patience {
    pub(super) fn begin(&mut self) {
        self.deadline = Some(Instant::now() + ALL);
        self.missed.clear();
        self.given_up
            .retain(|_, answered| !answered.load(Ordering::Acquire));
    }

    /// Nothing where there was no answer, or none in time.
    pub(super) fn ask<T: Send + 'static>(
        &mut self,
        what: &str,
        question: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Option<T> {
        match self.answer(what, question) {
            Ok(answer) => Some(answer),
            Err(why) => {
                self.missed.push(format!("{what} could not be read: {why}"));
                None
            }
        }
    }

    fn answer<T: Send + 'static>(
        &mut self,
        what: &str,
        question: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T, String> {
        if self.given_up.contains_key(what) {
            return Err("an earlier question is not answered yet".to_owned());
        }
        let time = self.deadline.map_or(EACH, left).min(EACH);
        if time.is_zero() {
            return Err(format!("the look took {} s", ALL.as_secs()));
        }
        let (answers, answer) = channel();
        let answered = Arc::new(AtomicBool::new(false));
        let its = answered.clone();
        self.hand_over(Box::new(move || {
            let _ = answers.send(question());
            its.store(true, Ordering::Release);
        }))?;
        match answer.recv_timeout(time) {
            Ok(answer) => answer.map_err(|e| format!("{e:#}")),
            Err(RecvTimeoutError::Timeout) => {
                self.worker = None;
                self.given_up.insert(what.to_owned(), answered);
                Err(format!("no answer in {:.0} s", time.as_secs_f64()))
            }
            Err(RecvTimeoutError::Disconnected) => {
                self.worker = None;
                Err("a thread has panicked".to_owned())
            }
        }
    }

    fn hand_over(&mut self, job: Job) -> Result<(), String> {
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => start()?,
        };
        let given = worker.send(job);
        self.worker = Some(worker);
        given.map_err(|_| "a thread has panicked".to_owned())
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

fn start() -> Result<Sender<Job>, String> {
    let (jobs, due) = channel::<Job>();
    let started = Builder::new().spawn(move || due.into_iter().for_each(|job| job()));
    started.map_err(|e| format!("starting a thread: {e}"))?;
    Ok(jobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_keeps_no_other_question_from_its_answer() {
        let mut patience = Patience::default();
        patience.begin();
        let (end, ended) = channel::<()>();
        let begun = Instant::now();
        let hanging = patience.ask("r0", move || {
            let _ = ended.recv();
            Ok(())
        });
        assert_eq!(hanging, None);
        assert_eq!(patience.ask("r1", || Ok(1)), Some(1));
        // It is not asked again while the first question waits.
        assert_eq!(patience.ask("r0", || Ok(2)), None);
        assert!(begun.elapsed() < EACH * 2, "{:?}", begun.elapsed());
        assert_eq!(patience.missed.len(), 2, "{:?}", patience.missed);
        drop(end);
        let answered = patience.given_up["r0"].clone();
        while !answered.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        patience.begin();
        assert_eq!(patience.ask("r0", || Ok(3)), Some(3));
        assert_eq!(patience.missed, [""; 0]);
    }

    #[test]
    fn errors_are_said_and_a_panic_is_no_end() {
        let mut patience = Patience::default();
        let failed: Option<()> = patience.ask("r0", || anyhow::bail!("no such device"));
        assert_eq!(failed, None);
        assert_eq!(patience.missed, ["r0 could not be read: no such device"]);
        assert_eq!(patience.ask::<()>("r1", || panic!("a test")), None);
        assert_eq!(patience.ask("r2", || Ok(1)), Some(1));
    }
}
