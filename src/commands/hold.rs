//! `rdmaprep hold`: the only command that waits. The NICs are in the namespace before any container
//! is.

use crate::config::sysfs_mode::SysfsMode;
use rdma_model::values::PlanName;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nccl_rules::topology_xml::topology;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::IfName;
use rdma_model::step::{Side, Step};
use serde::Serialize;

use super::{busy_nics, deadline_weight, end_report, request, say, store, warn};
use crate::apply::apply;
use crate::cli::{Global, HoldArgs};
use crate::config::request::Request;
use crate::deadline;
use crate::disk::files;
use crate::handle::Handle;
use crate::hook::{self, Hook, NetnsKeeper, Target};
use crate::kernel::netns::{NAMED, Netns, pins};
use crate::kernel::process::memfd::KeptFile;
use crate::kernel::process::pidfd::Process;
use crate::kernel::process::signals::Signals;
use crate::kernel::process::{capabilities, pidfd_getfd};
use crate::kernel::{Kernel, Namespaces, Observed, Recipient, RecipientProcess, ThisMachine};
use crate::oci::state::State;
use crate::plan::Plan;
use crate::planner::{look_at_host, options, plan_with, stored_plan, view_of};
use crate::record::Hold;
use crate::report::{self, Report};
use crate::restore::reclaim::reclaim;
use crate::store::Store;
use crate::store::records::Records;

#[derive(Serialize)]
struct Ready<'a> {
    id: &'a str,
    path: &'a Path,
    netns: u64,
    nics: &'a [IfName],
    handles: &'a BTreeMap<String, Handle>,
}

pub(super) fn hold(global: &Global, args: &HoldArgs) -> Result<()> {
    let signals = Signals::block()?;
    files::private_umask();
    capabilities::shed()?;
    capabilities::require()?;
    let id: PlanName = args
        .name
        .as_deref()
        .unwrap_or(&args.plan)
        .parse()
        .class(ErrorClass::Usage, "--name")?;
    let request = request(global, Some(&args.plan), &args.select)?;
    let path = Path::new(NAMED).join(id.as_str());
    let bundle = path.to_str().unwrap_or_default().to_owned();
    let state = State {
        id: id.as_str().to_owned(),
        pid: None,
        bundle,
        annotations: BTreeMap::new(),
    };
    let store = store(&request.host);
    let patience = Duration::from_secs(
        deadline::hold(args.deadline, deadline_weight(&request, &store)).into(),
    );
    let begun = Instant::now();
    let machine = ThisMachine::new()?;
    let deadline = begun + patience;
    // Who has the name has the last report of that name, too.
    let notes = clear(&path, &store, &machine, deadline)?;
    let mut report = Report {
        notes,
        container: Some(state.id.clone()),
        ..Report::new("hold")
    };
    // What it keeps is open until the end.
    let made = match make(&store, &path, &request, deadline, &mut report.notes) {
        Ok(made) => made,
        Err(e) => {
            return end_report(
                &mut report,
                Some(&state.id),
                Err(e),
                begun,
                &request.host,
                &store,
            );
        }
    };
    let keeper = NetnsKeeper {
        recipient: &made.recipient,
        plan: &made.plan,
        hold: &made.hold,
    };
    let hook = |begun: Instant| {
        Hook::new(Target::Hold(&keeper), &state, &store, &machine, begun)
            .until(begun + patience, begun)
    };
    let result = hook::create(&hook(begun), &request, &mut report);
    end_report(
        &mut report,
        Some(&state.id),
        result,
        begun,
        &request.host,
        &store,
    )?;
    let netns = made.recipient.netns();
    warn(&report.notes);
    let ready = Ready {
        id: &state.id,
        path: &path,
        netns,
        nics: &report.nics,
        handles: &made.hold.handles,
    };
    // Whatever goes wrong from here on, the NICs are restored.
    let waited = ready_text(&ready, args.json)
        .and_then(|line| say(&line))
        .and_then(|()| signals.wait());
    end(&hook(Instant::now()), netns, &request).and(waited)
}

/// Restores what belongs to containers that have died, whose names are free then.
fn clear(
    path: &Path,
    store: &Store,
    machine: &ThisMachine,
    deadline: Instant,
) -> Result<Vec<String>> {
    store.make_folders()?;
    let _lock = store.lock(deadline)?;
    let notes = reclaim(machine, &mut Records::read(store, machine.boot_id())?, None)?;
    pins::check_vacant(path).map(|()| notes)
}

