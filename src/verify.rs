//! "Equal", defined once: the normal form of a NIC's network state, and the difference between two.
//!
//! The normal form compares, per NIC: name, kind, MTU, queue length, group, alias, altnames, current and permanent
//! link-layer address, up, promiscuous and all-multicast flags, master, XDP, queueing disciplines, addresses, routes, nexthop
//! objects that lead over it and their groups, rules that name it or its addresses, neighbours that somebody set, IPv6
//! token, and its sysctls. [`LEFT_OUT`] lists what it leaves out, each with the reason.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ident::Mac;
use crate::journal::Held;
use crate::snapshot::{Address, RTA_EXPIRES, Snapshot};
use crate::stack;
use crate::step::{NicState, derived, kernel_address};

/// Fields that the normal form leaves out, each with its reason.
pub const LEFT_OUT: [(&str, &str); 13] = [
    ("an IPoIB interface's queue pair number", "a new one when it is made anew; it is in the address"),
    ("queue_id and prio of a bond's members", "not carried: neither counts for RDMA"),
    ("ifindex, link", "the kernel gives another index when the old one is taken meanwhile"),
    ("operstate, running, port state", "the carrier follows the link, some time after the call"),
    ("the default queueing discipline", "the kernel attaches it by itself, and none to a link that was never up"),
    ("queueing disciplines inside", "those of the host come back to it; a container has the default, or its own"),
    ("remaining lifetimes of addresses and routes", "they run down by themselves"),
    ("address flags of the kernel", "tentative, secondary, deprecated are states, not settings"),
    (
        "multicast and secondary link-layer addresses",
        "a move flushes them, and `ip maddr` has an ioctl alone to set them",
    ),
    ("protodown, gso_max_size and the like", "a move keeps them, and few drivers let anybody set them"),
    ("kernel-made link-local addresses", "made again from the link-layer address when the link goes up"),
    ("kernel-made local, multicast and link-local routes", "made from addresses, some time after the call"),
    ("RDMA device indexes and minors", "handed out anew when soft-RoCE is re-created"),
];

/// IFA flags that are settings (see [`LEFT_OUT`]): NODAD, OPTIMISTIC, HOMEADDRESS, MANAGETEMPADDR, NOPREFIXROUTE,
/// MCAUTOJOIN (include/uapi/linux/if_addr.h).
const ADDRESS_SETTINGS: u32 = 0x02 | 0x04 | 0x10 | 0x100 | 0x200 | 0x400;

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drift {
    /// The NIC.
    pub dev: String,
    /// What differs.
    pub field: String,
    /// What should be there; absent: nothing.
    pub expected: Option<String>,
    /// What is there; absent: nothing.
    pub observed: Option<String>,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_nothing = |v: &Option<String>| v.clone().unwrap_or_else(|| "nothing".into());
        write!(
            f,
            "{} {}: {} instead of {}",
            self.dev,
            self.field,
            or_nothing(&self.observed),
            or_nothing(&self.expected)
        )
    }
}

/// The normal form of a NIC's state.
pub fn normal(state: &NicState) -> NicState {
    let mut n = state.clone();
    let dev = &mut n.netdev;
    dev.ifindex = 0;
    dev.link = None;
    dev.operstate = None;
    dev.running = false;
    dev.qdisc = None;
    // Facts of sysfs, not settings; the sources differ in what they see from which namespace.
    (dev.driver, dev.dev_port, dev.pci) = (None, None, None);
    if stack::is_ipoib(dev) {
        // Of the address, 4 bytes are flags and the number of the queue pair (RFC 4391, section 9.1.1).
        dev.mac = dev.mac.take().map(|mac| Mac(mac.0.into_iter().skip(4).collect()));
        dev.permanent_mac = None;
    }
    dev.altnames.sort();
    dev.qdiscs.iter_mut().for_each(|q| q.sort());
    dev.addresses = state.netdev.addresses.iter().filter(|a| !kernel_address(a, &state.netdev)).map(address).collect();
    dev.addresses.sort();
    dev.neighbours.sort();
    n.routes.retain(|r| !derived(r));
    n.routes.iter_mut().for_each(|r| drop(r.other.remove(&RTA_EXPIRES)));
    n.routes.sort();
    n.nexthops.sort();
    n.rules.sort();
    n
}

/// The normal form of an address.
pub fn address(a: &Address) -> Address {
    Address { flags: a.flags & ADDRESS_SETTINGS, valid_lft: None, preferred_lft: None, ..a.clone() }
}

