//! What was observed in one network namespace of one host: facts, no decisions.
//!
//! `rdmaprep snapshot --json` prints this type, and `--snapshot FILE` reads it back. Live snapshots come from netlink,
//! NETLINK_RDMA and sysfs (`world/`), captured ones from a /sys tree alone; what a source does not tell is `None` or empty.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::ident::{BusId, Guid, HcaName, Hex, IfName, Mac};

/// Version of the JSON form; a reader refuses any other.
pub const SCHEMA: u32 = 1;

/// Everything observed in one pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `/proc/sys/kernel/random/boot_id`; empty for a captured tree.
    #[serde(default)]
    pub boot_id: String,
    /// Inode of the network namespace that was observed (nsfs); absent for a captured tree.
    #[serde(default)]
    pub netns: Option<u64>,
    /// Whether RDMA devices are shared by all network namespaces or belong to one (`rdma system`).
    #[serde(default)]
    pub rdma_mode: Option<RdmaMode>,
    /// `/dev/infiniband/rdma_cm`.
    #[serde(default)]
    pub rdma_cm: Option<CharDevice>,
    /// RDMA devices, by name.
    pub hcas: Vec<Hca>,
    /// Numbers of the verbs nodes that devices of other namespaces have, which only the exclusive mode hides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verbs_elsewhere: Vec<u32>,
    /// Network devices, by ifindex.
    pub netdevs: Vec<Netdev>,
    /// Routes of all tables, in the kernel's order.
    #[serde(default)]
    pub routes: Vec<Route>,
    /// Nexthop objects, by id.
    #[serde(default)]
    pub nexthops: Vec<Nexthop>,
    /// Policy rules of both families, in the kernel's order.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// `net/<family>/conf/{all,default}/<leaf>` of the sysctls that we touch, by that path; of a NIC's host, all defaults.
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
    /// PCI functions, by address.
    #[serde(default)]
    pub pci: Vec<PciFunction>,
    /// NUMA nodes, by number.
    #[serde(default)]
    pub numa_nodes: Vec<NumaNode>,
    /// The processor; absent where /sys does not tell.
    #[serde(default)]
    pub cpu: Option<Cpu>,
    /// What two sources told differently, or could not be read: one sentence each.
    #[serde(default)]
    pub warnings: Vec<String>,
}

impl Default for Snapshot {
    fn default() -> Self {
        Snapshot {
            schema: SCHEMA,
            boot_id: String::new(),
            netns: None,
            rdma_mode: None,
            rdma_cm: None,
            hcas: Vec::new(),
            verbs_elsewhere: Vec::new(),
            netdevs: Vec::new(),
            routes: Vec::new(),
            nexthops: Vec::new(),
            rules: Vec::new(),
            sysctls: BTreeMap::new(),
            pci: Vec::new(),
            numa_nodes: Vec::new(),
            cpu: None,
            warnings: Vec::new(),
        }
    }
}

/// RDMA_NLDEV_SYS_ATTR_NETNS_MODE (include/uapi/rdma/rdma_netlink.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RdmaMode {
    /// Every namespace sees every RDMA device.
    Shared,
    /// An RDMA device belongs to one namespace.
    Exclusive,
}

/// A character device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CharDevice {
    /// Name below `/dev/infiniband`: `uverbs0`, `umad0`, `rdma_cm`.
    pub name: String,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// How an RDMA device talks (RDMA_NLDEV_ATTR_DEV_PROTOCOL): `ib`, `roce`, `iw`, `opa`, `usnic`.
pub type Protocol = String;

