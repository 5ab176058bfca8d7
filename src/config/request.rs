//! What was asked: flags before variables before the host's config file before the defaults; and
//! what the host's administrator allows. Annotations of a container come last and can only take
//! away.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use nccl_rules::version::Version;
use rail_agreement::Device;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::{HcaName, IfName};
use rdma_model::snapshot::{JobAddresses, StoreRoute};
use rdma_model::values::PlanName;
use serde::{Deserialize, Serialize};

use crate::config::device_request::DeviceRequest;
use crate::config::host::Host;
use crate::config::network_mode::NetworkMode;
use crate::config::options::{HOST_ENV, SelectOptions, boolean, names};
use crate::config::pattern::Pattern;
use crate::config::policy::Ask;
use crate::config::recipe::Recipe;
use crate::config::select_args::SelectArgs;

pub const ANNOTATION: &str = "rdmaprep.io/";

/// Whether a container asks for NICs by itself: by the plan that it was started with, or by an
/// annotation of ours.
pub fn asks_itself<T>(plan: Option<&str>, annotations: &BTreeMap<String, T>) -> bool {
    plan.is_some() || annotations.keys().any(|key| key.starts_with(ANNOTATION))
}

#[derive(Clone, Debug)]
pub struct Request {
    pub host: Host,
    /// The plan that a flag, a variable or the container's annotation names.
    pub named_plan: Option<PlanName>,
    pub select: SelectOptions,
    pub narrowing: Narrowing,
    /// Whether the command line has --exclude: it is worth a note if that leaves out nothing.
    pub exclude_given: bool,
    /// Whether a flag or a variable has the release of NCCL: then it counts before a plan's own.
    pub release_given: bool,
    /// What all nodes agreed on, in the common order; empty: nothing yet.
    pub agreed: Vec<IfName>,
    /// The InfiniBand HCAs without a netdev among it; absent: nothing is agreed yet.
    pub agreed_ib: Option<Vec<HcaName>>,
    /// Rails that the rail test of `prepare` leaves out.
    pub failed: Vec<FailedRail>,
    /// The way to the store of the meeting: its interface is not taken.
    pub meeting: Option<StoreRoute>,
    /// NCCL_SOCKET_IFNAME of the host's environment: what NCCL on the host itself meets over.
    pub host_ifname: Option<String>,
    /// [`HOST_ENV`], as far as the host's environment sets them.
    pub passed_on: BTreeMap<String, String>,
    /// What the container's own environment has of [`GID_SETTINGS`]; it comes first.
    pub own_gids: BTreeMap<String, String>,
    /// For a plan that is stored.
    pub recipe: Option<Recipe>,
}

/// A device of this node, and why no node gets its rail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedRail {
    pub device: Device,
    pub why: String,
}

/// By which NCCL chooses the GID of a RoCE port.
const GID_SETTINGS: [&str; 4] = [
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_ADDR_FAMILY",
    "NCCL_IB_ADDR_RANGE",
    "NCCL_IB_ROCE_VERSION_NUM",
];

/// What a container's annotations, and the devices that it asks for, take away from what the host
/// gives.
#[derive(Clone, Debug, Default)]
pub struct Narrowing {
    /// Only these. They are a filter: they name no NIC in the sense that overrides the exclusion
    /// regex.
    pub only: Option<BTreeSet<IfName>>,
    /// Left out, whatever else was asked.
    pub exclude: Vec<Pattern>,
    /// Only what its devices name ([`crate::cdi`]), all of it.
    pub devices: Option<DeviceRequest>,
}

impl Narrowing {
    /// Why the container's annotations, or its devices, leave that netdev out, if they do.
    pub fn leaves_out(&self, netdev: &IfName) -> Option<String> {
        if self
            .devices
            .as_ref()
            .is_some_and(|asked| !asked.has(netdev))
        {
            return Some(format!(
                "{netdev} is not among the devices that the container asks for"
            ));
        }
        self.annotated(netdev)
    }

    /// Why they leave an HCA without a netdev out.
    pub fn leaves_out_hca(&self, name: &str) -> Option<String> {
        let asked = self
            .devices
            .as_ref()
            .is_none_or(|asked| asked.has_hca(name));
        let why = || format!("{name} is not among the devices that the container asks for");
        if asked {
            self.excludes(name)
        } else {
            Some(why())
        }
    }

    pub fn annotated(&self, netdev: &IfName) -> Option<String> {
        if self
            .only
            .as_ref()
            .is_some_and(|only| !only.contains(netdev))
        {
            return Some(format!(
                "{netdev} is not in the container's annotation {ANNOTATION}ifaces"
            ));
        }
        self.excludes(netdev.as_str())
    }

    /// The half of that which holds for HCAs without a netdev, too: a list of netdevs says nothing
    /// of those.
    pub fn excludes(&self, name: &str) -> Option<String> {
        let excluded = self.exclude.iter().any(|p| p.matches(name));
        excluded.then(|| format!("{name} matches the container's annotation {ANNOTATION}exclude"))
    }
}

