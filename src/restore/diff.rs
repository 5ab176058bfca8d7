//! What makes NICs what they should be, out of what they are.

use super::link_diff::{device_differences, link_differences, qdisc_differences};

use rdma_model::effect::{MadeAgainBy, compare_rules, missing_routes, same_address};
use rdma_model::ids::IfName;
use rdma_model::ipv6_legs::{comes_by_legs, is_rest_of, joins_one_of, joins_others, rest_of};
use rdma_model::manager::{Managed, is_daemon};
use rdma_model::snapshot::{Address, Neighbour, Netdev, Route, Rule, Snapshot, SysctlValues};
use rdma_model::step::{
    DISABLE_IPV6, NicState, Side, Step, configure, connect, derived, generated, is_temporary,
    kernel_address, kernel_made, prefix_route,
};

use crate::{precedence, verify};

/// How much of a difference is undone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal<'a> {
    /// All of it.
    Exact,
    /// What is missing in effect is added, and what the kernel made of it goes where that was not
    /// there, as do rules that are there twice. What another program has added or changed stays.
    Effect,
    /// As much for a NIC that a manager configures: what the kernel made is that manager's, too.
    Managed(&'a Managed),
}

impl<'a> Goal<'a> {
    fn managed(self) -> Option<&'a Managed> {
        match self {
            Goal::Managed(managed) => Some(managed),
            Goal::Exact | Goal::Effect => None,
        }
    }
}

/// The differences between what NICs are and what they should be, as steps.
pub(super) fn differences<'a>(
    side: Side,
    wanted: impl Iterator<Item = &'a NicState>,
    observed: &Snapshot,
) -> Vec<Step> {
    let (steps, missing): (Vec<_>, Vec<_>) = wanted
        .filter_map(|state| difference(side, state, observed, Goal::Exact))
        .unzip();
    let mut steps: Vec<Step> = steps.into_iter().flatten().collect();
    steps.extend(connect_all(side, &missing, observed));
    steps
}

/// The difference between what a NIC is and what it should be: steps of its own, then what
/// [`connect_all`] has to add; a NIC that is not there has none.
pub(super) fn difference(
    side: Side,
    wanted: &NicState,
    observed: &Snapshot,
    goal: Goal,
) -> Option<(Vec<Step>, NicState)> {
    let now = NicState::of(observed, &wanted.netdev.name)?;
    let (want, have) = verify::comparable(wanted, &now, &observed.routes);
    let (was, is) = (&wanted.netdev, &now.netdev);
    let dev = &was.name;
    let going = [extra_addresses(&want, &have, goal), out_of_turn(was, is)].concat();
    let flushed = flushed(&going, &want, &have, is);
    let (qdiscs, missing_qdiscs) = qdisc_differences(side, was, is);

    let mut steps = link_differences(side, was, is);
    steps.extend(qdiscs);
    steps.extend(foreign_token(side, was, is));
    steps.extend(flushed.iter().map(|r| route_delete(side, r)));
    steps.extend(going.iter().map(|a| address_delete(side, dev, a)));

    let leaving = (going.as_slice(), flushed.as_slice());
    let mut add = missing_state(wanted, (&want, &have), is, leaving, goal);
    add.netdev.up = was.up && !is.up && (was.master.is_none() || was.master == is.master);
    add.netdev.qdiscs = missing_qdiscs;
    add.netdev.token = was.token.filter(|_| is.token != was.token);
    steps.extend(configure(side, &add, differing_sysctls(was, is)));

    if is.up && !was.up {
        steps.push(Step::Link {
            side,
            dev: dev.clone(),
            up: false,
        });
    }
    steps.extend(device_differences(side, was, is));
    steps.extend(removed(side, &want, &have, &going, goal));
    if side == Side::Host {
        let rules = compare_rules(
            &want.rules,
            &observed.rules,
            MadeAgainBy::of(goal.managed()),
        );
        if goal.managed().is_some() {
            steps.extend(rules.double.iter().map(|r| rule_delete(side, r)));
        }
        add.rules = rules.missing.into_iter().cloned().collect();
    } else {
        add.rules.retain(|r| !observed.rules.contains(r));
    }
    Some((steps, add))
}

