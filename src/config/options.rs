//! Options that more than one command has: where things are, which NICs, and what their containers get with them.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Result, anyhow};
use clap::{ArgAction, Args};
use rdma_model::arp::ArpChoice;
use rdma_model::ids::{HcaName, IfName};
use rdma_model::values::{Family, GidTimeout};
use serde::{Deserialize, Deserializer};

use crate::config::pattern::Exclusion;
use crate::config::sysfs_mode::SysfsMode;

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

/// Which NICs, and what their containers get: each option once, as a flag, a variable and a key of the config file's `[select]`.
/// [`SelectArgs`] holds what a command line says of them, and [`SelectOptions::merge`] lays that over the file.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[command(next_help_heading = "Selection")]
#[group(skip)]
#[serde(deny_unknown_fields, default)]
pub struct SelectOptions {
    /// Only these netdevs (comma- or space-separated). Overrides --exclude, never the guard of uplinks and of the
    /// bootstrap interface. On a machine without any RDMA device the named netdevs are taken as they are
    #[arg(long, env = "RDMA_IFACES", value_name = "NAMES")]
    #[arg(value_parser = names::<IfName>, action = ArgAction::Append)]
    pub ifaces: Names<IfName>,
    /// Only NICs of these RDMA devices (comma- or space-separated), InfiniBand HCAs with --ib. Overrides --exclude
    #[arg(long, env = "RDMA_HCA", value_name = "NAMES")]
    #[arg(value_parser = names::<HcaName>, action = ArgAction::Append)]
    pub hca: Names<HcaName>,
    /// Leave out netdevs, and HCAs that have none, whose name matches REGEX, with a warning for each; empty excludes none
    /// [default: ^eth[0-9]+$]
    #[arg(long, env = "RDMA_EXCLUDE_REGEX", value_name = "REGEX", allow_hyphen_values = true)]
    pub exclude: Exclusion,
    /// Only netdevs that the peer has, too: paste the last line of the peer's `prepare`
    #[arg(long, env = "RDMA_PEER_IFACES", value_name = "NAMES")]
    #[arg(value_parser = names::<IfName>, action = ArgAction::Append)]
    pub peer_ifaces: Names<IfName>,
    /// Never take the interface that owns this address: the job's bootstrap runs over it
    #[arg(long, env = "LOCAL_IP", value_name = "ADDRESS")]
    #[arg(value_parser = address)]
    #[serde(deserialize_with = "canonical")]
    pub bootstrap_address: Option<IpAddr>,
    /// Never take the interface that leads to this address: the job's master, or the peer
    #[arg(long, env = "REMOTE_IP", value_name = "ADDRESS")]
    #[arg(value_parser = address)]
    #[serde(deserialize_with = "canonical")]
    pub peer_address: Option<IpAddr>,
    /// Take an uplink or the bootstrap interface, if --ifaces names it as well: the host may lose its network
    #[arg(long, env = "ALLOW_BOOTSTRAP_RDMA_IFACE", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(action = ArgAction::Set, value_parser = boolean)]
    pub allow_bootstrap_iface: bool,
    /// A NIC without an address of the wanted family is an error instead of being left out (variable: 0)
    #[arg(long, env = "RDMA_AUTO_SKIP_NO_IPV4", num_args = 0, default_missing_value = "0")]
    #[arg(action = ArgAction::Set, value_parser = negation)]
    #[serde(rename = "auto_skip_no_ipv4", deserialize_with = "negated")]
    pub no_auto_skip: bool,
    /// Which addresses count, for "has an address" and for the GID: 4, 6 or any [default: 4]
    #[arg(long, env = "RDMAPREP_FAMILY", value_name = "FAMILY")]
    pub family: Family,
    /// Prepare InfiniBand HCAs as well: device nodes and NCCL_IB_HCA, no move. An IPoIB netdev moves only if --ifaces
    /// names it
    #[arg(long, env = "RDMAPREP_IB", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(action = ArgAction::Set, value_parser = boolean)]
    pub ib: bool,
    /// Take NICs with addresses of finite lifetime (DHCP, SLAAC) and make those permanent inside: nobody renews them
    /// there
    #[arg(long, env = "RDMAPREP_FREEZE_LIFETIMES", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(action = ArgAction::Set, value_parser = boolean)]
    pub freeze_lifetimes: bool,
    /// How the NICs answer ARP inside: strict (2/1/1/1, and where NICs share a subnet or a destination, or have a default
    /// route, a routing table with rules for each), loose (2/1/0/2, no tables), auto (strict, or loose where `rail_tables` of
    /// the config file, by default 29000-29255, leaves no number for a table), off (as the kernel does), or values of
    /// arp_announce/arp_ignore/arp_filter/rp_filter [default: auto]
    #[arg(long, env = "RDMAPREP_ARP_PROFILE", value_name = "PROFILE")]
    pub arp_profile: ArpChoice,
    /// How many seconds a port that is ACTIVE inside may take to show the RoCE v2 GID of its NIC's address, within the
    /// hook's own timeout; without it the container does not start [default: 5]
    #[arg(long, env = "RDMAPREP_GID_TIMEOUT", value_name = "SECONDS")]
    pub gid_timeout: GidTimeout,
    /// Bring the default route that the NICs have in the host's main table along, per family the one with the lowest metric,
    /// where the container has none when the hook runs. Without this flag none comes along: a rail's own default route
    /// serves in its own table, for what is sent from its addresses
    #[arg(long, env = "RDMAPREP_DEFAULT_ROUTE", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(action = ArgAction::Set, value_parser = boolean)]
    pub default_route: bool,
    /// What the container's /sys shows: auto, live (the kernel's, without the other NICs), snapshot (a tree of files, for
    /// sandboxes with a kernel of their own), off (all) [default: auto]
    #[arg(long, env = "RDMAPREP_SYSFS", value_name = "MODE")]
    #[arg(value_parser = SysfsMode::from_str)]
    pub sysfs: SysfsMode,
    /// Set NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS, NCCL_DEBUG_FILE, NCCL_TOPO_DUMP_FILE and runsc's debug log and strace;
    /// each one that you set wins. It costs: strace slows a sandbox 5 to 10 times
    #[arg(long, env = "DEBUG_ALL", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(action = ArgAction::Set, value_parser = boolean)]
    pub debug_all: bool,
    /// Give the container a topology file of this host for NCCL_TOPO_FILE, mounted by its config.json
    /// [default: only where its /sys cannot show where its NICs are; never on EFA, nor over a file that is set]
    #[arg(long, env = "RDMAPREP_TOPO", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(action = ArgAction::Set, value_parser = boolean)]
    pub topo: Option<bool>,
    /// A topology file for NCCL_TOPO_FILE, used if it exists
    #[arg(long, env = "NCCL_TOPO_FILE", value_name = "FILE")]
    pub nccl_topo: Option<PathBuf>,
    /// Give the container no NCCL_TOPO_FILE, and do not warn about it (variable: 0)
    #[arg(long, env = "INCLUDE_NCCL_TOPO", num_args = 0, default_missing_value = "0")]
    #[arg(action = ArgAction::Set, value_parser = negation)]
    #[serde(rename = "include_nccl_topo", deserialize_with = "negated")]
    pub no_nccl_topo: bool,
}

