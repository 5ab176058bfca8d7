use std::ffi::OsString;

use clap::{Args, FromArgMatches};

use super::{Cli, Command, without_empty_variables};
use crate::config::options::Global;
use crate::config::select_args::SelectArgs;
use crate::oci::edit::Stage;

const HOOK: &str = "hook";

#[derive(Debug, Args)]
pub struct HookArgs {
    /// prestart, createRuntime, poststart or poststop
    #[arg(value_name = "STAGE")]
    pub stage: Stage,
    /// Plan to use; an annotation must name the same
    #[arg(long, env = "RDMAPREP_PLAN", value_name = "NAME")]
    pub plan: Option<String>,
    /// Time to attach [default: by --hook-timeout]
    // What --hook-timeout leaves, at most 50 or what the plan's NICs need; without that 10, and 0.1 for each of them.
    // An undo takes some 25 ms per NIC on top.
    #[arg(long, env = "RDMAPREP_DEADLINE", value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub deadline: Option<u32>,
    /// When the engine kills this hook
    #[arg(long, env = "RDMAPREP_HOOK_TIMEOUT", value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub hook_timeout: Option<u32>,
    /// Wait for busy NICs [default: hook_wait_s, or 0]
    #[arg(long, env = "RDMAPREP_WAIT", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub wait: Option<u32>,
    /// Refuse a plan whose digest is another
    // `prepare --bundle` writes the digest on which all nodes agreed.
    #[arg(long, env = "RDMAPREP_AGREED", value_name = "DIGEST")]
    pub agreed: Option<String>,
    /// NAME=HANDLE: files that the runtime keeps open
    // `rdmaprep-runtime` passes them. The view of /sys is read there if config.json mounts the same one, else from its file.
    #[arg(long, env = "RDMAPREP_HANDLES", value_name = "HANDLES", value_delimiter = ',')]
    pub handles: Vec<String>,
    /// Take only this rail: NETDEV or hca:NAME
    // `cdi generate` writes it. The first hook that runs attaches the rails of all hooks in config.json.
    #[arg(long, env = "RDMAPREP_RAIL", value_name = "RAIL")]
    pub rail: Vec<String>,
    #[command(flatten)]
    pub select: SelectArgs,
}

/// [`Cli::read`] for `hook`, without the other commands: making all of them takes longer than what a hook does for a container
/// that did not opt in. Nothing for another command, an error or help: these are for the whole command.
pub(super) fn read_alone(args: &[OsString]) -> Option<Cli> {
    args.iter().any(|arg| arg == HOOK).then_some(())?;
    let hook = HookArgs::augment_args(clap::Command::new(HOOK));
    let alone = Global::augment_args(clap::Command::new("rdmaprep")).subcommand(hook).subcommand_required(true);
    let matches = without_empty_variables(alone).try_get_matches_from(args).ok()?;
    let command = Command::Hook(Box::new(HookArgs::from_arg_matches(matches.subcommand_matches(HOOK)?).ok()?));
    Some(Cli { global: Global::from_arg_matches(&matches).ok()?, command })
}
