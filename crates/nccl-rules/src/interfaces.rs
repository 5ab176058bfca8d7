//! Why an interface is not the one that NCCL bootstraps on.

use std::collections::HashMap;

use rdma_model::snapshot::{Netdev, Snapshot};

use super::comm_id::Remote;
use super::explanation::{Bootstrap, Endpoint, Judged, Step};
use super::hca::UNKNOWN;
use super::socket::{self, Candidate, Found, Refusal, Search};

/// Every interface, in the order of their ifindexes. `remote` is NCCL_COMM_ID where it can be read,
/// `by_id` whether it is set.
pub(crate) fn judge(
    snapshot: &Snapshot,
    candidates: &[Candidate],
    remote: Option<&Remote>,
    by_id: bool,
    found: &Found,
    bootstrap: &Bootstrap,
) -> Vec<Judged> {
    let used = match bootstrap {
        Bootstrap::Uses(endpoint, step) => Some((endpoint, *step)),
        Bootstrap::Fails(_) | Bootstrap::Unknown | Bootstrap::NotJudged => None,
    };
    let mut netdevs: Vec<&Netdev> = snapshot.netdevs.iter().collect();
    netdevs.sort_by_key(|n| n.ifindex);
    let mut by_index: HashMap<u32, Vec<&Candidate>> = HashMap::new();
    for c in candidates {
        by_index.entry(c.netdev.ifindex).or_default().push(c);
    }
    let judge = |netdev: &&Netdev| {
        let own = by_index.get(&netdev.ifindex).map_or(&[][..], Vec::as_slice);
        let step = used
            .filter(|(e, _)| own.iter().any(|c| is(e, c)))
            .map(|(_, step)| step);
        let why = match (step, remote) {
            (Some(step), _) => step.why().to_owned(),
            (None, _) if *bootstrap == Bootstrap::Unknown => {
                format!("{UNKNOWN}its addresses are not in this snapshot")
            }
            (None, _) if own.is_empty() => "it has no address".to_owned(),
            (None, Some(remote)) => by_subnet(remote, own),
            (None, None) if by_id => "NCCL_COMM_ID cannot be used".to_owned(),
            (None, None) => by_search(found, own),
        };
        Judged {
            name: netdev.name.to_string(),
            taken: step.is_some(),
            why,
        }
    };
    netdevs.iter().map(judge).collect()
}

fn is(endpoint: &Endpoint, c: &Candidate) -> bool {
    let scoped = endpoint
        .scope
        .as_ref()
        .is_none_or(|scope| *scope == c.netdev.name);
    endpoint.interface == c.name && endpoint.address == c.address.address && scoped
}

fn by_subnet(remote: &Remote, own: &[&Candidate]) -> String {
    if remote.inverted && own.iter().any(|c| c.address.address.is_ipv4()) {
        return "NCCL 2.29 compares NCCL_COMM_ID's subnet wrongly: it takes the first outside of \
            it"
        .to_owned();
    }
    if own.iter().any(|c| socket::shares(remote, c)) {
        return "it shares NCCL_COMM_ID's subnet, too, but another comes first".to_owned();
    }
    format!(
        "not in the subnet of {}, which NCCL_COMM_ID names",
        remote.address
    )
}

/// The reason of the address that passed the most tests.
fn by_search(found: &Found, own: &[&Candidate]) -> String {
    let Some(search) = &found.search else {
        return "another comes first".to_owned();
    };
    let furthest = own.iter().max_by_key(|c| rank(search.refusal(c)));
    let Some(candidate) = furthest else {
        return "it has no address".to_owned();
    };
    match search.refusal(candidate) {
        None => "it fits, too, but another comes first".to_owned(),
        Some(Refusal::NotRunning) => {
            let state = if candidate.netdev.up {
                "it has no carrier"
            } else {
                "it is down"
            };
            format!("{state}: NCCL wants a running interface since 2.28.3")
        }
        Some(Refusal::Family) => {
            "it has no address of the family that NCCL_SOCKET_FAMILY asks for".to_owned()
        }
        Some(Refusal::Loopback6) => "it has no address but ::1, which NCCL never uses".to_owned(),
        Some(Refusal::List) => by_list(search, candidate),
    }
}

fn rank(refusal: Option<Refusal>) -> u8 {
    match refusal {
        Some(Refusal::NotRunning) => 0,
        Some(Refusal::Family) => 1,
        Some(Refusal::Loopback6) => 2,
        Some(Refusal::List) => 3,
        None => 4,
    }
}

fn by_list(search: &Search, c: &Candidate) -> String {
    let patterns = &search.patterns;
    let entry = patterns
        .entries
        .iter()
        .find(|e| e.matches(c.name, None, patterns.exact));
    match (search.step, entry) {
        (Step::Asked, Some(entry)) => format!("NCCL_SOCKET_IFNAME excludes it by {:?}", entry.name),
        (Step::Asked, None) if patterns.exclude => {
            "NCCL_SOCKET_IFNAME excludes everything".to_owned()
        }
        (Step::Asked, None) if c.name != c.netdev.name.as_str() => {
            format!(
                "its address goes by the label {}, which NCCL_SOCKET_IFNAME does not name",
                c.name
            )
        }
        (Step::Asked, None) => "NCCL_SOCKET_IFNAME does not name it".to_owned(),
        (Step::Ib, _) => "an interface whose name begins with ib comes first".to_owned(),
        (Step::Other, _) => {
            "the automatic choice avoids docker, lo and virbr while there is another".to_owned()
        }
        _ => "it comes later in the automatic order: ib, any other, docker, lo, virbr".to_owned(),
    }
}
