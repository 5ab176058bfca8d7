//! Network devices, with what a namespace change takes from them.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use super::SysctlValues;
use crate::ids::{BusId, Hex, IfName, Mac};
use crate::link_kind::LinkKind;

/// A device setting that its driver does not report now, such as the speed of a link without a
/// carrier: it equals every other.
pub const UNTOLD: &str = "?";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Netdev {
    pub name: IfName,
    pub ifindex: u32,
    /// IFLA_INFO_KIND: `veth`, `bond`, `vlan`, `bridge`, …; absent for hardware.
    pub kind: Option<String>,
    /// ARPHRD_*: 1 Ethernet, 32 InfiniBand, 772 loopback.
    #[serde(default)]
    pub link_type: u16,
    pub mac: Option<Mac>,
    /// IFLA_PERM_ADDRESS.
    pub permanent_mac: Option<Mac>,
    #[serde(default)]
    pub mtu: u32,
    /// Transmit queue length in packets.
    #[serde(default)]
    pub txqlen: u32,
    #[serde(default)]
    pub group: u32,
    pub alias: Option<String>,
    #[serde(default)]
    pub altnames: Vec<String>,
    /// IFF_UP: the administrator's wish.
    #[serde(default)]
    pub up: bool,
    /// IFF_RUNNING: NCCL ≥ 2.28.3 demands it.
    #[serde(default)]
    pub running: bool,
    /// IFF_PROMISC as the administrator set it; `allmulti` likewise.
    #[serde(default)]
    pub promisc: bool,
    #[serde(default)]
    pub allmulti: bool,
    /// What else its owner sets; absent where that is not recorded, and not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<LinkOptions>,
    /// RFC 2863 state: `up`, `down`, `lowerlayerdown`, `unknown`.
    pub operstate: Option<String>,
    pub master: Option<IfName>,
    /// Ifindex of the lower device (VLAN, macvlan), or of a veth's peer; absent where that is in
    /// another namespace.
    pub link: Option<u32>,
    /// Indexes of all devices of this namespace that it sits on or sends through: `link`, and what
    /// the link attributes of its kind and sysfs name. Not the peer of a pair, and not a master's
    /// members, which name it themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lowers: Vec<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<Tunnel>,
    /// IFLA_INFO_DATA of a VLAN, macvlan, ipvlan, IPoIB interface or bond, as far as the kernel
    /// takes it back: with its kind and the device below, enough to create it again.
    pub made: Option<Hex>,
    pub qdisc: Option<String>,
    /// Disciplines that were put there, at the root and where packets arrive; absent where they
    /// were not observed.
    pub qdiscs: Option<Vec<Qdisc>>,
    /// What of its disciplines a move takes away for good, in words.
    pub qdisc_lost: Option<String>,
    #[serde(default)]
    pub xdp: bool,
    /// BPF programs at its hooks, in the order in which they run; absent where they are not
    /// recorded, and not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programs: Option<Vec<Program>>,
    pub pci: Option<BusId>,
    pub driver: Option<String>,
    /// Port of the function that it sits on, from 0 (`class/net/*/dev_port`).
    pub dev_port: Option<u32>,
    /// Of hardware its queues to receive: a driver opens as many channels when the link goes up,
    /// one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<u32>,
    /// IFLA_INET6_TOKEN: the host's part of addresses that come by router advertisements.
    pub token: Option<Ipv6Addr>,
    /// What can be set on the device itself and stays there over a move, by name:
    /// `ethtool rings rx`, `sysfs queues/rx-*/rps_cpus`; absent where it was not looked at, or is
    /// not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<SysctlValues>,
    /// Of a NIC's state: whether the kernel had made temporary addresses, which it lacks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub temporary: bool,
    /// Addresses of both families, in the kernel's order.
    #[serde(default)]
    pub addresses: Vec<Address>,
    #[serde(default)]
    pub neighbours: Vec<Neighbour>,
    #[serde(default)]
    pub sysctls: SysctlValues,
}

impl Netdev {
    pub fn new(name: IfName, ifindex: u32) -> Netdev {
        Netdev {
            name,
            ifindex,
            kind: None,
            link_type: 0,
            mac: None,
            permanent_mac: None,
            mtu: 0,
            txqlen: 0,
            group: 0,
            alias: None,
            altnames: Vec::new(),
            up: false,
            running: false,
            promisc: false,
            allmulti: false,
            options: None,
            operstate: None,
            master: None,
            link: None,
            lowers: Vec::new(),
            tunnel: None,
            made: None,
            qdisc: None,
            qdiscs: None,
            qdisc_lost: None,
            xdp: false,
            programs: None,
            pci: None,
            driver: None,
            dev_port: None,
            channels: None,
            token: None,
            device: None,
            temporary: false,
            addresses: Vec::new(),
            neighbours: Vec::new(),
            sysctls: SysctlValues::default(),
        }
    }

