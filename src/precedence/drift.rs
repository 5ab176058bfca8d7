//! An order of equals in words: how it differs, and as lines of the normal form.

use rdma_model::drift::Drift;
use rdma_model::snapshot::{Hop, Route, Rule, Snapshot};

use super::{Precedence, grouped, identity, key, level, routes_of, rules_of, wanted};

impl Precedence {
    /// How the order differs; what is not there has none.
    pub fn drift(&self, now: &Snapshot) -> Vec<Drift> {
        let here = routes_of(now);
        let mut all = Vec::new();
        for (key, known) in grouped(self.routes.iter(), key) {
            let have = here.get(&key).map_or(&[][..], Vec::as_slice);
            let Some(want) = wanted(&known, have, identity) else {
                continue;
            };
            let field = format!(
                "order of routes to {} in table {}",
                key.destination, key.table
            );
            all.push(differs(
                field,
                want.iter().map(|r| way(r)),
                have.iter().map(|r| way(r)),
            ));
        }
        let here = rules_of(now);
        for ((family, priority), known) in grouped(self.rules.iter(), level) {
            let have = here.get(&(family, priority)).map_or(&[][..], Vec::as_slice);
            let Some(want) = wanted(&known, have, Rule::clone) else {
                continue;
            };
            let field = format!("order of IPv{family} rules of priority {priority}");
            all.push(differs(
                field,
                want.iter().map(|r| r.to_string()),
                have.iter().map(|r| r.to_string()),
            ));
        }
        all.extend(self.substitutes(now).map(|(substitute, route)| Drift {
            dev: "host".into(),
            field: format!("route to {} in table {}", route.destination, route.table),
            expected: Some(format!("{} alone", way(route))),
            observed: Some(format!(
                "its substitute of protocol {}",
                substitute.protocol
            )),
        }));
        all
    }
}

/// The order of equals as lines of the normal form: only where it means something.
pub fn lines(snapshot: &Snapshot) -> Vec<String> {
    let several = routes_of(snapshot)
        .into_iter()
        .filter(|(_, group)| group.len() > 1);
    let routes = several.map(|(key, group)| {
        let ways: Vec<String> = group.iter().map(|r| way(r)).collect();
        format!(
            "order of routes to {} metric {} table {}: {}",
            key.destination,
            key.metric,
            key.table,
            ways.join(", ")
        )
    });
    let several = rules_of(snapshot)
        .into_iter()
        .filter(|(_, group)| group.len() > 1);
    let rules = several.map(|((family, priority), group)| {
        let selectors: Vec<String> = group.iter().map(|r| r.to_string()).collect();
        let selectors = selectors.join(", ");
        format!("order of IPv{family} rules of priority {priority}: {selectors}")
    });
    routes.chain(rules).collect()
}

fn differs(
    field: String,
    want: impl Iterator<Item = String>,
    have: impl Iterator<Item = String>,
) -> Drift {
    Drift {
        dev: "host".into(),
        field,
        expected: Some(Vec::from_iter(want).join(", ")),
        observed: Some(Vec::from_iter(have).join(", ")),
    }
}

fn way(r: &Route) -> String {
    let legs: Vec<String> = r.hops.iter().map(Hop::to_string).collect();
    if legs.is_empty() {
        r.to_string()
    } else {
        legs.join(" and ")
    }
}
