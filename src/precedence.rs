//! Which of several equals the kernel goes by: rules of one priority and routes of one key are
//! tried in the order in which they are listed, and a new one is listed last (fib_nl_newrule in
//! net/core/fib_rules.c, fib_table_insert in net/ipv4/fib_trie.c with NLM_F_APPEND,
//! fib6_add_rt2node in net/ipv6/ip6_fib.c).
//!
//! The record keeps that order for all equals of the NICs that leave, those of others included. A
//! route of another NIC is never absent meanwhile: a substitute, which differs in its protocol,
//! takes its place until it is back. The record names the route, so a crash in between is repaired
//! from it.

mod drift;
mod moves;

pub use drift::lines;

use rdma_model::ipv6_legs::joins_others;
use rdma_model::manager::is_daemon;
use rdma_model::moved_nic::MovedNic;
use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use rdma_model::snapshot::{RTA_EXPIRES, Route, Rule, Snapshot};
use rdma_model::step::{NicState, Side, Step, derived};
use serde::{Deserialize, Serialize};

use moves::{move_routes, move_rules, substitute_for};

/// The protocol of a substitute: a number that include/uapi/linux/rtnetlink.h gives to no program.
const SUBSTITUTE: u8 = 0xd2;
/// RTPROT_REDIRECT and RTPROT_RA.
const LEARNED: [u8; 2] = [1, 9];
/// RTN_BROADCAST.
const BROADCAST: u8 = 3;

/// Equals in the kernel's order: routes by key and rules by priority, each key with two or more.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Precedence {
    #[serde(default)]
    pub routes: Vec<Route>,
    #[serde(default)]
    pub rules: Vec<Rule>,
}

/// What equal routes have in common: IPv6 takes no notice of the type of service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    table: u32,
    destination: IpNet,
    source: Option<IpNet>,
    tos: u8,
    metric: u32,
}

fn key(r: &Route) -> Key {
    let tos = if r.destination.addr().is_ipv4() {
        r.tos
    } else {
        0
    };
    Key {
        table: r.table,
        destination: r.destination,
        source: r.source,
        tos,
        metric: r.metric.unwrap_or(0),
    }
}

type Level = (u8, u32);

fn level(r: &Rule) -> Level {
    (r.family, r.priority)
}

/// Whether the order counts for it. Routes that are learned come again behind their equals whenever
/// their router or daemon says so. IPv6 asks for link-local and multicast addresses by interface.
fn ranks(r: &Route) -> bool {
    let learned = r.other.contains_key(&RTA_EXPIRES)
        || LEARNED.contains(&r.protocol)
        || is_daemon(r.protocol);
    let broadcast = r.destination.addr().is_ipv4() && r.kind == BROADCAST;
    !learned && r.protocol != SUBSTITUTE && (broadcast || !derived(r))
}

/// Whether a crash may have left it in the place of a broadcast route, which the kernel alone
/// makes: [`Precedence::repairs`] puts that back.
pub fn stands_for_broadcast(r: &Route) -> bool {
    r.protocol == SUBSTITUTE && r.kind == BROADCAST && r.destination.addr().is_ipv4()
}

/// The legs of a nexthop object are not the route's, and change with the object.
fn identity(r: &Route) -> Route {
    let hops = if r.nexthop().is_some() {
        Vec::new()
    } else {
        r.hops.clone()
    };
    Route { hops, ..r.clone() }
}

fn grouped<'a, T: 'a, K: Ord>(
    all: impl Iterator<Item = &'a T>,
    key: impl Fn(&T) -> K,
) -> BTreeMap<K, Vec<&'a T>> {
    let mut groups: BTreeMap<K, Vec<&T>> = BTreeMap::new();
    for one in all {
        groups.entry(key(one)).or_default().push(one);
    }
    groups
}

fn routes_of(snapshot: &Snapshot) -> BTreeMap<Key, Vec<&Route>> {
    let mut groups = grouped(snapshot.routes.iter().filter(|r| ranks(r)), key);
    groups.values_mut().for_each(without_legs_of_one);
    groups
}

