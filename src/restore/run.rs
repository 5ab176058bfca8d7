//! Bringing NICs home: after a stop, after a failure, and for containers that died without a word.

use rdma_model::drift::Drift;
use rdma_model::moved_nic::MovedNic;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::HcaName;
use rdma_model::step::Side;

use crate::apply::apply_all;
use crate::journal::{Member, Phase, Record};
use crate::kernel::host::files;
use crate::kernel::netns::{self, Netns, pins};
use crate::kernel::process::pidfd;
use crate::kernel::store::Store;
use crate::kernel::{Kernel, Scope, World};
use crate::plan::rdma_mode;
use crate::restore::plan::{AbsentNics, RestorePlan, plan_restore};
use crate::restore::{SETTLE, nic_names};
use crate::verify;

use crate::restore::arrange::{Arranged, arrange};
use crate::restore::children::{self, Children};
use crate::restore::search_netns;
use crate::restore::settle::{Settled, settle};

/// What bringing home did.
#[derive(Debug, Default)]
pub struct Restored {
    /// Number of steps.
    pub steps: usize,
    /// Remarks: what a container had done to its NICs, and what was done to them when they were back.
    pub notes: Vec<String>,
}

/// Whether a container's init still lives.
pub fn is_alive(member: &Member) -> bool {
    pidfd::start_time(member.pid) == Some(member.start_time)
}

/// Whether NICs are with nobody: all their containers have died, and no process is left in the namespace.
pub fn is_abandoned(record: &Record) -> bool {
    !record.members.iter().any(is_alive) && netns::occupant(record.netns).is_none()
}

/// The namespace that holds a record's NICs: by our pin, or through a member that still lives.
pub fn open_netns(store: &Store, record: &Record) -> Option<Netns> {
    let same = |ns: &Netns| ns.inode() == record.netns;
    let pinned = Netns::open(&store.pin(record.netns)).ok().filter(same);
    let through = |m: &Member| Netns::of_process(m.pid).ok().filter(same).filter(|_| is_alive(m));
    pinned.or_else(|| record.members.iter().find_map(through))
}

/// Opens both namespaces of a record and brings its NICs home.
pub fn restore(store: &Store, record: Record) -> Result<Restored> {
    restore_within(store, record, SETTLE)
}

/// The same where nobody asked for it now. Who waited once need not make every container wait: what was not there then will
/// hardly come now.
pub fn restore_again(store: &Store, record: Record) -> Result<Restored> {
    let patience = if record.phase == Phase::Restoring { Duration::ZERO } else { SETTLE };
    restore_within(store, record, patience)
}

fn restore_within(store: &Store, record: Record, patience: Duration) -> Result<Restored> {
    let host = Netns::current()?;
    if host.inode() != record.host_netns {
        return Err(ErrorClass::Refused.error("the NICs belong to another namespace than this one: run it there"));
    }
    let mut live =
        Kernel::open(host, open_netns(store, &record)).class(ErrorClass::Incomplete, "opening both namespaces")?;
    restore_with(&mut live, store, record, patience)
}

/// Brings a record's NICs home and forgets the record when all of them are there and equal to what they were.
///
/// # Errors
/// [`ErrorClass::Incomplete`] with what is missing; the record stays, so that the next try starts from it.
pub fn restore_with(live: &mut Kernel, store: &Store, record: Record, patience: Duration) -> Result<Restored> {
    restore_all(live, store, record, patience).or_else(|e| match ErrorClass::of(&e) {
        ErrorClass::Other => {
            Err(e).class(ErrorClass::Incomplete, "bringing NICs home; `rdmaprep restore --all` tries again")
        }
        _ => Err(e),
    })
}

