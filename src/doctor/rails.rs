//! NICs that a job would do without: a port that is down, GIDs that are not what peers reach.

use rdma_model::escape::is_plain;
use rdma_model::ids::IfName;
use rdma_model::snapshot::{Address, Gid, GidKind, Hca, Port};
use rdma_model::step::IFA_F_NOPREFIXROUTE;
use rdma_model::values::Family;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::IpAddr;

use super::context::Intent;
use super::{Check, CheckContext, Finding, Rail, Severity, join};
use crate::select::DropCode;
use crate::select::candidates::{counts, gid_fix, port_label};

pub(super) fn ports(context: &CheckContext) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut unsaid = Vec::new();
    let mut dark: Vec<(Severity, Rail)> = Vec::new();
    for rail in context.rails().into_iter().filter(|r| is_down(r.port)) {
        match context.intent(&rail) {
            Intent::Meant => dark.push((Severity::Breaks, rail)),
            Intent::Unplanned => dark.push((Severity::Warning, rail)),
            Intent::Unknown => unsaid.push(format!(
                "{} of {}",
                port_label(rail.hca, rail.port),
                rail.name()
            )),
            Intent::Unmeant => {}
        }
    }
    dark.sort_by_key(alike);
    let groups = dark.chunk_by(|one, other| alike(one) == alike(other));
    found.extend(groups.filter_map(|rails| finding(context, rails)));
    for fabric in context.fabrics() {
        let dark: Vec<&Port> = fabric
            .ports
            .iter()
            .copied()
            .filter(|p| is_down(p))
            .collect();
        if fabric.ports.len() - dark.len() >= fabric.needs {
            continue;
        }
        match fabric.wanted {
            Intent::Unknown => unsaid.extend(dark.iter().map(|p| port_label(fabric.hca, p))),
            Intent::Unmeant => {}
            _ => found.extend(dark.iter().map(|p| dark_fabric(fabric.hca, p))),
        }
    }
    found.extend(whose(context, &unsaid));
    found.extend(stateless(context));
    found
}

/// A port without a state, as in captured trees, is not known to be down.
fn is_down(port: &Port) -> bool {
    port.state.is_some() && !port.is_active()
}

const SKIPPED: &str =
    "NCCL skips such a port without a word, and a container with this NIC does not start";

/// Rails that are alike in these are one finding.
fn alike((severity, rail): &(Severity, Rail)) -> (Severity, bool, Option<String>) {
    (*severity, rail.netdev.up, rail.port.state.clone())
}

fn finding(context: &CheckContext, rails: &[(Severity, Rail)]) -> Option<Finding> {
    let (severity, first) = rails.first()?;
    let labels = join(
        rails
            .iter()
            .map(|(_, r)| format!("{} of {}", port_label(r.hca, r.port), r.name())),
    );
    let names = join(rails.iter().map(|(_, r)| r.name()));
    let (are, them) = if rails.len() == 1 {
        ("is", "it")
    } else {
        ("are", "them")
    };
    let seen = format!(
        "{labels} {are} {}, not ACTIVE",
        first.port.state.as_deref().unwrap_or_default()
    );
    let found = Finding::new(
        Check::PortDown,
        *severity,
        seen,
        SKIPPED,
        "check cable, transceiver and switch port",
    );
    if first.netdev.up {
        return Some(found);
    }
    let mut commands = Vec::new();
    for (_, rail) in rails {
        commands.push(format!("ip link set {} up", rail.name()));
        // IPv6 addresses have gone with the link.
        commands.extend(planned(context, rail, Family::V6));
    }
    Some(Finding {
        fix: format!("{names} {are} switched off: set {them} up"),
        run: commands,
        ..found
    })
}

fn dark_fabric(hca: &Hca, port: &Port) -> Finding {
    let state = port.state.as_deref().unwrap_or("in no known state");
    let seen = format!(
        "the InfiniBand port {} is {state}, not ACTIVE",
        port_label(hca, port)
    );
    // IB_PORT_INIT: the cable is well, and no subnet manager has given the port its address.
    let fix = match state {
        "INIT" | "ARMED" => {
            "its link is up, and no subnet manager has set it up: see to the one of this fabric \
            (sminfo)"
        }
        _ => "check cable, transceiver and switch port",
    };
    let why = "NCCL skips such a port without a word";
    Finding::new(Check::PortDown, Severity::Breaks, seen, why, fix)
}

