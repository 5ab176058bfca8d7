//! NICs that the selection leaves out.

use super::facts::OptedIn;
use super::{Check, CheckContext, Finding, Severity};
use crate::select::{Drop, DropCode, Verdict, unknown};

/// NICs with an HCA that the selection refuses for something that can be fixed, and no other check
/// reports.
pub(super) fn left_out(context: &CheckContext) -> Vec<Finding> {
    let mut found = asked_in_vain(context);
    found.extend(
        context
            .selection
            .dropped()
            .filter(|(v, d)| !is_planned(context, v, d))
            .filter_map(|(v, d)| refused(context, v, d)),
    );
    let dropped = context.selection.dropped();
    found.extend(match context.is_inside() {
        false => dropped
            .filter_map(|(v, d)| passed_over(context, v, d))
            .collect(),
        true if context.rails().is_empty() && context.fabrics().is_empty() => {
            vec![nothing_inside(
                context.of.machine.and_then(|machine| machine.opted_in),
            )]
        }
        // What is in a container has come there.
        true => Vec::new(),
    });
    found
}

fn nothing_inside(opted_in: Option<OptedIn>) -> Finding {
    let seen = "no NIC with an RDMA device is in this container's network namespace, and no \
        InfiniBand HCA is given to it";
    let (known, fix) = match opted_in {
        None => (
            "",
            "let it opt in to a plan, by the annotation rdmaprep.io/plan: `rdmaprep help hook`; a \
            container that has it already: is rdmaprep registered with its engine?",
        ),
        Some(OptedIn::Holds) => (
            ", though it has opted in and holds NICs",
            "start it again: its NICs or their HCAs have left it. `rdmaprep status` says what it \
            holds, `rdmaprep doctor` whether HCAs follow their NICs on this kernel",
        ),
        Some(OptedIn::Returned) => (
            ": it has opted in, and its NICs were returned to the host",
            "start it again; `rdmaprep status` says what returned them",
        ),
        Some(OptedIn::Unheard) => (
            ": its config.json has an annotation of rdmaprep's, and no hook was run for it",
            "register rdmaprep with its engine, and start it again",
        ),
    };
    let finding = Finding::new(
        Check::LeftOut,
        Severity::Breaks,
        format!("{seen}{known}"),
        "NCCL goes by TCP, or does not start",
        fix,
    );
    match opted_in {
        Some(OptedIn::Unheard) => finding.run("rdmaprep install"),
        _ => finding,
    }
}

/// Whether a plan has it all the same: it may have been made with lifetimes frozen, or for
/// containers on the host's network.
fn is_planned(context: &CheckContext, verdict: &Verdict, drop: &Drop) -> bool {
    let mut name = verdict.netdev.iter();
    drop.code.is_about_moves() && name.any(|name| context.plans(name))
}

/// A NIC that no request names, and that is refused for a reason which no other check reports.
fn passed_over(context: &CheckContext, verdict: &Verdict, drop: &Drop) -> Option<Finding> {
    let is_reported = matches!(
        drop.code,
        DropCode::Ambiguous | DropCode::FiniteLifetime | DropCode::QueueingDiscipline
    );
    let is_asked = refused(context, verdict, drop).is_some();
    if verdict.hca.is_none() || !is_reported || is_planned(context, verdict, drop) || is_asked {
        return None;
    }
    Some(Finding::new(
        Check::LeftOut,
        Severity::Warning,
        drop.why.clone(),
        "no container gets this NIC",
        drop.fix.clone(),
    ))
}

/// What `--ifaces` names, is there, and is not taken for a reason that no other check reports.
fn refused(context: &CheckContext, verdict: &Verdict, drop: &Drop) -> Option<Finding> {
    let name = verdict
        .netdev
        .as_ref()
        .filter(|name| context.of.request.names(name))?;
    let roce = context
        .rails()
        .iter()
        .any(|r| r.name() == name && r.port.is_ethernet());
    let elsewhere = match drop.code {
        // With a container, where it is to be.
        DropCode::Held => true,
        DropCode::NoAddress | DropCode::NoGid => roce || !context.has_network(),
        DropCode::PortDown => true,
        DropCode::NotRdma | DropCode::Ambiguous | DropCode::Iwarp => false,
        // Nothing is moved out of a container.
        DropCode::Forbidden
        | DropCode::NoNetdev
        | DropCode::Excluded
        | DropCode::Uplink
        | DropCode::Bootstrap
        | DropCode::Enslaved
        | DropCode::Child
        | DropCode::Carries
        | DropCode::QueueingDiscipline
        | DropCode::FiniteLifetime
        | DropCode::InfiniBand
        | DropCode::FailedTest
        | DropCode::NotInPeerSet
        | DropCode::SlowerHca
        | DropCode::OtherLinkLayer => context.is_inside(),
    };
    let seen = format!("{name} is in --ifaces, and left out: {}", drop.why);
    let why = "a job that is to have this NIC does without it";
    let fix = match drop.code {
        DropCode::NotRdma => {
            "load its RDMA driver, or see why it fails (dmesg); if it has none, name others"
        }
        _ => &drop.fix,
    };
    (!elsewhere).then(|| Finding::new(Check::LeftOut, Severity::Breaks, seen, why, fix))
}

/// What a list names, and is not there: a card that has failed, or a typing mistake.
fn asked_in_vain(context: &CheckContext) -> Vec<Finding> {
    let place = if context.is_inside() {
        "in this container"
    } else {
        "on this host, and no container has it"
    };
    let mut found = Vec::new();
    for one in unknown(context.of.request, context.of.snapshot, context.of.held) {
        let (names, there) = (one.names, one.there);
        let [flag, variable, key] = one.list;
        let seen = format!("{flag} names {names}: not {place}; there are: {there}");
        let fix = format!(
            "look for the card (lspci, dmesg) and for its driver; or name those that are there \
            ({flag}, {variable}, [select] {key})"
        );
        let why = "what names this NIC does not start";
        found.push(Finding::new(
            Check::LeftOut,
            Severity::Breaks,
            seen,
            why,
            fix,
        ));
    }
    found
}
