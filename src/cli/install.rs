//! `rdmaprep install` and `rdmaprep uninstall`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};

/// `rdmaprep install`.
#[derive(Debug, Default, Args)]
pub struct InstallArgs {
    /// Who is told.
    #[command(flatten)]
    pub targets: TargetArgs,
    /// Where hooks and units find the program. Containers that run keep that path: do not move it while NICs are away
    /// [default: /usr/bin/rdmaprep if it is there, else /usr/local/bin/rdmaprep]
    #[arg(long, env = "RDMAPREP_PROGRAM", value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Make rdmaprep's the runtime of all Docker containers, not just of those with --runtime rdmaprep
    #[arg(long, env = "RDMAPREP_DEFAULT_RUNTIME", value_parser = BoolishValueParser::new())]
    pub default_runtime: bool,
    /// With --network-managers: the netdevs (comma- or space-separated) that nobody but rdmaprep and you configures. What
    /// NetworkManager or systemd-networkd give an address at boot, they must keep
    // Not RDMA_IFACES: who exports that for a job must not lose addresses at the next boot.
    #[arg(long, env = "RDMAPREP_KEEP_OFF", value_name = "NAMES")]
    pub ifaces: Vec<String>,
    /// podman and CRI-O: containers whose command matches REGEX opt in without an annotation
    #[arg(long, env = "RDMAPREP_COMMAND", value_name = "REGEX")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub command: Option<String>,
    /// The plan of those containers
    #[arg(long, env = "RDMAPREP_PLAN", value_name = "NAME", default_value = "default")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub plan: String,
    /// With --systemd: units that keep /etc/cdi/rdmaprep.json, by which engines know rails as devices, as the rails are. Without
    /// this flag, too, where that file is there
    #[arg(long, env = "RDMAPREP_CDI", value_parser = BoolishValueParser::new())]
    pub cdi: bool,
    /// Which tree, and how to tell.
    #[command(flatten)]
    pub tree: TreeArgs,
}

/// Who is told.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Targets (default: those that are found)")]
pub struct TargetArgs {
    /// All of these
    #[arg(long, env = "RDMAPREP_ALL", value_parser = BoolishValueParser::new())]
    pub all: bool,
    /// podman: hook definitions, and `rdmaprep spec` before the runtime reads config.json
    #[arg(long, env = "RDMAPREP_PODMAN", value_parser = BoolishValueParser::new())]
    pub podman: bool,
    /// CRI-O: hook definitions
    #[arg(long, env = "RDMAPREP_CRIO", value_parser = BoolishValueParser::new())]
    pub crio: bool,
    /// Docker: the runtime `rdmaprep` in daemon.json
    #[arg(long, env = "RDMAPREP_DOCKER", value_parser = BoolishValueParser::new())]
    pub docker: bool,
    /// containerd: the runtime `rdmaprep` of the CRI plugin, for a RuntimeClass with that handler
    #[arg(long, env = "RDMAPREP_CONTAINERD", value_parser = BoolishValueParser::new())]
    pub containerd: bool,
    /// systemd: a timer and a boot unit that bring NICs home when nobody else does
    #[arg(long, env = "RDMAPREP_SYSTEMD", value_parser = BoolishValueParser::new())]
    pub systemd: bool,
    /// NetworkManager, systemd-networkd and udev: keep them off the NICs of --ifaces, and off routes and rules that come home
    #[arg(long, env = "RDMAPREP_NETWORK_MANAGERS", value_parser = BoolishValueParser::new())]
    pub network_managers: bool,
}

/// `rdmaprep uninstall`.
#[derive(Debug, Default, Args)]
pub struct UninstallArgs {
    /// What somebody has changed since stays, and is told, but is no failure: a package that goes cannot wait for that
    #[arg(long, env = "RDMAPREP_LEAVE_CHANGED", value_parser = BoolishValueParser::new())]
    pub leave_changed: bool,
    /// Which tree, and how to tell.
    #[command(flatten)]
    pub tree: TreeArgs,
}

/// Which tree, and how to tell.
#[derive(Debug, Default, Args)]
pub struct TreeArgs {
    /// Change the files below DIR instead of the host's: an image, or a package's tree
    #[arg(long, env = "RDMAPREP_ROOT", value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Change nothing; show each file's diff
    #[arg(long, env = "RDMAPREP_DRY_RUN", value_parser = BoolishValueParser::new())]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long, env = "RDMAPREP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}
