//! A Linux host's RDMA NICs and their network as values: no I/O, no command line, nothing of what
//! is decided from them.
#![forbid(unsafe_code)]

pub mod arp;
pub mod drift;
pub mod effect;
pub mod error_class;
pub mod escape;
pub mod host_objects;
pub mod ids;
pub mod ipv6_legs;
pub mod link_kind;
pub mod manager;
pub mod moved_nic;
pub mod natural;
mod newtype;
pub mod nic;
pub mod snapshot;
pub mod step;
pub mod strict_json;
pub mod tree;
pub mod upper_lower;
pub mod values;
pub mod verdict;