    /// Its kind, where it has no hardware, and none below it.
    pub fn virtual_kind(&self) -> Option<&str> {
        const ABOVE: [&str; 7] = [
            "vlan", "bond", "team", "ipoib", "macvlan", "ipvlan", "macsec",
        ];
        let kind = self.kind.as_deref()?;
        (self.pci.is_none() && !ABOVE.contains(&kind)).then_some(kind)
    }

    /// Whether its kind is a known one that is like that.
    pub fn has_kind(&self, like: fn(&LinkKind) -> bool) -> bool {
        self.kind
            .as_deref()
            .and_then(LinkKind::of)
            .is_some_and(like)
    }

    pub fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|a| a.address == address)
    }

    /// The address that would expire where nothing renews it.
    pub fn expiring(&self) -> Option<&Address> {
        let mut own = self.addresses.iter().filter(|a| !a.is_temporary());
        own.find(|a| a.valid_lft.is_some())
    }

    pub fn is_paired(&self) -> bool {
        self.has_kind(LinkKind::is_paired)
    }

    /// A routing table with a name (Documentation/networking/vrf.rst).
    pub fn is_vrf(&self) -> bool {
        self.kind.as_deref() == Some("vrf")
    }

    /// Whether that is its name, or one of its alternative names: the kernel gives each name once.
    pub fn is_called(&self, name: &str) -> bool {
        self.name.as_str() == name || self.altnames.iter().any(|a| a == name)
    }

    /// Whether it knows that neighbour, by whatever address of the link.
    pub fn has_neighbour_of(&self, neighbour: &Neighbour) -> bool {
        let mut all = self.neighbours.iter();
        all.any(|n| (n.address, n.proxy) == (neighbour.address, neighbour.proxy))
    }
}

/// A link of another network namespace that sits on netdevs of this one: a pod's macvlan, ipvlan,
/// VLAN, vxlan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stranger {
    pub name: IfName,
    pub ifindex: u32,
    pub kind: Option<String>,
    /// Its address now, which no record keeps.
    #[serde(skip)]
    pub mac: Option<Mac>,
    /// Indexes here of what it sits on.
    pub lowers: Vec<u32>,
    /// Inode of its namespace.
    pub netns: u64,
    /// What keeps that namespace: a process or a name; empty where neither is known.
    #[serde(default)]
    pub keeper: String,
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stranger {
            name,
            kind,
            netns,
            keeper,
            ..
        } = self;
        let kind = kind.as_deref().unwrap_or("netdev");
        let keeper = if keeper.is_empty() {
            String::new()
        } else {
            format!(", {keeper}")
        };
        write!(
            f,
            "{name} ({kind}) of another network namespace ({netns}{keeper})"
        )
    }
}

/// The ends of a tunnel (vxlan, geneve, GRE, IPIP, …), as far as they are set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunnel {
    pub local: Option<IpAddr>,
    /// The far end: a host, or a multicast group.
    pub remote: Option<IpAddr>,
}

/// What an owner sets on a link by route netlink and a move keeps, but for what [`Netdev`] has by
/// itself; absent where the kernel does not report it, or where it follows another device. The
/// sizes are IFLA_GSO_MAX_SIZE and the like, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkOptions {
    /// Those of [`LinkOptions::FLAGS`].
    pub flags: u32,
    /// IFLA_LINKMODE: 1 keeps the link dormant, so that it does not run.
    pub mode: Option<u8>,
    pub broadcast: Option<Mac>,
    pub gso_max_size: Option<u32>,
    pub gso_max_segs: Option<u32>,
    pub gro_max_size: Option<u32>,
    pub gso_ipv4_max_size: Option<u32>,
    pub gro_ipv4_max_size: Option<u32>,
}

impl LinkOptions {
    /// The flags that a user sets (__dev_change_flags() in net/core/dev.c) besides promiscuity:
    /// IFF_DEBUG, NOTRAILERS, NOARP, MULTICAST, PORTSEL, AUTOMEDIA, DYNAMIC
    /// (include/uapi/linux/if.h).
    pub const FLAGS: u32 = 0x04 | 0x20 | 0x80 | 0x1000 | 0x2000 | 0x4000 | 0x8000;
    pub const NOARP: u32 = 0x80;
    pub const MULTICAST: u32 = 0x1000;

