//! Known failures of a node, or of a container's part of it. A check is a function of an
//! [`Examination`], which returns nothing where all is well. What could not be examined is reported
//! as such, never as healthy.

mod arp;
mod channels;
pub mod collect;
mod context;
pub mod facts;
mod flow_control;
mod left_out;
mod libraries;
mod memory;
mod nccl;
mod network;
mod node;
mod pcie;
mod plans;
mod rails;
mod stale_records;
mod userspace;
mod verbs_nodes;

use std::fmt;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::config::request::Request;
use crate::plan::Plan;
use crate::select::{BusyNic, judge, without_unknown};
use context::{CheckContext, Rail};
use facts::{Machine, Trace};
use nccl_rules::settings::Settings;
use rdma_model::snapshot::Snapshot;

pub const SCHEMA: u32 = 1;

pub struct Examination<'a> {
    pub request: &'a Request,
    /// The node's network namespace, or the container's.
    pub snapshot: &'a Snapshot,
    pub held: &'a [BusyNic],
    /// What a snapshot does not have; absent where there is no live machine.
    pub machine: Option<&'a Machine>,
    pub traces: &'a [Trace],
    /// Stored plans of this boot, or what the container was given.
    pub plans: &'a [Plan],
    /// NCCL's settings, or why they are not known.
    pub settings: Result<&'a Settings, &'a str>,
    /// The container that this is about; absent: the node.
    pub container: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Breaks,
    Warning,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    RdmaModules,
    #[serde(rename = "kernel")]
    KernelFeatures,
    /// `/dev/infiniband/uverbs*`: there, the right ones, and to be opened.
    VerbsNodes,
    /// rdma-core in a container's image.
    Userspace,
    Memlock,
    /// Whether NICs reach the memory of GPUs.
    PeerMemory,
    /// A port that is not ACTIVE.
    PortDown,
    /// RoCE v2 GIDs: missing, stale, or link-local alone.
    Gids,
    LeftOut,
    Plans,
    /// What a RoCE packet has room for, and the same on all rails.
    Mtu,
    /// The effective ARP profile and reverse path filter.
    Arp,
    /// PFC and ECN.
    FlowControl,
    /// The host's uplink among the NICs.
    Uplink,
    AsymmetricRails,
    /// What a driver opens one after the other with each move.
    Channels,
    /// ACS between a GPU and its NIC.
    Acs,
    Numa,
    Nccl,
    /// Settings of libraries beside NCCL.
    Libraries,
    StaleRecords,
    OrphanedRules,
    /// Others that configure the same NICs.
    RenameFights,
    /// Pods that ask by annotation, and whose containers' runtime does not get it.
    PodAnnotations,
    /// Engines that do not know rdmaprep.
    EngineHooks,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    pub check: Check,
    pub severity: Severity,
    pub seen: String,
    pub why: String,
    pub fix: String,
    /// The fix as shell commands, where there are such.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub run: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Diagnosis {
    pub schema: u32,
    pub container: Option<String>,
    pub breaks: usize,
    pub warnings: usize,
    pub unknown: usize,
    #[serde(default)]
    pub checked: Checked,
    /// The worst first.
    pub findings: Vec<Finding>,
    /// What may help, and is no fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Checks that were not made, as what they look at is not here: a live machine, its network, or
    /// NICs that containers have.
    pub not_checked: Vec<Check>,
}

/// How much was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checked {
    pub checks: usize,
    pub hcas: usize,
    pub plans: usize,
    pub records: usize,
}

struct Rule {
    check: Check,
    inside: bool,
    run: Run,
}

type Look = fn(&CheckContext) -> Vec<Finding>;

/// How a check is made, by what it needs.
#[derive(Clone, Copy)]
enum Run {
    /// Nothing but a look at devices.
    Devices(Look),
    /// Addresses and routes: a captured tree has none.
    Network(Look),
    /// Routes, or the kernel's word on them: a recording may have none.
    Routes(Look),
    /// Where all rails are, also those that containers have.
    Places(Look),
    Live(fn(&CheckContext, &Machine) -> Vec<Finding>),
    /// The root of a container: on a host it is no check.
    Image(Look),
}

use Run::{Devices, Image, Live, Network, Places, Routes};

