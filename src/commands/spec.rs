//! `rdmaprep spec`, and what a decision makes of a config.json.

mod shown;

use crate::config::sandbox::Sandbox;
use rdma_model::nic::EnvVar;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use nccl_rules::topology_xml::Circumstances;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::tree::Tree;
use rdma_model::values::PlanName;

use super::decision::{Decision, decide, for_container, narrowed};
use super::{host_for_return, keep, request, store, warn};
use crate::cli::{Global, SelectArgs, SpecArgs};
use crate::config::device_request::DeviceRequest;
use crate::config::request::{Request, asks_itself};
use crate::disk::files;
use crate::kernel::boot_id;
use crate::kernel::netns::Netns;
use crate::kernel::process::limits;
use crate::kernel::process::memfd::KeptFile;
use crate::nccl_env::{self, topo_file};
use crate::oci::config::Config;
use crate::oci::edit::{self, Edit, HookEdit, Injected, MountEdit, Stage};
use crate::plan::Plan;
use crate::planner::{NotStored, options, stored_plan};
use crate::report::Report;
use crate::store::Store;
use crate::store::records::Records;
use shown::{mounts, topology_file};

const TOPO_VARIABLE: &str = "NCCL_TOPO_FILE";

pub(super) fn spec(global: &Global, args: &SpecArgs) -> Result<()> {
    let begun = Instant::now();
    let text = files::read_or_stdin(Path::new("-"))
        .class(ErrorClass::State, "reading config.json from stdin")?;
    let text = text.unwrap_or_default();
    let asked = asks_itself(args.plan.as_deref(), &edit::annotations(&text));
    match ready(global, args, &text).and_then(|ready| ready.map(Ready::keep).transpose()) {
        Ok(kept) => pass(kept.as_ref().map_or(&text, |ready| ready.json())),
        // A container that asks for nothing itself starts, whatever is wrong with its config.json;
        // but not without the plan that the host has for all.
        Err(e) if !asked && !e.is::<NotStored>() => {
            warn(&[format!(
                "{e:#}; a container that does not ask for NICs is left as it is"
            )]);
            pass(&text)
        }
        Err(e) => {
            let refused = Err(e);
            let container = edit::container_id(&text);
            report(
                global,
                Report {
                    container,
                    ..Report::new("spec")
                },
                begun,
                &refused,
            );
            refused
        }
    }
}

/// podman drops what its precreate hooks print, and containerd much of what a runtime prints: so it
/// is in the hooks' log, and in a report.
pub(super) fn report(global: &Global, mut report: Report, begun: Instant, refused: &Result<()>) {
    // Where these are is unknown if the config file cannot be read; stderr has it in any case.
    let Ok(host) = host_for_return(global) else {
        return;
    };
    report.finish(refused, begun);
    keep(&report, report.container.as_deref(), &host, &store(&host));
}

/// Prints config.json without adding a newline.
fn pass(config: &str) -> Result<()> {
    std::io::stdout()
        .write_all(config.as_bytes())
        .context("writing config.json to stdout")
}

/// A config.json that was edited, and what it mounts besides the view.
pub(super) struct Edited {
    pub(super) injected: Injected,
    /// Its environment, as far as it is ours.
    pub(super) given: Vec<EnvVar>,
    topology: Option<(String, Tree)>,
}

impl Edited {
    /// Writes out what it mounts.
    pub(super) fn lay_out(&self, decision: &Decision, store: &Store) -> Result<()> {
        if let Some((name, tree)) = &self.topology {
            store.save_view(name, tree)?;
            store.lay_out(name, tree)?;
        }
        match (&decision.plan.view, &decision.view) {
            (Some(name), Some(view)) if self.injected.mounts_view => {
                store.lay_out(name, view).map(|_| ())
            }
            _ => Ok(()),
        }
    }
}

pub(super) struct Ready {
    decision: Decision,
    edited: Edited,
    store: Store,
}

/// For a container that gets a plan; nothing for one that does not. Uses the plan by which its
/// namespace has its NICs already, the stored one, or, for `auto`, makes one. That is not stored:
/// it is without what others hold just now.
pub(super) fn ready(global: &Global, args: &SpecArgs, text: &str) -> Result<Option<Ready>> {
    ready_before(None, global, args, text)
}

