//! What NCCL makes of its settings here: the traps, and a choice other than the NICs that are
//! meant.

use rdma_model::snapshot::{Gid, Netdev};
use std::collections::BTreeSet;

use nccl_rules::explain::{Bootstrap, Endpoint, Explanation, Trap, explain_named};
use nccl_rules::rails;
use nccl_rules::settings::Settings;
use rdma_model::escape::shell_word;

use super::{Check, CheckContext, Finding, Rail, Severity, join};
use crate::select::candidates::port_label;

/// By `nccl explain`, of the release that the host names, else the newest.
pub(super) fn pick(context: &CheckContext) -> Vec<Finding> {
    let settings = match context.of.settings {
        Ok(settings) => settings,
        Err(why) => return vec![untold(why)],
    };
    // Without an HCA there is nothing to choose from, and other checks tell.
    if context.of.snapshot.hcas.is_empty() {
        return Vec::new();
    }
    let explained = explain_named(settings, context.of.snapshot, context.release(), &|_| None);
    let container = context
        .of
        .container
        .map(|id| format!(" --container {}", shell_word(id)))
        .unwrap_or_default();
    let fix = format!(
        "`rdmaprep nccl explain{container}` tells every interface and HCA with its reason; \
        `rdmaprep env` the settings that fit"
    );
    let mut found: Vec<Finding> = explained
        .warnings
        .iter()
        .filter(|w| concerns_a_job(w.trap, settings, context))
        .map(|w| {
            // Here the GID table is the one that NCCL reads. Before a container starts it may still
            // change, so there it is no refusal.
            let breaks = w.fatal || matches!(w.trap, Trap::NoGid | Trap::GidType);
            let severity = if breaks {
                Severity::Breaks
            } else {
                Severity::Warning
            };
            Finding::new(
                Check::Nccl,
                severity,
                w.text.clone(),
                consequence(w.trap),
                &fix,
            )
        })
        .collect();
    found.extend(other(context, settings, &explained));
    found.extend(other_gid(context, &explained));
    found.extend(bridged(context, &explained.bootstrap));
    found
}

/// A host may have two link layers, and rails of two families: its jobs get the HCAs of one.
fn concerns_a_job(trap: Trap, settings: &Settings, context: &CheckContext) -> bool {
    let has_list = settings.get("NCCL_IB_HCA").is_some_and(|v| !v.is_empty());
    !matches!(trap, Trap::Layers | Trap::Families) || has_list || context.is_inside()
}

/// Of the rails that one job has together. Settings that are not known may keep to one rail.
pub(super) fn hint(context: &CheckContext) -> Option<String> {
    let settings = context.of.settings.ok()?;
    let of_job = |rails: Vec<Rail>| {
        let netdevs: Vec<&Netdev> = rails.iter().map(|rail| rail.netdev).collect();
        rails::hint(settings, context.of.snapshot, &netdevs)
    };
    context.jobs().into_iter().find_map(of_job)
}

/// In a container: a GID of another address than the plan's. What is no address of a rail's is
/// among NCCL's traps.
fn other_gid(context: &CheckContext, explained: &Explanation) -> Option<Finding> {
    let rails = context.of.plans.iter().flat_map(|p| p.rails());
    let planned: Vec<(String, &Gid)> = rails
        .filter_map(|nic| {
            Some((
                format!("{}:{}", nic.hca.as_ref()?, nic.port?),
                nic.gid.as_ref()?,
            ))
        })
        .collect();
    let mut seen: Vec<String> = Vec::new();
    for of in explained.gids.iter().filter(|_| context.is_inside()) {
        let Some(gid) = of
            .gid
            .as_ref()
            .filter(|g| !g.address.is_unicast_link_local())
        else {
            continue;
        };
        let meant = planned.iter().find(|(label, _)| *label == of.port);
        if let Some((label, meant)) = meant.filter(|(_, meant)| meant.ip() != gid.ip()) {
            let (index, taken, meant) = (gid.index, gid.ip(), meant.ip());
            seen.push(format!(
                "GID {index} ({taken}) on {label}, where the plan has {meant}"
            ));
        }
    }
    if seen.is_empty() {
        return None;
    }
    let seen = format!("NCCL takes {}", seen.join("; "));
    let why = "peers that reach only the planned address wait for this rank";
    let fix = "set NCCL_IB_ADDR_RANGE to the network of the rails, or take the other address away";
    Some(Finding::new(Check::Nccl, Severity::Warning, seen, why, fix))
}

