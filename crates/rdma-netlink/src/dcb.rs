//! Data Center Bridging: which priorities pause, how classes share the wire, and which applications
//! have which priority (include/uapi/linux/dcbnl.h, net/dcb/dcbnl.c). The table of applications
//! goes with each move (dcbnl_netdevice_event). Sizes of buffers are left out: drivers derive them
//! from the MTU and the lossless priorities. So is CEE, which RoCE does not use, and what the
//! card's own DCBX has agreed on with the switch.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use netlink_packet_core::NLA_F_NESTED;
use rdma_model::ids::IfName;

use crate::counters::Pauses;
use crate::ethtool::{Values, hex, unhex};
use crate::generic::attribute;
use crate::reply::attributes;
use crate::socket::KernelSocket;
use crate::unless_refused;

const PREFIX: &str = "dcb ";

/// include/uapi/linux/rtnetlink.h.
const RTM_GETDCB: u16 = 78;
const RTM_SETDCB: u16 = 79;
/// Bytes of `struct dcbmsg`.
const HEADER: usize = 4;
/// DCB_CMD_*.
const IEEE_SET: u8 = 20;
const IEEE_GET: u8 = 21;
const SDCBX: u8 = 23;
const IEEE_DEL: u8 = 27;
/// DCB_ATTR_*.
const IFNAME: u16 = 1;
const IEEE: u16 = 13;
const DCBX: u16 = 14;
/// DCB_ATTR_IEEE_*.
const ETS: u16 = 1;
const PFC: u16 = 2;
const APP_TABLE: u16 = 3;
const MAXRATE: u16 = 7;
/// IEEE_8021QAZ_APP_SEL_DSCP.
const BY_DSCP: u8 = 5;
/// DCB_CAP_DCBX_HOST: the card leaves DCBX to the host, and what is set stays.
const BY_HOST: u8 = 1;
/// `struct ieee_pfc`: what is set begins behind pfc_cap and ends before the counters.
const PFC_SET: std::ops::Range<usize> = 1..6;
const PFC_BYTES: usize = 136;
/// Where it has frames that were sent (`requests`), and behind them those that were received
/// (`indications`): eight numbers each, by priority.
const PFC_COUNTERS: usize = 8;
const PRIORITIES: usize = 8;

pub fn is_ours(key: &str) -> bool {
    key.starts_with(PREFIX)
}

fn message(command: u8, dev: &IfName, rest: &[u8]) -> Vec<u8> {
    [
        &[0, command, 0, 0],
        &*attribute(IFNAME, &[dev.as_str().as_bytes(), &[0]].concat()),
        rest,
    ]
    .concat()
}

/// What a netdev has; nothing where its driver has no DCB.
pub fn read(socket: &mut KernelSocket, dev: &IfName) -> Values {
    let answer = socket
        .transact(RTM_GETDCB, &message(IEEE_GET, dev, &[]))
        .unwrap_or_default();
    let first = answer
        .first()
        .and_then(|a| a.get(HEADER..))
        .unwrap_or_default();
    parse(first)
        .into_iter()
        .map(|(name, value)| (format!("{PREFIX}{name}"), value))
        .collect()
}

/// Frames by which priorities asked for a pause (802.1Qbb), by priority; nothing where the driver
/// has no DCB. Drivers count what the card has seen, also of what the host has not set.
pub fn pauses(socket: &mut KernelSocket, dev: &IfName) -> Option<[Pauses; PRIORITIES]> {
    let answer = socket.transact(RTM_GETDCB, &message(IEEE_GET, dev, &[]));
    let answer = answer.ok()?.into_iter().next()?;
    counted(answer.get(HEADER..)?)
}

/// What a netdev does so that no packet is lost, whether the host has set it, or the card has it
/// from the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lossless {
    /// The priorities that pause.
    pub priorities: BTreeSet<u8>,
    /// The priority of a packet by its DSCP, where the table of applications says so.
    pub by_dscp: BTreeMap<u8, u8>,
}

/// Nothing where the driver has no DCB, or does not tell of PFC.
pub fn lossless(socket: &mut KernelSocket, dev: &IfName) -> Option<Lossless> {
    let answer = socket.transact(RTM_GETDCB, &message(IEEE_GET, dev, &[]));
    let answer = answer.ok()?.into_iter().next()?;
    pausing(answer.get(HEADER..)?)
}

fn pausing(answer: &[u8]) -> Option<Lossless> {
    let all: BTreeMap<u16, &[u8]> = attributes(answer).flatten().collect();
    let ieee: BTreeMap<u16, &[u8]> = attributes(all.get(&IEEE)?).flatten().collect();
    let enabled = *ieee.get(&PFC)?.get(PFC_SET)?.first()?;
    let table = ieee.get(&APP_TABLE).copied().unwrap_or_default();
    let apps = attributes(table).flatten().map(|(_, app)| app);
    Some(Lossless {
        priorities: (0..8).filter(|bit| enabled & (1 << bit) != 0).collect(),
        by_dscp: apps.filter_map(dscp).collect(),
    })
}

