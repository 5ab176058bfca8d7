//! NetworkManager: what it says of a device, and which addresses, routes and rules are its own. The
//! interfaces are those of https://networkmanager.dev/docs/api/latest/spec.html.

pub mod applied;
pub mod metric;
mod rows;

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ipnet::IpNet;
use rdma_model::manager::{Foreign, KERNEL, is_dynamic};
use rdma_model::snapshot::{Address, Netdev, Route};
use rdma_model::step::{NicState, is_made};
use rustbus::message_builder::MarshalledMessage;
use rustbus::wire::unmarshal::traits::Variant;

use super::Word;
use super::bus::{Bus, Callee, PROPERTIES};
use rows::{address_of, is_route, is_rule, text};

pub const NAME: &str = "org.freedesktop.NetworkManager";
const ROOT: &str = "/org/freedesktop/NetworkManager";
pub(super) const DEVICE: &str = "org.freedesktop.NetworkManager.Device";
pub(super) const ACTIVE: &str = "org.freedesktop.NetworkManager.Connection.Active";

/// NMDeviceState: waits for a carrier, does not activate a profile, has activated one.
const UNAVAILABLE: u32 = 20;
pub(super) const DISCONNECTED: u32 = 30;
pub(super) const ACTIVATED: u32 = 100;
/// Within this after its start it has decided what it does with a link.
const START: Duration = Duration::from_secs(5);
/// NM_SETTINGS_CONNECTION_FLAG_NM_GENERATED: it has made the profile itself.
pub(super) const GENERATED: u32 = 2;
/// From its preparation to secondary connections.
const ACTIVATING: RangeInclusive<u32> = 40..=90;
/// NM_ACTIVATION_STATE_FLAG_EXTERNAL: it has found the device configured, and touches nothing.
const EXTERNAL: u32 = 0x80;
/// IFA_F_NOPREFIXROUTE, which it gives every address of its own, and adds the subnet's route
/// itself.
const NOPREFIXROUTE: u32 = 0x200;
/// RTPROT_STATIC.
const STATIC: u8 = 4;

pub fn word(bus: &mut Bus, link: &Netdev) -> Word {
    // Asked first: it may end its start between two answers.
    let is_starting = is_starting(bus);
    let Ok(path) = device(bus, link) else {
        return Word::NotBegun;
    };
    match flag(bus, &path, DEVICE, "Managed") {
        Ok(true) => {}
        // It takes the link when networking is on, or it has started.
        Ok(false) => {
            return match is_starting || is_off(bus) {
                true => Word::NotBegun,
                false => Word::Unmanaged,
            };
        }
        Err(_) => return Word::NotBegun,
    }
    match number(bus, &path, DEVICE, "State").unwrap_or_default() {
        // It has not decided yet.
        DISCONNECTED if is_starting => Word::NotBegun,
        ACTIVATED => match is_external(bus, &path) {
            Ok(false) => Word::Done,
            Ok(true) if !is_starting => Word::External,
            // It may yet take a profile of its own, or has not said which kind is active.
            _ => Word::NotBegun,
        },
        UNAVAILABLE => Word::NotBegun,
        DISCONNECTED => Word::Idle,
        _ => Word::Configuring,
    }
}

/// Whether an administrator has had it leave all links alone (`nmcli networking off`).
pub fn is_off(bus: &mut Bus) -> bool {
    flag(bus, ROOT, NAME, "NetworkingEnabled").is_ok_and(|on| !on)
}

/// Whether it runs, and has just started: as long as any link waits for a lease it calls itself
/// starting, and that may be for ever.
pub fn is_new(bus: &mut Bus) -> bool {
    bus.age(NAME).is_some_and(|age| age < START) && is_starting(bus)
}

/// Whether a link has become its own since it started, or is becoming it. One word says both: by
/// a second question it may be done with the link.
pub fn has_come_to(bus: &mut Bus, link: &Netdev) -> bool {
    match word(bus, link) {
        Word::Done => true,
        Word::Configuring => bus.age(NAME).is_none_or(|age| age < START),
        _ => false,
    }
}

/// Whether it has not said yet what it does with a link.
pub fn is_undecided(bus: &mut Bus, link: &Netdev) -> bool {
    is_new(bus) && word(bus, link) == Word::NotBegun
}

/// Whether it has not decided about all links yet; one that does not answer has not.
fn is_starting(bus: &mut Bus) -> bool {
    flag(bus, ROOT, NAME, "Startup").unwrap_or(true)
}

/// Whether it has configured that link by a profile of its own, or does so now: it may wait for a
/// lease for ever.
pub fn configures(bus: &mut Bus, link: &Netdev) -> bool {
    word(bus, link) == Word::Done || is_activating(bus, link)
}

