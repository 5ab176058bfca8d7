//! What a restore puts back itself, and when. A network manager makes its own addresses, routes and
//! rules again when a NIC is back, and deletes what it finds there before it begins: what has no
//! other owner comes after that. A routing daemon learns its routes again, or has lost them
//! meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use rdma_model::effect::{MadeAgainBy, compare_rules, missing_routes, same_address};
use rdma_model::ids::IfName;
use rdma_model::manager::{Managed, Manager, is_daemon, is_dynamic};
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::{Address, Netdev, Nexthop, Route, Snapshot};
use rdma_model::step::{DISABLE_IPV6, NicState, chosen_by_manager, kernel_address};

use crate::link_managers::Word;
use crate::precedence::Precedence;

/// What the managers of NICs say; nothing of a NIC that has none.
pub type Words = BTreeMap<IfName, Word>;

/// NICs with that part of their state which a restore puts back now.
pub fn to_put_back(held: &[MovedNic], words: &Words, host: &Snapshot) -> Vec<MovedNic> {
    let parts = held
        .iter()
        .map(|h| part_to_put_back(h, words.get(h.name()).copied(), host));
    let mut parts: Vec<MovedNic> = parts.collect();
    let ended = words.iter().filter(|(_, word)| **word == Word::Ended);
    let ended: BTreeSet<&IfName> = ended.map(|(name, _)| name).collect();
    for nic in parts.iter_mut().filter(|_| !ended.is_empty()) {
        nic.before.routes = without_legs(&nic.before.routes, &ended);
    }
    parts
}

/// Routes without what leads over these NICs.
fn without_legs(routes: &[Route], nics: &BTreeSet<&IfName>) -> Vec<Route> {
    routes.iter().filter_map(|r| without(r, nics)).collect()
}

/// Nothing where no other leg is left. What leads over a nexthop object is the object's.
fn without(route: &Route, nics: &BTreeSet<&IfName>) -> Option<Route> {
    let mut hops = route.hops.clone();
    hops.retain(|hop| hop.dev.as_ref().is_none_or(|dev| !nics.contains(dev)));
    match hops.len() == route.hops.len() || route.nexthop().is_some() {
        true => Some(route.clone()),
        false => (!hops.is_empty()).then(|| route.with(hops)),
    }
}

/// Whether an address is neither the record's nor the kernel's, nor one that ends by itself.
pub fn is_strange(a: &Address, was: &Netdev, is: &Netdev) -> bool {
    a.valid_lft.is_none()
        && !kernel_address(a, is)
        && !was.addresses.iter().any(|had| same_address(had, a))
}

/// What a NIC of the host belongs to, and did not before. A NIC leaves what its container put it
/// into (unregister_netdevice_many_notify() and __dev_change_net_namespace() in net/core/dev.c), so
/// it is the administrator or a manager who wants that.
pub fn new_master<'a>(held: &MovedNic, dev: &'a Netdev) -> Option<&'a IfName> {
    let master = dev.master.as_ref();
    master.filter(|_| held.before.netdev.master.is_none())
}

pub fn note_if_no_longer_ours(held: &MovedNic, words: &Words, host: &Snapshot) -> Option<String> {
    let name = held.name();
    let why = match new_master(held, host.netdev(name)?) {
        Some(master) => format!("belongs to {master} now"),
        None if words.get(name) == Some(&Word::Ended) => "has been disconnected".to_owned(),
        None => return None,
    };
    Some(no_longer_ours(name, &why))
}

pub fn no_longer_ours(name: &IfName, why: &str) -> String {
    format!("{name} {why}: what it lacked is given up")
}

pub fn has_new_master(held: &MovedNic, host: &Snapshot) -> bool {
    let dev = host.netdev(held.name());
    dev.is_some_and(|dev| new_master(held, dev).is_some())
}

fn part_to_put_back(held: &MovedNic, word: Option<Word>, host: &Snapshot) -> MovedNic {
    let now = NicState::of(host, held.name());
    let now = now.as_ref();
    let mut part = held.clone();
    if let Some(now) = now.filter(|now| new_master(held, &now.netdev).is_some()) {
        part.before = now.clone();
        part.stand_ins.clear();
        part.managed = None;
        return part;
    }
    leave_to_daemons(&mut part.before);
    let Some(managed) = &held.managed else {
        return part;
    };
    match word {
        // It does nothing more with the NIC, which comes back as one without a manager.
        None | Some(Word::Absent | Word::External | Word::Unmanaged | Word::NeverMissedIt) => {
            let addresses = &mut part.before.netdev.addresses;
            addresses.retain(|a| !has_chosen_another(a, &held.before.netdev, now));
            part.managed = None;
        }
        Some(Word::Ended) => {
            strip(&mut part.before);
            part.stand_ins.clear();
        }
        Some(word) => leave_to_manager(&mut part, (held, managed), word, now, host),
    }
    part
}

