//! The command line as types: every flag with its environment variable, and no logic.
//!
//! What selects NICs is kept as text here and read by [`crate::config::request`]: a hook runs for every container of the host,
//! and a stray variable in its environment must not fail the containers that never asked for a NIC.

mod cdi;
mod check;
mod doctor;
mod handle;
mod hold;
mod install;
mod nccl;
mod peers;
mod restore;
mod sysfs;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, NonEmptyStringValueParser, Resettable};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use rdma_model::error_class::ErrorClass;

pub use crate::config::options::Global;
pub use crate::config::select_args::SelectArgs;
use crate::nccl_env::format::Format;
use crate::oci::edit::Stage;
pub use cdi::{CdiCommand, CdiGenerateArgs, CdiListArgs};
pub use check::{BootstrapArgs, CheckCommand};
pub use doctor::{DoctorArgs, TryNodesArgs};
pub use handle::{HandleCommand, HandleOpenArgs};
pub use hold::HoldArgs;
pub use install::{InstallArgs, TargetArgs, TreeArgs, UninstallArgs};
pub use nccl::{ExplainArgs, NcclCommand, TopoArgs, TopoOutput};
pub use peers::{MeetArgs, PeersArgs, RendezvousArgs};
pub use restore::{RestoreArgs, RestoreHow, RestoreOutput};
pub use sysfs::{DiffArgs, ExportArgs, MaterializeArgs, SysfsCommand, ViewArgs};

/// Gives a container its RDMA network cards, and the host everything back.
///
/// `prepare` decides which NICs a container gets and stores the plan; the OCI hook moves them when a container that
/// names the plan starts, and brings them back when it stops.
#[derive(Debug, Parser)]
#[command(name = "rdmaprep", version, max_term_width = 100)]
pub struct Cli {
    /// Flags of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what this host has: HCAs, ports, GIDs, netdevs, routes, PCI functions, GPUs
    Snapshot(SnapshotArgs),
    /// Choose the NICs for a container, store the plan, show what was chosen and why
    Prepare(Box<PrepareArgs>),
    /// Print NCCL's settings for a plan's containers, exactly as they are injected
    ///
    /// Uses the stored plan; where there is none it is made, and not stored.
    Env(Box<EnvArgs>),
    /// Edit an OCI config.json: stdin to stdout, as podman's precreate hook wants it
    ///
    /// Does what `prepare --bundle` does. A container that did not opt in (see `hook`) comes out as it went in. Uses the
    /// stored plan; where there is none it is made for this container, and not stored: the hooks are told its NICs.
    Spec(Box<SpecArgs>),
    /// Act as an OCI hook: the runtime's state JSON comes on stdin
    ///
    /// Does nothing and exits 0 for a container that did not opt in: by the annotation rdmaprep.io/plan, by --plan, or
    /// by `plan` in the host's config file.
    Hook(Box<HookArgs>),
    /// Keep a plan's NICs in a network namespace for containers that join it, until a signal
    ///
    /// Makes the namespace /run/netns/ID, gives it the NICs as the create hook would, prints one line when all is ready,
    /// and waits. A config.json names that path; containers that join need the hooks as well, and start without a move.
    /// SIGTERM, SIGINT and SIGHUP end it: the NICs go home at once, or with the last container in the namespace.
    Hold(Box<HoldArgs>),
    /// Use what a process keeps open, by the value that `status` shows
    #[command(subcommand)]
    Handle(HandleCommand),
    /// Be an OCI runtime: edit config.json as `spec` does, then become runc, crun, runsc or another
    ///
    /// For engines that are given a runtime's path: a link `rdmaprep-runtime` to this program does the same, and
    /// `rdmaprep-runtime-crun` (or runc, runsc, youki, nvidia) before that runtime. Every argument is passed on as it is;
    /// `create` and `run` of a container that opted in (see `hook`) have its config.json edited first. `runtime` in the
    /// host's config file names the runtime [default: the first of runc and crun in PATH].
    #[command(disable_help_flag = true)]
    Runtime(RuntimeArgs),
    /// Give engines each rail as a device (Container Device Interface)
    #[command(subcommand)]
    Cdi(CdiCommand),
    /// Bring back the NICs that a container holds
    Restore(RestoreArgs),
    /// Show who holds which NIC, and what the last hooks did
    Status(StatusArgs),
    /// Show, write out and compare the /sys that a container sees
    #[command(subcommand)]
    Sysfs(SysfsCommand),
    /// Tell what NCCL does with its settings in a network namespace
    #[command(subcommand)]
    Nccl(NcclCommand),
    /// Try what NCCL does in a network namespace
    #[command(subcommand)]
    Check(Box<CheckCommand>),
    /// Look for known failures: for each what was seen, why it hurts, and the fix
    ///
    /// Changes nothing. Ends with 11 if something breaks a job; with 0 where there are warnings alone, or what cannot be told
    /// from here. Looks at the NICs that `prepare` would choose, and those that it would if their ports and GIDs were well.
    Doctor(Box<DoctorArgs>),
    /// Open device nodes in a container's cgroup
    #[command(hide = true)]
    TryNodes(TryNodesArgs),
    /// Show where NICs and GPUs are, draw it, or write it as a topology file for NCCL
    ///
    /// Prints the PCI tree by NCCL's levels: each NIC kept or dropped and why, and its nearest GPU. Changes nothing.
    Topo(Box<TopoArgs>),
    /// Show which nodes of a job have published their rails, who is missing, and what they have in common
    ///
    /// Looks into the store of `prepare --rendezvous`, and changes nothing in it. It needs no --rank.
    Peers(Box<PeersArgs>),
    /// Have podman, CRI-O, Docker, containerd, systemd and network managers know of rdmaprep
    ///
    /// Writes or edits their files and keeps what is in them; --dry-run shows each diff. All is decided before the first file
    /// is written; nothing is restarted, what to run next is printed. Installing twice is installing once. Then:
    ///
    ///   podman run --annotation rdmaprep.io/plan=NAME …
    ///   docker run --runtime rdmaprep --annotation rdmaprep.io/plan=NAME …
    #[command(verbatim_doc_comment)]
    Install(Box<InstallArgs>),
    /// Take out what `install` wrote, to the byte; of files edited since, our keys alone
    ///
    /// Refused while NICs are away (exit code 9).
    Uninstall(UninstallArgs),
}

