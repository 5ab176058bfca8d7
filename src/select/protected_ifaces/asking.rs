use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rdma_model::snapshot::{Answer, HostPath, Purpose, Question};

/// The answers of the kernel so far, and the questions that have none yet.
#[derive(Default)]
pub(super) struct Asking {
    answers: HashMap<Question, Answer>,
    open: Vec<Question>,
}

impl Asking {
    pub(super) fn answer(&mut self, question: Question, answer: Answer) {
        self.answers.insert(question, answer);
    }

    /// Whether what is known now may change with the next answers.
    pub(super) fn waits(&self) -> bool {
        !self.open.is_empty()
    }

    pub(super) fn take_open(&mut self) -> Vec<Question> {
        std::mem::take(&mut self.open)
    }

    fn ask(&mut self, question: &Question) -> Answer {
        match self.answers.entry(question.clone()) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(unknown) => {
                self.open.push(question.clone());
                // Holds the place until the kernel has answered.
                unknown.insert(Answer::NotAsked(String::new())).clone()
            }
        }
    }

    /// The kernel takes no source that is not this host's; what a socket is bound to may have gone
    /// from it.
    fn with_any_source(&mut self, question: &Question) -> Answer {
        match self.ask(question) {
            Answer::Unreachable(_) if question.from.is_some() => self.ask(&Question {
                from: None,
                ..question.clone()
            }),
            answer => answer,
        }
    }

    pub(super) fn path(&mut self, purpose: Purpose, question: Question) -> HostPath {
        let answer = match purpose {
            Purpose::Internet => self.ask(&question),
            _ => self.with_any_source(&question),
        };
        HostPath {
            purpose,
            question,
            answer,
        }
    }
}
