//! RTM_NEWNEIGHTBL -> the sysctls of a link below `/proc/sys/net/ipv4/neigh` and
//! `/proc/sys/net/ipv6/neigh`. A value that is not reported, or from which the text of the file
//! does not follow, is nothing here: it is read from its file.

use std::collections::HashMap;

use crate::raw::{Attributes, Raw, attributes, word};

const NDTA_PARMS: u16 = 6;
const NDTPA_IFINDEX: u16 = 1;
/// include/linux/socket.h.
pub const AF_INET: u8 = 2;
pub const AF_INET6: u8 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Count,
    /// Jiffies as milliseconds in both.
    Millis,
    /// In the file as seconds, rounded down; it may be given in milliseconds by another file.
    Seconds,
    /// In the file as seconds, as which alone it can be given.
    WholeSeconds,
    /// In the file of IPv4 in 1/100 s (USER_HZ), rounded down.
    Ticks,
    /// As that, but in the file of IPv6 in jiffies (ndisc_ifinfo_sysctl_change in
    /// net/ipv6/ndisc.c).
    Retransmission,
}

use Form::{Count, Millis, Retransmission, Seconds, Ticks, WholeSeconds};

/// NDTPA_* by the names of neigh_sysctl_template (net/core/neighbour.c).
const PARMS: [(&str, u16, Form); 17] = [
    ("base_reachable_time", 4, Seconds),
    ("base_reachable_time_ms", 4, Millis),
    ("retrans_time", 5, Retransmission),
    ("retrans_time_ms", 5, Millis),
    ("gc_stale_time", 6, WholeSeconds),
    ("delay_first_probe_time", 7, WholeSeconds),
    ("unres_qlen", 8, Count),
    ("app_solicit", 9, Count),
    ("ucast_solicit", 10, Count),
    ("mcast_solicit", 11, Count),
    ("anycast_delay", 12, Ticks),
    ("proxy_delay", 13, Ticks),
    ("proxy_qlen", 14, Count),
    ("locktime", 15, Ticks),
    ("unres_qlen_bytes", 16, Count),
    ("mcast_resolicit", 17, Count),
    ("interval_probe_time_ms", 19, Millis),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parms {
    family: u8,
    attributes: Attributes,
    /// Milliseconds of a jiffy, if that is a whole number. If not, as with CONFIG_HZ_300, the
    /// message and the file round it in different ways (jiffies_to_msecs and jiffies_to_clock_t in
    /// kernel/time/time.c).
    jiffy: Option<i32>,
}

/// What all links have, by address family and index; that of no link is what a new link of the
/// first namespace gets.
pub type Tables = HashMap<(u8, Option<u32>), Parms>;

/// Reads a list. `tick` is what a jiffy takes, in nanoseconds.
pub fn tables(messages: &[Raw], tick: u64) -> Tables {
    let whole = tick != 0 && tick % 1_000_000 == 0;
    let jiffy = i32::try_from(tick / 1_000_000).ok().filter(|_| whole);
    messages.iter().filter_map(|m| table(m, jiffy)).collect()
}

fn table(message: &Raw, jiffy: Option<i32>) -> Option<((u8, Option<u32>), Parms)> {
    let attributes = attributes(&message.attributes.get(&NDTA_PARMS)?.0).ok()?;
    let index = attributes
        .get(&NDTPA_IFINDEX)
        .and_then(|index| word(&index.0));
    let family = message.byte(0);
    Some((
        (family, index),
        Parms {
            family,
            attributes,
            jiffy,
        },
    ))
}

impl Parms {
    pub fn value(&self, leaf: &str) -> Option<String> {
        let (_, number, form) = PARMS.iter().find(|(name, _, _)| *name == leaf)?;
        self.text(number_of(&self.attributes.get(number)?.0)?, *form)
    }

    /// What is below zero, or takes 32 bits, is read from the file. A time that is longer than 49
    /// days is cut to 32 bits: of most of these a whole number of seconds does not remain.
    fn text(&self, number: u32, form: Form) -> Option<String> {
        let number = i32::try_from(number).ok()?;
        let jiffy = if form == Count { 1 } else { self.jiffy? };
        let number = match form {
            Count | Millis => number,
            WholeSeconds if number % 1000 != 0 => return None,
            Seconds | WholeSeconds => number / 1000,
            Retransmission if self.family == AF_INET6 => number / jiffy,
            Retransmission | Ticks => number / 10,
        };
        Some(number.to_string())
    }
}

/// A count is 32 bits long, a time 64, of which the kernel fills 32.
fn number_of(value: &[u8]) -> Option<u32> {
    let wide = || Some(u64::from_ne_bytes(value.try_into().ok()?));
    word(value).or_else(|| u32::try_from(wide()?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::{Packet, RTM_NEWNEIGHTBL};
    use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader};

    /// The index of the veth.
    const INDEX: u32 = 3;
    /// A jiffy of CONFIG_HZ_250.
    const TICK: u64 = 4_000_000;

    /// As Linux 6.18 reports the tables of a namespace, of a veth with defaults, but for
    /// `retrans_time_ms` 1234, `base_reachable_time_ms` 30500, `locktime` 77, `unres_qlen_bytes`
    /// 9000 and `proxy_qlen` 5 of IPv4.
    const CAPTURED: &str = include_str!("neigh_parms/tables.hex");

    fn captured() -> Vec<Raw> {
        let message = |line: &str| {
            let digits: Vec<char> = line.chars().collect();
            let byte =
                |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
            let bytes: Vec<u8> = digits.chunks(2).map(byte).collect();
            let mut header = NetlinkHeader::default();
            header.message_type = RTM_NEWNEIGHTBL;
            match Packet::deserialize(&header, &bytes).unwrap() {
                Packet::Raw(raw) => raw,
                Packet::Known(_) => panic!("{line}"),
            }
        };
        CAPTURED.lines().map(message).collect()
    }

    #[test]
    fn captured_tables_have_the_values_of_their_files() {
        let all = tables(&captured(), TICK);
        for line in include_str!("neigh_parms/files").lines() {
            let (path, value) = line.split_once(' ').unwrap();
            let (folder, leaf) = path.split_once("/neigh/").unwrap();
            let family = if folder == "ipv4" { 2 } else { 10 };
            let found = all
                .get(&(family, Some(INDEX)))
                .and_then(|parms| parms.value(leaf));
            assert_eq!(found.as_deref(), Some(value), "{path}");
        }
        assert!(all.contains_key(&(2, None)) && !all.contains_key(&(2, Some(99))));
        let own = &all[&(2, Some(INDEX))];
        let values = [
            "retrans_time",
            "base_reachable_time",
            "locktime",
            "gc_thresh1",
            "",
        ]
        .map(|leaf| own.value(leaf));
        assert_eq!(
            values.each_ref().map(Option::as_deref),
            [Some("123"), Some("30"), Some("76"), None, None]
        );
    }

    #[test]
    fn times_of_an_uneven_jiffy_are_left_to_their_files() {
        for tick in [3_333_333, 976_562, 0] {
            let all = tables(&captured(), tick);
            let own = &all[&(2, None)];
            assert_eq!(
                (
                    own.value("locktime"),
                    own.value("retrans_time_ms"),
                    own.value("gc_stale_time")
                ),
                (None, None, None)
            );
            assert_eq!(own.value("proxy_qlen").as_deref(), Some("64"));
        }
    }

    #[test]
    fn numbers_become_text_by_their_form_or_not_at_all() {
        let of = |family, jiffy| Parms {
            family,
            attributes: Attributes::new(),
            jiffy: Some(jiffy),
        };
        for (number, form, want) in [
            (5, Count, Some("5")),
            (1999, Seconds, Some("1")),
            (1000, WholeSeconds, Some("1")),
            (705_032_704, WholeSeconds, None),
            (1239, Ticks, Some("123")),
            (0x8000_0000, Millis, None),
            (u32::MAX - 4999, Seconds, None),
        ] {
            assert_eq!(
                of(AF_INET, 4).text(number, form).as_deref(),
                want,
                "{number} {form:?}"
            );
        }
        let retransmission = |family, jiffy| of(family, jiffy).text(1236, Retransmission).unwrap();
        assert_eq!(
            [
                retransmission(AF_INET, 4),
                retransmission(AF_INET6, 4),
                retransmission(AF_INET6, 1)
            ],
            ["123", "309", "1236"]
        );
    }
}
