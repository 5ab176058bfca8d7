//! What is not ours: NCCL's libraries, UCX, etcd, enroot, Kubernetes' manifests, vendors' topology
//! files.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod enroot;
#[cfg(feature = "etcd")]
mod etcd;
mod kubernetes;
mod nccl_judge;
mod nvshmem;
mod topo_vendor;
mod ucx;

testkit::runner!();
