//! Policy rules that name neither a NIC nor one of its addresses, and decide over what rails send:
//! `from 10.0.0.0/24 lookup 100` leads to a table whose routes come along, `lookup main
//! suppress_prefixlength 0` comes before such a rule, `from 10.0.0.0/24 prohibit` ends the search.
//! The rule of the host stays, and a copy comes along where it takes no traffic that is not the
//! rails'.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use rdma_model::nic::Nic;
use rdma_model::snapshot::{
    Address, FRA_DPORT_MASK, FRA_DPORT_RANGE, FRA_DSCP, FRA_DSCP_MASK, FRA_GOTO, FRA_IP_PROTO,
    FRA_PROTOCOL, FRA_SPORT_MASK, FRA_SPORT_RANGE, FRA_SUPPRESS_IFGROUP, FRA_SUPPRESS_PREFIXLEN,
    GOTO, INVERT, KERNEL_TABLES, Netdev, Route, Rule, Snapshot, TABLE_LOCAL, TO_TABLE, UNICAST,
};
use rdma_model::step::NicState;

/// What says nothing of where a packet is from, or selects by what it has on any machine.
const MEANT_ANYWHERE: [u16; 11] = [
    FRA_GOTO,
    FRA_SUPPRESS_PREFIXLEN,
    FRA_SUPPRESS_IFGROUP,
    FRA_PROTOCOL,
    FRA_IP_PROTO,
    FRA_SPORT_RANGE,
    FRA_DPORT_RANGE,
    FRA_SPORT_MASK,
    FRA_DPORT_MASK,
    FRA_DSCP,
    FRA_DSCP_MASK,
];
/// FR_ACT_NOP (include/uapi/linux/fib_rules.h).
const NOP: u8 = 3;
/// To local, main and default (fib_default_rules_init() in net/ipv4/fib_rules.c).
const KERNEL_RULES: [u32; 3] = [0, MAIN_RULE, 32767];
const MAIN_RULE: u32 = 32766;

/// The number of a table, of IPv6 or not.
type Table = (u32, bool);

fn table(rule: &Rule) -> Table {
    (rule.table, rule.family == 6)
}

fn is_in(route: &Route, (number, v6): Table) -> bool {
    route.table == number && route.destination.addr().is_ipv6() == v6
}

/// The rails that a rule leads to, by their indexes.
fn owners(rule: &Rule, rails: &[NicState]) -> BTreeSet<usize> {
    (0..rails.len())
        .filter(|rail| leads_over(rule, &rails[*rail]))
        .collect()
}

/// A namespace has tables of the kernel's numbers of its own, and looks there last: a rule to one
/// of them counts if the rail has a route that it follows. A rule that ends the search, for every
/// rail with an address of its family.
fn leads_over(rule: &Rule, rail: &NicState) -> bool {
    if rule.action != TO_TABLE {
        return addresses(&rail.netdev).any(|ip| ip.is_ipv6() == (rule.family == 6));
    }
    let mut routes = rail
        .routes
        .iter()
        .filter(|r| is_in(r, table(rule)) && is_over(r, &rail.netdev));
    match KERNEL_TABLES.contains(&rule.table) {
        // A default route of these does not come along.
        true => routes.any(|r| r.destination.prefix_len() > 0 && follows(rule, r)),
        false => routes.next().is_some(),
    }
}

fn follows(rule: &Rule, route: &Route) -> bool {
    let mut to = rule.destination.iter();
    let is_meant = to.all(|net| overlap(*net, route.destination));
    is_meant && suppressed(rule).is_none_or(|most| route.destination.prefix_len() > most)
}

fn is_over(route: &Route, dev: &Netdev) -> bool {
    route.hops.iter().any(|h| h.dev.as_ref() == Some(&dev.name))
}

