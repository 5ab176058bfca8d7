//! Routes and nexthop objects that lead over NICs of several containers: each restore brings back
//! the legs that can be there, and hands what is still missing over to the record of the NIC that
//! is away.

mod deleted;
mod gone;
mod hand_over;
mod stand_ins;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use rdma_model::effect::same_address;
use rdma_model::ids::IfName;
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::{Hop, Nexthop, RTA_NH_ID, Route, Snapshot};
use rdma_model::step::{NicState, Side};

use super::MOMENT;
use crate::kernel::{Depth, RoutesOf, Scope, World};
use crate::record::{Phase, Record};
use crate::store::records::Records;
pub(super) use hand_over::hand_over;

/// What other records keep from the host, and what has gone from it.
#[derive(Debug, Default)]
pub struct AbsentParts {
    /// Netdevs over which no leg can be: away, gone or down.
    devs: BTreeSet<IfName>,
    /// Links over which no leg of an IPv6 route can be.
    without_ipv6: BTreeSet<IfName>,
    /// Whether what is absent by a link that is there may come in a moment.
    may_come: bool,
    /// Addresses that the host does not have.
    sources: HashSet<IpAddr>,
    /// Nexthop objects that the host does not have.
    objects: HashSet<u32>,
    /// Objects whose number another one has by now, and groups of these.
    renumbered: HashSet<u32>,
    /// The host's routes through what has these numbers now.
    kept: Vec<Route>,
    /// The legs, as they are now, of groups of which a member has gone or leads elsewhere.
    legs: BTreeMap<u32, Vec<Hop>>,
    /// Legs of routes that stay deleted.
    deleted: Vec<(Route, Hop)>,
    /// What is left of those routes.
    rests: Vec<Route>,
    /// What stands in for routes of other records.
    stand_ins: Vec<Route>,
    /// Legs over links without an address of theirs.
    unreachable: Vec<(Route, Hop)>,
    deleted_groups: HashSet<u32>,
    /// The MTUs of NICs whose link below has a lower one by now.
    mtus: BTreeMap<IfName, u32>,
}