fn restore_all(live: &mut Kernel, store: &Store, mut record: Record, patience: Duration) -> Result<Restored> {
    let unheard = store.unheard(&record).unwrap_or_default();
    let first = record.phase != Phase::Restoring;
    record.phase = Phase::Restoring;
    // On a full disk the record stays as it was: in any phase it says all that the way home takes.
    let unsaved = store.save(&record).err();
    let others = other_records(store, &record)?;
    let away = absent_nics(live, &others)?;
    let (mut home, strayed) = plan_when_back(live, &away.view(&record), patience)?;
    let deadline = Instant::now() + SETTLE;
    let mut errors = apply_all(&home.steps, live, deadline);
    // Of 512 NICs there are many, and none is done again.
    let steps = std::mem::take(&mut home.steps).len();
    let arranged = put_in_order(live, store, &mut record, &away)?;
    let view = away.view(&record);
    errors.extend(arranged.errors);
    let stuck = |h: &MovedNic| home.stuck.iter().any(|(name, _)| *name == h.nic.identity.name);
    let here: Vec<MovedNic> = view.held.into_iter().filter(|h| !stuck(h)).collect();
    let its = children::surely_its(&home.steps, &record.held, first);
    let Children { notes: removed, left } = children::delete(live, &here, &its)?;
    let Settled { mut drift, fought, notes } = settle(live, Path::new("/"), &here, &view.precedence, patience)?;
    drift.extend(bare_drift(live, &record)?);
    // Who cannot do what was planned need not look for others to blame.
    let fought = fought.filter(|_| errors.is_empty());
    if home.stuck.is_empty() && drift.is_empty() && left.is_empty() {
        hand_over(store, &away, &record, others)?;
        release_netns(store, &record)?;
        store.forget(&record)?;
        let made = home.notes.into_iter().chain(removed).chain(notes);
        let notes = strayed.into_iter().chain(made).chain(fought).chain(unknown_fields(&unheard)).collect();
        return Ok(Restored { steps: steps + arranged.steps, notes });
    }
    let mut what: Vec<String> = home.stuck.iter().map(|(dev, why)| format!("{dev} {why}")).collect();
    what.extend(unsaved.iter().chain(&errors).map(|e| format!("{e:#}")));
    what.extend(left.into_iter().chain(drift.iter().map(Drift::to_string)).chain(fought));
    if home.stuck.is_empty() && verify::lacks_program(&drift) {
        what.push("a BPF program that has ended cannot be put back: `rdmaprep restore --forget` gives up, then attach it again".to_owned());
    }
    if home.stuck.is_empty() && !drift.is_empty() && drift.iter().all(Drift::is_of_device) {
        what.push(
            "what the driver or the kernel refuses can be set by hand; `rdmaprep restore --forget` gives it up"
                .to_owned(),
        );
    }
    // `status` and `doctor` say why; without a place to write it they say only that the NICs are away.
    record.held_back.clone_from(&what);
    let _ = store.save(&record);
    let ids: Vec<&str> = record.members.iter().map(|m| m.id.as_str()).collect();
    let retry = ids.first().map_or("--all".to_owned(), |id| format!("{id:?}"));
    Err(ErrorClass::Incomplete
        .error(format!("{}; run `rdmaprep restore {retry}` when that is settled", what.join("; "))))
}

/// The records of other containers that have NICs of this host; one that cannot be read keeps nothing that we know of.
fn other_records(store: &Store, record: &Record) -> Result<Vec<Record>> {
    let all = store.all_records()?.into_iter().filter_map(|(_, r)| r.ok());
    let other =
        |r: &Record| r.netns != record.netns && r.boot_id == record.boot_id && r.host_netns == record.host_netns;
    Ok(all.filter(other).collect())
}

fn absent_nics(live: &mut Kernel, others: &[Record]) -> Result<AbsentNics> {
    if others.is_empty() {
        return Ok(AbsentNics::default());
    }
    Ok(AbsentNics::from_records(others.iter(), &live.observe(Side::Host, &Scope::links())?))
}

/// Before the record goes: what it could not make whole is for those to do that keep the rest.
fn hand_over(store: &Store, away: &AbsentNics, record: &Record, others: Vec<Record>) -> Result<()> {
    for mut other in others {
        if away.hand_over(record, &mut other) {
            store.save(&other)?;
        }
    }
    Ok(())
}

/// Gives equal routes and rules the order that they had. Those that the host got meanwhile are recorded first: they may be on
/// their way to another place when a crash comes.
fn put_in_order(live: &mut Kernel, store: &Store, record: &mut Record, away: &AbsentNics) -> Result<Arranged> {
    if record.precedence.is_empty() {
        return Ok(Arranged::default());
    }
    let host = live.observe(Side::Host, &Scope::links())?;
    let met = record.precedence.met(&host);
    let mut unsaved = None;
    if met != record.precedence {
        record.precedence = met;
        unsaved = store.save(record).err();
    }
    let mut arranged = arrange(live, Side::Host, &away.view(record).precedence, &host)?;
    arranged.errors.extend(unsaved);
    Ok(arranged)
}

/// What a later version knew of the NICs, and nobody has given back.
fn unknown_fields(unheard: &[String]) -> Option<String> {
    // The same of each NIC.
    let names: BTreeSet<&str> = unheard.iter().filter_map(|place| place.rsplit('.').next()).collect();
    let fields = names.into_iter().collect::<Vec<_>>().join(", ");
    let text = format!("a later rdmaprep has written the record: what it knew besides is not given back ({fields})");
    (!unheard.is_empty()).then_some(text)
}

/// Drops what keeps a record's namespace, and what was written for its containers.
pub fn release_netns(store: &Store, record: &Record) -> Result<()> {
    // While ours still keeps it, its number is no other namespace's.
    record.hold.iter().try_for_each(|hold| pins::withdraw(&hold.path, record.netns))?;
    pins::unpin(&store.pin(record.netns))?;
    files::remove(&store.profile(record.netns))
}

