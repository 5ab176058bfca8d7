//! `rdmaprep claims`: what is prepared on this node for pods of Kubernetes.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;

use super::config_file::{config_to_look, warned};
use super::{host_for_return, say, store};
use crate::cli::{ClaimsArgs, ClaimsCommand, ClaimsReleaseArgs, Global};
use crate::config::host::Host;
use crate::kernel::process::capabilities;
use crate::kernel::{Namespaces, ThisMachine};
use crate::record::{Record, short_id};
use crate::report::{self, ReleasedClaim};
use crate::restore::run;
use crate::store::Store;
use crate::store::claims::{BoundClaim, CDI_FOLDER};
use crate::store::records::Records;

pub(super) fn run(global: &Global, args: &ClaimsArgs) -> Result<()> {
    match &args.command {
        None => list(global, args.json),
        Some(ClaimsCommand::Release(release)) => {
            release_claim(global, release, args.json || release.json)
        }
    }
}

fn list(global: &Global, json: bool) -> Result<()> {
    let store = store(&Host::new(global, &warned(config_to_look(global)?)));
    let machine = ThisMachine::new()?;
    let records = Records::read(&store, machine.boot_id())?;
    let all = store.prepared(&records, machine.boot_id())?;
    say(&match json {
        true => report::json(&all)?,
        false => report::claim_table(&all),
    })
}

fn release_claim(global: &Global, args: &ClaimsReleaseArgs, json: bool) -> Result<()> {
    capabilities::shed()?;
    let host = host_for_return(global)?;
    let store = store(&host);
    let machine = ThisMachine::new()?;
    let _lock = match args.dry_run {
        true => None,
        false => {
            capabilities::require()?;
            store.make_folders()?;
            Some(store.lock(Instant::now() + host.lock_timeout)?)
        }
    };
    let mut records = Records::read(&store, machine.boot_id())?;
    let claim = find(&store, &records, &machine, &args.uid)?;
    let held: Vec<Record> = its(&records, &claim.uid);
    for record in &held {
        let alive = record.members.iter().find(|m| machine.is_alive(record, m));
        let id = alive.map_or("", |m| short_id(&m.id));
        let text = format!("container {id} runs with the claim: delete its pod first");
        ensure!(alive.is_none(), ErrorClass::Refused.error(text));
    }
    if !args.dry_run {
        for record in held {
            run::restore(&machine, &mut records, record)?;
        }
        store.remove_binding(&claim.uid, Path::new(CDI_FOLDER))?;
    }
    let done = ReleasedClaim {
        claim,
        released: !args.dry_run,
    };
    say(&match json {
        true => report::json(&done)?,
        false => report::released_claim(&done),
    })
}

fn find(store: &Store, records: &Records, machine: &ThisMachine, uid: &str) -> Result<BoundClaim> {
    let all = store.prepared(records, machine.boot_id())?;
    let claim = all.into_iter().find(|claim| claim.uid == uid);
    claim.ok_or_else(|| {
        let text = format!("no claim with the UID {uid} is prepared here: see `rdmaprep claims`");
        ErrorClass::Usage.error(text)
    })
}

/// Records of NICs that containers of its pod have, or have left.
fn its(records: &Records, uid: &str) -> Vec<Record> {
    let away = records.readable().filter(|record| !record.is_back());
    let its = away.filter(|record| record.claims.iter().any(|claim| claim == uid));
    its.cloned().collect()
}
