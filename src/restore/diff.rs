//! What makes NICs what they should be, out of what they are.

use std::collections::BTreeSet;

use rdma_model::effect::{compare_rules, missing_routes, same_address};
use rdma_model::manager::is_daemon;
use rdma_model::snapshot::{
    Address, Neighbour, Netdev, Nexthop, Program, ProgramHook, Qdisc, Route, Rule, Snapshot,
};
use rdma_model::step::{
    NicState, Settings, Side, Step, configure, connect, derived, generated, is_temporary,
    kernel_address, kernel_made, prefix_route,
};

use crate::{precedence, verify};

/// How much of a difference is undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// All of it.
    Exact,
    /// What is missing in effect is added, and what the kernel made of it goes where that was not
    /// there, as do rules that are there twice. What another program has added or changed stays.
    Effect,
    /// The same for a NIC that a manager configures: the kernel's is that one's, too.
    Managed,
}

/// The differences between what NICs are and what they should be, as steps: routes come when all
/// NICs have their addresses, since a route may have legs over several.
pub(super) fn differences<'a>(
    side: Side,
    wanted: impl Iterator<Item = &'a NicState>,
    observed: &Snapshot,
) -> Vec<Step> {
    let one = |state| difference(side, state, observed, Goal::Exact);
    let (steps, missing): (Vec<_>, Vec<_>) = wanted.filter_map(one).unzip();
    let mut steps: Vec<Step> = steps.into_iter().flatten().collect();
    steps.extend(connect(side, &missing.iter().collect::<Vec<_>>()));
    steps
}

/// The difference between what a NIC is and what it should be: steps of its own, then what
/// [`connect`] has to add; a NIC that is not there has none.
pub(super) fn difference(
    side: Side,
    wanted: &NicState,
    observed: &Snapshot,
    goal: Goal,
) -> Option<(Vec<Step>, NicState)> {
    let now = NicState::of(observed, &wanted.netdev.name)?;
    let (want, have) = verify::beside(wanted, &now);
    let (was, is) = (&wanted.netdev, &now.netdev);
    let dev = was.name.clone();
    let mut steps = link_differences(side, was, is);
    let (qdiscs, missing) = qdisc_differences(side, was, is);
    steps.extend(qdiscs);
    if is.token.is_some() && was.token.is_none() {
        steps.push(Step::Token {
            side,
            dev: dev.clone(),
            token: None,
        });
    }
    let late = out_of_turn(was, is);
    // The kernel may have made one before the sysctl that forbids it was back.
    let can_go = |a: &Address| goal == Goal::Exact || goal == Goal::Effect && generated(a);
    let is_wanted = |a: &Address| {
        want.netdev
            .addresses
            .iter()
            .any(|w| w == a || has_other_flags(w, a))
    };
    let goes = |a: &&Address| !is_wanted(a) && can_go(a);
    let extra: Vec<Address> = have.netdev.addresses.iter().filter(goes).cloned().collect();
    let going = [extra, late].concat();
    let shaken = shaken(&going, &want, &have, is);
    steps.extend(shaken.iter().map(|r| Step::RouteDelete {
        side,
        route: r.clone(),
    }));
    steps.extend(going.iter().map(|a| Step::AddressDelete {
        side,
        dev: dev.clone(),
        address: a.clone(),
    }));
    let mut add = wanted.clone();
    let is_there = |a: &Address| match goal {
        Goal::Exact => have.netdev.addresses.contains(a),
        Goal::Effect | Goal::Managed => is.addresses.iter().any(|h| same_address(h, a)),
    };
    let counts = |a: &Address| want.netdev.addresses.contains(&verify::address(a));
    let stays = |a: &Address| is_there(a) && !going.contains(a);
    add.netdev
        .addresses
        .retain(|a| counts(a) && !stays(&verify::address(a)));
    // Those that are missing decide how an address is added.
    add.routes = missing_of(&want, &have, &shaken, goal);
    add.netdev.up = was.up && !is.up && (was.master.is_none() || was.master == is.master);
    add.netdev.qdiscs = missing;
    add.netdev.token = was.token.filter(|_| is.token != was.token);
    let differs = |key: &str| was.sysctls.get(key) != is.sysctls.get(key);
    // A secret that is written sets the mode, too (addrconf_sysctl_stable_secret in
    // net/ipv6/addrconf.c).
    let again = |key: &str| key == "ipv6/conf/addr_gen_mode" && differs("ipv6/conf/stable_secret");
    let changed = was.sysctls.iter().filter(|(k, _)| differs(k) || again(k));
    steps.extend(configure(
        side,
        &add,
        changed.map(|(k, v)| (k.clone(), v.clone())).collect(),
    ));
    if is.up && !was.up {
        steps.push(Step::Link {
            side,
            dev: dev.clone(),
            up: false,
        });
    }
    steps.extend(device_differences(side, was, is));
    let removed = removed(side, &want, &have, &going, goal);
    steps.extend(removed);
    let elsewhere =
        |s: &Step| !matches!(s, Step::RouteDelete { route, .. } if have.routes.contains(route));
    steps.extend(
        remnants(side, add.routes.iter(), observed)
            .into_iter()
            .filter(elsewhere),
    );
    add.nexthops = want
        .nexthops
        .iter()
        .filter(|n| !have.nexthops.contains(n))
        .cloned()
        .collect();
    if side == Side::Host {
        let rules = compare_rules(&want.rules, &observed.rules, goal == Goal::Managed);
        let double = rules.double.iter().filter(|_| goal == Goal::Managed);
        steps.extend(double.map(|r| Step::RuleDelete {
            side,
            rule: Rule::clone(r),
        }));
        add.rules = rules.missing.into_iter().cloned().collect();
    } else {
        add.rules.retain(|r| !observed.rules.contains(r));
    }
    add.netdev
        .neighbours
        .retain(|n| !have.netdev.neighbours.contains(n));
    Some((steps, add))
}

