//! The rules of the selection: one function per reason to drop a candidate, in one ordered array.

pub mod names;
mod ports;
mod stacked;

use rail_agreement::Device;
use rdma_model::snapshot::Netdev;

use crate::config::policy::PolicyDevice;
use crate::select::candidates::{Candidate, Context, choose_gid, port_label};
use crate::select::protected_ifaces::Guarded;
use crate::select::{Drop, DropCode, Verdict};
use ports::{finite_lifetime, no_address, no_gid, port_down, queueing_discipline};
use rdma_model::upper_lower;
use stacked::{carries, child, enslaved};

/// The rules in the order in which they are tested, which is that of [`DropCode`]; its last two are
/// for [`super::fabrics`] and [`super::link_layers`].
const RULES: [fn(&Context, &Candidate) -> Option<Drop>; 20] = [
    forbidden,
    held,
    ambiguous,
    iwarp,
    not_rdma,
    no_netdev,
    excluded,
    is_uplink,
    is_bootstrap,
    enslaved,
    child,
    carries,
    queueing_discipline,
    no_address,
    port_down,
    no_gid,
    finite_lifetime,
    infiniband,
    failed_test,
    not_in_peer_set,
];

const HELD: &str = "stop that container; if it has ended: rdmaprep restore --all --stale";

pub fn judge(context: &Context, candidate: &Candidate) -> Verdict {
    let dropped = refusal(context, candidate);
    let (hca, pci) = (candidate.hca, candidate.netdev.and_then(|n| n.pci));
    let function = pci.and_then(|at| context.snapshot.pci.iter().find(|f| f.address == at));
    Verdict {
        netdev: candidate.name.clone(),
        hca: hca.map(|h| h.name.clone()),
        port: candidate.port.map(|p| p.number),
        gid: choose_gid(context, candidate).ok().cloned(),
        pci: hca.and_then(|h| h.pci).or(pci),
        numa: hca.and_then(|h| h.numa).or(function.and_then(|f| f.numa)),
        note: if dropped.is_none() {
            note(context, candidate)
        } else {
            None
        },
        dropped,
    }
}

/// The first reason. Of a NIC that is named, or that a list of names leaves out, further ones too:
/// the fix of one alone would lead to the next.
fn refusal(context: &Context, candidate: &Candidate) -> Option<Drop> {
    let moves = context.request.moves();
    let all = RULES.iter().filter_map(|rule| rule(context, candidate));
    let mut all = all.filter(|d| moves || !d.code.is_about_moves());
    let first = all.next()?;
    let is_listed = first.code == DropCode::Excluded && narrowed(context, candidate).is_none();
    // What is no NIC for RDMA at all has no further reason.
    let is_named = first.code > DropCode::Excluded && candidate.named(context);
    if !is_listed && !is_named {
        return Some(first);
    }
    let mut reasons = vec![first];
    // What sits on another NIC is taken if it is named.
    for next in all.filter(|d| !matches!(d.code, DropCode::Child | DropCode::NotInPeerSet)) {
        // Without an address, or a link, there is no GID.
        let follows = reasons
            .iter()
            .any(|d| matches!(d.code, DropCode::NoAddress | DropCode::PortDown));
        if next.code != DropCode::NoGid || !follows {
            reasons.push(next);
        }
    }
    // The fix of a protected NIC says itself that the NIC has to be named.
    let is_guarded = reasons
        .iter()
        .any(|d| matches!(d.code, DropCode::Uplink | DropCode::Bootstrap));
    let fixes = if is_listed && is_guarded {
        &reasons[1..]
    } else {
        &reasons[..]
    };
    let why = reasons
        .iter()
        .map(|d| d.why.as_str())
        .collect::<Vec<_>>()
        .join("; ");
    let fix = fixes
        .iter()
        .map(|d| d.fix.as_str())
        .collect::<Vec<_>>()
        .join("; ");
    let mut codes = reasons.iter().map(|d| d.code);
    Some(Drop {
        code: codes.next()?,
        also: codes.collect(),
        why,
        fix,
    })
}

fn note(context: &Context, candidate: &Candidate) -> Option<String> {
    let Some(netdev) = candidate.netdev else {
        return Some("InfiniBand: its device node and NCCL_IB_HCA, no netdev to move".to_owned());
    };
    let guard = context
        .uplinks
        .get(&netdev.name)
        .or(context.bootstrap.get(&netdev.name));
    let moves = context.request.moves();
    let guard = guard.map(|why| match moves {
        true => format!("taken as asked, although it {why}"),
        false => format!("the host uses it, too: it {why}"),
    });
    let placeholder = context
        .blind()
        .then(|| "placeholder: no RDMA device behind it".to_owned());
    let below = upper_lower::lower(context.snapshot, netdev).map(|d| format!("sits on {}", d.name));
    let bond = (moves && upper_lower::is_bond(netdev))
        .then(|| "a bond: dissolved here, and made again inside".to_owned());
    let notes: Vec<String> = guard
        .into_iter()
        .chain(placeholder)
        .chain(below)
        .chain(bond)
        .collect();
    (!notes.is_empty()).then(|| notes.join("; "))
}

