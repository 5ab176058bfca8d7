//! Route messages <-> routes.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::{NLA_F_NESTED, NlasIterator};
use nix::libc::{AF_INET, AF_INET6};
use rdma_model::ids::{Hex, IfName};
use rdma_model::snapshot::{Hop, Netdev, RTA_EXPIRES, Route};

use crate::raw::{
    Attributes, RTM_GETROUTE, RTM_NEWROUTE, Raw, attributes, emitted, ip, of_ip, of_word,
    put_opaque, word,
};
use crate::rtnl::Names;

/// include/uapi/linux/rtnetlink.h.
pub(crate) const RTA_DST: u16 = 1;
pub(crate) const RTA_SRC: u16 = 2;
pub(crate) const RTA_OIF: u16 = 4;
pub(crate) const RTA_GATEWAY: u16 = 5;
pub(crate) const RTA_PRIORITY: u16 = 6;
pub(crate) const RTA_PREFSRC: u16 = 7;
pub(crate) const RTA_MULTIPATH: u16 = 9;
const RTA_CACHEINFO: u16 = 12;
pub(crate) const RTA_TABLE: u16 = 15;
const RTA_MFC_STATS: u16 = 17;
pub(crate) const RTA_VIA: u16 = 18;
/// Some encapsulations are refused unless they are marked as nested (ioam6_build_state in
/// net/ipv6/ioam6_iptunnel.c).
pub const RTA_ENCAP_TYPE: u16 = 21;
pub(crate) const RTA_ENCAP: u16 = 22;
pub(crate) const RTA_NH_ID: u16 = 30;
const NESTED: [u16; 1] = [RTA_ENCAP];
pub(crate) const RTM_F_CLONED: u32 = 0x200;

/// RTNH_F_PERVASIVE and RTNH_F_ONLINK: the next-hop flags that a user sets.
const HOP_FLAGS: u8 = 0x02 | 0x04;

pub(crate) const TABLE_LOCAL: u32 = 255;

/// The lengths of rtmsg and rtnexthop.
pub(crate) const RTMSG: usize = 12;
pub(crate) const RTNEXTHOP: usize = 8;
/// USER_HZ: the kernel reports the time left of a route in these.
const CLOCK: i32 = 100;

/// Whether the kernel has not listed all routes of a family (4 or 6). One of more than 32 KiB, with
/// thousands of legs, ends its list without an error (netlink_dump() in net/netlink/af_netlink.c
/// gives no list more room). The tables come by their numbers, local as the last one, so its routes
/// are missing then, of which each link that is up and has an address has some.
pub fn is_cut(family: u8, netdevs: &[Netdev], has_local: bool) -> bool {
    let of = |ip: &IpAddr| ip.is_ipv4() == (family == 4);
    let expected = netdevs
        .iter()
        .any(|d| d.up && d.running && d.addresses.iter().any(|a| of(&a.address)));
    expected && !has_local
}

