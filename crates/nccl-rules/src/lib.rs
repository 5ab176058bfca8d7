//! What NCCL makes of its settings on a host: which interfaces and HCAs it chooses, how its ranks find each other, and which
//! settings mislead it. Each rule names the file and version of NCCL that it was read in; real releases are its judge in the
//! tests of the tool.
//!
//! - [`settings`], [`conf`], [`version`]: what is set, by which file or variable, for which NCCL
//! - [`explain`]: everything that follows from it on a host: the front door
//! - [`ifname`], `interfaces`, `socket`: the lists of names, and the interface of the bootstrap
//! - `hca`: the HCAs that NCCL_IB_HCA leaves
//! - [`comm_id`], [`bootstrap`], [`connect_retry`]: how ranks meet, and how long they try
//! - [`levels`], [`topology_xml`]: distances over PCI, and NCCL's topology file
//! - `pitfalls`: settings that do not do what they seem to
#![forbid(unsafe_code)]

pub mod bootstrap;
pub mod comm_id;
pub mod conf;
pub mod connect_retry;
pub mod explain;
mod hca;
pub mod ifname;
mod interfaces;
pub mod levels;
mod pitfalls;
pub mod settings;
mod socket;
pub mod topology_xml;
pub mod version;