/// Readies a container of which `runtime` says whether gVisor runs it.
pub(super) fn ready_before(
    runtime: Option<Sandbox>,
    global: &Global,
    args: &SpecArgs,
    text: &str,
) -> Result<Option<Ready>> {
    let request = request(global, args.plan.as_deref(), &args.select)?;
    let mine = narrowed(request.clone(), text, None)?;
    let Some(name) = mine.plan_name().cloned() else {
        return Ok(None);
    };
    if Config::parse(text).is_ok_and(|config| DeviceRequest::brought_hooks(&config)) {
        warn(&[
            "the container's devices name its rails: their hooks give them, and config.json stays \
            as it is"
                .to_owned(),
        ]);
        return Ok(None);
    }
    let store = store(&request.host);
    let known = match given(text, &mine, &store)? {
        None => {
            let stored = stored_plan(&store, &mine, &name);
            let found = stored.as_ref().ok().and_then(Option::as_ref);
            // What is wrong with its config.json is the first error.
            edit::check(text, mine.network_mode(found))?;
            stored?
        }
        given => given,
    };
    let plan = match known {
        Some(plan) => plan,
        None => decide(&mine, name.as_str(), None, None, &store)?.plan,
    };
    let plan = for_sandbox(plan, runtime, text)?;
    let decision = for_container(plan, &mine, text, &store)?;
    let is_auto = decision.plan.name == PlanName::AUTO;
    let flags = if is_auto {
        flags(&args.select, &decision.plan)
    } else {
        Vec::new()
    };
    let start = Start {
        timeout: args.hook_timeout,
        flags: &flags,
        runtime,
    };
    let edited = edit_with(text, &decision, &store, &mine, &start)?;
    warn(&decision.traps(&edit::environment(&edited.injected.json), &mine)?);
    Ok(Some(Ready {
        decision,
        edited,
        store,
    }))
}

/// Takes the view of a sandbox where none was asked for. One that has no place for it stays
/// without.
fn for_sandbox(plan: Plan, runtime: Option<Sandbox>, text: &str) -> Result<Plan> {
    let (sysfs, _) = plan
        .sysfs
        .within(Sandbox::of_both(runtime, &edit::annotations(text)));
    if sysfs == plan.sysfs {
        return Ok(plan);
    }
    let takes_it = sysfs.is_proxy() || edit::no_mounts(text)?.is_none();
    Ok(if takes_it {
        plan.with_sysfs(sysfs, None)
    } else {
        plan
    })
}

/// The plan by which the namespace that a config.json names has its NICs already: a pod's, or one
/// of `rdmaprep hold`.
fn given(text: &str, mine: &Request, store: &Store) -> Result<Option<Plan>> {
    let Some(path) = edit::netns_path(text) else {
        return Ok(None);
    };
    let Some(netns) = Netns::named(&path)? else {
        return Ok(None);
    };
    if netns.inode() == Netns::current()?.inode() {
        if !mine.select.network_mode.is_own() {
            return Ok(None);
        }
        let path = path.display();
        return Err(ErrorClass::Refused.error(format!(
            "the container's network namespace {path} is the host's own"
        )));
    }
    let records = Records::read(store, &boot_id()?)?;
    let Some(record) = records.of_netns(netns.inode()) else {
        return Ok(None);
    };
    if let Some(plan) = mine
        .named_plan
        .as_ref()
        .filter(|plan| plan.as_str() != record.plan)
    {
        let text = format!(
            "the container's network namespace has NICs by plan {}, not {plan}",
            record.plan
        );
        return Err(ErrorClass::Refused.error(text));
    }
    Ok(record.given.as_deref().cloned())
}

/// The flags of the create hook for plan `auto`: the NICs of this plan, and all flags given here.
/// The hook makes the plan again, of these NICs.
fn flags(asked: &SelectArgs, plan: &Plan) -> Vec<String> {
    let chosen: Vec<&str> = plan
        .nics
        .iter()
        .map(|nic| nic.identity.name.as_str())
        .collect();
    if chosen.is_empty() {
        asked.flags()
    } else {
        asked.with("ifaces", &chosen.join(",")).flags()
    }
}

impl Ready {
    pub(super) fn json(&self) -> &str {
        &self.edited.injected.json
    }

    /// Stores all that it mounts, each under a name that follows from what is in it.
    pub(super) fn keep(self) -> Result<Ready> {
        self.decision.keep_view(&self.store)?;
        self.edited.lay_out(&self.decision, &self.store)?;
        warn(&self.edited.injected.kept);
        Ok(self)
    }

