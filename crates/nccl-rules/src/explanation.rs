//! What NCCL does with its settings, as a value: for people and programs.

use std::fmt;
use std::net::IpAddr;

use rdma_model::ids::IfName;
use rdma_model::snapshot::Gid;
use serde::{Serialize, Serializer};

use super::settings::Settings;
use super::version::Version;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    pub version: Version,
    /// Whether no release was named: this is the newest that is known here.
    pub assumed: bool,
    pub settings: Vec<Setting>,
    pub bootstrap: Bootstrap,
    /// With NCCL_OOB_NET_ENABLE: the device of the network by which ranks meet then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ring: Option<Ring>,
    pub interfaces: Vec<Judged>,
    /// What NCCL's sockets use for data; the first also carries the connection set-up of HCAs.
    pub sockets: Vec<Endpoint>,
    /// HCA ports that are taken, in NCCL's order, each as `name:port`.
    pub hcas: Vec<String>,
    /// Of these ports, those that are one device to NCCL.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<Vec<String>>,
    pub ports: Vec<Judged>,
    /// What NCCL_NET says of who serves the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// The plugin that NCCL asks before its own network: its library, or what NCCL_NET_PLUGIN names
    /// where that was not looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<String>,
    /// What may help where rails do not reach each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The GID of each port that is taken, as far as its table is known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gids: Vec<PortGid>,
    pub warnings: Vec<Warning>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    Ib,
    Socket,
    /// A plugin's, by its name.
    Other(String),
    /// NCCL_NET is empty, which no network is called.
    Nothing,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ring {
    Uses(String),
    Fails(String),
    Unknown(String),
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
    #[serde(serialize_with = "endpoint_and_step")]
    Uses(Endpoint, Step),
    Fails(Failure),
    /// The snapshot has no addresses.
    Unknown,
    /// The release was not compared with what is said here.
    NotJudged,
}

/// One object: the endpoint's fields, and `step`.
fn endpoint_and_step<S: Serializer>(
    endpoint: &Endpoint,
    step: &Step,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Uses<'a> {
        #[serde(flatten)]
        endpoint: &'a Endpoint,
        step: Step,
    }
    let step = *step;
    Uses { endpoint, step }.serialize(serializer)
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

impl Network {
    /// RCCL's name of its verbs with RCCL_AINIC_ROCE=1.
    pub(crate) const ROCM_IB: &str = "ROCM-IB";

    /// What NCCL_NET says. An empty one is a name, too (src/init.cc, `envConfigOverride`).
    pub(crate) fn asked(settings: &Settings) -> Option<Network> {
        let name = settings.get("NCCL_NET")?;
        Some(match name.to_ascii_lowercase().as_str() {
            "" => Network::Nothing,
            "ib" => Network::Ib,
            "socket" => Network::Socket,
            _ => Network::Other(name.to_owned()),
        })
    }
}

impl Trap {
    /// What is wrong, without the values: a container's settings do not belong into a log.
    pub fn summary(self) -> &'static str {
        match self {
            Trap::NoInterface => "NCCL finds no interface for its bootstrap, and does not start",
            Trap::Loopback => "the bootstrap uses lo, which other hosts cannot reach",
            Trap::NotRunning => "an interface that NCCL_SOCKET_IFNAME means is not running",
            Trap::Label => "NCCL_SOCKET_IFNAME means an interface that goes by an address's label",
            Trap::Overridden => {
                "NCCL_COMM_ID is set: NCCL_SOCKET_IFNAME does not choose the bootstrap interface"
            }
            Trap::Prefix => "an entry without = in front of the list takes more than it names",
            Trap::Missing => "NCCL_IB_HCA names an HCA that is not here",
            Trap::NoHca => "the settings leave no HCA: NCCL goes on over TCP without a word",
            Trap::NoRing => "NCCL_OOB_NET_IFNAME fits no device, and NCCL does not start",
            Trap::NoNetwork => "NCCL_NET names no network that is here, and NCCL does not start",
            Trap::NoGid => "NCCL_IB_GID_INDEX names a GID that a port does not have",
            Trap::GidTable => {
                "NCCL_IB_GID_INDEX is beyond the GID table of a port: NCCL uses no HCA"
            }
            Trap::NoConnection => "NCCL refuses a value whenever it connects over an HCA",
            Trap::PoorGid => "NCCL takes a GID that is link-local, or of RoCE v1",
            Trap::Families => "NCCL takes GIDs of IPv4 and of IPv6, which it does not connect",
            Trap::ForeignGid => "NCCL takes a GID of a netdev that is not here",
            Trap::GidType => "NCCL's release fails on an unused entry of a GID table",
            Trap::TooMany => "a list has more entries than NCCL reads",
            Trap::Crash => "NCCL's release ends on an HCA without a PCI path, as soft-RoCE is",
            Trap::Overrun => {
                "NCCL's release writes past its memory with these HCAs or lists, and may end"
            }
            Trap::NoRoom => "more interfaces or HCAs fit than NCCL has room for",
            Trap::Marks => "the marks of a list are ^ and then =, once each, at the very beginning",
            Trap::Blanks => "a list has blanks or quotes, which belong to the names",
            Trap::Planes => "NCCL_IB_HCA has planes that NCCL refuses, and no HCA is used",
            Trap::Merge => "NICs that NCCL is to merge do not fit, and it does not start",
            Trap::Name => "a variable's name is nearly that of a setting, and NCCL ignores it",
            Trap::Layers => {
                "NCCL takes ports of InfiniBand and of Ethernet, which it does not connect"
            }
            Trap::Libraries => "the image lacks a library that NCCL needs for RDMA",
            Trap::NotJudged => "NCCL's release is none of those that were compared",
            Trap::Value => "a value means something else than it seems to",
        }
    }
}

