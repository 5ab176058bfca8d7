//! Route lookups as bytes: RTM_GETROUTE without a dump, by which the kernel answers with all its
//! rules.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use nix::libc::{
    AF_INET, AF_INET6, EACCES, EADDRNOTAVAIL, EAFNOSUPPORT, EHOSTUNREACH, EINVAL, ENETUNREACH,
    ENODEV, EOPNOTSUPP, IPPROTO_ICMP, IPPROTO_ICMPV6, IPPROTO_TCP, IPPROTO_UDP,
};
use rdma_model::ids::{Hex, IfName};
use rdma_model::snapshot::{Answer, Leg, Matched, Nexthop, Question, Snapshot};

use crate::nexthop::{NHA_ENCAP, NHA_ENCAP_TYPE};
use crate::raw::{Attributes, attributes, emitted, ip, of_ip, of_word, word};
use crate::route::{
    RTA_DST, RTA_ENCAP, RTA_ENCAP_TYPE, RTA_GATEWAY, RTA_MULTIPATH, RTA_NH_ID, RTA_OIF,
    RTA_PREFSRC, RTA_PRIORITY, RTA_SRC, RTA_TABLE, RTA_VIA, RTMSG, RTNEXTHOP,
};

/// include/uapi/linux/rtnetlink.h.
const RTA_MARK: u16 = 16;
const RTA_UID: u16 = 25;
const RTA_IP_PROTO: u16 = 27;
const RTA_SPORT: u16 = 28;
const RTA_DPORT: u16 = 29;
/// RTM_F_LOOKUP_TABLE: the answer names the table (inet_rtm_getroute() in net/ipv4/route.c says
/// main without it). RTM_F_FIB_MATCH: it is the FIB entry with all its legs, not the one leg that
/// this packet would take.
const LOOKUP_TABLE: u32 = 0x1000;
const FIB_MATCH: u32 = 0x2000;
/// LWTUNNEL_ENCAP_SEG6 (include/uapi/linux/lwtunnel.h), SEG6_IPTUNNEL_SRH
/// (include/uapi/linux/seg6_iptunnel.h).
const SEG6: [u8; 2] = 5u16.to_ne_bytes();
const SEG6_IPTUNNEL_SRH: u16 = 1;
/// Where seg6_iptunnel_encap has the index of the first segment, and its segments.
const FIRST: usize = 8;
const SEGMENTS: usize = 12;
/// RTNH_F_DEAD: of a link that is down, or has no carrier where `ignore_routes_with_linkdown` is
/// set (fib_nexthop_info() in net/ipv4/fib_semantics.c).
const RTNH_F_DEAD: u8 = 1;

pub struct Known<'a> {
    names: BTreeMap<u32, &'a IfName>,
    nexthops: BTreeMap<u32, &'a Nexthop>,
}

impl<'a> Known<'a> {
    pub fn new(host: &'a Snapshot) -> Known<'a> {
        Known {
            names: host.netdevs.iter().map(|n| (n.ifindex, &n.name)).collect(),
            nexthops: host.nexthops.iter().map(|n| (n.id, n)).collect(),
        }
    }

    fn leg(&self, index: u32, gateway: Option<IpAddr>) -> Option<Leg> {
        self.names.get(&index).map(|dev| Leg {
            dev: (*dev).clone(),
            gateway,
        })
    }

    /// The legs of a nexthop object: with net.ipv4.nexthop_compat_mode off, the kernel names just
    /// its number.
    fn object(&self, id: u32) -> Vec<Leg> {
        self.objects(id)
            .iter()
            .filter_map(|n| {
                Some(Leg {
                    dev: n.dev.clone()?,
                    gateway: n.gateway,
                })
            })
            .collect()
    }

    fn objects(&self, id: u32) -> Vec<&'a Nexthop> {
        let Some(object) = self.nexthops.get(&id) else {
            return Vec::new();
        };
        let members = object.group.iter().filter_map(|m| self.nexthops.get(&m.id));
        std::iter::once(object).chain(members).copied().collect()
    }
}

/// Asks for the FIB entry.
pub fn message(question: &Question) -> Vec<u8> {
    asking(question, LOOKUP_TABLE | FIB_MATCH)
}

/// Asks for what one packet would get: [`chosen_source`] reads the answer.
pub fn packet_message(question: &Question) -> Vec<u8> {
    asking(question, LOOKUP_TABLE)
}

