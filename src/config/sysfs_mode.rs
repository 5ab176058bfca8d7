use std::str::FromStr;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::sandbox::Sandbox;

/// How a view reaches a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Carrier {
    /// Directories of the kept links, over those of the kernel's own /sys: counters, states and
    /// GIDs stay live
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
    /// The kernel's own /sys with directories of the kept links over it, or the container does not
    /// start
    Live,
    /// A tree of files in place of /sys: for sandboxes that have a kernel of their own
    Snapshot,
    /// All that the host has
    Off,
    /// What gVisor's RDMA proxy (`runsc --rdmaproxy`) shows, or the container does not start
    Proxy,
    /// The same, where reasons for which the sandbox would have no RDMA are warnings
    #[value(name = "proxy=warn")]
    #[serde(rename = "proxy=warn")]
    ProxyWarn,
}

impl FromStr for SysfsMode {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<SysfsMode> {
        <SysfsMode as ValueEnum>::from_str(text, false).map_err(|_| {
            anyhow!("{text:?} is none of auto, live, snapshot, off, proxy, proxy=warn")
        })
    }
}

impl SysfsMode {
    /// What a container in that sandbox gets of it, and why. With its proxy, gVisor builds a /sys
    /// of the nodes that config.json lists (runsc/boot/vfs.go); without it nothing below the
    /// sandbox's own /sys leads anywhere, so that links alone are of no use.
    pub fn within(self, sandbox: Option<Sandbox>) -> (SysfsMode, Option<&'static str>) {
        match (self, sandbox) {
            (SysfsMode::Auto, Some(Sandbox::RdmaProxy)) => (
                SysfsMode::Proxy,
                Some("gVisor's RDMA proxy builds the container's /sys itself"),
            ),
            (SysfsMode::Auto, Some(Sandbox::Plain)) => (
                SysfsMode::Snapshot,
                Some("gVisor has a /sys of its own: it gets a tree of files"),
            ),
            (other, _) => (other, None),
        }
    }

    pub fn is_proxy(self) -> bool {
        matches!(self, SysfsMode::Proxy | SysfsMode::ProxyWarn)
    }
}
