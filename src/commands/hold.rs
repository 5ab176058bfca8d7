//! `rdmaprep hold`: the only process of ours that waits. NICs are in a namespace before any container is.

use crate::config::sysfs_mode::SysfsMode;
use rdma_model::values::PlanName;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use nccl_rules::topology_xml::topology;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::IfName;
use rdma_model::step::{Side, Step};
use serde::Serialize;

use super::{keep, nics, request, say, store, warn};
use crate::apply::apply;
use crate::cli::{Global, HoldArgs};
use crate::config::request::Request;
use crate::deadline;
use crate::handle::Handle;
use crate::hook::{self, Hook, NetnsKeeper};
use crate::journal::HeldNetns;
use crate::kernel::host::files;
use crate::kernel::netns::{self, NAMED, Netns, pins};
use crate::kernel::process::capabilities;
use crate::kernel::process::memfd::KeptFile;
use crate::kernel::process::pidfd::{self, Process};
use crate::kernel::process::pidfd_getfd;
use crate::kernel::process::signals::Signals;
use crate::kernel::store::Store;
use crate::kernel::{Kernel, boot_id};
use crate::oci::state::State;
use crate::plan::Plan;
use crate::planner::{observe_host, options, plan_with, view_of};
use crate::report::{self, Report, Stopwatch};
use crate::restore::run::reclaim;

/// What is said when all is ready.
#[derive(Serialize)]
struct Ready<'a> {
    id: &'a str,
    path: &'a Path,
    netns: u64,
    nics: &'a [IfName],
    handles: &'a BTreeMap<String, Handle>,
}

/// `rdmaprep hold`.
pub(super) fn hold(global: &Global, args: &HoldArgs) -> Result<()> {
    let signals = Signals::block()?;
    files::private_umask();
    capabilities::shed()?;
    capabilities::require()?;
    let id: PlanName = args.name.as_deref().unwrap_or(&args.plan).parse().class(ErrorClass::Usage, "--name")?;
    let request = request(global, Some(&args.plan), &args.select)?;
    let path = Path::new(NAMED).join(id.as_str());
    let bundle = path.to_str().unwrap_or_default().to_owned();
    let state = State { id: id.as_str().to_owned(), pid: None, bundle, annotations: BTreeMap::new() };
    let store = store(&request.host);
    let patience = Duration::from_secs(deadline::hold(args.deadline, nics(&request, &store)).into());
    let (mut report, mut watch) = (Report::new("hold"), Stopwatch::start());
    let deadline = Instant::now() + patience;
    // Who has the name has the last report of that name, too.
    report.notes = clear(&path, &store, deadline)?;
    let result = begin(&state, &path, &request, &store, deadline, &mut report, &mut watch);
    finish(&mut report, &result, &watch, &request, &store);
    // What it keeps is open until the end.
    let (netns, hold, _kept) = result?;
    warn(&report.notes);
    let ready = Ready { id: &state.id, path: &path, netns, nics: &report.nics, handles: &hold.handles };
    // Whatever goes wrong from here on, the NICs go home.
    let waited = ready_text(&ready, args.json).and_then(|line| say(&line)).and_then(|()| signals.wait());
    end(&state, netns, &request, &store, Instant::now() + patience).and(waited)
}

/// Brings home what belongs to the dead, whose names are free then.
fn clear(path: &Path, store: &Store, deadline: Instant) -> Result<Vec<String>> {
    store.prepare()?;
    let _lock = store.lock(deadline)?;
    let told = reclaim(store, &boot_id()?, |_| false)?;
    pins::is_vacant(path).map(|()| told)
}

/// Everything until it is ready. What fails is undone.
fn begin(
    state: &State,
    path: &Path,
    request: &Request,
    store: &Store,
    deadline: Instant,
    report: &mut Report,
    watch: &mut Stopwatch,
) -> Result<(u64, HeldNetns, Vec<KeptFile>)> {
    report.container = Some(state.id.clone());
    let (plan, kept) = render(request, store, report)?;
    let own = Process::current()?;
    let named = |kept: &KeptFile| Ok((kept.name().to_owned(), pidfd_getfd::handle_for(&own, kept)?));
    let hold = HeldNetns { path: path.to_owned(), handles: kept.iter().map(named).collect::<Result<_>>()? };
    let netns = Netns::make()?;
    // A container that joins a namespace expects this of it.
    let up = Step::Link { side: Side::Inside, dev: "lo".parse()?, up: true };
    apply(&[up], &mut Kernel::open(Netns::current()?, Some(netns.again()?))?, deadline, |_| {})?;
    let keeper = NetnsKeeper { netns: &netns, plan: &plan, hold: &hold };
    let hook = Hook { state, store, deadline, patience: Instant::now(), agreed: None, keeper: Some(&keeper) };
    hook::create(&hook, request, report, watch)?;
    Ok((netns.inode(), hold, kept))
}

