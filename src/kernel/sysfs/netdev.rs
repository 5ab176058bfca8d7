//! Netdevs as sysfs shows them, and which of them is behind a port (net/core/net-sysfs.c).

use std::collections::{BTreeMap, BTreeSet};

use rdma_model::ids::IfName;
use rdma_model::snapshot::{Netdev, Port};

use super::dir::Dir;
use super::hca::FoundHca;
use super::root::Root;
use super::threads::each;

/// include/uapi/linux/if.h. The last two are in a capture what anybody set.
const IFF_UP: u32 = 1;
const IFF_PROMISC: u32 = 0x100;
const IFF_ALLMULTI: u32 = 0x200;

/// A netdev with the real path of its `device`, below the root.
pub(super) struct FoundNetdev {
    pub(super) netdev: Netdev,
    device: Option<String>,
    /// Names of the devices below it: what it sits on, and its members (netdev_adjacent_sysfs_add()
    /// in net/core/dev.c).
    lowers: Vec<String>,
}

pub(super) fn netdevs(root: &Root, warnings: &mut Vec<String>) -> Vec<FoundNetdev> {
    let Some(class) = root.dir("class/net") else {
        return Vec::new();
    };
    // bonding_masters is a control file among the devices.
    let names: Vec<String> = class
        .names()
        .into_iter()
        .filter(|name| !class.is_file(name))
        .collect();
    let class = class.path();
    let mut found = Vec::new();
    for one in each(root, &names, |root, names| {
        let all = names.iter();
        all.map(|name| read(root.find(class, name), name)).collect()
    }) {
        match one {
            Ok(netdev) => found.push(netdev),
            Err(why) => warnings.push(why),
        }
    }
    for one in found.iter().filter(|one| one.netdev.ifindex == 0) {
        warnings.push(format!("{} has no readable ifindex", one.netdev.name));
    }
    lay_on_lowers(&mut found);
    found.sort_by_key(|one| (one.netdev.ifindex, one.netdev.name.clone()));
    found
}

fn read(dir: Option<Dir>, name: &str) -> Result<FoundNetdev, String> {
    let parsed = name.parse().map_err(|e| format!("class/net: {e}"))?;
    let dir = dir.ok_or_else(|| format!("class/net/{name} leads nowhere"))?;
    Ok(netdev(parsed, &dir))
}

fn netdev(name: IfName, dir: &Dir) -> FoundNetdev {
    let device = dir.sub("device");
    let ifindex = dir.parse("ifindex").unwrap_or_default();
    let flags = dir.hex("flags").unwrap_or_default();
    let up = flags & IFF_UP != 0;
    let operstate = dir.attr("operstate");
    let netdev = Netdev {
        kind: [("bonding", "bond"), ("bridge", "bridge")]
            .iter()
            .find(|(d, _)| dir.is_dir(d))
            .map(|(_, k)| k.to_string()),
        link_type: dir.parse("type").unwrap_or_default(),
        mac: dir.parse("address"),
        mtu: dir.parse("mtu").unwrap_or_default(),
        txqlen: dir.parse("tx_queue_len").unwrap_or_default(),
        alias: dir.attr("ifalias"),
        promisc: flags & IFF_PROMISC != 0,
        allmulti: flags & IFF_ALLMULTI != 0,
        up,
        // netif_oper_up(): the flags attribute lacks IFF_RUNNING, which is made up from this
        // (dev_get_flags() in net/core/dev.c).
        running: up && matches!(operstate.as_deref(), Some("up" | "unknown")),
        operstate,
        master: dir.link("master").and_then(|m| m.parse().ok()),
        link: dir
            .parse("iflink")
            .filter(|link| *link != ifindex && *link != 0),
        pci: device.as_ref().unwrap_or(dir).pci().map(|(id, _)| id),
        driver: device.as_ref().and_then(|d| d.link("driver")),
        dev_port: dir.parse("dev_port"),
        channels: device.as_ref().and_then(|_| channels(dir)),
        ..Netdev::new(name, ifindex)
    };
    let lowers = dir
        .names()
        .iter()
        .filter_map(|name| Some(name.strip_prefix("lower_")?.to_owned()))
        .collect();
    FoundNetdev {
        netdev,
        device: device.map(|d| d.path().to_owned()),
        lowers,
    }
}

/// By the folder, which takes no lock of the kernel: ethtool's answer waits for moves of others.
fn channels(dir: &Dir) -> Option<u32> {
    let queues = dir.sub("queues")?.names();
    let received = queues.iter().filter(|name| name.starts_with("rx-"));
    u32::try_from(received.count())
        .ok()
        .filter(|count| *count > 0)
}

