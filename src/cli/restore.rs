//! `rdmaprep restore`.

use clap::Args;
use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};

/// `rdmaprep restore`.
#[derive(Debug, Args)]
#[group(id = "which", required = true, multiple = false)]
pub struct RestoreArgs {
    /// The container, or the number of its network namespace
    #[arg(value_name = "ID", group = "which")]
    pub id: Option<String>,
    /// Every container
    #[arg(long, group = "which")]
    pub all: bool,
    /// Every container of that plan, as a job's epilogue wants it
    #[arg(long, group = "which", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub plan: Option<String>,
    /// Which of their records, and what to do with them.
    #[command(flatten)]
    pub how: RestoreHow,
    /// What to print and whether to act.
    #[command(flatten)]
    pub output: RestoreOutput,
}

/// What `restore` does with records other than to bring home what they speak of. No variables: nobody wants these by accident.
#[derive(Debug, Args)]
#[group(id = "how", multiple = false)]
pub struct RestoreHow {
    /// Only what is with nobody: all containers of the namespace have died, and no process is left in it. Without such,
    /// nothing is printed: for a timer
    #[arg(long, conflicts_with = "id")]
    pub stale: bool,
    /// Of records of an earlier boot, whose NICs have never left since, add what is missing: addresses, routes, rules and
    /// sysctls, on the same card in the same slot, where nobody configures it, and no address that the host has elsewhere.
    /// Run it when the network is up. Without this flag such a record is told and put into the archive folder
    #[arg(long)]
    pub after_reboot: bool,
    /// Give up what can never come home, as its card is gone: tells what is lost and puts the record into the archive
    /// folder. Refused as long as a NIC can be brought home
    #[arg(long, conflicts_with_all = ["all", "plan", "dry_run"])]
    pub forget: bool,
}

/// How `restore` acts; apart from the choice of containers, of which exactly one is to be made.
#[derive(Debug, Args)]
pub struct RestoreOutput {
    /// Change nothing; show the steps
    #[arg(long, env = "RDMAPREP_DRY_RUN", value_parser = BoolishValueParser::new())]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}
