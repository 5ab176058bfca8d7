//! The only composition: one short function per command.

mod away;
mod sysfs;

use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::cli::{Cli, Command, Global, HookArgs, PrepareArgs, SelectArgs, SnapshotArgs};
use crate::config::{CONFIG, Config, Host};
use crate::fault::{Fault, WithFault};
use crate::hook::{self, Hook};
use crate::ident::IfName;
use crate::inject::{self, Edit, Injected, Stage};
use crate::nccl::{self, Options};
use crate::plan::Plan;
use crate::report::{self, Report, Stopwatch};
use crate::request::{ANNOTATION, Request};
use crate::select::{self, Selection, select};
use crate::snapshot::{self, Netdev, Snapshot};
use crate::state::{self, State};
use crate::step::Side;
use crate::uplink;
use crate::verify;
use crate::world::netns::Netns;
use crate::world::store::Store;
use crate::world::{Live, Scope, World, boot_id, files, sysfs as sys};

/// Runs a command.
pub fn run(cli: Cli) -> Result<()> {
    let global = &cli.global;
    match &cli.command {
        Command::Snapshot(args) => snapshot(args),
        Command::Prepare(args) => prepare(global, args),
        Command::Hook(args) => oci_hook(global, args),
        Command::Restore(args) => away::restore(global, args),
        Command::Status(args) => away::status(global, args),
        Command::Sysfs(args) => sysfs::run(args),
    }
}

/// The host's config file; only the default one may be absent.
fn config(global: &Global) -> Result<Config> {
    let path = global.config.as_deref().unwrap_or(Path::new(CONFIG));
    let doing = || format!("reading {}", path.display());
    match files::read(path).fault(Fault::Usage, doing())? {
        Some(text) => Config::parse(&text).fault(Fault::Usage, doing()),
        None if global.config.is_none() => Ok(Config::default()),
        None => Err(Fault::Usage.error(format!("the config file {} does not exist", path.display()))),
    }
}

fn request(global: &Global, plan: Option<&str>, args: &SelectArgs) -> Result<Request> {
    let config = config(global)?;
    let host = Host::new(global, &config);
    Request::new(plan, args, host, config.select, |name| std::env::var(name).ok())
}

fn store(host: &Host) -> Store {
    Store::new(&host.run_dir, &host.state_dir)
}

/// What this host has: live, from a captured /sys, or from a file made by `snapshot --json`.
fn look(root: Option<&Path>, file: Option<&Path>) -> Result<Snapshot> {
    if let Some(root) = root {
        return sys::tree_snapshot(root);
    }
    if let Some(file) = file {
        let doing = || format!("reading snapshot {}", file.display());
        let text = files::read(file).fault(Fault::Usage, doing())?;
        let text = text.ok_or_else(|| Fault::Usage.error(format!("there is no {}", file.display())))?;
        let snapshot: Snapshot = serde_json::from_str(&text).fault(Fault::Usage, doing())?;
        if snapshot.schema != snapshot::SCHEMA {
            return Err(Fault::Usage.error(format!("{}: schema {} is unknown", file.display(), snapshot.schema)));
        }
        return Ok(snapshot);
    }
    Live::open(Netns::current()?, None)?.observe(Side::Host, &Scope::full())
}

/// `rdmaprep snapshot`.
fn snapshot(args: &SnapshotArgs) -> Result<()> {
    let snapshot = look(args.root.as_deref(), None)?;
    if args.normal {
        return say(verify::normal_text(&snapshot).trim_end());
    }
    if args.json {
        warn(&snapshot.warnings);
        return say(&report::json(&snapshot)?);
    }
    say(&report::snapshot_table(&snapshot))
}

/// A plan from a fresh look, with the selection that explains it.
pub fn fresh_plan(request: &Request, name: &str, snapshot: &Snapshot, store: &Store) -> Result<(Plan, Selection)> {
    plan_with(request, name, snapshot, store, options(request))
}

fn plan_with(
    request: &Request,
    name: &str,
    snapshot: &Snapshot,
    store: &Store,
    options: Options,
) -> Result<(Plan, Selection)> {
    let selection = select(request, snapshot, &held(store)?)?;
    let plan = Plan::new(name, request, snapshot, &selection, &options);
    Ok((plan, selection))
}

