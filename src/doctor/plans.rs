//! Stored plans against the host as it is: a container that asks for one that does not fit is
//! refused.

use super::context::is_addressed;
use rdma_model::effect::missing_addresses;
use rdma_model::ids::IfName;
use rdma_model::nic::{Nic, identity, same_nic};
use rdma_model::snapshot::{Netdev, Snapshot};
use rdma_model::step::NicState;

use super::facts::{Machine, Stale, Unread};
use super::{Check, CheckContext, Finding, Severity, join};
use crate::attach::plan_attach;
use crate::plan::Plan;
use crate::select::protected_ifaces::uplinks;

/// A plan says which rails several nodes have, and no node alone whether they work.
pub(super) fn hint(context: &CheckContext) -> Option<String> {
    let mut plans = context.of.plans.iter().filter(|_| !context.is_inside());
    let plan = plans.find(|plan| plan.agreement.as_ref().is_some_and(|all| all.nodes > 1))?;
    Some(format!(
        "plan {name} is one of several nodes: `rdmaprep test-rails --plan {name}` on all of them \
        says whether their rails reach each other",
        name = plan.name
    ))
}

/// NICs and HCAs of plans that are neither here nor with a container; else what a create hook would
/// refuse a plan for.
pub(super) fn plans(context: &CheckContext, machine: &Machine) -> Vec<Finding> {
    let mut found = Vec::new();
    for plan in context.of.plans {
        let gone = gone(context, plan);
        let away = plan.nics.iter().any(|n| is_away(context, n.name()));
        if gone.is_empty() && !away && plan.moves() {
            found.extend(outdated(context, machine, plan));
        }
        found.extend(gone);
    }
    found
}

/// Whether a container has it, or a record speaks of it that cannot be read: another check reports
/// that.
fn is_away(context: &CheckContext, name: &IfName) -> bool {
    let traces = &context.of.traces;
    let unknown = traces
        .iter()
        .any(|t| t.stale == Some(Stale::Damaged) && t.nics.is_empty());
    let has_gone = context.of.snapshot.netdev(name).is_none();
    context.of.held.iter().any(|h| h.netdev == *name)
        || traces
            .iter()
            .filter(|t| t.stale != Some(Stale::Waiting))
            .flat_map(|t| &t.nics)
            .any(|n| n == name.as_str())
        || unknown && has_gone
}

pub(super) const WHY: &str = "a container with this plan does not start";

/// What goes with each plan that is prepared again. A bundle has the old one's HCAs in its
/// config.json, and a hook refuses it.
pub(super) const AGAIN: &str =
    "with the flags that it was made with; and then its bundles again (prepare --bundle)";

fn gone(context: &CheckContext, plan: &Plan) -> Vec<Finding> {
    let snapshot = context.of.snapshot;
    let here = plan.nics.iter().filter(|n| !is_away(context, n.name()));
    let (there, absent): (Vec<&Nic>, Vec<&Nic>) =
        here.partition(|n| snapshot.netdev(n.name()).is_some());
    let mut found = Vec::new();
    let mut lost: Vec<&str> = Vec::new();
    for nic in absent {
        let name = nic.name();
        match called_now(nic, snapshot) {
            Some(now) => {
                let seen = format!("plan {} has {name}, which is called {now} now", plan.name);
                let fix = format!(
                    "give it its name back: ip link set {now} name {name} (older kernels want it \
                    down)"
                );
                found.push(Finding::new(Check::Plans, Severity::Breaks, seen, WHY, fix));
            }
            None => lost.push(name.as_str()),
        }
    }
    // In exclusive mode it may be with a container, of which the host sees nothing.
    let ib = plan
        .ib
        .iter()
        .filter(|h| !plan.exclusive && snapshot.hca(h).is_none());
    lost.extend(ib.map(|h| h.as_str()));
    if !lost.is_empty() {
        let seen = format!(
            "plan {} has {}: not on this host, and no container has it",
            plan.name,
            join(&lost)
        );
        let fix = format!(
            "look for the card (lspci, dmesg) and for its driver; or prepare the plan without it, \
            {AGAIN}"
        );
        let one = Finding::new(Check::Plans, Severity::Breaks, seen, WHY, fix);
        // What is with a container, or has another name now, would be left out as well.
        let all_told = there.len() + lost.len() == plan.nics.len();
        let rails = plan
            .rails()
            .map(|n| n.name().as_str())
            .filter(|name| !lost.contains(name));
        let rest = rails.collect::<Vec<_>>().join(" ");
        let command = context.prepare_again(plan, &rest).filter(|_| all_told);
        found.push(Finding {
            run: command.into_iter().collect(),
            ..one
        });
    }
    found.extend(there.iter().filter_map(|n| without_hca(plan, n, snapshot)));
    found
}

fn called_now<'a>(nic: &Nic, snapshot: &'a Snapshot) -> Option<&'a IfName> {
    let hca = nic.hca.as_ref().and_then(|h| snapshot.hca(h));
    let states = snapshot
        .netdevs
        .iter()
        .filter_map(|n| NicState::of(snapshot, &n.name));
    let now = states
        .map(|s| identity(&s, hca))
        .find(|i| same_nic(i, &nic.identity))?;
    Some(&snapshot.netdev(&now.name)?.name)
}

