//! What `prepare`, `spec` and the create hook decide alike: a plan, and what its container sees of
//! /sys.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::{Context, Result};
use nccl_rules::ifname::Patterns;
use nccl_rules::version::Version;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::{BusId, HcaName, IfName};
use rdma_model::snapshot::{JobAddresses, Netdev, Route, Snapshot};
use rdma_model::step::Side;
use rdma_model::tree::Tree;
use rdma_model::values::PlanName;

use crate::config::host::CONFIG;
use crate::config::request::Request;
use crate::kernel::sysfs::Survey;
use crate::kernel::{Namespaces, Observed, Scope, World};
use crate::nccl_env::Options;
use crate::plan::{Plan, rails, rdma_mode};
use crate::record::short_id;
use crate::select::protected_ifaces::leads_everywhere;
use crate::select::{self, BusyNic, Selection};
use crate::store::Store;
use crate::store::records::Records;
use crate::view;

pub fn look_at_host(world: &mut dyn World, job: &JobAddresses) -> Result<Observed> {
    let mut seen = world.look(Side::Host, &Scope::full())?;
    seen.snapshot.paths = Some(world.host_paths(&seen.snapshot, job));
    Ok(seen)
}

pub fn observe_host(world: &mut dyn World, job: &JobAddresses) -> Result<Snapshot> {
    look_at_host(world, job).map(|seen| seen.snapshot)
}

/// The stored plan that a container asks for; nothing where one is to be made for it: by the name
/// `auto`, or since its devices name its NICs. Any other name is an error, [`NotStored`].
pub fn stored_plan(store: &Store, request: &Request, name: &PlanName) -> Result<Option<Plan>> {
    if name.is_auto() {
        return Ok(None);
    }
    match store.plan(name.as_str())? {
        None if request.narrowing.devices.is_none() => {
            let stored = store
                .all_plans()?
                .into_iter()
                .filter(|other| other != PlanName::AUTO)
                .collect();
            let text = format!("plan {name} is not stored");
            Err(NotStored {
                name: name.clone(),
                stored,
            })
            .class(ErrorClass::Refused, text)
        }
        plan => Ok(plan),
    }
}

/// Which plans are stored, and what to do.
#[derive(Debug)]
pub struct NotStored {
    name: PlanName,
    stored: Vec<String>,
}

impl fmt::Display for NotStored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, stored) = (&self.name, names_of(&self.stored));
        let first = if self.stored.is_empty() {
            "; run"
        } else {
            ": name one of these, or run"
        };
        write!(
            f,
            "{stored}{first} `rdmaprep prepare --plan {name}`, or ask for plan `auto`, which is \
            made at each start"
        )
    }
}

impl std::error::Error for NotStored {}

/// The plans that are stored, as a clause.
pub fn names_of(stored: &[String]) -> String {
    const SHOWN: usize = 8;
    match (stored, stored.len().saturating_sub(SHOWN)) {
        ([], _) => "no plan is stored".to_owned(),
        (all, 0) => format!("stored are {}", all.join(", ")),
        (all, more) => format!("stored are {} and {more} others", all[..SHOWN].join(", ")),
    }
}

pub fn fresh_plan(
    request: &Request,
    name: &str,
    world: &mut dyn World,
    busy: &[BusyNic],
) -> Result<Plan> {
    let snapshot = observe_host(world, &request.job())?;
    Ok(plan_with(request, name, &snapshot, busy, options(request))?.0)
}

/// What a plan's container sees of /sys, by the observation that the plan was made from; `others`
/// are PCI functions that it has besides the plan's.
pub fn view_of(
    plan: &Plan,
    others: BTreeSet<BusId>,
    seen: &Snapshot,
    survey: Option<&Survey>,
) -> Result<Option<Tree>> {
    let survey = survey.context("/sys was not read here")?;
    Ok(view::of_plan(
        plan,
        others,
        seen,
        || survey.links(),
        || survey.whole(),
    ))
}

/// A plan from that observation, without NICs that are busy, but with all that are asked for by
/// name; with the selection that explains it.
pub fn plan_with(
    request: &Request,
    name: &str,
    snapshot: &Snapshot,
    busy: &[BusyNic],
    options: Options,
) -> Result<(Plan, Selection)> {
    let (plan, selection) = plan_of_any(request, name, snapshot, busy, options)?;
    check_selection(request, &plan, &selection, snapshot)?;
    Ok((plan, selection))
}

/// That a plan of [`plan_of_any`] has what was asked for.
pub fn check_selection(
    request: &Request,
    plan: &Plan,
    selection: &Selection,
    snapshot: &Snapshot,
) -> Result<()> {
    selection.named(request)?;
    selection.some()?;
    request.host.policy.allows_network(plan.network_mode)?;
    if plan.moves() {
        rdma_mode::check(&plan.nics, &plan.ib, snapshot)?;
    }
    Ok(())
}

