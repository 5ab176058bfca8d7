//! Random hosts: what an administrator, or NetworkManager, may have set up on NICs, done step by
//! step on the small kernel, so that only states come out that Linux can be in.

use rdma_model::arp::{ArpChoice, ArpProfile, TABLES};
use rdma_model::nic::{Identity, Nic, identity, learned};
use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use proptest::prelude::*;
use rdma_model::ids::{Hex, IfName, Mac};
use rdma_model::snapshot::{
    Address, Gid, Hop, LinkOptions, Member, Neighbour, Netdev, Nexthop, Program, ProgramHook,
    Qdisc, RTA_NH_ID, Route, Rule,
};
use rdma_model::step::{NicState, Settings, Side, Step};
use rdma_model::upper_lower;
use rdmaprep::plan::rails::{self, Separation};
use rdmaprep::plan::{Plan, SCHEMA, rdma_mode};

use super::{Kernel, naked, plain, v4, v6};

#[derive(Clone, Debug)]
pub struct Host {
    pub nics: Vec<Spec>,
    /// Numbers of the verbs nodes, more than there are NICs: gaps remain.
    pub numbers: Vec<u32>,
    /// An HCA of hardware without a NIC that we know, with one of the numbers.
    pub bystander: bool,
    /// Whether RDMA devices belong to one namespace each.
    pub exclusive: bool,
    /// `--arp-profile`.
    pub arp: ArpChoice,
    /// `conf/all` in the container's namespace, in the order of the profile.
    pub all: [u8; 4],
    /// `--default-route`.
    pub default_route: bool,
    /// Whether the container has a default route of its own.
    pub way_out: bool,
    /// Whether a new NIC of the container has no IPv6 by itself.
    pub without_ipv6: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Pci,
    PciRxe,
    Veth,
    VethRxe,
}

#[derive(Clone, Debug)]
pub struct Spec {
    pub kind: Kind,
    pub chosen: bool,
    pub up: bool,
    /// Whether its addresses are in the first NIC's subnets.
    pub near: bool,
    link: LinkSpec,
    addresses: Vec<AddressSpec>,
    routes: Vec<RouteSpec>,
    nexthops: Vec<NexthopSpec>,
    rules: Vec<RuleSpec>,
    neighbours: Vec<(bool, u8, bool)>,
    sysctls: Vec<(usize, usize)>,
}

#[derive(Clone, Debug)]
struct LinkSpec {
    mtu: u32,
    txqlen: u32,
    group: u32,
    promisc: bool,
    allmulti: bool,
    alias: bool,
    altnames: u8,
    other_mac: bool,
    qdiscs: usize,
}

#[derive(Clone, Debug)]
struct AddressSpec {
    v6: bool,
    host: u8,
    prefix: usize,
    label: bool,
    flags: u32,
    metric: Option<u32>,
    broadcast: bool,
    peer: bool,
    finite: bool,
    link_local: bool,
}

#[derive(Clone, Debug)]
struct RouteSpec {
    v6: bool,
    to: usize,
    table: usize,
    gateway: usize,
    metric: Option<u32>,
    prefsrc: usize,
    second_leg: bool,
    protocol: u8,
    opaque: bool,
}

/// An object, alone or in a group with one of the next NIC, and perhaps a route through it.
#[derive(Clone, Debug)]
struct NexthopSpec {
    v6: bool,
    gateway: usize,
    group: usize,
    route: bool,
    resilient: bool,
}

#[derive(Clone, Debug)]
struct RuleSpec {
    v6: bool,
    what: usize,
    priority: u32,
    table: u32,
    opaque: bool,
}

const SYSCTLS: [(&str, [&str; 2]); 9] = [
    ("ipv4/conf/arp_announce", ["1", "2"]),
    ("ipv4/conf/rp_filter", ["1", "2"]),
    ("ipv4/conf/promote_secondaries", ["1", "1"]),
    ("ipv4/neigh/gc_stale_time", ["30", "120"]),
    ("ipv6/conf/accept_ra", ["0", "2"]),
    ("ipv6/conf/addr_gen_mode", ["1", "3"]),
    ("ipv6/conf/disable_ipv6", ["1", "1"]),
    ("ipv6/conf/keep_addr_on_down", ["1", "1"]),
    ("ipv6/conf/mtu", ["1280", "1400"]),
];