pub(crate) fn net(ip: Option<IpAddr>, prefix: u8, family: u8) -> Option<IpNet> {
    let any = match i32::from(family) {
        AF_INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    IpNet::new(ip.unwrap_or(any), prefix).ok()
}

/// What RTA_VIA has.
fn address_behind_family(bytes: &[u8]) -> Option<IpAddr> {
    ip(bytes.get(2..)?)
}

/// The payload of a route message as a route; only IPv4 and IPv6, and no cached clones. A host may
/// have a million: what is not kept takes no memory.
pub fn route(payload: &[u8], names: &Names) -> Option<Route> {
    let (header, rest) = payload.split_at_checked(RTMSG)?;
    let flags = word(&header[8..])?;
    if flags & RTM_F_CLONED != 0 {
        return None;
    }
    let [
        family,
        length,
        source_length,
        tos,
        table,
        protocol,
        scope,
        kind,
        ..,
    ] = *header
    else {
        return None;
    };
    let mut route = Route {
        destination: net(None, 0, family)?,
        source: None,
        table: u32::from(table),
        protocol,
        scope,
        kind,
        tos,
        metric: None,
        prefsrc: None,
        hops: Vec::new(),
        other: Attributes::new(),
    };
    let mut to = None;
    let (mut dev, mut gateway, mut via) = (None, None, None);
    for attribute in NlasIterator::new(rest) {
        let attribute = attribute.ok()?;
        let value = attribute.value();
        match attribute.kind() {
            RTA_DST => to = ip(value),
            RTA_SRC => route.source = ip(value).and_then(|s| net(Some(s), source_length, family)),
            RTA_TABLE => route.table = word(value).unwrap_or(route.table),
            RTA_PRIORITY => route.metric = word(value),
            RTA_PREFSRC => route.prefsrc = ip(value),
            RTA_OIF => dev = word(value).and_then(|index| names.get(&index)),
            RTA_GATEWAY => gateway = ip(value),
            RTA_VIA => via = address_behind_family(value),
            RTA_MULTIPATH => route.hops = legs(value, names),
            RTA_CACHEINFO => {
                let left = expiry(value).map(|left| (RTA_EXPIRES, of_word(left)));
                route.other.extend(left);
            }
            // Bookkeeping of the kernel, not configuration.
            RTA_MFC_STATS => {}
            kind => drop(route.other.insert(kind, Hex(value.to_vec()))),
        }
    }
    route.destination = net(to, length, family)?;
    if route.hops.is_empty() && dev.is_some() {
        route.hops.push(Hop {
            dev: dev.cloned(),
            gateway: gateway.or(via),
            flags: (flags & 0xff) as u8 & HOP_FLAGS,
            ..Hop::default()
        });
    }
    Some(route)
}

/// The seconds left of a route that ends: rta_expires of rta_cacheinfo, which is 0 for all others.
fn expiry(cacheinfo: &[u8]) -> Option<u32> {
    let left = i32::from_ne_bytes(cacheinfo.get(8..12)?.try_into().ok()?);
    (left > 0).then(|| u32::try_from(left / CLOCK).unwrap_or_default().max(1))
}

/// The legs of RTA_MULTIPATH; nothing behind one that is malformed.
fn each_leg(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
        let length = usize::from(length);
        let leg = bytes.get(..length).filter(|_| length >= RTNEXTHOP)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(leg)
    })
}

/// The indices of the links of RTA_MULTIPATH.
pub(crate) fn leg_indices(bytes: &[u8]) -> impl Iterator<Item = u32> {
    each_leg(bytes).filter_map(|leg| word(&leg[4..8]))
}

fn legs(bytes: &[u8], names: &Names) -> Vec<Hop> {
    let mut hops = Vec::new();
    for leg in each_leg(bytes) {
        let Ok(mut other) = attributes(&leg[RTNEXTHOP..]) else {
            break;
        };
        let gateway = other.remove(&RTA_GATEWAY).and_then(|g| ip(&g.0));
        let gateway = gateway.or_else(|| address_behind_family(&other.remove(&RTA_VIA)?.0));
        let dev = word(&leg[4..8]).and_then(|index| names.get(&index).cloned());
        hops.push(Hop {
            dev,
            gateway,
            flags: leg[2] & HOP_FLAGS,
            weight: leg[3],
            other,
        });
    }
    hops
}

fn put_gateway(to: &mut Attributes, gateway: IpAddr, destination: IpNet) {
    match (gateway, destination) {
        (IpAddr::V6(v6), IpNet::V4(_)) => {
            let family = (AF_INET6 as u16).to_ne_bytes();
            to.insert(RTA_VIA, Hex([&family[..], &v6.octets()].concat()))
        }
        (ip, _) => to.insert(RTA_GATEWAY, of_ip(ip)),
    };
}