/// Several that join others are the legs of one route, in whose place each other one comes.
fn without_legs_of_one(group: &mut Vec<&Route>) {
    if group.iter().filter(|r| joins_others(r)).count() > 1 {
        group.retain(|r| !joins_others(r));
    }
}

fn rules_of(snapshot: &Snapshot) -> BTreeMap<Level, Vec<&Rule>> {
    grouped(snapshot.rules.iter(), level)
}

impl Precedence {
    /// The equals of NICs' routes and rules on a host. What other records know of the same keys is
    /// part of it: their NICs will return to their places, too.
    pub fn from_host<'a>(
        host: &Snapshot,
        states: impl Iterator<Item = &'a NicState> + Clone,
        others: &[Precedence],
    ) -> Precedence {
        let keys: BTreeSet<Key> = states
            .clone()
            .flat_map(|s| &s.routes)
            .filter(|r| ranks(r))
            .map(key)
            .collect();
        let levels: BTreeSet<Level> = states.flat_map(|s| &s.rules).map(level).collect();
        let (mut routes, mut rules) = (routes_of(host), rules_of(host));
        routes.retain(|key, _| keys.contains(key));
        rules.retain(|level, _| levels.contains(level));
        for other in others {
            for (key, known) in grouped(other.routes.iter(), key) {
                routes
                    .entry(key)
                    .and_modify(|here| *here = merged(here, &known, identity));
            }
            for (level, known) in grouped(other.rules.iter(), level) {
                rules
                    .entry(level)
                    .and_modify(|here| *here = merged(here, &known, Rule::clone));
            }
        }
        Precedence {
            routes: in_groups_of_several(routes),
            rules: in_groups_of_several(rules),
        }
    }

    /// The order that NICs' routes and rules have inside: that of the host, where each of a group
    /// was one of the host's.
    pub fn inside(&self, held: &[MovedNic]) -> Precedence {
        let mut order = Precedence::default();
        let all = held.iter().flat_map(|h| &h.inside.routes);
        for group in grouped(all.filter(|r| ranks(r)), key).into_values() {
            let sorted = sorted(group, |r| self.routes.iter().position(|h| leads(r, h)));
            order.routes.extend(sorted.into_iter().flatten());
        }
        let all = held.iter().flat_map(|h| &h.inside.rules);
        for group in grouped(all, level).into_values() {
            let sorted = sorted(group, |r| self.rules.iter().position(|h| h == r));
            order.rules.extend(sorted.into_iter().flatten());
        }
        order
    }

    /// Adds what came into a group since: each behind what it is behind now.
    pub fn with_newcomers(&self, now: &Snapshot) -> Precedence {
        let (here, there) = (routes_of(now), rules_of(now));
        let routes = grouped(self.routes.iter(), key).into_iter();
        let routes = routes
            .flat_map(|(k, known)| {
                merged(&known, here.get(&k).map_or(&[], Vec::as_slice), identity)
            })
            .cloned();
        let rules = grouped(self.rules.iter(), level).into_iter();
        let rules = rules
            .flat_map(|(l, known)| {
                merged(
                    &known,
                    there.get(&l).map_or(&[], Vec::as_slice),
                    Rule::clone,
                )
            })
            .cloned();
        Precedence {
            routes: routes.collect(),
            rules: rules.collect(),
        }
    }

    /// Takes over what another record knows of these routes' keys.
    pub fn take_over(&mut self, other: &Precedence, routes: &[Route]) {
        let known: BTreeSet<Key> = self.routes.iter().map(key).collect();
        let keys: BTreeSet<Key> = routes
            .iter()
            .map(key)
            .filter(|k| !known.contains(k))
            .collect();
        self.routes.extend(
            other
                .routes
                .iter()
                .filter(|r| keys.contains(&key(r)))
                .cloned(),
        );
    }

    pub fn is_empty(&self) -> bool {
        self.routes.is_empty() && self.rules.is_empty()
    }

    /// What a crash left of a change of the order: routes that are missing while their substitutes
    /// are there, and these.
    pub fn repairs(&self, side: Side, now: &Snapshot) -> Vec<Vec<Step>> {
        let mut all = Vec::new();
        for (substitute, route) in self.substitutes(now) {
            let missing = !now.routes.iter().any(|r| identity(r) == identity(route));
            let mut steps: Vec<Step> = missing
                .then(|| Step::RouteAdd {
                    side,
                    route: route.clone(),
                })
                .into_iter()
                .collect();
            steps.push(Step::RouteDelete {
                side,
                route: substitute.clone(),
            });
            all.push(steps);
        }
        all
    }

    /// With the route for which each is there.
    fn substitutes<'a>(
        &'a self,
        now: &'a Snapshot,
    ) -> impl Iterator<Item = (&'a Route, &'a Route)> {
        let substitutes = now.routes.iter().filter(|r| r.protocol == SUBSTITUTE);
        substitutes.filter_map(|substitute| {
            let mut known = self.routes.iter();
            let route = known.find(|r| identity(&substitute_for(r)) == identity(substitute))?;
            Some((substitute, route))
        })
    }

    /// The changes that give the equals their order: each is to be left at its first step that
    /// fails.
    pub fn steps(&self, side: Side, now: &Snapshot) -> Vec<Vec<Step>> {
        let here = routes_of(now);
        let mut all = Vec::new();
        for (key, known) in grouped(self.routes.iter(), key) {
            let have = here.get(&key).map_or(&[][..], Vec::as_slice);
            let want = wanted(&known, have, identity);
            all.extend(
                want.into_iter()
                    .flat_map(|want| move_routes(side, have, &want)),
            );
        }
        let here = rules_of(now);
        for (level, known) in grouped(self.rules.iter(), level) {
            let have = here.get(&level).map_or(&[][..], Vec::as_slice);
            all.extend(wanted(&known, have, Rule::clone).map(|want| move_rules(side, have, &want)));
        }
        all
    }
}

