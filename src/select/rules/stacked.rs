//! Reasons that lie in what a netdev is a member of, sits on or carries.

use rdma_model::ids::IfName;
use rdma_model::link_kind::LinkKind;
use rdma_model::snapshot::Netdev;

use super::{HELD, because, policy_forbids};
use crate::select::candidates::{Candidate, Context, INFINIBAND, counts};
use crate::select::{Drop, DropCode};
use rdma_model::upper_lower;

pub(super) fn enslaved(context: &Context, candidate: &Candidate) -> Option<Drop> {
    let netdev = candidate.netdev?;
    let (moves, family) = (context.request.moves(), context.request.select.family);
    if !moves && (netdev.master.is_none() || netdev.addresses.iter().any(|a| counts(a, family))) {
        return None;
    }
    if let Some(master) = &netdev.master {
        let why = format!("{} is a member of {master}", netdev.name);
        if !moves {
            let why = why + ", to which the addresses belong";
            return because(DropCode::Enslaved, why, &format!("use {master}"));
        }
        return because(DropCode::Enslaved, why, &freeing(context, netdev, master));
    }
    if upper_lower::is_bond(netdev) && candidate.named(context) {
        // mlx5 makes a LAG of bonds in the initial namespace alone
        // (drivers/net/ethernet/mellanox/mlx5/core/lag/lag.c).
        let hca = candidate.hca.filter(|h| !h.is_rxe())?;
        let why = format!(
            "{} belongs to bond {}, and its driver cannot create it inside a container",
            hca.name, netdev.name
        );
        return because(
            DropCode::Enslaved,
            why,
            "dissolve the bond and use its members",
        );
    }
    // The kernel ties bonds, bridges and their like to their namespace.
    let kind = netdev.kind.as_deref();
    let kind = kind.filter(|_| netdev.has_kind(LinkKind::has_members));
    let has_members = context
        .snapshot
        .netdevs
        .iter()
        .any(|n| n.master.as_ref() == Some(&netdev.name));
    let kind = kind.or(has_members.then_some("master of other interfaces"))?;
    let why = format!(
        "{} is {}, which cannot change namespace",
        netdev.name,
        with_article(kind)
    );
    let fix = match (kind, upper_lower::is_bond(netdev)) {
        ("bond", true) => {
            "name it in --ifaces: rdmaprep dissolves it here and re-creates it inside, with its \
            members"
        }
        // A captured /sys does not show what a bond was made from; netlink does, unless it has a
        // primary member (`of_bond` in rdma-netlink's link_info.rs).
        ("bond", false) if context.snapshot.netns.is_none() => "dissolve it and use its members",
        ("bond", false) => {
            "dissolve it and use its members: rdmaprep cannot re-create a bond with a primary \
            member"
        }
        _ if netdev.kind.as_deref() == Some("hsr") => "delete it, and use its ports",
        _ => "remove its members from it, and use them",
    };
    because(DropCode::Enslaved, why, fix)
}

/// How a NIC gets free of what it is a member of. An HSR link lets go of its ports when it is
/// deleted, not before: it has no ndo_del_slave (net/hsr/hsr_device.c). Open vSwitch's ports are
/// its daemon's.
fn freeing(context: &Context, netdev: &Netdev, master: &IfName) -> String {
    match context
        .snapshot
        .netdev(master)
        .and_then(|m| m.kind.as_deref())
    {
        Some("hsr") => format!("delete {master}: ip link delete {master}"),
        Some("openvswitch") => format!("remove it: ovs-vsctl del-port {}", netdev.name),
        _ => format!("remove it: ip link set {} nomaster", netdev.name),
    }
}

fn with_article(noun: &str) -> String {
    let article = if noun.starts_with(['a', 'e', 'i', 'o']) {
        "an"
    } else {
        "a"
    };
    format!("{article} {noun}")
}

