//! In which order a NIC's state can be set up.

use std::collections::BTreeSet;

use crate::ids::IfName;
use crate::snapshot::{Address, Netdev, SysctlValues};

use super::{NicState, Side, Step, kernel_address, kernel_made, learned_from_router};

/// The steps that give a NIC, just moved and down, its link state and addresses; routes, rules and
/// neighbours come when all NICs are there ([`connect`]). IPv4 addresses come before the link goes
/// up, so that it never answers for others; IPv6 addresses after it, since their prefix routes need
/// a link that is up, and last first, since the kernel puts a new one before its equals
/// (ipv6_link_dev_addr in net/ipv6/addrconf.c).
pub fn configure(side: Side, state: &NicState, sysctls: SysctlValues) -> Vec<Step> {
    let dev = &state.netdev.name;
    let add = |address: &Address| Step::AddressAdd {
        side,
        dev: dev.clone(),
        address: at_once(address, state),
    };
    let (v4, v6): (Vec<_>, Vec<_>) = state
        .netdev
        .addresses
        .iter()
        .partition(|a| a.address.is_ipv4());
    let write = |values: SysctlValues| Step::Sysctls {
        side,
        dev: dev.clone(),
        values,
    };
    let (first, last) = without_temporary_addresses(&state.netdev, sysctls);
    let mut steps: Vec<Step> = Some(first)
        .filter(|values| !values.is_empty())
        .map(write)
        .into_iter()
        .collect();
    // The kernel takes it where accept_ra says that there will be addresses from routers
    // (inet6_set_iftoken).
    let token = state.netdev.token.map(|t| Step::Token {
        side,
        dev: dev.clone(),
        token: Some(t),
    });
    steps.extend(token);
    steps.extend(v4.into_iter().map(add));
    let qdiscs = state.netdev.qdiscs.iter().flatten();
    steps.extend(qdiscs.map(|q| Step::QdiscAdd {
        side,
        dev: dev.clone(),
        qdisc: q.clone(),
    }));
    if state.netdev.up {
        steps.push(Step::Link {
            side,
            dev: dev.clone(),
            up: true,
        });
    }
    steps.extend(
        v6.into_iter()
            .rev()
            .filter(|a| !kernel_address(a, &state.netdev))
            .map(add),
    );
    steps.extend(Some(last).filter(|values| !values.is_empty()).map(write));
    steps
}

/// IFA_F_NODAD, IFA_F_OPTIMISTIC and IFA_F_DADFAILED (include/uapi/linux/if_addr.h).
pub const NODAD: u32 = 0x02;
pub const OPTIMISTIC: u32 = 0x04;
pub const DADFAILED: u32 = 0x08;

/// Whether a route of the NIC prefers this address as its source. Linux refuses such a route while
/// duplicate address detection runs (ip6_route_info_create() in net/ipv6/route.c): that takes a
/// second or two, and without a carrier it never begins.
fn is_awaited(a: &Address, state: &NicState) -> bool {
    let detected = a.address.is_ipv6() && a.flags & (NODAD | DADFAILED) == 0;
    detected && state.routes.iter().any(|r| r.prefsrc == Some(a.address))
}

/// The address as it is added: one that a route waits for is not tentative. [`connect`] gives it
/// its own flags, by which Linux begins no detection (inet6_addr_modify() in net/ipv6/addrconf.c).
fn at_once(a: &Address, state: &NicState) -> Address {
    // Linux takes no address that is both (inet6_rtm_newaddr()).
    let flags = if is_awaited(a, state) {
        a.flags & !OPTIMISTIC | NODAD
    } else {
        a.flags
    };
    Address { flags, ..a.clone() }
}

/// IFA_F_MANAGETEMPADDR (include/uapi/linux/if_addr.h).
const MANAGETEMPADDR: u32 = 0x100;

/// What is to be written before the addresses, and what after them. For an address that manages
/// temporary ones, the kernel makes one where `use_tempaddr` says so (manage_tempaddrs() in
/// net/ipv6/addrconf.c). One that was not there would have to go again, and takes the anycast
/// address of its subnet along where the link forwards (RTM_DELADDR in __ipv6_ifa_notify()).
fn without_temporary_addresses(
    dev: &Netdev,
    mut values: SysctlValues,
) -> (SysctlValues, SysctlValues) {
    const KEY: &str = "ipv6/conf/use_tempaddr";
    let mut addresses = dev.addresses.iter().filter(|a| !a.address.is_ipv4());
    let is_made = addresses.any(|a| a.flags & MANAGETEMPADDR != 0);
    let is_on = values
        .get(KEY)
        .and_then(|value| value.parse::<i32>().ok())
        .is_some_and(|value| value > 0);
    if !is_on || !is_made || dev.temporary {
        return (values, SysctlValues::default());
    }
    let on = values.insert(KEY.to_owned(), "0".to_owned());
    (
        values,
        on.map(|on| (KEY.to_owned(), on)).into_iter().collect(),
    )
}