impl AbsentParts {
    /// The NICs of other records that the host does not have now, or has down, their IPv4 addresses
    /// and their nexthop objects.
    fn from_records<'a>(others: impl Iterator<Item = &'a Record>, host: &Snapshot) -> AbsentParts {
        let mut away = AbsentParts::default();
        let mut nics: Vec<&MovedNic> = Vec::new();
        for record in others {
            let held = record.held.iter();
            away.stand_ins
                .extend(held.clone().flat_map(|h| h.stand_ins.clone()));
            nics.extend(held.filter(|h| !is_here(h, host)));
        }
        away.add_away(nics.into_iter(), host);
        away
    }

    fn add_away<'a>(&mut self, nics: impl Iterator<Item = &'a MovedNic>, host: &Snapshot) {
        for held in nics {
            let dev = &held.before.netdev;
            self.objects.extend(objects_on(held));
            let addresses = dev.addresses.iter().map(|a| a.address);
            self.sources.extend(addresses.filter(IpAddr::is_ipv4));
            self.devs.insert(dev.name.clone());
        }
        for address in host.netdevs.iter().flat_map(|d| &d.addresses) {
            self.sources.remove(&address.address);
        }
        // Another one by now, which may be a member.
        for object in &host.nexthops {
            self.objects.remove(&object.id);
        }
    }

    /// Adds those of the record's own NICs that cannot come now. The others get what is possible of
    /// shared routes; the whole is for these, with what stands in for it.
    pub(super) fn add_stuck(&mut self, stuck: &[IfName], record: &mut Record, host: &Snapshot) {
        let mut away = record.reduced_to(stuck);
        self.add_away(away.held.iter(), host);
        self.add_missing_to(record, &mut away, &[]);
        for held in &mut record.held {
            let mut away = away.held.iter();
            if let Some(away) = away.find(|away| away.name() == held.name()) {
                held.clone_from(away);
            }
        }
        record.precedence = away.precedence;
        let theirs = away.held.into_iter().flat_map(|h| h.stand_ins);
        self.stand_ins.extend(theirs);
    }

    /// Adds the record's nexthop objects that cannot be made, since the host has another one of
    /// that number. Returns a sentence for each.
    fn add_renumbered(
        &mut self,
        record: &Record,
        others: &[Record],
        host: &Snapshot,
    ) -> Vec<String> {
        let objects = || record.nexthops();
        let theirs = others.iter().flat_map(Record::nexthops);
        let theirs: Vec<&Nexthop> = theirs.collect();
        let mut notes = Vec::new();
        for object in objects().filter(|n| has_another_objects_number(n, &theirs, host)) {
            if self.renumbered.insert(object.id) {
                notes.push(format!(
                    "nexthop object {} is another one by now: what leads there stays, and routes \
                    that are missing get the legs of the old one",
                    object.id
                ));
            }
        }
        for group in objects() {
            if group.group.iter().any(|m| self.renumbered.contains(&m.id)) {
                self.renumbered.insert(group.id);
            }
        }
        let leads_there = |r: &&Route| r.nexthop().is_some_and(|id| self.renumbered.contains(&id));
        self.kept = host.routes.iter().filter(leads_there).cloned().collect();
        notes
    }

    fn lacks(&self, r: &Route) -> bool {
        // Its other legs may be equal to one that has gone.
        r.nexthop().is_some_and(|id| self.legs.contains_key(&id))
            || r.hops.iter().any(|h| !self.can_be(r, h))
            || r.prefsrc.is_some_and(|ip| self.sources.contains(&ip))
    }

    fn can_be(&self, r: &Route, hop: &Hop) -> bool {
        let legs = r.nexthop().and_then(|id| self.legs.get(&id));
        let is_dead = |dev: &IfName| {
            self.devs.contains(dev) || r.is_ipv6() && self.without_ipv6.contains(dev)
        };
        !hop.dev.as_ref().is_some_and(is_dead)
            && !self.is_deleted(r, hop)
            && !self.is_unreachable(r, hop)
            && legs.is_none_or(|legs| legs.iter().any(|leg| leg.is_same_leg(hop)))
    }

    /// What of a route can be there: the legs that are here. Linux refuses a preferred source that
    /// is not; with an address go the IPv4 routes of this source, those of IPv6 lose it
    /// (fib_sync_down_addr() in net/ipv4/fib_semantics.c, rt6_remove_prefsrc() in
    /// net/ipv6/route.c).
    pub fn route(&self, r: &Route) -> Option<Route> {
        if self.is_of_deleted_group(r) {
            return None;
        }
        let is_renumbered = r.nexthop().is_some_and(|id| self.renumbered.contains(&id));
        if is_renumbered {
            if self.kept.iter().any(|kept| kept.is_same_but_for_legs(r)) {
                return None;
            }
            let mut plain = r.with(r.hops.clone());
            plain.other.remove(&RTA_NH_ID);
            return self.route(&plain).filter(|r| !r.hops.is_empty());
        }
        if !self.lacks(r) {
            return Some(r.clone());
        }
        let mut hops = r.hops.clone();
        if let Some(legs) = r.nexthop().and_then(|id| self.legs.get(&id)) {
            hops.clone_from(legs);
        }
        hops.retain(|h| self.can_be(r, h));
        let gone = r.prefsrc.filter(|ip| self.sources.contains(ip));
        if hops.is_empty() || gone.is_some_and(|ip| ip.is_ipv4()) {
            return None;
        }
        let mut part = match r.nexthop() {
            Some(_) => Route { hops, ..r.clone() },
            None => r.with(hops),
        };
        part.prefsrc = part.prefsrc.filter(|_| gone.is_none());
        Some(part)
    }

    fn object(&self, n: &Nexthop) -> Option<Nexthop> {
        if self.renumbered.contains(&n.id) || self.deleted_groups.contains(&n.id) {
            return None;
        }
        let group: Vec<_> = n
            .group
            .iter()
            .filter(|m| !self.objects.contains(&m.id))
            .copied()
            .collect();
        (n.group.is_empty() || !group.is_empty()).then(|| Nexthop { group, ..n.clone() })
    }

    fn state(&self, s: &NicState) -> NicState {
        let routes = s.routes.iter().filter_map(|r| self.route(r)).collect();
        NicState {
            routes,
            nexthops: s.nexthops.iter().filter_map(|n| self.object(n)).collect(),
            ..s.clone()
        }
    }

    /// What comes in place of a route is no more the manager's than the route.
    fn add_what_comes(&self, foreign: &mut Vec<Route>) {
        let mut coming: Vec<Route> = foreign.iter().filter_map(|r| self.route(r)).collect();
        coming.retain(|route| !foreign.contains(route));
        foreign.append(&mut coming);
    }

    /// The record as far as it can be carried out while those NICs are away.
    pub fn possible(&self, record: &Record) -> Record {
        let mut possible = record.clone();
        for held in &mut possible.held {
            held.stand_ins.extend(self.rests_of(&held.before));
            held.before = self.state(&held.before);
            if let Some(foreign) = held.managed.as_mut().and_then(|m| m.foreign.as_mut()) {
                self.add_what_comes(&mut foreign.routes);
            }
            held.stand_ins.extend(self.smaller_parts(&held.before));
            if let Some(mtu) = self.mtus.get(held.name()).copied() {
                let dev = &mut held.before.netdev;
                dev.mtu = mtu;
                dev.sysctls.retain(|key, _| key != "ipv6/conf/mtu");
            }
        }
        possible.precedence.routes.clear();
        for route in record
            .precedence
            .routes
            .iter()
            .filter_map(|r| self.route(r))
        {
            if !possible.precedence.routes.contains(&route) {
                possible.precedence.routes.push(route);
            }
        }
        possible
    }
}

