#![forbid(unsafe_code)]
pub mod apply;
pub mod attach;
pub mod fault;
pub mod ident;
pub mod inject;
pub mod journal;
pub mod nccl;
pub mod plan;
pub mod report;
pub mod restore;
pub mod select;
pub mod snapshot;
pub mod step;
pub mod verify;
pub mod world;
