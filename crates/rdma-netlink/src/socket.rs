//! A synchronous socket to a netlink family of the kernel: sequence numbers, a deadline, and
//! answers of any size.

use std::io::{self, Error, ErrorKind};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_DUMP, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};
use netlink_sys::{Socket, SocketAddr};
use nix::libc::{EBUSY, EMSGSIZE, MSG_TRUNC};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::reply::{self, End, Replies};

/// The kernel fills 32 KiB at most when it lists things (`max_recvmsg_len` in
/// net/netlink/af_netlink.c), but a single link with many alternative names takes more: an
/// attribute has up to 64 KiB. What is not filled takes no memory.
const ROOM: usize = 1 << 20;
/// The kernel answers in microseconds, a driver that asks its firmware later; a hook must not hang.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How often a list that changed while it was read is read again.
const TRIES: usize = 8;

/// A socket in the network namespace of the thread that opened it; it stays there when it goes to
/// another thread.
pub struct KernelSocket {
    socket: Socket,
    sequence: u32,
    datagram: Vec<u8>,
}

impl KernelSocket {
    pub fn open(family: isize) -> io::Result<KernelSocket> {
        let socket = Socket::new(family)?;
        // We wait with poll, under one deadline for the whole answer.
        socket.set_non_blocking(true)?;
        // Kernels before 4.12 lack these: errors then come without their explanation, which we can
        // live with.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        Ok(KernelSocket {
            socket,
            sequence: 0,
            datagram: Vec::with_capacity(ROOM),
        })
    }

    pub fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match self.socket.send_to(bytes, &SocketAddr::new(0, 0), 0)? {
            sent if sent == bytes.len() => Ok(()),
            sent => Err(Error::other(format!(
                "the kernel took {sent} of {} bytes",
                bytes.len()
            ))),
        }
    }

    /// The next datagram of the kernel.
    fn receive(&mut self, deadline: Instant) -> io::Result<&[u8]> {
        loop {
            // The kernel takes the room as a hint for the next part of a list.
            self.datagram.clear();
            match self.socket.recv_from(&mut self.datagram, MSG_TRUNC) {
                // Only the kernel is port 0; any process may send to a netlink socket.
                Ok((_, from)) if from.port_number() != 0 => {}
                Ok((length, _)) if length > ROOM => {
                    return Err(Error::other(format!(
                        "the kernel has sent {length} bytes, more than {ROOM}"
                    )));
                }
                Ok(_) => break,
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait(deadline)?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(&self.datagram)
    }

    fn wait(&self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::new(
                ErrorKind::TimedOut,
                "no answer from the kernel in time",
            ));
        }
        let left = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(
            &mut [PollFd::new(&self.socket.as_fd(), PollFlags::IN)],
            Some(&left),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Sends a request and hands on each datagram that comes, until one is the last; all within
    /// that time.
    pub fn converse<E: From<Error>>(
        &mut self,
        request: &[u8],
        time: Duration,
        mut feed: impl FnMut(&[u8]) -> Result<bool, E>,
    ) -> Result<(), E> {
        self.send(request)?;
        let deadline = Instant::now() + time;
        while !feed(self.receive(deadline)?)? {}
        Ok(())
    }

    /// Sends one message and collects the answers until the kernel says that these are all, within
    /// that time. The answers, and whether the list changed while it was read; an error answer is
    /// an error with its errno.
    pub fn exchange<M>(
        &mut self,
        message: M,
        flags: u16,
        time: Duration,
    ) -> io::Result<(Vec<M>, bool)>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        let mut messages = Vec::new();
        let interrupted = self.exchange_each(&message, flags, time, |kind, payload| {
            messages.extend(parsed(kind, payload));
        })?;
        Ok((messages, interrupted))
    }

    /// Sends a request, and gives the type and the payload of each answer to `each`: a list may be
    /// too long to be kept.
    pub fn exchange_each<M: NetlinkSerializable>(
        &mut self,
        message: &M,
        flags: u16,
        time: Duration,
        mut each: impl FnMut(u16, &[u8]),
    ) -> io::Result<bool> {
        // Of what is no list, the acknowledgement is the end.
        let end = if flags & NLM_F_DUMP == NLM_F_DUMP {
            End::Done
        } else {
            End::Ack
        };
        let mut body = vec![0; message.buffer_len()];
        message.serialize(&mut body);
        let sequence = self.next_sequence();
        let request = reply::request(message.message_type(), flags | end.flags(), sequence, &body);
        let mut replies = Replies::new(end, sequence);
        self.converse(&request, time, |datagram| {
            match replies.feed_each(datagram, &mut each).map_err(refusal) {
                // One thing of the list was too large for the kernel itself to tell (a route with
                // thousands of legs); later kernels end the list there without an error. Who made
                // it in a container must not keep us from its NICs.
                Err(e) if end == End::Done && e.raw_os_error() == Some(EMSGSIZE) => Ok(true),
                fed => fed,
            }
        })?;
        Ok(replies.interrupted())
    }

    /// Asks for one thing, without an acknowledgement. The kernel's refusal is an error with its
    /// errno.
    pub fn ask(&mut self, kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        let replies = self.exchange_bytes(kind, body, End::First)?;
        replies
            .into_payloads()
            .into_iter()
            .next()
            .ok_or_else(|| Error::other("the kernel did not answer"))
    }

    /// Asks for a list, again while it changes as it is read.
    pub fn dump(&mut self, kind: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        for _ in 0..TRIES {
            let replies = self.exchange_bytes(kind, body, End::Done)?;
            if !replies.interrupted() {
                return Ok(replies.into_payloads());
            }
        }
        Err(Error::from_raw_os_error(EBUSY))
    }

    /// Asks for something or changes it, with an acknowledgement.
    pub fn transact(&mut self, kind: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.exchange_bytes(kind, body, End::Ack)
            .map(Replies::into_payloads)
    }

    fn exchange_bytes(&mut self, kind: u16, body: &[u8], end: End) -> io::Result<Replies> {
        let sequence = self.next_sequence();
        let mut replies = Replies::new(end, sequence);
        let request = reply::request(kind, end.flags(), sequence, body);
        self.converse(&request, TIMEOUT, |datagram| {
            replies.feed(datagram).map_err(refusal)
        })?;
        Ok(replies)
    }
}

/// A message that the library cannot read is left out: it must not hide the others.
pub fn parsed<M: NetlinkDeserializable>(kind: u16, payload: &[u8]) -> Option<M> {
    let mut header = NetlinkHeader::default();
    header.message_type = kind;
    M::deserialize(&header, payload).ok()
}

fn refusal(e: anyhow::Error) -> Error {
    e.downcast().unwrap_or_else(Error::other)
}
