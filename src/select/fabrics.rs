//! HCAs that look as if they were for storage or management: NCCL would take all that its list
//! names, and a rank whose HCA is in another fabric hangs. A rate below that of the other
//! InfiniBand HCAs decides; what may mean several things is a hint. A list of the user's, or
//! devices that a container asks for, decide instead.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use nccl_rules::levels::{Distance, Levels};
use rdma_model::ids::HcaName;
use rdma_model::snapshot::{Hca, Port, Snapshot};

use super::candidates::Context;
use super::{Drop, DropCode, Verdict};

/// PCI device ids of BlueField, BlueField-2, -3 and -4 with a network controller (pci.ids), and the
/// vendor Mellanox.
const DPUS: [u16; 4] = [0xa2d2, 0xa2d6, 0xa2dc, 0xa2df];
const MELLANOX: u16 = 0x15b3;

const FIX: &str = "if the job is not to have it: --exclude-hca";

pub(super) fn chosen_by_hand(context: &Context) -> bool {
    let request = context.request;
    !request.select.hca.is_empty()
        || request.narrowing.devices.is_some()
        || request.agreed_ib.is_some()
}

/// Whether it keeps an InfiniBand port, without a netdev.
fn is_bare(verdict: &Verdict) -> bool {
    verdict.dropped.is_none() && verdict.netdev.is_none()
}

/// The HCAs of verdicts, each once, in their order.
fn hcas<'a, 'v>(
    snapshot: &'a Snapshot,
    verdicts: impl Iterator<Item = &'v Verdict>,
) -> Vec<&'a Hca> {
    let mut found: Vec<&Hca> = Vec::new();
    for hca in verdicts.filter_map(|v| snapshot.hca(v.hca.as_ref()?)) {
        if found.iter().all(|f| f.name != hca.name) {
            found.push(hca);
        }
    }
    found
}

fn ports(hca: &Hca) -> impl Iterator<Item = &Port> {
    hca.ports
        .iter()
        .filter(|p| p.is_infiniband() && p.is_active())
}

fn rate(hca: &Hca) -> Option<f64> {
    ports(hca).filter_map(Port::gigabits).max_by(f64::total_cmp)
}

fn model(hca: &Hca, snapshot: &Snapshot) -> Option<(u16, u16)> {
    let function = snapshot.pci.iter().find(|f| Some(f.address) == hca.pci)?;
    Some((function.vendor, function.device))
}

/// Why one is slower than the fastest: one of the same model among these can tell.
fn why_slower(hca: &Hca, fastest: &[&Hca], snapshot: &Snapshot) -> String {
    let own = model(hca, snapshot);
    match fastest
        .iter()
        .find(|other| own.is_some() && model(other, snapshot) == own)
    {
        Some(other) => format!(
            "it is the same model as {}, so its link may have trained down (see its cable and \
            switch port), or its switch is slower",
            other.name
        ),
        None => "for storage or management, or its link trained down".to_owned(),
    }
}

/// Leaves out those that are slower than the fastest; a rate that is unknown is not compared.
pub(super) fn leave_out_slower(context: &Context, verdicts: &mut [Verdict]) {
    if chosen_by_hand(context) {
        return;
    }
    let all = hcas(context.snapshot, verdicts.iter().filter(|v| is_bare(v)));
    let rates: Vec<(&Hca, f64)> = all
        .iter()
        .filter_map(|hca| Some((*hca, rate(hca)?)))
        .collect();
    let Some(most) = rates.iter().map(|(_, rate)| *rate).max_by(f64::total_cmp) else {
        return;
    };
    let fastest: Vec<&Hca> = rates
        .iter()
        .filter(|(_, rate)| *rate == most)
        .map(|(hca, _)| *hca)
        .collect();
    for (hca, rate) in rates.iter().filter(|(_, rate)| *rate < most) {
        let reason = why_slower(hca, &fastest, context.snapshot);
        let why =
            format!("a rate of {rate} Gb/s, where the fastest InfiniBand HCA has {most}: {reason}");
        let drop = Drop {
            code: DropCode::SlowerHca,
            also: Vec::new(),
            why,
            fix: "to keep it: --hca all, or --hca with all that are meant (RDMA_HCA)".to_owned(),
        };
        for v in verdicts.iter_mut() {
            if is_bare(v) && v.hca.as_ref() == Some(&hca.name) {
                (v.dropped, v.note) = (Some(drop.clone()), None);
            }
        }
    }
}

