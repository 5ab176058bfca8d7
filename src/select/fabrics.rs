//! InfiniBand HCAs that look as if they were for storage or management: NCCL would take all that
//! its list names, and a rank whose HCA is in another fabric hangs. A rate below that of the others
//! decides; what may mean several things is a hint. A list of the user's, or devices that a
//! container asks for, decide instead.

use std::collections::BTreeSet;
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

fn chosen_by_hand(context: &Context) -> bool {
    let request = context.request;
    !request.select.hca.is_empty()
        || request.narrowing.devices.is_some()
        || request.agreed_ib.is_some()
}

/// The InfiniBand HCAs that are kept, each once, in rail order.
fn kept<'a>(snapshot: &'a Snapshot, verdicts: &[Verdict]) -> Vec<&'a Hca> {
    let mut found: Vec<&Hca> = Vec::new();
    for v in verdicts
        .iter()
        .filter(|v| v.dropped.is_none() && v.netdev.is_none())
    {
        let hca = v.hca.as_ref().and_then(|name| snapshot.hca(name));
        found.extend(hca.filter(|hca| !found.iter().any(|f| f.name == hca.name)));
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
    let all = kept(context.snapshot, verdicts);
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
        let of_it = |v: &&mut Verdict| v.netdev.is_none() && v.hca.as_ref() == Some(&hca.name);
        for v in verdicts
            .iter_mut()
            .filter(of_it)
            .filter(|v| v.dropped.is_none())
        {
            (v.dropped, v.note) = (Some(drop.clone()), None);
        }
    }
}

/// What was left out for its rate: a line each.
pub(super) fn slower(verdicts: &[Verdict]) -> Vec<String> {
    let mut groups: Vec<(&Drop, Vec<&str>)> = Vec::new();
    for (drop, hca) in verdicts
        .iter()
        .filter_map(|v| Some((v.dropped.as_ref()?, v.hca.as_ref()?.as_str())))
    {
        match groups.iter_mut().find(|(known, _)| *known == drop) {
            Some((_, hcas)) if hcas.contains(&hca) => {}
            Some((_, hcas)) => hcas.push(hca),
            None if drop.code == DropCode::SlowerHca => groups.push((drop, vec![hca])),
            None => {}
        }
    }
    groups
        .iter()
        .map(|(d, hcas)| format!("{} left out: {}; {}", hcas.join(", "), d.why, d.fix))
        .collect()
}

/// What else may mean that an HCA that is kept is not for the job.
pub(super) fn hints(context: &Context, verdicts: &[Verdict]) -> Vec<String> {
    if chosen_by_hand(context) {
        return Vec::new();
    }
    let (snapshot, all) = (context.snapshot, kept(context.snapshot, verdicts));
    let fix = "if the job is not to have it: --exclude-hca";
    let far = far(snapshot, &all)
        .map(|(hca, where_)| format!("{hca} has no GPU nearer than SYS, {where_}; {fix} {hca}"));
    let is_dpu = |hca: &&&Hca| {
        let function = snapshot.pci.iter().find(|f| Some(f.address) == hca.pci);
        function.is_some_and(|f| f.vendor == MELLANOX && DPUS.contains(&f.device))
    };
    let (dpus, others): (Vec<&Hca>, Vec<&Hca>) = all.iter().partition(|hca| is_dpu(hca));
    let dpus = dpus.iter().filter(|_| !others.is_empty());
    let dpus = dpus.map(|hca| {
        format!(
            "{} is a port of a DPU (BlueField), which may be for management; {fix} {0}",
            hca.name
        )
    });
    far.chain(dpus).chain(several_subnets(&all)).collect()
}

/// HCAs whose every way to a GPU leads from one NUMA node to another, where others are nearer to
/// one.
fn far<'a>(snapshot: &'a Snapshot, all: &[&'a Hca]) -> impl Iterator<Item = (&'a HcaName, String)> {
    let levels = Levels::new(snapshot);
    let nearest = |hca: &Hca| {
        let pci = hca.pci.filter(|pci| levels.function(*pci).is_some())?;
        let way = snapshot
            .gpus()
            .map(|gpu| levels.between(pci, gpu.address).0)
            .min()?;
        // Where the platform does not say, all look alike.
        (levels.numa(pci) >= 0).then_some((way, levels.numa(pci)))
    };
    let places: Vec<_> = all
        .iter()
        .filter_map(|hca| Some((*hca, nearest(hca)?)))
        .collect();
    let any_near = places.iter().any(|(_, (way, _))| *way < Distance::Sys);
    let far = places
        .into_iter()
        .filter(move |(_, (way, _))| any_near && *way == Distance::Sys);
    far.map(|(hca, (_, numa))| (&hca.name, format!("as it is at NUMA node {numa}")))
}

/// Each subnet manager gives its subnet a prefix of its own, or leaves the default, fe80::/64,
/// which says nothing.
fn several_subnets(all: &[&Hca]) -> Option<String> {
    let subnet = |port: &Port| {
        let IpAddr::V6(gid) = port.gids.iter().min_by_key(|g| g.index)?.ip() else {
            return None;
        };
        Some(IpNet::new(gid.into(), 64).ok()?.trunc())
    };
    let subnets: BTreeSet<IpNet> = all
        .iter()
        .flat_map(|hca| ports(hca))
        .filter_map(subnet)
        .collect();
    let of = |net: &IpNet| {
        let names = all
            .iter()
            .filter(|hca| ports(hca).any(|p| subnet(p) == Some(*net)))
            .map(|hca| hca.name.as_str());
        format!("{net} has {}", names.collect::<Vec<_>>().join(", "))
    };
    let text = subnets.iter().map(of).collect::<Vec<_>>().join("; ");
    (subnets.len() > 1).then(|| {
        format!(
            "the InfiniBand HCAs are in {} subnets: {text}; if the job is to use one of these: \
            --hca PREFIX/64",
            subnets.len()
        )
    })
}
