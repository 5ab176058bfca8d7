//! A NIC of the plan, from what was selected.

use std::collections::BTreeMap;

use rdma_model::ids::HcaName;
use rdma_model::nic::{Nic, identity, learned};
use rdma_model::snapshot::Snapshot;
use rdma_model::step::NicState;
use rdma_model::upper_lower;

use crate::select::Verdict;

pub(super) fn ib_ports(kept: &[&Verdict], snapshot: &Snapshot) -> BTreeMap<HcaName, Vec<u32>> {
    let mut chosen: BTreeMap<HcaName, Vec<u32>> = BTreeMap::new();
    for verdict in kept.iter().filter(|v| v.netdev.is_none()) {
        let (Some(name), Some(port)) = (&verdict.hca, verdict.port) else {
            continue;
        };
        if snapshot.hca(name).is_some_and(|hca| hca.ports.len() > 1) {
            chosen.entry(name.clone()).or_default().push(port);
        }
    }
    chosen
}

pub(super) fn nic(verdict: &Verdict, snapshot: &Snapshot) -> Option<Nic> {
    let state = NicState::of(snapshot, verdict.netdev.as_ref()?)?;
    let hca = verdict.hca.as_ref().and_then(|h| snapshot.hca(h));
    // Its driver may name a member of a bond: the HCA is the bond's.
    let hca = hca.filter(|_| state.netdev.master.is_none());
    let port = hca.and_then(|h| h.ports.iter().find(|p| Some(p.number) == verdict.port));
    let borrowed = port.is_some_and(|p| p.netdev.as_ref() != Some(&state.netdev.name));
    let below = state
        .netdev
        .made
        .as_ref()
        .and(upper_lower::lower(snapshot, &state.netdev));
    Some(Nic {
        identity: identity(&state, hca),
        hca: hca.map(|h| h.name.clone()),
        port: port.map(|p| p.number),
        ports: hca.map_or(0, |h| h.ports.len()),
        rxe: hca.is_some_and(|h| h.is_rxe()) && !borrowed,
        over: below.map(|d| d.name.clone()),
        vfs: match state.netdev.pci {
            Some(pf) => snapshot
                .pci
                .iter()
                .filter(|f| f.physfn == Some(pf))
                .map(|f| f.address)
                .collect(),
            None => Vec::new(),
        },
        members: match upper_lower::is_bond(&state.netdev) {
            true => upper_lower::members(snapshot, &state.netdev)
                .map(|m| m.name.clone())
                .collect(),
            false => Vec::new(),
        },
        borrowed,
        channels: state.netdev.channels,
        gid: verdict.gid.clone().filter(|_| hca.is_some()),
        numa: verdict.numa,
        uverbs: hca.and_then(|h| h.uverbs.clone()),
        learned: learned(&state),
        addresses: state.netdev.addresses,
    })
}
