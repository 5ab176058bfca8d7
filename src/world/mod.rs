//! The only part that touches the machine.

pub mod nldev;
pub mod nlreplies;
pub mod rdma;
