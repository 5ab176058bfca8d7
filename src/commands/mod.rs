//! The only composition: one short function per command.

mod at_work;
mod cdi;
mod claims;
mod cni;
mod completion;
mod config_file;
mod container_id;
mod decision;
mod doctor;
mod env;
mod handle;
mod hold;
mod hook;
mod install;
pub mod metrics;
mod nccl;
mod on_host;
mod peers;
mod plan;
mod prepare;
mod restore;
mod running;
mod shim;
mod spec;
mod status;
mod sysfs;
mod test_bootstrap;
pub mod test_rails;
mod topo;
mod unrestorable;

use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::snapshot::{self, JobAddresses, Snapshot};
use rdma_model::strict_json;

use crate::cli::{Cli, Command, Global, HandleCommand, NcclCommand, SelectArgs, SnapshotArgs};
use crate::config::host::{Config, Host};
use crate::config::request::{ANNOTATION, Request};
use crate::deadline;
use crate::disk::files;
use crate::kernel::netns::Netns;
use crate::kernel::process::capabilities;
use crate::kernel::{Kernel, Namespaces, ThisMachine, sysfs as sys};
use crate::planner;
use crate::report::{self, Report};
use crate::select::BusyNic;
use crate::shim::Call;
use crate::store::Store;
use crate::store::records::Records;
use crate::verify;
use config_file::{config, host_for_return};

pub fn run(cli: Cli) -> Result<()> {
    let done = dispatch(cli);
    match done.as_ref().is_err_and(capabilities::is_denied) {
        true => done.class(ErrorClass::Refused, "run it as root"),
        false => done,
    }
}

fn dispatch(cli: Cli) -> Result<()> {
    let global = &cli.global;
    match &cli.command {
        Command::Snapshot(args) => snapshot(args),
        Command::Prepare(args) => prepare::prepare(global, args),
        Command::Env(args) => env::env(global, args),
        Command::Spec(args) => spec::spec(global, args),
        Command::Runtime(args) => shim::runtime(
            global,
            &Call {
                named: None,
                args: args.args.clone(),
            },
        ),
        Command::Hook(args) => hook::hook(global, args),
        Command::Cni => cni::cni(global),
        Command::Hold(args) => hold::hold(global, args),
        Command::Handle(HandleCommand::Open(args)) => handle::open(args),
        Command::Cdi(args) => cdi::run(global, args),
        Command::Plan(command) => plan::run(global, command),
        Command::Claims(args) => claims::run(global, args),
        Command::Restore(args) => restore::restore(global, args),
        Command::Status(args) => status::status(global, args),
        Command::Metrics(args) => metrics::metrics(global, args),
        Command::Sysfs(args) => sysfs::run(args),
        Command::Nccl(NcclCommand::Explain(args)) => nccl::explain(global, args),
        Command::Nccl(NcclCommand::TestBootstrap(args)) => test_bootstrap::run(args),
        Command::Doctor(args) => doctor::run(global, args),
        Command::TryNodes(args) => doctor::try_nodes(args),
        Command::Topo(args) => topo::run(global, args),
        Command::JobStatus(args) => peers::show(args),
        Command::TestRails(_) => test_rails::start(),
        Command::Install(args) => install::install(global, args),
        Command::Uninstall(args) => install::uninstall(global, args),
        Command::Completion(args) => completion::completion(global, args),
    }
}

/// `rdmaprep-runtime`: becomes the runtime, and returns only where that is refused or cannot be
/// done.
pub fn runtime(call: &Call) -> Result<()> {
    shim::runtime(&Global::default(), call)
}

fn request(global: &Global, plan: Option<&str>, args: &SelectArgs) -> Result<Request> {
    request_by(config(global)?, global, plan, args)
}

fn request_by(
    config: Config,
    global: &Global,
    plan: Option<&str>,
    args: &SelectArgs,
) -> Result<Request> {
    let host = Host::new(global, &config);
    Request::new(plan, args, host, config.select, |name| {
        std::env::var(name).ok()
    })
}

/// Why flags that select NICs count for nothing.
fn is_stored(plan: &str) -> String {
    format!(
        "plan {plan} is stored, and has its NICs; `rdmaprep prepare` with these flags makes it \
        again"
    )
}

fn store(host: &Host) -> Store {
    Store::new(&host.run_dir, &host.state_dir)
}

fn busy_nics(store: &Store) -> Result<Vec<BusyNic>> {
    let machine = ThisMachine::new()?;
    Ok(planner::busy_nics(
        &Records::read(store, machine.boot_id())?,
        &machine,
    ))
}

fn load_snapshot(root: Option<&Path>, file: Option<&Path>) -> Result<Snapshot> {
    if let Some(root) = root {
        return sys::tree_snapshot(root);
    }
    match file {
        Some(file) => recorded(file),
        None => planner::observe_host(
            &mut Kernel::open(Netns::current()?, None)?,
            &JobAddresses::default(),
        ),
    }
}

fn reading(path: &Path) -> String {
    format!("reading {}", path.display())
}

fn recorded(file: &Path) -> Result<Snapshot> {
    let doing = || format!("reading snapshot {}", file.display());
    let text = files::read(file).class(ErrorClass::Usage, doing())?;
    let text = text.ok_or_else(|| {
        ErrorClass::Usage.error(format!("--snapshot: {} does not exist", file.display()))
    })?;
    let snapshot: Snapshot = strict_json::strict(&text).class(ErrorClass::Usage, doing())?;
    if snapshot.schema != snapshot::SCHEMA {
        return Err(ErrorClass::Usage.error(format!(
            "{}: schema {} is unknown",
            file.display(),
            snapshot.schema
        )));
    }
    Ok(snapshot)
}

