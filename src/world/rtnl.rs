//! Links, addresses, rules and neighbours of route netlink <-> snapshot types. No I/O: `route.rs` carries the messages.
//!
//! What a type does not name is kept as bytes by attribute number, so that what the kernel told can be told back to it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::{DefaultNla, Nla};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, CacheInfo};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, LinkXdp, Prop, XdpAttached,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::RouteType;
use netlink_packet_route::rule::{RuleAttribute, RuleFlags, RuleMessage};

use crate::ident::{Hex, IfName, Mac};
use crate::snapshot::{Address, Neighbour, Netdev, Rule};
use crate::world::made;

/// Address flags that a user sets; the others (permanent, tentative, secondary, …) are the kernel's bookkeeping
/// (include/uapi/linux/if_addr.h): NODAD, OPTIMISTIC, HOMEADDRESS, MANAGETEMPADDR, NOPREFIXROUTE, MCAUTOJOIN.
pub const ADDRESS_FLAGS: u32 = 0x02 | 0x04 | 0x10 | 0x100 | 0x200 | 0x400;

/// FIB_RULE_INVERT: the rule flag that a user sets.
const RULE_FLAGS: u32 = 0x02;

/// Ifindex to name in one namespace.
pub type Names = BTreeMap<u32, IfName>;

fn bytes(nla: &impl Nla) -> Hex {
    let mut value = vec![0; nla.value_len()];
    nla.emit_value(&mut value);
    Hex(value)
}

fn opaque(other: &BTreeMap<u16, Hex>) -> impl Iterator<Item = DefaultNla> + '_ {
    other.iter().map(|(kind, value)| DefaultNla::new(*kind, value.0.clone()))
}

fn family_of(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// The index in a link message, and its name. One that is no text, or none that we take, is called `?INDEX` instead, and is
/// addressed by that index: whatever a container calls a NIC, it must not lose it for us.
pub fn link_name(message: &LinkMessage) -> Option<(u32, IfName)> {
    let index = message.header.index;
    let told = message.attributes.iter().find_map(|a| match a {
        LinkAttribute::IfName(n) => Some(n),
        _ => None,
    })?;
    let usable = told.parse().ok().filter(|_| !told.contains('?'));
    Some((index, usable.or_else(|| format!("?{index}").parse().ok())?))
}

/// The index of a link that goes by none of its names, see [`link_name`].
pub fn nameless(name: &IfName) -> Option<u32> {
    name.as_str().strip_prefix('?')?.parse().ok()
}

/// A link message as a netdev; `names` resolves its master.
pub fn netdev(message: &LinkMessage, names: &Names) -> Option<Netdev> {
    let (ifindex, name) = link_name(message)?;
    let flags = message.header.flags;
    let mut dev = Netdev {
        name,
        ifindex,
        kind: None,
        link_type: message.header.link_layer_type.into(),
        mac: None,
        permanent_mac: None,
        mtu: 0,
        txqlen: 0,
        group: 0,
        alias: None,
        altnames: Vec::new(),
        up: flags.contains(LinkFlags::Up),
        running: flags.contains(LinkFlags::Running),
        promisc: flags.contains(LinkFlags::Promisc),
        allmulti: flags.contains(LinkFlags::Allmulti),
        operstate: None,
        master: None,
        link: None,
        made: None,
        qdisc: None,
        qdiscs: None,
        qdisc_lost: None,
        xdp: false,
        pci: None,
        driver: None,
        dev_port: None,
        token: None,
        addresses: Vec::new(),
        neighbours: Vec::new(),
        sysctls: BTreeMap::new(),
    };
    message.attributes.iter().for_each(|a| link_attribute(&mut dev, a, names));
    if message.attributes.iter().any(|a| matches!(a, LinkAttribute::LinkNetNsId(_))) {
        // That index counts in the other namespace.
        dev.link = None;
    }
    Some(dev)
}

fn link_attribute(dev: &mut Netdev, attribute: &LinkAttribute, names: &Names) {
    match attribute {
        LinkAttribute::Address(a) => dev.mac = Mac::of(a),
        LinkAttribute::PermAddress(a) => dev.permanent_mac = Mac::of(a),
        LinkAttribute::Mtu(v) => dev.mtu = *v,
        LinkAttribute::TxQueueLen(v) => dev.txqlen = *v,
        LinkAttribute::Group(v) => dev.group = *v,
        LinkAttribute::IfAlias(v) => dev.alias = Some(v.clone()),
        LinkAttribute::OperState(s) => dev.operstate = Some(format!("{s:?}").to_lowercase()),
        LinkAttribute::Controller(v) => dev.master = names.get(v).cloned(),
        LinkAttribute::Link(v) => dev.link = Some(*v),
        LinkAttribute::Qdisc(v) => dev.qdisc = Some(v.clone()),
        LinkAttribute::PropList(props) => {
            dev.altnames = props
                .iter()
                .filter_map(|p| match p {
                    Prop::AltIfName(n) => Some(n.clone()),
                    _ => None,
                })
                .collect();
        }
        LinkAttribute::LinkInfo(infos) => {
            dev.kind = infos.iter().find_map(|i| match i {
                LinkInfo::Kind(k) => Some(k.to_string()),
                _ => None,
            });
            let data = infos.iter().find(|i| matches!(i, LinkInfo::Data(_))).map(bytes);
            dev.made = dev.kind.as_deref().zip(data).and_then(|(kind, data)| made::of(kind, &data.0));
        }
        // Unlike sysfs this tells the parent in whatever namespace the link is (Linux 5.14).
        LinkAttribute::ParentDevName(parent) => dev.pci = parent.parse().ok(),
        LinkAttribute::AfSpecUnspec(families) => dev.token = families.iter().find_map(token),
        LinkAttribute::Xdp(xdp) => {
            dev.xdp = xdp.iter().any(|x| matches!(x, LinkXdp::Attached(a) if *a != XdpAttached::None));
        }
        _ => {}
    }
}

fn token(family: &AfSpecUnspec) -> Option<Ipv6Addr> {
    let AfSpecUnspec::Inet6(all) = family else { return None };
    let token = all.iter().find_map(|a| if let AfSpecInet6::Token(t) = a { Some(*t) } else { None });
    token.filter(|t| !t.is_unspecified())
}

/// An address message as (ifindex, address).
pub fn address(message: &AddressMessage) -> Option<(u32, Address)> {
    let (mut local, mut far) = (None, None);
    let mut a = Address {
        address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        prefix: message.header.prefix_len,
        peer: None,
        broadcast: None,
        label: None,
        scope: message.header.scope.into(),
        flags: u32::from(message.header.flags.bits()),
        valid_lft: None,
        preferred_lft: None,
        metric: None,
        protocol: None,
    };
    let finite = |seconds: u32| (seconds != u32::MAX).then_some(seconds);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => far = Some(*ip),
            AddressAttribute::Broadcast(ip) => a.broadcast = Some(IpAddr::V4(*ip)),
            AddressAttribute::Label(l) => a.label = Some(l.clone()),
            AddressAttribute::Flags(f) => a.flags = f.bits(),
            AddressAttribute::RoutePriority(m) => a.metric = Some(*m),
            AddressAttribute::Protocol(p) => a.protocol = Some(u8::from(*p)),
            AddressAttribute::CacheInfo(c) => {
                a.valid_lft = finite(c.ifa_valid);
                a.preferred_lft = finite(c.ifa_preferred);
            }
            _ => {}
        }
    }
    a.address = local.or(far)?;
    a.peer = far.filter(|f| *f != a.address);
    Some((message.header.index, a))
}

