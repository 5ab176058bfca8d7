//! What of the host is no NIC's: systemd-networkd deletes what it has not made, of the whole host,
//! when it begins with a link (ManageForeignRoutes= and the like in networkd.conf(5)). A restore
//! remembers it before NICs return.

use std::collections::BTreeSet;

use anyhow::Result;
use rdma_model::effect::same_rule;
use rdma_model::host_objects::{HostObjects, RouteKey, is_deviceless, is_linkless};
use rdma_model::manager::{KERNEL, Manager, is_daemon};
use rdma_model::moved_nic::MovedNic;
use rdma_model::nic::is_same_netdev;
use rdma_model::snapshot::{Nexthop, Route, Rule, Snapshot};
use rdma_model::step::Side;

use super::nic_names;
use crate::kernel::{RoutesOf, Scope, World};
use crate::link_managers::Managers;
use crate::record::Record;

pub fn is_networkds(held: &MovedNic) -> bool {
    held.managed
        .as_ref()
        .is_some_and(|managed| managed.by == Manager::Networkd)
}

/// Looks at the host before NICs return. What an earlier try, or a record before this one, has
/// remembered counts, too, where networkd may have deleted it since.
pub fn record_objects(
    world: &mut dyn World,
    managers: &mut Managers,
    record: &mut Record,
    was_tried: bool,
) -> Result<()> {
    let may_delete = managers.may_delete_rules();
    if !may_delete && record.host_objects.is_empty() {
        return Ok(());
    }
    let scope = Scope::network().with(RoutesOf::deviceless());
    let host = world.observe(Side::Host, &scope)?;
    let earlier = std::mem::take(&mut record.host_objects);
    if may_delete {
        record.host_objects = host_objects(record, &host, managers);
    }
    if !was_tried || has_returned(record, &host) {
        record.host_objects.merge(earlier);
    }
    record.keep_objects_until_back = nic_names(&record.held);
    Ok(())
}

/// Rules that say RTPROT_STATIC and are not networkd's: see [`Record::static_rules`].
pub fn static_rules(managers: &mut Managers, host: &Snapshot) -> Vec<Rule> {
    let mut all: Vec<Rule> = host.rules.clone();
    all.retain(Rule::is_static);
    if all.is_empty() || !managers.may_delete_rules() {
        return Vec::new();
    }
    let own = managers.networkds();
    all.retain(|rule| own.is_some_and(|own| !own.has_rule(rule)));
    all
}

/// Rules of NICs that have a manager, and that are not its own.
pub fn foreign_rules(held: &[MovedNic]) -> Vec<Rule> {
    let mut all = Vec::new();
    for nic in held {
        let Some(managed) = &nic.managed else {
            continue;
        };
        let rules = nic.before.rules.iter().cloned();
        all.extend(rules.filter(|rule| !managed.may_choose_rule(rule)));
    }
    all
}

/// See [`Record::rules_beside`].
pub fn rules_beside(held: &[MovedNic], host: &[Rule]) -> Option<Vec<Rule>> {
    let foreign = foreign_rules(held);
    let does_same = |rule: &&Rule| foreign.iter().any(|want| same_rule(want, rule));
    (!foreign.is_empty()).then(|| host.iter().filter(does_same).cloned().collect())
}

/// Whether a NIC has come by itself, as when its namespace ended, or by a try that was killed.
fn has_returned(record: &Record, host: &Snapshot) -> bool {
    let mut away = record.held.iter();
    away.any(|h| {
        let was = &h.before.netdev;
        let mut links = host.netdevs.iter();
        record.keep_objects_until_back.contains(h.name())
            && links.any(|dev| {
                let may_be = dev.name == was.name || was.permanent_mac.is_some();
                may_be && is_same_netdev(was, dev)
            })
    })
}

/// What networkd may take for foreign: all but the kernel's, its own, routing daemons' and what is
/// of the record's NICs.
fn host_objects(record: &Record, host: &Snapshot, managers: &mut Managers) -> HostObjects {
    let own = managers.networkds();
    let mut nexthops = host.nexthops.clone();
    let before = record.held.iter().map(|h| &h.before);
    let of_nics: BTreeSet<u32> = before
        .clone()
        .flat_map(|s| s.nexthops.iter().map(|n| n.id))
        .collect();
    nexthops.retain(|n: &Nexthop| {
        let is_foreign = n.protocol != KERNEL && !is_daemon(n.protocol);
        is_foreign
            && is_linkless(n)
            && !of_nics.contains(&n.id)
            && !own.is_some_and(|own| own.has_nexthop(n))
    });
    let kept: BTreeSet<u32> = nexthops.iter().map(|n| n.id).collect();
    let of_nics: BTreeSet<RouteKey> = before
        .clone()
        .flat_map(|s| s.routes.iter().map(RouteKey::of))
        .collect();
    let routes = host.routes.iter().filter(|r: &&Route| {
        let is_foreign = r.protocol != KERNEL && !is_daemon(r.protocol);
        is_foreign
            && is_deviceless(r)
            && r.nexthop().is_none_or(|id| kept.contains(&id))
            && !of_nics.contains(&RouteKey::of(r))
            // Unlike a rule, it is not there twice where networkd makes it again.
            && !own.is_some_and(|own| own.has_route(r))
    });
    let routes = routes.cloned().collect();
    let rules = host.rules.iter().filter(|rule: &&Rule| {
        let of_nics = before.clone().any(|s| s.rules.contains(rule));
        // Where networkd cannot be asked, RTPROT_STATIC says that it has made a rule, unless it
        // could be asked as the NICs left.
        let is_networkds = own.map_or_else(
            || rule.is_static() && !record.static_rules.contains(rule),
            |own| own.has_rule(rule),
        );
        !rule.is_of_kernel() && !of_nics && !is_networkds
    });
    HostObjects {
        rules: rules.cloned().collect(),
        nexthops,
        routes,
    }
}