fn forbidden(context: &Context, candidate: &Candidate) -> Option<Drop> {
    let device = PolicyDevice::new(
        candidate.key(),
        candidate.netdev,
        candidate.hca,
        context.snapshot,
    );
    let why = context.request.host.policy.forbids(&device);
    // A bond is its members.
    let bond = candidate.netdev.filter(|n| upper_lower::is_bond(n));
    let mut members = bond
        .into_iter()
        .flat_map(|bond| upper_lower::members(context.snapshot, bond));
    let why = why.or_else(|| members.find_map(|m| policy_forbids(context, m)))?;
    because(
        DropCode::Forbidden,
        why,
        "the host's administrator can change that in /etc/rdmaprep/config.toml",
    )
}

fn policy_forbids(context: &Context, netdev: &Netdev) -> Option<String> {
    context.request.host.policy.forbids(&PolicyDevice::new(
        netdev.name.as_str(),
        Some(netdev),
        None,
        context.snapshot,
    ))
}

fn held(context: &Context, candidate: &Candidate) -> Option<Drop> {
    if let Some(held) = context
        .held
        .iter()
        .find(|h| candidate.name.as_ref() == Some(&h.netdev))
    {
        let why = format!("{} holds {}", held.by, held.netdev);
        return because(DropCode::Held, why, HELD);
    }
    let (None, Some(hca), Some(port)) = (candidate.netdev, candidate.hca, candidate.port) else {
        return None;
    };
    // An RDMA device in shared mode is seen by every namespace, its netdev by one.
    let is_known = !context.snapshot.lacks_netdevs();
    let away = is_known && port.is_ethernet() && hca.protocol.as_deref() != Some("iw");
    let why = format!(
        "the netdev of {} is in another network namespace",
        port_label(hca, port)
    );
    away.then(|| {
        because(
            DropCode::Held,
            why,
            "stop what uses it there; inside a container, run rdmaprep on the host instead",
        )
    })?
}

fn ambiguous(_: &Context, candidate: &Candidate) -> Option<Drop> {
    let (hca, label) = (candidate.hca?, candidate.label());
    if !candidate.others.is_empty() {
        let first = candidate
            .port
            .map_or_else(|| hca.name.to_string(), |p| port_label(hca, p));
        let why = format!(
            "{label} belongs to several HCA ports: {first}, {}",
            candidate.others.join(", ")
        );
        let fix = match candidate.netdev.and_then(|n| n.kind.as_deref()) {
            Some("bond") => "dissolve the bond, or remove all but one of these RDMA devices",
            _ => "remove all but one of these RDMA devices (soft-RoCE: rdma link delete NAME)",
        };
        return because(DropCode::Ambiguous, why, fix);
    }
    let fix = "compare `rdma link` with /sys/class/infiniband, and reload the driver";
    let why = format!(
        "the data about {} contradict each other: {}",
        hca.name,
        hca.conflicts.join("; ")
    );
    (!hca.conflicts.is_empty()).then(|| because(DropCode::Ambiguous, why, fix))?
}

fn iwarp(_: &Context, candidate: &Candidate) -> Option<Drop> {
    let hca = candidate.hca?;
    let iwarp = hca.protocol.as_deref() == Some("iw") || hca.driver.as_deref() == Some("siw");
    let why = format!("{} speaks iWARP, which has no RoCE GIDs", hca.name);
    iwarp.then(|| {
        because(
            DropCode::Iwarp,
            why,
            "switch the card to RoCE if it supports it (irdma: module parameter roce_ena=1)",
        )
    })?
}

fn not_rdma(context: &Context, candidate: &Candidate) -> Option<Drop> {
    let placeholder = context.blind() && candidate.named(context);
    if candidate.hca.is_some() || placeholder {
        return None;
    }
    let guarded = candidate.netdev.and_then(|n| {
        context
            .uplinks
            .get(&n.name)
            .or(context.bootstrap.get(&n.name))
    });
    let kind = candidate.netdev.and_then(Netdev::virtual_kind);
    let fix = match guarded {
        _ if !context.blind() => {
            "nothing to do for a NIC without RDMA; else load its RDMA driver".to_owned()
        }
        Some(why) => format!("this host needs a second NIC, with RDMA: this one {why}"),
        None if kind.is_some() => {
            "nothing to do; for a test without RDMA, name it in --ifaces".to_owned()
        }
        None => "load its RDMA driver; for a test without RDMA, name it in --ifaces".to_owned(),
    };
    let kind = kind.map_or_else(String::new, |kind| format!(": it is virtual ({kind})"));
    let why = format!("{} has no RDMA device{kind}", candidate.label());
    because(DropCode::NotRdma, why, &fix)
}