/// `struct dcb_app`: selector, priority, and the protocol in the order of this machine.
fn dscp(app: &[u8]) -> Option<(u8, u8)> {
    let &[BY_DSCP, priority, first, second] = app else {
        return None;
    };
    let value = u16::from_ne_bytes([first, second]);
    Some((u8::try_from(value).ok()?, priority))
}

fn counted(answer: &[u8]) -> Option<[Pauses; PRIORITIES]> {
    let all: BTreeMap<u16, &[u8]> = attributes(answer).flatten().collect();
    let ieee: BTreeMap<u16, &[u8]> = attributes(all.get(&IEEE)?).flatten().collect();
    let numbers = ieee.get(&PFC).filter(|pfc| pfc.len() == PFC_BYTES)?;
    let numbers = numbers.get(PFC_COUNTERS..)?;
    let mut pauses = [Pauses::default(); PRIORITIES];
    for (priority, pause) in pauses.iter_mut().enumerate() {
        pause.sent = number_at(numbers, priority)?;
        pause.received = number_at(numbers, PRIORITIES + priority)?;
    }
    Some(pauses)
}

fn number_at(numbers: &[u8], place: usize) -> Option<u64> {
    let bytes = numbers.chunks_exact(size_of::<u64>()).nth(place)?;
    bytes.try_into().ok().map(u64::from_ne_bytes)
}

fn parse(answer: &[u8]) -> BTreeMap<&'static str, String> {
    let mut observed = BTreeMap::new();
    let all: BTreeMap<u16, &[u8]> = attributes(answer).flatten().collect();
    let by = all.get(&DCBX).and_then(|mode| mode.first().copied());
    observed.extend(by.map(|mode| ("dcbx", mode.to_string())));
    let Some(ieee) = all
        .get(&IEEE)
        .filter(|_| by.is_none_or(|mode| mode & BY_HOST != 0))
    else {
        return observed;
    };
    for (kind, value) in attributes(ieee).flatten() {
        match kind {
            ETS => drop(observed.insert("ets", hex(value))),
            MAXRATE => drop(observed.insert("maxrate", hex(value))),
            PFC => observed.extend(value.get(PFC_SET).map(|set| ("pfc", hex(set)))),
            APP_TABLE => {
                // Its own number tells of which standard an entry is.
                let all = attributes(value)
                    .flatten()
                    .map(|(kind, app)| format!("{kind}:{}", hex(app)));
                observed.insert(
                    "app",
                    all.collect::<BTreeSet<_>>()
                        .into_iter()
                        .collect::<Vec<_>>()
                        .join(","),
                );
            }
            _ => {}
        }
    }
    observed
}

/// Sends only what differs. The error names the values that were refused, and why; the others are
/// set.
pub fn give(socket: &mut KernelSocket, dev: &IfName, values: &Values) -> Result<(), String> {
    let mut refused = Vec::new();
    // Who decides comes first: the rest is the host's only then.
    for name in ["dcbx", "ets", "pfc", "maxrate", "app"] {
        let key = format!("{PREFIX}{name}");
        let Some(wanted) = values.get(&key) else {
            continue;
        };
        let now = read(socket, dev).remove(&key).unwrap_or_default();
        if now == *wanted {
            continue;
        }
        for (command, rest) in changes(name, wanted, &now) {
            let set: io::Result<_> = socket.transact(RTM_SETDCB, &message(command, dev, &rest));
            refused.extend(set.err().map(|e| format!("{key}: {e}")));
        }
    }
    unless_refused(refused)
}

fn changes(name: &str, wanted: &str, now: &str) -> Vec<(u8, Vec<u8>)> {
    let ieee = |rest: Vec<u8>| attribute(IEEE | NLA_F_NESTED, &rest);
    let plain = |number: u16, bytes: Option<Vec<u8>>| {
        bytes
            .map(|bytes| (IEEE_SET, ieee(attribute(number, &bytes))))
            .into_iter()
            .collect()
    };
    match name {
        "dcbx" => wanted
            .parse()
            .map(|mode: u8| (SDCBX, attribute(DCBX, &[mode])))
            .into_iter()
            .collect(),
        "ets" => plain(ETS, unhex(wanted)),
        "maxrate" => plain(MAXRATE, unhex(wanted)),
        "pfc" => plain(
            PFC,
            unhex(wanted)
                .filter(|set| set.len() == PFC_SET.len())
                .map(|set| {
                    let mut bytes = vec![0; PFC_BYTES];
                    bytes[PFC_SET].copy_from_slice(&set);
                    bytes
                }),
        ),
        _ => {
            let (mut extra, mut missing) = (entries(now), entries(wanted));
            extra.retain(|app| !missing.contains(app));
            let now = entries(now);
            missing.retain(|app| !now.contains(app));
            let mut both = vec![(IEEE_DEL, extra.concat()), (IEEE_SET, missing.concat())];
            both.retain(|(_, apps)| !apps.is_empty());
            let tables = both
                .into_iter()
                .map(|(command, apps)| (command, ieee(attribute(APP_TABLE | NLA_F_NESTED, &apps))));
            tables.collect()
        }
    }
}

