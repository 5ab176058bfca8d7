//! `rdmaprep cdi`.

use std::path::PathBuf;

use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};
use clap::{Args, Subcommand};

use crate::cdi::FILE;
use crate::config::select_args::{SelectArgsBut, Unused};

/// `rdmaprep cdi`.
#[derive(Debug, Subcommand)]
pub enum CdiCommand {
    /// Write the file by which engines know each rail, and all of them, as a device: rdmaprep.io/rail=NAME
    ///
    /// Podman, CRI-O, containerd and Docker add what the file says to a container that asks for such devices, several or `all`:
    /// their device nodes, a variable RDMAPREP_RAIL_NAME=HCA:PORT each, and hooks, of which the first to run moves the rails of
    /// all that were asked for. NCCL is told by /etc/nccl.conf, so that two devices do not overwrite each other's NCCL_IB_HCA,
    /// and what the user sets wins. Lift RLIMIT_MEMLOCK yourself (--ulimit memlock=-1:-1): no device can.
    ///
    /// The rails are those of the stored plan. Where there is none, those that `prepare` would choose, and those that
    /// containers hold now; the hook then chooses again, among the rails that were asked for.
    Generate(Box<CdiGenerateArgs>),
    /// Show the devices of that file, and what has become of them on this host
    List(CdiListArgs),
}

/// `rdmaprep cdi generate`.
#[derive(Debug, Args)]
pub struct CdiGenerateArgs {
    /// The plan that containers with these devices use
    #[arg(long, env = "RDMAPREP_PLAN", value_name = "NAME", default_value = "default")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub plan: String,
    /// Where to write; `-` is stdout. Engines read files named *.json
    #[arg(long, env = "RDMAPREP_OUTPUT", value_name = "FILE", default_value = FILE)]
    pub output: PathBuf,
    /// Change nothing if a device that the file has would be lost, and tell why it would: a file that engines read while a
    /// link is down must not make `all` mean fewer rails. A stored plan is taken at its word
    #[arg(long, env = "RDMAPREP_KEEP", value_parser = BoolishValueParser::new())]
    pub keep: bool,
    /// Where the hooks find the program. Containers that run keep that path
    /// [default: /usr/bin/rdmaprep if it is there, else /usr/local/bin/rdmaprep, else this very program, with a warning]
    #[arg(long, env = "RDMAPREP_PROGRAM", value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Timeout of the hooks; their own deadline is this less the time that an undo takes
    /// [default: 60, more for more than 225 NICs]
    #[arg(long, env = "RDMAPREP_HOOK_TIMEOUT", value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub hook_timeout: Option<u32>,
    /// Write nothing; show the file's diff
    #[arg(long, env = "RDMAPREP_DRY_RUN", value_parser = BoolishValueParser::new())]
    pub dry_run: bool,
    /// Print JSON instead of the table: the file's path, whether it changes, what it says
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
    /// Which NICs, where no plan is stored.
    #[command(flatten)]
    pub select: SelectArgsBut<CdiUnused>,
}

/// No config.json is edited that could mount a topology file of ours.
#[derive(Clone, Debug)]
pub struct CdiUnused;

impl Unused for CdiUnused {
    const OPTIONS: &'static [&'static str] = &["topo"];
}

/// `rdmaprep cdi list`.
#[derive(Debug, Args)]
pub struct CdiListArgs {
    /// The file
    #[arg(long, env = "RDMAPREP_FILE", value_name = "FILE", default_value = FILE)]
    pub file: PathBuf,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}
