//! Linux makes one IPv6 route of all that are equal but for their next hops, if these have
//! gateways, whatever program adds them (rt6_qualify_for_ecmp() in include/net/ip6_route.h,
//! fib6_add_rt2node() in net/ipv6/ip6_fib.c). Each leg keeps a protocol, a source and metrics of
//! its own, and the kernel reports those of the first one alone: what another program has added
//! must stay as it is.

use crate::ids::IfName;
use crate::snapshot::{Hop, RTA_EXPIRES, Route};

/// Whether a route of one leg or more may become one with others.
pub fn joins_others(r: &Route) -> bool {
    let mut legs = r.hops.iter();
    let has_gateways = !r.hops.is_empty() && legs.all(|h| h.gateway.is_some());
    r.is_ipv6() && r.nexthop().is_none() && has_gateways
}

/// What is left of a route, or that one in another order, where no other program has a leg: it can
/// be deleted before the whole is added. Where several routes are left, their legs are not known to
/// be alike, and all of them stay.
pub fn rest_of<'h>(whole: &Route, have: &'h [Route]) -> Option<&'h Route> {
    let mut there = have.iter().filter(|r| are_of_one_key(r, whole));
    let first = there.next().filter(|left| is_rest_of(left, whole));
    first.filter(|_| there.next().is_none())
}

/// Whether all of its legs are the other one's, and nothing else differs. A preferred source goes
/// with its address (fib6_remove_prefsrc() in net/ipv6/route.c).
pub fn is_rest_of(left: &Route, whole: &Route) -> bool {
    if !are_of_one_key(left, whole) {
        return false;
    }
    let legs = left.hops.iter().map(|leg| leg_of(whole, leg));
    let Some(legs) = legs.collect::<Option<Vec<Hop>>>() else {
        return false;
    };
    let mut expected = whole.with(legs);
    expected.prefsrc = expected.prefsrc.filter(|_| left.prefsrc.is_some());
    without_expiry(left) == without_expiry(&expected)
}

/// The legs that are not there, whatever program added those that are.
pub fn missing_legs(whole: &Route, have: &[Route]) -> Vec<Hop> {
    let there: Vec<&Route> = have.iter().filter(|r| are_of_one_key(r, whole)).collect();
    let mut legs = whole.hops.clone();
    legs.retain(|leg| !there.iter().any(|r| r.has_leg(leg)));
    legs
}

/// Whether it comes leg by leg: the kernel takes no route of which it has a leg, whatever else
/// differs (rt6_duplicate_nexthop() in include/net/ip6_route.h).
pub fn comes_by_legs(whole: &Route, have: &[Route]) -> bool {
    whole.hops.len() > 1
        && have.iter().any(|r| are_of_one_key(r, whole))
        && rest_of(whole, have).is_none()
}

/// Whether the kernel takes a route as legs of one that is there.
pub fn joins_one_of(r: &Route, have: &[Route]) -> bool {
    have.iter().any(|other| are_of_one_key(other, r))
}

/// A NIC's routes, of `all` that are there, with each wanted one whose legs are all there in the
/// place of these legs.
pub fn as_wanted(dev: &IfName, wanted: &[Route], have: &[Route], all: &[Route]) -> Vec<Route> {
    let mut there: Vec<&Route> = wanted.iter().filter(|w| joins_others(w)).collect();
    there.retain(|whole| !have.contains(whole) && is_there_by_legs(whole, all));
    let mut routes = have.to_vec();
    // A container may have thousands.
    if there.is_empty() {
        return routes;
    }
    for whole in there {
        take_legs(whole, &mut routes);
        routes.push(whole.clone());
    }
    routes.retain(|r| have.contains(r) || r.devs().any(|of| of == dev));
    routes
}

fn is_there_by_legs(whole: &Route, have: &[Route]) -> bool {
    let mut there = have.iter().filter(|r| are_of_one_key(r, whole));
    // One that is left alone has lost its weight.
    let is_one_alone = |r: &Route| r.hops.len() == 1 && r.hops[0].weight == 0;
    let are_several = !is_one_alone(whole) || there.any(|r| !is_one_alone(r));
    are_several && rest_of(whole, have).is_none() && missing_legs(whole, have).is_empty()
}

fn take_legs(whole: &Route, routes: &mut Vec<Route>) {
    for route in routes.iter_mut().filter(|r| are_of_one_key(r, whole)) {
        let mut hops = route.hops.clone();
        hops.retain(|leg| !whole.has_leg(leg));
        *route = route.with(hops);
    }
    routes.retain(|r| !r.hops.is_empty() || !r.is_ipv6());
}

fn are_of_one_key(r: &Route, whole: &Route) -> bool {
    r.is_same_but_for_legs(whole) && joins_others(r) && joins_others(whole)
}

/// The leg of a route with the weight of one that leads to the same place.
fn leg_of(whole: &Route, same: &Hop) -> Option<Hop> {
    let leg = whole.hops.iter().find(|leg| leg.is_same_leg(same))?;
    let weight = same.weight;
    Some(Hop {
        weight,
        ..leg.clone()
    })
}

fn without_expiry(r: &Route) -> Route {
    let mut plain = r.clone();
    plain.other.remove(&RTA_EXPIRES);
    plain
}
