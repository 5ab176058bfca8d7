use std::collections::BTreeMap;
use std::str::FromStr;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How a view reaches a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Carrier {
    /// Directories of the kept links, over those of the kernel's own /sys: counters, states and GIDs stay live
    Live,
    /// The whole tree as it was, for a sandbox with a kernel of its own
    Snapshot,
}

/// What is asked of a container's /sys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum SysfsMode {
    /// `live` where that can be done, else nothing, with the reason
    #[default]
    Auto,
    /// The kernel's own /sys with directories of the kept links over it, or the container does not start
    Live,
    /// A tree of files in place of /sys: for sandboxes that have a kernel of their own
    Snapshot,
    /// All that the host has
    Off,
}

impl FromStr for SysfsMode {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<SysfsMode> {
        <SysfsMode as ValueEnum>::from_str(text, false)
            .map_err(|_| anyhow!("{text:?} is none of auto, live, snapshot, off"))
    }
}

impl SysfsMode {
    /// What of it a container gets that gVisor will run, as its annotations show, and why not the rest. gVisor's own proxy for
    /// RDMA builds a /sys of the device nodes that config.json lists (runsc/boot/vfs.go); without it nothing below the sandbox's
    /// own /sys leads anywhere, so that links alone are of no use.
    pub fn for_annotations(self, annotations: &BTreeMap<String, String>) -> (SysfsMode, Option<&'static str>) {
        let gvisor = annotations.keys().any(|key| key.starts_with("dev.gvisor."));
        let proxy = annotations.get("dev.gvisor.flag.rdmaproxy").is_some_and(|value| value == "true");
        match self {
            SysfsMode::Auto if proxy => {
                (SysfsMode::Off, Some("gVisor's RDMA proxy builds the container's /sys itself"))
            }
            SysfsMode::Auto if gvisor => {
                (SysfsMode::Snapshot, Some("gVisor has a /sys of its own: it gets a tree of files"))
            }
            other => (other, None),
        }
    }
}
