//! Route netlink in one network namespace: one socket, what is observed, and what is changed.

mod across_netns;
mod change_links;
mod change_routes;
mod observe;
pub(super) mod tcx;

use std::io;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NetlinkDeserializable, NetlinkSerializable};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::libc::EOPNOTSUPP;
use rdma_netlink::raw::{Packet, Raw};
use rdma_netlink::socket::KernelSocket;

pub use observe::Network;

/// No answer of the kernel takes longer; one that is lost must not hang a hook.
const ANSWER: Duration = Duration::from_secs(30);

/// A route netlink socket, bound for good to the namespace of the thread that opened it.
pub struct RouteSocket(KernelSocket);

impl RouteSocket {
    pub fn open() -> Result<RouteSocket> {
        Ok(RouteSocket(
            KernelSocket::open(NETLINK_ROUTE).context("opening a route netlink socket")?,
        ))
    }

    /// An error answer becomes an `io::Error` with its errno.
    fn exchange(
        &mut self,
        message: impl Into<Packet>,
        flags: u16,
    ) -> io::Result<(Vec<Packet>, bool)> {
        self.exchange_within(message, flags, ANSWER)
    }

    fn exchange_within(
        &mut self,
        message: impl Into<Packet>,
        flags: u16,
        time: Duration,
    ) -> io::Result<(Vec<Packet>, bool)> {
        self.0.exchange(message.into(), flags, time)
    }

    fn change(&mut self, message: impl Into<Packet>, flags: u16) -> io::Result<()> {
        self.exchange(message, NLM_F_ACK | flags).map(|_| ())
    }

    /// A dump, repeated while the kernel says that it was interrupted.
    fn whole<M: NetlinkSerializable + NetlinkDeserializable + Clone>(
        &mut self,
        message: &M,
    ) -> Result<Vec<M>> {
        for _ in 0..8 {
            let (messages, interrupted) = self
                .0
                .exchange(message.clone(), NLM_F_DUMP, ANSWER)
                .context("dumping route netlink")?;
            if !interrupted {
                return Ok(messages);
            }
        }
        bail!("the network changes faster than it can be read")
    }

    fn dump(&mut self, message: Message) -> Result<Vec<Message>> {
        let known = |p| {
            if let Packet::Known(m) = p {
                Some(*m)
            } else {
                None
            }
        };
        Ok(self
            .whole(&Packet::from(message))?
            .into_iter()
            .filter_map(known)
            .collect())
    }

    /// A dump of what we read ourselves; nothing where the kernel has no such thing.
    fn raw_dump(&mut self, ask: Raw) -> Result<Vec<Raw>> {
        let raw = |p| {
            if let Packet::Raw(r) = p {
                Some(r)
            } else {
                None
            }
        };
        match self.whole(&Packet::from(ask)) {
            Err(e)
                if e.downcast_ref::<io::Error>()
                    .and_then(io::Error::raw_os_error)
                    == Some(EOPNOTSUPP) =>
            {
                Ok(Vec::new())
            }
            packets => Ok(packets?.into_iter().filter_map(raw).collect()),
        }
    }
}
