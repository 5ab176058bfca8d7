//! Before the runtime reads config.json: the plan, what its container sees of /sys, and the edit.

mod draft;

use crate::config::sysfs_mode::SysfsMode;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use nccl_rules::explain;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::snapshot::Snapshot;
use rdma_model::step::Side;
use rdma_model::tree::Tree;
use serde::Serialize;

use super::spec::{Ready, ready};
use super::{peers, request, say, store, warn};
use crate::cli::{Global, PrepareArgs, SpecArgs};
use crate::config::request::{ANNOTATION, Request};
use crate::kernel::host::files;
use crate::kernel::netns::Netns;
use crate::kernel::store::Store;
use crate::kernel::{Kernel, Scope, World};
use crate::oci::edit::{self, Injected};
use crate::plan::Plan;
use crate::planner::{check_agreed, inside, view_of};
use crate::protected_ifaces;
use crate::report::{self, Report, Stopwatch};
use crate::select::Selection;
use draft::DraftInputs;

/// What `prepare --json` prints.
#[derive(Serialize)]
struct Prepared<'a> {
    plan: &'a Plan,
    selection: &'a Selection,
    bundle: Option<&'a Injected>,
}

/// A decision with all that belongs to it, not yet stored.
pub(super) struct Decision {
    pub(super) plan: Plan,
    selection: Selection,
    pub(super) view: Option<Tree>,
    /// The namespace that the container joins, where it is known.
    pub(super) pod: Option<Snapshot>,
    /// The host that it was made from.
    pub(super) host: Snapshot,
    /// Whether that is another machine, or this one at another time.
    pub(super) recorded: bool,
}

/// Decides for a container, of which config.json is known or not.
pub(super) fn decide(
    request: &Request,
    name: &str,
    file: Option<&Path>,
    config: Option<&str>,
    store: &Store,
) -> Result<Decision> {
    DraftInputs::new(request, name, file, config, store)?.decide(None)
}

impl Decision {
    /// With the view.
    fn shown(self, config: Option<&str>, live: &mut Kernel) -> Result<Decision> {
        let others = self.pod.iter().flat_map(|pod| pod.netdevs.iter().filter_map(|n| n.pci)).collect();
        let mut view = view_of(&self.plan, others, &self.host, live)?;
        if let (Some(view), SysfsMode::Snapshot, Some(config)) = (&mut view, self.plan.sysfs, config) {
            for dir in edit::below_sys(config)?.iter().filter(|dir| !dir.is_empty()) {
                view.make_room(dir);
            }
        }
        let sysfs = self.plan.sysfs;
        let plan = self.plan.with_sysfs(sysfs, view.as_ref().map(Store::view_name).transpose()?);
        Ok(Decision { plan, view, ..self })
    }

    /// What NCCL makes of the container's environment, where that is not what was meant. Where the namespace is known, one that
    /// keeps NCCL from its NICs is refused: it would end, or hang, an hour later.
    pub(super) fn traps(&self, env: &BTreeMap<String, String>, request: &Request) -> Result<Vec<String>> {
        let inside = inside(&self.plan, &self.host, self.pod.as_ref());
        let found = explain::check(env, &inside);
        if let (Some(trap), Some(_)) = (found.iter().find(|w| w.fatal), &self.pod) {
            return Err(ErrorClass::Refused.error(format!("NCCL in this container: {}", trap.text)));
        }
        let mut told: Vec<String> = found.into_iter().map(|w| format!("NCCL in this container: {}", w.text)).collect();
        if let Some(peer) = request.peer_address.filter(|peer| !protected_ifaces::leads(&inside, *peer)) {
            told.push(format!(
                "nothing in this container leads to the peer address {peer}: it is in no rail's subnet, and no route of a rail, \
                 or of the namespace as it is now, goes there"
            ));
        }
        Ok(told)
    }

    /// Stores it, the plan last: a plan speaks of the view.
    pub(super) fn keep(&self, store: &Store) -> Result<()> {
        self.keep_view(store)?;
        store.save_plan(&self.plan).map(|_| ())
    }

    pub(super) fn keep_view(&self, store: &Store) -> Result<()> {
        store.prepare()?;
        match (&self.plan.view, &self.view) {
            (Some(name), Some(view)) => store.save_view(name, view),
            _ => Ok(()),
        }
    }
}

/// `rdmaprep prepare`.
pub(super) fn prepare(global: &Global, args: &PrepareArgs) -> Result<()> {
    let asked = peers::peer_options(&args.rendezvous)?;
    let meet = asked.map(|asked| peers::enter(asked, args.dry_run)).transpose();
    // Whatever keeps this node from taking part, the others are told: they would wait for it in vain.
    let ((mut request, config), meeting) = match (wanted(global, args), meet) {
        (Err(e), Ok(Some(meeting))) => return Err(meeting.refuse(e)),
        (wanted, meet) => (wanted?, meet?),
    };
    let store = store(&request.host);
    // A recorded machine's routes say nothing of the way that we have just gone.
    request.meeting = meeting.as_ref().and_then(|m| m.way).filter(|_| args.snapshot.is_none());
    let look = DraftInputs::new(&request, &args.plan, args.snapshot.as_deref(), config.as_deref(), &store);
    let draft = match (look, meeting) {
        (look, None) => look?.draft(args, None)?,
        (Ok(mut look), Some(meeting)) => look.together(args, meeting)?,
        (Err(e), Some(meeting)) => return Err(meeting.refuse(e)),
    };
    warn(&draft.notes);
    if !args.dry_run {
        let agreed = draft.decision.plan.agreement.is_some();
        let late = "all nodes have agreed, but this one cannot store its part; prepare all of them again";
        draft.write(args, &store).map_err(|e| if agreed { e.context(late) } else { e })?;
    }
    let injected = draft.edited.map(|edited| edited.injected);
    let Decision { plan, selection, .. } = &draft.decision;
    if args.json {
        return say(&report::json(&Prepared { plan, selection, bundle: injected.as_ref() })?);
    }
    if let (Some(before), Some(i)) = (&config, &injected) {
        say(&report::injected(i))?;
        if args.dry_run {
            say(&report::printable_lines(&edit::diff(before, &i.json)))?;
        }
    }
    say(&report::summary(plan, selection))
}