/// Gives rails, as they come into the container, the rules that lead to their tables; `inside` is
/// what it has besides, where that is known. Returns a sentence for each rule that stays behind.
pub fn carry(rails: &mut [NicState], host: &Snapshot, inside: Option<&Snapshot>) -> Vec<String> {
    // Of each rule, in the order of the host.
    let rules = host.rules.iter().enumerate();
    let places: BTreeMap<&Rule, usize> = rules.map(|(place, rule)| (rule, place)).collect();
    let mut left = Vec::new();
    // The last one first: one to main decides something only before another that comes along.
    for (place, rule) in host.rules.iter().enumerate().rev() {
        let mut there = rails.iter().flat_map(|rail| &rail.rules);
        if rule.is_of_kernel() || rule.action == NOP || there.any(|other| other == rule) {
            continue;
        }
        let mut later = rails.iter().flat_map(|rail| &rail.rules);
        let has_later = later.any(|l| l.family == rule.family && places.get(l) > Some(&place));
        let decides = match rule.action {
            TO_TABLE => has_later || !is_to_kernel_table(rule),
            GOTO => has_later,
            _ => rule.priority < MAIN_RULE,
        };
        let owners = owners(rule, rails);
        if !decides || owners.is_empty() || !concerns(rule, rails) {
            continue;
        }
        match obstacle(rule, &owners, rails, inside) {
            Some(why) => left.push(format!("the rule `{rule}` stays on the host: {why}")),
            None => {
                for rail in owners {
                    rails[rail].rules.push(rule.clone());
                }
            }
        }
    }
    left.reverse();
    left.extend(gotos_without_target(rails));
    for rail in rails {
        rail.rules.sort_by_key(|rule| places.get(rule).copied());
    }
    left
}

fn gotos_without_target(rails: &[NicState]) -> impl Iterator<Item = String> + '_ {
    let rules = rails.iter().flat_map(|rail| &rail.rules);
    rules.clone().filter_map(move |rule| {
        let target = target(rule)?;
        let lacks = !KERNEL_RULES.contains(&target)
            && !rules
                .clone()
                .any(|r| (r.family, r.priority) == (rule.family, target));
        lacks.then(|| format!("the rule `{rule}` has no effect inside: {target} stays on the host"))
    })
}

pub fn is_to_kernel_table(rule: &Rule) -> bool {
    rule.action == TO_TABLE && KERNEL_TABLES.contains(&rule.table)
}

/// What `prepare` says of rules that will stay on the host; `inside` is the namespace that the
/// container joins, where it is known.
pub fn left_behind(nics: &[Nic], host: &Snapshot, inside: Option<&Snapshot>) -> Vec<String> {
    let mut rails: Vec<NicState> = nics
        .iter()
        .filter_map(|nic| NicState::of(host, nic.name()))
        .collect();
    carry(&mut rails, host, inside)
}

/// One of a source that no rail has is for what the host forwards, or for others of its addresses.
/// A mark by which the host leaves the rails' tables is of one of its programs.
fn concerns(rule: &Rule, rails: &[NicState]) -> bool {
    let mut addresses = rails.iter().flat_map(|rail| addresses(&rail.netdev));
    let leaves = rule.action != TO_TABLE || is_to_kernel_table(rule);
    if leaves && (is_foreign(rule) || interface(rule).is_some()) {
        return false;
    }
    rule.flags & INVERT != 0
        || rule
            .source
            .is_none_or(|net| addresses.any(|ip| net.contains(&ip)))
}

fn is_foreign(rule: &Rule) -> bool {
    let mut kinds = rule.other.keys();
    kinds.any(|kind| !MEANT_ANYWHERE.contains(kind))
}

/// The one that a rule names, but for lo, which every namespace has.
fn interface(rule: &Rule) -> Option<&String> {
    let iif = rule.iif.as_ref().filter(|name| *name != "lo");
    iif.or(rule.oif.as_ref())
}

fn addresses(dev: &Netdev) -> impl Iterator<Item = IpAddr> + '_ {
    dev.addresses.iter().map(|a| a.address)
}

