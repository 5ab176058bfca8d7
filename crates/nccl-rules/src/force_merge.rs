//! NCCL_NET_FORCE_MERGE: groups of NICs, apart by `;`, that become one each (src/graph/topo.cc,
//! `ncclTopoForceMerge`). A group that does not fit what NCCL uses, NIC for NIC, ends it, and so
//! does a group that NCCL makes by itself and cannot use.

use rdma_model::snapshot::Snapshot;

use super::explanation::{Explanation, Network, Trap};
use super::hca::{DIRECT, data_direct, has_direct, parameter};
use super::ifname::{Entry, Patterns, entries};
use super::merges::{Device, MOST, automatic, devices, nodes};
use super::pitfalls::{few, short, warning};
use super::settings::Settings;
use super::version::Version;

const VARIABLE: &str = "NCCL_NET_FORCE_MERGE";
const LEVEL: &str = "NCCL_NET_MERGE_LEVEL";

/// Notes the NICs that become one.
pub(crate) fn judge(settings: &Settings, snapshot: &Snapshot, explained: &mut Explanation) {
    let version = explained.version;
    let is_ibs = explained.network.as_ref().is_none_or(|n| *n == Network::Ib);
    if explained.hcas.is_empty() || !is_ibs || !version.forces_merges() {
        return;
    }
    let devices = devices(settings, snapshot, explained);
    if let Some(text) = twins(settings, version, &devices) {
        return explained.warnings.push(warning(Trap::Merge, text));
    }
    let value = settings.get(VARIABLE).unwrap_or_default();
    let mut forced = Vec::new();
    for group in value.split(';').filter(|group| !group.is_empty()) {
        let all = entries(group, version);
        let mut read = all.clone();
        read.truncate(version.max_forced());
        if read.len() < all.len() {
            let (of, most) = (all.len(), read.len());
            let text = format!(
                "{VARIABLE}={}: of {of} names NCCL {version} reads {most}",
                short(value)
            );
            explained.warnings.push(warning(Trap::Value, text));
        }
        let why = match read.is_empty() {
            true => Err(format!(
                "NCCL {version} reads {group:?} again and again, and hangs"
            )),
            false => named(settings, snapshot, explained, &devices, &read),
        };
        match why {
            Ok(group) => forced.push(group),
            Err(why) => {
                let text = format!("{VARIABLE}={}: {why}", short(value));
                return explained.warnings.push(warning(Trap::Merge, text));
            }
        }
    }
    let own = automatic(settings, snapshot, version, &devices, &forced).unwrap_or_default();
    let mut ends = own.iter().filter(|_| !version.leaves_apart());
    let ends = ends.find_map(|group| forbidden(settings, explained, group));
    let why = ends.or_else(|| {
        let mut all = forced.iter().chain(&own);
        let group = all.find(|group| is_across(settings, snapshot, explained, group))?;
        Some(format!(
            "NCCL {version} ends with ncclInvalidArgument: {} are of different NUMA nodes, which \
            it makes no NIC of",
            labels(group)
        ))
    });
    if let Some(why) = why {
        let text = match own.is_empty() {
            true => format!("{VARIABLE}={}: {why}", short(value)),
            false => format!("{why}; {LEVEL}=LOC keeps NICs apart"),
        };
        return explained.warnings.push(warning(Trap::Merge, text));
    }
    let groups = forced.iter().chain(&own).filter(|group| group.len() > 1);
    explained.merged = groups
        .map(|group| group.iter().map(Device::label).collect())
        .collect();
}

/// Two ports of an HCA, which are NICs of one name, without one rail and plane for both.
fn twins(settings: &Settings, version: Version, devices: &[Device]) -> Option<String> {
    if !version.has_own_rails() {
        return None;
    }
    let hcas = Patterns::hcas(settings.get("NCCL_IB_HCA"), version);
    let lane = |device: &Device| {
        let (name, port) = (device.hca.name.as_str(), Some(device.port.number));
        let entry = hcas
            .entries
            .iter()
            .find(|e| e.matches(name, port, hcas.exact))?;
        Some((entry.rail?, entry.plane?)).filter(|_| !hcas.exclude)
    };
    let mut pairs = devices.iter().enumerate().flat_map(|(at, port)| {
        let others = devices[..at].iter().filter(|o| o.hca.name == port.hca.name);
        others.map(move |other| (other, port))
    });
    let (one, other) = pairs.find(|(a, b)| lane(a).is_none() || lane(a) != lane(b))?;
    let first = one.label();
    Some(format!(
        "NCCL {version} ends with ncclInvalidUsage: {first} and {} have one name, and different \
        planes; name one port of the HCA, as {first}",
        other.label()
    ))
}

