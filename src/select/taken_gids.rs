//! The GID that NCCL takes of each rail, by what the host, the container or the plan sets
//! (nccl_rules::gid): it is the planned one, or the rail is left out.

mod inside;

use nccl_rules::gid::{Choice, choose, range};
use nccl_rules::settings::Settings;
use nccl_rules::version::Version;
use rdma_model::escape::shortened;
use rdma_model::ids::IfName;
use rdma_model::snapshot::{Gid, GidKind, Netdev};
use std::net::Ipv6Addr;

use super::candidates::{Context, counts};
use super::families::{Rail, is_one_index, rails};
use super::{Drop, DropCode, Verdict, kept_netdevs};
use crate::config::request::Request;
use inside::Inside;

/// Characters of a value that are shown.
const VALUE: usize = 80;

const INDEX: &str = "NCCL_IB_GID_INDEX";
const FAMILY: &str = "NCCL_IB_ADDR_FAMILY";
const RANGE: &str = "NCCL_IB_ADDR_RANGE";

/// Gives each rail the GID that NCCL will take, or leaves it out. The answer is a
/// NCCL_IB_ADDR_RANGE with which NCCL takes more of the planned ones than without.
pub(super) fn follow(context: &Context, verdicts: &mut [Verdict]) -> Option<String> {
    let mut set = context.request.gid_settings();
    let release = context.request.release(None).unwrap_or_default();
    let has_index = set.contains_key(INDEX);
    // What looks for no GID reads the index alone, and without one [`super::families::share_index`]
    // decides.
    if !(has_index || release.finds_gid()) {
        return None;
    }
    let said = said(context.request);
    let rails = rails(context, verdicts);
    let planned = rails.iter().filter_map(|r| verdicts[r.at].gid.as_ref());
    // As `nccl_env` sets it.
    if !rails.is_empty() && planned.clone().all(|gid| gid.ip().is_ipv6()) {
        set.entry(FAMILY.to_owned())
            .or_insert_with(|| "AF_INET6".to_owned());
    }
    let is_free = !has_index && !set.contains_key(RANGE);
    let is_cured = is_free && is_one_index(&rails, verdicts);
    let addresses: Vec<Ipv6Addr> = planned.map(|gid| gid.address).collect();
    let kept = kept_netdevs(verdicts).into_iter();
    let moved: Vec<&Netdev> = kept.filter_map(|n| context.snapshot.netdev(&n)).collect();
    let ports = inside(context, &moved, &rails);
    let settings = Settings::of(set, "");
    let mut taken = taken(context, &moved, &ports, &settings, release);
    let range = range(&addresses).filter(|_| is_free && !is_cured);
    let narrowed = range
        .as_deref()
        .map(|range| settings.but(RANGE, Some(range)));
    let by_range = narrowed.map(|set| self::taken(context, &moved, &ports, &set, release));
    let by_range = by_range.filter(|by_range| owned(by_range) > owned(&taken));
    let range = range.filter(|_| by_range.is_some());
    taken = by_range.unwrap_or(taken);
    for (rail, taken) in rails.iter().zip(taken) {
        let verdict = &mut verdicts[rail.at];
        match taken.owner {
            Some(owner) if *owner == rail.netdev.name => verdict.gid = taken.gid.cloned(),
            Some(_) => {}
            None if is_cured || taken.choice == Choice::Unknown => {}
            None => {
                let drop = left_out(&said, release, &taken, rail.netdev);
                (verdict.dropped, verdict.note, verdict.gid) = (Some(drop), None, None);
            }
        }
    }
    range
}

/// A remark on planned GIDs of RoCE v1, which settings ask for.
pub(super) fn version_1(request: &Request, verdicts: &[Verdict]) -> Option<String> {
    let kept = verdicts.iter().filter(|v| v.dropped.is_none());
    let first = kept.filter(|v| {
        v.gid
            .as_ref()
            .is_some_and(|g| g.kind == Some(GidKind::IbRoceV1))
    });
    let names: Vec<&str> = first
        .filter_map(|v| Some(v.netdev.as_ref()?.as_str()))
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "with {} NCCL takes GIDs of RoCE v1 on {}, which no router forwards, and which connect \
            to their like alone",
            said(request),
            names.join(", ")
        )
    })
}

