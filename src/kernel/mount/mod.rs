//! Mounts: namespaces of them, what is mounted where, mounts as descriptors, and paths below a container's root.

pub(crate) mod fsmount;
pub mod mntns;
pub mod mountinfo;
pub mod rootfs;