    /// Without the sizes of packets that are cut and joined: what is made on other devices takes
    /// them from these.
    pub fn without_sizes(self) -> LinkOptions {
        LinkOptions {
            flags: self.flags,
            mode: self.mode,
            broadcast: self.broadcast,
            ..LinkOptions::default()
        }
    }

    pub fn sizes(&self) -> [Option<u32>; 5] {
        [
            self.gso_max_size,
            self.gso_max_segs,
            self.gro_max_size,
            self.gso_ipv4_max_size,
            self.gro_ipv4_max_size,
        ]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramHook {
    XdpDriver,
    /// XDP, in the kernel's own code.
    XdpGeneric,
    XdpHardware,
    TcxIngress,
    TcxEgress,
}

impl fmt::Display for ProgramHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ProgramHook::XdpDriver => "XDP",
            ProgramHook::XdpGeneric => "generic XDP",
            ProgramHook::XdpHardware => "hardware XDP",
            ProgramHook::TcxIngress => "tcx ingress",
            ProgramHook::TcxEgress => "tcx egress",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Program {
    pub hook: ProgramHook,
    /// Its number, which no other program of this boot has had.
    pub id: u32,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} program {}", self.hook, self.id)
    }
}

/// A queueing discipline (RTM_NEWQDISC) that was put there, and not by the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Qdisc {
    pub kind: String,
    /// Its number, in the upper half.
    pub handle: u32,
    /// Where it is: 0xffffffff the root, 0xfffffff1 where packets arrive.
    pub parent: u32,
    /// TCA_OPTIONS, which we carry without interpreting it.
    pub options: Option<Hex>,
}

/// An address of a netdev (RTM_NEWADDR).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Address {
    /// IFA_LOCAL, or IFA_ADDRESS where that is absent.
    pub address: IpAddr,
    pub prefix: u8,
    /// IFA_ADDRESS where it differs from IFA_LOCAL: the far end of a point-to-point link.
    pub peer: Option<IpAddr>,
    /// IPv4 only, as the label.
    pub broadcast: Option<IpAddr>,
    pub label: Option<String>,
    /// RT_SCOPE_*: 0 global, 253 link, 254 host.
    #[serde(default)]
    pub scope: u8,
    #[serde(default)]
    pub flags: u32,
    /// Seconds left, as for `preferred_lft`; absent: forever.
    pub valid_lft: Option<u32>,
    pub preferred_lft: Option<u32>,
    /// IFA_RT_PRIORITY: metric of the prefix route.
    pub metric: Option<u32>,
    /// IFA_PROTO: the program that added it.
    pub protocol: Option<u8>,
}

impl Address {
    /// The flags that a user sets; the others (permanent, tentative, secondary, …) are the kernel's
    /// bookkeeping (include/uapi/linux/if_addr.h): NODAD, OPTIMISTIC, HOMEADDRESS, MANAGETEMPADDR,
    /// NOPREFIXROUTE, MCAUTOJOIN.
    pub const SETTINGS: u32 = 0x02 | 0x04 | 0x10 | 0x100 | 0x200 | 0x400;

    /// IFA_F_SECONDARY, which is IFA_F_TEMPORARY in IPv6 (include/uapi/linux/if_addr.h).
    pub const SECONDARY: u32 = 0x01;

    /// Whether the kernel made it for privacy, from one that manages such (ipv6_create_tempaddr()
    /// in net/ipv6/addrconf.c). It takes another one in its place after some time, and no program
    /// can add one.
    pub fn is_temporary(&self) -> bool {
        self.address.is_ipv6() && self.flags & Self::SECONDARY != 0
    }
}

/// A neighbour that was set, not learned by the kernel: permanent, NOARP, managed, proxy or learned
/// by a program (RTM_NEWNEIGH).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Neighbour {
    pub address: IpAddr,
    pub mac: Option<Mac>,
    /// NTF_PROXY: we answer for it.
    #[serde(default)]
    pub proxy: bool,
    pub protocol: Option<u8>,
    #[serde(default)]
    pub router: bool,
    /// NUD_NOARP: valid for ever as a permanent one, but not in the way of a probe.
    #[serde(default)]
    pub noarp: bool,
    /// NTF_EXT_MANAGED: the kernel keeps looking for its link-layer address, which is none of the
    /// settings then.
    #[serde(default)]
    pub managed: bool,
    /// NTF_EXT_LEARNED: a program on the host keeps it, and the kernel does not collect it as
    /// garbage.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub extern_learn: bool,
    /// Such a one that is not permanent: the kernel asks for it again when it is used after some
    /// time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
}
