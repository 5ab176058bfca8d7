//! The command line as types: every flag with its environment variable, and no logic.
//!
//! The options that select NICs are text here, and [`crate::config::select_args`] parses them: a
//! hook runs for every container of the host, and a stray variable in its environment must not fail
//! containers that did not ask for a NIC.

mod cdi;
mod claims;
mod cni;
mod completion;
mod doctor;
mod handle;
mod help;
mod hold;
mod hook;
mod install;
mod job_status;
mod metrics;
mod nccl;
mod nccl_settings;
mod plan;
mod prepare;
mod restore;
mod snapshot;
mod sysfs;
mod test_bootstrap;
mod test_rails;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, NonEmptyStringValueParser, Resettable};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

pub use crate::config::options::Global;
pub use crate::config::select_args::SelectArgs;
use crate::config::select_args::{SelectArgsBut, Unused};
use crate::nccl_env::format::Format;
pub use cdi::{CdiCommand, CdiGenerateArgs, CdiListArgs};
pub use claims::{ClaimsArgs, ClaimsCommand, ClaimsReleaseArgs};
pub use completion::{CompletionArgs, Words, script};
pub use doctor::{DoctorArgs, TryNodesArgs};
pub use handle::{HandleCommand, HandleOpenArgs};
pub use help::{GROUPS, command, complaint, manual, short};
pub use hold::HoldArgs;
pub use hook::HookArgs;
pub use install::{InstallArgs, TargetArgs, TreeArgs, UninstallArgs};
pub use job_status::{JobStatusArgs, MeetArgs, RendezvousArgs};
pub use metrics::MetricsArgs;
pub use nccl::{ExplainArgs, NcclCommand, TopoArgs};
pub use nccl_settings::NcclSettingsArgs;
pub use plan::{PlanCommand, PlanDeleteArgs};
pub use prepare::PrepareArgs;
pub use restore::RestoreArgs;
pub use snapshot::SnapshotArgs;
pub use sysfs::{DiffArgs, ExportArgs, MaterializeArgs, SysfsCommand, ViewArgs};
pub use test_bootstrap::TestBootstrapArgs;
pub use test_rails::{CrossRounds, LeaveOut, RailTest, TestRailsArgs};

/// What `--version` says: scripts/build gives it, with the commit and its date.
pub const VERSION: &str = match option_env!("RDMAPREP_VERSION") {
    Some(built) => built,
    None => env!("CARGO_PKG_VERSION"),
};

