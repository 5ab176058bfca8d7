//! Which settings a link has that are not its profile's: by `nmcli device modify`, or since the
//! profile was edited. NetworkManager goes by the profile when the link returns.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use rdma_model::snapshot::{Netdev, Rule};
use rustbus::message_builder::MarshalledMessage;
use rustbus::params::{Base, Container, Param};

use super::rows::{is_rule, text};
use super::{
    DEVICE, FAMILIES, GENERATED, NAME, PROFILE, Profile, Rows, device, number, profile_of, settings,
};
use crate::link_managers::Managers;
use crate::link_managers::bus::{Bus, Callee};

type Value = Param<'static, 'static>;
/// By `SETTING.KEY`.
type Values = BTreeMap<String, Value>;

/// Those of addresses, routes and rules, as nmcli calls them. What is there besides the profile's
/// is no difference: a restore puts it back.
pub fn differences(bus: &mut Bus, link: &Netdev) -> Result<BTreeSet<String>> {
    let device = device(bus, link)?;
    let profile = profile_of(bus, &device)?;
    // One that it has made itself is in no file, and changes with what it finds.
    if number(bus, &profile, PROFILE, "Flags")? & GENERATED != 0 {
        return Ok(BTreeSet::new());
    }
    let profile = values(settings(bus, &profile)?)?;
    let applied = values(applied(bus, &device)?)?;
    let mut names: BTreeSet<&String> = applied.keys().chain(profile.keys()).collect();
    names.retain(|name| differs(name, applied.get(*name), profile.get(*name)));
    Ok(names.into_iter().map(|name| of_nmcli(name)).collect())
}

/// Whether it has switched IPv6 on (`ipv6.method` in nm-settings-dbus(5)).
pub fn has_ipv6(bus: &mut Bus, link: &Netdev) -> Result<bool> {
    let device = device(bus, link)?;
    let answer = applied(bus, &device)?;
    let applied: Profile = answer.body.parser().get()?;
    let method = applied.get("ipv6").and_then(|ipv6| text(ipv6, "method"));
    Ok(method.is_some_and(|method| !["disabled", "ignore"].contains(&method.as_str())))
}

fn applied(bus: &mut Bus, device: &str) -> Result<MarshalledMessage> {
    let callee = Callee {
        name: NAME,
        path: device,
        interface: DEVICE,
    };
    bus.call(callee, "GetAppliedConnection", &[0_u32])
}

impl Managers {
    /// Those of the host's rules that NetworkManager has made for a link, whatever they lead to: it
    /// deletes them when the link leaves.
    pub fn applied_rules(&mut self, link: &Netdev, all: &[Rule]) -> Vec<Rule> {
        let bus = self.running_network_manager();
        bus.and_then(|bus| rules(bus, link, all).ok())
            .unwrap_or_default()
    }
}

fn rules(bus: &mut Bus, link: &Netdev, all: &[Rule]) -> Result<Vec<Rule>> {
    let device = device(bus, link)?;
    let answer = applied(bus, &device)?;
    let applied: Profile = answer.body.parser().get()?;
    let settings = FAMILIES.iter().filter_map(|family| applied.get(family));
    let rows = settings.filter_map(|s| s.get("routing-rules")?.get::<Rows>().ok());
    let rows: Vec<_> = rows.flatten().collect();
    let mut rules = all.to_vec();
    rules.retain(|rule| rows.iter().any(|row| is_rule(row, rule)));
    Ok(rules)
}

fn values(message: MarshalledMessage) -> Result<Values> {
    let mut values = Values::new();
    let message = message.unmarshall_all()?;
    for (setting, keys) in message.params.into_iter().take(1).flat_map(entries) {
        if FAMILIES.contains(&setting.as_str()) {
            let keys = entries(keys).into_iter();
            values.extend(keys.map(|(key, value)| (format!("{setting}.{key}"), value)));
        }
    }
    Ok(values)
}

fn entries(of: Value) -> Vec<(String, Value)> {
    let Param::Container(Container::Dict(dict)) = of else {
        return Vec::new();
    };
    let all = dict.map.into_iter().filter_map(|(key, value)| match key {
        Base::String(key) => Some((key, value)),
        _ => None,
    });
    all.collect()
}

fn differs(name: &str, applied: Option<&Value>, profile: Option<&Value>) -> bool {
    match name.split_once('.').map(|(_, key)| key) {
        Some("address-data" | "route-data" | "routing-rules") => {
            let there = rows(applied);
            rows(profile).iter().any(|row| !there.contains(row))
        }
        // The same once more, in an older form.
        Some("addresses" | "routes") => false,
        Some("gateway") if profile.is_none() => false,
        _ => applied != profile,
    }
}

fn rows(table: Option<&Value>) -> &[Value] {
    match table {
        Some(Param::Container(Container::Variant(variant))) => match &variant.value {
            Param::Container(Container::Array(array)) => &array.values,
            _ => &[],
        },
        _ => &[],
    }
}

fn of_nmcli(name: &str) -> String {
    let name = name.replace("address-data", "addresses");
    name.replace("route-data", "routes")
}
