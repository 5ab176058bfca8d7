//! Endpoints of WireGuard's peers: WG_CMD_GET_DEVICE of generic netlink
//! (include/uapi/linux/wireguard.h), which takes CAP_NET_ADMIN.

use std::net::IpAddr;

use anyhow::{Context, Result};
use netlink_packet_core::NlasIterator;
use nix::libc::{AF_INET, AF_INET6, IPPROTO_UDP};
use rdma_model::snapshot::{Connection, Netdev, Question};
use rdma_netlink::generic::Genl;
use rdma_netlink::raw::{Attributes, attributes, emitted, of_word, word};

use crate::select::protected_ifaces::TunnelFacts;

const GET_DEVICE: u8 = 0;
const WGDEVICE_A_IFINDEX: u16 = 1;
const WGDEVICE_A_LISTEN_PORT: u16 = 6;
const WGDEVICE_A_FWMARK: u16 = 7;
const WGDEVICE_A_PEERS: u16 = 8;
const WGPEER_A_ENDPOINT: u16 = 4;

pub(super) fn tunnel(netdev: &Netdev) -> TunnelFacts {
    let facts = TunnelFacts::of(&netdev.name);
    match ends(netdev.ifindex) {
        Ok(ends) => TunnelFacts { ends, ..facts },
        Err(e) => TunnelFacts {
            unknown: Some(format!(
                "WireGuard's endpoints could not be asked for: {e:#}"
            )),
            ..facts
        },
    }
}

fn ends(ifindex: u32) -> Result<Vec<Question>> {
    let mut genl = Genl::open("wireguard")?.context("the kernel has no such family")?;
    let device = Attributes::from([(WGDEVICE_A_IFINDEX, of_word(ifindex))]);
    let answers = genl.list(GET_DEVICE, &emitted(&device))?;
    let answers: Vec<Attributes> = answers
        .iter()
        .filter_map(|payload| attributes(payload).ok())
        .collect();
    let mark = answers
        .iter()
        .find_map(|all| word(&all.get(&WGDEVICE_A_FWMARK)?.0))
        .unwrap_or(0);
    let own = answers.iter().find_map(|all| {
        Some(u16::from_ne_bytes(
            all.get(&WGDEVICE_A_LISTEN_PORT)?
                .0
                .as_slice()
                .try_into()
                .ok()?,
        ))
    });
    let own = own.unwrap_or(0);
    let ends = answers
        .iter()
        .filter_map(|all| all.get(&WGDEVICE_A_PEERS))
        .flat_map(|peers| endpoints(&peers.0));
    Ok(ends
        .map(|(to, remote_port)| Question {
            mark,
            flow: Some(Connection {
                protocol: IPPROTO_UDP as u8,
                local_port: own,
                remote_port,
            }),
            ..Question::to(to)
        })
        .collect())
}

/// The addresses and ports of a list of peers; one that has never been heard of has none.
fn endpoints(peers: &[u8]) -> Vec<(IpAddr, u16)> {
    // All of them have the number 0 (get_peer() in drivers/net/wireguard/netlink.c).
    let peers = NlasIterator::new(peers)
        .flatten()
        .map(|peer| peer.value().to_vec());
    peers
        .filter_map(|peer| address(&attributes(&peer).ok()?.get(&WGPEER_A_ENDPOINT)?.0))
        .collect()
}

/// sockaddr_in or sockaddr_in6.
fn address(bytes: &[u8]) -> Option<(IpAddr, u16)> {
    let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
    let ip = match i32::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?)) {
        AF_INET => Some(IpAddr::from(<[u8; 4]>::try_from(bytes.get(4..8)?).ok()?)),
        AF_INET6 => {
            Some(IpAddr::from(<[u8; 16]>::try_from(bytes.get(8..24)?).ok()?).to_canonical())
        }
        _ => None,
    };
    Some((ip?, port))
}

#[cfg(test)]
mod tests {
    use rdma_model::ids::Hex;

    use super::*;

    #[test]
    fn endpoints_of_both_families_are_read() {
        let v4 = [
            &(AF_INET as u16).to_ne_bytes()[..],
            &[0xca, 0x6c, 192, 0, 2, 7],
            &[0; 8],
        ]
        .concat();
        let v6 = [
            &(AF_INET6 as u16).to_ne_bytes()[..],
            &[0xca, 0x6c, 0, 0, 0, 0],
            &[0x20; 16],
            &[0; 4],
        ]
        .concat();
        let peer = |endpoint: Vec<u8>| {
            Hex(emitted(&Attributes::from([(
                WGPEER_A_ENDPOINT,
                Hex(endpoint),
            )])))
        };
        let all = [peer(v4), peer(v6), Hex(Vec::new())]
            .map(|peer| emitted(&Attributes::from([(0, peer)])));
        let peers = all.concat();
        let read: Vec<String> = endpoints(&peers)
            .iter()
            .map(|(ip, port)| format!("{ip} {port}"))
            .collect();
        assert_eq!(
            read,
            [
                "192.0.2.7 51820",
                "2020:2020:2020:2020:2020:2020:2020:2020 51820"
            ]
        );
    }
}
