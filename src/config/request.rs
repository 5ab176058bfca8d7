//! What was asked: flags before variables before the host's config file before the defaults; and what the host's
//! administrator allows. Annotations of a container come last and can only take away.

use crate::config::sysfs_mode::SysfsMode;
use rdma_model::arp::ArpChoice;
use rdma_model::values::{GidTimeout, PlanName};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Result, anyhow};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::{HcaName, IfName};
use rdma_model::snapshot::{JobAddresses, StoreRoute};
use rdma_model::values::Family;

use crate::config::device_request::DeviceRequest;
use crate::config::host::{EXCLUDE, Host, Pattern, SelectConfig};
use crate::config::options::{HOST_ENV, SelectArgs};
use crate::config::policy::Ask;

/// Prefix of our annotations.
pub const ANNOTATION: &str = "rdmaprep.io/";

/// Everything that was asked.
#[derive(Clone, Debug)]
pub struct Request {
    /// What the host's administrator settled.
    pub host: Host,
    /// The plan named by a flag, a variable or the container's annotation; see [`Request::plan`].
    pub plan: Option<PlanName>,
    /// Only these; empty: all.
    pub ifaces: Vec<IfName>,
    /// Left out; overridden by `ifaces`.
    pub exclude: Option<Pattern>,
    /// What the container's annotations take away.
    pub narrowing: Narrowing,
    /// Only what the peer has, too; empty: all.
    pub peer_ifaces: Vec<IfName>,
    /// What all nodes agreed on, in the common order; empty: nothing yet.
    pub agreed: Vec<IfName>,
    /// The same of InfiniBand HCAs without a netdev; absent: nothing is agreed yet.
    pub agreed_ib: Option<Vec<HcaName>>,
    /// The way to the store of the meeting: its interface is not taken.
    pub meeting: Option<StoreRoute>,
    /// Its owner is not taken.
    pub bootstrap_address: Option<IpAddr>,
    /// The interface that leads there is not taken.
    pub peer_address: Option<IpAddr>,
    /// Lifts the guard of uplinks and of the bootstrap interface for what `ifaces` names.
    pub allow_bootstrap: bool,
    /// A NIC without an address of the wanted family is dropped; otherwise it is an error.
    pub auto_skip_no_ipv4: bool,
    /// Which addresses count.
    pub family: Family,
    /// Prepare InfiniBand HCAs, too.
    pub ib: bool,
    /// Make addresses of finite lifetime permanent inside, instead of refusing them.
    pub freeze_lifetimes: bool,
    /// How rails answer ARP, and whether those that one table cannot serve get their own.
    pub arp: ArpChoice,
    /// How long a port inside may take to show its GIDs.
    pub gid_timeout: GidTimeout,
    /// Bring a default route of the main table along, where the container has none.
    pub default_route: bool,
    /// What the container's /sys shows.
    pub sysfs: SysfsMode,
    /// Set every debug variable.
    pub debug_all: bool,
    /// Whether the container gets a topology file of ours; none: where it needs one.
    pub topo: Option<bool>,
    /// For NCCL_TOPO_FILE.
    pub nccl_topo: Option<PathBuf>,
    /// Whether NCCL_TOPO_FILE is set at all.
    pub include_nccl_topo: bool,
    /// NCCL_SOCKET_IFNAME of the host's environment: what NCCL on the host itself meets over.
    pub host_ifname: Option<String>,
    /// [`HOST_ENV`], as far as the host's environment sets them.
    pub passed_on: BTreeMap<String, String>,
}

/// What a container's annotations, and the devices that it asks for, take away from what the host gives.
#[derive(Clone, Debug, Default)]
pub struct Narrowing {
    /// Only these. They are a filter: they name no NIC in the sense that overrides the exclusion regex.
    pub only: Option<BTreeSet<IfName>>,
    /// Left out, whatever else was asked.
    pub exclude: Vec<Pattern>,
    /// Only what its devices name ([`crate::cdi`]), all of it.
    pub devices: Option<DeviceRequest>,
}

impl Narrowing {
    /// Why the container's annotations, or its devices, leave that netdev out, if they do.
    pub fn forbids(&self, netdev: &IfName) -> Option<String> {
        if self.devices.as_ref().is_some_and(|asked| !asked.has(netdev)) {
            return Some(format!("{netdev} is not among the devices that the container asks for"));
        }
        self.annotated(netdev)
    }

    /// The same of an HCA without a netdev.
    pub fn forbids_hca(&self, name: &str) -> Option<String> {
        let asked = self.devices.as_ref().is_none_or(|asked| asked.has_hca(name));
        let why = || format!("{name} is not among the devices that the container asks for");
        if asked { self.excludes(name) } else { Some(why()) }
    }