/// What a NIC lacks in effect, as [`difference`] gives it; nothing that is there changes.
pub(super) fn additions(
    side: Side,
    wanted: &NicState,
    observed: &Snapshot,
) -> Option<(Vec<Step>, NicState)> {
    let now = NicState::of(observed, &wanted.netdev.name)?;
    let (want, have) = verify::beside(wanted, &now);
    let (was, is) = (&wanted.netdev, &now.netdev);
    let mut add = wanted.clone();
    let is_missing = |a: &Address| {
        want.netdev.addresses.contains(&verify::address(a))
            && !is.addresses.iter().any(|there| same_address(there, a))
    };
    add.netdev.addresses.retain(is_missing);
    add.routes = missing_of(&want, &have, &[], Goal::Effect);
    add.nexthops.retain(|n| !have.nexthops.contains(n));
    add.rules = compare_rules(&want.rules, &observed.rules, true)
        .missing
        .into_iter()
        .cloned()
        .collect();
    add.netdev
        .neighbours
        .retain(|n| !have.netdev.neighbours.contains(n));
    (add.netdev.up, add.netdev.qdiscs, add.netdev.token) = (false, None, None);
    // The one sysctl that an earlier restore may have left to the manager.
    let key = "ipv6/conf/disable_ipv6";
    let withheld = was.sysctls.get_key_value(key);
    let sysctls = withheld.filter(|_| was.sysctls.get(key) != is.sysctls.get(key));
    let sysctls = sysctls.map(|(k, v)| (k.clone(), v.clone()));
    let steps = configure(side, &add, sysctls.into_iter().collect());
    Some((steps, add))
}

/// What is on a NIC and should not be: all that it did not have, or only what is ours and was left
/// by a crash.
fn removed(
    side: Side,
    want: &NicState,
    have: &NicState,
    going: &[Address],
    goal: Goal,
) -> Vec<Step> {
    let dev = &want.netdev.name;
    let delete = |r: &Route| Step::RouteDelete {
        side,
        route: r.clone(),
    };
    // One with a leg over another NIC is not ours.
    let own = have
        .routes
        .iter()
        .filter(|r| r.hops.iter().all(|h| h.dev.as_ref() == Some(dev)));
    let foreign = own.filter(|r| !want.routes.contains(r) && !precedence::stands_for_broadcast(r));
    if goal != Goal::Exact {
        let is_kernels =
            |r: &Route| goal == Goal::Effect && !derived(r) && kernel_made(r, &have.netdev);
        return foreign
            .filter(|r| is_temporary(r) || is_kernels(r))
            .map(delete)
            .collect();
    }
    // The kernel deletes an address's own route with it; a request without a metric would take
    // another route.
    let goes_along = |r: &Route| going.iter().any(|a| prefix_route(r, a));
    let foreign = foreign.filter(|r| !derived(r) && !is_daemon(r.protocol) && !goes_along(r));
    let mut steps: Vec<Step> = foreign.map(delete).collect();
    // Behind the routes: an object takes those along that lead through it, and leaves the groups
    // that it is in.
    let single =
        |n: &&Nexthop| n.group.is_empty() && n.dev.as_ref() == Some(dev) && !is_daemon(n.protocol);
    let extra = have
        .nexthops
        .iter()
        .filter(single)
        .filter(|n| !want.nexthops.iter().any(|w| w.id == n.id));
    steps.extend(extra.map(|n| Step::NexthopDelete { side, id: n.id }));
    // What a program learns is its own business, see `verify::drift`.
    let extra = |n: &&Neighbour| !n.extern_learn && !want.netdev.neighbours.contains(n);
    let gone = have.netdev.neighbours.iter().filter(extra);
    steps.extend(gone.map(|n| Step::NeighbourDelete {
        side,
        dev: dev.clone(),
        neighbour: n.clone(),
    }));
    steps
}

