//! All that a test has found, on rank 0: edges, causes, warnings; as text and as JSON.

mod text;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::asked::Asked;
use crate::cause::{Culprit, Edge, Nic, culprits, local};
use crate::outcome::Told;
use crate::transport::{Fault, Measured, Why};
use crate::verdict::{Line, Verdict};
pub use text::said;

/// A rail is slow below this part of the median rate, or above so many times the median latency.
const SLOW: f64 = 0.6;
const LATE: f64 = 3.0;
/// One of so many ways between rails has to fail for NCCL to be kept off all.
const APART: u64 = 10;
/// A median of fewer says nothing.
const FEW: usize = 4;

/// What one end of an edge measured, or why it failed.
pub type End = Option<Result<Measured, Fault>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tested {
    pub edge: Edge,
    /// By a, by b.
    pub ends: [End; 2],
}

impl Tested {
    /// The fault that says most, and who has reported it.
    pub fn fault(&self) -> Option<(Fault, u32)> {
        let by = |end: End, rank: u32| end?.err().map(|fault| (fault, rank));
        let [a, b] = self.ends;
        let both = [by(a, self.edge.a), by(b, self.edge.b)];
        both.into_iter()
            .flatten()
            .min_by_key(|(fault, _)| fault.why)
    }

    fn measured(&self) -> impl Iterator<Item = Measured> {
        self.ends.into_iter().flatten().filter_map(Result::ok)
    }
}

/// Something that breaks jobs, or is worth a look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub culprit: Option<Culprit>,
    pub breaks: bool,
    pub text: String,
}

#[derive(Debug)]
pub struct Findings {
    pub rails: Vec<String>,
    pub nodes: u32,
    pub pattern: String,
    pub hosts: BTreeMap<u32, String>,
    pub missing: Vec<u32>,
    pub tested: Vec<Tested>,
    pub told: BTreeMap<u32, Told>,
    pub causes: Vec<Cause>,
    /// Of all lanes between different rails whose own rails work: tried, and reached.
    pub cross: (u32, u32),
}

impl Findings {
    pub fn new(
        asked: &Asked,
        told: BTreeMap<u32, Told>,
        missing: &[u32],
        refused: &BTreeMap<u32, String>,
    ) -> Findings {
        let mut found = Findings {
            rails: asked.rails.clone(),
            nodes: asked.nodes,
            pattern: asked.schedule.pattern().to_string(),
            hosts: hosts(&told),
            missing: missing.to_vec(),
            tested: tested(asked, &told),
            told,
            causes: Vec::new(),
            cross: (0, 0),
        };
        found.cross = found.crossed();
        for (rank, why) in refused {
            let text = format!("what {} reports cannot be used: {why}", found.node(*rank));
            found.blame(Some(Culprit::Node(*rank)), true, text);
        }
        for line in &asked.lost {
            let text = format!("{line}; NCCL takes other NICs there");
            found.blame(None, true, text);
        }
        found.find_failures();
        found.find_crossing();
        found.find_mtus();
        found.find_slow();
        found
    }

    fn blame(&mut self, culprit: Option<Culprit>, breaks: bool, text: String) {
        self.causes.push(Cause {
            culprit,
            breaks,
            text,
        });
    }

    /// A node as people know it.
    pub fn node(&self, rank: u32) -> String {
        match self.hosts.get(&rank) {
            Some(host) => format!("{host} (rank {rank})"),
            None => format!("rank {rank}"),
        }
    }

    pub fn rail(&self, rail: u8) -> &str {
        self.rails
            .get(usize::from(rail))
            .map_or("?", String::as_str)
    }

    fn is_missing(&self, edge: &Edge) -> bool {
        self.missing.contains(&edge.a) || self.missing.contains(&edge.b)
    }

    /// Edges that fail, without those of nodes that are not there.
    pub fn failed(&self) -> impl Iterator<Item = (&Tested, Fault, u32)> {
        let there = self
            .tested
            .iter()
            .filter(|tested| !self.is_missing(&tested.edge));
        there.filter_map(|tested| tested.fault().map(|(fault, whose)| (tested, fault, whose)))
    }

