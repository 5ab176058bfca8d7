//! NCCL_NET_FORCE_MERGE: groups of NICs, apart by `;`, that become one each (src/graph/topo.cc,
//! `ncclTopoForceMerge`). A group that does not fit what NCCL uses, NIC for NIC, ends it.

use rdma_model::snapshot::{Hca, Port, Snapshot};

use super::explanation::{Explanation, Network, Trap, Warning};
use super::hca::{DIRECT, data_direct, has_direct, parameter};
use super::ifname::{Entry, entries};
use super::pitfalls::{few, short, warning};
use super::settings::Settings;

const VARIABLE: &str = "NCCL_NET_FORCE_MERGE";

pub(crate) fn warnings(
    settings: &Settings,
    snapshot: &Snapshot,
    explained: &Explanation,
) -> Option<Warning> {
    let version = explained.version;
    let value = settings.get(VARIABLE).filter(|_| version.forces_merges())?;
    let is_ibs = explained.network.as_ref().is_none_or(|n| *n == Network::Ib);
    if explained.hcas.is_empty() || !is_ibs {
        return None;
    }
    let mut groups = value.split(';').filter(|group| !group.is_empty());
    let why = groups.find_map(|group| {
        let mut entries = entries(group, version);
        entries.truncate(version.max_merged());
        if entries.is_empty() {
            return Some(format!(
                "NCCL {version} reads {group:?} again and again, and hangs"
            ));
        }
        match refusal(settings, snapshot, explained, &entries) {
            Some(why) => Some(format!("NCCL {version} ends with ncclInvalidUsage: {why}")),
            None => renamed(settings, snapshot, explained, &entries),
        }
    })?;
    Some(warning(
        Trap::Merge,
        format!("{VARIABLE}={}: {why}", short(value)),
    ))
}

fn refusal(
    settings: &Settings,
    snapshot: &Snapshot,
    explained: &Explanation,
    entries: &[Entry],
) -> Option<String> {
    let is_direct = data_direct(settings, explained.version) > 0;
    let mut found: Vec<(&Entry, String, &Port)> = Vec::new();
    for (hca, port) in ports(snapshot, explained) {
        let mut fits = entries.iter().filter(|e| fits(e, hca, port, is_direct));
        if let Some(entry) = fits.next() {
            found.push((entry, format!("{}:{}", hca.name, port.number), port));
        }
    }
    let absent = entries
        .iter()
        .filter(|e| found.iter().all(|(by, ..)| by != e));
    let absent: Vec<&str> = absent.map(|entry| entry.name.as_str()).collect();
    let labels: Vec<&str> = found.iter().map(|(_, label, _)| label.as_str()).collect();
    let mut layers = found.iter().map(|(.., port)| port.is_infiniband());
    let first = layers.next();
    if !absent.is_empty() {
        return Some(format!("no HCA that it uses is called {}", few(&absent)));
    }
    if found.len() != entries.len() {
        let count = entries.len();
        return Some(format!(
            "{count} are named, and {} fit: write NAME:PORT",
            few(&labels)
        ));
    }
    if layers.any(|layer| Some(layer) != first) {
        return Some(format!("{} are of two link layers", few(&labels)));
    }
    let is_off = parameter(settings, explained.version, "NCCL_IB_MERGE_NICS", 1) == 0;
    (is_off && found.len() > 1).then(|| "NCCL_IB_MERGE_NICS=0 forbids it".to_owned())
}

/// With Data Direct an HCA has another name, and by its own one it is not found.
fn renamed(
    settings: &Settings,
    snapshot: &Snapshot,
    explained: &Explanation,
    entries: &[Entry],
) -> Option<String> {
    let version = explained.version;
    let mut used = ports(snapshot, explained).filter(|_| data_direct(settings, version) == 1);
    let (hca, _) = used.find(|(hca, port)| {
        let is_named = |e: &Entry| e.matches(hca.name.as_str(), Some(port.number), true);
        has_direct(snapshot, hca) && entries.iter().any(is_named)
    })?;
    let name = &hca.name;
    Some(format!(
        "if {name} has Data Direct, NCCL {version} calls it {name}{DIRECT}, and ends with \
        ncclInvalidUsage: name that, or set NCCL_IB_DATA_DIRECT=0"
    ))
}

/// The ports that NCCL uses.
fn ports<'a>(
    snapshot: &'a Snapshot,
    explained: &Explanation,
) -> impl Iterator<Item = (&'a Hca, &'a Port)> {
    let hcas = snapshot.hcas.iter();
    let all = hcas.flat_map(|hca| hca.ports.iter().map(move |port| (hca, port)));
    all.filter(|(hca, port)| {
        let label = format!("{}:{}", hca.name, port.number);
        explained.hcas.contains(&label)
    })
}

/// Whole names are compared. Which HCAs have a Data Direct function, and so another name, is
/// firmware's to say.
fn fits(entry: &Entry, hca: &Hca, port: &Port, is_direct: bool) -> bool {
    let number = Some(port.number);
    let own = entry.name.strip_suffix(DIRECT).filter(|_| is_direct);
    let is_own = own == Some(hca.name.as_str()) && entry.fits_port(number);
    is_own || entry.matches(hca.name.as_str(), number, true)
}