/// The message that adds or deletes an address.
pub fn address_message(ifindex: u32, a: &Address) -> AddressMessage {
    let mut m = AddressMessage::default();
    m.header.family = family_of(a.address);
    m.header.prefix_len = a.prefix;
    m.header.scope = a.scope.into();
    m.header.index = ifindex;
    let attributes = &mut m.attributes;
    attributes.push(AddressAttribute::Local(a.address));
    attributes.push(AddressAttribute::Address(a.peer.unwrap_or(a.address)));
    attributes.push(AddressAttribute::Flags(AddressFlags::from_bits_retain(a.flags & ADDRESS_FLAGS)));
    if let Some(IpAddr::V4(b)) = a.broadcast {
        attributes.push(AddressAttribute::Broadcast(b));
    }
    if let Some(l) = &a.label {
        attributes.push(AddressAttribute::Label(l.clone()));
    }
    if let Some(metric) = a.metric {
        attributes.push(AddressAttribute::RoutePriority(metric));
    }
    if let Some(p) = a.protocol {
        attributes.push(AddressAttribute::Protocol(p.into()));
    }
    if a.valid_lft.is_some() || a.preferred_lft.is_some() {
        let mut c = CacheInfo::default();
        c.ifa_valid = a.valid_lft.unwrap_or(u32::MAX);
        c.ifa_preferred = a.preferred_lft.unwrap_or(u32::MAX);
        attributes.push(AddressAttribute::CacheInfo(c));
    }
    m
}

