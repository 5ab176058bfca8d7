//! The real machine: one set of sockets per namespace, opened once.

mod space;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::libc::{EADDRNOTAVAIL, EBUSY, EEXIST, EINVAL, ENODEV, ENOENT, ESRCH};

use crate::kernel::links::tcx;
use crate::kernel::netns::search::{self, Search};
use crate::kernel::netns::{Netns, pins};
use crate::kernel::rdma::wait_port::{self, ExpectedPort};
use crate::kernel::rdma::{Rdma, errno};
use crate::kernel::sysfs::{self, Survey};
use crate::kernel::{Observed, Pin, Scope, World, host_paths};
use crate::plan::uverbs_minors::uverbs_number;
use rdma_model::ids::{HcaName, IfName};
use rdma_model::snapshot::{
    CharDevice, HostPaths, JobAddresses, Nexthop, Program, RdmaMode, Route, Snapshot,
};
use rdma_model::step::{Side, Step, VirtualLink};
use rdma_netlink::nldev::CharKind;
use space::{NO_RDMA, Space};

const GONE: &str = "the container's namespace has gone";

pub struct Kernel {
    host: Space,
    inside: Option<Space>,
    boot_id: String,
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
        })
    }

    fn space(&mut self, side: Side) -> Result<&mut Space> {
        match side {
            Side::Host => Ok(&mut self.host),
            Side::Inside => self.inside.as_mut().context(GONE),
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

/// The numbers of verbs nodes that devices of other namespaces have.
fn verbs_elsewhere(here: &Snapshot) -> Vec<u32> {
    let nodes = here.hcas.iter().filter_map(|hca| hca.uverbs.as_ref());
    let ours: Vec<u32> = nodes.filter_map(uverbs_number).collect();
    let mut numbers = sysfs::verbs_numbers(Path::new("/sys"));
    numbers.retain(|number| !ours.contains(number));
    numbers
}

/// Deleting what has gone already is done.
fn gone(result: io::Result<()>, codes: &[i32]) -> Result<()> {
    match result {
        Err(e) if e.raw_os_error().is_some_and(|c| codes.contains(&c)) => Ok(()),
        other => Ok(other?),
    }
}

impl World for Kernel {
    fn has_inside(&self) -> bool {
        self.inside.is_some()
    }

    fn look(&mut self, side: Side, scope: &Scope) -> Result<Observed> {
        let boot_id = self.boot_id.clone();
        let space = self.space(side)?;
        let network = space
            .route
            .network(scope, side == Side::Host)
            .with_context(|| format!("observing the network {side}"))?;
        let facts = space
            .rdma
            .as_mut()
            .map(Rdma::facts)
            .transpose()
            .context("observing RDMA devices")?;
        let survey = match side {
            _ if !scope.sysfs => None,
            Side::Host => Some(Survey::open(Path::new("/sys"))?),
            Side::Inside => Some(Survey::of_netns(&space.netns)?),
        };
        let tree = survey
            .as_ref()
            .map(|s| s.facts(sysfs::Scope::FULL))
            .unwrap_or_default();
        let mut snapshot = sysfs::merge(tree, facts, Some(network.netdevs));
        snapshot.cpu = snapshot.cpu.or_else(|| scope.sysfs.then(sysfs::this_cpu));
        snapshot.boot_id = boot_id;
        snapshot.netns = Some(space.netns.inode());
        if snapshot.rdma_mode == Some(RdmaMode::Exclusive) {
            snapshot.verbs_elsewhere = verbs_elsewhere(&snapshot);
        }
        if scope.elsewhere && side == Side::Host {
            let search = Search::new(&space.netns, None, search::PATIENCE, |_| true);
            snapshot.strangers = search.found.into_iter().map(|found| found.link).collect();
            snapshot.warnings.extend(search.gap.clone());
            snapshot.strangers_gap = search.gap;
        }
        snapshot.routes = network.routes;
        snapshot.routes_cut = network.routes_cut;
        snapshot.nexthops = network.nexthops;
        snapshot.rules = network.rules;
        (space.links, space.neigh) = (network.confs.len(), None);
        space.read_settings(&mut snapshot, scope, network.confs)?;
        Ok(Observed { snapshot, survey })
    }

    fn host_paths(&mut self, host: &Snapshot, job: &JobAddresses) -> HostPaths {
        let asked = self.host.netns.visit(|| Ok(host_paths::observe(host, job)));
        asked.unwrap_or_else(|e| HostPaths {
            not_asked: vec![format!("{e:#}")],
            ..HostPaths::default()
        })
    }

    fn pin(&mut self, pin: Pin) -> Result<()> {
        let netns = &self.space(Side::Inside)?.netns;
        match pin {
            Pin::Own(path) => pins::pin(netns, path),
            Pin::Named(path) => pins::publish(netns, path),
        }
    }

    fn search(&self, side: Side, on: &BTreeSet<u32>) -> Result<Search> {
        let (host, inside) = (
            &self.host.netns,
            self.inside.as_ref().map(|space| &space.netns),
        );
        let (home, more) = match side {
            Side::Host => (host, inside.map(Netns::again).transpose()?),
            Side::Inside => (inside.context(GONE)?, None),
        };
        let mut search = Search::new(home, more, search::PATIENCE, |index| on.contains(&index));
        search
            .found
            .retain(|found| found.link.netns != host.inode());
        Ok(search)
    }

    fn perform(&mut self, step: &Step, deadline: Instant) -> Result<()> {
        match step {
            Step::RdmaLinkDelete { side, hca } => self.link_delete(*side, hca),
            Step::RdmaLinkAdd {
                side,
                hca,
                dev,
                uverbs,
            } => self.link_add(*side, hca, dev, uverbs.as_ref()),
            Step::RdmaRename { hca, name } => self.rdma_rename(hca, name),
            Step::RdmaMove { from, hca, uverbs } => self.rdma_move(*from, hca, uverbs.as_ref()),
            Step::Move {
                from,
                dev,
                name,
                ifindex,
            } => self.move_link(*from, dev, name, *ifindex),
            Step::AwaitPort {
                hca,
                port,
                dev,
                addresses,
                index,
                gid_timeout,
            } => {
                let space = self.space(Side::Inside)?;
                let rdma = space.rdma.as_mut().context(NO_RDMA)?;
                let wanted = ExpectedPort {
                    hca,
                    port: *port,
                    dev,
                    addresses,
                    index: *index,
                };
                wait_port::wait(
                    rdma,
                    &space.netns,
                    wanted,
                    Duration::from_secs((*gid_timeout).into()),
                    deadline,
                )
            }
            Step::Sysctls { side, dev, values } => {
                self.space(*side)?.write_sysctls(*side, dev, values)
            }
            Step::Delete { side, dev } => gone(self.space(*side)?.route.delete(dev), &[ENODEV]),
            Step::Enslave { side, dev, master } => {
                Ok(self.space(*side)?.route.enslave(dev, master)?)
            }
            Step::Make { side, dev, made } => self.make(*side, dev, made, deadline),
            Step::Rename { side, dev, name } => Ok(self.space(*side)?.route.rename(dev, name)?),
            Step::AltnamesDelete {
                side,
                dev,
                altnames,
            } => Ok(self.space(*side)?.route.altnames_delete(dev, altnames)?),
            Step::AltnameAdd { side, dev, altname } => {
                Ok(self.space(*side)?.route.altname_add(dev, altname)?)
            }
            Step::Release { side, dev } => Ok(self.space(*side)?.route.release(dev)?),
            Step::XdpDetach { side, dev } => Ok(self.space(*side)?.route.xdp_detach(dev)?),
            Step::ProgramDetach { side, dev, program } => self.program_detach(*side, dev, program),
            Step::ProgramAttach {
                side,
                dev,
                program,
                before,
            } => self.program_attach(*side, dev, program, *before),
            Step::Settings {
                side,
                dev,
                settings,
            } => Ok(self.space(*side)?.route.set(dev, settings)?),
            Step::Device { side, dev, values } => self.space(*side)?.write_device(dev, values),
            Step::QdiscAdd { side, dev, qdisc } => {
                Ok(self.space(*side)?.route.qdisc_add(dev, qdisc)?)
            }
            Step::QdiscDelete { side, dev, qdisc } => gone(
                self.space(*side)?.route.qdisc_delete(dev, qdisc),
                &[ENOENT, EINVAL],
            ),
            Step::Token { side, dev, token } => {
                Ok(self.space(*side)?.route.set_token(dev, *token)?)
            }
            Step::Mac { side, dev, mac } => Ok(self.space(*side)?.route.set_mac(dev, mac)?),
            Step::AddressAdd { side, dev, address } => {
                Ok(self.space(*side)?.route.address_add(dev, address)?)
            }
            Step::AddressDelete { side, dev, address } => gone(
                self.space(*side)?.route.address_delete(dev, address),
                &[EADDRNOTAVAIL],
            ),
            Step::Link { side, dev, up } => Ok(self.space(*side)?.route.set_up(dev, *up)?),
            Step::RouteAdd { side, route } => self.route_add(*side, route, deadline),
            Step::RoutePrepend { side, route } => self.space(*side)?.route.route_prepend(route),
            Step::RouteDelete { side, route } => self.space(*side)?.route.route_delete(route),
            Step::NexthopAdd { side, nexthop } => self.nexthop_add(*side, nexthop, deadline),
            Step::NexthopDelete { side, id } => {
                gone(self.space(*side)?.route.nexthop_delete(*id), &[ENOENT])
            }
            Step::NeighbourAdd {
                side,
                dev,
                neighbour,
            } => Ok(self.space(*side)?.route.neighbour_add(dev, neighbour)?),
            Step::NeighbourDelete {
                side,
                dev,
                neighbour,
            } => gone(
                self.space(*side)?.route.neighbour_delete(dev, neighbour),
                &[ENOENT],
            ),
            Step::RuleAdd { side, rule } => Ok(self.space(*side)?.route.rule_add(rule)?),
            Step::RuleAppend { side, rule } => Ok(self.space(*side)?.route.rule_append(rule)?),
            Step::RuleDelete { side, rule } => {
                gone(self.space(*side)?.route.rule_delete(rule), &[ENOENT, ESRCH])
            }
        }
    }
}
