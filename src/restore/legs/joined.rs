//! Legs of IPv6 routes that several programs or restores bring one by one.

use std::collections::HashSet;

use rdma_model::ids::IfName;
use rdma_model::manager::is_dynamic;
use rdma_model::snapshot::{Route, Snapshot};

use super::AbsentParts;

impl AbsentParts {
    /// A route with the legs that the host has beside its own: other restores and programs brought
    /// them, and Linux makes one IPv6 route of all.
    pub(super) fn joined(&self, r: &Route) -> Route {
        if !joins_others(r) {
            return r.clone();
        }
        let there = self.joining.iter().filter(|j| j.is_same_but_for_legs(r));
        let mut hops = r.hops.clone();
        for leg in there.flat_map(|j| &j.hops) {
            if !hops.iter().any(|hop| hop.is_same_leg(leg)) {
                hops.push(leg.clone());
            }
        }
        match hops.len() == r.hops.len() {
            true => r.clone(),
            false => r.with(hops),
        }
    }
}

/// Whether Linux makes one route of it and those that are equal but for their legs
/// (rt6_qualify_for_ecmp() in include/net/ip6_route.h).
pub(super) fn joins_others(r: &Route) -> bool {
    let mut legs = r.hops.iter();
    let has_gateways = !r.hops.is_empty() && legs.all(|h| h.gateway.is_some());
    r.is_ipv6() && r.nexthop().is_none() && !is_dynamic(r) && has_gateways
}

/// The host's routes that join others, without the legs over links that are down.
pub(super) fn joining(host: &Snapshot) -> Vec<Route> {
    let up = host.netdevs.iter().filter(|dev| dev.up);
    let up: HashSet<&IfName> = up.map(|dev| &dev.name).collect();
    let mut routes: Vec<Route> = host
        .routes
        .iter()
        .filter(|r| joins_others(r))
        .cloned()
        .collect();
    for route in &mut routes {
        route
            .hops
            .retain(|leg| leg.dev.as_ref().is_some_and(|dev| up.contains(dev)));
    }
    routes
}