/// Links of class/net lead to devices of the same namespace alone, whatever their kind is. A member
/// names its master itself.
fn lay_on_lowers(found: &mut [FoundNetdev]) {
    let known: BTreeMap<String, (u32, Option<IfName>)> = found
        .iter()
        .map(|f| {
            (
                f.netdev.name.to_string(),
                (f.netdev.ifindex, f.netdev.master.clone()),
            )
        })
        .collect();
    for FoundNetdev { netdev, lowers, .. } in found {
        let below = lowers.iter().filter_map(|name| known.get(name));
        netdev.lowers = below
            .filter(|(_, master)| *master != Some(netdev.name.clone()))
            .map(|(i, _)| *i)
            .collect();
    }
}

/// Puts a netdev behind every port where kernel facts name exactly one, and a sentence into the
/// conflicts where they differ.
pub(super) fn put_behind_ports(hca: &mut FoundHca, netdevs: &[FoundNetdev]) {
    let on_function = on_function(hca, netdevs);
    let single = hca.hca.ports.len() == 1;
    for port in &mut hca.hca.ports {
        // An rxe device has one port and says itself what it sits on.
        let found = match &hca.carrier {
            Some(carrier) => Ok(Some(carrier.clone())),
            None => behind(port, single, &on_function, netdevs),
        };
        match found {
            Ok(netdev) => port.netdev = netdev,
            Err(why) => hca
                .hca
                .conflicts
                .push(format!("port {}: {why}", port.number)),
        }
    }
}

/// The netdevs of the HCA's function: of the very same device, else of its children (virtio), else
/// of the function above an auxiliary device. The order keeps the netdev of a sub-function apart
/// from that of the function above it.
fn on_function<'n>(hca: &FoundHca, netdevs: &'n [FoundNetdev]) -> Vec<&'n Netdev> {
    let Some(device) = hca.device.as_deref() else {
        return Vec::new();
    };
    let mut found = fitting(netdevs, |_, d| d == device);
    if found.is_empty() {
        found = fitting(netdevs, |_, d| is_below(d, device));
    }
    if found.is_empty() && hca.hca.pci.is_some() {
        found = fitting(netdevs, |n, d| {
            n.netdev.pci == hca.hca.pci && is_below(device, d)
        });
    }
    found
}

fn fitting(netdevs: &[FoundNetdev], fits: impl Fn(&FoundNetdev, &str) -> bool) -> Vec<&Netdev> {
    // A netdev on top of another one (an IPoIB child) shares its device.
    let own = netdevs.iter().filter(|n| n.netdev.link.is_none());
    own.filter(|n| n.device.as_deref().is_some_and(|d| fits(n, d)))
        .map(|n| &n.netdev)
        .collect()
}

fn is_below(path: &str, other: &str) -> bool {
    path.strip_prefix(other)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn behind(
    port: &Port,
    single: bool,
    on_function: &[&Netdev],
    all: &[FoundNetdev],
) -> Result<Option<IfName>, String> {
    // dev_port counts from 0, ports from 1. Kernels before 3.15 have no dev_port: one netdev and
    // one port need none.
    let lonely = single && on_function.len() == 1;
    let mut candidates = Vec::new();
    for netdev in on_function {
        let number = netdev.dev_port.map(|p| p.checked_add(1));
        if number.map_or(lonely, |number| number == Some(port.number)) {
            candidates.push(&netdev.name);
        }
    }
    let ndevs: BTreeSet<&IfName> = port.gids.iter().filter_map(|g| g.netdev.as_ref()).collect();
    match candidates[..] {
        [] => by_gids(&ndevs, all),
        // A bond takes the GIDs of its members (drivers/infiniband/core/roce_gid_mgmt.c).
        [one] => match on_function
            .iter()
            .find(|n| n.name == *one)
            .and_then(|n| n.master.as_ref())
        {
            _ if ndevs.is_empty() || ndevs.contains(one) => Ok(Some(one.clone())),
            Some(master) if ndevs.contains(master) => Ok(Some(one.clone())),
            _ => Err(format!(
                "dev_port says {one}, the GIDs say {}",
                list(&ndevs)
            )),
        },
        // Representors share function and dev_port with the uplink; the GIDs are the uplink's.
        _ => match candidates
            .iter()
            .filter(|c| ndevs.contains(*c))
            .collect::<Vec<_>>()[..]
        {
            [one] => Ok(Some((*one).clone())),
            _ => Err(format!(
                "{} all have dev_port {}",
                list(&candidates),
                port.number.saturating_sub(1)
            )),
        },
    }
}

/// Without a netdev on the function the GIDs may still name one of ours: a bond of other ports, or
/// a device without a parent.
fn by_gids(ndevs: &BTreeSet<&IfName>, all: &[FoundNetdev]) -> Result<Option<IfName>, String> {
    let ours: Vec<&IfName> = all
        .iter()
        .map(|n| &n.netdev.name)
        .filter(|n| ndevs.contains(n))
        .collect();
    match ours[..] {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        _ => Err(format!(
            "its GIDs belong to {}, and none of these is on its function",
            list(&ours)
        )),
    }
}

fn list<'a>(names: impl IntoIterator<Item = &'a &'a IfName>) -> String {
    names
        .into_iter()
        .map(|n| n.as_str())
        .collect::<Vec<_>>()
        .join(" and ")
}
