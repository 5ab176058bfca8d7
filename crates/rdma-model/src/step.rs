//! One effect on the kernel as data, and what a NIC's network state takes to set up: shared by plan
//! and restore.

mod display;
mod gateways;
mod implicit;
mod nic_state;
mod order;
mod settings;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::ids::{HcaName, Hex, IfName, Mac};
use crate::snapshot::{
    Address, CharDevice, Neighbour, Nexthop, Program, Qdisc, Route, Rule, SysctlValues,
};
pub use gateways::{ONLINK, is_temporary, links_to_gateways};
pub use implicit::{
    DISABLE_IPV6, chosen_by_manager, derived, generated, hears_routers, is_made, kernel_address,
    kernel_made, lacks_ipv6, learned_from_router, lost_link_local, makes_by_mac, makes_by_secret,
    of_generated, prefix_route,
};
pub use nic_state::{NetdevAddresses, NicState};
pub use order::{
    DADFAILED, Leaving, NODAD, OPTIMISTIC, configure, connect, leave_groups, move_all,
};
pub use settings::Settings;

/// IFA_F_NOPREFIXROUTE (include/uapi/linux/if_addr.h).
pub const IFA_F_NOPREFIXROUTE: u32 = 0x200;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The namespace that the NICs belong to.
    Host,
    Inside,
}

/// What makes a netdev that is no hardware: a VLAN, macvlan, ipvlan or IPoIB interface, or a bond.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualLink {
    pub kind: String,
    /// IFLA_INFO_DATA: see [`crate::snapshot::Netdev::made`].
    pub data: Hex,
    /// The device below; absent for a bond.
    pub over: Option<IfName>,
    /// Its link-layer address; absent: that of the device below.
    pub mac: Option<Mac>,
    /// Its index, if free.
    pub ifindex: Option<u32>,
}

/// One effect on the kernel. `side` is the namespace, `dev` the netdev's name there at that moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    RdmaLinkDelete {
        side: Side,
        hca: HcaName,
    },
    /// Makes a soft-RoCE link; with `uverbs`, it must get that device node.
    RdmaLinkAdd {
        side: Side,
        hca: HcaName,
        dev: IfName,
        uverbs: Option<CharDevice>,
    },
    /// Takes an RDMA device from `from` to the other side, where devices belong to one namespace
    /// each; with `uverbs`, it must have that device node there.
    RdmaMove {
        from: Side,
        hca: HcaName,
        uverbs: Option<CharDevice>,
    },
    /// One link message that takes the NIC from `from` to the other side, there as `name` (and
    /// `ifindex`, if free).
    Move {
        from: Side,
        dev: IfName,
        name: IfName,
        ifindex: Option<u32>,
    },
    /// Gives an RDMA device on the host the name that it had.
    RdmaRename {
        hca: HcaName,
        name: HcaName,
    },
    /// Makes a netdev that is no hardware, or gives one that is there the same properties.
    Make {
        side: Side,
        dev: IfName,
        made: VirtualLink,
    },
    Delete {
        side: Side,
        dev: IfName,
    },
    Enslave {
        side: Side,
        dev: IfName,
        master: IfName,
    },
    Rename {
        side: Side,
        dev: IfName,
        name: IfName,
    },
    /// Deletes alternative names: a container can give a NIC hundreds.
    AltnamesDelete {
        side: Side,
        dev: IfName,
        altnames: Vec<String>,
    },
    AltnameAdd {
        side: Side,
        dev: IfName,
        altname: String,
    },
    /// Frees the link from a bond or bridge that it did not have on the host.
    Release {
        side: Side,
        dev: IfName,
    },
    XdpDetach {
        side: Side,
        dev: IfName,
    },
    /// Detaches a BPF program that it did not have on the host.
    ProgramDetach {
        side: Side,
        dev: IfName,
        program: Program,
    },
    /// Attaches a BPF program again that a container detached, before that one or behind all; the
    /// program must still exist.
    ProgramAttach {
        side: Side,
        dev: IfName,
        program: Program,
        before: Option<u32>,
    },
    /// Writes per-device sysctls, by the keys of [`crate::snapshot::Netdev::sysctls`]; `dev` may be
    /// `all`.
    Sysctls {
        side: Side,
        dev: IfName,
        values: SysctlValues,
    },
    /// Sets what the kernel keeps over a move but a container may have changed.
    Settings {
        side: Side,
        dev: IfName,
        settings: Settings,
    },
    /// Sets what differs of these on the device itself, by the keys of
    /// [`crate::snapshot::Netdev::device`].
    Device {
        side: Side,
        dev: IfName,
        values: BTreeMap<String, String>,
    },
    QdiscAdd {
        side: Side,
        dev: IfName,
        qdisc: Qdisc,
    },
    /// Removes a queueing discipline, so that the kernel attaches its default.
    QdiscDelete {
        side: Side,
        dev: IfName,
        qdisc: Qdisc,
    },
    Token {
        side: Side,
        dev: IfName,
        token: Option<Ipv6Addr>,
    },
    Mac {
        side: Side,
        dev: IfName,
        mac: Mac,
    },
    AddressAdd {
        side: Side,
        dev: IfName,
        address: Address,
    },
    AddressDelete {
        side: Side,
        dev: IfName,
        address: Address,
    },
    Link {
        side: Side,
        dev: IfName,
        up: bool,
    },
    RouteAdd {
        side: Side,
        route: Route,
    },
    /// Adds those legs of an IPv6 route that are not there.
    LegsAdd {
        side: Side,
        route: Route,
    },
    /// Adds an IPv4 route before equal ones.
    RoutePrepend {
        side: Side,
        route: Route,
    },
    RouteDelete {
        side: Side,
        route: Route,
    },
    /// Makes a nexthop object, or makes it what it was.
    NexthopAdd {
        side: Side,
        nexthop: Nexthop,
    },
    NexthopDelete {
        side: Side,
        id: u32,
    },
    NeighbourAdd {
        side: Side,
        dev: IfName,
        neighbour: Neighbour,
    },
    NeighbourDelete {
        side: Side,
        dev: IfName,
        neighbour: Neighbour,
    },
    RuleAdd {
        side: Side,
        rule: Rule,
    },
    /// Adds a rule behind those of its priority, even if it is there already.
    RuleAppend {
        side: Side,
        rule: Rule,
    },
    /// Deletes a rule: of equal ones the first.
    RuleDelete {
        side: Side,
        rule: Rule,
    },
    /// Waits until the port is ACTIVE and has a RoCE v2 GID made from each address and carrying
    /// this netdev, for at most `gid_timeout` seconds after the port: NCCL skips a port that is
    /// not, and picks the GID when it connects. Where the container gets an index, the GID must be
    /// at it.
    AwaitPort {
        hca: HcaName,
        port: u32,
        dev: IfName,
        addresses: Vec<IpAddr>,
        index: Option<u32>,
        gid_timeout: u32,
    },
}
