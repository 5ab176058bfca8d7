//! Joins what a /sys shows with what RDMA and route netlink report.

use std::collections::{BTreeMap, BTreeSet};

use rdma_model::ids::{HcaName, IfName};
use rdma_model::snapshot::{CharDevice, Hca, Netdev, Port, Snapshot};
use rdma_netlink::nldev::{self, CharDev};

use super::SysTree;
use crate::kernel::rdma::{NlFacts, NlHca};

/// RDMA facts come from netlink, then sysfs; netdevs from `live` (route netlink) where given, to
/// which sysfs adds function, driver and dev_port. Where two sources differ, netlink's word stays
/// and the HCA says so.
pub fn merge(tree: SysTree, nl: Option<NlFacts>, live: Option<Vec<Netdev>>) -> Snapshot {
    let SysTree {
        mut hcas,
        netdevs: seen,
        pci,
        numa_nodes,
        cpu,
        rdma_cm,
        mut warnings,
    } = tree;
    let netdevs = match live {
        Some(mut live) => {
            let ours = adorn(&mut live, &seen);
            for port in hcas.iter_mut().flat_map(|h| &mut h.ports) {
                port.netdev.take_if(|n| {
                    let is_elsewhere = seen.iter().any(|s| s.name == *n) && !ours.contains(n);
                    is_elsewhere || !live.iter().any(|l| l.name == *n)
                });
            }
            live
        }
        None => seen,
    };
    let (mut rdma_mode, mut cm) = (None, None);
    if let Some(nl) = nl {
        (rdma_mode, cm) = (nl.mode, nl.rdma_cm.map(node));
        hcas = join_hcas(hcas, nl.hcas, &netdevs, &mut warnings);
    }
    shared_netdevs(&hcas, &mut warnings);
    let rdma_cm = cm.or(rdma_cm);
    Snapshot {
        rdma_mode,
        rdma_cm,
        hcas,
        netdevs,
        pci,
        numa_nodes,
        cpu,
        warnings,
        ..Snapshot::default()
    }
}

/// Adds what only sysfs knows to live netdevs, and says which ones it knew. /sys/class/net shows
/// the namespace of its mount, netlink that of the thread (net_ns_type_operations in
/// net/core/net-sysfs.c): only an equal ifindex and address prove one netdev.
fn adorn(live: &mut [Netdev], seen: &[Netdev]) -> BTreeSet<IfName> {
    let seen: BTreeMap<&IfName, &Netdev> = seen.iter().map(|n| (&n.name, n)).collect();
    let mut known = BTreeSet::new();
    for netdev in live {
        let Some(twin) = seen
            .get(&netdev.name)
            .filter(|t| t.ifindex == netdev.ifindex && t.mac == netdev.mac)
        else {
            continue;
        };
        netdev.pci = netdev.pci.or(twin.pci);
        netdev.driver = netdev.driver.take().or_else(|| twin.driver.clone());
        netdev.dev_port = netdev.dev_port.or(twin.dev_port);
        netdev.channels = netdev.channels.or(twin.channels);
        let more: Vec<u32> = twin
            .lowers
            .iter()
            .filter(|index| !netdev.lowers.contains(index))
            .copied()
            .collect();
        netdev.lowers.extend(more);
        known.insert(netdev.name.clone());
    }
    known
}

fn join_hcas(
    sys: Vec<Hca>,
    nl: Vec<NlHca>,
    netdevs: &[Netdev],
    warnings: &mut Vec<String>,
) -> Vec<Hca> {
    let mut joined: BTreeMap<HcaName, Hca> = sys.into_iter().map(|h| (h.name.clone(), h)).collect();
    let mut reported = BTreeSet::new();
    for one in nl {
        let name: HcaName = match one.device.name.parse() {
            Ok(name) => name,
            Err(e) => {
                warnings.push(format!("RDMA netlink: {e}"));
                continue;
            }
        };
        let hca = joined.entry(name.clone()).or_insert_with(|| {
            warnings.push(format!("{name} is in RDMA netlink, but not in sysfs"));
            unseen(name.clone())
        });
        reported.insert(name);
        // What sysfs could not tell for sure, netlink knows.
        warnings.extend(
            hca.conflicts
                .drain(..)
                .map(|c| format!("{}: {c}", hca.name)),
        );
        join_hca(hca, one, netdevs, warnings);
    }
    for (name, hca) in joined
        .iter_mut()
        .filter(|(name, _)| !reported.contains(*name))
    {
        hca.conflicts
            .push(format!("sysfs shows {name}, RDMA netlink does not"));
    }
    joined.into_values().collect()
}

fn unseen(name: HcaName) -> Hca {
    Hca {
        name,
        index: None,
        node_guid: None,
        sys_image_guid: None,
        firmware: None,
        driver: None,
        protocol: None,
        pci: None,
        numa: None,
        uverbs: None,
        umad: Vec::new(),
        ports: Vec::new(),
        conflicts: Vec::new(),
    }
}

