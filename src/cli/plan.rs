use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand};
use rdma_model::values::PlanName;

#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// List the stored plans, and the containers that have their NICs
    #[command(after_help = "Examples:
  rdmaprep plan list")]
    List(PlanListArgs),
    /// Show a stored plan's NICs and settings
    #[command(after_help = "Examples:
  rdmaprep plan show train")]
    Show(PlanShowArgs),
    /// Delete stored plans; running containers keep their NICs
    ///
    /// Containers that name a deleted plan do not start. Its view of /sys stays until a reboot:
    /// containers may have it mounted.
    #[command(after_help = "Examples:
  rdmaprep plan delete train --dry-run")]
    Delete(PlanDeleteArgs),
}

#[derive(Debug, Args)]
pub struct PlanListArgs {
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PlanShowArgs {
    /// Name of the plan
    #[arg(value_name = "NAME")]
    pub name: PlanName,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PlanDeleteArgs {
    /// Names of plans
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<PlanName>,
    /// Change nothing; show what would be deleted
    #[arg(long, env = "RDMAPREP_DRY_RUN", value_parser = BoolishValueParser::new())]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}
