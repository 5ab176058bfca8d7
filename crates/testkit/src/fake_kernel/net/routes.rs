//! Routes, next hops and rules.

use std::cmp::Reverse;

use nix::libc::EHOSTUNREACH;

use super::*;

impl Space {
    pub(super) fn put(&mut self, route: Route) {
        if !self.routes.contains(&route) {
            self.routes.push(route);
        }
    }

    pub fn rule_add(&mut self, rule: &Rule) {
        if !self.rules.contains(rule) {
            self.rule_append(rule);
        }
    }

    /// fib_nl_newrule without NLM_F_EXCL: behind its equals, one that is there already, too.
    pub fn rule_append(&mut self, rule: &Rule) {
        self.rules.push(rule.clone());
        self.rules.sort_by_key(|r| (r.family, r.priority));
    }

    /// rule_find: the first that has all that is named.
    pub fn rule_delete(&mut self, rule: &Rule) {
        fn fits<T: PartialEq>(named: &Option<T>, has: &Option<T>) -> bool {
            named.is_none() || named == has
        }
        let found = self.rules.iter().position(|r| {
            (r.family, r.priority, r.table, r.action)
                == (rule.family, rule.priority, rule.table, rule.action)
                && fits(&rule.source, &r.source)
                && fits(&rule.destination, &r.destination)
                && fits(&rule.iif, &r.iif)
                && fits(&rule.oif, &r.oif)
                && (rule.tos == 0 || rule.tos == r.tos)
                && rule
                    .other
                    .iter()
                    .all(|(kind, value)| r.other.get(kind) == Some(value))
        });
        found.into_iter().for_each(|at| drop(self.rules.remove(at)));
    }

    pub(super) fn local(&self, ip: IpAddr) -> bool {
        self.links
            .iter()
            .any(|l| l.dev.addresses.iter().any(|a| a.address == ip))
    }

    /// fib_check_nh: what a gateway is reached by, over that very device.
    fn reaches(&self, dev: &IfName, gateway: IpAddr, table: u32) -> bool {
        let direct = |r: &&Route| {
            r.kind == 1
                && (r.table == MAIN || r.table == table)
                && r.destination.contains(&gateway)
                && r.hops
                    .iter()
                    .any(|h| h.dev.as_ref() == Some(dev) && h.gateway.is_none())
        };
        self.routes.iter().any(|r| direct(&r))
    }

    /// ip6_route_check_nh: the route's own table, then the rules.
    fn reaches6(&self, dev: &IfName, gateway: IpAddr, table: u32) -> bool {
        let over = |route: &&Route| route.hops.iter().any(|h| h.dev.as_ref() == Some(dev));
        let direct = |route: &Route| route.hops.iter().all(|h| h.gateway.is_none());
        let named = |n: &Option<String>| n.as_ref().is_none_or(|n| n == dev.as_str());
        let asks = |r: &&Rule| {
            let whole = r.family == 6
                && r.action == 1
                && r.source.is_none()
                && r.iif.is_none()
                && r.other.is_empty();
            whole && named(&r.oif) && r.destination.is_none_or(|net| net.contains(&gateway))
        };
        let found = |table: u32| self.best(table, gateway, over);
        let by_rules = || {
            self.rules
                .iter()
                .filter(asks)
                .find_map(|rule| found(rule.table))
        };
        found(table).is_some_and(direct) || by_rules().is_some_and(direct)
    }

    /// ip6_route_check_nh_onlink: main, where a route over another device must not cover it.
    fn onlink6(&self, dev: &IfName, gateway: IpAddr) -> bool {
        let Some(best) = self.best(MAIN, gateway, |_| true) else {
            return true;
        };
        let over = |r: &Route| r.kind == 1 && r.hops.iter().any(|h| h.dev.as_ref() == Some(dev));
        let mut equals = self
            .routes
            .iter()
            .filter(|r| r.table == MAIN && r.destination == best.destination);
        best.destination.prefix_len() == 0 || equals.any(over)
    }

    fn best(&self, table: u32, to: IpAddr, fits: impl Fn(&&Route) -> bool) -> Option<&Route> {
        let all = self
            .routes
            .iter()
            .filter(|r| r.table == table && r.destination.contains(&to));
        all.filter(fits)
            .min_by_key(|r| (Reverse(r.destination.prefix_len()), r.metric))
    }

    pub(super) fn leg(&self, hop: &Hop, table: u32) -> Result<()> {
        let dev = hop
            .dev
            .as_ref()
            .and_then(|d| self.dev_named(d))
            .ok_or_else(no_link)?;
        if !dev.up {
            return Err(errno(ENETDOWN));
        }
        let onlink = hop.flags & ONLINK != 0;
        match hop.gateway {
            Some(gateway) if self.local(gateway) => Err(errno(EINVAL)),
            Some(gateway) if is_ll(gateway) => Ok(()),
            Some(gateway @ IpAddr::V4(_))
                if !onlink && !self.reaches(&dev.name, gateway, table) =>
            {
                Err(errno(ENETUNREACH))
            }
            Some(gateway @ IpAddr::V6(_))
                if !onlink && !self.reaches6(&dev.name, gateway, table) =>
            {
                Err(errno(EHOSTUNREACH))
            }
            Some(gateway @ IpAddr::V6(_)) if onlink && !self.onlink6(&dev.name, gateway) => {
                Err(errno(EINVAL))
            }
            _ => Ok(()),
        }
    }