/// A NIC's normal form as lines, `field value`: what differs between two sets of them is drift.
pub fn lines(state: &NicState) -> BTreeMap<String, String> {
    let n = normal(state);
    let mut lines = BTreeMap::new();
    let link = serde_json::to_value(&n.netdev).unwrap_or_default();
    let listed_below = ["addresses", "neighbours", "sysctls"];
    let fields = link.as_object().into_iter().flatten().filter(|(key, _)| !listed_below.contains(&key.as_str()));
    lines.extend(fields.map(|(key, value)| (key.clone(), value.to_string())));
    for a in &n.netdev.addresses {
        let peer = a.peer.map_or(String::new(), |p| format!(" peer {p}"));
        lines.insert(format!("address {}/{}{peer}", a.address, a.prefix), text(a));
    }
    for neighbour in &n.netdev.neighbours {
        let proxy = if neighbour.proxy { " proxy" } else { "" };
        lines.insert(format!("neighbour {}{proxy}", neighbour.address), text(neighbour));
    }
    let mut seen: HashMap<_, usize> = HashMap::new();
    for route in &n.routes {
        // Equal keys may repeat with other legs: the position among equals tells them apart.
        let count = seen.entry((route.table, route.destination)).or_default();
        let equals = std::mem::replace(count, *count + 1);
        lines.insert(format!("route {} table {} #{equals}", route.destination, route.table), text(route));
    }
    for nexthop in &n.nexthops {
        lines.insert(format!("nexthop {}", nexthop.id), text(nexthop));
    }
    for rule in &n.rules {
        lines.insert(format!("rule {}", text(rule)), text(rule));
    }
    for (key, value) in &n.netdev.sysctls {
        lines.insert(format!("sysctl {key}"), value.clone());
    }
    lines
}

/// One line of JSON.
fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|e| format!("unprintable: {e}"))
}

/// How the observed namespace differs from what each NIC's state should be; sysctls that `expected` does not name, and
/// queueing disciplines where it has none, are not compared.
pub fn drift(expected: &[NicState], observed: &Snapshot) -> Vec<Drift> {
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
        now.netdev.sysctls.retain(|k, _| state.netdev.sysctls.contains_key(k));
        if state.netdev.qdiscs.is_none() {
            (now.netdev.qdiscs, now.netdev.qdisc_lost) = (None, None);
        }
        if normal(state) == normal(&now) {
            continue;
        }
        let (want, have) = (lines(state), lines(&now));
        let keys: std::collections::BTreeSet<&String> = want.keys().chain(have.keys()).collect();
        all.extend(keys.into_iter().filter(|k| want.get(*k) != have.get(*k)).map(|k| Drift {
            dev: name.to_string(),
            field: k.clone(),
            expected: want.get(k).cloned(),
            observed: have.get(k).cloned(),
        }));
    }
    all
}

/// The normal form of everything in a namespace, one line per fact: two equal hosts print equal texts.
pub fn normal_text(snapshot: &Snapshot) -> String {
    let mut all = String::new();
    for dev in &snapshot.netdevs {
        let Some(state) = NicState::of(snapshot, &dev.name) else { continue };
        for (field, value) in lines(&state) {
            all.push_str(&format!("{} {field} {value}\n", dev.name));
        }
    }
    let mut rules = snapshot.rules.clone();
    rules.sort();
    for rule in rules {
        all.push_str(&format!("rule {}\n", text(&rule)));
    }
    for hca in &snapshot.hcas {
        for port in &hca.ports {
            let dev = port.netdev.as_ref().map_or("-".to_owned(), ToString::to_string);
            all.push_str(&format!("hca {} port {} netdev {dev}\n", hca.name, port.number));
        }
    }
    let mut sorted: Vec<&str> = all.lines().collect();
    sorted.sort_unstable();
    sorted.iter().map(|l| format!("{l}\n")).collect()
}

/// HCAs that are not behind their netdev as they should be, in the namespace that was observed.
pub fn rdma_drift(held: &[Held], observed: &Snapshot) -> Vec<Drift> {
    let wrong = |h: &&Held| {
        let (Some(hca), Some(port), false) = (&h.nic.hca, h.nic.port, h.nic.borrowed) else { return false };
        let found = observed.hca(hca).and_then(|hca| hca.ports.iter().find(|p| p.number == port));
        found.and_then(|p| p.netdev.as_ref()) != Some(&h.nic.identity.name)
    };
    let drift = |h: &Held| Drift {
        dev: h.nic.identity.name.to_string(),
        field: "hca".into(),
        expected: h.nic.hca.as_ref().map(ToString::to_string),
        observed: None,
    };
    held.iter().filter(wrong).map(drift).collect()
}
