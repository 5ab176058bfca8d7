//! What the host's administrator settled: the config file, the policy in it, and the types that its
//! values have.

use rdma_model::arp::{TABLES, TableRange};
use rdma_model::values::PlanName;

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::config::options::{Global, SelectOptions};
use crate::config::pattern::Pattern;
use crate::config::plans::ConfiguredPlan;
use crate::config::policy::{Ask, Lists, Policy};

/// The config file that is read unless `--config` names another; this one may be absent.
pub const CONFIG: &str = "/etc/rdmaprep/config.toml";
/// Where plans, records, reports, locks and pins are kept by default.
pub const RUN: &str = "/run/rdmaprep";
/// Where it is kept by default what `install` edited, and reports for which the run folder has no
/// room.
pub const STATE: &str = "/var/lib/rdmaprep";
/// Where hooks write, since runtimes close or drop their stdout and stderr.
pub const HOOK_LOG: &str = "/var/log/rdmaprep.log";

/// What the host's administrator settled, for every container and command.
#[derive(Clone, Debug)]
pub struct Host {
    pub policy: Policy,
    pub plan: Option<PlanName>,
    pub state_dir: PathBuf,
    pub run_dir: PathBuf,
    pub lock_timeout: Duration,
    pub hook_wait: Duration,
    /// Where hooks write a line each; empty: nowhere.
    pub hook_log: PathBuf,
    /// The routing tables that rails get inside, and the priorities of their rules.
    pub rail_tables: TableRange,
    /// Whether containers with NICs get an unlimited RLIMIT_MEMLOCK.
    pub lift_memlock: bool,
}

/// The config file. `examples/config.toml` describes every key.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Regexes of names of netdevs that may be taken; empty: all. Of an HCA without a netdev its
    /// own name counts.
    pub allow: Vec<Pattern>,
    /// Regexes of names that may not be taken; deny wins over allow, here and below.
    pub deny: Vec<Pattern>,
    /// Regexes of PCI addresses, `0000:1a:00.0`: those of the NIC, of what it sits on, and of a
    /// bond's members.
    pub allow_pci: Vec<Pattern>,
    pub deny_pci: Vec<Pattern>,
    pub allow_drivers: Vec<Pattern>,
    pub deny_drivers: Vec<Pattern>,
    /// The annotations of containers that count; absent: all. A container with another one of ours
    /// is refused.
    pub annotations: Option<Vec<Ask>>,
    /// The most NICs that a container gets; absent: any number.
    pub max_nics: Option<usize>,
    /// Whether containers on the host's network may have a plan.
    pub host_network: bool,
    pub plan: Option<PlanName>,
    pub state_dir: Option<PathBuf>,
    pub run_dir: Option<PathBuf>,
    pub lock_timeout_ms: Option<u64>,
    pub hook_wait_s: Option<u32>,
    pub hook_log: Option<PathBuf>,
    /// `FIRST-LAST`: numbers of the routing tables that rails get in a container, and of their
    /// rules' priorities, as far as the container does not use them.
    pub rail_tables: Option<TableRange>,
    /// Whether containers with NICs get an unlimited RLIMIT_MEMLOCK; absent: they do.
    pub lift_memlock: Option<bool>,
    /// The runtime behind `rdmaprep-runtime`: a name, or an absolute path; see
    /// [`crate::shim::choose_runtime`].
    pub runtime: Option<String>,
    /// Defaults of the flags of these names, for hooks whose environment was cleared.
    pub select: SelectOptions,
    /// The plans that are stored after each boot; read by [`crate::config::file`].
    #[serde(skip)]
    pub plans: Vec<ConfiguredPlan>,
}

impl Policy {
    pub fn new(config: &Config) -> Policy {
        let lists = |allow: &[Pattern], deny: &[Pattern]| Lists {
            allow: allow.to_vec(),
            deny: deny.to_vec(),
        };
        Policy {
            names: lists(&config.allow, &config.deny),
            pci: lists(&config.allow_pci, &config.deny_pci),
            drivers: lists(&config.allow_drivers, &config.deny_drivers),
            annotations: config.annotations.clone(),
            max_nics: config.max_nics,
            host_network: config.host_network,
        }
    }
}

impl Host {
    /// Flags before the file before the defaults.
    pub fn new(global: &Global, config: &Config) -> Host {
        let dir = |flag: &Option<PathBuf>, file: &Option<PathBuf>, default: &str| {
            flag.clone()
                .or_else(|| file.clone())
                .unwrap_or_else(|| default.into())
        };
        Host {
            policy: Policy::new(config),
            plan: config.plan.clone(),
            state_dir: dir(&global.state_dir, &config.state_dir, STATE),
            run_dir: dir(&global.run_dir, &config.run_dir, RUN),
            lock_timeout: Duration::from_millis(config.lock_timeout_ms.unwrap_or(5000)),
            hook_wait: Duration::from_secs(config.hook_wait_s.unwrap_or(0).into()),
            hook_log: config.hook_log.clone().unwrap_or_else(|| HOOK_LOG.into()),
            rail_tables: config.rail_tables.unwrap_or(TABLES),
            lift_memlock: config.lift_memlock.unwrap_or(true),
        }
    }
}
