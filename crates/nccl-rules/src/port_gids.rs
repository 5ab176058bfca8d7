//! The GIDs of the ports that NCCL takes, which of them no peer can use, and the setting that makes
//! NCCL take another.

use std::net::Ipv6Addr;

use rdma_model::snapshot::{Gid, GidKind, Port, Snapshot};

use super::explanation::{Explanation, PortGid, Trap, Warning};
use super::gid::{self, Choice, choose, has_place, places, set_index};
use super::pitfalls::{few, short, warning};
use super::settings::Settings;
use super::version::Version;

const INDEX: &str = "NCCL_IB_GID_INDEX";
const FAMILY: &str = "NCCL_IB_ADDR_FAMILY";
const RANGE: &str = "NCCL_IB_ADDR_RANGE";
/// Of ports on which no setting helps.
const NO_BETTER: &str = "no setting helps, as these ports have no better one";

/// What is wrong with the GID of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Flaw {
    Beyond,
    Unused,
    Poor(String),
    Foreign(String),
    Type(i32),
    Crash,
}

/// The ports that are taken and whose table is known, by their labels.
fn taken<'a>(snapshot: &'a Snapshot, explained: &Explanation) -> Vec<(String, &'a Port)> {
    let mut found: Vec<(String, &Port)> = Vec::new();
    for hca in &snapshot.hcas {
        let label = |port: &Port| format!("{}:{}", hca.name, port.number);
        // Of an empty table, the length says that it was read.
        let known = hca.ports.iter();
        let known = known.filter(|p| !p.gids.is_empty() || p.gid_table.is_some());
        found.extend(known.map(|port| (label(port), port)));
    }
    found.retain(|(label, _)| explained.hcas.contains(label));
    found.sort_by_key(|(label, _)| explained.hcas.iter().position(|h| h == label));
    found
}

pub(crate) fn of(
    settings: &Settings,
    snapshot: &Snapshot,
    explained: &Explanation,
) -> Vec<PortGid> {
    let version = explained.version;
    let judged = |(label, port): (String, &Port)| {
        let choice = choose(port, settings, version);
        let index = match choice {
            Choice::Index(index) => Some(index),
            _ => None,
        };
        PortGid {
            port: label,
            index,
            gid: index.and_then(|index| entry(port, index)).cloned(),
            why: reason(port, choice, settings, version),
        }
    };
    taken(snapshot, explained).into_iter().map(judged).collect()
}

fn reason(port: &Port, choice: Choice, settings: &Settings, version: Version) -> String {
    let text = match choice {
        Choice::Lid => "InfiniBand, which LIDs suffice for",
        Choice::Unknown => "unknown: the snapshot does not have the types of these GIDs",
        Choice::Crash => "NCCL ends by a signal before it has one",
        Choice::Unreadable(index) => {
            return format!("no connection comes up: NCCL cannot read entry {index}");
        }
        Choice::Index(0) if port.is_infiniband() => "InfiniBand: the first; none is for routers",
        Choice::Index(_) if port.is_infiniband() => "NCCL_IB_ROUTABLE_FLID_GID_INDEX",
        Choice::Index(_) => match set_index(settings, version) {
            Some(_) if settings.get(INDEX).is_some_and(|v| !v.is_empty()) => "NCCL_IB_GID_INDEX",
            Some(_) => "no NCCL_IB_GID_INDEX, which means 0 before 2.21.5",
            None => "no NCCL_IB_GID_INDEX: NCCL's own search",
        },
    };
    text.to_owned()
}

fn entry(port: &Port, index: i32) -> Option<&Gid> {
    let index = u32::try_from(index).ok()?;
    port.gids
        .iter()
        .find(|g| g.index == index && !g.address.is_unspecified())
}

