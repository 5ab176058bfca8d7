//! What of a plan reaches a container besides its NICs: the filtered /sys, NCCL's settings, device nodes. What config.json was
//! not told before the runtime read it, the create hook does in the container's mount namespace, while the NICs move.

use crate::config::sysfs_mode::SysfsMode;
use crate::view::Cover;
use rdma_model::nic::EnvVar;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Instant;

use anyhow::Result;
use nccl_rules::explain;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::BusId;
use rdma_model::snapshot::{CharDevice, Snapshot};
use rdma_model::step::Side;
use rdma_model::tree::{Node, Tree};

use crate::container::apply_mounts::apply_mounts;
use crate::container::mounts::{AppliedMounts, ConfOutcome, ContainerMounts};
use crate::hook::Hook;
use crate::kernel::host::files;
use crate::kernel::process::pidfd;
use crate::kernel::{Kernel, Scope, World};
use crate::nccl_env::format::{self, Format};
use crate::nccl_env::{self, topo_file};
use crate::oci::bundle::Bundle;
use crate::oci::state::State;
use crate::plan::Plan;
use crate::planner::{inside, view_of};
use crate::report::Report;
use crate::view::{self, Keep};

/// What is to be put on a container.
pub struct SetupPlan {
    bundle: Bundle,
    additions: ContainerMounts,
    /// The plan's environment, with where to meet.
    env: Vec<EnvVar>,
    /// Device nodes that config.json does not have: the engine may have made them in another way.
    nodes: Vec<CharDevice>,
    sysfs: SysfsMode,
    /// A runtime with a kernel of its own: nothing can be put into it any more.
    sandboxed: bool,
}

/// Finds out what is lacking; where to meet is decided here. Nothing where there is no config.json, which
/// a hook that is called by hand may not have.
pub fn plan_setup(
    hook: &Hook,
    plan: &Plan,
    pid: i32,
    within: &Snapshot,
    live: &mut Kernel,
    report: &mut Report,
) -> Result<Option<SetupPlan>> {
    // Containers are dressed as they join.
    if hook.keeper.is_some() {
        return Ok(None);
    }
    let Some((dir, text)) = config_json(hook.state)? else {
        off(plan.sysfs, "the bundle has no config.json", report)?;
        return Ok(None);
    };
    let views = hook.store.views();
    let bundle = Bundle::parse(&text, &dir, pid, views.to_str().unwrap_or_default())
        .class(ErrorClass::State, format!("reading {}", dir.join("config.json").display()))?;
    // gVisor's gofer has gone to its root before this moment, and its sentry has a /sys of its own.
    let sandboxed = pidfd::parent_program().is_some_and(|name| name.starts_with("runsc"));
    if let Some(name) = &bundle.topology {
        placed(hook, plan, name, report)?;
    }
    let covers = match &bundle.view {
        Some(name) => {
            report.sysfs = Some(mounted(hook, plan, name, sandboxed, report)?);
            Vec::new()
        }
        None if plan.sysfs == SysfsMode::Off => Vec::new(),
        None if sandboxed => {
            off(plan.sysfs, "the sandbox has a /sys of its own, which is settled before hooks run", report)?;
            Vec::new()
        }
        None => covers(plan, view(hook, plan, within, live, report)?),
    };
    let mut env = plan.env.clone();
    // A namespace has lo at least: of one that was not looked at nothing is guessed.
    if !within.netdevs.is_empty() {
        nccl_env::meet(&mut env, &bundle.env, &plan.nics, Some(within));
    }
    let mut conf = env.clone();
    nccl_env::yield_to(&mut conf, &bundle.env);
    conf.retain(|v| !bundle.env.contains_key(&v.name));
    let nodes = bundle.lacking(&plan.devices);
    Ok(Some(SetupPlan {
        bundle,
        env,
        additions: ContainerMounts { covers, conf },
        nodes,
        sysfs: plan.sysfs,
        sandboxed,
    }))
}

/// The bundle's folder and its config.json.
pub fn config_json(state: &State) -> Result<Option<(PathBuf, String)>> {
    for dir in [Some(PathBuf::from(&state.bundle)), pidfd::parent_bundle()].into_iter().flatten() {
        let read = |dir: &Path| files::read(&dir.join("config.json")).class(ErrorClass::State, "reading the bundle");
        if let Some(text) = if dir.is_absolute() { read(&dir)? } else { None } {
            return Ok(Some((dir, text)));
        }
    }
    Ok(None)
}

