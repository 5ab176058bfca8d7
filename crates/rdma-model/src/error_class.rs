//! Error classes and the exit codes that scripts may rely on.

use std::fmt;

/// Why a command failed. The numbers are the exit codes and do not change; [`ErrorClass::meaning`]
/// says what each stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ErrorClass {
    Other = 1,
    Usage = 2,
    Refused = 3,
    Nothing = 4,
    State = 5,
    Kernel = 6,
    Timeout = 7,
    Incomplete = 8,
    Locked = 9,
    Disagreed = 10,
    Sick = 11,
}

impl ErrorClass {
    pub const ALL: [ErrorClass; 11] = [
        ErrorClass::Other,
        ErrorClass::Usage,
        ErrorClass::Refused,
        ErrorClass::Nothing,
        ErrorClass::State,
        ErrorClass::Kernel,
        ErrorClass::Timeout,
        ErrorClass::Incomplete,
        ErrorClass::Locked,
        ErrorClass::Disagreed,
        ErrorClass::Sick,
    ];

    pub fn code(self) -> u8 {
        self as u8
    }

    pub fn name(self) -> &'static str {
        match self {
            ErrorClass::Other => "other",
            ErrorClass::Usage => "usage",
            ErrorClass::Refused => "refused",
            ErrorClass::Nothing => "nothing",
            ErrorClass::State => "state",
            ErrorClass::Kernel => "kernel",
            ErrorClass::Timeout => "timeout",
            ErrorClass::Incomplete => "incomplete",
            ErrorClass::Locked => "locked",
            ErrorClass::Disagreed => "disagreed",
            ErrorClass::Sick => "sick",
        }
    }

    pub fn meaning(self) -> &'static str {
        match self {
            ErrorClass::Other => "any other failure; nothing changed, or the change was undone",
            ErrorClass::Usage => "wrong flag, variable, config file or input file",
            ErrorClass::Refused => "refused by the host's policy or a safety rule",
            ErrorClass::Nothing => {
                "no NIC is left to move, or one of --ifaces cannot be taken; the table says why"
            }
            ErrorClass::State => "the runtime's state or the bundle's config.json cannot be used",
            ErrorClass::Kernel => "the kernel rejected a change; earlier changes were rolled back",
            ErrorClass::Timeout => "the deadline passed; all changes were rolled back",
            ErrorClass::Incomplete => "undo or restore is incomplete; the message says what to run",
            ErrorClass::Locked => {
                "another rdmaprep has the lock, another container or claim a NIC, or a manager \
                is busy"
            }
            ErrorClass::Disagreed => {
                "the nodes did not agree on their rails, or lost their store; nothing changed"
            }
            ErrorClass::Sick => "doctor or the rail test found a failure that breaks jobs",
        }
    }

    /// The class of an error chain: its outermost [`ErrorClass`], else [`ErrorClass::Other`].
    pub fn of(error: &anyhow::Error) -> ErrorClass {
        error
            .downcast_ref::<Failure>()
            .map_or(ErrorClass::Other, |f| f.class)
    }

    pub fn error(self, text: impl fmt::Display) -> anyhow::Error {
        anyhow::Error::new(Failure {
            class: self,
            text: text.to_string(),
        })
    }
}

#[derive(Debug)]
pub struct Failure {
    class: ErrorClass,
    text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

/// Gives an error a class: `.class(ErrorClass::Kernel, "moving rdma0")`.
pub trait WithClass<T> {
    fn class(self, class: ErrorClass, text: impl fmt::Display) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> WithClass<T> for Result<T, E> {
    fn class(self, class: ErrorClass, text: impl fmt::Display) -> anyhow::Result<T> {
        self.map_err(|e| {
            e.into().context(Failure {
                class,
                text: text.to_string(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_stable_and_survive_contexts() {
        assert_eq!(
            ErrorClass::ALL.map(ErrorClass::code),
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
        );
        let e: anyhow::Result<()> =
            Err(anyhow::anyhow!("EBUSY")).class(ErrorClass::Kernel, "moving rdma0");
        let e = e.map_err(|e| e.context("attaching")).err();
        assert_eq!(e.as_ref().map(ErrorClass::of), Some(ErrorClass::Kernel));
        assert_eq!(
            e.map(|e| format!("{e:#}")).as_deref(),
            Some("attaching: moving rdma0: EBUSY")
        );
    }
}
