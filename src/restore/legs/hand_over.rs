//! What one record could not make whole, another one does.

use std::collections::HashSet;
use std::net::IpAddr;

use anyhow::Result;
use rdma_model::manager::is_daemon;
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::Route;
use rdma_model::step::{NicState, Side};

use super::AbsentParts;
use super::stand_ins::is_put_in_parts;
use crate::kernel::{Depth, Scope, World};
use crate::record::{Phase, Record};
use crate::restore::to_put_back;
use crate::store::records::Records;

impl AbsentParts {
    /// Adds to `to`, another container's record, what `from` could not make whole: its restore
    /// does. Whether there was anything.
    pub(super) fn add_missing_to(&self, from: &Record, to: &mut Record, gone: &[Route]) -> bool {
        let mut changed = false;
        let mut added = Vec::new();
        // A restore has brought it: the next try takes it for the host's by its record.
        let is_underway = to.phase != Phase::Attached;
        // By one that is down no route leads.
        for held in to.held.iter_mut().filter(|h| h.before.netdev.up) {
            let before = (held.before.clone(), held.stand_ins.clone());
            let its = AbsentParts::of(&held.before);
            held.before.routes.retain(|r| !gone.contains(r));
            let whole = from.routes().filter(|r| !is_daemon(r.protocol));
            for route in &whole.map(|r| self.undeleted(r)).collect::<Vec<Route>>() {
                let both = (self.lacks(route) || is_underway) && its.lacks(route);
                // A part that an earlier try has put is no route of its own.
                let is_its_part = is_underway && held.stand_ins.contains(route);
                if both && !is_its_part && leads_by_its(route, from, &its.objects) {
                    added.extend(self.add_route(route, held));
                    self.add_parts(route, from, held);
                }
            }
            add_groups(from, &its.objects, &mut held.before);
            changed |= (&held.before, &held.stand_ins) != (&before.0, &before.1);
        }
        to.precedence.take_over(&from.precedence, &added);
        changed
    }

    /// As if this NIC alone were away: a route that lacks something by it, too, is its own.
    fn of(state: &NicState) -> AbsentParts {
        let addresses = state.netdev.addresses.iter().map(|a| a.address);
        let objects = state.nexthops.iter().filter(|n| n.group.is_empty());
        AbsentParts {
            devs: [state.netdev.name.clone()].into(),
            sources: addresses.filter(IpAddr::is_ipv4).collect(),
            objects: objects.map(|n| n.id).collect(),
            ..AbsentParts::default()
        }
    }

    /// In place of the NIC's parts of it. The route, unless the NIC had it already.
    fn add_route(&self, route: &Route, held: &mut MovedNic) -> Option<Route> {
        let routes = &mut held.before.routes;
        let mut parts = routes.iter().filter(|r| r.is_part_of(route));
        let managed = held.managed.as_ref();
        let is_managers = parts.any(|r| managed.is_some_and(|m| m.owns_route(r)));
        // Those of IPv4 are recorded, and may be equal to routes of their own.
        routes
            .retain(|r| !r.is_part_of(route) || is_put_in_parts(r) && !self.stand_ins.contains(r));
        if routes.contains(route) {
            return None;
        }
        routes.push(route.clone());
        if !is_managers && let Some(managed) = &mut held.managed {
            managed.add_foreign_route(route);
        }
        Some(route.clone())
    }

    /// What stands for a route on the host goes when the whole is back.
    fn add_parts(&self, route: &Route, from: &Record, held: &mut MovedNic) {
        if !self.lacks(route) {
            return;
        }
        let here = self.route(route).filter(|part| !is_any_of(from, part));
        // What an earlier try of the other one left there goes with the whole as well.
        let left = from.held.iter().flat_map(|h| &h.stand_ins);
        let left = left.filter(|part| part.is_part_of(route)).cloned();
        for part in here.into_iter().chain(left).filter(is_put_in_parts) {
            if !held.before.routes.contains(&part) && !held.stand_ins.contains(&part) {
                held.stand_ins.push(part);
            }
        }
    }
}

/// The groups of these objects, as large as either record has them.
fn add_groups(from: &Record, objects: &HashSet<u32>, state: &mut NicState) {
    let groups = from.nexthops().filter(|n| !n.group.is_empty());
    for group in groups.filter(|n| n.group.iter().any(|m| objects.contains(&m.id))) {
        let nexthops = &mut state.nexthops;
        nexthops.retain(|n| n.id != group.id || n.group.len() > group.group.len());
        if !nexthops.iter().any(|n| n.id == group.id) {
            nexthops.push(group.clone());
        }
    }
}

fn is_any_of(record: &Record, route: &Route) -> bool {
    record.held.iter().any(|h| h.before.routes.contains(route))
}

/// Whether a route over a nexthop object has a member of these: else it leads there no more.
fn leads_by_its(r: &Route, from: &Record, objects: &HashSet<u32>) -> bool {
    let Some(id) = r.nexthop() else {
        return true;
    };
    let all = from.nexthops();
    let group = all.filter(|n| n.id == id).flat_map(|n| &n.group);
    objects.contains(&id) || group.map(|m| m.id).any(|member| objects.contains(&member))
}

/// Before the record goes: what it could not make whole goes to the records of those NICs that keep
/// the rest.
pub fn hand_over(
    world: &mut dyn World,
    records: &mut Records,
    absent: &AbsentParts,
    record: &Record,
    others: &[Record],
) -> Result<()> {
    let gone = match others.is_empty() {
        true => Vec::new(),
        false => gone_stand_ins(world, record)?,
    };
    for other in others {
        let mut with_missing = other.clone();
        if absent.add_missing_to(record, &mut with_missing, &gone) {
            records.save(&with_missing)?;
        }
    }
    Ok(())
}

/// What was there only while a NIC was away goes with its return, unless the NIC was taken into
/// another device.
fn gone_stand_ins(world: &mut dyn World, record: &Record) -> Result<Vec<Route>> {
    if record.held.iter().all(|h| h.stand_ins.is_empty()) {
        return Ok(Vec::new());
    }
    let host = world.observe(Side::Host, &Scope::only(Depth::Netdevs))?;
    let back = record
        .held
        .iter()
        .filter(|h| !to_put_back::has_new_master(h, &host));
    Ok(back.flat_map(|h| h.stand_ins.clone()).collect())
}
