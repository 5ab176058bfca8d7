//! `etcd://HOST:PORT/PREFIX`: etcd's v3 interface, from 3.4 on, over its JSON gateway.
//!
//! The gateway is HTTP on the port of etcd's clients, so that no code has to be made from protocol descriptions. Keys carry a
//! lease: they vanish when all nodes have died. Waiting is looking again and again, less and less often; one question asks for
//! up to 100 keys.

#[cfg(feature = "etcd")]
mod call;
#[cfg(feature = "etcd")]
mod files;
#[cfg(feature = "etcd")]
mod login;
#[cfg(feature = "etcd")]
mod store;
mod url;
#[cfg(feature = "etcd")]
mod wire;

#[cfg(feature = "etcd")]
pub use login::Login;
#[cfg(feature = "etcd")]
pub use store::Etcd;
pub use url::Cluster;
