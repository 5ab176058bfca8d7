//! What NICs go to, and return from.

use crate::config::sandbox::Sandbox;
use crate::container::facts::ContainerFacts;
use crate::kernel::Recipient;
use crate::plan::Plan;
use crate::record::{Attachment, Hold};

/// What a hook is called for.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    Container(&'a ContainerFacts),
    /// There is no container yet, and this very process keeps the namespace.
    Hold(&'a NetnsKeeper<'a>),
    /// There is no container yet, and the CNI runtime that calls keeps the namespace. The recipient
    /// is absent where NICs only leave it.
    Attachment(&'a Attachment, Option<&'a dyn Recipient>),
}

pub struct NetnsKeeper<'a> {
    pub recipient: &'a dyn Recipient,
    pub plan: &'a Plan,
    /// What goes into its record.
    pub hold: &'a Hold,
}

impl<'a> Target<'a> {
    /// What is known of the container that is set up; a namespace without one has none.
    pub(super) fn facts(self) -> Option<&'a ContainerFacts> {
        match self {
            Target::Container(facts) => Some(facts),
            _ => None,
        }
    }

    pub(super) fn is_container(self) -> bool {
        self.facts().is_some()
    }

    /// Absent where it is a container, whose init the runtime names.
    pub(super) fn recipient(self) -> Option<&'a dyn Recipient> {
        match self {
            Target::Hold(keeper) => Some(keeper.recipient),
            Target::Attachment(_, recipient) => recipient,
            Target::Container(_) => None,
        }
    }

    /// Of the recipient, for an error.
    pub(super) fn in_words(self) -> &'static str {
        match self {
            Target::Attachment(..) => "the namespace of CNI_NETNS",
            _ => "the container's init",
        }
    }

    pub(super) fn sandbox(self) -> Option<Sandbox> {
        self.facts()?.sandbox
    }

    pub(super) fn keeper(self) -> Option<&'a NetnsKeeper<'a>> {
        match self {
            Target::Hold(keeper) => Some(keeper),
            _ => None,
        }
    }

    pub(super) fn attachment(self) -> Option<&'a Attachment> {
        match self {
            Target::Attachment(attachment, _) => Some(attachment),
            _ => None,
        }
    }
}
