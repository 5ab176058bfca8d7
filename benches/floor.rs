//! The floor that `scripts/bench` measures against: only the kernel messages that cannot be left
//! out, made in advance, sent one after the other by one process. Nothing is looked up, recorded,
//! verified or undone. It is never shipped.
//!
//! `floor attach|detach NETNS ORDER`, one line `NAME IFINDEX ADDRESS/PREFIX` for each NIC on stdin.
//! Prints the microseconds from the first message to the last answer. The orders:
//!
//! - `each`: all that one NIC needs, then the next NIC.
//! - `moves`: all moves first.
//! - `down`: all links down, then all moves, then the rest.
//! - `batch`: as `moves`, and all messages of one sort in one sendmsg(2).
//! - `down-batch`: as `down`, in the same manner.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    missing_docs,
    reason = "a benchmark fails by panicking"
)]
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::sched::{CloneFlags, setns};
use rdma_netlink::devconf;

/// What rdmaprep sets in the container.
const SYSCTLS: [(&str, &str); 4] = [
    ("arp_announce", "2"),
    ("arp_ignore", "1"),
    ("arp_filter", "1"),
    ("rp_filter", "1"),
];

struct Nic {
    index: u32,
    address: Ipv4Addr,
    prefix: u8,
}

/// The work on one NIC as bytes.
struct Work {
    down: Vec<u8>,
    to: Vec<u8>,
    address: Vec<u8>,
    /// With the sysctls.
    up: Vec<u8>,
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: floor attach|detach NETNS each|moves|down|batch|down-batch <NICS";
    let (way, path) = args.next().zip(args.next()).context(usage)?;
    let order = args.next().context(usage)?;
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .context("reading NICs from stdin")?;
    let nics = text.lines().map(nic).collect::<Result<Vec<_>>>()?;

    // A socket stays in the namespace in which it was opened; from here on this process is inside.
    let (outside, host) = (File::open("/proc/self/ns/net")?, socket()?);
    let inside = File::open(&path).with_context(|| format!("opening {path}"))?;
    setns(&inside, CloneFlags::CLONE_NEWNET).with_context(|| format!("entering {path}"))?;
    let container = socket()?;

    let (from, target, at, attach) = match way.as_str() {
        "attach" => (&host, inside.as_raw_fd(), &container, true),
        "detach" => (&container, outside.as_raw_fd(), &host, false),
        _ => bail!("{way:?} is neither attach nor detach"),
    };
    let work: Vec<Work> = nics
        .iter()
        .map(|nic| Work::of(nic, target, attach))
        .collect();
    let start = Instant::now();
    let all = |socket: &Socket, part: fn(&Work) -> &[u8]| {
        work.iter().try_for_each(|one| ask(socket, part(one)))
    };
    let at_once =
        |socket: &Socket, part: fn(&Work) -> &[u8]| ask_all(socket, work.iter().map(part));
    if order.starts_with("down") {
        if order == "down" {
            all(from, |w| &w.down)
        } else {
            at_once(from, |w| &w.down)
        }
        .context("setting links down")?;
    }
    match order.as_str() {
        "each" => {
            for one in &work {
                ask(from, &one.to).context("moving")?;
                ask(at, &one.address).context("adding the address")?;
                ask(at, &one.up).context("setting the link up")?;
            }
        }
        "moves" | "down" => {
            all(from, |w| &w.to).context("moving")?;
            all(at, |w| &w.address).context("adding addresses")?;
            all(at, |w| &w.up).context("setting links up")?;
        }
        "batch" | "down-batch" => {
            at_once(from, |w| &w.to).context("moving")?;
            at_once(at, |w| &w.address).context("adding addresses")?;
            at_once(at, |w| &w.up).context("setting links up")?;
        }
        _ => bail!("{order:?} is no order; {usage}"),
    }
    println!("{}", start.elapsed().as_micros());
    Ok(())
}

fn nic(line: &str) -> Result<Nic> {
    let parse = || {
        let mut words = line.split(' ');
        let index = words.nth(1)?.parse().ok()?;
        let (address, prefix) = words.next()?.split_once('/')?;
        Some(Nic {
            index,
            address: address.parse().ok()?,
            prefix: prefix.parse().ok()?,
        })
    };
    parse().with_context(|| format!("{line:?} is no NAME IFINDEX ADDRESS/PREFIX"))
}

impl Work {
    /// The index is kept over the move: it is free in a namespace that has nothing but what comes
    /// from this one.
    fn of(nic: &Nic, target: RawFd, attach: bool) -> Work {
        let mut to = LinkMessage::default();
        to.header.index = nic.index;
        to.attributes.push(LinkAttribute::NetNsFd(target));
        let mut down = LinkMessage::default();
        (down.header.index, down.header.change_mask) = (nic.index, LinkFlags::Up);
        let mut up = down.clone();
        up.header.flags = LinkFlags::Up;
        if attach {
            let values: Vec<_> = SYSCTLS
                .iter()
                .filter_map(|(leaf, value)| devconf::settable(leaf, value))
                .collect();
            up.attributes
                .push(LinkAttribute::Other(devconf::setting(&values)));
        }
        let mut address = AddressMessage::default();
        address.header.family = AddressFamily::Inet;
        address.header.prefix_len = nic.prefix;
        address.header.index = nic.index;
        let ip = IpAddr::V4(nic.address);
        address
            .attributes
            .extend([AddressAttribute::Local(ip), AddressAttribute::Address(ip)]);
        Work {
            down: bytes(Message::SetLink(down), 0),
            to: bytes(Message::SetLink(to), 0),
            address: bytes(Message::NewAddress(address), NLM_F_CREATE | NLM_F_EXCL),
            up: bytes(Message::SetLink(up), 0),
        }
    }
}

fn bytes(message: Message, flags: u16) -> Vec<u8> {
    let mut message = NetlinkMessage::from(message);
    message.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn socket() -> Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE).context("opening a route netlink socket")?;
    socket.bind_auto().context("binding it")?;
    socket
        .connect(&SocketAddr::new(0, 0))
        .context("connecting it to the kernel")?;
    Ok(socket)
}

/// Sends one message and waits for its answer.
fn ask(socket: &Socket, message: &[u8]) -> Result<()> {
    ensure!(
        socket.send(message, 0)? == message.len(),
        "a message was cut"
    );
    answer(socket)
}

/// Sends all in one message, and then waits for all answers.
fn ask_all<'a>(
    socket: &Socket,
    mut messages: impl Iterator<Item = &'a [u8]> + Clone,
) -> Result<()> {
    let all = messages.clone().collect::<Vec<_>>().concat();
    ensure!(socket.send(&all, 0)? == all.len(), "a message was cut");
    messages.try_for_each(|_| answer(socket))
}

fn answer(socket: &Socket) -> Result<()> {
    let mut answer = Vec::with_capacity(4096);
    socket.recv(&mut answer, 0)?;
    match NetlinkMessage::<Message>::deserialize(&answer)?.payload {
        NetlinkPayload::Error(e) if e.code.is_some() => Err(e.to_io().into()),
        NetlinkPayload::Error(_) => Ok(()),
        other => bail!("an answer that is none: {other:?}"),
    }
}
