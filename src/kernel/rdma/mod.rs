//! A socket to the kernel's RDMA subsystem (NETLINK_RDMA).

pub(super) mod wait_port;

use std::collections::BTreeMap;
use std::io::Error;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use rdma_model::ids::{HcaName, IfName};
use rdma_model::snapshot::{Hca, RdmaMode};
use rdma_netlink::nldev::{self, CharDev, CharKind, Device, Port, Request};
use rdma_netlink::nldev_users::{KernelUse, kernel_uses};
use rdma_netlink::reply::Replies;
use rdma_netlink::socket::KernelSocket;

use super::netns::Netns;

/// include/uapi/linux/netlink.h.
const NETLINK_RDMA: isize = 20;
/// The kernel answers in microseconds, or, when it loads a module first, in less than a second; a
/// hook must not hang.
const TIMEOUT: Duration = Duration::from_secs(5);
const TRIES: usize = 8;

/// A socket in the network namespace of the thread that opened it; it stays there when it goes to
/// another thread.
pub struct Rdma {
    socket: KernelSocket,
    /// Whether nothing is asked that the kernel would load a module for.
    quiet: bool,
}

/// What each of the modules shows in sysfs as soon as it is loaded, or built in: ib_core,
/// ib_uverbs, rdma_ucm.
const CORE: &str = "/sys/class/infiniband";
const UVERBS: &str = "/sys/class/infiniband_verbs";
const UCM: &str = "/sys/class/misc/rdma_cm";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NlFacts {
    pub mode: Option<RdmaMode>,
    pub rdma_cm: Option<CharDev>,
    pub hcas: Vec<NlHca>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NlHca {
    pub device: Device,
    /// Its ports; ends before the first one whose driver fails to answer (nldev_port_get_dumpit()
    /// in nldev.c).
    pub ports: Vec<Port>,
    pub uverbs: Option<CharDev>,
}

impl Rdma {
    /// Opens the socket, which makes the kernel load ib_core where that is a module; none when it
    /// has no RDMA at all.
    pub fn open() -> Result<Option<Rdma>> {
        let socket = match KernelSocket::open(NETLINK_RDMA) {
            Err(e) if e.raw_os_error() == Some(Errno::EPROTONOSUPPORT as i32) => return Ok(None),
            socket => socket.context("opening an RDMA netlink socket")?,
        };
        Ok(Some(Rdma {
            socket,
            quiet: false,
        }))
    }

    /// For reading alone: the kernel loads nothing for it, and what is not loaded is not there.
    pub fn open_quiet() -> Result<Option<Rdma>> {
        if !Path::new(CORE).exists() {
            return Ok(None);
        }
        Ok(Rdma::open()?.map(|rdma| Rdma {
            quiet: true,
            ..rdma
        }))
    }

    /// Whether to ask for something of a module's, which shows that place.
    fn asks(&self, place: &str) -> bool {
        !self.quiet || Path::new(place).exists()
    }

    pub fn devices(&mut self) -> Result<Vec<Device>> {
        let payloads = self
            .ask(&Request::Devices)
            .context("listing RDMA devices")?;
        payloads.iter().map(|p| Device::parse(p)).collect()
    }

    pub fn ports(&mut self, device: u32) -> Result<Vec<Port>> {
        let payloads = self
            .ask(&Request::Ports { device })
            .with_context(|| format!("listing ports of RDMA device {device}"))?;
        payloads.iter().map(|p| Port::parse(p)).collect()
    }

    pub fn kernel_uses(&mut self, device: u32) -> Result<Vec<KernelUse>> {
        kernel_uses(
            &self
                .ask(&Request::Connections { device })
                .context("listing what uses an RDMA device")?,
        )
    }

    /// What a port has counted, by its driver's names; nothing where that counts nothing. Where
    /// HCAs are shared, also of one whose counters the /sys of this namespace has not.
    pub fn counters(&mut self, device: u32, port: u32) -> Result<BTreeMap<String, u64>> {
        let absent = [Errno::EOPNOTSUPP, Errno::EINVAL];
        let answer = self.ask_one(&Request::Counters { device, port }, &absent);
        match answer.context("asking for the counters of an RDMA port")? {
            Some(payload) => nldev::counters(&payload),
            None => Ok(BTreeMap::new()),
        }
    }

    /// Whether RDMA devices belong to one network namespace each; none where the kernel does not
    /// say.
    pub fn mode(&mut self) -> Result<Option<RdmaMode>> {
        let answer = self.ask_one(&Request::System, &[Errno::EINVAL, Errno::EOPNOTSUPP]);
        match answer.context("asking for the RDMA namespace mode")? {
            Some(payload) => nldev::netns_mode(&payload),
            None => Ok(None),
        }
    }

    /// Number and name of a character device; none where there is none. The kernel tries to load
    /// the module that offers it (ib_get_client_nl_info() in drivers/infiniband/core/device.c).
    pub fn chardev(&mut self, kind: CharKind) -> Result<Option<CharDev>> {
        let absent = [
            Errno::ENOENT,
            Errno::ENODEV,
            Errno::EINVAL,
            Errno::EOPNOTSUPP,
        ];
        let answer = self.ask_one(&Request::CharDevice(kind), &absent);
        let answer =
            answer.with_context(|| format!("asking for the RDMA character device {kind:?}"))?;
        answer.map(|payload| CharDev::parse(&payload)).transpose()
    }

    /// Creates a soft-RoCE device on a netdev of the socket's namespace.
    pub fn link_add(&mut self, name: &HcaName, netdev: &IfName) -> Result<()> {
        let kind = Hca::RXE;
        let answer = self.ask(&Request::LinkAdd { name, kind, netdev });
        answer
            .with_context(|| format!("creating the {kind} device {name} on {netdev}"))
            .map(drop)
    }

    pub fn link_delete(&mut self, device: u32) -> Result<()> {
        let answer = self.ask(&Request::LinkDelete { device });
        answer
            .with_context(|| format!("deleting RDMA device {device}"))
            .map(drop)
    }

    pub fn index(&mut self, name: &HcaName) -> Result<Option<u32>> {
        Ok(self
            .devices()?
            .into_iter()
            .find(|d| d.name == name.as_str())
            .map(|d| d.index))
    }

    pub fn rename(&mut self, device: u32, name: &HcaName) -> Result<()> {
        let answer = self.ask(&Request::Rename { device, name });
        answer
            .with_context(|| format!("renaming RDMA device {device} to {name}"))
            .map(drop)
    }

    /// Moves a device into another network namespace, where each belongs to one.
    pub fn set_netns(&mut self, device: u32, netns: &Netns) -> Result<()> {
        let answer = self.ask(&Request::Move {
            device,
            netns: netns.raw_fd() as u32,
        });
        // ib_device_set_netns_put() in drivers/infiniband/core/device.c.
        let fixed = answer.as_ref().err().and_then(errno) == Some(Errno::EOPNOTSUPP);
        let why = if fixed {
            ": its driver cannot do that, or the RDMA namespace mode is shared"
        } else {
            ""
        };
        answer
            .with_context(|| format!("moving RDMA device {device}{why}"))
            .map(drop)
    }

    /// All facts that a snapshot wants. Management nodes (umad) are not asked for, since no
    /// container gets one and the question alone would load ib_umad; sysfs tells them where they
    /// are.
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
                true => self.chardev(CharKind::Uverbs {
                    device: device.index,
                })?,
                false => None,
            };
            hcas.push(NlHca {
                device,
                ports,
                uverbs,
            });
        }
        // Without a device the connection manager is not needed: do not make the kernel load it.
        let rdma_cm = if hcas.is_empty() || !self.asks(UCM) {
            None
        } else {
            self.chardev(CharKind::RdmaCm)?
        };
        Ok(NlFacts {
            mode,
            rdma_cm,
            hcas,
        })
    }

    /// The single answer to a request; none when the kernel refuses it with one of `absent`.
    fn ask_one(&mut self, request: &Request, absent: &[Errno]) -> Result<Option<Vec<u8>>> {
        match self.ask(request) {
            Err(e) if errno(&e).is_some_and(|e| absent.contains(&e)) => Ok(None),
            payloads => {
                let mut payloads = payloads?.into_iter();
                Ok(Some(
                    payloads
                        .next()
                        .context("the kernel acknowledged but did not answer")?,
                ))
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
        let sequence = self.socket.next_sequence();
        let mut replies = request.replies(sequence);
        self.socket
            .converse(&request.encode(sequence), TIMEOUT, |datagram| {
                replies.feed(datagram)
            })?;
        Ok(replies)
    }
}

pub fn errno(error: &anyhow::Error) -> Option<Errno> {
    let refusal = error.downcast_ref::<Error>()?;
    refusal.raw_os_error().map(Errno::from_raw)
}
