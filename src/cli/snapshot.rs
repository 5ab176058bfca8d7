use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;

#[derive(Debug, Args)]
pub struct SnapshotArgs {
    /// Print JSON, for --snapshot of other commands
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
    /// Read a captured /sys tree instead of the live system
    #[arg(long, env = "RDMAPREP_ROOT", value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Print what a restore compares, one fact a line
    #[arg(
        long,
        env = "RDMAPREP_NORMAL",
        value_parser = BoolishValueParser::new(),
        conflicts_with = "json"
    )]
    pub normal: bool,
}
