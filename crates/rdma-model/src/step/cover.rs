//! In which order a kernel takes IPv6 routes by gateways.
//!
//! A gateway has to be on a link: the kernel looks it up in the route's own table, and then by the rules, each time on the leg's
//! device alone; what leads to it by another gateway keeps it from being so (ip6_route_check_nh() in net/ipv6/route.c). Where a rule
//! prefers a table to `main`, its default route therefore comes after its others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::ids::IfName;
use crate::snapshot::Route;

/// RTNH_F_ONLINK: such a gateway is not looked up.
const ONLINK: u8 = 4;

/// Each route comes before those that cover a gateway of its own, and otherwise in the order given. Where each of some covers another
/// one, those of `ruled` come last, the tables that a rule names: of the others the kernel reads the route's own alone. Of equals
/// the longest prefix comes first.
pub fn before_their_cover<'a>(routes: &[&'a Route], ruled: &BTreeSet<u32>) -> Vec<&'a Route> {
    let mut over = over(routes);
    let mut covered = vec![0; routes.len()];
    over.iter().flatten().for_each(|i| covered[*i] += 1);
    let rank = |i: usize, covered: usize| match covered {
        0 => (false, false, 0, i),
        _ => (true, ruled.contains(&routes[i].table), u8::MAX - routes[i].destination.prefix_len(), i),
    };
    let mut left: BTreeSet<_> = covered.iter().enumerate().map(|(i, n)| rank(i, *n)).collect();
    let mut order = Vec::new();
    while let Some((.., next)) = left.pop_first() {
        order.push(routes[next]);
        for i in std::mem::take(&mut over[next]) {
            let was = rank(i, covered[i]);
            covered[i] -= 1;
            if left.remove(&was) {
                left.insert(rank(i, covered[i]));
            }
        }
    }
    order
}

/// For each route, which ones cover a gateway of it: as often as they do.
fn over(routes: &[&Route]) -> Vec<Vec<usize>> {
    let mut users: BTreeMap<(&IfName, IpAddr), Vec<usize>> = BTreeMap::new();
    for (i, route) in routes.iter().enumerate() {
        looked_up(route).for_each(|leg| users.entry(leg).or_default().push(i));
    }
    let mut over = vec![Vec::new(); routes.len()];
    for (i, route) in routes.iter().enumerate() {
        let devs: BTreeSet<&IfName> = route.hops.iter().filter_map(|hop| hop.dev.as_ref()).collect();
        for dev in devs {
            let range = (dev, route.destination.network())..=(dev, route.destination.broadcast());
            let under = users.range(range).flat_map(|(_, users)| users);
            under.filter(|under| **under != i).for_each(|under| over[*under].push(i));
        }
    }
    over
}

/// The gateways that the kernel looks up for a route: none that is link-local (ip6_validate_gw()), and none of a nexthop object, which
/// it looked up when that was made.
fn looked_up(route: &Route) -> impl Iterator<Item = (&IfName, IpAddr)> {
    let of_object = route.nexthop().is_some();
    route.hops.iter().filter(move |hop| !of_object && hop.flags & ONLINK == 0).filter_map(|hop| match hop.gateway? {
        IpAddr::V6(gateway) if !gateway.is_unicast_link_local() => Some((hop.dev.as_ref()?, IpAddr::V6(gateway))),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Hex;
    use crate::snapshot::{Hop, RTA_NH_ID};

    fn route(words: &str) -> Route {
        let [table, destination, gateway, dev] = words.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let (gateway, object) = match gateway.strip_prefix("nhid/") {
            Some(gateway) => (gateway, Some((RTA_NH_ID, Hex(vec![6, 0, 0, 0])))),
            None => (gateway, None),
        };
        let hop = Hop { dev: Some(dev.parse().unwrap()), gateway: Some(gateway.parse().unwrap()), ..Hop::default() };
        Route {
            destination: destination.parse().unwrap(),
            table: table.parse().unwrap(),
            source: None,
            protocol: 3,
            scope: 0,
            kind: 1,
            tos: 0,
            metric: None,
            prefsrc: None,
            hops: vec![hop],
            other: object.into_iter().collect(),
        }
    }

    /// `expected`: where each of `words` comes, in the order in which the kernel takes them.
    fn order(words: &[&str], expected: &[usize]) {
        let routes: Vec<Route> = words.iter().map(|w| route(w)).collect();
        let all: Vec<&Route> = routes.iter().collect();
        let expected: Vec<&Route> = expected.iter().map(|i| &routes[*i]).collect();
        assert_eq!(before_their_cover(&all, &BTreeSet::from([101, 102, 254])), expected, "{words:?}");
    }

    #[test]
    fn a_route_comes_before_those_that_cover_its_gateway() {
        order(&["101 ::/0 fd00::fe r0", "101 2000::/3 fd00::fe r0"], &[1, 0]);
        order(&["104 fd01::/16 fd00::1 r0", "104 fd02::/16 fd01::1 r0", "104 ::/0 fd00::1 r0"], &[1, 0, 2]);
        // Of another device, of an object, link-local: not looked up there.
        order(&["101 ::/0 fd01::fe r0", "101 fd03::/64 fd02::fe r1"], &[0, 1]);
        order(&["101 ::/0 fd01::fe r0", "101 fd03::/64 nhid/fd01::fe r0"], &[0, 1]);
        order(&["101 ::/0 fe80::fe r0", "101 fd03::/64 fe80::1 r0"], &[0, 1]);
        order(&["101 ::/0 nhid/fd00::fe r0", "101 fd00::/16 fd00::fd r0"], &[1, 0]);
        order(&["254 0.0.0.0/0 10.0.0.1 r0", "254 10.0.0.0/8 10.0.0.1 r0"], &[0, 1]);
    }

    /// Each rail's table leads to the other rail.
    #[test]
    fn a_table_may_cover_gateways_of_another_device() {
        let routes = [
            "101 ::/0 fd00:1::fe r0",
            "101 fd00:2::/64 fd00:1::fd r0",
            "102 ::/0 fd00:2::fe r1",
            "102 fd00:1::/64 fd00:2::fd r1",
        ];
        order(&routes, &[1, 0, 3, 2]);
    }

    #[test]
    fn in_a_circle_tables_without_a_rule_come_first() {
        order(&["101 fd00::/16 fd00::fd r0", "105 ::/0 fd00::fe r0"], &[1, 0]);
        order(&["101 ::/0 fd00::fe r0", "101 fd00::/16 fd00::fd r0", "101 fd00::/17 fd00::fd r0"], &[2, 1, 0]);
    }
}
