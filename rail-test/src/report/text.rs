//! The words of a report, its tables and its JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use super::{Findings, median};
use crate::cause::Culprit;
use crate::transport::{Fault, Measured, Why, mtu_bytes};
use crate::verdict::mark;

/// Failed pairs that the table has.
const ROWS: usize = 40;

/// enum ibv_wc_status ends before; the errors that are seen are above: ENETUNREACH, ETIMEDOUT.
const MOST_STATUS: u32 = 23;

/// What a fault means, as the end of a sentence.
pub fn said(fault: Fault) -> String {
    let text = match fault.why {
        Why::PortDown => "its port is down",
        Why::NoGid => "its GID is not in the port's table any more",
        Why::NoQueuePair => {
            "no queue pair or memory can be had there: the memlock limit (ulimit -l), or what the \
            HCA has left"
        }
        Why::Refused => "what it has published cannot be used",
        Why::OtherFamily => {
            "one end has an IPv4 address and the other an IPv6 one, or one has a link-local \
            address alone"
        }
        Why::OwnAddress => {
            "both ends have one address: two ranks on one host (run one for each), or two hosts \
            with one address"
        }
        Why::NoRail => "the other end's address is in a network here that is no rail's",
        Why::WrongNeighbour => {
            "a neighbour entry has another MAC than the NIC: a wrong static entry, or two hosts \
            with one address"
        }
        Why::NoNeighbour => "no neighbour (ARP, ND): another VLAN or bridge, or a cable",
        Why::Access => "the other end refuses the access",
        Why::TooLarge => {
            "small messages pass, those of the NICs' MTU do not: something between has a smaller \
            MTU"
        }
        Why::Contents => "what arrives is not what was sent",
        Why::NoAnswer => {
            "the neighbour is there and does not answer: a filter of UDP 4791, a VLAN, or PFC \
            pauses"
        }
        Why::Stopped => "it worked at first, and stopped",
        Why::Status => "a work request failed",
        Why::NoFarEnd => "the other end has no queue pair for it",
        Why::Absent => "the other node has published nothing in time",
    };
    match fault.number {
        0 => text.to_owned(),
        number if number > MOST_STATUS || fault.why == Why::NoQueuePair => {
            format!("{text} (error {number})")
        }
        number => format!("{text} (status {number})"),
    }
}

impl Findings {
    pub(super) fn name(&self, culprit: &Culprit) -> String {
        match culprit {
            Culprit::Node(rank) => self.node(*rank),
            Culprit::Rail(rail) => format!("rail {}", self.rail(*rail)),
            Culprit::Nic(rank, rail) => format!("{} of {}", self.rail(*rail), self.node(*rank)),
            Culprit::Pair(a, b, rails) => {
                let names: Vec<&str> = rails.iter().map(|rail| self.rail(*rail)).collect();
                let names = match rails.len() == self.rails.len() && rails.len() > 1 {
                    true => "all rails".to_owned(),
                    false => names.join(", "),
                };
                format!("{names} between {} and {}", self.node(*a), self.node(*b))
            }
        }
    }

    /// `of`: how many of its edges fail, and how many were tested.
    pub(super) fn words(&self, culprit: &Culprit, fault: Fault, of: (usize, usize)) -> String {
        let name = self.name(culprit);
        let (failed, tested) = of;
        let what = match culprit {
            _ if failed < tested => format!("{failed} of its {tested} pairs fail"),
            Culprit::Node(_) => format!("all its rails fail ({failed})"),
            Culprit::Rail(_) => format!("it fails between all nodes ({failed})"),
            Culprit::Nic(..) => format!("all its pairs fail ({failed})"),
            Culprit::Pair(..) => format!("it fails there alone ({failed})"),
        };
        format!("{name}: {what}: {}", said(fault))
    }

    pub(super) fn mtu_words(&self, rail: usize, by_mtu: &BTreeMap<u8, Vec<u32>>) -> String {
        let mut by_count: Vec<(&u8, &Vec<u32>)> = by_mtu.iter().collect();
        by_count.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
        let mut said = Vec::new();
        for (mtu, ranks) in by_count {
            let who = match ranks.as_slice() {
                [rank] => self.node(*rank),
                ranks => format!("{} nodes", ranks.len()),
            };
            said.push(format!("{} on {who}", mtu_bytes(*mtu)));
        }
        let name = self.rails.get(rail).map_or("?", String::as_str);
        format!("{name}: the active MTUs differ: {}", said.join(", "))
    }

    /// What was tested.
    pub fn what(&self) -> String {
        let rails = counted(self.rails.len(), "rail");
        format!("{} nodes, {rails}, pattern {}", self.nodes, self.pattern)
    }

