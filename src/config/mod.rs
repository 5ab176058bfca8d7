//! What is asked: flags, variables, the host's config file and its policy, annotations of a container.

pub mod device_request;
pub mod file;
pub mod host;
pub mod options;
pub mod pattern;
pub mod policy;
pub mod request;
pub mod select_args;
pub mod sysfs_mode;
