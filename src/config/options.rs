//! Options that more than one command has: where things are, which NICs, and what their containers
//! get with them.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Result, anyhow};
use clap::{ArgAction, Args};
use nccl_rules::version::Version;
use rdma_model::arp::ArpChoice;
use rdma_model::ids::IfName;
use rdma_model::values::{Family, GidTimeout};
use serde::{Deserialize, Deserializer};

use crate::config::hca_selector::HcaSelector;
use crate::config::libraries::Libraries;
use crate::config::network_mode::NetworkMode;
use crate::config::pattern::Exclusion;
use crate::config::sysfs_mode::SysfsMode;

/// The flags that every command has.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Config file [default: /etc/rdmaprep/config.toml]
    ///
    /// If the flag is given, the file must exist.
    #[arg(long, global = true, env = "RDMAPREP_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What `install` edited [default: /var/lib/rdmaprep]
    #[arg(long, global = true, env = "RDMAPREP_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Plans, records, lock, pins [default: /run/rdmaprep]
    #[arg(long, global = true, env = "RDMAPREP_RUN_DIR", value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
}

/// Which NICs, and what their containers get: each option once, as a flag, a variable and a key of
/// the config file's `[select]`. `SelectArgs` holds what a command line says of them, and
/// [`SelectOptions::merge`] lays that over the file.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[command(next_help_heading = "Selection")]
#[group(skip)]
#[serde(deny_unknown_fields, default)]
pub struct SelectOptions {
    /// Take only these netdevs
    ///
    /// Names are separated by commas or spaces. Overrides --exclude, but never the protection of
    /// uplinks and of the bootstrap interface. On a host without RDMA devices the named netdevs are
    /// taken as they are.
    #[arg(long, env = "RDMA_IFACES", value_name = "NAMES")]
    #[arg(value_parser = names::<IfName>, action = ArgAction::Append)]
    pub ifaces: Names<IfName>,
    /// Take only NICs of these RDMA devices
    ///
    /// Each entry is a name (mlx5_0), a PCI address (17:00.0), a subnet that has a GID of it
    /// (fe80:0:0:1::/64), a rate (400G), or `all`; commas or spaces separate them. InfiniBand HCAs
    /// need --ib. Overrides --exclude.
    #[arg(long, env = "RDMA_HCA", value_name = "LIST")]
    #[arg(value_parser = names::<HcaSelector>, action = ArgAction::Append)]
    pub hca: Names<HcaSelector>,
    /// Leave out NICs of these RDMA devices
    ///
    /// A list as that of --hca, from which it takes away.
    #[arg(long, env = "RDMA_EXCLUDE_HCA", value_name = "LIST")]
    #[arg(value_parser = names::<HcaSelector>, action = ArgAction::Append)]
    pub exclude_hca: Names<HcaSelector>,
    /// Leave out NICs [default: ^eth[0-9]+$]
    ///
    /// REGEX matches names of netdevs, and of HCAs without a netdev. Each one left out gets a
    /// warning. An empty REGEX excludes none. --ifaces and --hca override it.
    #[arg(
        long,
        env = "RDMA_EXCLUDE_REGEX",
        value_name = "REGEX",
        allow_hyphen_values = true
    )]
    pub exclude: Exclusion,
    /// Take only netdevs that the peer has too
    ///
    /// Paste the last line of the peer's `prepare`.
    #[arg(long, env = "RDMA_PEER_IFACES", value_name = "NAMES")]
    #[arg(value_parser = names::<IfName>, action = ArgAction::Append)]
    pub peer_ifaces: Names<IfName>,
    /// Never take the NIC that has this address
    ///
    /// The job's bootstrap uses that NIC.
    #[arg(long, env = "LOCAL_IP", value_name = "ADDRESS")]
    #[arg(value_parser = address)]
    #[serde(deserialize_with = "canonical")]
    pub bootstrap_address: Option<IpAddr>,
    /// Never take the NIC that leads to this address
    ///
    /// The address is that of the job's master, or of the peer.
    #[arg(long, env = "REMOTE_IP", value_name = "ADDRESS")]
    #[arg(value_parser = address)]
    #[serde(deserialize_with = "canonical")]
    pub peer_address: Option<IpAddr>,
    /// Take uplinks named by --ifaces
    ///
    /// And the bootstrap interface. The host may lose its network.
    #[arg(long, env = "ALLOW_BOOTSTRAP_RDMA_IFACE", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(action = ArgAction::Set, value_parser = boolean)]
    pub allow_bootstrap_iface: bool,
    /// Fail on NICs without an address
    ///
    /// Without this flag they are left out. An address counts if it is of --family.
    #[arg(
        long,
        env = "RDMA_AUTO_SKIP_NO_IPV4",
        num_args = 0,
        default_missing_value = "0"
    )]
    #[arg(action = ArgAction::Set, value_parser = negation)]
    #[serde(rename = "auto_skip_no_ipv4", deserialize_with = "negated")]
    pub no_auto_skip: bool,
    /// Addresses: 4, 6 or any [default: 4]
    ///
    /// The addresses that count for "has an address" and for the GID.
    #[arg(long, env = "RDMAPREP_FAMILY", value_name = "FAMILY")]
    pub family: Family,
    /// Add InfiniBand HCAs, which are not moved
    ///
    /// They get device nodes and NCCL_IB_HCA. An IPoIB netdev moves only if --ifaces names it.
    #[arg(long, env = "RDMAPREP_IB", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(action = ArgAction::Set, value_parser = boolean)]
    pub ib: bool,
    /// Make DHCP addresses permanent
    ///
    /// Takes NICs whose addresses have a finite lifetime (DHCP, SLAAC), and makes these addresses
    /// permanent in the container, where no DHCP client or router renews them.
    #[arg(long, env = "RDMAPREP_FREEZE_LIFETIMES", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(action = ArgAction::Set, value_parser = boolean)]
    pub freeze_lifetimes: bool,
    /// How NICs answer ARP [default: auto]
    ///
    /// strict: 2/1/1/1, and where NICs share a subnet or a destination, or have a default route, a
    /// routing table with rules for each. loose: 2/1/0/2, no tables. auto: strict, or loose if
    /// `rail_tables` of the config file (default 29000-29255) has no free table number. off: as the
    /// kernel does, rp_filter as on the host. Or values of
    /// arp_announce/arp_ignore/arp_filter/rp_filter.
    #[arg(long, env = "RDMAPREP_ARP_PROFILE", value_name = "PROFILE")]
    pub arp_profile: ArpChoice,
    /// Time limit for GIDs [default: 5]
    ///
    /// How long an ACTIVE port may take in the container to show the RoCE v2 GID of its NIC's
    /// address, within the hook's own timeout. If the GID stays missing, the container does not
    /// start.
    #[arg(long, env = "RDMAPREP_GID_TIMEOUT", value_name = "SECONDS")]
    pub gid_timeout: GidTimeout,
    /// Move the NICs' default route too
    ///
    /// Per family, the one with the lowest metric in the host's main table, if the container has
    /// none when the hook runs. With or without this flag, a rail's own default route is in the
    /// rail's table, for packets from its addresses.
    #[arg(long, env = "RDMAPREP_DEFAULT_ROUTE", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(action = ArgAction::Set, value_parser = boolean)]
    pub default_route: bool,
    /// Network: own or host [default: own]
    ///
    /// own: a network namespace, into which the NICs move. host: the host's, where nothing moves:
    /// such a container gets device nodes, RLIMIT_MEMLOCK, /sys and settings. `host_network` of the
    /// config file has to allow that.
    #[arg(long, env = "RDMAPREP_NETWORK_MODE", value_name = "MODE")]
    pub network_mode: NetworkMode,
    /// What /sys shows [default: auto]
    ///
    /// live: the kernel's, without the other NICs. snapshot: a tree of files, for sandboxes with a
    /// kernel of their own. off: all of the host's. proxy: that of gVisor's RDMA proxy (runsc
    /// --rdmaproxy), which must be able to serve the NICs; proxy=warn: the same, with a warning
    /// where it is not. auto: what the container can have.
    #[arg(long, env = "RDMAPREP_SYSFS", value_name = "MODE")]
    #[arg(value_parser = SysfsMode::from_str)]
    pub sysfs: SysfsMode,
    /// Name the container in its /etc/hosts
    ///
    /// By its address for NCCL's bootstrap, where the engine gave its host name no address that
    /// peers reach, as with --network none. A file of the container's own lies over the one that is
    /// there.
    #[arg(long, env = "RDMAPREP_HOSTS_ENTRY", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(action = ArgAction::Set, value_parser = boolean)]
    pub hosts_entry: bool,
    /// Make NCCL and runsc write debug logs
    ///
    /// Sets NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS, NCCL_DEBUG_FILE, NCCL_TOPO_DUMP_FILE and runsc's
    /// debug log and strace; a value that you set wins. strace slows a sandbox 5 to 10 times.
    #[arg(long, env = "DEBUG_ALL", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(action = ArgAction::Set, value_parser = boolean)]
    pub debug_all: bool,
    /// Libraries that get settings
    ///
    /// Of nccl, gloo, ucx, openmpi, nvshmem, mscclpp, mooncake, libfabric; or `all`. By default:
    /// nccl,gloo. docs/libraries.md has the variables. One that the container sets wins.
    #[arg(long, env = "RDMAPREP_LIBRARIES", value_name = "LIST")]
    #[arg(action = ArgAction::Append)]
    pub libraries: Libraries,
    /// Release of NCCL in the containers
    ///
    /// Settings are judged by it, and soft-RoCE HCAs on which it crashes are not in NCCL_IB_HCA.
    /// Without this flag the newest release counts; what the image says of its own (NCCL_VERSION)
    /// is worth a warning.
    #[arg(long, env = "RDMAPREP_NCCL_VERSION", value_name = "VERSION")]
    pub nccl_version: Option<Version>,
    /// Mount a topology file for NCCL_TOPO_FILE
    ///
    /// By default only if the container's /sys cannot show where its NICs are; never on EFA, nor
    /// over a file that is set. config.json has the mount.
    #[arg(long, env = "RDMAPREP_TOPO", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(action = ArgAction::Set, value_parser = boolean)]
    pub topo: Option<bool>,
    /// Set NCCL_TOPO_FILE, if FILE exists
    #[arg(long, env = "NCCL_TOPO_FILE", value_name = "FILE")]
    pub nccl_topo: Option<PathBuf>,
    /// Leave NCCL_TOPO_FILE unset
    ///
    /// And do not warn about it.
    #[arg(
        long,
        env = "INCLUDE_NCCL_TOPO",
        num_args = 0,
        default_missing_value = "0"
    )]
    #[arg(action = ArgAction::Set, value_parser = negation)]
    #[serde(rename = "include_nccl_topo", deserialize_with = "negated")]
    pub no_nccl_topo: bool,
}

