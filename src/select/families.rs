//! One family of addresses for the GIDs of all rails, where both may be used (`--family any`): NCCL
//! looks for GIDs of one family on all ports (NCCL_IB_ADDR_FAMILY; nccl_rules::gid), IPv4 where
//! nothing is set, and takes GID 0, link-local, of a port that has none of it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rdma_model::snapshot::{Gid, GidKind, Netdev, Port, is_doubled};

use super::candidates::{Context, counts};
use super::{Drop, DropCode, Verdict, kept_netdevs, part_of};
use nccl_rules::gid::set_index;
use nccl_rules::settings::Settings;
use nccl_rules::version::Version;
use rdma_model::values::Family;

/// The GIDs of a kept rail, by family.
pub(super) struct Rail<'a> {
    pub(super) at: usize,
    pub(super) netdev: &'a Netdev,
    pub(super) port: &'a Port,
    /// Whether its GIDs are at these indexes inside, too.
    is_certain: bool,
    four: Option<&'a Gid>,
    six: Option<&'a Gid>,
}

/// Gives each rail the GID of the family that all have: the one that is set, else IPv4 first. Where
/// none is common, and no index of the table is right on all, those without it are left out.
pub(super) fn agree(context: &Context, verdicts: &mut [Verdict]) {
    if context.request.select.family != Family::Any {
        return;
    }
    let set = context.request.gid_settings();
    let release = context.request.release(None).unwrap_or_default();
    // Where an index is set, and before NCCL looks for a GID, the family counts for nothing.
    if set_index(&Settings::of(set.clone(), ""), release).is_some() {
        return;
    }
    let first = match set.get("NCCL_IB_ADDR_FAMILY").map(String::as_str) {
        Some("AF_INET6") => Family::V6,
        _ => Family::V4,
    };
    let rails = rails(context, verdicts);
    let has_first = rails.iter().all(|r| r.gid(first).is_some());
    let has_other = rails.iter().all(|r| r.gid(other(first)).is_some());
    if !has_first && !has_other {
        if !is_one_index(&rails, verdicts) {
            leave_out(&rails, first, verdicts);
        }
        return;
    }
    let family = if has_first { first } else { other(first) };
    for rail in &rails {
        verdicts[rail.at].gid = rail.gid(family).cloned();
    }
}

fn other(family: Family) -> Family {
    match family {
        Family::V6 => Family::V4,
        _ => Family::V6,
    }
}

impl<'a> Rail<'a> {
    fn gid(&self, family: Family) -> Option<&'a Gid> {
        match family {
            Family::V6 => self.six,
            _ => self.four,
        }
    }
}

/// A release that looks for no GID takes one index on all ports, and 0, link-local and of RoCE v1,
/// where none is set (nccl_rules::gid::set_index). So the rails that stay are those with one index,
/// the one that most have, which `nccl_env` then sets.
pub(super) fn share_index(context: &Context, verdicts: &mut [Verdict]) {
    const INDEX: &str = "NCCL_IB_GID_INDEX";
    let request = context.request;
    let is_set = request.gid_settings().contains_key(INDEX);
    let old = request.release(None).filter(|version| !version.finds_gid());
    let Some(release) = old.filter(|_| !is_set).map(Version::label) else {
        return;
    };
    let rails = rails(context, verdicts);
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for rail in rails.iter().filter(|rail| rail.is_certain) {
        let gid = verdicts[rail.at].gid.as_ref();
        *counts.entry(gid.map_or(0, |gid| gid.index)).or_default() += 1;
    }
    let most = counts
        .iter()
        .max_by_key(|(index, n)| (**n, Reverse(**index)));
    let most = most.map(|(index, _)| *index);
    for rail in &rails {
        let index = verdicts[rail.at].gid.as_ref().map(|gid| gid.index);
        let why = match (rail.is_certain, most) {
            (true, _) if index == most => continue,
            (true, Some(most)) => format!(
                "the index of its GID is {}, and {most} on other NICs: NCCL {release} takes one \
                on all ports",
                index.unwrap_or_default()
            ),
            _ => format!(
                "its GID table may have another order inside, and NCCL {release} looks for no GID: \
                it takes one index on all ports"
            ),
        };
        let drop = Drop {
            code: DropCode::NoGid,
            also: Vec::new(),
            why,
            fix: format!(
                "give each NIC one address; or take NCCL 2.21.5 or later; or run prepare \
                with {INDEX} set"
            ),
        };
        let verdict = &mut verdicts[rail.at];
        (verdict.dropped, verdict.note, verdict.gid) = (Some(drop), None, None);
    }
}

