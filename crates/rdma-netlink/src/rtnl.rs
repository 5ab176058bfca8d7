//! Links, addresses, rules and neighbours of route netlink <-> snapshot types. What a type does not
//! name is kept as bytes by attribute number, so that it can be sent back to the kernel as it was.

mod link;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use netlink_packet_core::{DefaultNla, Nla};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, CacheInfo};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage,
    NeighbourState,
};
use netlink_packet_route::route::RouteType;
use netlink_packet_route::rule::{RuleAttribute, RuleFlags, RuleMessage};

pub use link::{link_name, may_be_stranger, nameless, netdev, stranger};
use rdma_model::ids::{Hex, IfName, Mac};
use rdma_model::snapshot::{Address, Neighbour, Rule};

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
    other
        .iter()
        .map(|(kind, value)| DefaultNla::new(*kind, value.0.clone()))
}

fn family_of(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}

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

pub fn address_message(ifindex: u32, a: &Address) -> AddressMessage {
    let mut m = AddressMessage::default();
    m.header.family = family_of(a.address);
    m.header.prefix_len = a.prefix;
    m.header.scope = a.scope.into();
    m.header.index = ifindex;
    let attributes = &mut m.attributes;
    attributes.push(AddressAttribute::Local(a.address));
    attributes.push(AddressAttribute::Address(a.peer.unwrap_or(a.address)));
    attributes.push(AddressAttribute::Flags(AddressFlags::from_bits_retain(
        a.flags & Address::SETTINGS,
    )));
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

pub fn rule(message: &RuleMessage) -> Option<Rule> {
    let h = &message.header;
    let mut r = Rule {
        family: if h.family == AddressFamily::Inet {
            4
        } else {
            6
        },
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

pub fn rule_message(r: &Rule) -> RuleMessage {
    let mut m = RuleMessage::default();
    m.header.family = if r.family == 4 {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
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
    m.attributes
        .extend(r.iif.clone().map(RuleAttribute::Iifname));
    m.attributes
        .extend(r.oif.clone().map(RuleAttribute::Oifname));
    m.attributes
        .extend(opaque(&r.other).map(RuleAttribute::Other));
    m
}

/// A neighbour message as (ifindex, neighbour), if a user has set it: the kernel learns all others
/// again. It makes NOARP ones itself for multicast and broadcast (arp_constructor in
/// net/ipv4/arp.c), none for unicast but on links without ARP.
pub fn neighbour(message: &NeighbourMessage) -> Option<(u32, Neighbour)> {
    let header = &message.header;
    let proxy = header.flags.contains(NeighbourFlags::Proxy);
    let noarp = header.state == NeighbourState::Noarp && header.kind == RouteType::Unicast;
    let managed = message.attributes.iter().any(is_managed);
    let extern_learn = header.flags.contains(NeighbourFlags::ExtLearned);
    if !proxy && !noarp && !managed && !extern_learn && header.state != NeighbourState::Permanent {
        return None;
    }
    let (mut address, mut mac, mut protocol) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => {
                address = Some(IpAddr::V4(*ip))
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => {
                address = Some(IpAddr::V6(*ip))
            }
            NeighbourAttribute::LinkLayerAddress(a) => {
                mac = Mac::from_bytes(a).filter(|_| !managed)
            }
            NeighbourAttribute::Protocol(p) => protocol = Some(u8::from(*p)),
            _ => {}
        }
    }
    let router = header.flags.contains(NeighbourFlags::Router);
    let noarp = noarp && !proxy && !managed;
    let stale =
        extern_learn && !proxy && !noarp && !managed && header.state != NeighbourState::Permanent;
    if stale && mac.is_none() {
        return None;
    }
    let neighbour = Neighbour {
        address: address?,
        mac,
        proxy,
        protocol,
        router,
        noarp,
        managed,
        extern_learn,
        stale,
    };
    Some((header.ifindex, neighbour))
}

fn is_managed(attribute: &NeighbourAttribute) -> bool {
    matches!(attribute, NeighbourAttribute::ExtFlags(f) if f.contains(NeighbourExtFlags::Managed))
}

pub fn neighbour_message(ifindex: u32, n: &Neighbour) -> NeighbourMessage {
    let mut m = NeighbourMessage::default();
    m.header.family = family_of(n.address);
    m.header.ifindex = ifindex;
    m.header.state = match n {
        n if n.proxy || n.managed => NeighbourState::None,
        n if n.noarp => NeighbourState::Noarp,
        n if n.stale => NeighbourState::Stale,
        _ => NeighbourState::Permanent,
    };
    let flag = |on: bool, flag: NeighbourFlags| if on { flag } else { NeighbourFlags::empty() };
    m.header.flags = flag(n.proxy, NeighbourFlags::Proxy)
        | flag(n.router, NeighbourFlags::Router)
        | flag(n.extern_learn, NeighbourFlags::ExtLearned);
    m.header.kind = RouteType::Unicast;
    let destination = match n.address {
        IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
        IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
    };
    m.attributes
        .push(NeighbourAttribute::Destination(destination));
    m.attributes.extend(
        n.mac
            .clone()
            .map(|a| NeighbourAttribute::LinkLayerAddress(a.0)),
    );
    m.attributes
        .extend(n.protocol.map(|p| NeighbourAttribute::Protocol(p.into())));
    m.attributes.extend(
        n.managed
            .then_some(NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed)),
    );
    m
}