/// The source that the kernel chooses for a packet of a socket that is bound to none
/// (rt_fill_info() in net/ipv4/route.c, rt6_fill_node() in net/ipv6/route.c).
pub fn chosen_source(payload: &[u8]) -> Option<IpAddr> {
    let all = attributes(payload.get(RTMSG..)?).ok()?;
    ip(&all.get(&RTA_PREFSRC)?.0)
}

fn asking(question: &Question, flags: u32) -> Vec<u8> {
    let (family, length) = if question.to.is_ipv4() {
        (AF_INET, 32)
    } else {
        (AF_INET6, 128)
    };
    let from = if question.from.is_some() { length } else { 0 };
    let mut body = vec![family as u8, length, from, question.tos, 0, 0, 0, 0];
    body.extend(flags.to_ne_bytes());
    let mut all = Attributes::from([(RTA_DST, of_ip(question.to))]);
    all.extend(question.from.map(|from| (RTA_SRC, of_ip(from))));
    all.extend(question.oif.map(|index| (RTA_OIF, of_word(index))));
    all.extend((question.mark != 0).then(|| (RTA_MARK, of_word(question.mark))));
    all.extend(question.uid.map(|uid| (RTA_UID, of_word(uid))));
    if let Some(flow) = question.flow {
        all.insert(RTA_IP_PROTO, Hex(vec![flow.protocol]));
        all.insert(RTA_SPORT, Hex(flow.local_port.to_be_bytes().to_vec()));
        all.insert(RTA_DPORT, Hex(flow.remote_port.to_be_bytes().to_vec()));
    }
    body.extend(emitted(&all));
    body
}

pub fn answer(question: &Question, reply: io::Result<Vec<u8>>, known: &Known) -> Answer {
    match reply {
        Ok(payload) => read(&payload, known).unwrap_or_else(unreadable),
        Err(e) if e.raw_os_error() == Some(EOPNOTSUPP) && !can_be_asked(question) => {
            let protocol = question.flow.map_or(0, |flow| flow.protocol);
            Answer::NotAsked(format!(
                "a rule is for protocol {protocol}, and the kernel looks up TCP, UDP and ICMP alone"
            ))
        }
        Err(e) => refusal(&e),
    }
}

/// Whether the kernel looks routes up for that protocol (rtm_getroute_parse_ip_proto() in
/// net/ipv4/fib_rules.c).
fn can_be_asked(question: &Question) -> bool {
    let icmp = if question.to.is_ipv4() {
        IPPROTO_ICMP
    } else {
        IPPROTO_ICMPV6
    };
    question
        .flow
        .is_none_or(|flow| [IPPROTO_TCP, IPPROTO_UDP, icmp].contains(&i32::from(flow.protocol)))
}

/// What the kernel says of a destination that no packet reaches; anything else means that the
/// question failed.
fn refusal(e: &io::Error) -> Answer {
    match e.raw_os_error() {
        Some(ENETUNREACH) => Answer::Unreachable("no route".to_owned()),
        Some(EHOSTUNREACH) => Answer::Unreachable("an unreachable route".to_owned()),
        Some(EACCES) => Answer::Unreachable("a prohibit route".to_owned()),
        // fib_props[] in net/ipv4/fib_semantics.c.
        Some(EINVAL) => Answer::Unreachable("a blackhole route".to_owned()),
        Some(EAFNOSUPPORT | EOPNOTSUPP) => Answer::Unreachable("no such protocol here".to_owned()),
        Some(ENODEV | EADDRNOTAVAIL) => Answer::Unreachable(e.to_string()),
        _ => Answer::NotAsked(e.to_string()),
    }
}

fn unreadable() -> Answer {
    Answer::NotAsked("the kernel's answer names no link that is here".to_owned())
}

