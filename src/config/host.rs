//! What the host's administrator settled: the config file, the policy in it, and the types that its values have.

use crate::config::sysfs_mode::SysfsMode;
use rdma_model::arp::{ArpChoice, TABLES, TableRange};
use rdma_model::values::{GidTimeout, PlanName};

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::IfName;
use rdma_model::values::Family;
use regex::RegexBuilder;
use serde::Deserialize;

use crate::config::options::Global;
use crate::config::policy::{Ask, Policy};

/// The config file that is read unless `--config` names another; this one may be absent.
pub const CONFIG: &str = "/etc/rdmaprep/config.toml";
/// Netdevs that are left out unless asked for otherwise. Some machines call their fabric ethN, hence the warnings.
pub const EXCLUDE: &str = "^eth[0-9]+$";
/// Where plans, journals, reports, locks and pins live unless told otherwise.
pub const RUN: &str = "/run/rdmaprep";
/// Where records live unless told otherwise: they outlast a reboot, so that what it left unfinished is known.
pub const STATE: &str = "/var/lib/rdmaprep";
/// Where hooks write, since runtimes close or drop their stdout and stderr.
pub const HOOK_LOG: &str = "/var/log/rdmaprep.log";

/// What the host's administrator settled, for every container and command.
#[derive(Clone, Debug)]
pub struct Host {
    /// What may be moved, and what containers may ask for.
    pub policy: Policy,
    /// The plan of containers that did not opt in.
    pub plan: Option<PlanName>,
    /// Plans, journals and reports.
    pub state_dir: PathBuf,
    /// Locks and namespace pins.
    pub run_dir: PathBuf,
    /// How long to wait for another rdmaprep.
    pub lock_timeout: Duration,
    /// How long a hook waits for NICs that other containers hold.
    pub hook_wait: Duration,
    /// Where hooks write a line each; empty: nowhere.
    pub hook_log: PathBuf,
    /// TableRange of the routing tables that rails get inside, and of their rules' priorities.
    pub rail_tables: TableRange,
}

/// A regex on interface names. Matching takes linear time and the compiled size is bounded, so that a container's
/// annotation cannot keep a hook busy.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Pattern(regex::Regex);

