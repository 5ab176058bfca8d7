//! What a container finds when its payload begins, put there by the create hook: data for `container/apply_mounts.rs`.

use rdma_model::nic::EnvVar;
use std::path::PathBuf;

use rdma_model::snapshot::CharDevice;
use rdma_model::tree::Tree;

/// A container as its config.json describes it, before its runtime changes to its root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerRoot {
    /// Its init: the way to its mount namespace.
    pub pid: i32,
    /// `root.path`, made absolute with the bundle.
    pub rootfs: PathBuf,
    /// Whether its `/etc` is to be read-only: `root.readonly`, or a mount at `/etc` with the option `ro`, which crun applies
    /// after the hooks only.
    pub readonly: bool,
    /// `linux.mountLabel`: the SELinux context of what is mounted for it.
    pub label: Option<String>,
}

/// All that is to be put there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerMounts {
    /// What to put over directories of its /sys.
    pub covers: Vec<Cover>,
    /// NCCL's settings for its `/etc/nccl.conf`; lines of the image win.
    pub conf: Vec<EnvVar>,
}

/// A tree that is mounted over a directory, read-only. What the container has mounted below that directory stays seen; no
/// cover is below another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cover {
    /// The directory below the container's root: `sys/class/infiniband`.
    pub at: String,
    /// What is seen there.
    pub tree: Tree,
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
