//! `rdmaprep doctor`: examines the host, or a container, and reports known failures.

mod container;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::snapshot::{CharDevice, Snapshot};

use super::at_work::{self, AtWork};
use super::config_file::config_to_look;
use super::status::advice;
use super::unrestorable::unrecorded;
use super::{busy_nics, load_snapshot, nccl, request_by, running, say, store, warn};
use crate::cli::{DoctorArgs, Global, TryNodesArgs};
use crate::config::request::Request;
use crate::disk::host_tree::HostTree;
use crate::doctor::facts::{Machine, Stale, Trace, Unread};
use crate::doctor::{Diagnosis, Examination, collect, doctor};
use crate::kernel::netns::Netns;
use crate::kernel::probe::access::ProcessUser;
use crate::kernel::probe::devnode_probe;
use crate::kernel::{Kernel, ThisMachine, boot_id};
use crate::plan::Plan;
use crate::record::{Record, short_id};
use crate::store::Store;
use crate::store::records::Records;
use crate::{install, planner, report};

pub(super) fn run(global: &Global, args: &DoctorArgs) -> Result<()> {
    let (config, wrong) = config_to_look(global)?;
    let request = request_by(config, global, None, &args.select)?;
    if args.container.is_some() {
        let counts = [
            "family",
            "ib",
            "arp_profile",
            "gid_timeout",
            "default_route",
            "sysfs",
            "nccl_version",
        ];
        args.select
            .refuse_given(&counts, "a container's NICs are those that it has")?;
    }
    let is_host = args.container.is_none() && args.root.is_none() && args.snapshot.is_none();
    if !is_host {
        warn(wrong.as_slice());
    }
    let diagnosis = match &args.container {
        Some(id) => container::examine(request, id)?,
        None if is_host => host(&request, wrong)?,
        None => recorded(args, &request)?,
    };
    say(&if args.json {
        report::json(&diagnosis)?
    } else {
        report::diagnosis_table(&diagnosis)
    })?;
    match diagnosis.breaks {
        0 => Ok(()),
        1 => Err(ErrorClass::Sick.error("one of these findings breaks a job; nothing was changed")),
        n => Err(ErrorClass::Sick.error(format!(
            "{n} of these findings break a job; nothing was changed"
        ))),
    }
}

fn recorded(args: &DoctorArgs, request: &Request) -> Result<Diagnosis> {
    let snapshot = load_snapshot(args.root.as_deref(), args.snapshot.as_deref())?;
    warn(&snapshot.warnings);
    doctor(&Examination {
        request,
        snapshot: &snapshot,
        held: &[],
        machine: None,
        traces: &[],
        plans: &[],
        settings: Ok(&nccl::recorded_settings()?),
        container: None,
    })
}

fn host(request: &Request, wrong: Option<String>) -> Result<Diagnosis> {
    let store = store(&request.host);
    // A look that has the kernel load a module changes what is looked for.
    let snapshot =
        planner::observe_host(&mut Kernel::quiet(Netns::current()?, None)?, &request.job())?;
    warn(&snapshot.warnings);
    let (plans, mut unread) = plans(&store)?;
    unread.extend(wrong.map(Unread::Config));
    let unregistered = install::unregistered_engines(&HostTree::new(Path::new("/"))?)
        .unwrap_or_else(|e| {
            unread.push(Unread::Engines(format!("{e:#}")));
            None
        });
    let unregistered = unregistered.map(|all| all.iter().map(ToString::to_string).collect());
    let boot = boot_id()?;
    let claims = store.prepared(&Records::read(&store, &boot)?, &boot)?;
    let machine = Machine {
        claims,
        unread,
        unregistered,
        ..collect::of_host(&snapshot)?
    };
    doctor(&Examination {
        request,
        snapshot: &snapshot,
        held: &busy_nics(&store)?,
        machine: Some(&machine),
        traces: &traces(&store, &snapshot)?,
        plans: &plans,
        settings: Ok(&nccl::own_settings()?.settings),
        container: None,
    })
}