const fn rule(check: Check, inside: bool, run: Run) -> Rule {
    Rule { check, inside, run }
}

const RULES: [Rule; 25] = [
    rule(Check::RdmaModules, false, Live(node::modules)),
    rule(Check::KernelFeatures, true, Live(node::kernel)),
    rule(Check::VerbsNodes, true, Live(verbs_nodes::verbs_nodes)),
    rule(Check::Userspace, true, Image(userspace::libraries)),
    rule(Check::Memlock, true, Live(memory::memlock)),
    rule(Check::PeerMemory, true, Live(memory::peer_memory)),
    rule(Check::PortDown, true, Devices(rails::ports)),
    rule(Check::Gids, true, Network(rails::gids)),
    rule(Check::LeftOut, true, Devices(left_out::left_out)),
    rule(Check::Plans, false, Live(plans::plans)),
    rule(Check::Mtu, true, Network(network::mtu)),
    rule(Check::Arp, true, Network(arp::profiles)),
    rule(
        Check::FlowControl,
        true,
        Network(flow_control::flow_control),
    ),
    rule(Check::Uplink, false, Routes(network::uplink)),
    rule(Check::AsymmetricRails, true, Network(network::asymmetric)),
    rule(Check::Channels, false, Devices(channels::many)),
    rule(Check::Acs, false, Live(pcie::acs)),
    rule(Check::Numa, false, Places(pcie::numa)),
    rule(Check::Nccl, true, Network(nccl::pick)),
    rule(Check::Libraries, true, Network(libraries::named)),
    rule(Check::StaleRecords, false, Live(stale_records::records)),
    rule(Check::OrphanedRules, false, Network(stale_records::rules)),
    rule(Check::RenameFights, false, Live(stale_records::managers)),
    rule(Check::PodAnnotations, false, Live(node::pod_annotations)),
    rule(Check::EngineHooks, false, Live(plans::engines)),
];

/// Every check, what it looks at, and whether it is made for a node, and for a container: for
/// docs/doctor.md.
pub fn checks() -> impl Iterator<Item = (Check, &'static str, [bool; 2])> {
    RULES.iter().map(|r| {
        (
            r.check,
            r.check.looks_at(),
            [!matches!(r.run, Image(_)), r.inside],
        )
    })
}

impl Check {
    fn looks_at(self) -> &'static str {
        match self {
            Check::RdmaModules => "the kernel's RDMA modules",
            Check::KernelFeatures => "features that this kernel is too old for",
            Check::VerbsNodes => {
                "`/dev/infiniband/uverbs*`: whether each exists, is the right device and opens"
            }
            Check::Userspace => {
                "libibverbs in the image, a provider for each HCA, librdmacm, and whether libmlx5 \
                knows Data Direct"
            }
            Check::Memlock => "`RLIMIT_MEMLOCK`, since RDMA pins memory",
            Check::PeerMemory => "whether NICs can reach the memory of GPUs (GPUDirect RDMA)",
            Check::PortDown => "ports that are not ACTIVE",
            Check::Gids => "RoCE v2 GIDs that are missing, stale or only link-local",
            Check::LeftOut => "NICs that were asked for and that the selection leaves out",
            Check::Plans => "stored plans that no longer fit the host",
            Check::Mtu => {
                "whether the MTU has room for a RoCE packet, and is the same on all rails"
            }
            Check::Arp => "the effective ARP profile and reverse path filter",
            Check::FlowControl => {
                "PFC, as the NICs tell it by DCB, and the priority of NCCL's packets"
            }
            Check::Uplink => "whether one of the NICs is the host's uplink",
            Check::AsymmetricRails => "rails of different speed",
            Check::Channels => "NICs with so many channels that a move takes long",
            Check::Acs => "PCIe Access Control Services between a GPU and its NIC",
            Check::Numa => "the NUMA nodes of GPUs and of their NICs",
            Check::Nccl => "what NCCL makes of its settings",
            Check::Libraries => "HCAs that settings of libraries beside NCCL name",
            Check::StaleRecords => {
                "records of NICs whose container has ended, and claims that no container uses"
            }
            Check::OrphanedRules => "policy routing rules that lead to no route",
            Check::RenameFights => "network managers that configure the same NICs",
            Check::PodAnnotations => {
                "containerd's pods whose annotations do not reach the create hook"
            }
            Check::EngineHooks => {
                "whether an engine of this host knows rdmaprep, where a plan is stored"
            }
        }
    }
}

