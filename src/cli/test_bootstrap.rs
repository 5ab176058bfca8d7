use clap::Args;
use clap::builder::BoolishValueParser;

use super::nccl_settings::NcclSettingsArgs;

#[derive(Debug, Args)]
pub struct TestBootstrapArgs {
    /// The other node [default: NCCL_COMM_ID, port 29500]
    #[arg(value_name = "HOST[:PORT]", conflicts_with = "listen")]
    pub host: Option<String>,
    /// Wait for the other node [default: port 29500]
    #[arg(
        long,
        env = "RDMAPREP_LISTEN",
        value_name = "PORT",
        num_args = 0..=1,
        default_missing_value = "0"
    )]
    pub listen: Option<u16>,
    /// Time limit; NCCL's may be longer
    #[arg(
        long,
        env = "RDMAPREP_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = 75
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub timeout: u32,
    #[command(flatten)]
    pub settings: NcclSettingsArgs,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}
