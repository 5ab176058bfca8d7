//! The way between GPUs and their NICs: switches that send it through the processor, and NUMA
//! nodes.

use std::collections::BTreeSet;

use nccl_rules::levels::{Distance, Levels};
use rdma_model::ids::{BusId, HcaName, IfName};
use rdma_model::snapshot::{PciFunction, RdmaMode, Snapshot};

use super::facts::Machine;
use super::{Check, CheckContext, Finding, Severity, join};

/// P2P Request Redirect and P2P Completion Redirect of the ACS Control register (PCI_ACS_RR,
/// PCI_ACS_CR in include/uapi/linux/pci_regs.h).
const REDIRECT: u16 = 0x0c;

/// Bridges above one another that are followed; see [`nccl_rules::levels`].
const DEEPEST: usize = 256;

fn above(snapshot: &Snapshot, device: BusId) -> Vec<BusId> {
    let bridge = |at: BusId| snapshot.pci.iter().find(|f| f.address == at)?.bridge;
    std::iter::successors(bridge(device), |at| bridge(*at))
        .take(DEEPEST)
        .collect()
}

/// The ports that packets between two devices pass below the switch that both are under.
fn between(snapshot: &Snapshot, one: BusId, other: BusId) -> Vec<BusId> {
    let (up, down) = (above(snapshot, one), above(snapshot, other));
    let all = up.iter().chain(&down).copied();
    all.filter(|port| up.contains(port) != down.contains(port))
        .collect()
}

/// Where rails are that are on PCI, also those that a cable would mend, and by the HCAs that they
/// leave behind those that containers have. Nothing where one of these has taken its HCA along, as
/// in exclusive mode.
pub(super) fn places<'a>(context: &CheckContext<'a>) -> Option<Vec<(&'a IfName, BusId)>> {
    let (snapshot, held) = (context.of.snapshot, context.of.held);
    let here = context
        .rails()
        .into_iter()
        .filter_map(|r| Some((&r.netdev.name, r.hca.pci?)));
    let mut all: Vec<(&IfName, BusId)> = here.collect();
    if !context.lends() {
        return Some(all);
    }
    let mut away = context.of.traces.iter().flat_map(|t| &t.nics);
    if !away.all(|name| held.iter().any(|h| h.netdev.as_str() == name)) {
        return None;
    }
    for (name, hca) in held
        .iter()
        .filter_map(|h| Some((&h.netdev, h.hca.as_ref()?)))
    {
        match snapshot.hca(hca) {
            Some(hca) => all.extend(hca.pci.map(|at| (name, at))),
            // Soft-RoCE is re-created inside, and is on no bus.
            None if snapshot.rdma_mode == Some(RdmaMode::Shared) => {}
            None => return None,
        }
    }
    Some(all)
}

/// Ports of switches that send what goes from a GPU to its NIC up to the processor.
pub(super) fn acs(context: &CheckContext, machine: &Machine) -> Vec<Finding> {
    let snapshot = context.of.snapshot;
    let levels = Levels::new(snapshot);
    let gpus: Vec<&PciFunction> = snapshot.gpus().collect();
    let rails: Vec<BusId> = context
        .rails()
        .into_iter()
        .filter_map(|r| r.hca.pci)
        .collect();
    let near = rails
        .iter()
        .flat_map(|nic| gpus.iter().map(move |gpu| (*nic, gpu.address)));
    let near = near
        .filter(|(nic, gpu)| matches!(levels.between(*nic, *gpu).0, Distance::Pix | Distance::Pxb));
    let ports: BTreeSet<BusId> = near
        .flat_map(|(nic, gpu)| between(snapshot, nic, gpu))
        .collect();
    let (mut redirecting, mut unread): (Vec<&BusId>, Vec<&BusId>) = Default::default();
    for port in &ports {
        match machine.acs.get(port) {
            Some(Some(control)) if control & REDIRECT != 0 => redirecting.push(port),
            Some(None) => unread.push(port),
            _ => {}
        }
    }
    let mut found = Vec::new();
    if !redirecting.is_empty() {
        let seen = format!(
            "ACS sends peer-to-peer traffic upwards at {}",
            join(&redirecting)
        );
        let why = "what goes between a GPU and its NIC takes the way through the processor: \
            GPUDirect loses half of its speed, or fails";
        let fix = "switch it off in the BIOS, or at each boot; where virtual machines get these \
            devices it has to stay";
        let one = Finding::new(Check::Acs, Severity::Warning, seen, why, fix);
        found.push(redirecting.iter().fold(one, |one, port| {
            one.run(format!("setpci -s {port} ECAP_ACS+6.w=0:c"))
        }));
    }
    if !unread.is_empty() {
        let seen = format!("whether ACS is on at {} is not known", join(&unread));
        let why = "it would send what goes between a GPU and its NIC through the processor";
        let fix = "run it as root, outside of a container: configuration space is shown in part";
        found.push(Finding::new(Check::Acs, Severity::Unknown, seen, why, fix));
    }
    found
}

pub(super) fn numa(context: &CheckContext) -> Vec<Finding> {
    // What is nearest may be what a container has.
    let Some(rails) = places(context) else {
        return Vec::new();
    };
    let levels = Levels::new(context.of.snapshot);
    let mut found = Vec::new();
    let mut silent = Vec::new();
    for gpu in context.of.snapshot.gpus() {
        let Some((distance, rail, at)) = rails
            .iter()
            .map(|(rail, at)| (levels.between(*at, gpu.address).0, rail, *at))
            .min_by_key(|(d, ..)| *d)
        else {
            continue;
        };
        let (here, there) = (levels.numa(gpu.address), levels.numa(at));
        if distance != Distance::Sys {
            continue;
        }
        if here < 0 || there < 0 {
            silent.push(gpu.address);
            continue;
        }
        let seen = format!(
            "the rail nearest to GPU {} (NUMA {here}) is {rail} (NUMA {there})",
            gpu.address
        );
        let why =
            "all that it sends crosses the link between the processors, which is slower and shared";
        let one = Finding::new(Check::Numa, Severity::Warning, seen, why, "");
        found.push(match nearer(context, &levels, gpu.address) {
            Some((hca, word)) => Finding {
                fix: format!("take {hca} as well, which is {word}: see `rdmaprep topo`"),
                ..one
            },
            None => Finding {
                fix: "put a NIC below this processor, or leave the GPU out of such jobs".to_owned(),
                ..one
            },
        });
    }
    if !silent.is_empty() && context.of.snapshot.numa_nodes.len() > 1 {
        let seen = format!(
            "of {}, or of the rails, the platform does not tell the NUMA node",
            join(&silent)
        );
        let why = "NCCL takes each such pair for one across the processors";
        let fix = "update the BIOS, or give NCCL a topology file: rdmaprep topo --nccl-xml";
        found.push(Finding::new(Check::Numa, Severity::Unknown, seen, why, fix));
    }
    found
}

/// An HCA of any kind that is on a GPU's own node.
fn nearer<'a>(
    context: &CheckContext<'a>,
    levels: &Levels,
    gpu: BusId,
) -> Option<(&'a HcaName, &'static str)> {
    let all = context
        .of
        .snapshot
        .hcas
        .iter()
        .filter_map(|h| Some((levels.between(h.pci?, gpu).0, &h.name)));
    let (distance, name) = all.min()?;
    (distance != Distance::Sys).then(|| (name, distance.name()))
}
