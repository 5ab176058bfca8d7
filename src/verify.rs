//! "Equal", defined once: the normal form of a NIC's network state, and the difference between two.
//! [`normal`] and [`lines`] say what is compared; of a host, the order of equal routes and rules as
//! well ([`precedence`]). [`LEFT_OUT`] lists what the normal form leaves out, each with the reason.

mod left_out;
mod lines;

pub use left_out::LEFT_OUT;
use lines::lines_of;
pub use lines::{lacks_program, lines, normal_text};
use rdma_model::drift::Drift;
use rdma_model::moved_nic::MovedNic;
use std::collections::BTreeSet;

use rdma_model::effect::{MadeAgainBy, compare_rules, missing_routes, same_address};
use rdma_model::ids::{IfName, Mac};
use rdma_model::ipv6_legs::as_wanted;
use rdma_model::manager::Managed;
use rdma_model::snapshot::{Address, Netdev, RTA_EXPIRES, Route, Rule, Snapshot, UNTOLD};
use rdma_model::step::{
    NicState, derived, generated, is_temporary, kernel_address, kernel_made, learned_from_router,
    of_generated,
};

use rdma_model::upper_lower;

pub fn normal(state: &NicState) -> NicState {
    let mut n = state.clone();
    let dev = &mut n.netdev;
    dev.ifindex = 0;
    dev.link = None;
    (dev.lowers, dev.tunnel) = (Vec::new(), None);
    dev.operstate = None;
    dev.running = false;
    dev.qdisc = None;
    // Facts of sysfs, not settings; the sources differ in what they see from which namespace.
    (dev.driver, dev.dev_port, dev.pci, dev.channels) = (None, None, None, None);
    if upper_lower::is_ipoib(dev) {
        // Of the address, 4 bytes are flags and the number of the queue pair (RFC 4391, section
        // 9.1.1).
        dev.mac = dev
            .mac
            .take()
            .map(|mac| Mac(mac.0.into_iter().skip(4).collect()));
        dev.permanent_mac = None;
    }
    dev.temporary = false;
    dev.altnames.sort();
    // Those of one hook stay in their order.
    dev.programs
        .iter_mut()
        .for_each(|p| p.sort_by_key(|p| p.hook));
    dev.qdiscs.iter_mut().for_each(|q| q.sort());
    let own = state.netdev.addresses.iter();
    let own = own.filter(|a| !kernel_address(a, &state.netdev));
    dev.addresses = own.map(address).collect();
    dev.addresses.sort();
    dev.neighbours.sort();
    n.routes.retain(|r| {
        let dev = &state.netdev;
        !derived(r) && !of_generated(r, dev) && !learned_from_router(r, dev)
    });
    for route in &mut n.routes {
        route.other.remove(&RTA_EXPIRES);
        // The kernel shows no weight of a group's only member; the group itself has it.
        if route.nexthop().is_some()
            && let [only] = &mut route.hops[..]
        {
            only.weight = 0;
        }
    }
    n.routes.sort();
    n.nexthops.sort();
    n.rules.sort();
    n
}

/// Two states in normal form, to be compared, where `all` routes are there. Link-local addresses of
/// the kernel's count only where it has made another one than was recorded: it makes one some time
/// after a link goes up, and none without a carrier.
pub fn comparable(want: &NicState, have: &NicState, all: &[Route]) -> (NicState, NicState) {
    let (was, is) = (&want.netdev, &have.netdev);
    let recorded = was.addresses.iter().any(generated);
    let mut made = is.addresses.iter().filter(|a| generated(a));
    let is_strange = recorded && made.any(|a| !has_address(was, a));
    let (mut wanted, mut found) = (normal(want), normal(have));
    found.routes = as_wanted(&was.name, &wanted.routes, &found.routes, all);
    found.routes.sort();
    wanted.netdev.addresses = was
        .addresses
        .iter()
        .filter(|a| !kernel_address(a, was) || is_strange && !has_address(is, a))
        .map(address)
        .collect();
    found.netdev.addresses = is
        .addresses
        .iter()
        .filter(|a| match has_address(was, a) {
            true => !kernel_address(a, was),
            false => recorded || is_added(a, was, is),
        })
        .map(address)
        .collect();
    wanted.netdev.addresses.sort();
    found.netdev.addresses.sort();
    (wanted, found)
}

