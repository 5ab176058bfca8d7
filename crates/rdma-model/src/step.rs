//! One effect on the kernel as data, and what a NIC's network state takes to set up: shared by plan and restore.

mod implicit;
mod order;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::ids::{HcaName, Hex, IfName, Mac};
use crate::snapshot::{
    Address, CharDevice, LinkOptions, Neighbour, Netdev, Nexthop, Program, Qdisc, Route, Rule, Snapshot, SysctlValues,
};
pub use implicit::{derived, generated, kernel_address, kernel_made, prefix_route};
pub use order::{configure, connect, leave_groups};

/// RT_TABLE_MAIN.
pub const TABLE_MAIN: u32 = 254;
/// IFA_F_NOPREFIXROUTE (include/uapi/linux/if_addr.h).
pub const IFA_F_NOPREFIXROUTE: u32 = 0x200;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The namespace that the NICs belong to.
    Host,
    Inside,
}

/// A NIC's network state: what a move destroys, and what the host gets back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NicState {
    /// Link, addresses, neighbours and sysctls.
    pub netdev: Netdev,
    /// Routes of all tables with a leg over it, and IPv4 routes over others that prefer an address of it as their source:
    /// the kernel drops these together with the address (fib_sync_down_addr in net/ipv4/fib_semantics.c).
    pub routes: Vec<Route>,
    /// Nexthop objects that lead over it, and groups that have one of these as a member: they go, or lose a member, with the
    /// link (nexthop_flush_dev in net/ipv4/nexthop.c).
    #[serde(default)]
    pub nexthops: Vec<Nexthop>,
    /// Rules that name it or one of its addresses.
    pub rules: Vec<Rule>,
}

impl NicState {
    pub fn of(snapshot: &Snapshot, name: &IfName) -> Option<NicState> {
        let netdev = snapshot.netdev(name)?.clone();
        let own = NetdevAddresses::new(&netdev);
        let routes = snapshot.routes.iter().filter(|r| own.loses(r)).cloned().collect();
        let rules = snapshot.rules.iter().filter(|r| own.concerns(r)).cloned().collect();
        let over = |n: &&Nexthop| n.dev.as_ref() == Some(name) && !n.blackhole;
        let legs: Vec<u32> = snapshot.nexthops.iter().filter(over).map(|n| n.id).collect();
        let lost = |n: &&Nexthop| legs.contains(&n.id) || n.group.iter().any(|m| legs.contains(&m.id));
        let nexthops = snapshot.nexthops.iter().filter(lost).cloned().collect();
        Some(NicState { netdev, routes, nexthops, rules })
    }
}

/// A netdev's name and addresses, which may be as many as the routes and rules that are held against them: root in a
/// container adds what they like.
pub struct NetdevAddresses<'a> {
    name: &'a IfName,
    addresses: HashSet<IpAddr>,
}

impl<'a> NetdevAddresses<'a> {
    pub fn new(dev: &'a Netdev) -> NetdevAddresses<'a> {
        NetdevAddresses { name: &dev.name, addresses: dev.addresses.iter().map(|a| a.address).collect() }
    }

    /// Whether a route goes when the netdev does, see [`NicState::routes`].
    pub fn loses(&self, route: &Route) -> bool {
        let own = |ip: IpAddr| ip.is_ipv4() && self.addresses.contains(&ip);
        let over = route.hops.iter().any(|h| h.dev.as_ref() == Some(self.name));
        over || route.prefsrc.is_some_and(own) && !derived(route)
    }

    pub fn concerns(&self, rule: &Rule) -> bool {
        let named = |n: &Option<String>| n.as_deref() == Some(self.name.as_str());
        let host_route = |net: IpNet| net.prefix_len() == net.max_prefix_len();
        let own = |net: Option<IpNet>| net.is_some_and(|n| host_route(n) && self.addresses.contains(&n.addr()));
        named(&rule.iif) || named(&rule.oif) || own(rule.source) || own(rule.destination)
    }
}

/// Link settings that survive a namespace change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    pub mtu: u32,
    /// Transmit queue length in packets.
    pub txqlen: u32,
    pub group: u32,
    pub promisc: bool,
    pub allmulti: bool,
    pub alias: Option<String>,
    /// What else; absent, as a part of it: left as it is.
    pub options: Option<LinkOptions>,
}

