//! What a container finds when its payload begins, put there by the create hook: data for
//! `container/apply_mounts.rs`.

use rdma_model::escape::is_plain;
use std::net::IpAddr;

use crate::view::Cover;
use rdma_model::nic::EnvVar;
use rdma_model::snapshot::CharDevice;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerMounts {
    pub covers: Vec<Cover>,
    /// NCCL's settings for its `/etc/nccl.conf`; lines of the image win.
    pub conf: Vec<EnvVar>,
    pub hosts: Option<HostsEntry>,
}

/// A line for its `/etc/hosts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostsEntry {
    pub address: IpAddr,
    pub name: String,
}

impl HostsEntry {
    /// Nothing for a name that is none: a container's author chose it.
    pub fn new(address: IpAddr, name: &str) -> Option<HostsEntry> {
        let is_name = (1..=253).contains(&name.len()) && is_plain(name, b"-._");
        is_name.then(|| HostsEntry {
            address,
            name: name.to_owned(),
        })
    }
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
    /// What became of the line for `/etc/hosts`, where there is one.
    pub hosts: Option<String>,
}
