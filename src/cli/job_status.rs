//! The store in which all nodes of a job agree: options of `rdmaprep prepare` and
//! `rdmaprep job-status`.

use clap::Args;
use clap::builder::BoolishValueParser;

/// Where the nodes of a job meet. All values are text here; empty ones count as unset.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Agreement of all nodes (docs/multi-node.md)")]
pub struct MeetArgs {
    /// Meet at c10d, file or etcd URL, or pmi
    #[arg(long, env = "RDMAPREP_RENDEZVOUS", value_name = "URL")]
    pub rendezvous: Option<String>,
    /// Number of nodes [default: the launcher's]
    #[arg(long, env = "RDMAPREP_NODES", value_name = "N")]
    pub nodes: Option<String>,
    /// Name of this run [default: the launcher's]
    #[arg(long, env = "RDMAPREP_RUN_ID", value_name = "ID")]
    pub run_id: Option<String>,
    /// Time limit [default: 120]
    #[arg(long, env = "RDMAPREP_RENDEZVOUS_TIMEOUT", value_name = "SECONDS")]
    pub rendezvous_timeout: Option<String>,
    /// Store's host, instead of MASTER_ADDR
    #[arg(long, env = "RDMAPREP_STORE_HOST", value_name = "HOST")]
    pub store_host: Option<String>,
}

/// Where the nodes meet, and this node's part. All values are text here; empty ones count as unset.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Agreement of all nodes (docs/multi-node.md)")]
pub struct RendezvousArgs {
    #[command(flatten)]
    pub meet: MeetArgs,
    /// Number of this node [default: the launcher's]
    #[arg(long, env = "RDMAPREP_RANK", value_name = "N")]
    pub rank: Option<String>,
    /// Pair by subnet, index, label [default: name]
    #[arg(long = "match", env = "RDMAPREP_MATCH", value_name = "BY")]
    pub by: Option<String>,
    /// IFACE=LABEL list for --match label
    #[arg(long, env = "RDMAPREP_RAIL_LABELS", value_name = "LABELS")]
    pub rail_labels: Option<String>,
}

#[derive(Debug, Args)]
pub struct JobStatusArgs {
    /// Print changes until all have published
    #[arg(long, env = "RDMAPREP_WATCH", value_parser = BoolishValueParser::new())]
    pub watch: bool,
    /// Print JSON, with all that each node published
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
    #[command(flatten)]
    pub meet: MeetArgs,
}
