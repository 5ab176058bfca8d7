//! Which NICs become one from 2.24.3 on (src/graph/topo.cc, `ncclTopoMakeVNics`): first those that
//! NCCL_NET_FORCE_MERGE names, then those within NCCL_NET_MERGE_LEVEL of each other.

use rdma_model::ids::BusId;
use rdma_model::snapshot::{Hca, Port, Snapshot};

use super::explanation::Explanation;
use super::hca::{data_direct, has_direct, parameter, place};
use super::ifname::Patterns;
use super::levels::{Distance, Levels};
use super::settings::Settings;
use super::version::Version;

/// A port that NCCL uses.
#[derive(Clone, Copy)]
pub(crate) struct Device<'a> {
    pub(crate) hca: &'a Hca,
    pub(crate) port: &'a Port,
    /// What NCCL compares NAME:PORT of its network's lists with (`ncclIbGetRealPort`): the port's
    /// number, and one more for each device before it on the same card.
    pub(crate) number: u32,
}

/// How many NICs become one: NCCL_NET_MAX_DEVS_PER_NIC_V11, also where the plugin's interface has
/// room for more, as NCCL's own network is of no version (ncclTopoGetSystem).
pub(crate) const MOST: usize = 4;

/// How near two NICs are: ports of one card, else as their places.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Near {
    Port,
    At(Distance),
}

impl Device<'_> {
    pub(crate) fn label(&self) -> String {
        format!("{}:{}", self.hca.name, self.port.number)
    }

    /// As a list of NCCL's network names it.
    pub(crate) fn entry(&self) -> String {
        format!("{}:{}", self.hca.name, self.number)
    }
}

/// In NCCL's order.
pub(crate) fn devices<'a>(
    settings: &Settings,
    snapshot: &'a Snapshot,
    explained: &Explanation,
) -> Vec<Device<'a>> {
    let vfs = parameter(settings, explained.version, "NCCL_IB_MERGE_VFS", 1) != 0;
    let mut all: Vec<Device> = Vec::new();
    for label in &explained.hcas {
        let mut ports = snapshot
            .hcas
            .iter()
            .flat_map(|h| h.ports.iter().map(move |port| (h, port)));
        let found = ports.find(|(hca, port)| format!("{}:{}", hca.name, port.number) == *label);
        let Some((hca, port)) = found else {
            continue;
        };
        let card = hca.pci.map(|id| place(id, vfs));
        let mut number = port.number;
        for other in all.iter().filter(|_| card.is_some()) {
            number += u32::from(other.hca.pci.map(|id| place(id, vfs)) == card);
        }
        all.push(Device { hca, port, number });
    }
    all
}

/// The groups that NCCL makes of the NICs that are not forced together, where that is certain.
pub(crate) fn automatic<'a>(
    settings: &Settings,
    snapshot: &Snapshot,
    version: Version,
    devices: &[Device<'a>],
    forced: &[Vec<Device<'a>>],
) -> Option<Vec<Vec<Device<'a>>>> {
    let places = Places::new(settings, snapshot, version, devices)?;
    let level = level(settings, version)?;
    let rails = rails(settings, version, devices)?;
    let may_merge = parameter(settings, version, "NCCL_IB_MERGE_NICS", 1) != 0;
    let mut free: Vec<bool> = Vec::new();
    for device in devices {
        let mut forced = forced.iter().flatten();
        free.push(!forced.any(|d| d.label() == device.label()));
    }
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut apart: Vec<(usize, usize)> = Vec::new();
    let mut next = 0;
    while next < devices.len() {
        let at = next;
        next += 1;
        if !std::mem::take(&mut free[at]) {
            continue;
        }
        let mut group = vec![at];
        for other in 0..devices.len() {
            if group.len() == MOST {
                break;
            }
            let is_rail = rails
                .as_ref()
                .is_none_or(|r| r[at] >= 0 && r[at] == r[other]);
            let pair = (at.min(other), at.max(other));
            if !free[other] || !is_rail || apart.contains(&pair) {
                continue;
            }
            if places.are_within(level, at, other)? {
                group.push(other);
            }
        }
        let layer = devices[at].port.is_infiniband();
        let mut ports = group.iter().map(|at| devices[*at].port);
        let is_one = may_merge && ports.all(|port| port.is_infiniband() == layer);
        if is_one || group.len() == 1 || !version.leaves_apart() {
            group.iter().for_each(|other| free[*other] = false);
            groups.push(group);
        } else {
            // NCCL begins again, with the second.
            free[at] = true;
            let others = group.iter().filter(|other| **other != at);
            apart.extend(others.map(|other| (at.min(*other), at.max(*other))));
            next = 1;
        }
    }
    groups.retain(|group| group.len() > 1);
    let groups = groups.iter();
    let groups = groups.map(|group| group.iter().map(|at| devices[*at]).collect());
    Some(groups.collect())
}

/// The NUMA nodes of those NICs of a group whose nodes are known.
pub(crate) fn nodes(
    settings: &Settings,
    snapshot: &Snapshot,
    version: Version,
    group: &[Device],
) -> Vec<i32> {
    let Some(places) = Places::new(settings, snapshot, version, group) else {
        return Vec::new();
    };
    let known = places.all.iter().filter_map(|spot| match spot {
        Spot::At(id) if places.levels.function(*id).is_some() => Some(places.levels.numa(*id)),
        _ => None,
    });
    known.collect()
}

