//! What is between the rails and their peers: packet size, the uplink, and what they
//! have in common.

use std::collections::BTreeMap;

use nccl_rules::levels::Levels;
use rdma_model::ids::IfName;
use rdma_model::snapshot::Snapshot;

use super::plans::AGAIN;
use super::{Check, CheckContext, Finding, Rail, Severity, join};
use crate::config::request::Request;
use crate::plan::Plan;
use crate::select::protected_ifaces::{bootstrap, by_own_sessions, not_known, uplinks};

/// Bytes that headers take of an MTU: `iboe_get_mtu()` in include/rdma/ib_addr.h (GRH 40, UDP 8,
/// BTH 12, XRC 4, atomic 28, ICRC 4).
const HEADERS: u32 = 96;

/// The payload of a RoCE packet, of the sizes that InfiniBand has; none where not even the least
/// fits.
fn roce_mtu(mtu: u32) -> Option<u32> {
    [4096, 2048, 1024, 512, 256]
        .into_iter()
        .find(|size| size + HEADERS <= mtu)
}

/// An MTU that has room for [`roce_mtu`]'s largest, and is what people set.
const ENOUGH: u32 = 4200;

fn by_mtu<'a, 'b>(rails: &'b [Rail<'a>]) -> BTreeMap<u32, Vec<&'b Rail<'a>>> {
    let mut found: BTreeMap<u32, Vec<&Rail>> = BTreeMap::new();
    for rail in rails {
        // IPoIB's is of IP packets alone.
        if rail.netdev.mtu > 0 && !rail.port.is_infiniband() {
            found.entry(rail.netdev.mtu).or_default().push(rail);
        }
    }
    found
}

pub(super) fn mtu(context: &CheckContext) -> Vec<Finding> {
    let mut rails = context.rails();
    rails.retain(|r| !context.is_unmeant(r));
    let by_mtu = by_mtu(&rails);
    let largest = by_mtu.keys().max().map_or(ENOUGH, |mtu| ENOUGH.max(*mtu));
    let mut found = Vec::new();
    for (mtu, rails) in by_mtu {
        let active = rails.into_iter().filter(|r| r.port.is_active());
        let names: Vec<&IfName> = active.map(Rail::name).collect();
        if roce_mtu(mtu) != Some(4096) && !names.is_empty() {
            found.push(too_small(mtu, &names, largest));
        }
    }
    for job in context.jobs() {
        let by_mtu = self::by_mtu(&job);
        if by_mtu.len() < 2 {
            continue;
        }
        let seen = by_mtu
            .iter()
            .map(|(mtu, rails)| format!("{} has {mtu}", join(rails.iter().map(|r| r.name()))));
        let why = "the largest packets of one rail are dropped on another's path, or all go at \
            the pace of the smallest";
        let fix = "set one MTU on all rails, and on their switch ports";
        // What is too small is to grow as far as this at least.
        let all_carry = by_mtu.keys().all(|mtu| roce_mtu(*mtu) == Some(4096));
        let own = by_mtu.keys().max().copied().unwrap_or(0);
        let top = if all_carry { own } else { own.max(ENOUGH) };
        let lower = by_mtu
            .iter()
            .filter(|(mtu, _)| **mtu < top)
            .flat_map(|(_, rails)| rails);
        let commands = lower
            .map(|r| format!("ip link set {} mtu {top}", r.name()))
            .collect();
        let seen = format!(
            "the rails' MTUs differ: {}",
            seen.collect::<Vec<_>>().join(", ")
        );
        found.push(Finding {
            run: commands,
            ..Finding::new(Check::Mtu, Severity::Warning, seen, why, fix)
        });
    }
    found
}

fn too_small(mtu: u32, names: &[&IfName], wanted: u32) -> Finding {
    let have = format!(
        "{} {} MTU {mtu}",
        join(names),
        if names.len() == 1 { "has" } else { "have" }
    );
    let (severity, seen) = match roce_mtu(mtu) {
        None => (
            Severity::Breaks,
            format!("{have}, less than the least RoCE packet takes"),
        ),
        Some(size) => (
            Severity::Warning,
            format!("{have}: RoCE packets carry {size} bytes, not 4096"),
        ),
    };
    let why = "a packet has 96 bytes of headers, so that 4096 bytes need an MTU of 4192; smaller \
        ones cost throughput";
    let fix = "raise the MTU, on the switch port first";
    let commands = names
        .iter()
        .map(|name| format!("ip link set {name} mtu {wanted}"))
        .collect();
    Finding {
        run: commands,
        ..Finding::new(Check::Mtu, severity, seen, why, fix)
    }
}

