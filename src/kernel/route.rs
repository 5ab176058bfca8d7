//! Route netlink in one network namespace.

mod links;
mod strangers;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use netlink_packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::link::{AfSpecInet6, AfSpecUnspec, LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourFlags, NeighbourMessage};
use netlink_packet_route::rule::RuleMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::libc::EOPNOTSUPP;
use rdma_model::ids::IfName;
use rdma_model::snapshot::{Address, Neighbour, Netdev, Nexthop, Qdisc, Route, Rule};

use rdma_netlink::qdisc::{self, Told};
use rdma_netlink::raw::{Packet, RTM_DELROUTE, RTM_GETNEXTHOP, RTM_GETQDISC, RTM_GETROUTE, Raw};
use rdma_netlink::socket::KernelSocket;
use rdma_netlink::{nexthop, route, rtnl};

/// include/uapi/linux/if_addr.h.
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;

/// No answer of the kernel takes longer; one that is lost must not hang a hook.
const ANSWER: Duration = Duration::from_secs(30);

/// A route netlink socket, bound for good to the namespace of the thread that opened it.
pub struct RouteSocket(KernelSocket);

/// Links, addresses, routes, rules and neighbours of a namespace.
pub struct Network {
    /// Netdevs with their addresses and neighbours.
    pub netdevs: Vec<Netdev>,
    /// Routes of all tables.
    pub routes: Vec<Route>,
    /// Families of which the kernel has not listed all, see [`route::is_cut`].
    pub routes_cut: Vec<u8>,
    /// Nexthop objects.
    pub nexthops: Vec<Nexthop>,
    /// Rules of both families.
    pub rules: Vec<Rule>,
}

impl RouteSocket {
    /// Opens a socket in the calling thread's namespace.
    pub fn open() -> Result<RouteSocket> {
        Ok(RouteSocket(KernelSocket::open(NETLINK_ROUTE).context("opening a route netlink socket")?))
    }

    /// Sends one message and collects the answers; an error answer becomes an `io::Error` with its errno.
    fn exchange(&mut self, message: impl Into<Packet>, flags: u16) -> io::Result<(Vec<Packet>, bool)> {
        self.exchange_within(message, flags, ANSWER)
    }

    /// The same, with less patience.
    fn exchange_within(
        &mut self,
        message: impl Into<Packet>,
        flags: u16,
        time: Duration,
    ) -> io::Result<(Vec<Packet>, bool)> {
        self.0.exchange(message.into(), flags, time)
    }

    fn change(&mut self, message: impl Into<Packet>, flags: u16) -> io::Result<()> {
        self.exchange(message, NLM_F_ACK | flags).map(|_| ())
    }

    /// A dump, repeated while the kernel says that it was interrupted.
    fn whole(&mut self, message: impl Into<Packet>) -> Result<Vec<Packet>> {
        let message = message.into();
        for _ in 0..8 {
            let (messages, interrupted) =
                self.exchange(message.clone(), NLM_F_DUMP).context("dumping route netlink")?;
            if !interrupted {
                return Ok(messages);
            }
        }
        bail!("the network changes faster than it can be read")
    }

    fn dump(&mut self, message: Message) -> Result<Vec<Message>> {
        let known = |p| if let Packet::Known(m) = p { Some(*m) } else { None };
        Ok(self.whole(message)?.into_iter().filter_map(known).collect())
    }