/// An RDMA device: what NCCL and libibverbs call an HCA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hca {
    /// ibdev name.
    pub name: HcaName,
    /// RDMA_NLDEV_ATTR_DEV_INDEX: the kernel's handle for requests; changes when a device is re-created.
    #[serde(default)]
    pub index: Option<u32>,
    /// GUID of the node; all-zero on some VFs.
    #[serde(default)]
    pub node_guid: Option<Guid>,
    /// GUID of the card; shared by the functions of a dual-port card.
    #[serde(default)]
    pub sys_image_guid: Option<Guid>,
    /// Firmware version as printed by the driver.
    #[serde(default)]
    pub firmware: Option<String>,
    /// Kernel driver of the parent PCI function, or `rxe`/`siw` for a software device.
    #[serde(default)]
    pub driver: Option<String>,
    /// Protocol told by nldev; absent for a captured tree.
    #[serde(default)]
    pub protocol: Option<Protocol>,
    /// Parent PCI function; absent for software devices.
    #[serde(default)]
    pub pci: Option<BusId>,
    /// NUMA node of the parent; −1 where the platform does not say.
    #[serde(default)]
    pub numa: Option<i32>,
    /// Its verbs device node.
    #[serde(default)]
    pub uverbs: Option<CharDevice>,
    /// Its management device nodes, one per port.
    #[serde(default)]
    pub umad: Vec<CharDevice>,
    /// Ports, by number.
    pub ports: Vec<Port>,
    /// Facts on which netlink and sysfs disagree; a device with any is not moved.
    #[serde(default)]
    pub conflicts: Vec<String>,
}

impl Hca {
    /// Whether this is soft-RoCE, whose link dies when its netdev changes namespace.
    pub fn is_rxe(&self) -> bool {
        self.driver.as_deref() == Some("rxe")
    }
}

/// One port of an HCA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Port number, from 1.
    pub number: u32,
    /// Logical state in capitals: `ACTIVE`, `DOWN`, `INIT`, `ARMED`; absent where unreadable.
    #[serde(default)]
    pub state: Option<String>,
    /// `InfiniBand`, `Ethernet`, or what the driver prints (`Unknown` on EFA).
    #[serde(default)]
    pub link_layer: Option<String>,
    /// Rate as sysfs prints it: `100 Gb/sec (4X EDR)`.
    #[serde(default)]
    pub rate: Option<String>,
    /// The netdev behind the port by kernel facts (nldev, else the function's netdev with the port's dev_port).
    #[serde(default)]
    pub netdev: Option<IfName>,
    /// Used entries of the port's GID table.
    #[serde(default)]
    pub gids: Vec<Gid>,
}

/// One used entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gid {
    /// Index in the table.
    pub index: u32,
    /// The address; IPv4 appears IPv4-mapped (`::ffff:a.b.c.d`).
    pub address: Ipv6Addr,
    /// Absent where `gid_attrs/types` could not be read.
    #[serde(default)]
    pub kind: Option<GidKind>,
    /// `gid_attrs/ndevs`: the netdev that the entry belongs to, by its current name.
    #[serde(default)]
    pub netdev: Option<IfName>,
}

impl Gid {
    /// The GID as the IP address that it was made from.
    pub fn ip(&self) -> IpAddr {
        match self.address.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(self.address),
        }
    }
}

/// `gid_attrs/types/N`: the kernel's words (drivers/infiniband/core/cache.c, `gid_type_str`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GidKind {
    /// InfiniBand, or RoCE v1: the kernel has one word for both.
    #[serde(rename = "IB/RoCE v1")]
    IbRoceV1,
    /// RoCE v2 (UDP port 4791).
    #[serde(rename = "RoCE v2")]
    RoceV2,
}

/// A network device with the state that a namespace change destroys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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

/// A queueing discipline (RTM_NEWQDISC) that was put there, and not by the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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

/// A route (RTM_NEWROUTE) of any table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// RTA_DST; a default route is `0.0.0.0/0` or `::/0`.
    pub destination: IpNet,
    /// RTA_SRC (IPv6 subtrees).
    #[serde(default)]
    pub source: Option<IpNet>,
    /// 254 is main, 255 local.
    pub table: u32,
    /// RTPROT_*: 2 kernel, 3 boot, 4 static, 16 DHCP.
    #[serde(default)]
    pub protocol: u8,
    /// RT_SCOPE_*.
    #[serde(default)]
    pub scope: u8,
    /// RTN_*: 1 unicast, 2 local, 3 broadcast.
    #[serde(default)]
    pub kind: u8,
    /// Type of service.
    #[serde(default)]
    pub tos: u8,
    /// RTA_PRIORITY.
    #[serde(default)]
    pub metric: Option<u32>,
    /// RTA_PREFSRC.
    #[serde(default)]
    pub prefsrc: Option<IpAddr>,
    /// Where it leads: one leg, or several of a multipath route; none for blackhole and the like.
    #[serde(default)]
    pub hops: Vec<Hop>,
    /// Attributes that we carry without interpreting them, by RTA_* number; [`RTA_NH_ID`] and [`RTA_EXPIRES`], too.
    #[serde(default)]
    pub other: BTreeMap<u16, Hex>,
}

