//! Link names, alternative names and aliases are bytes to the kernel (dev_valid_name() in net/core/dev.c refuses few), and
//! text to the library, which drops a whole link message for one byte that is no UTF-8. Root in a container could make its
//! NICs invisible to us that way, so such bytes are replaced before the library sees them.

use std::fmt::Debug;
use std::io;

use bytes::BytesMut;
use netlink_packet_core::{NetlinkDeserializable, NetlinkMessage, NetlinkSerializable};
use netlink_proto::{NetlinkCodec, NetlinkMessageCodec};

/// RTM_NEWLINK, and the lengths of nlmsghdr and ifinfomsg.
const NEWLINK: u16 = 16;
const HEADER: usize = 16;
const IFINFOMSG: usize = 16;
/// IFLA_IFNAME, IFLA_IFALIAS, IFLA_PROP_LIST, IFLA_ALT_IFNAME (include/uapi/linux/if_link.h).
const TEXTS: [u16; 3] = [3, 20, 53];
const PROP_LIST: u16 = 52;
/// NLA_TYPE_MASK (include/uapi/linux/netlink.h).
const TYPE: u16 = 0x3fff;

/// The usual framing, with legible link messages.
pub struct Legible;

impl NetlinkMessageCodec for Legible {
    fn decode<T>(src: &mut BytesMut) -> io::Result<Option<NetlinkMessage<T>>>
    where
        T: NetlinkDeserializable + Debug,
    {
        messages(src);
        NetlinkCodec::decode(src)
    }

    fn encode<T>(message: NetlinkMessage<T>, buf: &mut BytesMut) -> io::Result<()>
    where
        T: NetlinkSerializable + Debug,
    {
        NetlinkCodec::encode(message, buf)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// All messages of a datagram; one that is malformed is left to the library.
fn messages(mut rest: &mut [u8]) {
    while let (Some(length), Some(kind)) = (u32_at(rest, 0), u16_at(rest, 4)) {
        let length = length as usize;
        if length < HEADER || length > rest.len() {
            return;
        }
        if let Some(body) = rest.get_mut(HEADER + IFINFOMSG..length).filter(|_| kind == NEWLINK) {
            attributes(body);
        }
        let next = length.next_multiple_of(4).min(rest.len());
        rest = &mut rest[next..];
    }
}

fn attributes(mut rest: &mut [u8]) {
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let length = usize::from(length);
        if length < 4 || length > rest.len() {
            return;
        }
        match kind & TYPE {
            PROP_LIST => attributes(&mut rest[4..length]),
            kind if TEXTS.contains(&kind) => text(&mut rest[4..length]),
            _ => {}
        }
        let next = length.next_multiple_of(4).min(rest.len());
        rest = &mut rest[next..];
    }
}

fn text(bytes: &mut [u8]) {
    if std::str::from_utf8(bytes).is_err() {
        bytes.iter_mut().filter(|b| !b.is_ascii()).for_each(|b| *b = b'?');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link message with one attribute.
    fn link(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut m = Vec::new();
        m.extend((48u32).to_ne_bytes());
        m.extend(NEWLINK.to_ne_bytes());
        m.extend([0; 10 + IFINFOMSG]);
        m.extend((4 + value.len() as u16).to_ne_bytes());
        m.extend(kind.to_ne_bytes());
        m.extend(value);
        m.resize(48, 0);
        m
    }

    #[test]
    fn only_what_is_no_text_is_replaced() {
        for (value, legible) in
            [(&b"\xffx\0"[..], &b"?x\0"[..]), (b"eth0\0", b"eth0\0"), ("é\0".as_bytes(), "é\0".as_bytes())]
        {
            let mut m = link(20, value);
            m.extend(link(3, value));
            messages(&mut m);
            let mut wanted = link(20, legible);
            wanted.extend(link(3, legible));
            assert_eq!(m, wanted);
        }
        let mut nested = link(PROP_LIST | 0x8000, &[7, 0, 53, 0, 0xfe, b'y', 0]);
        messages(&mut nested);
        assert_eq!(nested, link(PROP_LIST | 0x8000, &[7, 0, 53, 0, b'?', b'y', 0]));
        let mut address = link(1, b"\xff\xfe\xfd");
        messages(&mut address);
        assert_eq!(address, link(1, b"\xff\xfe\xfd"), "a link-layer address is no text");
    }

    #[test]
    fn malformed_messages_are_left_alone() {
        for length in 0..48 {
            let mut m = link(20, b"\xff");
            m.truncate(length);
            let before = m.clone();
            messages(&mut m);
            assert_eq!(m, before);
        }
    }
}
