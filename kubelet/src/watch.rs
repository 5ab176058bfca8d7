//! What says that there is something to look at: folders by inotify, the network by route netlink,
//! RDMA devices by uevents. What it was is not read: the task that wakes looks at all rails. None
//! of them reports the port of an HCA without a netdev (`--ib`), nor a GID; that is seen with the
//! next event, and at Allocate.

use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, bind, socket_with};
use tokio::io::unix::AsyncFd;

pub struct Wakes(AsyncFd<OwnedFd>);

/// RTNLGRP_LINK, _IPV4_IFADDR, _IPV4_ROUTE, _IPV4_RULE, _IPV6_IFADDR, _IPV6_ROUTE, _IPV6_RULE
/// (linux/rtnetlink.h): links with their carriers, names and moves to another namespace; addresses;
/// what makes a link the host's uplink.
const NETWORK: [u32; 7] = [1, 5, 7, 8, 9, 11, 19];

impl Wakes {
    #[allow(
        deprecated,
        reason = "what its successor demands by `unsafe`, a descriptor that stays open, is what \
            an OwnedFd is"
    )]
    fn new(fd: OwnedFd) -> Result<Wakes> {
        Ok(Wakes(AsyncFd::new(fd)?))
    }

    /// Of nothing yet, see [`Wakes::watch`].
    pub fn of_folders() -> Result<Wakes> {
        Wakes::new(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).context("inotify")?)
    }

    /// Files of that folder: made, replaced, removed. Again for a folder that may have been made
    /// again; for the same one, it changes nothing.
    pub fn watch(&self, folder: &Path) -> Result<()> {
        let files =
            WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE | WatchFlags::CLOSE_WRITE;
        let flags = files | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR;
        inotify::add_watch(self.0.get_ref(), folder, flags)
            .with_context(|| format!("watching {}", folder.display()))?;
        Ok(())
    }

    /// Of the current namespace.
    pub fn of_network() -> Result<Wakes> {
        Wakes::of_netlink(
            None,
            NETWORK
                .iter()
                .fold(0, |bits, group| bits | 1 << (group - 1)),
            "route netlink",
        )
    }

    pub fn of_devices() -> Result<Wakes> {
        Wakes::of_netlink(Some(KOBJECT_UEVENT), 1, "uevents")
    }

    /// Without a family: NETLINK_ROUTE, which is 0.
    fn of_netlink(family: Option<Protocol>, groups: u32, what: &str) -> Result<Wakes> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, family);
        let fd = fd.with_context(|| format!("a socket for {what}"))?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))
            .with_context(|| format!("listening to {what}"))?;
        Wakes::new(fd)
    }

    /// Returns when something has happened since the last call. Safe to drop while it waits.
    pub async fn next(&self) -> Result<()> {
        let mut buffer = [0; 1 << 16];
        let mut any = false;
        loop {
            let mut ready = self.0.readable().await?;
            loop {
                match rustix::io::read(self.0.get_ref(), &mut buffer) {
                    // ENOBUFS: more came than the socket holds.
                    Ok(1..) | Err(Errno::NOBUFS) => any = true,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Ok(0) => bail!("notifications have ended"),
                    Err(e) => return Err(e).context("reading notifications"),
                }
            }
            ready.clear_ready();
            if any {
                return Ok(());
            }
        }
    }
}