/// What ports have in common that no peer can use.
pub(crate) fn warnings(
    settings: &Settings,
    snapshot: &Snapshot,
    explained: &Explanation,
) -> Vec<Warning> {
    let version = explained.version;
    let ports: Vec<(String, &Port)> = taken(snapshot, explained)
        .into_iter()
        .filter(|(_, port)| !port.is_infiniband())
        .collect();
    let mut groups: Vec<((Flaw, bool), Vec<&str>)> = Vec::new();
    for (label, port) in &ports {
        let Some(flaw) = flaw(port, settings, snapshot, version) else {
            continue;
        };
        let key = (flaw, has_good(port, snapshot));
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, labels)) => labels.push(label),
            None => groups.push((key, vec![label])),
        }
    }
    let mut curable: Vec<&Port> = ports.iter().map(|(_, port)| *port).collect();
    curable.retain(|port| has_good(port, snapshot));
    let cure = cure(&curable, settings, snapshot, version)
        .unwrap_or_else(|| no_cure(&curable, settings, snapshot, version));
    let flawed = groups.iter().map(|((flaw, has_good), labels)| {
        let cure = if *has_good { &cure } else { NO_BETTER };
        said(flaw, labels, cure, settings, explained)
    });
    let mixed = mixed(&ports, settings, snapshot, version);
    let mixed = mixed.map(|text| warning(Trap::Families, format!("{text}; {cure}")));
    flawed.chain(mixed).collect()
}

/// Good GIDs of both families: no port of one connects to a port of the other.
fn mixed(
    ports: &[(String, &Port)],
    settings: &Settings,
    snapshot: &Snapshot,
    version: Version,
) -> Option<String> {
    let (mut four, mut six): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for (label, port) in ports {
        match good_choice(port, settings, snapshot, version) {
            Some(gid) if gid.ip().is_ipv4() => four.push(label),
            Some(_) => six.push(label),
            None => {}
        }
    }
    (!four.is_empty() && !six.is_empty()).then(|| {
        format!(
            "{}: NCCL takes IPv4 GIDs on {} and IPv6 ones on {}, and no port of one connects to a \
            port of the other",
            index_set(settings),
            few(&four),
            few(&six)
        )
    })
}

/// Where no setting is right: a release with which one is, else other addresses.
fn no_cure(ports: &[&Port], settings: &Settings, snapshot: &Snapshot, version: Version) -> String {
    let newer = Version::SKIPS_UNTYPED;
    let by_newer = cure(ports, settings, snapshot, newer).filter(|_| version < newer);
    let other = match by_newer {
        Some(cure) if cure.is_empty() => format!("take NCCL {newer} or later, or "),
        Some(cure) => format!("take NCCL {newer} or later and {cure}, or "),
        None if share_family(ports, snapshot) => String::new(),
        None => "give their NICs addresses of one family, or ".to_owned(),
    };
    format!("no one setting is right for all ports: {other}leave some out of NCCL_IB_HCA")
}

/// Whether each has good GIDs of one family.
fn share_family(ports: &[&Port], snapshot: &Snapshot) -> bool {
    [true, false].iter().any(|v4| {
        let mut ports = ports.iter();
        ports.all(|port| {
            let mut gids = port.gids.iter().filter(|gid| is_good(gid, snapshot));
            gids.any(|gid| gid.ip().is_ipv4() == *v4)
        })
    })
}

/// What is said of NCCL_IB_GID_INDEX.
fn index_set(settings: &Settings) -> String {
    match settings.get(INDEX).filter(|v| !v.is_empty()) {
        Some(value) => format!("{INDEX}={}", short(value)),
        None => format!("no {INDEX}"),
    }
}

/// A port's table that ends before the index ends NET/IB for all ports.
pub(crate) fn switch_off(explained: &mut Explanation) {
    let mut warnings = explained.warnings.iter();
    if warnings.all(|w| w.trap != Trap::GidTable) {
        return;
    }
    explained.hcas.clear();
    explained.merged.clear();
    for port in explained.ports.iter_mut().filter(|port| port.taken) {
        port.taken = false;
        port.why = format!("{INDEX} is beyond the GID table of a port: NCCL uses no HCA");
    }
}

