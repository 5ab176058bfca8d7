use std::path::PathBuf;

use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};
use clap::{Args, Subcommand};

use crate::config::sysfs_mode::Carrier;

#[derive(Debug, Subcommand)]
pub enum SysfsCommand {
    /// Print the /sys that a container with these HCAs sees, as one JSON document
    #[command(after_help = "Examples:
  rdmaprep sysfs export --hca mlx5_0,mlx5_1")]
    Export(ExportArgs),
    /// Write a document of `sysfs export` as a tree of files
    #[command(after_help = "Examples:
  rdmaprep sysfs materialize --from sysfs.json sys")]
    Materialize(MaterializeArgs),
    /// Show how a container's /sys differs from the host's, or from a document
    ///
    /// Exits with 0 whether or not something differs. What a snapshot never has is counted by
    /// folder.
    #[command(after_help = "Examples:
  rdmaprep sysfs diff --hca mlx5_0,mlx5_1")]
    Diff(DiffArgs),
}

#[derive(Debug, Args)]
pub struct ViewArgs {
    /// Read a captured /sys tree instead of the live system
    #[arg(long, env = "RDMAPREP_ROOT", value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// HCAs that the container sees
    #[arg(long, env = "RDMAPREP_HCA", value_name = "LIST", default_value = "all")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub hca: String,
    /// Whole tree (snapshot), or its links (live)
    #[arg(
        long,
        env = "RDMAPREP_MODE",
        value_name = "MODE",
        default_value = "snapshot"
    )]
    pub mode: Carrier,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct MaterializeArgs {
    /// Document to write; `-` is stdin
    #[arg(long, env = "RDMAPREP_FROM", value_name = "FILE")]
    pub from: PathBuf,
    /// Empty or missing directory to write to
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

#[derive(Debug, Args)]
pub struct DiffArgs {
    #[command(flatten)]
    pub view: ViewArgs,
    /// Compare with this document
    #[arg(
        long,
        env = "RDMAPREP_FROM",
        value_name = "FILE",
        conflicts_with = "hca"
    )]
    pub from: Option<PathBuf>,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}
