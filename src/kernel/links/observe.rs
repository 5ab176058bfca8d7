use std::collections::HashMap;
use std::io;
use std::net::IpAddr;

use anyhow::Result;
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourFlags, NeighbourMessage};
use netlink_packet_route::rule::RuleMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use rdma_model::snapshot::{Address, Neighbour, Netdev, Nexthop, Route, Rule};
use rdma_netlink::devconf::{DevConf, LinkPacket};
use rdma_netlink::neigh_parms;
use rdma_netlink::qdisc::{self, ObservedQdisc};
use rdma_netlink::raw::{Packet, RTM_GETNEIGHTBL, RTM_GETNEXTHOP, RTM_GETQDISC, RTM_GETROUTE, Raw};
use rdma_netlink::{nexthop, route, rtnl};
use rustix::time::{ClockId, clock_getres};

use super::{RouteSocket, change_links};
use crate::kernel::Depth;

/// include/uapi/linux/if_addr.h.
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;

#[derive(Default)]
pub struct Network {
    pub netdevs: Vec<Netdev>,
    pub routes: Vec<Route>,
    pub routes_cut: Vec<u8>,
    pub nexthops: Vec<Nexthop>,
    pub rules: Vec<Rule>,
    /// By index.
    pub confs: HashMap<u32, DevConf>,
}