fn said(
    flaw: &Flaw,
    labels: &[&str],
    cure: &str,
    settings: &Settings,
    explained: &Explanation,
) -> Warning {
    let version = explained.version;
    let value = settings.get(INDEX).filter(|v| !v.is_empty());
    let set = index_set(settings);
    let ports = few(labels);
    let then = match explained.network {
        None => ", and goes on over TCP",
        Some(_) => "",
    };
    match flaw {
        Flaw::Beyond if version.reads_gids_at_start() => warning(
            Trap::GidTable,
            format!(
                "{set} is beyond the GID table of {ports}: NCCL {version} then uses no HCA at \
                all{then}; {cure}"
            ),
        ),
        Flaw::Unused if value.is_none() => warning(
            Trap::NoGid,
            format!("{set}: the GID that NCCL takes on {ports} is an unused one; {cure}"),
        ),
        Flaw::Beyond | Flaw::Unused => warning(
            Trap::NoGid,
            format!(
                "{set}: there is no GID of that index on {ports}, and no connection comes up; \
                {cure}"
            ),
        ),
        Flaw::Poor(what) => warning(
            Trap::PoorGid,
            format!("{set}: NCCL takes {what} on {ports}; {cure}"),
        ),
        Flaw::Foreign(what) => warning(
            Trap::ForeignGid,
            format!("{set}: NCCL takes {what} on {ports}; {cure}"),
        ),
        Flaw::Type(index) => warning(
            Trap::GidType,
            format!(
                "{set}: entry {index} of the GID table is unused on {ports}, and NCCL {version} \
                fails with ncclSystemError as it reads its type; {cure}"
            ),
        ),
        Flaw::Crash => Warning {
            fatal: true,
            ..warning(
                Trap::Crash,
                format!(
                    "{RANGE}={} has no slash: NCCL {version} ends by a signal",
                    short(settings.get(RANGE).unwrap_or_default())
                ),
            )
        },
    }
}

/// What is wrong with the GID that NCCL takes, whether or not the port has a better one. That of a
/// netdev which is away, as a NIC that a container has, is wrong only where there is a choice.
fn flaw(port: &Port, settings: &Settings, snapshot: &Snapshot, version: Version) -> Option<Flaw> {
    let index = match choose(port, settings, version) {
        Choice::Index(index) => index,
        Choice::Unreadable(index) => return Some(Flaw::Type(index)),
        Choice::Crash => return Some(Flaw::Crash),
        Choice::Lid | Choice::Unknown => return None,
    };
    if !has_place(port, index) {
        return Some(Flaw::Beyond);
    }
    let is_set = settings.get(INDEX).is_some_and(|v| !v.is_empty());
    let is_chosen = is_set && set_index(settings, version).is_some() || has_good(port, snapshot);
    match entry(port, index) {
        Some(gid) if is_good(gid, snapshot) => None,
        Some(gid) if !is_chosen && !is_here(gid, snapshot) => None,
        Some(gid) => Some(described(gid, snapshot)),
        None => Some(Flaw::Unused),
    }
}

fn described(gid: &Gid, snapshot: &Snapshot) -> Flaw {
    let (index, ip) = (gid.index, gid.ip());
    if let Some(netdev) = gid.netdev.as_ref().filter(|_| !is_here(gid, snapshot)) {
        let text = format!("GID {index} ({ip}), of {netdev}, which is in another namespace,");
        return Flaw::Foreign(text);
    }
    let kind = match gid.kind {
        Some(GidKind::IbRoceV1) => "RoCE v1",
        _ => "RoCE v2",
    };
    Flaw::Poor(match gid.address.is_unicast_link_local() {
        true => format!("GID {index} (link-local, {kind})"),
        false => format!("GID {index} ({ip}, {kind})"),
    })
}

fn has_good(port: &Port, snapshot: &Snapshot) -> bool {
    port.gids.iter().any(|gid| is_good(gid, snapshot))
}