fn no_netdev(context: &Context, candidate: &Candidate) -> Option<Drop> {
    let hca = candidate
        .hca
        .filter(|_| candidate.netdev.is_none() && !candidate.is_ib())?;
    let layer = candidate.port.and_then(|p| p.link_layer.as_deref());
    let lacking = match candidate.port {
        None if context.snapshot.lacks_network() => Some("port"),
        Some(_) if context.snapshot.lacks_netdevs() => Some("netdev"),
        _ => None,
    };
    if let Some(lacking) = lacking {
        let why = format!("no {lacking} of {} is in this snapshot", hca.name);
        let fix = "run it on the host itself: a captured /sys may lack files";
        return because(DropCode::NoNetdev, why, fix);
    }
    let why = match (candidate.port, layer) {
        (None, _) => format!("{} has no ports", hca.name),
        (Some(_), layer) => format!(
            "{} has no netdev (link layer {})",
            hca.name,
            layer.unwrap_or("unknown")
        ),
    };
    because(
        DropCode::NoNetdev,
        why,
        "nothing to do: rdmaprep is for RoCE and InfiniBand devices only",
    )
}

/// Why the container's own annotations or devices leave it out.
fn narrowed(context: &Context, candidate: &Candidate) -> Option<String> {
    match candidate.netdev {
        Some(netdev) => context.request.narrowing.leaves_out(&netdev.name),
        None => context.request.narrowing.leaves_out_hca(candidate.key()),
    }
}

fn excluded(context: &Context, candidate: &Candidate) -> Option<Drop> {
    let request = context.request;
    if let Some(why) = narrowed(context, candidate) {
        let devices = request.narrowing.devices.is_some();
        let fix = if devices {
            "request its CDI device as well"
        } else {
            "change the container's annotation"
        };
        return because(DropCode::Excluded, why, fix);
    }
    let netdev = candidate.netdev.map(|n| &n.name);
    let hca = candidate
        .hca
        .map(|h| &h.name)
        .filter(|_| netdev.is_some() || candidate.name.is_none());
    names::left_out(request, context.snapshot, netdev, hca)
}

fn is_uplink(context: &Context, candidate: &Candidate) -> Option<Drop> {
    guarded(context, candidate, &context.uplinks, DropCode::Uplink)
}

fn is_bootstrap(context: &Context, candidate: &Candidate) -> Option<Drop> {
    guarded(context, candidate, &context.bootstrap, DropCode::Bootstrap)
}

/// The guard is lifted by the NIC's name in `--ifaces` together with `--allow-bootstrap-iface`.
fn guarded(
    context: &Context,
    candidate: &Candidate,
    guard: &Guarded,
    code: DropCode,
) -> Option<Drop> {
    let name = &candidate.netdev?.name;
    let why = guard.get(name)?;
    let lifted = candidate.named(context) && context.request.select.allow_bootstrap_iface;
    let safe = match code {
        DropCode::Uplink if context.own_sessions.contains(name) => {
            "; or let it leave, as this session is over its own cable, ends with the move and \
            begins again when it is back"
        }
        DropCode::Uplink => {
            ": moving this one cuts this host's connection, an SSH session too. Only if the host \
            has another way in that rdmaprep cannot see"
        }
        _ => "; only if the job's bootstrap works without it",
    };
    let fix = format!(
        "use another NIC for RDMA{safe}: name this one in --ifaces, and set --allow-bootstrap-iface"
    );
    (!lifted).then(|| because(code, format!("{name} {why}"), &fix))?
}

fn infiniband(context: &Context, candidate: &Candidate) -> Option<Drop> {
    let why = format!("{} is InfiniBand, and --ib is not set", candidate.label());
    (candidate.is_ib() && !context.request.select.ib)
        .then(|| because(DropCode::InfiniBand, why, "set --ib"))?
}

fn failed_test(context: &Context, candidate: &Candidate) -> Option<Drop> {
    let mut failed = context.request.failed.iter();
    let failed = failed.find(|failed| match &failed.device {
        Device::Netdev(name) => candidate.netdev.is_some_and(|netdev| netdev.name == *name),
        Device::Bare(bare) => {
            candidate.netdev.is_none() && candidate.hca.is_some_and(|hca| hca.name == bare.hca)
        }
    })?;
    because(
        DropCode::FailedTest,
        failed.why.clone(),
        "mend it, and prepare all nodes again; `rdmaprep test-rails` says more",
    )
}

fn not_in_peer_set(context: &Context, candidate: &Candidate) -> Option<Drop> {
    let request = context.request;
    let (name, out) = match (candidate.netdev, candidate.hca) {
        (Some(netdev), _) => {
            let peer = &request.select.peer_ifaces;
            let asked = !peer.is_empty() || request.agreed_ib.is_some();
            (
                netdev.name.to_string(),
                asked && !peer.contains(&netdev.name),
            )
        }
        (None, hca) => {
            let name = &hca?.name;
            (
                name.to_string(),
                request
                    .agreed_ib
                    .as_ref()
                    .is_some_and(|agreed| !agreed.contains(name)),
            )
        }
    };
    let why = format!("the peer has no {name}");
    out.then(|| {
        because(
            DropCode::NotInPeerSet,
            why,
            "add it to --peer-ifaces (RDMA_PEER_IFACES) if the peer has it",
        )
    })?
}

fn because(code: DropCode, why: String, fix: &str) -> Option<Drop> {
    Some(Drop {
        code,
        also: Vec::new(),
        why,
        fix: fix.to_owned(),
    })
}
