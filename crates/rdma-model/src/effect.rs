//! Equal in effect: what a network manager may choose otherwise when it makes its own again. An
//! address counts by itself and its subnet; a route by where it leads and from where; a rule by
//! what it selects, and whether it comes before `main`.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::ids::IfName;
use crate::snapshot::{Address, FRA_PROTOCOL, Route, Rule};

/// The priority of the rule that leads to `main`, unless an administrator moves it.
const MAIN: u32 = 32766;

pub fn same_address(a: &Address, b: &Address) -> bool {
    (a.address, a.prefix, a.peer) == (b.address, b.prefix, b.peer)
}

/// Whether `have` leads wherever `want` leads: of two NICs' equal routes the kernel may make one
/// with both legs.
pub fn covers_route(have: &Route, want: &Route) -> bool {
    let key = |r: &Route| (r.destination, r.source, r.table, r.kind, r.tos, r.prefsrc);
    let (there, asked) = (legs(have), legs(want));
    key(have) == key(want)
        && there.is_empty() == asked.is_empty()
        && asked.iter().all(|leg| there.contains(leg))
}

fn legs(route: &Route) -> Vec<(Option<&IfName>, Option<IpAddr>)> {
    route
        .hops
        .iter()
        .map(|hop| (hop.dev.as_ref(), hop.gateway))
        .collect()
}

pub fn same_rule(a: &Rule, b: &Rule) -> bool {
    let plain = |rule: &Rule| {
        let mut plain = Rule {
            priority: u32::from(rule.priority > MAIN),
            ..rule.clone()
        };
        plain.other.remove(&FRA_PROTOCOL);
        plain
    };
    plain(a) == plain(b)
}

/// Whether a rule that other traffic of theirs may take comes between two that do the same.
fn is_between(a: &Rule, b: &Rule, all: &[Rule]) -> bool {
    let (first, last) = (a.priority.min(b.priority), a.priority.max(b.priority));
    all.iter().any(|rule| {
        first < rule.priority
            && rule.priority < last
            && rule.family == a.family
            && !same_rule(rule, a)
            && meet(rule.source, a.source)
            && meet(rule.destination, a.destination)
    })
}

/// Whether two selectors have an address in common; one that is absent has all.
fn meet(a: Option<IpNet>, b: Option<IpNet>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.contains(&b) || b.contains(&a),
        _ => true,
    }
}

pub fn missing_addresses<'a>(wanted: &'a [Address], have: &[Address]) -> Vec<&'a Address> {
    wanted
        .iter()
        .filter(|w| !have.iter().any(|h| same_address(h, w)))
        .collect()
}

pub fn missing_routes<'a>(wanted: &'a [Route], have: &[Route]) -> Vec<&'a Route> {
    let mut others: Vec<&Route> = have.iter().filter(|h| !wanted.contains(h)).collect();
    let mut missing = Vec::new();
    for want in wanted.iter().filter(|w| !have.contains(w)) {
        match others.iter().position(|h| covers_route(h, want)) {
            // One with more legs may stand for several.
            Some(at) if others[at].hops.len() > want.hops.len() => {}
            Some(at) => drop(others.swap_remove(at)),
            None => missing.push(want),
        }
    }
    missing
}

/// Rules against what is there: each of these stands for one that is wanted, its equal before all
/// others.
#[derive(Debug, PartialEq)]
pub struct Rules<'a> {
    pub missing: Vec<&'a Rule>,
    /// Those for which another one is there that does the same: a manager has made its own beside
    /// them.
    pub double: Vec<&'a Rule>,
}

/// Where no manager chooses priorities, a rule stands for another only if none comes between.
pub fn compare_rules<'a>(wanted: &'a [Rule], have: &[Rule], is_managed: bool) -> Rules<'a> {
    let mut others: Vec<&Rule> = have.iter().filter(|h| !wanted.contains(h)).collect();
    let mut has_other = |want: &Rule| {
        let stands_for = |other: &&Rule| {
            same_rule(other, want) && (is_managed || !is_between(other, want, have))
        };
        let found = others.iter().position(stands_for);
        found.map(|at| others.swap_remove(at)).is_some()
    };
    let (here, gone): (Vec<&Rule>, Vec<&Rule>) = wanted.iter().partition(|w| have.contains(w));
    let missing = gone.into_iter().filter(|w| !has_other(w)).collect();
    let double = here.into_iter().filter(|w| has_other(w)).collect();
    Rules { missing, double }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(from: &str, priority: u32) -> Rule {
        Rule {
            family: 4,
            priority,
            source: from.parse().ok(),
            destination: None,
            iif: None,
            oif: None,
            table: 100,
            action: 1,
            tos: 0,
            flags: 0,
            other: Default::default(),
        }
    }

    #[test]
    fn a_rule_does_not_stand_for_one_before_another_of_its_traffic() {
        let wanted = [rule("10.0.0.1/32", 100)];
        let moved = rule("10.0.0.1/32", 200);
        let missing = |between: &str, is_managed: bool| {
            let have = [rule(between, 150), moved.clone()];
            compare_rules(&wanted, &have, is_managed).missing.len()
        };
        assert_eq!(missing("10.0.0.0/24", false), 1);
        assert_eq!(missing("10.0.0.0/24", true), 0, "a manager chooses");
        assert_eq!(missing("10.0.1.0/24", false), 0, "other traffic");
    }

    #[test]
    fn a_rule_with_another_priority_stands_for_one() {
        let (a, b) = (rule("10.0.0.1/32", 32764), rule("10.0.0.1/32", 32765));
        let wanted = [a.clone()];
        let compare = |have: &[Rule]| {
            let Rules { missing, double } = compare_rules(&wanted, have, true);
            (missing.len(), double.len())
        };
        assert_eq!(compare(&[]), (1, 0));
        assert_eq!(compare(std::slice::from_ref(&a)), (0, 0));
        assert_eq!(compare(std::slice::from_ref(&b)), (0, 0));
        assert_eq!(compare(&[a.clone(), b.clone()]), (0, 1));
        assert_eq!(
            compare(&[rule("10.0.0.1/32", 40000)]),
            (1, 0),
            "behind main it does something else"
        );
        let two = [a.clone(), b];
        assert_eq!(
            compare_rules(&two, &[a, rule("10.0.0.1/32", 7)], true),
            Rules {
                missing: vec![],
                double: vec![]
            }
        );
    }
}