/// Whether peers that are behind routers can use it. Without a type nothing speaks against it.
fn is_good(gid: &Gid, snapshot: &Snapshot) -> bool {
    gid.kind != Some(GidKind::IbRoceV1)
        && !gid.address.is_unicast_link_local()
        && !gid.address.is_unspecified()
        && is_here(gid, snapshot)
}

/// Whether its netdev is in this namespace, as far as that is known.
fn is_here(gid: &Gid, snapshot: &Snapshot) -> bool {
    snapshot.lacks_network()
        || gid
            .netdev
            .as_ref()
            .is_none_or(|name| snapshot.netdev(name).is_some())
}

/// The setting with which each of these ports takes a good GID, all of one family: what is set is
/// taken back first.
fn cure(
    curable: &[&Port],
    settings: &Settings,
    snapshot: &Snapshot,
    version: Version,
) -> Option<String> {
    let most = curable.iter().map(|p| places(p)).max()?;
    let mut ways: Vec<Way> = vec![vec![(INDEX, None)]];
    for name in [FAMILY, RANGE, "NCCL_IB_ROCE_VERSION_NUM"] {
        ways.push(vec![(INDEX, None), (name, None)]);
    }
    ways.push(vec![(INDEX, None), (FAMILY, Some("AF_INET6".to_owned()))]);
    ways.extend((0..most.min(256)).map(|index| vec![(INDEX, Some(index.to_string()))]));
    ways.extend(by_range(curable, snapshot));
    ways.into_iter().find_map(|way| {
        let changed = way.iter().fold(settings.clone(), |set, (name, value)| {
            set.but(name, value.as_deref())
        });
        let taken = curable
            .iter()
            .map(|port| good_choice(port, &changed, snapshot, version));
        let taken: Option<Vec<&Gid>> = taken.collect();
        let mut families = taken?.into_iter().map(|gid| gid.ip().is_ipv4());
        let first = families.next();
        let is_right = families.all(|family| Some(family) == first);
        is_right.then(|| changes(&way, settings))
    })
}

fn good_choice<'a>(
    port: &'a Port,
    settings: &Settings,
    snapshot: &Snapshot,
    version: Version,
) -> Option<&'a Gid> {
    let Choice::Index(index) = choose(port, settings, version) else {
        return None;
    };
    entry(port, index).filter(|gid| is_good(gid, snapshot))
}

/// Changes of settings.
type Way = Vec<(&'static str, Option<String>)>;

/// The ranges that leave a good GID on each port: around each of the first one's, with that of the
/// others that is nearest to it.
fn by_range(ports: &[&Port], snapshot: &Snapshot) -> Vec<Way> {
    let mut all: Vec<Vec<Ipv6Addr>> = Vec::new();
    for port in ports {
        let good = port.gids.iter().filter(|gid| is_good(gid, snapshot));
        all.push(good.map(|gid| gid.address).collect());
    }
    let mut ways = Vec::new();
    for first in all.first().into_iter().flatten() {
        let near = all.iter().filter_map(|good| {
            let good = good.iter().copied();
            good.min_by_key(|a| a.to_bits() ^ first.to_bits())
        });
        let Some(range) = gid::range(&near.collect::<Vec<_>>()) else {
            continue;
        };
        let is_ipv6 = first.to_ipv4_mapped().is_none();
        let family = is_ipv6.then(|| "AF_INET6".to_owned());
        ways.push(vec![(INDEX, None), (FAMILY, family), (RANGE, Some(range))]);
    }
    ways
}

/// What of it is no change is not said.
fn changes(way: &Way, settings: &Settings) -> String {
    let (mut unset, mut set) = (Vec::new(), Vec::new());
    for (name, value) in way.iter().filter(|(n, v)| settings.get(n) != v.as_deref()) {
        match value {
            Some(value) => set.push(format!("set {name}={value}")),
            None => unset.push(*name),
        }
    }
    let unset = (!unset.is_empty()).then(|| format!("unset {}", unset.join(" and ")));
    unset
        .into_iter()
        .chain(set)
        .collect::<Vec<_>>()
        .join(" and ")
}