/// Where NCCL takes a NIC to be.
#[derive(Clone, Copy)]
enum Spot {
    At(BusId),
    /// On the first processor, with all others that have no PCI function, or whose function 0 is
    /// none (`ncclTopoFillNet`).
    Aside,
}

struct Places<'s> {
    levels: Levels<'s>,
    all: Vec<Spot>,
}

impl<'s> Places<'s> {
    /// Nothing where a topology file, or firmware's Data Direct, has the last word, or where the
    /// snapshot has no word of a place.
    fn new(
        settings: &Settings,
        snapshot: &'s Snapshot,
        version: Version,
        devices: &[Device],
    ) -> Option<Places<'s>> {
        let is_direct = data_direct(settings, version) > 0
            && devices.iter().any(|d| has_direct(snapshot, d.hca));
        let file = settings.get("NCCL_TOPO_FILE").unwrap_or_default();
        if is_direct || !file.is_empty() {
            return None;
        }
        let vfs = parameter(settings, version, "NCCL_IB_MERGE_VFS", 1) != 0;
        let levels = Levels::new(snapshot);
        let mut all = Vec::new();
        for Device { hca, .. } in devices {
            let Some(id) = hca.pci else {
                hca.is_software().then(|| all.push(Spot::Aside))?;
                continue;
            };
            let at = if version.edits_path() {
                place(id, vfs)
            } else {
                id
            };
            let is_none = levels.function(id).is_some() && levels.function(at).is_none();
            all.push(if is_none { Spot::Aside } else { Spot::At(at) });
        }
        Some(Places { levels, all })
    }

    /// Whether two NICs are as near as that; none where that is not known.
    fn are_within(&self, level: Near, one: usize, other: usize) -> Option<bool> {
        let (one, other) = match (self.all[one], self.all[other]) {
            (Spot::At(one), Spot::At(other)) => (one, other),
            (Spot::Aside, Spot::Aside) => return Some(true),
            // On the same processor or on another one: which is the first is the GPUs' to say.
            _ if level == Near::At(Distance::Phb) => return None,
            _ => return Some(level > Near::At(Distance::Phb)),
        };
        if self.are_ports(one, other) {
            return Some(true);
        }
        let is_known = [one, other].map(|id| self.levels.function(id).is_some());
        match level {
            Near::Port => Some(false),
            Near::At(_) if is_known != [true, true] => None,
            level => Some(Near::At(self.levels.between(one, other).0) <= level),
        }
    }

    /// Whether they are functions of one card, or on the way down the first that differ are
    /// (`ncclTopoGetPath`).
    fn are_ports(&self, one: BusId, other: BusId) -> bool {
        let mut ways = self.way(one).into_iter().zip(self.way(other));
        let apart = ways.find(|(a, b)| a != b);
        apart.is_none_or(|(a, b)| place(a, false) == place(b, false))
    }

    /// From the processor down.
    fn way(&self, place: BusId) -> Vec<BusId> {
        let mut way = self.levels.switches(place);
        way.reverse();
        way.push(place);
        way
    }
}

/// NCCL_NET_MERGE_LEVEL: the first name of the list that the value begins with; none where no NICs
/// become one.
fn level(settings: &Settings, version: Version) -> Option<Near> {
    let Some(value) = settings.get("NCCL_NET_MERGE_LEVEL") else {
        return Some(Near::Port);
    };
    let levels = [
        ("PORT", Near::Port),
        ("PIX", Near::At(Distance::Pix)),
        ("PXB", Near::At(Distance::Pxb)),
        ("P2C", Near::At(Distance::Pxb)),
        ("PXN", Near::At(Distance::Pxb)),
        ("PHB", Near::At(Distance::Phb)),
        ("SYS", Near::At(Distance::Sys)),
    ];
    let mut levels = levels.into_iter();
    let (name, level) = levels.find(|(name, _)| value.starts_with(name))?;
    (name != "P2C" || version.knows_p2c()).then_some(level)
}

/// With NCCL_NET_MERGE_POLICY=RAIL only NICs of one rail become one: the rails, -1 for none. 2.32
/// gives a rail to NICs that the list gives none, and which one is not known.
fn rails(settings: &Settings, version: Version, devices: &[Device]) -> Option<Option<Vec<i32>>> {
    let policy = settings.get("NCCL_NET_MERGE_POLICY").unwrap_or_default();
    if !version.splits_fields() || !policy.eq_ignore_ascii_case("RAIL") {
        return Some(None);
    }
    let patterns = Patterns::hcas(settings.get("NCCL_IB_HCA"), version);
    let mut rails = Vec::new();
    for Device { hca, port, .. } in devices {
        let (name, number) = (hca.name.as_str(), Some(port.number));
        let mut entries = patterns.entries.iter().filter(|_| !patterns.exclude);
        let entry = entries.find(|e| e.matches(name, number, patterns.exact));
        let rail = entry.and_then(|e| e.rail);
        if rail.is_none() && version.has_own_rails() {
            return None;
        }
        rails.push(rail.unwrap_or(-1));
    }
    Some(Some(rails))
}