/// Ports that are down, without an address, where nothing says which NICs are meant: they may not
/// be in use.
fn whose(context: &CheckContext, unsaid: &[String]) -> Option<Finding> {
    let besides = if context.has_network() {
        ", without an address, in no stored plan"
    } else {
        ""
    };
    let seen = format!(
        "{}: not ACTIVE{besides}: whether a job wants it is not known",
        join(unsaid)
    );
    let fix = "if one does: cable, switch port, its address. If not, store a plan of those that \
        are meant (rdmaprep prepare), or name them in --ifaces, and this is not reported again";
    let found = Finding::new(
        Check::PortDown,
        Severity::Unknown,
        seen,
        "NCCL skips such a port without a word",
        fix,
    );
    (!unsaid.is_empty()).then_some(found)
}

/// HCAs without a port, and ports without a state.
fn stateless(context: &CheckContext) -> Option<Finding> {
    let mut dark: Vec<String> = Vec::new();
    for hca in context
        .of
        .snapshot
        .hcas
        .iter()
        .filter(|_| !context.is_inside())
    {
        dark.extend(hca.ports.is_empty().then(|| hca.name.to_string()));
        dark.extend(
            hca.ports
                .iter()
                .filter(|p| p.state.is_none())
                .map(|p| port_label(hca, p)),
        );
    }
    let seen = format!("whether the ports of {} are ACTIVE is unknown", join(&dark));
    let fix = "see `rdma link`, and ports/*/state below /sys/class/infiniband";
    let found = Finding::new(
        Check::PortDown,
        Severity::Unknown,
        seen,
        "NCCL skips a port that is not, without a word",
        fix,
    );
    (!dark.is_empty()).then_some(found)
}

pub(super) fn gids(context: &CheckContext) -> Vec<Finding> {
    let mut found = Vec::new();
    for rail in context.rails() {
        if rail.port.is_ethernet() && rail.port.is_active() {
            found.extend(absent(context, &rail));
            found.extend(stale(context, &rail));
        }
    }
    found
}

fn own_gids<'a>(rail: &'a Rail) -> impl Iterator<Item = &'a Gid> {
    let v2 = rail
        .port
        .gids
        .iter()
        .filter(|g| g.kind == Some(GidKind::RoceV2));
    v2.filter(|g| g.netdev.as_ref().is_none_or(|n| n == rail.name()))
}

fn absent(context: &CheckContext, rail: &Rail) -> Option<Finding> {
    if rail.verdict.gid.is_some() || context.is_as_planned(rail) {
        return None;
    }
    let (label, family) = (
        port_label(rail.hca, rail.port),
        context.of.request.select.family,
    );
    let severity = match context.intent(rail) {
        Intent::Meant => Severity::Breaks,
        Intent::Unplanned | Intent::Unknown => Severity::Warning,
        Intent::Unmeant => return None,
    };
    let mut gids = own_gids(rail).peekable();
    let alone = gids.peek().is_some() && gids.all(|g| g.address.is_unicast_link_local());
    if !rail.netdev.addresses.iter().any(|a| counts(a, family)) {
        let what = if alone {
            "only link-local RoCE v2 GIDs"
        } else {
            "no RoCE v2 GID that counts"
        };
        let seen = format!(
            "{label} has {what}, as {} has no {}",
            rail.name(),
            family.noun()
        );
        let why = "NCCL would talk from an address that no other host has a way to: its first \
            connection times out";
        let at_work = context.of.machine.and_then(|m| m.at_work(rail.name()));
        let (fix, run) = match at_work {
            Some(at_work) => (at_work.until(rail.name()), Vec::new()),
            None => (
                "give it its address, or let others count: --family".to_owned(),
                planned(context, rail, Family::Any),
            ),
        };
        let found = Finding::new(Check::Gids, severity, seen, why, fix);
        return Some(Finding { run, ..found });
    }
    let dropped = rail.verdict.dropped.as_ref();
    let (seen, fix) = match dropped.filter(|d| d.code == DropCode::NoGid) {
        Some(drop) if drop.why.starts_with(&label) => (drop.why.clone(), drop.fix.clone()),
        Some(drop) => {
            let seen = format!("{label} of {}: {}", rail.name(), drop.why);
            (seen, drop.fix.clone())
        }
        None => (
            format!(
                "{label} has no RoCE v2 GID of an {} of {}",
                family.noun(),
                rail.name()
            ),
            gid_fix(rail.netdev, rail.port, family),
        ),
    };
    let why = "without it nothing of RoCE v2 leaves this port, and a container with this NIC does \
        not start";
    Some(Finding::new(Check::Gids, severity, seen, why, fix))
}