/// `rdmaprep snapshot`.
#[derive(Debug, Args)]
pub struct SnapshotArgs {
    /// Print JSON, which --snapshot reads back, instead of a table
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
    /// Read the captured /sys tree in DIR instead of the live system
    #[arg(long, env = "RDMAPREP_ROOT", value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Print the normal form, one line per fact: hosts whose network is equal print equal texts
    #[arg(long, env = "RDMAPREP_NORMAL", value_parser = BoolishValueParser::new(), conflicts_with = "json")]
    pub normal: bool,
}

/// `rdmaprep prepare`.
#[derive(Debug, Args)]
pub struct PrepareArgs {
    /// Name of the plan: 1 to 64 letters, digits, `_`, `.`, `-`, the first no dot
    #[arg(long, env = "RDMAPREP_PLAN", value_name = "NAME", default_value = "default")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub plan: String,
    /// Edit config.json in DIR: environment, hooks, device nodes, memlock. Editing twice equals editing once, and what
    /// you set stays
    #[arg(long, env = "RDMAPREP_BUNDLE", value_name = "DIR")]
    pub bundle: Option<PathBuf>,
    /// Timeout of the hooks that --bundle writes; their own deadline is this less the time that an undo takes
    /// [default: 60, more for more than 225 NICs]
    #[arg(long, env = "RDMAPREP_HOOK_TIMEOUT", value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub hook_timeout: Option<u32>,
    /// Store and write nothing; show what would be, with a diff of config.json. With --rendezvous on all nodes, or they do not agree
    #[arg(long, env = "RDMAPREP_DRY_RUN", value_parser = BoolishValueParser::new())]
    pub dry_run: bool,
    /// Print JSON instead of the summary
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
    /// Decide from this `snapshot --json` file instead of the live system
    #[arg(long, env = "RDMAPREP_SNAPSHOT", value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    /// Which NICs.
    #[command(flatten)]
    pub select: SelectArgs,
    /// With whom to agree on them.
    #[command(flatten)]
    pub rendezvous: RendezvousArgs,
}

