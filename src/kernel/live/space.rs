//! A network namespace with its sockets, and what is read of its NICs besides.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use rdma_model::ids::IfName;
use rdma_model::snapshot::{Netdev, SysctlValues};

use crate::kernel::device::Devices;
use crate::kernel::links::RouteSocket;
use crate::kernel::netns::Netns;
use crate::kernel::rdma::Rdma;
use crate::kernel::{Sysctls, sysctl};

pub(super) const NO_RDMA: &str = "this kernel has no RDMA subsystem";

pub(super) struct Space {
    pub(super) netns: Netns,
    pub(super) route: RouteSocket,
    pub(super) rdma: Option<Rdma>,
    devices: Option<Devices>,
}

impl Space {
    pub(super) fn open(netns: Netns, rdma: fn() -> Result<Option<Rdma>>) -> Result<Space> {
        let (route, rdma) = netns.visit(|| Ok((RouteSocket::open()?, rdma()?)))?;
        Ok(Space { netns, route, rdma, devices: None })
    }

    pub(super) fn rdma(&mut self) -> Result<&mut Rdma> {
        self.rdma.as_mut().context(NO_RDMA)
    }

    pub(super) fn devices(&mut self) -> Result<&mut Devices> {
        let devices = self.devices.take().map_or_else(|| Devices::open(&self.netns), Ok)?;
        Ok(self.devices.insert(devices))
    }

    pub(super) fn write_device(&mut self, dev: &IfName, values: &BTreeMap<String, String>) -> Result<()> {
        let index = self.route.index(dev)?;
        self.devices()?.write(index, dev, values)
    }
}

/// Half of the time that a hook adds to the kernel's is for reading these: every core takes its share. Threads are born into
/// the namespace of their parent.
pub(super) fn read_sysctls(netdevs: &mut [Netdev], wanted: &Sysctls) {
    let mut devs: Vec<&mut Netdev> = netdevs.iter_mut().filter(|d| wanted.concern(&d.name)).collect();
    let few = matches!(wanted, Sysctls::Named(_));
    let cores = if few { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
    let share = devs.len().div_ceil(cores).max(1);
    let read = |devs: &mut [&mut Netdev]| devs.iter_mut().for_each(|d| d.sysctls = sysctls(&d.name, wanted));
    std::thread::scope(|threads| {
        let mut shares = devs.chunks_mut(share);
        let own = shares.next();
        shares.for_each(|share| drop(threads.spawn(move || read(share))));
        own.map(read);
    });
}

fn sysctls(dev: &IfName, wanted: &Sysctls) -> SysctlValues {
    match wanted {
        Sysctls::All | Sysctls::Of(_) => sysctl::read_all(dev).into(),
        Sysctls::Named(keys) => {
            let value = |key: &String| Some((key.clone(), sysctl::read(dev.as_str(), key)?));
            keys.get(dev).into_iter().flatten().filter_map(value).collect()
        }
    }
}
