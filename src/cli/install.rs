use std::path::PathBuf;

use clap::Args;
use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};

#[derive(Debug, Default, Args)]
pub struct InstallArgs {
    /// Path of rdmaprep [default: /usr/bin or /usr/local/bin]
    // Running containers keep it.
    #[arg(long, env = "RDMAPREP_PROGRAM", value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Make rdmaprep Docker's default runtime
    #[arg(long, env = "RDMAPREP_DEFAULT_RUNTIME", value_parser = BoolishValueParser::new())]
    pub default_runtime: bool,
    /// NICs that network managers must leave alone
    // Not RDMA_IFACES: exporting that for a job must not lose addresses at the next boot.
    #[arg(long, env = "RDMAPREP_KEEP_OFF", value_name = "NAMES")]
    pub ifaces: Vec<String>,
    /// podman, CRI-O: matching commands opt in
    #[arg(long, env = "RDMAPREP_COMMAND", value_name = "REGEX")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub command: Option<String>,
    /// Plan of those containers
    #[arg(
        long,
        env = "RDMAPREP_PLAN",
        value_name = "NAME",
        default_value = "default"
    )]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub plan: String,
    /// systemd: units that update /etc/cdi/rdmaprep.json
    // They do so without this flag, too, if that file exists.
    #[arg(long, env = "RDMAPREP_CDI", value_parser = BoolishValueParser::new())]
    pub cdi: bool,
    /// systemd: a timer that writes metrics to this file
    ///
    /// node_exporter reads a file whose name ends with .prom.
    #[arg(long, env = "RDMAPREP_METRICS_FILE", value_name = "FILE")]
    pub textfile: Option<PathBuf>,
    #[command(flatten)]
    pub tree: TreeArgs,
    // The last: its heading would be that of the options after it.
    #[command(flatten)]
    pub targets: TargetArgs,
}

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Targets (default: those that are found)")]
pub struct TargetArgs {
    /// All targets
    #[arg(long, env = "RDMAPREP_ALL", value_parser = BoolishValueParser::new())]
    pub all: bool,
    /// podman: hook definitions and a precreate hook
    #[arg(long, env = "RDMAPREP_PODMAN", value_parser = BoolishValueParser::new())]
    pub podman: bool,
    /// CRI-O: its runtime `rdmaprep`, and hooks; --systemd
    #[arg(long, env = "RDMAPREP_CRIO", value_parser = BoolishValueParser::new())]
    pub crio: bool,
    /// Docker: the runtime `rdmaprep` in daemon.json
    #[arg(long, env = "RDMAPREP_DOCKER", value_parser = BoolishValueParser::new())]
    pub docker: bool,
    /// containerd: CRI's runtime `rdmaprep`; --systemd
    #[arg(long, env = "RDMAPREP_CONTAINERD", value_parser = BoolishValueParser::new())]
    pub containerd: bool,
    /// systemd: a timer that restores NICs of the killed
    #[arg(long, env = "RDMAPREP_SYSTEMD", value_parser = BoolishValueParser::new())]
    pub systemd: bool,
    /// NetworkManager, networkd, udev: see --ifaces
    #[arg(long, env = "RDMAPREP_NETWORK_MANAGERS", value_parser = BoolishValueParser::new())]
    pub network_managers: bool,
}

#[derive(Debug, Default, Args)]
pub struct UninstallArgs {
    /// Leave later edits for good, without failing
    // A package's removal cannot wait for an administrator.
    #[arg(long, env = "RDMAPREP_LEAVE_CHANGED", value_parser = BoolishValueParser::new())]
    pub leave_changed: bool,
    #[command(flatten)]
    pub tree: TreeArgs,
}

#[derive(Debug, Default, Args)]
pub struct TreeArgs {
    /// Change files below DIR: an image or a package
    #[arg(long, env = "RDMAPREP_ROOT", value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Change nothing; show each file's diff
    #[arg(long, env = "RDMAPREP_DRY_RUN", value_parser = BoolishValueParser::new())]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}
