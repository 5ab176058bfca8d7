//! What one node offers, as a ResourceSlice. The API server refuses a whole slice for one value
//! that is too long or badly formed, and hides the node with it, so each value is made to fit here
//! (staging/src/k8s.io/api/resource/v1/types.go; pkg/apis/resource/validation of Kubernetes 1.36).
//!
//! Every device has the same attributes. A CEL expression that reads one which a device lacks is an
//! error for the whole claim, also where another device fits: what is not known is empty, or -1.
//! Only `firmware` may be absent, as a version cannot be empty.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use crate::dra::DRIVER;
use crate::dra::binding::Bindings;
use crate::rail::{Rail, Shown};

/// Of a slice, and of one in which a device has a taint.
const MOST: usize = 128;
const MOST_TAINTED: usize = 64;
const LONGEST_NAME: usize = 63;
const LONGEST_VALUE: usize = 64;
/// On a rail that no container can have now; its value says why.
pub const TAINT: &str = "rdmaprep.io/unhealthy";

/// A rail as claims name it.
pub struct Device<'s> {
    pub name: String,
    pub pool: &'s str,
    pub rail: &'s Rail,
}

/// All rails in their order, so that a claim gets the first ones that fit; without those that
/// cannot be named. The second value says which.
pub fn devices(shown: &Shown) -> (Vec<Device<'_>>, Vec<String>) {
    let mut rails: Vec<(&str, &Rail)> = shown
        .iter()
        .flat_map(|(pool, rails)| rails.iter().map(move |rail| (pool.as_str(), rail)))
        .collect();
    rails.sort_by_key(|(_, rail)| rail.facts.place);
    let (mut devices, mut unnamed, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (pool, rail) in rails {
        match device_name(rail).filter(|name| names.insert(name.clone())) {
            Some(name) => devices.push(Device { name, pool, rail }),
            None => unnamed.push(rail.name.clone()),
        }
    }
    (devices, unnamed)
}

/// A netdev's name where that is a DNS label, else its bytes in hex. An HCA's has underscores.
fn device_name(rail: &Rail) -> Option<String> {
    let name = &rail.name;
    let found = if rail.facts.is_hca {
        format!("h-{}", name.replace('_', "-"))
    } else if is_label(name) && !name.starts_with("n-") && !name.starts_with("h-") {
        name.clone()
    } else {
        let mut hex = "n-".to_owned();
        for byte in name.bytes() {
            let _ = write!(hex, "{byte:02x}");
        }
        hex
    };
    is_label(&found).then_some(found)
}

fn is_label(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.len() <= LONGEST_NAME
        && !name.is_empty()
        && name.chars().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// The `spec` of what the node has now.
pub fn of_node(node: &str, shown: &Shown, bindings: &Bindings, taints: bool) -> Value {
    // Where they cannot be read, no claim is prepared: what is offered then is no harm.
    let all = bindings.all().unwrap_or_default();
    let rails = all.into_iter().flat_map(|b| b.rails);
    let bound = rails.map(|bound| bound.device).collect();
    spec(node, &devices(shown).0, &bound, taints)
}

/// The slice's `spec`. With `taints`, a rail that no container can have is tainted; without, as
/// where the server does not know taints, it is left out. One of a prepared claim, or that a
/// container has by one, stays, as a claim names it, unless it came back and is not whole.
pub fn spec(node: &str, devices: &[Device], bound: &BTreeSet<String>, taints: bool) -> Value {
    let has_claim = |d: &Device| d.rail.facts.is_away && !d.rail.facts.is_others;
    let is_taken = |d: &Device| has_claim(d) || bound.contains(&d.name);
    let is_given = |d: &Device| is_taken(d) && !d.rail.facts.held_back;
    let stays = |d: &&Device| taints || d.rail.why_not_claimed().is_none() || is_given(d);
    let mut kept: Vec<&Device> = devices.iter().filter(stays).collect();
    let tainted = taints && kept.iter().any(|d| d.rail.why_not_claimed().is_some());
    if kept.len() > MOST_TAINTED && tainted {
        return spec(node, devices, bound, false);
    }
    kept.truncate(MOST);
    let devices: Vec<Value> = kept.iter().map(|d| device(d, taints)).collect();
    json!({
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
    })
}

/// Whether the scheduler may give that device of the slice to a claim.
pub fn is_offered(spec: &Value, device: &str) -> bool {
    let mut devices = spec["devices"].as_array().into_iter().flatten();
    devices.any(|d| d["name"] == device && d.get("taints").is_none())
}

fn device(device: &Device, taints: bool) -> Value {
    let rail = device.rail;
    let mut value = json!({
        "name": device.name,
        "attributes": attributes(device),
        "capacity": {"bandwidth": {"value": quantity(rail.facts.speed_gbps.unwrap_or(0))}},
    });
    if let Some(why) = rail.why_not_claimed().filter(|_| taints) {
        value["taints"] = json!([{"key": TAINT, "value": label(why), "effect": "NoSchedule"}]);
    }
    value
}

/// As the server writes it.
fn quantity(gigabits: u32) -> String {
    match gigabits {
        0 => "0".to_owned(),
        n if n % 1000 == 0 => format!("{}T", n / 1000),
        n => format!("{n}G"),
    }
}

fn attributes(device: &Device) -> Map<String, Value> {
    let (rail, facts) = (device.rail, &device.rail.facts);
    let own = |find: fn(&IpNet) -> bool| {
        let found = rail.addresses.iter().find(|a| find(a));
        let subnet = found.map(|a| a.trunc().to_string());
        (found.map(|a| a.addr().to_string()), subnet)
    };
    let (ipv4, subnet4) = own(|a| a.addr().is_ipv4());
    let (ipv6, subnet6) =
        own(|a| matches!(a.addr(), IpAddr::V6(v6) if !v6.is_unicast_link_local()));
    let pci = facts.pci.map(|at| at.to_string());
    let id = |n: u16| format!("0x{n:04x}");
    let texts = [
        ("kind", facts.kind.map(str::to_owned)),
        ("netdev", facts.netdev.clone()),
        ("hca", facts.hca.clone()),
        ("subnet4", subnet4),
        ("subnet6", subnet6),
        ("ipv4", ipv4),
        ("ipv6", ipv6),
        ("driver", facts.driver.clone()),
        ("vendor", facts.model.map(|(vendor, _)| id(vendor))),
        ("model", facts.model.map(|(_, device)| id(device))),
        ("pool", Some(device.pool.to_owned())),
        ("resource.kubernetes.io/pcieRoot", facts.pcie_root.clone()),
        ("resource.kubernetes.io/pciBusID", pci.clone()),
        ("k8s.cni.cncf.io/deviceID", pci),
    ];
    let number = |n: Option<i64>| n.unwrap_or(-1);
    let numbers = [
        ("port", number(facts.port.map(i64::from))),
        ("rail", number(facts.number.and_then(|n| n.try_into().ok()))),
        ("linkGbps", facts.speed_gbps.unwrap_or(0).into()),
        ("mtu", facts.mtu.into()),
        ("resource.kubernetes.io/numaNode", number(rail.numa)),
    ];
    let mut all = BTreeMap::new();
    for (name, text) in texts {
        // A part of a name would be another one.
        let text = text
            .filter(|t| t.len() <= LONGEST_VALUE)
            .unwrap_or_default();
        all.insert(full(name), json!({"string": text}));
    }
    for (name, number) in numbers {
        all.insert(full(name), json!({"int": number}));
    }
    if let Some(version) = facts.firmware.as_deref().and_then(semver) {
        all.insert(full("firmware"), json!({"version": version}));
    }
    all.into_iter().collect()
}

/// Without a domain, an attribute is the driver's.
fn full(name: &str) -> String {
    match name.contains('/') {
        true => name.to_owned(),
        false => format!("{DRIVER}/{name}"),
    }
}

/// `20.08.0100` as `20.8.100`: semantic versions have three numbers without leading zeros.
fn semver(firmware: &str) -> Option<String> {
    let parts: Vec<u64> = firmware
        .split('.')
        .map(|part| part.parse().ok().filter(|_| !part.starts_with('+')))
        .collect::<Option<_>>()?;
    let [major, minor, patch] = parts[..] else {
        return None;
    };
    Some(format!("{major}.{minor}.{patch}"))
}

/// As the value of a label: `no carrier` as `no-carrier`.
fn label(text: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
    let dashed: String = text
        .chars()
        .map(|c| if fits(c) { c } else { '-' })
        .collect();
    let words: Vec<&str> = dashed.split('-').filter(|w| !w.is_empty()).collect();
    let mut joined = words.join("-");
    joined.truncate(LONGEST_NAME);
    joined
        .trim_matches(|c: char| !c.is_ascii_alphanumeric())
        .to_owned()
}
