//! A small kernel with two network namespaces that behaves as Linux does where it matters to a NIC
//! that moves: what a move, a link going down, a renamed link or a dying namespace takes away, what
//! comes by itself, and what is refused. Checked against Linux 6.18 by hand; the functions of Linux
//! that a behaviour comes from are named where it is not obvious.

pub mod hosts;
pub mod machine;
mod net;
mod paths;
mod stacks;

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use nix::libc::{EEXIST, EINVAL, EIO, ENODEV, EOPNOTSUPP};
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::{HcaName, IfName};
use rdma_model::snapshot::{
    CharDevice, Hca, HostPaths, JobAddresses, Netdev, Port, RdmaMode, Snapshot, SysctlValues,
};
use rdma_model::step::{Side, Step};
use rdmaprep::kernel::netns::search::Search;
use rdmaprep::kernel::{Observed, Pin, Scope, World};

pub use net::{Link, Space, errno, naked, plain, v4, v6};

/// An RDMA device and the link that it sits on.
#[derive(Clone, Debug)]
pub struct Rdma {
    hca: Hca,
    on: u64,
    /// Its namespace, which only the exclusive mode minds.
    at: Side,
}

#[derive(Clone, Debug)]
pub struct Kernel {
    spaces: [Option<Space>; 2],
    rdma: Vec<Rdma>,
    next_id: u64,
    /// Whether RDMA devices belong to one namespace each.
    pub exclusive: bool,
    /// Steps performed since it was set; the one with that number fails and changes nothing.
    pub fail_at: Option<usize>,
    pub performed: usize,
    /// Steps that failed, for messages.
    pub log: Vec<String>,
    /// Why a search of other namespaces is not complete.
    pub gap: Option<String>,
    /// Whether a search fails.
    pub blind: bool,
}

fn slot(side: Side) -> usize {
    match side {
        Side::Host => 0,
        Side::Inside => 1,
    }
}

fn other(side: Side) -> Side {
    match side {
        Side::Host => Side::Inside,
        Side::Inside => Side::Host,
    }
}

impl Default for Kernel {
    fn default() -> Kernel {
        Kernel::new()
    }
}

impl Kernel {
    pub fn new() -> Kernel {
        let spaces = [Some(Space::new(4026531840)), Some(Space::new(4026532999))];
        let (rdma, log) = (Vec::new(), Vec::new());
        Kernel {
            spaces,
            rdma,
            next_id: 1,
            exclusive: false,
            fail_at: None,
            performed: 0,
            log,
            gap: None,
            blind: false,
        }
    }

    pub fn space(&mut self, side: Side) -> Result<&mut Space> {
        self.spaces[slot(side)]
            .as_mut()
            .ok_or_else(|| anyhow!("the container's namespace has gone"))
    }

