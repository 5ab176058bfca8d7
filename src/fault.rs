//! Error classes and the exit codes that scripts may rely on.

use std::fmt;

use clap::ValueEnum;

/// Why a command failed, as far as a caller can act on it. The numbers are the exit codes and do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[repr(u8)]
pub enum Fault {
    /// Something went wrong that has no class of its own; nothing was changed, or the change was undone.
    Other = 1,
    /// The command line, an environment variable, the config file or an input file is wrong.
    Usage = 2,
    /// The host's policy or a safety rule forbids it (uplink, host namespace, finite address lifetimes, …).
    Refused = 3,
    /// No NIC is left to move; the table says why.
    Nothing = 4,
    /// The OCI runtime's state, or the bundle's config.json, cannot be used.
    State = 5,
    /// The kernel refused a change; what was done before it is undone.
    Kernel = 6,
    /// The deadline passed; what was done is undone.
    Timeout = 7,
    /// An undo or restore is incomplete; the message says what to run.
    Incomplete = 8,
    /// Another rdmaprep holds the lock, or another container a NIC of the plan.
    Locked = 9,
    /// The nodes came to no agreement on their rails, or the store for it was lost; nothing was changed.
    Disagreed = 10,
    /// `doctor` found what breaks a job; nothing was changed.
    Sick = 11,
}

impl Fault {
    /// All classes, in the order of their numbers.
    pub const ALL: [Fault; 11] = [
        Fault::Other,
        Fault::Usage,
        Fault::Refused,
        Fault::Nothing,
        Fault::State,
        Fault::Kernel,
        Fault::Timeout,
        Fault::Incomplete,
        Fault::Locked,
        Fault::Disagreed,
        Fault::Sick,
    ];

    /// The process's exit code.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// One sentence for help and README.
    pub fn meaning(self) -> &'static str {
        match self {
            Fault::Other => "any other failure; nothing changed, or the change was undone",
            Fault::Usage => "wrong flag, variable, config file or input file",
            Fault::Refused => "refused by the host's policy or a safety rule",
            Fault::Nothing => "no NIC is left to move; the table says why",
            Fault::State => "the runtime's state or the bundle's config.json cannot be used",
            Fault::Kernel => "the kernel refused a change; what came before it is undone",
            Fault::Timeout => "the deadline passed; everything done is undone",
            Fault::Incomplete => "undo or restore incomplete; the message says what to run",
            Fault::Locked => "another rdmaprep holds the lock, or another container a NIC",
            Fault::Disagreed => "the nodes did not agree on their rails, or lost their store; nothing changed",
            Fault::Sick => "doctor found what breaks a job",
        }
    }

    /// The class of an error chain: its outermost [`Fault`], else [`Fault::Other`].
    pub fn of(error: &anyhow::Error) -> Fault {
        error.downcast_ref::<Failure>().map_or(Fault::Other, |f| f.fault)
    }

    /// An error of this class that says `text`.
    pub fn error(self, text: impl fmt::Display) -> anyhow::Error {
        anyhow::Error::new(Failure { fault: self, text: text.to_string() })
    }
}

/// The class of an error together with what we were doing.
#[derive(Debug)]
pub struct Failure {
    fault: Fault,
    text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

/// Gives an error a class: `.fault(Fault::Kernel, "moving rdma0")`.
pub trait WithFault<T> {
    /// Wraps the error in one of class `fault` that says what we were doing.
    fn fault(self, fault: Fault, text: impl fmt::Display) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> WithFault<T> for Result<T, E> {
    fn fault(self, fault: Fault, text: impl fmt::Display) -> anyhow::Result<T> {
        self.map_err(|e| e.into().context(Failure { fault, text: text.to_string() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_stable_and_survive_contexts() {
        assert_eq!(Fault::ALL.map(Fault::code), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        let e: anyhow::Result<()> = Err(anyhow::anyhow!("EBUSY")).fault(Fault::Kernel, "moving rdma0");
        let e = e.map_err(|e| e.context("attaching")).err();
        assert_eq!(e.as_ref().map(Fault::of), Some(Fault::Kernel));
        assert_eq!(e.map(|e| format!("{e:#}")).as_deref(), Some("attaching: moving rdma0: EBUSY"));
    }
}
