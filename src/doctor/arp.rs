//! How rails that share a subnet answer ARP: by the effective values, the greater of `all` and each
//! one's own.

use rdma_model::arp::ArpProfile;

use rdma_model::ids::IfName;
use rdma_model::snapshot::Snapshot;
use rdma_model::step::NicState;

use super::{Check, CheckContext, Finding, Severity, join};
use crate::plan::rails::{Group, Why, effective, groups};

struct Wired<'a> {
    name: &'a IfName,
    arp: ArpProfile,
    /// Whether a rule `from` its address gives it an answer of its own.
    apart: bool,
}

pub(super) fn profiles(context: &CheckContext) -> Vec<Finding> {
    let snapshot = context.of.snapshot;
    let states: Vec<NicState> = context
        .meant()
        .iter()
        .filter_map(|r| NicState::of(snapshot, r.name()))
        .collect();
    let wires = groups(&states)
        .into_iter()
        .filter(|g| matches!(g.why, Why::Subnet(net) if net.addr().is_ipv4()));
    wires
        .flat_map(|wire| on_wire(&wire, &states, snapshot))
        .collect()
}

fn on_wire(wire: &Group, states: &[NicState], snapshot: &Snapshot) -> Vec<Finding> {
    let mut rails = Vec::new();
    for state in states {
        let name = &state.netdev.name;
        if let Some(arp) = effective(snapshot, name).filter(|_| wire.rails.contains(name)) {
            let mut sources = state.rules.iter().filter_map(|r| r.source);
            let addresses = &state.netdev.addresses;
            let apart = sources.any(|net| addresses.iter().any(|a| net.contains(&a.address)));
            rails.push(Wired { name, arp, apart });
        }
    }
    silent(wire, &rails, snapshot)
        .into_iter()
        .chain(promiscuous(wire, &rails))
        .collect()
}

fn silent(wire: &Group, rails: &[Wired], snapshot: &Snapshot) -> Option<Finding> {
    let mut wrong: Vec<&Wired> = rails.iter().collect();
    wrong.retain(|r| !r.apart && (r.arp.filter == 1 || r.arp.rp_filter == 1));
    let seen = format!(
        "{}, without a rule of its own",
        wrong_profile(wire, &wrong)?
    );
    let why = "arp_filter=1 and rp_filter=1 ask the routing table, which names one NIC for the \
        subnet: the others resolve no peer, and what comes in by them is dropped";
    let fix = "arp_filter 0 and rp_filter 2, or a rule `from` each address with a table of its \
        own, as containers get them";
    // Loose wins over strict, since the greater value counts; a filter of `all` does not go away
    // so.
    let all = snapshot
        .sysctls
        .get("ipv4/conf/all/arp_filter")
        .is_some_and(|v| v != "0");
    let all = all.then(|| write("all", "arp_filter", 0));
    let each = wrong.iter().flat_map(|r| {
        [
            write(r.name.as_str(), "arp_filter", 0),
            write(r.name.as_str(), "rp_filter", 2),
        ]
    });
    Some(Finding {
        run: all.into_iter().chain(each).collect(),
        ..Finding::new(Check::Arp, Severity::Breaks, seen, why, fix)
    })
}

fn promiscuous(wire: &Group, rails: &[Wired]) -> Option<Finding> {
    let wrong: Vec<&Wired> = rails
        .iter()
        .filter(|r| r.arp.announce < 2 || r.arp.ignore < 1)
        .collect();
    let seen = wrong_profile(wire, &wrong)?;
    let why = "each of them answers for the addresses of all: peers send one rail's traffic into \
        another, which has not its GID";
    let fix = "arp_announce 2 and arp_ignore 1 on each; in a container they have them";
    let each = wrong.iter().flat_map(|r| {
        [
            write(r.name.as_str(), "arp_announce", 2),
            write(r.name.as_str(), "arp_ignore", 1),
        ]
    });
    Some(Finding {
        run: each.collect(),
        ..Finding::new(Check::Arp, Severity::Warning, seen, why, fix)
    })
}

/// By path: `sysctl` takes the dots of a VLAN's name for slashes.
fn write(dev: &str, leaf: &str, value: u8) -> String {
    format!("echo {value} > /proc/sys/net/ipv4/conf/{dev}/{leaf}")
}

fn wrong_profile(wire: &Group, wrong: &[&Wired]) -> Option<String> {
    let first = wrong.first()?;
    let same = wrong.iter().all(|r| r.arp == first.arp);
    let values = if same {
        first.arp.to_string()
    } else {
        join(wrong.iter().map(|r| r.arp))
    };
    let names = join(wrong.iter().map(|r| r.name));
    Some(format!(
        "{wire}; effective arp_announce/ignore/filter/rp_filter of {names}: {values}"
    ))
}