/// Takes NICs from one side to the other: all links down, then all moves. A move waits longer for
/// the other processors when links around it are up: docs/performance.md.
pub fn move_all(nics: &[Leaving]) -> Vec<Step> {
    let up = nics.iter().filter(|n| n.netdev.up);
    let downs = up.map(|n| Step::Link {
        side: n.from,
        dev: n.netdev.name.clone(),
        up: false,
    });
    let moves = nics.iter().map(|n| Step::Move {
        from: n.from,
        dev: n.netdev.name.clone(),
        name: n.name.clone(),
        ifindex: n.ifindex,
    });
    downs.chain(moves).collect()
}

/// A netdev that is to leave, as it is there.
pub struct Leaving<'a> {
    pub from: Side,
    pub netdev: &'a Netdev,
    /// Its name on the other side.
    pub name: IfName,
    /// Its index there, if free.
    pub ifindex: Option<u32>,
}

/// IFA_F_MCAUTOJOIN (include/uapi/linux/if_addr.h).
const IFA_F_MCAUTOJOIN: u32 = 0x400;

/// Deletes a netdev's addresses for which the kernel has joined a multicast group. It leaves that
/// group when the address is deleted, not when the link leaves (inet_rtm_deladdr in
/// net/ipv4/devinet.c, inet6_addr_del in net/ipv6/addrconf.c), and refuses to join it twice by the
/// index that the link has again when it is back.
pub fn leave_groups(side: Side, dev: &Netdev) -> impl Iterator<Item = Step> {
    let joined = dev
        .addresses
        .iter()
        .filter(|a| a.flags & IFA_F_MCAUTOJOIN != 0);
    joined.map(move |a| Step::AddressDelete {
        side,
        dev: dev.name.clone(),
        address: a.clone(),
    })
}

/// The steps that give NICs on one side their routes, nexthop objects, neighbours and rules. What
/// has no gateway comes first, since gateways are reached through it; an object comes before the
/// groups and routes that name it.
pub fn connect(side: Side, states: &[&NicState]) -> Vec<Step> {
    let mut steps = paths(side, states);
    for state in states {
        let dev = &state.netdev.name;
        let awaited = state
            .netdev
            .addresses
            .iter()
            .filter(|a| is_awaited(a, state));
        steps.extend(awaited.map(|a| Step::AddressAdd {
            side,
            dev: dev.clone(),
            address: a.clone(),
        }));
        let neighbours = state.netdev.neighbours.iter();
        steps.extend(neighbours.map(|n| Step::NeighbourAdd {
            side,
            dev: dev.clone(),
            neighbour: n.clone(),
        }));
    }
    let rules = once(states.iter().flat_map(|s| &s.rules));
    steps.extend(rules.into_iter().map(|r| Step::RuleAdd {
        side,
        rule: r.clone(),
    }));
    steps
}

fn paths(side: Side, states: &[&NicState]) -> Vec<Step> {
    let routes = states
        .iter()
        .flat_map(|s| s.routes.iter().map(|r| (r, &s.netdev)));
    let settings = routes
        .filter(|(r, dev)| !kernel_made(r, dev) && !learned_from_router(r, dev))
        .map(|(r, _)| r);
    let mut ranked: Vec<(u8, Step)> = Vec::new();
    for route in once(settings) {
        let gateway = route.hops.iter().any(|h| h.gateway.is_some());
        let rank = match (gateway, route.nexthop()) {
            (false, None) => 0,
            (false, Some(_)) if route.hops.len() == 1 => 2,
            _ => 5,
        };
        ranked.push((
            rank,
            Step::RouteAdd {
                side,
                route: route.clone(),
            },
        ));
    }
    for nexthop in once(states.iter().flat_map(|s| &s.nexthops)) {
        let rank = match (nexthop.gateway, nexthop.group.is_empty()) {
            (None, true) => 1,
            (Some(_), _) => 3,
            (None, false) => 4,
        };
        ranked.push((
            rank,
            Step::NexthopAdd {
                side,
                nexthop: nexthop.clone(),
            },
        ));
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, step)| step).collect()
}

/// Each value once: what concerns several NICs is part of each one's state.
fn once<'a, T: Ord>(all: impl Iterator<Item = &'a T>) -> Vec<&'a T> {
    let mut seen = BTreeSet::new();
    all.filter(|one| seen.insert(*one)).collect()
}
