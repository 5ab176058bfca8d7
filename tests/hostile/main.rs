//! What others may do: tenants, users without power, input of any size, hosts of any kind.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod compare;
mod input;
mod opened_files;
mod policy;
mod privilege;
mod random;
mod random_hosts;
mod real_program;
mod tenant;

testkit::runner!();
