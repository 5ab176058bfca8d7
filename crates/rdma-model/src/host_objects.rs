//! What of a host is no NIC's, and may go all the same when a network manager takes a NIC: policy
//! rules, routes without a device, and nexthop objects without one with the routes through them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::drift::Drift;
use crate::effect::{MadeAgainBy, compare_rules};
use crate::snapshot::{Nexthop, RTA_EXPIRES, Route, Rule, Snapshot};
use crate::step::{Side, Step};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostObjects {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nexthops: Vec<Nexthop>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
}

/// What tells such a route from others. The legs that it has by its object are none of it: a group
/// may have lost members.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteKey<'a> {
    nets: (IpNet, Option<IpNet>),
    numbers: [u32; 4],
    choice: (Option<u32>, Option<IpAddr>, Option<u32>),
    legs: &'a [crate::snapshot::Hop],
}

impl RouteKey<'_> {
    pub fn of(route: &Route) -> RouteKey<'_> {
        let nexthop = route.nexthop();
        let [protocol, kind, tos] = [route.protocol, route.kind, route.tos].map(u32::from);
        RouteKey {
            nets: (route.destination, route.source),
            numbers: [route.table, protocol, kind, tos],
            choice: (route.metric, route.prefsrc, nexthop),
            legs: if nexthop.is_some() { &[] } else { &route.hops },
        }
    }
}

/// Whether it leads to no device, or to those of an object; one that ends by itself is not put
/// back. The kinds are RTN_BLACKHOLE, RTN_UNREACHABLE, RTN_PROHIBIT and RTN_THROW
/// (include/uapi/linux/rtnetlink.h).
pub fn is_deviceless(route: &Route) -> bool {
    let is_one = matches!(route.kind, 6..=9) || route.nexthop().is_some();
    is_one && !route.other.contains_key(&RTA_EXPIRES)
}

/// Whether an object goes with no link: one that drops packets, or a group.
pub fn is_linkless(nexthop: &Nexthop) -> bool {
    nexthop.blackhole || nexthop.dev.is_none()
}

impl HostObjects {
    pub const NONE: &HostObjects = &HostObjects {
        rules: Vec::new(),
        nexthops: Vec::new(),
        routes: Vec::new(),
    };

    pub fn is_empty(&self) -> bool {
        self == HostObjects::NONE
    }

    /// What the host lacks of these, as far as it can be made again: a group needs its members, and
    /// a route its object.
    pub fn missing(&self, host: &Snapshot) -> HostObjects {
        let rules = compare_rules(&self.rules, &host.rules, MadeAgainBy::ItsMaker).missing;
        let rules = rules.into_iter().cloned().collect();
        if self.nexthops.is_empty() && self.routes.is_empty() {
            return HostObjects {
                rules,
                ..HostObjects::default()
            };
        }
        let mut there: BTreeSet<u32> = host.nexthops.iter().map(|n| n.id).collect();
        let mut nexthops: Vec<Nexthop> = self.nexthops.clone();
        nexthops.retain(|n| !there.contains(&n.id));
        let single = nexthops.iter().filter(|n| n.group.is_empty());
        there.extend(single.map(|n| n.id));
        nexthops.retain(|n| n.group.iter().all(|m| there.contains(&m.id)));
        there.extend(nexthops.iter().map(|n| n.id));
        // The kernel gives out the lowest number that is free: another object may have it by now.
        for taken in self.nexthops.iter().filter(|n| is_taken(n, host)) {
            there.remove(&taken.id);
        }
        let routes = host.routes.iter().filter(|r| is_deviceless(r));
        let has: BTreeSet<RouteKey> = routes.map(RouteKey::of).collect();
        let mut routes = self.routes.clone();
        routes.retain(|r| {
            r.nexthop().is_none_or(|id| there.contains(&id)) && !has.contains(&RouteKey::of(r))
        });
        HostObjects {
            rules,
            nexthops,
            routes,
        }
    }

    /// Adds what others have besides.
    pub fn merge(&mut self, others: HostObjects) {
        let has: BTreeSet<Rule> = self.rules.iter().cloned().collect();
        let rules = others.rules.into_iter().filter(|r| !has.contains(r));
        self.rules.extend(rules);
        let has: BTreeSet<u32> = self.nexthops.iter().map(|n| n.id).collect();
        let nexthops = others.nexthops.into_iter();
        self.nexthops
            .extend(nexthops.filter(|n| !has.contains(&n.id)));
        let has: BTreeSet<RouteKey> = self.routes.iter().map(RouteKey::of).collect();
        let mut routes = others.routes;
        routes.retain(|r| !has.contains(&RouteKey::of(r)));
        self.routes.extend(routes);
    }

