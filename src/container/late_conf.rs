//! `/etc/nccl.conf` in gVisor, whose sandbox is closed when the create hook has the settings. Its
//! gofer calls createContainer hooks before, in the mount namespace whose root the payload will
//! see, and replaces no mount of it afterwards (SetupRootFS in
//! runsc/cmd/sandboxsetup/gofer_mount.go, of 2026; runsc of 2024 calls none). So a file of the
//! host's is mounted there, which the create hook fills. /sys and /dev are the sandbox's own:
//! nothing that is mounted there would be seen.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};

use crate::container::facts::ContainerFacts;
use crate::container::mount_point::put;
use crate::container::nccl_conf;
use crate::kernel::mount::fsmount;
use crate::kernel::mount::mntns::{Mntns, workshop};
use crate::kernel::mount::rootfs::Root;
use crate::oci::state::State;
use crate::store::Store;

/// `Ok` says in words why there is no such file; an error where it may be there and the container
/// must not start.
pub fn mount_late_conf(state: &State, store: &Store) -> Result<Option<String>> {
    // Who may not look at pid 1 has no power over the host's mount namespace.
    let apart = match Mntns::of_process(1) {
        Ok(host) => !host.is_same(&Mntns::current()?),
        Err(e) => e
            .root_cause()
            .downcast_ref::<io::Error>()
            .is_some_and(|e| e.kind() == ErrorKind::PermissionDenied),
    };
    ensure!(
        apart,
        ErrorClass::Refused.error("createContainer: no mount namespace of the container's own")
    );
    match mount(state, store) {
        Ok(()) => Ok(None),
        Err(Trouble::Before(why)) => Ok(Some(format!("no /etc/nccl.conf: {why:#}"))),
        Err(Trouble::Mounted(e)) => Err(e),
    }
}

enum Trouble {
    /// Nothing of the host's is in the container.
    Before(anyhow::Error),
    Mounted(anyhow::Error),
}

impl From<anyhow::Error> for Trouble {
    fn from(e: anyhow::Error) -> Trouble {
        Trouble::Before(e)
    }
}

fn mount(state: &State, store: &Store) -> Result<(), Trouble> {
    let found = ContainerFacts::read(state)?.bundle;
    let found = found.ok_or_else(|| anyhow!("the bundle has no config.json"))?;
    let container = found.for_init(0, Path::new(""))?.container;
    let root = Root::open(&container.rootfs)?;
    if let Some(conf) = nccl_conf::plan_empty(&root, &root.mounts()?, &container)? {
        let made = workshop(|| Ok(conf.build(container.label.as_deref())))?;
        match (conf.spot(), made.mount) {
            (Some(spot), Some(mount)) => put(spot, &mount)?,
            _ => return Err(anyhow!("{:?}", made.outcome).into()),
        }
    }
    let image = nccl_conf::image_file(&root, &root.mounts()?, nccl_conf::PATH)?;
    let file = store.put_late_conf(&state.id, &state.bundle, &image.bytes, image.owner)?;
    // Of several devices each has such a hook: the last one's file is on top, and is the stored
    // one.
    let mount = fsmount::copy(file.as_fd(), "").map_err(anyhow::Error::from)?;
    put(&image.spot, &mount).map_err(Trouble::Mounted)?;
    fsmount::make_readonly(&mount)
        .class(
            ErrorClass::Kernel,
            "making the container's /etc/nccl.conf read-only",
        )
        .map_err(Trouble::Mounted)
}
