//! Rails that do not reach each other: NCCL may send from one to another (NCCL_CROSS_NIC, 2 by
//! default; src/graph/search.cc), and does so by the routes of the host.

use std::net::IpAddr;

use rdma_model::snapshot::{Netdev, Route, Snapshot};

use super::explanation::Explanation;
use super::hca::parameter;
use super::pitfalls::few;
use super::settings::Settings;
use super::version::Version;

pub const CROSS_NIC: &str = "NCCL_CROSS_NIC";
const PXN_DISABLE: &str = "NCCL_PXN_DISABLE";

/// What to know of rails on these netdevs, in a sentence; nothing where NCCL_CROSS_NIC keeps to one
/// rail and PXN is on. Where no rail has a route, routes are not known.
pub fn hint(settings: &Settings, snapshot: &Snapshot, rails: &[&Netdev]) -> Option<String> {
    let stays = settings.get(CROSS_NIC) == Some("0");
    let has_pxn = parameter(settings, Version::NEWEST, PXN_DISABLE, 0) == 0;
    if stays && has_pxn || !rails.iter().any(|dev| has_route(snapshot, dev)) {
        return None;
    }
    let pairs = rails
        .iter()
        .flat_map(|from| rails.iter().map(move |to| (*from, *to)));
    let apart: Vec<_> = pairs
        .filter(|(from, to)| from.name != to.name && !leads(snapshot, from, to))
        .collect();
    let (from, to) = apart.first()?;
    let way = match (stays, has_pxn) {
        (_, true) => {
            "with NCCL_CROSS_NIC=0 each rank stays on one rail, and what is for another goes to \
            the GPU of that rail first (PXN, which NCCL_PXN_DISABLE=1 would turn off)"
        }
        (true, false) => {
            "with NCCL_CROSS_NIC=0 each rank stays on one rail, and without PXN, which \
            NCCL_PXN_DISABLE turns off, those of two rails do not reach each other: unset that"
        }
        (false, false) => {
            "set NCCL_CROSS_NIC=0 and unset NCCL_PXN_DISABLE: each rank then stays on one rail, \
            and what is for another goes to the GPU of that rail first (PXN)"
        }
    };
    let mut names: Vec<&str> = rails.iter().map(|dev| dev.name.as_str()).collect();
    names.retain(|name| {
        let mut apart = apart.iter();
        apart.any(|(from, to)| [&from.name, &to.name].iter().any(|n| n.as_str() == *name))
    });
    let whose = match names.len() {
        2 => String::new(),
        _ => format!("not all of {} reach each other: ", few(&names)),
    };
    Some(format!(
        "{whose}{} has no route to the network of {}: {way}",
        from.name, to.name
    ))
}

/// The netdevs of the ports that are taken.
pub(crate) fn taken<'a>(snapshot: &'a Snapshot, explained: &Explanation) -> Vec<&'a Netdev> {
    let mut rails: Vec<&Netdev> = Vec::new();
    for hca in &snapshot.hcas {
        for port in &hca.ports {
            let is_taken = explained
                .hcas
                .contains(&format!("{}:{}", hca.name, port.number));
            let name = port.netdev.as_ref().filter(|_| is_taken);
            rails.extend(name.and_then(|name| snapshot.netdev(name)));
        }
    }
    rails
}

fn has_route(snapshot: &Snapshot, dev: &Netdev) -> bool {
    let mut hops = snapshot.routes.iter().flat_map(|route| &route.hops);
    hops.any(|hop| hop.dev.as_ref() == Some(&dev.name))
}

