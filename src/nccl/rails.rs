//! Settings that follow from the chosen ports: which GID, which family, which place of a function.

use crate::ident::{BusId, HcaName};
use crate::plan::Nic;
use crate::snapshot::{Gid, GidKind, PciFunction, Port, Snapshot};

/// The GID index that is right on every chosen port, now and in the container; or why none is certain. A move makes every table
/// anew: the kernel puts the link-local GID first, then one for each address and type as they come
/// (drivers/infiniband/core/roce_gid_mgmt.c), so only a table with a single address is certain to be the same again.
pub(super) fn gid_index(nics: &[Nic], seen: &Snapshot) -> Result<Option<u32>, String> {
    let mut first: Option<(&HcaName, u32)> = None;
    for nic in nics {
        let (Some(hca), Some(gid)) = (&nic.hca, &nic.gid) else { continue };
        let port = seen.hca(hca).and_then(|h| h.ports.iter().find(|p| Some(p.number) == nic.port));
        if !port.is_some_and(is_certain) {
            return Err(format!("{hca} has GIDs of several addresses, whose order a move may change"));
        }
        match first {
            Some((other, index)) if index != gid.index => {
                return Err(format!("it is {index} on {other} and {} on {hca}", gid.index));
            }
            _ => first = Some((hca, gid.index)),
        }
    }
    Ok(first.map(|(_, index)| index))
}

/// Whether a port's table holds one address, besides one link-local GID.
fn is_certain(port: &Port) -> bool {
    let count = |link_local: bool| {
        let is_one = |g: &&Gid| (g.address.is_unicast_link_local()) == link_local;
        let mut all: Vec<_> = port.gids.iter().filter(is_one).map(|g| g.address).collect();
        all.sort_unstable();
        all.dedup();
        all.len()
    };
    count(false) == 1 && count(true) <= 1
}

/// Whether the GIDs of all chosen RoCE ports are made from IPv6 addresses: NCCL looks for IPv4 ones unless told otherwise
/// (src/transport/net_ib/connect.cc:268 in 2.30.7).
pub(super) fn are_ipv6(nics: &[Nic]) -> bool {
    let mut gids = nics.iter().filter_map(|n| n.gid.as_ref()).filter(|g| g.kind == Some(GidKind::RoceV2)).peekable();
    gids.peek().is_some() && gids.all(|g| g.ip().is_ipv6())
}

/// An HCA that NCCL would take for another card's. It sets the device number of each HCA's address to 0, so that the VFs of a
/// card become one (src/transport/net_ib/init.cc:69 in 2.30.7): wrong for what sits on a bus beside other cards.
pub(super) fn misplaced<'a>(nics: &'a [Nic], ib: &'a [HcaName], seen: &'a Snapshot) -> Option<&'a HcaName> {
    let function = |id: BusId| seen.pci.iter().find(|f| f.address == id);
    let is_wrong = |id: BusId| {
        let (first, merged) = (BusId { function: 0, ..id }, BusId { device: 0, function: 0, ..id });
        let card = function(id).and_then(|f| f.physfn).map(|pf| BusId { function: 0, ..pf });
        let is_card = |f: &PciFunction| {
            let pf = f.physfn.map(|pf| BusId { function: 0, ..pf });
            Some(f.address) == card || (pf.is_some() && pf == card)
        };
        merged != first && !function(merged).is_some_and(is_card)
    };
    let moved = nics.iter().filter(|n| !n.rxe).filter_map(|n| Some((n.hca.as_ref()?, n.identity.pci?)));
    let fixed = ib.iter().filter_map(|h| Some((h, seen.hca(h)?.pci?)));
    moved.chain(fixed).find(|(_, id)| is_wrong(*id)).map(|(hca, _)| hca)
}
