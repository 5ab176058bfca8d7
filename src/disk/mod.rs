//! Files on the host's disks: reading, locking and replacing them.

pub mod attributes;
pub mod crash_safe;
pub mod files;
pub mod home_and_hosts;
pub mod host_tree;
pub mod open;
pub(crate) mod shared_folder;