fn link() -> impl Strategy<Value = LinkSpec> {
    let sizes = (
        prop::sample::select(vec![1500, 4200, 9000]),
        prop::sample::select(vec![1000, 500]),
        0..2u32,
    );
    let flags = prop::array::uniform4(prop::bool::weighted(0.2));
    (sizes, flags, 0..3u8, 0..6usize).prop_map(
        |((mtu, txqlen, group), [promisc, allmulti, alias, other_mac], altnames, qdiscs)| {
            LinkSpec {
                mtu,
                txqlen,
                group,
                promisc,
                allmulti,
                alias,
                altnames,
                other_mac,
                qdiscs,
            }
        },
    )
}

fn address() -> impl Strategy<Value = AddressSpec> {
    let rare = prop::bool::weighted(0.15);
    let flags = prop::sample::select(vec![0, 0, 0, 0x02, 0x200, 0x202]);
    let metric = prop::option::weighted(0.2, prop::sample::select(vec![50, 101]));
    (
        any::<bool>(),
        1..5u8,
        0..3usize,
        any::<bool>(),
        flags,
        metric,
        (any::<bool>(), rare, rare, rare),
    )
        .prop_map(
            |(v6, host, prefix, label, flags, metric, (broadcast, peer, finite, link_local))| {
                AddressSpec {
                    v6,
                    host,
                    prefix,
                    label,
                    flags,
                    metric,
                    broadcast,
                    peer,
                    finite,
                    link_local,
                }
            },
        )
}

fn route() -> impl Strategy<Value = RouteSpec> {
    let metric = prop::option::weighted(0.4, prop::sample::select(vec![100, 256, 1024]));
    let protocol = prop::sample::select(vec![4, 4, 3, 2]);
    let choices = (0..5usize, 0..3usize, 0..4usize, 0..4usize);
    (
        any::<bool>(),
        choices,
        metric,
        prop::bool::weighted(0.3),
        protocol,
        prop::bool::weighted(0.2),
    )
        .prop_map(
            |(v6, (to, table, gateway, prefsrc), metric, second_leg, protocol, opaque)| RouteSpec {
                v6,
                to,
                table,
                gateway,
                metric,
                prefsrc,
                second_leg,
                protocol,
                opaque,
            },
        )
}

fn nexthop() -> impl Strategy<Value = NexthopSpec> {
    (
        any::<bool>(),
        0..4usize,
        0..3usize,
        prop::bool::weighted(0.7),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(v6, gateway, group, route, resilient)| NexthopSpec {
            v6,
            gateway,
            group,
            route,
            resilient,
        })
}

fn rule() -> impl Strategy<Value = RuleSpec> {
    (
        any::<bool>(),
        0..5usize,
        100..103u32,
        100..103u32,
        prop::bool::weighted(0.2),
    )
        .prop_map(|(v6, what, priority, table, opaque)| RuleSpec {
            v6,
            what,
            priority,
            table,
            opaque,
        })
}

fn spec() -> impl Strategy<Value = Spec> {
    let kinds = prop::sample::select(vec![Kind::Pci, Kind::PciRxe, Kind::Veth, Kind::VethRxe]);
    let sysctl = (0..SYSCTLS.len(), 0..2usize);
    let lists = (
        prop::collection::vec(address(), 0..5),
        prop::collection::vec(route(), 0..5),
        prop::collection::vec(nexthop(), 0..3),
        prop::collection::vec(rule(), 0..3),
        prop::collection::vec((any::<bool>(), 1..4u8, any::<bool>()), 0..3),
        prop::collection::vec(sysctl, 0..3),
    );
    (
        kinds,
        prop::bool::weighted(0.75),
        prop::bool::weighted(0.85),
        link(),
        lists,
    )
        .prop_map(
            |(
                kind,
                chosen,
                up,
                link,
                (addresses, routes, nexthops, rules, neighbours, sysctls),
            )| Spec {
                kind,
                chosen,
                up,
                near: false,
                link,
                addresses,
                routes,
                nexthops,
                rules,
                neighbours,
                sysctls,
            },
        )
}

