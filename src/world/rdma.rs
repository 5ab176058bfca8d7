//! A socket to the kernel's RDMA subsystem (NETLINK_RDMA).

use std::io::{Error, ErrorKind};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::libc::MSG_TRUNC;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::netns::Netns;
use super::nldev::{self, CharDev, CharKind, Device, Port, Request};
use super::nlreplies::Replies;
use crate::ident::{HcaName, IfName};
use crate::snapshot::RdmaMode;

/// include/uapi/linux/netlink.h.
const NETLINK_RDMA: isize = 20;
/// The kernel answers in microseconds, or, when it loads a module first, in less than a second; a hook must not hang.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A dump fills at most 32 KiB of a datagram (`max_recvmsg_len` in net/netlink/af_netlink.c).
const DATAGRAM: usize = 1 << 16;
/// How often a list that changed while it was read is read anew.
const TRIES: usize = 8;

/// A socket in the network namespace of the thread that opened it; it stays there when it goes to another thread.
pub struct Rdma {
    socket: Socket,
    sequence: u32,
    /// Whether nothing is asked that the kernel would load a module for.
    quiet: bool,
}

/// What each of the modules shows in sysfs as soon as it is loaded, or built in: ib_core, ib_uverbs, rdma_ucm.
const CORE: &str = "/sys/class/infiniband";
const UVERBS: &str = "/sys/class/infiniband_verbs";
const UCM: &str = "/sys/class/misc/rdma_cm";

/// All that NETLINK_RDMA tells in one pass: the first source of a snapshot's RDMA facts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NlFacts {
    /// Shared or exclusive namespaces; absent before Linux 5.3.
    pub mode: Option<RdmaMode>,
    /// `/dev/infiniband/rdma_cm`.
    pub rdma_cm: Option<CharDev>,
    /// Devices that the namespace may see.
    pub hcas: Vec<NlHca>,
}

/// A device with what belongs to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NlHca {
    /// The device itself.
    pub device: Device,
    /// Its ports; ends before the first one whose driver fails to answer (nldev_port_get_dumpit() in nldev.c).
    pub ports: Vec<Port>,
    /// Its verbs device node.
    pub uverbs: Option<CharDev>,
}

impl Rdma {
    /// Opens the socket, which makes the kernel load ib_core where that is a module; none when it has no RDMA at all.
    pub fn open() -> Result<Option<Rdma>> {
        let socket = match Socket::new(NETLINK_RDMA) {
            Err(e) if e.raw_os_error() == Some(Errno::EPROTONOSUPPORT as i32) => return Ok(None),
            socket => socket.context("opening an RDMA netlink socket")?,
        };
        // We wait with poll, under one deadline for the whole answer.
        socket.set_non_blocking(true).context("preparing an RDMA netlink socket")?;
        // Kernels before 4.12 lack these: errors then come without their explanation, which we can live with.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        Ok(Some(Rdma { socket, sequence: 0, quiet: false }))
    }

    /// The same for who only looks, and makes the kernel load nothing: what is not loaded is not there.
    pub fn open_quiet() -> Result<Option<Rdma>> {
        if !Path::new(CORE).exists() {
            return Ok(None);
        }
        Ok(Rdma::open()?.map(|rdma| Rdma { quiet: true, ..rdma }))
    }

    /// Whether to ask for something of a module's, which shows that place.
    fn asks(&self, place: &str) -> bool {
        !self.quiet || Path::new(place).exists()
    }

    /// The devices that this namespace may see: all of them in shared mode, its own in exclusive mode.
    pub fn devices(&mut self) -> Result<Vec<Device>> {
        let payloads = self.ask(&Request::Devices).context("listing RDMA devices")?;
        payloads.iter().map(|p| Device::parse(p)).collect()
    }

    /// The ports of a device.
    pub fn ports(&mut self, device: u32) -> Result<Vec<Port>> {
        let payloads =
            self.ask(&Request::Ports { device }).with_context(|| format!("listing ports of RDMA device {device}"))?;
        payloads.iter().map(|p| Port::parse(p)).collect()
    }

    /// Whether RDMA devices belong to one network namespace each; none where the kernel does not say.
    pub fn mode(&mut self) -> Result<Option<RdmaMode>> {
        let answer = self.ask_one(&Request::System, &[Errno::EINVAL, Errno::EOPNOTSUPP]);
        match answer.context("asking for the RDMA namespace mode")? {
            Some(payload) => nldev::netns_mode(&payload),
            None => Ok(None),
        }
    }

    /// Number and name of a character device; none where there is none. The kernel tries to load the module that offers
    /// it (ib_get_client_nl_info() in drivers/infiniband/core/device.c).
    pub fn chardev(&mut self, kind: CharKind) -> Result<Option<CharDev>> {
        let absent = [Errno::ENOENT, Errno::ENODEV, Errno::EINVAL, Errno::EOPNOTSUPP];
        let answer = self.ask_one(&Request::CharDevice(kind), &absent);
        let answer = answer.with_context(|| format!("asking for the RDMA character device {kind:?}"))?;
        answer.map(|payload| CharDev::parse(&payload)).transpose()
    }

