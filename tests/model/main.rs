//! Properties of the code that plans: on hosts made at random and a kernel in memory.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod exclusive;
mod nldev;
mod rails;
mod roundtrip;
mod settle;
mod topo_forest;
mod whole;
