//! Records that wait: an earlier restore has brought their NICs back, and has yet to do something.

use std::net::IpAddr;

use anyhow::Result;
use rdma_model::effect::{MadeAgainBy, compare_rules, missing_addresses, missing_routes};
use rdma_model::host_objects::HostObjects;
use rdma_model::ids::IfName;
use rdma_model::manager::Managed;
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::Snapshot;
use rdma_model::step::NicState;

use crate::record::Record;
use crate::restore::nic_names;
use crate::restore::settle::is_about;
use crate::store::records::Records;

fn waiting<'r>(records: &'r Records) -> impl Iterator<Item = &'r Record> {
    records.readable().filter(|r| r.is_back())
}

/// Takes over what an earlier restore has yet to add to a NIC.
pub(super) fn adopt_waiting(records: &Records, held: &mut MovedNic, host: &Snapshot) {
    for earlier in waiting(records).flat_map(|r| &r.held) {
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
pub(super) fn waiting_objects(
    records: &Records,
    held: &[MovedNic],
    host: &Snapshot,
) -> HostObjects {
    let names = nic_names(held);
    let mut missing = HostObjects::default();
    for earlier in waiting(records) {
        if earlier.names().any(|name| names.contains(name)) {
            missing.merge(earlier.host_objects.missing(host));
        }
    }
    missing
}

/// The record of these NICs replaces those of earlier restores.
pub(super) fn replace_waiting(records: &mut Records, record: &Record) -> Result<()> {
    let all: Vec<Record> = waiting(records).cloned().collect();
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
        let mut waits_for = earlier.waits_for.clone();
        waits_for.retain(|why| rest.iter().any(|name| is_about(why, name)));
        records.save(&earlier.reduced_to_waiting(earlier.netns, &rest, waits_for))?;
    }
    Ok(())
}