/// What config.json mounts, if it shows this plan's HCAs and no others.
fn mounted(hook: &Hook, plan: &Plan, name: &str, sandboxed: bool, report: &mut Report) -> Result<String> {
    let view = stored(hook, "sysfs", name, report)?;
    if !view.as_ref().is_some_and(|view| view::shows(view, &Keep::for_plan(plan))) {
        let text = format!(
            "config.json mounts a /sys for other HCAs than those of plan {}: prepare the bundle again",
            plan.name
        );
        return Err(ErrorClass::Refused.error(text));
    }
    // A tree of files has places with files in them; of places, a live view has those that it empties.
    let is_told = |(path, node): (&str, &Node)| path.starts_with("devices/") && matches!(node, Node::File(_));
    let lifeless = !view.is_some_and(|view| view.iter().any(is_told));
    Ok(match sandboxed && lifeless {
        true => {
            "config.json mounts links, which lead nowhere in a sandbox: prepare it with --sysfs snapshot".to_owned()
        }
        false => "mounted by config.json".to_owned(),
    })
}

/// Whether the topology file that config.json mounts, if any, places this plan's HCAs alone: NCCL takes it at its word.
fn placed(hook: &Hook, plan: &Plan, name: &str, report: &mut Report) -> Result<()> {
    let keep = Keep::for_plan(plan);
    let tree = stored(hook, "topology", name, report)?;
    let others = |xml: &str| topo_file::nets(xml).any(|net| !keep.hcas.iter().any(|hca| hca.as_str() == net));
    if tree.as_ref().and_then(topo_file::xml).is_some_and(others) {
        let text = format!("config.json mounts a topology file with other HCAs than those of plan {}", plan.name);
        return Err(ErrorClass::Refused.error(format!("{text}: prepare the bundle again")));
    }
    Ok(())
}

/// What is stored under that name as the runtime's process keeps it, where a shim left it there: files may have gone since. Else
/// its file.
fn stored(hook: &Hook, what: &str, name: &str, report: &mut Report) -> Result<Option<Tree>> {
    match hook.store.handed_view(what, name) {
        Some(Ok(tree)) => {
            report.taken.push(what.to_owned());
            return Ok(Some(tree));
        }
        Some(Err(e)) => report.notes.push(format!("{what} is read from its file: {e:#}")),
        None => {}
    }
    hook.store.view(name)
}

/// Without a view, as far as that was asked for and not only tried.
fn off(asked: SysfsMode, why: &str, report: &mut Report) -> Result<()> {
    match asked {
        SysfsMode::Off => {}
        SysfsMode::Auto => report.sysfs = Some(format!("off: {why}")),
        SysfsMode::Live | SysfsMode::Snapshot => return Err(ErrorClass::Refused.error(format!("--sysfs: {why}"))),
    }
    Ok(())
}

/// The stored view; or one from a fresh look, where none was stored, the plan was narrowed since, or the container has NICs from
/// somebody else, which it shall go on seeing.
fn view(hook: &Hook, plan: &Plan, within: &Snapshot, live: &mut Kernel, report: &mut Report) -> Result<Option<Tree>> {
    let others: BTreeSet<BusId> = within.netdevs.iter().filter_map(|n| n.pci).collect();
    let wanted = plan.view.as_ref().filter(|_| others.is_empty());
    if let Some(view) = wanted.map(|name| stored(hook, "sysfs", name, report)).transpose()?.flatten() {
        return Ok(Some(view));
    }
    let seen = live.observe(Side::Host, &Scope::full())?;
    view_of(plan, others, &seen, live)
}

fn covers(plan: &Plan, view: Option<Tree>) -> Vec<Cover> {
    let below = |mut cover: Cover| {
        cover.at = format!("sys/{}", cover.at);
        cover
    };
    match view {
        None => Vec::new(),
        Some(tree) if plan.sysfs == SysfsMode::Snapshot => vec![Cover { at: "sys".to_owned(), tree }],
        Some(tree) => view::covers(&tree).into_iter().map(below).collect(),
    }
}

/// A container that is being dressed on a thread of its own.
pub struct RunningSetup {
    setup: Arc<SetupPlan>,
    done: Receiver<Result<Put>>,
}

/// What was put on, and why /sys was not covered although that was tried.
type Put = (AppliedMounts, Option<String>);

impl RunningSetup {
    /// Begins. The thread ends with the process at the latest: a file system of the image may keep it waiting for good.
    pub fn begin(setup: SetupPlan) -> RunningSetup {
        let setup = Arc::new(setup);
        let (tell, done) = mpsc::sync_channel(1);
        let own = setup.clone();
        std::thread::spawn(move || drop(tell.send(own.put_on())));
        RunningSetup { setup, done }
    }

    /// Waits for the end, but no longer than the hook may.
    pub fn end(self, hook: &Hook, netns: u64, report: &mut Report) -> Result<()> {
        let left = hook.deadline.saturating_duration_since(Instant::now());
        let put = self.done.recv_timeout(left).map_err(|e| match e {
            RecvTimeoutError::Timeout => ErrorClass::Timeout.error("looking at the container's root took too long"),
            RecvTimeoutError::Disconnected => ErrorClass::Other.error("a thread panicked"),
        })?;
        self.setup.conclude(put?, hook, netns, report)
    }
}

