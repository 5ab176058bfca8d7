//! `test-rails --fix`: what the test has found goes into the stored plan.

use std::time::Instant;

use anyhow::Result;

use super::no_plan;
use crate::cli::Global;
use crate::commands::{config, progress, store};
use crate::config::host::Host;

const WHY: &str = "the rail test: rails do not reach each other";

/// Keeps NCCL in containers of that plan to equal rails.
pub fn keep_to_rails(global: &Global, name: &str) -> Result<()> {
    let host = Host::new(global, &config(global)?);
    let store = store(&host);
    let _lock = store.lock(Instant::now() + host.lock_timeout)?;
    let plan = store.plan(name)?.ok_or_else(|| no_plan(name))?;
    let said = match plan.kept_to_rails(WHY) {
        Some(plan) => {
            store.save_plan(&plan)?;
            "containers that start from now on get NCCL_CROSS_NIC=0"
        }
        None => "it has NCCL_CROSS_NIC=0 already",
    };
    progress(&format!("plan {name}: {said}"));
    Ok(())
}