/// Plans of this boot; and those for which no container starts.
fn plans(store: &Store) -> Result<(Vec<Plan>, Vec<Unread>)> {
    let boot = boot_id()?;
    let (mut plans, mut unread) = (Vec::new(), Vec::new());
    for name in store.all_plans()? {
        match store.plan(&name) {
            Ok(Some(plan)) if plan.boot_id == boot => plans.push(plan),
            Ok(plan) => unread.extend(plan.map(|_| Unread::PastPlan(name))),
            Err(e) => unread.push(Unread::Plan(format!("{e:#}"))),
        }
    }
    Ok((plans, unread))
}

fn traces(store: &Store, host: &Snapshot) -> Result<Vec<Trace>> {
    let machine = ThisMachine::new()?;
    let (records, at_work) = at_work::records(store, &machine)?;
    let traces = records.iter().map(|(path, record)| match record {
        Ok(record) => trace(store, &machine, record, at_work, host),
        Err(e) => Trace {
            id: path.display().to_string(),
            nics: store
                .remains(path)
                .nics
                .iter()
                .map(ToString::to_string)
                .collect(),
            stale: Some(Stale::Damaged),
            advice: store.unreadable(path, e),
            tables: Vec::new(),
            held_back: Vec::new(),
            here: Vec::new(),
        },
    });
    let unrecorded = unrecorded(store)?.into_iter().map(|(netns, advice)| Trace {
        id: netns.to_string(),
        nics: Vec::new(),
        stale: Some(Stale::Unrecorded),
        advice,
        tables: Vec::new(),
        held_back: Vec::new(),
        here: Vec::new(),
    });
    Ok(traces.chain(unrecorded).collect())
}

fn trace(
    store: &Store,
    machine: &ThisMachine,
    record: &Record,
    at_work: AtWork,
    host: &Snapshot,
) -> Trace {
    let id = record
        .members
        .first()
        .map(|m| m.id.clone())
        .unwrap_or_default();
    let stale = match at_work::stale(store, machine, record) {
        Some(Stale::Abandoned | Stale::Lingering | Stale::Unfinished) if at_work == AtWork::Yes => {
            Some(Stale::AtWork)
        }
        stale => stale,
    };
    let advice = advice(machine, record, &id, at_work);
    let nics = record.names().map(ToString::to_string).collect();
    // The manager of a NIC that is back has yet to fill its tables.
    let tables: BTreeSet<u32> = record.routes().map(|r| r.table).collect();
    let held_back = match stale {
        Some(Stale::Waiting) => record.waits_for.clone(),
        _ => record.held_back.clone(),
    };
    Trace {
        id: short_id(&id).to_owned(),
        nics,
        stale,
        advice,
        tables: tables.into_iter().collect(),
        held_back,
        here: record
            .on_host(host)
            .iter()
            .map(ToString::to_string)
            .collect(),
    }
}

/// `rdmaprep try-nodes`: the process that looks where a container may keep it.
pub(super) fn try_nodes(args: &TryNodesArgs) -> Result<()> {
    devnode_probe::make_way()?;
    if let Some(version) = args.settings {
        let found = running::container_settings(args.pid, version)?;
        return say(&report::json(&found)?);
    }
    if let Some(providers) = &args.libraries {
        let found = running::container_userspace(args.pid, providers)?;
        return say(&report::json(&found)?);
    }
    let devices = args.nodes.iter().filter_map(|word| {
        let mut parts = word.rsplitn(3, ':');
        let (minor, major) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(CharDevice {
            name: parts.next()?.to_owned(),
            major,
            minor,
        })
    });
    let devices: Vec<CharDevice> = devices.collect();
    let user: ProcessUser = args
        .user
        .as_deref()
        .unwrap_or_default()
        .parse()
        .class(ErrorClass::Usage, "--user")?;
    let nodes: BTreeMap<_, _> = devnode_probe::enter(args.pid, &user, &devices)?;
    say(&report::json(&nodes)?)
}