/// A rule message as a rule.
pub fn rule(message: &RuleMessage) -> Option<Rule> {
    let h = &message.header;
    let mut r = Rule {
        family: if h.family == AddressFamily::Inet { 4 } else { 6 },
        priority: 0,
        source: None,
        destination: None,
        iif: None,
        oif: None,
        table: u32::from(h.table),
        action: h.action.into(),
        tos: h.tos,
        flags: h.flags.bits() & RULE_FLAGS,
        other: BTreeMap::new(),
    };
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Priority(p) => r.priority = *p,
            RuleAttribute::Source(ip) => r.source = IpNet::new(*ip, h.src_len).ok(),
            RuleAttribute::Destination(ip) => r.destination = IpNet::new(*ip, h.dst_len).ok(),
            RuleAttribute::Iifname(n) => r.iif = Some(n.clone()),
            RuleAttribute::Oifname(n) => r.oif = Some(n.clone()),
            RuleAttribute::Table(t) => r.table = *t,
            opaque => drop(r.other.insert(opaque.kind(), bytes(opaque))),
        }
    }
    Some(r)
}

/// The message that adds or deletes a rule.
pub fn rule_message(r: &Rule) -> RuleMessage {
    let mut m = RuleMessage::default();
    m.header.family = if r.family == 4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
    m.header.table = u8::try_from(r.table).unwrap_or(0);
    m.header.action = r.action.into();
    m.header.tos = r.tos;
    m.header.flags = RuleFlags::from_bits_retain(r.flags);
    m.attributes.push(RuleAttribute::Priority(r.priority));
    m.attributes.push(RuleAttribute::Table(r.table));
    if let Some(s) = r.source {
        m.header.src_len = s.prefix_len();
        m.attributes.push(RuleAttribute::Source(s.addr()));
    }
    if let Some(d) = r.destination {
        m.header.dst_len = d.prefix_len();
        m.attributes.push(RuleAttribute::Destination(d.addr()));
    }
    m.attributes.extend(r.iif.clone().map(RuleAttribute::Iifname));
    m.attributes.extend(r.oif.clone().map(RuleAttribute::Oifname));
    m.attributes.extend(opaque(&r.other).map(RuleAttribute::Other));
    m
}

/// A neighbour message as (ifindex, neighbour), if somebody has set it: the kernel learns all others again. It makes NOARP
/// ones itself for multicast and broadcast (arp_constructor in net/ipv4/arp.c), none for unicast but on links without ARP.
pub fn neighbour(message: &NeighbourMessage) -> Option<(u32, Neighbour)> {
    let header = &message.header;
    let proxy = header.flags.contains(NeighbourFlags::Proxy);
    let noarp = header.state == NeighbourState::Noarp && header.kind == RouteType::Unicast;
    let managed = message.attributes.iter().any(is_managed);
    if !proxy && !noarp && !managed && header.state != NeighbourState::Permanent {
        return None;
    }
    let (mut address, mut mac, mut protocol) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => address = Some(IpAddr::V4(*ip)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => address = Some(IpAddr::V6(*ip)),
            NeighbourAttribute::LinkLayerAddress(a) => mac = Mac::of(a).filter(|_| !managed),
            NeighbourAttribute::Protocol(p) => protocol = Some(u8::from(*p)),
            _ => {}
        }
    }
    let router = header.flags.contains(NeighbourFlags::Router);
    let noarp = noarp && !proxy && !managed;
    Some((header.ifindex, Neighbour { address: address?, mac, proxy, protocol, router, noarp, managed }))
}

fn is_managed(attribute: &NeighbourAttribute) -> bool {
    matches!(attribute, NeighbourAttribute::ExtFlags(f) if f.contains(NeighbourExtFlags::Managed))
}

/// The message that adds or deletes a neighbour.
pub fn neighbour_message(ifindex: u32, n: &Neighbour) -> NeighbourMessage {
    let mut m = NeighbourMessage::default();
    m.header.family = family_of(n.address);
    m.header.ifindex = ifindex;
    m.header.state = match n {
        n if n.proxy || n.managed => NeighbourState::None,
        n if n.noarp => NeighbourState::Noarp,
        _ => NeighbourState::Permanent,
    };
    let flag = |on: bool, flag: NeighbourFlags| if on { flag } else { NeighbourFlags::empty() };
    m.header.flags = flag(n.proxy, NeighbourFlags::Proxy) | flag(n.router, NeighbourFlags::Router);
    m.header.kind = RouteType::Unicast;
    let destination = match n.address {
        IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
        IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
    };
    m.attributes.push(NeighbourAttribute::Destination(destination));
    m.attributes.extend(n.mac.clone().map(|a| NeighbourAttribute::LinkLayerAddress(a.0)));
    m.attributes.extend(n.protocol.map(|p| NeighbourAttribute::Protocol(p.into())));
    m.attributes.extend(n.managed.then_some(NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed)));
    m
}