/// The message that adds a route, or with another number deletes it; `index` resolves the names of
/// its legs. A route through a nexthop object names that alone: the kernel takes either it or legs
/// (fib_create_info in net/ipv4/fib_semantics.c).
pub fn route_message(
    r: &Route,
    index: impl Fn(&IfName) -> anyhow::Result<u32>,
) -> anyhow::Result<Raw> {
    let table = u8::try_from(r.table).unwrap_or(0);
    let family = if r.destination.addr().is_ipv4() {
        AF_INET
    } else {
        AF_INET6
    } as u8;
    let from = r.source.map_or(0, |s| s.prefix_len());
    let mut header = vec![
        family,
        r.destination.prefix_len(),
        from,
        r.tos,
        table,
        r.protocol,
        r.scope,
        r.kind,
    ];
    let mut flags = 0;
    let mut all = BTreeMap::from([(RTA_TABLE, of_word(r.table))]);
    put_opaque(&mut all, &r.other, &NESTED);
    if r.destination.prefix_len() > 0 {
        all.insert(RTA_DST, of_ip(r.destination.addr()));
    }
    all.extend(r.source.map(|s| (RTA_SRC, of_ip(s.addr()))));
    all.extend(r.metric.map(|m| (RTA_PRIORITY, of_word(m))));
    all.extend(r.prefsrc.map(|p| (RTA_PREFSRC, of_ip(p))));
    match r.hops.as_slice() {
        // The legs and their encapsulation are the object's.
        _ if r.nexthop().is_some() => {
            all.retain(|kind, _| ![RTA_ENCAP_TYPE, RTA_ENCAP | NLA_F_NESTED].contains(kind))
        }
        [] => {}
        [only] if only.weight == 0 => {
            flags = u32::from(only.flags);
            only.gateway
                .into_iter()
                .for_each(|g| put_gateway(&mut all, g, r.destination));
            if let Some(dev) = &only.dev {
                all.insert(RTA_OIF, of_word(index(dev)?));
            }
            put_opaque(&mut all, &only.other, &NESTED);
        }
        legs => {
            let legs = legs
                .iter()
                .map(|l| leg(l, r.destination, &index))
                .collect::<anyhow::Result<Vec<_>>>()?;
            all.insert(RTA_MULTIPATH, Hex(legs.concat()));
        }
    }
    header.extend(flags.to_ne_bytes());
    Ok(Raw {
        kind: RTM_NEWROUTE,
        header,
        attributes: all,
    })
}

/// The question by which route packets between two addresses leave; [`out`] reads the answer.
pub fn lookup(to: IpAddr, from: IpAddr) -> Raw {
    let (family, length) = if to.is_ipv4() {
        (AF_INET, 32)
    } else {
        (AF_INET6, 128)
    };
    let header = vec![family as u8, length, length, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    Raw {
        kind: RTM_GETROUTE,
        header,
        attributes: Attributes::from([(RTA_DST, of_ip(to)), (RTA_SRC, of_ip(from))]),
    }
}

/// The question for the FIB entry by which packets to an address leave over one link, with what is
/// this leg's own (RTM_F_FIB_MATCH, RTM_F_LOOKUP_TABLE in include/uapi/linux/rtnetlink.h);
/// [`of_answer`] reads the answer.
pub fn lookup_leg(to: Ipv6Addr, link: u32) -> Raw {
    let flags = 0x3000u32.to_ne_bytes();
    let header = [&[AF_INET6 as u8, 128, 0, 0, 0, 0, 0, 0], &flags[..]].concat();
    let to = of_ip(IpAddr::V6(to));
    Raw {
        kind: RTM_GETROUTE,
        header,
        attributes: Attributes::from([(RTA_DST, to), (RTA_OIF, of_word(link))]),
    }
}

pub fn of_answer(answer: &Raw, names: &Names) -> Option<Route> {
    route(
        &[&answer.header[..], &emitted(&answer.attributes)].concat(),
        names,
    )
}

pub fn out(answer: &Raw) -> Option<u32> {
    word(&answer.attributes.get(&RTA_OIF)?.0)
}

fn leg(
    hop: &Hop,
    to: IpNet,
    index: impl Fn(&IfName) -> anyhow::Result<u32>,
) -> anyhow::Result<Vec<u8>> {
    let mut all = Attributes::new();
    hop.gateway
        .into_iter()
        .for_each(|g| put_gateway(&mut all, g, to));
    put_opaque(&mut all, &hop.other, &NESTED);
    let rest = emitted(&all);
    let length = u16::try_from(RTNEXTHOP + rest.len())?.to_ne_bytes();
    let index = hop.dev.as_ref().map_or(Ok(0), index)?.to_ne_bytes();
    Ok([&length[..], &[hop.flags, hop.weight], &index, &rest].concat())
}
