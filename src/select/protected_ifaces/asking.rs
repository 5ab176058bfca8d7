use std::collections::HashMap;

use rdma_model::snapshot::{Answer, HostPath, Purpose, Question};

/// The kernel, or what stands for it, with the answers that it has given already.
pub(super) struct Asking<'a> {
    ask: &'a mut dyn FnMut(&Question) -> Answer,
    answered: HashMap<Question, Answer>,
}

impl<'a> Asking<'a> {
    pub(super) fn new(ask: &'a mut dyn FnMut(&Question) -> Answer) -> Asking<'a> {
        Asking {
            ask,
            answered: HashMap::new(),
        }
    }

    fn ask(&mut self, question: &Question) -> Answer {
        if let Some(answer) = self.answered.get(question) {
            return answer.clone();
        }
        let answer = (self.ask)(question);
        self.answered.insert(question.clone(), answer.clone());
        answer
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
