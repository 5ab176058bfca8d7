//! One namespace: links, addresses, routes, rules.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Result, ensure};
use ipnet::IpNet;
use nix::libc::{EACCES, EEXIST, EINVAL, ENETDOWN, ENETUNREACH, ENOENT, EOPNOTSUPP};
use rdma_model::ids::{IfName, Mac};
use rdma_model::snapshot::{Address, Hop, LinkOptions, Neighbour, Netdev, Nexthop, Program, Route, Rule, Snapshot};
use rdma_model::step::{Settings, Step};
use rdma_netlink::nexthop::tell_legs;

use super::no_link;

const MAIN: u32 = 254;
const LOCAL: u32 = 255;
const SECONDARY: u32 = 0x01;
const PERMANENT: u32 = 0x80;
const NOPREFIXROUTE: u32 = 0x200;
const STABLE_PRIVACY: u32 = 0x800;
const ONLINK: u8 = 4;
const LINK_LOCAL_BY_KERNEL: u8 = 3;
const MIN_MTU_IPV6: u32 = 1280;

pub fn errno(code: i32) -> anyhow::Error {
    io::Error::from_raw_os_error(code).into()
}

#[derive(Clone, Debug)]
pub struct Link {
    pub id: u64,
    pub dev: Netdev,
    /// The link below a VLAN or macvlan, wherever that is.
    pub over: Option<u64>,
    /// The address that a member of a bond had before, and has again when that lets go of it.
    pub own_mac: Option<Mac>,
}

#[derive(Clone, Debug)]
pub struct Space {
    netns: u64,
    pub links: Vec<Link>,
    pub routes: Vec<Route>,
    pub nexthops: Vec<Nexthop>,
    pub rules: Vec<Rule>,
    pub defaults: BTreeMap<String, String>,
    /// `net/ipv4/conf/all`, by the keys of a device.
    pub all: BTreeMap<String, String>,
}

/// What a new device of a fresh namespace has.
pub fn default_sysctls() -> BTreeMap<String, String> {
    let all = [
        ("ipv4/conf/accept_local", "0"),
        ("ipv4/conf/arp_announce", "0"),
        ("ipv4/conf/arp_filter", "0"),
        ("ipv4/conf/arp_ignore", "0"),
        ("ipv4/conf/promote_secondaries", "0"),
        ("ipv4/conf/rp_filter", "0"),
        ("ipv4/neigh/gc_stale_time", "60"),
        ("ipv6/conf/accept_ra", "1"),
        ("ipv6/conf/addr_gen_mode", "0"),
        ("ipv6/conf/disable_ipv6", "0"),
        ("ipv6/conf/keep_addr_on_down", "0"),
        ("ipv6/neigh/gc_stale_time", "60"),
    ];
    all.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

fn is_ll(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if (v6.segments()[0] & 0xffc0) == 0xfe80)
}

fn subnet(a: &Address) -> IpNet {
    IpNet::new(a.peer.filter(IpAddr::is_ipv4).unwrap_or(a.address), a.prefix).unwrap().trunc()
}

fn host_net(ip: IpAddr) -> IpNet {
    IpNet::from(ip)
}

fn by_kernel(destination: IpNet, table: u32, kind: u8, scope: u8, metric: Option<u32>, dev: &IfName) -> Route {
    let hop = Hop { dev: Some(dev.clone()), ..Hop::default() };
    Route {
        destination,
        source: None,
        table,
        protocol: 2,
        scope,
        kind,
        tos: 0,
        metric,
        prefsrc: None,
        hops: vec![hop],
        other: BTreeMap::new(),
    }
}

impl Space {
    pub fn new(netns: u64) -> Space {
        let rule = |family, priority, table| Rule {
            family,
            priority,
            source: None,
            destination: None,
            iif: None,
            oif: None,
            table,
            action: 1,
            tos: 0,
            flags: 0,
            other: BTreeMap::new(),
        };
        let rules = [(4, 0, 255), (4, 32766, 254), (4, 32767, 253), (6, 0, 255), (6, 32766, 254)]
            .map(|(f, p, t)| rule(f, p, t));
        let leaves = ["arp_announce", "arp_filter", "arp_ignore", "rp_filter"];
        let all = leaves.map(|l| (format!("ipv4/conf/{l}"), "0".to_owned())).into();
        let (routes, nexthops) = (Vec::new(), Vec::new());
        Space { netns, links: Vec::new(), routes, nexthops, rules: rules.into(), defaults: default_sysctls(), all }
    }

