//! Which interfaces NCCL's sockets use. The search walks getifaddrs' list: all IPv4 addresses by
//! ifindex, then all IPv6 ones (that is how the kernel answers RTM_GETADDR; before Linux 6.9
//! ifindexes are ordered modulo 256). An IPv4 address goes by its label there, which is the
//! interface's name unless one was set (`eth0:1`). Of each name the first address counts
//! (src/os/linux.cc, `ncclOsFindInterfaces`).

use std::collections::BTreeSet;
use std::net::IpAddr;

use rdma_model::snapshot::{Address, Netdev, Snapshot};

use super::comm_id::{Remote, scope};
use super::explanation::{Endpoint, Step};
use super::ifname::{MAX_INTERFACES, Patterns};
use super::version::Version;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    pub name: &'a str,
    pub netdev: &'a Netdev,
    pub address: &'a Address,
}

pub(crate) fn candidates(snapshot: &Snapshot) -> Vec<Candidate<'_>> {
    let mut netdevs: Vec<&Netdev> = snapshot.netdevs.iter().collect();
    netdevs.sort_by_key(|n| n.ifindex);
    let of = |v4: bool| {
        let all = netdevs
            .iter()
            .flat_map(|n| n.addresses.iter().map(move |a| (*n, a)));
        all.filter(move |(_, a)| a.address.is_ipv4() == v4)
            .map(move |(netdev, address)| {
                let label = address.label.as_deref().filter(|_| v4);
                Candidate {
                    name: label.unwrap_or(netdev.name.as_str()),
                    netdev,
                    address,
                }
            })
    };
    of(true).chain(of(false)).collect()
}

/// A socket family that NCCL_SOCKET_FAMILY forces; any other value forces none (src/misc/socket.cc,
/// `ncclEnvSocketFamily`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub fn read(value: Option<&str>) -> Option<Family> {
        match value {
            Some("AF_INET") => Some(Family::V4),
            Some("AF_INET6") => Some(Family::V6),
            _ => None,
        }
    }
}

/// Why a search passes an address by, in the order of its tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotRunning,
    Family,
    Loopback6,
    List,
}

#[derive(Clone, Debug)]
pub(crate) struct Search {
    pub step: Step,
    pub patterns: Patterns,
    pub family: Option<Family>,
    pub version: Version,
}

impl Search {
    pub fn refusal(&self, candidate: &Candidate) -> Option<Refusal> {
        let address = candidate.address.address;
        if self.version.wants_running() && !candidate.netdev.running {
            Some(Refusal::NotRunning)
        } else if self
            .family
            .is_some_and(|family| (family == Family::V4) != address.is_ipv4())
        {
            Some(Refusal::Family)
        } else if address.is_ipv6() && address.is_loopback() {
            Some(Refusal::Loopback6)
        } else {
            (!self.patterns.takes(candidate.name, None)).then_some(Refusal::List)
        }
    }

    pub fn fitting(&self, candidates: &[Candidate]) -> usize {
        let names = candidates
            .iter()
            .filter(|c| self.refusal(c).is_none())
            .map(|c| c.name);
        names.collect::<BTreeSet<_>>().len()
    }

    fn find(&self, candidates: &[Candidate]) -> Vec<Endpoint> {
        let mut found: Vec<Endpoint> = Vec::new();
        for c in candidates.iter().filter(|c| self.refusal(c).is_none()) {
            if found.len() < MAX_INTERFACES && found.iter().all(|e| e.interface != c.name) {
                found.push(endpoint(c));
            }
        }
        found
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The deciding search; none where NCCL_COMM_ID's subnet decided.
    pub search: Option<Search>,
    pub step: Step,
    pub endpoints: Vec<Endpoint>,
}

/// The interfaces for sockets: those of NCCL_SOCKET_IFNAME, or the automatic choice
/// (src/misc/socket.cc, `ncclFindInterfaces`). `remote` is NCCL_COMM_ID where it is set and can be
/// read.
pub(crate) fn find(
    ifname: Option<&str>,
    family: Option<Family>,
    remote: Option<&Remote>,
    version: Version,
    candidates: &[Candidate],
) -> Found {
    let search = |step, patterns| Search {
        step,
        patterns,
        family,
        version,
    };
    if let Some(patterns) = Patterns::interfaces(ifname, version) {
        let search = search(Step::Asked, patterns);
        return Found {
            step: search.step,
            endpoints: search.find(candidates),
            search: Some(search),
        };
    }
    let not = if version.knows_virbr() {
        "^docker,lo,virbr"
    } else {
        "^docker,lo"
    };
    let steps = [
        (Step::Ib, "ib"),
        (Step::CommId, ""),
        (Step::Other, not),
        (Step::Docker, "docker"),
        (Step::Loopback, "lo"),
    ];
    let last = version.knows_virbr().then_some((Step::Virbr, "virbr"));
    let mut decided = None;
    for (step, list) in steps.into_iter().chain(last) {
        if step == Step::CommId {
            let Some((remote, shared)) =
                remote.and_then(|r| Some((r, same_subnet(r, candidates)?)))
            else {
                continue;
            };
            return Found {
                search: None,
                step: remote.step(),
                endpoints: vec![shared],
            };
        }
        let search = search(step, Patterns::parse(list, MAX_INTERFACES, version));
        let endpoints = search.find(candidates);
        let done = !endpoints.is_empty();
        decided = Some(Found {
            step,
            endpoints,
            search: Some(search),
        });
        if done {
            break;
        }
    }
    decided.unwrap_or(Found {
        search: None,
        step: Step::Other,
        endpoints: Vec::new(),
    })
}

/// The first interface in the subnet of an address: without any regard to the list, the family,
/// loopback or whether it is running (src/os/linux.cc, `ncclFindInterfaceMatchSubnet`).
pub(crate) fn same_subnet(remote: &Remote, candidates: &[Candidate]) -> Option<Endpoint> {
    candidates.iter().find(|c| shares(remote, c)).map(endpoint)
}

pub(crate) fn shares(remote: &Remote, c: &Candidate) -> bool {
    remote.shares(c.address.address, c.address.prefix, c.netdev.ifindex)
}

fn endpoint(c: &Candidate) -> Endpoint {
    let scope = match c.address.address {
        IpAddr::V6(ip) if scope(ip, c.netdev.ifindex) != 0 => Some(c.netdev.name.clone()),
        _ => None,
    };
    Endpoint {
        interface: c.name.to_owned(),
        address: c.address.address,
        scope,
    }
}