fn read(payload: &[u8], known: &Known) -> Option<Answer> {
    let (header, rest) = payload.split_at_checked(RTMSG)?;
    // RTN_*.
    match header[7] {
        2 => return Some(Answer::Local),
        6 => return Some(Answer::Unreachable("a blackhole route".to_owned())),
        7 => return Some(Answer::Unreachable("an unreachable route".to_owned())),
        8 => return Some(Answer::Unreachable("a prohibit route".to_owned())),
        9 => return Some(Answer::Unreachable("a throw route".to_owned())),
        _ => {}
    }
    let all = attributes(rest).ok()?;
    let number = |kind: u16| all.get(&kind).and_then(|value| word(&value.0));
    let any = match i32::from(header[0]) {
        AF_INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        _ => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let to = all
        .get(&RTA_DST)
        .and_then(|value| ip(&value.0))
        .unwrap_or(any);
    let legs = legs(&all, known)?;
    Some(Answer::Route(Matched {
        table: number(RTA_TABLE).unwrap_or(u32::from(header[4])),
        prefix: IpNet::new(to, header[1]).ok()?,
        metric: number(RTA_PRIORITY),
        legs,
        segments: segments(&all, known),
        preferred: all.get(&RTA_PREFSRC).and_then(|value| ip(&value.0)),
        chosen: None,
    }))
}

/// Every leg that the kernel uses; none where one is over a link that we do not know, as that might
/// be any.
fn legs(all: &Attributes, known: &Known) -> Option<Vec<Leg>> {
    let number = |kind: u16| all.get(&kind).and_then(|value| word(&value.0));
    let legs = match (all.get(&RTA_MULTIPATH), number(RTA_OIF)) {
        (Some(value), _) => several(&value.0, known)?,
        (None, Some(index)) => vec![known.leg(index, gateway(all))?],
        (None, None) => known.object(number(RTA_NH_ID)?),
    };
    Some(legs).filter(|legs| !legs.is_empty())
}

/// RTA_MULTIPATH. Where all legs are dead, the kernel takes one all the same.
fn several(mut bytes: &[u8], known: &Known) -> Option<Vec<Leg>> {
    let (mut alive, mut dead) = (Vec::new(), Vec::new());
    while !bytes.is_empty() {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let leg = bytes.get(..length).filter(|_| length >= RTNEXTHOP)?;
        let all = attributes(&leg[RTNEXTHOP..]).ok()?;
        let read = known.leg(word(&leg[4..8])?, gateway(&all))?;
        if leg[2] & RTNH_F_DEAD == 0 {
            alive.push(read)
        } else {
            dead.push(read)
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(if alive.is_empty() { dead } else { alive })
}

/// The first segments of SRv6: packets leave for them, whatever link the route names
/// (seg6_output_core() in net/ipv6/seg6_iptunnel.c).
fn segments(all: &Attributes, known: &Known) -> Vec<IpAddr> {
    let of_legs = all
        .get(&RTA_MULTIPATH)
        .map(|value| of_each_leg(&value.0))
        .unwrap_or_default();
    let object = all
        .get(&RTA_NH_ID)
        .and_then(|value| word(&value.0))
        .map(|id| known.objects(id))
        .unwrap_or_default();
    let of_objects = object
        .iter()
        .filter_map(|n| segment(n.other.get(&NHA_ENCAP_TYPE)?, n.other.get(&NHA_ENCAP)?));
    let own = all
        .get(&RTA_ENCAP_TYPE)
        .zip(all.get(&RTA_ENCAP))
        .and_then(|(kind, encap)| segment(kind, encap));
    own.into_iter().chain(of_legs).chain(of_objects).collect()
}

fn of_each_leg(mut bytes: &[u8]) -> Vec<IpAddr> {
    let mut found = Vec::new();
    while let Some(length) = bytes
        .get(..2)
        .and_then(|b| Some(usize::from(u16::from_ne_bytes(b.try_into().ok()?))))
    {
        let all = bytes
            .get(RTNEXTHOP..length)
            .and_then(|leg| attributes(leg).ok())
            .unwrap_or_default();
        found.extend(
            all.get(&RTA_ENCAP_TYPE)
                .zip(all.get(&RTA_ENCAP))
                .and_then(|(kind, encap)| segment(kind, encap)),
        );
        bytes = bytes
            .get(length.next_multiple_of(4).max(RTNEXTHOP)..)
            .unwrap_or_default();
    }
    found
}

fn segment(kind: &Hex, encap: &Hex) -> Option<IpAddr> {
    (kind.0 == SEG6).then_some(())?;
    let Hex(bytes) = attributes(&encap.0).ok()?.remove(&SEG6_IPTUNNEL_SRH)?;
    let at = SEGMENTS + 16 * usize::from(*bytes.get(FIRST)?);
    ip(bytes.get(at..at + 16)?)
}

fn gateway(all: &Attributes) -> Option<IpAddr> {
    match all.get(&RTA_GATEWAY) {
        Some(value) => ip(&value.0),
        None => ip(all.get(&RTA_VIA)?.0.get(2..)?),
    }
}