/// Where a rule goes to, by priority.
fn target(rule: &Rule) -> Option<u32> {
    let bytes = rule.other.get(&FRA_GOTO)?.0.as_slice();
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// Why a rule cannot come along.
fn obstacle(
    rule: &Rule,
    owners: &BTreeSet<usize>,
    rails: &[NicState],
    inside: Option<&Snapshot>,
) -> Option<String> {
    if let Some(name) = interface(rule) {
        return Some(format!("{name} does not come along"));
    }
    if rule.action == GOTO {
        return Some("it skips rules of the host".to_owned());
    }
    if rule.flags & INVERT != 0 || is_foreign(rule) {
        return Some("what it goes by has another meaning in a container, or none".to_owned());
    }
    if is_to_kernel_table(rule) {
        let mut of_container = inside.into_iter().flat_map(|inside| &inside.rules);
        let later = of_container.find(|own| !own.is_of_kernel() && is_before(rule, own));
        return later.map(|own| format!("it would come before the container's own `{own}`"));
    }
    if let Some(net) = rule.source {
        let devs = inside.into_iter().flat_map(|inside| &inside.netdevs);
        let mut others = devs
            .filter(|dev| dev.name.as_str() != "lo")
            .flat_map(addresses);
        let other = others.find(|ip| net.contains(ip));
        return other.map(|ip| format!("it would take what is sent from {ip} as well"));
    }
    let reached = reached(inside);
    if let Some(net) = rule.destination {
        return first_overlap(net, &reached).map(takes);
    }
    if rule.action != TO_TABLE {
        return Some("it would end all traffic of the container".to_owned());
    }
    let routes = owners.iter().flat_map(|rail| &rails[*rail].routes);
    let mut followed = routes
        .filter(|r| is_in(r, table(rule)) && follows(rule, r))
        .map(|r| r.destination);
    if followed.clone().any(|net| net.prefix_len() == 0) {
        let why = "with the default route of its table it would take the container's other traffic";
        return Some(why.to_owned());
    }
    followed
        .find_map(|net| first_overlap(net, &reached))
        .map(takes)
}

fn is_before(rule: &Rule, other: &Rule) -> bool {
    rule.family == other.family && rule.priority <= other.priority
}

fn takes(net: IpNet) -> String {
    format!("it would take what is sent to {net} as well")
}

/// The longest prefix that a rule does not let its table decide by; absent where the table always
/// does (fib4_rule_suppress() in the kernel's net/ipv4/fib_rules.c).
pub fn suppressed(rule: &Rule) -> Option<u8> {
    let bytes = rule.other.get(&FRA_SUPPRESS_PREFIXLEN)?.0.as_slice();
    let length = u32::from_ne_bytes(bytes.try_into().ok()?);
    (length != u32::MAX).then(|| u8::try_from(length).unwrap_or(u8::MAX))
}

fn first_overlap(net: IpNet, reached: &[IpNet]) -> Option<IpNet> {
    let mut reached = reached.iter().copied();
    reached.find(|other| overlap(net, *other))
}

fn overlap(one: IpNet, other: IpNet) -> bool {
    one.contains(&other) || other.contains(&one)
}

/// What a container reaches over interfaces of its own: their subnets, the far ends of their
/// point-to-point links, what their routes say is on the link, and the gateways. Not link-local
/// IPv6: who sends there names the interface, and so no table of another one decides.
fn reached(inside: Option<&Snapshot>) -> Vec<IpNet> {
    let Some(inside) = inside else {
        return Vec::new();
    };
    let subnets = inside
        .netdevs
        .iter()
        .filter(|dev| dev.name.as_str() != "lo")
        .flat_map(|dev| &dev.addresses)
        .filter_map(subnet);
    let routed = inside.routes.iter().filter(is_unicast).flat_map(next);
    subnets
        .chain(routed)
        .filter(|net| !is_link_local(net))
        .collect()
}

/// Where the peer is set, the prefix is of the peer's address (ip-address(8)).
fn subnet(address: &Address) -> Option<IpNet> {
    let net = IpNet::new(address.peer.unwrap_or(address.address), address.prefix).ok()?;
    Some(net.trunc())
}

fn is_unicast(route: &&Route) -> bool {
    route.kind == UNICAST && route.table != TABLE_LOCAL
}

/// To whom a route hands packets: its gateways, or its destination itself; all the world, where a
/// default route names none, says nothing of who is near.
fn next(route: &Route) -> Vec<IpNet> {
    let legs = route
        .hops
        .iter()
        .filter(|hop| hop.dev.as_ref().is_none_or(|dev| dev.as_str() != "lo"));
    legs.map(|hop| hop.gateway.map_or(route.destination, IpNet::from))
        .filter(|net| net.prefix_len() > 0)
        .collect()
}

fn is_link_local(net: &IpNet) -> bool {
    matches!(net.addr(), IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Whether one of a rail's rules leads what is sent from its address, also to its subnet, to a
/// table of this rail alone.
pub fn leads(rail: &NicState, ip: IpAddr, rails: &[NicState]) -> bool {
    rail.rules.iter().any(|rule| {
        let is_from = rule.flags & INVERT == 0 && rule.source.is_some_and(|net| net.contains(&ip));
        let leads = |r: &Route, by: &NicState| is_in(r, table(rule)) && is_over(r, &by.netdev);
        let mut near = rail.routes.iter().filter(|r| r.destination.contains(&ip));
        let by = rails
            .iter()
            .filter(|by| by.routes.iter().any(|r| leads(r, by)));
        is_from && near.any(|r| leads(r, rail)) && by.count() == 1
    })
}
