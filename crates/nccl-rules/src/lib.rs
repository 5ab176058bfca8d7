//! What NCCL makes of its settings on a host; [`explain`] is the front door. Each rule names the
//! file and version of NCCL that it was read in; the tests of the tool compare it with real
//! releases.
#![forbid(unsafe_code)]

pub mod bootstrap;
pub mod comm_id;
pub mod conf;
pub mod connect_retry;
mod doubt;
pub mod explain;
mod explanation;
mod force_merge;
pub mod gid;
mod hca;
pub mod ifname;
mod interfaces;
mod known;
pub mod levels;
mod merges;
mod networks;
mod pitfalls;
mod port_gids;
pub mod queue_pair;
pub mod rails;
mod ring;
pub mod settings;
mod socket;
pub mod topology_xml;
mod unjudged;
mod values;
mod variables;
pub mod version;
