//! Settings that follow from the chosen ports: which GID, which family, which place of a function.

use rdma_model::ids::{BusId, HcaName};
use rdma_model::nic::Nic;
use rdma_model::snapshot::{Gid, GidKind, Port, Snapshot};

use crate::config::network_mode::NetworkMode;
use crate::select::families::is_certain;

/// The GID index that is right on every chosen port, now and in the container; or why none is
/// certain. On the host's network it is where that GID is now. A move empties every table: the
/// kernel puts the link-local GID first, then one for each address and type as they come
/// (drivers/infiniband/core/roce_gid_mgmt.c), so only a table with a single address is certain to
/// be the same again.
pub(super) fn gid_index(
    nics: &[Nic],
    seen: &Snapshot,
    mode: NetworkMode,
) -> Result<Option<u32>, String> {
    let mut first: Option<(&HcaName, u32)> = None;
    for nic in nics {
        let (Some(hca), Some(gid)) = (&nic.hca, &nic.gid) else {
            continue;
        };
        if gid.kind == Some(GidKind::IbRoceV1) {
            return Err("RoCE v1 is asked for".to_owned());
        }
        let port = seen
            .hca(hca)
            .and_then(|h| h.ports.iter().find(|p| Some(p.number) == nic.port));
        let index = match mode {
            NetworkMode::Own if port.is_some_and(is_certain) => gid.index,
            NetworkMode::Own => {
                return Err(format!(
                    "the GID table of {hca} may have another order inside"
                ));
            }
            NetworkMode::Host => port
                .and_then(|port| place(port, gid))
                .ok_or_else(|| format!("{hca} does not have its GID {} any more", gid.ip()))?,
        };
        match first {
            Some((other, its)) if its != index => {
                return Err(format!("it is {its} on {other} and {index} on {hca}"));
            }
            _ => first = Some((hca, index)),
        }
    }
    Ok(first.map(|(_, index)| index))
}

/// Where a port has that GID now.
fn place(port: &Port, gid: &Gid) -> Option<u32> {
    let mut gids = port.gids.iter();
    let same =
        gids.find(|g| (g.address, g.kind, &g.netdev) == (gid.address, gid.kind, &gid.netdev));
    same.map(|g| g.index)
}

/// Whether the GIDs of all chosen RoCE ports are made from IPv6 addresses: NCCL looks for IPv4 ones
/// by default (src/transport/net_ib/connect.cc:268 in 2.30.7).
pub(super) fn are_ipv6(nics: &[Nic]) -> bool {
    let mut gids = nics.iter().filter_map(|n| n.gid.as_ref()).peekable();
    gids.peek().is_some() && gids.all(|g| g.ip().is_ipv6())
}

/// A clause that says which other place NCCL takes an HCA for; nothing where it finds the right
/// one. NCCL sets the device number of each HCA's address to 0, so that the VFs of a card become
/// one (src/transport/net_ib/init.cc:69 in 2.30.7): wrong for what sits on a bus beside other
/// cards.
pub(super) fn misplaced(nics: &[Nic], ib: &[HcaName], seen: &Snapshot) -> Option<String> {
    let function = |id: BusId| seen.pci.iter().find(|f| f.address == id);
    let moved = nics
        .iter()
        .filter(|n| !n.rxe)
        .filter_map(|n| Some((n.hca.as_ref()?, n.identity.pci?)));
    let fixed = ib.iter().filter_map(|h| Some((h, seen.hca(h)?.pci?)));
    for (hca, id) in moved.chain(fixed) {
        let place = BusId {
            device: 0,
            ..first(id)
        };
        let (there, own) = (function(place), function(id).and_then(|f| f.physfn));
        let card = own.map(first);
        let is_its = there.is_some_and(|f| {
            card.is_some_and(|card| f.address == card || f.physfn.map(first) == Some(card))
        });
        if place == first(id) || is_its {
            continue;
        }
        return Some(match there {
            Some(_) => format!("{hca} would be taken for the card at {place}, on whose bus it is"),
            None => format!("NCCL would look for {hca} at {place}, where no card is"),
        });
    }
    None
}

fn first(id: BusId) -> BusId {
    BusId { function: 0, ..id }
}
