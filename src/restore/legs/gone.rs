//! What an administrator has deleted or changed on the host while NICs were away, without which
//! Linux refuses what was recorded of them.

use std::collections::HashSet;
use std::net::IpAddr;

use rdma_model::ids::IfName;
use rdma_model::link_kind::LinkKind;
use rdma_model::manager::is_daemon;
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::{Hop, Member, Nexthop, Route, Snapshot};
use rdma_model::step::{DISABLE_IPV6, lacks_ipv6};
use rdma_model::upper_lower::is_ipoib;

use super::AbsentParts;
use crate::kernel::Sysctls;
use crate::record::Record;

impl AbsentParts {
    /// Adds what the record's routes need beside its NICs and `others`, and the host does not have
    /// any more: an administrator has deleted a link or an address, or has set the link down.
    /// Returns a sentence for each.
    pub(super) fn add_gone(
        &mut self,
        record: &Record,
        others: &[Record],
        host: &Snapshot,
    ) -> Vec<String> {
        let held = || record.held.iter().map(|h| &h.before.netdev);
        // Neither fib_check_nh() in net/ipv4/fib_semantics.c nor fib6_nh_init() in
        // net/ipv6/route.c takes a leg over a link that is down.
        let up = host.netdevs.iter().filter(|dev| dev.up).chain(held());
        let devs: HashSet<&IfName> = up.map(|dev| &dev.name).collect();
        let here = host.netdevs.iter().chain(held());
        let here = here.flat_map(|dev| &dev.addresses).map(|a| a.address);
        // An IPv6 one that returns with another record is awaited: such routes are not handed over.
        let away = others.iter().flat_map(|r| &r.held);
        let away = away.flat_map(|h| &h.before.netdev.addresses);
        let away = away.map(|a| a.address).filter(IpAddr::is_ipv6);
        let addresses: HashSet<IpAddr> = here.chain(away).collect();
        let mut notes = Vec::new();
        for route in record.routes() {
            for dev in route.devs() {
                let here = host.netdev(dev);
                if !devs.contains(dev) && self.devs.insert(dev.clone()) {
                    self.may_come |= here.is_some();
                    let what = match here {
                        Some(_) => "is down",
                        None => "has gone",
                    };
                    notes.push(format!("{dev} {what}: its legs of routes are left out"));
                } else if route.is_ipv6()
                    && here.is_some_and(lacks_ipv6)
                    && self.without_ipv6.insert(dev.clone())
                {
                    notes.push(format!(
                        "{dev} is without IPv6: its legs of IPv6 routes are left out"
                    ));
                }
            }
            let source = route.prefsrc.filter(|ip| !addresses.contains(ip));
            if let Some(ip) = source.filter(|ip| self.sources.insert(*ip)) {
                let what = match ip {
                    IpAddr::V4(_) => "are left out",
                    IpAddr::V6(_) => "come back without it",
                };
                notes.push(format!("{ip} has gone: routes with this source {what}"));
            }
        }
        notes.extend(self.add_gone_members(record, others, host));
        notes
    }

