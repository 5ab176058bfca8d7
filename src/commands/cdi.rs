//! `rdmaprep cdi`: the file by which engines know rails as devices.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::HcaName;
use rdma_model::snapshot::Snapshot;
use rdma_model::step::Side;
use serde::Serialize;

use super::{busy_nics, config, is_stored, request_by, say, store, warn};
use crate::cdi::{ALL, CdiDevice, KIND, Rail, RailName, Spec};
use crate::cli::{CdiCommand, CdiGenerateArgs, CdiListArgs, Global};
use crate::config::host::Host;
use crate::config::request::Request;
use crate::deadline;
use crate::disk::files;
use crate::disk::host_tree::{HostTree, ReadTree};
use crate::disk::replace::Replacement;
use crate::install;
use crate::kernel::netns::Netns;
use crate::kernel::{Kernel, Scope, World, boot_id};
use crate::oci::edit::{self, HookEdit, Stage, hooks_for};
use crate::plan::Plan;
use crate::planner::{observe_host, options, plan_of_any};
use crate::report::{self, DeviceLine};
use crate::select::{BusyNic, Selection, left_out};
use crate::store::Store;
use crate::store::records::Records;

#[derive(Serialize)]
struct Generated<'a> {
    path: &'a Path,
    changed: bool,
    spec: &'a Spec,
}

struct Source {
    rails: Vec<Rail>,
    hooks: Vec<HookEdit>,
    /// Why others are left out; absent: a plan was stored, and is taken at its word.
    selection: Option<Selection>,
}

pub(super) fn run(global: &Global, command: &CdiCommand) -> Result<()> {
    match command {
        CdiCommand::Generate(args) => generate(global, args),
        CdiCommand::List(args) => list(global, args),
    }
}

fn generate(global: &Global, args: &CdiGenerateArgs) -> Result<()> {
    let config = config(global)?;
    // After each change of the devices, a unit of systemd makes the file again, without flags.
    let mut plans = config.plans.iter();
    let configured = plans.find(|plan| plan.name.as_str() == args.plan);
    let timeout = args
        .hook_timeout
        .or(configured.and_then(|plan| plan.hook_timeout));
    let request = request_by(config, global, Some(&args.plan), &args.select)?;
    let store = store(&request.host);
    let seen = observe_host(&mut Kernel::open(Netns::current()?, None)?, &request.job())?;
    let source = source(&request, args, timeout, &seen, &store)?;
    let (spec, warnings) = Spec::from_rails(&source.rails, &source.hooks);
    warn(&warnings);
    let text = report::json(&spec)? + "\n";
    if args.output == Path::new("-") {
        return say(text.trim_end());
    }
    let path = &args.output;
    let named = path.is_absolute() && path.extension().is_some_and(|e| e == "json");
    ensure!(
        named,
        ErrorClass::Usage.error(format!(
            "--output {}: engines read FOLDER/NAME.json",
            path.display()
        ))
    );
    let before =
        files::read(path).class(ErrorClass::Usage, format!("reading {}", path.display()))?;
    let older = before.as_deref().map(|text| ours(path, text)).transpose()?;
    if let (true, Some(older), Some(selection)) = (args.keep, &older, &source.selection) {
        keeps(older, &spec, selection, path)?;
    }
    let changed = before.as_deref() != Some(&text);
    if changed && !args.dry_run {
        let folder = path.parent().context("a file needs a folder")?;
        files::shared_dir(folder)?;
        Replacement::with_mode(0o644).write(path, text.as_bytes())?;
    }
    if args.json {
        return say(&report::json(&Generated {
            path,
            changed,
            spec: &spec,
        })?);
    }
    let lines = lines(&spec, &seen, &busy_nics(&store)?);
    say(&summary(
        args,
        before.as_deref().unwrap_or_default(),
        &text,
        &lines,
    ))
}