/// Hosts of 1 to `most` NICs, at least one of them chosen.
pub fn host(most: usize) -> impl Strategy<Value = Host> {
    let numbers = Just((0..9).collect::<Vec<u32>>()).prop_shuffle();
    let exact = ArpProfile {
        announce: 1,
        ignore: 0,
        filter: 0,
        rp_filter: 1,
    };
    let profiles = vec![
        ArpChoice::Auto,
        ArpChoice::Strict,
        ArpChoice::Loose,
        ArpChoice::Off,
        ArpChoice::Exact(exact),
    ];
    let rails = (
        prop::sample::select(profiles),
        (0..3u8, 0..3u8, 0..2u8, 0..3u8),
        any::<[bool; 5]>(),
    );
    (
        prop::collection::vec(spec(), 1..=most),
        numbers,
        any::<bool>(),
        rails,
    )
        .prop_map(
            |(
                mut nics,
                numbers,
                bystander,
                (
                    arp,
                    (announce, ignore, filter, rp_filter),
                    [near, default_route, way_out, exclusive, without_ipv6],
                ),
            )| {
                if !nics.iter().any(|n| n.chosen) {
                    nics[0].chosen = true;
                }
                nics.iter_mut().for_each(|n| n.near = near);
                let all = [announce, ignore, filter, rp_filter];
                Host {
                    nics,
                    numbers,
                    bystander,
                    exclusive,
                    arp,
                    all,
                    default_route,
                    way_out,
                    without_ipv6,
                }
            },
        )
}

pub fn name(i: usize) -> IfName {
    format!("rail{i}").parse().unwrap()
}

/// A setting of the device on the host.
fn rings(dev: &IfName, rx: u32) -> Step {
    let values = BTreeMap::from([("ethtool rings rx".to_owned(), rx.to_string())]);
    Step::Device {
        side: Side::Host,
        dev: dev.clone(),
        values,
    }
}

/// None, at the root, where packets arrive, or both.
fn qdiscs(which: usize) -> Vec<Qdisc> {
    let root = Qdisc {
        kind: "tbf".into(),
        handle: 0x10000,
        parent: u32::MAX,
        options: Some(Hex(vec![1, 2])),
    };
    let clsact = Qdisc {
        kind: "clsact".into(),
        handle: 0xffff0000,
        parent: 0xfffffff1,
        options: None,
    };
    match which {
        3 => vec![root],
        4 => vec![clsact],
        5 => vec![root, clsact],
        _ => Vec::new(),
    }
}

fn mac(i: usize, other: bool) -> [u8; 6] {
    [0x02, u8::from(other), 0, 0, 0, i as u8 + 1]
}

fn hca_name(i: usize, kind: Kind) -> Option<String> {
    match kind {
        Kind::Pci => Some(format!("mlx5_{i}")),
        Kind::PciRxe | Kind::VethRxe => Some(format!("rxe{i}")),
        Kind::Veth => None,
    }
}

impl Spec {
    fn physical(&self) -> bool {
        matches!(self.kind, Kind::Pci | Kind::PciRxe)
    }

    fn rxe(&self) -> bool {
        matches!(self.kind, Kind::PciRxe | Kind::VethRxe)
    }

    /// The number of its subnets, and of its first address there less one.
    fn place(&self, i: usize) -> (u8, u8) {
        if self.near {
            (0, 20 * i as u8)
        } else {
            (i as u8, 0)
        }
    }

    fn address(&self, i: usize, a: &AddressSpec) -> Address {
        let (n, base) = self.place(i);
        let a = &AddressSpec {
            host: base + a.host,
            ..a.clone()
        };
        if a.v6 {
            let prefix = [64, 128, 48][a.prefix];
            let ll = |mac: [u8; 6]| {
                let [a, b, c, d, e, f] = mac.map(u16::from);
                let words = [
                    0xfe80,
                    0,
                    0,
                    0,
                    ((a ^ 2) << 8) | b,
                    (c << 8) | 0xff,
                    0xfe00 | d,
                    (e << 8) | f,
                ];
                IpAddr::from(words)
            };
            let ip = if a.link_local {
                ll(mac(i, self.link.other_mac))
            } else {
                v6(n, a.host.into())
            };
            let lft = a.finite.then_some(86400);
            let scope = if a.link_local { 253 } else { 0 };
            let plain = plain(ip, if a.link_local { 64 } else { prefix });
            let peer = (a.peer && !a.link_local).then(|| v6(n, 0x900 + u16::from(a.host)));
            return Address {
                flags: a.flags,
                metric: a.metric,
                scope,
                valid_lft: lft,
                preferred_lft: lft,
                peer,
                ..plain
            };
        }
        let prefix = [24, 32, 16][a.prefix];
        let ip = v4(n, 0, a.host);
        Address {
            label: Some(if a.label {
                format!("rail{i}:{}", a.host)
            } else {
                format!("rail{i}")
            }),
            broadcast: (a.broadcast && prefix < 31).then(|| v4(n, 0, 255)),
            peer: a.peer.then(|| v4(n, 9, a.host)),
            flags: a.flags & 0x200,
            metric: a.metric,
            valid_lft: a.finite.then_some(600),
            preferred_lft: a.finite.then_some(300),
            protocol: a.metric.map(|_| 40),
            ..plain(ip, prefix)
        }
    }

