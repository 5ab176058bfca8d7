#![forbid(unsafe_code)]
pub mod fault;
pub mod ident;
pub mod inject;
pub mod nccl;
pub mod plan;
pub mod report;
pub mod select;
pub mod snapshot;
pub mod world;
