//! Equal in effect: what a network manager may choose otherwise when it makes its own again. An
//! address counts by itself and its subnet; a route by where it leads and from where; a rule by
//! what it selects, and whether it comes before `main`. What is known not to be the manager's is
//! compared to the last attribute.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::ids::IfName;
use crate::manager::Managed;
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
    effect(a) == effect(b)
}

/// What of a rule counts: not its priority, but whether that is before `main`.
fn effect(rule: &Rule) -> Rule {
    let mut plain = rule.clone();
    plain.priority = u32::from(rule.priority > MAIN);
    plain.other.remove(&FRA_PROTOCOL);
    plain
}

/// Whether a rule that other traffic of theirs may take comes between two that do the same.
fn is_between(a: &Rule, b: &Rule, all: &[&Rule]) -> bool {
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

/// Without a manager, any program may have made its routes again with another metric.
pub fn missing_routes<'a>(
    wanted: &'a [Route],
    have: &[Route],
    managed: Option<&Managed>,
) -> Vec<&'a Route> {
    let mut others: Vec<&Route> = have
        .iter()
        .filter(|h| !wanted.contains(h) && may_choose_route(managed, h))
        .collect();
    let mut missing = Vec::new();
    for want in wanted.iter().filter(|w| !have.contains(w)) {
        let is_chosen = may_choose_route(managed, want);
        let found = others.iter().position(|h| {
            covers_route(h, want) && (is_chosen || h.with(want.hops.clone()) == *want)
        });
        match found {
            // One with more legs may stand for several.
            Some(at) if others[at].hops.len() > want.hops.len() => {}
            Some(at) => drop(others.swap_remove(at)),
            None => missing.push(want),
        }
    }
    missing
}

fn may_choose_route(managed: Option<&Managed>, route: &Route) -> bool {
    managed.is_none_or(|managed| managed.may_choose_route(route))
}

/// Duplicates of a `foreign` rule that is back: a script added them while it was missing. Only
/// those whose place in the order makes a difference; rules in `before` stay.
pub fn doubled_since<'a>(foreign: &[Rule], have: &'a [Rule], before: &[Rule]) -> Vec<&'a Rule> {
    let all: Vec<&Rule> = have.iter().collect();
    let came = have
        .iter()
        .filter(|rule| !rule.is_static() && !foreign.contains(rule) && !before.contains(rule));
    came.filter(|came| {
        foreign.iter().any(|want| {
            same_rule(came, want)
                && came.protocol() == want.protocol()
                && have.contains(want)
                && is_between(came, want, &all)
        })
    })
    .collect()
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

/// Who may have made a wanted rule again, with another priority.
#[derive(Clone, Copy, Debug)]
pub enum MadeAgainBy<'a> {
    /// The manager of the NIC.
    Manager(&'a Managed),
    /// No manager is known: any program.
    Anyone,
    /// Who made it, which is no manager.
    ItsMaker,
}

impl<'a> MadeAgainBy<'a> {
    pub fn of(managed: Option<&'a Managed>) -> MadeAgainBy<'a> {
        managed.map_or(MadeAgainBy::Anyone, MadeAgainBy::Manager)
    }

    fn is_foreign(self, rule: &Rule) -> bool {
        matches!(self, MadeAgainBy::Manager(managed) if !managed.may_choose_rule(rule))
    }

    /// Of a rule of the same effect.
    fn stands_for(self, other: &Rule, want: &Rule, all: &[&Rule]) -> bool {
        let may_be = match self {
            MadeAgainBy::Manager(managed) if managed.may_choose_rule(want) => {
                // It marks its own: an administrator's may look the same.
                return other.protocol() == want.protocol();
            }
            MadeAgainBy::Anyone => true,
            // A manager marks its own.
            MadeAgainBy::Manager(_) | MadeAgainBy::ItsMaker => {
                other.protocol() == want.protocol() && !other.is_static()
            }
        };
        // Behind an equal one, a rule does nothing.
        may_be && (other.priority < want.priority || !is_between(other, want, all))
    }
}

/// Where no manager chooses priorities, a rule stands for another only if none comes between.
pub fn compare_rules<'a>(
    wanted: &'a [Rule],
    have: &[Rule],
    made_again_by: MadeAgainBy,
) -> Rules<'a> {
    let there: BTreeSet<&Rule> = have.iter().collect();
    let asked: BTreeSet<&Rule> = wanted.iter().collect();
    // A host may have thousands.
    let mut others: BTreeMap<Rule, Vec<&Rule>> = BTreeMap::new();
    for other in have {
        if !asked.contains(other) && !made_again_by.is_foreign(other) {
            others.entry(effect(other)).or_default().push(other);
        }
    }
    // A script that makes several again chooses their order.
    let effects: BTreeSet<Rule> = wanted.iter().map(effect).collect();
    let mut settled: Vec<&Rule> = have.iter().collect();
    settled.retain(|rule| asked.contains(rule) || !effects.contains(&effect(rule)));
    let mut has_other = |want: &Rule| {
        let Some(others) = others.get_mut(&effect(want)) else {
            return false;
        };
        let found = others
            .iter()
            .position(|other| made_again_by.stands_for(other, want, &settled));
        found.map(|at| others.swap_remove(at)).is_some()
    };
    let (here, gone): (Vec<&Rule>, Vec<&Rule>) = wanted.iter().partition(|w| there.contains(w));
    let missing = gone.into_iter().filter(|w| !has_other(w)).collect();
    let double = here.into_iter().filter(|w| has_other(w)).collect();
    Rules { missing, double }
}

#[cfg(test)]
mod tests {
    use crate::ids::Hex;
    use crate::manager::{Foreign, Manager};
    use crate::snapshot::Hop;

    use super::*;

