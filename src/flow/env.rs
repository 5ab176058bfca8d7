//! `rdmaprep env`.

use std::io::Write;

use anyhow::{Context, Result};

use super::prepare::{decide, pod, read_config};
use super::{request, store, warn};
use crate::cli::{EnvArgs, Global};
use crate::inject;
use crate::nccl::{self, format};

/// Prints what `prepare` and the hook give to a container of that plan, and stores nothing.
pub(super) fn env(global: &Global, args: &EnvArgs) -> Result<()> {
    let request = request(global, Some(&args.plan), &args.select)?;
    let store = store(&request.host);
    let config = args.bundle.as_deref().map(read_config).transpose()?;
    let stored = if args.snapshot.is_some() { None } else { store.plan(&args.plan)? };
    let plan = match stored {
        Some(plan) => plan,
        None => decide(&request, &args.plan, args.snapshot.as_deref(), None, &store)?.plan,
    };
    let mut env = plan.env;
    let own = config.as_deref().map(inject::environment).unwrap_or_default();
    nccl::meet(&mut env, &plan.nics, config.as_deref().and_then(pod).as_ref());
    nccl::yield_to(&mut env, &own);
    env.retain(|v| !own.contains_key(&v.name));
    let (text, left) = format::write(&env, args.format);
    warn(&left);
    std::io::stdout().write_all(text.as_bytes()).context("writing to stdout")
}
