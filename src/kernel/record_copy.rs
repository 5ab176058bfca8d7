//! The copy of a record that outlasts a reboot, written while the kernel moves NICs.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use rdma_model::error_class::ErrorClass;

use crate::kernel::faults;
use crate::kernel::host::files;

/// A copy of a record as it is written, on a thread of its own, which ends after this value does: a
/// thread that ends beside moves makes them slower (docs/performance.md).
pub struct RunningCopy {
    done: Receiver<Result<()>>,
    unwanted: Arc<Mutex<bool>>,
    /// Its end lets the thread end.
    _moves: Sender<()>,
}

impl RunningCopy {
    /// Begins to write it. A build with fault points writes it at once: their order is to be the
    /// same each time.
    pub fn begin(
        path: PathBuf,
        print: impl FnOnce() -> Result<String> + Send + 'static,
    ) -> Result<RunningCopy> {
        let (sender, done) = mpsc::sync_channel(1);
        let unwanted = Arc::new(Mutex::new(false));
        let (moves, ended) = mpsc::channel();
        let copy = RunningCopy {
            done,
            unwanted: Arc::clone(&unwanted),
            _moves: moves,
        };
        let write = move || {
            let replace = |text: String| {
                faults::around(WRITING, || {
                    files::replace_unless(&unwanted, &path, text.as_bytes(), 0o600)
                })
            };
            drop(sender.send(print().and_then(replace)));
        };
        if faults::ARE_ARMED {
            write();
        } else {
            let work = move || {
                write();
                let _ = ended.recv();
            };
            thread::Builder::new()
                .spawn(work)
                .context("starting a thread")?;
        }
        Ok(copy)
    }

    /// Waits for the end, but no longer than until `deadline` ([`ErrorClass::Timeout`]): what is
    /// not in its place by then is never put there.
    pub fn end(self, deadline: Instant) -> Result<()> {
        let done = self
            .done
            .recv_timeout(deadline.saturating_duration_since(Instant::now()));
        done.unwrap_or_else(|e| {
            Err(match e {
                RecvTimeoutError::Timeout => {
                    ErrorClass::Timeout.error("writing the record's copy took too long")
                }
                RecvTimeoutError::Disconnected => ErrorClass::Other.error("a thread panicked"),
            })
        })
    }
}

/// What nothing waits for any more comes too late.
impl Drop for RunningCopy {
    fn drop(&mut self) {
        *self.unwanted.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

pub const WRITING: &str = "writing the record's copy";