    /// Why its annotations do.
    pub fn annotated(&self, netdev: &IfName) -> Option<String> {
        if self.only.as_ref().is_some_and(|only| !only.contains(netdev)) {
            return Some(format!("{netdev} is not in the container's annotation {ANNOTATION}ifaces"));
        }
        self.excludes(netdev.as_str())
    }

    /// The half of that which holds for HCAs without a netdev, too: a list of netdevs says nothing of those.
    pub fn excludes(&self, name: &str) -> Option<String> {
        let excluded = self.exclude.iter().any(|p| p.matches(name));
        excluded.then(|| format!("{name} matches the container's annotation {ANNOTATION}exclude"))
    }
}

impl Request {
    /// Merges what was asked. `env` reads the host's environment, for [`HOST_ENV`] and NCCL_SOCKET_IFNAME: flags carry theirs.
    pub fn new(
        plan: Option<&str>,
        args: &SelectArgs,
        host: Host,
        file: SelectConfig,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Request> {
        let auto_skip = file.auto_skip_no_ipv4.unwrap_or(true);
        let topo = file.include_nccl_topo.unwrap_or(true);
        Ok(Request {
            plan: value(plan, "--plan (RDMAPREP_PLAN)")?,
            ifaces: list(&args.ifaces, "--ifaces (RDMA_IFACES)", file.ifaces)?,
            exclude: exclusion(args.exclude.as_deref(), file.exclude.as_deref())?,
            narrowing: Narrowing::default(),
            peer_ifaces: list(&args.peer_ifaces, "--peer-ifaces (RDMA_PEER_IFACES)", file.peer_ifaces)?,
            agreed: Vec::new(),
            agreed_ib: None,
            meeting: None,
            bootstrap_address: address(
                &args.bootstrap_address,
                "--bootstrap-address (LOCAL_IP)",
                file.bootstrap_address,
            )?,
            peer_address: address(&args.peer_address, "--peer-address (REMOTE_IP)", file.peer_address)?,
            allow_bootstrap: truth(
                &args.allow_bootstrap_iface,
                "--allow-bootstrap-iface (ALLOW_BOOTSTRAP_RDMA_IFACE)",
                file.allow_bootstrap_iface.unwrap_or(false),
            )?,
            auto_skip_no_ipv4: truth(&args.auto_skip, "--no-auto-skip (RDMA_AUTO_SKIP_NO_IPV4)", auto_skip)?,
            family: value(args.family.as_deref(), "--family (RDMAPREP_FAMILY)")?.or(file.family).unwrap_or_default(),
            ib: truth(&args.ib, "--ib (RDMAPREP_IB)", file.ib.unwrap_or(false))?,
            freeze_lifetimes: truth(
                &args.freeze_lifetimes,
                "--freeze-lifetimes (RDMAPREP_FREEZE_LIFETIMES)",
                file.freeze_lifetimes.unwrap_or(false),
            )?,
            arp: value(args.arp_profile.as_deref(), "--arp-profile (RDMAPREP_ARP_PROFILE)")?
                .or(file.arp_profile)
                .unwrap_or_default(),
            gid_timeout: value(args.gid_timeout.as_deref(), "--gid-timeout (RDMAPREP_GID_TIMEOUT)")?
                .or(file.gid_timeout)
                .unwrap_or_default(),
            default_route: truth(
                &args.default_route,
                "--default-route (RDMAPREP_DEFAULT_ROUTE)",
                file.default_route.unwrap_or(false),
            )?,
            sysfs: value(args.sysfs.as_deref(), "--sysfs (RDMAPREP_SYSFS)")?.or(file.sysfs).unwrap_or_default(),
            topo: wish(&args.topo, "--topo (RDMAPREP_TOPO)")?.or(file.topo),
            debug_all: truth(&args.debug_all, "--debug-all (DEBUG_ALL)", file.debug_all.unwrap_or(false))?,
            nccl_topo: value(args.nccl_topo.as_deref(), "--nccl-topo (NCCL_TOPO_FILE)")?.or(file.nccl_topo),
            include_nccl_topo: truth(&args.include_nccl_topo, "--no-nccl-topo (INCLUDE_NCCL_TOPO)", topo)?,
            host_ifname: env("NCCL_SOCKET_IFNAME"),
            passed_on: HOST_ENV.iter().filter_map(|n| Some(((*n).to_owned(), env(n)?))).collect(),
            host,
        })
    }

    /// The plan that a container with this request uses; without one it gets nothing.
    pub fn plan(&self) -> Option<&PlanName> {
        self.plan.as_ref().or(self.host.plan.as_ref())
    }

    /// The addresses that the job needs the host to reach.
    pub fn job(&self) -> JobAddresses {
        JobAddresses {
            peers: self.peer_address.into_iter().collect(),
            bootstrap: self.bootstrap_address.into_iter().collect(),
            store: self.meeting.map(|way| (way.store, way.local)),
        }
    }

    /// Whether `--ifaces` names that netdev. (An annotation's list does not: it cannot override anything.)
    pub fn names(&self, name: &IfName) -> bool {
        self.ifaces.contains(name)
    }

    /// This request with what the container's annotations take away from it. Annotations choose a plan only where the
    /// host left that open; they never widen.
    pub fn narrow(&self, annotations: &BTreeMap<String, String>) -> Result<Request> {
        let mut narrowed = self.clone();
        for (key, text) in annotations {
            let Some(leaf) = key.strip_prefix(ANNOTATION) else { continue };
            let what = || format!("annotation {key:?}");
            match leaf {
                "plan" => {
                    self.host.policy.hears(Ask::Plan, key)?;
                    narrowed.opt_in(text.parse().class(ErrorClass::State, what())?)?;
                }
                "ifaces" => {
                    self.host.policy.hears(Ask::Ifaces, key)?;
                    let only = interface_names(text).class(ErrorClass::State, what())?;
                    let before = narrowed.narrowing.only.take();
                    let kept = only.into_iter().filter(|n| before.as_ref().is_none_or(|b| b.contains(n)));
                    narrowed.narrowing.only = Some(kept.collect());
                }
                "exclude" => {
                    self.host.policy.hears(Ask::Exclude, key)?;
                    let pattern = (!text.is_empty()).then(|| text.parse().class(ErrorClass::State, what()));
                    narrowed.narrowing.exclude.extend(pattern.transpose()?);
                }
                _ => {
                    let text = format!("{} is unknown; there are {ANNOTATION}plan, ifaces and exclude", what());
                    return Err(ErrorClass::State.error(text));
                }
            }
        }
        Ok(narrowed)
    }

    /// Takes the annotation's plan, unless the host named another for this very container.
    fn opt_in(&mut self, name: PlanName) -> Result<()> {
        if let Some(host) = self.plan.as_ref().filter(|host| **host != name) {
            let text = format!("the container's annotation asks for plan {name}, but the host gave it plan {host}");
            return Err(ErrorClass::Refused.error(text));
        }
        self.plan = Some(name);
        Ok(())
    }
}

/// Netdev names separated by commas or white space, each once. A container's author may write as many as a state has room for.
pub fn interface_names(text: &str) -> Result<Vec<IfName>> {
    let (mut names, mut seen) = (Vec::new(), HashSet::new());
    for name in text.split(|c: char| c == ',' || c.is_whitespace()).filter(|n| !n.is_empty()) {
        if seen.insert(name) {
            names.push(name.parse()?);
        }
    }
    Ok(names)
}

/// 1/0, true/false, yes/no, in any case.
pub fn boolean(text: &str) -> Result<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" => Ok(true),
        "0" | "false" | "no" => Ok(false),
        _ => Err(anyhow!("{text:?} is none of 1, 0, true, false, yes, no")),
    }
}