/// NICs that containers hold.
fn held(store: &Store) -> Result<Vec<select::Held>> {
    let mut all = Vec::new();
    let boot = boot_id()?;
    for (_, record) in store.all_records()? {
        // After a reboot nothing is away.
        let Some(record) = record.ok().filter(|r| r.boot_id == boot) else { continue };
        let by = record.members.first().map_or("a container".to_owned(), |m| format!("container {}", m.id));
        all.extend(record.held.into_iter().map(|h| select::Held {
            netdev: h.nic.identity.name,
            hca: h.nic.hca,
            port: h.nic.port,
            by: by.clone(),
        }));
    }
    Ok(all)
}

fn options(request: &Request) -> Options {
    let topo_file = request.nccl_topo.as_ref().filter(|f| f.exists()).map(|f| f.display().to_string());
    Options {
        debug_all: request.debug_all,
        topo_file,
        topo_wanted: request.include_nccl_topo,
        host_env: request.passed_on.clone(),
        bootstrap_iface: None,
    }
}

/// What `prepare --json` prints.
#[derive(Serialize)]
struct Prepared<'a> {
    plan: &'a Plan,
    selection: &'a Selection,
    bundle: Option<&'a Injected>,
}

/// `rdmaprep prepare`.
fn prepare(global: &Global, args: &PrepareArgs) -> Result<()> {
    let request = request(global, Some(&args.plan), &args.select)?;
    let store = store(&request.host);
    let config = args.bundle.as_deref().map(read_config).transpose()?;
    let request = match &config {
        Some(text) => request.narrow(&inject::annotations(text)?)?,
        None => request,
    };
    let snapshot = look(None, args.snapshot.as_deref())?;
    let mut options = options(&request);
    options.bootstrap_iface = config.as_deref().and_then(bootstrap);
    let (plan, selection) = plan_with(&request, &args.plan, &snapshot, &store, options)?;
    warn(&snapshot.warnings);
    warn(&selection.warnings);
    warn(&missing_topology(&request));
    let injected = config.as_ref().map(|text| inject(text, &plan, &request, args.hook_timeout)).transpose()?;
    if !args.dry_run {
        store.prepare()?;
        if let (Some(bundle), Some(i)) = (&args.bundle, &injected) {
            write_config(bundle, i)?;
        }
        store.save_plan(&plan)?;
    }
    if args.json {
        let prepared = Prepared { plan: &plan, selection: &selection, bundle: injected.as_ref() };
        return say(&report::json(&prepared)?);
    }
    if let (Some(before), Some(i)) = (&config, &injected) {
        say(&report::injected(i))?;
        if args.dry_run {
            say(&report::printable_lines(&inject::diff(before, &i.json)))?;
        }
    }
    say(&report::summary(&plan, &selection))
}

/// The interface that NCCL and Gloo meet over, where the namespace exists before the container (a pod's): the one with the
/// default route. In a namespace that is yet to be made nobody knows.
fn bootstrap(config: &str) -> Option<IfName> {
    let inside = Netns::open(&inject::netns_path(config)?).ok()?;
    let mut live = Live::open(Netns::current().ok()?, Some(inside)).ok()?;
    let snapshot = live.observe(Side::Inside, &Scope::links()).ok()?;
    let uplinks = uplink::uplinks(false, &snapshot).ok()?;
    let usable = |n: &&Netdev| n.up && n.running && uplinks.contains_key(&n.name) && !n.addresses.is_empty();
    snapshot.netdevs.iter().find(usable).map(|n| n.name.clone())
}

fn missing_topology(request: &Request) -> Vec<String> {
    let users = request.passed_on.contains_key("NCCL_TOPO_FILE");
    let asked = request.nccl_topo.as_ref().filter(|f| request.include_nccl_topo && !users && !f.exists());
    asked
        .map(|f| format!("the topology file {} does not exist: NCCL_TOPO_FILE is not set", f.display()))
        .into_iter()
        .collect()
}

fn read_config(bundle: &Path) -> Result<String> {
    let path = bundle.join("config.json");
    let text = files::read(&path).fault(Fault::State, format!("reading {}", path.display()))?;
    text.ok_or_else(|| Fault::State.error(format!("the bundle {} has no config.json", bundle.display())))
}