fn labels(group: &[Device]) -> String {
    let labels: Vec<String> = group.iter().map(Device::label).collect();
    few(&labels.iter().map(String::as_str).collect::<Vec<_>>())
}

fn is_across(
    settings: &Settings,
    snapshot: &Snapshot,
    explained: &Explanation,
    group: &[Device],
) -> bool {
    let nodes = nodes(settings, snapshot, explained.version, group);
    let differ = nodes.iter().any(|node| *node != nodes[0]);
    differ && explained.version.wants_one_node()
}

/// The NICs that a group names, or what NCCL does.
fn named<'a>(
    settings: &Settings,
    snapshot: &Snapshot,
    explained: &Explanation,
    devices: &[Device<'a>],
    entries: &[Entry],
) -> Result<Vec<Device<'a>>, String> {
    let version = explained.version;
    let direct = data_direct(settings, version);
    let mut found: Vec<(&Entry, Device)> = Vec::new();
    for device in devices {
        let own = device.hca.name.to_string();
        let names = [own.clone(), format!("{own}{DIRECT}")];
        // With 2 each is a device of its own; which HCAs have the second is firmware's to say.
        let most = if direct == 2 { 2 } else { 1 };
        let names = names.iter().take(if direct > 0 { 2 } else { 1 });
        let by = names.filter_map(|name| {
            let mut entries = entries.iter();
            entries.find(|e| e.matches(name, Some(device.number), true))
        });
        found.extend(by.take(most).map(|entry| (entry, *device)));
    }
    let group: Vec<Device> = found.iter().map(|(_, device)| *device).collect();
    let why = if found.len() != entries.len() {
        unfit(devices, entries, &found)
    } else if group.len() > MOST {
        format!("at most {MOST} become one")
    } else if let Some(why) = forbidden(settings, explained, &group) {
        return Err(why);
    } else if let Some(why) = renamed(settings, snapshot, explained, &found) {
        return Err(why);
    } else {
        return Ok(group);
    };
    Err(format!("NCCL {version} ends with ncclInvalidUsage: {why}"))
}

/// Why the ports that a group fits are more or less than its names: NCCL compares nothing else.
fn unfit(devices: &[Device], entries: &[Entry], found: &[(&Entry, Device)]) -> String {
    let absent = entries
        .iter()
        .filter(|e| found.iter().all(|(by, _)| by != e));
    let absent: Vec<&str> = absent.map(|entry| entry.name.as_str()).collect();
    if absent.is_empty() {
        let fit: Vec<String> = found.iter().map(|(_, d)| d.entry()).collect();
        let fit: Vec<&str> = fit.iter().map(String::as_str).collect();
        let count = entries.len();
        return format!("{count} are named, and {} fit: write NAME:PORT", few(&fit));
    }
    let others = devices.iter();
    let others = others.filter(|d| absent.contains(&d.hca.name.as_str()));
    let others: Vec<String> = others.map(Device::entry).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    match others.is_empty() {
        true => format!("no HCA that it uses is called {}", few(&absent)),
        false => format!("it counts the ports of a card on, and has {}", few(&others)),
    }
}

/// Why NICs cannot be one (`ncclIbMakeVDevice`).
fn forbidden(settings: &Settings, explained: &Explanation, group: &[Device]) -> Option<String> {
    let version = explained.version;
    let mut layers = group.iter().map(|d| d.port.is_infiniband());
    let first = layers.next();
    let is_off = parameter(settings, version, "NCCL_IB_MERGE_NICS", 1) == 0;
    let why = if layers.any(|layer| Some(layer) != first) {
        format!("{} are of two link layers", labels(group))
    } else if is_off && group.len() > 1 {
        "NCCL_IB_MERGE_NICS=0 forbids it".to_owned()
    } else {
        return None;
    };
    Some(format!("NCCL {version} ends with ncclInvalidUsage: {why}"))
}

/// With Data Direct an HCA has another name, and by its own one it is not found.
fn renamed(
    settings: &Settings,
    snapshot: &Snapshot,
    explained: &Explanation,
    found: &[(&Entry, Device)],
) -> Option<String> {
    let version = explained.version;
    let mut found = found.iter().filter(|_| data_direct(settings, version) == 1);
    let (_, device) =
        found.find(|(e, d)| e.name == d.hca.name.as_str() && has_direct(snapshot, d.hca))?;
    let name = &device.hca.name;
    Some(format!(
        "if {name} has Data Direct, NCCL {version} calls it {name}{DIRECT}, and ends with \
        ncclInvalidUsage: name that, or set NCCL_IB_DATA_DIRECT=0"
    ))
}
