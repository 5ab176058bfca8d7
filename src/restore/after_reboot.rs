//! After a reboot: NICs that were away never left, and came up as the system configures them. What
//! of their state is not configured can be added, never replaced: what was right before the boot
//! may be another host's by now.

use rdma_model::moved_nic::MovedNic;
use std::collections::BTreeMap;
use std::net::IpAddr;

use rdma_model::ids::IfName;
use rdma_model::snapshot::{Address, Netdev, Route, Snapshot, SysctlValues};
use rdma_model::step::{NicState, Side, Step, configure, connect, derived, kernel_address};

use crate::verify;
use rdma_model::upper_lower;

/// What can be added to NICs, and why not to the others.
#[derive(Debug, Default)]
pub struct RebootPlan {
    /// In the order in which they are done; they add, and set what has the kernel's own value.
    pub steps: Vec<Step>,
    /// A sentence for each NIC that is left alone, and for what is not added to another.
    pub notes: Vec<String>,
}

/// Plans what is missing on the very same hardware. `manager` names the link manager of a netdev,
/// if there is one.
pub fn plan_after_reboot(
    held: &[MovedNic],
    host: &Snapshot,
    manager: impl Fn(&Netdev) -> Option<&'static str>,
) -> RebootPlan {
    let mut reboot = RebootPlan::default();
    let mut ours: Vec<(&MovedNic, &Netdev)> = Vec::new();
    for h in held {
        match untouched(h, host, &manager) {
            Ok(dev) => ours.push((h, dev)),
            Err(why) => reboot.notes.push(format!("{} {why}", h.nic.identity.name)),
        }
    }
    // Names may have changed with the boot.
    let names: BTreeMap<IfName, IfName> = ours
        .iter()
        .map(|(h, dev)| (h.before.netdev.name.clone(), dev.name.clone()))
        .collect();
    let mut added: Vec<NicState> = Vec::new();
    for (h, dev) in ours {
        let was = renamed(&h.before, &names);
        let (add, sysctls) = missing(&was, dev, host);
        reboot.steps.extend(configure(
            Side::Host,
            &upper_lower::without_master_up(&add),
            sysctls,
        ));
        reboot.notes.extend(left(&was.netdev, dev));
        added.push(add);
    }
    let addresses: Vec<IpAddr> = host
        .netdevs
        .iter()
        .chain(added.iter().map(|s| &s.netdev))
        .flat_map(|d| &d.addresses)
        .map(|a| a.address)
        .collect();
    for state in &mut added {
        let (can, cannot): (Vec<Route>, Vec<Route>) = state
            .routes
            .drain(..)
            .partition(|r| possible(r, &addresses, host));
        state.routes = can;
        let note = |r: &Route| {
            format!(
                "route {} table {} leads where nothing is now: left out",
                r.destination, r.table
            )
        };
        reboot.notes.extend(cannot.iter().map(note));
    }
    reboot
        .steps
        .extend(connect(Side::Host, &added.iter().collect::<Vec<_>>()));
    reboot
}

/// The netdev of this very hardware, if nothing has configured it; else the reason.
fn untouched<'a>(
    held: &MovedNic,
    host: &'a Snapshot,
    manager: &impl Fn(&Netdev) -> Option<&'static str>,
) -> Result<&'a Netdev, String> {
    let was = &held.before.netdev;
    if was.pci.is_none() || was.permanent_mac.is_none() {
        return Err("has no PCI and permanent address to know it by: left alone".to_owned());
    }
    let same = |d: &&Netdev| {
        d.pci == was.pci && d.permanent_mac == was.permanent_mac && d.kind == was.kind
    };
    let dev = host
        .netdevs
        .iter()
        .find(same)
        .ok_or("is not on this host, or another card is in its place")?;
    if let Some(manager) = manager(dev) {
        return Err(format!("is configured by {manager}: left alone"));
    }
    if let Some(master) = dev.master.as_ref().filter(|_| dev.master != was.master) {
        return Err(format!("belongs to {master} now: left alone"));
    }
    let known = |a: &Address| {
        was.addresses
            .iter()
            .any(|b| (b.address, b.prefix) == (a.address, a.prefix))
    };
    let own = |a: &&Address| !kernel_address(a, dev) && !known(a);
    if let Some(a) = dev.addresses.iter().find(own) {
        return Err(format!(
            "has {}/{} now, which it did not have: it has been configured since",
            a.address, a.prefix
        ));
    }
    let elsewhere = |a: &&Address| {
        others(host, dev).any(|d| d.addresses.iter().any(|b| b.address == a.address))
    };
    match lasting(was)
        .filter(|a| !link_local(a.address))
        .find(elsewhere)
    {
        Some(a) => Err(format!(
            "had {}, which another interface of this host has now: left alone",
            a.address
        )),
        None => Ok(dev),
    }
}

