//! NetworkManager: what it says of a device, and which addresses, routes and rules are its own. The
//! interfaces are those of https://networkmanager.dev/docs/api/latest/spec.html.

use std::collections::HashMap;

use anyhow::{Context, Result};
use rdma_model::manager::{Foreign, is_dynamic};
use rdma_model::snapshot::{Address, Netdev, Route, Rule};
use rdma_model::step::NicState;
use rustbus::message_builder::MarshalledMessage;
use rustbus::wire::unmarshal::traits::Variant;

use super::Word;
use super::bus::{Bus, Callee};

pub const NAME: &str = "org.freedesktop.NetworkManager";
const ROOT: &str = "/org/freedesktop/NetworkManager";
const DEVICE: &str = "org.freedesktop.NetworkManager.Device";
const ACTIVE: &str = "org.freedesktop.NetworkManager.Connection.Active";

/// NMDeviceState: waits for a carrier, does not activate a profile, has activated one.
const UNAVAILABLE: u32 = 20;
const DISCONNECTED: u32 = 30;
const ACTIVATED: u32 = 100;
/// NM_ACTIVATION_STATE_FLAG_EXTERNAL: it has found the device configured, and touches nothing.
const EXTERNAL: u32 = 0x80;
/// IFA_F_NOPREFIXROUTE, which it gives every address of its own, and adds the subnet's route
/// itself.
const NOPREFIXROUTE: u32 = 0x200;
/// RTPROT_STATIC.
const STATIC: u8 = 4;

pub fn word(bus: &mut Bus, link: &Netdev) -> Word {
    let Ok(path) = device(bus, link) else {
        return Word::Unseen;
    };
    let Ok(false) = unmanaged(bus, &path) else {
        return Word::GivenUp;
    };
    match number(bus, &path, DEVICE, "State").unwrap_or_default() {
        ACTIVATED if is_external(bus, &path) => Word::GivenUp,
        ACTIVATED => Word::Done,
        UNAVAILABLE => Word::Unseen,
        DISCONNECTED => Word::Idle,
        _ => Word::Configuring,
    }
}

/// Whether it has configured that link by a profile of its own.
pub fn configures(bus: &mut Bus, link: &Netdev) -> bool {
    word(bus, link) == Word::Done
}

fn device(bus: &mut Bus, link: &Netdev) -> Result<String> {
    let manager = Callee {
        name: NAME,
        path: ROOT,
        interface: NAME,
    };
    let answer = bus.call(manager, "GetDeviceByIpIface", &[link.name.as_str()])?;
    path_in(&answer)
}

fn path_in(answer: &MarshalledMessage) -> Result<String> {
    let path: rustbus::wire::ObjectPath<&str> = answer.body.parser().get()?;
    Ok(path.as_ref().to_owned())
}

fn property(bus: &mut Bus, path: &str, interface: &str, name: &str) -> Result<MarshalledMessage> {
    let callee = Callee {
        name: NAME,
        path,
        interface: "org.freedesktop.DBus.Properties",
    };
    bus.call(callee, "Get", &[interface, name])
}

fn number(bus: &mut Bus, path: &str, interface: &str, name: &str) -> Result<u32> {
    let answer = property(bus, path, interface, name)?;
    Ok(answer.body.parser().get::<Variant>()?.get()?)
}

fn unmanaged(bus: &mut Bus, path: &str) -> Result<bool> {
    let answer = property(bus, path, DEVICE, "Managed")?;
    Ok(!answer.body.parser().get::<Variant>()?.get::<bool>()?)
}

fn is_external(bus: &mut Bus, path: &str) -> bool {
    let active = |bus: &mut Bus| -> Result<u32> {
        let answer = property(bus, path, DEVICE, "ActiveConnection")?;
        let active: rustbus::wire::ObjectPath<&str> =
            answer.body.parser().get::<Variant>()?.get()?;
        number(bus, active.as_ref(), ACTIVE, "StateFlags")
    };
    active(bus).is_ok_and(|flags| flags & EXTERNAL != 0)
}

/// A table of the profile: `aa{sv}`.
type Rows<'a> = Vec<HashMap<&'a str, Variant<'a, 'a>>>;

/// What of a link's state is not NetworkManager's.
pub fn foreign(bus: &mut Bus, state: &NicState) -> Result<Foreign> {
    let path = device(bus, &state.netdev)?;
    let callee = Callee {
        name: NAME,
        path: &path,
        interface: DEVICE,
    };
    let answer = bus.call_with_number(callee, "GetAppliedConnection", 0)?;
    let profile: HashMap<&str, HashMap<&str, Variant>> =
        answer.body.parser().get().context("its profile")?;
    let settings: Vec<_> = ["ipv4", "ipv6"]
        .iter()
        .filter_map(|family| profile.get(family))
        .collect();
    let rows = |key: &str| -> Vec<HashMap<&str, Variant>> {
        settings
            .iter()
            .filter_map(|s| s.get(key)?.get::<Rows>().ok())
            .flatten()
            .collect()
    };
    let (routes, rules) = (rows("route-data"), rows("routing-rules"));
    let gateways = settings
        .iter()
        .filter_map(|s| s.get("gateway")?.get::<&str>().ok());
    let gateways: Vec<&str> = gateways.collect();
    let is_own_route = |r: &Route| {
        is_dynamic(r)
            || r.protocol == STATIC
                && (is_by(r, &gateways) || routes.iter().any(|row| is_route(row, r)))
    };
    let addresses = state.netdev.addresses.iter().filter(|a| !is_own_address(a));
    Ok(Foreign {
        addresses: addresses.cloned().collect(),
        routes: state
            .routes
            .iter()
            .filter(|r| !is_own_route(r))
            .cloned()
            .collect(),
        rules: state
            .rules
            .iter()
            .filter(|r| !rules.iter().any(|row| is_rule(row, r)))
            .cloned()
            .collect(),
    })
}

fn is_own_address(address: &Address) -> bool {
    address.flags & NOPREFIXROUTE != 0 || address.valid_lft.is_some()
}

/// Whether a route is the default one of the profile, or leads to its gateway.
fn is_by(route: &Route, gateways: &[&str]) -> bool {
    let is_gateway = |ip: String| gateways.contains(&ip.as_str());
    let [only] = route.hops.as_slice() else {
        return false;
    };
    match only.gateway {
        Some(gateway) => route.destination.prefix_len() == 0 && is_gateway(gateway.to_string()),
        None => is_gateway(route.destination.addr().to_string()),
    }
}

fn is_route(row: &HashMap<&str, Variant>, route: &Route) -> bool {
    let text = |key: &str| row.get(key).and_then(|value| value.get::<&str>().ok());
    let number = |key: &str| row.get(key).and_then(|value| value.get::<u32>().ok());
    let gateway = route
        .hops
        .first()
        .and_then(|hop| hop.gateway)
        .map(|ip| ip.to_string());
    text("dest") == Some(route.destination.addr().to_string().as_str())
        && number("prefix") == Some(u32::from(route.destination.prefix_len()))
        && (route.hops.len() > 1 || text("next-hop") == gateway.as_deref())
}

fn is_rule(row: &HashMap<&str, Variant>, rule: &Rule) -> bool {
    let number = |key: &str| row.get(key).and_then(|value| value.get::<u32>().ok());
    let from = row.get("from").and_then(|value| value.get::<&str>().ok());
    from == rule.source.map(|net| net.addr().to_string()).as_deref()
        && number("priority") == Some(rule.priority)
        && number("table").is_none_or(|table| table == rule.table)
}