fn snapshot(args: &SnapshotArgs) -> Result<()> {
    let snapshot = load_snapshot(args.root.as_deref(), None)?;
    if args.normal {
        return say(verify::normal_text(&snapshot).trim_end());
    }
    if args.json {
        warn(&snapshot.warnings);
        return say(&report::json(&snapshot)?);
    }
    say(&report::snapshot_table(&snapshot))
}

/// The most NICs that a plan may come to, as its hooks' deadline counts them: its own, or of one
/// that is yet to be made all of the host.
fn deadline_weight(request: &Request, store: &Store) -> usize {
    let planned = request
        .plan_name()
        .and_then(|name| store.planned_nics(name.as_str()));
    match planned {
        Some(planned) => deadline::weight(planned.into_iter()),
        None => files::list(Path::new("/sys/class/net")).map_or(0, |links| links.len()),
    }
}

fn lacks_plan() -> anyhow::Error {
    ErrorClass::State.error(format!(
        "the container has annotations {ANNOTATION}*, and none names a plan"
    ))
}

/// One error for all that could not be restored.
fn one_error(mut failures: Vec<anyhow::Error>) -> Result<()> {
    let count = failures.len();
    if count < 2 {
        return failures.pop().map_or(Ok(()), Err);
    }
    let all: Vec<String> = failures.iter().map(|e| format!("{e:#}")).collect();
    Err(ErrorClass::Incomplete.error(format!(
        "the NICs of {count} containers are not restored: {}",
        all.join("; ")
    )))
}

/// At most a byte more than `limit`.
fn stdin(limit: usize) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    std::io::stdin()
        .take(limit as u64 + 1)
        .read_to_end(&mut text)?;
    Ok(text)
}

/// Seconds since 1970.
fn now() -> Option<u64> {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .map(|d| d.as_secs())
}

/// Ends a report with that result, and keeps it where it has anything to say.
fn end_report(
    report: &mut Report,
    id: Option<&str>,
    result: Result<()>,
    begun: Instant,
    host: &Host,
    store: &Store,
) -> Result<()> {
    let result = result.map_err(|e| store.with_space(e));
    report.finish(&result, begun);
    if result.is_err() || report.plan.is_some() || !report.notes.is_empty() {
        keep(report, id, host, store);
    }
    result
}

/// Keeps it as the last report of the container with that id. A report that cannot be written must
/// not fail a hook that succeeded.
fn keep(report: &Report, id: Option<&str>, host: &Host, store: &Store) {
    let message = report
        .message
        .as_ref()
        .map(|text| text.chars().take(report::LONGEST).collect());
    let report = Report {
        time: now(),
        message,
        ..report.clone()
    };
    let log = &host.hook_log;
    let logged = if log.as_os_str().is_empty() {
        Ok(())
    } else {
        files::append(log, &report.line())
    };
    let report = report.with_notes_of(|| store.report(id?).ok()?);
    let save = || store.save_report(id, &report::json(&report)?);
    // Where that is the reason of a failure, the message says so.
    let kept = if store.is_read_only() { Ok(()) } else { save() };
    for e in [logged.err(), kept.err()].into_iter().flatten() {
        warn(&[format!("{e:#}")]);
    }
}

static HAS_SAID: AtomicBool = AtomicBool::new(false);

/// Whether stdout has what the command says: one document, where that is JSON.
pub fn has_said() -> bool {
    HAS_SAID.load(Ordering::Relaxed)
}

/// Prints to stdout. A reader that closed the pipe is no error.
pub fn say(text: &str) -> Result<()> {
    HAS_SAID.store(true, Ordering::Relaxed);
    match writeln!(std::io::stdout(), "{text}") {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(e).context("writing to stdout"),
        _ => Ok(()),
    }
}

/// Warnings that must not go to stderr: the stderr of a runtime is that of its container.
static ASIDE: Mutex<Option<Vec<String>>> = Mutex::new(None);

fn kept_aside() -> MutexGuard<'static, Option<Vec<String>>> {
    ASIDE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn aside() {
    *kept_aside() = Some(Vec::new());
}

fn take_aside() -> Vec<String> {
    kept_aside().take().unwrap_or_default()
}

/// What a user who waits sees; never on the stderr of a runtime.
fn progress(text: &str) {
    if kept_aside().is_none() {
        let _ = writeln!(std::io::stderr(), "rdmaprep: {}", report::printable(text));
    }
}

/// Works, and says on a terminal what it does where that takes longer than a user expects.
fn with_progress<T>(text: String, work: impl FnOnce() -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    let (done, end) = channel::<()>();
    let watch = Builder::new().spawn(move || {
        let ended = end.recv_timeout(Duration::from_secs(1));
        if ended == Err(RecvTimeoutError::Timeout) {
            progress(&text);
        }
    });
    let result = work();
    drop(done);
    let _ = watch.map(JoinHandle::join);
    result
}

pub fn warn(sentences: &[String]) {
    if let Some(kept) = kept_aside().as_mut() {
        return kept.extend_from_slice(sentences);
    }
    for sentence in sentences {
        // stderr may be closed; there is no better place to say so.
        let _ = writeln!(
            std::io::stderr(),
            "rdmaprep: warning: {}",
            report::printable(sentence)
        );
    }
}
