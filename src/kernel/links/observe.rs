use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::net::IpAddr;

use anyhow::{Context, Result};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourFlags, NeighbourMessage};
use netlink_packet_route::rule::RuleMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use nix::libc::ENODEV;
use rdma_model::snapshot::{Address, Neighbour, Netdev, Nexthop, Route, Rule};
use rdma_model::step::Side;
use rdma_netlink::devconf::DevConf;
use rdma_netlink::neigh_parms;
use rdma_netlink::qdisc::{self, ObservedQdisc};
use rdma_netlink::raw::{Packet, RTM_GETNEIGHTBL, RTM_GETNEXTHOP, RTM_GETQDISC, RTM_GETROUTE, Raw};
use rdma_netlink::route_list::{Objects, RouteList, Wanted};
use rdma_netlink::rtnl::Names;
use rdma_netlink::socket::parsed;
use rdma_netlink::{nexthop, route, rtnl};
use rustix::time::{ClockId, clock_getres};

use super::{RouteSocket, change_links, link};
use crate::kernel::{Depth, Routes, Scope, Sysctls};

/// include/uapi/linux/if_addr.h.
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;
/// How many lists that are not whole count together.
const LISTS: usize = 3;

/// A link, read as it was listed: a message is several times as large, and a host may have
/// thousands.
struct Listed {
    dev: Netdev,
    /// Its index.
    master: Option<u32>,
    has_no_arp: bool,
}

impl Listed {
    /// Which link its master is called is known when all are.
    fn of(link: &LinkMessage) -> Option<Listed> {
        Some(Listed {
            dev: rtnl::netdev(link, &Names::new())?,
            master: master(link),
            has_no_arp: link.header.flags.contains(LinkFlags::Noarp),
        })
    }
}

type Listing = (Vec<Listed>, HashMap<u32, DevConf>);

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

/// Links by their index: a namespace may have thousands, with as many addresses and neighbours.
struct Links<'a> {
    all: &'a mut [Netdev],
    places: HashMap<u32, usize>,
}

impl Links<'_> {
    fn of(all: &mut [Netdev]) -> Links<'_> {
        let places = all.iter().enumerate();
        let places = places.map(|(at, dev)| (dev.ifindex, at)).collect();
        Links { all, places }
    }

    fn get(&mut self, index: u32) -> Option<&mut Netdev> {
        self.all.get_mut(*self.places.get(&index)?)
    }
}