    /// Linux refuses a group with a member that is not there, and leads by the others as they are
    /// by now, whatever they were.
    fn add_gone_members(
        &mut self,
        record: &Record,
        others: &[Record],
        host: &Snapshot,
    ) -> Vec<String> {
        let own = || record.nexthops();
        let all: Vec<&Nexthop> = own().chain(&host.nexthops).collect();
        let away = others.iter().flat_map(Record::nexthops);
        let known: HashSet<u32> = all.iter().copied().chain(away).map(|n| n.id).collect();
        let mut notes = Vec::new();
        // One that another record handed over, with what leads through it.
        let routes = record.routes();
        let named: HashSet<u32> = routes.filter_map(Route::nexthop).collect();
        let handed = host.nexthops.iter().filter(|n| named.contains(&n.id));
        let handed = handed.filter(|n| own().all(|own| own.id != n.id));
        // A daemon's come back by the daemon.
        for group in own().chain(handed).filter(|n| !is_daemon(n.protocol)) {
            let gone = group.group.iter().filter(|m| !known.contains(&m.id));
            let gone: Vec<u32> = gone.map(|m| m.id).collect();
            let here = group.group.iter().filter_map(|m| {
                let object = all.iter().find(|n| n.id == m.id);
                object.map(|n| (m.id, leg(n, m)))
            });
            let here: Vec<(u32, Hop)> = here.collect();
            let changed = here
                .iter()
                .filter(|(_, leg)| !has_leg(record, group.id, leg));
            let changed: Vec<u32> = changed.map(|(id, _)| *id).collect();
            if gone.is_empty() && changed.is_empty() {
                continue;
            }
            let legs = here.into_iter().map(|(_, leg)| leg);
            self.legs.insert(group.id, legs.collect());
            notes.extend(changed.iter().map(|id| {
                format!("nexthop object {id} leads elsewhere now, and so do groups with it")
            }));
            for id in gone {
                if self.objects.insert(id) {
                    notes.push(format!(
                        "nexthop object {id} has gone: groups come back without it"
                    ));
                }
            }
        }
        notes
    }

    /// Adds the MTUs that the links below do not allow any more: what sits on them would have lost
    /// them as well, had it been there. Returns a sentence for each.
    pub(super) fn add_mtus(&mut self, record: &Record, host: &Snapshot) -> Vec<String> {
        let mut notes = Vec::new();
        for held in &record.held {
            let Some(over) = link_below(held) else {
                continue;
            };
            let own = record.held.iter().any(|h| h.name() == over);
            let below = match self.mtus.get(over) {
                None if own => None,
                None => host.netdev(over).map(|dev| dev.mtu),
                lowered => lowered.copied(),
            };
            let name = held.name();
            if let Some(mtu) = below.filter(|mtu| *mtu < held.before.netdev.mtu) {
                self.mtus.insert(name.clone(), mtu);
                notes.push(format!(
                    "{name} has the MTU {mtu} now, that of {over}: more is not possible on it"
                ));
            }
        }
        notes
    }
}

/// What a route over a group has of that member.
fn leg(object: &Nexthop, member: &Member) -> Hop {
    Hop {
        dev: object.dev.clone(),
        gateway: object.gateway,
        flags: u8::try_from(object.flags).unwrap_or_default(),
        weight: u8::try_from(member.weight.saturating_sub(1)).unwrap_or_default(),
        ..Hop::default()
    }
}

/// Whether no route of the record over that group lacks the leg.
fn has_leg(record: &Record, group: u32, leg: &Hop) -> bool {
    let routes = record.routes();
    let mut through = routes.filter(|r| r.nexthop() == Some(group));
    through.all(|r| r.has_leg(leg))
}

/// What says of links that are not the record's whether its IPv6 routes can lead over them.
pub(super) fn whether_ipv6(record: &Record) -> Sysctls {
    let routes = record.routes();
    let legs = routes.filter(|r| r.is_ipv6()).flat_map(|r| &r.hops);
    let others = legs.filter_map(|hop| hop.dev.as_ref());
    let others = others.filter(|dev| !record.names().any(|name| name == *dev));
    let named = others.map(|dev| (dev.clone(), vec![DISABLE_IPV6.to_owned()]));
    Sysctls::Named(named.collect())
}

/// Which of a NIC on another link allows it no greater MTU than its own (macvlan_change_mtu(),
/// vlan_dev_change_mtu(), ipvlan_adjust_mtu()).
pub(super) fn link_below(held: &MovedNic) -> Option<&IfName> {
    let dev = &held.before.netdev;
    let is_limited = dev.has_kind(LinkKind::is_above_a_link) && !is_ipoib(dev);
    held.nic.over.as_ref().filter(|_| is_limited)
}
