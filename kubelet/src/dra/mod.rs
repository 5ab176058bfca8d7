//! The driver for claims (dynamic resource allocation): the scheduler chooses rails by what they
//! are. For Kubernetes 1.34 and later: resource.k8s.io/v1, and version v1 of the kubelet's API.

pub mod api;
pub mod api_server;
pub mod away;
pub mod binding;
pub mod claim;
pub mod driver;
mod events;
mod health;
pub mod publish;
pub mod refused;
mod release;
mod reserved;
pub mod service;
pub mod session;
pub mod sharing;
pub mod slice;
mod status;
pub mod tell;
mod tries;

/// As slices, claims and the kubelet name it.
pub const DRIVER: &str = "rdmaprep.io";