impl Settings {
    pub fn of(dev: &Netdev) -> Settings {
        Settings {
            mtu: dev.mtu,
            txqlen: dev.txqlen,
            group: dev.group,
            promisc: dev.promisc,
            allmulti: dev.allmulti,
            alias: dev.alias.clone(),
            options: dev.options.clone(),
        }
    }

    /// What makes a netdev what it was, out of what it is.
    pub fn back(was: &Netdev, now: &Netdev) -> Option<Settings> {
        let (mut wanted, mut there) = (Settings::of(was), Settings::of(now));
        if wanted.options.is_none() {
            there.options = None;
        }
        let differs = wanted != there;
        // The kernel forgets neighbours when it is given a broadcast address, be it the same.
        let broadcast = |s: &Settings| s.options.as_ref().and_then(|o| o.broadcast.clone());
        if let (true, Some(options)) = (broadcast(&wanted) == broadcast(&there), &mut wanted.options) {
            options.broadcast = None;
        }
        differs.then_some(wanted)
    }
}

/// What makes a netdev that is no hardware: a VLAN, macvlan, ipvlan or IPoIB interface, or a bond.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualLink {
    /// IFLA_INFO_KIND.
    pub kind: String,
    /// IFLA_INFO_DATA: see [`Netdev::made`].
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
#[allow(missing_docs, reason = "the variants say what their fields are")]
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
    /// Takes an RDMA device from `from` to the other side, where devices belong to one namespace each; with `uverbs`, it must
    /// have that device node there.
    RdmaMove {
        from: Side,
        hca: HcaName,
        uverbs: Option<CharDevice>,
    },
    /// One link message that takes the NIC from `from` to the other side, there as `name` (and `ifindex`, if free).
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
    /// Detaches an XDP program that it did not have on the host.
    XdpDetach {
        side: Side,
        dev: IfName,
    },
    /// Takes off a BPF program that it did not have on the host.
    ProgramDetach {
        side: Side,
        dev: IfName,
        program: Program,
    },
    /// Puts a BPF program back that a container took off, before that one or behind all; it has to live still.
    ProgramAttach {
        side: Side,
        dev: IfName,
        program: Program,
        before: Option<u32>,
    },
    /// Writes per-device sysctls, by the keys of [`Netdev::sysctls`]; `dev` may be `all`.
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
    /// Sets what differs of these on the device itself, by the keys of [`Netdev::device`].
    Device {
        side: Side,
        dev: IfName,
        values: BTreeMap<String, String>,
    },
    /// Attaches a queueing discipline in place of what is there.
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
    /// Waits until the port is ACTIVE and has a RoCE v2 GID made from each address and carrying this netdev: NCCL skips a
    /// port that is not, and picks the GID when it connects. Where the container gets an index, the GID has to be there.
    /// The GIDs come at most `gid_timeout` seconds after the port.
    AwaitPort {
        hca: HcaName,
        port: u32,
        dev: IfName,
        addresses: Vec<IpAddr>,
        index: Option<u32>,
        gid_timeout: u32,
    },
}

