//! Profiles without a route metric (`ipv4.route-metric` in nm-settings-nmcli(5)): NetworkManager
//! gives a link one that no other link has yet, so in the order in which links come up (seen of
//! 1.42 and 1.52), and that is another one when NICs return.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use rdma_model::escape::shell_word;
use rdma_model::ids::IfName;
use rdma_model::manager::KERNEL;
use rdma_model::snapshot::{Netdev, Route, Snapshot};
use serde::{Deserialize, Serialize};

use super::rows::text;
use super::{Profile, device, profile_of, settings};
use crate::link_managers::Managers;
use crate::link_managers::bus::Bus;

/// NICs whose preference may be another one when they are back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unordered {
    pub nics: Vec<IfName>,
    /// The first of the destinations that all of them lead to.
    pub destination: String,
    /// What gives their profiles the metrics that they have now.
    pub commands: Vec<String>,
}

impl Unordered {
    pub fn seen(&self) -> String {
        let names: Vec<&str> = self.nics.iter().map(IfName::as_str).collect();
        format!(
            "{} lead to {} by profiles of NetworkManager that have no route-metric",
            names.join(", "),
            self.destination
        )
    }

    /// In one line, for a reader of notes.
    pub fn note(&self) -> String {
        format!(
            "{}: another one may be preferred when they are back from a container; `{}` ends that",
            self.seen(),
            self.commands.join(" && ")
        )
    }
}

/// A NIC's route that has its metric from NetworkManager alone.
struct Preferred<'a> {
    nic: &'a IfName,
    metric: u32,
    /// The name of its profile.
    profile: String,
}

impl Managers {
    /// For IPv4 and IPv6 those of the NICs that lead to the same destination.
    pub fn unordered(&mut self, nics: &[&Netdev], host: &Snapshot) -> Vec<Unordered> {
        let Some(bus) = self.running_network_manager() else {
            return Vec::new();
        };
        let families = [("ipv4", true), ("ipv6", false)];
        let found = families.map(|(family, is_v4)| {
            let mut routes: Vec<&Route> = host.routes.iter().collect();
            routes.retain(|r| r.destination.addr().is_ipv4() == is_v4 && is_shared(r));
            let mut ways: BTreeSet<_> = routes.iter().map(|r| (r.table, r.destination)).collect();
            // What leads over one of them is of no interest.
            ways.retain(|way| {
                let legs = nics.iter().filter(|n| metric(n, way, &routes).is_some());
                legs.count() > 1
            });
            let (_, destination) = ways.iter().next().copied()?;
            let mut preferred = Vec::new();
            for nic in nics {
                let Some(metric) = ways.iter().find_map(|way| metric(nic, way, &routes)) else {
                    continue;
                };
                let profile = without_metric(bus, nic, family).ok().flatten();
                preferred.extend(profile.map(|profile| Preferred {
                    nic: &nic.name,
                    metric,
                    profile,
                }));
            }
            let commands = preferred.iter().map(|p| {
                let (profile, metric) = (shell_word(&p.profile), p.metric);
                format!("nmcli connection modify {profile} {family}.route-metric {metric}")
            });
            let nics: Vec<IfName> = preferred.iter().map(|p| p.nic.clone()).collect();
            (nics.len() > 1).then(|| Unordered {
                nics,
                destination: destination.to_string(),
                commands: commands.collect(),
            })
        });
        found.into_iter().flatten().collect()
    }
}

/// Whether it may be the way to a subnet or to all others: what else a profile has may have a
/// metric of its own.
fn is_shared(route: &Route) -> bool {
    let is_link_local = match route.destination.addr() {
        std::net::IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.is_multicast(),
        std::net::IpAddr::V4(v4) => v4.is_multicast(),
    };
    let is_default = route.destination.prefix_len() == 0;
    route.kind == 1 && !is_link_local && (route.protocol == KERNEL || is_default)
}

fn metric(nic: &Netdev, way: &(u32, ipnet::IpNet), routes: &[&Route]) -> Option<u32> {
    let mut its = routes
        .iter()
        .filter(|r| (r.table, r.destination) == *way && leads_over(r, &nic.name));
    its.find_map(|r| r.metric)
}

fn leads_over(route: &Route, name: &IfName) -> bool {
    matches!(&route.hops[..], [only] if only.dev.as_ref() == Some(name))
}

/// The name of the profile that is active on a link, if it leaves the metric of a family to
/// NetworkManager.
fn without_metric(bus: &mut Bus, link: &Netdev, family: &str) -> Result<Option<String>> {
    let device = device(bus, link)?;
    let profile = profile_of(bus, &device)?;
    let answer = settings(bus, &profile)?;
    let profile: Profile = answer.body.parser().get()?;
    let setting = profile.get(family);
    // What has the default value is absent.
    let metric = setting.and_then(|s| s.get("route-metric")?.get::<i64>().ok());
    let connection = profile.get("connection").context("a profile of nothing")?;
    let name = text(connection, "id").context("a profile without a name")?;
    Ok(metric.is_none_or(|metric| metric < 0).then_some(name))
}