    /// A dump of what we read ourselves; nothing where the kernel has no such thing.
    fn raw_dump(&mut self, ask: Raw) -> Result<Vec<Raw>> {
        let raw = |p| if let Packet::Raw(r) = p { Some(r) } else { None };
        match self.whole(ask) {
            Err(e) if e.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) == Some(EOPNOTSUPP) => {
                Ok(Vec::new())
            }
            packets => Ok(packets?.into_iter().filter_map(raw).collect()),
        }
    }

    /// Reads everything that route netlink tells of the namespace; queueing disciplines only where they matter: each costs a
    /// question of its own, and whoever is root in a container can make many.
    pub fn network(&mut self, disciplines: bool) -> Result<Network> {
        let links = self.dump(Message::GetLink(links::ask()))?;
        let links: Vec<LinkMessage> =
            links.into_iter().filter_map(|m| if let Message::NewLink(l) = m { Some(l) } else { None }).collect();
        let names: rtnl::Names = links.iter().filter_map(rtnl::link_name).collect();
        let mut netdevs: Vec<Netdev> = links.iter().filter_map(|l| rtnl::netdev(l, &names)).collect();
        // A container may have tens of thousands of each.
        let places: HashMap<u32, usize> = netdevs.iter().enumerate().map(|(at, n)| (n.ifindex, at)).collect();
        let mut attach = |index: u32, put: &mut dyn FnMut(&mut Netdev)| {
            places.get(&index).and_then(|at| netdevs.get_mut(*at)).into_iter().for_each(put);
        };
        for message in self.dump(Message::GetAddress(Default::default()))? {
            let Message::NewAddress(m) = message else { continue };
            let Some((index, address)) = rtnl::address(&m) else { continue };
            attach(index, &mut |n| n.addresses.push(address.clone()));
        }
        for (index, neighbour) in self.neighbours(&links)? {
            attach(index, &mut |n| n.neighbours.push(neighbour.clone()));
        }
        if disciplines {
            self.qdiscs(&mut netdevs)?;
        }
        let (mut routes, mut rules) = (Vec::new(), Vec::new());
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let told = self.raw_dump(Raw::dump(RTM_GETROUTE, family.into()))?;
            routes.extend(told.iter().filter_map(|m| route::route(m, &names)));
            let mut ask = RuleMessage::default();
            ask.header.family = family;
            for message in self.dump(Message::GetRule(ask))? {
                if let Message::NewRule(m) = message {
                    rules.extend(rtnl::rule(&m));
                }
            }
        }
        let told = self.raw_dump(Raw::dump(RTM_GETNEXTHOP, 0))?;
        let nexthops: Vec<Nexthop> = told.iter().filter_map(|m| nexthop::nexthop(m, &names)).collect();
        nexthop::tell_legs(&mut routes, &nexthops);
        let routes_cut = [4, 6].into_iter().filter(|family| route::is_cut(*family, &netdevs, &routes)).collect();
        Ok(Network { netdevs, routes, routes_cut, nexthops, rules })
    }

    /// The index of the interface by which packets between two addresses leave, by all rules of routing: the kernel's own answer.
    pub fn way(&mut self, to: IpAddr, from: IpAddr) -> io::Result<Option<u32>> {
        let (answers, _) = self.exchange(route::lookup(to, from), 0)?;
        Ok(answers.iter().find_map(|p| if let Packet::Raw(r) = p { route::out(r) } else { None }))
    }

    fn qdiscs(&mut self, netdevs: &mut [Netdev]) -> Result<()> {
        let mut all: Vec<Told> = self.raw_dump(Raw::dump(RTM_GETQDISC, 0))?.iter().filter_map(qdisc::told).collect();
        for told in &mut all {
            for ask in qdisc::filters(told) {
                told.filtered |= !self.raw_dump(ask)?.is_empty();
            }
        }
        netdevs.iter_mut().for_each(|dev| qdisc::attach(dev, &all));
        Ok(())
    }

    /// Attaches a queueing discipline in place of what is there.
    pub fn qdisc_add(&mut self, dev: &IfName, qdisc: &Qdisc) -> io::Result<()> {
        let m = qdisc::add_message(self.index(dev)?, qdisc);
        self.change(m, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Removes a queueing discipline; the kernel attaches its default.
    pub fn qdisc_delete(&mut self, dev: &IfName, qdisc: &Qdisc) -> io::Result<()> {
        let m = qdisc::delete_message(self.index(dev)?, qdisc);
        self.change(m, 0)
    }

    /// Neighbours, then proxies: the kernel dumps these only when asked with NTF_PROXY.
    fn neighbours(&mut self, links: &[LinkMessage]) -> Result<Vec<(u32, Neighbour)>> {
        // All that the kernel knows on these is NOARP.
        let silent = |index| links.iter().any(|l| l.header.index == index && l.header.flags.contains(LinkFlags::Noarp));
        let mut all = Vec::new();
        for flags in [NeighbourFlags::empty(), NeighbourFlags::Proxy] {
            let mut ask = NeighbourMessage::default();
            ask.header.flags = flags;
            let messages = self.dump(Message::GetNeighbour(ask))?;
            let set = messages
                .iter()
                .filter_map(|m| if let Message::NewNeighbour(n) = m { rtnl::neighbour(n) } else { None });
            all.extend(set.filter(|(index, neighbour)| !neighbour.noarp || !silent(*index)));
        }
        Ok(all)
    }

    /// Sets the host's part of addresses that come by router advertisements; none: the unspecified address.
    pub fn set_token(&mut self, name: &IfName, token: Option<Ipv6Addr>) -> io::Result<()> {
        let token = AfSpecInet6::Token(token.unwrap_or(Ipv6Addr::UNSPECIFIED));
        self.set_link(name, |m| m.attributes.push(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![token])])))
    }

    /// Adds an address; the same one with other attributes is replaced.
    pub fn address_add(&mut self, dev: &IfName, address: &Address) -> io::Result<()> {
        let m = rtnl::address_message(self.index(dev)?, address);
        self.change(Message::NewAddress(m), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Whether duplicate address detection of an address still runs.
    pub fn tentative(&mut self, ip: IpAddr) -> Result<bool> {
        let running = |a: &Address| a.address == ip && a.flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED) == IFA_F_TENTATIVE;
        let all = self.dump(Message::GetAddress(Default::default()))?;
        let addresses = all.iter().filter_map(|m| if let Message::NewAddress(a) = m { rtnl::address(a) } else { None });
        Ok(addresses.into_iter().any(|(_, a)| running(&a)))
    }

    /// Deletes an address.
    pub fn address_delete(&mut self, dev: &IfName, address: &Address) -> io::Result<()> {
        let m = rtnl::address_message(self.index(dev)?, address);
        self.change(Message::DelAddress(m), 0)
    }

    fn indexes<'a>(&mut self, devices: impl Iterator<Item = &'a IfName>) -> Result<BTreeMap<IfName, u32>> {
        let index = |dev: &IfName| Ok((dev.clone(), self.index(dev).with_context(|| format!("looking for {dev}"))?));
        devices.map(index).collect()
    }

    fn route_message(&mut self, route: &Route) -> Result<Raw> {
        let indexes = self.indexes(route.hops.iter().filter_map(|h| h.dev.as_ref()))?;
        route::route_message(route, |dev| indexes.get(dev).copied().context("a leg without a device"))
    }

    /// Adds a route behind equal ones.
    pub fn route_add(&mut self, route: &Route) -> Result<()> {
        self.route_put(route, NLM_F_CREATE | NLM_F_APPEND)
    }

    /// Adds a route before equal ones; IPv6 has no such place (fib6_add_rt2node in net/ipv6/ip6_fib.c).
    pub fn route_prepend(&mut self, route: &Route) -> Result<()> {
        self.route_put(route, NLM_F_CREATE)
    }

    fn route_put(&mut self, route: &Route, flags: u16) -> Result<()> {
        let m = self.route_message(route)?;
        match self.change(m, flags) {
            Err(e) if e.raw_os_error() == Some(nix::libc::EEXIST) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Deletes a route; one that is not there is fine.
    pub fn route_delete(&mut self, route: &Route) -> Result<()> {
        let m = Raw { kind: RTM_DELROUTE, ..self.route_message(route)? };
        match self.change(m, 0) {
            Err(e) if e.raw_os_error() == Some(nix::libc::ESRCH) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Makes a nexthop object, or makes it what it was: a group that has lost members gets them back.
    pub fn nexthop_add(&mut self, object: &Nexthop) -> Result<()> {
        let indexes = self.indexes(object.dev.iter())?;
        let m =
            nexthop::nexthop_message(object, |dev| indexes.get(dev).copied().context("a nexthop without its device"))?;
        Ok(self.change(m, NLM_F_CREATE | NLM_F_REPLACE)?)
    }

    /// Deletes a nexthop object.
    pub fn nexthop_delete(&mut self, id: u32) -> io::Result<()> {
        self.change(nexthop::delete_message(id), 0)
    }

    /// Adds a permanent neighbour or proxy.
    pub fn neighbour_add(&mut self, dev: &IfName, neighbour: &Neighbour) -> io::Result<()> {
        let m = rtnl::neighbour_message(self.index(dev)?, neighbour);
        self.change(Message::NewNeighbour(m), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Deletes a neighbour or proxy.
    pub fn neighbour_delete(&mut self, dev: &IfName, neighbour: &Neighbour) -> io::Result<()> {
        let m = rtnl::neighbour_message(self.index(dev)?, neighbour);
        self.change(Message::DelNeighbour(m), 0)
    }

    /// Adds a rule; one that is there already is fine.
    pub fn rule_add(&mut self, rule: &Rule) -> io::Result<()> {
        match self.change(Message::NewRule(rtnl::rule_message(rule)), NLM_F_CREATE | NLM_F_EXCL) {
            Err(e) if e.raw_os_error() == Some(nix::libc::EEXIST) => Ok(()),
            other => other,
        }
    }

    /// Adds a rule behind those of its priority. Without NLM_F_EXCL the kernel takes one that is there already
    /// (fib_nl_newrule in net/core/fib_rules.c).
    pub fn rule_append(&mut self, rule: &Rule) -> io::Result<()> {
        self.change(Message::NewRule(rtnl::rule_message(rule)), NLM_F_CREATE)
    }

    /// Deletes a rule.
    pub fn rule_delete(&mut self, rule: &Rule) -> io::Result<()> {
        self.change(Message::DelRule(rtnl::rule_message(rule)), 0)
    }
}
