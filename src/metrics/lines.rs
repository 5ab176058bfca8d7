//! The lines of metrics that are more than one number of a rail.

use std::collections::BTreeMap;

use rdma_model::escape::printable;
use rdma_netlink::counters::Pauses;

use super::{Fault, Means, Owner, Rail, RecordState, Runs, Seen};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Whole(u64),
    Real(f64),
}

pub type Labels = Vec<(&'static str, String)>;

#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub labels: Labels,
    pub value: Value,
}

pub(super) fn sample<const N: usize>(labels: [(&'static str, String); N], value: Value) -> Sample {
    Sample {
        labels: labels.into(),
        value,
    }
}

pub(super) fn rail_labels(rail: &Rail) -> Labels {
    let owner = rail.holder.clone().unwrap_or_default();
    set([
        ("rail", Some(rail.name.clone())),
        ("place", Some(rail.place.name().to_owned())),
        ("netdev", rail.netdev.clone()),
        ("hca", rail.hca.clone()),
        ("port", rail.port.map(|port| port.to_string())),
        ("container", Some(owner.container)),
        ("pod", owner.pod),
        ("namespace", owner.namespace),
    ])
}

/// All of them: OpenMetrics wants the same labels on all lines of a metric, and an empty one says
/// no more than none. Containers and pods are called as others like.
fn set<const N: usize>(labels: [(&'static str, Option<String>); N]) -> Labels {
    labels
        .map(|(name, value)| (name, printable(&value.unwrap_or_default())))
        .into()
}

pub(super) fn of_megabits(megabits: u32) -> Value {
    Value::Whole(u64::from(megabits) * 1_000_000 / 8)
}

pub(super) fn seconds(micros: u64) -> Value {
    Value::Real(micros as f64 / 1e6)
}

pub(super) fn faults(rail: &Rail) -> Vec<Sample> {
    let all = Fault::ALL.into_iter().map(|fault| {
        let is_so = rail.faults.contains(&fault);
        sample(
            [("reason", fault.name().to_owned())],
            Value::Whole(is_so.into()),
        )
    });
    all.collect()
}

fn both(pauses: Pauses) -> [(&'static str, u64); 2] {
    [("receive", pauses.received), ("transmit", pauses.sent)]
}

pub(super) fn pauses(rail: &Rail) -> Vec<Sample> {
    let counted = rail.counted.as_ref().and_then(|all| all.pauses);
    let both = counted.into_iter().flat_map(both);
    both.map(|(way, frames)| sample([("direction", way.to_owned())], Value::Whole(frames)))
        .collect()
}

pub(super) fn priority_pauses(rail: &Rail) -> Vec<Sample> {
    let counted = rail.counted.as_ref().and_then(|all| all.priority_pauses);
    let mut samples = Vec::new();
    for (priority, pauses) in counted.into_iter().flatten().enumerate() {
        for (way, frames) in both(pauses) {
            let labels = [
                ("direction", way.to_owned()),
                ("priority", priority.to_string()),
            ];
            samples.push(sample(labels, Value::Whole(frames)));
        }
    }
    samples
}

/// The specification counts words of four bytes.
pub(super) fn bytes(rail: &Rail, words: &[&str], bytes: &[&str]) -> Vec<Sample> {
    let Some(port) = &rail.counters else {
        return Vec::new();
    };
    let words = first(port.counters.as_ref(), words).map(|words| words.saturating_mul(4));
    let all = words.or_else(|| first(port.hw_counters.as_ref(), bytes));
    all.map(|all| sample([], Value::Whole(all)))
        .into_iter()
        .collect()
}

fn first(all: Option<&BTreeMap<String, u64>>, names: &[&str]) -> Option<u64> {
    names.iter().find_map(|name| all?.get(*name).copied())
}

pub(super) fn port_counters(rail: &Rail) -> Vec<Sample> {
    let all = rail
        .counters
        .as_ref()
        .and_then(|port| port.counters.as_ref());
    let all = all.into_iter().flatten();
    all.map(|(name, value)| sample([("counter", printable(name))], Value::Whole(*value)))
        .collect()
}

pub(super) fn hw_counters(rail: &Rail) -> Vec<Sample> {
    let all = rail.counters.as_ref();
    let all = all.and_then(|port| port.hw_counters.as_ref());
    let all = all.into_iter().flatten().map(|(name, value)| Sample {
        labels: set([
            ("counter", Some(name.clone())),
            (
                "means",
                Means::of(name).map(|means| means.name().to_owned()),
            ),
        ]),
        value: Value::Whole(*value),
    });
    all.collect()
}

fn holder_labels(netns: u64, plan: &str, owner: &Owner) -> Labels {
    set([
        ("netns", Some(netns.to_string())),
        ("plan", Some(plan.to_owned())),
        ("container", Some(owner.container.clone())),
        ("pod", owner.pod.clone()),
        ("namespace", owner.namespace.clone()),
    ])
}

pub(super) fn ages(seen: &Seen) -> Vec<Sample> {
    let with = seen.holders.iter().filter_map(|holder| {
        Some(Sample {
            labels: holder_labels(holder.netns, &holder.plan, &holder.owner),
            value: Value::Real(holder.seconds?),
        })
    });
    with.collect()
}

pub(super) fn nics(seen: &Seen) -> Vec<Sample> {
    let all = seen.holders.iter().map(|holder| Sample {
        labels: holder_labels(holder.netns, &holder.plan, &holder.owner),
        value: Value::Whole(holder.nics as u64),
    });
    all.collect()
}

pub(super) fn records(seen: &Seen) -> Vec<Sample> {
    let all = RecordState::ALL.into_iter().map(|state| {
        let count = seen.records.get(&state).copied().unwrap_or_default();
        sample([("state", state.name().to_owned())], Value::Whole(count))
    });
    all.collect()
}

pub(super) fn incomplete(seen: &Seen) -> Vec<Sample> {
    let states = [
        RecordState::Abandoned,
        RecordState::HeldBack,
        RecordState::Damaged,
    ];
    let all = states.iter().filter_map(|state| seen.records.get(state));
    vec![sample([], Value::Whole(all.sum()))]
}

pub(super) fn hooks(seen: &Seen, of: fn(&Runs) -> Value) -> Vec<Sample> {
    let all = seen.hooks.iter().map(|(hook, runs)| {
        let labels = [
            ("command", printable(&hook.command)),
            ("outcome", printable(&hook.outcome)),
        ];
        sample(labels, of(runs))
    });
    all.collect()
}
