//! Options of the rail test: of `rdmaprep test-rails`, and of the program that it runs.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};
use clap::{Args, CommandFactory, FromArgMatches, Parser, ValueEnum};

use super::{Global, RendezvousArgs, without_empty_variables};

#[derive(Debug, Args)]
pub struct TestRailsArgs {
    /// Test the rails of this stored plan
    ///
    /// Without it, those HCAs that NCCL would take in this network namespace, by its environment
    /// and config files.
    #[arg(long, env = "RDMAPREP_PLAN", value_name = "NAME")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub plan: Option<String>,
    /// Test a container's rails: id, name, or init's pid
    ///
    /// Of a container that has its NICs, or of a `hold`: in its network namespace, with the
    /// settings that NCCL finds in it. The store is reached from here.
    #[arg(long, env = "RDMAPREP_CONTAINER", value_name = "ID")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    #[arg(conflicts_with_all = ["plan", "unstored"])]
    pub container: Option<String>,
    /// Pairs: ring, all, random:K
    ///
    /// ring: each node with the next one, and with the one half of all nodes on. random:K: with K
    /// others. Rank 0's choice counts for all nodes.
    #[arg(
        long,
        env = "RDMAPREP_PATTERN",
        value_name = "PATTERN",
        default_value = "ring"
    )]
    pub pattern: String,
    /// Rail to other rail: first, all, none
    ///
    /// Whether to send from each rail to each other one; first: to the first partner of a node, in
    /// a ring to both neighbours. Rank 0's choice counts for all nodes.
    #[arg(
        long,
        env = "RDMAPREP_CROSS",
        value_name = "WHERE",
        default_value = "first"
    )]
    pub cross: CrossRounds,
    /// Measure the rate for so long; 0: not
    ///
    /// Rank 0's choice counts for all nodes.
    #[arg(
        long,
        env = "RDMAPREP_SECONDS",
        value_name = "SECONDS",
        default_value = "0.2"
    )]
    #[arg(value_parser = seconds)]
    pub seconds: f64,
    /// Give up a rail on which nothing moves
    ///
    /// NCCL's own limit by NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT counts where it is shorter, and a
    /// second at least. Rank 0's choice counts for all nodes.
    #[arg(
        long,
        env = "RDMAPREP_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = 10
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=600))]
    pub timeout: u32,
    /// Set NCCL_CROSS_NIC=0 in the plan if it is needed
    ///
    /// Where rails do not reach each other. On each node for its own plan; containers that start
    /// later get it.
    #[arg(
        long,
        env = "RDMAPREP_FIX",
        value_parser = BoolishValueParser::new(),
        requires = "plan"
    )]
    pub fix: bool,
    /// Write a picture of nodes by rails (rank 0)
    #[arg(long, env = "RDMAPREP_DRAW", value_name = "FILE.svg")]
    pub draw: Option<PathBuf>,
    /// Print JSON: all pairs (rank 0), the verdict
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
    #[command(flatten)]
    pub rendezvous: RendezvousArgs,
    /// For `prepare`: the rails are on stdin
    #[arg(long, hide = true)]
    pub unstored: bool,
}

/// What `prepare --test-rails` does where rails fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LeaveOut {
    /// Leaves these out.
    Failed,
    /// Stores nothing.
    Strict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CrossRounds {
    First,
    All,
    None,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=60.0).contains(&seconds) => Ok(seconds),
        _ => Err("0 to 60 seconds".to_owned()),
    }
}

/// Sends RDMA traffic over every rail between the nodes of a job, and names what fails
#[derive(Debug, Parser)]
#[command(name = "rdmaprep-rail-test", version, max_term_width = 100)]
pub struct RailTest {
    #[command(flatten)]
    pub global: Global,
    #[command(flatten)]
    pub args: TestRailsArgs,
}

impl RailTest {
    pub fn read(args: impl IntoIterator<Item = OsString>) -> Result<RailTest, clap::Error> {
        let command = without_empty_variables(RailTest::command());
        RailTest::from_arg_matches(&command.try_get_matches_from(args)?)
    }
}