/// A flag's names, else the file's.
fn list(texts: &[String], flag: &str, file: Vec<IfName>) -> Result<Vec<IfName>> {
    let names = interface_names(&texts.join(",")).class(ErrorClass::Usage, flag)?;
    Ok(if names.is_empty() { file } else { names })
}

/// A flag's value; empty is unset.
fn value<T: FromStr>(text: Option<&str>, flag: &str) -> Result<Option<T>>
where
    T::Err: Into<anyhow::Error>,
{
    text.filter(|t| !t.is_empty()).map(|t| t.parse().class(ErrorClass::Usage, flag)).transpose()
}

/// A flag's address, else the file's; an IPv4-mapped one is the IPv4 address that interfaces own.
fn address(text: &Option<String>, flag: &str, file: Option<IpAddr>) -> Result<Option<IpAddr>> {
    let address = match text.as_deref() {
        None | Some("") => file,
        Some(t) => Some(t.parse().map_err(|_| anyhow!("{t:?} is no IP address")).class(ErrorClass::Usage, flag)?),
    };
    Ok(address.map(|a| a.to_canonical()))
}

/// A flag's truth, else what it is without it; empty is unset.
fn truth(text: &Option<String>, flag: &str, otherwise: bool) -> Result<bool> {
    Ok(wish(text, flag)?.unwrap_or(otherwise))
}

/// A flag's truth, if it has any; empty is unset.
fn wish(text: &Option<String>, flag: &str) -> Result<Option<bool>> {
    text.as_deref().filter(|t| !t.is_empty()).map(|t| boolean(t).class(ErrorClass::Usage, flag)).transpose()
}

/// The exclusion regex: here, and only here, an empty text is a value.
fn exclusion(flag: Option<&str>, file: Option<&str>) -> Result<Option<Pattern>> {
    match flag.or(file).unwrap_or(EXCLUDE) {
        "" => Ok(None),
        text => Ok(Some(text.parse().class(ErrorClass::Usage, "--exclude (RDMA_EXCLUDE_REGEX)")?)),
    }
}
