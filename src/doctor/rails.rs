//! NICs that a job would do without: a port that is down, GIDs that are not what peers reach.

use super::{Check, Finding, Patient, Rail, Severity, join};
use crate::candidate::{counts, port_label};
use crate::config::Family;
use crate::select::{Drop, DropCode, Verdict};
use crate::snapshot::{Gid, GidKind};

/// Ports that are not ACTIVE, of NICs that have an address: without one nobody means to use it.
pub(super) fn ports(patient: &Patient) -> Vec<Finding> {
    let down = patient.rails().into_iter().filter(|r| r.port.state.as_deref() != Some("ACTIVE"));
    let meant = down.filter(|r| is_meant(patient, r));
    meant.map(|r| finding(&r)).collect()
}

fn finding(rail: &Rail) -> Finding {
    let state = rail.port.state.as_deref().unwrap_or("in no known state");
    let seen = format!("{} of {} is {state}, not ACTIVE", port_label(rail.hca, rail.port), rail.name());
    let why = "NCCL skips such a port without a word, and a container with this NIC does not start";
    let found = Finding::new(Check::PortDown, Severity::Breaks, seen, why, "");
    match rail.netdev.up {
        false => Finding { fix: format!("{} is switched off: set it up", rail.name()), ..found }
            .run(format!("ip link set {} up", rail.name())),
        true => {
            let fix = "check cable, transceiver and switch port; for InfiniBand the subnet manager";
            Finding { fix: fix.to_owned(), ..found }
        }
    }
}

/// Whether somebody gave it an address, or asks for it by name.
fn is_meant(patient: &Patient, rail: &Rail) -> bool {
    let addressed = rail.netdev.addresses.iter().any(|a| counts(a, Family::Any));
    addressed || patient.of.request.names(rail.name())
}

/// RoCE v2 GIDs of ports that are ACTIVE.
pub(super) fn gids(patient: &Patient) -> Vec<Finding> {
    let roce = |r: &Rail| r.port.link_layer.as_deref() == Some("Ethernet") && r.port.state.as_deref() == Some("ACTIVE");
    patient.rails().iter().filter(|r| roce(r)).flat_map(|r| absent(patient, r).into_iter().chain(stale(r))).collect()
}

fn own<'a>(rail: &'a Rail) -> impl Iterator<Item = &'a Gid> {
    let v2 = rail.port.gids.iter().filter(|g| g.kind == Some(GidKind::RoceV2));
    v2.filter(|g| g.netdev.as_ref().is_none_or(|n| n == rail.name()))
}

/// None that peers reach.
fn absent(patient: &Patient, rail: &Rail) -> Option<Finding> {
    if rail.verdict.gid.is_some() {
        return None;
    }
    let (label, family) = (port_label(rail.hca, rail.port), patient.of.request.family);
    let severity = if is_meant(patient, rail) { Severity::Breaks } else { Severity::Warning };
    let mut gids = own(rail).peekable();
    let alone = gids.peek().is_some() && gids.all(|g| g.address.is_unicast_link_local());
    if !rail.netdev.addresses.iter().any(|a| counts(a, family)) {
        let what = if alone { "only link-local RoCE v2 GIDs" } else { "no RoCE v2 GID that counts" };
        let seen = format!("{label} has {what}, as {} has no {}", rail.name(), family.noun());
        let why = "NCCL would talk from an address that no other host has a way to: its first connection times out";
        let found =
            Finding::new(Check::Gids, severity, seen, why, "give it its address, or let others count: --family");
        let planned = patient.of.plans.iter().flat_map(|p| &p.nics).find(|n| n.identity.name == *rail.name());
        let address = planned.and_then(|n| n.addresses.iter().find(|a| counts(a, family)));
        let command = address.map(|a| format!("ip address add {}/{} dev {}", a.address, a.prefix, rail.name()));
        return Some(Finding { run: command.into_iter().collect(), ..found });
    }
    let reason = rail.verdict.dropped.as_ref().filter(|d| d.code == DropCode::NoGid).map(|d| d.why.clone());
    let seen =
        reason.unwrap_or_else(|| format!("{label} has no RoCE v2 GID of an {} of {}", family.noun(), rail.name()));
    let why = "without it nothing of RoCE v2 leaves this port, and a container with this NIC does not start";
    let fix = "see gid_attrs below /sys/class/infiniband: is RoCE v2 on, has the table room? Then set the link down and up, or \
               reload the RDMA driver, and the kernel fills the table anew";
    Some(Finding::new(Check::Gids, severity, seen, why, fix))
}

/// Those of addresses that the NIC no longer has.
fn stale(rail: &Rail) -> Option<Finding> {
    let has = |g: &Gid| rail.netdev.addresses.iter().any(|a| a.address == g.ip());
    let old: Vec<&Gid> = own(rail).filter(|g| !g.address.is_unicast_link_local() && !has(g)).collect();
    if old.is_empty() {
        return None;
    }
    let gids = join(old.iter().map(|g| format!("{} at index {}", g.ip(), g.index)));
    let seen = format!("{} has RoCE v2 GIDs of no address of {}: {gids}", port_label(rail.hca, rail.port), rail.name());
    let why = "NCCL may choose one of these, and answers to it go elsewhere or nowhere";
    let fix = "set the link down and up, or reload the RDMA driver: the kernel fills the table anew. Its routes and IPv6 \
               addresses go with the link";
    Some(Finding::new(Check::Gids, Severity::Breaks, seen, why, fix))
}

/// NICs with an HCA that the selection refuses for something that can be mended, and no other check tells.
pub(super) fn left_out(patient: &Patient) -> Vec<Finding> {
    let told =
        |d: &Drop| matches!(d.code, DropCode::Ambiguous | DropCode::FiniteLifetime | DropCode::QueueingDiscipline);
    let one = |(v, d): (&Verdict, &Drop)| {
        (v.hca.is_some() && told(d)).then(|| {
            Finding::new(Check::LeftOut, Severity::Warning, d.why.clone(), "no container gets this NIC", d.fix.clone())
        })
    };
    match patient.is_inside() {
        false => patient.selection.dropped().filter_map(one).collect(),
        true if patient.rails().is_empty() => {
            let seen = "no NIC with an RDMA device is in this container's network namespace";
            let why = "NCCL goes by TCP, or does not start";
            let fix = "let it opt in to a plan, by the annotation rdmaprep.io/plan: `rdmaprep help hook`";
            vec![Finding::new(Check::LeftOut, Severity::Breaks, seen, why, fix)]
        }
        // What is in a container has come there.
        true => Vec::new(),
    }
}
