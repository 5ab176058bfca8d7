//! systemd-networkd: what it says of a link by its state file, and which addresses, routes and
//! rules it says are its own. The methods are in org.freedesktop.network1(5); the file is what
//! sd_network_link_get_setup_state(3) reads.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use ipnet::IpNet;
use rdma_model::manager::Foreign;
use rdma_model::snapshot::{Address, Route, Rule};
use rdma_model::step::NicState;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Word;
use super::bus::{Bus, Callee};
use crate::kernel::host::files;

pub const NAME: &str = "org.freedesktop.network1";
const ROOT: &str = "/org/freedesktop/network1";

fn state_file(root: &Path, ifindex: u32) -> PathBuf {
    root.join("run/systemd/netif/links")
        .join(ifindex.to_string())
}

/// The setup state as networkctl(1) shows it; absent where networkd has not seen the link.
pub fn state(root: &Path, ifindex: u32) -> Option<String> {
    let text = files::read_through(&state_file(root, ifindex)).ok()??;
    text.lines()
        .find_map(|line| line.strip_prefix("ADMIN_STATE="))
        .map(str::to_owned)
}

/// What it says of a link that came at `since`: it deletes the file when a link leaves, so an older
/// one is of a networkd that does not run any more.
pub fn word(root: &Path, ifindex: u32, since: SystemTime) -> Word {
    let written = state_file(root, ifindex)
        .metadata()
        .and_then(|file| file.modified());
    match state(root, ifindex)
        .filter(|_| written.is_ok_and(|at| at >= since))
        .as_deref()
    {
        None => Word::Unseen,
        Some("configured") => Word::Done,
        Some("failed" | "unmanaged" | "linger") => Word::GivenUp,
        Some("configuring") => Word::Configuring,
        Some(_) => Word::Unseen,
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Link {
    #[serde(default)]
    addresses: Vec<Owned>,
    #[serde(default)]
    routes: Vec<Owned>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Manager {
    #[serde(default)]
    routing_policy_rules: Vec<Owned>,
}

/// An address, a route or a rule: those of its fields that tell it from others.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Owned {
    config_source: String,
    address: Option<Vec<u8>>,
    prefix_length: Option<u8>,
    destination: Option<Vec<u8>>,
    destination_prefix_length: Option<u8>,
    gateway: Option<Vec<u8>>,
    table: Option<u32>,
    priority: Option<u32>,
    from_prefix: Option<Vec<u8>>,
    from_prefix_length: Option<u8>,
}

impl Owned {
    fn is_own(&self) -> bool {
        self.config_source != "foreign"
    }

    fn is_address(&self, address: &Address) -> bool {
        self.is_own()
            && ip(&self.address) == Some(address.address)
            && self.prefix_length == Some(address.prefix)
    }

    fn is_route(&self, route: &Route) -> bool {
        let gateway = match route.hops.as_slice() {
            [only] => only.gateway == ip(&self.gateway),
            _ => true,
        };
        let destination = net(&self.destination, self.destination_prefix_length);
        self.is_own()
            && gateway
            && destination == Some(route.destination)
            && self.table == Some(route.table)
    }

    fn is_rule(&self, rule: &Rule) -> bool {
        let source = net(&self.from_prefix, self.from_prefix_length);
        let key = (source, self.table, self.priority);
        self.is_own() && key == (rule.source, Some(rule.table), Some(rule.priority))
    }
}

fn ip(bytes: &Option<Vec<u8>>) -> Option<IpAddr> {
    let bytes = bytes.as_deref()?;
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

fn net(bytes: &Option<Vec<u8>>, length: Option<u8>) -> Option<IpNet> {
    IpNet::new(ip(bytes)?, length?).ok()
}

/// The rules of the whole host that it knows.
pub struct Rules(Vec<Owned>);

pub fn rules(bus: &mut Bus) -> Result<Rules> {
    let interface = "org.freedesktop.network1.Manager";
    let manager: Manager = describe(
        bus,
        Callee {
            name: NAME,
            path: ROOT,
            interface,
        },
    )?;
    Ok(Rules(manager.routing_policy_rules))
}

/// What of a link's state is not networkd's.
pub fn foreign(bus: &mut Bus, state: &NicState, rules: &Rules) -> Result<Foreign> {
    let path = object(state.netdev.ifindex);
    let interface = "org.freedesktop.network1.Link";
    let link: Link = describe(
        bus,
        Callee {
            name: NAME,
            path: &path,
            interface,
        },
    )?;
    let addresses = state
        .netdev
        .addresses
        .iter()
        .filter(|a| !link.addresses.iter().any(|o| o.is_address(a)));
    let routes = state
        .routes
        .iter()
        .filter(|r| !link.routes.iter().any(|o| o.is_route(r)));
    let rules = state
        .rules
        .iter()
        .filter(|r| !rules.0.iter().any(|own| own.is_rule(r)));
    Ok(Foreign {
        addresses: addresses.cloned().collect(),
        routes: routes.cloned().collect(),
        rules: rules.cloned().collect(),
    })
}

/// The path of a link's object: a digit at its beginning is escaped (bus_label_escape() in
/// systemd's bus-label.c).
fn object(ifindex: u32) -> String {
    let digits = ifindex.to_string();
    let (first, rest) = digits.split_at(1);
    format!("{ROOT}/link/_3{first}{rest}")
}

fn describe<T: DeserializeOwned>(bus: &mut Bus, callee: Callee) -> Result<T> {
    let answer = bus.call(callee, "Describe", &[])?;
    let text: &str = answer.body.parser().get()?;
    serde_json::from_str(text).context("what networkd describes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_links_are_escaped() {
        assert_eq!(object(2), "/org/freedesktop/network1/link/_32");
        assert_eq!(object(123), "/org/freedesktop/network1/link/_3123");
    }
}
