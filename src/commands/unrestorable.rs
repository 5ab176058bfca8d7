//! Records that restore no NIC: damaged ones, and those of NICs that are gone for good.

use rdma_model::moved_nic::MovedNic;
use std::path::Path;

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::escape::shell_word;
use rdma_model::snapshot::{Netdev, Snapshot};
use rdma_model::step::{Side, Step};

use crate::kernel::netns::{Netns, pins};
use crate::kernel::{Kernel, Namespaces, Scope, World};
use crate::plan::rdma_mode;
use crate::record::{PartialRecord, Phase, Record};
use crate::report::Report;
use crate::restore::bare_hcas;
use crate::restore::forget::release_netns;
use crate::restore::pinned::{drop_unrecorded, may_be_nics};
use crate::restore::plan::{Purpose, RestorePlan};
use crate::restore::run;
use crate::store::Store;
use crate::store::records::Records;

fn put_aside(
    records: &mut Records,
    path: &Path,
    boot_id: Option<&str>,
    report: &mut Report,
) -> Result<()> {
    let kept = records.archive(path, boot_id)?;
    report
        .notes
        .push(format!("the record is kept as {}", kept.display()));
    Ok(())
}

/// Gives up NICs whose cards have gone. What is left of their container goes with the record, as it
/// does when all are restored.
pub(super) fn forget(
    machine: &dyn Namespaces,
    records: &mut Records,
    path: &Path,
    record: &Record,
    report: &mut Report,
) -> Result<()> {
    report.notes.extend(losses(machine, records, record)?);
    release_netns(machine, records.store(), record)?;
    put_aside(records, path, Some(&record.boot_id), report)
}

/// What is lost with a record, a sentence for each; an error where it is too early to give up.
pub(super) fn losses(
    machine: &dyn Namespaces,
    records: &Records,
    record: &Record,
) -> Result<Vec<String>> {
    if let Some(member) = record.members.iter().find(|m| machine.is_alive(record, m)) {
        return Err(ErrorClass::Refused.error(format!(
            "container {} still runs and may use its NICs: stop the container first",
            member.id
        )));
    }
    if machine.host_netns()? != record.host_netns {
        return Err(ErrorClass::Refused.error(
            "the NICs belong to another network namespace than this one: run `rdmaprep \
                restore` in that one",
        ));
    }
    let mut world = machine.open(record, &records.store().pin(record.netns))?;
    let mut way = run::preview(machine, &mut *world, records, record, Purpose::Forget)?;
    let inside = world.observe_inside(&Scope::network())?;
    // The host's /sys shows cards whatever namespace their netdevs are in.
    let host = world.observe(
        Side::Host,
        &Scope {
            sysfs: true,
            ..Scope::network()
        },
    )?;
    let bare = bare_hcas::of(record);
    let hcas = rdma_mode::restore_hcas(bare.iter(), &host, inside.as_ref());
    let gone = rdma_mode::missing_everywhere(bare, &host, inside.as_ref()).len();
    way.missing -= gone.min(way.missing);
    let hope = hcas
        .first()
        .map(|step| format!("{step} is still possible"))
        .or_else(|| hope(record, &way, &host));
    if let Some(why) = hope.filter(|_| !record.is_back()) {
        let restore = record.restore_command();
        return Err(
            ErrorClass::Refused.error(format!("{why}; nothing is forgotten: run `{restore}`"))
        );
    }
    let stuck = record.held.iter().filter(|held| way.is_stuck(held));
    let steps = way.steps.iter().map(|step| format!("not done: {step}"));
    let held_back = record.held_back.iter();
    let held_back = held_back.map(|why| format!("not restored: {why}"));
    let lost = stuck.map(lost).chain(steps).chain(held_back);
    // Of others they say what a restore would do.
    let given_up = way.notes.iter().filter(|_| record.is_back()).cloned();
    Ok(lost.chain(given_up).collect())
}

/// Why it is too early to give up.
fn hope(record: &Record, way: &RestorePlan, host: &Snapshot) -> Option<String> {
    if way.stuck.len() > way.missing {
        return way.stuck.first().map(ToString::to_string);
    }
    let (gone, rest): (Vec<&MovedNic>, Vec<&MovedNic>) =
        record.held.iter().partition(|held| way.is_stuck(held));
    if let Some(held) = gone.into_iter().find(|held| has_card(host, held)) {
        return Some(format!(
            "the card of {} is there, its netdev may be in a further namespace",
            held.name()
        ));
    }
    let untried = record.phase != Phase::Restoring && !way.steps.is_empty();
    let whole = way.missing == 0 && way.steps.is_empty() && record.held_back.is_empty();
    let rest: Vec<&str> = rest.iter().map(|h| h.name().as_str()).collect();
    (untried || whole || way.steps.iter().any(takes_away))
        .then(|| format!("{} can still be restored", rest.join(" ")))
}

/// Whether its card is on the host, with a driver.
fn has_card(host: &Snapshot, held: &MovedNic) -> bool {
    let pci = held.before.netdev.pci;
    let card = host.pci.iter().find(|f| Some(f.address) == pci);
    card.is_some_and(|f| f.driver.is_some())
}

/// Whether it takes a link out of where it is.
fn takes_away(step: &Step) -> bool {
    matches!(
        step,
        Step::Move { .. } | Step::RdmaMove { .. } | Step::Make { .. }
    )
}