/// Whether it is about to configure that link by a profile of its own.
pub fn is_activating(bus: &mut Bus, link: &Netdev) -> bool {
    let Ok(path) = device(bus, link) else {
        return false;
    };
    let state = number(bus, &path, DEVICE, "State");
    state.is_ok_and(|state| ACTIVATING.contains(&state)) && own_profile_of(bus, &path).is_ok()
}

/// NetworkManager itself.
pub(super) const MANAGER: Callee<'static> = Callee {
    name: NAME,
    path: ROOT,
    interface: NAME,
};

pub(super) fn device(bus: &mut Bus, link: &Netdev) -> Result<String> {
    let answer = bus.call(MANAGER, "GetDeviceByIpIface", &[link.name.as_str()])?;
    path_in(&answer)
}

pub(super) fn path_in(answer: &MarshalledMessage) -> Result<String> {
    let path: rustbus::wire::ObjectPath<&str> = answer.body.parser().get()?;
    Ok(path.as_ref().to_owned())
}

pub(super) fn property(
    bus: &mut Bus,
    path: &str,
    interface: &str,
    name: &str,
) -> Result<MarshalledMessage> {
    let callee = Callee {
        name: NAME,
        path,
        interface: PROPERTIES,
    };
    bus.call(callee, "Get", &[interface, name])
}

pub(super) fn number(bus: &mut Bus, path: &str, interface: &str, name: &str) -> Result<u32> {
    let answer = property(bus, path, interface, name)?;
    Ok(answer.body.parser().get::<Variant>()?.get()?)
}

pub(super) fn flag(bus: &mut Bus, path: &str, interface: &str, name: &str) -> Result<bool> {
    let answer = property(bus, path, interface, name)?;
    Ok(answer.body.parser().get::<Variant>()?.get()?)
}

pub(super) fn string(bus: &mut Bus, path: &str, interface: &str, name: &str) -> Result<String> {
    let answer = property(bus, path, interface, name)?;
    Ok(answer.body.parser().get::<Variant>()?.get::<&str>()?.into())
}

/// Whether it has found the device configured, or is about to say so.
pub(super) fn is_external(bus: &mut Bus, device: &str) -> Result<bool> {
    let active = active_on(bus, device)?;
    is_external_activation(bus, &active)
}

fn is_external_activation(bus: &mut Bus, active: &str) -> Result<bool> {
    Ok(number(bus, active, ACTIVE, "StateFlags")? & EXTERNAL != 0)
}

/// A table of the profile: `aa{sv}`.
type Rows<'a> = Vec<HashMap<&'a str, Variant<'a, 'a>>>;

pub(super) const PROFILE: &str = "org.freedesktop.NetworkManager.Settings.Connection";

pub(super) fn active_on(bus: &mut Bus, device: &str) -> Result<String> {
    object(bus, device, "ActiveConnection").context("no profile is active")
}

/// The profile that is active on a device.
pub(super) fn profile_of(bus: &mut Bus, device: &str) -> Result<String> {
    let active = active_on(bus, device)?;
    object_in(bus, &active, ACTIVE, "Connection").context("it has no profile")
}

/// As [`profile_of`], unless NetworkManager has made it of what it found on the device. What is
/// active is asked for once: by the next answer it may be another one.
pub(super) fn own_profile_of(bus: &mut Bus, device: &str) -> Result<String> {
    let active = active_on(bus, device)?;
    ensure!(
        !is_external_activation(bus, &active)?,
        "it has found the link configured"
    );
    object_in(bus, &active, ACTIVE, "Connection").context("it has no profile")
}

pub(super) fn settings(bus: &mut Bus, profile: &str) -> Result<MarshalledMessage> {
    let callee = Callee {
        name: NAME,
        path: profile,
        interface: PROFILE,
    };
    bus.call::<u32>(callee, "GetSettings", &[])
}

/// The kinds of profiles for links that others have made.
const HARDWARE: [&str; 2] = ["802-3-ethernet", "infiniband"];

/// Whether it makes a link itself, and again as soon as that leaves the host: its profile is of no
/// hardware, and activated by itself.
pub fn remakes(bus: &mut Bus, link: &Netdev) -> Result<bool> {
    let device = device(bus, link)?;
    let profile = profile_of(bus, &device)?;
    let answer = settings(bus, &profile)?;
    let profile: Profile = answer.body.parser().get()?;
    let connection = profile.get("connection").context("a profile of nothing")?;
    let kind = text(connection, "type");
    let is_hardware = kind.is_none_or(|kind| HARDWARE.contains(&kind.as_str()));
    // What has the default value is absent.
    let by_itself = connection.get("autoconnect").and_then(|on| on.get().ok());
    Ok(!is_hardware && by_itself.unwrap_or(true))
}

