//! Restoring NICs to the host: the plan, made from a record and a fresh look, and its execution.

pub mod bare_hcas;
mod bring_back;
mod diff;
mod find_and_plan;
pub mod forget;
mod legs;
mod link_diff;
mod links_beside;
mod links_on;
pub mod locate;
mod look_inside;
pub mod of_host;
pub mod order;
pub mod pinned;
pub mod plan;
pub mod reclaim;
mod refusals;
mod remarks;
pub mod run;
mod search_netns;
pub mod settle;
pub mod stays_for;
pub mod to_put_back;
pub mod waiting_record;

use std::time::Duration;

use rdma_model::ids::IfName;
use rdma_model::moved_nic::MovedNic;

/// How long the kernel may take to return NICs from a namespace that ended, and GIDs and links to
/// settle.
pub const SETTLE: Duration = Duration::from_secs(5);

/// Between two looks at what a manager or a card may be about to change.
const MOMENT: Duration = Duration::from_millis(50);

/// How long steps may wait for the kernel. Without patience other hooks wait for the lock, and what
/// was not there at the first try will hardly come now.
fn time_for_steps(patience: Duration) -> Duration {
    match patience.is_zero() {
        true => Duration::from_secs(2),
        false => SETTLE,
    }
}

/// What a restore did.
#[derive(Debug, Default)]
pub struct Restored {
    pub steps: usize,
    /// Remarks: what a container had done to its NICs, and what was done to them when they were
    /// back.
    pub notes: Vec<String>,
    /// NICs whose manager has still to configure them, a sentence for each.
    pub waits_for: Vec<String>,
    /// What the kernel took to move the NICs.
    pub moving: Duration,
}

/// Names of NICs on the host.
pub fn nic_names(held: &[MovedNic]) -> Vec<IfName> {
    held.iter().map(|h| h.name().clone()).collect()
}