pub(super) fn rails<'a>(context: &Context<'a>, verdicts: &[Verdict]) -> Vec<Rail<'a>> {
    let moves = context.request.moves();
    let kept = kept_netdevs(verdicts);
    let rail = |(at, v): (usize, &Verdict)| {
        v.gid.as_ref().filter(|_| v.dropped.is_none())?;
        let netdev = context.snapshot.netdev(v.netdev.as_ref()?)?;
        // NCCL has one GID for a port: that of what comes along need not be it.
        if part_of(context.snapshot, &netdev.name, &kept).is_some() {
            return None;
        }
        let hca = context.snapshot.hca(v.hca.as_ref()?)?;
        let port = hca.ports.iter().find(|p| Some(p.number) == v.port)?;
        Some(Rail {
            at,
            netdev,
            port,
            is_certain: !moves || is_certain(port),
            four: own_gid(port, netdev, Family::V4),
            six: own_gid(port, netdev, Family::V6),
        })
    };
    verdicts.iter().enumerate().filter_map(rail).collect()
}

/// The first GID of RoCE v2 that is made from an address of that family.
fn own_gid<'a>(port: &'a Port, netdev: &Netdev, family: Family) -> Option<&'a Gid> {
    let own = port
        .gids
        .iter()
        .filter(|g| g.kind == Some(GidKind::RoceV2) && g.netdev.as_ref() == Some(&netdev.name))
        .filter(|g| {
            let mut addresses = netdev.addresses.iter();
            addresses.any(|a| counts(a, family) && a.address == g.ip())
        });
    own.min_by_key(|g| g.index)
}

/// Whether one NCCL_IB_GID_INDEX is the planned one on all, as `nccl_env` then sets it.
pub(super) fn is_one_index(rails: &[Rail], verdicts: &[Verdict]) -> bool {
    let mut indexes = rails
        .iter()
        .map(|r| verdicts[r.at].gid.as_ref().map(|g| g.index));
    let first = indexes.next();
    indexes.all(|index| Some(index) == first) && rails.iter().all(|r| r.is_certain)
}

fn leave_out(rails: &[Rail], first: Family, verdicts: &mut [Verdict]) {
    let (has, lacks) = match first {
        Family::V6 => ("IPv4", "IPv6"),
        _ => ("IPv6", "IPv4"),
    };
    for rail in rails {
        let verdict = &mut verdicts[rail.at];
        if let Some(gid) = rail.gid(first) {
            verdict.gid = Some(gid.clone());
            continue;
        }
        let drop = Drop {
            code: DropCode::NoGid,
            also: Vec::new(),
            why: format!(
                "it has {has} alone and another NIC {lacks} alone: NCCL looks for one family, and \
                would take a link-local GID here"
            ),
            fix: format!("give it an {lacks} address, or all NICs {has} ones"),
        };
        (verdict.dropped, verdict.note, verdict.gid) = (Some(drop), None, None);
    }
}

/// Whether a port's table is as a new one would be: one link-local GID, then one address, and no
/// gap, which a new entry would fill (find_gid() in drivers/infiniband/core/cache.c takes the first
/// free place). Where the link-local GID is not there yet, the table is not settled, and where the
/// kernel has put one into two places, it need not inside.
pub fn is_certain(port: &Port) -> bool {
    let mut gids: Vec<&Gid> = port.gids.iter().collect();
    gids.sort_by_key(|g| g.index);
    let (locals, others): (Vec<&Gid>, Vec<&Gid>) =
        gids.iter().partition(|g| g.address.is_unicast_link_local());
    let is_one = |some: &[&Gid]| {
        some.windows(2)
            .all(|pair| pair[0].address == pair[1].address)
    };
    let ordered = locals
        .iter()
        .chain(&others)
        .enumerate()
        .all(|(at, g)| u32::try_from(at) == Ok(g.index));
    let is_settled = !locals.is_empty() && !is_doubled(&port.gids);
    ordered && is_settled && is_one(&locals) && is_one(&others)
}