impl RouteSocket {
    /// Reads what route netlink reports of the namespace; queueing disciplines only of the host:
    /// each costs a request of its own, and root in a container can make many.
    ///
    /// Root there can also change links and addresses so fast that no list comes whole. The kernel
    /// says so of any change (NLM_F_DUMP_INTR, by net->dev_base_seq), while a list lacks at most
    /// links that came or went, and up to Linux 6.8 such as share a hash bucket with one that went
    /// (rtnl_dump_ifinfo() in net/core/rtnetlink.c). So up to [`Depth::Netdevs`] a list is taken as
    /// it is there, of links what [`LISTS`] of them have together: a NIC that is in none is
    /// missing, for which its record stays. What is compared with a plan has to be whole.
    ///
    /// Of [`Depth::Links`] those with the indexes of the routes are asked for alone where the last
    /// list of all was longer.
    pub fn network(&mut self, scope: &Scope, side: Side) -> Result<Network> {
        let depth = scope.depth;
        self.takes_parts = side == Side::Inside && depth != Depth::Network;
        let (links, confs) = match (&scope.routes, depth) {
            (Routes::Of(routes), Depth::Nics) => self.links_at(routes.indices())?,
            (Routes::Of(routes), Depth::Links) if routes.indices().len() < self.listed => {
                self.links_at(routes.indices())?
            }
            _ => self.links(&scope.sysctls)?,
        };
        let names = links.iter().map(|l| (l.dev.ifindex, l.dev.name.clone()));
        let names: Names = names.collect();
        // All that the kernel knows on these is NOARP.
        let without_arp = links.iter().filter(|l| l.has_no_arp);
        let without_arp: HashSet<u32> = without_arp.map(|l| l.dev.ifindex).collect();
        let netdevs = links.into_iter().map(|link| Netdev {
            master: link.master.and_then(|index| names.get(&index).cloned()),
            ..link.dev
        });
        let mut network = Network {
            netdevs: netdevs.collect(),
            confs,
            ..Network::default()
        };
        if depth == Depth::Links {
            return Ok(network);
        }
        let mut by_index = Links::of(&mut network.netdevs);
        for (index, address) in self.addresses()? {
            if let Some(dev) = by_index.get(index) {
                dev.addresses.push(address);
            }
        }
        match depth {
            Depth::Links | Depth::Netdevs => return Ok(network),
            Depth::Nics => {
                for family in [AddressFamily::Inet, AddressFamily::Inet6] {
                    network.rules.append(&mut self.rules(family)?);
                }
                return Ok(network);
            }
            Depth::Network => {}
        }
        for (index, neighbour) in self.neighbours(&without_arp)? {
            if let Some(dev) = by_index.get(index) {
                dev.neighbours.push(neighbour);
            }
        }
        let messages = self.raw_dump(Raw::dump(RTM_GETNEXTHOP, 0))?;
        let nexthops = messages.iter().filter_map(|m| nexthop::nexthop(m, &names));
        network.nexthops = nexthops.collect();
        let wanted = match &scope.routes {
            Routes::All => None,
            Routes::Of(routes) => {
                let wanted = routes.wanted(&network.netdevs);
                let objects = Objects::over(&wanted.links, &network.nexthops, &names);
                Some((wanted, objects))
            }
        };
        let wanted = wanted.as_ref().map(|(wanted, objects)| (wanted, objects));
        if side == Side::Host {
            self.qdiscs(
                &mut network.netdevs,
                wanted.map(|(wanted, _)| &wanted.links),
            )?;
        }
        for (family, number) in [(AddressFamily::Inet, 4), (AddressFamily::Inet6, 6)] {
            let listed = self.routes(family, wanted, &names)?;
            network
                .routes
                .extend(self.with_legs_apart(listed.routes, &names));
            let is_cut = route::is_cut(number, &network.netdevs, listed.has_local);
            network.routes_cut.extend(is_cut.then_some(number));
            network.rules.append(&mut self.rules(family)?);
        }
        nexthop::tell_legs(&mut network.routes, &network.nexthops);
        Ok(network)
    }

    /// All, with the settings of those whose sysctls are asked for.
    fn links(&mut self, sysctls: &Sysctls) -> Result<Listing> {
        let ask = Packet::from(Message::GetLink(change_links::ask()));
        let (mut links, mut confs) = (BTreeMap::new(), HashMap::new());
        for _ in 0..LISTS {
            let listed = self.list(&ask, |kind, payload| {
                let listed = Listed::of(&link(parsed(kind, payload)?)?)?;
                let concerned = sysctls.concern(&listed.dev.name);
                Some((listed, concerned.then(|| DevConf::of_link(payload))))
            })?;
            for (link, conf) in listed {
                confs.extend(conf.map(|conf| (link.dev.ifindex, conf)));
                links.insert(link.dev.ifindex, link);
            }
            if self.is_whole {
                break;
            }
        }
        self.listed = links.len();
        Ok((links.into_values().collect(), confs))
    }

    /// Links with these indexes, and what they are members of.
    fn links_at(&mut self, indices: &BTreeSet<u32>) -> Result<Listing> {
        let mut due: Vec<u32> = indices.iter().copied().collect();
        let (mut links, mut confs) = (BTreeMap::new(), HashMap::new());
        while let Some(index) = due.pop() {
            let mut ask = change_links::ask();
            ask.header.index = index;
            let (link, conf) = match self.link_and_conf(ask) {
                Err(e) if e.raw_os_error() == Some(ENODEV) => continue,
                found => found.context("asking for a link")?,
            };
            due.extend(master(&link).filter(|master| !links.contains_key(master)));
            confs.insert(index, conf);
            links.extend(Listed::of(&link).map(|link| (index, link)));
        }
        Ok((links.into_values().collect(), confs))
    }