fn in_groups_of_several<K, T: Clone>(groups: BTreeMap<K, Vec<&T>>) -> Vec<T> {
    let several = groups.into_values().filter(|group| group.len() > 1);
    several.flatten().cloned().collect()
}

/// Equals by their places on the host; none where one of them was not there.
fn sorted<T: PartialEq + Clone>(
    group: Vec<&T>,
    place: impl Fn(&T) -> Option<usize>,
) -> Option<Vec<T>> {
    let mut ranked: Vec<(usize, &T)> = Vec::new();
    for one in group {
        let at = place(one)?;
        if !ranked.iter().any(|(_, other)| *other == one) {
            ranked.push((at, one));
        }
    }
    ranked.sort_by_key(|(at, _)| *at);
    (ranked.len() > 1).then(|| ranked.into_iter().map(|(_, one)| one.clone()).collect())
}

/// A list with what another one has besides, each behind what it is behind there.
fn merged<'a, T, I: PartialEq>(
    list: &[&'a T],
    other: &[&'a T],
    identity: impl Fn(&T) -> I,
) -> Vec<&'a T> {
    let mut all = list.to_vec();
    let mut behind = 0;
    for one in other {
        match all.iter().position(|x| identity(x) == identity(one)) {
            Some(at) => behind = at + 1,
            None => {
                all.insert(behind, one);
                behind += 1;
            }
        }
    }
    all
}

/// Whether it is that route, or what is left of its legs.
fn leads(r: &Route, whole: &Route) -> bool {
    let legs: Vec<_> = whole.hops.iter().map(|h| (&h.dev, h.gateway)).collect();
    key(r) == key(whole) && r.hops.iter().all(|h| legs.contains(&(&h.dev, h.gateway)))
}

/// The order that a group should have; none where it has it. What the record does not know stays
/// behind what it is behind.
fn wanted<'a, T, I: PartialEq>(
    known: &[&T],
    have: &[&'a T],
    identity: impl Fn(&T) -> I,
) -> Option<Vec<&'a T>> {
    let here: Vec<&'a T> = known
        .iter()
        .filter_map(|k| have.iter().find(|h| identity(h) == identity(k)).copied())
        .collect();
    let is_known = |h: &T| here.iter().any(|k| identity(k) == identity(h));
    let now = have.iter().filter(|h| is_known(h));
    if now
        .map(|h| identity(h))
        .eq(here.iter().map(|h| identity(h)))
    {
        return None;
    }
    Some(merged(&here, have, identity))
}
