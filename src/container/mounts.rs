//! What a container finds when its payload begins, put there by the create hook: data for `container/apply_mounts.rs`.

use crate::view::Cover;
use rdma_model::nic::EnvVar;
use rdma_model::snapshot::CharDevice;

/// All that is to be put there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerMounts {
    /// What to put over directories of its /sys.
    pub covers: Vec<Cover>,
    /// NCCL's settings for its `/etc/nccl.conf`; lines of the image win.
    pub conf: Vec<EnvVar>,
}

/// What became of the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfOutcome {
    /// `/etc/nccl.conf` holds all of them already, or there were none.
    Nothing,
    /// A merged file lies over the image's.
    Merged,
    /// An overlay over `/etc` has the file. What the container writes to its `/etc` ends with the container.
    Overlay,
    /// Neither could be done, and why: the settings have to reach the payload another way.
    Refused(String),
}

/// What `container/apply_mounts.rs` found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedMounts {
    /// What became of the settings.
    pub conf: ConfOutcome,
    /// Settings that the image's own file has otherwise: they stay. `NAME=VALUE` each.
    pub kept: Vec<String>,
    /// Settings that no `/etc/nccl.conf` can bring, such as those of Gloo. `NAME: why` each.
    pub left: Vec<String>,
    /// Device nodes that are not below the container's /dev/infiniband.
    pub lacking: Vec<CharDevice>,
}
