//! What the create hook reads of a bundle's config.json, which the runtime has accepted by then: no
//! more than it needs, and tolerant of all else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::snapshot::CharDevice;

use crate::nccl_env::topo_file;
use crate::oci::config::{Config, NOT_OCI, OciDevice, OciMount, OciRoot};
use crate::oci::edit::view_name;

/// A container as its config.json describes it, before its runtime changes to its root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerRoot {
    /// Its init: the way to its mount namespace.
    pub pid: i32,
    /// `root.path`, made absolute with the bundle.
    pub rootfs: PathBuf,
    /// Whether its `/etc` is to be read-only: `root.readonly`, or a mount at `/etc` with the option
    /// `ro`, which crun applies after the hooks only.
    pub readonly: bool,
    /// The same for `/etc/hosts`.
    pub hosts_readonly: bool,
    /// `linux.mountLabel`: the SELinux context of what is mounted for it.
    pub label: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    pub container: ContainerRoot,
    pub env: BTreeMap<String, String>,
    /// `process.args[0]`.
    pub program: Option<String>,
    pub devices: BTreeSet<(String, u32, u32)>,
    pub view: Option<String>,
    pub topology: Option<String>,
    /// Its host name, where it has one of its own.
    pub hostname: Option<String>,
}

impl Bundle {
    /// Reads the config.json of the bundle in `dir`, for the container of that init; views of ours
    /// lie in `views`.
    pub fn new(config: &Config, dir: &Path, pid: i32, views: &str) -> Result<Bundle> {
        let root: OciRoot = config
            .part(&["root"])?
            .ok_or_else(|| ErrorClass::State.error("config.json has no root"))?;
        let mounts = config.mounts()?;
        let devices: Vec<OciDevice> = config.list(&["linux", "devices"])?;
        let ours = |m: &OciMount| view_name(m.source.as_deref()?, views).map(str::to_owned);
        Ok(Bundle {
            container: ContainerRoot {
                pid,
                rootfs: dir.join(root.path),
                readonly: readonly(&mounts, &["/etc"]).unwrap_or(root.readonly),
                hosts_readonly: readonly(&mounts, &["/etc", "/etc/hosts"]).unwrap_or(root.readonly),
                label: config.mount_label()?,
            },
            env: config.environment(),
            program: config.program(),
            devices: devices
                .into_iter()
                .filter(OciDevice::is_char)
                .map(|d| Ok((d.path, number(d.major)?, number(d.minor)?)))
                .collect::<Result<_>>()?,
            view: mounts.iter().filter(|m| is_in_sys(m)).find_map(ours),
            topology: mounts
                .iter()
                .filter(|m| m.destination == topo_file::PLACE)
                .find_map(ours),
            hostname: config.part(&["hostname"])?,
        })
    }

    pub fn lacking(&self, devices: &[CharDevice]) -> Vec<CharDevice> {
        let mut lacking = devices.to_vec();
        lacking.retain(|d| {
            let node = (format!("/dev/infiniband/{}", d.name), d.major, d.minor);
            !self.devices.contains(&node)
        });
        lacking
    }
}

/// Whether the last mount at one of the places is to be read-only. crun makes it so after the hooks
/// only: it does not look so yet.
fn readonly(mounts: &[OciMount], places: &[&str]) -> Option<bool> {
    let last = mounts
        .iter()
        .rfind(|m| places.contains(&m.destination.trim_end_matches('/')))?;
    Some(last.options.iter().flatten().any(|o| o == "ro"))
}

fn is_in_sys(mount: &OciMount) -> bool {
    mount.destination == "/sys" || mount.destination.starts_with("/sys/")
}

fn number(n: i64) -> Result<u32> {
    u32::try_from(n).class(ErrorClass::State, NOT_OCI)
}