fn others<'a>(host: &'a Snapshot, dev: &Netdev) -> impl Iterator<Item = &'a Netdev> {
    let index = dev.ifindex;
    host.netdevs.iter().filter(move |d| d.ifindex != index)
}

/// Each link has its own, and two links may well have the same.
fn link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Addresses but for those that the kernel makes, and those with a lifetime: what gave them (DHCP,
/// a router) does so again.
fn lasting(dev: &Netdev) -> impl Iterator<Item = &Address> {
    dev.addresses
        .iter()
        .filter(|a| a.valid_lft.is_none() && !kernel_address(a, dev))
}

/// What the NIC had and lacks. A sysctl is missing where it has the value that every new NIC gets.
fn missing(was: &NicState, dev: &Netdev, host: &Snapshot) -> (NicState, SysctlValues) {
    let mut add = verify::normal(was);
    let has = |a: &Address| {
        dev.addresses
            .iter()
            .any(|b| (b.address, b.prefix) == (a.address, a.prefix))
    };
    add.netdev.addresses = lasting(&was.netdev).filter(|a| !has(a)).cloned().collect();
    add.netdev.up = was.netdev.up && !dev.up;
    (add.netdev.qdiscs, add.netdev.token) = (None, None);
    add.netdev.neighbours.clear();
    add.nexthops.clear();
    // A route that leads there by now was configured.
    let taken = |r: &Route| {
        let key = |r: &Route| (r.destination, r.table, r.metric, r.tos);
        host.routes.iter().any(|other| key(other) == key(r))
    };
    add.routes.retain(|r| !derived(r) && !taken(r));
    add.rules.retain(|r| !host.rules.contains(r));
    let unset = |key: &str, value: &String| {
        let now = dev.sysctls.get(key);
        let usual = key
            .rsplit_once('/')
            .and_then(|(folder, leaf)| host.sysctls.get(&format!("{folder}/default/{leaf}")));
        // The link's MTU decides on that of IPv6.
        now.is_some() && now == usual && now != Some(value) && !key.ends_with("/mtu")
    };
    let sysctls = was.netdev.sysctls.iter().filter(|(k, v)| unset(k, v));
    (add, sysctls.map(|(k, v)| (k.clone(), v.clone())).collect())
}

/// Whether a route's legs, source and nexthop object are there.
fn possible(route: &Route, addresses: &[IpAddr], host: &Snapshot) -> bool {
    let there = |name: &IfName| host.netdev(name).is_some();
    route.hops.iter().all(|h| h.dev.as_ref().is_none_or(there))
        && route.prefsrc.is_none_or(|ip| addresses.contains(&ip))
        && route
            .nexthop()
            .is_none_or(|id| host.nexthops.iter().any(|n| n.id == id))
}

/// What is not as it was and is no matter of adding.
fn left(was: &Netdev, dev: &Netdev) -> Option<String> {
    let (now, then) = (dev.mtu, was.mtu);
    (now != then).then(|| format!("{} has MTU {now}, had {then}: left as it is", dev.name))
}

/// The state by the names that NICs have now.
fn renamed(state: &NicState, names: &BTreeMap<IfName, IfName>) -> NicState {
    let mut state = state.clone();
    let now = |name: &IfName| names.get(name).unwrap_or(name).clone();
    let text = |name: &String| {
        names
            .iter()
            .find(|(old, _)| old.as_str() == name)
            .map_or(name.clone(), |(_, new)| new.to_string())
    };
    state.netdev.name = now(&state.netdev.name);
    for hop in state.routes.iter_mut().flat_map(|r| &mut r.hops) {
        hop.dev = hop.dev.as_ref().map(now);
    }
    for rule in &mut state.rules {
        rule.iif = rule.iif.as_ref().map(text);
        rule.oif = rule.oif.as_ref().map(text);
    }
    state
}
