//! `rdmaprep plan`: the stored plans.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::values::PlanName;

use super::config_file::{config_to_look, warned};
use super::{config, say, store, warn};
use crate::cli::{Global, PlanCommand, PlanDeleteArgs};
use crate::config::host::Host;
use crate::kernel::boot_id;
use crate::planner::names_of;
use crate::report::{self, DeletedPlan, PlanLine};
use crate::select::Selection;
use crate::store::Store;
use crate::store::records::Records;

pub(super) fn run(global: &Global, command: &PlanCommand) -> Result<()> {
    let config = match command {
        PlanCommand::Delete(_) => config(global)?,
        _ => warned(config_to_look(global)?),
    };
    let host = Host::new(global, &config);
    let store = store(&host);
    match command {
        PlanCommand::List(args) => {
            let records = Records::read(&store, &boot_id()?)?;
            let lines: Vec<PlanLine> = store
                .all_plans()?
                .iter()
                .filter_map(|name| line(name, &store, &records))
                .collect();
            say(&if args.json {
                report::json(&lines)?
            } else {
                report::plan_table(&lines)
            })
        }
        PlanCommand::Show(args) => {
            stored(&args.name, &store)?;
            let Some(plan) = store.plan(args.name.as_str())? else {
                return Ok(());
            };
            let selection = Selection::of_plan(&plan.nics, &plan.ib);
            say(&if args.json {
                report::json(&plan)?
            } else {
                report::summary(&plan, &selection, true)
            })
        }
        PlanCommand::Delete(args) => delete(args, &host, &store),
    }
}

/// That the plan is stored, readable or not.
fn stored(name: &PlanName, store: &Store) -> Result<()> {
    let all = store.all_plans()?;
    all.iter()
        .any(|other| other == name.as_str())
        .then_some(())
        .ok_or_else(|| {
            ErrorClass::Refused.error(format!("plan {name} is not stored: {}", names_of(&all)))
        })
}

fn line(name: &str, store: &Store, records: &Records) -> Option<PlanLine> {
    match store.plan(name) {
        Ok(plan) => plan.map(|plan| PlanLine {
            plan: name.to_owned(),
            nics: plan
                .nics
                .iter()
                .map(|n| n.identity.name.to_string())
                .collect(),
            ib: plan.ib.iter().map(ToString::to_string).collect(),
            containers: containers(name, records),
        }),
        Err(e) => {
            warn(&[format!("{e:#}")]);
            None
        }
    }
}

/// Containers that have NICs by that plan.
fn containers(plan: &str, records: &Records) -> Vec<String> {
    let having = records
        .readable()
        .filter(|r| r.plan == plan && !r.is_back());
    having
        .flat_map(|r| &r.members)
        .map(|m| m.id.clone())
        .collect()
}

/// Records have the plan that they restore by, so a container that runs does not need the stored
/// one. Its view of /sys stays until a reboot: no record says which containers have a view mounted,
/// and a mounted view that is removed is empty.
fn delete(args: &PlanDeleteArgs, host: &Host, store: &Store) -> Result<()> {
    args.names.iter().try_for_each(|name| stored(name, store))?;
    let _lock = (!args.dry_run)
        .then(|| store.lock(Instant::now() + host.lock_timeout))
        .transpose()?;
    let records = Records::read(store, &boot_id()?)?;
    let names: BTreeSet<&str> = args.names.iter().map(PlanName::as_str).collect();
    let mut deleted = Vec::new();
    for name in &names {
        if !args.dry_run {
            store.delete_plan(name)?;
        }
        let containers = containers(name, &records);
        deleted.push(DeletedPlan {
            plan: (*name).to_owned(),
            deleted: !args.dry_run,
            containers,
        });
    }
    say(&if args.json {
        report::json(&deleted)?
    } else {
        report::deleted_plans(&deleted)
    })
}
