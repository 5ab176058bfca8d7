//! What says that there is something to look at: folders by inotify, links by route netlink (carrier, names, moves to another
//! namespace), RDMA devices by uevents. What it was is not read: who is woken looks at everything. None of them reports the port of
//! an HCA without a netdev (`--ib`); that is seen with the next event, and at Allocate.

use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, bind, socket_with};
use tokio::io::unix::AsyncFd;

pub struct Wakes(AsyncFd<OwnedFd>);

impl Wakes {
    #[allow(
        deprecated,
        reason = "what its successor demands by `unsafe`, a descriptor that stays open, is what an OwnedFd is"
    )]
    fn new(fd: OwnedFd) -> Result<Wakes> {
        Ok(Wakes(AsyncFd::new(fd)?))
    }

    /// Files of these folders: made, replaced, removed.
    pub fn of_folders<'p>(folders: impl IntoIterator<Item = &'p Path>) -> Result<Wakes> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).context("inotify")?;
        let files = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE | WatchFlags::CLOSE_WRITE;
        let flags = files | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR;
        for folder in folders {
            inotify::add_watch(&fd, folder, flags).with_context(|| format!("watching {}", folder.display()))?;
        }
        Wakes::new(fd)
    }

    /// RTNLGRP_LINK of the current namespace.
    pub fn of_links() -> Result<Wakes> {
        Wakes::of_netlink(None, "link events")
    }

    pub fn of_devices() -> Result<Wakes> {
        Wakes::of_netlink(Some(KOBJECT_UEVENT), "uevents")
    }

    /// Group 1 of that family; none: NETLINK_ROUTE, which is 0.
    fn of_netlink(family: Option<Protocol>, what: &str) -> Result<Wakes> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, family);
        let fd = fd.with_context(|| format!("a socket for {what}"))?;
        bind(&fd, &SocketAddrNetlink::new(0, 1)).with_context(|| format!("listening to {what}"))?;
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