    fn route(&self, i: usize, total: usize, r: &RouteSpec) -> Route {
        let (n, base) = self.place(i);
        let net = |ip: IpAddr, v4: u8, v6: u8| {
            IpNet::new(ip, if r.v6 { v6 } else { v4 }).unwrap().trunc()
        };
        let ip = |a: u8, b: u8, c: u8| {
            if r.v6 {
                v6(a, (u16::from(b) << 8) | u16::from(c))
            } else {
                v4(a, b, c)
            }
        };
        let destination = match r.to {
            0 => net(ip(200 + n, 0, 0), 24, 64),
            1 => net(ip(200, 0, 0), 24, 64),
            2 => net(ip(n, 0, 0), 24, 64),
            3 if r.v6 => "::/0".parse().unwrap(),
            3 => "0.0.0.0/0".parse().unwrap(),
            _ => net(ip(n, 0, 177 + i as u8), 32, 128),
        };
        let gateway = |i: usize| self.gateway(i, r.v6, r.gateway);
        let hop = |i: usize, weight| {
            let (gateway, flags) = gateway(i).map_or((None, 0), |(g, f)| (Some(g), f));
            // RTA_FLOW: realms.
            let other = if weight > 0 && r.opaque {
                BTreeMap::from([(11, Hex(vec![5, 0, 6, 0]))])
            } else {
                BTreeMap::new()
            };
            Hop {
                dev: Some(name(i)),
                gateway,
                flags,
                weight,
                other,
            }
        };
        let next = (i + 1) % total;
        let mut hops = vec![hop(i, 0)];
        if r.second_leg && next != i && (!r.v6 || hops[0].gateway.is_some()) {
            hops = vec![hop(i, 0), hop(next, 1)];
        }
        let prefsrc = match r.prefsrc {
            1 => Some(ip(n, 0, base + 1)),
            2 => Some(ip(self.place(next).0, 0, self.place(next).1 + 1)),
            _ => None,
        };
        let opaque = r.opaque.then(|| (8, Hex(vec![8, 0, 2, 0, 0, 20, 0, 0])));
        Route {
            destination,
            source: None,
            table: [254, 100 + i as u32, 1000][r.table],
            protocol: r.protocol,
            scope: if r.v6 || hops[0].gateway.is_some() {
                0
            } else {
                253
            },
            kind: 1,
            tos: 0,
            metric: if r.v6 {
                r.metric.or(Some(1024))
            } else {
                r.metric
            },
            prefsrc,
            hops,
            other: opaque.into_iter().collect(),
        }
    }

