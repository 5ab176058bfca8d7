//! Linux takes a route with a gateway only where it finds that over the link: in the route's own
//! table, else by the rules of the host (fib_check_nh_v4_gw() in net/ipv4/fib_semantics.c,
//! ip6_route_check_nh() in net/ipv6/route.c). A rule that forbids and stands before the one that
//! would find it bars routes that were added before the rule was.

use std::net::IpAddr;

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::manager::is_daemon;
use rdma_model::snapshot::{
    FRA_PROTOCOL, FRA_SUPPRESS_PREFIXLEN, Route, Rule, Snapshot, TABLE_MAIN, TO_TABLE,
};
use rdma_model::step::{NicState, ONLINK};

use crate::plan::rule_carry::suppressed;

/// Refuses a NIC with a route that could not be brought back.
pub(super) fn check_gateways(before: &NicState, host: &Snapshot) -> Result<()> {
    for route in before.routes.iter().filter(|r| !is_daemon(r.protocol)) {
        let hops = route.hops.iter().filter(|hop| hop.flags & ONLINK == 0);
        let gateways = hops.filter_map(|hop| hop.gateway);
        let mut barriers = gateways
            .filter(|ip| is_searched(*ip, route, before))
            .filter_map(|ip| barrier(ip, host));
        if let Some(rule) = barriers.next() {
            return Err(ErrorClass::Refused.error(format!(
                "with the rule `{rule}` before the one to the table main, Linux would not take \
                the route {route} back; give that rule a priority behind it"
            )));
        }
    }
    Ok(())
}

/// Whether the rules decide over a gateway.
fn is_searched(gateway: IpAddr, route: &Route, before: &NicState) -> bool {
    let is_own = |r: &&Route| r.table == route.table && r.hops.iter().all(|h| h.gateway.is_none());
    let mut near = before.routes.iter().filter(is_own);
    match gateway {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => false,
        IpAddr::V4(_) if route.table == TABLE_MAIN => true,
        _ => !near.any(|r| r.destination.contains(&gateway)),
    }
}

/// The first rule that decides, if that one forbids. The kernel searches from no address.
fn barrier(gateway: IpAddr, host: &Snapshot) -> Option<&Rule> {
    let mut rules = host.rules.iter().filter(|rule| decides(rule, gateway));
    rules.next().filter(|rule| rule.action != TO_TABLE)
}

fn decides(rule: &Rule, gateway: IpAddr) -> bool {
    /// FR_ACT_BLACKHOLE, FR_ACT_UNREACHABLE, FR_ACT_PROHIBIT (include/uapi/linux/fib_rules.h).
    const FORBIDS: std::ops::RangeInclusive<u8> = 6..=8;
    let is_meant = (rule.family == 4) == gateway.is_ipv4()
        && rule.source.is_none()
        && rule.destination.is_none_or(|net| net.contains(&gateway));
    let is_plain = rule.flags == 0
        && rule.tos == 0
        && rule.iif.as_ref().is_none_or(|name| name == "lo")
        && rule.oif.is_none()
        && rule
            .other
            .keys()
            .all(|kind| [FRA_PROTOCOL, FRA_SUPPRESS_PREFIXLEN].contains(kind));
    let to_main = rule.action == TO_TABLE
        && rule.table == TABLE_MAIN
        && suppressed(rule).is_none_or(|n| n == 0);
    is_meant && is_plain && (to_main || FORBIDS.contains(&rule.action))
}