/// Whether a route over one netdev leads to an address of the other, if that has any.
fn leads(snapshot: &Snapshot, from: &Netdev, to: &Netdev) -> bool {
    let addresses = to.addresses.iter().map(|a| a.address);
    let mut addresses = addresses.filter(|a| match a {
        IpAddr::V4(_) => true,
        IpAddr::V6(a) => !a.is_unicast_link_local(),
    });
    let over = |route: &&Route| {
        let mut hops = route.hops.iter();
        hops.any(|hop| hop.dev.as_ref() == Some(&from.name))
    };
    let routes: Vec<_> = snapshot.routes.iter().filter(over).collect();
    let has_none = addresses.clone().next().is_none();
    has_none
        || addresses.any(|address| {
            routes
                .iter()
                .any(|route| route.destination.contains(&address))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::explain;
    use serde_json::{Value, json};

    fn node(routes: &[(&str, &str)]) -> Snapshot {
        let hca = |n: u32| {
            json!({"name": format!("mlx5_{n}"), "index": n, "ports": [{"number": 1,
                "state": "ACTIVE", "link_layer": "Ethernet", "netdev": format!("rdma{n}")}]})
        };
        let netdev = |n: u32| {
            json!({"name": format!("rdma{n}"), "ifindex": n + 2, "up": true, "running": true,
                "addresses": [{"address": format!("10.0.{n}.1"), "prefix": 24}]})
        };
        let route = |(destination, dev): &(&str, &str)| {
            let hops = json!([{"dev": dev}]);
            json!({"destination": destination, "table": 254, "kind": 1, "hops": hops})
        };
        let routes: Vec<Value> = routes.iter().map(route).collect();
        let node = json!({"schema": 1, "netns": 1, "hcas": [hca(0), hca(1)],
            "netdevs": [netdev(0), netdev(1)], "routes": routes});
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn all_rails_that_are_apart_are_named() {
        let mut node = node(&[("10.0.0.0/24", "rdma0"), ("10.0.1.0/24", "rdma1")]);
        let third = json!({"name": "rdma2", "ifindex": 9,
            "addresses": [{"address": "10.0.2.1", "prefix": 24}]});
        node.netdevs.push(serde_json::from_value(third).unwrap());
        let rails: Vec<&Netdev> = node.netdevs.iter().collect();
        let hint = hint(&Settings::default(), &node, &rails).unwrap();
        let begin = "not all of rdma0, rdma1, rdma2 reach each other: rdma0 has no route to the \
            network of rdma1: with NCCL_CROSS_NIC=0";
        assert!(hint.starts_with(begin), "{hint}");
    }

    #[test]
    fn rails_without_a_way_between_them_get_a_hint() {
        let hinted = |routes: &[(&str, &str)], env: &[(&str, &str)]| {
            let settings = Settings::of(env.iter().copied(), "");
            let explained = explain(&settings, &node(routes), Version::NEWEST, &|_| None);
            explained.hint
        };
        let own = [("10.0.0.0/24", "rdma0"), ("10.0.1.0/24", "rdma1")];
        let hint = hinted(&own, &[]).unwrap();
        let begin = "rdma0 has no route to the network of rdma1: with NCCL_CROSS_NIC=0";
        assert!(hint.starts_with(begin), "{hint}");
        let one = [own[0], own[1], ("10.0.0.0/16", "rdma0")];
        let hint = hinted(&one, &[]).unwrap();
        assert!(hint.starts_with("rdma1 has no route"), "{hint}");
        let both = [one[0], one[1], one[2], ("0.0.0.0/0", "rdma1")];
        assert_eq!(hinted(&both, &[]), None);
        assert_eq!(hinted(&[], &[]), None, "no route is known");
        assert_eq!(hinted(&own, &[("NCCL_CROSS_NIC", "0")]), None);
        let off = ("NCCL_PXN_DISABLE", "1");
        let hint = hinted(&own, &[("NCCL_CROSS_NIC", "0"), off]).unwrap();
        assert!(hint.contains("two rails do not reach each other"), "{hint}");
        let hint = hinted(&own, &[off]).unwrap();
        assert!(hint.contains("unset NCCL_PXN_DISABLE"), "{hint}");
        let back = [("10.0.0.0/16", "rdma0")];
        let hint = hinted(&back, &[]).unwrap();
        assert!(hint.starts_with("rdma1 has no route"), "{hint}");
        assert_eq!(hinted(&own, &[("NCCL_IB_HCA", "=mlx5_0")]), None);
    }
}
