//! Processes: pidfds, descriptors that others hold, files in memory, signals, and what we may do ourselves.

pub mod capabilities;
pub mod memfd;
pub mod pidfd;
pub mod pidfd_getfd;
pub mod program;
pub mod signals;