    /// Creates a software RDMA device of this kind (`rxe`, `siw`) on a netdev of the socket's namespace.
    pub fn link_add(&mut self, name: &HcaName, kind: &str, netdev: &IfName) -> Result<()> {
        let answer = self.ask(&Request::LinkAdd { name, kind, netdev });
        answer.with_context(|| format!("creating the {kind} device {name} on {netdev}")).map(drop)
    }

    /// Deletes a software RDMA device.
    pub fn link_delete(&mut self, device: u32) -> Result<()> {
        let answer = self.ask(&Request::LinkDelete { device });
        answer.with_context(|| format!("deleting RDMA device {device}")).map(drop)
    }

    /// The index of a device of that name that this namespace may see.
    pub fn index(&mut self, name: &HcaName) -> Result<Option<u32>> {
        Ok(self.devices()?.into_iter().find(|d| d.name == name.as_str()).map(|d| d.index))
    }

    /// Renames a device.
    pub fn rename(&mut self, device: u32, name: &HcaName) -> Result<()> {
        let answer = self.ask(&Request::Rename { device, name });
        answer.with_context(|| format!("renaming RDMA device {device} to {name}")).map(drop)
    }

    /// Moves a device into another network namespace, where each belongs to one.
    pub fn set_netns(&mut self, device: u32, netns: &Netns) -> Result<()> {
        let answer = self.ask(&Request::Move { device, netns: netns.raw_fd() as u32 });
        // ib_device_set_netns_put() in drivers/infiniband/core/device.c.
        let fixed = answer.as_ref().err().and_then(errno) == Some(Errno::EOPNOTSUPP);
        let why = if fixed { ": its driver cannot do that, or the RDMA namespace mode is shared" } else { "" };
        answer.with_context(|| format!("moving RDMA device {device}{why}")).map(drop)
    }

    /// All facts that a snapshot wants. Management nodes (umad) are not asked for, since no container gets one and the
    /// question alone would load ib_umad; sysfs tells them where they are.
    pub fn facts(&mut self) -> Result<NlFacts> {
        let mode = self.mode()?;
        let mut hcas = Vec::new();
        for device in self.devices()? {
            let ports = match self.ports(device.index) {
                // It went while we asked; EINVAL is how nldev.c says so.
                Err(e) if errno(&e) == Some(Errno::EINVAL) => continue,
                ports => ports?,
            };
            let uverbs = match self.asks(UVERBS) {
                true => self.chardev(CharKind::Uverbs { device: device.index })?,
                false => None,
            };
            hcas.push(NlHca { device, ports, uverbs });
        }
        // Without a device nobody needs the connection manager: do not make the kernel load it.
        let rdma_cm = if hcas.is_empty() || !self.asks(UCM) { None } else { self.chardev(CharKind::RdmaCm)? };
        Ok(NlFacts { mode, rdma_cm, hcas })
    }

    /// The single answer to a request; none when the kernel refuses it with one of `absent`.
    fn ask_one(&mut self, request: &Request, absent: &[Errno]) -> Result<Option<Vec<u8>>> {
        match self.ask(request) {
            Err(e) if errno(&e).is_some_and(|e| absent.contains(&e)) => Ok(None),
            payloads => {
                let mut payloads = payloads?.into_iter();
                Ok(Some(payloads.next().context("the kernel acknowledged but did not answer")?))
            }
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Vec<Vec<u8>>> {
        for _ in 0..TRIES {
            let replies = self.exchange(request)?;
            if !replies.interrupted() {
                return Ok(replies.into_payloads());
            }
        }
        bail!("the list changed {TRIES} times while it was read")
    }

    fn exchange(&mut self, request: &Request) -> Result<Replies> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request.encode(self.sequence);
        let sent = self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0).context("sending to the kernel")?;
        ensure!(sent == bytes.len(), "the kernel took {sent} of {} bytes", bytes.len());
        let mut replies = Replies::to(request, self.sequence);
        let deadline = Instant::now() + TIMEOUT;
        while !replies.feed(&self.receive(deadline)?)? {}
        Ok(replies)
    }

    fn receive(&self, deadline: Instant) -> Result<Vec<u8>> {
        let mut datagram = Vec::with_capacity(DATAGRAM);
        loop {
            match self.socket.recv_from(&mut datagram, MSG_TRUNC) {
                Ok((length, _)) if length > datagram.len() => bail!("the kernel sent {length} bytes at once"),
                // Only the kernel is port 0; any process may send to a netlink socket.
                Ok((_, from)) if from.port_number() == 0 => return Ok(datagram),
                Ok(_) => datagram.clear(),
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait(deadline)?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e).context("receiving from the kernel"),
            }
        }
    }

    fn wait(&self, deadline: Instant) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::from(ErrorKind::TimedOut))
                .with_context(|| format!("no answer from the kernel in {TIMEOUT:?}"));
        }
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.socket.as_fd(), PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e).context("waiting for the kernel"),
        }
    }
}

/// The errno with which the kernel refused, where the error is a refusal.
pub fn errno(error: &anyhow::Error) -> Option<Errno> {
    let refusal = error.downcast_ref::<Error>()?;
    refusal.raw_os_error().map(Errno::from_raw)
}