fn without_hca(plan: &Plan, nic: &Nic, snapshot: &Snapshot) -> Option<Finding> {
    let (hca, name) = (
        nic.hca.as_ref().filter(|h| snapshot.hca(h).is_none())?,
        nic.name(),
    );
    let seen = format!(
        "plan {} has {name} with {hca}, and there is no {hca} now",
        plan.name
    );
    let found = Finding::new(
        Check::Plans,
        Severity::Breaks,
        seen,
        WHY,
        "load its RDMA driver, or see why it fails: dmesg",
    );
    Some(match nic.rxe {
        true => Finding {
            fix: "make the soft-RoCE device again".to_owned(),
            ..found
        }
        .run(format!("rdma link add {hca} type rxe netdev {name}")),
        false => found,
    })
}

/// What the hook would say, in an empty container. What uplinks are, and HCAs' missing addresses,
/// is reported by checks of their own.
fn outdated(context: &CheckContext, machine: &Machine, plan: &Plan) -> Option<Finding> {
    let snapshot = context.of.snapshot;
    let guard = uplinks(plan.allow_bootstrap, snapshot).ok()?;
    let rails = context.rails();
    for nic in &plan.nics {
        let name = nic.name();
        let now = snapshot.netdev(name);
        let is_examined = rails.iter().any(|rail| rail.name() == name);
        // IPv6 addresses go with the link, and the check of ports brings them back.
        let off = now.is_some_and(|d| !d.up);
        let naked = !nic.addresses.is_empty() && now.is_some_and(|d| !is_addressed(d));
        let is_told = is_examined && (off || naked);
        if is_told || guard.contains_key(name) && !plan.allow_bootstrap {
            return None;
        }
        if let Some(found) = now.and_then(|now| not_yet(machine, nic, now)) {
            return Some(found);
        }
    }
    let inside = Snapshot {
        boot_id: snapshot.boot_id.clone(),
        sysctls: snapshot.sysctls.clone(),
        ..Snapshot::default()
    };
    // A recording without route lookups gets the other findings; a hook always has lookups.
    let host = Snapshot {
        paths: Some(snapshot.paths.clone().unwrap_or_default()),
        ..snapshot.clone()
    };
    let error = format!("{:#}", plan_attach(plan, &host, &inside).err()?);
    let seen = error.split("; run `").next().unwrap_or_default();
    let fix = format!(
        "{}; and then its bundles again (prepare --bundle)",
        plan.again()
    );
    let named = if seen.contains(&plan.name) {
        seen.to_owned()
    } else {
        format!("plan {}: {seen}", plan.name)
    };
    Some(Finding::new(
        Check::Plans,
        Severity::Breaks,
        named,
        WHY,
        fix,
    ))
}

/// An address that its manager has yet to give.
fn not_yet(machine: &Machine, nic: &Nic, now: &Netdev) -> Option<Finding> {
    let at_work = machine.at_work(&now.name)?;
    let missing = *missing_addresses(&nic.addresses, &now.addresses).first()?;
    let (name, address) = (&now.name, format!("{}/{}", missing.address, missing.prefix));
    let seen = format!("{name} has no {address} yet: {}", at_work.state());
    let fix = at_work.until(name);
    Some(Finding::new(Check::Plans, Severity::Breaks, seen, WHY, fix))
}

/// A container that asks an engine which does not know rdmaprep starts without NICs, and no error
/// says so. Not where some have their NICs: they got them by another way.
pub(super) fn engines(context: &CheckContext, machine: &Machine) -> Vec<Finding> {
    let mut traces = context.of.traces.iter();
    let is_in_use = traces.any(|trace| matches!(trace.stale, None | Some(Stale::Waiting)));
    let Some(plan) = context.of.plans.first().filter(|_| !is_in_use) else {
        return Vec::new();
    };
    let why = "where an engine does not know rdmaprep, a container with its annotations starts \
        without NICs, and no error says so";
    let unread = machine.unread.iter().filter_map(|unread| match unread {
        Unread::Engines(said) => {
            let seen = format!("whether an engine here knows rdmaprep is not known: {said}");
            Some(Finding::new(
                Check::EngineHooks,
                Severity::Unknown,
                seen,
                why,
                "look into that file",
            ))
        }
        _ => None,
    });
    let known = machine.unregistered.iter().map(|engines| {
        if engines.is_empty() {
            return no_engine(plan);
        }
        let seen = format!(
            "plan {} is stored, and rdmaprep is registered with no engine here: \
                {}",
            plan.name,
            join(engines)
        );
        let fix = "register it (README: Install); a bundle that `rdmaprep prepare --bundle` \
            edited does without";
        let options: String = engines
            .iter()
            .map(|engine| format!(" --{engine}"))
            .collect();
        Finding::new(Check::EngineHooks, Severity::Warning, seen, why, fix).run(format!(
            "rdmaprep \
            install{options}"
        ))
    });
    unread.chain(known).collect()
}

fn no_engine(plan: &Plan) -> Finding {
    let seen = format!(
        "plan {} is stored, and no container engine was found here",
        plan.name
    );
    let why = "containers get NICs from an engine that knows rdmaprep, or a bundle that `rdmaprep \
        prepare --bundle` edited";
    let fix =
        "where an engine is in a place of its own: register rdmaprep with it (README: Install)";
    Finding::new(Check::EngineHooks, Severity::Unknown, seen, why, fix)
}