/// What is asked for, and the bundle's config.json, which takes away from it.
fn wanted(global: &Global, args: &PrepareArgs) -> Result<(Request, Option<String>)> {
    let request = request(global, Some(&args.plan), &args.select)?;
    let config = args.bundle.as_deref().map(read_config).transpose()?;
    let request = match &config {
        Some(text) => narrowed(request, text)?,
        None => request,
    };
    Ok((request, config))
}

/// `rdmaprep spec`.
pub(super) fn spec(global: &Global, args: &SpecArgs) -> Result<()> {
    let watch = Stopwatch::start();
    let text = files::read_or_stdin(Path::new("-")).class(ErrorClass::State, "reading config.json from stdin")?;
    let text = text.unwrap_or_default();
    let asked = args.plan.is_some() || edit::annotations(&text).keys().any(|key| key.starts_with(ANNOTATION));
    match ready(global, args, &text).and_then(|ready| ready.map(Ready::keep).transpose()) {
        Ok(kept) => pass(kept.as_ref().map_or(&text, |ready| ready.json())),
        // A container that asks for nothing itself starts whatever we think of its config.json.
        Err(e) if !asked => {
            warn(&[format!("{e:#}; a container that does not ask for NICs is left as it is")]);
            pass(&text)
        }
        Err(e) => {
            let refused = Err(e);
            log(global, &watch, &refused);
            refused
        }
    }
}

/// podman shows nobody what its precreate hooks say: the log of the other hooks has it, too.
fn log(global: &Global, watch: &Stopwatch, refused: &Result<()>) {
    let own = super::shim::shim_config(global).map(|(own, _)| own).unwrap_or_default();
    let mut report = Report::new("spec");
    report.finish(refused, watch);
    // stderr has it in any case.
    let _ = own.log().map(|log| files::append(log, &report.line()));
}

/// A stored plan as one container gets it: without what its annotations take away, and with the view that suits it.
pub(super) fn for_container(plan: Plan, mine: &Request, text: &str, store: &Store) -> Result<Decision> {
    let selection = Selection { verdicts: Vec::new(), warnings: Vec::new() };
    let pod = pod(text)?;
    let mut live = Kernel::open(Netns::current()?, None)?;
    let scope = Scope { sysfs: mine.host.policy.asks_for_hardware(), ..Scope::links() };
    let seen = live.observe(Side::Host, &scope)?;
    let plan = mine.narrowed_plan(plan, &seen);
    if plan.nics.is_empty() && plan.ib.is_empty() {
        return Err(ErrorClass::Nothing.error(format!("annotations and policy leave no NIC of plan {}", plan.name)));
    }
    check_agreed(&plan, None)?;
    mine.host.policy.limits(&plan)?;
    let (sysfs, _) = plan.sysfs.for_annotations(&edit::annotations(text));
    let serves = sysfs == plan.sysfs && sysfs != SysfsMode::Snapshot && pod.is_none();
    let name = plan.view.clone().filter(|_| serves);
    let view = name.as_ref().and_then(|name| store.view(name).ok().flatten());
    let plan = plan.with_sysfs(sysfs, name.filter(|_| view.is_some()));
    if view.is_some() {
        return Ok(Decision { plan, selection, view, pod, host: seen, recorded: false });
    }
    let host = live.observe(Side::Host, &Scope::full())?;
    Decision { plan, selection, view: None, pod, host, recorded: false }.shown(Some(text), &mut live)
}

/// What the engine reads: not a byte more than that.
fn pass(config: &str) -> Result<()> {
    std::io::stdout().write_all(config.as_bytes()).context("writing config.json to stdout")
}

/// A request with what the container's annotations take away, and what they show of its runtime.
pub(super) fn narrowed(request: Request, config: &str) -> Result<Request> {
    let annotations = edit::annotations(config);
    let mut request = request.narrow(&annotations)?;
    let (sysfs, why) = request.sysfs.for_annotations(&annotations);
    request.sysfs = sysfs;
    warn(&why.map(|why| format!("--sysfs: {why}")).into_iter().collect::<Vec<_>>());
    Ok(request)
}

/// The namespace that a container joins (a pod's), where it exists before the container.
fn pod(config: &str) -> Result<Option<Snapshot>> {
    let named = edit::netns_path(config).map(|path| Netns::named(&path)).transpose()?;
    let Some(inside) = named.flatten() else { return Ok(None) };
    let look = || Kernel::open(Netns::current()?, Some(inside))?.observe(Side::Inside, &Scope::links());
    Ok(look().ok())
}

pub(super) fn read_config(bundle: &Path) -> Result<String> {
    let path = bundle.join("config.json");
    let text = files::read(&path).class(ErrorClass::State, format!("reading {}", path.display()))?;
    text.ok_or_else(|| ErrorClass::State.error(format!("the bundle {} has no config.json", bundle.display())))
}
