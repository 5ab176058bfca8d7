//! What NICs go to, and return from.

use anyhow::Result;

use crate::config::sandbox::Sandbox;
use crate::container::facts::ContainerFacts;
use crate::kernel::Recipient;
use crate::oci::pod::pod_uid;
use crate::plan::Plan;
use crate::record::{Attachment, Hold};

/// What a hook is called for.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    Container(&'a ContainerFacts),
    /// There is no container yet, and this very process keeps the namespace.
    Hold(&'a NetnsKeeper<'a>),
    /// There is no container yet, and the CNI runtime that calls keeps the namespace.
    Attachment {
        attachment: &'a Attachment,
        /// Absent where NICs only leave it.
        recipient: Option<&'a dyn Recipient>,
        /// The UID of the pod, where the runtime says it.
        pod: Option<&'a str>,
    },
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

    /// Who gets the NICs where there is no container yet; a container's is its init, which a create
    /// opens by the pid that the runtime says.
    pub(super) fn recipient(self) -> Option<&'a dyn Recipient> {
        match self {
            Target::Hold(keeper) => Some(keeper.recipient),
            Target::Attachment { recipient, .. } => recipient,
            Target::Container(_) => None,
        }
    }

    /// Who has ended, for an error: what keeps the namespace in a hold is this process itself.
    pub(super) fn recipient_in_words(self) -> &'static str {
        match self {
            Target::Attachment { .. } => "the namespace of CNI_NETNS",
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

    /// The UID of its pod, which the kubelet has said to its engine.
    pub(super) fn pod(self) -> Result<Option<String>> {
        let bundle = self.facts().and_then(|facts| facts.bundle.as_ref());
        match self {
            Target::Attachment { pod, .. } => Ok(pod.map(str::to_owned)),
            _ => bundle.map_or(Ok(None), |bundle| pod_uid(&bundle.config)),
        }
    }

    pub(super) fn attachment(self) -> Option<&'a Attachment> {
        match self {
            Target::Attachment { attachment, .. } => Some(attachment),
            _ => None,
        }
    }
}