/// The plan, and what its containers' consumers may want of it, as of before the NICs move: what a sandbox with a kernel of its
/// own would see of /sys, and where NICs and GPUs are.
fn render(request: &Request, store: &Store, report: &mut Report) -> Result<(Plan, Vec<KeptFile>)> {
    let name = request.plan().context("a plan is named")?.as_str();
    let mut live = Kernel::open(Netns::current()?, None)?;
    let seen = observe_host(&mut live, &request.job())?;
    let plan = match store.plan(name)? {
        Some(plan) => plan,
        None => plan_with(request, name, &seen, store, options(request))?.0,
    };
    let plan = request.narrowed_plan(plan, &seen);
    if plan.nics.is_empty() && plan.ib.is_empty() {
        return Err(ErrorClass::Nothing.error(format!("the host's policy leaves no NIC of plan {name}")));
    }
    let whole = Plan { sysfs: SysfsMode::Snapshot, view: None, ..plan.clone() };
    let view = view_of(&whole, BTreeSet::new(), &seen, &mut live)?.unwrap_or_default();
    let mut kept = vec![KeptFile::new("sysfs", report::json(&view)?.as_bytes())?];
    let hcas = plan.nics.iter().filter_map(|n| n.hca.clone()).chain(plan.ib.iter().cloned()).collect();
    let topology = topology(&seen, &hcas);
    let left_out = topology.unplaced.iter().map(|(hca, why)| format!("left out of the topology file: {hca}: {why}"));
    report.notes.extend(left_out.chain(topology.warnings.iter().cloned()));
    match topology.xml() {
        Ok(xml) => kept.push(KeptFile::new("topology", xml.as_bytes())?),
        Err(e) => report.notes.push(format!("no handle of a topology file: {e:#}")),
    }
    Ok((plan, kept))
}

/// The signal has come. Whoever is in the namespace keeps the NICs: with the last one they go home.
fn end(state: &State, netns: u64, request: &Request, store: &Store, deadline: Instant) -> Result<()> {
    let (mut report, mut watch) = (Report::new("hold end"), Stopwatch::start());
    report.container = Some(state.id.clone());
    let hook = Hook { state, store, deadline, patience: deadline, agreed: None, keeper: None };
    if !hook::is_held_by_us(&hook, netns)? {
        // Somebody has restored them; by now another hold may have that name.
        return Ok(());
    }
    let result = match netns::occupant(netns).filter(|_| !hook::has_others(&hook)) {
        // One that no hook of ours has heard of: a timer, or any hook, brings them home when it has gone.
        Some(pid) => {
            let name = pidfd::name(pid).unwrap_or_else(|| "?".to_owned());
            report.notes.push(format!(
                "process {pid} ({name}) is still in the namespace and keeps the NICs; after it: rdmaprep restore --all --stale"
            ));
            Ok(())
        }
        None => hook::stop(&hook, &mut report, &mut watch),
    };
    finish(&mut report, &result, &watch, request, store);
    let told = report.notes.iter().try_for_each(|note| say(&report::printable(note)));
    result.and(told)
}

fn finish<T>(report: &mut Report, result: &Result<T>, watch: &Stopwatch, request: &Request, store: &Store) {
    report.finish(result, watch);
    report.time = SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|d| d.as_secs());
    keep(report, &request.host, store);
}

/// One line: where the namespace is, then each handle by its name.
fn ready_text(ready: &Ready, json: bool) -> Result<String> {
    if json {
        // Line ends in values are escaped.
        return Ok(report::json(ready)?.lines().map(str::trim_start).collect());
    }
    let handles = ready.handles.iter().map(|(name, handle)| format!(" {name}={handle}"));
    Ok(format!("{}{}", ready.path.display(), handles.collect::<String>()))
}
