//! What is tried, not just told: `rdmaprep check`.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand};

use nccl_rules::version::Version;

/// `rdmaprep check`.
#[derive(Debug, Subcommand)]
pub enum CheckCommand {
    /// Try what NCCL's bootstrap does: connect to another node as often and as long as the library would, or wait for one
    ///
    /// From the network namespace that this is called in. Says which interface NCCL tells the others, where the packets leave,
    /// and what exactly fails. Nothing is sent to a NCCL that listens there: it sees a connection that is closed.
    Bootstrap(BootstrapArgs),
}

/// `rdmaprep check bootstrap`.
#[derive(Debug, Args)]
pub struct BootstrapArgs {
    /// The other node, [ADDRESS]:PORT for IPv6 [default: NCCL_COMM_ID; the port: 29500]
    #[arg(value_name = "HOST[:PORT]", conflicts_with = "listen")]
    pub host: Option<String>,
    /// Wait for the other node instead, where rank 0 would: at NCCL_COMM_ID, else on the bootstrap interface
    /// [default port: NCCL_COMM_ID's, else 29500]
    #[arg(long, env = "RDMAPREP_LISTEN", value_name = "PORT", num_args = 0..=1, default_missing_value = "0")]
    pub listen: Option<u16>,
    /// How long all of it may take; NCCL itself may go on for longer, and that is told
    #[arg(long, env = "RDMAPREP_TIMEOUT", value_name = "SECONDS", default_value_t = 75)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub timeout: u32,
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
    /// [default: those that NCCL reads here]
    #[arg(long, env = "RDMAPREP_NCCL_CONF", value_name = "FILE", value_delimiter = ':')]
    pub conf: Vec<PathBuf>,
    /// The release of NCCL
    #[arg(long, env = "RDMAPREP_NCCL_VERSION", value_name = "VERSION", default_value_t = Version::NEWEST)]
    pub nccl_version: Version,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}
