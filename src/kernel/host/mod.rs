//! The host's files: reading, locking and replacing them, and what other programs keep there.

pub mod attributes;
pub mod crash_safe;
pub mod files;
pub mod home_and_hosts;
pub mod host_tree;
pub mod open;
pub mod random;
pub mod runtime_users;
pub(super) mod shared_folder;
