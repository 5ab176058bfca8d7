//! The rail test: RDMA traffic over every rail between the nodes of a job, before the job starts.
//!
//! ```text
//! Schedule ─► each round: Card ─► store ─► partner's Card ─► Transport: write, compare ─► Outcomes
//!     ─► store ─► rank 0: edges ─► causes ─► Verdict ─► store ─► all nodes
//! ```
//!
//! What other nodes write is untrusted: a value is bounded and checked before it is used, and one
//! that is wrong spoils the pairs of the node that wrote it, and no others.
#![forbid(unsafe_code)]

pub mod addresses;
pub mod asked;
pub mod card;
pub mod cause;
pub mod draw;
mod gather;
pub mod look;
pub mod meet;
mod node;
pub mod outcome;
pub mod pairs;
pub mod report;
pub mod transport;
pub mod verbs;
pub mod verdict;