/// What of a link's state NetworkManager does not make again: what is not in the profile. What it
/// has applied (GetAppliedConnection) may be more, by `nmcli device modify`.
pub fn foreign(bus: &mut Bus, state: &NicState) -> Result<Foreign> {
    let path = device(bus, &state.netdev)?;
    let profile = profile_of(bus, &path)?;
    let answer = settings(bus, &profile)?;
    let profile: Profile = answer.body.parser().get().context("its profile")?;
    let settings: Vec<_> = FAMILIES
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
    let own = own_addresses(bus, &path, &profile);
    let addresses = state.netdev.addresses.iter().cloned();
    let (its, addresses): (Vec<Address>, Vec<Address>) = addresses.partition(|a| own.has(a));
    let mut foreign = Foreign {
        addresses,
        // No profile has any.
        neighbours: state.netdev.neighbours.clone(),
        routes: state.routes.clone(),
        rules: state.rules.clone(),
    };
    foreign.routes.retain(|r| {
        let is_static = r.protocol == STATIC
            && (is_by(r, &gateways) || routes.iter().any(|row| is_route(row, r)));
        let is_dynamic = is_dynamic(r) && (leads_to(r, &its) || !leads_to(r, &foreign.addresses));
        !is_dynamic && !is_static
    });
    foreign
        .rules
        .retain(|r| !rules.iter().any(|row| is_rule(row, r)));
    Ok(foreign)
}

/// The names of a profile's settings for IPv4 and IPv6.
const FAMILIES: [&str; 2] = ["ipv4", "ipv6"];
/// Ways by which it gives a link addresses that are not in the profile (ipv4.method and ipv6.method
/// in nm-settings-dbus(5)).
const LEARNED: [&str; 4] = ["auto", "dhcp", "link-local", "shared"];

pub(super) type Profile<'a> = HashMap<&'a str, HashMap<&'a str, Variant<'a, 'a>>>;

/// Which addresses of a link are its own.
struct OwnAddresses {
    /// What the profile has.
    given: Vec<(String, u32)>,
    families: [Learned; 2],
}

/// What it has learned of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Learned {
    /// By the profile it learns nothing.
    Nothing,
    /// Exactly these: a lease of DHCP.
    Leased(Vec<String>),
    /// What it lists of the device. That has addresses of others as well, without a mark (seen of
    /// 1.42), so only one that looks like its own is.
    Among(Vec<(String, u32)>),
    /// It could not be asked.
    Unknown,
}

impl OwnAddresses {
    /// NOPREFIXROUTE alone says nothing: administrators and keepalived set it as well.
    fn has(&self, address: &Address) -> bool {
        let key = (address.address.to_string(), u32::from(address.prefix));
        let looks_own = address.flags & NOPREFIXROUTE != 0 || address.valid_lft.is_some();
        let is_v6 = address.address.is_ipv6();
        if self.given.contains(&key) {
            return true;
        }
        // It makes one of IPv6 by itself, whatever the profile's method.
        if let IpAddr::V6(v6) = address.address
            && v6.is_unicast_link_local()
        {
            return looks_own && is_made(v6);
        }
        match &self.families[usize::from(is_v6)] {
            Learned::Nothing => false,
            Learned::Leased(all) => all.contains(&key.0),
            Learned::Among(all) => looks_own && all.contains(&key),
            Learned::Unknown => looks_own,
        }
    }
}

fn own_addresses(bus: &mut Bus, device: &str, profile: &Profile) -> OwnAddresses {
    let given = FAMILIES
        .iter()
        .filter_map(|family| profile.get(family)?.get("address-data")?.get::<Rows>().ok())
        .flatten()
        .filter_map(|row| address_of(&row));
    let given = given.collect();
    let families = FAMILIES.map(|family| match learns(profile, family) {
        true => learned(bus, device, family),
        false => Learned::Nothing,
    });
    OwnAddresses { given, families }
}

fn learns(profile: &Profile, family: &str) -> bool {
    let method = profile
        .get(family)
        .and_then(|setting| setting.get("method")?.get::<&str>().ok());
    method.is_some_and(|method| LEARNED.contains(&method))
}

fn learned(bus: &mut Bus, device: &str, family: &str) -> Learned {
    let lease = match family {
        "ipv4" => leased(bus, device),
        _ => None,
    };
    match lease {
        Some(address) => Learned::Leased(vec![address]),
        None => listed(bus, device, family).map_or(Learned::Unknown, Learned::Among),
    }
}

