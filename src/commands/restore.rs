use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::IfName;
use rdma_model::step::Step;

use super::container_id::whole_id;
use super::{host_for_return, now, one_error, say, store, unrestorable, warn, with_progress};
use crate::cli::{Global, RestoreArgs};
use crate::kernel::process::{capabilities, journal};
use crate::kernel::{Namespaces, ThisMachine};
use crate::record::Record;
use crate::report::{self, Foretold, Lap, Report};
use crate::restore::plan::Purpose;
use crate::restore::stays_for::{AskedBy, stays_for};
use crate::restore::{SETTLE, nic_names, run};
use crate::store::Store;
use crate::store::claims::CDI_FOLDER;
use crate::store::records::Records;

pub(super) fn restore(global: &Global, args: &RestoreArgs) -> Result<()> {
    capabilities::shed()?;
    let host = host_for_return(global)?;
    let store = store(&host);
    if !args.output.dry_run {
        capabilities::require()?;
    }
    let machine = ThisMachine::new()?;
    let records = Records::read(&store, machine.boot_id())?;
    // Names are in files of engines: not while others wait for the lock.
    let id = args
        .id
        .as_ref()
        .map(|id| whole(&store, &records, id))
        .transpose()?;
    let found = Found::new(&machine, &records, args, id.as_ref())?;
    if args.output.dry_run {
        return foretell(&machine, &records, args, &found);
    }
    // A timer that finds no record does not wait for the lock. It only removes settings of
    // containers that have ended.
    if found.is_empty() && (args.how.stale || store.is_read_only()) {
        if !store.is_read_only() {
            warn(
                store
                    .sweep_ended()
                    .err()
                    .map(|e| format!("{e:#}"))
                    .as_slice(),
            );
        }
        return nothing(args);
    }
    store.make_folders()?;
    let _lock = store.lock(Instant::now() + host.lock_timeout)?;
    // Another rdmaprep may have restored some during the wait.
    let mut records = Records::read(&store, machine.boot_id())?;
    warn(&records.sweep());
    let found = Found::new(&machine, &records, args, id.as_ref())?;
    let done = act(&machine, &mut records, args, found);
    warn(&keep_returned(&store, args, &done.returned));
    if args.output.json {
        say(&report::json(&done.reports)?)?;
    } else if done.reports.is_empty() && done.failures.is_empty() {
        nothing(args)?;
    } else {
        let is_terminal = std::io::stdout().is_terminal();
        for report in &done.reports {
            say(&match journal::is_stdout() {
                true => report.line(),
                false => report::restored(report, is_terminal),
            })?;
        }
    }
    one_error(done.failures)
}

/// For `status`, which says what came back and why. Returns why something is not kept.
fn keep_returned(store: &Store, args: &RestoreArgs, reports: &[Report]) -> Vec<String> {
    let mut why = Vec::new();
    for report in reports.iter().filter(|r| r.command == report::RESTORED) {
        let Some(id) = report.container.as_ref() else {
            continue;
        };
        if report.exit_code != 0 || report.steps_done == 0 {
            continue;
        }
        let command = match args.how.stale {
            true => report::RESTORED_STALE,
            false => report::RESTORED,
        };
        let report = Report {
            time: now(),
            command: command.to_owned(),
            ..report.clone()
        };
        let saved = report::json(&report).and_then(|text| store.save_report(Some(id), &text));
        why.extend(saved.err().map(|e| format!("{e:#}")));
    }
    why
}

/// What it says where there is no record.
fn nothing(args: &RestoreArgs) -> Result<()> {
    match &args.plan {
        _ if args.output.json => say("[]"),
        _ if args.how.stale => Ok(()),
        Some(plan) => say(&format!("No container of plan {plan} holds a NIC.")),
        None => say("No container holds a NIC."),
    }
}

/// The number of a namespace is no name, whatever containers are called.
fn whole(store: &Store, records: &Records, id: &String) -> Result<String> {
    let recorded = records.iter().filter_map(|(p, _)| store.netns_of(p));
    let pinned = store.all_pins()?.into_iter();
    let is_netns = recorded.chain(pinned).any(|n| n.to_string() == *id);
    if is_netns {
        Ok(id.clone())
    } else {
        whole_id(records, id)
    }
}

