//! Route netlink messages <-> snapshot types. No I/O: `route.rs` carries the messages.
//!
//! What a type does not name is kept as bytes by attribute number, so that what the kernel told can be told back to it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::{DefaultNla, Nla};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, CacheInfo};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage, LinkXdp, Prop, XdpAttached};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteNextHop, RouteNextHopFlags, RouteProtocol, RouteScope,
    RouteType, RouteVia,
};
use netlink_packet_route::rule::{RuleAttribute, RuleFlags, RuleMessage};

use crate::ident::{Hex, IfName, Mac};
use crate::snapshot::{Address, Hop, Neighbour, Netdev, Route, Rule};
use crate::world::made;

/// Address flags that a user sets; the others (permanent, tentative, secondary, …) are the kernel's bookkeeping
/// (include/uapi/linux/if_addr.h): NODAD, OPTIMISTIC, HOMEADDRESS, MANAGETEMPADDR, NOPREFIXROUTE, MCAUTOJOIN.
pub const ADDRESS_FLAGS: u32 = 0x02 | 0x04 | 0x10 | 0x100 | 0x200 | 0x400;

/// RTNH_F_PERVASIVE and RTNH_F_ONLINK: the next-hop flags that a user sets.
const HOP_FLAGS: u8 = 0x02 | 0x04;

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
        xdp: false,
        pci: None,
        driver: None,
        dev_port: None,
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
        LinkAttribute::Address(a) => dev.mac = Some(Mac(a.clone())),
        LinkAttribute::PermAddress(a) => dev.permanent_mac = Some(Mac(a.clone())),
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
        LinkAttribute::Xdp(xdp) => {
            dev.xdp = xdp.iter().any(|x| matches!(x, LinkXdp::Attached(a) if *a != XdpAttached::None));
        }
        _ => {}
    }
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

fn route_ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    }
}

fn via_ip(via: &RouteVia) -> Option<IpAddr> {
    match via {
        RouteVia::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteVia::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    }
}

fn net(ip: Option<IpAddr>, prefix: u8, family: AddressFamily) -> Option<IpNet> {
    let any = match family {
        AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        AddressFamily::Inet6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    IpNet::new(ip.unwrap_or(any), prefix).ok()
}

/// A route message as a route; only IPv4 and IPv6, and no cached clones.
pub fn route(message: &RouteMessage, names: &Names) -> Option<Route> {
    let h = &message.header;
    if h.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    let (mut destination, mut source, mut single) = (None, None, Hop::default());
    let mut r = Route {
        destination: net(None, 0, h.address_family)?,
        source: None,
        table: u32::from(h.table),
        protocol: h.protocol.into(),
        scope: h.scope.into(),
        kind: h.kind.into(),
        tos: h.tos,
        metric: None,
        prefsrc: None,
        hops: Vec::new(),
        other: BTreeMap::new(),
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(a) => destination = route_ip(a),
            RouteAttribute::Source(a) => source = route_ip(a),
            RouteAttribute::Table(t) => r.table = *t,
            RouteAttribute::Priority(p) => r.metric = Some(*p),
            RouteAttribute::PrefSource(a) => r.prefsrc = route_ip(a),
            RouteAttribute::Oif(i) => single.dev = names.get(i).cloned(),
            RouteAttribute::Gateway(a) => single.gateway = route_ip(a),
            RouteAttribute::Via(v) => single.gateway = via_ip(v),
            RouteAttribute::MultiPath(legs) => r.hops = legs.iter().map(|l| hop(l, names)).collect(),
            // Bookkeeping of the kernel: use counts and the time left, not configuration.
            RouteAttribute::CacheInfo(_) | RouteAttribute::Expires(_) | RouteAttribute::MfcStats(_) => {}
            // A nexthop object goes with its device, and the kernel takes either it or legs, which it tells as well
            // (nexthop_compat_mode in Documentation/networking/ip-sysctl.rst).
            RouteAttribute::NhId(_) => {}
            opaque => drop(r.other.insert(opaque.kind(), bytes(opaque))),
        }
    }
    r.destination = net(destination, h.destination_prefix_length, h.address_family)?;
    r.source = source.and_then(|s| net(Some(s), h.source_prefix_length, h.address_family));
    if r.hops.is_empty() && single.dev.is_some() {
        single.flags = (h.flags.bits() & 0xff) as u8 & HOP_FLAGS;
        r.hops.push(single);
    }
    Some(r)
}

fn hop(leg: &RouteNextHop, names: &Names) -> Hop {
    let gateway = leg.attributes.iter().find_map(|a| match a {
        RouteAttribute::Gateway(g) => route_ip(g),
        RouteAttribute::Via(v) => via_ip(v),
        _ => None,
    });
    Hop {
        dev: names.get(&leg.interface_index).cloned(),
        gateway,
        flags: leg.flags.bits() & HOP_FLAGS,
        weight: leg.hops,
    }
}

