//! What an administrator has deleted of routes and groups while NICs were away: that stays deleted.
//! Linux drops a route with the last link that it leads over when that is set down, too, and says
//! neither: where nothing of it is left it comes back.

use std::collections::HashSet;

use rdma_model::ids::IfName;
use rdma_model::ipv6_legs::joins_others;
use rdma_model::manager::is_daemon;
use rdma_model::snapshot::{Hop, Netdev, Nexthop, Route, Snapshot};

use super::AbsentParts;
use crate::record::Record;

/// A leg over a link that stayed, and what was left of its route.
struct Stayed<'a> {
    route: &'a Route,
    leg: &'a Hop,
    link: &'a Netdev,
    rest: Vec<&'a Route>,
}

impl Stayed<'_> {
    fn is_there(&self) -> bool {
        let mut legs = self.rest.iter().flat_map(|r| &r.hops);
        legs.any(|leg| leg.is_same_leg(self.leg))
    }

    fn is_without_ipv4(&self) -> bool {
        let to = self.leg.gateway.unwrap_or(self.route.destination.addr());
        let mut addresses = self.link.addresses.iter();
        to.is_ipv4() && !addresses.any(|a| a.address.is_ipv4())
    }
}

impl AbsentParts {
    /// Adds the legs of routes that were left on the host and are not there any more, as far as
    /// that is known. Returns a sentence for each.
    pub(super) fn add_deleted(
        &mut self,
        record: &Record,
        others: &[Record],
        host: &Snapshot,
    ) -> Vec<String> {
        let mut notes = Vec::new();
        for stayed in legs_that_stayed(record, others, host) {
            let (to, dev) = (stayed.route.destination, &stayed.link.name);
            let leg = (stayed.route.clone(), stayed.leg.clone());
            if stayed.is_there() {
                continue;
            }
            if !stayed.rest.is_empty() {
                self.deleted.push(leg);
                self.rests.extend(stayed.rest.into_iter().cloned());
                notes.push(format!(
                    "the leg over {dev} of the route to {to} was deleted meanwhile: it is left out"
                ));
            } else if stayed.is_without_ipv4() {
                // Its manager may be changing it.
                self.may_come = true;
                self.unreachable.push(leg);
                notes.push(format!(
                    "{dev} has no IPv4 address now: its legs of routes are left out"
                ));
            }
        }
        notes
    }

    pub(super) fn is_unreachable(&self, route: &Route, leg: &Hop) -> bool {
        is_among(&self.unreachable, route, leg)
    }

    pub(super) fn is_deleted(&self, route: &Route, leg: &Hop) -> bool {
        is_among(&self.deleted, route, leg)
    }

    /// Without the legs that stay deleted.
    pub(super) fn undeleted(&self, route: &Route) -> Route {
        let mut hops = route.hops.clone();
        hops.retain(|leg| !self.is_deleted(route, leg));
        match hops.is_empty() || hops.len() == route.hops.len() {
            true => route.clone(),
            false => route.with(hops),
        }
    }

    /// Takes what stays deleted out of the record: a further try, which finds the host otherwise,
    /// need not judge again. Whether there was anything.
    pub fn take_deleted_out(&self, record: &mut Record) -> bool {
        if self.deleted.is_empty() && self.deleted_groups.is_empty() {
            return false;
        }
        for held in &mut record.held {
            held.stand_ins.extend(self.rests_of(&held.before));
            let before = &mut held.before;
            before
                .nexthops
                .retain(|n| !self.deleted_groups.contains(&n.id));
            before.routes = self.without_deleted(&before.routes);
        }
        record.precedence.routes = self.without_deleted(&record.precedence.routes);
        true
    }

    fn without_deleted(&self, routes: &[Route]) -> Vec<Route> {
        let left = routes.iter().filter(|r| !self.is_of_deleted_group(r));
        left.map(|r| self.undeleted(r)).collect()
    }

    pub(super) fn is_of_deleted_group(&self, r: &Route) -> bool {
        r.nexthop()
            .is_some_and(|id| self.deleted_groups.contains(&id))
    }

