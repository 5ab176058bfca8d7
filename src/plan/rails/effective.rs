//! What the kernel makes of a NIC's values and of those of `all`: the effective ones, and `all`
//! where it would defeat ours.

use rdma_model::arp::ArpProfile;
use rdma_model::drift::Drift;
use rdma_model::moved_nic::Overruled;
use std::collections::BTreeMap;

use rdma_model::ids::IfName;
use rdma_model::snapshot::Snapshot;
use rdma_model::step::{NicState, Side, Step};

/// The folder of `/proc/sys/net/ipv4/conf` that combines with each device's; no device can have
/// that name (sysctl_dev_name_is_allowed in net/core/sysctl_net_core.c).
const ALL: &str = "all";

/// By the key of [`rdma_model::snapshot::Netdev::sysctls`].
type Values = BTreeMap<String, Overruled>;

/// A value of `all`; what is unknown counts as 0, the kernel's default.
fn of_all(snapshot: &Snapshot, key: &str) -> u8 {
    let value = key
        .rsplit_once('/')
        .and_then(|(folder, leaf)| snapshot.sysctls.get(&format!("{folder}/{ALL}/{leaf}")));
    value.and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// The greater of both is what counts: IN_DEV_MAXCONF for arp_announce, arp_ignore and rp_filter,
/// and IN_DEV_ORCONF for arp_filter, which is the same for a truth (include/linux/inetdevice.h).
fn combined(all: u8, own: u8) -> u8 {
    all.max(own)
}

/// The effective profile of a NIC in a snapshot; nothing where its values were not looked at.
pub fn effective(snapshot: &Snapshot, name: &IfName) -> Option<ArpProfile> {
    let own = &snapshot.netdev(name)?.sysctls;
    let [announce, ignore, filter, rp_filter] = ArpProfile::STRICT
        .sysctls()
        .map(|(key, _)| Some(combined(of_all(snapshot, key), own.get(key)?.parse().ok()?)));
    Some(ArpProfile {
        announce: announce?,
        ignore: ignore?,
        filter: filter?,
        rp_filter: rp_filter?,
    })
}

/// The NIC's own values of what an ARP profile sets.
fn own_values(state: &NicState) -> impl Iterator<Item = (&'static str, u8)> + '_ {
    let keys = ArpProfile::STRICT.sysctls().into_iter().map(|(key, _)| key);
    keys.filter_map(|key| Some((key, state.netdev.sysctls.get(key)?.parse().ok()?)))
}

/// The values of `all` inside that would defeat those of that NIC, and what they become: the NIC's
/// own, since anything less takes away more from the container's other interfaces.
pub fn overruled(state: &NicState, inside: &Snapshot) -> Values {
    let mut values = Values::new();
    for (key, own) in own_values(state) {
        let was = of_all(inside, key);
        if combined(was, own) != own {
            let value = Overruled {
                was: was.to_string(),
                now: own.to_string(),
            };
            values.insert(key.to_owned(), value);
        }
    }
    values
}

/// Writes them to `all`: of what several NICs ask for the least, which defeats none. The values are
/// compared as text: each has one digit.
pub fn overruling_step<'a>(values: impl Iterator<Item = &'a Values>) -> Option<Step> {
    let mut least = BTreeMap::new();
    for (key, v) in values.flatten() {
        let now = least.entry(key.clone()).or_insert(v.now.clone());
        *now = v.now.clone().min(now.clone());
    }
    write(least)
}

/// The step that gives them back, apart from what another has changed since.
pub fn give_back<'a>(values: impl Iterator<Item = &'a Values>, inside: &Snapshot) -> Option<Step> {
    let ours = values
        .flatten()
        .filter(|(key, v)| of_all(inside, key).to_string() == v.now);
    write(ours.map(|(key, v)| (key.clone(), v.was.clone())).collect())
}

fn write(values: BTreeMap<String, String>) -> Option<Step> {
    let dev = ALL.parse().ok()?;
    (!values.is_empty()).then_some(Step::Sysctls {
        side: Side::Inside,
        dev,
        values: values.into(),
    })
}

/// Where the effective values differ from those that the states set: their own are compared
/// elsewhere.
pub fn drift(expected: &[NicState], observed: &Snapshot) -> Vec<Drift> {
    let mut all = Vec::new();
    for state in expected {
        let name = &state.netdev.name;
        let here = observed.netdev(name).is_some();
        for (key, own) in own_values(state).filter(|_| here) {
            let is = of_all(observed, key);
            if combined(is, own) != own {
                all.push(Drift {
                    dev: name.to_string(),
                    field: format!("effective {key}"),
                    expected: Some(own.to_string()),
                    observed: Some(is.to_string()),
                });
            }
        }
    }
    all
}

/// One line per rail: the effective values, and the table that it has to itself.
pub fn describe(rails: &[NicState], observed: &Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    for state in rails {
        let name = &state.netdev.name;
        let mut rules = state.rules.iter();
        let own = rules.find(|r| r.table == r.priority && r.source.is_some());
        let table = own.map_or(String::new(), |r| format!(", table {}", r.table));
        let profile = effective(observed, name);
        lines.extend(profile.map(|p| format!("{name}: effective ARP profile {p}{table}")));
    }
    lines
}