    /// fib6_nh_init (net/ipv6/route.c).
    fn has_ipv6(&self, dev: &Option<IfName>) -> Result<()> {
        let dev = dev.as_ref().and_then(|d| self.dev_named(d));
        match dev
            .and_then(|d| d.sysctls.get("ipv6/conf/disable_ipv6"))
            .map(String::as_str)
        {
            Some("1") => Err(errno(EACCES)),
            _ => Ok(()),
        }
    }

    /// nexthop_flush_dev: objects over a link go with it, out of their groups, and a group with its
    /// last member.
    pub(super) fn flush_nexthops(&mut self, name: &IfName) {
        let over = |n: &&Nexthop| n.dev.as_ref() == Some(name) && !n.blackhole;
        let gone: Vec<u32> = self.nexthops.iter().filter(over).map(|n| n.id).collect();
        gone.into_iter().for_each(|id| self.nexthop_delete(id));
    }

    /// remove_nexthop: and what leads through it alone.
    pub fn nexthop_delete(&mut self, id: u32) {
        let with_it: Vec<u32> = self
            .nexthops
            .iter()
            .filter(|n| n.group.iter().any(|m| m.id == id))
            .map(|n| n.id)
            .collect();
        self.nexthops.retain(|n| n.id != id);
        self.nexthops
            .iter_mut()
            .for_each(|n| n.group.retain(|m| m.id != id));
        self.nexthops
            .retain(|n| !n.group.is_empty() || !with_it.contains(&n.id));
        self.routes_through_nexthops();
    }

    pub(super) fn routes_through_nexthops(&mut self) {
        let all = self.nexthops.clone();
        let there = |id: u32| all.iter().any(|n| n.id == id);
        self.routes.retain(|r| r.nexthop().is_none_or(there));
        self.routes
            .iter_mut()
            .filter(|r| r.nexthop().is_some())
            .for_each(|r| r.hops.clear());
        tell_legs(&mut self.routes, &all);
    }

    /// rtm_new_nexthop with NLM_F_REPLACE.
    pub fn nexthop_add(&mut self, new: &Nexthop) -> Result<()> {
        let known = |id: u32| {
            self.nexthops
                .iter()
                .any(|n| n.id == id && n.group.is_empty())
        };
        if new.group.iter().any(|m| !known(m.id)) {
            return Err(errno(EINVAL));
        }
        if new.group.is_empty() {
            let (dev, gateway, flags) = (new.dev.clone(), new.gateway, new.flags as u8);
            if new.family == 6 {
                self.has_ipv6(&dev)?;
            }
            // No table of its own.
            self.leg(
                &Hop {
                    dev,
                    gateway,
                    flags,
                    ..Hop::default()
                },
                0,
            )?;
        }
        self.nexthops.retain(|n| n.id != new.id);
        self.nexthops.push(new.clone());
        self.nexthops.sort_by_key(|n| n.id);
        self.routes_through_nexthops();
        Ok(())
    }

    /// fib_create_info and ip6_route_info_create: the legs are the object's, which has to be there.
    pub(super) fn route_through(&mut self, route: &Route, id: u32) -> Result<()> {
        if !self.nexthops.iter().any(|n| n.id == id) {
            return Err(errno(EINVAL));
        }
        let v6 = route.destination.addr().is_ipv6();
        // fib6_check_nexthop.
        let of = |id: u32| self.nexthops.iter().find(|n| n.id == id).into_iter();
        let mut legs = of(id).chain(of(id).flat_map(|n| &n.group).flat_map(|m| of(m.id)));
        if v6 && legs.any(|n| n.family == 4) {
            return Err(errno(EINVAL));
        }
        let metric = if v6 {
            route.metric.or(Some(1024))
        } else {
            route.metric
        };
        let mut copies = [Route {
            metric,
            hops: Vec::new(),
            ..route.clone()
        }];
        tell_legs(&mut copies, &self.nexthops);
        copies.into_iter().for_each(|r| self.put(r));
        Ok(())
    }

