//! What failures have in common: a rail, a node, a NIC, or one pair alone.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::transport::{Fault, Why};

/// A NIC: a node's rank and a rail's place.
pub type Nic = (u32, u8);

/// One rail between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge {
    pub a: u32,
    pub b: u32,
    pub rail: u8,
}

impl Edge {
    fn nics(&self) -> [Nic; 2] {
        [(self.a, self.rail), (self.b, self.rail)]
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Culprit {
    Node(u32),
    Rail(u8),
    Nic(u32, u8),
    /// Two nodes, and the rails of theirs that fail between them.
    Pair(u32, u32, Vec<u8>),
}

impl Culprit {
    pub fn has(&self, edge: &Edge) -> bool {
        match self {
            Culprit::Node(rank) => edge.a == *rank || edge.b == *rank,
            Culprit::Rail(rail) => edge.rail == *rail,
            Culprit::Nic(rank, rail) => edge.nics().contains(&(*rank, *rail)),
            Culprit::Pair(a, b, rails) => {
                (edge.a, edge.b) == (*a, *b) && rails.contains(&edge.rail)
            }
        }
    }
}

/// Whose NIC it is, where a fault says so by itself; `whose` end has reported it.
pub fn local(edge: &Edge, fault: &Fault, whose: u32) -> Option<Nic> {
    let is_own = matches!(fault.why, Why::PortDown | Why::NoGid | Why::NoQueuePair);
    is_own.then_some((whose, edge.rail))
}

/// The fewest culprits that have all bad edges in them. `known`: NICs that are to blame whatever
/// else fails.
pub fn culprits(all: &[Edge], bad: &BTreeSet<Edge>, known: &BTreeSet<Nic>) -> Vec<Culprit> {
    let mut left = bad.clone();
    let mut nics: BTreeSet<Nic> = BTreeSet::new();
    for nic in known {
        nics.insert(*nic);
        left.retain(|edge| !edge.nics().contains(nic));
    }
    let mut found = Vec::new();
    let rails = count_by(all, &left, |edge| vec![edge.rail]);
    for (rail, (tested, failed)) in rails {
        if tested > 1 && failed == tested {
            found.push(Culprit::Rail(rail));
            left.retain(|edge| edge.rail != rail);
        }
    }
    let mut remaining: Vec<Edge> = all.iter().filter(|e| !covers(&found, e)).copied().collect();
    let nodes = count_by(&remaining, &left, |edge| vec![edge.a, edge.b]);
    let several = nodes.len() > 2;
    for (node, (tested, failed)) in nodes {
        let own: BTreeSet<u8> = of_node(&remaining, node);
        if several && own.len() > 1 && tested > 1 && failed == tested {
            found.push(Culprit::Node(node));
            left.retain(|edge| edge.a != node && edge.b != node);
        }
    }
    remaining.retain(|edge| !covers(&found, edge));
    remaining.retain(|edge| !edge.nics().iter().any(|nic| nics.contains(nic)));
    // The NIC of which most edges fail explains those of its partners, whose other edges count.
    while let Some(nic) = worst(&remaining, &left) {
        nics.insert(nic);
        left.retain(|edge| !edge.nics().contains(&nic));
        remaining.retain(|edge| !edge.nics().contains(&nic));
    }
    found.extend(together(all, nics));
    let mut pairs: BTreeMap<(u32, u32), Vec<u8>> = BTreeMap::new();
    for edge in &left {
        pairs.entry((edge.a, edge.b)).or_default().push(edge.rail);
    }
    found.extend(
        pairs
            .into_iter()
            .map(|((a, b), rails)| Culprit::Pair(a, b, rails)),
    );
    found.sort();
    found
}

fn covers(found: &[Culprit], edge: &Edge) -> bool {
    found.iter().any(|culprit| culprit.has(edge))
}

fn of_node(edges: &[Edge], node: u32) -> BTreeSet<u8> {
    let own = edges.iter().filter(|edge| edge.a == node || edge.b == node);
    own.map(|edge| edge.rail).collect()
}

/// How many edges were tested and are bad, by what an edge has in it.
fn count_by<K: Ord>(
    all: &[Edge],
    bad: &BTreeSet<Edge>,
    keys: fn(&Edge) -> Vec<K>,
) -> BTreeMap<K, (usize, usize)> {
    let mut counts: BTreeMap<K, (usize, usize)> = BTreeMap::new();
    for edge in all {
        for key in keys(edge) {
            let count = counts.entry(key).or_default();
            count.0 += 1;
            count.1 += usize::from(bad.contains(edge));
        }
    }
    counts
}

/// Of the NICs of which all edges are bad, and more than one, that with most.
fn worst(all: &[Edge], bad: &BTreeSet<Edge>) -> Option<Nic> {
    let counts = count_by(all, bad, |edge| edge.nics().to_vec());
    let mut worst: Option<(usize, Nic)> = None;
    for (nic, (tested, failed)) in counts {
        let is_worse = worst.is_none_or(|(most, _)| failed > most);
        if failed > 1 && failed == tested && is_worse {
            worst = Some((failed, nic));
        }
    }
    worst.map(|(_, nic)| nic)
}

/// NICs that are all those of a node, or of a rail, are that node or rail.
fn together(all: &[Edge], mut nics: BTreeSet<Nic>) -> Vec<Culprit> {
    let mut there: BTreeSet<Nic> = BTreeSet::new();
    for edge in all {
        there.extend(edge.nics());
    }
    let mut found = Vec::new();
    let rails: BTreeSet<u8> = there.iter().map(|(_, rail)| *rail).collect();
    let nodes: BTreeSet<u32> = there.iter().map(|(node, _)| *node).collect();
    for rail in rails.iter().filter(|_| nodes.len() > 2) {
        if nodes.iter().all(|node| nics.contains(&(*node, *rail))) {
            found.push(Culprit::Rail(*rail));
            nics.retain(|nic| nic.1 != *rail);
        }
    }
    for node in nodes.iter().filter(|_| rails.len() > 1) {
        if rails.iter().all(|rail| nics.contains(&(*node, *rail))) {
            found.push(Culprit::Node(*node));
            nics.retain(|nic| nic.0 != *node);
        }
    }
    found.extend(
        nics.into_iter()
            .map(|(node, rail)| Culprit::Nic(node, rail)),
    );
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pairs::{Pattern, Schedule};

    fn edges(nodes: u32, rails: u8) -> Vec<Edge> {
        let schedule = Schedule::new(Pattern::Ring, nodes, 0);
        let mut all = Vec::new();
        for round in 0..schedule.rounds() {
            for a in 0..nodes {
                let Some(b) = schedule.partner(round, a).filter(|b| *b > a) else {
                    continue;
                };
                all.extend((0..rails).map(|rail| Edge { a, b, rail }));
            }
        }
        all
    }

    fn blamed(nodes: u32, rails: u8, is_bad: impl Fn(&Edge) -> bool) -> Vec<Culprit> {
        let all = edges(nodes, rails);
        let bad = all.iter().filter(|edge| is_bad(edge)).copied().collect();
        culprits(&all, &bad, &BTreeSet::new())
    }

    #[test]
    fn a_fault_of_each_kind_is_found_alone() {
        for nodes in [3, 4, 5, 8, 64] {
            for culprit in [
                Culprit::Node(1),
                Culprit::Rail(3),
                Culprit::Nic(2, 1),
                Culprit::Pair(1, 2, vec![0]),
                Culprit::Pair(1, 2, vec![0, 1, 2, 3]),
            ] {
                let found = blamed(nodes, 4, |edge| culprit.has(edge));
                assert_eq!(found, [culprit], "{nodes} nodes");
            }
        }
    }

    #[test]
    fn two_nodes_are_a_pair() {
        assert_eq!(
            blamed(2, 2, |e| e.rail == 1),
            [Culprit::Pair(0, 1, vec![1])]
        );
        assert_eq!(blamed(2, 2, |_| true), [Culprit::Pair(0, 1, vec![0, 1])]);
    }

    #[test]
    fn several_faults_are_told_apart() {
        let several = [Culprit::Node(5), Culprit::Rail(0), Culprit::Nic(1, 2)];
        let found = blamed(16, 4, |edge| {
            several.iter().any(|culprit| culprit.has(edge))
        });
        assert_eq!(found, several);
    }

    /// Of partners of each other, too.
    #[test]
    fn several_nics_of_a_rail_are_found() {
        for bad in [&[(2, 1), (3, 1)][..], &[(2, 1), (6, 1), (7, 3)]] {
            let found = blamed(16, 4, |edge| {
                edge.nics().iter().any(|nic| bad.contains(nic))
            });
            let expected: Vec<Culprit> = bad.iter().map(|nic| Culprit::Nic(nic.0, nic.1)).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn what_a_fault_says_of_itself_counts() {
        let edge = Edge {
            a: 0,
            b: 1,
            rail: 2,
        };
        let said = |why| local(&edge, &Fault::of(why), 1);
        assert_eq!(said(Why::PortDown), Some((1, 2)));
        // Each end says so of the other.
        assert_eq!(said(Why::Refused), None);
        assert_eq!(said(Why::NoAnswer), None);
        let all = edges(2, 3);
        let bad = BTreeSet::from([edge]);
        let found = culprits(&all, &bad, &BTreeSet::from([(1, 2)]));
        assert_eq!(found, [Culprit::Nic(1, 2)]);
        let whole = BTreeSet::from([(1, 0), (1, 1), (1, 2)]);
        let bad = all.iter().copied().collect();
        assert_eq!(culprits(&all, &bad, &whole), [Culprit::Node(1)]);
    }

    proptest! {
        #[test]
        fn every_failure_has_a_culprit_and_no_more_is_blamed(
            nodes in 2u32..12,
            rails in 1u8..5,
            seed: Vec<bool>,
        ) {
            let all = edges(nodes, rails);
            let mut bad = BTreeSet::new();
            for (edge, is_bad) in all.iter().zip(seed) {
                if is_bad {
                    bad.insert(*edge);
                }
            }
            let found = culprits(&all, &bad, &BTreeSet::new());
            for edge in &all {
                prop_assert_eq!(covers(&found, edge), bad.contains(edge), "{:?}", edge);
            }
        }
    }
}
