//! Messages of route netlink as a fixed header and attributes by number. The library has no nexthop
//! objects, and reads routes and queueing disciplines into types of its own: an option that it does
//! not know is lost, one that it misreads loses the whole message. Bytes go back as they were
//! reported.

use std::collections::BTreeMap;

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLA_F_NESTED, NetlinkDeserializable, NetlinkHeader,
    NetlinkPayload, NetlinkSerializable, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage as Message;
use rdma_model::ids::Hex;

use crate::ifname_utf8;

/// Attributes by number; one that is sent nested has [`NLA_F_NESTED`] in it.
pub type Attributes = BTreeMap<u16, Hex>;

/// include/uapi/linux/rtnetlink.h.
pub(crate) const RTM_NEWROUTE: u16 = 24;
pub const RTM_DELROUTE: u16 = 25;
pub const RTM_GETROUTE: u16 = 26;
pub(crate) const RTM_NEWQDISC: u16 = 36;
pub(crate) const RTM_DELQDISC: u16 = 37;
pub const RTM_GETQDISC: u16 = 38;
pub(crate) const RTM_NEWTFILTER: u16 = 44;
pub(crate) const RTM_GETTFILTER: u16 = 46;
pub(crate) const RTM_NEWNEIGHTBL: u16 = 64;
/// Lists what neighbours of each link and of each protocol are kept by.
pub const RTM_GETNEIGHTBL: u16 = 66;
pub(crate) const RTM_NEWNEXTHOP: u16 = 104;
pub(crate) const RTM_DELNEXTHOP: u16 = 105;
pub const RTM_GETNEXTHOP: u16 = 106;
/// The length of `struct ndtmsg` (include/uapi/linux/neighbour.h), which begins with the address
/// family.
pub(crate) const NDTMSG: usize = 4;

fn header_length(kind: u16) -> Option<usize> {
    match kind {
        RTM_NEWROUTE..=RTM_GETROUTE => Some(12),
        RTM_NEWQDISC..=RTM_GETQDISC | RTM_NEWTFILTER..=RTM_GETTFILTER => Some(20),
        RTM_NEWNEXTHOP..=RTM_GETNEXTHOP => Some(8),
        RTM_NEWNEIGHTBL..=RTM_GETNEIGHTBL => Some(NDTMSG),
        _ => None,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw {
    pub kind: u16,
    /// rtmsg, tcmsg, nhmsg or ndtmsg.
    pub header: Vec<u8>,
    pub attributes: Attributes,
}

impl Raw {
    pub fn dump(kind: u16, family: u8) -> Raw {
        let mut header = vec![0; header_length(kind).unwrap_or_default()];
        for f in header.iter_mut().take(1) {
            *f = family;
        }
        Raw {
            kind,
            header,
            attributes: Attributes::new(),
        }
    }

    pub fn byte(&self, at: usize) -> u8 {
        self.header.get(at).copied().unwrap_or_default()
    }

    pub fn word(&self, at: usize) -> u32 {
        self.header
            .get(at..at + 4)
            .and_then(word)
            .unwrap_or_default()
    }
}

#[derive(Clone, Debug)]
pub enum Packet {
    Known(Box<Message>),
    Raw(Raw),
}

impl From<Message> for Packet {
    fn from(message: Message) -> Packet {
        Packet::Known(Box::new(message))
    }
}

impl From<Raw> for Packet {
    fn from(raw: Raw) -> Packet {
        Packet::Raw(raw)
    }
}

impl From<Packet> for NetlinkPayload<Packet> {
    fn from(packet: Packet) -> NetlinkPayload<Packet> {
        NetlinkPayload::InnerMessage(packet)
    }
}

impl NetlinkDeserializable for Packet {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Packet, DecodeError> {
        let kind = header.message_type;
        if kind == ifname_utf8::NEWLINK {
            return ifname_utf8::link(header, payload).map(Packet::from);
        }
        let Some(length) = header_length(kind) else {
            return Message::deserialize(header, payload).map(Packet::from);
        };
        let (header, rest) = payload
            .split_at_checked(length)
            .ok_or("a message without its header")?;
        Ok(Raw {
            kind,
            header: header.to_vec(),
            attributes: attributes(rest)?,
        }
        .into())
    }
}

impl NetlinkSerializable for Packet {
    fn message_type(&self) -> u16 {
        match self {
            Packet::Known(message) => message.message_type(),
            Packet::Raw(raw) => raw.kind,
        }
    }

    fn buffer_len(&self) -> usize {
        match self {
            Packet::Known(message) => NetlinkSerializable::buffer_len(message.as_ref()),
            Packet::Raw(raw) => raw.header.len() + emitted(&raw.attributes).len(),
        }
    }

    fn serialize(&self, buffer: &mut [u8]) {
        match self {
            Packet::Known(message) => NetlinkSerializable::serialize(message.as_ref(), buffer),
            Packet::Raw(raw) => {
                buffer.copy_from_slice(&[raw.header.clone(), emitted(&raw.attributes)].concat())
            }
        }
    }
}

pub fn attributes(bytes: &[u8]) -> Result<Attributes, DecodeError> {
    let mut all = Attributes::new();
    for nla in NlasIterator::new(bytes) {
        let nla = nla?;
        all.insert(nla.kind(), Hex(nla.value().to_vec()));
    }
    Ok(all)
}

pub fn emitted(attributes: &Attributes) -> Vec<u8> {
    let all: Vec<DefaultNla> = attributes
        .iter()
        .map(|(kind, v)| DefaultNla::new(*kind, v.0.clone()))
        .collect();
    let mut bytes = vec![0; all.as_slice().buffer_len()];
    all.as_slice().emit(&mut bytes);
    bytes
}

/// Puts attributes that are carried without being read; those of these numbers are sent nested.
pub fn put_opaque(to: &mut Attributes, other: &Attributes, nested: &[u16]) {
    for (kind, value) in other {
        let flag = if nested.contains(kind) {
            NLA_F_NESTED
        } else {
            0
        };
        to.insert(kind | flag, value.clone());
    }
}

pub fn word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

pub fn of_word(value: u32) -> Hex {
    Hex(value.to_ne_bytes().to_vec())
}

pub fn ip(bytes: &[u8]) -> Option<std::net::IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(Into::into).ok();
    v4.or_else(|| <[u8; 16]>::try_from(bytes).map(Into::into).ok())
}

pub fn of_ip(ip: std::net::IpAddr) -> Hex {
    Hex(match ip {
        std::net::IpAddr::V4(v4) => v4.octets().to_vec(),
        std::net::IpAddr::V6(v6) => v6.octets().to_vec(),
    })
}
