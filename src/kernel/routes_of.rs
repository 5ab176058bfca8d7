//! Which routes of a namespace are read. All of them is a question of minutes where a routing
//! daemon keeps a million, or root in a container made as many.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;
use rdma_model::ids::{BusId, IfName, Mac};
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::{JobAddresses, Netdev, Route};
use rdma_netlink::route_list::{Wanted, Ways};

#[derive(Clone, Debug)]
pub enum Routes {
    All,
    Of(Box<RoutesOf>),
}

impl Routes {
    /// With what is no NIC's.
    pub fn and_deviceless(mut self) -> Routes {
        if let Routes::Of(of) = &mut self {
            of.deviceless = true;
        }
        self
    }

    /// Whether a link is, or may be, one of those that are looked at.
    pub(super) fn concern(&self, dev: &Netdev) -> bool {
        match self {
            Routes::All => true,
            Routes::Of(of) => of.may_be(dev),
        }
    }
}

/// Routes over certain NICs and to certain destinations.
#[derive(Clone, Debug, Default)]
pub struct RoutesOf {
    /// Each tells of a link that it is, or may be, one of the NICs: on its way home it has another
    /// index, and root in a container can give it another name and another address.
    names: BTreeSet<IfName>,
    indices: BTreeSet<u32>,
    macs: BTreeSet<Mac>,
    functions: BTreeSet<BusId>,
    /// Theirs, which others' routes may prefer.
    addresses: HashSet<IpAddr>,
    destinations: BTreeSet<IpNet>,
    deviceless: bool,
    /// Besides, what decides how the host's own packets leave, and those to these addresses.
    towards: Option<Vec<IpAddr>>,
}

impl RoutesOf {
    /// What moving NICs of the host into a container takes: it must not lose its own ways.
    pub fn leaving<'a>(nics: impl Iterator<Item = &'a IfName>, job: &JobAddresses) -> Routes {
        let store = job.store.into_iter().flat_map(|(store, own)| [store, own]);
        let towards = job.peers.iter().chain(&job.bootstrap).copied();
        Routes::Of(Box::new(RoutesOf {
            names: nics.cloned().collect(),
            towards: Some(towards.chain(store).collect()),
            ..RoutesOf::default()
        }))
    }

    /// Those of NICs that a container has or is about to return: what verifying or restoring them
    /// takes. `besides` are further routes that are looked for.
    pub fn of_moved<'a>(
        held: &'a [MovedNic],
        besides: impl IntoIterator<Item = &'a Route>,
    ) -> Routes {
        let mut of = RoutesOf::default();
        for nic in held {
            let identity = &nic.nic.identity;
            let netdevs = [&nic.before.netdev, &nic.inside.netdev];
            of.names.insert(identity.name.clone());
            let indices = netdevs.iter().map(|dev| dev.ifindex);
            // One that has not arrived has none yet.
            of.indices.extend(indices.filter(|index| *index != 0));
            of.macs.extend(identity.permanent_mac.clone());
            of.macs.extend(nic.before.netdev.mac.clone());
            of.functions.extend(identity.pci);
            let addresses = netdevs.iter().flat_map(|dev| &dev.addresses);
            of.addresses.extend(addresses.map(|a| a.address));
            let routes = nic.before.routes.iter().chain(&nic.inside.routes);
            let routes = routes.chain(&nic.stand_ins);
            of.destinations
                .extend(routes.clone().map(|r| r.destination));
            // A restore that was killed may have left a route to one alone, over whatever link.
            let gateways = routes.flat_map(|r| &r.hops).filter_map(|hop| hop.gateway);
            of.destinations.extend(gateways.map(IpNet::from));
        }
        let besides = besides.into_iter().map(|r| r.destination);
        of.destinations.extend(besides);
        Routes::Of(Box::new(of))
    }

    pub(super) fn indices(&self) -> &BTreeSet<u32> {
        &self.indices
    }

    /// What is no NIC's.
    pub fn deviceless() -> Routes {
        Routes::Of(Box::new(RoutesOf {
            deviceless: true,
            ..RoutesOf::default()
        }))
    }

    pub(super) fn wanted(&self, netdevs: &[Netdev]) -> Wanted {
        let links: Vec<&Netdev> = netdevs.iter().filter(|dev| self.may_be(dev)).collect();
        let addresses = links.iter().flat_map(|dev| &dev.addresses);
        let addresses = addresses.map(|a| a.address);
        let ways = self.towards.clone().map(|towards| Ways {
            towards,
            to_machines: netdevs.iter().any(is_running_tun),
        });
        Wanted {
            links: links.iter().map(|dev| dev.ifindex).collect(),
            sources: addresses.chain(self.addresses.iter().copied()).collect(),
            destinations: self.destinations.clone(),
            deviceless: self.deviceless,
            ways,
        }
    }

    fn may_be(&self, dev: &Netdev) -> bool {
        let mut macs = dev.mac.iter().chain(&dev.permanent_mac);
        self.names.contains(&dev.name)
            || self.indices.contains(&dev.ifindex)
            || macs.any(|mac| self.macs.contains(mac))
            || dev.pci.is_some_and(|pci| self.functions.contains(&pci))
    }
}

/// One that a program holds.
fn is_running_tun(dev: &Netdev) -> bool {
    dev.kind.as_deref() == Some("tun") && dev.running
}
