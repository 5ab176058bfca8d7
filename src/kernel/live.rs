//! The real machine: one set of sockets per namespace, opened once.

mod space;
mod world;

use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::libc::{EBUSY, EEXIST};

use crate::kernel::beside::{Beside, Idle};
use crate::kernel::host_paths::Sockets;
use crate::kernel::links::tcx;
use crate::kernel::netns::Netns;
use crate::kernel::rdma::{Rdma, errno};
use rdma_model::ids::{HcaName, IfName};
use rdma_model::snapshot::{CharDevice, Nexthop, Program, Route};
use rdma_model::step::{Side, Step, VirtualLink};
use rdma_netlink::nldev::CharKind;
use space::{NO_RDMA, Space};

const GONE: &str = "the container's namespace has gone";

pub struct Kernel {
    host: Space,
    inside: Option<Space>,
    boot_id: String,
    /// The host's, listed from the last look for what is elsewhere on.
    sockets: Option<Beside<io::Result<Sockets>>>,
    idle: Idle,
    /// From where NICs have just moved.
    left: Option<Side>,
}

impl Kernel {
    pub fn open(host: Netns, inside: Option<Netns>) -> Result<Kernel> {
        Kernel::with(host, inside, Rdma::open)
    }

    /// For reading alone: no module is loaded for it.
    pub fn quiet(host: Netns, inside: Option<Netns>) -> Result<Kernel> {
        Kernel::with(host, inside, Rdma::open_quiet)
    }

    fn with(
        host: Netns,
        inside: Option<Netns>,
        rdma: fn() -> Result<Option<Rdma>>,
    ) -> Result<Kernel> {
        let boot_id = boot_id()?;
        let inside = inside.map(|netns| Space::open(netns, rdma)).transpose()?;
        Ok(Kernel {
            host: Space::open(host, rdma)?,
            inside,
            boot_id,
            sockets: None,
            idle: Idle::default(),
            left: None,
        })
    }

    fn space(&mut self, side: Side) -> Result<&mut Space> {
        match side {
            Side::Host => Ok(&mut self.host),
            Side::Inside => self.inside.as_mut().context(GONE),
        }
    }

    /// Ending threads and closing a mount slows moves down. So both are kept until the first step
    /// after the moves, and end while that step runs.
    fn let_go(&mut self, step: &Step) {
        match step {
            Step::Move { from, .. } => self.left = Some(*from),
            Step::RdmaMove { .. } | Step::RdmaLinkDelete { .. } | Step::RdmaLinkAdd { .. } => {}
            _ => {
                if let Some(side) = self.left.take() {
                    self.idle.end();
                    if let Ok(space) = self.space(side) {
                        space.close_devices();
                    }
                }
            }
        }
    }

    fn move_link(
        &mut self,
        from: Side,
        dev: &IfName,
        name: &IfName,
        ifindex: Option<u32>,
    ) -> Result<()> {
        let (leave, enter) = self.both(from)?;
        // With the index that it has, a link may come back with other values.
        (leave.neigh, enter.neigh) = (None, None);
        Ok(leave.route.move_link(dev, &enter.netns, name, ifindex)?)
    }

    fn rdma_move(&mut self, from: Side, hca: &HcaName, uverbs: Option<&CharDevice>) -> Result<()> {
        let (leave, enter) = self.both(from)?;
        let rdma = leave.rdma.as_mut().context(NO_RDMA)?;
        let index = rdma
            .index(hca)?
            .with_context(|| format!("{hca} is not {from}"))?;
        // Unlike every other request, this one is judged by the sender's namespace, not its
        // socket's (nldev_set_doit and ib_device_set_netns_put in drivers/infiniband/core).
        leave.netns.visit(|| rdma.set_netns(index, &enter.netns))?;
        has_node(enter.rdma()?, hca, uverbs)
    }

    fn both(&mut self, from: Side) -> Result<(&mut Space, &mut Space)> {
        let inside = self.inside.as_mut().context(GONE)?;
        Ok(match from {
            Side::Host => (&mut self.host, inside),
            Side::Inside => (inside, &mut self.host),
        })
    }

    /// All legs: the kernel answers EEXIST for those that are there, which `route_add` in
    /// change_routes.rs takes for done.
    fn legs_add(&mut self, side: Side, route: &Route, deadline: Instant) -> Result<()> {
        let mut legs = route.legs().into_iter();
        legs.try_for_each(|leg| self.route_add(side, &leg, deadline))
    }