/// Routes to be added, those among them that were deleted for the addresses.
fn missing_of(want: &NicState, have: &NicState, shaken: &[Route], goal: Goal) -> Vec<Route> {
    match goal {
        Goal::Exact => want
            .routes
            .iter()
            .filter(|r| !have.routes.contains(r) || shaken.contains(r))
            .cloned()
            .collect(),
        Goal::Effect | Goal::Managed => {
            let missing = missing_routes(&want.routes, &have.routes).into_iter();
            missing.chain(shaken).cloned().collect()
        }
    }
}

/// Whether an IPv6 address needs no more than a message that sets its flags (inet6_addr_modify() in
/// net/ipv6/addrconf.c).
fn has_other_flags(want: &Address, have: &Address) -> bool {
    want.address.is_ipv6()
        && Address {
            flags: want.flags,
            ..have.clone()
        } == *want
}

/// Addresses that have to go and come again because one before them is missing: the kernel puts a
/// new one behind those that are there, in IPv6 before them; and the first one of a subnet is its
/// primary, which the subnet's route has as its source.
fn out_of_turn(was: &Netdev, is: &Netdev) -> Vec<Address> {
    let late = |v4: bool| {
        let set = |dev: &Netdev| {
            let all = dev
                .addresses
                .iter()
                .filter(|a| a.address.is_ipv4() == v4 && !kernel_address(a, was));
            let mut all: Vec<Address> = all.map(verify::address).collect();
            if !v4 {
                all.reverse();
            }
            all
        };
        let wanted = set(was);
        let mut there = set(is);
        there.retain(|a| wanted.contains(a));
        let in_turn = there
            .iter()
            .zip(&wanted)
            .take_while(|(a, b)| a == b)
            .count();
        if there.len() < wanted.len() {
            there.split_off(in_turn)
        } else {
            Vec::new()
        }
    };
    [late(true), late(false)].concat()
}

/// Routes that go with such addresses or lose their source with them (fib_del_ifaddr and
/// inetaddr_event in net/ipv4/fib_frontend.c, fib6_remove_prefsrc), some of them on some kernels:
/// all of them come again.
fn shaken(going: &[Address], want: &NicState, have: &NicState, is: &Netdev) -> Vec<Route> {
    let family = |r: &Route| {
        going
            .iter()
            .any(|a| a.address.is_ipv4() == r.destination.addr().is_ipv4())
    };
    want.routes
        .iter()
        .filter(|r| family(r) && have.routes.contains(r) && !kernel_made(r, is))
        .cloned()
        .collect()
}

/// All of a device's settings if some differ: a driver may derive one from another. The link is up
/// by then, as some need that.
pub(super) fn device_differences(side: Side, was: &Netdev, is: &Netdev) -> Option<Step> {
    let differs = !verify::device_drift(was, is).is_empty();
    let values = was.device.clone().filter(|_| differs)?;
    Some(Step::Device {
        side,
        dev: was.name.clone(),
        values,
    })
}

/// What is to be removed, and what is missing then; neither where the record does not know.
pub(super) fn qdisc_differences(
    side: Side,
    was: &Netdev,
    is: &Netdev,
) -> (Vec<Step>, Option<Vec<Qdisc>>) {
    let (Some(want), Some(have)) = (&was.qdiscs, &is.qdiscs) else {
        return (Vec::new(), None);
    };
    let foreign = have.iter().filter(|q| !want.contains(q));
    let delete = |q: &Qdisc| Step::QdiscDelete {
        side,
        dev: was.name.clone(),
        qdisc: q.clone(),
    };
    (
        foreign.map(delete).collect(),
        Some(want.iter().filter(|q| !have.contains(q)).cloned().collect()),
    )
}

