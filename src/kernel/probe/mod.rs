//! Probes: whether TCP connects, whether a device node opens.

pub mod access;
pub mod devnode_probe;
pub mod tcp_probe;
