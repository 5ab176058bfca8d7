use std::collections::BTreeMap;

use anyhow::{Context, Result};
use rdma_model::ids::IfName;
use rdma_model::step::Side;
use rdma_netlink::devconf;
use rdma_netlink::neigh_parms::Tables;

use crate::kernel::device::Devices;
use crate::kernel::links::RouteSocket;
use crate::kernel::netns::Netns;
use crate::kernel::rdma::Rdma;
use crate::kernel::sysctl::{self, Reader, Reported};

pub(super) const NO_RDMA: &str = "this kernel has no RDMA subsystem";

/// With more links, the list of all neighbour tables takes longer to read than the files of one
/// link.
const FEW: usize = 64;

pub(super) struct Space {
    pub(super) netns: Netns,
    pub(super) route: RouteSocket,
    pub(super) rdma: Option<Rdma>,
    pub(super) sysctls: Reader,
    pub(super) links: usize,
    devices: Option<Devices>,
}

impl Space {
    pub(super) fn open(netns: Netns, rdma: fn() -> Result<Option<Rdma>>) -> Result<Space> {
        let (route, rdma) = netns.visit(|| Ok((RouteSocket::open()?, rdma()?)))?;
        Ok(Space {
            netns,
            route,
            rdma,
            sysctls: Reader::default(),
            links: 0,
            devices: None,
        })
    }

    pub(super) fn rdma(&mut self) -> Result<&mut Rdma> {
        self.rdma.as_mut().context(NO_RDMA)
    }

    pub(super) fn devices(&mut self) -> Result<&mut Devices> {
        let devices = self
            .devices
            .take()
            .map_or_else(|| Devices::open(&self.netns), Ok)?;
        Ok(self.devices.insert(devices))
    }

    /// By netlink where that can be; on the host all by files, as some announce a change there.
    pub(super) fn write_sysctls(
        &mut self,
        side: Side,
        dev: &IfName,
        values: &BTreeMap<String, String>,
    ) -> Result<()> {
        self.sysctls.forget();
        // Without what netlink reports, as of `all`, the files are compared.
        let differ: BTreeMap<String, String> = match self.route.conf(dev) {
            Ok((index, conf)) => {
                let neigh = self.links <= FEW && values.keys().any(|key| key.contains("/neigh/"));
                let neigh = if neigh {
                    self.route.neigh_parms().unwrap_or_default()
                } else {
                    Tables::new()
                };
                let reported = Reported {
                    confs: [(index, conf)].into(),
                    neigh,
                };
                reported.differing(index, values)
            }
            Err(_) => values.clone(),
        };
        let differ = if side == Side::Inside {
            self.set_by_netlink(dev, differ)
        } else {
            differ
        };
        if differ.is_empty() {
            return Ok(());
        }
        // One that is refused must not keep the others from being written.
        let write = || {
            sysctl::ordered(&differ)
                .map(|(k, v)| sysctl::write(dev, k, v))
                .fold(Ok(()), Result::and)
        };
        self.netns.visit(write)
    }

    /// The values that are left for files.
    fn set_by_netlink(
        &mut self,
        dev: &IfName,
        values: BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        let message = |(key, value): (&String, &String)| {
            devconf::settable(key.strip_prefix("ipv4/conf/")?, value)
        };
        let by_netlink: Vec<_> = values.iter().filter_map(message).collect();
        if by_netlink.is_empty() || self.route.set_conf(dev, &by_netlink).is_err() {
            return values;
        }
        values
            .into_iter()
            .filter(|(key, value)| message((key, value)).is_none())
            .collect()
    }

    pub(super) fn write_device(
        &mut self,
        dev: &IfName,
        values: &BTreeMap<String, String>,
    ) -> Result<()> {
        let index = self.route.index(dev)?;
        self.devices()?.write(index, dev, values)
    }
}