impl Step {
    pub fn why(self) -> &'static str {
        match self {
            Step::Asked => "the first that NCCL_SOCKET_IFNAME allows",
            Step::CommId => "the first in the subnet of NCCL_COMM_ID",
            Step::NotCommId => {
                "the first outside of NCCL_COMM_ID's subnet, which NCCL 2.29 compares wrongly"
            }
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
pub struct PortGid {
    /// `name:port`.
    pub port: String,
    /// None where a connection has no GID, or fails before it has one.
    pub index: Option<i32>,
    /// What is there; none where the index is unused.
    pub gid: Option<Gid>,
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
    /// NCCL_OOB_NET_IFNAME fits nothing that is there. A plugin that was not looked for may name
    /// devices otherwise, so it is not fatal.
    NoRing,
    /// NCCL_NET allows nothing that is there.
    NoNetwork,
    /// NCCL takes the index as it is, for all RoCE ports, and connects no queue pair over a GID of
    /// zeros.
    NoGid,
    /// An index beyond the table of a port, from 2.31 on: NCCL has no NET/IB then.
    GidTable,
    /// NCCL refuses a value, and no connection over an HCA comes up.
    NoConnection,
    /// A GID that is link-local, or of RoCE v1, where the port has a better one or the index is
    /// set.
    PoorGid,
    /// GIDs of both families: the kernel connects one only to its like (`rdma_resolve_ip` in
    /// drivers/infiniband/core/addr.c).
    Families,
    /// The GID of a netdev that is in another network namespace.
    ForeignGid,
    /// NCCL cannot read the type of a GID, and no connection comes up.
    GidType,
    TooMany,
    NoRoom,
    /// Ports of both link layers: NCCL connects one only to its like.
    Layers,
    /// NCCL ends by a signal.
    Crash,
    /// NCCL writes past its memory: what follows is a matter of chance.
    Overrun,
    /// `=` before `^`, or a mark twice.
    Marks,
    /// Blanks or quotes, which belong to the name.
    Blanks,
    Value,
    /// NCCL refuses the planes of a list, and uses no HCA.
    Planes,
    /// NICs that NCCL_NET_FORCE_MERGE or NCCL_NET_MERGE_LEVEL makes one do not fit, and end NCCL. A
    /// plugin that was
    /// not looked for may name devices otherwise, so it is not fatal.
    Merge,
    /// A name that is nearly that of a setting.
    Name,
    /// The container lacks a library for an HCA that is taken, or it is not known.
    Libraries,
    /// A release that is older or newer than those that were compared.
    NotJudged,
}

impl fmt::Display for Endpoint {
    /// As NCCL's log has it, without the port: `eth0:192.0.2.1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.interface, self.address)?;
        self.scope
            .iter()
            .try_for_each(|scope| write!(f, "%{}", scope.as_str()))
    }
}

impl fmt::Display for NcclError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nccl{self:?}")
    }
}
