//! IFLA_AF_SPEC of a link message: what address families say of a link. That is half of it, and
//! the library makes a structure of each array and counter in there.

use crate::generic::attribute;
use crate::nla::{self, Nla};

/// The length of `struct ifinfomsg` (include/uapi/linux/rtnetlink.h), which begins with the family
/// that is asked.
pub(crate) const IFINFOMSG: usize = 16;
const AF_UNSPEC: u8 = 0;
/// include/uapi/linux/if_link.h.
pub(crate) const IFLA_AF_SPEC: u16 = 26;
const IFLA_INET6_TOKEN: u16 = 7;
/// include/linux/socket.h.
pub(crate) const AF_INET: u16 = 2;
pub(crate) const AF_INET6: u16 = 10;
/// IFLA_STATS, IFLA_MAP, IFLA_STATS64, IFLA_PROMISCUITY, IFLA_NUM_TX_QUEUES, IFLA_NUM_RX_QUEUES,
/// IFLA_CARRIER, IFLA_CARRIER_CHANGES, IFLA_CARRIER_UP_COUNT, IFLA_CARRIER_DOWN_COUNT, IFLA_MIN_MTU
/// and IFLA_MAX_MTU: states and limits, of which nothing is asked either.
const UNREAD: [u16; 12] = [7, 14, 23, 30, 31, 32, 33, 35, 47, 48, 50, 51];
/// NLA_F_NESTED (include/uapi/linux/netlink.h).
const NESTED: u16 = 0x8000;

pub(crate) fn find(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    let mut all = nla::each(attributes).flatten();
    all.find(|a| a.kind == kind).map(|a| a.value)
}

/// Of what a namespace says of a link, all but what only [`crate::devconf`] reads: of the families
/// the token of IPv6 is left. Another message, and one that is malformed, is left as it is.
pub(crate) fn without_settings(message: &[u8]) -> Vec<u8> {
    shorter(message).unwrap_or_else(|| message.to_vec())
}

fn shorter(message: &[u8]) -> Option<Vec<u8>> {
    let (header, rest) = message.split_at_checked(IFINFOMSG)?;
    if *header.first()? != AF_UNSPEC {
        return None;
    }
    let mut kept = Vec::with_capacity(message.len());
    kept.extend_from_slice(header);
    for attribute in nla::each(rest) {
        let Nla { kind, value, whole } = attribute?;
        match kind {
            IFLA_AF_SPEC => kept.extend(token(value).unwrap_or_default()),
            kind if UNREAD.contains(&kind) => {}
            _ => kept.extend_from_slice(whole),
        }
    }
    Some(kept)
}

fn token(families: &[u8]) -> Option<Vec<u8>> {
    let token = find(find(families, AF_INET6)?, IFLA_INET6_TOKEN)?;
    let family = attribute(AF_INET6 | NESTED, &attribute(IFLA_INET6_TOKEN, token));
    Some(attribute(IFLA_AF_SPEC | NESTED, &family))
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader};
    use netlink_packet_route::RouteNetlinkMessage as Message;
    use netlink_packet_route::link::LinkMessage;

    use super::*;
    use crate::rtnl::{Names, netdev};

    const NEWLINK: u16 = 16;

    fn captured() -> Vec<u8> {
        let text = include_str!("devconf/link.hex");
        let digits: Vec<char> = text.chars().filter(char::is_ascii_hexdigit).collect();
        let byte =
            |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    fn with_token() -> Vec<u8> {
        let token = attribute(
            IFLA_INET6_TOKEN,
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7],
        );
        let conf = attribute(2, &[0; 240]);
        let six = attribute(AF_INET6 | NESTED, &[conf, token].concat());
        let four = attribute(AF_INET | NESTED, &attribute(1 | NESTED, &[0; 132]));
        let families = attribute(IFLA_AF_SPEC | NESTED, &[four, six].concat());
        let name = attribute(3, b"rdma0\0");
        [vec![0; IFINFOMSG], name, families].concat()
    }

    fn link(message: &[u8]) -> LinkMessage {
        let mut header = NetlinkHeader::default();
        header.message_type = NEWLINK;
        match Message::deserialize(&header, message) {
            Ok(Message::NewLink(link)) => link,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn settings_go_and_the_netdev_is_the_same() {
        for message in [captured(), with_token()] {
            let short = without_settings(&message);
            assert!(short.len() + 350 < message.len(), "{}", short.len());
            let [whole, short] = [&message, &short].map(|m| netdev(&link(m), &Names::new()));
            assert!(whole.is_some());
            assert_eq!(short, whole);
        }
        let short = link(&without_settings(&with_token()));
        let token = netdev(&short, &Names::new()).unwrap().token;
        assert_eq!(token, Some("::7".parse().unwrap()));
    }

    #[test]
    fn what_is_malformed_or_of_a_family_is_left_as_it_is() {
        let mut of_bridge = captured();
        of_bridge[0] = 7;
        assert_eq!(without_settings(&of_bridge), of_bridge);
        for length in 0..IFINFOMSG {
            assert_eq!(
                without_settings(&captured()[..length]),
                captured()[..length]
            );
        }
        let cut = &captured()[..captured().len() - 5];
        assert_eq!(without_settings(cut), cut);
    }
}