fn leave_to_daemons(before: &mut NicState) {
    before
        .netdev
        .addresses
        .retain(|a| !a.protocol.is_some_and(is_daemon));
    before.routes.retain(|r| !is_daemon(r.protocol));
    before.rules.retain(|r| !is_daemon(r.protocol()));
    keep_nexthops(before, |n| !is_daemon(n.protocol));
}

/// Takes out what a manager makes that has configured the NIC, or is about to; and all else as long
/// as it may delete what it finds.
fn leave_to_manager(
    part: &mut MovedNic,
    (held, managed): (&MovedNic, &Managed),
    word: Word,
    now: Option<&NicState>,
    host: &Snapshot,
) {
    let before = &mut part.before;
    let is_done = word.has_configured();
    // Of those that are not done, two delete nothing any more: networkd that has begun, where it is
    // known what was its own; and one that no one can ask.
    let is_known_networkd = managed.by == Manager::Networkd && managed.was_asked();
    let may_add_beside = is_known_networkd && word == Word::Configuring || word == Word::Stalled;
    // It may have taken another profile, which has IPv6: NetworkManager then fails to add addresses
    // for ever.
    let mut addresses = now.iter().flat_map(|now| &now.netdev.addresses);
    let has_ipv6 =
        addresses.any(|a| matches!(a.address, IpAddr::V6(v6) if !v6.is_unicast_link_local()));
    let switches_it_on = Word::Changed {
        switches_ipv6_on: true,
    };
    if !is_done || has_ipv6 || word == switches_it_on {
        before.netdev.sysctls.retain(|key, _| key != DISABLE_IPV6);
    }
    let is_same = !word.has_changed() && has_its_addresses(held, managed, now);
    // Another profile has another MTU.
    if let Some(now) = now.filter(|_| is_done && !is_same) {
        before.netdev.mtu = now.netdev.mtu;
        before
            .netdev
            .sysctls
            .retain(|key, _| key != "ipv6/conf/mtu");
    }
    if let Some(now) = now.filter(|_| word.has_changed()) {
        take_settings(&mut before.netdev, &now.netdev);
        keep_nexthops(before, |n| !managed.configures_nexthop(n));
    }
    if is_done || may_add_beside {
        leave_own(before, managed, is_done && is_same);
        before
            .nexthops
            .retain(|n| !has_equal_object(managed, n, host));
    } else {
        strip(before);
        // They stay on the host until the whole routes are back.
        part.stand_ins.clear();
    }
}

/// Where its files are the same and all its static addresses are there it has the same profile as
/// before: a route or rule that it has lost is put back, as it does not notice that.
fn leave_own(state: &mut NicState, managed: &Managed, is_same: bool) {
    let dev = &mut state.netdev;
    dev.addresses.retain(|a| !managed.owns_address(a));
    dev.neighbours
        .retain(|n| !managed.owns_neighbour(n) || is_same);
    state
        .routes
        .retain(|r| !managed.owns_route(r) || is_same && !is_dynamic(r));
    state.rules.retain(|r| !managed.owns_rule(r) || is_same);
    keep_nexthops(state, |n| !managed.owns_nexthop(n));
}

/// Without an object that its owner makes, what leads through it is the owner's, too.
fn keep_nexthops(state: &mut NicState, keep: impl Fn(&Nexthop) -> bool) {
    let all = std::mem::take(&mut state.nexthops).into_iter();
    let (left, gone): (Vec<Nexthop>, Vec<Nexthop>) = all.partition(keep);
    state.nexthops = left;
    state
        .routes
        .retain(|r| gone.iter().all(|n| r.nexthop() != Some(n.id)));
}

/// Settings that a profile has (networkd-sysctl.c of systemd; nm-device.c of NetworkManager, which
/// writes fewer).
const OF_PROFILES: [&str; 15] = [
    "ipv4/conf/accept_local",
    "ipv4/conf/force_igmp_version",
    "ipv4/conf/forwarding",
    "ipv4/conf/promote_secondaries",
    "ipv4/conf/proxy_arp",
    "ipv4/conf/proxy_arp_pvlan",
    "ipv4/conf/route_localnet",
    "ipv4/conf/rp_filter",
    "ipv6/conf/accept_ra",
    "ipv6/conf/addr_gen_mode",
    "ipv6/conf/dad_transmits",
    "ipv6/conf/forwarding",
    "ipv6/conf/hop_limit",
    "ipv6/conf/proxy_ndp",
    "ipv6/conf/use_tempaddr",
];

