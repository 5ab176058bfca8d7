//! The rules that go by the names of netdevs and HCAs, and what to make of names that are unknown.

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::{HcaName, IfName};
use rdma_model::snapshot::{Hca, Port, Snapshot};
use rdma_model::verdict::DropCode;

use super::because;
use crate::config::hca_selector::HcaSelector;
use crate::config::options::SelectOptions;
use crate::config::pattern::{Exclusion, Pattern};
use crate::config::request::Request;
use crate::select::{BusyNic, Drop, candidates};

/// What a list names and is neither here nor with a container, and what it could name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// The list's flag, variable and key.
    pub list: [&'static str; 3],
    pub names: String,
    pub there: String,
}

impl Unknown {
    pub fn error(&self) -> anyhow::Error {
        let Unknown {
            list: [flag, ..],
            names,
            there,
        } = self;
        ErrorClass::Usage.error(format!("{flag}: there is no {names}; there are: {there}"))
    }
}

/// Why the names that were asked for leave a NIC out. What names a NIC overrides `--exclude`.
pub fn left_out(
    request: &Request,
    snapshot: &Snapshot,
    netdev: Option<&IfName>,
    hca: Option<&HcaName>,
) -> Option<Drop> {
    let select = &request.select;
    if let Some(name) =
        netdev.filter(|name| !select.ifaces.is_empty() && !select.ifaces.contains(name))
    {
        return because(
            DropCode::Excluded,
            format!("{name} is not in --ifaces"),
            "add it to --ifaces (RDMA_IFACES)",
        );
    }
    let fits = |entry: &HcaSelector| entry.fits_name(hca?, snapshot.hca(hca?));
    if select.exclude_hca.iter().any(|e| fits(e) == Some(true)) {
        let why = format!("{} is in --exclude-hca", hca?);
        let fix = "take it out of --exclude-hca (RDMA_EXCLUDE_HCA)";
        return because(DropCode::Excluded, why, fix);
    }
    let may_fit = hca.is_some() && select.hca.iter().any(|e| fits(e) != Some(false));
    if !select.hca.is_empty() && !may_fit {
        let why = format!(
            "{} is not in --hca",
            hca.map(HcaName::as_str).or(netdev.map(IfName::as_str))?
        );
        return because(DropCode::Excluded, why, "add it to --hca (RDMA_HCA)");
    }
    let (name, pattern) = by_regex(request, netdev, hca)?;
    let why = format!(
        "{name} has RDMA, but matches the exclusion regex {:?}",
        pattern.as_str()
    );
    let fix = match netdev {
        Some(_) => "name it in --ifaces, or set --exclude '' (RDMA_EXCLUDE_REGEX=)",
        None => "name it in --hca, or change --exclude (RDMA_EXCLUDE_REGEX)",
    };
    because(DropCode::Excluded, why, fix)
}

pub fn by_regex<'a>(
    request: &'a Request,
    netdev: Option<&'a IfName>,
    hca: Option<&'a HcaName>,
) -> Option<(&'a str, &'a Pattern)> {
    let select = &request.select;
    let name = netdev.map(IfName::as_str).or(hca.map(HcaName::as_str))?;
    let overridden = !select.hca.is_empty() || (netdev.is_some() && !select.ifaces.is_empty());
    select
        .exclude
        .pattern(name)
        .filter(|_| !overridden)
        .map(|pattern| (name, pattern))
}

/// What to say of an --exclude that leaves out nothing: it may be meant for other nodes.
pub fn idle_exclusion(request: &Request, snapshot: &Snapshot, held: &[BusyNic]) -> Option<String> {
    let select = &request.select;
    let pattern = select.exclude.any().filter(|_| request.exclude_given)?;
    let names = netdevs(snapshot, held)
        .into_iter()
        .chain(hcas_of(snapshot, held));
    let is_idle = names.into_iter().all(|name| !pattern.matches(name));
    let by = if select.ifaces.is_empty() {
        "--hca"
    } else {
        "--ifaces"
    };
    match select.hca.is_empty() && (select.ifaces.is_empty() || select.ib) {
        false => Some(format!(
            "--exclude {:?} leaves out nothing: {by} overrides it",
            pattern.as_str()
        )),
        true => is_idle.then(|| {
            format!(
                "--exclude {:?} leaves out nothing: no name here matches it",
                pattern.as_str()
            )
        }),
    }
}