    /// What is reached directly, by link-local address, or as if it were on the link; none: the
    /// link itself.
    fn gateway(&self, i: usize, six: bool, which: usize) -> Option<(IpAddr, u8)> {
        let ip = |b: u8| {
            if six {
                v6(self.place(i).0, (u16::from(b) << 8) | 199)
            } else {
                v4(self.place(i).0, b, 199)
            }
        };
        match which {
            0 => None,
            1 if six => Some((IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 0x99]), 0)),
            1 | 2 => Some((ip(0), 0)),
            _ => Some((ip(8), 4)),
        }
    }

    /// The objects and groups of a NIC, then the routes through them.
    fn nexthops(&self, i: usize, total: usize) -> (Vec<Nexthop>, Vec<Route>) {
        let (mut objects, mut routes) = (Vec::new(), Vec::new());
        for (k, spec) in self.nexthops.iter().enumerate() {
            let id = |i: usize| (100 * (i + 1) + k) as u32;
            let (gateway, flags) = self
                .gateway(i, spec.v6, spec.gateway)
                .map_or((None, 0), |(g, f)| (Some(g), f));
            let single = Nexthop {
                id: id(i),
                family: if spec.v6 { 6 } else { 4 },
                protocol: [0, 4][k % 2],
                flags: u32::from(flags),
                dev: Some(name(i)),
                gateway,
                blackhole: false,
                group: Vec::new(),
                other: BTreeMap::new(),
            };
            let (group, kind) = (id(i) + 50, Hex(vec![u8::from(spec.resilient), 0]));
            let other_id = [id(i), id((i + 1) % total)][usize::from(spec.group == 2)];
            let mut members = vec![
                Member {
                    id: id(i),
                    weight: 1,
                },
                Member {
                    id: other_id,
                    weight: 200,
                },
            ];
            members.dedup_by_key(|m| m.id);
            objects.push(single.clone());
            if spec.group > 0 {
                let other = BTreeMap::from([(3, kind)]);
                let plain = Nexthop {
                    id: group,
                    family: 0,
                    flags: 0,
                    dev: None,
                    gateway: None,
                    ..single
                };
                objects.push(Nexthop {
                    group: members,
                    other,
                    ..plain
                });
            }
            let through = if spec.group > 0 { group } else { id(i) };
            let (to, metric) = (4, Some(7 + k as u32));
            let v6 = spec.v6;
            let leg = RouteSpec {
                v6,
                to,
                metric,
                gateway: spec.gateway,
                table: k % 3,
                ..default_route()
            };
            let other = BTreeMap::from([(RTA_NH_ID, Hex(through.to_ne_bytes().into()))]);
            routes.extend(spec.route.then(|| Route {
                other,
                ..self.route(i, total, &leg)
            }));
        }
        (objects, routes)
    }

    fn rule(&self, i: usize, r: &RuleSpec) -> Rule {
        let (n, base) = self.place(i);
        let own = if r.v6 {
            v6(n, u16::from(base) + 1)
        } else {
            v4(n, 0, base + 1)
        };
        let whole = IpNet::from(own);
        let near = IpNet::new(own, 24).unwrap().trunc();
        let dev = Some(name(i).to_string());
        Rule {
            family: if r.v6 { 6 } else { 4 },
            priority: r.priority,
            source: [Some(whole), None, None, None, Some(near)][r.what],
            destination: [None, Some(whole), None, None, None][r.what],
            iif: if r.what == 2 { dev.clone() } else { None },
            oif: if r.what == 3 { dev } else { None },
            table: r.table,
            action: 1,
            tos: 0,
            flags: if r.opaque { 2 } else { 0 },
            other: r
                .opaque
                .then(|| (14, Hex(vec![0, 0, 0, 1])))
                .into_iter()
                .collect(),
        }
    }
}

