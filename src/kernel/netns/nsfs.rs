//! Files of namespaces, which may be anybody's.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nix::libc::{O_CLOEXEC, O_NOCTTY, O_NONBLOCK};
use nix::sys::statfs::{NSFS_MAGIC, Statfs, fstatfs, statfs};
use rdma_model::error_class::ErrorClass;

use crate::disk::doing;
use crate::kernel::mount::mountinfo;
use crate::kernel::mount::rootfs::mount_of;

/// Opens a namespace by a file of nsfs: a link of /proc, or what such a file is bound onto. Another
/// file is [`ErrorClass::State`]; setns(2) refuses a namespace of another kind.
pub(super) fn open(path: &Path) -> Result<File> {
    let doing = doing("opening network namespace", path);
    // statfs(2) calls no driver.
    let stat = statfs(path).map_err(io::Error::from).with_context(doing)?;
    is_nsfs(path, stat)?;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(O_CLOEXEC | O_NONBLOCK | O_NOCTTY)
        .open(path);
    let file = opened.with_context(doing)?;
    let stat = fstatfs(&file)
        .map_err(io::Error::from)
        .with_context(doing)?;
    is_nsfs(path, stat)?;
    Ok(file)
}

fn is_nsfs(path: &Path, stat: Statfs) -> Result<()> {
    ensure!(
        stat.filesystem_type() == NSFS_MAGIC,
        ErrorClass::State.error(format!("{} is no namespace file", path.display()))
    );
    Ok(())
}

/// Whether what [`open`] has opened is a network namespace, by the name that the kernel gives it;
/// else [`ErrorClass::State`].
pub(super) fn is_net(path: &Path, file: &File) -> Result<()> {
    let doing = doing("looking at", path);
    let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).with_context(doing)?;
    let mut name = name.into_os_string().into_encoded_bytes();
    // `net:[4026531840]` (ns_dname() in fs/nsfs.c); of what is bound onto a path that path, and the
    // name is its mount's.
    if name.starts_with(b"/") {
        let mounts = fs::read("/proc/thread-self/mountinfo").with_context(doing)?;
        name = mountinfo::root(&mounts, mount_of(file).with_context(doing)?)
            .unwrap_or_default()
            .to_vec();
    }
    ensure!(
        name.starts_with(b"net:["),
        ErrorClass::State.error(format!(
            "{} is no network namespace but {}",
            path.display(),
            String::from_utf8_lossy(&name)
        ))
    );
    Ok(())
}
