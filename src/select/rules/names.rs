//! The rules that go by the names of netdevs and HCAs, and what to make of names that are unknown.

use rdma_model::ids::{HcaName, IfName};
use rdma_model::snapshot::Snapshot;
use rdma_model::verdict::DropCode;

use super::because;
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

/// Why the names that were asked for leave a NIC out. What names a NIC overrides `--exclude`.
pub fn left_out(request: &Request, netdev: Option<&IfName>, hca: Option<&HcaName>) -> Option<Drop> {
    let select = &request.select;
    if let Some(name) = netdev.filter(|name| !select.ifaces.is_empty() && !select.ifaces.contains(name)) {
        return because(DropCode::Excluded, format!("{name} is not in --ifaces"), "add it to --ifaces (RDMA_IFACES)");
    }
    if !select.hca.is_empty() && !hca.is_some_and(|hca| select.hca.contains(hca)) {
        let why = format!("{} is not in --hca", hca.map(HcaName::as_str).or(netdev.map(IfName::as_str))?);
        return because(DropCode::Excluded, why, "add it to --hca (RDMA_HCA)");
    }
    let (name, pattern) = by_regex(request, netdev, hca)?;
    let why = format!("{name} has RDMA, but matches the exclusion regex {:?}", pattern.as_str());
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
    select.exclude.pattern(name).filter(|_| !overridden).map(|pattern| (name, pattern))
}

/// The lists that name what is unknown: a card that has died, or a slip of the pen.
pub fn unknown(request: &Request, snapshot: &Snapshot, held: &[BusyNic]) -> Vec<Unknown> {
    let ifaces = request.select.ifaces.iter().map(IfName::as_str);
    let ifaces = list(["--ifaces", "RDMA_IFACES", "ifaces"], ifaces, &netdevs(snapshot, held));
    let hcas = request.select.hca.iter().map(HcaName::as_str);
    let hcas = list(["--hca", "RDMA_HCA", "hca"], hcas, &hcas_of(snapshot, held));
    ifaces.into_iter().chain(hcas).collect()
}

pub fn without_unknown(request: &Request, snapshot: &Snapshot, held: &[BusyNic]) -> Request {
    let mut request = request.clone();
    let there = netdevs(snapshot, held);
    request.select.ifaces.retain(|name| there.contains(&name.as_str()));
    let there = hcas_of(snapshot, held);
    request.select.hca.retain(|name| there.contains(&name.as_str()));
    request
}

/// The options without any that leaves out, or asks for, a NIC by its name.
pub fn without_names(select: SelectOptions) -> SelectOptions {
    SelectOptions { ifaces: Vec::new(), hca: Vec::new(), exclude: Exclusion::NONE, peer_ifaces: Vec::new(), ..select }
}

fn netdevs<'a>(snapshot: &'a Snapshot, held: &'a [BusyNic]) -> Vec<&'a str> {
    let here = candidates::netdevs(snapshot).map(|n| n.name.as_str());
    let away = held.iter().map(|h| &h.netdev).filter(|n| snapshot.netdev(n).is_none());
    here.chain(away.map(IfName::as_str)).collect()
}

fn hcas_of<'a>(snapshot: &'a Snapshot, held: &'a [BusyNic]) -> Vec<&'a str> {
    let here = snapshot.hcas.iter().map(|h| &h.name);
    let away = held.iter().filter_map(|h| h.hca.as_ref()).filter(|name| snapshot.hca(name).is_none());
    here.chain(away).map(HcaName::as_str).collect()
}

fn list<'a>(list: [&'static str; 3], names: impl Iterator<Item = &'a str>, there: &[&str]) -> Option<Unknown> {
    let names: Vec<&str> = names.filter(|name| !there.contains(name)).collect();
    (!names.is_empty()).then(|| Unknown { list, names: names.join(", "), there: there.join(", ") })
}
