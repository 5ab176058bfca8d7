//! The normal form as lines of text.

use super::normal;
use crate::precedence;
use rdma_model::drift::Drift;
use rdma_model::snapshot::{Netdev, ProgramHook, Snapshot};
use rdma_model::step::NicState;
use std::collections::{BTreeMap, HashMap};

/// A NIC's normal form as lines, `field value`: what differs between two sets of them is drift.
pub fn lines(state: &NicState) -> BTreeMap<String, String> {
    lines_of(&normal(state))
}

pub(super) fn lines_of(n: &NicState) -> BTreeMap<String, String> {
    let mut lines = BTreeMap::new();
    let link = serde_json::to_value(&n.netdev).unwrap_or_default();
    let listed_below = [
        "addresses",
        "neighbours",
        "sysctls",
        "options",
        "programs",
        "device",
    ];
    let fields = link
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| !listed_below.contains(&key.as_str()));
    lines.extend(fields.map(|(key, value)| (key.clone(), value.to_string())));
    let options = serde_json::to_value(&n.netdev.options).unwrap_or_default();
    lines.extend(
        options
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, value)| (format!("link {key}"), value.to_string())),
    );
    for (hook, programs) in by_hook(&n.netdev) {
        lines.insert(
            format!("{PROGRAMS}{hook}"),
            format!("program {}", programs.join(" ")),
        );
    }
    for a in &n.netdev.addresses {
        let peer = a.peer.map_or(String::new(), |p| format!(" peer {p}"));
        lines.insert(
            format!("address {}/{}{peer}", a.address, a.prefix),
            a.to_string(),
        );
    }
    for neighbour in &n.netdev.neighbours {
        let proxy = if neighbour.proxy { " proxy" } else { "" };
        lines.insert(
            format!("neighbour {}{proxy}", neighbour.address),
            neighbour.to_string(),
        );
    }
    let mut seen: HashMap<_, usize> = HashMap::new();
    for route in &n.routes {
        // Equal keys may repeat with other legs: the position among equals tells them apart.
        let count = seen.entry((route.table, route.destination)).or_default();
        let equals = std::mem::replace(count, *count + 1);
        lines.insert(
            format!(
                "route {} table {} #{equals}",
                route.destination, route.table
            ),
            route.to_string(),
        );
    }
    for nexthop in &n.nexthops {
        lines.insert(format!("nexthop {}", nexthop.id), nexthop.to_string());
    }
    for rule in &n.rules {
        lines.insert(format!("rule {rule}"), "present".to_owned());
    }
    for (key, value) in &n.netdev.sysctls {
        lines.insert(format!("sysctl {key}"), value.clone());
    }
    let device = n.netdev.device.iter().flatten();
    lines.extend(device.map(|(key, value)| (key.clone(), value.clone())));
    lines
}

const PROGRAMS: &str = "programs at ";

/// The numbers of its BPF programs at each hook, in the order in which they run.
fn by_hook(dev: &Netdev) -> BTreeMap<ProgramHook, Vec<String>> {
    let mut all = BTreeMap::<ProgramHook, Vec<String>>::new();
    for program in dev.programs.iter().flatten() {
        all.entry(program.hook)
            .or_default()
            .push(program.id.to_string());
    }
    all
}

/// Whether a NIC lacks a BPF program that it had: one that has ended cannot be put back.
pub fn lacks_program(drift: &[Drift]) -> bool {
    drift
        .iter()
        .any(|d| d.field.starts_with(PROGRAMS) && d.expected.is_some())
}

/// The normal form of everything in a namespace, one line per fact: two equal hosts print equal
/// texts.
pub fn normal_text(snapshot: &Snapshot) -> String {
    let mut all = String::new();
    for dev in &snapshot.netdevs {
        let Some(state) = NicState::of(snapshot, &dev.name) else {
            continue;
        };
        for (field, value) in lines(&state) {
            all.push_str(&format!("{} {field} {value}\n", dev.name));
        }
    }
    let mut rules = snapshot.rules.clone();
    rules.sort();
    for rule in rules {
        all.push_str(&format!("rule {rule}\n"));
    }
    for line in precedence::lines(snapshot) {
        all.push_str(&format!("{line}\n"));
    }
    for hca in &snapshot.hcas {
        for port in &hca.ports {
            let dev = port
                .netdev
                .as_ref()
                .map_or("-".to_owned(), ToString::to_string);
            all.push_str(&format!(
                "hca {} port {} netdev {dev}\n",
                hca.name, port.number
            ));
        }
    }
    let mut sorted: Vec<&str> = all.lines().collect();
    sorted.sort_unstable();
    sorted.iter().map(|l| format!("{l}\n")).collect()
}
