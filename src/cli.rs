//! The command line as types: every flag with its environment variable, and no logic.
//!
//! What selects NICs is kept as text here and read by [`crate::request`]: a hook runs for every container of the host,
//! and a stray variable in its environment must not fail the containers that never asked for a NIC.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::fault::Fault;
use crate::inject::Stage;
use crate::nccl::format::Format;
use crate::nccl::version::Version;
use crate::view::Carrier;

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

/// Flags of every command.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// The host's config file; without this flag a missing file means the defaults
    /// [default: /etc/rdmaprep/config.toml]
    #[arg(long, global = true, env = "RDMAPREP_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the records of NICs that are away are kept: it must survive a reboot [default: /var/lib/rdmaprep]
    #[arg(long, global = true, env = "RDMAPREP_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Where plans, reports, the lock and the pins of network namespaces are kept [default: /run/rdmaprep]
    #[arg(long, global = true, env = "RDMAPREP_RUN_DIR", value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
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
    /// stored plan; where there is none it is made and stored.
    Spec(Box<SpecArgs>),
    /// Act as an OCI hook: the runtime's state JSON comes on stdin
    ///
    /// Does nothing and exits 0 for a container that did not opt in: by the annotation rdmaprep.io/plan, by --plan, or
    /// by `plan` in the host's config file.
    Hook(Box<HookArgs>),
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
    /// Show where NICs and GPUs are, draw it, or write it as a topology file for NCCL
    ///
    /// Prints the PCI tree by NCCL's levels: each NIC kept or dropped and why, and its nearest GPU. Changes nothing.
    Topo(Box<TopoArgs>),
}

/// `rdmaprep nccl`.
#[derive(Debug, Subcommand)]
pub enum NcclCommand {
    /// Say which interface NCCL bootstraps on, which HCAs it takes, in which order, and why not the others
    ///
    /// As the library itself would decide in this network namespace. Ends with 0 also where NCCL would fail.
    Explain(ExplainArgs),
}

/// `rdmaprep nccl explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// A setting; the variable holds one per line. With --env or --env-file nothing else is in the environment
    /// [default: this process's own NCCL_ variables and HOME]
    #[arg(long, env = "RDMAPREP_NCCL_SETTINGS", value_name = "NAME=VALUE", value_delimiter = '\n')]
    pub env: Vec<String>,
    /// Settings from FILE, one NAME=VALUE per line, verbatim; `#` begins a comment. --env wins
    #[arg(long, env = "RDMAPREP_NCCL_ENV_FILE", value_name = "FILE")]
    pub env_file: Option<PathBuf>,
    /// The environment of the container of this bundle, as its config.json has it. --env wins
    #[arg(long, env = "RDMAPREP_BUNDLE", value_name = "DIR", conflicts_with = "env_file")]
    pub bundle: Option<PathBuf>,
    /// NCCL's config file; of several the first that has a setting counts. The variable has them with `:` between
    /// [default: those that NCCL reads here; none with --snapshot]
    #[arg(long, env = "RDMAPREP_NCCL_CONF", value_name = "FILE", value_delimiter = ':')]
    pub conf: Vec<PathBuf>,
    /// The release of NCCL
    #[arg(long, env = "RDMAPREP_NCCL_VERSION", value_name = "VERSION", default_value_t = Version::NEWEST)]
    pub nccl_version: Version,
    /// Look at this `snapshot --json` file instead of the network namespace that this is called in
    #[arg(long, env = "RDMAPREP_SNAPSHOT", value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

/// `rdmaprep sysfs`.
#[derive(Debug, Subcommand)]
pub enum SysfsCommand {
    /// Print as one JSON document what a container with these HCAs sees; nothing is selected, no container is touched
    Export(ExportArgs),
    /// Write a document of `sysfs export` out as a tree
    Materialize(MaterializeArgs),
    /// Say in words what a container would see otherwise than this host, or how a document differs from it
    ///
    /// Ends with 0 whether something differs or not.
    Diff(DiffArgs),
}

/// Which /sys, and what of it.
#[derive(Debug, Args)]
pub struct ViewArgs {
    /// Read the captured /sys tree in DIR instead of the live system
    #[arg(long, env = "RDMAPREP_ROOT", value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// The HCAs that are seen (comma- or space-separated), or `all`
    #[arg(long, env = "RDMAPREP_HCA", value_name = "LIST", default_value = "all")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub hca: String,
    /// The whole tree, or the directories of links that are mounted over the live one
    #[arg(long, env = "RDMAPREP_MODE", value_name = "MODE", default_value = "snapshot")]
    pub mode: Carrier,
}

