use std::path::PathBuf;

use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};
use clap::{Args, Subcommand};

use crate::cdi::FILE;
use crate::config::select_args::{SelectArgsBut, Unused};

#[derive(Debug, Subcommand)]
pub enum CdiCommand {
    /// Write the CDI file that gives engines each rail as a device, rdmaprep.io/rail=NAME
    ///
    /// The rails are those of the stored plan, else those that `prepare` would choose and those
    /// that containers hold. A container that asks for such devices gets their nodes, hooks that
    /// move the NICs, and NCCL's settings in /etc/nccl.conf. hooks/README.md has the details.
    #[command(after_help = "Examples:
  rdmaprep cdi generate --dry-run
  rdmaprep cdi generate --plan train")]
    Generate(Box<CdiGenerateArgs>),
    /// Show the devices of that file and their state on this host
    #[command(after_help = "Examples:
  rdmaprep cdi list")]
    List(CdiListArgs),
}

#[derive(Debug, Args)]
pub struct CdiGenerateArgs {
    /// Plan of their containers
    #[arg(
        long,
        env = "RDMAPREP_PLAN",
        value_name = "NAME",
        default_value = "default"
    )]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub plan: String,
    /// Output, or `-`
    #[arg(long, env = "RDMAPREP_OUTPUT", value_name = "FILE", default_value = FILE)]
    pub output: PathBuf,
    /// Change nothing if a device would be lost
    // While a link is down, `all` must not mean fewer rails. The rails of a stored plan are not
    // questioned.
    #[arg(long, env = "RDMAPREP_KEEP", value_parser = BoolishValueParser::new())]
    pub keep: bool,
    /// Path of rdmaprep in hooks [default: installed]
    // /usr/bin/rdmaprep, else /usr/local/bin/rdmaprep, else this very program with a warning.
    // Running containers keep it.
    #[arg(long, env = "RDMAPREP_PROGRAM", value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Timeout of each hook [default: 60 or more]
    #[arg(long, env = "RDMAPREP_HOOK_TIMEOUT", value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub hook_timeout: Option<u32>,
    /// Change nothing; show the file's diff
    #[arg(long, env = "RDMAPREP_DRY_RUN", value_parser = BoolishValueParser::new())]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
    #[command(flatten)]
    pub select: SelectArgsBut<CdiUnused>,
}

/// No config.json is edited that could mount a topology file.
#[derive(Clone, Debug)]
pub struct CdiUnused;

impl Unused for CdiUnused {
    const OPTIONS: &'static [&'static str] = &["topo"];
}

#[derive(Debug, Args)]
pub struct CdiListArgs {
    /// File to read
    #[arg(long, env = "RDMAPREP_FILE", value_name = "FILE", default_value = FILE)]
    pub file: PathBuf,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}
