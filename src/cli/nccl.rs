//! `rdmaprep nccl` and `rdmaprep topo`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};
use clap::{Args, Subcommand};

use super::nccl_settings::NcclSettingsArgs;
use super::test_bootstrap::TestBootstrapArgs;
use crate::config::select_args::{SelectArgsBut, Unused};

#[derive(Debug, Subcommand)]
pub enum NcclCommand {
    /// Explain which interface and HCAs NCCL takes, in which order, and why
    ///
    /// Decides as NCCL would in this network namespace, or in that of a container. Exits with 0
    /// also if NCCL would fail. docs/nccl.md has the rules.
    #[command(after_help = "Examples:
  rdmaprep nccl explain
  rdmaprep nccl explain --env NCCL_IB_HCA=mlx5_1 --env NCCL_SOCKET_IFNAME=eth0
  rdmaprep nccl explain --bundle /run/bundle
  rdmaprep nccl explain --container trainer")]
    Explain(ExplainArgs),
    /// Test NCCL's bootstrap: connect to another node as NCCL would, or wait for one
    ///
    /// Runs in this network namespace, and retries as often as NCCL. Prints the interface that NCCL
    /// announces, the one that packets leave by, and the exact error. An NCCL that listens there
    /// sees a connection that is closed.
    #[command(after_help = "Examples:
  rdmaprep nccl test-bootstrap --listen
  rdmaprep nccl test-bootstrap 192.0.2.1")]
    TestBootstrap(TestBootstrapArgs),
}

#[derive(Debug, Default, Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    pub settings: NcclSettingsArgs,
    /// Explain a container: id, name, or init's pid
    #[arg(
        long,
        env = "RDMAPREP_CONTAINER",
        value_name = "ID",
        value_parser = NonEmptyStringValueParser::new()
    )]
    #[arg(conflicts_with_all = ["env", "env_file", "bundle", "conf", "snapshot"])]
    pub container: Option<String>,
    /// Explain a file of `snapshot --json`
    #[arg(long, env = "RDMAPREP_SNAPSHOT", value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TopoArgs {
    /// Read a captured /sys tree instead of the live system
    #[arg(long, env = "RDMAPREP_ROOT", value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Read a file of `snapshot --json`
    #[arg(
        long,
        env = "RDMAPREP_SNAPSHOT",
        value_name = "FILE",
        conflicts_with = "root"
    )]
    pub snapshot: Option<PathBuf>,
    /// Keep these HCAs, or `all`; --root keeps all
    #[arg(long, env = "RDMAPREP_HCA", value_name = "LIST")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub hca: Option<String>,
    /// Fail if a kept NIC has no place in a topology file
    #[arg(long, env = "RDMAPREP_STRICT", value_parser = BoolishValueParser::new())]
    pub strict: bool,
    #[command(flatten)]
    pub output: TopoOutput,
    /// Program for --run, and its arguments
    #[arg(value_name = "CMD", requires = "run", trailing_var_arg = true)]
    pub program: Vec<OsString>,
    #[command(flatten)]
    pub select: SelectArgsBut<TopoUnused>,
}

/// `topo` prepares no container; and its own --hca keeps what it names, selected or not.
#[derive(Clone, Debug)]
pub struct TopoUnused;

impl Unused for TopoUnused {
    const OPTIONS: &'static [&'static str] = &[
        "hca",
        "arp_profile",
        "gid_timeout",
        "default_route",
        "network_mode",
        "sysfs",
        "hosts_entry",
        "debug_all",
        "nccl_version",
        "libraries",
        "topo",
        "nccl_topo",
        "no_nccl_topo",
    ];
}

/// Without any of these, `topo` prints a tree for the terminal.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct TopoOutput {
    /// Print a file for NCCL_TOPO_FILE: the kept NICs, all GPUs
    #[arg(long, env = "RDMAPREP_XML", value_parser = BoolishValueParser::new())]
    pub nccl_xml: bool,
    /// Draw the tree as SVG; `-` is stdout
    #[arg(long, env = "RDMAPREP_SVG", value_name = "FILE")]
    pub draw: Option<PathBuf>,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
    /// Run CMD with that file in memory (lost if CMD closes it)
    // Its descriptor stays open. What closes descriptors that it does not know, as Python's
    // subprocess does, loses it.
    #[arg(
        long,
        env = "RDMAPREP_EXEC",
        requires = "program",
        value_parser = BoolishValueParser::new()
    )]
    pub run: bool,
}
