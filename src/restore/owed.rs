//! What a restore puts back itself, and when. A network manager makes its own addresses, routes and rules again when a NIC
//! is back, and deletes what it finds there before it begins: what has no other owner comes after that. A routing daemon
//! learns its routes again, or has lost them meanwhile.

use std::collections::BTreeMap;

use rdma_model::effect::{compare_rules, missing_routes, same_address};
use rdma_model::ids::IfName;
use rdma_model::manager::{Managed, Manager, is_daemon, is_dynamic};
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::Snapshot;
use rdma_model::step::NicState;

use crate::kernel::link_managers::Word;
use crate::precedence::Precedence;

/// What the managers of NICs say; nothing of a NIC that has none.
pub type Words = BTreeMap<IfName, Word>;

/// NICs with that part of their state which a restore puts back now.
pub fn owed(held: &[MovedNic], words: &Words) -> Vec<MovedNic> {
    held.iter().map(|h| owed_of(h, words.get(&h.nic.identity.name).copied())).collect()
}

fn owed_of(held: &MovedNic, word: Option<Word>) -> MovedNic {
    let mut owed = held.clone();
    let before = &mut owed.before;
    before.netdev.addresses.retain(|a| !a.protocol.is_some_and(is_daemon));
    before.routes.retain(|r| !is_daemon(r.protocol));
    before.nexthops.retain(|n| !is_daemon(n.protocol));
    let Some(managed) = &held.managed else { return owed };
    if matches!(word, None | Some(Word::Absent | Word::GivenUp)) {
        owed.managed = None;
        return owed;
    }
    // NetworkManager would fail to add IPv6 addresses where another profile of its has none (seen of 1.52).
    before.netdev.sysctls.retain(|key, _| key != "ipv6/conf/disable_ipv6");
    // networkd deletes nothing any more when it has begun; whose is whose has to be known then.
    let has_begun = managed.by == Manager::Networkd && managed.foreign.is_some() && word == Some(Word::Configuring);
    match word {
        Some(Word::Done) => leave_own(before, managed),
        _ if has_begun => leave_own(before, managed),
        _ => strip(before),
    }
    owed
}

fn leave_own(state: &mut NicState, managed: &Managed) {
    state.netdev.addresses.retain(|a| !managed.owns_address(a));
    state.routes.retain(|r| !managed.owns_route(r));
    state.rules.retain(|r| !managed.owns_rule(r));
}

/// NetworkManager takes a NIC that has an address for one that another program configures; networkd deletes what it finds.
fn strip(state: &mut NicState) {
    state.netdev.addresses.clear();
    state.netdev.neighbours.clear();
    state.routes.clear();
    state.nexthops.clear();
    state.rules.clear();
}

/// Until a manager has begun nothing of its NIC is put back but link settings. One that restarts has no name on the bus.
pub fn unseen(held: &[MovedNic]) -> Words {
    let managed = held.iter().filter(|h| h.managed.is_some());
    managed.map(|h| (h.nic.identity.name.clone(), Word::Unseen)).collect()
}

/// The order of what is put back, and of what other NICs have.
pub fn order_of(order: &Precedence, held: &[MovedNic], owed: &[MovedNic]) -> Precedence {
    let left = |of: &dyn Fn(&NicState) -> bool| {
        let has = |all: &[MovedNic]| all.iter().any(|h| of(&h.before));
        has(held) && !has(owed)
    };
    let mut order = order.clone();
    order.routes.retain(|r| !left(&|state| state.routes.contains(r)));
    order.rules.retain(|r| !left(&|state| state.rules.contains(r)));
    order
}

/// Whether the manager's own static addresses, routes and rules are all there: it has begun and deletes nothing any more,
/// whatever it still waits for.
pub fn has_its_own(held: &MovedNic, host: &Snapshot) -> bool {
    let Some(managed) = held.managed.as_ref().filter(|m| m.foreign.is_some()) else { return false };
    let Some(now) = NicState::of(host, &held.nic.identity.name) else { return false };
    let before = &held.before;
    let addresses = before.netdev.addresses.iter();
    let mut addresses = addresses.filter(|a| managed.owns_address(a) && a.valid_lft.is_none()).peekable();
    let routes: Vec<_> = before.routes.iter().filter(|r| managed.owns_route(r) && !is_dynamic(r)).cloned().collect();
    let rules: Vec<_> = before.rules.iter().filter(|r| managed.owns_rule(r)).cloned().collect();
    addresses.peek().is_some()
        && addresses.all(|a| now.netdev.addresses.iter().any(|has| same_address(has, a)))
        && missing_routes(&routes, &now.routes).is_empty()
        && compare_rules(&rules, &host.rules).missing.is_empty()
}