pub(super) fn link_differences(side: Side, was: &Netdev, is: &Netdev) -> Vec<Step> {
    let dev = was.name.clone();
    let mut steps = Vec::new();
    steps.extend(foreign_programs(side, was, is));
    if is.master.is_some() && was.master.is_none() {
        steps.push(Step::Release { side, dev });
    }
    steps.extend(link_settings(side, was, is));
    steps.extend(lost_programs(side, was, is));
    steps
}

/// Takes off the BPF programs that a NIC did not have: a move keeps them, and they see all that it
/// sends and gets.
pub(super) fn foreign_programs(side: Side, was: &Netdev, is: &Netdev) -> Vec<Step> {
    let dev = || is.name.clone();
    let foreign = foreign(was, is)
        .cloned()
        .map(|program| Step::ProgramDetach {
            side,
            dev: dev(),
            program,
        });
    // Of what is not known by its number, an older record or an older kernel shows that there is
    // one.
    let nameless = is.xdp && !was.xdp && !foreign_xdp(was, is);
    nameless
        .then(|| Step::XdpDetach { side, dev: dev() })
        .into_iter()
        .chain(foreign)
        .collect()
}

/// BPF programs that a NIC did not have, where that is recorded.
pub(super) fn foreign<'a>(was: &'a Netdev, is: &'a Netdev) -> impl Iterator<Item = &'a Program> {
    let has = was.programs.iter().zip(&is.programs);
    has.flat_map(|(had, has)| has.iter().filter(|p| !had.contains(p)))
}

/// Whether one of them is at XDP.
pub(super) fn foreign_xdp(was: &Netdev, is: &Netdev) -> bool {
    foreign(was, is).any(|p| ![ProgramHook::TcxIngress, ProgramHook::TcxEgress].contains(&p.hook))
}

/// Puts back the BPF programs that a NIC lacks, each before the one that was behind it: last first.
pub(super) fn lost_programs(side: Side, was: &Netdev, is: &Netdev) -> Vec<Step> {
    let (Some(had), Some(has)) = (&was.programs, &is.programs) else {
        return Vec::new();
    };
    let behind = |at: usize| {
        had.iter()
            .skip(at + 1)
            .find(|p| p.hook == had[at].hook)
            .map(|p| p.id)
    };
    let lost = had
        .iter()
        .enumerate()
        .rev()
        .filter(|(_, p)| !has.contains(p));
    let back = |(at, program): (usize, &Program)| Step::ProgramAttach {
        side,
        dev: was.name.clone(),
        program: program.clone(),
        before: behind(at),
    };
    lost.map(back).collect()
}

/// What the kernel keeps over a move but a container may have changed.
pub(super) fn link_settings(side: Side, was: &Netdev, now: &Netdev) -> Vec<Step> {
    let mut steps = Vec::new();
    // A bond gives its members its own address, and keeps theirs for when it lets go of them.
    let is_its_own = was.master.is_none() || was.master == now.master;
    if let (Some(old), true) = (&was.mac, is_its_own && was.mac != now.mac) {
        steps.push(Step::Mac {
            side,
            dev: was.name.clone(),
            mac: old.clone(),
        });
    }
    let settings = Settings::back(was, now);
    steps.extend(settings.map(|settings| Step::Settings {
        side,
        dev: was.name.clone(),
        settings,
    }));
    steps
}

/// When one leg of an IPv6 multipath route goes, the others stay, and keep the whole route from
/// being added again (fib6_ifdown and ip6_route_multipath_add in net/ipv6). IPv4 drops the whole
/// route.
pub(super) fn remnants<'a>(
    side: Side,
    wanted: impl Iterator<Item = &'a Route>,
    observed: &Snapshot,
) -> Vec<Step> {
    let key = |r: &Route| (r.destination, r.source, r.table, r.metric, r.protocol);
    let legs = |r: &Route| {
        r.hops
            .iter()
            .map(|h| (h.dev.clone(), h.gateway))
            .collect::<BTreeSet<_>>()
    };
    let of = |w: &Route, r: &Route| {
        r.hops.len() < w.hops.len() && key(r) == key(w) && legs(r).is_subset(&legs(w))
    };
    let own_legs =
        |w: &&Route| w.destination.addr().is_ipv6() && w.hops.len() > 1 && w.nexthop().is_none();
    let wanted: Vec<&Route> = wanted.filter(own_legs).collect();
    let left = observed
        .routes
        .iter()
        .filter(|r| wanted.iter().any(|w| of(w, r)));
    left.map(|r| Step::RouteDelete {
        side,
        route: r.clone(),
    })
    .collect()
}
