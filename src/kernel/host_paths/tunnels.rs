//! Tunnels of a network namespace: what each is tied to, and where its other ends are, by
//! IFLA_INFO_DATA, and the remote ends of a VXLAN's forwarding table.

use rdma_netlink::lower_link::{Numbers, numbers};
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use nix::libc::{AF_BRIDGE, IPPROTO_UDP};
use rdma_model::ids::IfName;
use rdma_model::snapshot::{Connection, Netdev, Question, Snapshot};
use rdma_netlink::raw::{Attributes, attributes, ip, word};
use rdma_netlink::socket::KernelSocket;

use crate::kernel::host_paths::wireguard;
use crate::select::protected_ifaces::TunnelFacts;

const RTM_GETLINK: u16 = 18;
const RTM_GETNEIGH: u16 = 30;
/// The lengths of ifinfomsg and ndmsg.
const IFINFOMSG: usize = 16;
const NDMSG: usize = 12;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_AMT_DISCOVERY_IP: u16 = 7;
const NDA_DST: u16 = 1;
const NDA_PORT: u16 = 6;
const NDA_IFINDEX: u16 = 8;
const NDA_NH_ID: u16 = 13;

fn is_tunnel(netdev: &Netdev) -> bool {
    let kind = netdev.kind.as_deref();
    let numbers = kind.and_then(numbers);
    kind == Some("wireguard") || numbers.is_some_and(|n| !n.remote.is_empty())
}

/// All tunnels of the host. Most hosts have none, and are not asked.
pub(super) fn tunnels(socket: &mut KernelSocket, host: &Snapshot) -> io::Result<Vec<TunnelFacts>> {
    let netdevs: Vec<&Netdev> = host.netdevs.iter().filter(|n| is_tunnel(n)).collect();
    if netdevs.is_empty() {
        return Ok(Vec::new());
    }
    let links = socket.dump(RTM_GETLINK, &[0; IFINFOMSG])?;
    let all = links.iter().filter_map(|link| tunnel(link, &netdevs, host));
    let (moved_in, own): (Vec<_>, Vec<_>) = all.partition(|(is_moved_in, _)| *is_moved_in);
    let [moved_in, mut found] =
        [moved_in, own].map(|all| all.into_iter().map(|(_, facts)| facts).collect::<Vec<_>>());
    if netdevs.iter().any(|n| n.kind.as_deref() == Some("vxlan")) {
        forwarding(socket, host, &mut found)?;
    }
    found.extend(moved_in);
    for netdev in netdevs
        .iter()
        .filter(|n| n.kind.as_deref() == Some("wireguard"))
    {
        found.push(wireguard::tunnel(netdev));
    }
    Ok(found)
}

/// A tunnel, and whether it was moved in from another namespace: there it sends, so that what it is
/// tied to and its other ends are none of this host's (vxlan_changelink() in
/// drivers/net/vxlan/vxlan_core.c goes by `vxlan->net`, ip_tunnel_xmit() by `tunnel->net`).
fn tunnel(link: &[u8], netdevs: &[&Netdev], host: &Snapshot) -> Option<(bool, TunnelFacts)> {
    let index = word(link.get(4..8)?)?;
    let netdev = netdevs.iter().find(|n| n.ifindex == index)?;
    let kind = netdev.kind.as_deref()?;
    let numbers = numbers(kind)?;
    let all = attributes(link.get(IFINFOMSG..)?).ok()?;
    if all.contains_key(&IFLA_LINK_NETNSID) {
        return Some((true, TunnelFacts::of(&netdev.name)));
    }
    let data = all
        .get(&IFLA_LINKINFO)
        .and_then(|info| Some(attributes(&info.0).ok()?.remove(&IFLA_INFO_DATA)?.0));
    let data = data.and_then(|data| attributes(&data).ok());
    let facts = match data {
        Some(data) => facts(&netdev.name, kind, &numbers, &data, host),
        None => TunnelFacts {
            unknown: Some(format!("the kernel tells nothing of this {kind}")),
            ..TunnelFacts::of(&netdev.name)
        },
    };
    Some((false, facts))
}