/// Gives a container its RDMA NICs and returns them to the host unchanged
///
/// `prepare` chooses NICs and stores the choice as a plan. When a container that names the plan
/// starts, the OCI hook moves the NICs into it; when the container stops, the hook restores them.
#[derive(Debug, Parser)]
#[command(name = "rdmaprep", version = VERSION, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show this host's HCAs, ports, GIDs, netdevs, routes, PCI functions and GPUs
    #[command(after_help = "Examples:
  rdmaprep snapshot
  rdmaprep snapshot --json")]
    Snapshot(SnapshotArgs),
    /// Choose the NICs of a container, show why, and store the choice as a plan
    ///
    /// docs/selection.md has the rules, docs/multi-node.md the agreement of several nodes.
    #[command(after_help = "Examples:
  rdmaprep prepare --dry-run
  rdmaprep prepare --plan train --ifaces \"rdma0 rdma1\"
  rdmaprep prepare --plan train --bundle /run/bundle
  rdmaprep prepare --configured
  rdmaprep prepare --rendezvous c10d://192.0.2.1:29400 --rank 0 --nodes 2 --run-id 1")]
    Prepare(Box<PrepareArgs>),
    /// Print the settings that a plan's containers get for NCCL and other libraries
    ///
    /// For plan `auto`, and with --snapshot, makes a plan and does not store it.
    #[command(after_help = "Examples:
  rdmaprep env --plan train
  rdmaprep env --plan train --format docker
  rdmaprep env --plan train --libraries all")]
    Env(Box<EnvArgs>),
    /// Edit an OCI config.json from stdin to stdout, as podman's precreate hook does
    ///
    /// Makes the same edits as `prepare --bundle`. Prints the config.json of a container that did
    /// not opt in (see `hook`) unchanged. For plan `auto`, makes one for this container and does
    /// not store it.
    Spec(Box<SpecArgs>),
    /// Run as an OCI hook; the runtime's state JSON is on stdin
    ///
    /// Changes nothing and exits with 0 for a container that did not opt in. A container opts in by
    /// the annotation rdmaprep.io/plan, by --plan, or by `plan` in the host's config file. The plan
    /// has to be stored; for `auto` the hook makes one.
    Hook(Box<HookArgs>),
    /// Run as a CNI plugin; the network configuration is on stdin
    ///
    /// CNI_COMMAND says what to do: ADD, DEL, CHECK, GC, STATUS or VERSION. A CNI runtime finds the
    /// plugin as `rdmaprep` in its CNI_PATH: without arguments, and with CNI_COMMAND set, this
    /// program runs this command. docs/kubernetes.md has a configuration.
    Cni,
    /// Keep a plan's NICs in a network namespace that containers join, until a signal
    ///
    /// Makes the namespace /run/netns/ID, moves the NICs into it, prints one line, and waits.
    /// Containers whose config.json names that path get no NIC moved, but need the hooks as well.
    /// On SIGTERM, SIGINT or SIGHUP the NICs return to the host: at once, or when the last
    /// container leaves the namespace.
    #[command(after_help = "Examples:
  rdmaprep hold --plan train --name job")]
    Hold(Box<HoldArgs>),
    /// Read a file that another rdmaprep process keeps open
    #[command(subcommand)]
    Handle(HandleCommand),
    /// Run as an OCI runtime: edit config.json, then execute runc, crun or another
    ///
    /// Makes the edits of `spec`. For engines that take the path of a runtime: a link
    /// `rdmaprep-runtime` to this program does the same, and `rdmaprep-runtime-crun` (or runc,
    /// runsc, youki, nvidia) executes that runtime. All arguments are passed on unchanged.
    /// `runtime` in the host's config file names the runtime [default: the first of runc and crun
    /// in PATH].
    #[command(disable_help_flag = true)]
    Runtime(RuntimeArgs),
    /// Describe each rail as a device for engines (Container Device Interface)
    #[command(subcommand)]
    Cdi(CdiCommand),
    /// List, show and delete stored plans
    #[command(subcommand)]
    #[command(after_help = "Examples:
  rdmaprep plan list
  rdmaprep plan delete train --dry-run")]
    Plan(PlanCommand),
    /// List and release the claims of Kubernetes that are prepared on this node
    ///
    /// A prepared claim keeps its rails from all others, and its pod's NICs away while none of its
    /// containers runs. rdmaprep-dra prepares and releases them. docs/kubernetes.md says how.
    #[command(after_help = "Examples:
  rdmaprep claims
  rdmaprep claims release 0f1e2d3c-0123-4567-89ab-0123456789ab --dry-run")]
    Claims(ClaimsArgs),
    /// Return the NICs that a container holds to the host
    ///
    /// Of an id that an engine made, the first 6 digits are enough. docs/recovery.md says when NICs
    /// return without this command.
    #[command(after_help = "Examples:
  rdmaprep restore --all --dry-run
  rdmaprep restore --plan train
  rdmaprep restore --all --stale")]
    Restore(RestoreArgs),
    /// Show which container holds which NIC, and why hooks failed lately
    ///
    /// Shows the newest three failures of the last hour: many engines report just the exit status
    /// of a hook. Those that the same plan's next container has solved are counted. And which NICs
    /// came back in that hour, and why.
    #[command(after_help = "Examples:
  rdmaprep status
  rdmaprep status --json")]
    Status(StatusArgs),
    /// Print what monitoring reads of rails and hooks, as OpenMetrics
    ///
    /// Of each rail, wherever it is: its link, its counters and its port's, and what is wrong with
    /// it; who holds it; how hooks ended. Changes nothing. docs/metrics.md has every metric.
    #[command(after_help = "Examples:
  rdmaprep metrics
  rdmaprep metrics --textfile /var/lib/prometheus/node-exporter/rdmaprep.prom")]
    Metrics(MetricsArgs),
    /// Show, export and compare the /sys that a container sees
    #[command(subcommand)]
    Sysfs(SysfsCommand),
    /// Explain what NCCL does with its settings, and test its bootstrap
    #[command(subcommand)]
    Nccl(NcclCommand),
    /// Look for known failures: what was seen, why it matters, and the fix
    ///
    /// Changes nothing. Examines the NICs that `prepare` would choose, and those that only a port
    /// or GID keeps out. Exits with 11 if a finding breaks jobs, with 0 if there are warnings
    /// alone. docs/doctor.md lists the checks.
    #[command(after_help = "Examples:
  rdmaprep doctor
  rdmaprep doctor --ifaces \"rdma0 rdma1\"
  rdmaprep doctor --container 4242")]
    Doctor(Box<DoctorArgs>),
    /// Open device nodes in a container's cgroup
    #[command(hide = true)]
    TryNodes(TryNodesArgs),
    /// Show where NICs and GPUs are, draw it, or write a topology file for NCCL
    ///
    /// Prints the PCI tree by NCCL's levels: each NIC kept or left out and why, and its nearest
    /// GPU. Changes nothing.
    #[command(after_help = "Examples:
  rdmaprep topo
  rdmaprep topo --draw topo.svg")]
    Topo(Box<TopoArgs>),
    /// Show which nodes of a job have published their rails, and which are missing
    ///
    /// Reads the store of `prepare --rendezvous`, and changes nothing in it.
    #[command(after_help = "Examples:
  rdmaprep job-status --rendezvous file:///shared/rails --nodes 2 --run-id 1")]
    JobStatus(Box<JobStatusArgs>),
    /// Send RDMA traffic over every rail between the nodes of a job, and name what fails
    ///
    /// Runs rdmaprep-rail-test, a program of its own. Changes nothing. Exits with 10 if nodes did
    /// not come or answer, with 11 if a failure breaks jobs. docs/rail-test.md says what it proves.
    #[command(after_help = "Examples:
  rdmaprep test-rails --plan train
  rdmaprep test-rails --rendezvous c10d://192.0.2.1:29400 --rank 0 --nodes 2 --run-id 1
  rdmaprep test-rails --pattern all --draw rails.svg")]
    TestRails(Box<TestRailsArgs>),
    /// Register rdmaprep with podman, CRI-O, Docker, containerd, systemd
    ///
    /// Writes or edits the targets' files and keeps what is in them. Restarts nothing, and prints
    /// what to run next. A second run changes nothing. docs/engines.md has a section for each
    /// engine.
    #[command(after_help = "Examples:
  rdmaprep install --dry-run
  rdmaprep install --podman
  rdmaprep install --network-managers --ifaces \"rdma0 rdma1\"")]
    Install(Box<InstallArgs>),
    /// Remove what `install` wrote
    ///
    /// From an engine's file that was edited since, rdmaprep's keys go. A file of rdmaprep's own
    /// that was edited since stays in force, with exit code 8: remove it, or --leave-changed leaves
    /// it for good. Refused while containers hold NICs (exit code 9).
    #[command(after_help = "Examples:
  rdmaprep uninstall --dry-run")]
    Uninstall(UninstallArgs),
    /// Print completions for a shell: bash, zsh or fish
    ///
    /// They know the stored plans, and the containers that hold NICs. The packages have them where
    /// the shells look.
    #[command(after_help = "Examples:
  rdmaprep completion bash
  rdmaprep completion fish")]
    Completion(CompletionArgs),
}

