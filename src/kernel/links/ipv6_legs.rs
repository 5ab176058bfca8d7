//! Legs of IPv6 routes that several programs gave: the kernel lists them as one route, with what is
//! the first leg's own alone (rt6_fill_node() in net/ipv6/route.c). Who asks for the way over one
//! link gets what is that leg's.

use std::net::{IpAddr, Ipv6Addr};

use rdma_model::ipv6_legs::joins_others;
use rdma_model::manager::is_daemon;
use rdma_model::snapshot::{RTA_EXPIRES, Route};
use rdma_netlink::raw::Packet;
use rdma_netlink::route;
use rdma_netlink::rtnl::Names;

use super::RouteSocket;

impl RouteSocket {
    /// The routes with each leg by itself where they are not alike. A daemon gives all legs of its
    /// routes, and may have many.
    pub(super) fn with_legs_apart(&mut self, routes: Vec<Route>, names: &Names) -> Vec<Route> {
        let mut apart = Vec::new();
        for route in routes {
            let is_joined = route.hops.len() > 1 && joins_others(&route);
            if !is_joined || is_daemon(route.protocol) {
                apart.push(route);
                continue;
            }
            match self.legs_not_alike(&route, names) {
                None => apart.push(route),
                Some(legs) => apart.extend(legs),
            }
        }
        apart
    }

    /// Each leg, unless all are known to be alike. Of one that a lookup does not find, as in a
    /// table to which no rule leads, what is the first one's counts, but not that it ends.
    fn legs_not_alike(&mut self, route: &Route, names: &Names) -> Option<Vec<Route>> {
        let listed = route.legs();
        let mut legs = listed.clone();
        let mut is_known = true;
        for leg in legs.iter_mut().skip(1) {
            match self.own_leg(leg, names) {
                Some(own) => *leg = own,
                None => {
                    is_known = false;
                    leg.other.remove(&RTA_EXPIRES);
                }
            }
        }
        let ends = legs.iter().any(|leg| leg.other.contains_key(&RTA_EXPIRES));
        (!is_known || ends || legs != listed).then_some(legs)
    }

    fn own_leg(&mut self, leg: &Route, names: &Names) -> Option<Route> {
        let only = leg.hops.first()?;
        let link = self.index(only.dev.as_ref()?).ok()?;
        let ask = route::lookup_leg(an_address_of(leg)?, link);
        let (answers, _) = self.exchange(ask, 0).ok()?;
        let found = answers.iter().find_map(|answer| match answer {
            Packet::Raw(raw) => route::of_answer(raw, names),
            Packet::Known(_) => None,
        })?;
        let own = found.legs().into_iter().next()?;
        let is_asked = own.is_same_but_for_legs(leg) && own.has_leg(only);
        is_asked.then_some(own)
    }
}

/// The last one: the first is often another route's (RFC 4291, section 2.6.1), and the last one of
/// all is a multicast one.
fn an_address_of(route: &Route) -> Option<Ipv6Addr> {
    match route.destination.broadcast() {
        IpAddr::V6(last) if last.is_multicast() => Some(Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 1)),
        IpAddr::V6(last) => Some(last),
        IpAddr::V4(_) => None,
    }
}