/// The address of the lease, as DHCP calls it.
fn leased(bus: &mut Bus, device: &str) -> Option<String> {
    let config = object(bus, device, "Dhcp4Config")?;
    let interface = "org.freedesktop.NetworkManager.DHCP4Config";
    let answer = property(bus, &config, interface, "Options").ok()?;
    let options: HashMap<&str, Variant> = answer.body.parser().get::<Variant>().ok()?.get().ok()?;
    Some(options.get("ip_address")?.get::<&str>().ok()?.to_owned())
}

fn listed(bus: &mut Bus, device: &str, family: &str) -> Option<Vec<(String, u32)>> {
    let (name, interface) = match family {
        "ipv4" => ("Ip4Config", "org.freedesktop.NetworkManager.IP4Config"),
        _ => ("Ip6Config", "org.freedesktop.NetworkManager.IP6Config"),
    };
    let config = object(bus, device, name)?;
    let answer = property(bus, &config, interface, "AddressData").ok()?;
    let rows: Rows = answer.body.parser().get::<Variant>().ok()?.get().ok()?;
    Some(rows.iter().filter_map(address_of).collect())
}

/// The path of an object that the device names; `/` is none.
pub(super) fn object(bus: &mut Bus, device: &str, name: &str) -> Option<String> {
    object_in(bus, device, DEVICE, name)
}

pub(super) fn object_in(bus: &mut Bus, path: &str, interface: &str, name: &str) -> Option<String> {
    let answer = property(bus, path, interface, name).ok()?;
    let path: rustbus::wire::ObjectPath<&str> =
        answer.body.parser().get::<Variant>().ok()?.get().ok()?;
    Some(path.as_ref().to_owned()).filter(|path| path != "/")
}

/// Whether it is the route to the subnet of one of these addresses, which NetworkManager adds in
/// the kernel's place.
fn leads_to(route: &Route, addresses: &[Address]) -> bool {
    let mut nets = addresses
        .iter()
        .filter(|a| a.flags & NOPREFIXROUTE != 0)
        .filter_map(|a| IpNet::new(a.address, a.prefix).ok());
    route.protocol == KERNEL && nets.any(|net| net.trunc() == route.destination)
}

/// Whether a route is the default one of the profile, or leads to its gateway.
fn is_by(route: &Route, gateways: &[&str]) -> bool {
    let [only] = route.hops.as_slice() else {
        return false;
    };
    let gateway = only.gateway.unwrap_or(route.destination.addr());
    (only.gateway.is_none() || route.destination.prefix_len() == 0)
        && gateways.contains(&gateway.to_string().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str, flags: u32) -> Address {
        let net: IpNet = text.parse().unwrap();
        Address {
            address: net.addr(),
            prefix: net.prefix_len(),
            peer: None,
            broadcast: None,
            label: None,
            scope: 0,
            flags,
            valid_lft: None,
            preferred_lft: None,
            metric: None,
            protocol: None,
        }
    }

    fn own(learned: Learned) -> OwnAddresses {
        OwnAddresses {
            given: vec![("10.0.0.1".to_owned(), 24)],
            families: [learned, Learned::Nothing],
        }
    }

    #[test]
    fn an_address_that_the_profile_has_not_is_foreign() {
        let own = own(Learned::Nothing);
        assert!(own.has(&address("10.0.0.1/24", NOPREFIXROUTE)));
        for foreign in ["10.0.0.50/32", "10.0.0.1/32", "fd00::1/64"] {
            assert!(!own.has(&address(foreign, NOPREFIXROUTE)), "{foreign}");
        }
        let made = "fe80::16ac:5cd5:9bbb:f54c/64";
        assert!(own.has(&address(made, NOPREFIXROUTE)));
        assert!(!own.has(&address(made, 0)), "the kernel's");
        assert!(
            !own.has(&address("fe80::99/64", NOPREFIXROUTE)),
            "an administrator's"
        );
    }

    #[test]
    fn an_address_that_no_lease_gave_is_foreign() {
        let leased = own(Learned::Leased(vec!["10.0.0.2".to_owned()]));
        let among = own(Learned::Among(vec![("10.0.0.2".to_owned(), 24)]));
        for own in [leased, among] {
            assert!(own.has(&address("10.0.0.1/24", NOPREFIXROUTE)));
            assert!(own.has(&address("10.0.0.2/24", NOPREFIXROUTE)));
            assert!(!own.has(&address("10.0.0.50/32", NOPREFIXROUTE)));
        }
        let unknown = own(Learned::Unknown);
        assert!(unknown.has(&address("10.0.0.50/32", NOPREFIXROUTE)));
        assert!(!unknown.has(&address("10.0.0.50/32", 0)));
    }
}