impl Host {
    /// The kernel after the administrator has set up the host; what Linux refuses, is not there.
    pub fn kernel(&self) -> Kernel {
        let mut kernel = Kernel::new();
        kernel.exclusive = self.exclusive;
        for side in [Side::Host, Side::Inside] {
            kernel.plug(side, rdmaprep_lo());
            let id = kernel.plug(side, naked("eth0", 2, [0x06, 0, 0, 0, 0, side as u8]));
            kernel.space(side).unwrap().link(id).dev.kind =
                (side == Side::Inside).then(|| "veth".into());
            let dev: IfName = "eth0".parse().unwrap();
            let address = plain(v4(240, 0, 2), 24);
            let hop = Hop {
                dev: Some(dev.clone()),
                gateway: Some(v4(240, 0, 254)),
                ..Hop::default()
            };
            let default = Route {
                hops: vec![hop],
                ..self.nics[0].route(0, 1, &default_route())
            };
            kernel
                .does(Step::AddressAdd {
                    side,
                    dev: dev.clone(),
                    address,
                })
                .unwrap();
            kernel
                .does(Step::Link {
                    side,
                    dev,
                    up: true,
                })
                .unwrap();
            if side == Side::Host || self.way_out {
                kernel
                    .does(Step::RouteAdd {
                        side,
                        route: default,
                    })
                    .unwrap();
            }
        }
        self.nics
            .iter()
            .enumerate()
            .for_each(|(i, n)| self.plug(&mut kernel, i, n));
        if self.bystander {
            kernel.plug_hca("mlx5_99", 0, self.numbers[self.nics.len()], false);
        }
        for (i, n) in self.nics.iter().enumerate() {
            let mut routes: Vec<Route> = n
                .routes
                .iter()
                .map(|r| n.route(i, self.nics.len(), r))
                .collect();
            routes.sort_by_key(|r| r.hops[0].gateway.is_some());
            for route in routes {
                let _ = kernel.does(Step::RouteAdd {
                    side: Side::Host,
                    route,
                });
            }
            for rule in &n.rules {
                kernel
                    .does(Step::RuleAdd {
                        side: Side::Host,
                        rule: n.rule(i, rule),
                    })
                    .unwrap();
            }
        }
        let made: Vec<_> = self
            .nics
            .iter()
            .enumerate()
            .map(|(i, n)| n.nexthops(i, self.nics.len()))
            .collect();
        let (groups, singles): (Vec<&Nexthop>, Vec<_>) = made
            .iter()
            .flat_map(|(objects, _)| objects)
            .partition(|n| n.dev.is_none());
        for nexthop in singles.into_iter().chain(groups) {
            let _ = kernel.does(Step::NexthopAdd {
                side: Side::Host,
                nexthop: nexthop.clone(),
            });
        }
        for route in made.iter().flat_map(|(_, routes)| routes) {
            let _ = kernel.does(Step::RouteAdd {
                side: Side::Host,
                route: route.clone(),
            });
        }
        let keys = ArpProfile::STRICT.sysctls().map(|(k, _)| k.to_owned());
        let others = [
            ("accept_ra", "0"),
            ("addr_gen_mode", "1"),
            ("disable_ipv6", "1"),
        ];
        for (leaf, value) in others.into_iter().filter(|_| self.without_ipv6) {
            kernel
                .space(Side::Inside)
                .unwrap()
                .defaults
                .insert(format!("ipv6/conf/{leaf}"), value.to_owned());
        }
        kernel.space(Side::Inside).unwrap().all = keys
            .into_iter()
            .zip(self.all.map(|v| v.to_string()))
            .collect();
        kernel
    }

    fn plug(&self, kernel: &mut Kernel, i: usize, spec: &Spec) {
        let side = Side::Host;
        let dev = name(i);
        let mut link = naked(dev.as_str(), 100 + i as u32, mac(i, spec.link.other_mac));
        if spec.physical() {
            link.pci = Some(format!("0000:{:02x}:00.0", i + 1).parse().unwrap());
            link.permanent_mac = Some(Mac(mac(i, false).into()));
        } else {
            link.kind = Some("veth".into());
        }
        link.programs = Some(programs(spec.link.promisc));
        link.altnames = (0..spec.link.altnames)
            .map(|a| format!("rail{i}alt{a}"))
            .collect();
        let id = kernel.plug(side, link);
        if let Some(hca) = hca_name(i, spec.kind) {
            kernel.plug_hca(&hca, id, self.numbers[i], spec.rxe());
        }
        let l = &spec.link;
        let settings = settings(l, i);
        kernel
            .does(Step::Settings {
                side,
                dev: dev.clone(),
                settings,
            })
            .unwrap();
        kernel.does(rings(&dev, 256 << l.qdiscs.min(2))).unwrap();
        // A token that the kernel would not take again is refused before anything moves.
        let deaf = spec.sysctls.iter().any(|(key, value)| {
            SYSCTLS[*key].0.ends_with("accept_ra") && SYSCTLS[*key].1[*value] == "0"
        });
        if l.txqlen == 500 && !deaf {
            let token = Some(std::net::Ipv6Addr::from(5));
            kernel
                .does(Step::Token {
                    side,
                    dev: dev.clone(),
                    token,
                })
                .unwrap();
        }
        for qdisc in qdiscs(l.qdiscs) {
            kernel
                .does(Step::QdiscAdd {
                    side,
                    dev: dev.clone(),
                    qdisc,
                })
                .unwrap();
        }
        for (key, value) in &spec.sysctls {
            let (key, values) = SYSCTLS[*key];
            let values = BTreeMap::from([(key.to_owned(), values[*value].to_owned())]).into();
            kernel
                .does(Step::Sysctls {
                    side,
                    dev: dev.clone(),
                    values,
                })
                .unwrap();
        }
        let (late, early): (Vec<_>, Vec<_>) = spec
            .addresses
            .iter()
            .map(|a| spec.address(i, a))
            .partition(|a| a.address.is_ipv6());
        for address in early {
            kernel
                .does(Step::AddressAdd {
                    side,
                    dev: dev.clone(),
                    address,
                })
                .unwrap();
        }
        kernel
            .does(Step::Link {
                side,
                dev: dev.clone(),
                up: spec.up,
            })
            .unwrap();
        for address in late {
            let _ = kernel.does(Step::AddressAdd {
                side,
                dev: dev.clone(),
                address,
            });
        }
        self.neighbours(kernel, i, spec);
    }