/// A plan for a node that others wait for: it may be that no NIC is left, and a plan without any is
/// never stored.
pub fn plan_of_any(
    request: &Request,
    name: &str,
    snapshot: &Snapshot,
    busy: &[BusyNic],
    options: Options,
) -> Result<(Plan, Selection)> {
    let selection = select::judge(request, snapshot, busy)?;
    let plan = Plan::new(name, request, snapshot, &selection, &options);
    Ok((plan, selection))
}

/// A container's namespace as it will be with the plan's NICs in it; `inside` is what is there now,
/// `lo` alone where that is unknown.
pub fn inside_with_nics(plan: &Plan, host: &Snapshot, inside: Option<&Snapshot>) -> Snapshot {
    let mut hcas = host.hcas.clone();
    hcas.retain(|h| {
        plan.ib.contains(&h.name) || plan.nics.iter().any(|n| n.hca.as_ref() == Some(&h.name))
    });
    if !plan.moves() {
        return Snapshot {
            hcas,
            ..host.clone()
        };
    }
    let mut netdevs: Vec<Netdev> = match inside {
        Some(inside) => inside.netdevs.clone(),
        None => {
            let lo = host.netdevs.iter().filter(|n| n.name.as_str() == "lo");
            lo.cloned().collect()
        }
    };
    let names: BTreeSet<&IfName> = plan.nics.iter().map(|n| n.name()).collect();
    let moved = host.netdevs.iter().filter(|n| names.contains(&n.name));
    netdevs.extend(moved.cloned());
    let there = inside.iter().flat_map(|inside| inside.routes.clone());
    Snapshot {
        routes: there.chain(carried(plan, &names, host, inside)).collect(),
        netdevs,
        hcas,
        pci: host.pci.clone(),
        netns: inside.map_or(host.netns, |inside| inside.netns),
        ..Snapshot::default()
    }
}

/// The routes that come with the NICs of these names. A default route of the host comes along where
/// it was asked for, and never as the second one.
fn carried(
    plan: &Plan,
    names: &BTreeSet<&IfName>,
    host: &Snapshot,
    inside: Option<&Snapshot>,
) -> Vec<Route> {
    let over = host.routes.iter().filter(|r| {
        let mut devs = r.devs();
        devs.any(|dev| names.contains(dev))
    });
    let theirs: Vec<_> = inside
        .iter()
        .flat_map(|inside| &inside.routes)
        .filter(|r| leads_everywhere(r))
        .map(|r| r.destination)
        .collect();
    let defaults = rails::winners(over.clone().filter(|_| plan.default_route));
    let defaults = defaults
        .into_iter()
        .filter(|r| !theirs.contains(&r.destination));
    let near = over.filter(|r| r.destination.prefix_len() > 0);
    near.chain(defaults).cloned().collect()
}

/// What NCCL on the host itself would miss: the only interfaces that its NCCL_SOCKET_IFNAME fits.
pub fn moved_away(plan: &Plan, request: &Request, host: &Snapshot) -> Option<String> {
    let list = request.host_ifname.as_deref().filter(|_| plan.moves())?;
    let patterns = Patterns::interfaces(Some(list), Version::NEWEST)?;
    let meant = host
        .netdevs
        .iter()
        .filter(|n| !n.addresses.is_empty() && patterns.takes(n.name.as_str(), None));
    let (gone, left): (Vec<&Netdev>, Vec<&Netdev>) = meant.partition(|n| plan.has(&n.name));
    let names = gone
        .iter()
        .map(|n| n.name.as_str())
        .collect::<Vec<_>>()
        .join(", ");
    (!gone.is_empty() && left.is_empty()).then(|| {
        format!(
            "NCCL_SOCKET_IFNAME={list} of this host fits nothing but {names}: NCCL on the host \
            itself would not start"
        )
    })
}

pub fn busy_nics(records: &Records, machine: &dyn Namespaces) -> Vec<BusyNic> {
    let mut all = Vec::new();
    for record in records.readable().filter(|r| !r.is_back()) {
        let holder = record
            .members
            .iter()
            .find(|m| machine.is_alive(record, m))
            .or(record.members.first());
        let hold = record.hold.as_ref().map(|hold| hold.path.to_string_lossy());
        let by = match holder {
            Some(m) if hold.is_some_and(|path| m.bundle == path) => {
                format!("rdmaprep hold {}", m.id)
            }
            Some(m) => format!("container {}", short_id(&m.id)),
            None => "a container".to_owned(),
        };
        let ended = !holder.is_some_and(|m| machine.is_alive(record, m));
        all.extend(record.held.iter().map(|h| BusyNic {
            netdev: h.name().clone(),
            hca: h.nic.hca.clone(),
            port: h.nic.port,
            over: h.nic.over.clone(),
            by: by.clone(),
            ended,
        }));
    }
    all
}