/// The nexthop object that a route goes through; its legs are told besides.
pub const RTA_NH_ID: u16 = 30;
/// The seconds left of a route that ends.
pub const RTA_EXPIRES: u16 = 23;

/// One leg of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hop {
    /// RTA_OIF, by name.
    #[serde(default)]
    pub dev: Option<IfName>,
    /// RTA_GATEWAY or RTA_VIA.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
    /// RTNH_F_* that a user can set (onlink, pervasive).
    #[serde(default)]
    pub flags: u8,
    /// rtnh_hops: the weight less one.
    #[serde(default)]
    pub weight: u8,
    /// What one of several legs has besides (encapsulation, realms), by RTA_* number; a single leg has it in the route's.
    #[serde(default)]
    pub other: BTreeMap<u16, Hex>,
}

/// A nexthop object (RTM_NEWNEXTHOP): one leg that routes name by its number, or a group of such.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nexthop {
    /// NHA_ID.
    pub id: u32,
    /// 4 or 6; 0 of a group.
    #[serde(default)]
    pub family: u8,
    /// RTPROT_*.
    #[serde(default)]
    pub protocol: u8,
    /// RTNH_F_* that a user can set (onlink).
    #[serde(default)]
    pub flags: u32,
    /// NHA_OIF, by name.
    #[serde(default)]
    pub dev: Option<IfName>,
    /// NHA_GATEWAY.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
    /// NHA_BLACKHOLE.
    #[serde(default)]
    pub blackhole: bool,
    /// NHA_GROUP: its members.
    #[serde(default)]
    pub group: Vec<Member>,
    /// Attributes that we carry without interpreting them, by NHA_* number.
    #[serde(default)]
    pub other: BTreeMap<u16, Hex>,
}

/// A member of a group of nexthop objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// NHA_ID of the object.
    pub id: u32,
    /// Its share, from 1.
    pub weight: u16,
}

/// A policy rule (RTM_NEWRULE).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// 4 or 6.
    pub family: u8,
    /// FRA_PRIORITY.
    pub priority: u32,
    /// `from`; absent: all.
    #[serde(default)]
    pub source: Option<IpNet>,
    /// `to`; absent: all.
    #[serde(default)]
    pub destination: Option<IpNet>,
    /// FRA_IIFNAME.
    #[serde(default)]
    pub iif: Option<String>,
    /// FRA_OIFNAME.
    #[serde(default)]
    pub oif: Option<String>,
    /// FRA_TABLE.
    pub table: u32,
    /// FR_ACT_*: 1 to table.
    pub action: u8,
    /// Type of service.
    #[serde(default)]
    pub tos: u8,
    /// FIB_RULE_* flags that a user can set (invert).
    #[serde(default)]
    pub flags: u32,
    /// Attributes that we carry without interpreting them, by FRA_* number.
    #[serde(default)]
    pub other: BTreeMap<u16, Hex>,
}

/// A neighbour that somebody has set, not learned: permanent, NOARP, managed or proxy (RTM_NEWNEIGH).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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

