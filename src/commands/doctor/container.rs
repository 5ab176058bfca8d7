//! What a running container is, and what it may use, for the checks.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use rdma_model::ids::IfName;
use rdma_model::snapshot::{CharDevice, Hca, Snapshot};
use rdma_model::values::Family;

use crate::commands::container_id;
use crate::commands::on_host::plan_on_host;
use crate::commands::running::Running;
use crate::commands::running::sandbox::SandboxedContainer;
use crate::commands::store;
use crate::config::options::SelectOptions;
use crate::config::request::{Narrowing, Request};
use crate::doctor::collect::Limits;
use crate::doctor::facts::{Lossless, Machine, OptedIn, Unread};
use crate::doctor::{Diagnosis, Examination, collect, doctor};
use crate::kernel::netns::Netns;
use crate::kernel::probe::access::NodeAccess;
use crate::kernel::probe::devnode_probe;
use crate::plan::Plan;
use crate::record::Record;
use crate::report::Report;
use crate::select::without_names;
use crate::store::Store;

/// Examines it: its own NICs, whatever is selected for others.
pub(super) fn examine(request: Request, id: &str) -> Result<Diagnosis> {
    let running = Running::find(&request.host, id)?;
    let Running {
        id, pid, sandbox, ..
    } = &running;
    let (pid, record) = (*pid, running.record.as_ref());
    let limits = collect::limits(pid)?;
    let plan = match running.on_host {
        true => plan_on_host(&store(&request.host), &request, id, &running.snapshot)?,
        false => record.and_then(|r| r.given.as_deref().cloned()),
    };
    let given = plan.as_ref();
    let snapshot = &usable(&running, given, &limits);
    let mut tried = tried(pid, snapshot, given, sandbox.as_ref(), &limits);
    // Who joined a pod may have asked for fewer devices: what it lacks it was not given.
    let joined = record.is_some_and(|r| r.members.first().is_some_and(|m| m.id != *id));
    let mut share = plan.clone();
    if joined {
        tried.retain(|_, node| *node != NodeAccess::Missing);
        if let Some(plan) = &mut share {
            plan.nics.retain(|nic| {
                let node = nic.uverbs.as_ref();
                node.is_none_or(|node| tried.contains_key(&node.name))
            });
        }
    }
    let found = running.settings(None);
    let notes = found.as_ref().map_or(&[][..], |found| &found.notes);
    let mut unread: Vec<Unread> = notes.iter().cloned().map(Unread::Nccl).collect();
    let userspace = running.userspace(snapshot).unwrap_or_else(|e| {
        unread.push(Unread::Userspace(format!("{e:#}")));
        None
    });
    let machine = Machine {
        unread,
        userspace,
        lossless: lossless(pid, snapshot),
        opted_in: opted_in(&store(&request.host), id, record),
        ..collect::of_container(snapshot, tried, &limits)
    };
    let machine = sandbox
        .iter()
        .fold(machine, |machine, sandbox| sandbox.correct(machine));
    running.still_runs()?;
    let request = within(request, snapshot, record, share.as_ref());
    doctor(&Examination {
        request: &request,
        snapshot,
        held: &[],
        machine: Some(&machine),
        traces: &[],
        plans: share.as_slice(),
        settings: found
            .as_ref()
            .map(|found| &found.settings)
            .map_err(String::as_str),
        container: Some(id),
    })
}

/// What a report or its config.json says. A container that is named by its pid has neither here.
fn opted_in(store: &Store, id: &str, record: Option<&Record>) -> Option<OptedIn> {
    if record.is_some() {
        return Some(OptedIn::Holds);
    }
    let text = store.report(id).ok().flatten();
    let report: Option<Report> = text.and_then(|text| serde_json::from_str(&text).ok());
    if report.as_ref().is_some_and(Report::is_of_stop) {
        return Some(OptedIn::Returned);
    }
    (report.is_none() && container_id::has_annotation(id)).then_some(OptedIn::Unheard)
}