/// Other files have other settings: those that are there are by them.
fn take_settings(before: &mut Netdev, now: &Netdev) {
    (before.promisc, before.allmulti) = (now.promisc, now.allmulti);
    leave_settings(before);
}

/// For a manager that sets them as soon as it sees the NIC.
pub fn leave_settings(before: &mut Netdev) {
    before
        .sysctls
        .retain(|key, _| !OF_PROFILES.contains(&key.as_str()));
}

/// Whether networkd has made such an object again under another number: it numbers those that have
/// none in their file at each return (`Id=` in systemd.network(5)).
fn has_equal_object(managed: &Managed, object: &Nexthop, host: &Snapshot) -> bool {
    let mut equal: Vec<&Nexthop> = host.nexthops.iter().collect();
    equal.retain(|other| {
        other.group.is_empty()
            && (&other.dev, &other.gateway) == (&object.dev, &object.gateway)
            && other.protocol == object.protocol
    });
    managed.by == Manager::Networkd
        && object.group.is_empty()
        && !equal.is_empty()
        && equal.iter().all(|other| other.id != object.id)
}

/// Whether all that its manager gave a NIC for good is there: it has the same profile.
pub fn is_configured_as_before(held: &MovedNic, host: &Snapshot) -> bool {
    let now = NicState::of(host, held.name());
    let managed = held.managed.as_ref();
    managed.is_none_or(|managed| has_its_addresses(held, managed, now.as_ref()))
}

fn has_its_addresses(held: &MovedNic, managed: &Managed, now: Option<&NicState>) -> bool {
    let addresses: Vec<&Address> = now.iter().flat_map(|now| &now.netdev.addresses).collect();
    let mut own: Vec<&Address> = held.before.netdev.addresses.iter().collect();
    own.retain(|a| managed.owns_address(a) && a.valid_lft.is_none());
    let is_there = |a: &&Address| {
        addresses.iter().any(|has| same_address(has, a))
            || has_chosen_another(a, &held.before.netdev, now)
    };
    !own.is_empty() && own.iter().all(is_there)
}

/// Whether a manager has another link-local address in the place of this one of its own.
fn has_chosen_another(address: &Address, before: &Netdev, now: Option<&NicState>) -> bool {
    let Some(NicState { netdev, .. }) = now else {
        return false;
    };
    let mut all = netdev.addresses.iter();
    chosen_by_manager(address, before) && all.any(|has| chosen_by_manager(has, netdev))
}

/// NetworkManager takes a NIC that has an address for one that another program configures; networkd
/// deletes what it finds.
fn strip(state: &mut NicState) {
    state.netdev.addresses.clear();
    state.netdev.neighbours.clear();
    state.routes.clear();
    state.nexthops.clear();
    state.rules.clear();
}

/// Until a manager has begun nothing of its NIC is put back but link settings. One that restarts
/// has no name on the bus.
pub fn not_begun(held: &[MovedNic]) -> Words {
    let managed = held.iter().filter(|h| h.managed.is_some());
    managed
        .map(|h| (h.name().clone(), Word::NotBegun))
        .collect()
}

/// The order of what is put back, and of what other NICs have.
pub fn order_of(order: &Precedence, held: &[MovedNic], parts: &[MovedNic]) -> Precedence {
    let mut order = order.clone();
    order.routes.retain(|r| {
        parts.iter().any(|h| h.before.routes.contains(r))
            || !held.iter().any(|h| h.before.routes.contains(r))
    });
    order.rules.retain(|r| {
        parts.iter().any(|h| h.before.rules.contains(r))
            || !held.iter().any(|h| h.before.rules.contains(r))
    });
    order
}

/// Whether the manager's own static addresses, routes and rules are all there: it has begun and
/// deletes nothing any more, whatever it still waits for.
pub fn has_its_own(held: &MovedNic, host: &Snapshot) -> bool {
    let Some(managed) = held.managed.as_ref().filter(|m| m.was_asked()) else {
        return false;
    };
    let Some(now) = NicState::of(host, held.name()) else {
        return false;
    };
    let before = &held.before;
    let routes: Vec<_> = before
        .routes
        .iter()
        .filter(|r| managed.owns_route(r) && !is_dynamic(r))
        .cloned()
        .collect();
    let rules: Vec<_> = before
        .rules
        .iter()
        .filter(|r| managed.owns_rule(r))
        .cloned()
        .collect();
    has_its_addresses(held, managed, Some(&now))
        && missing_routes(&routes, &now.routes, Some(managed)).is_empty()
        && compare_rules(&rules, &host.rules, MadeAgainBy::Manager(managed))
            .missing
            .is_empty()
}
