//! Descriptors of living processes as values: how `rdmaprep handle` names one, and why one cannot
//! be had.

mod fd_handle;
mod ptrace;

pub use fd_handle::{Handle, Mark};
pub use ptrace::Standing;
