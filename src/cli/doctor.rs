use std::path::PathBuf;

use clap::Args;
use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};
use nccl_rules::version::Version;

use crate::config::select_args::{SelectArgsBut, Unused};

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Examine a container: id, name, or init's pid
    #[arg(long, env = "RDMAPREP_CONTAINER", value_name = "ID")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub container: Option<String>,
    /// Read a captured /sys tree instead of the live system
    #[arg(
        long,
        env = "RDMAPREP_ROOT",
        value_name = "DIR",
        conflicts_with = "container"
    )]
    pub root: Option<PathBuf>,
    /// Read a file of `snapshot --json`
    #[arg(
        long,
        env = "RDMAPREP_SNAPSHOT",
        value_name = "FILE",
        conflicts_with_all = ["root", "container"]
    )]
    pub snapshot: Option<PathBuf>,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
    #[command(flatten)]
    pub select: SelectArgsBut<DoctorUnused>,
}

/// A NIC without an address is a finding in any case, and no container's environment is made.
#[derive(Clone, Debug)]
pub struct DoctorUnused;

impl Unused for DoctorUnused {
    const OPTIONS: &'static [&'static str] = &[
        "no_auto_skip",
        "debug_all",
        "topo",
        "nccl_topo",
        "no_nccl_topo",
    ];
}

/// `rdmaprep try-nodes`, which `doctor --container` starts.
#[derive(Debug, Args)]
pub struct TryNodesArgs {
    /// A process of the container
    #[arg(value_name = "PID")]
    pub pid: i32,
    /// Identity that opens them: UID:GID,GID,...
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Print NCCL's settings there instead, as that release reads them
    #[arg(long, value_name = "VERSION", conflicts_with_all = ["user", "nodes"])]
    pub settings: Option<Version>,
    /// Print what there is of rdma-core there instead, for these providers
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    #[arg(conflicts_with_all = ["user", "nodes", "settings"])]
    pub libraries: Option<Vec<String>>,
    /// NAME:MAJOR:MINOR of a device node
    #[arg(value_name = "NODE", requires = "user")]
    pub nodes: Vec<String>,
}
