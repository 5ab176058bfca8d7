pub mod bundle;
pub mod config;
pub mod edit;
mod edits;
pub(crate) mod json_rewrite;
mod json_scan;
pub mod pod;
pub mod state;
mod wanted;
