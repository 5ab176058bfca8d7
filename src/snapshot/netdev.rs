//! Network devices, with what a namespace change takes from them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::ident::{BusId, Hex, IfName, Mac};

/// A network device with the state that a namespace change destroys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Netdev {
    /// Name.
    pub name: IfName,
    /// Index in its namespace.
    pub ifindex: u32,
    /// IFLA_INFO_KIND: `veth`, `bond`, `vlan`, `bridge`, …; absent for hardware.
    #[serde(default)]
    pub kind: Option<String>,
    /// ARPHRD_*: 1 Ethernet, 32 InfiniBand, 772 loopback.
    #[serde(default)]
    pub link_type: u16,
    /// Current address.
    #[serde(default)]
    pub mac: Option<Mac>,
    /// IFLA_PERM_ADDRESS.
    #[serde(default)]
    pub permanent_mac: Option<Mac>,
    /// MTU in bytes.
    #[serde(default)]
    pub mtu: u32,
    /// Transmit queue length in packets.
    #[serde(default)]
    pub txqlen: u32,
    /// Device group.
    #[serde(default)]
    pub group: u32,
    /// IFLA_IFALIAS.
    #[serde(default)]
    pub alias: Option<String>,
    /// IFLA_PROP_LIST's alternative names.
    #[serde(default)]
    pub altnames: Vec<String>,
    /// IFF_UP: the administrator's wish.
    #[serde(default)]
    pub up: bool,
    /// IFF_RUNNING: NCCL ≥ 2.28.3 demands it.
    #[serde(default)]
    pub running: bool,
    /// IFF_PROMISC was set by the administrator.
    #[serde(default)]
    pub promisc: bool,
    /// IFF_ALLMULTI was set by the administrator.
    #[serde(default)]
    pub allmulti: bool,
    /// RFC 2863 state: `up`, `down`, `lowerlayerdown`, `unknown`.
    #[serde(default)]
    pub operstate: Option<String>,
    /// Bond, bridge or team that holds it.
    #[serde(default)]
    pub master: Option<IfName>,
    /// Ifindex of the lower device (VLAN, macvlan), or of a veth's peer; absent where that is in another namespace.
    #[serde(default)]
    pub link: Option<u32>,
    /// IFLA_INFO_DATA of a VLAN, macvlan, ipvlan, IPoIB interface or bond, as far as the kernel takes it back: with its kind and the
    /// device below, what makes it anew.
    #[serde(default)]
    pub made: Option<Hex>,
    /// Queueing discipline at the root.
    #[serde(default)]
    pub qdisc: Option<String>,
    /// Disciplines that were put there, at the root and where packets arrive; absent where nobody tells or compares them.
    #[serde(default)]
    pub qdiscs: Option<Vec<Qdisc>>,
    /// What of its disciplines a move takes away for good, in words.
    #[serde(default)]
    pub qdisc_lost: Option<String>,
    /// Whether an XDP program is attached.
    #[serde(default)]
    pub xdp: bool,
    /// Parent PCI function.
    #[serde(default)]
    pub pci: Option<BusId>,
    /// Kernel driver of the parent.
    #[serde(default)]
    pub driver: Option<String>,
    /// Port of the function that it sits on, from 0 (`class/net/*/dev_port`).
    #[serde(default)]
    pub dev_port: Option<u32>,
    /// IFLA_INET6_TOKEN: the host's part of addresses that come by router advertisements.
    #[serde(default)]
    pub token: Option<Ipv6Addr>,
    /// Addresses of both families, in the kernel's order.
    #[serde(default)]
    pub addresses: Vec<Address>,
    /// Neighbours that somebody has set.
    #[serde(default)]
    pub neighbours: Vec<Neighbour>,
    /// Per-device sysctls by `ipv4/conf/<leaf>`, `ipv6/conf/<leaf>`, `ipv4/neigh/<leaf>`, `ipv6/neigh/<leaf>`.
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
}

impl Netdev {
    /// Whether that is its name, or one of its alternative names: the kernel gives each name once.
    pub fn is_called(&self, name: &str) -> bool {
        self.name.as_str() == name || self.altnames.iter().any(|a| a == name)
    }
}

/// A queueing discipline (RTM_NEWQDISC) that was put there, and not by the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Qdisc {
    /// TCA_KIND: `tbf`, `fq`, `clsact`, …
    pub kind: String,
    /// Its number, in the upper half.
    pub handle: u32,
    /// Where it is: 0xffffffff the root, 0xfffffff1 where packets arrive.
    pub parent: u32,
    /// TCA_OPTIONS, which we carry without interpreting it.
    #[serde(default)]
    pub options: Option<Hex>,
}

/// An address of a netdev (RTM_NEWADDR).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Address {
    /// IFA_LOCAL, or IFA_ADDRESS where that is absent.
    pub address: IpAddr,
    /// Prefix length in bits.
    pub prefix: u8,
    /// IFA_ADDRESS where it differs from IFA_LOCAL: the far end of a point-to-point link.
    #[serde(default)]
    pub peer: Option<IpAddr>,
    /// IPv4 only.
    #[serde(default)]
    pub broadcast: Option<IpAddr>,
    /// IPv4 only.
    #[serde(default)]
    pub label: Option<String>,
    /// RT_SCOPE_*: 0 global, 253 link, 254 host.
    #[serde(default)]
    pub scope: u8,
    /// IFA_FLAGS (include/uapi/linux/if_addr.h).
    #[serde(default)]
    pub flags: u32,
    /// Seconds left; absent: forever.
    #[serde(default)]
    pub valid_lft: Option<u32>,
    /// Seconds left as a preferred source; absent: forever.
    #[serde(default)]
    pub preferred_lft: Option<u32>,
    /// IFA_RT_PRIORITY: metric of the prefix route.
    #[serde(default)]
    pub metric: Option<u32>,
    /// IFA_PROTO: who made it.
    #[serde(default)]
    pub protocol: Option<u8>,
}

/// A neighbour that somebody has set, not learned: permanent, NOARP, managed or proxy (RTM_NEWNEIGH).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Neighbour {
    /// NDA_DST.
    pub address: IpAddr,
    /// NDA_LLADDR.
    #[serde(default)]
    pub mac: Option<Mac>,
    /// NTF_PROXY: we answer for it.
    #[serde(default)]
    pub proxy: bool,
    /// NDA_PROTOCOL.
    #[serde(default)]
    pub protocol: Option<u8>,
    /// NTF_ROUTER.
    #[serde(default)]
    pub router: bool,
    /// NUD_NOARP: valid for ever as a permanent one, but not in the way of a probe.
    #[serde(default)]
    pub noarp: bool,
    /// NTF_EXT_MANAGED: the kernel keeps looking for its link-layer address, which is none of the settings then.
    #[serde(default)]
    pub managed: bool,
}
