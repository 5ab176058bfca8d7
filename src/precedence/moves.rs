//! The steps that give equals another order, and how the kernel tells them apart when one is
//! deleted.

use rdma_model::snapshot::{Hop, RTA_METRICS, Route, Rule};
use rdma_model::step::{Side, Step};

use super::SUBSTITUTE;

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
    // A message that would delete another one is not sent.
    for (first, moved) in ways {
        if !moved
            .iter()
            .any(|m| have.iter().any(|h| h != m && deletes(m, h)))
        {
            let moves = moved.iter().map(|r| move_route(side, r, first));
            return moves.collect();
        }
    }
    vec![move_all(side, have, want)]
}

/// A message deletes the first of those that have all that it names: in their order, each deletes
/// its own.
fn move_all(side: Side, have: &[&Route], want: &[&Route]) -> Vec<Step> {
    let substitutes: Vec<Route> = match side {
        Side::Host => have.iter().map(|r| substitute_for(r)).collect(),
        // These are ours alone, and nothing uses them yet.
        Side::Inside => Vec::new(),
    };
    let mut steps: Vec<Step> = substitutes.iter().map(|r| add(side, r)).collect();
    steps.extend(have.iter().map(|r| delete(side, r)));
    steps.extend(want.iter().map(|r| add(side, r)));
    steps.extend(substitutes.iter().map(|r| delete(side, r)));
    steps
}

fn put(side: Side, route: &Route, first: bool) -> Step {
    match first {
        true => Step::RoutePrepend {
            side,
            route: route.clone(),
        },
        false => add(side, route),
    }
}

fn add(side: Side, route: &Route) -> Step {
    let route = route.clone();
    Step::RouteAdd { side, route }
}

fn delete(side: Side, route: &Route) -> Step {
    let route = route.clone();
    Step::RouteDelete { side, route }
}

fn move_route(side: Side, route: &Route, first: bool) -> Vec<Step> {
    match side {
        Side::Inside => vec![delete(side, route), put(side, route, first)],
        Side::Host => {
            let substitute = substitute_for(route);
            let end = delete(side, &substitute);
            vec![
                put(side, &substitute, first),
                delete(side, route),
                put(side, route, first),
                end,
            ]
        }
    }
}

/// What leads where a route leads while that is absent. IPv6 takes no two of one key over one leg
/// whatever else differs (rt6_duplicate_nexthop), so there it comes right behind them.
pub(super) fn substitute_for(route: &Route) -> Route {
    let behind = route
        .metric
        .filter(|_| route.destination.addr().is_ipv6())
        .and_then(|m| m.checked_add(1));
    Route {
        protocol: SUBSTITUTE,
        metric: behind.or(route.metric),
        ..route.clone()
    }
}

/// Whether the message that deletes one IPv4 route would do for the other: what it does not name is
/// not asked for (fib_table_delete, fib_metrics_match).
fn deletes(message: &Route, other: &Route) -> bool {
    let mut named = message.hops.iter();
    let mut pairs = message.hops.iter().zip(&other.hops);
    // Of two lists of legs the kernel compares as many as the shorter one has (fib_nh_match).
    let legs = pairs.all(|(m, o)| is_named(m, o))
        || named.all(|m| other.hops.iter().any(|o| is_named(m, o)));
    let metrics = message.other.get(&RTA_METRICS);
    other.destination.addr().is_ipv4()
        && (metrics.is_none() || metrics == other.other.get(&RTA_METRICS))
        && (message.kind, message.scope, message.protocol)
            == (other.kind, other.scope, other.protocol)
        && (message.prefsrc.is_none() || message.prefsrc == other.prefsrc)
        && legs
}

fn is_named(leg: &Hop, other: &Hop) -> bool {
    leg.dev == other.dev && (leg.gateway.is_none() || leg.gateway == other.gateway)
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
