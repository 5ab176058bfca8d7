//! `prepare --configured`: the plans that the config file describes, as a unit of systemd stores
//! them after each boot, and the pod that installs a node of Kubernetes.

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::values::PlanName;
use serde::Serialize;

use super::runtime;
use crate::cli::{Global, PrepareArgs};
use crate::commands::decision::{Decision, DraftInputs, show_within};
use crate::commands::{config, say, store, warn};
use crate::config::host::{Config, Host};
use crate::config::plans::ConfiguredPlan;
use crate::config::recipe::Recipe;
use crate::config::request::Request;
use crate::config::select_args::SelectArgs;
use crate::plan::Plan;
use crate::report;
use crate::select::Selection;
use crate::store::Store;

const NONE: &str = "the config file has no [[plans]]: there is nothing to store";

/// What became of one of them.
#[derive(Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
enum Outcome {
    /// Or, in a dry run, would be.
    Stored {
        plan: Box<Plan>,
        selection: Selection,
    },
    Kept {
        name: PlanName,
    },
    Failed {
        name: PlanName,
        message: String,
    },
}

/// Each plan by itself: one that cannot be made keeps no other from its containers. Why it could
/// not is shown by `status` until it is stored.
pub(super) fn prepare(global: &Global, args: &PrepareArgs) -> Result<()> {
    args.select
        .refuse_given(&[], "each plan of the config file has options of its own")?;
    let config = config(global)?;
    let store = store(&Host::new(global, &config));
    let stored = store.all_plans()?;
    let (mut outcomes, mut failures) = (Vec::new(), Vec::new());
    for plan in &config.plans {
        let name = plan.name.clone();
        let is_stored = stored.iter().any(|other| other == name.as_str());
        if args.keep && is_stored {
            outcomes.push(Outcome::Kept { name });
            continue;
        }
        match one(global, args, &config, plan, &store) {
            Ok(outcome) => outcomes.push(outcome),
            Err(e) => {
                let message = format!("{e:#}");
                outcomes.push(Outcome::Failed { name, message });
                failures.push(e.context(format!("plan {}", plan.name)));
            }
        }
    }
    if !args.dry_run {
        let failed = outcomes.iter().filter_map(Outcome::failed);
        store.save_unstored(&failed.collect())?;
    }
    match args.json {
        true => say(&report::json(&outcomes)?)?,
        false if outcomes.is_empty() => say(NONE)?,
        false => outcomes.iter().try_for_each(Outcome::show)?,
    }
    one_error(failures)
}

fn one(
    global: &Global,
    args: &PrepareArgs,
    config: &Config,
    plan: &ConfiguredPlan,
    store: &Store,
) -> Result<Outcome> {
    let (name, host) = (plan.name.as_str(), Host::new(global, config));
    // What a shell exports is for a job: the same plan is to come of it at each boot.
    let mut request = Request::new(
        Some(name),
        &SelectArgs::default(),
        host,
        plan.select.clone(),
        |_| None,
    )?;
    request.recipe = Some(Recipe::configured());
    let sandbox = plan.runtime.as_deref().map(runtime::sandbox).transpose()?;
    show_within(&mut request, sandbox.flatten());
    let mut look = DraftInputs::new(&request, name, None, None, store)?;
    let draft = look.draft(args, None)?;
    warn(&draft.notes);
    if !args.dry_run {
        draft.write(args, store)?;
    }
    let Decision {
        plan, selection, ..
    } = draft.decision;
    Ok(Outcome::Stored {
        plan: Box::new(plan),
        selection,
    })
}

/// One line for all of them.
fn one_error(mut failures: Vec<anyhow::Error>) -> Result<()> {
    let Some(first) = failures.first() else {
        return Ok(());
    };
    if failures.len() == 1 {
        return failures.pop().map_or(Ok(()), Err);
    }
    let all: Vec<String> = failures.iter().map(|e| format!("{e:#}")).collect();
    Err(ErrorClass::of(first).error(format!(
        "{} plans of the config file are not stored: {}",
        all.len(),
        all.join("; ")
    )))
}

impl Outcome {
    fn failed(&self) -> Option<(String, String)> {
        match self {
            Outcome::Failed { name, message } => Some((name.to_string(), message.clone())),
            _ => None,
        }
    }

    /// A failure is the command's error.
    fn show(&self) -> Result<()> {
        match self {
            Outcome::Stored { plan, selection } => say(&report::summary(plan, selection, true)),
            Outcome::Kept { name } => say(&format!("plan {name} is stored, and stays")),
            Outcome::Failed { .. } => Ok(()),
        }
    }
}