/// What a NIC lacks of addresses, routes, nexthop objects and neighbours, with what is `leaving`:
/// addresses and routes. `want` and `have` are [`verify::comparable`]; rules are as `wanted`.
fn missing_state(
    wanted: &NicState,
    (want, have): (&NicState, &NicState),
    is: &Netdev,
    (going, flushed): (&[Address], &[Route]),
    goal: Goal,
) -> NicState {
    let mut missing = wanted.clone();
    missing.netdev.addresses.retain(|address| {
        let plain = verify::address(address);
        let stays = is_there(&plain, &have.netdev, is, goal) && !going.contains(&plain);
        want.netdev.addresses.contains(&plain) && !stays
    });
    // `configure` needs them: an address that a missing route prefers is added without a wait for
    // duplicate address detection.
    missing.routes = missing_of(want, have, flushed, goal);
    missing.nexthops.clone_from(&want.nexthops);
    missing.nexthops.retain(|n| !have.nexthops.contains(n));
    let neighbours = &mut missing.netdev.neighbours;
    neighbours.retain(|n| !has_neighbour(&have.netdev, n, goal));
    missing
}

pub(super) fn route_delete(side: Side, route: &Route) -> Step {
    Step::RouteDelete {
        side,
        route: route.clone(),
    }
}

pub(super) fn rule_delete(side: Side, rule: &Rule) -> Step {
    Step::RuleDelete {
        side,
        rule: rule.clone(),
    }
}

fn address_delete(side: Side, dev: &IfName, address: &Address) -> Step {
    Step::AddressDelete {
        side,
        dev: dev.clone(),
        address: address.clone(),
    }
}

fn foreign_token(side: Side, was: &Netdev, is: &Netdev) -> Option<Step> {
    (is.token.is_some() && was.token.is_none()).then(|| Step::Token {
        side,
        dev: was.name.clone(),
        token: None,
    })
}

/// Addresses that have to go. The kernel may have made one before the sysctl that forbids it was
/// back.
fn extra_addresses(want: &NicState, have: &NicState, goal: Goal) -> Vec<Address> {
    let wanted = &want.netdev.addresses;
    let mut extra = have.netdev.addresses.clone();
    extra.retain(|a| {
        let can_go = goal == Goal::Exact || goal == Goal::Effect && generated(a);
        can_go && !wanted.iter().any(|w| w == a || has_other_flags(w, a))
    });
    extra
}

/// `have` is the normal form of what the NIC is.
fn is_there(address: &Address, have: &Netdev, is: &Netdev, goal: Goal) -> bool {
    match goal {
        Goal::Exact => have.addresses.contains(address),
        Goal::Effect | Goal::Managed(_) => is.addresses.iter().any(|h| same_address(h, address)),
    }
}

