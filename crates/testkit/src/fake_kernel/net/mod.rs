//! One namespace: links, addresses, routes, rules.

mod addresses;
mod routes;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Result, ensure};
use ipnet::IpNet;
use nix::libc::{EACCES, EEXIST, EINVAL, ENETDOWN, ENETUNREACH, ENOENT, EOPNOTSUPP};
use rdma_model::ids::{IfName, Mac};
use rdma_model::snapshot::{
    Address, Hop, LinkOptions, Neighbour, Netdev, Nexthop, Program, Route, Rule, Snapshot,
    SysctlValues,
};
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
    all.into_iter()
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

fn is_ll(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if (v6.segments()[0] & 0xffc0) == 0xfe80)
}

fn subnet(a: &Address) -> IpNet {
    IpNet::new(
        a.peer.filter(IpAddr::is_ipv4).unwrap_or(a.address),
        a.prefix,
    )
    .unwrap()
    .trunc()
}

fn host_net(ip: IpAddr) -> IpNet {
    IpNet::from(ip)
}

fn by_kernel(
    destination: IpNet,
    table: u32,
    kind: u8,
    scope: u8,
    metric: Option<u32>,
    dev: &IfName,
) -> Route {
    let hop = Hop {
        dev: Some(dev.clone()),
        ..Hop::default()
    };
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
        let rules = [
            (4, 0, 255),
            (4, 32766, 254),
            (4, 32767, 253),
            (6, 0, 255),
            (6, 32766, 254),
        ]
        .map(|(f, p, t)| rule(f, p, t));
        let leaves = ["arp_announce", "arp_filter", "arp_ignore", "rp_filter"];
        let all = leaves
            .map(|l| (format!("ipv4/conf/{l}"), "0".to_owned()))
            .into();
        let (routes, nexthops) = (Vec::new(), Vec::new());
        Space {
            netns,
            links: Vec::new(),
            routes,
            nexthops,
            rules: rules.into(),
            defaults: default_sysctls(),
            all,
        }
    }

    pub fn snapshot(&self) -> Snapshot {
        let index = |id: u64| {
            self.links
                .iter()
                .find(|l| l.id == id)
                .map(|l| l.dev.ifindex)
        };
        let dev = |l: &Link| Netdev {
            link: l.over.and_then(index),
            ..l.dev.clone()
        };
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
            sysctls: self
                .shared("all", &self.all)
                .chain(self.shared("default", &self.defaults))
                .collect(),
            ..Snapshot::default()
        }
    }

    fn shared<'a>(
        &self,
        who: &'a str,
        of: &'a BTreeMap<String, String>,
    ) -> impl Iterator<Item = (String, String)> + 'a {
        let place = move |key: &String| {
            key.rsplit_once('/')
                .map(|(folder, leaf)| format!("{folder}/{who}/{leaf}"))
        };
        of.iter()
            .filter_map(move |(key, value)| Some((place(key)?, value.clone())))
    }

    /// By name or alternative name, as `__dev_get_by_name` does.
    pub fn id(&self, name: &IfName) -> Result<u64> {
        let named = |d: &Netdev| d.name == *name || d.altnames.iter().any(|a| a == name.as_str());
        self.links
            .iter()
            .find(|l| named(&l.dev))
            .map(|l| l.id)
            .ok_or_else(no_link)
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
        self.links
            .iter()
            .any(|l| l.dev.name.as_str() == name || l.dev.altnames.iter().any(|a| a == name))
    }

    pub fn has_index(&self, index: u32) -> bool {
        self.links.iter().any(|l| l.dev.ifindex == index)
    }

    pub fn free_index(&self, wanted: u32) -> u32 {
        if self.has_index(wanted) {
            (1..).find(|i| !self.has_index(*i)).unwrap()
        } else {
            wanted
        }
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
        link.dev
            .sysctls
            .insert("ipv6/conf/mtu".into(), mtu.to_string());
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
        // IPv4: one leg takes the whole route along (fib_sync_down_dev); IPv6: only the leg
        // (fib6_ifdown).
        self.routes
            .retain(|r| r.destination.addr().is_ipv6() || !over(r) || r.nexthop().is_some());
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

    pub fn down(&mut self, id: u64) {
        let name = self.dev(id).name.clone();
        self.flush_nexthops(&name);
        let dev = self.dev(id);
        dev.up = false;
        dev.neighbours.clear();
        let keep = dev
            .sysctls
            .get("ipv6/conf/keep_addr_on_down")
            .is_some_and(|v| v == "1");
        dev.addresses.retain(|a| {
            a.address.is_ipv4() || (keep && !is_ll(a.address) && a.valid_lft.is_none())
        });
        let up: Vec<IfName> = self
            .links
            .iter()
            .filter(|l| l.dev.up)
            .map(|l| l.dev.name.clone())
            .collect();
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

    fn sysctl(&mut self, id: u64, key: &str, value: &str) -> Result<()> {
        let dev = self.dev(id);
        let mtu = dev.mtu;
        let Some(old) = dev.sysctls.get_mut(key) else {
            return Err(errno(ENOENT));
        };
        if old == value {
            return Ok(());
        }
        if key == "ipv6/conf/mtu"
            && !value
                .parse()
                .is_ok_and(|v: u32| (MIN_MTU_IPV6..=mtu).contains(&v))
        {
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
            dev.sysctls
                .extend(defaults.into_iter().filter(|(k, _)| k.starts_with("ipv6/")));
        }
        dev.sysctls
            .insert("ipv6/conf/mtu".into(), s.mtu.to_string());
        self.link_local(id);
    }

    /// What is absent is left as it is. Neighbours go with a change of IFF_NOARP (arp_netdev_event
    /// and ndisc_netdev_event) and with a broadcast address, as with another link-layer address.
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
        for (i, a) in dev
            .addresses
            .iter_mut()
            .filter(|a| a.address.is_ipv4())
            .enumerate()
        {
            let tail = a
                .label
                .as_deref()
                .and_then(|l| l.split_once(':'))
                .map(|(_, tail)| tail.to_owned());
            let tail = if i == 0 {
                None
            } else {
                Some(tail.unwrap_or((i + 1).to_string()))
            };
            a.label = Some(tail.map_or(name.to_string(), |t| format!("{name}:{t}")));
        }
        for hop in self
            .routes
            .iter_mut()
            .flat_map(|r| &mut r.hops)
            .filter(|h| h.dev.as_ref() == Some(&old))
        {
            hop.dev = Some(name.clone());
        }
        self.nexthops
            .iter_mut()
            .filter(|n| n.dev.as_ref() == Some(&old))
            .for_each(|n| n.dev = Some(name.clone()));
        for link in self
            .links
            .iter_mut()
            .filter(|l| l.dev.master.as_ref() == Some(&old))
        {
            link.dev.master = Some(name.clone());
        }
        Ok(())
    }

    fn neighbour_add(&mut self, id: u64, n: &Neighbour) -> Result<()> {
        let dev = self.dev(id);
        if n.address.is_ipv6() && !dev.sysctls.contains_key("ipv6/conf/disable_ipv6") {
            return Err(errno(EINVAL));
        }
        dev.neighbours
            .retain(|x| (x.address, x.proxy) != (n.address, n.proxy));
        dev.neighbours.push(n.clone());
        Ok(())
    }

    /// A step about routes, nexthop objects or rules.
    pub fn connect(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::RouteAdd { route, .. } => return self.route_add(route),
            Step::LegsAdd { route, .. } => {
                return route.legs().iter().try_for_each(|leg| self.route_add(leg));
            }
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
            Some(_) => all
                .iter()
                .position(is_behind)
                .ok_or_else(|| errno(ENOENT))?,
            None => all.len(),
        };
        all.insert(at, program.clone());
        Ok(())
    }

    /// A step about one link.
    pub fn act(&mut self, id: u64, step: &Step) -> Result<()> {
        match step {
            Step::Rename { name, .. } => return self.rename(id, name),
            Step::AltnamesDelete { altnames, .. } => {
                self.dev(id).altnames.retain(|a| !altnames.contains(a))
            }
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
            Step::ProgramAttach {
                program, before, ..
            } => return self.program_attach(id, program, *before),
            Step::Sysctls { values, .. } => {
                return values.iter().try_for_each(|(k, v)| self.sysctl(id, k, v));
            }
            Step::Settings { settings, .. } => self.settings(id, settings),
            // A driver refuses what it cannot set, and sets the rest.
            Step::Device { values, .. } => {
                let device = self.dev(id).device.get_or_insert_default();
                device.extend(
                    values
                        .clone()
                        .into_iter()
                        .filter(|(key, _)| !key.contains("fixed")),
                );
                ensure!(
                    values.keys().all(|key| !key.contains("fixed")),
                    errno(EOPNOTSUPP)
                );
            }
            Step::QdiscAdd { qdisc, .. } => {
                let all = self.dev(id).qdiscs.get_or_insert_default();
                all.retain(|q| q.parent != qdisc.parent);
                all.push(qdisc.clone());
                all.sort_by_key(|q| std::cmp::Reverse(q.parent));
            }
            Step::QdiscDelete { qdisc, .. } => {
                self.dev(id)
                    .qdiscs
                    .get_or_insert_default()
                    .retain(|q| q.parent != qdisc.parent);
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
                self.dev(id)
                    .neighbours
                    .retain(|x| (x.address, x.proxy) != (n.address, n.proxy));
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
        link_type: 1,
        mac: Some(Mac(mac.into())),
        mtu: 1500,
        txqlen: 1000,
        options: Some(options()),
        qdiscs: Some(Vec::new()),
        programs: Some(Vec::new()),
        device: Some(SysctlValues::from_iter([(
            "ethtool rings rx".into(),
            "512".into(),
        )])),
        ..Netdev::new(name.parse().unwrap(), ifindex)
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
