use std::time::Instant;

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::IfName;
use rdma_model::snapshot::Snapshot;

use crate::container::setup::SetupNotes;
use crate::report::{Report, Stopwatch};

/// What a hook did. Each field is that of the same name in [`Report`].
#[derive(Debug)]
pub struct Outcome {
    pub plan: Option<String>,
    pub nics: Vec<IfName>,
    pub rails: Vec<String>,
    pub steps: usize,
    /// What the container got besides; its notes are among those here.
    pub setup: SetupNotes,
    pub memlock: Option<String>,
    pub notes: Vec<String>,
    pub drift: Vec<String>,
    pub watch: Stopwatch,
}

/// A hook that failed, and what it had done and noted until then.
#[derive(Debug)]
pub struct Failure {
    pub error: anyhow::Error,
    pub outcome: Outcome,
}

pub type Ended = Result<Outcome, Box<Failure>>;

impl Outcome {
    /// Nothing was done yet; times count from `begun`.
    pub fn since(begun: Instant) -> Outcome {
        Outcome {
            plan: None,
            nics: Vec::new(),
            rails: Vec::new(),
            steps: 0,
            setup: SetupNotes::default(),
            memlock: None,
            notes: Vec::new(),
            drift: Vec::new(),
            watch: Stopwatch::since(begun),
        }
    }

    pub fn end(self, result: Result<()>) -> Ended {
        match result {
            Ok(()) => Ok(self),
            Err(error) => Err(Box::new(Failure {
                error,
                outcome: self,
            })),
        }
    }

    pub fn conclude(ended: Ended, report: &mut Report) -> Result<()> {
        let (outcome, result) = match ended {
            Ok(outcome) => (outcome, Ok(())),
            Err(failure) => (failure.outcome, Err(failure.error)),
        };
        report.plan = outcome.plan;
        report.nics = outcome.nics;
        report.rails = outcome.rails;
        report.steps_done = outcome.steps;
        report.sysfs = outcome.setup.sysfs;
        report.taken = outcome.setup.taken;
        report.settings = outcome.setup.settings;
        report.memlock = outcome.memlock;
        report.notes.extend(outcome.notes);
        report.drift = outcome.drift;
        report.finish(&result, &outcome.watch);
        result
    }

    /// Adds notes, but for those that an earlier try has left already.
    pub(super) fn note_once(&mut self, notes: Vec<String>) {
        let new: Vec<String> = notes
            .into_iter()
            .filter(|note| !self.notes.contains(note))
            .collect();
        self.notes.extend(new);
    }

    pub(super) fn add_setup(&mut self, mut notes: SetupNotes) {
        self.notes.append(&mut notes.notes);
        self.setup.add(notes);
    }

    pub(super) fn add_arrangement(&mut self, arranged: Arrangement) {
        self.steps += arranged.steps;
        self.notes.extend(arranged.notes);
    }

    /// [`ErrorClass::Kernel`] where it is not what it should be.
    pub(super) fn add_verification(&mut self, verified: Verification) -> Result<Snapshot> {
        self.rails = verified.rails;
        self.drift = verified.drift;
        if self.drift.is_empty() {
            return Ok(verified.inside);
        }
        Err(ErrorClass::Kernel.error(format!(
            "the NICs inside differ from the plan: {}",
            self.drift.join("; ")
        )))
    }
}

#[derive(Debug, Default)]
pub(super) struct Arrangement {
    pub(super) steps: usize,
    pub(super) notes: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Verification {
    pub(super) rails: Vec<String>,
    pub(super) drift: Vec<String>,
    pub(super) inside: Snapshot,
}
