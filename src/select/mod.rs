//! Which NICs a job gets, and why not the others.

pub mod candidates;
mod fabrics;
pub mod families;
mod gids;
mod link_layers;
pub mod protected_ifaces;
mod rules;
mod selection;
mod taken_gids;

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::IfName;
use rdma_model::snapshot::Snapshot;
pub use rdma_model::verdict::DropCode;
use rdma_model::{natural, upper_lower};

use crate::config::request::Request;
use candidates::Context;
use rules::names::{by_regex, idle_exclusion};
pub use rules::names::{check_listed, left_out, unknown, without_names, without_unknown};
pub use selection::{Awaits, BusyNic, Configuring, Drop, LeftOut, Selection, Verdict};

/// Judges every NIC of the snapshot. An empty result is an error that tells every reason; so is one
/// without a NIC that was named.
pub fn select(request: &Request, snapshot: &Snapshot, held: &[BusyNic]) -> Result<Selection> {
    let selection = judge(request, snapshot, held)?;
    selection.named(request)?;
    selection.some()?;
    Ok(selection)
}

/// Judges every NIC of the snapshot, for who only looks: it may be that nothing is left.
pub fn judge(request: &Request, snapshot: &Snapshot, held: &[BusyNic]) -> Result<Selection> {
    let mut warnings = Vec::new();
    let context = Context::new(request, snapshot, held, &mut warnings)?;
    let release = request.release(None);
    let judged_as = release.and_then(|release| Some((release, release.judged_as()?)));
    warnings.extend(judged_as.map(|(release, other)| {
        format!("NCCL {release} was not judged: NICs and settings are chosen as for {other}")
    }));
    known(&context)?;
    let mut verdicts: Vec<Verdict> = candidates::candidates(&context)
        .iter()
        .map(|c| rules::judge(&context, c))
        .collect();
    let along = come_along(snapshot, &mut verdicts);
    fabrics::leave_out_slower(&context, &mut verdicts);
    link_layers::leave_one(&context, &mut verdicts);
    let gid_range = gids::settle(&context, &mut verdicts, &along);
    match request.moves() {
        true => stay_behind(snapshot, &mut verdicts, &along),
        // Its GIDs counted, as NCCL may take one of them.
        false => along
            .into_iter()
            .for_each(|(at, before)| verdicts[at] = before),
    }
    verdicts.sort_by_cached_key(|v| (v.dropped.is_some(), rank(&context, v)));
    let mut selection = Selection {
        verdicts,
        warnings,
        gid_range,
    };
    addressed(request, &selection)?;
    let more = remarks(&context, &selection);
    selection.warnings.extend(more);
    Ok(selection)
}

/// What is a part of a NIC that is kept comes with it, asked or not: [`rules`] has seen to it that
/// all of it can. With what each of these was before, by its place.
fn come_along(snapshot: &Snapshot, verdicts: &mut [Verdict]) -> Vec<(usize, Verdict)> {
    let mut along = Vec::new();
    loop {
        let kept = kept_netdevs(verdicts);
        let all = verdicts.iter_mut().enumerate();
        let dropped = all.filter(|(_, v)| v.dropped.is_some());
        let Some((why, at, v)) = dropped
            .filter_map(|(at, v)| Some((part_of(snapshot, v.netdev.as_ref()?, &kept)?, at, v)))
            .next()
        else {
            return along;
        };
        along.push((at, v.clone()));
        (v.dropped, v.note) = (None, Some(format!("comes along with {why}")));
    }
}

/// Leaves out what came along with a NIC that was left out afterwards, and what came along with
/// that.
fn stay_behind(snapshot: &Snapshot, verdicts: &mut [Verdict], along: &[(usize, Verdict)]) {
    let mut gone = true;
    while std::mem::take(&mut gone) {
        for (at, before) in along {
            let kept = kept_netdevs(verdicts);
            let name = verdicts[*at].netdev.as_ref().filter(|n| kept.contains(n));
            if name.is_some_and(|name| part_of(snapshot, name, &kept).is_none()) {
                verdicts[*at] = before.clone();
                gone = true;
            }
        }
    }
}

fn kept_netdevs(verdicts: &[Verdict]) -> Vec<IfName> {
    let kept = verdicts.iter().filter(|v| v.dropped.is_none());
    kept.filter_map(|v| v.netdev.clone()).collect()
}

/// The kept netdev that one is a part of, as a clause.
fn part_of(snapshot: &Snapshot, name: &IfName, kept: &[IfName]) -> Option<String> {
    let netdev = snapshot.netdev(name)?;
    let below = upper_lower::lower(snapshot, netdev).filter(|_| upper_lower::follows(netdev));
    if let Some(d) = below.filter(|d| kept.contains(&d.name)) {
        return Some(format!("{}, which it sits on", d.name));
    }
    let bond = snapshot.netdev(netdev.master.as_ref()?)?;
    let is_kept = upper_lower::is_bond(bond) && kept.contains(&bond.name);
    is_kept.then(|| format!("{}, of which it is a member", bond.name))
}

