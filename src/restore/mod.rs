//! Restoring NICs to the host: the plan, made from a record and a fresh look, and its execution.

pub mod after_reboot;
pub mod arrange;
mod children;
mod diff;
mod legs;
mod locate;
pub mod plan;
pub mod run;
mod search_netns;
pub mod settle;
