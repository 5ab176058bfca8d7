//! What NCCL does with its settings in a network namespace. `tests/interop/nccl_judge.rs` compares this model with six releases
//! as far as interfaces and config files go; what concerns HCAs is read from NCCL's sources.

use std::fmt;
use std::net::IpAddr;

use rdma_model::ids::IfName;
use rdma_model::snapshot::Snapshot;
use serde::Serialize;

use super::comm_id::{self, Remote, Resolve};
use super::settings::Settings;
use super::socket::{self, Candidate, Family, Found};
use super::version::Version;
use super::{hca, interfaces, pitfalls};

/// The variables that decide, in the order of the output.
pub const VARIABLES: [&str; 6] = [
    "NCCL_COMM_ID",
    "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_FAMILY",
    "NCCL_IB_HCA",
    "NCCL_IB_DISABLE",
    "NCCL_IB_DEVICE_PCI_ORDER",
];

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    pub version: Version,
    pub settings: Vec<Setting>,
    pub bootstrap: Bootstrap,
    pub interfaces: Vec<Judged>,
    /// What NCCL's sockets use for data; the first also carries the connection set-up of HCAs.
    pub sockets: Vec<Endpoint>,
    /// HCA ports that are taken, in NCCL's order, each as `name:port`.
    pub hcas: Vec<String>,
    pub ports: Vec<Judged>,
    pub warnings: Vec<Warning>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    pub name: &'static str,
    pub value: String,
    pub place: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bootstrap {
    Uses(Endpoint, Step),
    Fails(Failure),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// The interface, under its address's label where that has one (`eth0:1`).
    pub interface: String,
    pub address: IpAddr,
    pub scope: Option<IfName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// NCCL_SOCKET_IFNAME.
    Asked,
    CommId,
    /// NCCL_COMM_ID: the first interface outside of its subnet ([`Version::inverts_subnets`]).
    NotCommId,
    /// Automatic, as the next ones: the beginning of the name decides.
    Ib,
    /// Automatic: any other that is not docker, lo or virbr.
    Other,
    Docker,
    Loopback,
    Virbr,
}

impl Trap {
    /// What is wrong, without the values: a container's settings do not belong into a log.
    pub fn summary(self) -> &'static str {
        match self {
            Trap::NoInterface => "NCCL finds no interface for its bootstrap, and does not start",
            Trap::Loopback => "the bootstrap uses lo, which other hosts cannot reach",
            Trap::NotRunning => "an interface that NCCL_SOCKET_IFNAME means is not running",
            Trap::Label => "NCCL_SOCKET_IFNAME means an interface that goes by an address's label",
            Trap::Overridden => "NCCL_COMM_ID is set: NCCL_SOCKET_IFNAME does not choose the bootstrap interface",
            Trap::Prefix => "an entry without = in front of the list takes more than it names",
            Trap::Missing => "NCCL_IB_HCA names an HCA that is not here",
            Trap::NoHca => "NCCL_IB_HCA leaves no HCA: NCCL goes on over TCP without a word",
            Trap::TooMany => "a list has more entries than NCCL reads",
            Trap::NoRoom => "more interfaces or HCAs fit than NCCL has room for",
            Trap::Marks => "the marks of a list are ^ and then =, once each, at the very beginning",
            Trap::Blanks => "a list has blanks or quotes, which belong to the names",
            Trap::Value => "a value means something else than it seems to",
        }
    }
}

