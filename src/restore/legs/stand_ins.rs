//! What stands in for routes as long as not all of their legs can be there.

use rdma_model::manager::is_daemon;
use rdma_model::snapshot::Route;
use rdma_model::step::NicState;

use super::AbsentParts;
use crate::record::Record;

impl AbsentParts {
    /// Adds to the record the parts of IPv4 routes that come now in place of the whole: they go
    /// when that comes, by whatever try, and also where this one is killed. Whether there is any.
    pub fn record_parts(&self, record: &mut Record) -> bool {
        let mut is_any_new = false;
        for held in &mut record.held {
            for route in held.before.routes.iter().filter(|r| is_put_in_parts(r)) {
                let part = self.route(route).filter(|part| part != route);
                let new = part.filter(|part| !held.stand_ins.contains(part));
                is_any_new |= new.is_some();
                held.stand_ins.extend(new);
            }
        }
        is_any_new
    }

    /// What stands in for routes of a NIC besides what is recorded, which was changed. What is left
    /// of an IPv6 route goes before the whole comes (`rests` in diff.rs): by then Linux would take
    /// its legs out of that one (ip6_route_del() in net/ipv6/route.c).
    pub(super) fn rests_of(&self, state: &NicState) -> Vec<Route> {
        let mut rests: Vec<Route> = self.rests.clone();
        rests.retain(|rest| !rest.is_ipv6() && state.routes.iter().any(|r| rest.is_part_of(r)));
        rests
    }

    /// What stands in for these routes by other records, and has fewer legs: of equal routes Linux
    /// goes by the first.
    pub(super) fn smaller_parts(&self, state: &NicState) -> Vec<Route> {
        let mut smaller = self.stand_ins.clone();
        let routes = state.routes.iter().filter(|r| is_put_in_parts(r));
        smaller.retain(|part| routes.clone().any(|r| part.is_part_of(r)));
        smaller
    }
}

/// Of IPv6 the kernel keeps the legs that stay, and a daemon puts its own.
pub(super) fn is_put_in_parts(r: &Route) -> bool {
    !r.is_ipv6() && r.nexthop().is_none() && !is_daemon(r.protocol)
}