    /// The view of /sys as JSON and the topology file, for hooks and other readers while the
    /// runtime's process lives.
    pub(super) fn memory(&self) -> Result<Vec<KeptFile>> {
        let mut kept = Vec::new();
        if let Some(view) = &self.decision.view {
            kept.push(KeptFile::new("sysfs", Store::view_text(view)?.as_bytes())?);
        }
        if let Some((_, tree)) = &self.edited.topology {
            kept.extend(
                topo_file::xml(tree)
                    .map(|xml| KeptFile::new("topology", xml.as_bytes()))
                    .transpose()?,
            );
        }
        Ok(kept)
    }
}

pub(super) fn edit(
    text: &str,
    decision: &Decision,
    store: &Store,
    request: &Request,
    timeout: Option<u32>,
) -> Result<Edited> {
    edit_with(
        text,
        decision,
        store,
        request,
        &Start {
            timeout,
            flags: &[],
            runtime: None,
        },
    )
}

struct Start<'a> {
    /// Seconds until the runtime kills a hook.
    timeout: Option<u32>,
    flags: &'a [String],
    /// Where the runtime is known to be gVisor's, whatever its annotations say.
    runtime: Option<Sandbox>,
}

fn edit_with(
    text: &str,
    decision: &Decision,
    store: &Store,
    request: &Request,
    start: &Start,
) -> Result<Edited> {
    let program = std::env::current_exe().context("finding the path of rdmaprep")?;
    let program = program
        .to_str()
        .context("the path of rdmaprep is no UTF-8")?;
    let mut own = edit::environment(text);
    // The topology file of an earlier edit is written again, or removed.
    let place = topo_file::PLACE.to_owned();
    let has_ours = own.get(TOPO_VARIABLE) == Some(&place);
    if has_ours {
        own.remove(TOPO_VARIABLE);
    }
    let plan = decision.plan.clone();
    let plan = plan.for_container(&own, decision.namespace());
    let mut edit = Edit::for_plan(&plan, program, start.timeout);
    if has_ours {
        edit.stale.push(format!("{TOPO_VARIABLE}={place}"));
    }
    edit.env = nccl_env::yielding(&plan.env, &own);
    edit.memlock_unlimited = request.host.lift_memlock;
    // Who starts this process starts the runtime as well.
    edit.memlock_ceiling = limits::memlock_ceiling()?;
    for hook in edit
        .hooks
        .iter_mut()
        .filter(|hook: &&mut HookEdit| matches!(hook.stage, Stage::Prestart | Stage::CreateRuntime))
    {
        hook.args.extend_from_slice(start.flags);
    }
    edit.annotations
        .extend(nccl_env::runsc_annotations(&options(request)));
    let (mut mounts, why) = mounts(text, decision, store)?;
    let set = edit
        .env
        .iter()
        .find(|v| v.name == TOPO_VARIABLE)
        .map(|v| &v.value)
        .or(own.get(TOPO_VARIABLE));
    let sandbox = Sandbox::of_both(start.runtime, &edit::annotations(text));
    let blind =
        sandbox == Some(Sandbox::Plain) && mounts.is_empty() && !decision.plan.sysfs.is_proxy();
    let by = Circumstances {
        own: set.map(String::as_str),
        asked: request.select.topo,
        blind,
    };
    let mut topology = None;
    if let Some((tree, why)) = topology_file(text, decision, by)? {
        let name = Store::view_name(&tree)?;
        let source = store.views().join(&name).join(topo_file::FILE);
        let source = source
            .to_str()
            .context("the run folder's path is no UTF-8")?
            .to_owned();
        edit.stale.clear();
        edit.env.push(EnvVar {
            name: TOPO_VARIABLE.to_owned(),
            value: place.clone(),
            why,
        });
        mounts.push(MountEdit {
            destination: place,
            source,
        });
        topology = Some((name, tree));
    }
    edit.mounts = Some(mounts);
    edit.views = store.views().to_str().unwrap_or_default().to_owned();
    let mut injected = edit::apply(text, &edit)?;
    injected
        .kept
        .extend(why.map(|why| format!("no mounts for /sys: {why}")));
    Ok(Edited {
        injected,
        given: nccl_env::lacking(&edit.env, &own),
        topology,
    })
}