fn has_address(dev: &Netdev, address: &Address) -> bool {
    dev.addresses.iter().any(|a| a.address == address.address)
}

/// Whether an address that was not there is not the kernel's, which may have made its own only now,
/// that of an ipvlan not by its address alone (addrconf_ifid_eui48() in include/net/addrconf.h),
/// unless the mode is IN6_ADDR_GEN_MODE_NONE.
fn is_added(address: &Address, was: &Netdev, is: &Netdev) -> bool {
    let mode = was.sysctls.get("ipv6/conf/addr_gen_mode");
    let makes_none = mode.is_some_and(|mode| mode == "1");
    !kernel_address(address, is) && (makes_none || !generated(address))
}

pub fn address(a: &Address) -> Address {
    Address {
        flags: a.flags & Address::SETTINGS,
        valid_lft: None,
        preferred_lft: None,
        ..a.clone()
    }
}

/// How the observed namespace differs from what each NIC's state should be; sysctls that `expected`
/// does not name, and queueing disciplines where it has none, are not compared.
pub fn drift(expected: &[NicState], observed: &Snapshot) -> Vec<Drift> {
    differences(expected, observed, |_, have| have)
}

/// What NICs lack in effect, and which of their settings differ: what other programs have added, or
/// have put in the place of what was there, lacks nothing. What the kernel has made besides counts,
/// unless a manager has the NIC; so does a route that should have been there for a moment only.
pub fn lacking(expected: &[MovedNic], observed: &Snapshot) -> Vec<Drift> {
    let states: Vec<NicState> = expected.iter().map(|h| h.before.clone()).collect();
    differences(&states, observed, |want, have| {
        let mut all = expected.iter();
        let held = all.find(|h| h.before.netdev.name == want.netdev.name);
        let managed = held.and_then(|h| h.managed.as_ref());
        in_effect(want, &have, managed, &observed.rules)
    })
}

/// What is wanted, but for what is missing in effect, and with what the kernel has made besides.
fn in_effect(
    want: &NicState,
    have: &NicState,
    managed: Option<&Managed>,
    rules: &[Rule],
) -> NicState {
    let (wanted, found) = (&want.netdev, &have.netdev);
    let by_kernel = managed.is_none();
    let mut effect = NicState {
        netdev: found.clone(),
        ..want.clone()
    };
    let addresses = &mut effect.netdev.addresses;
    addresses.retain(|a| by_kernel && generated(a) && !wanted.addresses.contains(a));
    let there = wanted
        .addresses
        .iter()
        .filter(|a| found.addresses.iter().any(|h| same_address(h, a)));
    addresses.extend(there.cloned());
    let neighbours = &mut effect.netdev.neighbours;
    neighbours.clone_from(&wanted.neighbours);
    neighbours.retain(|n| found.has_neighbour_of(n));
    effect.nexthops = common(&want.nexthops, &have.nexthops);
    let missing = missing_routes(&want.routes, &have.routes, managed);
    effect.routes.retain(|r| !missing.contains(&r));
    for route in &have.routes {
        let is_made = is_temporary(route) || by_kernel && kernel_made(route, found);
        if is_made && !want.routes.contains(route) {
            effect.routes.push(route.clone());
        }
    }
    effect.routes.sort();
    let missing = compare_rules(&want.rules, rules, MadeAgainBy::of(managed)).missing;
    effect.rules.retain(|r| !missing.contains(&r));
    effect
}

fn common<T: Clone + PartialEq>(want: &[T], have: &[T]) -> Vec<T> {
    want.iter().filter(|w| have.contains(w)).cloned().collect()
}