fn write_config(bundle: &Path, injected: &Injected) -> Result<()> {
    let path = bundle.join("config.json");
    files::replace_keeping_owner(&path, injected.json.as_bytes())
}

fn inject(text: &str, plan: &Plan, request: &Request, timeout: u32) -> Result<Injected> {
    let program = std::env::current_exe().context("finding our own path")?;
    let program = program.to_str().context("our own path is no UTF-8")?;
    let mut edit = Edit::of(plan, program, timeout);
    edit.annotations.extend(nccl::runsc_annotations(&options(request)));
    inject::apply(text, &edit)
}

/// `rdmaprep hook`. Nothing of ours must fail a container that did not opt in, and nothing but the record decides what goes
/// home: what selects NICs is read for create alone.
fn oci_hook(global: &Global, args: &HookArgs) -> Result<()> {
    // crun runs hooks with umask 0.
    files::private_umask();
    let mut watch = Stopwatch::start();
    let state = read_state()?;
    let mut report = Report::new(format!("hook {}", args.stage.name()));
    report.container = Some(state.id.clone());
    let deadline = Instant::now() + Duration::from_secs(args.deadline.into());
    let (host, result) = if matches!(args.stage, Stage::Prestart | Stage::CreateRuntime) {
        let asked = request(global, args.plan.as_deref(), &args.select).and_then(|r| r.narrow(&state.annotations));
        let request = match asked {
            // A broken config file or a stray variable of the host must not keep every container from starting.
            Err(e) if args.plan.is_none() && !state.opts_in(ANNOTATION) => return warn_only(&e),
            asked => asked?,
        };
        let store = store(&request.host);
        let hook = Hook { state: &state, store: &store, deadline };
        let result = hook::create(&hook, &request, &mut report, &mut watch);
        (request.host, result)
    } else {
        let host = Host::new(global, &config_or_default(global));
        let store = store(&host);
        let hook = Hook { state: &state, store: &store, deadline };
        let result = match args.stage {
            Stage::Poststart => hook::start(&hook, &mut report, &mut watch),
            _ => hook::stop(&hook, &mut report, &mut watch),
        };
        (host, result)
    };
    report.finish(&result, &watch);
    report.time = SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|d| d.as_secs());
    if result.is_err() || report.plan.is_some() || !report.notes.is_empty() {
        keep(&report, &host, &store(&host));
    }
    result
}

/// NICs have to come home whatever somebody has written into the config file since they left.
fn config_or_default(global: &Global) -> Config {
    config(global).unwrap_or_else(|e| {
        warn(&[format!("{e:#}; the defaults are used")]);
        Config::default()
    })
}

fn warn_only(e: &anyhow::Error) -> Result<()> {
    warn(&[format!("{e:#}; a container that does not ask for NICs starts all the same")]);
    Ok(())
}

fn read_state() -> Result<State> {
    let mut text = Vec::new();
    let limit = state::MAX_BYTES as u64 + 1;
    std::io::stdin()
        .take(limit)
        .read_to_end(&mut text)
        .fault(Fault::State, "reading the runtime's state from stdin")?;
    State::parse(&text)
}

/// A report that cannot be written must not fail a hook that did its work.
fn keep(report: &Report, host: &Host, store: &Store) {
    let log = &host.hook_log;
    let logged = if log.as_os_str().is_empty() { Ok(()) } else { files::append(log, &report.line()) };
    let id = report.container.as_deref().unwrap_or_default();
    let kept = store.prepare().and_then(|()| store.save_report(id, &report::json(report)?));
    for e in [logged.err(), kept.err()].into_iter().flatten() {
        warn(&[format!("{e:#}")]);
    }
}

/// Prints to stdout; a reader that went away is no error of ours.
fn say(text: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(e).context("writing to stdout"),
        _ => Ok(()),
    }
}

fn warn(sentences: &[String]) {
    for sentence in sentences {
        // stderr may be closed; there is no better place to say so.
        let _ = writeln!(std::io::stderr(), "rdmaprep: warning: {}", report::printable(sentence));
    }
}