fn lossless(pid: i32, snapshot: &Snapshot) -> BTreeMap<IfName, Lossless> {
    let path = format!("/proc/{pid}/ns/net");
    let netns = Netns::open(Path::new(&path));
    netns.map_or_else(
        |_| BTreeMap::new(),
        |netns| collect::lossless(&netns, snapshot),
    )
}

/// What is there, without the HCAs that it was not given and cannot open.
fn usable(running: &Running, given: Option<&Plan>, limits: &Limits) -> Snapshot {
    // The host's HCAs are not all meant for it: without a plan, those are that it can open.
    let own = match (running.on_host, given) {
        (true, None) => Vec::new(),
        _ => devices(&running.snapshot, given),
    };
    let nodes = running
        .snapshot
        .hcas
        .iter()
        .filter_map(|hca| hca.uverbs.clone());
    let others: Vec<CharDevice> = nodes.filter(|node| !own.contains(node)).collect();
    running.opened(&others, &limits.user).0
}

/// What became of the nodes that it was given, or that HCAs have which it may use.
fn tried(
    pid: i32,
    snapshot: &Snapshot,
    given: Option<&Plan>,
    sandbox: Option<&SandboxedContainer>,
    limits: &Limits,
) -> BTreeMap<String, NodeAccess> {
    let nodes = devices(snapshot, given);
    let mut tried = match sandbox {
        Some(sandbox) => sandbox.nodes(&nodes),
        None => devnode_probe::within(pid, &limits.user, &nodes),
    };
    if given.is_none() {
        // Of HCAs that need no netdev the node tells whose they are.
        for hca in snapshot.hcas.iter().filter(|h| is_fabric(h)) {
            tried.retain(|name, access| {
                let is_its = hca.uverbs.as_ref().is_some_and(|node| node.name == *name);
                *access != NodeAccess::Missing || !is_its
            });
        }
    }
    tried
}

/// Its own NICs are those of its record, or of its plan; without these, all that are there. No
/// uplink is guarded inside.
fn within(
    request: Request,
    inside: &Snapshot,
    record: Option<&Record>,
    share: Option<&Plan>,
) -> Request {
    let recorded = record.iter().flat_map(|r| r.names());
    let on_host = share.filter(|_| record.is_none());
    let planned = on_host.into_iter().flat_map(|plan| &plan.nics);
    let ifaces = recorded
        .chain(planned.map(|nic| &nic.identity.name))
        .filter(|name| inside.netdev(name).is_some())
        .filter(|name| share.is_none_or(|plan| plan.has(name)))
        .cloned()
        .collect();
    let family = if record.is_some_and(is_ipv6) {
        Family::V6
    } else {
        request.select.family
    };
    let select = SelectOptions {
        ifaces,
        bootstrap_address: None,
        peer_address: None,
        allow_bootstrap_iface: true,
        freeze_lifetimes: true,
        family,
        ..without_names(request.select)
    };
    Request {
        select,
        narrowing: Narrowing::default(),
        ..request
    }
}

fn is_ipv6(record: &Record) -> bool {
    let mut gids = record.held.iter().map(|held| held.nic.gid.as_ref());
    gids.all(|gid| gid.is_some_and(|gid| gid.ip().is_ipv6()))
}

/// The nodes of the HCAs that it has been given; without a record, of those whose netdev is there,
/// or that need none.
fn devices(inside: &Snapshot, given: Option<&Plan>) -> Vec<CharDevice> {
    given.map(|plan| plan.devices.clone()).unwrap_or_else(|| {
        let here = inside
            .hcas
            .iter()
            .filter(|h| h.ports.iter().any(|p| p.netdev.is_some()) || is_fabric(h));
        here.filter_map(|h| h.uverbs.clone())
            .chain(inside.rdma_cm.clone())
            .collect()
    })
}

/// Whether it is InfiniBand without netdevs: none shows which namespace it is in.
fn is_fabric(hca: &Hca) -> bool {
    !hca.ports.is_empty()
        && hca
            .ports
            .iter()
            .all(|p| p.is_infiniband() && p.netdev.is_none())
}