/// In a container with NICs: the bootstrap goes over a veth of the engine's. podman and Docker give
/// every host the same private subnet, and ranks of other nodes connect to the address that NCCL
/// announces.
fn bridged(context: &CheckContext, bootstrap: &Bootstrap) -> Option<Finding> {
    let Bootstrap::Uses(
        Endpoint {
            interface, address, ..
        },
        _,
    ) = bootstrap
    else {
        return None;
    };
    let meant = context.meant();
    let own = meant.first().filter(|_| context.is_inside())?.name();
    // Without the label that an address may have.
    let dev = interface.split(':').next()?;
    let mut links = context.of.snapshot.netdevs.iter();
    let veth = links.find(|l| l.kind.as_deref() == Some("veth") && l.name.as_str() == dev)?;
    if meant.iter().any(|rail| *rail.name() == veth.name) {
        return None;
    }
    let seen =
        format!("NCCL bootstraps over {interface} with {address}: a veth, which ends on this host");
    let why =
        "where other nodes have no route to that address, their ranks hang in ncclCommInitRank";
    let fix = format!(
        "start it with `--network none`, or set NCCL_SOCKET_IFNAME=={own} and \
        GLOO_SOCKET_IFNAME={own}; nothing where all nodes route this network, as in Kubernetes"
    );
    Some(Finding::new(Check::Nccl, Severity::Unknown, seen, why, fix))
}

fn untold(why: &str) -> Finding {
    let seen = format!("NCCL's settings there are unknown: {why}");
    let fix = "see what its /etc/nccl.conf is on, and whether its init is stopped in a file \
        system that does not answer";
    let why =
        "which interfaces and HCAs it takes is unknown, and what starts there may hang as well";
    Finding::new(Check::Nccl, Severity::Unknown, seen, why, fix)
}

fn consequence(trap: Trap) -> &'static str {
    match trap {
        Trap::NoInterface | Trap::NoNetwork | Trap::NoRing | Trap::Merge => {
            "no rank gets past ncclCommInitRank"
        }
        Trap::Loopback => "ranks on other hosts wait for this one for ever",
        Trap::Crash | Trap::Overrun => {
            "ranks of such a release end by a signal, or take other HCAs than the setting says"
        }
        Trap::NoHca => "the job runs at the pace of TCP, and nothing but NCCL_DEBUG=INFO tells",
        Trap::PoorGid => "peers behind a router are out of reach: the job ends or hangs there",
        Trap::GidTable => {
            "the job runs at the pace of TCP at best, and nothing but NCCL_DEBUG=INFO tells"
        }
        Trap::NoGid | Trap::ForeignGid | Trap::GidType | Trap::NoConnection => {
            "no connection over such a port comes up: the job ends or hangs at its first collective"
        }
        Trap::NotRunning | Trap::Label | Trap::Overridden => {
            "the ranks meet over another interface than is meant"
        }
        Trap::Layers | Trap::Families => {
            "a pair of ranks with ports of both ends with an error when it connects"
        }
        Trap::Planes => {
            "NCCL refuses the list and uses no HCA: the job runs at the pace of TCP at best"
        }
        Trap::Name => "NCCL reads no such name: the setting has no effect",
        Trap::NotJudged => "what it makes of these settings is not known here",
        _ => "NCCL takes other interfaces or HCAs than the setting seems to say, without a warning",
    }
}

/// Where HCAs were chosen, or a container has some: NCCL takes others.
fn other(context: &CheckContext, settings: &Settings, explained: &Explanation) -> Option<Finding> {
    let chosen = context.is_inside() || settings.get("NCCL_IB_HCA").is_some();
    let meant = labels(&context.meant());
    // One that is addressed, and in no plan, is in use as well.
    let kept = labels(&context.kept());
    let taken: BTreeSet<String> = explained.hcas.iter().cloned().collect();
    let mut more: BTreeSet<&String> = taken.difference(&kept).collect();
    for hca in &context.of.snapshot.hcas {
        for port in hca.ports.iter().filter(|p| p.is_infiniband()) {
            more.remove(&port_label(hca, port));
        }
    }
    // A list that has them is right again when they are home.
    for hca in context.of.held.iter().filter_map(|h| h.hca.as_ref()) {
        more.retain(|label| label.split(':').next() != Some(hca.as_str()));
    }
    // The list is one job's.
    let all_of_one = context
        .jobs()
        .iter()
        .any(|job| !job.is_empty() && labels(job).is_subset(&taken));
    let less: Vec<&String> = meant.difference(&taken).filter(|_| !all_of_one).collect();
    if !chosen || taken.is_empty() || meant.is_empty() || more.is_empty() && less.is_empty() {
        return None;
    }
    let mut seen = format!("NCCL takes {}", join(&taken));
    if !more.is_empty() {
        seen += &format!("; {} is none of the NICs that are meant", join(more.iter()));
    }
    if !less.is_empty() {
        seen += &format!("; it leaves out {}", join(less.iter()));
    }
    let severity = if more.is_empty() {
        Severity::Warning
    } else {
        Severity::Breaks
    };
    let why = "an HCA without its netdev here connects to no peer, and nodes that take different \
        numbers of HCAs hang";
    let fix = format!("NCCL_IB_HCA={}", list(context));
    Some(Finding::new(Check::Nccl, severity, seen, why, fix))
}

fn labels(rails: &[Rail]) -> BTreeSet<String> {
    rails.iter().map(|r| port_label(r.hca, r.port)).collect()
}

fn list(context: &CheckContext) -> String {
    let mut entries = Vec::new();
    for rail in context.meant() {
        entries.push(match rail.hca.ports.len() {
            0 | 1 => rail.hca.name.to_string(),
            _ => port_label(rail.hca, rail.port),
        });
    }
    format!("={}", entries.join(","))
}
