//! Waits until a port in the container is what NCCL needs, by asking again and again, since no
//! event reports it: the kernel's RDMA monitor (RDMA_NLDEV_CMD_MONITOR, Linux 6.12) reports devices
//! and netdevs that come and go, not port states or GIDs (enum rdma_nl_notify_event_type in
//! include/uapi/rdma/rdma_netlink.h), and carrier and GID table follow the netdev's own events
//! through workqueues (drivers/infiniband/core/roce_gid_mgmt.c).

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::{HcaName, IfName};
use rdma_model::snapshot::{Gid, GidKind, RdmaMode, is_doubled};
use rustix::fs::{CWD, Mode, OFlags, openat};

use rdma_netlink::nldev::{CharDev, CharKind};

use super::Rdma;
use crate::kernel::mount::fsmount;
use crate::kernel::netns::Netns;
use crate::kernel::sysfs;

#[derive(Clone, Copy)]
pub(in crate::kernel) struct ExpectedPort<'a> {
    pub hca: &'a HcaName,
    pub port: u32,
    pub dev: &'a IfName,
    pub addresses: &'a [IpAddr],
    /// Where they are, if the container gets an index.
    pub index: Option<u32>,
}

enum Lack {
    /// The port is not ACTIVE.
    State(String),
    /// It is, but its table does not have what is wanted.
    Gid(String),
    /// Its table has it at another index than the container gets; or has one GID twice, so that all
    /// behind it are off.
    Elsewhere { text: String, is_doubled: bool },
}

/// Waits for it, until the deadline for the port, and for its GIDs no longer than `patience` after
/// it became ACTIVE.
pub(in crate::kernel) fn wait(
    rdma: &mut Rdma,
    netns: &Netns,
    wanted: ExpectedPort,
    patience: Duration,
    deadline: Instant,
) -> Result<()> {
    let sys = sysfs_of(rdma, netns)?;
    let (mut pause, mut active, mut is_remade) = (Duration::from_micros(500), None, false);
    loop {
        let now = Instant::now();
        let (text, until) = match lacking(rdma, netns, &sys, wanted)? {
            None => return Ok(()),
            Some(Lack::Elsewhere {
                is_doubled: true, ..
            }) if !is_remade => {
                is_remade = true;
                remake(rdma, wanted)?;
                continue;
            }
            Some(Lack::Elsewhere { text, .. }) => return Err(ErrorClass::Refused.error(text)),
            Some(Lack::State(text)) => (text, deadline),
            Some(Lack::Gid(text)) => (text, deadline.min(*active.get_or_insert(now) + patience)),
        };
        if now >= until {
            return Err(ErrorClass::Timeout.error(format!(
                "{} port {} in the container {text}",
                wanted.hca, wanted.port
            )));
        }
        std::thread::sleep(pause);
        // A question takes some 50 µs, and the container waits for the answer.
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}

fn lacking(
    rdma: &mut Rdma,
    netns: &Netns,
    sys: &OwnedFd,
    wanted: ExpectedPort,
) -> Result<Option<Lack>> {
    let ExpectedPort {
        hca,
        port,
        dev,
        addresses,
        index,
    } = wanted;
    let Some(device) = rdma.index(hca)? else {
        return Ok(Some(Lack::State("has gone".to_owned())));
    };
    let seen = rdma
        .ports(device)?
        .into_iter()
        .find(|p| p.number == port)
        .and_then(|p| p.state_name());
    if seen != Some("ACTIVE") {
        let text = format!("is {}", seen.unwrap_or("in no state"));
        return Ok(Some(Lack::State(text)));
    }
    let gids = netns.visit(|| Ok(sysfs::gids(sys, hca, port)?))?;
    if let Some(ip) = addresses
        .iter()
        .find(|ip| !gids.iter().any(|g| is_of(g, dev, ip)))
    {
        let text = format!(
            "has no RoCE v2 GID for {ip} on {dev}; its GID table is {}",
            table(&gids)
        );
        return Ok(Some(Lack::Gid(text)));
    }
    let Some(index) = index else {
        return Ok(None);
    };
    let elsewhere = addresses
        .iter()
        .find(|ip| !gids.iter().any(|g| is_of(g, dev, ip) && g.index == index));
    let Some(ip) = elsewhere else {
        return Ok(None);
    };
    let text = format!(
        "the container gets NCCL_IB_GID_INDEX={index}, but the table of {hca} has {ip} elsewhere \
        inside: {}; set NCCL_IB_GID_INDEX=-1 to have NCCL look for it",
        table(&gids)
    );
    Ok(Some(Lack::Elsewhere {
        text,
        is_doubled: is_doubled(&gids),
    }))
}

fn is_of(gid: &Gid, dev: &IfName, ip: &IpAddr) -> bool {
    gid.kind == Some(GidKind::RoceV2) && gid.netdev.as_ref() == Some(dev) && gid.ip() == *ip
}

/// Makes a soft-RoCE device again. A work queue of the kernel had not done with the netdev's
/// departure from the host when the device came: it took the new GIDs for the old ones, and added
/// them again in another order (del_netdev_ips() in roce_gid_mgmt.c).
fn remake(rdma: &mut Rdma, wanted: ExpectedPort) -> Result<()> {
    let (device, before) = node(rdma, wanted.hca)?;
    // Hardware refuses that: its table is then judged as it is.
    if rdma.link_delete(device).is_err() {
        return Ok(());
    }
    rdma.link_add(wanted.hca, wanted.dev)?;
    let (_, after) = node(rdma, wanted.hca)?;
    ensure!(
        before == after,
        "{} got {after:?} as its verbs node, and had {before:?}",
        wanted.hca
    );
    Ok(())
}

fn node(rdma: &mut Rdma, hca: &HcaName) -> Result<(u32, Option<CharDev>)> {
    let device = rdma
        .index(hca)?
        .with_context(|| format!("{hca} has gone"))?;
    Ok((device, rdma.chardev(CharKind::Uverbs { device })?))
}

/// A GID table for a sentence: an entry each of index, address, type and netdev.
fn table(gids: &[Gid]) -> String {
    if gids.is_empty() {
        return "empty".to_owned();
    }
    let mut entries = Vec::new();
    for gid in gids {
        let dev = gid.netdev.as_ref().map_or("no netdev", IfName::as_str);
        let kind = match gid.kind {
            Some(GidKind::RoceV2) => "RoCE v2",
            Some(GidKind::IbRoceV1) => "IB/RoCE v1",
            None => "no type",
        };
        entries.push(format!("{}: {} {kind} {dev}", gid.index, gid.ip()));
    }
    format!("[{}]", entries.join("; "))
}

/// A /sys that shows a namespace's RDMA devices. The host's shows every device in the shared mode;
/// in the exclusive mode it shows those of the namespace that it was mounted in, in
/// class/infiniband and below the functions alike (ib_class's namespace in
/// drivers/infiniband/core/device.c).
fn sysfs_of(rdma: &mut Rdma, netns: &Netns) -> Result<OwnedFd> {
    if rdma.mode()? == Some(RdmaMode::Exclusive) {
        let mounted = netns.visit(|| Ok(fsmount::create("sysfs", &[], fsmount::PLAIN)?));
        return mounted.context("mounting a sysfs for the container's namespace");
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, "/sys", flags, Mode::empty()).context("opening /sys")
}