    /// Neighbours that administrators and programs have set.
    fn neighbours(&self, kernel: &mut Kernel, i: usize, spec: &Spec) {
        let (side, dev) = (Side::Host, name(i));
        for (v6_, n, proxy) in &spec.neighbours {
            let address = if *v6_ {
                v6(i as u8, 50 + u16::from(*n))
            } else {
                v4(i as u8, 0, 50 + n)
            };
            let mac = (!proxy).then(|| Mac(vec![0x02, 9, 9, 9, 9, *n]));
            let (protocol, router) = ((*n == 1).then_some(4), *v6_ && *n == 2);
            let (noarp, managed) = (!proxy && *n == 2, !proxy && *n == 3);
            let mac = mac.filter(|_| !managed);
            let (extern_learn, stale) = (*v6_ || noarp, *v6_ && !proxy && !noarp && !managed);
            let proxy = *proxy;
            let neighbour = Neighbour {
                address,
                mac,
                proxy,
                protocol,
                router,
                noarp,
                managed,
                extern_learn,
                stale,
            };
            kernel
                .does(Step::NeighbourAdd {
                    side,
                    dev: dev.clone(),
                    neighbour,
                })
                .unwrap();
        }
    }

    /// The plan that `prepare` would make for the chosen NICs.
    pub fn plan(&self, kernel: &Kernel) -> Plan {
        let host = kernel.see(Side::Host);
        let mut nics = Vec::new();
        for (i, spec) in self.nics.iter().enumerate().filter(|(_, n)| n.chosen) {
            let state = NicState::of(&host, &name(i)).unwrap();
            let hca = hca_name(i, spec.kind).and_then(|h| host.hca(&h.parse().unwrap()));
            let ip = state
                .netdev
                .addresses
                .iter()
                .find(|a| a.address.is_ipv4() && spec.up)
                .map(|a| a.address);
            let gid = ip.map(|ip| {
                let IpAddr::V4(v4) = ip else { unreachable!() };
                Gid {
                    index: 3,
                    address: v4.to_ipv6_mapped(),
                    kind: None,
                    netdev: Some(name(i)),
                }
            });
            nics.push(Nic {
                hca: hca.map(|h| h.name.clone()),
                port: hca.map(|_| 1),
                ports: hca.map_or(0, |h| h.ports.len()),
                rxe: spec.rxe(),
                gid,
                uverbs: hca.and_then(|h| h.uverbs.clone()),
                learned: learned(&state),
                ..nic_of(identity(&state, hca), &state.netdev)
            });
        }
        let nodes = rdma_mode::nodes_inside(&nics, &[], &host);
        for nic in nics.iter_mut().filter(|n| n.hca.is_some()) {
            nic.uverbs = rdma_mode::node(&nodes, &host, nic.hca.as_ref().unwrap()).cloned();
        }
        let states: Vec<NicState> = nics
            .iter()
            .map(|n| NicState::of(&host, n.name()).unwrap())
            .collect();
        let (arp, separation) = rails::decide(self.arp, TABLES, &states);
        Plan {
            arp,
            separation,
            exclusive: self.exclusive,
            default_route: self.default_route,
            ..plan(nics)
        }
    }
}

/// A NIC that has nothing but its addresses.
pub fn nic_of(identity: Identity, netdev: &Netdev) -> Nic {
    Nic {
        identity,
        hca: None,
        port: None,
        ports: 0,
        rxe: false,
        over: None,
        members: Vec::new(),
        vfs: Vec::new(),
        borrowed: false,
        channels: None,
        gid: None,
        numa: None,
        uverbs: None,
        learned: Default::default(),
        addresses: netdev.addresses.clone(),
    }
}