/// A PCI function as sysfs shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PciFunction {
    /// Address.
    pub address: BusId,
    /// 24-bit class: `0x020000` Ethernet, `0x060400` bridge, `0x03….` display.
    pub class: u32,
    /// Vendor id.
    #[serde(default)]
    pub vendor: u16,
    /// Device id.
    #[serde(default)]
    pub device: u16,
    /// Subsystem vendor id.
    #[serde(default)]
    pub subsystem_vendor: u16,
    /// Subsystem device id.
    #[serde(default)]
    pub subsystem_device: u16,
    /// Bound driver.
    #[serde(default)]
    pub driver: Option<String>,
    /// −1 where the platform does not say.
    #[serde(default)]
    pub numa: Option<i32>,
    /// The bridge above; absent on a root bus.
    #[serde(default)]
    pub bridge: Option<BusId>,
    /// `current_link_speed`, verbatim: `32.0 GT/s PCIe`.
    #[serde(default)]
    pub link_speed: Option<String>,
    /// `current_link_width` in lanes.
    #[serde(default)]
    pub link_width: Option<u32>,
    /// `max_link_speed`, verbatim.
    #[serde(default)]
    pub max_link_speed: Option<String>,
    /// `max_link_width` in lanes.
    #[serde(default)]
    pub max_link_width: Option<u32>,
    /// The PF of a VF.
    #[serde(default)]
    pub physfn: Option<BusId>,
}

/// A NUMA node (`devices/system/node/nodeN`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumaNode {
    /// Its number.
    pub id: i32,
    /// Its processors as a mask, verbatim: 32 bits in hex between commas, the highest first.
    pub cpumap: String,
}

/// What the kernel knows the processors by (`devices/system/cpu/modalias`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// `x86_64`, `arm64`, `ppc64`: NCCL's words; else the kernel's.
    pub arch: String,
    /// `GenuineIntel`, `AuthenticAMD`, … as CPUID spells it; x86 only.
    #[serde(default)]
    pub vendor: Option<String>,
    /// Family as /proc/cpuinfo counts it; x86 only.
    #[serde(default)]
    pub family: Option<u32>,
    /// Model as /proc/cpuinfo counts it; x86 only.
    #[serde(default)]
    pub model: Option<u32>,
}

impl PciFunction {
    /// Whether this is a GPU: a display controller of a vendor that makes compute GPUs, or a processing accelerator of AMD.
    pub fn is_gpu(&self) -> bool {
        matches!((self.class >> 16, self.vendor), (0x03, 0x10de | 0x1002 | 0x8086) | (0x12, 0x1002))
    }

    /// Whether this is a PCI-to-PCI bridge or switch port.
    pub fn is_bridge(&self) -> bool {
        self.class >> 8 == 0x0604
    }
}

impl Route {
    /// The route with just these of its legs. One that remains alone has no weight, and what it had besides is the route's.
    pub fn with(&self, mut hops: Vec<Hop>) -> Route {
        let mut other = self.other.clone();
        if let [only] = hops.as_mut_slice() {
            only.weight = 0;
            other.append(&mut only.other);
        }
        Route { hops, other, ..self.clone() }
    }

    /// The nexthop object that it goes through.
    pub fn nexthop(&self) -> Option<u32> {
        let Hex(id) = self.other.get(&RTA_NH_ID)?;
        Some(u32::from_ne_bytes(id.as_slice().try_into().ok()?))
    }
}

impl Netdev {
    /// Whether that is its name, or one of its alternative names: the kernel gives each name once.
    pub fn is_called(&self, name: &str) -> bool {
        self.name.as_str() == name || self.altnames.iter().any(|a| a == name)
    }
}

impl Snapshot {
    /// The netdev of that name.
    pub fn netdev(&self, name: &IfName) -> Option<&Netdev> {
        self.netdevs.iter().find(|n| n.name == *name)
    }

    /// The HCA of that name.
    pub fn hca(&self, name: &HcaName) -> Option<&Hca> {
        self.hcas.iter().find(|h| h.name == *name)
    }

    /// Routes with a leg over that netdev.
    pub fn routes_of<'a>(&'a self, name: &'a IfName) -> impl Iterator<Item = &'a Route> {
        self.routes.iter().filter(move |r| r.hops.iter().any(|h| h.dev.as_ref() == Some(name)))
    }

    /// GPUs among the PCI functions.
    pub fn gpus(&self) -> impl Iterator<Item = &PciFunction> {
        self.pci.iter().filter(|f| f.is_gpu())
    }
}
