//! `rdmaprep status`: which container holds which NIC, where, and how to restore it.

use rdma_model::error_class::ErrorClass;
use rdma_model::escape::{is_plain, shell_word};
use rdma_model::step::Side;
use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;

use super::at_work::{self, AtWork};
use super::config_file::{config_to_look, warned};
use super::unrestorable::unrecorded;
use super::{container_id, now, say, store, warn};
use crate::cli::{Global, StatusArgs};
use crate::config::host::{Config, Host};
use crate::kernel::process::{pidfd, pidfd_getfd};
use crate::kernel::{Depth, Namespaces, Scope, ThisMachine, World};
use crate::link_managers::Managers;
use crate::link_managers::timer::Timer;
use crate::record::{Hold, Member, Phase, Record, short_id};
use crate::report::{self, Failed, HoldStatus, Holder, Report, Returned, Status, Unstored};
use crate::restore::plan::Purpose;
use crate::restore::run;
use crate::restore::stays_for::{AskedBy, StaysFor, stays_for};
use crate::store::Store;
use crate::store::records::Records;

pub(super) fn status(global: &Global, args: &StatusArgs) -> Result<()> {
    let config = warned(config_to_look(global)?);
    let store = store(&Host::new(global, &config));
    let machine = ThisMachine::new()?;
    let (records, at_work) = at_work::records(&store, &machine)?;
    let mut holders = Vec::new();
    for (path, record) in records.iter() {
        match record {
            Ok(record) => holders.push(holder(&machine, &records, record, at_work)?),
            Err(e) => warn(&[store.unreadable(path, e)]),
        }
    }
    let mut reports = reports(&store)?;
    reports.retain(|(_, report)| !is_settled(report, &records));
    for (netns, why) in unrecorded(&store)? {
        warn(&[format!("the namespace {netns} has no record: {why}")]);
    }
    let now = now().unwrap_or_default();
    let returned = Returned::recent(&reports, now);
    let mut failures = Failed::recent(&reports, now);
    for failed in &mut failures {
        let id = failed.container.as_ref();
        failed.name = id.and_then(|id| name(id, Path::new("")));
    }
    let status = Status {
        claims: store.prepared(&records, machine.boot_id())?,
        holders,
        unstored: unstored(&config, &store)?,
        failures,
        returned,
        unread: records.damaged().count(),
    };
    say(&if args.json {
        report::json(&status)?
    } else {
        report::status_table(&status)
    })
}

/// Plans of the config file that are not stored.
fn unstored(config: &Config, store: &Store) -> Result<Vec<Unstored>> {
    let (stored, mut known) = (store.all_plans()?, store.unstored());
    let names = config.plans.iter().map(|plan| plan.name.to_string());
    let missing = names.filter(|name| !stored.contains(name));
    Ok(missing
        .map(|plan| {
            let why = known.remove(&plan);
            Unstored { plan, why }
        })
        .collect())
}

/// Whether what a stop left has been restored since: no record has its container any more.
fn is_settled(report: &Report, records: &Records) -> bool {
    let id = report.container.as_ref();
    let has = |record: &Record| id.is_some_and(|id| record.has(id));
    report.exit_code == ErrorClass::Incomplete.code()
        && report.is_of_stop()
        && records.damaged().count() == 0
        && !records.readable().any(has)
}

/// Those that can be read.
pub(super) fn reports(store: &Store) -> Result<Vec<(String, Report)>> {
    let mut reports = Vec::new();
    for (path, text) in store.all_reports()? {
        let report = serde_json::from_str(&text).ok();
        reports.extend(report.map(|report| (path.display().to_string(), report)));
    }
    Ok(reports)
}