fn join_hca(hca: &mut Hca, nl: NlHca, netdevs: &[Netdev], warnings: &mut Vec<String>) {
    let NlHca {
        device,
        ports,
        uverbs,
    } = nl;
    if let Some(software) = uverbs.as_ref().and_then(CharDev::software) {
        // siw borrows the function of its netdev (siw_device_create()), yet nothing of it is
        // hardware.
        (hca.driver, hca.pci, hca.numa) = (Some(software.into()), None, None);
    }
    let conflicts = &mut hca.conflicts;
    hca.index = Some(device.index);
    hca.node_guid = agree("node GUID", device.node_guid, hca.node_guid, conflicts);
    hca.sys_image_guid = agree(
        "system image GUID",
        device.sys_image_guid,
        hca.sys_image_guid,
        conflicts,
    );
    hca.firmware = device.firmware.or(hca.firmware.take());
    hca.protocol = device.protocol;
    let (known, seen) = (uverbs.map(node), hca.uverbs.take());
    let [by_netlink, by_sysfs] = [&known, &seen].map(|node| {
        node.as_ref()
            .map(|n| format!("{} {}:{}", n.name, n.major, n.minor))
    });
    agree("verbs node", by_netlink, by_sysfs, conflicts);
    hca.uverbs = known.or(seen);
    for port in ports {
        join_port(hca, port, netdevs, warnings);
    }
    hca.ports.sort_by_key(|p| p.number);
}

fn join_port(hca: &mut Hca, nl: nldev::Port, netdevs: &[Netdev], warnings: &mut Vec<String>) {
    let number = nl.number;
    let at = hca
        .ports
        .iter()
        .position(|p| p.number == number)
        .unwrap_or_else(|| {
            let gids = Vec::new();
            hca.ports.push(Port {
                number,
                state: None,
                link_layer: None,
                rate: None,
                netdev: None,
                gids,
                gid_table: None,
            });
            hca.ports.len() - 1
        });
    let (port, conflicts) = (&mut hca.ports[at], &mut hca.conflicts);
    // A state is of the moment: a carrier may come between the two looks.
    port.state = nl.state_name().map(str::to_owned).or(port.state.take());
    let reported = nl.netdev.as_ref().and_then(|n| n.parse::<IfName>().ok());
    port.netdev = match (reported, port.netdev.take()) {
        (Some(reported), Some(seen))
            // A bond stands for its member, in either source.
            if is_member(netdevs, &seen, &reported) || is_member(netdevs, &reported, &seen) =>
        {
            Some(reported)
        }
        (None, Some(seen)) if !port.is_infiniband() => {
            // The netdev of a RoCE port that is in our namespace is always reported
            // (fill_port_info() in nldev.c).
            warnings.push(format!(
                "{} port {number}: sysfs says {seen}, RDMA netlink no netdev",
                hca.name
            ));
            None
        }
        (reported, seen) => agree(
            &format!("netdev of port {number}"),
            reported,
            seen,
            conflicts,
        ),
    };
}

fn is_member(netdevs: &[Netdev], member: &IfName, master: &IfName) -> bool {
    let device = netdevs.iter().find(|d| d.name == *member);
    device.is_some_and(|d| d.master.as_ref() == Some(master))
}

/// Netlink's word, else that of sysfs; a sentence where they differ.
fn agree<T: PartialEq + std::fmt::Display>(
    what: &str,
    nl: Option<T>,
    sys: Option<T>,
    conflicts: &mut Vec<String>,
) -> Option<T> {
    if let (Some(nl), Some(sys)) = (&nl, &sys) {
        if nl != sys {
            conflicts.push(format!("{what}: RDMA netlink says {nl}, sysfs says {sys}"));
        }
    }
    nl.or(sys)
}

fn node(dev: CharDev) -> CharDevice {
    CharDevice {
        name: dev.name,
        major: dev.major,
        minor: dev.minor,
    }
}

/// A netdev with two HCAs cannot be moved for one of them alone: say so, whatever is selected
/// later.
fn shared_netdevs(hcas: &[Hca], warnings: &mut Vec<String>) {
    let mut users: BTreeMap<&IfName, BTreeSet<&str>> = BTreeMap::new();
    for hca in hcas {
        for netdev in hca.ports.iter().filter_map(|p| p.netdev.as_ref()) {
            users.entry(netdev).or_default().insert(hca.name.as_str());
        }
    }
    for (netdev, hcas) in users.into_iter().filter(|(_, hcas)| hcas.len() > 1) {
        let hcas = hcas.into_iter().collect::<Vec<_>>().join(" and ");
        warnings.push(format!(
            "{netdev} is the netdev of {hcas}: they can only move together"
        ));
    }
}