/// `rdmaprep env`.
#[derive(Debug, Args)]
pub struct EnvArgs {
    /// Name of the plan
    #[arg(long, env = "RDMAPREP_PLAN", value_name = "NAME", default_value = "default")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub plan: String,
    /// In which form
    #[arg(long, env = "RDMAPREP_FORMAT", value_name = "FORMAT", default_value = "sh")]
    pub format: Format,
    /// For the container of this bundle: without what its own environment sets, and by the network namespace that it joins
    #[arg(long, env = "RDMAPREP_BUNDLE", value_name = "DIR")]
    pub bundle: Option<PathBuf>,
    /// Decide from this `snapshot --json` file instead of the live system and the stored plan
    #[arg(long, env = "RDMAPREP_SNAPSHOT", value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    /// Which NICs, where no plan is stored.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// `rdmaprep spec`.
#[derive(Debug, Args)]
pub struct SpecArgs {
    /// The plan that this container uses; an annotation that names another one is refused
    #[arg(long, env = "RDMAPREP_PLAN", value_name = "NAME")]
    pub plan: Option<String>,
    /// Timeout of the hooks that it writes; their own deadline is this less the time that an undo takes
    /// [default: 60, more for more than 225 NICs]
    #[arg(long, env = "RDMAPREP_HOOK_TIMEOUT", value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub hook_timeout: Option<u32>,
    /// Which NICs, where no plan is stored.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// `rdmaprep hook`.
#[derive(Debug, Args)]
pub struct HookArgs {
    /// The moment in the container's life
    #[arg(value_name = "STAGE")]
    pub stage: Stage,
    /// The plan that this container uses; an annotation that names another one is refused
    #[arg(long, env = "RDMAPREP_PLAN", value_name = "NAME")]
    pub plan: Option<String>,
    /// Time to attach in; an undo comes on top, some 25 ms per NIC [default: what --hook-timeout leaves, at most 50 or what the
    /// plan's NICs need; without that 10, and 0.1 for each of them]
    #[arg(long, env = "RDMAPREP_DEADLINE", value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub deadline: Option<u32>,
    /// When the engine ends this hook, which the state on stdin does not tell
    #[arg(long, env = "RDMAPREP_HOOK_TIMEOUT", value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub hook_timeout: Option<u32>,
    /// How much of the deadline to wait for NICs that other containers hold; `hook_wait_s` of the config file is its default,
    /// else 0
    #[arg(long, env = "RDMAPREP_WAIT", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub wait: Option<u32>,
    /// Refuse any plan but the one with this digest, on which all nodes agreed; `prepare --bundle` says so here
    #[arg(long, env = "RDMAPREP_AGREED", value_name = "DIGEST")]
    pub agreed: Option<String>,
    /// What the runtime's process keeps open for this hook, NAME=HANDLE each: `rdmaprep-runtime` says so here. The view of /sys
    /// is read there, if it is the one that config.json mounts, and else from its file
    #[arg(long, env = "RDMAPREP_HANDLES", value_name = "HANDLES", value_delimiter = ',')]
    pub handles: Vec<String>,
    /// Just this rail of the plan, NETDEV or hca:NAME, and those that the same flag of our other hooks in config.json names: the
    /// first of them gives the container all of these or fails. `cdi generate` says so here
    #[arg(long, env = "RDMAPREP_RAIL", value_name = "RAIL")]
    pub rail: Vec<String>,
    /// Which NICs, where no plan is stored.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// `rdmaprep runtime`.
#[derive(Debug, Args)]
pub struct RuntimeArgs {
    /// The runtime's own options, command and its arguments
    #[arg(value_name = "ARG", trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}

/// `rdmaprep status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

impl Cli {
    /// Reads a command line and the environment. [`complaint`] tells an error from a wish for help.
    pub fn read<I, T>(args: I) -> Result<Cli, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString> + Clone,
    {
        // An empty variable is none; clap takes it for a path that lacks its text.
        let is_empty = |name: &OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
        let command = command().mut_args(|arg| match arg.is_global_set() && arg.get_env().is_some_and(is_empty) {
            true => arg.env(Resettable::Reset),
            false => arg,
        });
        Cli::from_arg_matches(&command.try_get_matches_from(args)?)
    }
}

/// The whole command for clap, with the exit codes in its help.
pub fn command() -> clap::Command {
    // Help is documentation: it shows the variable's name, not what happens to be in it.
    fn quiet(command: clap::Command) -> clap::Command {
        command.mut_args(|a| a.hide_env_values(true)).mut_subcommands(quiet)
    }
    quiet(Cli::command()).after_help(exit_codes())
}

/// What is wrong with a command line, in one line as every error of ours; nothing where clap shows help or the version.
pub fn complaint(error: &clap::Error) -> Option<String> {
    use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    if matches!(error.kind(), DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand) {
        return None;
    }
    let text = error.to_string();
    let lines = text.lines().take_while(|l| !l.starts_with("Usage:") && !l.starts_with("For more information"));
    let words = lines.map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join(" ");
    Some(format!("{}; see --help", words.strip_prefix("error: ").unwrap_or(&words)))
}

/// The table of exit codes.
fn exit_codes() -> String {
    let line = |f: ErrorClass| format!("\n  {}  {}", f.code(), f.meaning());
    ErrorClass::ALL.into_iter().map(line).fold("Exit codes:\n  0  done".to_owned(), |text, line| text + &line)
}