fn holder(
    machine: &ThisMachine,
    records: &Records,
    record: &Record,
    at_work: AtWork,
) -> Result<Holder> {
    let store = records.store();
    let pin = store.pin(record.netns);
    let members: Vec<(String, bool)> = record
        .members
        .iter()
        .map(|m| (m.id.clone(), machine.is_alive(record, m)))
        .collect();
    let id = members
        .first()
        .map(|(id, _)| id.clone())
        .unwrap_or_default();
    let advice = advice(machine, record, &id, at_work);
    let is_doubtful = at_work::stale(store, machine, record).is_some();
    let here = if is_doubtful && !record.is_back() {
        here(machine, record, &pin)
    } else {
        Vec::new()
    };
    let last = store
        .report(&id)?
        .and_then(|text| serde_json::from_str(&text).ok());
    let keeping = |hold: &Hold| HoldStatus {
        is_kept: keeper(record).is_some_and(|m| machine.is_alive(record, m)),
        path: hold.path.display().to_string(),
        handles: hold
            .handles
            .iter()
            .filter(|(_, h)| pidfd_getfd::lives(h))
            .map(|(n, h)| (n.clone(), h.clone()))
            .collect(),
    };
    Ok(Holder {
        hold: record.hold.as_ref().map(keeping),
        cni: record
            .members
            .iter()
            .filter_map(|m| m.cni.clone())
            .collect(),
        netns: record.netns,
        pin: machine
            .netns_of(record, &pin)
            .is_some()
            .then(|| pin.display().to_string()),
        phase: record.phase,
        plan: record.plan.clone(),
        names: record.members.iter().filter_map(named).collect(),
        members,
        nics: record.names().map(ToString::to_string).collect(),
        last,
        held_back: record.held_back.clone(),
        notes: record.notes.clone(),
        waits_for: waits_for(machine, records, record),
        here,
        killed: at_work == AtWork::No
            && record.phase != Phase::Attached
            && !record.is_back()
            && record.held_back.is_empty(),
        changed: changed(machine, record),
        advice,
    })
}

fn named(member: &Member) -> Option<(String, String)> {
    let name = name(&member.id, Path::new(&member.bundle));
    name.map(|name| (member.id.clone(), name))
}

/// As its engine calls it.
fn name(id: &str, bundle: &Path) -> Option<String> {
    container_id::names(id, bundle).into_iter().next()
}

/// NICs that come back by other files than those by which they were configured.
fn changed(machine: &ThisMachine, record: &Record) -> Vec<String> {
    let mut managers = Managers::of(machine.root());
    let away = record.held.iter().filter(|_| !record.is_back());
    let managed = away.filter_map(|h| Some((&h.nic.identity.name, h.managed.as_ref()?)));
    let changed = managed.filter(|(_, managed)| managers.will_change(managed));
    let words = changed.map(|(name, managed)| {
        let by = managed.by.name();
        format!("the configuration of {name} by {by} has changed since: it comes back by that")
    });
    words.collect()
}

/// The world of a record, where the host can be observed.
fn open(machine: &ThisMachine, record: &Record, pin: &Path) -> Option<Box<dyn World>> {
    let netns = machine.host_netns().ok()?;
    let is_here = netns == record.host_netns;
    is_here.then(|| machine.open(record, pin).ok())?
}

/// Those that are on the host, whole or not.
fn here(machine: &ThisMachine, record: &Record, pin: &Path) -> Vec<String> {
    let links = open(machine, record, pin)
        .and_then(|mut world| world.observe(Side::Host, &Scope::only(Depth::Links)).ok());
    links.map_or_else(Vec::new, |host| {
        let names = record.on_host(&host);
        names.iter().map(ToString::to_string).collect()
    })
}

/// What they wait for now; what was awaited at the last look where the host cannot be observed.
fn waits_for(machine: &ThisMachine, records: &Records, record: &Record) -> Vec<String> {
    if !record.is_back() {
        return Vec::new();
    }
    let next = open(machine, record, &records.store().pin(record.netns)).and_then(|mut world| {
        run::preview(machine, &mut *world, records, record, Purpose::Preview).ok()
    });
    match next {
        None => record.waits_for.clone(),
        Some(next) if !next.notes.is_empty() => next.notes,
        Some(next) if next.steps.is_empty() => {
            vec!["back with all that it had: the next look ends the waiting".to_owned()]
        }
        Some(_) => vec!["back; what else they had is put back at the next look".to_owned()],
    }
}

