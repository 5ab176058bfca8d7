//! What `prepare --test-rails` and the program that it runs say to each other: the rails of a plan
//! that is not stored yet, and which of them fail.

use std::io::stdin;

use anyhow::Result;
use nccl_rules::version::Version;
use rail_agreement::options::Options;
use rail_agreement::{Rail, RailKey};
use rdma_model::error_class::ErrorClass;
use rdma_model::nic::EnvVar;
use serde::{Deserialize, Serialize};

use super::{Targets, explained, port_of, target, with_plan};
use crate::commands::{load_snapshot, nccl, warn};
use crate::kernel::process::signals;

const NOT_TAKEN: &str = "NCCL would not take it on this node: `rdmaprep nccl explain` says why";

/// On the program's stdin.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unstored {
    pub env: Vec<EnvVar>,
    pub nccl_version: Option<Version>,
    pub rails: Vec<Rail>,
}

/// On its stdout, if it has tested.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tested {
    /// Rails that fail anywhere, and those that cannot be tested here; each with the reason.
    pub failed: Vec<(RailKey, String)>,
    /// A failure that no rail explains.
    pub unexplained: Option<String>,
    pub warnings: Vec<String>,
}

/// Its rails as NCCL would use them.
pub fn targets(asked: &Options) -> Result<Targets> {
    // Who waits for the answer is that process alone.
    signals::end_with_parent()?;
    let Unstored {
        env,
        nccl_version,
        rails: planned,
    } = serde_json::from_reader(stdin().lock())?;
    let snapshot = load_snapshot(None, None)?;
    let found = nccl::own_settings()?;
    warn(&found.notes);
    let settings = with_plan(&found.settings, &env);
    let explained = explained(&settings, &snapshot, nccl_version);
    let mut found = Targets::new(&settings, explained.version, snapshot);
    let mut refused = Vec::new();
    for name in &explained.hcas {
        let Some((hca, port)) = port_of(&found.snapshot, name) else {
            continue;
        };
        let nccl = (&settings, explained.version);
        let place = found.rails.len();
        match target(asked, place, (&found.snapshot, hca, port), nccl) {
            Ok(mut target) => {
                let mut planned = planned.iter();
                if let Some(Rail(key, _)) = planned.find(|rail| rail.1 == target.device) {
                    target.key = key.clone();
                    found.rails.push(target);
                }
            }
            Err(e) => refused.push((port.netdev.clone(), format!("{e:#}"))),
        }
    }
    for Rail(key, device) in planned {
        let mut rails = found.rails.iter();
        if rails.any(|target| target.key == key) {
            continue;
        }
        let mut refused = refused.iter();
        let why = refused.find(|(netdev, _)| {
            let name = netdev.as_ref().map(|name| name.as_str());
            name == Some(device.as_str())
        });
        let why = why.map_or(NOT_TAKEN, |(_, why)| why);
        found.untested.push((key, why.to_owned()));
    }
    match found.untested.first() {
        Some((key, why)) if found.rails.is_empty() => {
            Err(ErrorClass::Nothing.error(format!("no rail can be tested: {key}: {why}")))
        }
        _ => Ok(found),
    }
}
