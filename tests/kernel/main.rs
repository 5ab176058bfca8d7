//! The program on this kernel: each test in user, network and mount namespaces of its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod apply_mounts;
mod awaited;
mod away;
mod bootstrap;
mod bpf;
mod claim_lives;
mod claims;
mod cni;
mod configured;
mod container_setup;
mod deleted;
mod device;
mod doctor;
mod foretold;
mod gvisor;
mod handle;
mod hold;
mod hook;
mod host_network;
mod hosts_entry;
mod inside;
mod links;
mod managed;
mod many_nics;
mod metrics;
mod mounted_container;
mod nccl_conf;
mod netstate;
mod order;
mod owners;
mod peers_prepare;
mod peers_tested;
mod plans;
mod race;
mod rails;
mod rails_at_random;
mod rails_inside;
mod random_rules;
mod records;
mod restless;
mod returned;
mod settle;
mod shared_routes;
mod shim;
mod stacked;
mod stale;
mod sysctls;
mod texts;
mod undo;
mod uplink;
mod uppers;
mod visit;

testkit::runner!();
