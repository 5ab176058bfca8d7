use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};

use crate::kernel::mount::fsmount::attach;
use crate::kernel::mount::mountinfo::{self, Mount};
use crate::kernel::mount::rootfs::{self, Root};

/// A place for a mount, and what is mounted below it now and shall still be seen afterwards.
#[derive(Debug)]
pub(super) struct MountPoint {
    pub name: String,
    pub over: OwnedFd,
    /// The options of the mount that it is on.
    pub options: Vec<String>,
    pub kept: Vec<KeptMount>,
}

/// A mount below a place. It is moved, not copied: crun holds it and makes it read-only after the
/// hooks.
#[derive(Debug)]
pub(super) struct KeptMount {
    pub at: PathBuf,
    pub held: OwnedFd,
    pub is_dir: bool,
}

pub(super) fn mount_point(
    root: &Root,
    mounts: &[Mount],
    name: &str,
    over: OwnedFd,
) -> Result<MountPoint> {
    let id = rootfs::mount_of(&over).context("asking for its mount")?;
    let on = mounts
        .iter()
        .find(|m| m.id == id)
        .context("its mount is not in mountinfo")?;
    // Else it would show up wherever that mount is, too: on the host, if the container has the
    // host's /sys.
    ensure!(
        !on.shared,
        "what is mounted there would be seen outside of the container: {} is shared",
        on.point.display()
    );
    let below = mountinfo::below(mounts, id, &root.path_of(over.as_fd())?);
    let mut kept = Vec::new();
    for at in below {
        let held = rootfs::find_below(over.as_fd(), &at)
            .with_context(|| format!("finding the mount at {}", at.display()))?;
        kept.push(KeptMount {
            is_dir: rootfs::is_dir(&held)?,
            at,
            held,
        });
    }
    Ok(MountPoint {
        name: name.to_owned(),
        options: on.options.clone(),
        over,
        kept,
    })
}

/// Puts a mount there, and back what is to stay seen below it.
pub(super) fn put(spot: &MountPoint, mount: &OwnedFd) -> Result<()> {
    attach(mount, &spot.over).class(
        ErrorClass::Kernel,
        format!("covering the container's /{}", spot.name),
    )?;
    for kept in &spot.kept {
        let doing = || {
            format!(
                "moving the mount at /{}/{} up",
                spot.name,
                kept.at.display()
            )
        };
        let over =
            rootfs::find_below(mount.as_fd(), &kept.at).class(ErrorClass::Kernel, doing())?;
        attach(&kept.held, &over).class(ErrorClass::Kernel, doing())?;
    }
    Ok(())
}