    /// A manager of which all is its own but these.
    fn managed(foreign: Foreign) -> Managed {
        Managed {
            by: Manager::Networkd,
            foreign: Some(foreign),
            config_files: None,
            uuid: None,
            activation: None,
        }
    }

    fn route(metric: u32) -> Route {
        Route {
            destination: "10.1.0.0/16".parse().unwrap(),
            source: None,
            table: 254,
            protocol: 4,
            scope: 0,
            kind: 1,
            tos: 0,
            metric: Some(metric),
            prefsrc: None,
            hops: vec![Hop::default()],
            other: Default::default(),
        }
    }

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
        let missing = |between: &str, by: MadeAgainBy| {
            let have = [rule(between, 150), moved.clone()];
            compare_rules(&wanted, &have, by).missing.len()
        };
        let managed = managed(Foreign::default());
        assert_eq!(missing("10.0.0.0/24", MadeAgainBy::Anyone), 1);
        let chosen = missing("10.0.0.0/24", MadeAgainBy::Manager(&managed));
        assert_eq!(chosen, 0, "a manager chooses");
        assert_eq!(
            missing("10.0.1.0/24", MadeAgainBy::Anyone),
            0,
            "other traffic"
        );
    }

    #[test]
    fn rules_that_a_script_made_again_stand_for_recorded_ones() {
        let (a, b) = ("10.0.0.1/32", "10.0.0.0/24");
        let missing = |wanted: &[Rule], have: &[Rule]| {
            let Rules { missing, double } = compare_rules(wanted, have, MadeAgainBy::ItsMaker);
            (missing.len(), double.len())
        };
        let wanted = [rule(a, 200), rule(b, 199)];
        let again = [rule(a, 100), rule(b, 101)];
        assert_eq!(missing(&wanted, &again), (0, 0), "in another order");
        let beside = [rule(a, 100), rule(b, 199)];
        assert_eq!(
            missing(&wanted[..1], &beside),
            (0, 0),
            "another's is behind it"
        );
        let behind = [rule(a, 300), rule(b, 250)];
        assert_eq!(
            missing(&wanted[..1], &behind),
            (1, 0),
            "another's is before it"
        );
    }

    #[test]
    fn a_scripts_rule_is_double_behind_others_of_its_traffic() {
        let foreign = [rule("10.0.0.1/32", 100), rule("10.0.0.0/24", 150)];
        let (late, clear) = (rule("10.0.0.1/32", 200), rule("10.0.0.1/32", 120));
        let have = [foreign.as_slice(), &[late.clone(), clear]].concat();
        assert_eq!(doubled_since(&foreign, &have, &[]), [&late]);
        assert!(
            doubled_since(&foreign, &have, &have).is_empty(),
            "an administrator's"
        );
        assert!(
            doubled_since(&foreign, &have[1..], &[]).is_empty(),
            "the wanted one is away"
        );
    }

    #[test]
    fn a_rule_with_another_priority_stands_for_one() {
        let (a, b) = (rule("10.0.0.1/32", 32764), rule("10.0.0.1/32", 32765));
        let wanted = [a.clone()];
        let managed = managed(Foreign::default());
        let by = MadeAgainBy::Manager(&managed);
        let compare = |have: &[Rule]| {
            let Rules { missing, double } = compare_rules(&wanted, have, by);
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
            compare_rules(&two, &[a, rule("10.0.0.1/32", 7)], by),
            Rules {
                missing: vec![],
                double: vec![]
            }
        );
    }

    #[test]
    fn a_managers_route_does_not_stand_for_a_foreign_one() {
        let (own, foreign) = (route(50), route(70));
        let managed = managed(Foreign {
            routes: vec![foreign.clone()],
            ..Foreign::default()
        });
        let wanted = [own.clone(), foreign.clone()];
        let missing = |have: &[Route]| missing_routes(&wanted, have, Some(&managed)).len();
        assert_eq!(missing(std::slice::from_ref(&own)), 1);
        assert_eq!(missing(&[route(51)]), 1, "of another metric now");
        assert_eq!(missing(std::slice::from_ref(&foreign)), 1);
        assert_eq!(missing(&[route(51), foreign]), 0);
        assert_eq!(
            missing_routes(&wanted[1..], &[own], Some(&managed)).len(),
            1
        );
    }

    #[test]
    fn a_managers_rule_does_not_stand_for_a_foreign_one() {
        let set_static = |rule: Rule| Rule {
            other: [(FRA_PROTOCOL, Hex(vec![4]))].into(),
            ..rule
        };
        let (own, foreign) = (set_static(rule("10.0.0.1/32", 50)), rule("10.0.0.1/32", 70));
        let managed = managed(Foreign {
            rules: vec![foreign.clone()],
            ..Foreign::default()
        });
        let wanted = [own.clone(), foreign.clone()];
        let missing = |have: &[Rule], by| compare_rules(&wanted, have, by).missing.len();
        for by in [MadeAgainBy::Manager(&managed), MadeAgainBy::ItsMaker] {
            assert_eq!(missing(std::slice::from_ref(&own), by), 1);
            assert_eq!(missing(std::slice::from_ref(&foreign), by), 1);
            let remade = rule("10.0.0.1/32", 71);
            assert_eq!(missing(&[own.clone(), remade], by), 0, "by its maker");
        }
        let by = MadeAgainBy::Manager(&managed);
        let later = rule("10.0.0.1/32", 90);
        let has = [own, later];
        let rules = compare_rules(&wanted[..1], &has, by);
        let is_same = rules.missing.is_empty() && rules.double.is_empty();
        assert!(is_same, "an administrator's of today");
        let moved = set_static(rule("10.0.0.1/32", 51));
        assert_eq!(missing(&[moved], MadeAgainBy::Manager(&managed)), 1);
    }
}