/// What was left out for its fabric: a line for each reason.
pub(super) fn left_out(verdicts: &[Verdict]) -> Vec<String> {
    let mut groups: Vec<(&Drop, Vec<String>)> = Vec::new();
    for verdict in verdicts {
        let Some(drop) = verdict.dropped.as_ref() else {
            continue;
        };
        let label = match (drop.code, &verdict.hca) {
            (DropCode::SlowerHca, Some(hca)) => hca.to_string(),
            (DropCode::OtherLinkLayer, _) => verdict.label(),
            _ => continue,
        };
        match groups.iter_mut().find(|(known, _)| *known == drop) {
            Some((_, labels)) if labels.contains(&label) => {}
            Some((_, labels)) => labels.push(label),
            None => groups.push((drop, vec![label])),
        }
    }
    groups
        .iter()
        .map(|(d, labels)| format!("{} left out: {}; {}", labels.join(", "), d.why, d.fix))
        .collect()
}

/// What else may mean that an HCA that is kept is not for the job.
pub(super) fn hints(context: &Context, verdicts: &[Verdict]) -> Vec<String> {
    if chosen_by_hand(context) {
        return Vec::new();
    }
    let snapshot = context.snapshot;
    let all = hcas(snapshot, verdicts.iter().filter(|v| is_bare(v)));
    let far = far(snapshot, &all).map(|(hca, numa)| {
        format!("{hca} has no GPU nearer than SYS, as it is at NUMA node {numa}; {FIX} {hca}")
    });
    far.chain(dpus(context, verdicts))
        .chain(several_subnets(&all))
        .collect()
}

/// Ports of DPUs beside other NICs, InfiniBand or RoCE, that no name asked for.
fn dpus(context: &Context, verdicts: &[Verdict]) -> Vec<String> {
    let kept = verdicts.iter().filter(|v| {
        let name = v.netdev.as_ref();
        v.dropped.is_none() && !name.is_some_and(|n| context.request.names(n))
    });
    let (dpus, others): (Vec<&Hca>, Vec<&Hca>) = hcas(context.snapshot, kept)
        .into_iter()
        .partition(|hca| is_dpu(hca, context.snapshot));
    dpus.iter()
        .filter(|_| !others.is_empty())
        .map(|hca| {
            format!(
                "{} is a port of a DPU (BlueField), which may be for management; {FIX} {0}",
                hca.name
            )
        })
        .collect()
}

fn is_dpu(hca: &Hca, snapshot: &Snapshot) -> bool {
    model(hca, snapshot).is_some_and(|(vendor, id)| vendor == MELLANOX && DPUS.contains(&id))
}

/// HCAs whose every way to a GPU leads from one NUMA node to another, where others are nearer to
/// one; with the NUMA node of each.
fn far<'a>(snapshot: &Snapshot, all: &[&'a Hca]) -> impl Iterator<Item = (&'a HcaName, i32)> {
    let levels = Levels::new(snapshot);
    let places: Vec<(&HcaName, (Distance, i32))> = all
        .iter()
        .filter_map(|hca| Some((&hca.name, nearest(hca, &levels, snapshot)?)))
        .collect();
    let any_near = places.iter().any(|(_, (way, _))| *way < Distance::Sys);
    let far = places
        .into_iter()
        .filter(move |(_, (way, _))| any_near && *way == Distance::Sys);
    far.map(|(hca, (_, numa))| (hca, numa))
}

/// The distance to the nearest GPU, and the NUMA node. Where the platform does not say, all look
/// alike.
fn nearest(hca: &Hca, levels: &Levels, snapshot: &Snapshot) -> Option<(Distance, i32)> {
    let pci = hca.pci.filter(|pci| levels.function(*pci).is_some())?;
    let ways = snapshot
        .gpus()
        .map(|gpu| levels.between(pci, gpu.address).0);
    let numa = levels.numa(pci);
    (numa >= 0).then_some((ways.min()?, numa))
}

/// Each subnet manager gives its subnet a prefix of its own, or leaves the default, fe80::/64,
/// which says nothing.
fn several_subnets(all: &[&Hca]) -> Option<String> {
    let mut subnets: BTreeMap<IpNet, Vec<&str>> = BTreeMap::new();
    for hca in all {
        let of_hca: BTreeSet<IpNet> = ports(hca).filter_map(subnet).collect();
        for net in of_hca {
            subnets.entry(net).or_default().push(hca.name.as_str());
        }
    }
    let text: Vec<String> = subnets
        .iter()
        .map(|(net, hcas)| format!("{net} has {}", hcas.join(", ")))
        .collect();
    (subnets.len() > 1).then(|| {
        format!(
            "the InfiniBand HCAs are in {} subnets: {}; if the job is to use one of these: \
            --hca PREFIX/64",
            subnets.len(),
            text.join("; ")
        )
    })
}

fn subnet(port: &Port) -> Option<IpNet> {
    let IpAddr::V6(gid) = port.gids.iter().min_by_key(|g| g.index)?.ip() else {
        return None;
    };
    Some(IpNet::new(gid.into(), 64).ok()?.trunc())
}