    /// Puts a link there, down and naked, with the namespace's default sysctls.
    pub fn plug(&mut self, side: Side, mut dev: Netdev) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let space = self.spaces[slot(side)].as_mut().unwrap();
        dev.ifindex = space.free_index(dev.ifindex);
        space.register(Link {
            id,
            dev,
            over: None,
            own_mac: None,
        });
        id
    }

    /// An HCA of hardware, with the given number of its verbs node.
    pub fn plug_hca(&mut self, name: &str, on: u64, number: u32, rxe: bool) {
        self.rdma.push(Rdma {
            hca: hca(name, number, rxe),
            on,
            at: Side::Host,
        });
    }

    fn link_of(&self, id: u64) -> Option<(Side, &Netdev)> {
        [Side::Host, Side::Inside].into_iter().find_map(|side| {
            let links = &self.spaces[slot(side)].as_ref()?.links;
            links.iter().find(|l| l.id == id).map(|l| (side, &l.dev))
        })
    }

    /// Everything on one side, as `Scope::full()` shows it.
    pub fn see(&self, side: Side) -> Snapshot {
        let space = self.spaces[slot(side)].as_ref().unwrap();
        let mut snapshot = space.snapshot();
        snapshot.rdma_mode = Some(if self.exclusive {
            RdmaMode::Exclusive
        } else {
            RdmaMode::Shared
        });
        // Shared mode: every namespace lists every device, but only the netdevs of its own
        // (nldev.c, fill_port_info).
        let seen = |r: &&Rdma| !self.exclusive || r.at == side;
        let elsewhere = self.rdma.iter().filter(|r| !seen(r));
        snapshot.verbs_elsewhere = elsewhere
            .map(|r| r.hca.uverbs.as_ref().unwrap().minor - 192)
            .collect();
        for rdma in self.rdma.iter().filter(seen) {
            let mut hca = rdma.hca.clone();
            let here = self
                .link_of(rdma.on)
                .filter(|(s, _)| *s == side)
                .map(|(_, d)| d.name.clone());
            hca.ports[0].netdev = here;
            snapshot.hcas.push(hca);
        }
        snapshot.hcas.sort_by(|a, b| a.name.cmp(&b.name));
        snapshot
    }

    /// The namespace dies (default_device_exit_net in net/core/dev.c): hardware returns to the
    /// first namespace, the rest is destroyed.
    pub fn die(&mut self) {
        let inside = self.spaces[1].take().unwrap();
        // rdma_dev_exit_net in drivers/infiniband/core/device.c.
        for i in (0..self.rdma.len())
            .filter(|i| self.rdma[*i].at == Side::Inside)
            .collect::<Vec<_>>()
        {
            self.register(i, Side::Host);
        }
        let mut gone = inside.clone();
        for link in inside.links {
            gone.unregister(link.id);
            self.unlinked(link.id);
            if link.dev.pci.is_none() {
                self.delete_above(link.id);
                self.rdma.retain(|r| r.on != link.id);
                continue;
            }
            let mut link = gone.take(link.id);
            let host = self.spaces[0].as_mut().unwrap();
            link.dev.altnames.retain(|a| !host.taken(a));
            let fallback = format!("dev{}", link.dev.ifindex);
            link.dev.ifindex = host.free_index(link.dev.ifindex);
            if host.taken(link.dev.name.as_str()) {
                let free = |n: &String| !host.taken(n);
                let name = Some(fallback)
                    .filter(free)
                    .or_else(|| (0..).map(|i| format!("dev{i}")).find(free));
                link.dev.name = name.unwrap().parse().unwrap();
            }
            host.register(link);
        }
    }

    /// Soft-RoCE goes with its netdev's registration in a namespace (rxe_notify in
    /// drivers/infiniband/sw/rxe/rxe_net.c).
    fn unlinked(&mut self, id: u64) {
        self.rdma.retain(|r| r.on != id || !r.hca.is_rxe());
    }

    /// `__dev_change_net_namespace` in net/core/dev.c, then the rename that do_setlink in
    /// net/core/rtnetlink.c adds when the message has a name.
    fn move_link(
        &mut self,
        from: Side,
        dev: &IfName,
        name: &IfName,
        wanted: Option<u32>,
    ) -> Result<()> {
        let to = other(from);
        let id = self.space(from)?.id(dev)?;
        let link = self.space(from)?.link(id).clone();
        let target = self.space(to)?;
        if link.dev.master.is_none() && link.dev.name.as_str() == "lo" {
            return Err(errno(EINVAL));
        }
        let mut new_name = link.dev.name.clone();
        if target.taken(link.dev.name.as_str()) {
            if target.taken(name.as_str()) {
                return Err(errno(EEXIST));
            }
            new_name = name.clone();
        }
        if link.dev.altnames.iter().any(|a| target.taken(a)) {
            return Err(errno(EEXIST));
        }
        let index = match wanted {
            // EBUSY: kernel::live tries again without it.
            Some(index) if target.has_index(index) => target.free_index(link.dev.ifindex),
            Some(index) => index,
            None => target.free_index(link.dev.ifindex),
        };
        if link.dev.kind.as_deref() == Some("bond") {
            return Err(errno(EINVAL));
        }
        self.space(from)?.unregister(id);
        self.unlinked(id);
        self.follow(id, false);
        let mut link = self.space(from)?.take(id);
        link.dev.name = new_name;
        link.dev.ifindex = index;
        self.space(to)?.register(link);
        self.space(to)?.rename(id, name)
    }

    fn link_add(
        &mut self,
        side: Side,
        name: &HcaName,
        dev: &IfName,
        wanted: Option<&CharDevice>,
    ) -> Result<()> {
        let on = self.space(side)?.id(dev)?;
        if self
            .rdma
            .iter()
            .any(|r| r.hca.name == *name || (r.on == on && r.hca.is_rxe()))
        {
            return Err(errno(EEXIST));
        }
        let number = self.free_number(None);
        // A new device is the initial namespace's, from whichever namespace it is made
        // (ib_device_init in drivers/infiniband/core/device.c).
        self.rdma.push(Rdma {
            hca: hca(name.as_str(), number, true),
            on,
            at: Side::Host,
        });
        match (wanted, node(number)) {
            // As the kernel does: the link is there, and is for the caller to undo.
            (Some(w), got) if *w != got => Err(anyhow!("{name} got {got:?}, the plan says {w:?}")),
            _ => Ok(()),
        }
    }

    fn link_delete(&mut self, side: Side, name: &HcaName) {
        let exclusive = self.exclusive;
        self.rdma
            .retain(|r| r.hca.name != *name || !r.hca.is_rxe() || exclusive && r.at != side);
    }

    /// The lowest number that no verbs node has, but for that of one device.
    fn free_number(&self, but: Option<usize>) -> u32 {
        let others = self
            .rdma
            .iter()
            .enumerate()
            .filter(|(i, _)| Some(*i) != but);
        let used: Vec<u32> = others
            .map(|(_, r)| r.hca.uverbs.as_ref().unwrap().minor - 192)
            .collect();
        (0..).find(|n| !used.contains(n)).unwrap()
    }

    /// rdma_dev_change_netns in drivers/infiniband/core/device.c: its clients are added again, the
    /// verbs node, too.
    fn register(&mut self, device: usize, at: Side) {
        let number = self.free_number(Some(device));
        let rdma = &mut self.rdma[device];
        (rdma.at, rdma.hca.uverbs) = (at, Some(node(number)));
    }

    fn rdma_move(&mut self, from: Side, hca: &HcaName, wanted: Option<&CharDevice>) -> Result<()> {
        self.space(other(from))?;
        ensure!(self.exclusive, errno(EOPNOTSUPP));
        let found = self
            .rdma
            .iter()
            .position(|r| r.hca.name == *hca && r.at == from);
        let device = found.ok_or_else(|| anyhow!("{hca} is not {from}"))?;
        self.register(device, other(from));
        let got = self.rdma[device].hca.uverbs.as_ref();
        ensure!(
            wanted.is_none() || wanted == got,
            "{hca} got {got:?}, the plan says {wanted:?}"
        );
        Ok(())
    }

    fn await_port(&mut self, hca: &HcaName, dev: &IfName, ips: &[std::net::IpAddr]) -> Result<()> {
        let lacking = |what: &str| ErrorClass::Timeout.error(format!("{hca} on {dev} {what}"));
        let rdma = self
            .rdma
            .iter()
            .find(|r| r.hca.name == *hca)
            .ok_or_else(|| lacking("has gone"))?;
        let (side, link) = self
            .link_of(rdma.on)
            .ok_or_else(|| lacking("has no netdev"))?;
        let has = |ip| link.addresses.iter().any(|a| a.address == ip);
        let seen = !self.exclusive || rdma.at == Side::Inside;
        let ready = seen
            && side == Side::Inside
            && link.name == *dev
            && link.up
            && ips.iter().all(|ip| has(*ip));
        if ready {
            Ok(())
        } else {
            Err(lacking("is not ready"))
        }
    }

    fn act(&mut self, step: &Step) -> Result<()> {
        let exclusive = self.exclusive;
        match step {
            Step::RdmaLinkDelete { side, hca } => {
                self.link_delete(*side, hca);
                Ok(())
            }
            Step::RdmaRename { hca, name } => {
                let found = self
                    .rdma
                    .iter_mut()
                    .find(|r| r.hca.name == *hca && (!exclusive || r.at == Side::Host));
                found
                    .ok_or_else(|| anyhow!("{hca} is not on the host"))?
                    .hca
                    .name = name.clone();
                Ok(())
            }
            Step::RdmaMove { from, hca, uverbs } => self.rdma_move(*from, hca, uverbs.as_ref()),
            Step::RdmaLinkAdd {
                side,
                hca,
                dev,
                uverbs,
            } => self.link_add(*side, hca, dev, uverbs.as_ref()),
            Step::Move {
                from,
                dev,
                name,
                ifindex,
            } => self.move_link(*from, dev, name, *ifindex),
            Step::AwaitPort {
                hca,
                dev,
                addresses,
                ..
            } => self.await_port(hca, dev, addresses),
            Step::RouteAdd { side, .. }
            | Step::LegsAdd { side, .. }
            | Step::RoutePrepend { side, .. }
            | Step::RouteDelete { side, .. }
            | Step::NexthopAdd { side, .. }
            | Step::NexthopDelete { side, .. }
            | Step::RuleAdd { side, .. }
            | Step::RuleAppend { side, .. }
            | Step::RuleDelete { side, .. } => self.space(*side)?.connect(step),
            Step::Sysctls { side, dev, values } if dev.as_str() == "all" => {
                self.sysctls_of_all(*side, values)
            }
            Step::Make { side, dev, made } => self.make(*side, dev, made),
            Step::Delete { side, dev } => self.delete(*side, dev),
            Step::Enslave { side, dev, master } => self.enslave(*side, dev, master),
            Step::Link { side, dev, up } if self.is_stacked(*side, dev) => {
                self.raise(*side, dev, *up)
            }
            Step::Rename { side, dev, .. }
            | Step::ProgramDetach { side, dev, .. }
            | Step::ProgramAttach { side, dev, .. }
            | Step::AltnamesDelete { side, dev, .. }
            | Step::AltnameAdd { side, dev, .. }
            | Step::Release { side, dev }
            | Step::XdpDetach { side, dev }
            | Step::Sysctls { side, dev, .. }
            | Step::Settings { side, dev, .. }
            | Step::Device { side, dev, .. }
            | Step::QdiscAdd { side, dev, .. }
            | Step::QdiscDelete { side, dev, .. }
            | Step::Token { side, dev, .. }
            | Step::Mac { side, dev, .. }
            | Step::AddressAdd { side, dev, .. }
            | Step::AddressDelete { side, dev, .. }
            | Step::Link { side, dev, .. }
            | Step::NeighbourAdd { side, dev, .. }
            | Step::NeighbourDelete { side, dev, .. } => {
                let space = self.space(*side)?;
                let id = space.id(dev)?;
                space.act(id, step)
            }
        }
    }

    fn sysctls_of_all(&mut self, side: Side, values: &SysctlValues) -> Result<()> {
        self.space(side)?
            .all
            .extend(std::collections::BTreeMap::clone(values));
        Ok(())
    }

    /// A step without the failure point: what an administrator or a container does.
    pub fn does(&mut self, step: Step) -> Result<()> {
        self.act(&step)
    }
}

