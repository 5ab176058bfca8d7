//! A synchronous socket to a netlink family of the kernel: sequence numbers, a deadline, and answers of any size.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer, NetlinkDeserializable, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};
use nix::libc::{EMSGSIZE, MSG_PEEK, MSG_TRUNC};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What the kernel fills at most when it lists things (`max_recvmsg_len` in net/netlink/af_netlink.c). A single link with many
/// alternative names takes more.
const USUAL: usize = 1 << 15;

/// A socket in the network namespace of the thread that opened it; it stays there when it goes to another thread.
pub struct KernelSocket {
    socket: Socket,
    sequence: u32,
}

impl KernelSocket {
    /// Opens a socket to a family of the kernel.
    pub fn open(family: isize) -> Result<KernelSocket> {
        let socket = Socket::new(family)?;
        // We wait with poll, under one deadline for the whole answer.
        socket.set_non_blocking(true)?;
        // Kernels before 4.12 lack these: errors then come without their explanation, which we can live with.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        Ok(KernelSocket { socket, sequence: 0 })
    }

    /// The number for the next request.
    pub fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    /// Sends a request.
    pub fn send(&self, bytes: &[u8]) -> Result<()> {
        match self.socket.send_to(bytes, &SocketAddr::new(0, 0), 0)? {
            sent if sent == bytes.len() => Ok(()),
            sent => Err(Error::other(format!("the kernel took {sent} of {} bytes", bytes.len()))),
        }
    }

    /// The next datagram of the kernel, whole: its length is asked for first.
    pub fn receive(&self, deadline: Instant) -> Result<Vec<u8>> {
        let mut room = USUAL;
        loop {
            // The kernel takes the room that the last call offered as a hint for the next part of a list.
            let mut datagram = Vec::with_capacity(room);
            let received = match self.socket.recv_from(&mut datagram, MSG_PEEK | MSG_TRUNC) {
                Ok((length, _)) if length > room => {
                    room = length;
                    continue;
                }
                Ok(_) => {
                    datagram.clear();
                    self.socket.recv_from(&mut datagram, MSG_TRUNC)
                }
                Err(e) => Err(e),
            };
            match received {
                // Only the kernel is port 0; any process may send to a netlink socket.
                Ok((_, from)) if from.port_number() == 0 => return Ok(datagram),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait(deadline)?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn wait(&self, deadline: Instant) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.socket.as_fd(), PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Sends one message and collects the answers until the kernel says that these are all, within that time. The answers, and
    /// whether the list changed while it was read; an error answer is an error with its errno.
    pub fn exchange<M>(&mut self, message: M, flags: u16, time: Duration) -> Result<(Vec<M>, bool)>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Into<NetlinkPayload<M>>,
    {
        let deadline = Instant::now() + time;
        let mut request = NetlinkMessage::from(message);
        // Of what is no list, the acknowledgement is the end.
        let end = if flags & NLM_F_DUMP == NLM_F_DUMP { 0 } else { NLM_F_ACK };
        request.header.flags = NLM_F_REQUEST | flags | end;
        request.header.sequence_number = self.next_sequence();
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.send(&bytes)?;
        let mut answers = Answers { sequence: self.sequence, messages: Vec::new(), interrupted: false };
        while !answers.take(&self.receive(deadline)?)? {}
        Ok((answers.messages, answers.interrupted))
    }
}

/// The answers to one request.
struct Answers<M> {
    sequence: u32,
    messages: Vec<M>,
    interrupted: bool,
}

impl<M: NetlinkDeserializable> Answers<M> {
    /// Takes a datagram; true when it ends the answer.
    fn take(&mut self, datagram: &[u8]) -> Result<bool> {
        let mut rest = datagram;
        while let Ok(message) = NetlinkBuffer::new_checked(rest) {
            let length = message.length() as usize;
            // A late answer to an earlier request that timed out is not ours.
            if message.sequence_number() == self.sequence && self.one(rest.get(..length).unwrap_or_default())? {
                return Ok(true);
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(false)
    }

    fn one(&mut self, bytes: &[u8]) -> Result<bool> {
        // One that the library cannot read is left out: it must not hide the others.
        let Ok(message) = NetlinkMessage::<M>::deserialize(bytes) else { return Ok(false) };
        self.interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
        match message.payload {
            NetlinkPayload::InnerMessage(inner) => self.messages.push(inner),
            NetlinkPayload::Error(e) if e.code.is_some() => return Err(e.to_io()),
            NetlinkPayload::Error(_) => return Ok(true),
            // One thing of the list was too large for the kernel itself to tell (a route with thousands of legs); later kernels
            // end the list there without an error. Who made it in a container must not keep us from its NICs.
            NetlinkPayload::Done(done) if [0, -EMSGSIZE].contains(&done.code) => return Ok(true),
            NetlinkPayload::Done(done) => return Err(Error::from_raw_os_error(done.code.saturating_neg())),
            NetlinkPayload::Overrun(_) => self.interrupted = true,
            _ => {}
        }
        Ok(false)
    }
}
