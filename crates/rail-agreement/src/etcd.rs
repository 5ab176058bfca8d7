//! `etcd://HOST:PORT/PREFIX`: etcd's v3 interface, from etcd 3.4 on, over its JSON gateway, which
//! is HTTP on etcd's client port: no gRPC is needed. Keys have a lease and vanish when all nodes
//! have died. A wait is polling, with growing pauses; one request asks for up to 100 keys.

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
