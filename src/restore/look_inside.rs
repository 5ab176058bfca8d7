use anyhow::Result;
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::Snapshot;
use rdma_model::step::Side;

use super::locate::inside_of;
use crate::kernel::{Depth, RoutesOf, Scope, World};

/// Where these NICs are in the container's namespace. Root there can make any number of links, and
/// change them all the time: all are listed only where a NIC is not at its index.
pub(super) fn look_inside(world: &mut dyn World, held: &[MovedNic]) -> Result<Option<Snapshot>> {
    let scope = |depth| Scope {
        depth,
        ..Scope::network().with(RoutesOf::of_moved(held, []))
    };
    let Some(at_indexes) = world.observe_inside(&scope(Depth::Nics))? else {
        return Ok(None);
    };
    if held
        .iter()
        .all(|h| inside_of(h, held, &at_indexes).is_some())
    {
        return Ok(Some(at_indexes));
    }
    let all = world.observe(Side::Inside, &scope(Depth::Netdevs))?;
    Ok(Some(Snapshot {
        netdevs: all.netdevs,
        ..at_indexes
    }))
}
