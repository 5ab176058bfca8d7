//! What can be set on a NIC's device and stays there when it moves: by ethtool, in files of sysfs,
//! of its NAPIs, of its DCB and of its virtual functions.

mod napi;
mod queues;

use std::thread::{available_parallelism, scope};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rdma_model::ids::IfName;
use rdma_model::snapshot::Netdev;
use rdma_netlink::ethtool::{self, Values};
use rdma_netlink::generic::Genl;
use rdma_netlink::socket::KernelSocket;
use rdma_netlink::{dcb, vf};

use super::netns::Netns;
use queues::Files;

const NETLINK_ROUTE: isize = 0;
/// Each thread that ends makes the moves that follow some 2 ms slower (docs/performance.md), so few
/// files are read without one.
const ALONE: Duration = Duration::from_millis(10);

pub struct Devices {
    ethtool: Option<Genl>,
    netdev: Option<Genl>,
    route: KernelSocket,
    files: Option<Files>,
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
            netdev,
            route,
            files: Files::of_netns(netns).ok(),
        })
    }

    /// Reads those of these NICs. Threads share the files of those that are not read after
    /// [`ALONE`].
    pub fn read(&mut self, mut devs: Vec<&mut Netdev>) {
        for dev in &mut devs {
            dev.device = Some(self.by_netlink(dev));
        }
        let Some(files) = &self.files else { return };
        let read = |dev: &mut &mut Netdev| {
            dev.device
                .get_or_insert_default()
                .extend(files.read(&dev.name))
        };
        let begun = Instant::now();
        let mut rest = &mut devs[..];
        while begun.elapsed() < ALONE {
            let Some((dev, others)) = rest.split_first_mut() else {
                return;
            };
            read(dev);
            rest = others;
        }
        let cores = available_parallelism().map_or(1, usize::from);
        let share = rest.len().div_ceil(cores).max(1);
        scope(|threads| {
            let mut shares = rest.chunks_mut(share);
            let own = shares.next();
            for share in shares {
                drop(threads.spawn(move || share.iter_mut().for_each(read)));
            }
            own.into_iter().flatten().for_each(read);
        });
    }

    fn by_netlink(&mut self, dev: &Netdev) -> Values {
        let hardware = dev.kind.is_none();
        let ethtool = self
            .ethtool
            .as_mut()
            .map(|genl| ethtool::read(genl, dev.ifindex, hardware));
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

fn unknown(values: &Values, is_ours: fn(&str) -> bool, why: &str) -> Result<(), String> {
    if values.keys().any(|key| is_ours(key)) {
        Err(why.to_owned())
    } else {
        Ok(())
    }
}
