use clap::Args;
use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};

use super::SelectArgs;

#[derive(Debug, Args)]
pub struct HoldArgs {
    /// Name of the plan
    #[arg(
        long,
        env = "RDMAPREP_PLAN",
        value_name = "NAME",
        default_value = "default"
    )]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub plan: String,
    /// Name of the namespace and in `status` [default: --plan]
    #[arg(long, env = "RDMAPREP_NAME", value_name = "ID")]
    pub name: Option<String>,
    /// Time to attach and to restore [default: 60 or more]
    // More for more than 500 NICs; an undo takes its time on top.
    #[arg(long, env = "RDMAPREP_DEADLINE", value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub deadline: Option<u32>,
    /// Print the line as JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
    #[command(flatten)]
    pub select: SelectArgs,
}
