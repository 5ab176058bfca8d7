//! `rdmaprep prepare`: before the runtime reads config.json, the plan, what its container sees of
//! /sys, and the edit.

mod configured;
mod draft;
mod runtime;
mod tested;

use std::path::Path;

use anyhow::{Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::values::PlanName;
use serde::Serialize;

use super::decision::{Decision, DraftInputs, narrowed, show_within};
use super::{peers, request, say, store, warn};
use crate::cli::{Global, PrepareArgs};
use crate::config::recipe::{Besides, Recipe};
use crate::config::request::Request;
use crate::disk::files;
use crate::oci::edit::{self, Injected};
use crate::plan::Plan;
use crate::report;
use crate::select::Selection;

const TAKEN: &str =
    "--plan: `auto` is the plan that is made at each start, and is not stored: choose another name";

#[derive(Serialize)]
struct Prepared<'a> {
    plan: &'a Plan,
    selection: &'a Selection,
    bundle: Option<&'a Injected>,
}

pub(super) fn prepare(global: &Global, args: &PrepareArgs) -> Result<()> {
    if args.configured {
        return configured::prepare(global, args);
    }
    let asked = peers::peer_options(&args.rendezvous)?;
    tested::check(args, asked.as_ref())?;
    let meet = asked
        .map(|asked| peers::enter(asked, args.dry_run))
        .transpose();
    // If this node cannot take part, it publishes the reason: the others would wait for it until
    // their deadline.
    let ((mut request, config), meeting) = match (wanted(global, args), meet) {
        (Err(e), Ok(Some(meeting))) => return Err(tested::refuse(args, meeting, e)),
        (wanted, meet) => (wanted?, meet?),
    };
    let store = store(&request.host);
    // The routes of a recorded machine say nothing of the way to the store.
    request.meeting = meeting
        .as_ref()
        .and_then(|m| m.way)
        .filter(|_| args.snapshot.is_none());
    let meeting = tested::leave_out(&mut request, args, config.as_deref(), &store, meeting)?;
    let look = DraftInputs::new(
        &request,
        &args.plan,
        args.snapshot.as_deref(),
        config.as_deref(),
        &store,
    );
    let draft = match (look, meeting) {
        (look, None) => look?.draft(args, None)?,
        (Ok(mut look), Some(meeting)) => look.together(args, meeting)?,
        (Err(e), Some(meeting)) => return Err(meeting.refuse(e)),
    };
    warn(&draft.notes);
    if !args.dry_run {
        let agreed = draft.decision.plan.agreement.is_some();
        let late =
            "all nodes have agreed, but this one cannot store its part; prepare all of them again";
        draft
            .write(args, &store)
            .map_err(|e| if agreed { e.context(late) } else { e })?;
    }
    let injected = draft.edited.map(|edited| edited.injected);
    let Decision {
        plan, selection, ..
    } = &draft.decision;
    if args.json {
        return say(&report::json(&Prepared {
            plan,
            selection,
            bundle: injected.as_ref(),
        })?);
    }
    if let (Some(before), Some(i)) = (&config, &injected) {
        say(&report::injected(i))?;
        if args.dry_run {
            say(&report::printable_lines(&edit::diff(before, &i.json)))?;
        }
    }
    say(&report::summary(plan, selection, injected.is_none()))
}

fn wanted(global: &Global, args: &PrepareArgs) -> Result<(Request, Option<String>)> {
    ensure!(args.plan != PlanName::AUTO, ErrorClass::Usage.error(TAKEN));
    let mut request = request(global, Some(&args.plan), &args.select)?;
    let besides = Besides {
        bundle: args.bundle.as_deref(),
        runtime: args.runtime.as_deref(),
        hook_timeout: args.hook_timeout,
    };
    let (env, flags) = (request.passed_on.clone(), args.select.flags());
    request.recipe = Some(Recipe::new(env, flags, &besides));
    let config = args.bundle.as_deref().map(read_config).transpose()?;
    let runtime = args
        .runtime
        .as_deref()
        .map(runtime::sandbox)
        .transpose()?
        .flatten();
    let mut request = match &config {
        Some(text) => narrowed(request, text, runtime)?,
        None => request,
    };
    show_within(&mut request, runtime);
    Ok((request, config))
}

pub(super) fn read_config(bundle: &Path) -> Result<String> {
    let path = bundle.join("config.json");
    let text =
        files::read(&path).class(ErrorClass::State, format!("reading {}", path.display()))?;
    text.ok_or_else(|| {
        ErrorClass::State.error(format!(
            "the bundle {} has no config.json",
            bundle.display()
        ))
    })
}
