//! What a physical function sets on its virtual ones: address, VLAN, rate, trust and the like
//! (IFLA_VFINFO_LIST of include/uapi/linux/if_link.h, do_setvfinfo in net/core/rtnetlink.c). A
//! process with CAP_NET_ADMIN in the physical function's namespace sets them, and they stay.

use netlink_packet_core::NLA_F_NESTED;

use crate::ethtool::{Values, hex, unhex};
use crate::generic::attribute;
use crate::reply::attributes;
use crate::socket::KernelSocket;
use crate::unless_refused;

const PREFIX: &str = "vf ";

/// include/uapi/linux/rtnetlink.h.
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
/// Bytes of `struct ifinfomsg`.
const HEADER: usize = 16;
const IFLA_VFINFO_LIST: u16 = 22;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_VF_INFO: u16 = 1;
/// RTEXT_FILTER_VF and RTEXT_FILTER_SKIP_STATS.
const WITH_VFS: u32 = 1 | 8;

/// IFLA_VF_*. The kernel repeats VLAN and TX_RATE in short forms for old programs.
const SETTINGS: [(u16, &str); 9] = [
    (1, "mac"),
    (4, "spoofchk"),
    (5, "link-state"),
    (6, "rate"),
    (7, "rss-query"),
    (9, "trust"),
    (10, "node-guid"),
    (11, "port-guid"),
    (12, "vlan"),
];
const VLAN_LIST: u16 = 12;

pub fn is_ours(key: &str) -> bool {
    key.starts_with(PREFIX)
}

fn message(ifindex: u32, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    bytes.extend_from_slice(rest);
    bytes
}

pub fn read(socket: &mut KernelSocket, ifindex: u32) -> Values {
    let ask = message(ifindex, &attribute(IFLA_EXT_MASK, &WITH_VFS.to_ne_bytes()));
    let answer = socket.transact(RTM_GETLINK, &ask).unwrap_or_default();
    parse(
        answer
            .first()
            .and_then(|a| a.get(HEADER..))
            .unwrap_or_default(),
    )
}

fn parse(link: &[u8]) -> Values {
    let list = attributes(link)
        .flatten()
        .filter(|(kind, _)| *kind == IFLA_VFINFO_LIST);
    let functions = list.flat_map(|(_, list)| attributes(list).flatten());
    let mut values = Values::new();
    for (number, (_, info)) in functions.enumerate() {
        for (kind, value) in attributes(info).flatten() {
            if let Some((_, name)) = SETTINGS.iter().find(|(k, _)| *k == kind) {
                values.insert(format!("{PREFIX}{number} {name}"), hex(value));
            }
        }
    }
    values
}

/// Sends only what differs. The error names the values that were refused, and why; the others are
/// set.
pub fn give(socket: &mut KernelSocket, ifindex: u32, values: &Values) -> Result<(), String> {
    let wanted: Vec<(&String, &String)> = values.iter().filter(|(key, _)| is_ours(key)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let now = read(socket, ifindex);
    let mut refused = Vec::new();
    for (key, value) in wanted
        .into_iter()
        .filter(|(key, value)| now.get(*key) != Some(*value))
    {
        let Some(change) = change(key, value) else {
            continue;
        };
        let set = socket.transact(RTM_SETLINK, &message(ifindex, &change));
        refused.extend(set.err().map(|e| format!("{key}: {e}")));
    }
    unless_refused(refused)
}

/// The attributes that set one value: what the kernel reported has the function's number in it.
fn change(key: &str, value: &str) -> Option<Vec<u8>> {
    let name = key.rsplit(' ').next()?;
    let (number, _) = SETTINGS.iter().find(|(_, n)| *n == name)?;
    let nested = if *number == VLAN_LIST {
        NLA_F_NESTED
    } else {
        0
    };
    let info = attribute(
        IFLA_VF_INFO | NLA_F_NESTED,
        &attribute(number | nested, &unhex(value)?),
    );
    Some(attribute(IFLA_VFINFO_LIST | NLA_F_NESTED, &info))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_of_functions_sets_them() {
        let spoofchk = |vf: u32| attribute(4, &[vf.to_ne_bytes(), 1u32.to_ne_bytes()].concat());
        let vlan = attribute(1, &[0, 0, 0, 0, 100, 0, 0, 0, 3, 0, 0, 0, 0x81, 0, 0, 0]);
        let vlans = attribute(VLAN_LIST | NLA_F_NESTED, &vlan);
        let traffic = attribute(8 | NLA_F_NESTED, &[0; 64]);
        let info =
            |settings: &[Vec<u8>]| attribute(IFLA_VF_INFO | NLA_F_NESTED, &settings.concat());
        let list = [
            info(&[spoofchk(0), traffic.clone(), vlans.clone()]),
            info(&[spoofchk(1), traffic]),
        ]
        .concat();
        let link = [
            attribute(3, b"r0\0"),
            attribute(IFLA_VFINFO_LIST | NLA_F_NESTED, &list),
        ]
        .concat();
        let observed = parse(&link);
        assert_eq!(
            observed.keys().collect::<Vec<_>>(),
            ["vf 0 spoofchk", "vf 0 vlan", "vf 1 spoofchk"]
        );
        let sets = |settings: Vec<u8>| {
            Some(attribute(
                IFLA_VFINFO_LIST | NLA_F_NESTED,
                &info(&[settings]),
            ))
        };
        assert_eq!(
            change("vf 1 spoofchk", &observed["vf 1 spoofchk"]),
            sets(spoofchk(1))
        );
        assert_eq!(change("vf 0 vlan", &observed["vf 0 vlan"]), sets(vlans));
        assert_eq!(
            (change("vf 0 vlan", "x1"), change("vf 0 colour", "00")),
            (None, None)
        );
    }
}