    /// The causes, the failed pairs, and a line for each rail.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for cause in &self.causes {
            let _ = writeln!(out, "{}: {}", mark(cause.breaks), cause.text);
        }
        if self.causes.iter().all(|cause| !cause.breaks) {
            let _ = writeln!(
                out,
                "all rails work: {}, {}",
                self.what(),
                counted(self.tested.len(), "pair")
            );
        }
        let mut rows = Vec::new();
        for (tested, fault, whose) in self.failed() {
            let edge = tested.edge;
            let other = if whose == edge.a { edge.b } else { edge.a };
            let status = match fault.number {
                0 => word(fault.why),
                number => format!("{} {number}", word(fault.why)),
            };
            rows.push([
                self.rail(edge.rail).to_owned(),
                self.node(whose),
                self.node(other),
                status,
            ]);
        }
        if !rows.is_empty() {
            let more = rows.len().saturating_sub(ROWS);
            rows.truncate(ROWS);
            out.push_str(&table(["rail", "seen by", "to", "failure"], &rows));
            if more > 0 {
                let _ = writeln!(out, "and {more} more");
            }
        }
        out.push_str(&self.by_rail());
        out.trim_end().to_owned()
    }

    fn by_rail(&self) -> String {
        let mut rows = Vec::new();
        for (rail, name) in self.rails.iter().enumerate() {
            let own = self
                .tested
                .iter()
                .filter(|t| usize::from(t.edge.rail) == rail);
            let own: Vec<_> = own.collect();
            let good = own.iter().flat_map(|tested| tested.measured());
            let good: Vec<Measured> = good.collect();
            let latency = median(good.iter().map(|m| f64::from(m.median_ns)));
            let slow = median(good.iter().map(|m| f64::from(m.p99_ns)));
            let rate = median(good.iter().map(|m| f64::from(m.rate)));
            let failed = own.iter().filter(|tested| tested.fault().is_some()).count();
            rows.push([
                name.clone(),
                own.len().to_string(),
                failed.to_string(),
                figure(latency / 1000.0, 1),
                figure(slow / 1000.0, 1),
                figure(rate, 0),
                self.moved_words(rail),
            ]);
        }
        let heads = [
            "rail",
            "pairs",
            "failed",
            "median µs",
            "p99 µs",
            "MB/s",
            "counters",
        ];
        table(heads, &rows)
    }

    /// The sum over all nodes of each counter that moved.
    fn moved_words(&self, rail: usize) -> String {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for moved in self.told.values().flat_map(|told| &told.moved) {
            if usize::from(moved.0) == rail {
                let sum = sums.entry(&moved.1).or_default();
                *sum = sum.saturating_add(moved.2);
            }
        }
        let words: Vec<String> = sums
            .iter()
            .map(|(name, by)| format!("{name} +{by}"))
            .collect();
        words.join(", ")
    }

    /// Every pair.
    pub fn json(&self) -> Value {
        let end = |end: super::End| match end {
            None => Value::Null,
            Some(Ok(good)) => json!({
                "median_ns": good.median_ns, "p99_ns": good.p99_ns, "mb_s": good.rate,
            }),
            Some(Err(fault)) => json!({"why": fault.why, "number": fault.number}),
        };
        let pairs: Vec<Value> = self
            .tested
            .iter()
            .map(|tested| {
                json!({
                    "a": tested.edge.a, "b": tested.edge.b, "rail": self.rail(tested.edge.rail),
                    "works": tested.fault().is_none(),
                    "by_a": end(tested.ends[0]), "by_b": end(tested.ends[1]),
                })
            })
            .collect();
        let mut counters = Vec::new();
        for (rank, told) in &self.told {
            for moved in &told.moved {
                counters.push(json!({
                    "rank": rank, "rail": self.rail(moved.0), "name": moved.1, "by": moved.2,
                }));
            }
        }
        json!({
            "nodes": self.nodes,
            "rails": self.rails,
            "pattern": self.pattern,
            "hosts": self.told.iter().map(|(rank, told)| (rank.to_string(), told.host.to_string()))
                .collect::<BTreeMap<_, _>>(),
            "missing": self.missing,
            "causes": self.causes,
            "cross": {"tried": self.cross.0, "reached": self.cross.1},
            "pairs": pairs,
            "counters": counters,
        })
    }
}

fn counted(count: usize, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

/// What was not measured is 0.
fn figure(value: f64, digits: usize) -> String {
    match value > 0.0 {
        true => format!("{value:.digits$}"),
        false => "-".to_owned(),
    }
}

/// As JSON has it.
fn word(why: Why) -> String {
    let word = serde_json::to_value(why).ok();
    let word = word.and_then(|word| word.as_str().map(|word| word.replace('_', " ")));
    word.unwrap_or_default()
}

fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = heads.map(|head| head.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    let heads = heads.map(str::to_owned);
    for row in std::iter::once(&heads).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