fn lost(held: &MovedNic) -> String {
    let state = &held.before;
    let addresses: Vec<String> = state
        .netdev
        .addresses
        .iter()
        .map(|a| format!("{}/{}", a.address, a.prefix))
        .collect();
    format!(
        "{} is given up, and with it its addresses ({}), {} routes and {} rules: should it come \
        back, the system alone configures it",
        held.name(),
        addresses.join(" "),
        state.routes.len(),
        state.rules.len()
    )
}

/// Gives up what a record has that cannot be read.
pub(super) fn forget_unread(records: &mut Records, path: &Path, report: &mut Report) -> Result<()> {
    let store = records.store();
    let remains = store.remains(path);
    let lost = unread(store, path)?;
    if let Some(netns) = store.netns_of(path) {
        let pin = store.pin(netns);
        if pins::place(&pin, netns).is_some() {
            // While the pin is there, its number is no other namespace's.
            remains
                .places
                .iter()
                .try_for_each(|place| pins::withdraw(place, netns))?;
            pins::unpin(&pin)?;
        }
    }
    report.notes.extend(lost);
    put_aside(records, path, remains.boot_id.as_deref(), report)
}

/// Namespaces that are pinned without a record, since that was removed.
pub(super) fn unrecorded_pins(store: &Store) -> Result<Vec<u64>> {
    let mut pinned = store.all_pins()?;
    // Read now: a create that ran meanwhile has written its record before it pinned the namespace.
    let paths = store.record_paths()?;
    let recorded: Vec<u64> = paths.iter().filter_map(|p| store.netns_of(p)).collect();
    pinned.retain(|netns| !recorded.contains(netns));
    Ok(pinned)
}

/// Those of them with links in them: how the links come back.
pub(super) fn unrecorded(store: &Store) -> Result<Vec<(u64, String)>> {
    let mut found = Vec::new();
    for netns in unrecorded_pins(store)? {
        found.extend(links_in(store, netns).map(|why| (netns, why)));
    }
    Ok(found)
}

fn links_in(store: &Store, netns: u64) -> Option<String> {
    let place = pins::place(&store.pin(netns), netns)?;
    let found = is_empty(netns, &place, &PartialRecord::default());
    found.err().map(|why| format!("{why:#}"))
}

/// What keeps a pinned namespace without a record.
pub(super) fn unrecorded_links(store: &Store, netns: u64) -> Option<String> {
    let why = links_in(store, netns)?;
    Some(format!("the namespace {netns} has no record: {why}"))
}

/// Ends a pin without a record, once the links of its namespace have been taken out.
pub(super) fn end_unrecorded(machine: &dyn Namespaces, store: &Store, netns: u64) -> Result<()> {
    if drop_unrecorded(machine, store, netns)? {
        return Ok(());
    }
    let why = unrecorded_links(store, netns);
    Err(ErrorClass::Incomplete.error(why.unwrap_or_default()))
}

/// What is lost with a record that cannot be read: whatever is still in its namespace is to be
/// taken out by hand first, since a namespace that ends destroys what is no hardware.
pub(super) fn unread(store: &Store, path: &Path) -> Result<Vec<String>> {
    let remains = store.remains(path);
    let mut lost = Vec::new();
    if let Some(netns) = store.netns_of(path) {
        let place = pins::place(&store.pin(netns), netns);
        if let Some(place) = &place {
            is_empty(netns, place, &remains)?;
        }
        let mut names = pins::names(netns);
        // With the pin go those that the record has.
        names.retain(|name| place.is_some() != remains.places.contains(name));
        lost.extend(names.iter().map(|name| still_named(name)));
    }
    lost.push(format!(
        "what cannot be read is given up: {}",
        remains.describe()
    ));
    Ok(lost)
}

/// Whether nothing that a record names, or no link at all, is in its namespace. What has no kind is
/// hardware, and no container can have made that.
fn is_empty(netns: u64, pin: &Path, remains: &PartialRecord) -> Result<()> {
    let mut world = Kernel::open(Netns::current()?, Some(Netns::open(pin)?))?;
    let inside = world.observe(Side::Inside, &Scope::network())?;
    let mut there: Vec<&Netdev> = may_be_nics(&inside).collect();
    there.retain(|d| remains.nics.is_empty() || remains.nics.contains(&d.name));
    there.sort_by_key(|d| d.kind.is_some());
    let Some(first) = there.first() else {
        return Ok(());
    };
    let own = match first.kind {
        Some(_) => ", or, if the container has made it, `ip link delete` it there",
        None => "",
    };
    let names: Vec<String> = there.iter().map(|d| shell_word(d.name.as_str())).collect();
    Err(ErrorClass::Refused.error(format!(
        "{} can still be taken out of the namespace {netns}: nsenter --net={} ip link set {} \
        netns 1{own}",
        names.join(" "),
        pin.display(),
        shell_word(first.name.as_str()),
    )))
}

/// A name that the record does not show to be of `rdmaprep hold`.
fn still_named(name: &Path) -> String {
    let word = name.file_name().unwrap_or_default().to_string_lossy();
    format!(
        "its namespace is still {}: if `rdmaprep hold` made that, ip netns delete {word}",
        name.display()
    )
}
