//! What a link has counted, how fast it is, and how often it paused: the kernel's answers as
//! numbers. Nothing here changes a link.

use std::io;

use crate::ethtool::asking;
use crate::generic::Genl;
use crate::reply::attributes;
use crate::socket::KernelSocket;

/// include/uapi/linux/rtnetlink.h.
const RTM_GETLINK: u16 = 18;
/// Bytes of `struct ifinfomsg`, and where the index is.
const IFINFOMSG: usize = 16;
const IFI_INDEX: usize = 4;
/// IFLA_STATS64: `struct rtnl_link_stats64` (include/uapi/linux/if_link.h), up to rx_missed_errors.
const STATS64: u16 = 23;
const FIELDS: usize = 16;
/// ETHTOOL_MSG_LINKMODES_GET, ETHTOOL_MSG_PAUSE_GET, ETHTOOL_FLAG_STATS
/// (include/uapi/linux/ethtool_netlink.h).
const LINKMODES_GET: u8 = 4;
const PAUSE_GET: u8 = 21;
const WITH_STATISTICS: u32 = 4;
/// ETHTOOL_A_LINKMODES_SPEED, ETHTOOL_A_PAUSE_STATS, ETHTOOL_A_PAUSE_STAT_*_FRAMES.
const SPEED: u16 = 5;
const PAUSE_STATISTICS: u16 = 5;
const SENT: u16 = 2;
const RECEIVED: u16 = 3;
/// SPEED_UNKNOWN (include/uapi/linux/ethtool.h).
const UNKNOWN: u32 = u32::MAX;

/// `struct rtnl_link_stats64`, as far as it is of use for any NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    pub received: Direction,
    pub sent: Direction,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Direction {
    pub bytes: u64,
    pub packets: u64,
    pub errors: u64,
    pub drops: u64,
}

/// Frames that asked for a pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pauses {
    pub received: u64,
    pub sent: u64,
}

/// Of a link with that index; nothing where the kernel reports none.
pub fn link(socket: &mut KernelSocket, ifindex: u32) -> io::Result<Option<LinkCounters>> {
    let mut ask = vec![0; IFINFOMSG];
    for (at, byte) in ask.iter_mut().skip(IFI_INDEX).zip(ifindex.to_ne_bytes()) {
        *at = byte;
    }
    let answer = socket.ask(RTM_GETLINK, &ask)?;
    let attributes = answer.get(IFINFOMSG..).unwrap_or_default();
    Ok(attribute(attributes, STATS64).and_then(of_stats))
}

fn of_stats(stats: &[u8]) -> Option<LinkCounters> {
    let numbers = stats.chunks_exact(size_of::<u64>());
    let numbers = numbers.filter_map(|bytes| bytes.try_into().ok().map(u64::from_ne_bytes));
    let numbers: Vec<u64> = numbers.take(FIELDS).collect();
    let &[
        rx_packets,
        tx_packets,
        rx_bytes,
        tx_bytes,
        rx_errors,
        tx_errors,
        rx_dropped,
        tx_dropped,
        ..,
        rx_missed,
    ] = &numbers[..]
    else {
        return None;
    };
    Some(LinkCounters {
        received: Direction {
            bytes: rx_bytes,
            packets: rx_packets,
            errors: rx_errors,
            // What the NIC had no room for is no error to most drivers, and lost all the same.
            drops: rx_dropped + rx_missed,
        },
        sent: Direction {
            bytes: tx_bytes,
            packets: tx_packets,
            errors: tx_errors,
            drops: tx_dropped,
        },
    })
    .filter(|_| numbers.len() == FIELDS)
}

/// Megabits in a second; nothing where there is no carrier, or no driver that says so.
pub fn speed(ethtool: &mut Genl, ifindex: u32) -> Option<u32> {
    let answer = ethtool.ask(LINKMODES_GET, &asking(ifindex, 0)).ok()?;
    number(&answer, SPEED, u32::from_ne_bytes).filter(|speed| *speed != UNKNOWN)
}

/// Pauses of the whole link (802.3x); nothing where its driver counts none.
pub fn pauses(ethtool: &mut Genl, ifindex: u32) -> Option<Pauses> {
    let answer = ethtool.ask(PAUSE_GET, &asking(ifindex, WITH_STATISTICS));
    of_pauses(&answer.ok()?)
}

fn of_pauses(answer: &[u8]) -> Option<Pauses> {
    let counted = attribute(answer, PAUSE_STATISTICS)?;
    Some(Pauses {
        received: number(counted, RECEIVED, u64::from_ne_bytes)?,
        sent: number(counted, SENT, u64::from_ne_bytes)?,
    })
}

fn attribute(all: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut all = attributes(all).flatten();
    all.find(|(kind, _)| *kind == wanted)
        .map(|(_, value)| value)
}

fn number<const N: usize, T>(all: &[u8], wanted: u16, read: fn([u8; N]) -> T) -> Option<T> {
    attribute(all, wanted)?.try_into().ok().map(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generic::attribute as made;
    use netlink_packet_core::NLA_F_NESTED;

    #[test]
    fn pauses_are_those_of_the_answer() {
        let counted = [
            made(SENT, &7_u64.to_ne_bytes()),
            made(RECEIVED, &9_u64.to_ne_bytes()),
        ];
        let answer = made(PAUSE_STATISTICS | NLA_F_NESTED, &counted.concat());
        let expected = Pauses {
            received: 9,
            sent: 7,
        };
        assert_eq!(of_pauses(&answer), Some(expected));
        // As drivers answer that count none.
        assert_eq!(of_pauses(&made(PAUSE_STATISTICS | NLA_F_NESTED, &[])), None);
    }

    #[test]
    fn counters_are_in_the_order_of_the_kernel() {
        let numbers = |count: u64| {
            let bytes = (1..=count).flat_map(u64::to_ne_bytes);
            of_stats(&bytes.collect::<Vec<u8>>())
        };
        let expected = LinkCounters {
            received: Direction {
                bytes: 3,
                packets: 1,
                errors: 5,
                drops: 7 + 16,
            },
            sent: Direction {
                bytes: 4,
                packets: 2,
                errors: 6,
                drops: 8,
            },
        };
        assert_eq!(numbers(25), Some(expected));
        assert_eq!(numbers(15), None);
    }

    #[test]
    fn numbers_of_another_length_are_none() {
        let answer = made(SPEED, &[1, 2, 3]);
        assert_eq!(number(&answer, SPEED, u32::from_ne_bytes), None);
    }
}
