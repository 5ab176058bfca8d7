//! Nexthop objects (`ip nexthop`) <-> bytes.

use std::collections::HashMap;

use nix::libc::{AF_INET, AF_INET6};
use rdma_model::ids::{Hex, IfName};
use rdma_model::snapshot::{Hop, Member, Nexthop, Route};

use crate::raw::{
    Attributes, RTM_DELNEXTHOP, RTM_NEWNEXTHOP, Raw, attributes, emitted, ip, of_ip, of_word,
    put_opaque, word,
};
use crate::route::{RTA_ENCAP, RTA_ENCAP_TYPE};
use crate::rtnl::Names;

/// include/uapi/linux/nexthop.h.
const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_BLACKHOLE: u16 = 4;
const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;
pub(crate) const NHA_ENCAP_TYPE: u16 = 7;
pub(crate) const NHA_ENCAP: u16 = 8;
const NHA_RES_GROUP: u16 = 12;
/// NHA_RES_BUCKET, NHA_OP_FLAGS, NHA_GROUP_STATS, NHA_HW_STATS_ENABLE, NHA_HW_STATS_USED: what goes
/// with a dump.
const DUMP_ONLY: std::ops::RangeInclusive<u16> = 13..=17;
const NHA_RES_GROUP_UNBALANCED_TIME: u16 = 4;
const NESTED: [u16; 2] = [NHA_ENCAP, NHA_RES_GROUP];
/// The length of nexthop_grp.
const NEXTHOP_GRP: usize = 8;
/// RTNH_F_ONLINK: the one flag that a user sets (NEXTHOP_VALID_USER_FLAGS in net/ipv4/nexthop.c).
const FLAGS: u32 = 0x04;

pub fn nexthop(message: &Raw, names: &Names) -> Option<Nexthop> {
    let mut rest = message.attributes.clone();
    rest.retain(|kind, _| !DUMP_ONLY.contains(kind));
    let id = word(&rest.remove(&NHA_ID)?.0)?;
    let dev = rest
        .remove(&NHA_OIF)
        .and_then(|i| names.get(&word(&i.0)?).cloned());
    let gateway = rest.remove(&NHA_GATEWAY).and_then(|g| ip(&g.0));
    let blackhole = rest.remove(&NHA_BLACKHOLE).is_some();
    let group = rest.remove(&NHA_GROUP).map_or_else(Vec::new, |g| {
        g.0.chunks_exact(NEXTHOP_GRP).map(member).collect()
    });
    if let Some(resilient) = rest.get_mut(&NHA_RES_GROUP) {
        *resilient = lasting(resilient);
    }
    let family = match i32::from(message.byte(0)) {
        AF_INET => 4,
        AF_INET6 => 6,
        _ => 0,
    };
    let (protocol, flags) = (message.byte(2), message.word(4) & FLAGS);
    Some(Nexthop {
        id,
        family,
        protocol,
        flags,
        dev,
        gateway,
        blackhole,
        group,
        other: rest,
    })
}

/// The weight's high byte is of Linux 6.12; before it was reserved and 0.
fn member(bytes: &[u8]) -> Member {
    Member {
        id: word(&bytes[..4]).unwrap_or_default(),
        weight: u16::from_le_bytes([bytes[4], bytes[5]]).saturating_add(1),
    }
}

/// How long a resilient group has been out of balance is a state: it is reported, and refused as a
/// setting.
fn lasting(resilient: &Hex) -> Hex {
    let Ok(mut all) = attributes(&resilient.0) else {
        return resilient.clone();
    };
    all.retain(|kind, _| *kind != 0 && *kind < NHA_RES_GROUP_UNBALANCED_TIME);
    Hex(emitted(&all))
}

/// The message that makes an object, or makes it what it was.
pub fn nexthop_message(
    n: &Nexthop,
    index: impl Fn(&IfName) -> anyhow::Result<u32>,
) -> anyhow::Result<Raw> {
    let mut all = Attributes::from([(NHA_ID, of_word(n.id))]);
    put_opaque(&mut all, &n.other, &NESTED);
    all.extend(n.gateway.map(|g| (NHA_GATEWAY, of_ip(g))));
    if let Some(dev) = &n.dev {
        all.insert(NHA_OIF, of_word(index(dev)?));
    }
    if n.blackhole {
        // It goes to no device, though the kernel tells lo for it (rtm_to_nh_config in
        // net/ipv4/nexthop.c).
        all.remove(&NHA_OIF);
        all.insert(NHA_BLACKHOLE, Hex(Vec::new()));
    }
    if !n.group.is_empty() {
        all.insert(NHA_GROUP, Hex(n.group.iter().flat_map(of_member).collect()));
    }
    let family = match n.family {
        4 => AF_INET,
        6 => AF_INET6,
        _ => 0,
    };
    let mut header = vec![family as u8, 0, n.protocol, 0];
    header.extend(n.flags.to_ne_bytes());
    Ok(Raw {
        kind: RTM_NEWNEXTHOP,
        header,
        attributes: all,
    })
}

fn of_member(m: &Member) -> Vec<u8> {
    let weight = (m.weight.max(1) - 1).to_le_bytes();
    [&m.id.to_ne_bytes()[..], &weight, &[0; 2]].concat()
}

pub fn delete_message(id: u32) -> Raw {
    Raw {
        attributes: [(NHA_ID, of_word(id))].into(),
        ..Raw::dump(RTM_DELNEXTHOP, 0)
    }
}

/// Gives routes through objects the legs of these: with net.ipv4.nexthop_compat_mode off, the
/// kernel reports just the number.
pub fn tell_legs(routes: &mut [Route], all: &[Nexthop]) {
    let by_id: HashMap<u32, &Nexthop> = all.iter().map(|n| (n.id, n)).collect();
    let object = |id: u32| by_id.get(&id).copied();
    for route in routes.iter_mut().filter(|r| r.hops.is_empty()) {
        let Some(named) = route.nexthop().and_then(object) else {
            continue;
        };
        let single = [Member {
            id: named.id,
            weight: 1,
        }];
        let members = if named.group.is_empty() {
            &single[..]
        } else {
            &named.group
        };
        let hop = |m: &Member| {
            let of = object(m.id)?;
            let weight = u8::try_from(m.weight.max(1) - 1).unwrap_or(u8::MAX);
            let encap = [(NHA_ENCAP_TYPE, RTA_ENCAP_TYPE), (NHA_ENCAP, RTA_ENCAP)];
            let other = encap
                .into_iter()
                .filter_map(|(n, r)| Some((r, of.other.get(&n)?.clone())))
                .collect();
            Some(Hop {
                dev: of.dev.clone(),
                gateway: of.gateway,
                flags: of.flags as u8,
                weight,
                other,
            })
        };
        route.hops = members
            .iter()
            .filter_map(hop)
            .filter(|h| h.dev.is_some())
            .collect();
    }
}
