//! What a NIC has inside, of what it has on the host.

use std::collections::{BTreeSet, HashMap};

use ipnet::IpNet;
use rdma_model::ipv6_legs::{joins_others, missing_legs};
use rdma_model::snapshot::{
    Address, Hop, Netdev, RTA_EXPIRES, RTA_METRICS, RTA_NH_ID, Route, Snapshot,
};
use rdma_model::step::{
    DADFAILED, IFA_F_NOPREFIXROUTE, NODAD, NetdevAddresses, NicState, OPTIMISTIC, generated,
    kernel_address, makes_by_mac, of_generated, prefix_route,
};

use crate::plan::sysctl_carry;

/// Whether the host has no route to an address's subnet although the kernel had made one: the
/// administrator deleted it, and it must not appear inside.
fn lacks_subnet(state: &NicState, address: &Address) -> bool {
    /// SECONDARY, DADFAILED, TENTATIVE, NOPREFIXROUTE (include/uapi/linux/if_addr.h).
    const UNROUTED: u32 = 0x01 | 0x08 | 0x40 | IFA_F_NOPREFIXROUTE;
    let single = usize::from(address.prefix) == if address.address.is_ipv4() { 32 } else { 128 };
    let far = address.address.is_ipv6() && address.peer.is_some();
    let routed = state.netdev.up && address.flags & UNROUTED == 0 && !single && !far;
    // The kernel's has no metrics: one that an administrator gave some is added, not left to the
    // kernel.
    let mut plain = state
        .routes
        .iter()
        .filter(|r| !r.other.contains_key(&RTA_METRICS));
    routed && !kernel_address(address, &state.netdev) && !plain.any(|r| prefix_route(r, address))
}

/// What the NIC must look like inside: its state on the host, less what has no meaning there.
pub(super) fn inside_state(before: &NicState, leaving: &[Netdev], host: &Snapshot) -> NicState {
    let mut state = before.clone();
    // The kernel would make the subnet's route again, which an administrator has deleted.
    for address in state
        .netdev
        .addresses
        .iter_mut()
        .filter(|a| lacks_subnet(before, a))
    {
        address.flags |= IFA_F_NOPREFIXROUTE;
    }
    // Whether another machine has the address the host has found out, or is about to, where a
    // container has just returned the NIC. Inside, duplicate address detection would take a second
    // or two, in which Linux lets no program bind the address.
    for address in state
        .netdev
        .addresses
        .iter_mut()
        .filter(|a| a.address.is_ipv6() && a.flags & DADFAILED == 0)
    {
        // Linux takes no address that is both (inet6_rtm_newaddr() in net/ipv6/addrconf.c).
        address.flags = address.flags & !OPTIMISTIC | NODAD;
    }
    // No router or DHCP client renews them inside; a finite lifetime gets here only by
    // --freeze-lifetimes.
    for a in &mut state.netdev.addresses {
        (a.valid_lft, a.preferred_lft) = (None, None);
    }
    let carried = state.routes.iter().filter_map(|r| carried(r, leaving));
    let own = NetdevAddresses::new(&before.netdev);
    // What was parted may have no leg over this NIC any more: it is another one's.
    let parts = carried.flat_map(parted).filter(|r| own.loses(r));
    state.routes = each_once(parts.map(plain));
    state.nexthops.clear();
    state.netdev.sysctls = sysctl_carry::sysctls(&before.netdev, host);
    state.routes.retain(|r| !of_generated(r, &before.netdev));
    // By the same mode the kernel makes these there as well.
    state
        .netdev
        .addresses
        .retain(|a| !(makes_by_mac(&before.netdev) && generated(a)));
    // A container has no routers to listen to.
    state.netdev.token = None;
    // Inside the kernel's default does; what a container attaches itself is its own.
    (state.netdev.qdiscs, state.netdev.qdisc_lost) = (None, None);
    // Settings of the device itself move with it; what a container sets of them is its own.
    state.netdev.device = None;
    // The kernel gives it one; the record learns it when the attach is verified.
    state.netdev.ifindex = 0;
    state
}

/// A route by the legs over NICs that leave. Linux refuses a preferred source that is no address of
/// the namespace.
fn carried(route: &Route, leaving: &[Netdev]) -> Option<Route> {
    let mut hops = route.hops.clone();
    hops.retain(|h| leaving.iter().any(|d| h.dev.as_ref() == Some(&d.name)));
    let mut addresses = leaving.iter().flat_map(|d| &d.addresses);
    let prefsrc = route
        .prefsrc
        .filter(|ip| addresses.any(|a| a.address == *ip));
    (!hops.is_empty()).then(|| Route {
        prefsrc,
        ..route.with(hops)
    })
}

/// IPv6 takes no legs without a gateway but through a nexthop object (ip6_route_multipath_add in
/// net/ipv6/route.c): each of these becomes a route.
fn parted(route: Route) -> Vec<Route> {
    if route.destination.addr().is_ipv4() || route.hops.len() < 2 {
        return vec![route];
    }
    let (by_gateway, direct): (Vec<Hop>, Vec<Hop>) = route
        .hops
        .iter()
        .cloned()
        .partition(|h| h.gateway.is_some());
    let parts = direct
        .into_iter()
        .map(|h| vec![h])
        .chain([by_gateway].into_iter().filter(|legs| !legs.is_empty()));
    parts.map(|hops| route.with(hops)).collect()
}

/// Without the legs that stay, and without nexthop objects, two may be one: Linux refuses an IPv6
/// route whose legs are there, whatever else differs (rt6_duplicate_nexthop() in
/// include/net/ip6_route.h).
fn each_once(routes: impl Iterator<Item = Route>) -> Vec<Route> {
    let mut seen = BTreeSet::new();
    let mut joined: HashMap<IpNet, Vec<Route>> = HashMap::new();
    let mut kept = Vec::new();
    for route in routes.filter(|r| seen.insert(r.clone())) {
        if joins_others(&route) {
            let others = joined.entry(route.destination).or_default();
            if missing_legs(&route, others).is_empty() {
                continue;
            }
            others.push(route.clone());
        }
        kept.push(route);
    }
    kept
}

/// A route without what it had on the host alone: the nexthop object, whose legs it has itself now,
/// and its lifetime, as no router renews it inside.
fn plain(mut route: Route) -> Route {
    route.other.remove(&RTA_NH_ID);
    route.other.remove(&RTA_EXPIRES);
    route
}
