//! Whether a manager waits for a lease of DHCP. Neither says so of a link before it has one.

use std::path::Path;

use anyhow::{Context, Result};
use rdma_model::snapshot::Netdev;

use super::bus::Bus;
use super::network_manager::{self, Profile};
use super::{networkd, state_files};
use crate::disk::files;

/// Values of `DHCP=` that have networkd ask for a lease of IPv4 (systemd.network(5); `both` and
/// `v4` are of earlier versions).
const ASKS: [&str; 9] = ["yes", "true", "on", "y", "t", "1", "ipv4", "both", "v4"];

/// By NetworkManager's profile where it has the link, else by networkd's files.
pub fn is_due(root: &Path, network_manager: Option<&mut Bus>, link: &Netdev) -> bool {
    let mut addresses = link.addresses.iter();
    let has_one = addresses.any(|a| a.address.is_ipv4() && a.valid_lft.is_some());
    !has_one
        && match network_manager {
            Some(bus) => profile_asks(bus, link).unwrap_or(false),
            None => networkd::file(root, link.ifindex).is_some_and(|main| files_ask(root, &main)),
        }
}

fn profile_asks(bus: &mut Bus, link: &Netdev) -> Result<bool> {
    let device = network_manager::device(bus, link)?;
    let profile = network_manager::profile_of(bus, &device)?;
    let answer = network_manager::settings(bus, &profile)?;
    let profile: Profile = answer.body.parser().get()?;
    let ipv4 = profile.get("ipv4").context("a profile without IPv4")?;
    let method = ipv4.get("method").and_then(|m| m.get::<&str>().ok());
    Ok(method == Some("auto"))
}

/// The last value counts.
fn files_ask(root: &Path, main: &Path) -> bool {
    let drop_ins = networkd::drop_ins(root, main).unwrap_or_default();
    let all = [vec![state_files::below(root, main)], drop_ins].concat();
    let value = all.iter().filter_map(|file| value_of(file)).next_back();
    value.is_some_and(|value| ASKS.contains(&value.as_str()))
}

fn value_of(file: &Path) -> Option<String> {
    let text = files::read_through(file).ok()??;
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let mut values = pairs.filter(|(key, _)| key.trim() == "DHCP");
    values
        .next_back()
        .map(|(_, value)| value.trim().to_lowercase())
}
