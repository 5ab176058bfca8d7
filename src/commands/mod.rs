//! The only composition: one short function per command.

mod cdi;
mod cni;
mod config_file;
mod container_id;
mod decision;
mod doctor;
mod env;
mod handle;
mod hold;
mod install;
mod nccl;
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
mod topo;
mod unrestorable;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::snapshot::{self, JobAddresses, Snapshot};
use rdma_model::strict_json;

use crate::cli::{
    CheckCommand, Cli, Command, Global, HandleCommand, HookArgs, NcclCommand, SelectArgs,
    SnapshotArgs,
};
use crate::config::device_request::DeviceRequest;
use crate::config::host::Host;
use crate::config::request::{ANNOTATION, Request};
use crate::container::setup::config_json;
use crate::deadline;
use crate::handle::Handle;
use crate::hook::{self, Hook, Outcome};
use crate::kernel::host::files;
use crate::kernel::netns::Netns;
use crate::kernel::process::capabilities;
use crate::kernel::records::Records;
use crate::kernel::store::Store;
use crate::kernel::{Kernel, Namespaces, ThisMachine, sysfs as sys};
use crate::oci::edit::Stage;
use crate::oci::state::{self, State};
use crate::planner;
use crate::report::{self, Report};
use crate::select::BusyNic;
use crate::shim::Call;
use crate::verify;
use config_file::{config, config_or_default, has_plan, homeward};

pub fn run(cli: Cli) -> Result<()> {
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
        Command::Hook(args) => oci_hook(global, args),
        Command::Cni => cni::cni(global),
        Command::Hold(args) => hold::hold(global, args),
        Command::Handle(HandleCommand::Open(args)) => handle::open(args),
        Command::Cdi(args) => cdi::run(global, args),
        Command::Plan(command) => plan::run(global, command),
        Command::Restore(args) => restore::restore(global, args),
        Command::Status(args) => status::status(global, args),
        Command::Sysfs(args) => sysfs::run(args),
        Command::Nccl(NcclCommand::Explain(args)) => nccl::explain(global, args),
        Command::Nccl(NcclCommand::TestBootstrap(args)) => test_bootstrap::run(args),
        Command::Check(old) => {
            let CheckCommand::Bootstrap(args) = &**old;
            test_bootstrap::run(args)
        }
        Command::Doctor(args) => doctor::run(global, args),
        Command::TryNodes(args) => doctor::try_nodes(args),
        Command::Topo(args) => topo::run(global, args),
        Command::JobStatus(args) => peers::show(args),
        Command::Install(args) => install::install(global, args),
        Command::Uninstall(args) => install::uninstall(global, args),
    }
}

/// `rdmaprep-runtime`: becomes the runtime, and returns only where that is refused or cannot be
/// done.
pub fn runtime(call: &Call) -> Result<()> {
    shim::runtime(&Global::default(), call)
}

