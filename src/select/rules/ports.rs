//! What a port needs to carry a job: a link, an address that stays, and a RoCE GID.

use rdma_model::values::Family;

use super::because;
use crate::select::candidates::{Candidate, Context, choose_gid, counts, gid_fix, port_label};
use crate::select::{Drop, DropCode};

pub(super) fn queueing_discipline(_: &Context, candidate: &Candidate) -> Option<Drop> {
    let netdev = candidate.netdev?;
    let why = format!(
        "a move would take {} from {}",
        netdev.qdisc_lost.as_ref()?,
        netdev.name
    );
    let fix = format!(
        "delete it (`tc qdisc show dev {}` lists it), or exclude the NIC",
        netdev.name
    );
    because(DropCode::QueueingDiscipline, why, &fix)
}

pub(super) fn no_address(context: &Context, candidate: &Candidate) -> Option<Drop> {
    let (netdev, family) = (candidate.netdev?, context.request.select.family);
    if netdev.addresses.iter().any(|a| counts(a, family)) {
        return None;
    }
    let other: Vec<String> = netdev
        .addresses
        .iter()
        .filter(|a| counts(a, Family::Any))
        .map(|a| a.address.to_string())
        .collect();
    let lacks = if context.snapshot.lacks_network() {
        "is not known to have an"
    } else {
        "has no"
    };
    let why = format!("{} {lacks} {}", netdev.name, family.noun());
    if context.snapshot.lacks_network() {
        return because(
            DropCode::NoAddress,
            why,
            "run it on the host itself: a captured /sys has no addresses",
        );
    }
    if other.is_empty() && !netdev.up {
        let fix = format!(
            "bring it up by what configures it (`ifup {0}`, `networkctl up {0}`, `nmcli device \
            connect {0}`), or by `ip link set {0} up`",
            netdev.name
        );
        return because(DropCode::NoAddress, format!("{why}, and is down"), &fix);
    }
    if other.is_empty() {
        return because(
            DropCode::NoAddress,
            why,
            &format!("add one: ip address add ADDRESS/PREFIX dev {}", netdev.name),
        );
    }
    because(
        DropCode::NoAddress,
        format!("{why}, only {}", other.join(", ")),
        "add one, or set --family any to count these",
    )
}

pub(super) fn port_down(_: &Context, candidate: &Candidate) -> Option<Drop> {
    let (hca, port) = (candidate.hca?, candidate.port?);
    if port.is_active() {
        return None;
    }
    let why = format!(
        "{} is {}, not ACTIVE",
        port_label(hca, port),
        port.state.as_deref().unwrap_or("in an unknown state")
    );
    let fix = match candidate.netdev.filter(|n| !n.up) {
        Some(n) => format!("ip link set {} up", n.name),
        None => {
            "check the cable, the switch port and, for InfiniBand, the subnet manager".to_owned()
        }
    };
    because(DropCode::PortDown, why, &fix)
}

pub(super) fn no_gid(context: &Context, candidate: &Candidate) -> Option<Drop> {
    let exempt = candidate.is_ib() || candidate.hca.is_none();
    let why = choose_gid(context, candidate).err().filter(|_| !exempt)?;
    let family = context.request.select.family;
    let fix = match (candidate.netdev, candidate.port) {
        (Some(netdev), Some(port)) => gid_fix(netdev, port, family),
        _ => "see `rdma link`: which port is its own".to_owned(),
    };
    because(DropCode::NoGid, why, &fix)
}

pub(super) fn finite_lifetime(context: &Context, candidate: &Candidate) -> Option<Drop> {
    let netdev = candidate
        .netdev
        .filter(|_| !context.request.select.freeze_lifetimes)?;
    let address = netdev.expiring()?;
    let why = format!(
        "{} of {} has a finite lifetime, and nothing would renew it inside",
        address.address, netdev.name
    );
    because(
        DropCode::FiniteLifetime,
        why,
        "configure it statically, or set --freeze-lifetimes to make it permanent inside",
    )
}
