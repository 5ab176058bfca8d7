use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// Replace this file, for node_exporter
    #[arg(long, env = "RDMAPREP_TEXTFILE", value_name = "FILE")]
    pub textfile: Option<PathBuf>,
}
