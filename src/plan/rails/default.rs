//! The main table's default route: it would take a container's own traffic over a rail, so it stays
//! behind unless it was asked for and no other has one.

use std::fmt;

use rdma_model::snapshot::{Route, Snapshot};
use rdma_model::step::NicState;

use super::listed;
use crate::select::protected_ifaces::leads_everywhere;

/// Of these default routes the one per family that comes along: the lowest metric wins, as in the
/// kernel.
pub fn winners<'a>(routes: impl Iterator<Item = &'a Route>) -> Vec<&'a Route> {
    let mut best: Vec<&Route> = Vec::new();
    for route in routes.filter(|r| leads_everywhere(r) && r.source.is_none() && r.tos == 0) {
        match best.iter_mut().find(|b| b.destination == route.destination) {
            Some(b) if metric(route) < metric(b) => *b = route,
            Some(_) => {}
            None => best.push(route),
        }
    }
    best
}

fn metric(route: &Route) -> u32 {
    route.metric.unwrap_or(0)
}

fn has_one(inside: &Snapshot, route: &Route) -> bool {
    inside
        .routes
        .iter()
        .any(|r| leads_everywhere(r) && r.destination == route.destination)
}

/// Leaves of the default routes, as rails come into the container, those that come along, and tells
/// of asked ones that do not.
pub fn carry_default(wanted: bool, rails: &mut [NicState], inside: &Snapshot) -> Vec<String> {
    let all: Vec<Route> = rails.iter().flat_map(|s| &s.routes).cloned().collect();
    let best = winners(all.iter().filter(|_| wanted));
    let (late, carried): (Vec<&Route>, Vec<&Route>) =
        best.into_iter().partition(|r| has_one(inside, r));
    for state in rails {
        state.routes.retain(|r| {
            let is_main = r.table == rdma_model::snapshot::TABLE_MAIN;
            !is_main || r.destination.prefix_len() != 0 || carried.contains(&r)
        });
    }
    late.into_iter()
        .map(|r| {
            format!(
                "{} stays behind: the container has a default route of its own",
                DefaultRouteText(r)
            )
        })
        .collect()
}

pub fn default_notes(wanted: bool, rails: &[NicState]) -> Vec<String> {
    if !wanted {
        return Vec::new();
    }
    let all = rails.iter().flat_map(|s| &s.routes);
    let notes: Vec<String> = winners(all)
        .into_iter()
        .map(|r| format!("{} comes along", DefaultRouteText(r)))
        .collect();
    if notes.is_empty() {
        vec!["--default-route: none of the NICs has a default route".to_owned()]
    } else {
        notes
    }
}

/// `the default route via 10.0.0.9 of rail0`.
struct DefaultRouteText<'a>(&'a Route);

impl fmt::Display for DefaultRouteText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ROOM: usize = 40;
        let hops = &self.0.hops;
        let gateway = hops.iter().find_map(|h| h.gateway);
        let via = gateway.map_or(String::new(), |g| format!(" via {g}"));
        let devs: Vec<_> = hops.iter().filter_map(|h| h.dev.as_ref()).collect();
        let family = if self.0.destination.addr().is_ipv4() {
            "IPv4"
        } else {
            "IPv6"
        };
        write!(
            f,
            "the {family} default route{via} of {}",
            listed(&devs, ROOM, "NICs")
        )
    }
}
