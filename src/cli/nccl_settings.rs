//! Options of the commands that examine NCCL's settings.

use std::path::PathBuf;

use clap::Args;
use nccl_rules::version::Version;

/// NCCL's environment and config files.
#[derive(Debug, Default, Args)]
pub struct NcclSettingsArgs {
    /// A setting, instead of the environment's
    // The variable holds one per line.
    #[arg(
        long,
        env = "RDMAPREP_NCCL_SETTINGS",
        value_name = "NAME=VALUE",
        value_delimiter = '\n'
    )]
    pub env: Vec<String>,
    /// Settings from FILE, one a line
    #[arg(long, env = "RDMAPREP_NCCL_ENV_FILE", value_name = "FILE")]
    pub env_file: Option<PathBuf>,
    /// Settings from this bundle's config.json
    #[arg(
        long,
        env = "RDMAPREP_BUNDLE",
        value_name = "DIR",
        conflicts_with = "env_file"
    )]
    pub bundle: Option<PathBuf>,
    /// NCCL's config file [default: as NCCL]
    // Of several, the first that has a setting counts. [default: with --snapshot none]
    #[arg(
        long,
        env = "RDMAPREP_NCCL_CONF",
        value_name = "FILE",
        value_delimiter = ':'
    )]
    pub conf: Vec<PathBuf>,
    /// Release of NCCL
    // Without it the newest counts, and one that the settings name is worth a warning.
    #[arg(long, env = "RDMAPREP_NCCL_VERSION", value_name = "VERSION")]
    #[arg(help = format!("Release of NCCL [default: {}]", Version::NEWEST))]
    pub nccl_version: Option<Version>,
}
