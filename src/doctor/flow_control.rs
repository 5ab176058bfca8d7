//! What keeps rails from losing packets: PFC, as the drivers of NICs tell it by DCB. The switch
//! decides: what this host has set is half of it.

use std::collections::{BTreeMap, BTreeSet};

use rdma_model::ids::IfName;

use super::facts::Lossless;
use super::{Check, CheckContext, Finding, Severity, join};

const LOST: &str = "without PFC or ECN on every hop, RoCE loses packets under load and slows to a \
    crawl";
const TRAFFIC_CLASS: &str = "NCCL_IB_TC";

pub(super) fn flow_control(context: &CheckContext) -> Vec<Finding> {
    let kept = context.meant();
    let hard = kept
        .iter()
        .filter(|r| !r.is_software() && r.port.is_ethernet());
    let machine = context.of.machine;
    let (mut silent, mut known) = (Vec::new(), Vec::new());
    for rail in hard {
        match machine.and_then(|m| m.lossless.get(rail.name())) {
            None => silent.push(rail.name()),
            Some(lossless) => known.push((rail.name(), lossless)),
        }
    }
    let mut found = Vec::new();
    found.extend(not_known(&silent));
    found.extend(without_pause(&known));
    known.retain(|(_, lossless)| !lossless.priorities.is_empty());
    found.extend(unequal(&known));
    found.extend(other_priority(context, &known));
    found
}

fn not_known(names: &[&IfName]) -> Option<Finding> {
    let why = format!("{LOST}; neither the switch nor the NIC's firmware is asked here");
    let fix = "dcb pfc show dev NIC, dcb app show dev NIC (or mlnx_qos -i NIC), and the counters \
        below ports/*/hw_counters; compare with the switch ports, and NCCL_IB_TC with the class \
        that has it";
    let seen = format!("PFC and ECN of {} are not known", join(names));
    let one = Finding::new(Check::FlowControl, Severity::Unknown, seen, &why, fix);
    (!names.is_empty()).then_some(one)
}

type Known<'a> = (&'a IfName, &'a Lossless);

fn without_pause(known: &[Known]) -> Option<Finding> {
    let none = known.iter().filter(|(_, l)| l.priorities.is_empty());
    let names: Vec<&IfName> = none.map(|(name, _)| *name).collect();
    let seen = format!("PFC is off for all priorities of {}", join(&names));
    let why = format!("{LOST}; this is right only in a network that is built for ECN alone");
    let fix = "turn it on for the priority that the switch ports have it for: dcb pfc set dev NIC \
        prio-pfc all:off 3:on, or mlnx_qos -i NIC --pfc 0,0,0,1,0,0,0,0";
    let one = Finding::new(Check::FlowControl, Severity::Warning, seen, &why, fix);
    (!names.is_empty()).then_some(one)
}

fn unequal(known: &[Known]) -> Option<Finding> {
    let mut groups: BTreeMap<&BTreeSet<u8>, Vec<&IfName>> = BTreeMap::new();
    for (name, lossless) in known {
        groups.entry(&lossless.priorities).or_default().push(name);
    }
    let groups_said = groups.iter().map(|(priorities, names)| {
        let have = if names.len() == 1 { "has" } else { "have" };
        format!("{} {have} it for {}", join(names), numbers(priorities))
    });
    let said: Vec<String> = groups_said.collect();
    let seen = format!("PFC differs: {}", said.join("; "));
    let why = "a job's packets have one priority on all rails: where that does not pause, they are \
        lost";
    let fix = "set the same on all rails, as on their switch ports";
    let one = Finding::new(Check::FlowControl, Severity::Warning, seen, why, fix);
    (groups.len() > 1).then_some(one)
}

/// What NCCL sends has the DSCP of NCCL_IB_TC, and by that a priority.
fn other_priority(context: &CheckContext, known: &[Known]) -> Option<Finding> {
    let (class, is_set) = traffic_class(context)?;
    let dscp = class >> 2;
    let wrong = known.iter().filter_map(|(name, lossless)| {
        let priority = lossless.by_dscp.get(&dscp)?;
        let pauses = lossless.priorities.contains(priority);
        (!pauses).then_some((*name, *priority, &lossless.priorities))
    });
    let wrong: Vec<(&IfName, u8, &BTreeSet<u8>)> = wrong.collect();
    let (_, priority, pausing) = wrong.first()?;
    let names: Vec<&IfName> = wrong.iter().map(|(name, ..)| *name).collect();
    let by = match is_set {
        true => format!("{TRAFFIC_CLASS}={class}"),
        false => format!("no {TRAFFIC_CLASS}"),
    };
    let seen = format!(
        "with {by} NCCL's packets have DSCP {dscp}, and on {} by that the priority {priority}, \
        which does not pause: PFC is on for {}",
        join(&names),
        numbers(pausing)
    );
    let fix = format!(
        "set {TRAFFIC_CLASS} to four times a DSCP of a priority that pauses (`dcb app show dev \
        NIC`), and prepare the plan again"
    );
    let one = Finding::new(Check::FlowControl, Severity::Warning, seen, LOST, fix);
    Some(one)
}

/// And whether anything sets it. Nothing where that is no number.
fn traffic_class(context: &CheckContext) -> Option<(u8, bool)> {
    let planned = context.of.plans.iter().flat_map(|plan| &plan.env);
    let mut planned = planned.filter(|var| var.name == TRAFFIC_CLASS);
    let set = planned.next().map(|var| &var.value);
    let set = set.or_else(|| context.of.request.passed_on.get(TRAFFIC_CLASS));
    match set.filter(|text| !text.is_empty()) {
        Some(text) => Some((text.parse().ok()?, true)),
        None => Some((0, false)),
    }
}

fn numbers(all: &BTreeSet<u8>) -> String {
    let words: Vec<String> = all.iter().map(u8::to_string).collect();
    words.join(", ")
}
