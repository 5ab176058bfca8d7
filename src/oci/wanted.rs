use crate::config::network_mode::NetworkMode;
use anyhow::{Result, ensure};
use clap::ValueEnum;
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::IfName;
use rdma_model::nic::EnvVar;
use rdma_model::snapshot::CharDevice;
use serde::{Deserialize, Serialize};

/// What shall be in a config.json.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Edit {
    pub env: Vec<EnvVar>,
    /// What an earlier edit put into the environment, `NAME=VALUE`, and goes.
    pub stale: Vec<String>,
    pub devices: Vec<CharDevice>,
    pub hooks: Vec<HookEdit>,
    pub annotations: Vec<(String, String)>,
    /// RDMA pins memory: lift RLIMIT_MEMLOCK.
    pub memlock_unlimited: bool,
    /// What the runtime can lift it to, in bytes; absent: to unlimited.
    pub memlock_ceiling: Option<u64>,
    /// Directories of ours, mounted read-only below the container's /sys, instead of those of an
    /// earlier edit.
    pub mounts: Option<Vec<MountEdit>>,
    /// The host's folder of views: mounts below it are those of an earlier edit.
    pub views: String,
    /// NICs that our hooks will move; `linux.netDevices` must not name them as well.
    pub netdevs: Vec<IfName>,
    pub network_mode: NetworkMode,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountEdit {
    /// Where the container sees it: `/sys`, or a directory below; or a file of its own.
    pub destination: String,
    pub source: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HookEdit {
    pub stage: Stage,
    pub path: String,
    /// Arguments from `argv[0]` on: `rdmaprep hook STAGE …`.
    pub args: Vec<String>,
    pub timeout: u32,
}

/// The hook lists that we use, by their names in config.json.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "camelCase")]
#[value(rename_all = "camelCase")]
pub enum Stage {
    /// Namespaces exist, nothing of the user's runs: attach. Deprecated, yet the only one that
    /// every runtime knows
    Prestart,
    /// The moment of prestart under its newer name; the second of the two finds the work done
    CreateRuntime,
    /// In the container's mount namespace. gVisor calls it before the others: mount what they fill
    CreateContainer,
    /// The payload has begun: repeat what the runtime's own network set-up tore down
    Poststart,
    /// The container has ended: bring everything back
    Poststop,
}

impl Stage {
    /// Those of an edited config.json, in the order in which they run.
    pub const ALL: [Stage; 4] = [
        Stage::Prestart,
        Stage::CreateRuntime,
        Stage::Poststart,
        Stage::Poststop,
    ];
    /// Those of hooks alone, on a host with gVisor.
    pub const WITH_GOFER: [Stage; 5] = [
        Stage::CreateContainer,
        Stage::Prestart,
        Stage::CreateRuntime,
        Stage::Poststart,
        Stage::Poststop,
    ];

    /// The key below `hooks`, and the argument of `rdmaprep hook`.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Prestart => "prestart",
            Stage::CreateRuntime => "createRuntime",
            Stage::CreateContainer => "createContainer",
            Stage::Poststart => "poststart",
            Stage::Poststop => "poststop",
        }
    }
}

impl Edit {
    /// That it is something that a container may have.
    pub(super) fn check(&self) -> Result<()> {
        for d in &self.devices {
            // umad and issm would let a container talk to the fabric's management.
            let numbered = d
                .name
                .strip_prefix("uverbs")
                .is_some_and(|n| n.parse::<u32>().is_ok());
            ensure!(
                numbered || d.name == "rdma_cm",
                ErrorClass::Refused
                    .error(format!("device node {:?} is not for containers", d.name))
            );
        }
        for h in &self.hooks {
            let usable = h.path.starts_with('/') && !h.args.is_empty() && h.timeout > 0;
            ensure!(
                usable,
                ErrorClass::Usage.error(format!(
                    "hook {:?} needs an absolute path, arguments and a timeout",
                    h.path
                ))
            );
        }
        Ok(())
    }
}
