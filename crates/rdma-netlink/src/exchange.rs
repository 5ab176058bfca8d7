//! Questions and answers of netlink families as bytes: one question is one message there and one back, without an
//! acknowledgement, as there may be thousands.

use std::io::{self, Error, ErrorKind};
use std::time::{Duration, Instant};

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NetlinkBuffer,
};
use nix::libc::EBUSY;

use crate::socket::KernelSocket;

/// The kernel answers in microseconds; a hook must not hang.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How often a list that changed while it was read is read again.
const TRIES: usize = 8;
/// The length of nlmsghdr.
const HEADER: usize = 16;

/// The socket.
pub struct NetlinkSocket {
    socket: KernelSocket,
}

/// What one datagram adds to the answers.
struct Answers {
    payloads: Vec<Vec<u8>>,
    complete: bool,
    interrupted: bool,
}

impl NetlinkSocket {
    /// Opens one of a protocol (NETLINK_*).
    pub fn open(protocol: isize) -> io::Result<NetlinkSocket> {
        Ok(NetlinkSocket { socket: KernelSocket::open(protocol)? })
    }

    /// Asks for one thing. The kernel's refusal is an error with its errno.
    pub fn ask(&mut self, kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        let (payloads, _) = self.exchange(kind, 0, body)?;
        payloads.into_iter().next().ok_or_else(|| Error::other("the kernel did not answer"))
    }

    /// Asks for a list, again while it changes as it is read.
    pub fn dump(&mut self, kind: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        for _ in 0..TRIES {
            let (payloads, interrupted) = self.exchange(kind, NLM_F_DUMP, body)?;
            if !interrupted {
                return Ok(payloads);
            }
        }
        Err(Error::from_raw_os_error(EBUSY))
    }

    fn exchange(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<(Vec<Vec<u8>>, bool)> {
        let sequence = self.socket.next_sequence();
        self.socket.send(&message(kind, NLM_F_REQUEST | flags, sequence, body))?;
        let mut answers = Answers { payloads: Vec::new(), complete: false, interrupted: false };
        let deadline = Instant::now() + TIMEOUT;
        while !answers.complete {
            let datagram = self.socket.receive(deadline)?;
            answers.feed(&datagram, sequence, flags & NLM_F_DUMP != 0)?;
        }
        Ok((answers.payloads, answers.interrupted))
    }
}

impl Answers {
    fn feed(&mut self, datagram: &[u8], sequence: u32, dump: bool) -> io::Result<()> {
        let mut rest = datagram;
        while !rest.is_empty() {
            let malformed = |_| Error::new(ErrorKind::InvalidData, "a malformed netlink message");
            let message = NetlinkBuffer::new_checked(rest).map_err(malformed)?;
            let length = message.length() as usize;
            // A late answer to an earlier question that timed out is not ours.
            if message.sequence_number() == sequence {
                self.interrupted |= message.flags() & NLM_F_DUMP_INTR != 0;
                self.take(message.message_type(), message.payload(), dump)?;
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(())
    }

    fn take(&mut self, kind: u16, payload: &[u8], dump: bool) -> io::Result<()> {
        let code = payload.get(..4).and_then(|b| Some(i32::from_ne_bytes(b.try_into().ok()?))).unwrap_or(0);
        match kind {
            NLMSG_NOOP => {}
            // A list that failed midway ends with its errno (netlink_dump_done() in net/netlink/af_netlink.c).
            NLMSG_ERROR | NLMSG_DONE if code != 0 => return Err(Error::from_raw_os_error(code.saturating_neg())),
            NLMSG_ERROR | NLMSG_DONE => self.complete = true,
            _ => {
                self.payloads.push(payload.to_vec());
                self.complete |= !dump;
            }
        }
        Ok(())
    }
}

fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes
}