    /// The steps that make them, each behind what it needs.
    pub fn steps(&self) -> Vec<Step> {
        let side = Side::Host;
        let (groups, single): (Vec<&Nexthop>, Vec<&Nexthop>) =
            self.nexthops.iter().partition(|n| !n.group.is_empty());
        let nexthops = single.into_iter().chain(groups).cloned();
        let nexthops = nexthops.map(|nexthop| Step::NexthopAdd { side, nexthop });
        let routes = self.routes.iter().cloned();
        let routes = routes.map(|route| Step::RouteAdd { side, route });
        let rules = self.rules.iter().cloned();
        let rules = rules.map(|rule| Step::RuleAdd { side, rule });
        nexthops.chain(routes).chain(rules).collect()
    }

    /// That they are missing.
    pub fn drift(&self) -> Vec<Drift> {
        let nexthops = self
            .nexthops
            .iter()
            .map(|n| missing("nexthop", n.to_string()));
        let routes = self.routes.iter().map(|r| missing("route", r.to_string()));
        let rules = self.rules.iter().map(|r| missing("rule", r.to_string()));
        nexthops.chain(routes).chain(rules).collect()
    }
}

fn is_taken(nexthop: &Nexthop, host: &Snapshot) -> bool {
    let mut others = host.nexthops.iter();
    others.any(|other| {
        other.id == nexthop.id
            && (is_linkless(other), other.group.is_empty())
                != (is_linkless(nexthop), nexthop.group.is_empty())
    })
}

fn missing(kind: &str, text: String) -> Drift {
    Drift {
        dev: "host".to_owned(),
        field: format!("{kind} {text}"),
        expected: Some(text),
        observed: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Hex;
    use crate::snapshot::{Member, RTA_NH_ID};

    fn object(id: u32, members: &[u32]) -> Nexthop {
        let member = |id: &u32| Member { id: *id, weight: 1 };
        Nexthop {
            id,
            family: 4,
            protocol: 3,
            flags: 0,
            dev: None,
            gateway: None,
            blackhole: members.is_empty(),
            group: members.iter().map(member).collect(),
            other: Default::default(),
        }
    }

    fn route(to: &str, nexthop: Option<u32>) -> Route {
        let through = nexthop.map(|id| (RTA_NH_ID, Hex(id.to_ne_bytes().to_vec())));
        Route {
            destination: to.parse().unwrap(),
            source: None,
            table: 254,
            protocol: 3,
            scope: 0,
            kind: if nexthop.is_some() { 1 } else { 6 },
            tos: 0,
            metric: None,
            prefsrc: None,
            hops: Vec::new(),
            other: through.into_iter().collect(),
        }
    }

    fn all() -> HostObjects {
        HostObjects {
            rules: Vec::new(),
            nexthops: vec![object(110, &[100, 103]), object(103, &[])],
            routes: vec![
                route("10.1.0.0/16", Some(110)),
                route("10.2.0.0/16", Some(103)),
                route("10.3.0.0/16", None),
            ],
        }
    }

    fn texts(missing: &HostObjects) -> Vec<String> {
        let drift = missing.drift().into_iter();
        drift.filter_map(|d| d.expected).collect()
    }

    #[test]
    fn objects_come_before_groups_and_routes() {
        let host = Snapshot {
            nexthops: vec![object(100, &[])],
            ..Snapshot::default()
        };
        let missing = all().missing(&host);
        assert_eq!(texts(&missing).len(), 5);
        let ids: Vec<Option<u32>> = missing
            .steps()
            .iter()
            .map(|step| match step {
                Step::NexthopAdd { nexthop, .. } => Some(nexthop.id),
                _ => None,
            })
            .collect();
        assert_eq!(ids, [Some(103), Some(110), None, None, None]);
    }

    #[test]
    fn what_cannot_be_made_again_is_not_missing() {
        let host = Snapshot {
            nexthops: vec![object(103, &[7])],
            ..Snapshot::default()
        };
        let missing = all().missing(&host);
        assert_eq!(missing.nexthops, [], "a member and the number are gone");
        assert_eq!(missing.routes, [route("10.3.0.0/16", None)]);
    }

    #[test]
    fn a_merge_adds_each_object_once() {
        let mut some = HostObjects {
            nexthops: vec![object(103, &[])],
            routes: vec![route("10.3.0.0/16", None)],
            ..HostObjects::default()
        };
        some.merge(all());
        assert_eq!((some.nexthops.len(), some.routes.len()), (2, 3));
    }
}