    fn find_failures(&mut self) {
        for rank in self.missing.clone() {
            let text = format!(
                "{} did not tell what it found: it has ended",
                self.node(rank)
            );
            self.blame(Some(Culprit::Node(rank)), true, text);
        }
        let mut faults: BTreeMap<Edge, (Fault, u32)> = BTreeMap::new();
        for (tested, fault, whose) in self.failed() {
            faults.insert(tested.edge, (fault, whose));
        }
        let mut known: BTreeSet<Nic> = BTreeSet::new();
        for (edge, (fault, whose)) in &faults {
            known.extend(local(edge, fault, *whose));
        }
        let all = self.tested.iter().map(|tested| tested.edge);
        let all: Vec<Edge> = all.filter(|edge| !self.is_missing(edge)).collect();
        let mut causes = Vec::new();
        for culprit in culprits(&all, &faults.keys().copied().collect(), &known) {
            let own = faults.iter().filter(|(edge, _)| culprit.has(edge));
            let own: Vec<(Fault, u32)> = own.map(|(_, fault)| *fault).collect();
            let Some((fault, _)) = own.iter().min_by_key(|(fault, _)| fault.why) else {
                continue;
            };
            let tested = all.iter().filter(|edge| culprit.has(edge)).count();
            let text = self.words(&culprit, *fault, (own.len(), tested));
            causes.push((own.len(), culprit, text));
        }
        // What breaks most comes first.
        causes.sort_by_key(|(failed, ..)| std::cmp::Reverse(*failed));
        for (_, culprit, text) in causes {
            self.blame(Some(culprit), true, text);
        }
    }

    /// No rail reaches another one: NCCL may still try, unless NCCL_CROSS_NIC=0 forbids it.
    fn find_crossing(&mut self) {
        let (tried, reached) = self.cross;
        if tried == 0 || reached == tried {
            return;
        }
        let text = match reached {
            0 => "no rail reaches another rail: they are not routed to each other; set \
                NCCL_CROSS_NIC=0"
                .to_owned(),
            _ => format!(
                "{} of {tried} ways from a rail to another rail fail: NCCL_CROSS_NIC=0 keeps to \
                equal rails",
                tried - reached
            ),
        };
        self.blame(None, false, text);
    }

    fn find_mtus(&mut self) {
        for rail in 0..self.rails.len() {
            let mut by_mtu: BTreeMap<u8, Vec<u32>> = BTreeMap::new();
            for (rank, told) in &self.told {
                let mtu = told.mtus.get(rail).copied().unwrap_or(0);
                by_mtu.entry(mtu).or_default().push(*rank);
            }
            by_mtu.remove(&0);
            if by_mtu.len() < 2 {
                continue;
            }
            let text = self.mtu_words(rail, &by_mtu);
            self.blame(None, false, text);
        }
    }

    fn find_slow(&mut self) {
        let is_slow = |value: f64, median: f64| value > 0.0 && value < median * SLOW;
        let is_late = |value: f64, median: f64| value > median * LATE;
        self.find_outliers("MB/s", |m| f64::from(m.rate), is_slow);
        self.find_outliers("µs", |m| f64::from(m.median_ns) / 1000.0, is_late);
    }

    fn find_outliers(
        &mut self,
        unit: &str,
        of: fn(&Measured) -> f64,
        is_far: impl Fn(f64, f64) -> bool,
    ) {
        let mut values: BTreeMap<Edge, f64> = BTreeMap::new();
        for tested in &self.tested {
            let both: Vec<f64> = tested
                .measured()
                .map(|m| of(&m))
                .filter(|v| *v > 0.0)
                .collect();
            if !both.is_empty() {
                values.insert(tested.edge, both.iter().sum::<f64>() / both.len() as f64);
            }
        }
        let median = median(values.values().copied());
        if values.len() < FEW {
            return;
        }
        let all: Vec<Edge> = values.keys().copied().collect();
        let far = values.iter().filter(|(_, value)| is_far(**value, median));
        let far: BTreeSet<Edge> = far.map(|(edge, _)| *edge).collect();
        for culprit in culprits(&all, &far, &BTreeSet::new()) {
            let own = values.iter().filter(|(edge, _)| culprit.has(edge));
            let own = self::median(own.map(|(_, value)| *value));
            let text = format!(
                "{}: slower than the others: {own:.1} {unit}, the median is {median:.1} {unit}",
                self.name(&culprit)
            );
            self.blame(Some(culprit), false, text);
        }
    }

