//! What a container had done to a NIC, in sentences.

use crate::restore::link_diff::{foreign, foreign_xdp};
use rdma_model::snapshot::{LinkOptions, Netdev, ProgramHook};

/// What the kernel gives a NIC by itself: net.core.default_qdisc may be any of these, and a link
/// that is down has none.
const QDISCS: [&str; 7] = [
    "noop",
    "noqueue",
    "mq",
    "pfifo_fast",
    "fq_codel",
    "fq",
    "sfq",
];

pub(super) fn notes(was: &Netdev, now: &Netdev) -> Vec<String> {
    let mut notes = Vec::new();
    if now.name != was.name {
        notes.push(format!("{} had been renamed to {}", was.name, now.name));
    }
    if let (Some(old), Some(new), true) = (&was.mac, &now.mac, was.mac != now.mac) {
        notes.push(format!(
            "{} had been given the address {new} instead of {old}",
            was.name
        ));
    }
    if now.mtu != was.mtu {
        notes.push(format!(
            "{} had been given MTU {} instead of {}",
            was.name, now.mtu, was.mtu
        ));
    }
    notes.extend(options_note(was, now));
    if now.promisc && !was.promisc {
        notes.push(format!("{} had been made promiscuous", was.name));
    }
    if let Some(qdisc) = now
        .qdisc
        .as_ref()
        .filter(|q| now.qdisc != was.qdisc && !QDISCS.contains(&q.as_str()))
    {
        notes.push(format!(
            "a queueing discipline {qdisc} was left on {} and is removed",
            was.name
        ));
    }
    if now.xdp && !was.xdp && !foreign_xdp(was, now) {
        notes.push(format!(
            "an XDP program was left on {} and is removed",
            was.name
        ));
    }
    for program in foreign(was, now) {
        let article = match program.hook {
            ProgramHook::XdpDriver => "an",
            _ => "a",
        };
        notes.push(format!(
            "{article} {} program was left on {} and is removed",
            program.hook, was.name
        ));
    }
    if let Some(master) = now.master.as_ref().filter(|_| now.master != was.master) {
        notes.push(format!("{} had been put into {master}", was.name));
    }
    notes
}

fn options_note(was: &Netdev, now: &Netdev) -> Option<String> {
    let (before, after) = (was.options.as_ref()?, now.options.as_ref()?);
    let flags = (before.flags ^ after.flags) & LinkOptions::FLAGS;
    let changed = [
        (flags & LinkOptions::NOARP != 0, "arp"),
        (flags & LinkOptions::MULTICAST != 0, "multicast"),
        (
            flags & !(LinkOptions::NOARP | LinkOptions::MULTICAST) != 0,
            "other flags",
        ),
        (before.mode != after.mode, "link mode"),
        (before.broadcast != after.broadcast, "broadcast address"),
        (before.sizes() != after.sizes(), "GSO or GRO sizes"),
    ];
    let changed: Vec<&str> = changed
        .iter()
        .filter(|(is, _)| *is)
        .map(|(_, what)| *what)
        .collect();
    (!changed.is_empty()).then(|| {
        format!(
            "{} had been given other settings: {}",
            was.name,
            changed.join(", ")
        )
    })
}
