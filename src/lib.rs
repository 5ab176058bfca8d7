#![forbid(unsafe_code)]
pub mod candidate;
pub mod cli;
pub mod config;
pub mod fault;
pub mod ident;
pub mod plan;
pub mod request;
pub mod rules;
pub mod select;
pub mod snapshot;
pub mod uplink;
pub mod world;
