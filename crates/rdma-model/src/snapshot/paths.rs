//! Which links the host uses: what the kernel answered for each address that the host talks to.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::ids::{HcaName, IfName};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPaths {
    #[serde(default, skip_serializing_if = "JobAddresses::is_empty")]
    pub job: JobAddresses,
    pub paths: Vec<HostPath>,
    #[serde(default)]
    pub tunnels: Vec<TunnelPath>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rdma: Vec<RdmaUse>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<LinkUse>,
    /// What could not be asked, and why: a clause each.
    #[serde(default)]
    pub not_asked: Vec<String>,
}

/// A connection of the kernel's own over an RDMA device: storage that has no socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaUse {
    pub hca: HcaName,
    pub port: Option<u32>,
    /// The module: `nvme_rdma`, `rpcrdma`, `ko2iblnd`.
    pub user: String,
    pub peer: Option<IpAddr>,
}

/// A link that the kernel sends packets of others by, whatever the routes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkUse {
    pub link: IfName,
    /// By what: a clause about the link.
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPath {
    pub purpose: Purpose,
    pub question: Question,
    pub answer: Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// An address that stands for a part of the internet.
    Internet,
    /// The job's peer (`--peer-address`).
    Peer,
    Store,
    NameServer,
    Connection(Connection),
    Underlay,
    Ipsec,
    Segment,
}

/// A TCP or connected UDP socket, or what takes its place. Its local address is the question's
/// source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Connection {
    /// IPPROTO_TCP or IPPROTO_UDP; 0: RDMA.
    pub protocol: u8,
    pub local_port: u16,
    pub remote_port: u16,
}

/// A route lookup (RTM_GETROUTE without a dump): all that FIB rules can look at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Question {
    pub to: IpAddr,
    /// RTA_SRC: the address that a socket is bound to.
    pub from: Option<IpAddr>,
    /// RTA_OIF: the link that a socket is bound to.
    pub oif: Option<u32>,
    /// RTA_MARK; 0: none.
    #[serde(default)]
    pub mark: u32,
    /// rtm_tos; 0: none.
    #[serde(default)]
    pub tos: u8,
    /// RTA_UID: the socket's owner.
    pub uid: Option<u32>,
    pub flow: Option<Connection>,
}

impl Question {
    pub fn to(to: IpAddr) -> Question {
        Question {
            to,
            from: None,
            oif: None,
            mark: 0,
            tos: 0,
            uid: None,
            flow: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Route(Matched),
    Local,
    /// No packet gets there: the kernel's words.
    Unreachable(String),
    NotAsked(String),
}

/// The FIB entry that a lookup matched (RTM_F_FIB_MATCH), with every leg that the kernel uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matched {
    pub table: u32,
    pub prefix: IpNet,
    pub metric: Option<u32>,
    /// Legs that are not RTNH_F_DEAD.
    pub legs: Vec<Leg>,
    /// Where packets are sent inside others: the first segments of SRv6.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<IpAddr>,
    /// RTA_PREFSRC of the entry: the address that the route gives to packets of sockets that are
    /// bound to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred: Option<IpAddr>,
    /// The address that the kernel chooses for them, by the route or by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leg {
    pub dev: IfName,
    pub gateway: Option<IpAddr>,
}

/// A link whose packets leave inside others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelPath {
    pub link: IfName,
    /// The link that it is tied to (IFLA_VXLAN_LINK and the like).
    pub below: Option<IfName>,
    #[serde(default)]
    pub remotes: Vec<HostPath>,
    pub unknown: Option<String>,
}

/// Addresses that a job needs the host to reach, besides the host's own: see `--peer-address`,
/// `--bootstrap-address`, `--rendezvous`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobAddresses {
    #[serde(default)]
    pub peers: Vec<IpAddr>,
    /// Own addresses that peers bootstrap from.
    #[serde(default)]
    pub bootstrap: Vec<IpAddr>,
    /// The store at which nodes meet, and this end's address.
    pub store: Option<(IpAddr, IpAddr)>,
}

impl JobAddresses {
    pub fn is_empty(&self) -> bool {
        *self == JobAddresses::default()
    }

    pub fn with(mut self, others: &JobAddresses) -> JobAddresses {
        let bootstrap = (&mut self.bootstrap, &others.bootstrap);
        for (have, more) in [(&mut self.peers, &others.peers), bootstrap] {
            let before = have.clone();
            have.extend(more.iter().filter(|a| !before.contains(a)));
        }
        self.store = self.store.or(others.store);
        self
    }
}

/// How the store at which nodes meet was reached, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreRoute {
    pub store: IpAddr,
    /// This end's address: its link must not move, whatever link the packets leave by.
    pub local: IpAddr,
    /// The index of the interface that packets between the two leave by, with all rules of routing.
    pub over: Option<u32>,
}
