//! NICs of which an earlier restore, or a manager, has yet to finish something.

use anyhow::Result;
use rdma_model::effect::{MadeAgainBy, compare_rules, missing_addresses, missing_routes};
use rdma_model::error_class::ErrorClass;
use rdma_model::host_objects::HostObjects;
use rdma_model::ids::IfName;
use rdma_model::manager::{Managed, Manager};
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::{Rule, Snapshot};
use rdma_model::step::NicState;
use std::net::IpAddr;

use crate::link_managers::Managers;
use crate::plan::Plan;
use crate::record::Record;
use crate::restore::nic_names;
use crate::select::Awaits;
use crate::store::records::Records;

/// That every planned address is there, where a manager has yet to configure its NIC;
/// [`ErrorClass::Locked`] says which one, [`ErrorClass::Refused`] that an administrator keeps
/// it from that.
pub(super) fn check_managers_are_done(
    plan: &Plan,
    host: &Snapshot,
    managers: &mut Managers,
) -> Result<()> {
    for nic in &plan.nics {
        let Some(now) = NicState::of(host, nic.name()) else {
            continue;
        };
        let missing = missing_addresses(&nic.addresses, &now.netdev.addresses);
        let Some(missing) = missing.first() else {
            continue;
        };
        if let Some(at_work) = managers.at_work(&now.netdev) {
            let (name, address, prefix) = (nic.name(), missing.address, missing.prefix);
            let (state, until) = (at_work.state(), at_work.until(name));
            let class = match at_work.awaits {
                Awaits::Connection => ErrorClass::Refused,
                _ => ErrorClass::Locked,
            };
            let text = format!("{name} has no {address}/{prefix} yet: {state}; {until}");
            return Err(class.error(text));
        }
    }
    Ok(())
}

/// That it is known who configures the NICs. Else a restore would put the addresses back itself,
/// and NetworkManager takes such a NIC for one that others configure. [`ErrorClass::Locked`] says
/// which.
pub(super) fn check_managers_are_known(held: &[MovedNic], managers: &mut Managers) -> Result<()> {
    for MovedNic {
        before, managed, ..
    } in held
    {
        if managed.as_ref().is_some_and(is_known) {
            continue;
        }
        if let Some(why) = managers.why_unknown(&before.netdev, managed.is_some()) {
            let text = format!(
                "NetworkManager has {}, and {why}: how that is to come back is not known",
                before.netdev.name
            );
            return Err(ErrorClass::Locked.error(text));
        }
    }
    Ok(())
}

/// Whether the manager could be asked, NetworkManager also which profile the NIC has.
fn is_known(managed: &Managed) -> bool {
    let has_profile = managed.uuid.is_some() || managed.by == Manager::Networkd;
    managed.was_asked() && has_profile
}

/// Records who configures the NIC, or which profiles NetworkManager does not activate on it. A
/// manager deletes the rules that it made for the NIC's tables when the NIC leaves, NetworkManager
/// all that it made: such rules are recorded as the NIC's, whatever network they are for.
pub(super) fn record_manager_and_its_rules(
    held: &mut MovedNic,
    moved: &[IfName],
    host: &Snapshot,
    managers: &mut Managers,
) {
    // Rules beside the NIC's own that the manager may have made: it is asked of all at once.
    let to_tables = held.before.rules_to_tables(host, moved);
    let mut applied = managers.applied_rules(&held.before.netdev, &host.rules);
    applied.retain(|r| !held.before.rules.contains(r));
    let mut asked = held.before.clone();
    asked
        .rules
        .extend(to_tables.iter().chain(&applied).cloned());
    held.managed = managers.managed(&asked);
    let Some(managed) = &held.managed else {
        held.ended_profiles = managers.ended_profiles(&held.before.netdev);
        return;
    };
    let of_manager = to_tables.iter().filter(|r| makes_again(managed, r));
    // What NetworkManager applies and no profile has: it was given that by `nmcli device modify`.
    // The profile's own to other tables are left out: they come with it, and may be another NIC's
    // as well.
    let given_at_run_time = applied.iter().filter(|r| !makes_again(managed, r));
    let added: Vec<Rule> = of_manager.chain(given_at_run_time).cloned().collect();
    held.before.rules.extend(added);
}

/// Whether a manager makes a rule again with the NIC; where it was not asked, a static one.
fn makes_again(managed: &Managed, rule: &Rule) -> bool {
    match managed.was_asked() {
        true => managed.owns_rule(rule),
        false => rule.is_static(),
    }
}