fn facts(
    link: &IfName,
    kind: &str,
    numbers: &Numbers,
    data: &Attributes,
    host: &Snapshot,
) -> TunnelFacts {
    let below = numbers.devices.first().and_then(|at| number(data, *at));
    let below = below.filter(|index| *index != 0);
    // A flag in some kinds, a byte in others.
    let external = numbers.external.and_then(|at| data.get(&at));
    let external = external.is_some_and(|v| v.0.first().is_none_or(|b| *b != 0));
    let discovery = match kind {
        "amt" => address(data, &[IFLA_AMT_DISCOVERY_IP]),
        _ => None,
    };
    let remote = discovery.or_else(|| address(data, numbers.remote));
    let packets = Question {
        from: address(data, numbers.local),
        oif: below,
        mark: numbers.mark.and_then(|at| number(data, at)).unwrap_or(0),
        flow: numbers
            .port
            .and_then(|at| Some(udp_to(port(&data.get(&at)?.0)?))),
        ..Question::to(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    };
    let facts = TunnelFacts {
        below: below.and_then(|index| {
            Some(
                host.netdevs
                    .iter()
                    .find(|n| n.ifindex == index)?
                    .name
                    .clone(),
            )
        }),
        packets,
        // Without a remote end it sends to the route's gateway (ip_tunnel_xmit() in
        // net/ipv4/ip_tunnel.c).
        by_gateway: numbers.mark.is_some() && remote.is_none() && !external,
        unknown: external.then(|| format!("this {kind} learns its other ends from each packet")),
        ..TunnelFacts::of(link)
    };
    let ends = remote
        .filter(|to| !to.is_multicast())
        .map(|to| facts.towards(to))
        .into_iter()
        .collect();
    TunnelFacts { ends, ..facts }
}

fn number(data: &Attributes, at: u16) -> Option<u32> {
    word(&data.get(&at)?.0)
}

/// The kernel tells the unspecified one where there is none.
fn address(data: &Attributes, at: &[u16]) -> Option<IpAddr> {
    let all = at.iter().filter_map(|at| ip(&data.get(at)?.0));
    all.map(|ip| ip.to_canonical())
        .find(|ip| !ip.is_unspecified())
}

/// A port in the order of the network.
fn port(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}

/// What a tunnel over UDP sends: its own port is another one for each flow inside.
fn udp_to(port: u16) -> Connection {
    Connection {
        protocol: IPPROTO_UDP as u8,
        local_port: 0,
        remote_port: port,
    }
}

/// The other ends in a VXLAN's forwarding table (`bridge fdb`, `dst`).
fn forwarding(
    socket: &mut KernelSocket,
    host: &Snapshot,
    tunnels: &mut [TunnelFacts],
) -> io::Result<()> {
    let mut body = [0; NDMSG];
    body[0] = AF_BRIDGE as u8;
    for entry in socket.dump(RTM_GETNEIGH, &body)? {
        let (Some(index), Some(Ok(all))) = (
            entry.get(4..8).and_then(word),
            entry.get(NDMSG..).map(attributes),
        ) else {
            continue;
        };
        let name = host
            .netdevs
            .iter()
            .find(|n| n.ifindex == index)
            .map(|n| &n.name);
        let Some(tunnel) = tunnels.iter_mut().find(|t| Some(&t.link) == name) else {
            continue;
        };
        let end = all
            .get(&NDA_DST)
            .and_then(|v| ip(&v.0))
            .filter(|to| !to.is_unspecified() && !to.is_multicast());
        let ends = end.into_iter().chain(
            number(&all, NDA_NH_ID)
                .into_iter()
                .flat_map(|id| object(id, host)),
        );
        let flow = all.get(&NDA_PORT).and_then(|v| port(&v.0)).map(udp_to);
        let own = tunnel.clone();
        let new = ends.map(|to| {
            let packets = own.towards(to);
            Question {
                oif: number(&all, NDA_IFINDEX).or(packets.oif),
                flow: flow.or(packets.flow),
                ..packets
            }
        });
        let new: Vec<Question> = new.filter(|q| !tunnel.ends.contains(q)).collect();
        tunnel.ends.extend(new);
    }
    Ok(())
}

fn object(id: u32, host: &Snapshot) -> Vec<IpAddr> {
    let Some(object) = host.nexthops.iter().find(|n| n.id == id) else {
        return Vec::new();
    };
    let mut gateways = Vec::from_iter(object.gateway);
    for member in &object.group {
        let member = host.nexthops.iter().find(|n| n.id == member.id);
        gateways.extend(member.and_then(|n| n.gateway));
    }
    gateways
}
