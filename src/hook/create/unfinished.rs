//! NICs of which an earlier restore, or a manager, has yet to finish something.

use anyhow::Result;
use rdma_model::effect::{Chooser, compare_rules, missing_addresses, missing_routes};
use rdma_model::error_class::ErrorClass;
use rdma_model::host_objects::HostObjects;
use rdma_model::ids::IfName;
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::{Address, Route, Rule, Snapshot};
use rdma_model::step::NicState;
use std::net::IpAddr;

use crate::link_managers::Managers;
use crate::plan::Plan;
use crate::record::Record;
use crate::restore::nic_names;
use crate::store::records::Records;

/// That every planned address is there, where a manager has yet to configure its NIC;
/// [`ErrorClass::Locked`] says which one.
pub(super) fn check_configured(
    plan: &Plan,
    host: &Snapshot,
    managers: &mut Managers,
) -> Result<()> {
    for nic in &plan.nics {
        let Some(state) = NicState::of(host, &nic.identity.name) else {
            continue;
        };
        let [missing, ..] = missing_addresses(&nic.addresses, &state.netdev.addresses)[..] else {
            continue;
        };
        if let Some(by) = managers.at_work(&state.netdev) {
            let (name, address, prefix) = (&nic.identity.name, missing.address, missing.prefix);
            let text = format!(
                "{name} has no {address}/{prefix} yet: {} is still configuring it",
                by.name()
            );
            return Err(ErrorClass::Locked.error(text));
        }
    }
    Ok(())
}

/// That it is known who configures the NICs: one whose manager was not asked would come back with
/// its addresses, and the manager leaves such a one alone. [`ErrorClass::Locked`] says which.
pub(super) fn check_asked(held: &[MovedNic], managers: &mut Managers) -> Result<()> {
    for MovedNic {
        before, managed, ..
    } in held
    {
        if managed.as_ref().is_some_and(|m| m.foreign.is_some()) {
            continue;
        }
        if let Some(why) = managers.why_unknown(&before.netdev) {
            let text = format!(
                "NetworkManager has {}, and {why}: how that is to come back is not known",
                before.netdev.name
            );
            return Err(ErrorClass::Locked.error(text));
        }
    }
    Ok(())
}

/// Records who configures the NIC, or which profiles NetworkManager does not activate on it. A
/// manager deletes the rules that it made for the NIC's tables when the NIC leaves: such rules are
/// recorded as the NIC's, whatever network they are for.
pub(super) fn record_manager(
    held: &mut MovedNic,
    moved: &[IfName],
    host: &Snapshot,
    managers: &mut Managers,
) {
    let of_tables = held.before.rules_to_tables(host, moved);
    let mut all = held.before.clone();
    all.rules.extend(of_tables.iter().cloned());
    held.managed = managers.managed(&all);
    let Some(managed) = &held.managed else {
        held.ended = managers.ended(&held.before.netdev);
        return;
    };
    let made = |r: &Rule| match managed.foreign {
        Some(_) => managed.owns_rule(r),
        None => r.is_static(),
    };
    held.before.rules.extend(of_tables.into_iter().filter(made));
}

/// Takes over what an earlier restore has yet to add to a NIC.
pub(super) fn adopt_unfinished(records: &Records, held: &mut MovedNic, host: &Snapshot) {
    let name = &held.nic.identity.name;
    let state = &mut held.before;
    let unfinished = records
        .readable()
        .filter(|r| r.is_back())
        .flat_map(|r| &r.held);
    for earlier in unfinished.filter(|h| h.nic.identity.name == *name) {
        let Some(managed) = &earlier.managed else {
            continue;
        };
        let was = &earlier.before;
        let addresses =
            missing_addresses(&was.netdev.addresses, &state.netdev.addresses).into_iter();
        let addresses: Vec<Address> = addresses
            .filter(|a| !managed.owns_address(a))
            .cloned()
            .collect();
        let routes = missing_routes(&was.routes, &state.routes, Some(managed)).into_iter();
        let routes: Vec<Route> = routes.filter(|r| !managed.owns_route(r)).cloned().collect();
        let rules = compare_rules(&was.rules, &host.rules, Chooser::Manager(managed))
            .missing
            .into_iter();
        let rules: Vec<Rule> = rules.filter(|r| !managed.owns_rule(r)).cloned().collect();
        if let Some(foreign) = held.managed.as_mut().and_then(|m| m.foreign.as_mut()) {
            foreign.addresses.extend(addresses.iter().cloned());
            foreign.routes.extend(routes.iter().cloned());
            foreign.rules.extend(rules.iter().cloned());
        }
        state.netdev.addresses.extend(addresses);
        state.routes.extend(routes);
        state.rules.extend(rules);
        take_over_the_rest(earlier, state, host);
        held.stand_ins.extend(earlier.stand_ins.iter().cloned());
        // The manager may not run now: then the earlier record says who configures the NIC.
        held.managed.get_or_insert_with(|| managed.clone());
    }
}

/// What a manager never owns.
fn take_over_the_rest(earlier: &MovedNic, state: &mut NicState, host: &Snapshot) {
    let was = &earlier.before;
    let there: Vec<IpAddr> = state.netdev.neighbours.iter().map(|n| n.address).collect();
    let missing = was.netdev.neighbours.iter();
    let missing = missing.filter(|n| !there.contains(&n.address)).cloned();
    state.netdev.neighbours.extend(missing);
    let free = was.nexthops.iter();
    let free = free.filter(|n| !host.nexthops.iter().any(|has| has.id == n.id));
    state.nexthops.extend(free.cloned());
}

/// What the host lacks of its own that an earlier restore of these NICs has yet to put back. A
/// route without a device may be there: not all are read here.
pub(super) fn due_objects(records: &Records, held: &[MovedNic], host: &Snapshot) -> HostObjects {
    let names = nic_names(held);
    let earlier = records
        .readable()
        .filter(|r| r.is_back() && r.names().any(|name| names.contains(name)));
    let mut due = HostObjects::default();
    for record in earlier {
        due.merge(record.host_objects.missing(host));
    }
    due
}

/// The record of these NICs replaces those of earlier restores.
pub(super) fn replace_returned(records: &mut Records, record: &Record) -> Result<()> {
    let back: Vec<Record> = records
        .readable()
        .filter(|r| r.is_back())
        .cloned()
        .collect();
    for earlier in back {
        let rest: Vec<IfName> = earlier
            .names()
            .filter(|name| !record.names().any(|n| n == *name))
            .cloned()
            .collect();
        if rest.len() == earlier.held.len() {
            continue;
        }
        let smaller = earlier.waiting(earlier.netns, &rest, earlier.awaits.clone());
        if rest.is_empty() {
            records.forget(&earlier)?;
        } else {
            records.save(&smaller)?;
        }
    }
    Ok(())
}