/// Names in a list, each once.
pub type Names<T> = Vec<T>;

/// Names separated by commas or white space, each once. A container's author may write as many as a state has room for.
pub fn names<T: FromStr>(text: &str) -> Result<Names<T>, T::Err> {
    let mut seen = HashSet::new();
    let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    words.filter(|word| seen.insert(*word)).map(str::parse).collect()
}

/// 1/0, true/false, yes/no, in any case.
pub fn boolean(text: &str) -> Result<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" => Ok(true),
        "0" | "false" | "no" => Ok(false),
        _ => Err(anyhow!("{text:?} is none of 1, 0, true, false, yes, no")),
    }
}

/// The word of a flag's or a variable's other half: `--no-nccl-topo` is `INCLUDE_NCCL_TOPO=0`.
fn negation(text: &str) -> Result<bool> {
    boolean(text).map(|yes| !yes)
}

fn negated<'de, D: Deserializer<'de>>(file: D) -> Result<bool, D::Error> {
    bool::deserialize(file).map(|yes| !yes)
}

/// An address; an IPv4-mapped one is the IPv4 address that interfaces own.
fn address(text: &str) -> Result<IpAddr> {
    let address: IpAddr = text.parse().map_err(|_| anyhow!("{text:?} is no IP address"))?;
    Ok(address.to_canonical())
}

fn canonical<'de, D: Deserializer<'de>>(file: D) -> Result<Option<IpAddr>, D::Error> {
    IpAddr::deserialize(file).map(|address| Some(address.to_canonical()))
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