/// Rail order. NICs without a PCI function come last; digits in names count as numbers, so that
/// rxe2 precedes rxe10.
fn rank(context: &Context, verdict: &Verdict) -> impl Ord + use<> {
    let request = context.request;
    let (netdev, hca) = (verdict.netdev.as_ref(), verdict.hca.as_ref());
    let placeholder = netdev.filter(|_| context.blind());
    let placeholder = placeholder.and_then(|name| place(&request.select.ifaces, name));
    let agreed = match (netdev, hca) {
        (Some(netdev), _) => place(&request.agreed, netdev),
        (None, Some(hca)) => place(request.agreed_ib.as_deref().unwrap_or_default(), hca),
        (None, None) => None,
    };
    let label = verdict.label();
    (
        // What comes along with an agreed one is in no list.
        agreed.unwrap_or(usize::MAX),
        placeholder,
        verdict.pci.is_none(),
        verdict.pci,
        natural::key(&label),
        label,
    )
}

fn place<T: PartialEq>(list: &[T], name: &T) -> Option<usize> {
    list.iter().position(|n| n == name)
}

/// A name that does not exist is a mistake, and the list of what does exist its cure.
fn known(context: &Context) -> Result<()> {
    unknown(context.request, context.snapshot, context.held)
        .first()
        .map_or(Ok(()), |list| Err(list.error()))
}

/// With `--no-auto-skip`, a NIC that lacks nothing but an address is an error.
fn addressed(request: &Request, selection: &Selection) -> Result<()> {
    let naked = selection
        .dropped()
        .filter(|(_, d)| d.code == DropCode::NoAddress);
    let naked: Vec<String> = naked
        .map(|(_, d)| format!("{}; {}", d.why, d.fix))
        .collect();
    if !request.select.no_auto_skip || naked.is_empty() {
        return Ok(());
    }
    Err(ErrorClass::Refused.error(format!("--no-auto-skip: {}", naked.join(". "))))
}

/// What the user should hear although it worked.
fn remarks(context: &Context, selection: &Selection) -> Vec<String> {
    let request = context.request;
    let mut said = Vec::new();
    let kept: Vec<&IfName> = selection.kept().filter_map(|v| v.netdev.as_ref()).collect();
    if context.blind() && !kept.is_empty() {
        said.push(format!(
            "no RDMA device here: {} taken as placeholders, without HCA, port or GID; NCCL_IB_HCA \
            is not derived",
            join(&kept)
        ));
    }
    for (verdict, drop) in selection.dropped() {
        let (netdev, hca) = (verdict.netdev.as_ref(), verdict.hca.as_ref());
        let narrowed = match (netdev, hca) {
            (Some(netdev), _) => request.narrowing.leaves_out(netdev),
            (None, hca) => hca.and_then(|hca| request.narrowing.leaves_out_hca(hca.as_str())),
        };
        if drop.code == DropCode::Excluded
            && narrowed.is_none()
            && by_regex(request, netdev, hca).is_some()
        {
            said.push(format!("{}; {}", drop.why, drop.fix));
        }
        let Some(name) = netdev else { continue };
        if drop.code != DropCode::Excluded && request.names(name) {
            said.push(format!(
                "{name} is in --ifaces, but is left out: {}; {}",
                drop.why, drop.fix
            ));
        }
    }
    said.extend(idle_exclusion(request, context.snapshot, context.held));
    said.extend(fabrics::left_out(&selection.verdicts));
    said.extend(fabrics::hints(context, &selection.verdicts));
    said.extend(link_layers::hint(context, &selection.verdicts));
    said.extend(taken_gids::version_1(request, &selection.verdicts));
    let mut absent: Vec<&IfName> = request.select.peer_ifaces.iter().collect();
    absent.retain(|n| selection.kept().all(|v| v.netdev.as_ref() != Some(*n)));
    if !absent.is_empty() {
        said.push(format!(
            "the peer has {}, which is not kept here",
            join(&absent)
        ));
    }
    if request.moves() && selection.kept().any(|v| v.netdev.is_some()) {
        said.extend(
            context
                .snapshot
                .unlisted_routes()
                .map(|why| format!("the hook will refuse: {why}")),
        );
    }
    said
}

fn join(names: &[&IfName]) -> String {
    names
        .iter()
        .map(|n| n.as_str())
        .collect::<Vec<_>>()
        .join(", ")
}