    /// An equal route is there already: The kernel module takes that as done.
    pub fn route_add(&mut self, route: &Route) -> Result<()> {
        if let Some(id) = route.nexthop() {
            return self.route_through(route, id);
        }
        for hop in &route.hops {
            self.leg(hop, route.table)?;
            if route.destination.addr().is_ipv6() {
                self.has_ipv6(&hop.dev)?;
            }
        }
        if route.prefsrc.is_some_and(|p| !self.local(p)) {
            return Err(errno(EINVAL));
        }
        if route.destination.addr().is_ipv4() {
            self.put(route.clone());
            return Ok(());
        }
        let mut new = route.clone();
        new.metric = Some(route.metric.unwrap_or(1024));
        let key = |r: &Route| (r.destination, r.source, r.table, r.metric);
        let mut routes = self.routes.clone();
        if new.hops.len() > 1 && new.hops.iter().any(|h| h.gateway.is_none()) {
            return Err(errno(EINVAL));
        }
        for hop in &new.hops {
            let (dev, gateway) = (&hop.dev, hop.gateway);
            let alike = |r: &&mut Route| key(r) == key(&new) && r.nexthop().is_none();
            // fib6_add_rt2node: the same next hop is a duplicate whatever else differs, and a
            // multipath route that meets one takes back the legs that it added before.
            if routes
                .iter_mut()
                .filter(alike)
                .any(|r| r.hops.iter().any(|h| (&h.dev, h.gateway) == (dev, gateway)))
            {
                return Ok(());
            }
            let ecmp = |r: &&mut Route| {
                gateway.is_some()
                    && r.nexthop().is_none()
                    && r.hops.iter().all(|h| h.gateway.is_some())
            };
            match routes.iter_mut().filter(alike).find(ecmp) {
                Some(sibling) => sibling.hops.push(hop.clone()),
                None => routes.push(Route {
                    hops: vec![hop.clone()],
                    ..new.clone()
                }),
            }
        }
        self.routes = routes;
        Ok(())
    }

    /// fib_table_insert with NLM_F_CREATE alone: before those of its key.
    pub fn route_prepend(&mut self, route: &Route) -> Result<()> {
        let key = |r: &Route| (r.destination, r.table, r.tos, r.metric.unwrap_or(0));
        let count = self.routes.len();
        self.route_add(route)?;
        let first = self
            .routes
            .iter()
            .position(|r| key(r) == key(route))
            .unwrap();
        if self.routes.len() > count {
            let new = self.routes.pop().unwrap();
            self.routes.insert(first.min(count), new);
        }
        Ok(())
    }

    pub fn route_delete(&mut self, route: &Route) -> Result<()> {
        for dev in route.devs() {
            self.dev_named(dev).ok_or_else(no_link)?;
        }
        match route.destination.addr().is_ipv6() && route.nexthop().is_none() {
            true => self.delete_legs(route),
            false => {
                let named = self.routes.iter().position(|r| is_named(r, route));
                named
                    .into_iter()
                    .for_each(|at| drop(self.routes.remove(at)));
            }
        }
        Ok(())
    }

    /// ip6_route_multipath_del: each leg by itself, of whatever route has it.
    fn delete_legs(&mut self, message: &Route) {
        let alike = |r: &&mut Route| has_key(r, message) && r.nexthop().is_none();
        for leg in &message.hops {
            let mut routes = self.routes.iter_mut().filter(alike);
            if let Some(route) = routes.find(|r| r.hops.iter().any(|h| is_leg(h, leg))) {
                let before = route.hops.len();
                route.hops.retain(|h| !is_leg(h, leg));
                plain_if_alone(route, before);
            }
        }
        if message.hops.is_empty() {
            self.routes.retain(|r| r != message);
        }
        self.routes
            .retain(|r| !r.hops.is_empty() || r.kind != UNICAST);
    }

    /// IPv6: a leg that remains alone is a plain route, without a weight.
    pub(super) fn drop_legs(&mut self, name: &IfName) {
        let own_legs = |r: &&mut Route| r.destination.addr().is_ipv6() && r.nexthop().is_none();
        for route in self.routes.iter_mut().filter(own_legs) {
            let before = route.hops.len();
            route.hops.retain(|h| h.dev.as_ref() != Some(name));
            plain_if_alone(route, before);
        }
        self.routes.retain(|r| !r.hops.is_empty());
    }
}

/// RTN_UNICAST.
const UNICAST: u8 = 1;

fn plain_if_alone(route: &mut Route, before: usize) {
    if let ([only], true) = (route.hops.as_mut_slice(), before > 1) {
        only.weight = 0;
        route.other.append(&mut only.other);
    }
}

fn is_leg(leg: &Hop, named: &Hop) -> bool {
    leg.dev == named.dev && (named.gateway.is_none() || leg.gateway == named.gateway)
}

fn has_key(r: &Route, message: &Route) -> bool {
    (r.destination, r.source, r.table, r.tos, r.kind)
        == (
            message.destination,
            message.source,
            message.table,
            message.tos,
            message.kind,
        )
        && message.metric.is_none_or(|metric| r.metric == Some(metric))
        && r.protocol == message.protocol
        && (message.prefsrc.is_none() || r.prefsrc == message.prefsrc)
}

/// fib_table_delete: the first that has all that is named. Of two lists of legs as many are
/// compared as the route has (fib_nh_match), of a single leg the first one.
fn is_named(r: &Route, message: &Route) -> bool {
    let mut legs = r.hops.iter().zip(&message.hops);
    let enough = r.hops.len() <= message.hops.len() || message.hops.len() == 1;
    has_key(r, message)
        && r.nexthop() == message.nexthop()
        && (r.nexthop().is_some() || enough && legs.all(|(leg, named)| is_leg(leg, named)))
}