/// What NCCL takes of a rail.
struct Taken<'a> {
    choice: Choice,
    gid: Option<&'a Gid>,
    /// The kept netdev whose GID it is: a VLAN that comes along is on the same port.
    owner: Option<&'a IfName>,
}

fn taken<'a>(
    context: &Context,
    moved: &[&'a Netdev],
    ports: &[Inside<'a>],
    settings: &Settings,
    release: Version,
) -> Vec<Taken<'a>> {
    let mut all = Vec::new();
    for port in ports {
        let choice = choose(&port.table, settings, release);
        let gid = port.taken(choice);
        let mut moved = moved.iter();
        let owner = moved.find(|n| gid.is_some_and(|gid| is_own(gid, n, context)));
        all.push(Taken {
            choice,
            gid,
            owner: owner.map(|n| &n.name),
        });
    }
    all
}

fn owned(taken: &[Taken]) -> usize {
    taken.iter().filter(|t| t.owner.is_some()).count()
}

/// The tables of these rails' ports as their container has them.
fn inside<'a>(context: &Context, moved: &[&Netdev], rails: &[Rail<'a>]) -> Vec<Inside<'a>> {
    let moves = context.request.moves();
    rails
        .iter()
        .map(|rail| match moves {
            true => Inside::new(rail.port, context.snapshot, moved),
            false => Inside::unmoved(rail.port),
        })
        .collect()
}

/// What is set, in a clause. The values of a container are not for logs.
fn said(request: &Request) -> String {
    let own = request.own_gids.keys();
    let own = own.map(|name| format!("the container's {name}"));
    let set = request.gid_settings().into_iter();
    let theirs = set.filter(|(name, _)| !request.own_gids.contains_key(name));
    let theirs = theirs.map(|(name, value)| format!("{name}={}", shortened(&value, VALUE)));
    own.chain(theirs).collect::<Vec<_>>().join(", ")
}

/// Whether peers reach the NIC by it: of whichever type, since that was asked for.
fn is_own(gid: &Gid, netdev: &Netdev, context: &Context) -> bool {
    let family = context.request.select.family;
    let mut addresses = netdev.addresses.iter();
    gid.netdev.as_ref() == Some(&netdev.name)
        && addresses.any(|a| counts(a, family) && a.address == gid.ip())
}

fn left_out(set: &str, release: Version, taken: &Taken, netdev: &Netdev) -> Drop {
    let takes = match (taken.choice, taken.gid) {
        (_, Some(gid)) => {
            let other = gid.netdev.as_ref().filter(|name| **name != netdev.name);
            let of = other.map_or(String::new(), |name| format!(" of {name}"));
            format!(
                "takes GID {}{of} ({}, {}), made from no address of this NIC that counts",
                gid.index,
                gid.ip(),
                kind(gid)
            )
        }
        (Choice::Index(index), None) => format!("takes GID {index}, which is unused inside"),
        (Choice::Crash, None) => "ends by a signal".to_owned(),
        _ => "finds no GID that it can read".to_owned(),
    };
    let newer = match taken.choice {
        Choice::Unreadable(_) => format!("take NCCL {} or later; or ", Version::SKIPS_UNTYPED),
        _ => String::new(),
    };
    let release = release.label();
    let (why, fix) = match set {
        "" => (
            format!("NCCL {release} {takes}"),
            "run prepare with NCCL_IB_GID_INDEX or NCCL_IB_ADDR_RANGE set; or leave one of such \
            NICs out",
        ),
        _ => (
            format!("with {set} NCCL {release} {takes}"),
            "unset that where prepare runs, or in the container; or give the NIC an address that \
            it means (--family)",
        ),
    };
    Drop {
        code: DropCode::NoGid,
        also: Vec::new(),
        why,
        fix: newer + fix,
    }
}

fn kind(gid: &Gid) -> &'static str {
    match gid.kind {
        Some(GidKind::IbRoceV1) => "RoCE v1",
        Some(GidKind::RoceV2) => "RoCE v2",
        None => "of no known type",
    }
}
