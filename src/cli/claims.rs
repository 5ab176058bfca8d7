use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub struct ClaimsArgs {
    #[command(subcommand)]
    pub command: Option<ClaimsCommand>,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum ClaimsCommand {
    /// Return the NICs of a claim and forget it, where rdmaprep-dra does not
    ///
    /// For a node without rdmaprep-dra, and for a file that cannot be read. Refused while a
    /// container of its pod runs (exit code 3); what does not return whole keeps it (8). The pod's
    /// next container gets no NIC by the claim.
    #[command(after_help = "Examples:
  rdmaprep claims release 0f1e2d3c-0123-4567-89ab-0123456789ab --dry-run")]
    Release(ClaimsReleaseArgs),
}

#[derive(Debug, Args)]
pub struct ClaimsReleaseArgs {
    /// UID of the claim
    #[arg(value_name = "UID")]
    pub uid: String,
    /// Change nothing; show what would be released
    #[arg(long, env = "RDMAPREP_DRY_RUN", value_parser = BoolishValueParser::new())]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}