impl RouteSocket {
    /// Reads what route netlink reports of the namespace; queueing disciplines only where they
    /// matter: each costs a request of its own, and root in a container can make many.
    pub fn network(&mut self, depth: Depth, disciplines: bool) -> Result<Network> {
        let (links, confs) = self.links()?;
        let names: rtnl::Names = links.iter().filter_map(rtnl::link_name).collect();
        let mut netdevs: Vec<Netdev> = links
            .iter()
            .filter_map(|l| rtnl::netdev(l, &names))
            .collect();
        if depth == Depth::Links {
            return Ok(Network {
                netdevs,
                confs,
                ..Network::default()
            });
        }
        // A container may have tens of thousands of each.
        let places: HashMap<u32, usize> = netdevs
            .iter()
            .enumerate()
            .map(|(at, n)| (n.ifindex, at))
            .collect();
        let mut attach = |index: u32, put: &mut dyn FnMut(&mut Netdev)| {
            places
                .get(&index)
                .and_then(|at| netdevs.get_mut(*at))
                .into_iter()
                .for_each(put);
        };
        for message in self.dump(Message::GetAddress(Default::default()))? {
            let Message::NewAddress(m) = message else {
                continue;
            };
            let Some((index, address)) = rtnl::address(&m) else {
                continue;
            };
            attach(index, &mut |n| n.addresses.push(address.clone()));
        }
        if depth == Depth::Netdevs {
            return Ok(Network {
                netdevs,
                confs,
                ..Network::default()
            });
        }
        for (index, neighbour) in self.neighbours(&links)? {
            attach(index, &mut |n| n.neighbours.push(neighbour.clone()));
        }
        if disciplines {
            self.qdiscs(&mut netdevs)?;
        }
        let (mut routes, mut rules) = (Vec::new(), Vec::new());
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let messages = self.raw_dump(Raw::dump(RTM_GETROUTE, family.into()))?;
            routes.extend(messages.iter().filter_map(|m| route::route(m, &names)));
            let mut ask = RuleMessage::default();
            ask.header.family = family;
            for message in self.dump(Message::GetRule(ask))? {
                if let Message::NewRule(m) = message {
                    rules.extend(rtnl::rule(&m));
                }
            }
        }
        let messages = self.raw_dump(Raw::dump(RTM_GETNEXTHOP, 0))?;
        let nexthops: Vec<Nexthop> = messages
            .iter()
            .filter_map(|m| nexthop::nexthop(m, &names))
            .collect();
        nexthop::tell_legs(&mut routes, &nexthops);
        let routes_cut = [4, 6]
            .into_iter()
            .filter(|family| route::is_cut(*family, &netdevs, &routes))
            .collect();
        Ok(Network {
            netdevs,
            routes,
            routes_cut,
            nexthops,
            rules,
            confs,
        })
    }

    fn links(&mut self) -> Result<(Vec<LinkMessage>, HashMap<u32, DevConf>)> {
        let ask = LinkPacket {
            packet: Message::GetLink(change_links::ask()).into(),
            conf: DevConf::default(),
        };
        let (mut links, mut confs) = (Vec::new(), HashMap::new());
        for LinkPacket { packet, conf } in self.whole(&ask)? {
            let Packet::Known(message) = packet else {
                continue;
            };
            let Message::NewLink(link) = *message else {
                continue;
            };
            confs.insert(link.header.index, conf);
            links.push(link);
        }
        Ok((links, confs))
    }

    pub fn neigh_parms(&mut self) -> Result<neigh_parms::Tables> {
        let resolution = clock_getres(ClockId::RealtimeCoarse);
        // Of a clock that counts jiffies.
        let tick = u64::try_from(resolution.tv_nsec).unwrap_or_default();
        Ok(neigh_parms::tables(
            &self.raw_dump(Raw::dump(RTM_GETNEIGHTBL, 0))?,
            tick,
        ))
    }

    /// Neighbours, then proxies: the kernel dumps these only when asked with NTF_PROXY.
    fn neighbours(&mut self, links: &[LinkMessage]) -> Result<Vec<(u32, Neighbour)>> {
        // All that the kernel knows on these is NOARP.
        let silent = |index| {
            links
                .iter()
                .any(|l| l.header.index == index && l.header.flags.contains(LinkFlags::Noarp))
        };
        let mut all = Vec::new();
        for flags in [NeighbourFlags::empty(), NeighbourFlags::Proxy] {
            let mut ask = NeighbourMessage::default();
            ask.header.flags = flags;
            let messages = self.dump(Message::GetNeighbour(ask))?;
            let set = messages.iter().filter_map(|m| {
                if let Message::NewNeighbour(n) = m {
                    rtnl::neighbour(n)
                } else {
                    None
                }
            });
            all.extend(set.filter(|(index, neighbour)| !neighbour.noarp || !silent(*index)));
        }
        Ok(all)
    }

    fn qdiscs(&mut self, netdevs: &mut [Netdev]) -> Result<()> {
        let mut all: Vec<ObservedQdisc> = self
            .raw_dump(Raw::dump(RTM_GETQDISC, 0))?
            .iter()
            .filter_map(qdisc::parse)
            .collect();
        for discipline in &mut all {
            for ask in qdisc::filters(discipline) {
                discipline.filtered |= !self.raw_dump(ask)?.is_empty();
            }
        }
        netdevs.iter_mut().for_each(|dev| qdisc::attach(dev, &all));
        Ok(())
    }

    /// The index of the interface by which packets between two addresses leave, by all rules of
    /// routing: the kernel's own answer.
    pub fn way(&mut self, to: IpAddr, from: IpAddr) -> io::Result<Option<u32>> {
        let (answers, _) = self.exchange(route::lookup(to, from), 0)?;
        Ok(answers.iter().find_map(|p| {
            if let Packet::Raw(r) = p {
                route::out(r)
            } else {
                None
            }
        }))
    }

    pub fn tentative(&mut self, ip: IpAddr) -> Result<bool> {
        let running = |a: &Address| {
            a.address == ip && a.flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED) == IFA_F_TENTATIVE
        };
        let all = self.dump(Message::GetAddress(Default::default()))?;
        let addresses = all.iter().filter_map(|m| {
            if let Message::NewAddress(a) = m {
                rtnl::address(a)
            } else {
                None
            }
        });
        Ok(addresses.into_iter().any(|(_, a)| running(&a)))
    }
}
