//! What the host has of routes while one of their legs is away. Linux drops an IPv4 route with the
//! device of one of its legs (fib_sync_down_dev() in net/ipv4/fib_semantics.c); of an IPv6 route it
//! keeps the legs that stay.

use std::collections::BTreeSet;

use rdma_model::ids::IfName;
use rdma_model::manager::is_daemon;
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::{Hop, Route, Snapshot};
use rdma_model::step::{Side, Step};

/// Records with each NIC what takes the place of its routes.
pub(super) fn choose(held: &mut [MovedNic], host: &Snapshot) {
    let leaving: BTreeSet<IfName> = held.iter().map(|h| h.name().clone()).collect();
    let mut seen: BTreeSet<Route> = BTreeSet::new();
    for nic in held {
        let wholes = nic
            .before
            .routes
            .iter()
            .filter(|r| r.hops.len() > 1 && seen.insert((*r).clone()));
        nic.stand_ins = wholes
            .filter_map(|whole| stand_in(whole, &leaving, host))
            .collect();
    }
}

/// The route by the legs that stay; nothing where the kernel or a routing daemon sees to that, or
/// where another route comes before it.
fn stand_in(whole: &Route, leaving: &BTreeSet<IfName>, host: &Snapshot) -> Option<Route> {
    let stays = |hop: &&Hop| hop.dev.as_ref().is_none_or(|dev| !leaving.contains(dev));
    let hops: Vec<Hop> = whole.hops.iter().filter(stays).cloned().collect();
    // Of others the kernel keeps the legs that stay, or the daemon adds them again.
    let is_lost = whole.destination.addr().is_ipv4()
        && whole.nexthop().is_none()
        && !is_daemon(whole.protocol);
    if !is_lost || hops.is_empty() || hops.len() == whole.hops.len() {
        return None;
    }
    // The kernel refuses a source that is no address of the host.
    let mut staying = host
        .netdevs
        .iter()
        .filter(|dev| !leaving.contains(&dev.name))
        .flat_map(|dev| &dev.addresses);
    let source = whole.prefsrc;
    if source.is_some_and(|source| staying.all(|a| a.address != source)) {
        return None;
    }
    // Of equal routes the kernel goes by the first one that is left.
    let key = |r: &Route| (r.destination, r.table, r.tos, r.metric.unwrap_or(0));
    let mut equals = host.routes.iter().filter(|r| key(r) == key(whole));
    let first = equals.find(|r| r.hops.is_empty() || r.hops.iter().any(|hop| stays(&hop)));
    let part = whole.with(hops);
    (first == Some(whole) && !host.routes.contains(&part)).then_some(part)
}

/// Before the others of its key: there it serves at once, and a message that deletes it finds it
/// first (fib_table_delete() in net/ipv4/fib_trie.c takes the first route that has what is named).
pub(super) fn steps(held: &[MovedNic]) -> impl Iterator<Item = Step> + '_ {
    let routes = held.iter().flat_map(|h| &h.stand_ins);
    routes.map(|route| Step::RoutePrepend {
        side: Side::Host,
        route: route.clone(),
    })
}
