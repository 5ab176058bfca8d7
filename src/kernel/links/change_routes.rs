use std::collections::BTreeMap;
use std::io;
use std::net::Ipv6Addr;

use anyhow::{Context, Result};
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::{AfSpecInet6, AfSpecUnspec, LinkAttribute};
use rdma_model::effect::same_rule;
use rdma_model::ids::IfName;
use rdma_model::snapshot::{Address, Neighbour, Nexthop, Qdisc, Route, Rule};
use rdma_netlink::raw::{RTM_DELROUTE, Raw};
use rdma_netlink::{nexthop, qdisc, route, rtnl};

use super::RouteSocket;

impl RouteSocket {
    pub fn qdisc_add(&mut self, dev: &IfName, qdisc: &Qdisc) -> io::Result<()> {
        let m = qdisc::add_message(self.index(dev)?, qdisc);
        self.change(m, NLM_F_CREATE | NLM_F_REPLACE)
    }

    pub fn qdisc_delete(&mut self, dev: &IfName, qdisc: &Qdisc) -> io::Result<()> {
        let m = qdisc::delete_message(self.index(dev)?, qdisc);
        self.change(m, 0)
    }

    /// Sets the host's part of addresses that come by router advertisements; none: the unspecified
    /// address.
    pub fn set_token(&mut self, name: &IfName, token: Option<Ipv6Addr>) -> io::Result<()> {
        let token = AfSpecInet6::Token(token.unwrap_or(Ipv6Addr::UNSPECIFIED));
        self.set_link(name, |m| {
            m.attributes
                .push(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(
                    vec![token],
                )]))
        })
    }

    /// Replaces the same address with other attributes.
    pub fn address_add(&mut self, dev: &IfName, address: &Address) -> io::Result<()> {
        let m = rtnl::address_message(self.index(dev)?, address);
        self.change(Message::NewAddress(m), NLM_F_CREATE | NLM_F_REPLACE)
    }

    pub fn address_delete(&mut self, dev: &IfName, address: &Address) -> io::Result<()> {
        let m = rtnl::address_message(self.index(dev)?, address);
        self.change(Message::DelAddress(m), 0)
    }

    fn indexes<'a>(
        &mut self,
        devices: impl Iterator<Item = &'a IfName>,
    ) -> Result<BTreeMap<IfName, u32>> {
        let mut all = BTreeMap::new();
        for dev in devices {
            let index = self.index(dev);
            all.insert(
                dev.clone(),
                index.with_context(|| format!("looking for {dev}"))?,
            );
        }
        Ok(all)
    }

    fn route_message(&mut self, route: &Route) -> Result<Raw> {
        let indexes = self.indexes(route.devs())?;
        route::route_message(route, |dev| {
            indexes.get(dev).copied().context("a leg without a device")
        })
    }

    pub fn route_add(&mut self, route: &Route) -> Result<()> {
        self.route_put(route, NLM_F_CREATE | NLM_F_APPEND)
    }

    /// Adds a route before equal ones; IPv6 has no such place (fib6_add_rt2node in
    /// net/ipv6/ip6_fib.c).
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

    /// Deletes a route; one that is not there is fine. Of several IPv6 legs each has its own
    /// protocol, and only the first one's is known: zero asks for all (ip6_route_del() in
    /// net/ipv6/route.c).
    pub fn route_delete(&mut self, route: &Route) -> Result<()> {
        let protocol = match route.is_ipv6() && route.hops.len() > 1 {
            true => 0,
            false => route.protocol,
        };
        let route = Route {
            protocol,
            ..route.clone()
        };
        let m = Raw {
            kind: RTM_DELROUTE,
            ..self.route_message(&route)?
        };
        match self.change(m, 0) {
            Err(e) if e.raw_os_error() == Some(nix::libc::ESRCH) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Makes a nexthop object, or makes it what it was: a group that has lost members gets them
    /// back.
    pub fn nexthop_add(&mut self, object: &Nexthop) -> Result<()> {
        let indexes = self.indexes(object.dev.iter())?;
        let m = nexthop::nexthop_message(object, |dev| {
            indexes
                .get(dev)
                .copied()
                .context("a nexthop without its device")
        })?;
        Ok(self.change(m, NLM_F_CREATE | NLM_F_REPLACE)?)
    }

    pub fn nexthop_delete(&mut self, id: u32) -> io::Result<()> {
        self.change(nexthop::delete_message(id), 0)
    }

    pub fn neighbour_add(&mut self, dev: &IfName, neighbour: &Neighbour) -> io::Result<()> {
        let m = rtnl::neighbour_message(self.index(dev)?, neighbour);
        self.change(Message::NewNeighbour(m), NLM_F_CREATE | NLM_F_REPLACE)
    }

    pub fn neighbour_delete(&mut self, dev: &IfName, neighbour: &Neighbour) -> io::Result<()> {
        let m = rtnl::neighbour_message(self.index(dev)?, neighbour);
        self.change(Message::DelNeighbour(m), 0)
    }

    /// A rule that is there already is fine, of whatever program. The kernel also takes one for
    /// another that says more than it (rule_exists() in net/core/fib_rules.c, fib4_rule_compare()
    /// in net/ipv4/fib_rules.c).
    pub fn rule_add(&mut self, rule: &Rule) -> Result<()> {
        let message = Message::NewRule(rtnl::rule_message(rule));
        match self.change(message, NLM_F_CREATE | NLM_F_EXCL) {
            Err(e) if e.raw_os_error() == Some(nix::libc::EEXIST) => {}
            other => return Ok(other?),
        }
        let family = match rule.family {
            4 => AddressFamily::Inet,
            _ => AddressFamily::Inet6,
        };
        let mut there = self.rules(family)?.into_iter();
        match there.any(|r| r.priority == rule.priority && same_rule(&r, rule)) {
            true => Ok(()),
            false => Ok(self.rule_append(rule)?),
        }
    }

    /// Adds a rule behind those of its priority. Without NLM_F_EXCL the kernel takes one that is
    /// there already (fib_nl_newrule in net/core/fib_rules.c).
    pub fn rule_append(&mut self, rule: &Rule) -> io::Result<()> {
        self.change(Message::NewRule(rtnl::rule_message(rule)), NLM_F_CREATE)
    }

    pub fn rule_delete(&mut self, rule: &Rule) -> io::Result<()> {
        self.change(Message::DelRule(rtnl::rule_message(rule)), 0)
    }
}