/// A plan that has nothing but NICs.
pub fn plan(nics: Vec<Nic>) -> Plan {
    Plan {
        schema: SCHEMA,
        name: "default".into(),
        boot_id: "boot".into(),
        nics,
        ib: Vec::new(),
        devices: Vec::new(),
        env: Vec::new(),
        gid_index: None,
        no_gid_index: None,
        unset: Vec::new(),
        arp: Some(ArpProfile::STRICT),
        separation: Separation::default(),
        network_mode: Default::default(),
        sysfs: Default::default(),
        view: None,
        job: Default::default(),
        allow_bootstrap: true,
        gid_timeout: Default::default(),
        exclusive: false,
        default_route: false,
        agreement: None,
        freeze_lifetimes: true,
        nccl_version: None,
        libraries: rdmaprep::config::libraries::Libraries::default(),
        hosts_entry: false,
        ib_ports: BTreeMap::new(),
        recipe: None,
    }
}

/// rail0 to rail2: hardware without RDMA, up, with 10.N.0.1/24 and fd00:N::1/64.
pub fn three() -> Kernel {
    let mut kernel = Kernel::new();
    let side = Side::Host;
    for i in 0..3 {
        let mut link = naked(name(i).as_str(), 100 + i as u32, mac(i, false));
        link.pci = Some(format!("0000:{:02x}:00.0", i + 1).parse().unwrap());
        link.permanent_mac = link.mac.clone();
        kernel.plug(side, link);
        let dev = name(i);
        for address in [plain(v4(i as u8, 0, 1), 24), plain(v6(i as u8, 1), 64)] {
            kernel
                .does(Step::AddressAdd {
                    side,
                    dev: dev.clone(),
                    address,
                })
                .unwrap();
        }
        kernel
            .does(Step::Link {
                side,
                dev,
                up: true,
            })
            .unwrap();
    }
    kernel
}

/// The plan for some of these.
pub fn plan_for(kernel: &Kernel, chosen: &[usize]) -> Plan {
    plan_of(kernel, &chosen.iter().map(|i| name(*i)).collect::<Vec<_>>())
}

/// The plan for NICs of these names.
pub fn plan_of(kernel: &Kernel, names: &[IfName]) -> Plan {
    let host = kernel.see(Side::Host);
    let nic = |name: &IfName| {
        let state = NicState::of(&host, name).unwrap();
        let over = state
            .netdev
            .made
            .as_ref()
            .and(upper_lower::lower(&host, &state.netdev))
            .map(|d| d.name.clone());
        let members = upper_lower::members(&host, &state.netdev)
            .map(|d| d.name.clone())
            .collect();
        Nic {
            over,
            members,
            learned: learned(&state),
            ..nic_of(identity(&state, None), &state.netdev)
        }
    };
    plan(names.iter().map(nic).collect())
}

fn rdmaprep_lo() -> Netdev {
    let mut lo = naked("lo", 1, [0; 6]);
    lo.link_type = 772;
    lo
}

fn default_route() -> RouteSpec {
    RouteSpec {
        v6: false,
        to: 3,
        table: 0,
        gateway: 2,
        metric: None,
        prefsrc: 0,
        second_leg: false,
        protocol: 3,
        opaque: false,
    }
}

fn settings(l: &LinkSpec, i: usize) -> Settings {
    Settings {
        mtu: l.mtu,
        txqlen: l.txqlen,
        group: l.group,
        promisc: l.promisc,
        allmulti: l.allmulti,
        alias: l.alias.then(|| format!("rail {i}")),
        options: l.alias.then(options),
    }
}

/// Two at one hook, or none.
fn programs(any: bool) -> Vec<Program> {
    (0..u32::from(any) * 2)
        .map(|n| Program {
            hook: ProgramHook::TcxEgress,
            id: 10 + n,
        })
        .collect()
}

/// A link that is not as new: silent, dormant, with packets of other sizes.
fn options() -> LinkOptions {
    let flags = LinkOptions::NOARP | LinkOptions::MULTICAST;
    LinkOptions {
        flags,
        mode: Some(1),
        gso_max_size: Some(20_000),
        ..LinkOptions::default()
    }
}
