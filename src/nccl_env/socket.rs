//! The interface of NCCL's own sockets: where the processes of a job find each other.

use std::collections::BTreeMap;
use std::net::IpAddr;

use nccl_rules::explain::{self, explain_named};
use nccl_rules::settings::Settings;
use nccl_rules::version::Version;
use rdma_model::ids::IfName;
use rdma_model::nic::{EnvVar, Nic};
use rdma_model::snapshot::{Address, Snapshot};
use rdma_model::values::Family;

use super::var;
use crate::select::candidates::counts;
use crate::select::protected_ifaces;

/// What is known of a container's network namespace before the NICs are in it.
#[derive(Clone, Copy)]
pub enum Namespace<'a> {
    /// Nothing, and nothing is guessed.
    Unknown,
    /// There will be nothing but the NICs.
    New,
    Seen(&'a Snapshot),
}

/// Adds NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME: the interface with the default route in the
/// container's namespace, if there is one, else the first rail. NCCL would take what comes first by
/// index, and no two nodes need agree on that. Gloo takes the plain name; neither list can hold a
/// name with a comma. Nothing is added where the container's own environment names a NCCL_COMM_ID,
/// which chooses by itself, or a family of which no such interface has an address.
pub(super) fn choose_socket_interface(
    env: &mut Vec<EnvVar>,
    own: &BTreeMap<String, String>,
    nics: &[Nic],
    inside: Option<&Snapshot>,
) {
    let Some((iface, why)) = bootstrap(own, nics, inside) else {
        return;
    };
    let is_set =
        own.contains_key("NCCL_COMM_ID") || env.iter().any(|v| v.name == "NCCL_SOCKET_IFNAME");
    if is_set || iface.as_str().contains(',') {
        return;
    }
    let at = env.iter().take_while(|v| v.name == "NCCL_IB_HCA").count();
    let gloo = var(
        "GLOO_SOCKET_IFNAME",
        iface.as_str(),
        "the same one, as Gloo spells it",
    );
    env.splice(
        at..at,
        [var("NCCL_SOCKET_IFNAME", &format!("={iface}"), why), gloo],
    );
}

/// The interface that nodes meet over, and why: that of the default route, else the first rail.
fn bootstrap<'a>(
    own: &BTreeMap<String, String>,
    nics: &'a [Nic],
    inside: Option<&'a Snapshot>,
) -> Option<(&'a IfName, &'static str)> {
    let family = own.get("NCCL_SOCKET_FAMILY").map(String::as_str);
    let fits = |addresses: &[Address]| {
        addresses.iter().any(|a| match family {
            Some("AF_INET") => a.address.is_ipv4(),
            Some("AF_INET6") => a.address.is_ipv6(),
            _ => true,
        })
    };
    let way_out = inside.and_then(protected_ifaces::way_out);
    if let Some(netdev) = way_out.filter(|n| fits(&n.addresses)) {
        return Some((&netdev.name, "the container's default route leaves by it"));
    }
    let mut rails = nics.iter().filter(|n| n.hca.is_some());
    let rail = rails.find(|n| fits(&n.addresses))?;
    let why = "the first rail: nothing else here leads out";
    Some((rail.name(), why))
}

/// The address by which a container is known to its peers: that of NCCL's bootstrap by all that it
/// has of settings, where others reach it.
pub fn bootstrap_address(
    settings: &Settings,
    inside: &Snapshot,
    release: Option<Version>,
) -> Option<IpAddr> {
    let explained = explain_named(settings, inside, release, &|_| None);
    let explain::Bootstrap::Uses(endpoint, _) = explained.bootstrap else {
        return None;
    };
    let mut all = inside.netdevs.iter().flat_map(|n| &n.addresses);
    let own = all.find(|a| a.address == endpoint.address && counts(a, Family::Any));
    own.map(|a| a.address)
}
