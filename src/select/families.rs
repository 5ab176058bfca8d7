//! One family of addresses for the GIDs of all rails, where both may be used (`--family any`): NCCL
//! looks for GIDs of one family on all ports (NCCL_IB_ADDR_FAMILY; nccl_rules::gid), IPv4 where
//! nothing is set, and takes GID 0, link-local, of a port that has none of it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rdma_model::snapshot::{Gid, GidKind, Netdev, Port};

use super::candidates::{Context, counts};
use super::{Drop, DropCode, Verdict};
use rdma_model::values::Family;

/// The GIDs of a kept rail, by family.
struct Rail<'a> {
    at: usize,
    port: &'a Port,
    four: Option<&'a Gid>,
    six: Option<&'a Gid>,
}

/// Gives each rail the GID of the family that all have, IPv4 first. Where none is common, and no
/// index of the table is right on all, those without IPv4 are left out.
pub(super) fn agree(context: &Context, verdicts: &mut [Verdict]) {
    if context.request.select.family != Family::Any {
        return;
    }
    let rails = rails(context, verdicts);
    let has_four = rails.iter().all(|r| r.four.is_some());
    let has_six = rails.iter().all(|r| r.six.is_some());
    if !has_four && !has_six {
        if !is_one_index(&rails) {
            leave_out(&rails, verdicts);
        }
        return;
    }
    for rail in &rails {
        let gid = if has_four { rail.four } else { rail.six };
        verdicts[rail.at].gid = gid.cloned();
    }
}

/// A release that looks for no GID takes one index on all ports, and 0, link-local and of RoCE v1,
/// where none is set (nccl_rules::gid::set_index). So the rails that stay are those with one index,
/// the one that most have, which `nccl_env` then sets.
pub(super) fn share_index(context: &Context, verdicts: &mut [Verdict]) {
    const INDEX: &str = "NCCL_IB_GID_INDEX";
    let request = context.request;
    let is_set = request.passed_on.get(INDEX).is_some_and(|v| !v.is_empty());
    let old = request.release(None).filter(|version| !version.finds_gid());
    let Some(release) = old.filter(|_| !is_set) else {
        return;
    };
    let rails = rails(context, verdicts);
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for rail in rails.iter().filter(|rail| is_certain(rail.port)) {
        let gid = verdicts[rail.at].gid.as_ref();
        *counts.entry(gid.map_or(0, |gid| gid.index)).or_default() += 1;
    }
    let most = counts
        .iter()
        .max_by_key(|(index, n)| (**n, Reverse(**index)));
    let most = most.map(|(index, _)| *index);
    for rail in &rails {
        let index = verdicts[rail.at].gid.as_ref().map(|gid| gid.index);
        let why = match (is_certain(rail.port), most) {
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
                "give each NIC one address; or take NCCL 2.21.5 or later; or have {INDEX} in the \
                environment of prepare"
            ),
        };
        let verdict = &mut verdicts[rail.at];
        (verdict.dropped, verdict.note, verdict.gid) = (Some(drop), None, None);
    }
}

fn rails<'a>(context: &Context<'a>, verdicts: &[Verdict]) -> Vec<Rail<'a>> {
    let rail = |(at, v): (usize, &Verdict)| {
        v.gid.as_ref().filter(|_| v.dropped.is_none())?;
        let netdev = context.snapshot.netdev(v.netdev.as_ref()?)?;
        let hca = context.snapshot.hca(v.hca.as_ref()?)?;
        let port = hca.ports.iter().find(|p| Some(p.number) == v.port)?;
        Some(Rail {
            at,
            port,
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

/// Whether one NCCL_IB_GID_INDEX is right on all, as `nccl_env` then sets it.
fn is_one_index(rails: &[Rail]) -> bool {
    let mut indexes = rails.iter().map(|r| r.four.or(r.six).map(|g| g.index));
    let first = indexes.next();
    indexes.all(|index| Some(index) == first) && rails.iter().all(|r| is_certain(r.port))
}

fn leave_out(rails: &[Rail], verdicts: &mut [Verdict]) {
    for rail in rails {
        let verdict = &mut verdicts[rail.at];
        if rail.four.is_some() {
            verdict.gid = rail.four.cloned();
            continue;
        }
        let drop = Drop {
            code: DropCode::NoGid,
            also: Vec::new(),
            why: "it has IPv6 alone and another NIC IPv4 alone: NCCL looks for one family, and \
                would take a link-local GID here"
                .to_owned(),
            fix: "give it an IPv4 address, or all NICs IPv6 ones".to_owned(),
        };
        (verdict.dropped, verdict.note, verdict.gid) = (Some(drop), None, None);
    }
}

/// Whether a port's table is as a new one would be: one link-local GID, then one address, and no
/// gap, which a new entry would fill (find_gid() in drivers/infiniband/core/cache.c takes the first
/// free place). Where the link-local GID is not there yet, the table is not settled.
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
    ordered && !locals.is_empty() && is_one(&locals) && is_one(&others)
}
