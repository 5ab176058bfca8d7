//! Requests to a netlink socket of the kernel, and its answers: framing, sequence numbers, the end
//! of a list, refusals, attributes. No I/O.

use std::io;

use anyhow::{Context, Result, anyhow, bail};
use netlink_packet_core::{
    Emitable, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST,
    NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN, NetlinkBuffer, NetlinkHeader, NlaBuffer,
    NlasIterator,
};

/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// The text of an extended acknowledgement (include/uapi/linux/netlink.h).
const NLMSGERR_ATTR_MSG: u16 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// One message; no acknowledgement is asked for, as there may be thousands of such requests.
    First,
    /// The acknowledgement, behind what is answered, if anything is.
    Ack,
    /// NLMSG_DONE: the answer is a list.
    Done,
}

#[derive(Debug)]
pub struct Replies {
    sequence: u32,
    end: End,
    /// The family of the messages, where it is part of their types.
    family: Option<u16>,
    payloads: Vec<Vec<u8>>,
    interrupted: bool,
}

pub(crate) fn request(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.length = (HEADER + body.len()) as u32;
    header.message_type = kind;
    header.flags = NLM_F_REQUEST | flags;
    header.sequence_number = sequence;
    let mut bytes = vec![0; HEADER];
    header.emit(&mut bytes);
    bytes.extend_from_slice(body);
    bytes
}

impl End {
    pub(crate) fn flags(self) -> u16 {
        match self {
            End::First => 0,
            End::Ack => NLM_F_ACK,
            End::Done => NLM_F_DUMP,
        }
    }
}

impl Replies {
    /// To a request of RDMA netlink.
    pub(crate) fn of_family(family: u16, end: End, sequence: u32) -> Replies {
        Replies {
            family: Some(family),
            ..Replies::new(end, sequence)
        }
    }

    pub(crate) fn new(end: End, sequence: u32) -> Replies {
        Replies {
            sequence,
            end,
            family: None,
            payloads: Vec::new(),
            interrupted: false,
        }
    }

    pub fn payloads(&self) -> &[Vec<u8>] {
        &self.payloads
    }

    pub fn into_payloads(self) -> Vec<Vec<u8>> {
        self.payloads
    }

    /// Whether the list changed while it was read (NLM_F_DUMP_INTR): it must be read again.
    pub fn interrupted(&self) -> bool {
        self.interrupted
    }

    /// Takes one datagram; true when the answer is complete. The kernel's refusal is an
    /// [`io::Error`] with its errno.
    pub fn feed(&mut self, datagram: &[u8]) -> Result<bool> {
        let mut payloads = std::mem::take(&mut self.payloads);
        let is_complete = self.feed_each(datagram, |_, payload| payloads.push(payload.to_vec()));
        self.payloads = payloads;
        is_complete
    }

    /// Takes one datagram, and gives the type and the payload of each message to `each`.
    pub(crate) fn feed_each(
        &mut self,
        datagram: &[u8],
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<bool> {
        let mut rest = datagram;
        while !rest.is_empty() {
            let message = NetlinkBuffer::new_checked(rest)
                .map_err(|e| anyhow!("reading a netlink message: {e}"))?;
            let length = message.length() as usize;
            // A late answer to an earlier request that timed out: not ours.
            if message.sequence_number() == self.sequence && self.take(&message, &mut each)? {
                return Ok(true);
            }
            // NLMSG_ALIGN; the last message of a datagram may lack its padding.
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(false)
    }

    fn take(
        &mut self,
        message: &NetlinkBuffer<&[u8]>,
        each: &mut impl FnMut(u16, &[u8]),
    ) -> Result<bool> {
        self.interrupted |= message.flags() & NLM_F_DUMP_INTR != 0;
        let payload = message.payload();
        match message.message_type() {
            NLMSG_NOOP => Ok(false),
            NLMSG_OVERRUN => {
                self.interrupted = true;
                Ok(false)
            }
            NLMSG_ERROR => refusal(payload, message.flags()).map(|()| self.end != End::Done),
            NLMSG_DONE => done(payload, message.flags()).map(|()| true),
            kind if self.family.is_some_and(|family| kind >> 10 != family) => {
                bail!("RDMA netlink answered with a message of unknown type {kind}")
            }
            kind => {
                each(kind, payload);
                Ok(self.end == End::First)
            }
        }
    }
}

/// `struct nlmsgerr`: an errno, the request's header, and, unless NLM_F_CAPPED, the request itself;
/// then attributes.
fn refusal(payload: &[u8], flags: u16) -> Result<()> {
    let code = i32::from_ne_bytes(array(payload.get(..4).unwrap_or_default())?);
    let request = match payload.get(4..8) {
        Some(length) if flags & NLM_F_CAPPED == 0 => u32::from_ne_bytes(array(length)?) as usize,
        _ => HEADER,
    };
    let at = 4usize.saturating_add(request.next_multiple_of(4));
    errno(
        code,
        payload.get(at..).filter(|_| flags & NLM_F_ACK_TLVS != 0),
    )
}

/// NLMSG_DONE carries the errno of a dump that failed midway (netlink_dump_done() in
/// net/netlink/af_netlink.c).
fn done(payload: &[u8], flags: u16) -> Result<()> {
    match payload.get(..4) {
        Some(code) => errno(
            i32::from_ne_bytes(array(code)?),
            payload.get(4..).filter(|_| flags & NLM_F_ACK_TLVS != 0),
        ),
        None => Ok(()),
    }
}

fn errno(code: i32, extack: Option<&[u8]>) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    let error = anyhow::Error::new(io::Error::from_raw_os_error(code.saturating_neg()));
    // The explanation is a courtesy: a broken one must not hide the errno.
    let said = attributes(extack.unwrap_or_default())
        .flatten()
        .find(|(kind, _)| *kind == NLMSGERR_ATTR_MSG);
    match said {
        Some((_, said)) => Err(error.context(format!("the kernel says: {}", string(said)))),
        None => Err(error),
    }
}

/// Kind and value of each attribute; ends after the first that does not fit its buffer.
pub fn attributes(payload: &[u8]) -> impl Iterator<Item = Result<(u16, &[u8])>> {
    NlasIterator::new(payload).map(|attribute| {
        let attribute: NlaBuffer<&[u8]> =
            attribute.map_err(|e| anyhow!("reading RDMA netlink attributes: {e}"))?;
        let (kind, length) = (attribute.kind(), attribute.length() as usize);
        let value = attribute
            .into_inner()
            .get(4..length)
            .context("reading RDMA netlink attributes")?;
        Ok((kind, value))
    })
}

pub(crate) fn array<const N: usize>(value: &[u8]) -> Result<[u8; N]> {
    let found = value.len();
    value
        .try_into()
        .map_err(|_| anyhow!("RDMA netlink reported {found} bytes where {N} belong"))
}

/// Text up to its NUL; bytes that are no UTF-8 become U+FFFD, so that they match nothing.
pub fn string(value: &[u8]) -> String {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}