    pub fn snapshot(&self) -> Snapshot {
        let index = |id: u64| self.links.iter().find(|l| l.id == id).map(|l| l.dev.ifindex);
        let dev = |l: &Link| Netdev { link: l.over.and_then(index), ..l.dev.clone() };
        let mut netdevs: Vec<Netdev> = self.links.iter().map(dev).collect();
        netdevs.sort_by_key(|d| d.ifindex);
        for dev in &mut netdevs {
            dev.running = dev.up;
            dev.operstate = Some(if dev.up { "up" } else { "down" }.into());
        }
        Snapshot {
            boot_id: "boot".into(),
            netns: Some(self.netns),
            netdevs,
            routes: self.routes.clone(),
            nexthops: self.nexthops.clone(),
            rules: self.rules.clone(),
            sysctls: self.shared("all", &self.all).chain(self.shared("default", &self.defaults)).collect(),
            ..Snapshot::default()
        }
    }

    fn shared<'a>(
        &self,
        who: &'a str,
        of: &'a BTreeMap<String, String>,
    ) -> impl Iterator<Item = (String, String)> + 'a {
        let place = move |key: &String| key.rsplit_once('/').map(|(folder, leaf)| format!("{folder}/{who}/{leaf}"));
        of.iter().filter_map(move |(key, value)| Some((place(key)?, value.clone())))
    }

    /// By name or alternative name, as `__dev_get_by_name` does.
    pub fn id(&self, name: &IfName) -> Result<u64> {
        let named = |d: &Netdev| d.name == *name || d.altnames.iter().any(|a| a == name.as_str());
        self.links.iter().find(|l| named(&l.dev)).map(|l| l.id).ok_or_else(no_link)
    }

    pub fn link(&mut self, id: u64) -> &mut Link {
        self.links.iter_mut().find(|l| l.id == id).unwrap()
    }

    fn dev(&mut self, id: u64) -> &mut Netdev {
        &mut self.link(id).dev
    }

    fn dev_named(&self, name: &IfName) -> Option<&Netdev> {
        self.links.iter().map(|l| &l.dev).find(|d| d.name == *name)
    }

    pub fn taken(&self, name: &str) -> bool {
        self.links.iter().any(|l| l.dev.name.as_str() == name || l.dev.altnames.iter().any(|a| a == name))
    }

    pub fn has_index(&self, index: u32) -> bool {
        self.links.iter().any(|l| l.dev.ifindex == index)
    }

    pub fn free_index(&self, wanted: u32) -> u32 {
        if self.has_index(wanted) { (1..).find(|i| !self.has_index(*i)).unwrap() } else { wanted }
    }

    pub fn take(&mut self, id: u64) -> Link {
        let position = self.links.iter().position(|l| l.id == id).unwrap();
        self.links.remove(position)
    }

    /// The link appears here, with the namespace's defaults as its sysctls.
    pub fn register(&mut self, mut link: Link) {
        // dev_shutdown and the end of inet6_dev, on the way out.
        link.dev.token = None;
        link.dev.qdiscs = Some(Vec::new());
        link.dev.sysctls = self.defaults.clone().into();
        let mtu = link.dev.mtu;
        link.dev.sysctls.insert("ipv6/conf/mtu".into(), mtu.to_string());
        if mtu < MIN_MTU_IPV6 {
            link.dev.sysctls.retain(|k, _| !k.starts_with("ipv6/"));
        }
        self.links.push(link);
    }

    /// What leaving the namespace destroys.
    pub fn unregister(&mut self, id: u64) {
        self.down(id);
        let name = self.dev(id).name.clone();
        let addresses = std::mem::take(&mut self.dev(id).addresses);
        let over = |r: &Route| r.hops.iter().any(|h| h.dev.as_ref() == Some(&name));
        // IPv4: one leg takes the whole route along (fib_sync_down_dev); IPv6: only the leg (fib6_ifdown).
        self.routes.retain(|r| r.destination.addr().is_ipv6() || !over(r) || r.nexthop().is_some());
        self.drop_legs(&name);
        addresses.iter().for_each(|a| self.address_gone(a.address));
        self.let_go(id);
        self.dev(id).sysctls.clear();
    }

    /// `__bond_release_one` in drivers/net/bonding/bond_main.c.
    pub fn let_go(&mut self, id: u64) {
        let link = self.link(id);
        link.dev.master = None;
        link.dev.mac = link.own_mac.take().or(link.dev.mac.take());
    }

    /// IPv4 routes go with their preferred source (fib_sync_down_addr).
    fn address_gone(&mut self, ip: IpAddr) {
        let still = self.links.iter().any(|l| l.dev.addresses.iter().any(|a| a.address == ip));
        if ip.is_ipv4() && !still {
            self.routes.retain(|r| r.prefsrc != Some(ip));
        }
    }

    pub fn down(&mut self, id: u64) {
        let name = self.dev(id).name.clone();
        self.flush_nexthops(&name);
        let dev = self.dev(id);
        dev.up = false;
        dev.neighbours.clear();
        let keep = dev.sysctls.get("ipv6/conf/keep_addr_on_down").is_some_and(|v| v == "1");
        dev.addresses.retain(|a| a.address.is_ipv4() || (keep && !is_ll(a.address) && a.valid_lft.is_none()));
        let up: Vec<IfName> = self.links.iter().filter(|l| l.dev.up).map(|l| l.dev.name.clone()).collect();
        let alive = |h: &Hop| h.dev.as_ref().is_some_and(|d| up.contains(d));
        let own = |r: &Route| r.table == LOCAL && r.destination.addr().is_ipv4() && r.kind == 2;
        self.routes.retain(|r| own(r) || r.hops.iter().any(alive));
    }

    pub fn up(&mut self, id: u64) {
        if self.dev(id).up {
            return;
        }
        self.dev(id).up = true;
        for a in self.dev(id).addresses.clone() {
            self.routes_of_address(id, &a);
        }
        self.link_local(id);
    }

    /// addrconf_addr_gen: by EUI-64, none, or by a secret.
    fn link_local(&mut self, id: u64) {
        let dev = self.dev(id);
        let sysctl = |k: &str| dev.sysctls.get(k).cloned();
        // addrconf_notify: members of a bond have no IPv6.
        if !dev.up || dev.master.is_some() || sysctl("ipv6/conf/disable_ipv6").as_deref() != Some("0") {
            return;
        }
        let Some(Mac(mac)) = dev.mac.clone() else { return };
        let mut octets = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]];
        match sysctl("ipv6/conf/addr_gen_mode").as_deref() {
            Some("0") => {}
            Some("1") | None => return,
            _ => octets[8..].copy_from_slice(&[7, 7, 7, 7, 7, 7, 7, mac[5]]),
        }
        let by_secret = octets[8] == 7;
        let address = IpAddr::V6(Ipv6Addr::from(octets));
        if dev.addresses.iter().any(|a| a.address == address) {
            return;
        }
        let a = Address {
            address,
            prefix: 64,
            peer: None,
            broadcast: None,
            label: None,
            scope: 253,
            flags: PERMANENT | if by_secret { STABLE_PRIVACY } else { 0 },
            valid_lft: None,
            preferred_lft: None,
            metric: None,
            protocol: Some(LINK_LOCAL_BY_KERNEL),
        };
        self.insert_v6(id, a.clone());
        self.routes_of_address(id, &a);
    }

    fn insert_v6(&mut self, id: u64, a: Address) {
        // ipv6_link_dev_addr: global before link-local, a new one before its equals.
        let all = &mut self.dev(id).addresses;
        let rank = |x: &Address| (x.address.is_ipv6(), is_ll(x.address));
        let at = all.iter().position(|x| rank(x) >= rank(&a)).unwrap_or(all.len());
        all.insert(at, a);
    }

    fn put(&mut self, route: Route) {
        if !self.routes.contains(&route) {
            self.routes.push(route);
        }
    }

    /// fib_add_ifaddr and addrconf_prefix_route.
    fn routes_of_address(&mut self, id: u64, a: &Address) {
        let dev = self.dev(id).clone();
        let v4 = a.address.is_ipv4();
        let local = by_kernel(host_net(a.address), LOCAL, 2, if v4 { 254 } else { 0 }, None, &dev.name);
        self.put(Route { prefsrc: v4.then_some(a.address), ..local });
        let silent = a.flags & (SECONDARY | NOPREFIXROUTE) != 0;
        if !dev.up || silent || (v4 && a.prefix == 32 && a.peer.is_none()) {
            return;
        }
        if v4 {
            let prefix = by_kernel(subnet(a), MAIN, 1, 253, a.metric, &dev.name);
            self.put(Route { prefsrc: Some(a.address), ..prefix });
        } else {
            let metric = Some(a.metric.unwrap_or(256));
            self.put(by_kernel(subnet(a), MAIN, 1, 0, metric, &dev.name));
            // __ipv6_ifa_notify.
            let peer = a.peer.map(|p| by_kernel(host_net(p), MAIN, 1, 0, metric, &dev.name));
            peer.into_iter().for_each(|r| self.put(r));
        }
    }

    fn routes_without_address(&mut self, id: u64, a: &Address) {
        let name = self.dev(id).name.clone();
        let net = subnet(a);
        let own = |r: &Route| r.hops.len() == 1 && r.hops[0].dev.as_ref() == Some(&name) && r.protocol == 2;
        let shared = self.dev(id).addresses.iter().any(|x| subnet(x) == net && x.address.is_ipv6());
        self.routes.retain(|r| {
            let of_this = r.destination == net && r.prefsrc.is_none_or(|p| p == a.address) && !shared;
            let of_peer =
                r.table == MAIN && a.address.is_ipv6() && a.peer.is_some_and(|p| r.destination == host_net(p));
            !(own(r)
                && (of_peer || of_this && r.table == MAIN || r.destination == host_net(a.address) && r.table == LOCAL))
        });
        self.address_gone(a.address);
    }

    fn address_add(&mut self, id: u64, a: &Address) -> Result<()> {
        let mut a = a.clone();
        a.flags &= 0x02 | 0x04 | 0x10 | 0x100 | 0x200 | 0x400;
        a.flags |= if a.valid_lft.is_none() { PERMANENT } else { 0 };
        let dev = self.dev(id);
        if a.address.is_ipv6() {
            match dev.sysctls.get("ipv6/conf/disable_ipv6").map(String::as_str) {
                Some("0") => {}
                Some(_) => return Err(errno(EACCES)),
                None => return Err(errno(EINVAL)),
            }
            // inet6_addr_modify: the prefix stays, the route to it follows flags and metric.
            if let Some(at) = dev.addresses.iter().position(|x| x.address == a.address) {
                let old = dev.addresses.remove(at);
                (a.prefix, a.scope) = (old.prefix, old.scope);
                a.flags |= old.flags & STABLE_PRIVACY;
                self.routes_without_address(id, &old);
                self.dev(id).addresses.insert(at, a.clone());
            } else {
                self.insert_v6(id, a.clone());
            }
            self.routes_of_address(id, &a);
            return Ok(());
        }
        if a.label.is_none() {
            a.label = Some(dev.name.to_string());
        }
        let alike = |x: &Address| x.address.is_ipv4() && x.prefix == a.prefix && subnet(x) == subnet(&a);
        if let Some(old) = dev.addresses.iter_mut().find(|x| alike(x) && x.address == a.address) {
            // NLM_F_REPLACE changes these alone (inet_rtm_newaddr).
            (old.metric, old.protocol, old.valid_lft, old.preferred_lft) =
                (a.metric, a.protocol, a.valid_lft, a.preferred_lft);
            return Ok(());
        }
        if dev.addresses.iter().any(alike) {
            a.flags |= SECONDARY;
        }
        // inet_insert_ifa: a primary behind the primaries, a secondary at the end.
        let rank = |x: &Address| (x.address.is_ipv6(), x.flags & SECONDARY);
        let at = dev.addresses.iter().position(|x| rank(x) > rank(&a)).unwrap_or(dev.addresses.len());
        dev.addresses.insert(at, a.clone());
        self.routes_of_address(id, &a);
        Ok(())
    }

    /// The kernel module takes the lack of an address as done.
    fn address_delete(&mut self, id: u64, a: &Address) {
        let dev = self.dev(id);
        let same =
            |x: &Address| x.address == a.address && x.prefix == a.prefix && (a.label.is_none() || x.label == a.label);
        let Some(at) = dev.addresses.iter().position(same) else { return };
        let old = dev.addresses.remove(at);
        let promote = dev.sysctls.get("ipv4/conf/promote_secondaries").is_some_and(|v| v == "1");
        let follows = |x: &Address| x.address.is_ipv4() && x.flags & SECONDARY != 0 && subnet(x) == subnet(&old);
        let mut gone = vec![old.clone()];
        let mut promoted = None;
        if old.address.is_ipv4() && old.flags & SECONDARY == 0 {
            if promote {
                promoted = dev.addresses.iter_mut().find(|x| follows(x)).map(|x| {
                    x.flags &= !SECONDARY;
                    x.clone()
                });
            } else {
                gone.extend(dev.addresses.iter().filter(|x| follows(x)).cloned());
                dev.addresses.retain(|x| !follows(x));
            }
        }
        gone.iter().for_each(|a| self.routes_without_address(id, a));
        if let Some(a) = promoted {
            self.routes_of_address(id, &a);
        }
    }

    fn sysctl(&mut self, id: u64, key: &str, value: &str) -> Result<()> {
        let dev = self.dev(id);
        let mtu = dev.mtu;
        let Some(old) = dev.sysctls.get_mut(key) else { return Err(errno(ENOENT)) };
        if old == value {
            return Ok(());
        }
        if key == "ipv6/conf/mtu" && !value.parse().is_ok_and(|v: u32| (MIN_MTU_IPV6..=mtu).contains(&v)) {
            return Err(errno(EINVAL));
        }
        *old = value.to_owned();
        match (key, value) {
            ("ipv6/conf/disable_ipv6", "1") => self.flush_v6(id),
            ("ipv6/conf/disable_ipv6" | "ipv6/conf/addr_gen_mode", _) => self.link_local(id),
            _ => {}
        }
        Ok(())
    }

    /// addrconf_ifdown.
    fn flush_v6(&mut self, id: u64) {
        let name = self.dev(id).name.clone();
        if !self.dev(id).sysctls.contains_key("ipv6/conf/disable_ipv6") {
            self.dev(id).token = None;
        }
        self.dev(id).addresses.retain(|a| a.address.is_ipv4());
        self.dev(id).neighbours.retain(|n| n.address.is_ipv4());
        self.drop_legs(&name);
    }

    /// IPv6: a leg that remains alone is a plain route, without a weight.
    fn drop_legs(&mut self, name: &IfName) {
        let own_legs = |r: &&mut Route| r.destination.addr().is_ipv6() && r.nexthop().is_none();
        for route in self.routes.iter_mut().filter(own_legs) {
            let before = route.hops.len();
            route.hops.retain(|h| h.dev.as_ref() != Some(name));
            if let ([only], true) = (route.hops.as_mut_slice(), before > 1) {
                only.weight = 0;
                route.other.append(&mut only.other);
            }
        }
        self.routes.retain(|r| !r.hops.is_empty());
    }

    fn settings(&mut self, id: u64, s: &Settings) {
        let old = self.dev(id).mtu;
        let dev = self.dev(id);
        (dev.mtu, dev.txqlen, dev.group) = (s.mtu, s.txqlen, s.group);
        (dev.promisc, dev.allmulti, dev.alias) = (s.promisc, s.allmulti, s.alias.clone());
        if let Some(new) = &s.options {
            self.options(id, new);
        }
        if s.mtu == old {
            return;
        }
        let dev = self.dev(id);
        if s.mtu < MIN_MTU_IPV6 {
            dev.sysctls.retain(|k, _| !k.starts_with("ipv6/"));
            return self.flush_v6(id);
        }
        let defaults = self.defaults.clone();
        let dev = self.dev(id);
        if old < MIN_MTU_IPV6 {
            dev.sysctls.extend(defaults.into_iter().filter(|(k, _)| k.starts_with("ipv6/")));
        }
        dev.sysctls.insert("ipv6/conf/mtu".into(), s.mtu.to_string());
        self.link_local(id);
    }

    /// What is absent is left as it is. Neighbours go with a change of IFF_NOARP (arp_netdev_event and ndisc_netdev_event) and with
    /// a broadcast address, as with another link-layer address.
    fn options(&mut self, id: u64, new: &LinkOptions) {
        let dev = self.dev(id);
        let old = dev.options.clone().unwrap_or_default();
        if (old.flags ^ new.flags) & LinkOptions::NOARP != 0 || new.broadcast.is_some() {
            dev.neighbours.retain(|n| n.proxy);
        }
        dev.options = Some(LinkOptions {
            flags: new.flags,
            mode: new.mode.or(old.mode),
            broadcast: new.broadcast.clone().or(old.broadcast),
            gso_max_size: new.gso_max_size.or(old.gso_max_size),
            gso_max_segs: new.gso_max_segs.or(old.gso_max_segs),
            gro_max_size: new.gro_max_size.or(old.gro_max_size),
            gso_ipv4_max_size: new.gso_ipv4_max_size.or(old.gso_ipv4_max_size),
            gro_ipv4_max_size: new.gro_ipv4_max_size.or(old.gro_ipv4_max_size),
        });
    }

    /// dev_change_name and inetdev_changename.
    pub fn rename(&mut self, id: u64, name: &IfName) -> Result<()> {
        let old = self.dev(id).name.clone();
        if old == *name {
            return Ok(());
        }
        if self.taken(name.as_str()) {
            return Err(errno(EEXIST));
        }
        let dev = self.dev(id);
        dev.name = name.clone();
        for (i, a) in dev.addresses.iter_mut().filter(|a| a.address.is_ipv4()).enumerate() {
            let tail = a.label.as_deref().and_then(|l| l.split_once(':')).map(|(_, tail)| tail.to_owned());
            let tail = if i == 0 { None } else { Some(tail.unwrap_or((i + 1).to_string())) };
            a.label = Some(tail.map_or(name.to_string(), |t| format!("{name}:{t}")));
        }
        for hop in self.routes.iter_mut().flat_map(|r| &mut r.hops).filter(|h| h.dev.as_ref() == Some(&old)) {
            hop.dev = Some(name.clone());
        }
        self.nexthops.iter_mut().filter(|n| n.dev.as_ref() == Some(&old)).for_each(|n| n.dev = Some(name.clone()));
        for link in self.links.iter_mut().filter(|l| l.dev.master.as_ref() == Some(&old)) {
            link.dev.master = Some(name.clone());
        }
        Ok(())
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
            (r.family, r.priority, r.table, r.action) == (rule.family, rule.priority, rule.table, rule.action)
                && fits(&rule.source, &r.source)
                && fits(&rule.destination, &r.destination)
                && fits(&rule.iif, &r.iif)
                && fits(&rule.oif, &r.oif)
                && (rule.tos == 0 || rule.tos == r.tos)
                && rule.other.iter().all(|(kind, value)| r.other.get(kind) == Some(value))
        });
        found.into_iter().for_each(|at| drop(self.rules.remove(at)));
    }

    fn local(&self, ip: IpAddr) -> bool {
        self.links.iter().any(|l| l.dev.addresses.iter().any(|a| a.address == ip))
    }

    /// fib_check_nh and ip6_route_check_nh: what a gateway is reached by, over that very device.
    fn reaches(&self, dev: &IfName, gateway: IpAddr, table: u32) -> bool {
        if is_ll(gateway) {
            return true;
        }
        let direct = |r: &&Route| {
            r.kind == 1
                && (r.table == MAIN || r.table == table)
                && r.destination.contains(&gateway)
                && r.hops.iter().any(|h| h.dev.as_ref() == Some(dev) && h.gateway.is_none())
        };
        self.routes.iter().any(|r| direct(&r))
    }

    fn leg(&self, hop: &Hop, table: u32) -> Result<()> {
        let dev = hop.dev.as_ref().and_then(|d| self.dev_named(d)).ok_or_else(no_link)?;
        if !dev.up {
            return Err(errno(ENETDOWN));
        }
        match hop.gateway {
            Some(gateway) if hop.flags & ONLINK == 0 && !self.reaches(&dev.name, gateway, table) => {
                Err(errno(ENETUNREACH))
            }
            Some(gateway) if self.local(gateway) => Err(errno(EINVAL)),
            _ => Ok(()),
        }
    }

    /// nexthop_flush_dev: objects over a link go with it, out of their groups, and a group with its last member.
    fn flush_nexthops(&mut self, name: &IfName) {
        let over = |n: &&Nexthop| n.dev.as_ref() == Some(name) && !n.blackhole;
        let gone: Vec<u32> = self.nexthops.iter().filter(over).map(|n| n.id).collect();
        gone.into_iter().for_each(|id| self.nexthop_delete(id));
    }

    /// remove_nexthop: and what leads through it alone.
    pub fn nexthop_delete(&mut self, id: u32) {
        let with_it: Vec<u32> =
            self.nexthops.iter().filter(|n| n.group.iter().any(|m| m.id == id)).map(|n| n.id).collect();
        self.nexthops.retain(|n| n.id != id);
        self.nexthops.iter_mut().for_each(|n| n.group.retain(|m| m.id != id));
        self.nexthops.retain(|n| !n.group.is_empty() || !with_it.contains(&n.id));
        self.routes_through_nexthops();
    }

    fn routes_through_nexthops(&mut self) {
        let all = self.nexthops.clone();
        let there = |id: u32| all.iter().any(|n| n.id == id);
        self.routes.retain(|r| r.nexthop().is_none_or(there));
        self.routes.iter_mut().filter(|r| r.nexthop().is_some()).for_each(|r| r.hops.clear());
        tell_legs(&mut self.routes, &all);
    }

    /// rtm_new_nexthop with NLM_F_REPLACE.
    pub fn nexthop_add(&mut self, new: &Nexthop) -> Result<()> {
        let known = |id: u32| self.nexthops.iter().any(|n| n.id == id && n.group.is_empty());
        if new.group.iter().any(|m| !known(m.id)) {
            return Err(errno(EINVAL));
        }
        if new.group.is_empty() {
            let (dev, gateway, flags) = (new.dev.clone(), new.gateway, new.flags as u8);
            self.leg(&Hop { dev, gateway, flags, ..Hop::default() }, MAIN)?;
        }
        self.nexthops.retain(|n| n.id != new.id);
        self.nexthops.push(new.clone());
        self.nexthops.sort_by_key(|n| n.id);
        self.routes_through_nexthops();
        Ok(())
    }

    /// fib_create_info and ip6_route_info_create: the legs are the object's, which has to be there.
    fn route_through(&mut self, route: &Route, id: u32) -> Result<()> {
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
        let metric = if v6 { route.metric.or(Some(1024)) } else { route.metric };
        let mut told = [Route { metric, hops: Vec::new(), ..route.clone() }];
        tell_legs(&mut told, &self.nexthops);
        told.into_iter().for_each(|r| self.put(r));
        Ok(())
    }

    /// An equal route is there already: The kernel module takes that as done.
    pub fn route_add(&mut self, route: &Route) -> Result<()> {
        if let Some(id) = route.nexthop() {
            return self.route_through(route, id);
        }
        for hop in &route.hops {
            self.leg(hop, route.table)?;
            // fib6_nh_init (net/ipv6/route.c).
            let dev = hop.dev.as_ref().and_then(|d| self.dev_named(d));
            let no_ipv6 = dev.is_some_and(|d| d.sysctls.get("ipv6/conf/disable_ipv6").is_some_and(|v| v == "1"));
            if no_ipv6 && route.destination.addr().is_ipv6() {
                return Err(errno(EACCES));
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
            // fib6_add_rt2node: the same next hop is a duplicate whatever else differs, and a multipath route that meets
            // one takes back the legs that it added before.
            if routes.iter_mut().filter(alike).any(|r| r.hops.iter().any(|h| (&h.dev, h.gateway) == (dev, gateway))) {
                return Ok(());
            }
            let ecmp = |r: &&mut Route| {
                gateway.is_some() && r.nexthop().is_none() && r.hops.iter().all(|h| h.gateway.is_some())
            };
            match routes.iter_mut().filter(alike).find(ecmp) {
                Some(sibling) => sibling.hops.push(hop.clone()),
                None => routes.push(Route { hops: vec![hop.clone()], ..new.clone() }),
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
        let first = self.routes.iter().position(|r| key(r) == key(route)).unwrap();
        if self.routes.len() > count {
            let new = self.routes.pop().unwrap();
            self.routes.insert(first.min(count), new);
        }
        Ok(())
    }

    pub fn route_delete(&mut self, route: &Route) -> Result<()> {
        for dev in route.hops.iter().filter_map(|h| h.dev.as_ref()) {
            self.dev_named(dev).ok_or_else(no_link)?;
        }
        self.routes.retain(|r| r != route);
        Ok(())
    }

    fn neighbour_add(&mut self, id: u64, n: &Neighbour) -> Result<()> {
        let dev = self.dev(id);
        if n.address.is_ipv6() && !dev.sysctls.contains_key("ipv6/conf/disable_ipv6") {
            return Err(errno(EINVAL));
        }
        dev.neighbours.retain(|x| (x.address, x.proxy) != (n.address, n.proxy));
        dev.neighbours.push(n.clone());
        Ok(())
    }

    /// A step about routes, nexthop objects or rules.
    pub fn connect(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::RouteAdd { route, .. } => return self.route_add(route),
            Step::RoutePrepend { route, .. } => return self.route_prepend(route),
            Step::RouteDelete { route, .. } => return self.route_delete(route),
            Step::NexthopAdd { nexthop, .. } => return self.nexthop_add(nexthop),
            Step::NexthopDelete { id, .. } => self.nexthop_delete(*id),
            Step::RuleAdd { rule, .. } => self.rule_add(rule),
            Step::RuleAppend { rule, .. } => self.rule_append(rule),
            Step::RuleDelete { rule, .. } => self.rule_delete(rule),
            _ => return Err(errno(EINVAL)),
        }
        Ok(())
    }

    fn programs(&mut self, id: u64) -> &mut Vec<Program> {
        self.dev(id).programs.get_or_insert_default()
    }

    fn program_attach(&mut self, id: u64, program: &Program, before: Option<u32>) -> Result<()> {
        let all = self.programs(id);
        let is_behind = |p: &Program| p.hook == program.hook && Some(p.id) == before;
        let at = match before {
            Some(_) => all.iter().position(is_behind).ok_or_else(|| errno(ENOENT))?,
            None => all.len(),
        };
        all.insert(at, program.clone());
        Ok(())
    }

    /// A step about one link.
    pub fn act(&mut self, id: u64, step: &Step) -> Result<()> {
        match step {
            Step::Rename { name, .. } => return self.rename(id, name),
            Step::AltnamesDelete { altnames, .. } => self.dev(id).altnames.retain(|a| !altnames.contains(a)),
            Step::AltnameAdd { altname, .. } => {
                if self.taken(altname) {
                    return Err(errno(EEXIST));
                }
                self.dev(id).altnames.push(altname.clone());
            }
            Step::Release { .. } => {
                self.let_go(id);
            }
            Step::XdpDetach { .. } => self.dev(id).xdp = false,
            Step::ProgramDetach { program, .. } => self.programs(id).retain(|p| p != program),
            Step::ProgramAttach { program, before, .. } => return self.program_attach(id, program, *before),
            Step::Sysctls { values, .. } => return values.iter().try_for_each(|(k, v)| self.sysctl(id, k, v)),
            Step::Settings { settings, .. } => self.settings(id, settings),
            // A driver refuses what it cannot set, and sets the rest.
            Step::Device { values, .. } => {
                let device = self.dev(id).device.get_or_insert_default();
                device.extend(values.clone().into_iter().filter(|(key, _)| !key.contains("fixed")));
                ensure!(values.keys().all(|key| !key.contains("fixed")), errno(EOPNOTSUPP));
            }
            Step::QdiscAdd { qdisc, .. } => {
                let all = self.dev(id).qdiscs.get_or_insert_default();
                all.retain(|q| q.parent != qdisc.parent);
                all.push(qdisc.clone());
                all.sort_by_key(|q| std::cmp::Reverse(q.parent));
            }
            Step::QdiscDelete { qdisc, .. } => {
                self.dev(id).qdiscs.get_or_insert_default().retain(|q| q.parent != qdisc.parent);
            }
            Step::Token { token, .. } => {
                if !self.dev(id).sysctls.contains_key("ipv6/conf/disable_ipv6") {
                    return Err(errno(EINVAL));
                }
                self.dev(id).token = *token;
            }
            Step::Mac { mac, .. } => {
                // neigh_changeaddr.
                self.dev(id).mac = Some(mac.clone());
                self.dev(id).neighbours.retain(|n| n.proxy);
            }
            Step::AddressAdd { address, .. } => return self.address_add(id, address),
            Step::AddressDelete { address, .. } => self.address_delete(id, address),
            Step::Link { up: true, .. } => self.up(id),
            Step::Link { up: false, .. } => self.down(id),
            Step::NeighbourAdd { neighbour, .. } => return self.neighbour_add(id, neighbour),
            Step::NeighbourDelete { neighbour: n, .. } => {
                self.dev(id).neighbours.retain(|x| (x.address, x.proxy) != (n.address, n.proxy));
            }
            _ => return Err(errno(EINVAL)),
        }
        Ok(())
    }
}

/// An address without anything special.
pub fn plain(ip: IpAddr, prefix: u8) -> Address {
    Address {
        address: ip,
        prefix,
        peer: None,
        broadcast: None,
        label: None,
        scope: 0,
        flags: 0,
        valid_lft: None,
        preferred_lft: None,
        metric: None,
        protocol: None,
    }
}

/// What a new link has.
pub fn options() -> LinkOptions {
    LinkOptions {
        flags: LinkOptions::MULTICAST,
        mode: Some(0),
        broadcast: Some(Mac(vec![0xff; 6])),
        gso_max_size: Some(65536),
        gso_max_segs: Some(65535),
        gro_max_size: Some(65536),
        gso_ipv4_max_size: Some(65536),
        gro_ipv4_max_size: Some(65536),
    }
}

/// A link with nothing on it.
pub fn naked(name: &str, ifindex: u32, mac: [u8; 6]) -> Netdev {
    Netdev {
        name: name.parse().unwrap(),
        ifindex,
        kind: None,
        link_type: 1,
        mac: Some(Mac(mac.into())),
        permanent_mac: None,
        mtu: 1500,
        txqlen: 1000,
        group: 0,
        alias: None,
        altnames: Vec::new(),
        up: false,
        running: false,
        promisc: false,
        allmulti: false,
        options: Some(options()),
        operstate: None,
        master: None,
        link: None,
        lowers: Vec::new(),
        tunnel: None,
        made: None,
        qdisc: None,
        qdiscs: Some(Vec::new()),
        qdisc_lost: None,
        xdp: false,
        programs: Some(Vec::new()),
        pci: None,
        driver: None,
        dev_port: None,
        device: Some(BTreeMap::from([("ethtool rings rx".into(), "512".into())])),
        token: None,
        addresses: Vec::new(),
        neighbours: Vec::new(),
        sysctls: Default::default(),
    }
}

/// 10.a.b.c.
pub fn v4(a: u8, b: u8, c: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, a, b, c))
}

/// fd00:a::b.
pub fn v6(a: u8, b: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xfd00, a.into(), 0, 0, 0, 0, 0, b))
}
