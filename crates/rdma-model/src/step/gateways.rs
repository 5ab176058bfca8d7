//! How the kernel takes a gateway that it took once, and would refuse now.
//!
//! A gateway has to be on the link when its route is added, not later. The kernel looks for a
//! route's gateway in that route's own table and then by the rules, on the leg's device. IPv6
//! refuses one that it finds behind another gateway (`ip6_route_check_nh()` in net/ipv6/route.c),
//! IPv4 one that it does not find (`fib_check_nh_v4_gw()` in net/ipv4/fib_semantics.c). IPv6 looks
//! for one that is onlink in `main`, and refuses it if it finds it over another device
//! (`ip6_route_check_nh_onlink()`). That of a nexthop object, or of a route of IPv4's `main`, it
//! looks for by the rules, the first of which leads to `local`. So routes that came one after the
//! other may have no order in which they can come again.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Side, Step};
use crate::ids::IfName;
use crate::snapshot::{Hop, Route, TABLE_LOCAL, TABLE_MAIN, UNICAST};

/// RTNH_F_ONLINK (include/uapi/linux/rtnetlink.h).
pub const ONLINK: u8 = 4;
/// RT_SCOPE_LINK, of IPv4.
const SCOPE_LINK: u8 = 253;
/// A metric that comes before IPv6's default, 1024.
const FIRST: u32 = 1;
/// A protocol that include/uapi/linux/rtnetlink.h gives to no program: by it the kernel deletes
/// these routes alone.
const OURS: u8 = 0xd3;

/// Routes to the gateways of what the step adds, over the link itself. While they are there, the
/// kernel takes the gateways.
pub fn links_to_gateways(step: &Step) -> Vec<(Side, Route)> {
    let mut links = BTreeSet::new();
    let mut link = |dev: &Option<IfName>, gateway: Option<IpAddr>, tables: [u32; 2]| {
        let (Some(dev), Some(gateway)) = (dev, gateway) else {
            return;
        };
        // ip6_validate_gw(): a link-local one is not looked for.
        if !matches!(gateway, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            links.extend(tables.map(|table| to_gateway(dev, gateway, table)));
        }
    };
    let side = match step {
        Step::RouteAdd { side, route }
        | Step::LegsAdd { side, route }
        | Step::RoutePrepend { side, route }
            if route.nexthop().is_none() =>
        {
            for hop in &route.hops {
                let second = if hop.flags & ONLINK == 0 {
                    TABLE_LOCAL
                } else {
                    TABLE_MAIN
                };
                link(&hop.dev, hop.gateway, [route.table, second]);
            }
            *side
        }
        Step::NexthopAdd { side, nexthop } => {
            link(&nexthop.dev, nexthop.gateway, [TABLE_LOCAL, TABLE_MAIN]);
            *side
        }
        _ => return Vec::new(),
    };
    links.into_iter().map(|route| (side, route)).collect()
}

fn to_gateway(dev: &IfName, gateway: IpAddr, table: u32) -> Route {
    Route {
        destination: gateway.into(),
        source: None,
        table,
        protocol: OURS,
        scope: if gateway.is_ipv4() { SCOPE_LINK } else { 0 },
        kind: UNICAST,
        tos: 0,
        metric: Some(FIRST),
        prefsrc: None,
        hops: vec![Hop {
            dev: Some(dev.clone()),
            ..Hop::default()
        }],
        other: Default::default(),
    }
}

/// Whether it is such a route, which a crash has left.
pub fn is_temporary(route: &Route) -> bool {
    route.protocol == OURS
}
