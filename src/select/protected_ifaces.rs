//! Which netdevs the host itself uses: they are never moved unless the user insists.
//!
//! Two sets, each with the reason per netdev. The host's own: the links that the kernel answers
//! with for addresses out on the internet, name servers and the other end of every connection
//! ([`rdma_model::snapshot::HostPaths`]), the owners of addresses that connections are bound to,
//! and the winners of the default routes. The job's: what owns its local address or leads to its
//! peer. Both spread to what carries them: the master and all of its members, the device below a
//! VLAN or macvlan, and the links that a tunnel's other ends are reached by. Over PCI they spread
//! from a VF to its PF, which has to be up for it: another port or virtual function of an uplink's
//! card can be taken without harm to it.

mod asking;
mod carriers;
mod defaults;
mod internet;
mod own_sessions;
mod questions;
mod reasons;
mod selectors;
mod tun;
mod ways;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::IfName;
use rdma_model::snapshot::{Answer, HostPath, JobAddresses, Purpose, Snapshot, StoreRoute};

use crate::config::request::Request;

use carriers::{spread, underlay_unknown};
pub use defaults::{leads_everywhere, way_out};
pub use own_sessions::by_own_sessions;
pub use questions::{Facts, Inquiry, Socket, TunnelFacts};
use reasons::{bound_reason, is_about, rdma_reason, reason, service, socket_reason, source_reason};
pub use selectors::Selectors;
use ways::Ways;
pub use ways::leads;

/// What is known without the kernel's answers of a recorded or captured machine, or why that is
/// nothing.
const NO_ROUTES: &str = "not checked: this recording has no routes, so that the links which the \
    host uses are not known";
const NO_ANSWERS: &str = "this recording has no route lookups: of the links that the host uses, \
    only those of default routes are known";

/// Netdevs with the clause that says why each is guarded.
pub type Guarded = BTreeMap<IfName, String>;

/// The links that the host uses by itself: see [`in_use`] for the job's. Without a default route,
/// and without any answer of the kernel, there is no uplink; with a default route whose device is
/// unknown the question has no safe answer, and that is an error unless `allow_bootstrap` makes it
/// moot.
pub fn uplinks(allow_bootstrap: bool, snapshot: &Snapshot) -> Result<Guarded> {
    of_host(allow_bootstrap, &Ways::of(snapshot))
}

fn of_host(allow_bootstrap: bool, ways: &Ways) -> Result<Guarded> {
    let mut seeds = defaults::of_host(allow_bootstrap, ways.snapshot)?;
    for path in ways.asked().filter(|path| is_about(path.purpose, false)) {
        // What an end of IPsec leaves by says more than whose address it has.
        if path.purpose == Purpose::Ipsec {
            add_leaving(ways, path, &mut seeds);
        }
        if let Some(dev) = ways.owner(path) {
            seeds
                .entry(dev.clone())
                .or_insert_with(|| socket_reason(path, dev));
        } else if let Some(dev) = ways.bound_without_route(path) {
            seeds
                .entry(dev.clone())
                .or_insert_with(|| bound_reason(path, dev));
        }
        add_leaving(ways, path, &mut seeds);
        if let Some((source, dev)) = ways.source_owner(path) {
            seeds
                .entry(dev.clone())
                .or_insert_with(|| source_reason(source, path));
        }
    }
    for one in ways.snapshot.paths.iter().flat_map(|paths| &paths.uses) {
        seeds
            .entry(one.link.clone())
            .or_insert_with(|| format!("is in use: {}", one.why));
    }
    for one in ways.snapshot.paths.iter().flat_map(|paths| &paths.rdma) {
        let ports = ways
            .snapshot
            .hca(&one.hca)
            .into_iter()
            .flat_map(|hca| &hca.ports);
        let ports = ports.filter(|p| one.port.is_none_or(|port| port == p.number));
        for dev in ports.filter_map(|p| p.netdev.as_ref()) {
            seeds.entry(dev.clone()).or_insert_with(|| rdma_reason(one));
        }
    }
    Ok(spread(ways, seeds))
}

fn add_leaving(ways: &Ways, path: &HostPath, seeds: &mut Guarded) {
    let Answer::Route(matched) = &path.answer else {
        return;
    };
    for leg in ways.leaving(path) {
        seeds
            .entry(leg.dev.clone())
            .or_insert_with(|| reason(path, matched, &leg));
    }
}

/// What the create hook guards: the links that the host uses, and those of the job.
/// [`ErrorClass::Refused`] where the question could not be asked in full: what is not known may be
/// any link.
pub fn in_use(allow_bootstrap: bool, job: &JobAddresses, host: &Snapshot) -> Result<Guarded> {
    let ways = Ways::of(host);
    let mut guarded = of_host(allow_bootstrap, &ways)?;
    if allow_bootstrap {
        return Ok(guarded);
    }
    let unknown = host.paths.as_ref().map_or_else(
        || vec!["nothing was asked".to_owned()],
        |_| not_known(host, &guarded),
    );
    let asked = host
        .paths
        .as_ref()
        .map(|paths| paths.job.clone())
        .unwrap_or_default();
    let (named, missing) = of_job(&asked.with(job), &ways);
    for (dev, why) in spread(&ways, named) {
        guarded.entry(dev).or_insert(why);
    }
    match (unknown.first(), missing.first()) {
        (Some(why), _) => Err(ErrorClass::Refused.error(format!(
            "which links the host uses could not be asked: {why}; to insist: prepare with \
            --allow-bootstrap-iface"
        ))),
        (None, Some(why)) => Err(ErrorClass::Refused.error(format!(
            "{why}: prepare again with an address that is \
                here"
        ))),
        (None, None) => Ok(guarded),
    }
}

