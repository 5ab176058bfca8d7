//! What this host says of its rails: neighbours, by route netlink, and counters, by sysfs and
//! netlink.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use rdma_model::ids::{IfName, Mac};
use rdma_netlink::counters::{self, Pauses};
use rdma_netlink::dcb;
use rdma_netlink::generic::Genl;
use rdma_netlink::socket::KernelSocket;
use rdmaprep::kernel::rdma::Rdma;

use crate::transport::Moved;
use crate::verbs::Look;

const ANSWER: Duration = Duration::from_secs(5);

/// Counters that say of a test's packets that some were lost, repeated, marked or paused: of
/// mlx5, bnxt_re, irdma, rxe, and those of every port.
const COUNTERS: [&str; 26] = [
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "implied_nak_seq_err",
    "rnr_nak_retry_err",
    "duplicate_request",
    "out_of_buffer",
    "rx_icrc_encapsulated",
    "req_cqe_error",
    "resp_cqe_error",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "roce_adp_retrans",
    "roce_slow_restart",
    "to_retransmits",
    "seq_err_naks_rcvd",
    "max_retry_exceeded",
    "rnr_naks_rcvd",
    "completer_retry_err",
    "retry_exceeded_err",
    "out_of_seq_request",
    "rcvd_seq_err",
    "port_xmit_wait",
    "port_rcv_errors",
];

/// Where a rail is found on this host.
#[derive(Clone, Debug)]
pub struct Place {
    pub hca: String,
    pub port: u8,
    /// Its index and name.
    pub netdev: Option<(u32, IfName)>,
}

pub struct Host(pub Vec<Place>);

impl Look for Host {
    fn neighbour(&self, rail: usize, address: IpAddr) -> Option<Option<Mac>> {
        let (ifindex, _) = self.0.get(rail)?.netdev.as_ref()?;
        let found = neighbours().ok()?.into_iter();
        let mut found = found.filter(|entry| (entry.0, entry.1) == (*ifindex, address));
        Some(found.next().and_then(|entry| entry.2))
    }

    fn counters(&self) -> Vec<Moved> {
        let mut all = Vec::new();
        let mut route = KernelSocket::open(NETLINK_ROUTE).ok();
        let mut rdma = Rdma::open().ok().flatten();
        let mut ethtool = Genl::open("ethtool").ok().flatten();
        for (rail, place) in self.0.iter().enumerate() {
            let Ok(rail) = u8::try_from(rail) else {
                continue;
            };
            let drivers = rdma.as_mut();
            let drivers = drivers.and_then(|rdma| by_driver(rdma, place).ok());
            let drivers = drivers.unwrap_or_default();
            for name in COUNTERS {
                let value = drivers.get(name).copied();
                let value = value.or_else(|| by_specification(place, name));
                all.extend(value.map(|value| Moved(rail, name.to_owned(), value)));
            }
            let Some((ifindex, name)) = &place.netdev else {
                continue;
            };
            let link = ethtool.as_mut();
            let link = link.and_then(|genl| counters::pauses(genl, *ifindex));
            let priorities = route.as_mut();
            let priorities = priorities.and_then(|socket| dcb::pauses(socket, name));
            all.extend(paused(rail, link, &priorities.unwrap_or_default()));
        }
        all
    }
}

/// By netlink: the /sys of a namespace that shares its HCAs has no counters.
fn by_driver(rdma: &mut Rdma, place: &Place) -> Result<BTreeMap<String, u64>> {
    let name = place.hca.parse()?;
    match rdma.index(&name)? {
        Some(device) => rdma.counters(device, place.port.into()),
        None => Ok(BTreeMap::new()),
    }
}

fn by_specification(place: &Place, name: &str) -> Option<u64> {
    let Place { hca, port, .. } = place;
    let path = format!("/sys/class/infiniband/{hca}/ports/{port}/counters/{name}");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Frames that asked for a pause, of the whole link and of each priority (PFC).
fn paused(rail: u8, link: Option<Pauses>, priorities: &[Pauses]) -> Vec<Moved> {
    let mut of = vec![("pause_frames".to_owned(), link.unwrap_or_default())];
    for (n, pauses) in priorities.iter().enumerate() {
        of.push((format!("priority_{n}_pause_frames"), *pauses));
    }
    let mut all = Vec::new();
    for (name, pauses) in of {
        all.push(Moved(rail, format!("{name}_received"), pauses.received));
        all.push(Moved(rail, format!("{name}_sent"), pauses.sent));
    }
    all
}

/// Link, address, and the MAC where the entry works.
fn neighbours() -> std::io::Result<Vec<(u32, IpAddr, Option<Mac>)>> {
    let mut socket = KernelSocket::open(NETLINK_ROUTE)?;
    let ask = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
    let (answers, _) = socket.exchange(ask, NLM_F_REQUEST | NLM_F_DUMP, ANSWER)?;
    Ok(answers.iter().filter_map(entry).collect())
}

fn entry(message: &RouteNetlinkMessage) -> Option<(u32, IpAddr, Option<Mac>)> {
    let RouteNetlinkMessage::NewNeighbour(message) = message else {
        return None;
    };
    let (mut address, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                address = Some(IpAddr::V4(*v4));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                address = Some(IpAddr::V6(*v6));
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = Mac::from_bytes(bytes),
            _ => {}
        }
    }
    let fails = matches!(
        message.header.state,
        NeighbourState::Incomplete | NeighbourState::Failed | NeighbourState::None
    );
    Some((message.header.ifindex, address?, mac.filter(|_| !fails)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(state: NeighbourState) -> RouteNetlinkMessage {
        let mut message = NeighbourMessage::default();
        message.header.ifindex = 7;
        message.header.state = state;
        message.attributes = vec![
            NeighbourAttribute::Destination(NeighbourAddress::Inet([10, 0, 0, 2].into())),
            NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 0, 1]),
        ];
        RouteNetlinkMessage::NewNeighbour(message)
    }

    #[test]
    fn pauses_are_named_by_priority_and_direction() {
        let pauses = |received: u64, sent: u64| Pauses { received, sent };
        let mut priorities = [Pauses::default(); 8];
        priorities[3] = pauses(7, 2);
        let mut moved = paused(1, Some(pauses(9, 0)), &priorities);
        moved.retain(|moved| moved.2 > 0);
        let named = |name: &str, by: u64| Moved(1, name.to_owned(), by);
        let expected = [
            named("pause_frames_received", 9),
            named("priority_3_pause_frames_received", 7),
            named("priority_3_pause_frames_sent", 2),
        ];
        assert_eq!(moved, expected);
        assert!(paused(0, None, &[]).iter().all(|moved| moved.2 == 0));
    }

    #[test]
    fn an_entry_that_failed_has_no_mac() {
        let address: IpAddr = "10.0.0.2".parse().unwrap();
        let mac: Mac = "02:00:00:00:00:01".parse().unwrap();
        let known = entry(&message(NeighbourState::Permanent));
        assert_eq!(known, Some((7, address, Some(mac))));
        for state in [NeighbourState::Failed, NeighbourState::Incomplete] {
            assert_eq!(entry(&message(state)), Some((7, address, None)));
        }
    }
}