    /// Adds groups. One goes by itself with its last member only. Returns a sentence for each.
    pub(super) fn add_deleted_groups(
        &mut self,
        record: &Record,
        others: &[Record],
        host: &Snapshot,
    ) -> Vec<String> {
        let away = others.iter().chain([record]).flat_map(Record::nexthops);
        let away: HashSet<u32> = away.filter(|n| n.group.is_empty()).map(|n| n.id).collect();
        let there: HashSet<u32> = host.nexthops.iter().map(|n| n.id).collect();
        let own = record.nexthops();
        let deleted = own.filter(|n: &&Nexthop| {
            let mut members = n.group.iter().map(|m| m.id);
            !there.contains(&n.id)
                && !is_daemon(n.protocol)
                && members.any(|id| there.contains(&id) && !away.contains(&id))
        });
        let mut notes = Vec::new();
        for group in deleted {
            if self.deleted_groups.insert(group.id) {
                notes.push(format!(
                    "nexthop object {} was deleted meanwhile: it is left out, with what leads \
                    through it",
                    group.id
                ));
            }
        }
        notes
    }
}

/// A device route or a blackhole that is equal but for its legs stays beside one of IPv6.
fn is_of_one_route(r: &Route, whole: &Route) -> bool {
    r.is_same_but_for_legs(whole) && joins_others(r) == joins_others(whole)
}

/// What is left of a route; unknown where another one is beside it, or in its place by now. Any
/// program may have added legs to one of IPv6.
fn parts_left<'h>(route: &Route, host: &'h Snapshot) -> Option<Vec<&'h Route>> {
    let there = host.routes.iter().filter(|r| is_of_one_route(r, route));
    let there: Vec<&Route> = there.collect();
    let is_part = |r: &&&Route| match joins_others(route) {
        true => r.hops.iter().any(|leg| route.has_leg(leg)),
        false => r.is_part_of(route),
    };
    let parts: Vec<&Route> = there.iter().filter(is_part).copied().collect();
    let is_known = match joins_others(route) {
        true => there.is_empty() || !parts.is_empty(),
        false => parts.len() == there.len(),
    };
    is_known.then_some(parts)
}

fn is_among(legs: &[(Route, Hop)], route: &Route, leg: &Hop) -> bool {
    let mut legs = legs.iter();
    legs.any(|(of, gone)| of.is_same_but_for_legs(route) && gone.is_same_leg(leg))
}

fn legs_that_stayed<'a>(
    record: &'a Record,
    others: &'a [Record],
    host: &'a Snapshot,
) -> Vec<Stayed<'a>> {
    let away = others.iter().chain([record]).flat_map(Record::names);
    let away: HashSet<&IfName> = away.collect();
    let mut all: Vec<Stayed> = Vec::new();
    for route in record.routes() {
        let is_divided = route.hops.len() > 1 && route.nexthop().is_none();
        if !is_divided || is_daemon(route.protocol) || all.iter().any(|s| s.route == route) {
            continue;
        }
        let Some(rest) = parts_left(route, host) else {
            continue;
        };
        for leg in route
            .hops
            .iter()
            .filter(|leg| has_stayed(record, route, leg))
        {
            let dev = leg.dev.as_ref().filter(|dev| !away.contains(dev));
            let link = dev.and_then(|dev| host.netdev(dev)).filter(|dev| dev.up);
            all.extend(link.map(|link| Stayed {
                route,
                leg,
                link,
                rest: rest.clone(),
            }));
        }
    }
    all
}

/// Whether the host had the leg when the NICs had left: of IPv6 the kernel keeps what stays, of
/// IPv4 it is put there.
fn has_stayed(record: &Record, route: &Route, leg: &Hop) -> bool {
    let mut parts = record.held.iter().flat_map(|h| &h.stand_ins);
    // A restore that was killed may not have put those over its own NICs.
    let is_over_own = |part: &&Route| {
        let mut devs = part.devs();
        devs.any(|dev| record.names().any(|name| name == dev))
    };
    route.is_ipv6()
        || parts.any(|part| !is_over_own(&part) && part.is_part_of(route) && part.has_leg(leg))
}
