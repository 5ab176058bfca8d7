//! A Linux host's RDMA NICs and their network as values: no I/O, no command line, nothing of what is decided from them.
//!
//! - [`ids`]: names and addresses that are checked when they are made
//! - [`snapshot`]: what was observed of a network namespace, a PCI tree and RDMA devices
//! - [`nic`]: what identifies a NIC while names and indexes change around it
//! - [`moved_nic`]: a NIC that is away, with the state that the host gets back
//! - [`drift`]: a difference between what shall be and what is
//! - [`step`]: one effect on the kernel, and the state of a NIC that it takes to set up
//! - [`tree`]: directories, files and links as data
//! - [`arp`]: ARP profiles, and ranges of routing tables
//! - [`upper_lower`]: what sits on what: bonds, VLANs and the like, and what makes them again
//! - [`values`]: values of options that more than one crate reads
//! - [`verdict`]: why a NIC is not given to a job
//! - [`escape`]: text from elsewhere, escaped for a terminal
//! - [`error_class`]: the classes of errors, which are exit codes
//! - [`strict_json`]: JSON that may have no field which its reader does not know
#![forbid(unsafe_code)]

pub mod arp;
pub mod drift;
pub mod error_class;
pub mod escape;
pub mod ids;
pub mod moved_nic;
mod newtype;
pub mod nic;
pub mod snapshot;
pub mod step;
pub mod strict_json;
pub mod tree;
pub mod upper_lower;
pub mod values;
pub mod verdict;
