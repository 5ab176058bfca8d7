//! Namespaces that are pinned without a record, since someone has removed that: what is in them is
//! of no container that is known.

use anyhow::Result;
use rdma_model::snapshot::{Netdev, Snapshot};

use crate::kernel::{Depth, Namespaces, Pin, Scope};
use crate::store::Store;

const ARPHRD_ETHER: u16 = 1;
const ARPHRD_INFINIBAND: u16 = 32;

/// Links that may be NICs of the host: each could be one that is no hardware, and would end with
/// its namespace. Tunnels of the kernel are in every namespace, and stay there
/// (gretap_init_net_ops and erspan_net_ops in net/ipv4/ip_gre.c).
pub fn may_be_nics(inside: &Snapshot) -> impl Iterator<Item = &Netdev> {
    inside.netdevs.iter().filter(|dev| {
        let is_kernels = match dev.kind.as_deref() {
            Some(kind @ ("gretap" | "erspan")) => *dev.name.as_str() == format!("{kind}0"),
            _ => false,
        };
        [ARPHRD_ETHER, ARPHRD_INFINIBAND].contains(&dev.link_type) && !is_kernels
    })
}

/// Drops the pin of a namespace without a record, and says whether it did: what may be the host's
/// keeps it.
pub fn drop_unrecorded(machine: &dyn Namespaces, store: &Store, netns: u64) -> Result<bool> {
    let pin = store.pin(netns);
    if let Some(mut world) = machine.pinned(&pin, netns)? {
        let inside = world.observe_inside(&Scope::only(Depth::Links))?;
        if inside.is_some_and(|inside| may_be_nics(&inside).next().is_some()) {
            return Ok(false);
        }
    }
    machine.unpin(Pin::Own(&pin), netns)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnels_of_the_kernel_are_no_nics() {
        let example = include_str!("../../examples/snapshot.json");
        let mut inside: Snapshot = serde_json::from_str(example).unwrap();
        let mut devs = inside.netdevs.iter();
        let rdma0 = devs.find(|dev| dev.name.as_str() == "rdma0").unwrap();
        let named = |(name, kind): (&str, Option<&str>)| Netdev {
            name: name.parse().unwrap(),
            kind: kind.map(str::to_owned),
            ..rdma0.clone()
        };
        let mut all: Vec<Netdev> = [
            ("gretap0", Some("gretap")),
            ("erspan0", Some("erspan")),
            ("gretap0", None),
            ("gretap1", Some("gretap")),
            ("m0", Some("macvlan")),
        ]
        .map(named)
        .into();
        all.extend(
            inside
                .netdevs
                .iter()
                .find(|dev| dev.name.as_str() == "lo")
                .cloned(),
        );
        inside.netdevs = all;
        let found: Vec<_> = may_be_nics(&inside).map(|dev| &dev.kind).collect();
        let [gretap, macvlan] = ["gretap", "macvlan"].map(|kind| Some(kind.to_owned()));
        assert_eq!(found, [&None, &gretap, &macvlan]);
    }
}