impl Step {
    pub fn why(self) -> &'static str {
        match self {
            Step::Asked => "the first that NCCL_SOCKET_IFNAME allows",
            Step::CommId => "the first in the subnet of NCCL_COMM_ID",
            Step::NotCommId => "the first outside of NCCL_COMM_ID's subnet, which NCCL 2.29 compares wrongly",
            Step::Ib => "automatic: the first whose name begins with ib",
            Step::Other => "automatic: the first that is not docker, lo or virbr",
            Step::Docker => "automatic: nothing but docker is left",
            Step::Loopback => "automatic: nothing but lo is left, other hosts cannot reach it",
            Step::Virbr => "automatic: nothing but virbr is left",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// What ncclGetUniqueId returns; none where that is a matter of chance.
    pub error: Option<NcclError>,
    pub message: Option<&'static str>,
    pub why: String,
}

/// ncclResult_t.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[repr(u8)]
pub enum NcclError {
    SystemError = 2,
    InternalError = 3,
    InvalidArgument = 4,
    InvalidUsage = 5,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// Interface, or HCA with port.
    pub name: String,
    pub taken: bool,
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    pub trap: Trap,
    /// Whether NCCL does not start, or starts without any of its HCAs: worth a refusal.
    pub fatal: bool,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trap {
    NoInterface,
    Loopback,
    NotRunning,
    /// An address with a label of its own does not go by its interface's name.
    Label,
    /// NCCL_COMM_ID overrides NCCL_SOCKET_IFNAME.
    Overridden,
    /// A beginning of a name takes more than that name.
    Prefix,
    Missing,
    NoHca,
    TooMany,
    NoRoom,
    /// `=` before `^`, or a mark twice.
    Marks,
    /// Blanks or quotes, which belong to the name.
    Blanks,
    Value,
}

pub fn explain(settings: &Settings, snapshot: &Snapshot, version: Version, resolve: Resolve) -> Explanation {
    let candidates = socket::candidates(snapshot);
    let ifindex = |name: &str| comm_id::ifindex(snapshot, name);
    let peer = settings.get("NCCL_COMM_ID").map(|value| Remote::parse(value, version, ifindex, resolve));
    let family = Family::read(settings.get("NCCL_SOCKET_FAMILY"));
    let usable = peer.as_ref().and_then(|r| r.as_ref().ok());
    let found = socket::find(settings.get("NCCL_SOCKET_IFNAME"), family, usable, version, &candidates);
    let bootstrap = match &peer {
        Some(peer) => by_id(peer, &candidates),
        None => by_name(settings, &found, version),
    };
    let hcas = hca::judge(settings, snapshot, version, !found.endpoints.is_empty());
    let mut explanation = Explanation {
        version,
        settings: VARIABLES.into_iter().filter_map(|name| setting(settings, name)).collect(),
        interfaces: interfaces::judge(snapshot, &candidates, usable, peer.is_some(), &found, &bootstrap),
        bootstrap,
        sockets: found.endpoints.clone(),
        hcas: hcas.taken,
        ports: hcas.judged,
        warnings: Vec::new(),
    };
    explanation.warnings = pitfalls::warnings(settings, snapshot, &candidates, &found, &explanation);
    explanation
}

/// The pitfalls of an environment in a namespace, by the newest release: asked before a container gets its NICs. Those that are
/// [`Warning::fatal`] are worth a refusal. A NCCL_COMM_ID that names a host is left out: only the container has its resolver.
pub fn check<N, V>(env: impl IntoIterator<Item = (N, V)>, snapshot: &Snapshot) -> Vec<Warning>
where
    N: Into<String>,
    V: Into<String>,
{
    let env = env.into_iter().map(|(name, value)| (name.into(), value.into()));
    let known = env.filter(|(name, value): &(String, String)| name != "NCCL_COMM_ID" || !comm_id::names_host(value));
    explain(&Settings::of(known, "the environment"), snapshot, Version::NEWEST, &|_| None).warnings
}

fn setting(settings: &Settings, name: &'static str) -> Option<Setting> {
    let (value, place) = (settings.get(name)?, settings.place(name)?);
    Some(Setting { name, value: value.to_owned(), place: place.to_owned() })
}

/// With NCCL_COMM_ID nothing else counts (src/bootstrap.cc, `bootstrapNetInit`).
fn by_id(remote: &Result<Remote, Failure>, candidates: &[Candidate]) -> Bootstrap {
    let none = |remote: &Remote| Failure {
        error: Some(NcclError::SystemError),
        message: Some("No usable listening interface found"),
        why: format!("no interface is in the subnet of {}, which NCCL_COMM_ID names", remote.address),
    };
    match remote {
        Err(failure) => Bootstrap::Fails(failure.clone()),
        Ok(remote) => match socket::same_subnet(remote, candidates) {
            Some(endpoint) => Bootstrap::Uses(endpoint, remote.step()),
            None => Bootstrap::Fails(none(remote)),
        },
    }
}

fn by_name(settings: &Settings, found: &Found, version: Version) -> Bootstrap {
    if let Some(endpoint) = found.endpoints.first() {
        return Bootstrap::Uses(endpoint.clone(), found.step);
    }
    let error = if version.calls_it_usage() { NcclError::InvalidUsage } else { NcclError::InternalError };
    let why = match settings.get("NCCL_SOCKET_IFNAME").filter(|_| found.step == Step::Asked) {
        Some(list) => format!("NCCL_SOCKET_IFNAME={} fits no interface that can be used", pitfalls::short(list)),
        None => "no interface has an address that can be used".to_owned(),
    };
    Bootstrap::Fails(Failure { error: Some(error), message: Some("no socket interface found"), why })
}

impl fmt::Display for Endpoint {
    /// As NCCL's log has it, without the port: `eth0:192.0.2.1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.interface, self.address)?;
        self.scope.iter().try_for_each(|scope| write!(f, "%{}", scope.as_str()))
    }
}

impl fmt::Display for NcclError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nccl{self:?}")
    }
}

#[cfg(test)]
mod tests;
