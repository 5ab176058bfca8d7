//! What a container finds when its payload begins, put there by the create hook: data for
//! `container/apply_mounts.rs`.

use crate::view::Cover;
use rdma_model::nic::EnvVar;
use rdma_model::snapshot::CharDevice;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerMounts {
    pub covers: Vec<Cover>,
    /// NCCL's settings for its `/etc/nccl.conf`; lines of the image win.
    pub conf: Vec<EnvVar>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfOutcome {
    /// `/etc/nccl.conf` holds all of them already, or there were none.
    Nothing,
    /// A merged file lies over the image's.
    Merged,
    /// An overlay over `/etc` has the file. What the container writes to its `/etc` ends with the
    /// container.
    Overlay,
    /// Neither could be done, and why: the settings have to reach the payload another way.
    Refused(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedMounts {
    pub conf: ConfOutcome,
    /// Settings that the image's own file has otherwise: they stay. `NAME=VALUE` each.
    pub kept: Vec<String>,
    /// Settings that no `/etc/nccl.conf` can bring, such as those of Gloo. `NAME: why` each.
    pub left: Vec<String>,
    pub lacking: Vec<CharDevice>,
}