/// A hook that was killed may have left it there, down: the kernel refuses routes over it. Over one
/// without the addresses that it had a route leads nowhere, and without its nexthop objects groups
/// have no leg over it.
fn is_here(held: &MovedNic, host: &Snapshot) -> bool {
    let Some(here) = host.netdev(held.name()) else {
        return false;
    };
    let was = &held.before.netdev;
    let mut own = was.addresses.iter().filter(|a| a.address.is_ipv4());
    let is_bare = own.clone().next().is_some()
        && !own.any(|a| here.addresses.iter().any(|has| same_address(has, a)));
    let has_objects = objects_on(held).all(|id| host.nexthops.iter().any(|n| n.id == id));
    (here.up || !was.up) && !is_bare && has_objects
}

/// The nexthop objects over a NIC, but for groups.
fn objects_on(held: &MovedNic) -> impl Iterator<Item = u32> {
    let all = held.before.nexthops.iter();
    let single = all.filter(|n| n.group.is_empty() && n.dev.as_ref() == Some(held.name()));
    single.map(|n| n.id)
}

/// A group with other members may be what a restore that was killed has brought of the whole, which
/// is another container's.
fn has_another_objects_number(wanted: &Nexthop, theirs: &[&Nexthop], host: &Snapshot) -> bool {
    let mut wholes = theirs.iter().filter(|n| n.id == wanted.id);
    let mut others = host.nexthops.iter().filter(|n| n.id == wanted.id);
    others.any(|other| {
        !is_same_object(wanted, other)
            && !wholes.any(|whole| is_same_object(whole, other) && is_same_object(whole, wanted))
    })
}

/// The kernel takes a member out of a group when its device leaves: such a group is still the same.
fn is_same_object(wanted: &Nexthop, other: &Nexthop) -> bool {
    match (wanted.group.is_empty(), other.group.is_empty()) {
        (true, true) => wanted.dev == other.dev,
        (true, false) | (false, true) => false,
        (false, false) => other.group.iter().all(|m| wanted.group.contains(m)),
    }
}

/// The records of other containers that have NICs of this host; of one that cannot be read, nothing
/// is known.
pub(super) fn other_records(records: &Records, record: &Record) -> Vec<Record> {
    let others = records
        .readable()
        .filter(|r| r.netns != record.netns && r.host_netns == record.host_netns);
    others.cloned().collect()
}

/// What routes of the record need and the host does not have, with a sentence for each that comes
/// back by no other record.
pub(super) fn absent_parts(
    world: &mut dyn World,
    records: &Records,
    record: &Record,
    others: &[Record],
    was: Phase,
) -> Result<(AbsentParts, Vec<String>)> {
    // A route over a group may have been handed over without it.
    let has_objects = record.held.iter().any(|h| {
        !h.before.nexthops.is_empty() || h.before.routes.iter().any(|r| r.nexthop().is_some())
    });
    let routes = RoutesOf::of_moved(&record.held, []);
    let scope = match (has_objects, record.has_routes_of_others()) {
        (true, _) => Scope::network().with(routes.and_deviceless()),
        (false, true) => Scope::network().with(routes),
        (false, false)
            if others.is_empty() && !record.held.iter().any(|h| gone::link_below(h).is_some()) =>
        {
            return Ok((AbsentParts::default(), Vec::new()));
        }
        (false, _) => Scope::only(Depth::Netdevs),
    };
    let sysctls = gone::whether_ipv6(record);
    let host = world.observe(Side::Host, &Scope { sysctls, ..scope })?;
    let mut absent = AbsentParts::from_records(others.iter(), &host);
    let mut notes = absent.add_renumbered(record, others, &host);
    notes.extend(absent.add_mtus(record, &host));
    // Of one that cannot be read it is not known what is away with it.
    if records.damaged().next().is_none() {
        notes.extend(absent.add_gone(record, others, &host));
        notes.extend(absent.add_deleted(record, others, &host));
        // A restore that was begun may have had networkd delete them.
        if was == Phase::Attached {
            notes.extend(absent.add_deleted_groups(record, others, &host));
        }
    }
    Ok((absent, notes))
}

/// How long a link that is down or without addresses is waited for: one that is set up again, or
/// whose card is reset, would lose its legs of routes for good.
const DOWN: Duration = Duration::from_secs(3);

/// [`absent_parts`], once links that are down for a moment are up again.
pub(super) fn await_absent_parts(
    world: &mut dyn World,
    records: &Records,
    record: &Record,
    others: &[Record],
    was: Phase,
    patience: Duration,
) -> Result<(AbsentParts, Vec<String>)> {
    let until = Instant::now() + patience.min(DOWN);
    loop {
        let (absent, notes) = absent_parts(world, records, record, others, was)?;
        if !absent.may_come || Instant::now() >= until {
            return Ok((absent, notes));
        }
        sleep(MOMENT);
    }
}
