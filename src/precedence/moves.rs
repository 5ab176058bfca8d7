//! The steps that give equals another order, and how the kernel tells them apart when one is
//! deleted.

use rdma_model::snapshot::{Route, Rule};
use rdma_model::step::{Side, Step};

use super::STAND_IN;

/// include/uapi/linux/rtnetlink.h: the MTU and the like.
const RTA_METRICS: u16 = 8;

/// How many of `want` keep their place when the others are put behind them one by one.
fn kept<'a, T: PartialEq + 'a>(
    mut have: impl Iterator<Item = &'a T>,
    want: impl Iterator<Item = &'a T>,
) -> usize {
    want.take_while(|w| have.any(|h| h == *w)).count()
}

/// Routes of one key, put behind or (IPv4 alone has that) before their equals: whichever moves
/// fewer.
pub(super) fn move_routes(side: Side, have: &[&Route], want: &[&Route]) -> Vec<Vec<Step>> {
    let behind = &want[kept(have.iter(), want.iter())..];
    let before: Vec<&Route> = want[..want.len() - kept(have.iter().rev(), want.iter().rev())]
        .iter()
        .rev()
        .copied()
        .collect();
    let mut ways = vec![(false, behind.to_vec())];
    if want.iter().all(|r| r.destination.addr().is_ipv4()) {
        ways.insert(usize::from(before.len() > behind.len()), (true, before));
    }
    // A message that would delete another one is not sent: where no way is clear of that, the order
    // stays, and is reported.
    for (first, moved) in ways {
        if !moved
            .iter()
            .any(|m| have.iter().any(|h| h != m && deletes(m, h)))
        {
            let moves = moved.iter().map(|r| move_route(side, r, first));
            return moves.collect();
        }
    }
    Vec::new()
}

fn move_route(side: Side, route: &Route, first: bool) -> Vec<Step> {
    let put = |route: Route| {
        if first {
            Step::RoutePrepend { side, route }
        } else {
            Step::RouteAdd { side, route }
        }
    };
    let delete = Step::RouteDelete {
        side,
        route: route.clone(),
    };
    match side {
        // These are ours alone, and nothing uses them yet.
        Side::Inside => vec![delete, put(route.clone())],
        Side::Host => {
            let stand_in = stand_in(route);
            let end = Step::RouteDelete {
                side,
                route: stand_in.clone(),
            };
            vec![put(stand_in), delete, put(route.clone()), end]
        }
    }
}

/// What leads where a route leads while that is absent. IPv6 takes no two of one key over one leg
/// whatever else differs (rt6_duplicate_nexthop), so there it comes right behind them.
pub(super) fn stand_in(route: &Route) -> Route {
    let behind = route
        .metric
        .filter(|_| route.destination.addr().is_ipv6())
        .and_then(|m| m.checked_add(1));
    Route {
        protocol: STAND_IN,
        metric: behind.or(route.metric),
        ..route.clone()
    }
}

/// Whether the message that deletes one IPv4 route would do for the other: what it does not name is
/// not asked for (fib_table_delete, fib_metrics_match).
fn deletes(message: &Route, other: &Route) -> bool {
    let legs = message.hops.iter().all(|m| {
        other
            .hops
            .iter()
            .any(|o| m.dev == o.dev && (m.gateway.is_none() || m.gateway == o.gateway))
    });
    let metrics = message.other.get(&RTA_METRICS);
    other.destination.addr().is_ipv4()
        && (metrics.is_none() || metrics == other.other.get(&RTA_METRICS))
        && (message.kind, message.scope, message.protocol)
            == (other.kind, other.scope, other.protocol)
        && (message.prefsrc.is_none() || message.prefsrc == other.prefsrc)
        && legs
}

/// Rules of one priority: from the first that is out of place, all are added again in order, then
/// the old ones are deleted. A delete takes the first that has all that it names (rule_find), so
/// each old one has to be the first such when its turn comes.
pub(super) fn move_rules(side: Side, have: &[&Rule], want: &[&Rule]) -> Vec<Step> {
    let same = have.iter().zip(want).take_while(|(h, w)| h == w).count();
    let (kept, old) = have.split_at(same);
    let is_hit = kept
        .iter()
        .any(|kept| old.iter().any(|old| names_all(old, kept)));
    let same = if is_hit { 0 } else { same };
    let add = want[same..].iter().map(|rule| Step::RuleAppend {
        side,
        rule: (*rule).clone(),
    });
    let delete = have[same..].iter().map(|rule| Step::RuleDelete {
        side,
        rule: (*rule).clone(),
    });
    add.chain(delete).collect()
}

fn names_all(message: &Rule, other: &Rule) -> bool {
    fn fits<T: PartialEq>(named: &Option<T>, has: &Option<T>) -> bool {
        named.is_none() || named == has
    }
    (message.action, message.table) == (other.action, other.table)
        && fits(&message.source, &other.source)
        && fits(&message.destination, &other.destination)
        && fits(&message.iif, &other.iif)
        && fits(&message.oif, &other.oif)
        && (message.tos == 0 || message.tos == other.tos)
}