fn entries(text: &str) -> Vec<Vec<u8>> {
    let entries = text.split(',').filter_map(|entry| {
        let (kind, app) = entry.split_once(':')?;
        Some(attribute(kind.parse().ok()?, &unhex(app)?))
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(mode: u8, pfc: [u8; 6], count: u8, apps: &[[u8; 4]]) -> Vec<u8> {
        let mut bytes = vec![count; PFC_BYTES];
        bytes[..6].copy_from_slice(&pfc);
        let table: Vec<u8> = apps.iter().flat_map(|app| attribute(1, app)).collect();
        let ieee = [
            attribute(ETS, &[7; 59]),
            attribute(PFC, &bytes),
            attribute(APP_TABLE | NLA_F_NESTED, &table),
            // Of the peer.
            attribute(4, &[9; 59]),
        ];
        [
            attribute(IFNAME, b"r0\0"),
            attribute(IEEE | NLA_F_NESTED, &ieee.concat()),
            attribute(DCBX, &[mode]),
        ]
        .concat()
    }

    #[test]
    fn counters_and_what_the_peer_tells_are_left_out() {
        let one = parse(&answer(
            0x09,
            [8, 0x18, 0, 0, 1, 2],
            5,
            &[[5, 3, 0, 26], [1, 3, 6, 137]],
        ));
        let same = parse(&answer(
            0x09,
            [8, 0x18, 0, 0, 1, 2],
            77,
            &[[1, 3, 6, 137], [5, 3, 0, 26]],
        ));
        assert_eq!(one, same);
        assert_eq!(
            (&*one["pfc"], &*one["dcbx"], &*one["app"]),
            ("1800000102", "9", "1:01030689,1:0503001a")
        );
        assert_eq!(one["ets"], "07".repeat(59));
        // What the card agreed on with the switch by itself.
        assert_eq!(
            parse(&answer(0x0a, [0; 6], 0, &[]))
                .into_keys()
                .collect::<Vec<_>>(),
            ["dcbx"]
        );
        assert!(parse(&[]).is_empty());
    }

    #[test]
    fn pauses_are_told_by_priority_whoever_decides() {
        let mut answer = answer(0x0a, [8, 0x18, 0, 0, 1, 2], 0, &[]);
        let frames = attribute(PFC, &[0; PFC_BYTES]);
        let at = answer.windows(4).position(|four| four == &frames[..4]);
        let at = at.unwrap() + 4;
        answer[at + 8 + 3 * 8] = 5;
        answer[at + 8 + 64 + 3 * 8] = 6;
        let all = counted(&answer).unwrap();
        assert_eq!((all[3].sent, all[3].received), (5, 6));
        assert_eq!(all[4], Pauses::default());
        assert_eq!(counted(&[]), None);
    }

    #[test]
    fn what_pauses_is_told_whoever_decides() {
        let app = |selector: u8, priority: u8, protocol: u16| {
            let [first, second] = protocol.to_ne_bytes();
            [selector, priority, first, second]
        };
        let apps = [app(5, 3, 26), app(1, 4, 0x8906), app(5, 0, 300)];
        let known = pausing(&answer(0x0a, [8, 0x18, 0, 0, 1, 2], 0, &apps)).unwrap();
        assert_eq!(known.priorities, [3, 4].into());
        assert_eq!(known.by_dscp, [(26, 3)].into());
        let none = pausing(&answer(0x09, [8, 0, 0, 0, 1, 2], 0, &[])).unwrap();
        assert_eq!(none, Lossless::default());
        assert_eq!(pausing(&[]), None);
        assert_eq!(pausing(&attribute(IEEE, &attribute(PFC, &[8]))), None);
    }

    #[test]
    fn priorities_come_back_as_they_were_told() {
        let [(IEEE_SET, pfc)] = &changes("pfc", "1800000102", "0000000000")[..] else {
            panic!("not one")
        };
        let again: Vec<u8> = [pfc.clone(), attribute(DCBX, &[9])].concat();
        assert_eq!(parse(&again)["pfc"], "1800000102");
        let apps = changes("app", "1:01030689,1:0503001a", "1:0503001a,1:05040018");
        let table = |app: &[u8]| {
            attribute(
                IEEE | NLA_F_NESTED,
                &attribute(APP_TABLE | NLA_F_NESTED, &attribute(1, app)),
            )
        };
        assert_eq!(
            apps,
            [
                (IEEE_DEL, table(&[5, 4, 0, 24])),
                (IEEE_SET, table(&[1, 3, 6, 137]))
            ]
        );
        // Text that no kernel has sent sets nothing.
        assert!(
            ["ets", "pfc", "dcbx", "app"]
                .iter()
                .all(|name| changes(name, "xyz", "").is_empty())
        );
    }
}