/// The lists that name what is unknown: a card that has died, or a slip of the pen.
pub fn unknown(request: &Request, snapshot: &Snapshot, held: &[BusyNic]) -> Vec<Unknown> {
    let ifaces = request.select.ifaces.iter().map(IfName::as_str);
    let ifaces = list(
        ["--ifaces", "RDMA_IFACES", "ifaces"],
        ifaces,
        &netdevs(snapshot, held),
    );
    let hcas = unlisted(
        ["--hca", "RDMA_HCA", "hca"],
        &request.select.hca,
        snapshot,
        held,
    );
    let not = ["--exclude-hca", "RDMA_EXCLUDE_HCA", "exclude_hca"];
    let not = unlisted(not, &request.select.exclude_hca, snapshot, held);
    ifaces.into_iter().chain(hcas).chain(not).collect()
}

/// [`ErrorClass::Usage`]: an entry of a flag names no HCA of that machine.
pub fn check_listed(flag: &'static str, all: &[HcaSelector], snapshot: &Snapshot) -> Result<()> {
    unlisted([flag; 3], all, snapshot, &[]).map_or(Ok(()), |list| Err(list.error()))
}

fn unlisted(
    flag: [&'static str; 3],
    all: &[HcaSelector],
    snapshot: &Snapshot,
    held: &[BusyNic],
) -> Option<Unknown> {
    let missing = all.iter().filter(|e| !names_any(e, snapshot, held));
    let names: Vec<String> = missing.map(ToString::to_string).collect();
    let by_name = all
        .iter()
        .all(|entry| matches!(entry, HcaSelector::Name(_)));
    let mut there = Vec::new();
    for name in hcas_of(snapshot, held) {
        let mut hcas = snapshot.hcas.iter().filter(|_| !by_name);
        let hca = hcas.find(|h| h.name.as_str() == name);
        there.push(hca.map_or_else(|| name.to_owned(), described));
    }
    if there.is_empty() {
        there.push("none".to_owned());
    }
    (!names.is_empty()).then(|| Unknown {
        list: flag,
        names: names.join(", "),
        there: there.join(", "),
    })
}

/// `mlx5_0 (0000:17:00.0, 400G)`.
fn described(hca: &Hca) -> String {
    let rate = hca
        .ports
        .iter()
        .find_map(Port::gigabits)
        .map(|rate| format!("{rate}G"));
    let facts: Vec<String> = hca
        .pci
        .iter()
        .map(ToString::to_string)
        .chain(rate)
        .collect();
    if facts.is_empty() {
        hca.name.to_string()
    } else {
        format!("{} ({})", hca.name, facts.join(", "))
    }
}

/// Whether an entry names an HCA that is here, or may name one that is away.
fn names_any(entry: &HcaSelector, snapshot: &Snapshot, held: &[BusyNic]) -> bool {
    let mut away = held
        .iter()
        .filter_map(|h| h.hca.as_ref())
        .filter(|name| snapshot.hca(name).is_none());
    snapshot.hcas.iter().any(|hca| entry.fits(hca))
        || away.any(|name| entry.fits_name(name, None).unwrap_or(true))
}

pub fn without_unknown(request: &Request, snapshot: &Snapshot, held: &[BusyNic]) -> Request {
    let mut request = request.clone();
    let there = netdevs(snapshot, held);
    request
        .select
        .ifaces
        .retain(|name| there.contains(&name.as_str()));
    request
        .select
        .hca
        .retain(|entry| names_any(entry, snapshot, held));
    request
        .select
        .exclude_hca
        .retain(|entry| names_any(entry, snapshot, held));
    request
}

/// The options without any that leaves out, or asks for, a NIC by its name.
pub fn without_names(select: SelectOptions) -> SelectOptions {
    let exclude = Exclusion::NONE;
    let (ifaces, peer_ifaces, hca, exclude_hca) = Default::default();
    SelectOptions {
        ifaces,
        hca,
        exclude_hca,
        exclude,
        peer_ifaces,
        ..select
    }
}

fn netdevs<'a>(snapshot: &'a Snapshot, held: &'a [BusyNic]) -> Vec<&'a str> {
    let here = candidates::netdevs(snapshot).map(|n| n.name.as_str());
    let away = held
        .iter()
        .map(|h| &h.netdev)
        .filter(|n| snapshot.netdev(n).is_none());
    here.chain(away.map(IfName::as_str)).collect()
}

fn hcas_of<'a>(snapshot: &'a Snapshot, held: &'a [BusyNic]) -> Vec<&'a str> {
    let here = snapshot.hcas.iter().map(|h| &h.name);
    let away = held
        .iter()
        .filter_map(|h| h.hca.as_ref())
        .filter(|name| snapshot.hca(name).is_none());
    here.chain(away).map(HcaName::as_str).collect()
}

fn list<'a>(
    list: [&'static str; 3],
    names: impl Iterator<Item = &'a str>,
    there: &[&str],
) -> Option<Unknown> {
    let names: Vec<&str> = names.filter(|name| !there.contains(name)).collect();
    (!names.is_empty()).then(|| Unknown {
        list,
        names: names.join(", "),
        there: there.join(", "),
    })
}