fn request(global: &Global, plan: Option<&str>, args: &SelectArgs) -> Result<Request> {
    let config = config(global)?;
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

/// `rdmaprep hook`. It must not fail a container that did not opt in. Options that select NICs
/// count at create alone: which NICs return to the host, only the record decides.
fn oci_hook(global: &Global, args: &HookArgs) -> Result<()> {
    // crun runs hooks with umask 0.
    files::private_umask();
    let shed = capabilities::shed();
    let begun = Instant::now();
    let state = read_state()?;
    // Other runtimes have called createRuntime before, and its hook has done all; this one may be
    // in a user namespace.
    if args.stage == Stage::CreateContainer && !(state.is_of_gofer() && asks(global, args, &state))
    {
        return Ok(());
    }
    shed?;
    let mut report = Report::new(format!("hook {}", args.stage.name()));
    report.container = Some(state.id.clone());
    let known = Instant::now();
    let until = |nics: &dyn Fn() -> usize| {
        // A deadline on the command line needs no plan.
        let nics = if args.deadline.is_some() { 0 } else { nics() };
        known
            + Duration::from_secs(deadline::for_hook(args.deadline, args.hook_timeout, nics).into())
    };
    let (host, ended) = match args.stage {
        Stage::Prestart | Stage::CreateRuntime => match device_request(global, args, &state) {
            // A broken config file or a stray variable of the host must not keep every container
            // from starting.
            Err((e, _)) if !asks(global, args, &state) => return warn_only(&e),
            // Some runtimes drop what hooks print: if it is known where the log is, that has the
            // error as well.
            Err((e, host)) => {
                let salvaged = || Some(Host::new(global, &homeward(global).ok()?));
                let Some(host) = host.map(|host| *host).or_else(salvaged) else {
                    return Err(e);
                };
                (host, Outcome::since(begun).end(Err(e)))
            }
            Ok(None) => return Ok(()),
            Ok(Some(request)) => {
                let store = store(&request.host).handed(handed(&args.handles));
                let wait = args
                    .wait
                    .map_or(request.host.hook_wait, |s| Duration::from_secs(s.into()));
                let deadline = until(&|| nics(&request, &store));
                let patience = deadline.min(Instant::now() + wait);
                let agreed = args.agreed.as_deref().filter(|digest| !digest.is_empty());
                let machine = &ThisMachine::new()?;
                let (state, store) = (&state, &store);
                let hook = Hook {
                    state,
                    store,
                    machine,
                    begun,
                    deadline,
                    patience,
                    agreed,
                    keeper: None,
                    cni: None,
                };
                let ended = hook::create(&hook, &request);
                (request.host, ended)
            }
        },
        _ => {
            let host = Host::new(global, &config_or_default(global));
            let store = store(&host);
            let machine = &ThisMachine::new()?;
            let deadline = until(&|| hook::nics_of(&state, None, &store, machine));
            let (state, store, patience) = (&state, &store, Instant::now());
            let hook = Hook {
                state,
                store,
                machine,
                begun,
                deadline,
                patience,
                agreed: None,
                keeper: None,
                cni: None,
            };
            let ended = match args.stage {
                Stage::CreateContainer => hook::create_container(&hook),
                Stage::Poststart => hook::start(&hook),
                _ => hook::stop(&hook),
            };
            (host, ended)
        }
    };
    let ended = ended.map_err(|mut failed| {
        failed.error = store(&host).with_space(failed.error);
        failed
    });
    let result = Outcome::conclude(ended, &mut report);
    if result.is_err() || report.plan.is_some() || !report.notes.is_empty() {
        let store = store(&host);
        // Ids are unique only within a runtime, and one that refuses an id may call the hooks
        // first.
        let is_anothers =
            result.is_err() && hook::has_namesake(&state, &store, &ThisMachine::new()?);
        keep_as(
            report.container.as_deref().filter(|_| !is_anothers),
            &report,
            &host,
            &store,
        );
    }
    result
}

/// The most NICs that a plan may come to: its own, or of one that is yet to be made all of the
/// host.
fn nics(request: &Request, store: &Store) -> usize {
    let planned = request
        .plan()
        .and_then(|name| store.planned_nics(name.as_str()));
    planned
        .unwrap_or_else(|| files::list(Path::new("/sys/class/net")).map_or(0, |links| links.len()))
}

/// What is asked for a container, by the host and less what its annotations take away; or why not,
/// with what the host settled as far as that can be read. Nothing where it did not opt in, or where
/// the hook of another of its devices does the work.
fn device_request(
    global: &Global,
    args: &HookArgs,
    state: &State,
) -> Result<Option<Request>, (anyhow::Error, Option<Box<Host>>)> {
    let request = request(global, args.plan.as_deref(), &args.select).map_err(|e| (e, None))?;
    let mine = || -> Result<Option<Request>> {
        let mut mine = request.narrow(&state.annotations)?;
        if args.rail.is_empty() {
            if mine.plan().is_none() && !state.opts_in(ANNOTATION) {
                return Ok(None);
            }
            let config = config_json(state).ok().flatten();
            let by_devices = config.is_some_and(|(_, text)| DeviceRequest::any(&text));
            ensure!(by_devices || mine.plan().is_some(), lacks_plan());
            return Ok((!by_devices).then_some(mine));
        }
        let (_, text) = config_json(state)?.ok_or_else(|| {
            ErrorClass::State
                .error("--rail: the bundle has no config.json to tell all that is asked for")
        })?;
        mine.narrowing.devices =
            DeviceRequest::first(&text, args.stage, args.plan.as_deref(), &args.rail)?;
        Ok(mine.narrowing.devices.is_some().then_some(mine))
    };
    mine().map_err(|e| (e, Some(Box::new(request.host.clone()))))
}

fn lacks_plan() -> anyhow::Error {
    ErrorClass::State.error(format!(
        "the container has annotations {ANNOTATION}*, and none names a plan"
    ))
}

/// Whether a container, or the host for all of its containers, asks for NICs: one that cannot have
/// them must not start then. One that shares the host's network namespace has them already.
fn asks(global: &Global, args: &HookArgs, state: &State) -> bool {
    let by_host = || has_plan(global) && !shares_host_netns(state).unwrap_or_default();
    args.plan.is_some() || !args.rail.is_empty() || state.opts_in(ANNOTATION) || by_host()
}

fn shares_host_netns(state: &State) -> Result<bool> {
    Ok(Netns::of_process(state.init()?)?.inode() == Netns::current()?.inode())
}

/// What the runtime's process keeps, by name. A container starts without it as well: what is no
/// handle is passed over.
fn handed(handles: &[String]) -> BTreeMap<String, Handle> {
    let pair = |word: &String| {
        let (name, handle) = word.split_once('=')?;
        Some((name.to_owned(), handle.parse().ok()?))
    };
    handles.iter().filter_map(pair).collect()
}

fn warn_only(e: &anyhow::Error) -> Result<()> {
    warn(&[format!(
        "{e:#}; a container that does not ask for NICs starts all the same"
    )]);
    Ok(())
}

fn read_state() -> Result<State> {
    State::parse(
        &stdin(state::MAX_BYTES)
            .class(ErrorClass::State, "reading the runtime's state from stdin")?,
    )
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

/// A report that cannot be written must not fail a hook that succeeded.
fn keep(report: &Report, host: &Host, store: &Store) {
    keep_as(report.container.as_deref(), report, host, store);
}

/// The same as the report of that container; of none where its own id is another one's.
fn keep_as(id: Option<&str>, report: &Report, host: &Host, store: &Store) {
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

/// Prints to stdout. A reader that closed the pipe is no error.
fn say(text: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(e).context("writing to stdout"),
        _ => Ok(()),
    }
}

/// Warnings that must not go to stderr: the stderr of a runtime is that of its container.
static ASIDE: Mutex<Option<Vec<String>>> = Mutex::new(None);

fn aside() {
    *ASIDE.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
}

fn taken() -> Vec<String> {
    ASIDE
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
        .unwrap_or_default()
}

/// What a user who waits sees; never on the stderr of a runtime.
fn progress(text: &str) {
    if ASIDE
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .is_none()
    {
        let _ = writeln!(std::io::stderr(), "rdmaprep: {}", report::printable(text));
    }
}

fn warn(sentences: &[String]) {
    if let Some(kept) = ASIDE
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .as_mut()
    {
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