struct Made {
    plan: Plan,
    hold: Hold,
    recipient: RecipientProcess,
    /// Open as long as this process lives.
    _kept: Vec<KeptFile>,
}

fn make(
    store: &Store,
    path: &Path,
    request: &Request,
    deadline: Instant,
    notes: &mut Vec<String>,
) -> Result<Made> {
    let (plan, kept) = render(store, request, notes)?;
    let own = Process::current()?;
    let hold = Hold {
        path: path.to_owned(),
        handles: kept
            .iter()
            .map(|kept| Ok((kept.name().to_owned(), pidfd_getfd::handle_for(&own, kept)?)))
            .collect::<Result<_>>()?,
    };
    let recipient = RecipientProcess::keeping(&Netns::make()?)?;
    // A container that joins a namespace expects this of it.
    let up = Step::Link {
        side: Side::Inside,
        dev: "lo".parse()?,
        up: true,
    };
    apply(&[up], &mut *recipient.open()?, deadline, |_| {})?;
    Ok(Made {
        plan,
        hold,
        recipient,
        _kept: kept,
    })
}

/// The plan, and what its containers' consumers may want of it, as of before the NICs move: what a
/// sandbox with a kernel of its own would see of /sys, and where NICs and GPUs are.
fn render(
    store: &Store,
    request: &Request,
    notes: &mut Vec<String>,
) -> Result<(Plan, Vec<KeptFile>)> {
    let name = request.plan_name().context("a plan is named")?;
    let mut world = Kernel::open(Netns::current()?, None)?;
    let Observed {
        snapshot: seen,
        survey,
    } = look_at_host(&mut world, &request.job())?;
    let plan = match stored_plan(store, request, name)? {
        Some(plan) => plan,
        None => {
            plan_with(
                request,
                name.as_str(),
                &seen,
                &busy_nics(store)?,
                options(request),
            )?
            .0
        }
    };
    let plan = request.narrowed_plan(plan, Some(&seen));
    if plan.count() == 0 {
        return Err(
            ErrorClass::Nothing.error(format!("the host's policy leaves no NIC of plan {name}"))
        );
    }
    let whole = Plan {
        sysfs: SysfsMode::Snapshot,
        view: None,
        ..plan.clone()
    };
    let view = view_of(&whole, BTreeSet::new(), &seen, survey.as_ref())?.unwrap_or_default();
    let mut kept = vec![KeptFile::new("sysfs", report::json(&view)?.as_bytes())?];
    let hcas = plan
        .nics
        .iter()
        .filter_map(|n| n.hca.clone())
        .chain(plan.ib.iter().cloned())
        .collect();
    let topology = topology(&seen, &hcas);
    let left_out = topology
        .unplaced
        .iter()
        .map(|(hca, why)| format!("left out of the topology file: {hca}: {why}"));
    notes.extend(left_out.chain(topology.warnings.iter().cloned()));
    match topology.xml() {
        Ok(xml) => kept.push(KeptFile::new("topology", xml.as_bytes())?),
        Err(e) => notes.push(format!("no handle of a topology file: {e:#}")),
    }
    Ok((plan, kept))
}

/// The signal has come. Processes in the namespace keep the NICs: they are restored with the last
/// one.
fn end(hook: &Hook, netns: u64, request: &Request) -> Result<()> {
    let mut report = Report {
        container: Some(hook.state.id.clone()),
        ..Report::new("hold end")
    };
    if !hook::is_held_by_us(hook, netns)? {
        // They were restored already; by now another hold may have that name.
        return Ok(());
    }
    let (id, result) = (Some(hook.state.id.as_str()), hook::stop(hook, &mut report));
    let result = end_report(
        &mut report,
        id,
        result,
        hook.begun,
        &request.host,
        hook.store,
    );
    let said = report
        .notes
        .iter()
        .try_for_each(|note| say(&report::printable(note)));
    result.and(said)
}

/// One line: where the namespace is, then each handle by its name.
fn ready_text(ready: &Ready, json: bool) -> Result<String> {
    if json {
        // Line ends in values are escaped.
        return Ok(report::json(ready)?.lines().map(str::trim_start).collect());
    }
    let handles = ready
        .handles
        .iter()
        .map(|(name, handle)| format!(" {name}={handle}"));
    Ok(format!(
        "{}{}",
        ready.path.display(),
        handles.collect::<String>()
    ))
}