#[derive(Default)]
struct Outcome {
    reports: Vec<Report>,
    /// Those of NICs that were away. That NICs which wait for their manager have got the rest is no
    /// news, and the report of what brought them back stays.
    returned: Vec<Report>,
    failures: Vec<anyhow::Error>,
}

impl Outcome {
    fn attempt(
        &mut self,
        command: &str,
        record: Option<&Record>,
        act: impl FnOnce(&mut Report) -> Result<()>,
    ) {
        let begun = Instant::now();
        let mut report = Report::new(command);
        if let Some(record) = record {
            report.nics = nic_names(&record.held);
            report.container = record.members.first().map(|m| m.id.clone());
        }
        let result = act(&mut report);
        report.end_lap(begun, Lap::Undo);
        report.finish(&result, begun);
        self.failures.extend(result.err());
        if record.is_some_and(|record| !record.is_back()) {
            self.returned.push(report.clone());
        }
        self.reports.push(report);
    }
}

fn act(machine: &ThisMachine, records: &mut Records, args: &RestoreArgs, found: Found) -> Outcome {
    let mut done = Outcome::default();
    let command = match args.how.forget {
        true => report::FORGET,
        false => report::RESTORED,
    };
    // A damaged record must not keep the NICs of other records away.
    for (path, why) in found.damaged {
        match args.how.forget {
            true => done.attempt(command, None, |report| {
                unrestorable::forget_unread(records, &path, report)
            }),
            false => done.failures.push(ErrorClass::Incomplete.error(why)),
        }
    }
    for netns in found.unrecorded {
        let ended = unrestorable::end_unrecorded(machine, records.store(), netns);
        done.failures.extend(ended.err());
    }
    for path in found.now {
        // Read again: restoring another container may have changed this record.
        let Some(Ok(record)) = records.at(&path) else {
            continue;
        };
        let record = record.clone();
        if args.how.stale && record.is_back() {
            let again = run::restore_abandoned(machine, records, record.clone());
            let waits = again.as_ref().is_ok_and(|done| !done.waits_for.is_empty());
            // The timer asks six times a minute.
            if waits && journal::is_stdout() {
                continue;
            }
            done.attempt(command, Some(&record), |report| {
                report.take(again?);
                Ok(())
            });
            continue;
        }
        done.attempt(command, Some(&record.clone()), |report| {
            let of_claims = record.clone();
            if args.how.forget {
                unrestorable::forget(machine, records, &path, &record, report)?;
                return forget_claims(machine, records.store(), &record);
            }
            let done = match args.how.stale {
                true => run::restore_abandoned(machine, records, record),
                false => with_progress(awaited(&record), || run::restore(machine, records, record)),
            }?;
            report.take(done);
            match args.how.stale {
                true => Ok(()),
                false => forget_claims(machine, records.store(), &of_claims),
            }
        });
    }
    done
}

/// The NICs of these claims are back by an administrator's word. The timer leaves the claims: one
/// that pods share may be the next one's, as it is already where the binding says so.
fn forget_claims(machine: &dyn Namespaces, store: &Store, record: &Record) -> Result<()> {
    for uid in &record.claims {
        let binding = store.binding(uid, machine.boot_id()).ok().flatten();
        if binding.is_none_or(|binding| binding.is_of_pod_in(record)) {
            store.remove_binding(uid, Path::new(CDI_FOLDER))?;
        }
    }
    Ok(())
}

/// What a user hears who waits for a restore.
fn awaited(record: &Record) -> String {
    let names: Vec<&str> = record.names().map(IfName::as_str).collect();
    let managers = record
        .held
        .iter()
        .filter_map(|h| Some(h.managed.as_ref()?.by.name()));
    let managers = Vec::from_iter(managers.collect::<BTreeSet<_>>()).join(" and ");
    let by = match managers.as_str() {
        "" => String::new(),
        by => format!("; waiting up to {} s for {by}", SETTLE.as_secs()),
    };
    format!("putting back {}{by}", names.join(", "))
}

/// What `restore` is about: one container's records, or all.
#[derive(Default)]
struct Found {
    now: Vec<PathBuf>,
    damaged: Vec<(PathBuf, String)>,
    /// Namespaces that are pinned without a record.
    unrecorded: Vec<u64>,
}