    /// Linux refuses an IPv6 source whose duplicate address detection still runs, which takes a
    /// second or two after the address was added (ip6_route_info_create in net/ipv6/route.c).
    fn route_add(&mut self, side: Side, route: &Route, deadline: Instant) -> Result<()> {
        let socket = &mut self.space(side)?.route;
        loop {
            let result = socket.route_add(route);
            let Err(e) = &result else { return result };
            let invalid = errno(e) == Some(Errno::EINVAL);
            let Some(source) = route.prefsrc.filter(|p| invalid && p.is_ipv6()) else {
                return result;
            };
            if Instant::now() >= deadline || !socket.tentative(source)? {
                return result;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The earlier netdev may still be in a namespace that is being dismantled, which takes a
    /// while.
    fn make(
        &mut self,
        side: Side,
        dev: &IfName,
        made: &VirtualLink,
        deadline: Instant,
    ) -> Result<()> {
        let space = self.space(side)?;
        space.neigh = None;
        loop {
            match space.route.make(dev, made) {
                Err(e) if e.raw_os_error() == Some(EEXIST) && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                other => return Ok(other?),
            }
        }
    }

    /// Linux refuses an object over a link without carrier, which NICs find some time after they
    /// went up (rtm_to_nh_config in net/ipv4/nexthop.c).
    fn nexthop_add(&mut self, side: Side, nexthop: &Nexthop, deadline: Instant) -> Result<()> {
        let socket = &mut self.space(side)?.route;
        loop {
            let result = socket.nexthop_add(nexthop);
            let Err(e) = &result else { return result };
            let is_dark = errno(e) == Some(Errno::ENETDOWN);
            if !is_dark || Instant::now() >= deadline {
                return result;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn link_add(
        &mut self,
        side: Side,
        hca: &HcaName,
        dev: &IfName,
        uverbs: Option<&CharDevice>,
    ) -> Result<()> {
        let rdma = self.space(side)?.rdma()?;
        rdma.link_add(hca, dev)?;
        has_node(rdma, hca, uverbs)
    }

    /// By netlink, or with the BPF link that keeps it there.
    fn program_detach(&mut self, side: Side, dev: &IfName, program: &Program) -> Result<()> {
        let space = self.space(side)?;
        let index = space.route.index(dev)?;
        if let Some(hook) = tcx::hook(program.hook) {
            return space
                .netns
                .visit(|| Ok(bpf_hooks::detach(index, hook, program.id)?));
        }
        match space.route.xdp_detach_mode(dev, program.hook) {
            Err(e)
                if e.raw_os_error() == Some(EBUSY)
                    && bpf_hooks::detach_xdp_link(index, program.id)? =>
            {
                Ok(())
            }
            other => Ok(other?),
        }
    }

    fn program_attach(
        &mut self,
        side: Side,
        dev: &IfName,
        program: &Program,
        before: Option<u32>,
    ) -> Result<()> {
        let space = self.space(side)?;
        let index = space.route.index(dev)?;
        match tcx::hook(program.hook) {
            Some(hook) => space
                .netns
                .visit(|| Ok(bpf_hooks::attach(index, hook, program.id, before)?)),
            None => {
                let found = bpf_hooks::open(program.id)?;
                Ok(space.route.xdp_attach(dev, program.hook, &found)?)
            }
        }
    }

    fn rdma_rename(&mut self, hca: &HcaName, name: &HcaName) -> Result<()> {
        let rdma = self.space(Side::Host)?.rdma()?;
        let index = rdma
            .index(hca)?
            .with_context(|| format!("{hca} has gone"))?;
        rdma.rename(index, name)
    }

    fn link_delete(&mut self, side: Side, hca: &HcaName) -> Result<()> {
        let rdma = self.space(side)?.rdma()?;
        match rdma.index(hca)? {
            Some(index) => rdma.link_delete(index),
            None => Ok(()),
        }
    }
}

pub fn boot_id() -> Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .context("reading the boot id")?;
    Ok(text.trim().to_owned())
}

fn has_node(rdma: &mut Rdma, hca: &HcaName, uverbs: Option<&CharDevice>) -> Result<()> {
    let Some(wanted) = uverbs else { return Ok(()) };
    let index = rdma
        .index(hca)?
        .with_context(|| format!("{hca} is not where it was put"))?;
    let node = rdma.chardev(CharKind::Uverbs { device: index })?;
    let got = node.map(|c| CharDevice {
        name: c.name,
        major: c.major,
        minor: c.minor,
    });
    ensure!(
        got.as_ref() == Some(wanted),
        "{hca} got {got:?} as its verbs node, the plan says {wanted:?}"
    );
    Ok(())
}
