#![forbid(unsafe_code)]
pub mod apply;
pub mod attach;
pub mod fault;
pub mod ident;
pub mod journal;
pub mod plan;
pub mod restore;
pub mod select;
pub mod snapshot;
pub mod step;
pub mod verify;
pub mod world;
