use clap::Args;
use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};

#[derive(Debug, Args)]
#[group(id = "which", required = true, multiple = false)]
pub struct RestoreArgs {
    /// Container by id or name, or the number of its network namespace
    #[arg(value_name = "ID", group = "which")]
    pub id: Option<String>,
    /// All containers, running ones too: their jobs lose the NICs
    #[arg(long, group = "which")]
    pub all: bool,
    /// All containers of that plan, as a job's epilogue does
    #[arg(
        long,
        group = "which",
        value_name = "NAME",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub plan: Option<String>,
    #[command(flatten)]
    pub how: RestoreHow,
    #[command(flatten)]
    pub output: RestoreOutput,
}

/// What happens to records apart from restoring their NICs. No variables: an exported one would
/// restore by accident.
#[derive(Debug, Args)]
#[group(id = "how", multiple = false)]
pub struct RestoreHow {
    /// Only NICs in namespaces without a process; silent if none, for a timer
    #[arg(long, conflicts_with = "id")]
    pub stale: bool,
    /// Archive a record whose NICs are gone for good, and show what is lost
    #[arg(long, conflicts_with_all = ["all", "plan"])]
    pub forget: bool,
}

/// Apart from [`RestoreArgs`], as its group demands exactly one choice of containers.
#[derive(Debug, Args)]
pub struct RestoreOutput {
    /// Change nothing; show the steps, or what is lost
    #[arg(long, env = "RDMAPREP_DRY_RUN", value_parser = BoolishValueParser::new())]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}
