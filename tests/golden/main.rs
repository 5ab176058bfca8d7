//! What the program says, writes and reads, compared with what lies in `tests/cases`, `examples`
//! and the documents.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod cdi;
mod cli;
mod cni;
mod docs;
mod doctor;
mod examples;
mod help;
mod inject;
mod install;
mod layers;
mod metrics;
mod nccl;
mod record;
mod report;
mod reports;
mod sandbox;
mod select;
mod settings;
mod sysfs;
mod topo;
mod topo_judged;
mod trees;
mod userspace;
mod view;

testkit::runner!();
