//! A config.json before the edit: what of it we read, and whether we can work with it.
//!
//! The parts that we touch have to be what the OCI runtime specification says. The rest is between its author and the runtime:
//! a capability or a seccomp architecture that this build has not heard of is no reason to refuse.

use std::collections::HashMap;

use anyhow::{Result, ensure};
use oci_spec::runtime::{Hooks, LinuxDevice, LinuxDeviceCgroup, LinuxNamespace, LinuxNamespaceType, PosixRlimit};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::IfName;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::edit::NoMounts;
use super::json_rewrite;

/// A config.json larger than this is no config.json.
pub const MAX_BYTES: usize = 16 << 20;

/// Paths that lead to a namespace which is the runtime's or the host's own.
const HOST_NETNS: [&str; 3] = ["/proc/1/ns/net", "/proc/self/ns/net", "/proc/thread-self/ns/net"];

/// The whole as a value, and the parts that we read.
pub struct Config {
    pub value: Value,
    pub process: Process,
    pub devices: Vec<LinuxDevice>,
    pub rules: Vec<LinuxDeviceCgroup>,
    pub annotations: HashMap<String, String>,
    pub mounts: Vec<Mount>,
    labelled: bool,
    shared: bool,
}

/// The part of a mount that we read.
#[derive(Clone, Deserialize)]
pub struct Mount {
    #[serde(default)]
    pub destination: String,
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    #[serde(default)]
    pub source: Option<String>,
    #[serde(default)]
    pub options: Option<Vec<String>>,
}

/// The part of `process` that we read.
#[derive(Default, Deserialize)]
pub struct Process {
    #[serde(default)]
    pub env: Option<Vec<String>>,
    #[serde(default)]
    pub rlimits: Option<Vec<PosixRlimit>>,
}

#[derive(Deserialize)]
struct Spec {
    #[serde(rename = "ociVersion")]
    _version: String,
    process: Option<Process>,
    linux: Option<Linux>,
    #[serde(rename = "hooks")]
    _hooks: Option<Hooks>,
    annotations: Option<HashMap<String, String>>,
    mounts: Option<Vec<Mount>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Linux {
    mount_label: Option<String>,
    rootfs_propagation: Option<String>,
    namespaces: Option<Vec<LinuxNamespace>>,
    devices: Option<Vec<LinuxDevice>>,
    resources: Option<Resources>,
    net_devices: Option<HashMap<String, IgnoredAny>>,
}

#[derive(Deserialize)]
struct Resources {
    devices: Option<Vec<LinuxDeviceCgroup>>,
}

impl Config {
    /// Reads a config.json and refuses one that we cannot prepare for these netdevs.
    pub fn read(json: &str, netdevs: &[IfName]) -> Result<Config> {
        let bytes = json.len();
        ensure!(
            bytes <= MAX_BYTES,
            ErrorClass::State.error(format!("config.json has {bytes} bytes; no more than {MAX_BYTES} are read"))
        );
        let value: Value = serde_json::from_str(json).class(ErrorClass::State, "config.json is not JSON")?;
        ensure!(value.is_object(), ErrorClass::State.error("config.json is JSON, but not an object"));
        if let Some(key) = json_rewrite::duplicate_key(json) {
            let clash =
                format!("config.json has the key {key:?} twice in one object; runtimes disagree on which counts");
            return Err(ErrorClass::State.error(clash));
        }
        let spec: Spec =
            serde_json::from_str(json).class(ErrorClass::State, "config.json is no OCI runtime configuration")?;
        let linux = spec.linux.ok_or_else(|| ErrorClass::State.error("config.json has no linux section"))?;
        linux.check(netdevs)?;
        let shared = matches!(linux.rootfs_propagation.as_deref(), Some("shared" | "rshared"));
        let labelled = linux.mount_label.as_ref().is_some_and(|label| !label.is_empty());
        let process = spec.process.ok_or_else(|| ErrorClass::State.error("config.json has no process section"))?;
        Ok(Config {
            value,
            process,
            devices: linux.devices.unwrap_or_default(),
            rules: linux.resources.and_then(|r| r.devices).unwrap_or_default(),
            annotations: spec.annotations.unwrap_or_default(),
            mounts: spec.mounts.unwrap_or_default(),
            labelled,
            shared,
        })
    }

    /// Why nothing of ours can be put below its /sys.
    pub fn no_mounts(&self) -> Option<NoMounts> {
        let mut at = self.mounts.iter().filter(|m| m.destination.trim_end_matches('/') == "/sys").peekable();
        let host = |m: &Mount| m.kind.as_deref() == Some("sysfs") || m.source.as_deref() == Some("/sys");
        // Ours, from an earlier edit, lies over the first one.
        if !at.peek().is_some_and(|first| host(first)) {
            return Some(NoMounts::NoSysfs);
        }
        let shares = |option: &String| matches!(option.as_str(), "shared" | "rshared");
        if self.shared || at.any(|m| m.options.iter().flatten().any(shares)) {
            return Some(NoMounts::Shared);
        }
        self.labelled.then_some(NoMounts::Labelled)
    }
}

impl Linux {
    /// The container must have a network namespace of its own, or join one, and nobody else may move our NICs into it.
    fn check(&self, netdevs: &[IfName]) -> Result<()> {
        let missing = || ErrorClass::State.error("config.json has no linux.namespaces");
        let namespaces = self.namespaces.as_ref().ok_or_else(missing)?;
        let network = namespaces.iter().find(|n| n.typ() == LinuxNamespaceType::Network).ok_or_else(|| {
            ErrorClass::Refused.error(
                "the container shares the host's network (linux.namespaces has no entry of type network): \
                 a NIC cannot be moved into it",
            )
        })?;
        let path = network.path().as_deref().and_then(|p| p.to_str()).unwrap_or_default();
        ensure!(
            !HOST_NETNS.contains(&path),
            ErrorClass::Refused.error(format!("the container's network namespace {path} is the host's own"))
        );
        let taken = self.net_devices.iter().flatten().find(|(name, _)| netdevs.iter().any(|n| n.as_str() == *name));
        match taken {
            Some((name, _)) => Err(ErrorClass::Refused.error(format!(
                "linux.netDevices names {name}: the runtime would move it without its routes, rules and sysctls and \
                 never return it; remove that entry"
            ))),
            None => Ok(()),
        }
    }
}