/// What is not known of the links that the host uses: a clause each. Those that are known are
/// guarded.
pub fn not_known(snapshot: &Snapshot, guarded: &Guarded) -> Vec<String> {
    let Some(paths) = &snapshot.paths else {
        return vec![
            if snapshot.routes.is_empty() {
                NO_ROUTES
            } else {
                NO_ANSWERS
            }
            .to_owned(),
        ];
    };
    let failed = unanswered(
        paths
            .paths
            .iter()
            .chain(paths.tunnels.iter().flat_map(|t| &t.remotes)),
    );
    let blind = snapshot
        .netdevs
        .iter()
        .filter(|n| guarded.contains_key(&n.name));
    let blind = blind.filter_map(|n| {
        Some(format!(
            "what carries {}: {}",
            n.name,
            underlay_unknown(snapshot, paths, n)?
        ))
    });
    let mut seen = BTreeSet::new();
    let all = paths.not_asked.iter().cloned().chain(failed).chain(blind);
    all.filter(|text| seen.insert(text.clone())).collect()
}

/// One clause for each cause.
fn unanswered<'a>(paths: impl Iterator<Item = &'a HostPath>) -> Vec<String> {
    let mut causes: Vec<(&str, Vec<IpAddr>)> = Vec::new();
    for path in paths {
        let Answer::NotAsked(why) = &path.answer else {
            continue;
        };
        match causes.iter_mut().find(|(cause, _)| cause == why) {
            Some((_, to)) => to.push(path.question.to),
            None => causes.push((why, vec![path.question.to])),
        }
    }
    let mut clauses = Vec::new();
    for (why, to) in causes {
        clauses.push(match to.len() - 1 {
            0 => format!("the route to {}: {why}", to[0]),
            more => format!("the routes to {} and {more} more: {why}", to[0]),
        });
    }
    clauses
}

/// The owner of the bootstrap address, and what leads to the peer and to the store at which nodes
/// meet. An address without an owner, or a peer without a route, is a mistake that would leave the
/// real interface unguarded: an error on a live system. A captured tree has neither addresses nor
/// routes; there it is a warning.
pub fn bootstrap(
    request: &Request,
    snapshot: &Snapshot,
    warnings: &mut Vec<String>,
) -> Result<Guarded> {
    let ways = Ways::of(snapshot);
    let (mut seeds, missing) = of_job(
        &JobAddresses {
            store: None,
            ..request.job()
        },
        &ways,
    );
    for text in missing {
        if snapshot.netns.is_some() && !request.select.allow_bootstrap_iface {
            return Err(ErrorClass::Usage.error(text));
        }
        warnings.push(text);
    }
    if let Some(way) = request.meeting {
        let (devs, store) = (store_links(&way, snapshot), way.store);
        if devs.is_empty() {
            warnings.push(format!(
                "no route here is known to lead to the rendezvous store {store}: nothing guards \
                its way"
            ));
        }
        seeds.extend(
            devs.into_iter()
                .map(|dev| (dev, format!("leads to the rendezvous store {store}"))),
        );
    }
    Ok(spread(&ways, seeds))
}

/// The links of a job's addresses, and what is missing: addresses without an owner, peers without a
/// route.
fn of_job(job: &JobAddresses, ways: &Ways) -> (Guarded, Vec<String>) {
    let (mut seeds, mut missing) = (Guarded::new(), Vec::new());
    for address in &job.bootstrap {
        let devs = ways.owners(*address);
        if devs.is_empty() {
            missing.push(format!(
                "no interface here owns the bootstrap address {address}"
            ));
        }
        seeds.extend(devs.iter().map(|dev| {
            (
                (*dev).clone(),
                format!("owns the bootstrap address {address}"),
            )
        }));
    }
    let job_paths = ways
        .asked()
        .filter(|path| is_about(path.purpose, true))
        .collect::<Vec<_>>();
    for path in &job_paths {
        add_leaving(ways, path, &mut seeds);
    }
    for peer in &job.peers {
        let answered = job_paths.iter().any(|path| {
            path.purpose == Purpose::Peer
                && path.question.to == *peer
                && matches!(path.answer, Answer::Route(_) | Answer::Local)
        });
        let devs = ways.snapshot.links_towards(*peer);
        if devs.is_empty() && !answered {
            missing.push(format!("no route here leads to the peer address {peer}"));
        }
        for dev in devs {
            seeds
                .entry(dev)
                .or_insert_with(|| format!("leads to the peer address {peer}"));
        }
    }
    for address in job
        .store
        .into_iter()
        .flat_map(|(store, local)| [store, local])
    {
        for dev in ways
            .owners(address)
            .iter()
            .filter(|dev| dev.as_str() != "lo")
        {
            seeds.entry((*dev).clone()).or_insert_with(|| {
                format!("owns {address}, by which the rendezvous store is reached")
            });
        }
    }
    (seeds, missing)
}

/// The interfaces without which the store would be lost: those that own an address of either end,
/// and what packets leave by; `lo` only where there is no other.
pub fn store_links(route: &StoreRoute, snapshot: &Snapshot) -> Vec<IfName> {
    let over = snapshot
        .netdevs
        .iter()
        .find(|n| Some(n.ifindex) == route.over)
        .map(|n| n.name.clone());
    // Without the kernel's word, the tables that everybody has are looked at.
    let leaving = over.map_or_else(|| snapshot.links_towards(route.store), |over| vec![over]);
    let owners = snapshot
        .netdevs
        .iter()
        .filter(|n| n.has(route.store) || n.has(route.local));
    let mut found: Vec<IfName> = owners.map(|n| n.name.clone()).chain(leaving).collect();
    found.sort();
    found.dedup();
    if found.len() > 1 {
        found.retain(|name| name.as_str() != "lo");
    }
    found
}

#[cfg(test)]
mod tests;