/// The flags of an address that are settings, as iproute2 spells them: IFA_F_NODAD,
/// IFA_F_HOMEADDRESS, IFA_F_MANAGETEMPADDR, IFA_F_NOPREFIXROUTE and IFA_F_MCAUTOJOIN
/// (include/uapi/linux/if_addr.h).
const FLAGS: [(u32, &str); 5] = [
    (0x02, " nodad"),
    (0x10, " home"),
    (0x100, " mngtmpaddr"),
    (IFA_F_NOPREFIXROUTE, " noprefixroute"),
    (0x400, " autojoin"),
];

/// What gives a NIC the addresses of a family back that a plan knows: as they were, since the plan
/// is for these.
fn planned(context: &CheckContext, rail: &Rail, family: Family) -> Vec<String> {
    let mut nics = context.of.plans.iter().flat_map(|p| &p.nics);
    let nic = nics.find(|n| n.identity.name == *rail.name());
    let mut commands = Vec::new();
    for a in nic.iter().flat_map(|n| &n.addresses) {
        let is_own = counts(a, family) && a.valid_lft.is_none() && rail.netdev.master.is_none();
        if is_own && !has_address(context, a) {
            commands.push(add_address(a, rail.name()));
        }
    }
    commands
}

/// Whether any netdev has it: a bridge or bond that the NIC has come into may.
fn has_address(context: &CheckContext, address: &Address) -> bool {
    let netdevs = context.of.snapshot.netdevs.iter();
    let mut all = netdevs.flat_map(|n| &n.addresses);
    all.any(|other| other.address == address.address)
}

/// The command that adds it to the NIC of that name.
fn add_address(address: &Address, dev: &IfName) -> String {
    let label = address.label.as_deref();
    let label = label.filter(|l| is_plain(l, b":_.-") && *l != dev.as_str());
    let flags = FLAGS.iter().filter(|(bit, _)| address.flags & bit != 0);
    let more = [
        word("broadcast", address.broadcast),
        word("label", label),
        word("scope", Some(address.scope).filter(|scope| *scope != 0)),
        word("metric", address.metric),
        flags.map(|(_, word)| *word).collect(),
    ];
    let peer = word("peer", address.peer);
    let (prefix, more) = (address.prefix, more.concat());
    format!(
        "ip address add {}{peer}/{prefix}{more} dev {dev}",
        address.address
    )
}

fn word(name: &str, value: Option<impl Display>) -> String {
    value.map_or_else(String::new, |value| format!(" {name} {value}"))
}

/// Those of addresses that the NIC no longer has.
fn stale(context: &CheckContext, rail: &Rail) -> Option<Finding> {
    if context.is_unmeant(rail) {
        return None;
    }
    let old: Vec<&Gid> = own_gids(rail)
        .filter(|g| !g.address.is_unicast_link_local() && !rail.netdev.has(g.ip()))
        .collect();
    if old.is_empty() {
        return None;
    }
    let gids = join(
        old.iter()
            .map(|g| format!("{} at index {}", g.ip(), g.index)),
    );
    let seen = format!(
        "{} has RoCE v2 GIDs of no address of {}: {gids}",
        port_label(rail.hca, rail.port),
        rail.name()
    );
    let why = "NCCL may choose one of these, and answers to it go elsewhere or nowhere";
    let own = old.iter().filter(|g| g.netdev.is_some());
    let ips: BTreeSet<IpAddr> = own.map(|g| g.ip()).collect();
    let mut run = Vec::new();
    for ip in ips {
        let (prefix, nodad) = match ip {
            IpAddr::V4(_) => (32, ""),
            IpAddr::V6(_) => (128, " nodad"),
        };
        let name = rail.name();
        run.push(format!("ip address add {ip}/{prefix} dev {name}{nodad}"));
        run.push(format!("ip address del {ip}/{prefix} dev {name}"));
    }
    let fix = match run.is_empty() {
        true => "see gid_attrs/ndevs below /sys/class/infiniband: whose they are is not known",
        false => {
            "add each address and take it away: the kernel then drops its GIDs, which it keeps \
            when the link goes down"
        }
    };
    let found = Finding::new(Check::Gids, Severity::Breaks, seen, why, fix);
    Some(Finding { run, ..found })
}
