//! The program made to fail at each of its fault points, which a debug build has.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod hold;
mod hooks;
mod install;
mod points;

testkit::runner!();
