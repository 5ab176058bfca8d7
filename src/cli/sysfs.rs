//! `rdmaprep sysfs`.

use crate::config::sysfs_mode::Carrier;
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};
use clap::{Args, Subcommand};

/// `rdmaprep sysfs`.
#[derive(Debug, Subcommand)]
pub enum SysfsCommand {
    /// Print as one JSON document what a container with these HCAs sees; nothing is selected, no container is touched
    Export(ExportArgs),
    /// Write a document of `sysfs export` out as a tree
    Materialize(MaterializeArgs),
    /// Say in words what a container would see otherwise than this host, or how a document differs from it
    ///
    /// Ends with 0 whether something differs or not.
    Diff(DiffArgs),
}

/// Which /sys, and what of it.
#[derive(Debug, Args)]
pub struct ViewArgs {
    /// Read the captured /sys tree in DIR instead of the live system
    #[arg(long, env = "RDMAPREP_ROOT", value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// The HCAs that are seen (comma- or space-separated), or `all`
    #[arg(long, env = "RDMAPREP_HCA", value_name = "LIST", default_value = "all")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub hca: String,
    /// The whole tree, or the directories of links that are mounted over the live one
    #[arg(long, env = "RDMAPREP_MODE", value_name = "MODE", default_value = "snapshot")]
    pub mode: Carrier,
}

/// `rdmaprep sysfs export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// What to look at.
    #[command(flatten)]
    pub view: ViewArgs,
}

/// `rdmaprep sysfs materialize`.
#[derive(Debug, Args)]
pub struct MaterializeArgs {
    /// The document; `-` is stdin
    #[arg(long, env = "RDMAPREP_FROM", value_name = "FILE")]
    pub from: PathBuf,
    /// Where to write: a directory that is empty, or does not exist yet
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// `rdmaprep sysfs diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// What to look at.
    #[command(flatten)]
    pub view: ViewArgs,
    /// Compare with this document instead of a view of the same /sys
    #[arg(long, env = "RDMAPREP_FROM", value_name = "FILE", conflicts_with = "hca")]
    pub from: Option<PathBuf>,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}
