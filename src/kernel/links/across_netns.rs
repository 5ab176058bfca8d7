//! Links whose device below is in another namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Instant;

use anyhow::{Context, Result};
use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use nix::libc::ENODEV;
use rdma_model::ids::Mac;
use rdma_model::snapshot::Stranger;
use rdma_netlink::raw::Packet;
use rdma_netlink::rtnl;
use rdma_netlink::socket::parsed;

use super::{RouteSocket, change_links, link};
use crate::kernel::netns::Netns;
use crate::kernel::random;

const TRIES: usize = 3;
/// Of an Ethernet address's first byte (is_multicast_ether_addr() in include/linux/etherdevice.h).
const MULTICAST: u8 = 1;

impl RouteSocket {
    /// Links of this socket's namespace that sit on netdevs of `home` with an index that
    /// `concerns`, and whether these are all. A tenant may change its links all the time, so that
    /// no list of them is whole: what several lists have together counts.
    pub fn strangers(
        &mut self,
        home: &Netns,
        concerns: &impl Fn(u32) -> bool,
        deadline: Instant,
    ) -> Result<(Vec<Stranger>, bool)> {
        let mut found: BTreeMap<u32, (i32, Stranger)> = BTreeMap::new();
        let mut whole = false;
        for _ in 0..TRIES {
            let left = deadline.saturating_duration_since(Instant::now());
            let ask = Packet::from(Message::GetLink(change_links::ask()));
            let listed = self
                .socket
                .exchange_each(&ask, NLM_F_DUMP, left, |kind, payload| {
                    let stranger = stranger(kind, payload);
                    let stranger = stranger.filter(|(_, s)| s.lowers.iter().any(|i| concerns(*i)));
                    found.extend(stranger.map(|(nsid, s)| (s.ifindex, (nsid, s))));
                });
            let interrupted = match listed {
                // What was listed so far is worth more than the reason why there is no more.
                Err(_) if !found.is_empty() => break,
                answer => answer.context("listing links")?,
            };
            whole = !interrupted;
            if whole {
                break;
            }
        }
        if found.is_empty() {
            return Ok((Vec::new(), whole));
        }
        // Known for sure only now: the dump gives a number to each namespace that it speaks of.
        let number = self.number_of(home)?;
        let ours = found
            .into_values()
            .filter(|(nsid, _)| Some(*nsid) == number);
        Ok((ours.map(|(_, stranger)| stranger).collect(), whole))
    }

    /// Addresses that these links take packets for besides their own (`bridge fdb`), each with its
    /// link: those of macvlans that are up, in whatever namespace (macvlan_open() in
    /// drivers/net/macvlan.c).
    pub fn forwarded(&mut self, on: &BTreeSet<u32>) -> Result<Vec<(u32, Mac)>> {
        let mut ask = NeighbourMessage::default();
        ask.header.family = AddressFamily::Bridge;
        self.dump(Message::GetNeighbour(ask), |message| {
            let Message::NewNeighbour(entry) = message else {
                return None;
            };
            let index = entry.header.ifindex;
            let mut attributes = entry.attributes.iter();
            let mac = attributes.find_map(|attribute| match attribute {
                NeighbourAttribute::LinkLayerAddress(bytes) => Mac::from_bytes(bytes),
                _ => None,
            });
            // Others are what a bridge has learned.
            let is_own = entry.header.flags.contains(NeighbourFlags::Own);
            let mac = mac.filter(|mac| mac.0[0] & MULTICAST == 0 && mac.0 != [0; 6])?;
            (is_own && on.contains(&index)).then_some((index, mac))
        })
    }

    /// The number that this socket's namespace has for another one (RTM_GETNSID); none where there
    /// is none yet.
    pub fn number_of(&mut self, netns: &Netns) -> io::Result<Option<i32>> {
        let mut ask = NsidMessage::default();
        ask.attributes
            .extend(u32::try_from(netns.raw_fd()).map(NsidAttribute::Fd));
        let (answers, _) = self.exchange(Message::GetNsId(ask), 0)?;
        let number = answers.iter().find_map(number);
        Ok(number.filter(|id| *id >= 0))
    }

    /// Deletes links by their indexes: a name may be anything. Those that have gone already count
    /// as deleted. The kernel lets grace periods pass for each that goes alone, some 20 ms
    /// (unregister_netdevice_many_notify() in net/core/dev.c), and once for all of a group. What
    /// did not join the group, or kept it from being deleted, goes alone.
    pub fn delete_links(&mut self, indexes: &[u32]) -> Result<Vec<io::Result<()>>> {
        if indexes.len() > 1 {
            let [a, b, c, d, ..] = random::bits()?;
            let group = u32::from_ne_bytes([a, b, c, d]).max(1);
            for index in indexes {
                let _ = self.change(Message::SetLink(in_group(*index, group)), 0);
            }
            let _ = self.change(Message::DelLink(in_group(0, group)), 0);
        }
        Ok(indexes
            .iter()
            .map(|index| self.delete_index(*index))
            .collect())
    }

    fn delete_index(&mut self, index: u32) -> io::Result<()> {
        let mut m = LinkMessage::default();
        m.header.index = index;
        match self.change(Message::DelLink(m), 0) {
            Err(e) if e.raw_os_error() == Some(ENODEV) => Ok(()),
            done => done,
        }
    }
}

/// Most links sit on nothing of another namespace, and are not parsed.
fn stranger(kind: u16, payload: &[u8]) -> Option<(i32, Stranger)> {
    if !rtnl::may_be_stranger(payload) {
        return None;
    }
    rtnl::stranger(&link(parsed(kind, payload)?)?)
}

fn in_group(index: u32, group: u32) -> LinkMessage {
    let mut m = LinkMessage::default();
    m.header.index = index;
    m.attributes.push(LinkAttribute::Group(group));
    m
}

fn number(answer: &Packet) -> Option<i32> {
    let Packet::Known(message) = answer else {
        return None;
    };
    let Message::NewNsId(answer) = message.as_ref() else {
        return None;
    };
    answer.attributes.iter().find_map(|a| match a {
        NsidAttribute::Id(id) => Some(*id),
        _ => None,
    })
}