impl Rule {
    fn can_be_made(&self, context: &CheckContext) -> bool {
        match self.run {
            Devices(_) => true,
            Network(_) => context.has_network(),
            Routes(_) => context.has_network() && context.has_routes(),
            Places(_) => pcie::places(context).is_some(),
            Live(_) => context.of.machine.is_some(),
            Image(_) => context.of.machine.is_some_and(|m| m.userspace.is_some()),
        }
    }

    fn findings(&self, context: &CheckContext) -> Vec<Finding> {
        match self.run {
            Live(run) => {
                let machine = context.of.machine;
                machine.map_or_else(Vec::new, |machine| run(context, machine))
            }
            Devices(run) | Network(run) | Routes(run) | Places(run) | Image(run) => run(context),
        }
    }
}

impl Finding {
    fn new(
        check: Check,
        severity: Severity,
        seen: impl Into<String>,
        why: &str,
        fix: impl Into<String>,
    ) -> Finding {
        Finding {
            check,
            severity,
            seen: seen.into(),
            why: why.to_owned(),
            fix: fix.into(),
            run: Vec::new(),
        }
    }

    fn run(mut self, command: impl Into<String>) -> Finding {
        self.run.push(command.into());
        self
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// What was asked, without what would end the selection: a NIC without an address, or one that has
/// gone, or an address that is not here, is a finding, and not the end of the others.
fn lenient(examination: &Examination) -> Request {
    let mut request = without_unknown(examination.request, examination.snapshot, examination.held);
    request.select.no_auto_skip = false;
    // What this shell sets for containers that are to come is no fault of a NIC.
    request.passed_on.clear();
    if examination.container.is_some() {
        // These are the host's.
        (
            request.select.bootstrap_address,
            request.select.peer_address,
        ) = (None, None);
    }
    network::unguarded(&mut request, examination.snapshot);
    request
}

/// Makes every check that can be made; an error is that of the selection.
pub fn doctor(examination: &Examination) -> Result<Diagnosis> {
    let request = lenient(examination);
    let selection = judge(&request, examination.snapshot, examination.held)?;
    let context = CheckContext {
        of: examination,
        selection: &selection,
    };
    let (made, skipped): (Vec<&Rule>, Vec<&Rule>) = RULES
        .iter()
        .filter(|r| match context.is_inside() {
            true => r.inside,
            false => !matches!(r.run, Image(_)),
        })
        .partition(|r| r.can_be_made(&context));
    let mut findings: Vec<Finding> = made
        .iter()
        .flat_map(|r| {
            let findings = r.findings(&context).into_iter();
            findings.map(|f| context.safe(r, f))
        })
        .collect();
    findings.extend(stale_records::unread(&context));
    findings.extend(node::no_driver(&context));
    findings.sort_by_key(|f| f.severity);
    // Several plans may have the same rails.
    let mut seen: Vec<Finding> = Vec::new();
    findings.retain(|f| {
        let is_new = !seen.contains(f);
        seen.extend(is_new.then(|| f.clone()));
        is_new
    });
    let count = |severity| findings.iter().filter(|f| f.severity == severity).count();
    Ok(Diagnosis {
        schema: SCHEMA,
        container: examination.container.map(str::to_owned),
        breaks: count(Severity::Breaks),
        warnings: count(Severity::Warning),
        unknown: count(Severity::Unknown),
        checked: Checked {
            checks: made.len(),
            hcas: examination.snapshot.hcas.len(),
            plans: examination.plans.len(),
            records: examination.traces.len(),
        },
        not_checked: skipped.iter().map(|r| r.check).collect(),
        findings,
        hint: nccl::hint(&context).or_else(|| plans::hint(&context)),
    })
}

fn join<T: ToString>(names: impl IntoIterator<Item = T>) -> String {
    names
        .into_iter()
        .map(|n| n.to_string())
        .collect::<Vec<_>>()
        .join(", ")
}
