//! Options that more than one command has: where things are, which NICs, and what their containers get with them.

use std::path::PathBuf;

use clap::Args;

use crate::config::request::boolean;

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
    /// How the NICs answer ARP inside: strict (2/1/1/1, and where NICs share a subnet or a destination, or have a default
    /// route, a routing table with rules for each), loose (2/1/0/2, no tables), auto (strict, or loose where `rail_tables` of
    /// the config file, by default 29000-29255, leaves no number for a table), off (as the kernel does), or values of
    /// arp_announce/arp_ignore/arp_filter/rp_filter [default: auto]
    #[arg(long, env = "RDMAPREP_ARP_PROFILE", value_name = "PROFILE")]
    pub arp_profile: Option<String>,
    /// How many seconds a port that is ACTIVE inside may take to show the RoCE v2 GID of its NIC's address, within the
    /// hook's own timeout; without it the container does not start [default: 5]
    #[arg(long, env = "RDMAPREP_GID_TIMEOUT", value_name = "SECONDS")]
    pub gid_timeout: Option<String>,
    /// Bring the default route that the NICs have in the host's main table along, per family the one with the lowest metric,
    /// where the container has none when the hook runs. Without this flag none comes along: a rail's own default route
    /// serves in its own table, for what is sent from its addresses
    #[arg(long, env = "RDMAPREP_DEFAULT_ROUTE", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    pub default_route: Option<String>,
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

impl SelectArgs {
    /// The flags that say the same, wherever it was said: a hook may see nothing of our environment.
    pub fn flags(&self) -> Vec<String> {
        let list = |name: &str, words: &[String]| (!words.is_empty()).then(|| format!("--{name}={}", words.join(",")));
        let texts = [
            ("bootstrap-address", &self.bootstrap_address),
            ("peer-address", &self.peer_address),
            ("allow-bootstrap-iface", &self.allow_bootstrap_iface),
            ("family", &self.family),
            ("ib", &self.ib),
            ("freeze-lifetimes", &self.freeze_lifetimes),
            ("arp-profile", &self.arp_profile),
            ("gid-timeout", &self.gid_timeout),
            ("default-route", &self.default_route),
            ("sysfs", &self.sysfs),
            ("debug-all", &self.debug_all),
            ("topo", &self.topo),
            ("nccl-topo", &self.nccl_topo),
        ];
        let text = |(name, value): (&str, &Option<String>)| {
            value.as_deref().filter(|value| !value.is_empty()).map(|value| format!("--{name}={value}"))
        };
        // These two have no word for their other half, which is the default.
        let halves = [("no-auto-skip", &self.auto_skip), ("no-nccl-topo", &self.include_nccl_topo)];
        let half = |(name, value): (&str, &Option<String>)| {
            let no = value.as_deref().is_some_and(|value| matches!(boolean(value), Ok(false)));
            no.then(|| format!("--{name}"))
        };
        let lists = [list("ifaces", &self.ifaces), list("peer-ifaces", &self.peer_ifaces)];
        let exclude = self.exclude.as_ref().map(|regex| format!("--exclude={regex}"));
        let said = lists.into_iter().flatten().chain(exclude);
        said.chain(texts.into_iter().filter_map(text)).chain(halves.into_iter().filter_map(half)).collect()
    }
}

/// Variables of the host's own environment that become a container's; the caller need not pass any other.
pub const HOST_ENV: &[&str] = &[
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_PKEY",
    "NCCL_IB_SL",
    "NCCL_IB_TC",
    "NCCL_IB_TIMEOUT",
    "NCCL_IB_RETRY_CNT",
    "NCCL_IB_ADDR_FAMILY",
    "NCCL_IB_MERGE_VFS",
    "NCCL_IGNORE_NET_MISMATCH",
    "NCCL_DEBUG",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_DEBUG_FILE",
    "NCCL_TOPO_DUMP_FILE",
    "NCCL_TOPO_FILE",
    "RUNSC_DEBUG",
    "RUNSC_DEBUG_COMMAND",
    "RUNSC_STRACE",
    "RUNSC_STRACE_SYSCALLS",
    "RUNSC_STRACE_LOG_SIZE",
];