/// N as the kernel numbers verbs nodes.
pub fn node(number: u32) -> CharDevice {
    CharDevice {
        name: format!("uverbs{number}"),
        major: 231,
        minor: 192 + number,
    }
}

fn hca(name: &str, number: u32, rxe: bool) -> Hca {
    let port = Port {
        number: 1,
        state: Some("ACTIVE".into()),
        link_layer: Some("Ethernet".into()),
        rate: None,
        netdev: None,
        gids: Vec::new(),
        gid_table: None,
    };
    Hca {
        name: name.parse().unwrap(),
        index: None,
        node_guid: None,
        sys_image_guid: None,
        firmware: None,
        driver: Some(if rxe { "rxe" } else { "mlx5_core" }.into()),
        protocol: None,
        pci: None,
        numa: None,
        uverbs: Some(node(number)),
        umad: Vec::new(),
        ports: vec![port],
        conflicts: Vec::new(),
    }
}

impl World for Kernel {
    fn has_inside(&self) -> bool {
        self.spaces[1].is_some()
    }

    /// It has no /sys.
    fn look(&mut self, side: Side, scope: &Scope) -> Result<Observed> {
        self.space(side)?;
        let mut snapshot = self.see(side);
        let hidden = snapshot
            .netdevs
            .iter_mut()
            .filter(|d| !scope.sysctls.concern(&d.name));
        hidden.for_each(|d| d.sysctls.clear());
        let hidden = snapshot
            .netdevs
            .iter_mut()
            .filter(|d| !scope.devices.contains(&d.name));
        hidden.for_each(|d| d.device = None);
        Ok(Observed {
            snapshot,
            survey: None,
        })
    }

    fn host_paths(&mut self, host: &Snapshot, job: &JobAddresses) -> HostPaths {
        paths::host_paths(host, job)
    }

    fn perform(&mut self, step: &Step, _: Instant) -> Result<()> {
        let number = self.performed;
        self.performed += 1;
        let result = if self.fail_at == Some(number) {
            Err(errno(EIO))
        } else {
            self.act(step)
        };
        if let Err(e) = &result {
            self.log.push(format!("{step}: {e:#}"));
        }
        result
    }

    /// The file is there, as a bind mount would have it; what it pins is for those to know who have
    /// the kernel.
    fn pin(&mut self, pin: Pin) -> Result<()> {
        self.space(Side::Inside)?;
        let (Pin::Own(path) | Pin::Named(path)) = pin;
        std::fs::File::create(path)?;
        Ok(())
    }

    fn search(&self, _: Side, _: &BTreeSet<u32>) -> Result<Search> {
        if self.blind {
            return Err(errno(EIO));
        }
        Ok(Search {
            gap: self.gap.clone(),
            ..Search::default()
        })
    }
}

/// There is no such link.
fn no_link() -> anyhow::Error {
    errno(ENODEV)
}
