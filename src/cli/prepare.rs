use std::path::PathBuf;

use clap::Args;
use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};

use super::{LeaveOut, RendezvousArgs};
use crate::config::select_args::SelectArgs;

#[derive(Debug, Args)]
pub struct PrepareArgs {
    /// Name of the plan
    #[arg(
        long,
        env = "RDMAPREP_PLAN",
        value_name = "NAME",
        default_value = "default"
    )]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub plan: String,
    /// Edit the config.json of this bundle
    #[arg(long, env = "RDMAPREP_BUNDLE", value_name = "DIR")]
    pub bundle: Option<PathBuf>,
    /// The runtime: a command line, or a name
    ///
    /// For gVisor: `runsc --rdmaproxy`, or the name of a runtime in Docker's or containerd's
    /// configuration, such as `runsc`. It decides what `--sysfs auto` means.
    #[arg(long, env = "RDMAPREP_RUNTIME", value_name = "COMMAND")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub runtime: Option<String>,
    /// Timeout of each hook [default: 60 or more]
    // More for more than 225 NICs.
    #[arg(long, env = "RDMAPREP_HOOK_TIMEOUT", value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub hook_timeout: Option<u32>,
    /// Store the config file's plans instead
    ///
    /// Each `[[plans]]` there, by the options that it has there, as after a boot. Variables of the
    /// environment do not count.
    #[arg(
        long,
        env = "RDMAPREP_CONFIGURED",
        value_parser = BoolishValueParser::new(),
        conflicts_with_all = [
            "plan", "bundle", "runtime", "hook_timeout", "snapshot", "rendezvous", "test_rails"
        ]
    )]
    pub configured: bool,
    /// Of these, leave those that are stored
    #[arg(
        long,
        env = "RDMAPREP_KEEP_PLANS",
        value_parser = BoolishValueParser::new(),
        requires = "configured"
    )]
    pub keep: bool,
    /// Store nothing; show the diff (all nodes or none)
    #[arg(long, env = "RDMAPREP_DRY_RUN", value_parser = BoolishValueParser::new())]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
    /// Decide from a file of `snapshot --json`
    #[arg(long, env = "RDMAPREP_SNAPSHOT", value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    #[command(flatten)]
    pub select: SelectArgs,
    #[command(flatten)]
    pub rendezvous: RendezvousArgs,
    /// Test rails first [=failed, strict]
    ///
    /// Sends traffic over them before all nodes agree, as `test-rails` does. A rail that fails
    /// anywhere is left out on all nodes; with strict no plan is stored then. All nodes give it
    /// alike.
    #[arg(
        long,
        env = "RDMAPREP_TEST_RAILS",
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "failed",
        hide_possible_values = true
    )]
    pub test_rails: Option<LeaveOut>,
}