impl Step {
    /// Whether this is a namespace change, the only step that costs milliseconds.
    pub fn is_move(&self) -> bool {
        matches!(self, Step::Move { .. })
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Host => "on the host",
            Side::Inside => "in the container",
        })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::RdmaLinkDelete { side, hca } => write!(f, "deleting RDMA link {hca} {side}"),
            Step::RdmaLinkAdd { side, hca, dev, .. } => write!(f, "making RDMA link {hca} on {dev} {side}"),
            Step::RdmaRename { hca, name } => write!(f, "renaming RDMA device {hca} to {name}"),
            Step::RdmaMove { from: Side::Host, hca, .. } => write!(f, "moving RDMA device {hca} into the container"),
            Step::RdmaMove { from: Side::Inside, hca, .. } => write!(f, "moving RDMA device {hca} home"),
            Step::Move { from: Side::Host, dev, .. } => write!(f, "moving {dev} into the container"),
            Step::Move { from: Side::Inside, dev, name, .. } => write!(f, "moving {dev} home as {name}"),
            Step::Make { side, dev, made: VirtualLink { kind, over: Some(over), .. } } => {
                write!(f, "making {kind} {dev} on {over} {side}")
            }
            Step::Make { side, dev, made } => write!(f, "making {} {dev} {side}", made.kind),
            Step::Delete { side, dev } => write!(f, "deleting {dev} {side}"),
            Step::Enslave { side, dev, master } => write!(f, "putting {dev} into {master} {side}"),
            Step::Rename { side, dev, name } => write!(f, "renaming {dev} to {name} {side}"),
            Step::AltnamesDelete { side, dev, altnames } => match altnames.as_slice() {
                [altname] => write!(f, "deleting altname {altname} of {dev} {side}"),
                all => write!(f, "deleting {} altnames of {dev} {side}", all.len()),
            },
            Step::AltnameAdd { side, dev, altname } => write!(f, "adding altname {altname} to {dev} {side}"),
            Step::Release { side, dev } => write!(f, "freeing {dev} from its master {side}"),
            Step::XdpDetach { side, dev } => write!(f, "detaching an XDP program from {dev} {side}"),
            Step::ProgramDetach { side, dev, program } => write!(f, "taking the {program} off {dev} {side}"),
            Step::ProgramAttach { side, dev, program, .. } => write!(f, "putting the {program} back on {dev} {side}"),
            Step::Sysctls { side, dev, .. } => write!(f, "writing sysctls of {dev} {side}"),
            Step::Settings { side, dev, settings: s } => {
                write!(f, "setting MTU {} and the like of {dev} {side}", s.mtu)
            }
            Step::Device { side, dev, .. } => write!(f, "restoring device settings of {dev} {side}"),
            Step::QdiscAdd { side, dev, qdisc: q } => write!(f, "attaching {} to {dev} {side}", q.kind),
            Step::QdiscDelete { side, dev, qdisc: q } => write!(f, "removing {} from {dev} {side}", q.kind),
            Step::Token { side, dev, .. } => write!(f, "setting the IPv6 token of {dev} {side}"),
            Step::Mac { side, dev, mac } => write!(f, "setting address {mac} of {dev} {side}"),
            Step::AddressAdd { side, dev, address: a } => {
                write!(f, "adding {}/{} to {dev} {side}", a.address, a.prefix)
            }
            Step::AddressDelete { side, dev, address: a } => {
                write!(f, "deleting {}/{} from {dev} {side}", a.address, a.prefix)
            }
            Step::Link { side, dev, up } => write!(f, "setting {dev} {} {side}", if *up { "up" } else { "down" }),
            Step::RouteAdd { side, route: r } => write!(f, "adding route {} table {} {side}", r.destination, r.table),
            Step::RoutePrepend { side, route: r } => {
                write!(f, "putting route {} table {} first {side}", r.destination, r.table)
            }
            Step::RouteDelete { side, route: r } => {
                write!(f, "deleting route {} table {} {side}", r.destination, r.table)
            }
            Step::NexthopAdd { side, nexthop: n } => write!(f, "making nexthop object {} {side}", n.id),
            Step::NexthopDelete { side, id } => write!(f, "deleting nexthop object {id} {side}"),
            Step::NeighbourAdd { side, dev, neighbour: n } => {
                write!(f, "adding neighbour {} to {dev} {side}", n.address)
            }
            Step::NeighbourDelete { side, dev, neighbour: n } => {
                write!(f, "deleting neighbour {} of {dev} {side}", n.address)
            }
            Step::RuleAdd { side, rule } => write!(f, "adding rule {} {side}", rule.priority),
            Step::RuleAppend { side, rule } => write!(f, "putting rule {} last {side}", rule.priority),
            Step::RuleDelete { side, rule } => write!(f, "deleting rule {} {side}", rule.priority),
            Step::AwaitPort { hca, port, .. } => write!(f, "waiting for port {port} of {hca} and its RoCE v2 GID"),
        }
    }
}