impl SetupPlan {
    /// What NCCL makes of the container's environment and what is added to it, where that is not what was meant. It is told and
    /// no more: an engine may set the namespace up after us.
    pub fn traps(&self, plan: &Plan, host: &Snapshot, within: &Snapshot) -> Vec<String> {
        let added = self.additions.conf.iter().map(|v| (&v.name, &v.value));
        let found = explain::check(self.bundle.env.iter().chain(added), &inside(plan, host, Some(within)));
        let told: BTreeSet<&str> = found.into_iter().map(|w| w.trap.told()).collect();
        let more = "`rdmaprep nccl explain --bundle` says more";
        told.into_iter().map(|told| format!("NCCL in this container: {told}; {more}")).collect()
    }

    /// The plan as this container gets it: with where to meet, and without a GID index that its own environment overrides, which then
    /// need not be proven.
    pub fn container_plan(&self, plan: &Plan) -> Plan {
        let overrides =
            |ours: &u32| self.bundle.env.get("NCCL_IB_GID_INDEX").is_some_and(|own| *own != ours.to_string());
        plan.for_container(self.env.clone(), plan.gid_index.filter(|index| !overrides(index)))
    }

    /// Does it. What was only tried for [`SysfsMode::Auto`] and cannot be done, as where the container's /sys is not the kernel's, is
    /// left undone, with the reason.
    fn put_on(&self) -> Result<Put> {
        let ContainerMounts { covers, conf } = &self.additions;
        if self.sandboxed || (covers.is_empty() && conf.is_empty() && self.nodes.is_empty()) {
            return Ok((self.bare(&self.nodes, "nothing can be put into a sandbox any more"), None));
        }
        let container = &self.bundle.container;
        let why = match apply_mounts(container, &self.additions, &self.nodes) {
            Err(e) if self.sysfs == SysfsMode::Auto => format!("{e:#}"),
            done => return Ok((done?, None)),
        };
        let rest = ContainerMounts { covers: Vec::new(), conf: conf.clone() };
        match apply_mounts(container, &rest, &self.nodes) {
            Ok(done) => Ok((done, Some(why))),
            // A container that is no process of this kernel has its nodes where we cannot look.
            Err(_) => Ok((self.bare(&[], &why), Some(why))),
        }
    }

    /// A container into which nothing was put.
    fn bare(&self, lacking: &[CharDevice], why: &str) -> AppliedMounts {
        let conf =
            if self.additions.conf.is_empty() { ConfOutcome::Nothing } else { ConfOutcome::Refused(why.to_owned()) };
        AppliedMounts { conf, kept: Vec::new(), left: Vec::new(), lacking: lacking.to_vec() }
    }

    /// Tells what was done, writes the profile where the settings could be given in no other way, and refuses a container
    /// without its device nodes.
    fn conclude(&self, (dressed, bare): Put, hook: &Hook, netns: u64, report: &mut Report) -> Result<()> {
        if let Some(flags) = flags(&dressed.lacking) {
            let text =
                format!("the container lacks device nodes: add {flags} to its engine's command, or prepare its bundle");
            return Err(ErrorClass::Refused.error(text));
        }
        report.sysfs = match (bare, self.additions.covers.len()) {
            (Some(why), _) => Some(format!("off: {why}")),
            (None, 0) => report.sysfs.take(),
            (None, n) => Some(format!("{n} directories covered by the hook")),
        };
        let kept = dressed.kept.iter().map(|line| format!("{line} of the image's /etc/nccl.conf stays"));
        report.notes.extend(kept);
        report.settings = match &dressed.conf {
            ConfOutcome::Nothing => None,
            ConfOutcome::Merged => Some("added to the image's /etc/nccl.conf".to_owned()),
            ConfOutcome::Overlay => Some("in an /etc/nccl.conf of ours".to_owned()),
            ConfOutcome::Refused(why) => {
                let path = hook.store.put_profile(netns, &format::write(&self.additions.conf, Format::Sh).0)?;
                Some(format!("only in {} ({why}): source it", path.display()))
            }
        };
        report.notes.extend(dressed.left.iter().map(|left| format!("not given to the container: {left}")));
        Ok(())
    }
}

/// `--device` for each node.
fn flags(lacking: &[CharDevice]) -> Option<String> {
    let flag = |d: &CharDevice| format!("--device /dev/infiniband/{} ({}:{})", d.name, d.major, d.minor);
    (!lacking.is_empty()).then(|| lacking.iter().map(flag).collect::<Vec<_>>().join(" "))
}