/// `counted` is what is taken for there, of the state that should be and the one that is.
fn differences(
    expected: &[NicState],
    observed: &Snapshot,
    counted: impl Fn(&NicState, NicState) -> NicState,
) -> Vec<Drift> {
    let mut all = Vec::new();
    for state in expected {
        let name = &state.netdev.name;
        let Some(mut now) = NicState::of(observed, name) else {
            all.push(Drift {
                dev: name.to_string(),
                field: "link".into(),
                expected: Some("present".into()),
                observed: None,
            });
            continue;
        };
        // A NIC inside may have rules that name neither it nor its addresses.
        for rule in common(&state.rules, &observed.rules) {
            if !now.rules.contains(&rule) {
                now.rules.push(rule);
            }
        }
        now.netdev.sysctls.keep_named(&state.netdev.sysctls);
        // A program may have learned more since.
        now.netdev
            .neighbours
            .retain(|n| !n.extern_learn || state.netdev.neighbours.contains(n));
        if state.netdev.programs.is_none() || now.netdev.programs.is_none() {
            now.netdev.programs.clone_from(&state.netdev.programs);
        }
        if state.netdev.options.is_none() {
            now.netdev.options = None;
        }
        if state.netdev.qdiscs.is_none() {
            (now.netdev.qdiscs, now.netdev.qdisc_lost) = (None, None);
        }
        all.extend(device_drift(&state.netdev, &now.netdev));
        now.netdev.device.clone_from(&state.netdev.device);
        let (want, have) = comparable(state, &now, &observed.routes);
        let have = counted(&want, have);
        if want == have {
            continue;
        }
        all.extend(differing_lines(&want, &have));
    }
    all
}

fn differing_lines(wanted: &NicState, found: &NicState) -> Vec<Drift> {
    let dev = &wanted.netdev.name;
    let (want, have) = (lines_of(wanted), lines_of(found));
    let keys: BTreeSet<&String> = want.keys().chain(have.keys()).collect();
    let lines: Vec<Drift> = keys
        .into_iter()
        .filter(|key| want.get(*key) != have.get(*key))
        .map(|key| drift_of(dev, key, want.get(key).cloned(), have.get(key).cloned()))
        .collect();
    if !lines.is_empty() {
        return lines;
    }
    // `ip` writes them alike.
    let (want, have) = (serde_json::to_string(wanted), serde_json::to_string(found));
    vec![drift_of(dev, "state", want.ok(), have.ok())]
}

fn drift_of(
    dev: &IfName,
    field: &str,
    expected: Option<String>,
    observed: Option<String>,
) -> Drift {
    Drift {
        dev: dev.to_string(),
        field: field.to_owned(),
        expected,
        observed,
    }
}

/// Which settings of a NIC's device are not what they were; none where they were not looked at.
pub fn device_drift(was: &Netdev, is: &Netdev) -> Vec<Drift> {
    let (Some(want), Some(have)) = (&was.device, &is.device) else {
        return Vec::new();
    };
    let mut drift = Vec::new();
    for (key, value) in want {
        let now = have.get(key);
        let is_told = value != UNTOLD && now.is_none_or(|now| now != UNTOLD);
        if is_told && now != Some(value) {
            drift.push(drift_of(&was.name, key, Some(value.clone()), now.cloned()));
        }
    }
    drift
}

/// HCAs that are not behind their netdev as they should be, in the namespace that was observed.
pub fn rdma_drift(held: &[MovedNic], observed: &Snapshot) -> Vec<Drift> {
    let mut drift = Vec::new();
    for nic in held.iter().map(|h| &h.nic).filter(|nic| !nic.borrowed) {
        let (Some(hca), Some(port)) = (&nic.hca, nic.port) else {
            continue;
        };
        let ports = observed.hca(hca).into_iter().flat_map(|hca| &hca.ports);
        let netdev = ports
            .filter(|p| p.number == port)
            .find_map(|p| p.netdev.as_ref());
        let name = nic.name();
        if netdev != Some(name) {
            drift.push(drift_of(name, "hca", Some(hca.to_string()), None));
        }
    }
    drift
}