impl Request {
    /// What was asked, by the flags `args` over the config file's `file`. `env` reads the host's
    /// environment, for [`HOST_ENV`] and NCCL_SOCKET_IFNAME: flags carry theirs.
    /// [`ErrorClass::Usage`] names the flag and the variable of a bad value.
    pub fn new(
        plan: Option<&str>,
        args: &SelectArgs,
        host: Host,
        file: SelectOptions,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Request> {
        let plan = plan
            .filter(|name| !name.is_empty())
            .map(str::parse)
            .transpose();
        Ok(Request {
            named_plan: plan.class(ErrorClass::Usage, "--plan (RDMAPREP_PLAN)")?,
            select: file.merge(args)?,
            narrowing: Narrowing::default(),
            exclude_given: args.is_given("exclude"),
            release_given: args.says("nccl_version"),
            agreed: Vec::new(),
            agreed_ib: None,
            failed: Vec::new(),
            meeting: None,
            host_ifname: env("NCCL_SOCKET_IFNAME"),
            passed_on: HOST_ENV
                .iter()
                .filter_map(|n| Some(((*n).to_owned(), env(n)?)))
                .collect(),
            own_gids: BTreeMap::new(),
            recipe: None,
            host,
        })
    }

    /// The plan that a container with this request uses, its own or the host's for all; without one
    /// it gets nothing.
    pub fn plan_name(&self) -> Option<&PlanName> {
        self.named_plan.as_ref().or(self.host.plan.as_ref())
    }

    /// The release of NCCL for a plan that may have its own: a flag or a variable says more than
    /// the plan, and the plan more than the config file, which is the same for all plans.
    pub fn release(&self, own: Option<Version>) -> Option<Version> {
        let asked = self.select.nccl_version;
        asked.filter(|_| self.release_given).or(own).or(asked)
    }

    /// This request for a container with that environment.
    pub fn for_environment(mut self, env: &BTreeMap<String, String>) -> Request {
        let own = GID_SETTINGS
            .iter()
            .filter_map(|name| env.get_key_value(*name));
        self.own_gids = own.map(|(n, value)| (n.clone(), value.clone())).collect();
        self
    }

    /// What is set of NCCL's choice of GIDs, by the container or by the host. Of the host's an
    /// empty value is none: it is not passed on.
    pub fn gid_settings(&self) -> BTreeMap<String, String> {
        let is_theirs =
            |(n, v): &(&String, &String)| GID_SETTINGS.contains(&n.as_str()) && !v.is_empty();
        let theirs = self.passed_on.iter().filter(is_theirs);
        let all = theirs.chain(&self.own_gids);
        all.map(|(n, value)| (n.clone(), value.clone())).collect()
    }

    /// Whether NICs move into the containers.
    pub fn moves(&self) -> bool {
        self.select.network_mode.is_own()
    }

    pub fn job(&self) -> JobAddresses {
        JobAddresses {
            peers: self.select.peer_address.into_iter().collect(),
            bootstrap: self.select.bootstrap_address.into_iter().collect(),
            store: self.meeting.map(|way| (way.store, way.local)),
        }
    }

    /// Whether `--ifaces` names that netdev. (An annotation's list does not: it cannot override
    /// anything.)
    pub fn names(&self, name: &IfName) -> bool {
        self.select.ifaces.contains(name)
    }

    /// This request with what the container's annotations take away from it. Annotations choose a
    /// plan only where the host left that open; they never widen. On the host's network, which the
    /// host's policy has to allow, a container gets no NIC that it does not see anyhow.
    pub fn narrow(&self, annotations: &BTreeMap<String, String>) -> Result<Request> {
        let mut narrowed = self.clone();
        for (key, text) in annotations {
            let Some(leaf) = key.strip_prefix(ANNOTATION) else {
                continue;
            };
            let what = || format!("annotation {key:?}");
            match leaf {
                "plan" => {
                    self.host.policy.hears(Ask::Plan, key)?;
                    narrowed.opt_in(text.parse().class(ErrorClass::State, what())?)?;
                }
                "ifaces" => {
                    self.host.policy.hears(Ask::Ifaces, key)?;
                    let only = names::<IfName>(text).class(ErrorClass::State, what())?;
                    let before = narrowed.narrowing.only.take();
                    let kept = only
                        .into_iter()
                        .filter(|n| before.as_ref().is_none_or(|b| b.contains(n)));
                    narrowed.narrowing.only = Some(kept.collect());
                }
                "exclude" => {
                    self.host.policy.hears(Ask::Exclude, key)?;
                    let pattern =
                        (!text.is_empty()).then(|| text.parse().class(ErrorClass::State, what()));
                    narrowed.narrowing.exclude.extend(pattern.transpose()?);
                }
                "host-network" => {
                    self.host.policy.hears(Ask::HostNetwork, key)?;
                    if boolean(text).class(ErrorClass::State, what())? {
                        narrowed.select.network_mode = NetworkMode::Host;
                    }
                }
                _ => {
                    let text = format!(
                        "{} is unknown; there are {ANNOTATION}plan, ifaces, exclude and \
                        host-network",
                        what()
                    );
                    return Err(ErrorClass::State.error(text));
                }
            }
        }
        Ok(narrowed)
    }

    /// Takes the annotation's plan, unless the host named another for this very container.
    fn opt_in(&mut self, name: PlanName) -> Result<()> {
        if let Some(host) = self.named_plan.as_ref().filter(|host| **host != name) {
            let text = format!(
                "the container's annotation asks for plan {name}, but the host gave it plan {host}"
            );
            return Err(ErrorClass::Refused.error(text));
        }
        self.named_plan = Some(name);
        Ok(())
    }
}
