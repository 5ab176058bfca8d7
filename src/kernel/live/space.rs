use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result};
use rdma_model::ids::IfName;
use rdma_model::snapshot::{Netdev, Snapshot};
use rdma_model::step::Side;
use rdma_netlink::devconf::{self, DevConf};
use rdma_netlink::neigh_parms::{AF_INET, AF_INET6, Tables};

use crate::kernel::device::Devices;
use crate::kernel::links::{RouteSocket, tcx};
use crate::kernel::netns::Netns;
use crate::kernel::rdma::Rdma;
use crate::kernel::sysctl::{self, Reader, Reported};
use crate::kernel::{Depth, Scope};

pub(super) const NO_RDMA: &str = "this kernel has no RDMA subsystem";

/// With more links for each NIC, the list of all neighbour tables takes longer to read than the
/// files of the NICs.
const FEW: usize = 64;

pub(super) struct Space {
    pub(super) netns: Netns,
    pub(super) route: RouteSocket,
    pub(super) rdma: Option<Rdma>,
    pub(super) sysctls: Reader,
    /// What links are given beside each other's steps; a value that is written is not in here any
    /// more.
    pub(super) neigh: Option<Tables>,
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
            neigh: None,
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

    pub(super) fn close_devices(&mut self) {
        self.devices = None;
    }

    /// Reads the sysctls, the programs and the device settings that the scope has.
    pub(super) fn read_settings(
        &mut self,
        snapshot: &mut Snapshot,
        scope: &Scope,
        confs: HashMap<u32, DevConf>,
    ) -> Result<()> {
        if scope.depth == Depth::Links {
            return Ok(());
        }
        let is_short = self.route.listed / FEW <= scope.sysctls.count();
        let neigh = if is_short && scope.sysctls.concern_neigh() {
            self.route
                .neigh_parms()
                .context("reading neighbour tables")?
        } else {
            Tables::new()
        };
        let reported = Reported { confs, neigh };
        let reader = &mut self.sysctls;
        self.netns.visit(|| {
            reader.read_netdevs(&mut snapshot.netdevs, &scope.sysctls, &reported);
            snapshot.sysctls = reader.shared(scope.defaults, &reported);
            let netdevs = snapshot.netdevs.iter_mut();
            let netdevs = netdevs.filter(|dev| scope.routes.concern(dev));
            tcx::read(netdevs).context("reading tcx programs")
        })?;
        let wanted: Vec<&mut Netdev> = snapshot
            .netdevs
            .iter_mut()
            .filter(|d| scope.devices.contains(&d.name))
            .collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let devices = self.devices().context("looking at devices")?;
        devices.read(wanted).context("looking at devices")
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
        let differ = match self.route.conf(dev) {
            Ok((index, conf)) => self.differing(index, conf, values),
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
        self.netns.visit(|| {
            let mut done = Ok(());
            for (key, value) in sysctl::ordered(&differ) {
                done = done.and(sysctl::write(dev, key, value));
            }
            done
        })
    }

    /// Those values that a link does not have by now, as far as netlink reports that. They are
    /// about to be written: its neighbour tables are forgotten.
    fn differing(
        &mut self,
        index: u32,
        conf: DevConf,
        values: &BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        let wanted = values.keys().any(|key| key.contains("/neigh/"));
        if wanted && self.neigh.is_none() && self.route.listed <= FEW {
            self.neigh = self.route.neigh_parms().ok();
        }
        let mut own = Tables::new();
        for key in [AF_INET, AF_INET6].map(|family| (family, Some(index))) {
            let parms = self.neigh.as_mut().and_then(|all| all.remove(&key));
            own.extend(parms.map(|parms| (key, parms)));
        }
        let reported = Reported {
            confs: [(index, conf)].into(),
            neigh: own,
        };
        reported.differing(index, values)
    }

    /// The values that are left for files.
    fn set_by_netlink(
        &mut self,
        dev: &IfName,
        values: BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        let by_netlink: Vec<_> = values.iter().filter_map(by_netlink).collect();
        if by_netlink.is_empty() || self.route.set_conf(dev, &by_netlink).is_err() {
            return values;
        }
        values
            .into_iter()
            .filter(|(key, value)| self::by_netlink((key, value)).is_none())
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

fn by_netlink((key, value): (&String, &String)) -> Option<(u16, i32)> {
    devconf::settable(key.strip_prefix("ipv4/conf/")?, value)
}
