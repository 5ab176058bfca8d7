//! A port's GID table as a container has it, from the table on the host.
//!
//! A move deletes what a netdev has in it, and adds it again as its addresses come
//! (netdevice_event() in drivers/infiniband/core/roce_gid_mgmt.c). What other netdevs have keeps
//! its place: a VLAN's GIDs are in the table of the HCA below, beside those of the netdev that it
//! sits on. The first places are kept for default GIDs, one for each type, and everything else
//! takes the first free place behind them (gid_table_reserve_default() and find_gid() in cache.c).

use std::collections::BTreeSet;

use nccl_rules::gid::Choice;
use rdma_model::snapshot::{Gid, Netdev, Port, Snapshot};
use rdma_model::upper_lower;

pub(super) struct Inside<'a> {
    pub(super) table: Port,
    /// The entries on the host, in the order of the table.
    here: Vec<&'a Gid>,
}

impl<'a> Inside<'a> {
    pub(super) fn unmoved(port: &'a Port) -> Inside<'a> {
        Inside {
            table: port.clone(),
            here: port.gids.iter().collect(),
        }
    }

    pub(super) fn new(port: &'a Port, snapshot: &Snapshot, moved: &[&Netdev]) -> Inside<'a> {
        let types: BTreeSet<_> = port
            .gids
            .iter()
            .map(|gid| gid.kind.map(|k| k as u8))
            .collect();
        let defaults = u32::try_from(types.len()).unwrap_or(0);
        let entries = port.gids.iter();
        let (mut added, stay): (Vec<&Gid>, Vec<&Gid>) =
            entries.partition(|gid| gid.index >= defaults && moves(gid, moved));
        added.retain(|gid| !is_temporary(gid, moved));
        added.sort_by_key(|gid| (turn(gid, snapshot, moved), gid.index));
        let used: BTreeSet<u32> = stay.iter().map(|gid| gid.index).collect();
        let free = (defaults..).filter(|index| !used.contains(index));
        let placed = free.zip(&added).map(|(index, gid)| (index, *gid));
        let all = stay.iter().map(|gid| (gid.index, *gid)).chain(placed);
        let (gids, here) = all.map(|(index, gid)| (at(gid, index), gid)).unzip();
        let table = Port {
            gids,
            ..port.clone()
        };
        Inside { table, here }
    }

    pub(super) fn taken(&self, choice: Choice) -> Option<&'a Gid> {
        let Choice::Index(index) = choice else {
            return None;
        };
        let mut entries = self.table.gids.iter().zip(&self.here);
        let (_, here) = entries.find(|(gid, _)| i32::try_from(gid.index) == Ok(index))?;
        Some(here)
    }
}

/// An entry of an unknown netdev is that of the port.
fn moves(gid: &Gid, moved: &[&Netdev]) -> bool {
    let netdev = gid.netdev.as_ref();
    netdev.is_none_or(|name| moved.iter().any(|n| n.name == *name))
}

/// Temporary addresses stay on the host.
fn is_temporary(gid: &Gid, moved: &[&Netdev]) -> bool {
    let mut addresses = moved.iter().flat_map(|netdev| &netdev.addresses);
    addresses.any(|a| a.is_temporary() && a.address == gid.ip())
}

fn at(gid: &Gid, index: u32) -> Gid {
    Gid {
        index,
        ..gid.clone()
    }
}

/// When a GID comes, as `configure` of rdma_model::step adds addresses: what is below before what
/// sits on it, IPv4 in its order, the link-local address that the kernel makes as the link goes up,
/// and then IPv6, the last one first.
fn turn(gid: &Gid, snapshot: &Snapshot, moved: &[&Netdev]) -> (usize, u8, usize) {
    let mut netdevs = moved.iter();
    let Some(netdev) = netdevs.find(|n| gid.netdev.as_ref() == Some(&n.name)) else {
        return (0, 0, 0);
    };
    let height = upper_lower::down(snapshot, netdev).count();
    let addresses = netdev.addresses.iter();
    let place = addresses.take_while(|a| a.address != gid.ip()).count();
    match gid.ip().is_ipv4() {
        true => (height, 0, place),
        false if gid.address.is_unicast_link_local() => (height, 1, 0),
        false => (height, 2, netdev.addresses.len() - place),
    }
}
