//! Before the runtime reads config.json: the plan, what its container sees of /sys, and the edit.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::{config, recorded, request, say, store, warn};
use crate::cli::{Global, PrepareArgs, SpecArgs};
use crate::fault::{Fault, WithFault};
use crate::ident::IfName;
use crate::inject::{self, Edit, Injected, MountEdit};
use crate::nccl::{self, Options};
use crate::plan::Plan;
use crate::report;
use crate::request::{ANNOTATION, Request};
use crate::select::{self, Selection, select};
use crate::snapshot::{Netdev, Snapshot};
use crate::step::Side;
use crate::tree::{Node, Tree};
use crate::uplink;
use crate::view::{self, Sysfs};
use crate::world::netns::Netns;
use crate::world::store::Store;
use crate::world::{Live, Scope, World, boot_id, files};

/// A plan from a fresh look.
pub fn fresh_plan(request: &Request, name: &str, live: &mut Live, store: &Store) -> Result<Plan> {
    let snapshot = live.observe(Side::Host, &Scope::full())?;
    Ok(plan_with(request, name, &snapshot, store, options(request))?.0)
}

/// What a plan's container sees of /sys, by the look that the plan was made from.
pub fn view_of(plan: &Plan, snapshot: &Snapshot, live: &mut Live) -> Result<Option<Tree>> {
    let survey = live.survey()?;
    Ok(view::of_plan(plan, snapshot, || survey.links(), || survey.whole()))
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

/// A decision with all that belongs to it, not yet stored.
struct Decision {
    plan: Plan,
    selection: Selection,
    view: Option<Tree>,
}

/// Decides for a container, of which config.json is known or not.
fn decide(request: &Request, name: &str, file: Option<&Path>, config: Option<&str>, store: &Store) -> Result<Decision> {
    let mut options = options(request);
    options.bootstrap_iface = config.and_then(bootstrap);
    let mut live = if file.is_some() { None } else { Some(Live::open(Netns::current()?, None)?) };
    let snapshot = match (file, &mut live) {
        (Some(file), _) => recorded(file)?,
        (None, Some(live)) => live.observe(Side::Host, &Scope::full())?,
        (None, None) => Snapshot::default(),
    };
    let (mut plan, selection) = plan_with(request, name, &snapshot, store, options)?;
    warn(&snapshot.warnings);
    warn(&selection.warnings);
    warn(&missing_topology(request));
    // Of a recorded machine there is no /sys to filter: the hook makes the view.
    let mut view = live.as_mut().map(|live| view_of(&plan, &snapshot, live)).transpose()?.flatten();
    if let (Some(view), Sysfs::Snapshot, Some(config)) = (&mut view, plan.sysfs, config) {
        for dir in inject::below_sys(config)? {
            if view.get(&dir).is_none() {
                view.put(&dir, Node::Dir);
            }
        }
    }
    plan.view = view.as_ref().map(Store::view_name).transpose()?;
    Ok(Decision { plan, selection, view })
}

impl Decision {
    /// Stores it, the plan last: a plan speaks of the view.
    fn keep(&self, store: &Store) -> Result<()> {
        store.prepare()?;
        if let (Some(name), Some(view)) = (&self.plan.view, &self.view) {
            store.save_view(name, view)?;
        }
        store.save_plan(&self.plan).map(|_| ())
    }

    /// Writes out what the edited config.json mounts.
    fn lay_out(&self, store: &Store, injected: &Injected) -> Result<()> {
        match (&self.plan.view, &self.view) {
            (Some(name), Some(view)) if injected.mounts_view => store.lay_out(name, view).map(|_| ()),
            _ => Ok(()),
        }
    }
}

/// `rdmaprep prepare`.
pub(super) fn prepare(global: &Global, args: &PrepareArgs) -> Result<()> {
    let request = request(global, Some(&args.plan), &args.select)?;
    let store = store(&request.host);
    let config = args.bundle.as_deref().map(read_config).transpose()?;
    let request = match &config {
        Some(text) => narrowed(request, text)?,
        None => request,
    };
    let text = config.as_deref();
    let decision = decide(&request, &args.plan, args.snapshot.as_deref(), text, &store)?;
    let injected = text.map(|text| inject(text, &decision, &store, &request, args.hook_timeout)).transpose()?;
    if !args.dry_run {
        decision.keep(&store)?;
        if let (Some(bundle), Some(i)) = (&args.bundle, &injected) {
            decision.lay_out(&store, i)?;
            files::replace_keeping_owner(&bundle.join("config.json"), i.json.as_bytes())?;
        }
    }
    let Decision { plan, selection, .. } = &decision;
    if args.json {
        return say(&report::json(&Prepared { plan, selection, bundle: injected.as_ref() })?);
    }
    if let (Some(before), Some(i)) = (&config, &injected) {
        say(&report::injected(i))?;
        if args.dry_run {
            say(&report::printable_lines(&inject::diff(before, &i.json)))?;
        }
    }
    say(&report::summary(plan, selection))
}

/// `rdmaprep spec`.
pub(super) fn spec(global: &Global, args: &SpecArgs) -> Result<()> {
    let text = files::read_or_stdin(Path::new("-")).fault(Fault::State, "reading config.json from stdin")?;
    let text = text.unwrap_or_default();
    let unchanged = |text: &str| pass(text);
    let asked = inject::annotations(&text).map(|a| args.plan.is_some() || a.keys().any(|k| k.starts_with(ANNOTATION)));
    let host_plan = config(global).map(|c| c.plan.is_some());
    // A container that asks for nothing starts whatever we think of its config.json.
    if !asked.as_ref().is_ok_and(|asked| *asked) && !host_plan.as_ref().is_ok_and(|plan| *plan) && args.plan.is_none() {
        return unchanged(&text);
    }
    let request = narrowed(request(global, args.plan.as_deref(), &args.select)?, &text)?;
    let Some(name) = request.plan().cloned() else { return unchanged(&text) };
    let store = store(&request.host);
    let decision = match store.plan(name.as_str())? {
        Some(plan) => {
            let view = plan.view.as_ref().map(|name| store.view(name)).transpose()?.flatten();
            Decision { plan, selection: Selection { verdicts: Vec::new(), warnings: Vec::new() }, view }
        }
        None => {
            let decision = decide(&request, name.as_str(), None, Some(&text), &store)?;
            decision.keep(&store)?;
            decision
        }
    };
    let injected = inject(&text, &decision, &store, &request, args.hook_timeout)?;
    decision.lay_out(&store, &injected)?;
    warn(&injected.kept);
    pass(&injected.json)
}

/// What the engine reads: not a byte more than that.
fn pass(config: &str) -> Result<()> {
    std::io::stdout().write_all(config.as_bytes()).context("writing config.json to stdout")
}

/// A request with what the container's annotations take away, and what they show of its runtime.
fn narrowed(request: Request, config: &str) -> Result<Request> {
    let annotations = inject::annotations(config)?;
    let mut request = request.narrow(&annotations)?;
    let (sysfs, why) = request.sysfs.for_annotations(&annotations);
    request.sysfs = sysfs;
    warn(&why.map(|why| format!("--sysfs: {why}")).into_iter().collect::<Vec<_>>());
    Ok(request)
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

/// What a config.json becomes.
fn inject(text: &str, decision: &Decision, store: &Store, request: &Request, timeout: u32) -> Result<Injected> {
    let program = std::env::current_exe().context("finding our own path")?;
    let program = program.to_str().context("our own path is no UTF-8")?;
    let mut edit = Edit::of(&decision.plan, program, timeout);
    edit.annotations.extend(nccl::runsc_annotations(&options(request)));
    let (mounts, why) = mounts(text, decision, store)?;
    edit.mounts = Some(mounts);
    let mut injected = inject::apply(text, &edit)?;
    injected.kept.extend(why.map(|why| format!("no mounts for /sys: {why}")));
    Ok(injected)
}

/// The mounts that show a container its view, and why there are none.
fn mounts(text: &str, decision: &Decision, store: &Store) -> Result<(Vec<MountEdit>, Option<&'static str>)> {
    let plan = &decision.plan;
    let (Some(name), Some(view)) = (&plan.view, &decision.view) else { return Ok((Vec::new(), None)) };
    if let Some(why) = inject::no_mounts(text)? {
        return match plan.sysfs {
            Sysfs::Live | Sysfs::Snapshot if !why.contains("hook") => {
                Err(Fault::Refused.error(format!("--sysfs: {why}")))
            }
            _ => Ok((Vec::new(), Some(why))),
        };
    }
    let source = store.views().join(name);
    let source = source.to_str().context("the run folder's path is no UTF-8")?.to_owned();
    if plan.sysfs == Sysfs::Snapshot {
        return Ok((vec![MountEdit { destination: "/sys".to_owned(), source }], None));
    }
    let mount = |at: String| MountEdit { destination: format!("/sys/{at}"), source: format!("{source}/{at}") };
    Ok((view::covers(view).into_iter().map(|c| mount(c.at)).collect(), None))
}
