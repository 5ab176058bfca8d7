//! What can be set on a NIC's device and stays there when it moves: by ethtool, in files of sysfs,
//! of its NAPIs, of its DCB and of its virtual functions.

mod napi;
mod queues;

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use rdma_model::ids::IfName;
use rdma_model::snapshot::Netdev;
use rdma_netlink::ethtool::{self, Values};
use rdma_netlink::generic::Genl;
use rdma_netlink::socket::KernelSocket;
use rdma_netlink::{dcb, vf};
use rustix::thread::sched_getaffinity;

use super::beside::{Beside, Idle};
use super::netns::Netns;
use queues::Files;

const NETLINK_ROUTE: isize = 0;
/// So many NICs at least have their files read by one thread.
const SHARE: usize = 4;

pub struct Devices {
    ethtool: Option<Genl>,
    known: ethtool::Known,
    netdev: Option<Genl>,
    route: KernelSocket,
    files: Option<Arc<Files>>,
    idle: Idle,
}

impl Devices {
    /// Opens what there is: a kernel without a netlink family has none of its settings.
    pub fn open(netns: &Netns) -> Result<Devices> {
        let (ethtool, netdev, route) = netns.visit(|| {
            let route =
                KernelSocket::open(NETLINK_ROUTE).context("opening a route netlink socket")?;
            Ok((Genl::open("ethtool")?, Genl::open("netdev")?, route))
        })?;
        // In a container of its own sysfs may be closed to us: its files are unknown then.
        Ok(Devices {
            ethtool,
            known: ethtool::Known::default(),
            netdev,
            route,
            files: Files::of_netns(netns).ok().map(Arc::new),
            idle: Idle::default(),
        })
    }

    /// Reads those of these NICs: their files on other threads.
    pub fn read(&mut self, devs: Vec<&mut Netdev>) -> Result<()> {
        // A host is looked at until it settles, and no NIC moves between these looks.
        self.idle.end();
        let share = devs.len().div_ceil(processors()).max(SHARE);
        let mut of_files = Vec::new();
        for devs in devs.chunks(share) {
            let names: Vec<IfName> = devs.iter().map(|dev| dev.name.clone()).collect();
            let files = self.files.clone();
            of_files.push(Beside::begin(files, move |files| {
                read_files(files.as_deref(), &names)
            }));
        }
        let by_netlink: Vec<Values> = devs.iter().map(|dev| self.by_netlink(dev)).collect();
        let mut values = Vec::new();
        for part in of_files {
            values.append(&mut part.answer(&mut self.idle)?);
        }
        for ((dev, mut values), more) in devs.into_iter().zip(values).zip(by_netlink) {
            values.extend(more);
            dev.device = Some(values.into());
        }
        Ok(())
    }

    fn by_netlink(&mut self, dev: &Netdev) -> Values {
        let hardware = dev.kind.is_none();
        let ethtool = self
            .ethtool
            .as_mut()
            .map(|genl| ethtool::read(genl, &mut self.known, dev.ifindex, hardware));
        let mut all = ethtool.unwrap_or_default();
        all.extend(
            self.netdev
                .as_mut()
                .map(|genl| napi::read(genl, dev.ifindex))
                .into_iter()
                .flatten(),
        );
        if hardware {
            all.extend(dcb::read(&mut self.route, &dev.name));
            all.extend(vf::read(&mut self.route, dev.ifindex));
        }
        all
    }

    /// Sends only what differs. The error names the values that were refused.
    pub fn write(&mut self, ifindex: u32, dev: &IfName, values: &Values) -> Result<()> {
        let ethtool = match &mut self.ethtool {
            Some(genl) => ethtool::give(genl, ifindex, values),
            None => unknown(
                values,
                ethtool::is_ours,
                "this kernel has no ethtool netlink",
            ),
        };
        let files = match &self.files {
            Some(files) => files.write(dev, values),
            None => unknown(values, queues::is_ours, "its sysfs cannot be mounted"),
        };
        // A file of the NIC sets all of its NAPIs, so these come later.
        let napis = match &mut self.netdev {
            Some(genl) => napi::write(genl, ifindex, values),
            None => unknown(values, napi::is_ours, "this kernel has no netdev netlink"),
        };
        let (dcb, vfs) = (
            dcb::give(&mut self.route, dev, values),
            vf::give(&mut self.route, ifindex, values),
        );
        match [ethtool, files, napis, dcb, vfs]
            .into_iter()
            .filter_map(Result::err)
            .collect::<Vec<_>>()
            .join(", ")
        {
            refused if refused.is_empty() => Ok(()),
            refused => bail!("refused: {refused}"),
        }
    }
}

/// Those that this thread may run on. What its cgroup is allowed of them, the library reads from
/// all mounts of the host.
fn processors() -> usize {
    sched_getaffinity(None).map_or(1, |all| all.count().max(1) as usize)
}

fn read_files(files: Option<&Files>, names: &[IfName]) -> Vec<Values> {
    let all = names.iter();
    all.map(|name| files.map_or_else(Values::new, |files| files.read(name)))
        .collect()
}

fn unknown(values: &Values, is_ours: fn(&str) -> bool, why: &str) -> Result<(), String> {
    if values.keys().any(|key| is_ours(key)) {
        Err(why.to_owned())
    } else {
        Ok(())
    }
}
