//! The driver for claims against stand-ins for the kubelet and the API server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod authority;
mod away;
mod claims;
mod cluster;
mod events;
mod health;
mod kubelet;
mod lives;
mod machine;
mod publish;
mod rails;
mod random;
mod server;
mod sharing;
mod slice;
mod status;
mod tell;
mod tls;
mod valid;