/// Names in a list, each once.
pub type Names<T> = Vec<T>;

/// Names separated by commas or white space, each once. A container's author may write as many as a
/// state has room for.
pub fn names<T: FromStr>(text: &str) -> Result<Names<T>, T::Err> {
    let mut seen = HashSet::new();
    let words = text
        .split(|c: char| c == ',' || c.is_whitespace())
        .filter(|word| !word.is_empty());
    words
        .filter(|word| seen.insert(*word))
        .map(str::parse)
        .collect()
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
    let address: IpAddr = text
        .parse()
        .map_err(|_| anyhow!("{text:?} is no IP address"))?;
    Ok(address.to_canonical())
}

fn canonical<'de, D: Deserializer<'de>>(file: D) -> Result<Option<IpAddr>, D::Error> {
    IpAddr::deserialize(file).map(|address| Some(address.to_canonical()))
}

/// Variables of the host's own environment that become a container's; the caller need not pass any
/// other.
pub const HOST_ENV: &[&str] = &[
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_PKEY",
    "NCCL_IB_SL",
    "NCCL_IB_TC",
    "NCCL_IB_TIMEOUT",
    "NCCL_IB_RETRY_CNT",
    "NCCL_IB_ADDR_FAMILY",
    "NCCL_IB_ADDR_RANGE",
    "NCCL_IB_ROCE_VERSION_NUM",
    "NCCL_CROSS_NIC",
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
