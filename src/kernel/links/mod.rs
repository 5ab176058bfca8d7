//! Route netlink in one network namespace: one socket, what is observed, and what is changed.

mod across_netns;
mod change_links;
mod change_routes;
mod ipv6_legs;
mod observe;
pub(super) mod tcx;

use std::io;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NetlinkSerializable};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::LinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;
use rdma_netlink::raw::{Packet, Raw};
use rdma_netlink::socket::{KernelSocket, parsed};

use crate::kernel::rdma::errno;

/// No answer of the kernel takes longer; one that is lost must not hang a hook.
const ANSWER: Duration = Duration::from_secs(30);

/// How often a list that changed while it was read is read again.
const TRIES: usize = 8;
/// Before the next try, and twice as long before each further one: on a host with thousands of
/// links, changes come for a second after these have appeared.
const PAUSE: Duration = Duration::from_millis(5);

/// A route netlink socket, bound for good to the namespace of the thread that opened it.
pub struct RouteSocket {
    socket: KernelSocket,
    /// Whether a list that changed while it was read is taken as it is, see
    /// [`RouteSocket::network`].
    takes_parts: bool,
    /// Whether the last list was whole.
    is_whole: bool,
    /// How many links the last list of all had.
    pub(super) listed: usize,
}

impl RouteSocket {
    pub fn open() -> Result<RouteSocket> {
        let socket = KernelSocket::open(NETLINK_ROUTE).context("opening a route netlink socket")?;
        Ok(RouteSocket {
            socket,
            takes_parts: false,
            is_whole: true,
            listed: 0,
        })
    }

    /// An error answer becomes an `io::Error` with its errno.
    fn exchange(
        &mut self,
        message: impl Into<Packet>,
        flags: u16,
    ) -> io::Result<(Vec<Packet>, bool)> {
        self.socket.exchange(message.into(), flags, ANSWER)
    }

    fn change(&mut self, message: impl Into<Packet>, flags: u16) -> io::Result<()> {
        self.exchange(message, NLM_F_ACK | flags).map(|_| ())
    }

    /// What `read` makes of each message of a list.
    fn list<T>(
        &mut self,
        ask: &impl NetlinkSerializable,
        mut read: impl FnMut(u16, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        self.gathered(ask, |all: &mut Vec<T>, kind, payload| {
            all.extend(read(kind, payload));
        })
    }

    /// What `feed` makes of all messages of a list, which is asked for again while the kernel says
    /// that it changed meanwhile.
    fn gathered<A: Default>(
        &mut self,
        ask: &impl NetlinkSerializable,
        mut feed: impl FnMut(&mut A, u16, &[u8]),
    ) -> Result<A> {
        let mut pause = PAUSE;
        for _ in 0..TRIES {
            let mut all = A::default();
            let interrupted = self
                .socket
                .exchange_each(ask, NLM_F_DUMP, ANSWER, |kind, payload| {
                    feed(&mut all, kind, payload);
                })
                .context("dumping route netlink")?;
            self.is_whole = !interrupted;
            if self.is_whole || self.takes_parts {
                return Ok(all);
            }
            std::thread::sleep(pause);
            pause *= 2;
        }
        bail!("the network changes faster than it can be read")
    }

    /// A list of what the library reads.
    fn dump<T>(
        &mut self,
        ask: Message,
        mut read: impl FnMut(Message) -> Option<T>,
    ) -> Result<Vec<T>> {
        self.list(&Packet::from(ask), |kind, payload| {
            match parsed(kind, payload)? {
                Packet::Known(message) => read(*message),
                Packet::Raw(_) => None,
            }
        })
    }

    /// A list of what we read ourselves; nothing where the kernel has no such thing.
    fn raw_dump(&mut self, ask: Raw) -> Result<Vec<Raw>> {
        self.listed(ask, |all: &mut Vec<Raw>, kind, payload| {
            if let Some(Packet::Raw(message)) = parsed(kind, payload) {
                all.push(message);
            }
        })
    }

    /// What `feed` makes of the type and the bytes of each message; nothing where the kernel has no
    /// such thing.
    fn listed<A: Default>(&mut self, ask: Raw, feed: impl FnMut(&mut A, u16, &[u8])) -> Result<A> {
        match self.gathered(&Packet::from(ask), feed) {
            Err(e) if errno(&e) == Some(Errno::EOPNOTSUPP) => Ok(A::default()),
            listed => listed,
        }
    }
}

fn link(packet: Packet) -> Option<LinkMessage> {
    match packet {
        Packet::Known(message) => match *message {
            Message::NewLink(link) => Some(link),
            _ => None,
        },
        Packet::Raw(_) => None,
    }
}
