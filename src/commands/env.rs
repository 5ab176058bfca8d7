use rdma_model::nic::EnvVar;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

use super::decision::{decide, for_container, narrowed};
use super::prepare::read_config;
use super::spec::edit;
use super::{is_stored, request, store, warn};
use crate::cli::{EnvArgs, Global};
use crate::config::request::Request;
use crate::kernel::store::Store;
use crate::nccl_env::{self, format};
use crate::plan::Plan;
use crate::planner::stored_plan;

/// Prints what `prepare` and the hook give to a container of that plan, and stores nothing.
pub(super) fn env(global: &Global, args: &EnvArgs) -> Result<()> {
    let request = request(global, Some(&args.plan), &args.select)?;
    let store = store(&request.host);
    if args.snapshot.is_none() && store.plan(&args.plan)?.is_some() {
        // A bundle's topology file is decided here.
        let counts: &[&str] = if args.bundle.is_some() {
            &["topo"]
        } else {
            &[]
        };
        args.select.refuse_given(counts, &is_stored(&args.plan))?;
    }
    let env = match &args.bundle {
        Some(bundle) => of_bundle(args, request, bundle, &store)?,
        None => of_any(args, &request, &store)?,
    };
    let (text, left) = format::write(&env, args.format);
    warn(&left);
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("writing to stdout")
}

fn of_bundle(
    args: &EnvArgs,
    request: Request,
    bundle: &Path,
    store: &Store,
) -> Result<Vec<EnvVar>> {
    let text = read_config(bundle)?;
    let request = narrowed(request, &text, None)?;
    let stored = stored(args, &request, store)?;
    let decision = match stored {
        Some(plan) => for_container(plan, &request, &text, store)?,
        None => decide(
            &request,
            &args.plan,
            args.snapshot.as_deref(),
            Some(&text),
            store,
        )?,
    };
    Ok(edit(&text, &decision, store, &request, None)?.given)
}

/// Of a recorded machine a plan is made.
fn stored(args: &EnvArgs, request: &Request, store: &Store) -> Result<Option<Plan>> {
    let name = request.plan().filter(|_| args.snapshot.is_none());
    name.map_or(Ok(None), |name| stored_plan(store, request, name))
}

fn of_any(args: &EnvArgs, request: &Request, store: &Store) -> Result<Vec<EnvVar>> {
    let stored = stored(args, request, store)?;
    let plan = match stored {
        Some(plan) => plan,
        None => decide(request, &args.plan, args.snapshot.as_deref(), None, store)?.plan,
    };
    let mut env = plan.env;
    nccl_env::meet(&mut env, &Default::default(), &plan.nics, None);
    Ok(env)
}