fn gateway(gateway: IpAddr, destination: IpNet) -> RouteAttribute {
    match (gateway, destination) {
        (IpAddr::V6(v6), IpNet::V4(_)) => RouteAttribute::Via(RouteVia::Inet6(v6)),
        (ip, _) => RouteAttribute::Gateway(ip.into()),
    }
}

/// The message that adds or deletes a route; `index` resolves the names of its legs.
pub fn route_message(r: &Route, index: impl Fn(&IfName) -> anyhow::Result<u32>) -> anyhow::Result<RouteMessage> {
    let mut m = RouteMessage::default();
    m.header.address_family = family_of(r.destination.addr());
    m.header.destination_prefix_length = r.destination.prefix_len();
    m.header.table = u8::try_from(r.table).unwrap_or(0);
    m.header.protocol = RouteProtocol::from(r.protocol);
    m.header.scope = RouteScope::from(r.scope);
    m.header.kind = RouteType::from(r.kind);
    m.header.tos = r.tos;
    m.attributes.push(RouteAttribute::Table(r.table));
    if r.destination.prefix_len() > 0 {
        m.attributes.push(RouteAttribute::Destination(r.destination.addr().into()));
    }
    if let Some(s) = r.source {
        m.header.source_prefix_length = s.prefix_len();
        m.attributes.push(RouteAttribute::Source(s.addr().into()));
    }
    m.attributes.extend(r.metric.map(RouteAttribute::Priority));
    m.attributes.extend(r.prefsrc.map(|p| RouteAttribute::PrefSource(p.into())));
    match r.hops.as_slice() {
        [] => {}
        [only] => {
            m.header.flags = RouteFlags::from_bits_retain(u32::from(only.flags));
            m.attributes.extend(only.gateway.map(|g| gateway(g, r.destination)));
            if let Some(dev) = &only.dev {
                m.attributes.push(RouteAttribute::Oif(index(dev)?));
            }
        }
        legs => {
            let legs = legs.iter().map(|l| leg(l, r.destination, &index)).collect::<anyhow::Result<_>>()?;
            m.attributes.push(RouteAttribute::MultiPath(legs));
        }
    }
    m.attributes.extend(opaque(&r.other).map(RouteAttribute::Other));
    Ok(m)
}

fn leg(hop: &Hop, to: IpNet, index: impl Fn(&IfName) -> anyhow::Result<u32>) -> anyhow::Result<RouteNextHop> {
    let mut leg = RouteNextHop::default();
    leg.flags = RouteNextHopFlags::from_bits_retain(hop.flags);
    leg.hops = hop.weight;
    leg.interface_index = hop.dev.as_ref().map_or(Ok(0), index)?;
    leg.attributes.extend(hop.gateway.map(|g| gateway(g, to)));
    Ok(leg)
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

/// A neighbour message as (ifindex, neighbour), if it is permanent or a proxy: the kernel learns all others again.
pub fn neighbour(message: &NeighbourMessage) -> Option<(u32, Neighbour)> {
    let proxy = message.header.flags.contains(NeighbourFlags::Proxy);
    if !proxy && message.header.state != NeighbourState::Permanent {
        return None;
    }
    let (mut address, mut mac, mut protocol) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => address = Some(IpAddr::V4(*ip)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => address = Some(IpAddr::V6(*ip)),
            NeighbourAttribute::LinkLayerAddress(a) => mac = Some(Mac(a.clone())),
            NeighbourAttribute::Protocol(p) => protocol = Some(u8::from(*p)),
            _ => {}
        }
    }
    Some((message.header.ifindex, Neighbour { address: address?, mac, proxy, protocol }))
}

/// The message that adds or deletes a neighbour.
pub fn neighbour_message(ifindex: u32, n: &Neighbour) -> NeighbourMessage {
    let mut m = NeighbourMessage::default();
    m.header.family = family_of(n.address);
    m.header.ifindex = ifindex;
    m.header.state = if n.proxy { NeighbourState::None } else { NeighbourState::Permanent };
    m.header.flags = if n.proxy { NeighbourFlags::Proxy } else { NeighbourFlags::empty() };
    m.header.kind = RouteType::Unicast;
    let destination = match n.address {
        IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
        IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
    };
    m.attributes.push(NeighbourAttribute::Destination(destination));
    m.attributes.extend(n.mac.clone().map(|a| NeighbourAttribute::LinkLayerAddress(a.0)));
    m.attributes.extend(n.protocol.map(|p| NeighbourAttribute::Protocol(p.into())));
    m
}