impl Pattern {
    /// Whether it matches anywhere in the name; anchors are the author's business.
    pub fn matches(&self, name: &str) -> bool {
        self.0.is_match(name)
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl FromStr for Pattern {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        const SIZE: usize = 1 << 20;
        ensure!(s.len() <= 4096, "a regex of {} bytes is too long (4096)", s.len());
        match RegexBuilder::new(s).size_limit(SIZE).dfa_size_limit(SIZE).build() {
            Ok(regex) => Ok(Pattern(regex)),
            Err(e) => {
                // The crate draws the place over several lines; the last one says what is wrong.
                let text = e.to_string();
                let reason = text.lines().last().unwrap_or_default();
                bail!("{s:?} does not compile: {}", reason.strip_prefix("error: ").unwrap_or(reason))
            }
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = anyhow::Error;
    fn try_from(s: String) -> Result<Self> {
        s.parse()
    }
}

/// The config file. `examples/config.toml` tells every key to who writes one.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Regexes of names of netdevs that may be taken; empty: all. Of an HCA without a netdev its own name counts.
    pub allow: Vec<Pattern>,
    /// Regexes of names that may not; wins over what is allowed.
    pub deny: Vec<Pattern>,
    /// The same for PCI addresses, `0000:1a:00.0`: those of the NIC, of what it sits on, and of a bond's members.
    pub allow_pci: Vec<Pattern>,
    /// Those that may not.
    pub deny_pci: Vec<Pattern>,
    /// The same for drivers: those of the netdev and of the HCA.
    pub allow_drivers: Vec<Pattern>,
    /// Those that may not.
    pub deny_drivers: Vec<Pattern>,
    /// The annotations of containers that count; absent: all. A container with another one of ours is refused.
    pub annotations: Option<Vec<Ask>>,
    /// The most NICs that a container gets; absent: any number.
    pub max_nics: Option<usize>,
    /// The plan of containers that did not opt in.
    pub plan: Option<PlanName>,
    /// See [`Global::state_dir`].
    pub state_dir: Option<PathBuf>,
    /// See [`Global::run_dir`].
    pub run_dir: Option<PathBuf>,
    /// How long to wait for another rdmaprep.
    pub lock_timeout_ms: Option<u64>,
    /// How long a hook waits, within its deadline, for NICs that other containers hold.
    pub hook_wait_s: Option<u32>,
    /// Where hooks write; an empty text: nowhere.
    pub hook_log: Option<PathBuf>,
    /// `FIRST-LAST`: numbers of the routing tables that rails get in a container, and of their rules' priorities, as far as
    /// the container does not use them.
    pub rail_tables: Option<TableRange>,
    /// The runtime behind `rdmaprep-runtime`: a name, or an absolute path; see [`crate::shim::Own`].
    pub runtime: Option<String>,
    /// Defaults of the selection.
    pub select: SelectConfig,
}

/// The config file's `[select]`: the flags of the same name, for hooks whose environment was cleared.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)]
pub struct SelectConfig {
    pub ifaces: Vec<IfName>,
    pub exclude: Option<String>,
    pub peer_ifaces: Vec<IfName>,
    pub bootstrap_address: Option<IpAddr>,
    pub peer_address: Option<IpAddr>,
    pub allow_bootstrap_iface: Option<bool>,
    pub auto_skip_no_ipv4: Option<bool>,
    pub family: Option<Family>,
    pub ib: Option<bool>,
    pub freeze_lifetimes: Option<bool>,
    pub arp_profile: Option<ArpChoice>,
    pub gid_timeout: Option<GidTimeout>,
    pub default_route: Option<bool>,
    pub sysfs: Option<SysfsMode>,
    pub debug_all: Option<bool>,
    pub topo: Option<bool>,
    pub nccl_topo: Option<PathBuf>,
    pub include_nccl_topo: Option<bool>,
}

impl Config {
    /// Of a text that cannot be used, what says where records are: each key that can be read by itself.
    pub fn folders(text: &str) -> Config {
        let table: toml::Table = text.parse().unwrap_or_default();
        let path = |key: &str| table.get(key).and_then(toml::Value::as_str).map(PathBuf::from);
        Config {
            state_dir: path("state_dir"),
            run_dir: path("run_dir"),
            hook_log: path("hook_log"),
            ..Config::default()
        }
    }

    /// Reads the file's text.
    pub fn parse(text: &str) -> Result<Config> {
        toml::from_str(text).map_err(|e| {
            let line = e.span().and_then(|s| text.get(..s.start)).map_or(1, |before| before.matches('\n').count() + 1);
            ErrorClass::Usage.error(format!("config file, line {line}: {}", e.message().replace('\n', ", ")))
        })
    }
}

impl Host {
    /// Flags before the file before the defaults.
    pub fn new(global: &Global, config: &Config) -> Host {
        let dir = |flag: &Option<PathBuf>, file: &Option<PathBuf>, default: &str| {
            flag.clone().or_else(|| file.clone()).unwrap_or_else(|| default.into())
        };
        Host {
            policy: Policy::from_config(config),
            plan: config.plan.clone(),
            state_dir: dir(&global.state_dir, &config.state_dir, STATE),
            run_dir: dir(&global.run_dir, &config.run_dir, RUN),
            lock_timeout: Duration::from_millis(config.lock_timeout_ms.unwrap_or(5000)),
            hook_wait: Duration::from_secs(config.hook_wait_s.unwrap_or(0).into()),
            hook_log: config.hook_log.clone().unwrap_or_else(|| HOOK_LOG.into()),
            rail_tables: config.rail_tables.unwrap_or(TABLES),
        }
    }
}
