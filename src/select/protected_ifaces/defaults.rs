//! Default routes: those that packets of the host can come to, and the links that they lead over.

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::IfName;
use rdma_model::snapshot::{
    FRA_GOTO, FRA_SUPPRESS_IFGROUP, FRA_SUPPRESS_PREFIXLEN, GOTO, INVERT, Netdev, Route, Rule,
    Snapshot, TABLE_MAIN, TO_TABLE, UNICAST,
};

use super::Guarded;
use super::selectors::{family, selects_by_attributes};

const DEFAULT: u32 = 253;
/// RTPROT_RA: a router advertises it.
const ADVERTISED: u8 = 9;
const SUPPRESSES: [u16; 2] = [FRA_SUPPRESS_IFGROUP, FRA_SUPPRESS_PREFIXLEN];

/// The links of the default routes of the tables that packets of this host are looked up in,
/// whatever their source.
pub(super) fn of_host(allow_bootstrap: bool, snapshot: &Snapshot) -> Result<Guarded> {
    let tables = [4, 6].into_iter().flat_map(|family| {
        let open = open_tables(snapshot, family);
        open.into_iter().map(move |table| (family, table))
    });
    winners(allow_bootstrap, snapshot, &tables.collect::<Vec<_>>())
}

/// The interface with the default route of a container's namespace, if NCCL can use it: since
/// 2.28.3 it has to be running (src/os/linux.cc:401).
pub fn way_out(inside: &Snapshot) -> Option<&Netdev> {
    let uplinks = winners(true, inside, &[(4, TABLE_MAIN), (6, TABLE_MAIN)]).ok()?;
    let mut up = inside.netdevs.iter().filter(|n| n.up && n.running);
    up.find(|n| uplinks.contains_key(&n.name) && !n.addresses.is_empty())
}

/// Whether this is a default route of the main table over which packets can leave (RTN_UNICAST; 0
/// where unknown).
pub fn leads_everywhere(route: &Route) -> bool {
    route.table == TABLE_MAIN && is_default(route)
}

fn is_default(route: &Route) -> bool {
    route.destination.prefix_len() == 0 && route.kind <= UNICAST
}

pub(super) fn legs(route: &Route) -> impl Iterator<Item = IfName> + '_ {
    route.hops.iter().filter_map(|h| h.dev.clone())
}

/// The tables of rules without selectors in the order of the rules, up to the first with a default
/// route: no packet is looked up behind it (fib_rules_lookup() in net/core/fib_rules.c). Of tables
/// with selectors the kernel's answers decide.
fn open_tables(snapshot: &Snapshot, of: u8) -> Vec<u32> {
    let mut tables = Vec::new();
    for (table, is_final) in lookups(snapshot, of) {
        tables.push(table);
        let mut routes = snapshot.routes.iter().filter(|r| r.table == table);
        let is_plain = |r: &Route| family(r) == of && r.source.is_none() && r.tos == 0;
        if is_final && routes.any(|r| is_plain(r) && is_default(r)) {
            break;
        }
    }
    tables
}

/// The tables of rules without selectors, and whether a default route there is taken. A rule that
/// jumps forward leaves out those between; the kernel passes over one whose target is not there. A
/// recording may lack all rules, as does a kernel without CONFIG_IP_MULTIPLE_TABLES: packets are
/// then looked up in the kernel's own tables.
fn lookups(snapshot: &Snapshot, of: u8) -> Vec<(u32, bool)> {
    let mut rules: Vec<&Rule> = snapshot.rules.iter().filter(|r| r.family == of).collect();
    if rules.is_empty() {
        return vec![(TABLE_MAIN, true), (DEFAULT, true)];
    }
    rules.sort_by_key(|r| r.priority);
    let (mut found, mut from) = (Vec::new(), 0);
    for rule in rules.iter().filter(|r| is_open(r)) {
        match (rule.action, target(rule)) {
            _ if rule.priority < from => {}
            (TO_TABLE, _) => found.push((rule.table, is_final(rule))),
            (GOTO, Some(to)) if rules.iter().any(|r| r.priority == to) => from = to,
            _ => {}
        }
    }
    found
}

fn target(rule: &Rule) -> Option<u32> {
    rule.other
        .get(&FRA_GOTO)
        .and_then(|value| Some(u32::from_ne_bytes(value.0.as_slice().try_into().ok()?)))
}

/// Whether a rule is for every packet that this host sends: `iif lo` is for all of them
/// (ip_route_output_key_hash() in net/ipv4/route.c).
fn is_open(rule: &Rule) -> bool {
    let comes_in = rule.iif.as_deref().is_some_and(|iif| iif != "lo");
    let selects =
        rule.source.is_some() || rule.destination.is_some() || comes_in || rule.oif.is_some();
    !(selects || selects_by_attributes(rule) || rule.tos != 0 || rule.flags & INVERT != 0)
}

/// Whether a default route of a rule's table is taken: `suppress_prefixlength 0` passes it over.
/// The kernel tells −1 where nothing is passed over (fib_nl_fill_rule() in net/core/fib_rules.c).
fn is_final(rule: &Rule) -> bool {
    SUPPRESSES.iter().all(|kind| {
        rule.other
            .get(kind)
            .is_none_or(|value| value.0 == [0xff; 4])
    })
}

/// Winners of the lowest-metric default routes of both families in each of these tables: every leg,
/// and every route of the same metric. Routes for a type of service or a source range win beside
/// the plain ones, not against them, so each such class has its own winners. One that a blackhole
/// or a dead link keeps from being used now counts all the same.
fn winners(allow_bootstrap: bool, snapshot: &Snapshot, tables: &[(u8, u32)]) -> Result<Guarded> {
    let defaults: Vec<&Route> = snapshot
        .routes
        .iter()
        .filter(|r| is_default(r))
        .filter(|r| tables.contains(&(family(r), r.table)))
        .collect();
    let mut seeds = Guarded::new();
    for route in &defaults {
        let metric = route.metric.unwrap_or(0);
        let mut better = defaults.iter().filter(|r| r.metric.unwrap_or(0) < metric);
        if better.any(|r| {
            (r.table, r.destination) == (route.table, route.destination)
                && (r.source, r.tos) == (route.source, route.tos)
        }) {
            continue;
        }
        let table = if route.table == TABLE_MAIN {
            String::new()
        } else {
            format!(" of table {}", route.table)
        };
        let why = format!(
            "carries the default route {} with metric {metric}{table}{}",
            route.destination,
            router(route)
        );
        if route.hops.iter().all(|h| h.dev.is_none()) && !allow_bootstrap {
            let text = format!(
                "no interface is known for the default route {}: what is an uplink?",
                route.destination
            );
            return Err(ErrorClass::Refused.error(text));
        }
        for dev in legs(route) {
            seeds.entry(dev).or_insert_with(|| why.clone());
        }
    }
    Ok(seeds)
}

/// The router of a route that is there because of it, which who set up the host may not know of.
fn router(route: &Route) -> String {
    match route.hops.iter().find_map(|h| h.gateway) {
        Some(gateway) if route.protocol == ADVERTISED => {
            format!(", which the router {gateway} advertises")
        }
        _ => String::new(),
    }
}