fn summary(args: &CdiGenerateArgs, before: &str, text: &str, lines: &[DeviceLine]) -> String {
    let path = args.output.display();
    let (done, diff) = match (before == text, args.dry_run) {
        (true, _) => ("is as it should be", String::new()),
        (false, false) => ("written", String::new()),
        (false, true) => ("would be written", diff(&path.to_string(), before, text)),
    };
    format!(
        "{diff}{path}: {done} (plan {})\n\n{}\n\npodman run --device {KIND}={ALL} ...",
        args.plan,
        report::device_table(lines)
    )
}

fn diff(path: &str, before: &str, text: &str) -> String {
    report::printable_lines(&edit::file_diff(
        [path, &format!("{path} (generated)")],
        before,
        text,
    )) + "\n"
}

/// The rails of the stored plan, as far as the policy allows them by now; else those that would be
/// chosen, and those that are away.
fn source(
    request: &Request,
    args: &CdiGenerateArgs,
    timeout: Option<u32>,
    seen: &Snapshot,
    store: &Store,
) -> Result<Source> {
    let etc = HostTree::new(Path::new("/"))?;
    let program = &program(args, &etc)?;
    let stages = if install::has_gvisor(&etc) {
        &Stage::WITH_GOFER[..]
    } else {
        &Stage::ALL
    };
    if let Some(plan) = store.plan(&args.plan)? {
        args.select.refuse_given(&[], &is_stored(&args.plan))?;
        let plan = request.narrowed_plan(plan, Some(seen));
        let rails = Rail::rails_of_plan(&plan, seen);
        ensure!(
            !rails.is_empty(),
            ErrorClass::Nothing.error(format!("the policy leaves no NIC of plan {}", plan.name))
        );
        let hooks = hooks_for(stages, &plan, weight(&rails, &plan), program, timeout);
        return Ok(Source {
            rails,
            hooks,
            selection: None,
        });
    }
    let (plan, selection) = plan_of_any(
        request,
        &args.plan,
        seen,
        &busy_nics(store)?,
        options(request),
    )?;
    warn(&selection.warnings);
    let mut rails = Rail::rails_of_plan(&plan, seen);
    let away = away(request, seen, store)?.into_iter();
    let away: Vec<Rail> = away
        .filter(|rail| !rails.iter().any(|r| r.name == rail.name))
        .collect();
    rails.extend(away);
    rails.sort_by_cached_key(Rail::rank);
    if rails.is_empty() {
        selection.some()?;
    }
    let mut hooks = hooks_for(stages, &plan, weight(&rails, &plan), program, timeout);
    // No plan is stored: the hook makes one, from the flags given here and the rails of its own
    // flags.
    let flags = args.select.without("ifaces").flags();
    hooks
        .iter_mut()
        .for_each(|hook| hook.args.extend_from_slice(&flags));
    Ok(Source {
        rails,
        hooks,
        selection: Some(selection),
    })
}

/// The most that a container's rails may come to, as its hooks' deadline counts them.
fn weight(rails: &[Rail], plan: &Plan) -> usize {
    rails.len().max(deadline::weight_of(&plan.nics))
}

/// The rails that containers hold, as far as they would be chosen by their names.
fn away(request: &Request, seen: &Snapshot, store: &Store) -> Result<Vec<Rail>> {
    let records = Records::read(store, &boot_id()?)?;
    let given = records.readable().filter_map(|r| r.given.as_deref());
    let mut rails = Vec::from_iter(given.flat_map(|plan| Rail::rails_of_plan(plan, seen)));
    rails.retain(|rail| {
        let netdev = match &rail.name {
            RailName::Netdev(netdev) => Some(netdev),
            RailName::Hca(_) => None,
        };
        let hca = rail.hca.as_deref();
        let hca: Option<HcaName> = hca.and_then(|port| port.split(':').next()?.parse().ok());
        let policy = &request.host.policy;
        left_out(request, seen, netdev, hca.as_ref()).is_none()
            && policy.forbids_name(rail.name.as_str()).is_none()
    });
    Ok(rails)
}

fn ours(path: &Path, text: &str) -> Result<Spec> {
    Spec::parse(text).map_err(|e| ErrorClass::of(&e).error(format!("{}: {e:#}", path.display())))
}

