//! IFLA_INFO_DATA <-> what re-creates a netdev.

use netlink_packet_core::{DefaultNla, Emitable, NlasIterator};
use netlink_packet_route::link::{LinkAttribute, LinkInfo, LinkMessage};
use rdma_model::ids::{Hex, IfName};

use rdma_model::step::VirtualLink;

/// include/uapi/linux/if_link.h.
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_FLAGS: u16 = 2;
/// VLAN_FLAG_* (include/uapi/linux/if_vlan.h): REORDER_HDR, GVRP, LOOSE_BINDING, MVRP,
/// BRIDGE_BINDING.
const VLAN_FLAGS: u32 = 0x1f;

/// include/uapi/linux/if_link.h.
const MACVLAN_MODE_SOURCE: [u8; 4] = 16u32.to_ne_bytes();

/// IFLA_BOND_* (include/uapi/linux/if_link.h), as far as one depends on another.
mod bond {
    pub const MODE: u16 = 1;
    pub const MIIMON: u16 = 3;
    pub const ARP_INTERVAL: u16 = 7;
    pub const PRIMARY: u16 = 11;
    pub const AD_ACTOR_SYSTEM: u16 = 26;
}

/// What re-creates a netdev of that kind, out of what the kernel reports of it: attributes as they
/// are in a message. None where we do not know how.
pub fn creation_data(kind: &str, observed: &[u8]) -> Option<Hex> {
    let observed: Vec<(u16, Vec<u8>)> = NlasIterator::new(observed)
        .flatten()
        .map(|nla| (nla.kind(), nla.value().to_vec()))
        .collect();
    let kinds = settable(kind, &observed)?;
    let mut kept = Vec::new();
    for (number, mut value) in observed
        .into_iter()
        .filter(|(number, _)| kinds.contains(number))
    {
        // The kernel tells a mask of all bits, and takes none but those of flags
        // (vlan_dev_change_flags() in net/8021q/vlan_dev.c).
        if let ("vlan", IFLA_VLAN_FLAGS, [_, _, _, _, mask @ ..]) =
            (kind, number, value.as_mut_slice())
        {
            for (m, known) in mask.iter_mut().zip(VLAN_FLAGS.to_ne_bytes()) {
                *m = known;
            }
        }
        let nla = DefaultNla::new(number, value);
        let mut bytes = vec![0; nla.buffer_len()];
        nla.emit(&mut bytes);
        kept.extend(bytes);
    }
    Some(Hex(kept))
}

/// The attributes that the kernel both reports and takes (include/uapi/linux/if_link.h): it refuses
/// to take how long a macvlan's queue is (IFLA_MACVLAN_BC_QUEUE_LEN_USED).
fn settable(kind: &str, observed: &[(u16, Vec<u8>)]) -> Option<Vec<u16>> {
    match kind {
        // ID, FLAGS, EGRESS_QOS, INGRESS_QOS, PROTOCOL.
        "vlan" => Some(vec![1, 2, 3, 4, 5]),
        // One with a list of addresses takes it address by address.
        "macvlan" | "macvtap"
            if observed
                .iter()
                .any(|(k, v)| (*k, v.as_slice()) == (1, &MACVLAN_MODE_SOURCE)) =>
        {
            None
        }
        // MODE, FLAGS, BC_QUEUE_LEN, BC_CUTOFF.
        "macvlan" | "macvtap" => Some(vec![1, 2, 7, 9]),
        // MODE, FLAGS.
        "ipvlan" | "ipvtap" => Some(vec![1, 2]),
        // PKEY, MODE, UMCAST.
        "ipoib" => Some(vec![1, 2, 3]),
        "bond" => of_bond(observed),
        _ => None,
    }
}

/// A bond reports all its options and takes those of its mode alone (`unsuppmodes` in
/// drivers/net/bonding/bond_options.c), delays only with MII monitoring, and one kind of monitoring
/// only. A primary member has to be one before it is named.
fn of_bond(observed: &[(u16, Vec<u8>)]) -> Option<Vec<u16>> {
    let value = |kind| {
        observed
            .iter()
            .find(|(k, _)| *k == kind)
            .map(|(_, v)| v.as_slice())
    };
    let is_set = |kind| value(kind).is_some_and(|v| v.iter().any(|b| *b != 0));
    if value(bond::PRIMARY).is_some() {
        return None;
    }
    // MODE, FAIL_OVER_MAC, XMIT_HASH_POLICY, RESEND_IGMP, NUM_PEER_NOTIF, ALL_SLAVES_ACTIVE,
    // MIN_LINKS, LP_INTERVAL.
    let mut kinds = vec![bond::MODE, 13, 14, 15, 16, 17, 18, 19];
    if is_set(bond::ARP_INTERVAL) {
        // ARP_IP_TARGET, ARP_VALIDATE, ARP_ALL_TARGETS, MISSED_MAX, NS_IP6_TARGET.
        kinds.extend([bond::ARP_INTERVAL, 8, 9, 10, 30, 31]);
    } else if is_set(bond::MIIMON) {
        // UPDELAY, DOWNDELAY, USE_CARRIER, PEER_NOTIF_DELAY.
        kinds.extend([bond::MIIMON, 4, 5, 6, 28]);
    }
    // In the order of BOND_MODE_*: round robin PACKETS_PER_SLAVE; active-backup PRIMARY_RESELECT;
    // 802.3ad AD_LACP_RATE, AD_SELECT, AD_ACTOR_SYS_PRIO, AD_USER_PORT_KEY, AD_ACTOR_SYSTEM,
    // AD_LACP_ACTIVE, COUPLED_CONTROL, BROADCAST_NEIGH; tlb and alb PRIMARY_RESELECT,
    // TLB_DYNAMIC_LB.
    kinds.extend_from_slice(match value(bond::MODE).and_then(|v| v.first()) {
        Some(0) => &[20],
        Some(1) => &[12],
        Some(4) if is_set(bond::AD_ACTOR_SYSTEM) => {
            &[21, 22, 24, 25, bond::AD_ACTOR_SYSTEM, 29, 32, 33]
        }
        Some(4) => &[21, 22, 24, 25, 29, 32, 33],
        Some(5 | 6) => &[12, 27],
        _ => &[],
    });
    Some(kinds)
}

/// The message that makes a netdev, or gives one that is there these properties; `over` is the
/// index of the device below.
pub fn message(dev: &IfName, made: &VirtualLink, over: Option<u32>) -> LinkMessage {
    let mut m = LinkMessage::default();
    let info = |kind, value: &[u8]| LinkInfo::Other(DefaultNla::new(kind, value.to_vec()));
    m.attributes.push(LinkAttribute::IfName(dev.to_string()));
    m.attributes.extend(over.map(LinkAttribute::Link));
    m.attributes
        .extend(made.mac.clone().map(|mac| LinkAttribute::Address(mac.0)));
    m.attributes.push(LinkAttribute::LinkInfo(vec![
        info(IFLA_INFO_KIND, made.kind.as_bytes()),
        info(IFLA_INFO_DATA, &made.data.0),
    ]));
    m
}