/// A secret that is written sets the mode, too (addrconf_sysctl_stable_secret in
/// net/ipv6/addrconf.c).
fn differing_sysctls(was: &Netdev, is: &Netdev) -> SysctlValues {
    let secret = "ipv6/conf/stable_secret";
    let has_other_secret = was.sysctls.get(secret) != is.sysctls.get(secret);
    was.sysctls
        .iter()
        .filter(|(key, value)| {
            let is_mode = *key == "ipv6/conf/addr_gen_mode";
            is.sysctls.get(*key) != Some(*value) || is_mode && has_other_secret
        })
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Whether a neighbour is there; for whom an effect does, with whatever address of its link.
fn has_neighbour(dev: &Netdev, neighbour: &Neighbour, goal: Goal) -> bool {
    match goal {
        Goal::Exact => dev.neighbours.contains(neighbour),
        Goal::Effect | Goal::Managed(_) => dev.has_neighbour_of(neighbour),
    }
}

/// What a NIC lacks in effect, as [`difference`] gives it; nothing that is there changes.
pub(super) fn additions(
    wanted: &NicState,
    managed: Option<&Managed>,
    observed: &Snapshot,
) -> Option<(Vec<Step>, NicState)> {
    let now = NicState::of(observed, &wanted.netdev.name)?;
    let (want, have) = verify::comparable(wanted, &now, &observed.routes);
    let goal = managed.map_or(Goal::Effect, Goal::Managed);
    let mut add = missing_state(wanted, (&want, &have), &now.netdev, (&[], &[]), goal);
    let rules = compare_rules(&want.rules, &observed.rules, MadeAgainBy::of(managed));
    add.rules = rules.missing.into_iter().cloned().collect();
    (add.netdev.up, add.netdev.qdiscs, add.netdev.token) = (false, None, None);
    // The one sysctl that an earlier restore may have left to the manager.
    let mut sysctls = differing_sysctls(&wanted.netdev, &now.netdev);
    sysctls.retain(|key, _| key == DISABLE_IPV6);
    Some((configure(Side::Host, &add, sysctls), add))
}

/// What is on a NIC and should not be: all that it did not have, or only what is ours and was left
/// by a crash.
fn removed(
    side: Side,
    want: &NicState,
    have: &NicState,
    going: &[Address],
    goal: Goal,
) -> Vec<Step> {
    let mut steps: Vec<Step> = have
        .routes
        .iter()
        .filter(|r| !want.routes.contains(r) && !is_rest_of_any(r, &want.routes))
        .filter(|r| route_goes(r, have, going, goal))
        .map(|r| route_delete(side, r))
        .collect();
    if goal != Goal::Exact {
        return steps;
    }
    let dev = &want.netdev.name;
    // Behind the routes: an object takes those along that lead through it, and leaves the groups
    // that it is in.
    for object in &have.nexthops {
        let is_own = object.group.is_empty() && object.dev.as_ref() == Some(dev);
        let is_wanted = want.nexthops.iter().any(|w| w.id == object.id);
        if is_own && !is_wanted && !is_daemon(object.protocol) {
            let id = object.id;
            steps.push(Step::NexthopDelete { side, id });
        }
    }
    // What a program learns is its own business, see `verify::drift`.
    let neighbours = have.netdev.neighbours.iter();
    let extra = neighbours.filter(|n| !n.extern_learn && !want.netdev.neighbours.contains(n));
    steps.extend(extra.map(|n| Step::NeighbourDelete {
        side,
        dev: dev.clone(),
        neighbour: n.clone(),
    }));
    steps
}

/// Whether a route that a NIC did not have is deleted. One with a leg over another NIC is not ours.
fn route_goes(route: &Route, have: &NicState, going: &[Address], goal: Goal) -> bool {
    let dev = &have.netdev.name;
    let is_own = route.hops.iter().all(|h| h.dev.as_ref() == Some(dev));
    if !is_own || precedence::stands_for_broadcast(route) {
        return false;
    }
    match goal {
        // The kernel deletes an address's own route with it; a request without a metric would take
        // another route.
        Goal::Exact => {
            let goes_along = going.iter().any(|a| prefix_route(route, a));
            !derived(route) && !is_daemon(route.protocol) && !goes_along
        }
        Goal::Effect => is_temporary(route) || !derived(route) && kernel_made(route, &have.netdev),
        Goal::Managed(_) => is_temporary(route),
    }
}

/// Routes to be added, those among them that were deleted for the addresses.
fn missing_of(want: &NicState, have: &NicState, flushed: &[Route], goal: Goal) -> Vec<Route> {
    match goal {
        Goal::Exact => want
            .routes
            .iter()
            .filter(|r| !have.routes.contains(r) || flushed.contains(r))
            .cloned()
            .collect(),
        Goal::Effect | Goal::Managed(_) => {
            let missing = missing_routes(&want.routes, &have.routes, goal.managed()).into_iter();
            missing.chain(flushed).cloned().collect()
        }
    }
}

/// Whether an IPv6 address needs no more than a message that sets its flags (inet6_addr_modify() in
/// net/ipv6/addrconf.c).
fn has_other_flags(want: &Address, have: &Address) -> bool {
    want.address.is_ipv6()
        && Address {
            flags: want.flags,
            ..have.clone()
        } == *want
}

/// Addresses that have to go and come again because one before them is missing: the kernel puts a
/// new one behind those that are there, in IPv6 before them; and the first one of a subnet is its
/// primary, which the subnet's route has as its source.
fn out_of_turn(was: &Netdev, is: &Netdev) -> Vec<Address> {
    let late = [true, false].map(|v4| {
        let wanted = in_order_of_adding(was, was, v4);
        let mut there = in_order_of_adding(is, was, v4);
        there.retain(|a| wanted.contains(a));
        if there.len() >= wanted.len() {
            return Vec::new();
        }
        let pairs = there.iter().zip(&wanted);
        let in_turn = pairs.take_while(|(a, b)| a == b).count();
        there.split_off(in_turn)
    });
    late.concat()
}

/// The addresses of a family that are not the kernel's.
fn in_order_of_adding(dev: &Netdev, was: &Netdev, v4: bool) -> Vec<Address> {
    let mut all: Vec<Address> = dev
        .addresses
        .iter()
        .filter(|a| a.address.is_ipv4() == v4 && !kernel_address(a, was))
        .map(verify::address)
        .collect();
    if !v4 {
        all.reverse();
    }
    all
}

/// Routes that go with such addresses or lose their source with them (fib_del_ifaddr and
/// inetaddr_event in net/ipv4/fib_frontend.c, fib6_remove_prefsrc), some of them on some kernels:
/// all of them come again.
fn flushed(going: &[Address], want: &NicState, have: &NicState, is: &Netdev) -> Vec<Route> {
    let mut flushed = want.routes.clone();
    flushed.retain(|route| {
        let is_v4 = route.destination.addr().is_ipv4();
        let has_gone = going.iter().any(|a| a.address.is_ipv4() == is_v4);
        has_gone && have.routes.contains(route) && !kernel_made(route, is)
    });
    flushed
}

/// What comes when all NICs have their addresses, since a route may have legs over several. When
/// one leg of an IPv6 multipath route goes, the others stay (fib6_ifdown() in net/ipv6/route.c):
/// where these are all of the route they go before the whole comes, else its legs come beside them.
/// IPv4 drops the whole route.
pub(super) fn connect_all(side: Side, missing: &[NicState], observed: &Snapshot) -> Vec<Step> {
    let rests = rests(missing, &observed.routes).into_iter();
    let mut steps: Vec<Step> = rests.map(|rest| route_delete(side, rest)).collect();
    let added = connect(side, &missing.iter().collect::<Vec<_>>());
    let added: Vec<Step> = added
        .into_iter()
        .map(|step| beside_others(step, &observed.routes))
        .collect();
    steps.extend(behind_their_legs(added, &observed.routes));
    steps
}

fn rests<'a>(missing: &'a [NicState], have: &'a [Route]) -> Vec<&'a Route> {
    let mut rests: Vec<&Route> = Vec::new();
    let wholes = missing.iter().flat_map(|state| &state.routes);
    for whole in wholes.filter(|r| r.hops.len() > 1) {
        let rest = rest_of(whole, have);
        rests.extend(rest.filter(|rest| !rests.contains(rest)));
    }
    rests
}

/// What goes before the whole comes.
fn is_rest_of_any(left: &Route, wholes: &[Route]) -> bool {
    let mut wholes = wholes.iter().filter(|whole| whole.hops.len() > 1);
    wholes.any(|whole| is_rest_of(left, whole))
}

/// The kernel lists no route that stands between two legs of another one (fib6_dump_node() in
/// net/ipv6/ip6_fib.c): others of a key come when its legs are there.
fn behind_their_legs(steps: Vec<Step>, have: &[Route]) -> Vec<Step> {
    let joining = steps.iter().filter_map(added_route);
    let joining: Vec<Route> = joining.filter(|r| joins_one_of(r, have)).cloned().collect();
    let (waiting, mut first): (Vec<Step>, Vec<Step>) = steps.into_iter().partition(|step| {
        let route = added_route(step);
        route.is_some_and(|r| !joins_others(r) && joining.iter().any(|j| has_its_place(r, j)))
    });
    let last = first.iter().rposition(|step| added_route(step).is_some());
    let at = last.map_or(0, |at| at + 1);
    first.splice(at..at, waiting);
    first
}

fn added_route(step: &Step) -> Option<&Route> {
    match step {
        Step::RouteAdd { route, .. } | Step::LegsAdd { route, .. } => Some(route),
        _ => None,
    }
}

fn has_its_place(r: &Route, other: &Route) -> bool {
    (r.destination, r.source, r.table, r.metric)
        == (other.destination, other.source, other.table, other.metric)
}

fn beside_others(step: Step, have: &[Route]) -> Step {
    match step {
        Step::RouteAdd { side, route } if comes_by_legs(&route, have) => {
            Step::LegsAdd { side, route }
        }
        other => other,
    }
}
