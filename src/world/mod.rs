//! The only part that touches the machine.

pub mod nldev;
pub mod nlreplies;
pub mod rdma;
pub mod sysfs;
mod sysfs_hca;
mod sysfs_net;
mod sysfs_pci;
mod sysfs_root;