    fn addresses(&mut self) -> Result<Vec<(u32, Address)>> {
        self.dump(Message::GetAddress(Default::default()), |m| match m {
            Message::NewAddress(m) => rtnl::address(&m),
            _ => None,
        })
    }

    fn routes(
        &mut self,
        family: AddressFamily,
        wanted: Option<(&Wanted, &Objects)>,
        names: &Names,
    ) -> Result<RouteList> {
        let ask = Raw::dump(RTM_GETROUTE, family.into());
        self.listed(ask, |list: &mut RouteList, _, payload| {
            list.feed(payload, wanted, names)
        })
    }

    pub(super) fn rules(&mut self, family: AddressFamily) -> Result<Vec<Rule>> {
        let mut ask = RuleMessage::default();
        ask.header.family = family;
        self.dump(Message::GetRule(ask), |m| match m {
            Message::NewRule(m) => rtnl::rule(&m),
            _ => None,
        })
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
    fn neighbours(&mut self, without_arp: &HashSet<u32>) -> Result<Vec<(u32, Neighbour)>> {
        let mut all = Vec::new();
        for flags in [NeighbourFlags::empty(), NeighbourFlags::Proxy] {
            let mut ask = NeighbourMessage::default();
            ask.header.flags = flags;
            all.append(&mut self.dump(Message::GetNeighbour(ask), |m| {
                match m {
                    Message::NewNeighbour(m) => rtnl::neighbour(&m)
                        .filter(|(index, found)| !found.noarp || !without_arp.contains(index)),
                    _ => None,
                }
            })?);
        }
        Ok(all)
    }

    /// Whether a discipline has filters is one question each: of links that may be NICs, where it
    /// is known which.
    fn qdiscs(&mut self, netdevs: &mut [Netdev], links: Option<&BTreeSet<u32>>) -> Result<()> {
        let mut by_link: HashMap<u32, Vec<ObservedQdisc>> = HashMap::new();
        for message in self.raw_dump(Raw::dump(RTM_GETQDISC, 0))? {
            let Some(mut discipline) = qdisc::parse(&message) else {
                continue;
            };
            let is_asked = links.is_none_or(|links| links.contains(&discipline.ifindex));
            for ask in is_asked
                .then(|| qdisc::filters(&discipline))
                .into_iter()
                .flatten()
            {
                discipline.filtered |= !self.raw_dump(ask)?.is_empty();
            }
            let of_link = by_link.entry(discipline.ifindex).or_default();
            of_link.push(discipline);
        }
        for dev in netdevs {
            let own = by_link.get(&dev.ifindex).map_or(&[][..], Vec::as_slice);
            qdisc::attach(dev, own);
        }
        Ok(())
    }

    /// The index of the interface by which packets between two addresses leave, by all rules of
    /// routing: the kernel's own answer.
    pub fn way(&mut self, to: IpAddr, from: IpAddr) -> io::Result<Option<u32>> {
        let (answers, _) = self.exchange(route::lookup(to, from), 0)?;
        Ok(answers.iter().find_map(|answer| match answer {
            Packet::Raw(route) => route::out(route),
            Packet::Known(_) => None,
        }))
    }

    pub fn tentative(&mut self, ip: IpAddr) -> Result<bool> {
        let all = self.addresses()?;
        Ok(all.iter().any(|(_, a)| {
            a.address == ip && a.flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED) == IFA_F_TENTATIVE
        }))
    }
}

fn master(link: &LinkMessage) -> Option<u32> {
    link.attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::Controller(index) => Some(*index),
            _ => None,
        })
}
