//! What is asked of NCCL and of where things are: `rdmaprep nccl`, `rdmaprep topo`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};
use clap::{Args, Subcommand};
use nccl_rules::version::Version;

use crate::config::select_args::{SelectArgsBut, Unused};

/// `rdmaprep nccl`.
#[derive(Debug, Subcommand)]
pub enum NcclCommand {
    /// Say which interface NCCL bootstraps on, which HCAs it takes, in which order, and why not the others
    ///
    /// As the library itself would decide in this network namespace. Ends with 0 also where NCCL would fail.
    Explain(ExplainArgs),
}

/// `rdmaprep nccl explain`.
#[derive(Debug, Default, Args)]
pub struct ExplainArgs {
    /// A setting; the variable holds one per line. With --env or --env-file nothing else is in the environment
    /// [default: this process's own NCCL_ variables and HOME]
    #[arg(long, env = "RDMAPREP_NCCL_SETTINGS", value_name = "NAME=VALUE", value_delimiter = '\n')]
    pub env: Vec<String>,
    /// Settings from FILE, one NAME=VALUE per line, verbatim; `#` begins a comment. --env wins
    #[arg(long, env = "RDMAPREP_NCCL_ENV_FILE", value_name = "FILE")]
    pub env_file: Option<PathBuf>,
    /// The environment of the container of this bundle, as its config.json has it. --env wins
    #[arg(long, env = "RDMAPREP_BUNDLE", value_name = "DIR", conflicts_with = "env_file")]
    pub bundle: Option<PathBuf>,
    /// NCCL's config file; of several the first that has a setting counts. The variable has them with `:` between
    /// [default: those that NCCL reads here; none with --snapshot]
    #[arg(long, env = "RDMAPREP_NCCL_CONF", value_name = "FILE", value_delimiter = ':')]
    pub conf: Vec<PathBuf>,
    /// The release of NCCL
    #[arg(long, env = "RDMAPREP_NCCL_VERSION", value_name = "VERSION", default_value_t = Version::NEWEST)]
    pub nccl_version: Version,
    /// Look at this `snapshot --json` file instead of the network namespace that this is called in
    #[arg(long, env = "RDMAPREP_SNAPSHOT", value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

/// `rdmaprep topo`.
#[derive(Debug, Args)]
pub struct TopoArgs {
    /// Read the captured /sys tree in DIR instead of the live system
    #[arg(long, env = "RDMAPREP_ROOT", value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Read this `snapshot --json` file instead of the live system
    #[arg(long, env = "RDMAPREP_SNAPSHOT", value_name = "FILE", conflicts_with = "root")]
    pub snapshot: Option<PathBuf>,
    /// Keep these HCAs (comma- or space-separated), or `all`, instead of selecting [default: what is selected; all of a
    /// captured tree, which tells no addresses]
    #[arg(long, env = "RDMAPREP_HCA", value_name = "LIST")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub hca: Option<String>,
    /// A kept NIC that has no place in a topology file is an error, not left out with a warning
    #[arg(long, env = "RDMAPREP_STRICT", value_parser = BoolishValueParser::new())]
    pub strict: bool,
    /// What to make of it.
    #[command(flatten)]
    pub output: TopoOutput,
    /// The program for --exec and its arguments
    #[arg(value_name = "CMD", requires = "exec", trailing_var_arg = true, allow_hyphen_values = true)]
    pub program: Vec<OsString>,
    /// Which NICs.
    #[command(flatten)]
    pub select: SelectArgsBut<TopoUnused>,
}

/// What a container gets with its NICs is none of `topo`'s business; and its own --hca keeps what it names, selected or not.
#[derive(Clone, Debug)]
pub struct TopoUnused;

impl Unused for TopoUnused {
    const OPTIONS: &'static [&'static str] = &[
        "hca",
        "arp_profile",
        "gid_timeout",
        "default_route",
        "sysfs",
        "debug_all",
        "topo",
        "nccl_topo",
        "no_nccl_topo",
    ];
}

/// What `topo` makes; without any of these a tree for the terminal.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct TopoOutput {
    /// Print a topology file for NCCL_TOPO_FILE: the kept NICs by name, and all GPUs
    #[arg(long, env = "RDMAPREP_XML", value_parser = BoolishValueParser::new())]
    pub xml: bool,
    /// Draw the tree into FILE, to be looked at in a browser; `-` is stdout
    #[arg(long, env = "RDMAPREP_SVG", value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
    /// Run CMD with NCCL_TOPO_FILE, unless that is set: the file lies in memory, and its descriptor stays open. What closes
    /// descriptors it does not know, as Python's subprocess does, loses it: use --xml there
    #[arg(long, env = "RDMAPREP_EXEC", requires = "program", value_parser = BoolishValueParser::new())]
    pub exec: bool,
}