pub(super) fn advice(machine: &ThisMachine, record: &Record, id: &str, at_work: AtWork) -> String {
    let (word, short) = (shell_word(id), short_id(id));
    let restore = format!("rdmaprep restore {}", shell_word(short));
    if record.is_back() {
        let looks = match Timer::of(machine.root()) {
            Timer::Runs => "nothing: the timer of `rdmaprep install --systemd` looks again",
            Timer::Stopped => {
                "`systemctl start rdmaprep-stale.timer`, which is enabled and does not run, or \
                `rdmaprep restore --all --stale` when its manager has configured it"
            }
            Timer::Absent => {
                "`rdmaprep restore --all --stale` when its manager has configured it: there is no \
                timer of `rdmaprep install --systemd`"
            }
        };
        return format!(
            "{looks}; a container may have it when it has its addresses; `{restore} --forget` \
            leaves it as it is"
        );
    }
    if !record.claims.is_empty() && record.phase == Phase::Attached {
        return format!("delete the pod that has the claim, or: {restore}");
    }
    let keeper = keeper(record);
    let member = record.members.iter().find(|m| m.id == id && m.sandboxed);
    let sandboxed = member.is_some();
    if at_work == AtWork::Yes && record.phase != Phase::Attached {
        return format!("wait for the hook that is at work, or: {restore}");
    }
    match stays_for(machine, record, AskedBy::NextUser) {
        Some(StaysFor::Container(_))
            if record.phase == Phase::Attached
                && keeper.is_some_and(|m| machine.is_alive(record, m)) =>
        {
            let pid = keeper.map_or(0, |m| m.pid);
            format!(
                "end rdmaprep hold, process {pid}, and stop the containers that joined; or: \
                {restore}"
            )
        }
        Some(StaysFor::Container(_)) if record.phase == Phase::Attached && sandboxed => {
            let runsc = runsc(
                &member
                    .map(|m| m.pid)
                    .and_then(pidfd::command)
                    .unwrap_or_default()
                    .1,
            );
            format!(
                "stop {short} (by hand: {runsc} delete --force {word}; kill is not enough), or: \
                {restore}"
            )
        }
        Some(StaysFor::Container(_)) if !record.held_back.is_empty() => {
            format!("settle what holds them back, then: {restore}")
        }
        Some(StaysFor::Container(_))
            if record.phase == Phase::Attached || at_work == AtWork::No =>
        {
            format!("stop {short}, or: {restore}")
        }
        Some(StaysFor::Container(_)) => {
            format!("wait for the hook that is at work; if it was killed: {restore}")
        }
        Some(StaysFor::Process(pid)) => {
            let process = pidfd::in_words(pid);
            format!("end {process}, which is still in the namespace, or: {restore}")
        }
        _ if sandboxed => {
            format!("runsc delete {word}, or: rdmaprep restore --all --stale")
        }
        _ => "rdmaprep restore --all --stale".to_owned(),
    }
}

/// The process of `rdmaprep hold`.
fn keeper(record: &Record) -> Option<&Member> {
    let hold = record.hold.as_ref()?;
    let first = record.members.first();
    first.filter(|m| Path::new(&m.bundle) == hold.path)
}

/// runsc with the flags of a sandbox without which it does not find the container, and
/// `delete --force` succeeds at once, or without which it refuses the container's annotations.
fn runsc(sandbox: &[OsString]) -> String {
    let mut words = vec!["runsc"];
    words.extend(sandbox.iter().filter_map(|word| word.to_str()));
    words.retain(|word| match word.strip_prefix("--root=") {
        Some(root) => root != "/var/run/runsc" && is_plain(root, b"/-_."),
        None => ["runsc", "--allow-flag-override=true"].contains(word),
    });
    words.join(" ")
}
