//! `rdmaprep hold`.

use clap::Args;
use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};

use super::SelectArgs;

/// `rdmaprep hold`.
#[derive(Debug, Args)]
pub struct HoldArgs {
    /// Name of the plan
    #[arg(long, env = "RDMAPREP_PLAN", value_name = "NAME", default_value = "default")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub plan: String,
    /// What the namespace is called, and who holds the NICs in `status`: as a plan's name [default: the plan's]
    #[arg(long, env = "RDMAPREP_NAME", value_name = "ID")]
    pub name: Option<String>,
    /// Time to attach in, and to bring home in; an undo comes on top [default: 60, more for more than 500 NICs]
    #[arg(long, env = "RDMAPREP_DEADLINE", value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub deadline: Option<u32>,
    /// Print the line as JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
    /// Which NICs, where no plan is stored.
    #[command(flatten)]
    pub select: SelectArgs,
}