/// Takes out of what was asked what would end the selection, since what is to be guarded is
/// unknown: a default route by no known interface, and addresses that lead to none. A sentence for
/// each.
pub(super) fn unguarded(request: &mut Request, snapshot: &Snapshot) -> Vec<String> {
    let (mut of_own, mut of_peer) = (request.clone(), request.clone());
    (of_own.select.peer_address, of_peer.select.bootstrap_address) = (None, None);
    let own = bootstrap(&of_own, snapshot, &mut Vec::new()).err();
    let peer = bootstrap(&of_peer, snapshot, &mut Vec::new()).err();
    request.select.bootstrap_address.take_if(|_| own.is_some());
    request.select.peer_address.take_if(|_| peer.is_some());
    let route = uplinks(request.select.allow_bootstrap_iface, snapshot).err();
    request.select.allow_bootstrap_iface |= route.is_some();
    let lost = [route, own, peer].into_iter().flatten();
    lost.map(|e| format!("{e:#}")).collect()
}

/// An uplink among the NICs that are meant now, or that a stored plan has; or no way to know what
/// the job's own one is.
pub(super) fn uplink(context: &CheckContext) -> Vec<Finding> {
    let plans = context.of.plans.iter();
    let moving: Vec<&Plan> = plans.filter(|plan| plan.moves()).collect();
    if !context.of.request.moves() && moving.is_empty() {
        return Vec::new();
    }
    let unguarded = unguarded(&mut context.of.request.clone(), context.of.snapshot);
    let lost = unguarded.into_iter().map(|seen| {
        let why = "`rdmaprep prepare` refuses this: nothing would keep the interface that nodes \
            meet over from a container";
        let fix = "give the address or route back to its interface, or correct \
            --bootstrap-address (LOCAL_IP), --peer-address (REMOTE_IP)";
        Finding::new(Check::Uplink, Severity::Breaks, seen, why, fix)
    });
    lost.chain(guarded(context, &moving))
        .chain(not_asked(context))
        .collect()
}

/// Whether the kernel could be asked for all that the host uses.
fn not_asked(context: &CheckContext) -> Option<Finding> {
    let snapshot = context.of.snapshot;
    let guard = uplinks(true, snapshot).unwrap_or_default();
    let first = snapshot
        .paths
        .as_ref()
        .and_then(|_| not_known(snapshot, &guard).into_iter().next())?;
    let seen = format!("which links the host uses is not known in full: {first}");
    let why = "the create hook moves no NIC then: any may be what the host lives on";
    let fix = "mend what is named here; or prepare plans with --allow-bootstrap-iface, which \
        lifts the guard";
    Some(Finding::new(
        Check::Uplink,
        Severity::Unknown,
        seen,
        why,
        fix,
    ))
}

fn guarded(context: &CheckContext, moving: &[&Plan]) -> Vec<Finding> {
    let Ok(guard) = uplinks(true, context.of.snapshot) else {
        return Vec::new();
    };
    let own = by_own_sessions(&guard, context.of.snapshot);
    let why =
        "when a container takes it, the host and everybody who is logged in loses the network";
    let mut kept = context.kept();
    kept.retain(|rail| context.of.request.moves() && !own.contains(rail.name()));
    let mut found = Vec::new();
    for rail in &kept {
        let Some(clause) = guard.get(rail.name()) else {
            continue;
        };
        let seen = format!("{} is in the set, and {clause}", rail.name());
        let fix = "remove it from --ifaces (RDMA_IFACES), and unset --allow-bootstrap-iface";
        found.push(Finding::new(
            Check::Uplink,
            Severity::Breaks,
            seen,
            why,
            fix,
        ));
    }
    for plan in moving {
        let names = plan.nics.iter().map(|n| n.name());
        // A plan that was allowed to take it takes no more with it than that session.
        let accepts = |name: &&IfName| plan.allow_bootstrap && own.contains(*name);
        let mut guarded = names.filter(|name| !accepts(name));
        let Some((name, clause)) = guarded.find_map(|n| Some((n, guard.get(n)?))) else {
            continue;
        };
        let seen = format!("plan {} has {name}, which {clause}", plan.name);
        let rails = plan.rails().map(|n| n.name());
        let rest = rails
            .filter(|n| !guard.contains_key(*n))
            .map(IfName::as_str)
            .collect::<Vec<_>>()
            .join(" ");
        let fix = format!("prepare the plan without it, {AGAIN}");
        let one = Finding::new(Check::Uplink, Severity::Breaks, seen, why, fix);
        found.push(Finding {
            run: context.prepare_again(plan, &rest).into_iter().collect(),
            ..one
        });
    }
    found
}

