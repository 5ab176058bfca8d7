//! How a node meets the others of its job.

use clap::Args;
use clap::builder::BoolishValueParser;

/// Where the nodes of a job meet. All values are text here; empty ones count as unset.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "All nodes agree")]
pub struct MeetArgs {
    /// Where all nodes meet to agree on the rails: c10d://HOST[:PORT] (a TCPStore of PyTorch 2.2 or later), file:///PATH (a
    /// file that all nodes share), etcd://HOST[:PORT][,HOST…][/PREFIX] (etcd 3.4 or later; etcds, or ?cacert=FILE, and
    /// &cert=FILE&key=FILE for TLS; ?user=NAME&password-file=FILE, or RDMAPREP_ETCD_USER with RDMAPREP_ETCD_PASSWORD or
    /// RDMAPREP_ETCD_PASSWORD_FILE), pmi (PMI_FD of Slurm, Hydra or Flux), or nowhere: static. Nothing is stored,
    /// edited or moved unless all agree. Without it, PMI_FD and TORCHELASTIC_USE_AGENT_STORE=True say where to meet
    #[arg(long, env = "RDMAPREP_RENDEZVOUS", value_name = "URL")]
    pub rendezvous: Option<String>,
    /// How many nodes there are. Told by torchrun and PMI
    #[arg(long, env = "RDMAPREP_NODES", value_name = "N")]
    pub nodes: Option<String>,
    /// What all nodes call this run; it may be used again [default: Slurm's job, step and restart count, or torchrun's]
    #[arg(long, env = "RDMAPREP_RUN_ID", value_name = "ID")]
    pub run_id: Option<String>,
    /// How many seconds all of it may take, waiting for the store and for late nodes included [default: 120]
    #[arg(long, env = "RDMAPREP_RENDEZVOUS_TIMEOUT", value_name = "SECONDS")]
    pub rendezvous_timeout: Option<String>,
    /// The store's host, where the name that torchrun tells (MASTER_ADDR) is not known here
    #[arg(long, env = "RDMAPREP_STORE_HOST", value_name = "HOST")]
    pub store_host: Option<String>,
}

/// The meeting of all nodes, each with its own NICs. All values are text here; empty ones count as unset.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "All nodes agree")]
pub struct RendezvousArgs {
    /// Where they meet.
    #[command(flatten)]
    pub meet: MeetArgs,
    /// This node's number, from 0: rank 0 leads. Told by torchrun and PMI
    #[arg(long, env = "RDMAPREP_RANK", value_name = "N")]
    pub rank: Option<String>,
    /// What makes two NICs the same rail: name, subnet (of the first address), index (the place among the RDMA NICs in PCI
    /// order), label (see --rail-labels) [default: name]
    #[arg(long = "match", env = "RDMAPREP_MATCH", value_name = "BY")]
    pub by: Option<String>,
    /// The rails' names for --match label: IFACE=LABEL, separated by commas or spaces
    #[arg(long, env = "RDMAPREP_RAIL_LABELS", value_name = "LABELS")]
    pub rail_labels: Option<String>,
}

/// `rdmaprep peers`.
#[derive(Debug, Args)]
pub struct PeersArgs {
    /// Look every second, and print what has changed, until all have published or the time is over
    #[arg(long, env = "RDMAPREP_WATCH", value_parser = BoolishValueParser::new())]
    pub watch: bool,
    /// Print JSON: every node's word in full
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
    /// Where they meet.
    #[command(flatten)]
    pub meet: MeetArgs,
}