    /// Lanes between rails that work by themselves.
    fn crossed(&self) -> (u32, u32) {
        let mut broken: BTreeSet<Nic> = BTreeSet::new();
        for (tested, _, _) in self.failed() {
            broken.extend([tested.edge.a, tested.edge.b].map(|node| (node, tested.edge.rail)));
        }
        let mut counts = (0, 0);
        for (rank, told) in &self.told {
            for ((partner, rail), bits) in &told.cross {
                let works = (0..self.rails.len() as u8)
                    .filter(|other| !broken.contains(&(*partner, *other)))
                    .fold(0, |bits, other| bits | 1u64 << other);
                if !broken.contains(&(*rank, *rail)) && !self.missing.contains(partner) {
                    counts.0 += (bits.tried & works).count_ones();
                    counts.1 += (bits.reached & works).count_ones();
                }
            }
        }
        counts
    }

    pub fn verdict(&self) -> Verdict {
        let failed = self.failed();
        Verdict {
            missing: self.missing.clone(),
            broken: self.causes.iter().any(|cause| cause.breaks),
            lines: self.causes.iter().map(|cause| self.line(cause)).collect(),
            apart: self.is_apart(),
            failed: failed.fold(0, |bits, (tested, _, _)| bits | 1 << tested.edge.rail),
        }
    }

    /// Whether rails do not reach each other: one node's word alone does not say so, nor one lane.
    fn is_apart(&self) -> bool {
        let (tried, reached) = self.cross;
        reached < tried && u64::from(tried - reached) * APART >= u64::from(tried)
    }

    fn line(&self, cause: &Cause) -> Line {
        let mut rails = 0;
        for (tested, _, _) in self.failed() {
            let culprit = cause.culprit.as_ref().filter(|_| cause.breaks);
            if culprit.is_some_and(|culprit| culprit.has(&tested.edge)) {
                rails |= 1 << tested.edge.rail;
            }
        }
        Line {
            breaks: cause.breaks,
            text: cause.text.clone(),
            failed: rails,
        }
    }
}

/// Names of hosts, where they tell nodes apart.
fn hosts(told: &BTreeMap<u32, Told>) -> BTreeMap<u32, String> {
    let names: BTreeSet<&str> = told.values().map(|told| told.host.as_str()).collect();
    if names.len() < told.len() {
        return BTreeMap::new();
    }
    told.iter()
        .map(|(rank, told)| (*rank, told.host.to_string()))
        .collect()
}

fn tested(asked: &Asked, told: &BTreeMap<u32, Told>) -> Vec<Tested> {
    let mut all = BTreeMap::new();
    for round in 0..asked.schedule.rounds() {
        for a in 0..asked.nodes {
            let Some(b) = asked.schedule.partner(round, a).filter(|b| *b > a) else {
                continue;
            };
            for rail in 0..asked.rails.len() as u8 {
                let by = |rank: u32, partner: u32| {
                    let outcome = told.get(&rank)?.straight.get(&(partner, rail));
                    // A node that has not tested a pair of its own has not seen it work.
                    let missing = Err(Fault::of(Why::Absent));
                    Some(outcome.map_or(missing, |outcome| outcome.sent))
                };
                let ends = [by(a, b), by(b, a)];
                let edge = Edge { a, b, rail };
                if ends.iter().any(Option::is_some) {
                    all.insert(edge, Tested { edge, ends });
                }
            }
        }
    }
    all.into_values().collect()
}

pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests;
