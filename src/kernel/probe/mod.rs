pub mod access;
pub mod devnode_probe;
pub mod tcp_probe;