/// The program that the hooks name: the one that stays when there is a next version, as `install`
/// has it.
fn program(args: &CdiGenerateArgs, etc: &HostTree) -> Result<String> {
    let program = install::program(args.program.as_deref(), etc)?;
    if etc.exists(&program) {
        return Ok(program);
    }
    let missing = format!("there is no {program} for hooks to call");
    ensure!(args.program.is_none(), ErrorClass::Usage.error(missing));
    let own = std::env::current_exe().context("finding the path of rdmaprep")?;
    let own = own.to_str().context("the path of rdmaprep is no UTF-8")?;
    warn(&[format!(
        "{missing}: they name {own}, which has to stay where it is"
    )]);
    Ok(own.to_owned())
}

fn keeps(older: &Spec, newer: &Spec, selection: &Selection, path: &Path) -> Result<()> {
    let mut lost = Vec::new();
    for name in older.lost(newer) {
        let dropped = selection.dropped().find(|(v, _)| {
            let netdev = v.netdev.as_ref();
            netdev.map_or_else(|| v.label(), |n| n.to_string()) == name
        });
        lost.push(match dropped {
            Some((_, drop)) => drop.why.clone(),
            None => format!("{name} is not on this host"),
        });
    }
    if lost.is_empty() {
        return Ok(());
    }
    let (path, lost) = (path.display(), lost.join("; "));
    Err(ErrorClass::Refused.error(format!(
        "--keep: {path} would lose devices: {lost}; without --keep it is written without them"
    )))
}

fn list(global: &Global, args: &CdiListArgs) -> Result<()> {
    let path = &args.file;
    let text = files::read(path).class(ErrorClass::Usage, format!("reading {}", path.display()))?;
    let text = text.ok_or_else(|| {
        ErrorClass::Usage.error(format!(
            "--file: {} does not exist; `rdmaprep cdi generate` writes it",
            path.display()
        ))
    })?;
    let spec = ours(path, &text)?;
    let store = store(&Host::new(global, &config(global)?));
    let seen = Kernel::open(Netns::current()?, None)?.observe(Side::Host, &Scope::full())?;
    let lines = lines(&spec, &seen, &busy_nics(&store)?);
    say(&if args.json {
        report::json(&lines)?
    } else {
        report::device_table(&lines)
    })
}

fn lines(spec: &Spec, seen: &Snapshot, held: &[BusyNic]) -> Vec<DeviceLine> {
    spec.devices
        .iter()
        .map(|device| line(device, seen, held))
        .collect()
}

fn line(device: &CdiDevice, seen: &Snapshot, held: &[BusyNic]) -> DeviceLine {
    let rails = device.rails();
    let nodes = &device.container_edits.device_nodes;
    let mut now: Vec<String> = rails
        .iter()
        .filter_map(|rail| elsewhere(rail, seen, held))
        .collect();
    for node in nodes {
        let mut all = seen.hcas.iter().filter_map(|h| h.uverbs.as_ref());
        let is = all.find(|d| node.path == format!("/dev/infiniband/{}", d.name));
        if is.is_some_and(|d| (d.major, d.minor) != (node.major, node.minor)) {
            now.push(format!("{} has another number by now", node.path));
        }
    }
    DeviceLine {
        device: device.name.clone(),
        rails: rails.iter().map(ToString::to_string).collect(),
        hcas: rails
            .iter()
            .filter_map(|rail| device.hca(rail))
            .map(str::to_owned)
            .collect(),
        nodes: nodes
            .iter()
            .filter_map(|n| n.path.rsplit('/').next())
            .map(str::to_owned)
            .collect(),
        now: if now.is_empty() {
            "on the host".to_owned()
        } else {
            now.join("; ")
        },
    }
}

fn elsewhere(rail: &RailName, seen: &Snapshot, held: &[BusyNic]) -> Option<String> {
    let name = rail.as_str();
    if let Some(held) = held.iter().find(|h| h.netdev.as_str() == name) {
        return Some(format!("{name}: {}", held.by));
    }
    let is_there = match rail {
        RailName::Netdev(name) => seen.netdev(name).is_some(),
        RailName::Hca(name) => seen.hca(name).is_some(),
    };
    (!is_there).then(|| format!("{name}: not on this host"))
}
