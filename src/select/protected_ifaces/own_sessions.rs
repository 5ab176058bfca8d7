//! BGP sessions with the neighbour at the other end of a NIC's own cable, as of unnumbered BGP:
//! they end when the NIC leaves, and begin again when it is back.

use std::collections::BTreeSet;

use rdma_model::ids::IfName;
use rdma_model::snapshot::{Answer, HostPath, HostPaths, Purpose, Snapshot};

use super::reasons::service;
use super::ways::Ways;
use super::{Guarded, uplinks};

/// The links that nothing else guards.
pub fn by_own_sessions(guarded: &Guarded, snapshot: &Snapshot) -> BTreeSet<IfName> {
    let (ways, Some(paths)) = (Ways::of(snapshot), &snapshot.paths) else {
        return BTreeSet::new();
    };
    let (own, others): (Vec<HostPath>, Vec<HostPath>) = paths
        .paths
        .iter()
        .cloned()
        .partition(|path| is_own_session(&ways, path));
    if own.is_empty() {
        return BTreeSet::new();
    }
    let paths = HostPaths {
        paths: others,
        ..paths.clone()
    };
    let without = Snapshot {
        paths: Some(paths),
        ..snapshot.clone()
    };
    let by_others = uplinks(true, &without).unwrap_or_default();
    let mut names: BTreeSet<IfName> = guarded.keys().cloned().collect();
    names.retain(|name| !by_others.contains_key(name));
    names
}

fn is_own_session(ways: &Ways, path: &HostPath) -> bool {
    let (Purpose::Connection(c), Answer::Route(matched)) = (path.purpose, &path.answer) else {
        return false;
    };
    let [leg] = &matched.legs[..] else {
        return false;
    };
    let is_bgp = [c.local_port, c.remote_port]
        .map(service)
        .contains(&Some("BGP"));
    let is_its = ways.owner(path).is_none_or(|owner| *owner == leg.dev);
    is_bgp && is_its && leg.gateway.is_none()
}