pub(super) fn asymmetric(context: &CheckContext) -> Vec<Finding> {
    context
        .jobs()
        .iter()
        .flat_map(|job| uneven(context, job))
        .collect()
}

fn rate(rail: &Rail) -> Option<String> {
    rail.port.rate.clone().filter(|rate| !rate.is_empty())
}

fn pcie_link(levels: &Levels, rail: &Rail) -> Option<String> {
    let function = levels.function(rail.hca.pci?)?;
    let speed = function.link_speed.as_deref()?;
    let width = function.link_width?;
    Some(format!("{} x{width}", speed.trim_end_matches(" PCIe")))
}

fn uneven(context: &CheckContext, kept: &[Rail]) -> Vec<Finding> {
    let levels = Levels::new(context.of.snapshot);
    let why = "a collective runs at the pace of its slowest rail";
    let mut found = Vec::new();
    found.extend(untold(kept, rate));
    if let Some((seen, most)) = unequal(kept, rate) {
        let fix = format!(
            "look for a port that came up at a lower rate; a slower card is better left out: \
            prepare the plan without it, {AGAIN}"
        );
        let seen = format!("the rails' rates differ: {seen}");
        let one = Finding::new(Check::AsymmetricRails, Severity::Warning, seen, why, fix);
        found.push(Finding {
            run: context.prepare(kept, &most).into_iter().collect(),
            ..one
        });
    }
    if let Some((seen, _)) = unequal(kept, |r| pcie_link(&levels, r)) {
        let seen = format!("the rails' PCIe links differ: {seen}");
        let fix = "a link that trained below its card's speed or width: reseat the card, look at \
            the slot and the BIOS";
        found.push(Finding::new(
            Check::AsymmetricRails,
            Severity::Warning,
            seen,
            why,
            fix,
        ));
    }
    found
}

fn untold(kept: &[Rail], rate: impl Fn(&Rail) -> Option<String>) -> Option<Finding> {
    let names: Vec<&IfName> = kept
        .iter()
        .filter(|r| rate(r).is_none())
        .map(|r| r.name())
        .collect();
    let seen = format!("the rate of {} is unknown", join(&names));
    let why = "a collective runs at the pace of its slowest rail, and this may be one";
    let fix = "compare ports/*/rate below /sys/class/infiniband, or ethtool NIC; a driver that \
        tells none may be too old";
    let any = !names.is_empty() && kept.len() > 1;
    any.then(|| Finding::new(Check::AsymmetricRails, Severity::Unknown, seen, why, fix))
}

/// `400 Gb/sec (4X NDR)`, in tenths: 2.5 is one.
fn tenths(rate: &str) -> u64 {
    let number = rate
        .split_whitespace()
        .next()
        .and_then(|n| n.parse::<f64>().ok());
    number.map_or(0, |n| (n * 10.0) as u64)
}

/// What rails have by value, and the names of the group that carries the most, where there are
/// several.
fn unequal(rails: &[Rail], value: impl Fn(&Rail) -> Option<String>) -> Option<(String, String)> {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for (rail, value) in rails.iter().filter_map(|r| Some((r, value(r)?))) {
        let name = rail.name().as_str();
        match groups.iter_mut().find(|(v, _)| *v == value) {
            Some((_, names)) => names.push(name),
            None => groups.push((value, vec![name])),
        }
    }
    // Of equal groups the one of the first rail.
    let (_, most) = groups
        .iter()
        .rev()
        .max_by_key(|(value, names)| tenths(value) * names.len() as u64)?;
    let text = groups
        .iter()
        .map(|(v, names)| format!("{} {v}", join(names)))
        .collect::<Vec<_>>()
        .join("; ");
    (groups.len() > 1).then(|| (text, most.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::roce_mtu;

    #[test]
    fn packets_of_every_mtu() {
        let sizes = [351, 352, 1500, 2143, 2144, 4191, 4192, 9000].map(roce_mtu);
        assert_eq!(
            sizes,
            [
                None,
                Some(256),
                Some(1024),
                Some(1024),
                Some(2048),
                Some(2048),
                Some(4096),
                Some(4096)
            ]
        );
    }
}