/// Records of NICs that are on the host, with what is still to be done there.
fn unfinished<'r>(records: &'r Records) -> impl Iterator<Item = &'r Record> {
    records.readable().filter(|r| r.is_back())
}

/// Takes over what an earlier restore has yet to add to a NIC.
pub(super) fn adopt_unfinished(records: &Records, held: &mut MovedNic, host: &Snapshot) {
    for earlier in unfinished(records).flat_map(|r| &r.held) {
        if earlier.name() == held.name()
            && let Some(managed) = &earlier.managed
        {
            adopt(earlier, managed, held, host);
        }
    }
}

/// `managed` is of the earlier record.
fn adopt(earlier: &MovedNic, managed: &Managed, held: &mut MovedNic, host: &Snapshot) {
    let (was, is) = (&earlier.before, &mut held.before);
    let addresses = missing_addresses(&was.netdev.addresses, &is.netdev.addresses);
    let addresses = without(addresses, |a| managed.owns_address(a));
    let routes = missing_routes(&was.routes, &is.routes, Some(managed));
    let routes = without(routes, |r| managed.owns_route(r));
    let rules = compare_rules(&was.rules, &host.rules, MadeAgainBy::Manager(managed)).missing;
    let rules = without(rules, |r| managed.owns_rule(r));
    // Else it would count as the manager's own, and no restore would put it back.
    if let Some(foreign) = held.managed.as_mut().and_then(|m| m.foreign.as_mut()) {
        foreign.addresses.extend(addresses.iter().cloned());
        foreign.routes.extend(routes.iter().cloned());
        foreign.rules.extend(rules.iter().cloned());
    }
    is.netdev.addresses.extend(addresses);
    is.routes.extend(routes);
    is.rules.extend(rules);
    adopt_neighbours_and_nexthops(was, is, host);
    // Routes that the host has in the place of multipath ones until all their legs are back.
    held.stand_ins.extend(earlier.stand_ins.iter().cloned());
    // The manager may not run now: then the earlier record says who configures the NIC.
    held.managed.get_or_insert_with(|| managed.clone());
}

fn without<T: Clone>(missing: Vec<&T>, is_managers: impl Fn(&T) -> bool) -> Vec<T> {
    let others = missing.into_iter().filter(|one| !is_managers(one));
    others.cloned().collect()
}

/// Neighbours, which no manager makes; and nexthop objects whose numbers are free: of those the
/// restore leaves out what a manager makes again.
fn adopt_neighbours_and_nexthops(was: &NicState, is: &mut NicState, host: &Snapshot) {
    let there: Vec<IpAddr> = is.netdev.neighbours.iter().map(|n| n.address).collect();
    for neighbour in &was.netdev.neighbours {
        if !there.contains(&neighbour.address) {
            is.netdev.neighbours.push(neighbour.clone());
        }
    }
    for nexthop in &was.nexthops {
        if host.nexthops.iter().all(|n| n.id != nexthop.id) {
            is.nexthops.push(nexthop.clone());
        }
    }
}

/// What is no NIC's, and an earlier restore of these NICs has yet to put back. A route without a
/// device may be there already, as not all are read here: then a restore adds nothing.
pub(super) fn unfinished_objects(
    records: &Records,
    held: &[MovedNic],
    host: &Snapshot,
) -> HostObjects {
    let names = nic_names(held);
    let mut missing = HostObjects::default();
    for earlier in unfinished(records) {
        if earlier.names().any(|name| names.contains(name)) {
            missing.merge(earlier.host_objects.missing(host));
        }
    }
    missing
}

/// The record of these NICs replaces those of earlier restores.
pub(super) fn replace_unfinished(records: &mut Records, record: &Record) -> Result<()> {
    let all: Vec<Record> = unfinished(records).cloned().collect();
    for earlier in all {
        let rest: Vec<IfName> = earlier
            .names()
            .filter(|name| !record.names().any(|n| n == *name))
            .cloned()
            .collect();
        if rest.len() == earlier.held.len() {
            continue;
        }
        if rest.is_empty() {
            records.forget(&earlier)?;
            continue;
        }
        // Each begins with its NIC's name: see `why_waiting` in restore/settle/returned.rs.
        let mut waits_for = earlier.waits_for.clone();
        waits_for.retain(|why| rest.iter().any(|name| why.starts_with(&format!("{name} "))));
        records.save(&earlier.reduced_to_waiting(earlier.netns, &rest, waits_for))?;
    }
    Ok(())
}