#[derive(Debug, Args)]
pub struct EnvArgs {
    /// Name of the plan
    #[arg(
        long,
        env = "RDMAPREP_PLAN",
        value_name = "NAME",
        default_value = "default"
    )]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub plan: String,
    /// Print as sh, docker, json or conf
    #[arg(
        long,
        env = "RDMAPREP_FORMAT",
        value_name = "FORMAT",
        default_value = "sh"
    )]
    pub format: Format,
    /// Leave out what this bundle's config.json sets
    #[arg(long, env = "RDMAPREP_BUNDLE", value_name = "DIR")]
    pub bundle: Option<PathBuf>,
    /// What a container was given: id or name
    #[arg(
        long,
        env = "RDMAPREP_CONTAINER",
        value_name = "ID",
        value_parser = NonEmptyStringValueParser::new(),
        conflicts_with_all = ["bundle", "snapshot"]
    )]
    pub container: Option<String>,
    /// Decide from a file of `snapshot --json`
    #[arg(long, env = "RDMAPREP_SNAPSHOT", value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    #[command(flatten)]
    pub select: SelectArgsBut<EnvUnused>,
}

/// These say nothing to NCCL.
#[derive(Clone, Debug)]
pub struct EnvUnused;

impl Unused for EnvUnused {
    const OPTIONS: &'static [&'static str] =
        &["arp_profile", "gid_timeout", "default_route", "hosts_entry"];
}

#[derive(Debug, Args)]
pub struct SpecArgs {
    /// Plan to use; an annotation must name the same
    #[arg(long, env = "RDMAPREP_PLAN", value_name = "NAME")]
    pub plan: Option<String>,
    /// Timeout of each hook [default: 60 or more]
    #[arg(long, env = "RDMAPREP_HOOK_TIMEOUT", value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub hook_timeout: Option<u32>,
    #[command(flatten)]
    pub select: SelectArgs,
}

#[derive(Debug, Args)]
pub struct RuntimeArgs {
    /// The runtime's options, command and arguments
    #[arg(
        value_name = "ARG",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub args: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

impl Cli {
    /// Reads a command line and the environment. For errors and for help see [`complaint`].
    pub fn read<I, T>(args: I) -> Result<Cli, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString> + Clone,
    {
        let mut args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        args.extend(cni::implied(&args));
        if let Some(cli) = hook::read_alone(&args) {
            return Ok(cli);
        }
        // The texts of the help, a fifth of the time, are for who errs or asks.
        let bare = without_empty_variables(Cli::command()).try_get_matches_from(&args);
        let with_texts = match args.iter().any(|arg| arg == "-h") {
            true => short,
            false => command,
        };
        Cli::from_arg_matches(
            &bare.or_else(|_| without_empty_variables(with_texts()).try_get_matches_from(args))?,
        )
    }
}

/// An empty variable counts as unset; clap takes the empty text for a path or a number. Of the
/// options that select NICs, which are text, [`crate::config::select_args`] decides.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let own = arg
            .get_env()
            .filter(|name| name.as_encoded_bytes().starts_with(b"RDMAPREP_"));
        let value = own.and_then(std::env::var_os);
        match value.is_some_and(|value| value.is_empty()) {
            true => arg.env(Resettable::Reset),
            false => arg,
        }
    });
    command.mut_subcommands(without_empty_variables)
}
