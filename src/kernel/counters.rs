//! What NICs and their ports have counted, in whatever namespace they are. Only reads: nothing of
//! the namespace changes, and no module is loaded. A driver may keep an answer back for seconds.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use rdma_model::ids::{HcaName, IfName};
use rdma_netlink::counters::{self, LinkCounters, Pauses};
use rdma_netlink::dcb::{self, Lossless};
use rdma_netlink::generic::Genl;
use rdma_netlink::socket::KernelSocket;

use super::netns::Netns;
use super::sysfs::{PortCounters, Survey};

const NETLINK_ROUTE: isize = 0;

/// What is counted of one netdev.
#[derive(Clone, Debug, PartialEq)]
pub struct Counted {
    pub link: LinkCounters,
    /// Megabits in a second.
    pub speed: Option<u32>,
    pub pauses: Option<Pauses>,
    /// By priority.
    pub priority_pauses: Option<[Pauses; 8]>,
}

/// A netdev of that namespace, by its index; nothing where it has gone.
pub fn of_link(netns: &Netns, ifindex: u32, name: &IfName) -> Result<Option<Counted>> {
    let (mut route, mut ethtool) = netns.visit(|| {
        let route = KernelSocket::open(NETLINK_ROUTE).context("opening a route netlink socket")?;
        Ok((route, Genl::open("ethtool")?))
    })?;
    let link = match counters::link(&mut route, ifindex) {
        Err(e) if e.raw_os_error() == Some(nix::libc::ENODEV) => None,
        link => link.with_context(|| format!("asking for the counters of {name}"))?,
    };
    let Some(link) = link else { return Ok(None) };
    Ok(Some(Counted {
        link,
        speed: ethtool
            .as_mut()
            .and_then(|genl| counters::speed(genl, ifindex)),
        pauses: ethtool
            .as_mut()
            .and_then(|genl| counters::pauses(genl, ifindex)),
        priority_pauses: dcb::pauses(&mut route, name),
    }))
}

/// Which of these netdevs of that namespace tell how they keep from losing packets.
pub fn lossless(netns: &Netns, names: &[IfName]) -> BTreeMap<IfName, Lossless> {
    let socket = netns.visit(|| KernelSocket::open(NETLINK_ROUTE).context("asking for DCB"));
    let Ok(mut socket) = socket else {
        return BTreeMap::new();
    };
    let known = names.iter().filter_map(|name| {
        let lossless = dcb::lossless(&mut socket, name)?;
        Some((name.clone(), lossless))
    });
    known.collect()
}

/// A port, as that namespace's /sys has it; its counters are in ours where HCAs are shared.
/// Nothing where neither has the port.
pub fn of_port(netns: &Netns, hca: &HcaName, port: u32) -> Option<PortCounters> {
    let ours = Survey::open(Path::new("/sys")).ok();
    let ours = ours.and_then(|survey| survey.port_counters(hca, port));
    // Soft-RoCE and EFA have the driver's alone.
    if ours.as_ref().is_some_and(PortCounters::has_any) {
        return ours;
    }
    let its = Survey::of_netns(netns).ok();
    its.and_then(|survey| survey.port_counters(hca, port))
        .or(ours)
}
