//! Pins: bind mounts that keep a network namespace alive when its container has gone.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::world::netns::Netns;
use crate::world::{faults, files};

/// Whether `path` is a pin of the namespace with that inode.
pub fn is_pinned(path: &Path, inode: u64) -> bool {
    Netns::open(path).is_ok_and(|ns| ns.inode() == inode)
}

/// Binds the namespace onto `path`. Binds stack silently, so an existing one is checked first and never covered.
pub fn pin(ns: &Netns, path: &Path) -> Result<()> {
    if is_pinned(path, ns.inode()) {
        return Ok(());
    }
    ensure!(Netns::open(path).is_err(), "{} already pins another namespace", path.display());
    let doing = || format!("pinning the network namespace at {}", path.display());
    faults::around(doing(), || {
        OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC)
            .open(path)
            .with_context(|| format!("creating {}", path.display()))?;
        faults::point(format_args!("while {}", doing()))?;
        let source = format!("/proc/self/fd/{}", ns.raw_fd());
        mount(Some(source.as_str()), path, None::<&str>, MsFlags::MS_BIND, None::<&str>).with_context(doing)
    })
}

/// Drops the pin and its file; one that is not there is fine.
pub fn unpin(path: &Path) -> Result<()> {
    if Netns::open(path).is_ok() {
        faults::around(format_args!("unmounting {}", path.display()), || {
            umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
                .with_context(|| format!("unmounting {}", path.display()))
        })?;
    }
    files::remove(path)
}