/// NICs that are named one by one, where no plan is stored: with the others alone, a container
/// would have less than what its config.json was edited for. [`ErrorClass::Locked`] names the
/// container that holds one.
pub fn check_named_free(request: &Request, busy: &[BusyNic]) -> Result<()> {
    for nic in busy {
        let name = &nic.netdev;
        if request.names(name) && request.narrowing.leaves_out(name).is_none() {
            return Err(busy_error(&name.to_string(), nic));
        }
    }
    Ok(())
}

fn busy_error(what: &str, nic: &BusyNic) -> anyhow::Error {
    let by = &nic.by;
    ErrorClass::Locked.error(match nic.ended {
        true => format!(
            "{what} is held by {by}, which has ended: `rdmaprep status` says what keeps it, and \
            how to get it back"
        ),
        false => format!(
            "{what} is held by {by}: stop that first, or wait for it (--wait, or hook_wait_s in \
            {CONFIG})"
        ),
    })
}

/// A plan is older than the records: another container may hold a NIC of it by now, or what sits on
/// one; then [`ErrorClass::Locked`].
pub fn check_free(plan: &Plan, busy: &[BusyNic]) -> Result<()> {
    for nic in busy {
        let what = match &nic.over {
            _ if plan.has(&nic.netdev) => nic.netdev.to_string(),
            Some(below) if plan.has(below) => format!("{}, on {below},", nic.netdev),
            _ => continue,
        };
        return Err(busy_error(&what, nic));
    }
    Ok(())
}

/// A NIC that a record speaks of which cannot be read is not what it was, wherever it is now; and
/// the record of this very namespace would be overwritten.
pub fn check_damaged_records(
    records: &Records,
    netns: u64,
    plan: &Plan,
    host: &Snapshot,
) -> Result<()> {
    let has_gone = plan.nics.iter().any(|n| host.netdev(n.name()).is_none());
    let store = records.store();
    for (path, e) in records.damaged() {
        let remains = store.remains(path);
        let may_be_its =
            remains.nics.is_empty() && has_gone || remains.nics.iter().any(|name| plan.has(name));
        if store.netns_of(path) == Some(netns) || may_be_its {
            return Err(ErrorClass::Refused.error(format!(
                "{e:#}; {}; `rdmaprep status` says more",
                remains.describe()
            )));
        }
    }
    Ok(())
}

/// What all nodes agreed on is all or nothing: with a rail less, or another plan than the one that
/// was committed, the job hangs at its first collective.
pub fn check_agreed(plan: &Plan, digest: Option<&str>) -> Result<()> {
    let Some(agreement) = &plan.agreement else {
        let Some(digest) = digest else {
            return Ok(());
        };
        return Err(ErrorClass::Refused.error(format!(
            "plan {} is not the one that all nodes agreed on ({digest:.12}): prepare it on all \
            again",
            plan.name
        )));
    };
    agreement
        .check()
        .class(ErrorClass::Refused, format!("plan {}", plan.name))?;
    if let Some(other) = digest.filter(|d| *d != agreement.digest.as_str()) {
        return Err(ErrorClass::Refused.error(format!(
            "plan {} is of digest {}, config.json of {other:.12}: prepare the bundle again, on \
            all nodes",
            plan.name,
            agreement.digest.short()
        )));
    }
    let agreed: Vec<&str> = agreement
        .ifaces()
        .map(IfName::as_str)
        .chain(agreement.hcas().map(HcaName::as_str))
        .collect();
    let nics = plan.rails().map(|n| n.name().as_str());
    let given: Vec<&str> = nics.chain(plan.ib.iter().map(HcaName::as_str)).collect();
    if agreed != given {
        let (agreed, given) = (agreed.join(" "), given.join(" "));
        return Err(ErrorClass::Refused.error(format!(
            "{} nodes agreed on {agreed}, but this container would get {given}: its annotations, \
            or the host's policy, are not those of then",
            agreement.nodes
        )));
    }
    Ok(())
}

pub fn options(request: &Request) -> Options {
    let topo_file = request
        .select
        .nccl_topo
        .as_ref()
        .filter(|f| f.exists())
        .map(|f| f.display().to_string());
    Options {
        debug_all: request.select.debug_all,
        topo_file,
        topo_wanted: !request.select.no_nccl_topo,
        host_env: request.passed_on.clone(),
        agreed: !request.select.peer_ifaces.is_empty() || request.agreed_ib.is_some(),
    }
}