/// `rdmaprep sysfs export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// What to look at.
    #[command(flatten)]
    pub view: ViewArgs,
}

/// `rdmaprep sysfs materialize`.
#[derive(Debug, Args)]
pub struct MaterializeArgs {
    /// The document; `-` is stdin
    #[arg(long, env = "RDMAPREP_FROM", value_name = "FILE")]
    pub from: PathBuf,
    /// Where to write: a directory that is empty, or does not exist yet
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// `rdmaprep sysfs diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// What to look at.
    #[command(flatten)]
    pub view: ViewArgs,
    /// Compare with this document instead of a view of the same /sys
    #[arg(long, env = "RDMAPREP_FROM", value_name = "FILE", conflicts_with = "hca")]
    pub from: Option<PathBuf>,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

/// `rdmaprep topo`.
#[derive(Debug, Args)]
pub struct TopoArgs {
    /// Read the captured /sys tree in DIR instead of the live system
    #[arg(long, env = "RDMAPREP_ROOT", value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Read this `snapshot --json` file instead of the live system
    #[arg(long, env = "RDMAPREP_SNAPSHOT", value_name = "FILE", conflicts_with = "root")]
    pub snapshot: Option<PathBuf>,
    /// Keep these HCAs (comma- or space-separated), or `all`, instead of selecting [default: what is selected; all of a
    /// captured tree, which tells no addresses]
    #[arg(long, env = "RDMAPREP_HCA", value_name = "LIST")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub hca: Option<String>,
    /// A kept NIC that has no place in a topology file is an error, not left out with a warning
    #[arg(long, env = "RDMAPREP_STRICT", value_parser = BoolishValueParser::new())]
    pub strict: bool,
    /// What to make of it.
    #[command(flatten)]
    pub output: TopoOutput,
    /// The program for --exec and its arguments
    #[arg(value_name = "CMD", requires = "exec", trailing_var_arg = true, allow_hyphen_values = true)]
    pub program: Vec<OsString>,
    /// Which NICs.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// What `topo` makes; without any of these a tree for the terminal.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct TopoOutput {
    /// Print a topology file for NCCL_TOPO_FILE: the kept NICs by name, and all GPUs
    #[arg(long, env = "RDMAPREP_XML", value_parser = BoolishValueParser::new())]
    pub xml: bool,
    /// Draw the tree into FILE, to be looked at in a browser; `-` is stdout
    #[arg(long, env = "RDMAPREP_SVG", value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
    /// Run CMD with NCCL_TOPO_FILE, unless that is set: the file lies in memory, and its descriptor stays open. What closes
    /// descriptors it does not know, as Python's subprocess does, loses it: use --xml there
    #[arg(long, env = "RDMAPREP_EXEC", requires = "program", value_parser = BoolishValueParser::new())]
    pub exec: bool,
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
    #[arg(long, env = "RDMAPREP_HOOK_TIMEOUT", value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub hook_timeout: u32,
    /// Store and write nothing; show what would be, with a diff of config.json
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
    #[arg(long, env = "RDMAPREP_HOOK_TIMEOUT", value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub hook_timeout: u32,
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
    /// Time to attach in; an undo comes on top, some 25 ms per NIC. The state on stdin tells no timeout
    #[arg(long, env = "RDMAPREP_DEADLINE", value_name = "SECONDS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub deadline: u32,
    /// Which NICs, where no plan is stored.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// `rdmaprep restore`.
#[derive(Debug, Args)]
#[group(id = "which", required = true, multiple = false)]
pub struct RestoreArgs {
    /// The container
    #[arg(value_name = "ID", group = "which")]
    pub id: Option<String>,
    /// Every container
    #[arg(long, group = "which")]
    pub all: bool,
    /// What to print and whether to act.
    #[command(flatten)]
    pub output: RestoreOutput,
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

/// `rdmaprep status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

/// Which NICs: flags before variables before the config file's `[select]` table. Empty variables count as unset,
/// except that an empty exclusion regex excludes nothing.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Selection")]
pub struct SelectArgs {
    /// Only these netdevs (comma- or space-separated). Overrides --exclude, never the guard of uplinks and of the
    /// bootstrap interface. On a machine without any RDMA device the named netdevs are taken as they are
    #[arg(long, env = "RDMA_IFACES", value_name = "NAMES")]
    pub ifaces: Vec<String>,
    /// Leave out netdevs whose name matches REGEX, with a warning for each; empty excludes none
    /// [default: ^eth[0-9]+$]
    #[arg(long, env = "RDMA_EXCLUDE_REGEX", value_name = "REGEX", allow_hyphen_values = true)]
    pub exclude: Option<String>,
    /// Only netdevs that the peer has, too: paste the last line of the peer's `prepare`
    #[arg(long, env = "RDMA_PEER_IFACES", value_name = "NAMES")]
    pub peer_ifaces: Vec<String>,
    /// Never take the interface that owns this address: the job's bootstrap runs over it
    #[arg(long, env = "LOCAL_IP", value_name = "ADDRESS")]
    pub bootstrap_address: Option<String>,
    /// Never take the interface that leads to this address: the job's master, or the peer
    #[arg(long, env = "REMOTE_IP", value_name = "ADDRESS")]
    pub peer_address: Option<String>,
    /// Take an uplink or the bootstrap interface, if --ifaces names it as well: the host may lose its network
    #[arg(long, env = "ALLOW_BOOTSTRAP_RDMA_IFACE", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    pub allow_bootstrap_iface: Option<String>,
    /// A NIC without an address of the wanted family is an error instead of being left out (variable: 0)
    #[arg(long = "no-auto-skip", env = "RDMA_AUTO_SKIP_NO_IPV4", num_args = 0, default_missing_value = "0")]
    pub auto_skip: Option<String>,
    /// Which addresses count, for "has an address" and for the GID: 4, 6 or any [default: 4]
    #[arg(long, env = "RDMAPREP_FAMILY", value_name = "FAMILY")]
    pub family: Option<String>,
    /// Prepare InfiniBand HCAs as well: device nodes and NCCL_IB_HCA, no move. An IPoIB netdev moves only if --ifaces
    /// names it
    #[arg(long, env = "RDMAPREP_IB", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    pub ib: Option<String>,
    /// Take NICs with addresses of finite lifetime (DHCP, SLAAC) and make those permanent inside: nobody renews them
    /// there
    #[arg(long, env = "RDMAPREP_FREEZE_LIFETIMES", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    pub freeze_lifetimes: Option<String>,
    /// How the NICs answer ARP inside: strict (2/1/1/1, and where NICs share a subnet a routing table with rules for each),
    /// loose (2/1/0/2, no tables), auto (strict, or loose where `rail_tables` of the config file, by default 29000-29255,
    /// leaves no number for a table), off (as the kernel does), or values of arp_announce/arp_ignore/arp_filter/rp_filter
    /// [default: auto]
    #[arg(long, env = "RDMAPREP_ARP_PROFILE", value_name = "PROFILE")]
    pub arp_profile: Option<String>,
    /// What the container's /sys shows: auto, live (the kernel's, without the other NICs), snapshot (a tree of files, for
    /// sandboxes with a kernel of their own), off (all) [default: auto]
    #[arg(long, env = "RDMAPREP_SYSFS", value_name = "MODE")]
    pub sysfs: Option<String>,
    /// Set NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS, NCCL_DEBUG_FILE, NCCL_TOPO_DUMP_FILE and runsc's debug log and strace;
    /// each one that you set wins. It costs: strace slows a sandbox 5 to 10 times
    #[arg(long, env = "DEBUG_ALL", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    pub debug_all: Option<String>,
    /// Give the container a topology file of this host for NCCL_TOPO_FILE, mounted by its config.json
    /// [default: only where its /sys cannot show where its NICs are; never on EFA, nor over a file that is set]
    #[arg(long, env = "RDMAPREP_TOPO", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    pub topo: Option<String>,
    /// A topology file for NCCL_TOPO_FILE, used if it exists
    #[arg(long, env = "NCCL_TOPO_FILE", value_name = "FILE")]
    pub nccl_topo: Option<String>,
    /// Give the container no NCCL_TOPO_FILE, and do not warn about it (variable: 0)
    #[arg(long = "no-nccl-topo", env = "INCLUDE_NCCL_TOPO", num_args = 0, default_missing_value = "0")]
    pub include_nccl_topo: Option<String>,
}

impl Cli {
    /// Reads a command line and the environment. [`complaint`] tells an error from a wish for help.
    pub fn read<I, T>(args: I) -> Result<Cli, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString> + Clone,
    {
        Cli::from_arg_matches(&command().try_get_matches_from(args)?)
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
    let line = |f: Fault| format!("\n  {}  {}", f.code(), f.meaning());
    Fault::ALL.into_iter().map(line).fold("Exit codes:\n  0  done".to_owned(), |text, line| text + &line)
}
