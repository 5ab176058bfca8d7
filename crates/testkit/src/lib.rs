//! What the test programs of rdmaprep share: see the README. A function here panics where its test
//! has to fail.
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "only tests use it, and a test fails by panicking"
)]

pub mod fake_kernel;
pub mod golden;
pub mod hold;
pub mod ipv6;
pub mod namespace;
pub mod nccl_case;
mod require;
pub mod rich;
pub mod topo_xml;
pub mod trees;

use std::path::{Path, PathBuf};

pub use namespace::{Container, Host, Look, Said, only, run, same, sh, until};

/// A path in the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}
