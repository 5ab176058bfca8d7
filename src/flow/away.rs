//! Commands about NICs that are away: bring them back, and say who has them.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;

use super::{config, say, store, warn};
use crate::cli::{Global, RestoreArgs, StatusArgs};
use crate::config::Host;
use crate::fault::Fault;
use crate::home;
use crate::journal::{Phase, Record};
use crate::report::{self, Holder, PhaseName, Report, Stopwatch};
use crate::restore;
use crate::step::Side;
use crate::world::netns::Netns;
use crate::world::store::Store;
use crate::world::{Live, Scope, World, boot_id, mount};

/// `rdmaprep restore`.
pub(super) fn restore(global: &Global, args: &RestoreArgs) -> Result<()> {
    let host = Host::new(global, &config(global)?);
    let store = store(&host);
    let found = Found::new(&store, args)?;
    if args.output.dry_run {
        return found.now.iter().try_for_each(|r| foretell(&store, r));
    }
    store.prepare()?;
    let _lock = store.lock(Instant::now() + host.lock_timeout)?;
    store.sweep()?;
    // Another rdmaprep may have brought some home while we waited.
    let found = Found::new(&store, args)?;
    // One that cannot be read must not keep the others away.
    let mut failures: Vec<anyhow::Error> = found.damaged.iter().map(|(_, e)| Fault::Incomplete.error(e)).collect();
    let mut reports = Vec::new();
    for (path, _) in found.past {
        warn(&[format!("{} is of an earlier boot and is left alone", path.display())]);
    }
    for record in found.now {
        let mut watch = Stopwatch::start();
        let mut report = Report::new("restore");
        report.nics = home::names(&record.held);
        report.container = record.members.first().map(|m| m.id.clone());
        let result = home::bring(&store, record).map(|done| {
            report.steps_done = done.steps;
            report.notes = done.notes;
        });
        watch.lap(PhaseName::Undo);
        report.finish(&result, &watch);
        failures.extend(result.err());
        reports.push(report);
    }
    if args.output.json {
        say(&report::json(&reports)?)?;
    } else if reports.is_empty() {
        say("No container holds a NIC.")?;
    } else {
        reports.iter().try_for_each(|r| say(&r.line()))?;
    }
    match failures.len() {
        0 => Ok(()),
        1 => Err(failures.remove(0)),
        n => Err(Fault::Incomplete.error(format!(
            "{n} containers' NICs are not home: {}",
            failures.iter().map(|e| format!("{e:#}")).collect::<Vec<_>>().join("; ")
        ))),
    }
}

/// What `restore` is about: one container's records, or all.
#[derive(Default)]
struct Found {
    /// Of this boot.
    now: Vec<Record>,
    /// Of an earlier one: after a reboot the NICs never left, and the system configures them.
    past: Vec<(PathBuf, Record)>,
    /// Those that cannot be read, in words.
    damaged: Vec<(PathBuf, String)>,
}

impl Found {
    fn new(store: &Store, args: &RestoreArgs) -> Result<Found> {
        let boot = boot_id()?;
        let mut found = Found::default();
        for (path, record) in store.all_records()? {
            let netns = store.netns_of(&path).map(|n| n.to_string());
            let asked =
                |has: &dyn Fn(&String) -> bool| args.id.as_ref().is_none_or(|id| netns.as_ref() == Some(id) || has(id));
            match record {
                Ok(r) if !asked(&|id| r.has(id)) => {}
                Ok(r) if r.boot_id != boot => found.past.push((path, r)),
                Ok(r) => found.now.push(r),
                Err(e) if asked(&|id| store.remains(&path).ids.contains(id)) => {
                    found.damaged.push((path.clone(), unreadable(store, &path, &e)));
                }
                Err(_) => {}
            }
        }
        match &args.id {
            Some(id) if found.now.is_empty() && found.past.is_empty() && found.damaged.is_empty() => {
                Err(Fault::Usage.error(format!("container {id:?} holds no NIC; `rdmaprep status` lists those that do")))
            }
            _ => Ok(found),
        }
    }
}

/// What is known of a record that cannot be used, and what is not.
fn unreadable(store: &Store, path: &Path, e: &anyhow::Error) -> String {
    let pin = store.netns_of(path).map(|netns| (store.pin(netns), netns));
    let pin = pin.filter(|(pin, netns)| mount::is_pinned(pin, *netns));
    let place = match pin {
        Some((pin, _)) => format!("their namespace is kept by {}", pin.display()),
        None => "their namespace is not pinned: the kernel has returned physical ones, under any name".to_owned(),
    };
    let unknown = "what they were like on the host is not known, so nothing is changed";
    format!("{e:#}; {}; {place}; {unknown}", store.remains(path).told())
}

/// `restore --dry-run`: the steps, not done.
fn foretell(store: &Store, record: &Record) -> Result<()> {
    let mut live = Live::open(Netns::current()?, home::namespace(store, record))?;
    let inside = if live.has_inside() { Some(live.observe(Side::Inside, &Scope::links())?) } else { None };
    let home = restore::restore(&record.held, &live.observe(Side::Host, &Scope::links())?, inside.as_ref());
    home.stuck.iter().try_for_each(|(dev, why)| say(&format!("{dev} {why}")))?;
    home.steps.iter().try_for_each(|step| say(&step.to_string()))
}

/// `rdmaprep status`.
pub(super) fn status(global: &Global, args: &StatusArgs) -> Result<()> {
    let host = Host::new(global, &config(global)?);
    let store = store(&host);
    let mut holders = Vec::new();
    for (path, record) in store.all_records()? {
        match record {
            Ok(record) => holders.push(holder(&store, record)?),
            Err(e) => warn(&[unreadable(&store, &path, &e)]),
        }
    }
    say(&if args.json { report::json(&holders)? } else { report::status_table(&holders) })
}

fn holder(store: &Store, record: Record) -> Result<Holder> {
    let pin = store.pin(record.netns);
    let members: Vec<(String, bool)> = record.members.iter().map(|m| (m.id.clone(), home::alive(m))).collect();
    let id = members.first().map(|(id, _)| id.clone()).unwrap_or_default();
    let advice = match (record.boot_id == boot_id()?, members.iter().any(|(_, alive)| *alive)) {
        (false, _) => {
            "of an earlier boot: nothing is away; remove the record when the network is as it should be".into()
        }
        (true, true) if record.phase == Phase::Attached => format!("stop {id}, or: rdmaprep restore {id}"),
        (true, _) => format!("run: rdmaprep restore {id}"),
    };
    let last = store.report(&id)?.and_then(|text| serde_json::from_str(&text).ok());
    Ok(Holder {
        netns: record.netns,
        pin: home::namespace(store, &record).is_some().then(|| pin.display().to_string()),
        phase: record.phase,
        plan: record.plan.clone(),
        members,
        nics: record.names().map(ToString::to_string).collect(),
        last,
        advice,
    })
}
