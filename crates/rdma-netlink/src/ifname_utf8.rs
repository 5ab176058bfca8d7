//! Link names, alternative names and aliases are bytes to the kernel (dev_valid_name() in
//! net/core/dev.c refuses few), and text to our records and to the library, which drops a whole
//! link message for one byte that is no UTF-8. Root in a container could so make its NICs invisible
//! to us, or give them names that cannot be deleted. So every name of bytes has a text of its own,
//! which [`bytes`] turns back.

use std::ops::RangeInclusive;

use netlink_packet_core::{DecodeError, NetlinkDeserializable, NetlinkHeader};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::{LinkAttribute, Prop};

use crate::af_spec::{self, IFINFOMSG};

/// include/uapi/linux/rtnetlink.h.
pub(crate) const NEWLINK: u16 = 16;
/// include/uapi/linux/if_link.h.
const IFLA_IFNAME: u16 = 3;
pub const IFLA_IFALIAS: u16 = 20;
pub const IFLA_PROP_LIST: u16 = 52;
/// An alternative name: bytes and a zero.
pub const IFLA_ALT_IFNAME: u16 = 53;
/// What no name of a link holds (dev_valid_name()), for bytes of one that is no text.
const NO_NAME: u8 = b'/';
/// NLA_TYPE_MASK (include/uapi/linux/netlink.h).
const TYPE: u16 = 0x3fff;

/// Where bytes that are no UTF-8 are in a text: the end of the last private use area of Unicode,
/// which no name has.
const ESCAPED: RangeInclusive<u32> = 0x10_ff00..=0x10_ffff;

/// A name of the kernel's as text, up to its NUL; [`bytes`] undoes it.
pub fn text(name: &[u8]) -> String {
    let escaped = |b: &u8| char::from_u32(ESCAPED.start() + u32::from(*b));
    let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    let mut text = String::new();
    for chunk in name.get(..end).unwrap_or_default().utf8_chunks() {
        for c in chunk.valid().chars() {
            match ESCAPED.contains(&u32::from(c)) {
                true => text.extend(
                    c.encode_utf8(&mut [0; 4])
                        .as_bytes()
                        .iter()
                        .filter_map(escaped),
                ),
                false => text.push(c),
            }
        }
        text.extend(chunk.invalid().iter().filter_map(escaped));
    }
    text
}

/// The bytes of a name, without a NUL.
pub fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for c in text.chars() {
        match u8::try_from(u32::from(c).wrapping_sub(*ESCAPED.start())) {
            Ok(byte) => bytes.push(byte),
            Err(_) => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

pub fn link(header: &NetlinkHeader, payload: &[u8]) -> Result<Message, DecodeError> {
    let mut mended = af_spec::without_settings(payload);
    let found = mended.get_mut(IFINFOMSG..).map(names).unwrap_or_default();
    let mut message = Message::deserialize(header, &mended)?;
    if let Message::NewLink(link) = &mut message {
        for attribute in &mut link.attributes {
            match attribute {
                LinkAttribute::IfAlias(alias) => alias.clone_from(&found.alias),
                LinkAttribute::PropList(all) => {
                    *all = found
                        .altnames
                        .iter()
                        .cloned()
                        .map(Prop::AltIfName)
                        .collect()
                }
                _ => {}
            }
        }
    }
    Ok(message)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Names {
    alias: String,
    altnames: Vec<String>,
}

fn names(attributes: &mut [u8]) -> Names {
    let mut found = Names::default();
    each(attributes, &mut |kind, value| match kind {
        IFLA_IFNAME => mend(value, NO_NAME),
        IFLA_IFALIAS => {
            found.alias = text(value);
            mend(value, b'?');
        }
        IFLA_PROP_LIST => each(value, &mut |kind, name| {
            if kind == IFLA_ALT_IFNAME {
                found.altnames.push(text(name));
                mend(name, b'?');
            }
        }),
        _ => {}
    });
    found
}

/// Shows each attribute; one that is malformed is left to the library.
fn each(mut rest: &mut [u8], show: &mut dyn FnMut(u16, &mut [u8])) {
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let length = usize::from(length);
        let Some(value) = rest.get_mut(4..length) else {
            return;
        };
        show(kind & TYPE, value);
        let next = length.next_multiple_of(4).min(rest.len());
        rest = &mut rest[next..];
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn mend(bytes: &mut [u8], with: u8) {
    if std::str::from_utf8(bytes).is_err() {
        for b in bytes.iter_mut().filter(|b| !b.is_ascii()) {
            *b = with;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut a = (4 + value.len() as u16).to_ne_bytes().to_vec();
        a.extend(kind.to_ne_bytes());
        a.extend(value);
        a.resize(a.len().next_multiple_of(4), 0);
        a
    }

    #[test]
    fn name_of_any_bytes_comes_back_from_its_text() {
        let all: Vec<u8> = (1..=255).collect();
        for name in [
            &b"eth0"[..],
            "é".as_bytes(),
            b"\xff\xfe",
            b"a\xc3",
            &all,
            "\u{10ff41}x".as_bytes(),
            b"a b\n/:",
        ] {
            assert_eq!(bytes(&text(name)), name);
        }
        assert_eq!(
            (text(b"eth0\0").as_str(), text("é".as_bytes()).as_str()),
            ("eth0", "é")
        );
        assert_ne!(text(b"\xff"), text(b"\xfe"));
        assert_ne!(text("\u{10ffff}".as_bytes()), text(b"\xff"));
    }

    #[test]
    fn names_are_read_and_made_readable() {
        let altnames = [
            attribute(IFLA_ALT_IFNAME, b"\xfey\0"),
            attribute(IFLA_ALT_IFNAME, b"ok\0"),
        ]
        .concat();
        let list = |of: &[u8]| attribute(IFLA_PROP_LIST | 0x8000, of);
        let mut link = [
            attribute(IFLA_IFALIAS, b"\xffx\0"),
            list(&altnames),
            attribute(1, b"\xff\xfe"),
        ]
        .concat();
        let found = names(&mut link);
        assert_eq!(
            found,
            Names {
                alias: text(b"\xffx"),
                altnames: vec![text(b"\xfey"), "ok".to_owned()]
            }
        );
        let altnames = [
            attribute(IFLA_ALT_IFNAME, b"?y\0"),
            attribute(IFLA_ALT_IFNAME, b"ok\0"),
        ]
        .concat();
        let mended = [
            attribute(IFLA_IFALIAS, b"?x\0"),
            list(&altnames),
            attribute(1, b"\xff\xfe"),
        ]
        .concat();
        assert_eq!(link, mended, "a link-layer address is no text");
        let mut link = [
            attribute(IFLA_IFNAME, b"a?b\0"),
            attribute(IFLA_IFNAME, b"\xffb\0"),
        ]
        .concat();
        names(&mut link);
        assert_eq!(
            link,
            [
                attribute(IFLA_IFNAME, b"a?b\0"),
                attribute(IFLA_IFNAME, b"/b\0")
            ]
            .concat()
        );
    }

    #[test]
    fn malformed_attributes_are_left_alone() {
        let whole = attribute(IFLA_IFALIAS, b"\xff\0\0\0");
        for length in 0..whole.len() {
            let mut cut = whole[..length].to_vec();
            names(&mut cut);
            assert_eq!(cut, whole[..length]);
        }
    }
}