/// HCAs without a NIC that the host lacks still, where devices belong to one namespace each; a move that failed is tried again.
fn bare_drift(live: &mut Kernel, record: &Record) -> Result<Vec<Drift>> {
    let bare = bare(record);
    if bare.is_empty() {
        return Ok(Vec::new());
    }
    let inside = if live.has_inside() { Some(live.observe(Side::Inside, &Scope::links())?) } else { None };
    let steps = rdma_mode::restore_hcas(bare.iter(), &live.observe(Side::Host, &Scope::links())?, inside.as_ref());
    apply_all(&steps, live, Instant::now() + SETTLE);
    Ok(rdma_mode::missing_on_host(bare, &live.observe(Side::Host, &Scope::links())?))
}

/// Those that moved with the container's NICs.
fn bare(record: &Record) -> &[HcaName] {
    record.given.as_ref().filter(|plan| plan.exclusive).map(|plan| plan.ib.as_slice()).unwrap_or_default()
}

/// A namespace that has ended, the container's or one that it made, returns its physical NICs some time later.
fn plan_when_back(live: &mut Kernel, record: &Record, patience: Duration) -> Result<(RestorePlan, Vec<String>)> {
    let deadline = Instant::now() + patience;
    let mut strayed = Vec::new();
    let mut looked = false;
    loop {
        let home = plan_now(live, record)?;
        let over = Instant::now() >= deadline;
        if home.missing == 0 || over && (looked || patience.is_zero()) {
            return Ok((home, strayed));
        }
        // Every namespace of the machine is looked into: once.
        if !looked && !patience.is_zero() {
            looked = true;
            let missing = |h: &&MovedNic| home.stuck.iter().any(|(name, _)| *name == h.nic.identity.name);
            let missing: Vec<MovedNic> = record.held.iter().filter(missing).cloned().collect();
            if !missing.is_empty() {
                strayed.extend(search_netns::fetch(record, &missing));
                continue;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The way home as it would be now, while other containers have their NICs.
pub fn preview(live: &mut Kernel, store: &Store, record: &Record) -> Result<RestorePlan> {
    let away = absent_nics(live, &other_records(store, record)?)?;
    plan_now(live, &away.view(record))
}

/// The way home as it is now, of HCAs without a NIC, too.
fn plan_now(live: &mut Kernel, record: &Record) -> Result<RestorePlan> {
    let inside = if live.has_inside() { Some(live.observe(Side::Inside, &Scope::links())?) } else { None };
    let host = live.observe(Side::Host, &Scope::links())?;
    let mut home = plan_restore(&record.held, &host, inside.as_ref());
    let bare = bare(record);
    home.steps.splice(0..0, rdma_mode::restore_hcas(bare.iter(), &host, inside.as_ref()));
    let lost = rdma_mode::missing_everywhere(bare, &host, inside.as_ref());
    home.missing += lost.len();
    home.notes
        .extend(lost.iter().map(|name| format!("{name} is neither in the container's namespace nor on the host")));
    Ok(home)
}

/// Brings home what belongs to containers that have died, whatever hook failed to say so; and drops pins that no record
/// speaks of. Returns a sentence for each.
pub fn reclaim(store: &Store, boot_id: &str, spare: impl Fn(&Record) -> bool) -> Result<Vec<String>> {
    let mut told = Vec::new();
    let mut known = Vec::new();
    for (path, record) in store.all_records()? {
        let record = match record {
            Ok(r) => r,
            Err(e) => {
                told.push(format!("{e:#}"));
                // Its pin is what holds its NICs together until somebody has mended it.
                known.extend(store.netns_of(&path));
                continue;
            }
        };
        known.push(record.netns);
        if record.boot_id != boot_id {
            // A namespace of today has its number, and is about to get a record of its own.
            if spare(&record) {
                store.archive(&path, Some(&record.boot_id))?;
            }
            continue;
        }
        if spare(&record) || !is_abandoned(&record) {
            continue;
        }
        let nics = nic_names(&record.held).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        told.push(match restore_again(store, record) {
            Ok(_) => format!("brought {nics} home: their container has died"),
            Err(e) => format!("{nics}: {e:#}"),
        });
    }
    store.sweep()?;
    for pin in store.all_pins()?.into_iter().filter(|p| !known.contains(p)) {
        unpin(&store.pin(pin)).unwrap_or_else(|e| told.push(format!("{e:#}")));
    }
    for profile in store.all_profiles()?.into_iter().filter(|p| !known.contains(p)) {
        files::remove(&store.profile(profile)).unwrap_or_else(|e| told.push(format!("{e:#}")));
    }
    Ok(told)
}

fn unpin(path: &Path) -> Result<()> {
    pins::unpin(path).class(ErrorClass::Other, "dropping a pin that nothing uses")
}