pub(super) fn child(context: &Context, candidate: &Candidate) -> Option<Drop> {
    let netdev = candidate.netdev.filter(|_| !candidate.named(context))?;
    let kind = netdev.kind.as_deref();
    if netdev.link_type == INFINIBAND {
        let why = format!(
            "{} is an IPoIB interface, which RDMA over InfiniBand does not need",
            netdev.name
        );
        return because(
            DropCode::Child,
            why,
            "name it in --ifaces, with --ib, if the job needs IP over it",
        );
    }
    let stacked = netdev.has_kind(LinkKind::is_above_a_link);
    let lower = upper_lower::lower(context.snapshot, netdev);
    let why = format!(
        "{} is {} on top of {}",
        netdev.name,
        with_article(kind.unwrap_or("netdev")),
        lower.map_or("another", |d| d.name.as_str())
    );
    // Where nothing moves, it is in question only whose address its port's GID is made from.
    let family = context.request.select.family;
    let below = upper_lower::down(context.snapshot, netdev).skip(1);
    let has_address = below.flat_map(|d| &d.addresses).any(|a| counts(a, family));
    let is_second = context.request.moves() || has_address;
    (is_second && (stacked || lower.is_some()))
        .then(|| because(DropCode::Child, why, "name it in --ifaces to take it"))?
}

pub(super) fn carries(context: &Context, candidate: &Candidate) -> Option<Drop> {
    let netdev = candidate.netdev?;
    if let Some(held) = context
        .held
        .iter()
        .find(|h| h.over.as_ref() == Some(&netdev.name))
    {
        let why = format!(
            "{}, which {} holds, sits on {}",
            held.netdev, held.by, netdev.name
        );
        return because(DropCode::Carries, why, HELD);
    }
    if let Some(stranger) = upper_lower::strangers(context.snapshot, netdev).next() {
        let why = format!(
            "{stranger} sits on {}: two would share the card",
            netdev.name
        );
        return because(
            DropCode::Carries,
            why,
            "delete it there first, or exclude this NIC",
        );
    }
    if upper_lower::is_bond(netdev) {
        return carries_as_bond(context, netdev);
    }
    let (upper, why) = upper_lower::upper(context.snapshot, netdev)
        .find_map(|u| Some((u, left_behind(context, u, 0)?)))?;
    because(
        DropCode::Carries,
        sits(upper, netdev) + &why,
        "delete the upper netdev first, or exclude this NIC",
    )
}

fn sits(upper: &Netdev, below: &Netdev) -> String {
    format!(
        "{} sits on {}, and would be {}",
        upper_lower::described(upper),
        below.name,
        upper_lower::fate(upper)
    )
}

/// A bond is deleted here, and what sits on it with it; its members have to be free to go.
fn carries_as_bond(context: &Context, bond: &Netdev) -> Option<Drop> {
    let mut whole = std::iter::once(bond).chain(upper_lower::members(context.snapshot, bond));
    if let Some((upper, below)) =
        whole.find_map(|n| Some((upper_lower::upper(context.snapshot, n).next()?, n)))
    {
        return because(
            DropCode::Carries,
            sits(upper, below),
            "delete the upper netdev first, or exclude this NIC",
        );
    }
    let why = upper_lower::members(context.snapshot, bond).find_map(|m| {
        let stranger = upper_lower::strangers(context.snapshot, m).next()?;
        Some(format!("{stranger} sits on {}", m.name))
    })?;
    let fix = "delete it there first, or exclude this NIC";
    because(DropCode::Carries, why, fix)
}

/// Why a netdev cannot come along with the one below, as the rest of a sentence; none if it can.
fn left_behind(context: &Context, netdev: &Netdev, height: usize) -> Option<String> {
    if !upper_lower::follows(netdev) || height > 8 {
        return Some(String::new());
    }
    let finite = !context.request.select.freeze_lifetimes && netdev.expiring().is_some();
    let why = if let Some(master) = &netdev.master {
        format!("it is a member of {master}")
    } else if let Some(stranger) = upper_lower::strangers(context.snapshot, netdev).next() {
        format!("{stranger} sits on it")
    } else if let Some(why) = policy_forbids(context, netdev) {
        why
    } else if finite {
        "an address of it has a finite lifetime (--freeze-lifetimes)".to_owned()
    } else if let Some(lost) = &netdev.qdisc_lost {
        format!("a move would take {lost}")
    } else {
        upper_lower::upper(context.snapshot, netdev).find_map(|u| {
            let why = left_behind(context, u, height + 1)?;
            Some(format!("{} sits on it{why}", u.name))
        })?
    };
    Some(format!(": {why}"))
}