impl Found {
    fn new(
        machine: &ThisMachine,
        records: &Records,
        args: &RestoreArgs,
        id: Option<&String>,
    ) -> Result<Found> {
        let store = records.store();
        let mut found = Found::default();
        for (path, record) in records.iter() {
            let netns = store.netns_of(path).map(|n| n.to_string());
            let asked = |has: &dyn Fn(&String) -> bool| {
                id.is_none_or(|id| netns.as_ref() == Some(id) || has(id))
            };
            match record {
                Ok(r)
                    if !asked(&|id| r.has(id))
                        || args.plan.as_ref().is_some_and(|plan| *plan != r.plan) => {}
                Ok(_) => found.now.push(path.to_owned()),
                // With --plan, a damaged record counts only if it names that plan: an epilogue must
                // not fail for another job's.
                Err(_)
                    if args
                        .plan
                        .as_ref()
                        .is_some_and(|plan| !store.remains(path).plans.contains(plan)) => {}
                Err(e) if asked(&|id| store.remains(path).ids.contains(id)) => {
                    found
                        .damaged
                        .push((path.to_owned(), store.unreadable(path, e)));
                }
                Err(_) => {}
            }
        }
        if !args.how.stale && args.plan.is_none() {
            found.unrecorded = unrestorable::unrecorded_pins(store)?;
            found
                .unrecorded
                .retain(|netns| id.is_none_or(|id| netns.to_string() == *id));
        }
        if let Some(id) = args.id.as_ref().filter(|_| found.is_empty()) {
            let text = format!(
                "no container that holds a NIC has the id or name {id:?}: `rdmaprep status` lists \
                the ids, and `podman ps --no-trunc` the names with theirs"
            );
            return Err(ErrorClass::Usage.error(text));
        }
        if args.how.stale {
            let record = |path: &Path| records.at(path).and_then(|record| record.as_ref().ok());
            found.now.retain(|path| {
                let asked_by = AskedBy::Reclaim(store);
                record(path).is_some_and(|r| stays_for(machine, r, asked_by).is_none())
            });
        }
        Ok(found)
    }

    fn is_empty(&self) -> bool {
        self.now.is_empty() && self.damaged.is_empty() && self.unrecorded.is_empty()
    }
}

fn foretell(
    machine: &ThisMachine,
    records: &Records,
    args: &RestoreArgs,
    found: &Found,
) -> Result<()> {
    let mut all = Vec::new();
    for (path, why) in &found.damaged {
        let mut foretold = Foretold::new(None);
        match args.how.forget {
            true => foretold.notes = unrestorable::unread(records.store(), path)?,
            false => foretold.stuck.push(why.clone()),
        }
        all.push(foretold);
    }
    for netns in &found.unrecorded {
        if let Some(links) = unrestorable::unrecorded_links(records.store(), *netns) {
            let mut foretold = Foretold::new(None);
            foretold.stuck.push(links);
            all.push(foretold);
        }
    }
    for record in found
        .now
        .iter()
        .filter_map(|path| records.at(path)?.as_ref().ok())
    {
        let mut foretold = Foretold::new(Some(record));
        match args.how.forget {
            true => foretold.notes = unrestorable::losses(machine, records, record)?,
            false => will_do(machine, records, record, &mut foretold)?,
        }
        all.push(foretold);
    }
    if args.output.json {
        say(&report::json(&all)?)?;
    } else if all.is_empty() {
        return nothing(args);
    } else {
        all.iter().try_for_each(|foretold| say(&foretold.text()))?;
    }
    match all
        .iter()
        .map(|foretold| foretold.stuck.len())
        .sum::<usize>()
    {
        0 => Ok(()),
        n => Err(ErrorClass::Incomplete.error(format!(
            "a restore would end with this code now: {n} of these are stuck"
        ))),
    }
}

fn will_do(
    machine: &ThisMachine,
    records: &Records,
    record: &Record,
    foretold: &mut Foretold,
) -> Result<()> {
    let mut world = machine.open(record, &records.store().pin(record.netns))?;
    let plan = run::preview(machine, &mut *world, records, record, Purpose::Preview)?;
    let stuck = plan.stuck.iter().map(ToString::to_string);
    foretold.stuck.extend(stuck);
    foretold
        .steps
        .extend(plan.all_steps().iter().map(Step::to_string));
    foretold.notes = plan.notes;
    Ok(())
}
