//! Tun and tap devices that the host uses: programs send on what leaves by them, over sockets of
//! their own. Those with another end are asked about as all are. Where an unconnected one sends to
//! is not to be seen; but a VPN's client has a route to its server alone, so that the tunnel's own
//! packets do not go into the tunnel.

use std::net::IpAddr;

use ipnet::IpNet;
use rdma_model::snapshot::{
    Answer, HostPath, HostPaths, Netdev, Purpose, Question, Snapshot, TunnelPath,
};

use crate::select::protected_ifaces::uplinks;

pub(super) fn observe(
    host: &Snapshot,
    paths: &mut HostPaths,
    ask: &mut dyn FnMut(&Question) -> Answer,
) {
    let is_tun = |netdev: &&Netdev| netdev.kind.as_deref() == Some("tun");
    // One that no program holds has no carrier (__tun_detach() in drivers/net/tun.c), and sends
    // nothing.
    if !host.netdevs.iter().any(|n| is_tun(&n) && n.running) {
        return;
    }
    let asked = Snapshot {
        paths: Some(paths.clone()),
        ..host.clone()
    };
    let Ok(guarded) = uplinks(true, &asked) else {
        return;
    };
    let servers: Vec<HostPath> = servers(host)
        .map(|to| {
            let question = Question::to(to);
            let answer = ask(&question);
            HostPath {
                purpose: Purpose::Underlay,
                question,
                answer,
            }
        })
        .collect();
    let used = host
        .netdevs
        .iter()
        .filter(is_tun)
        .filter(|n| n.running && guarded.contains_key(&n.name));
    paths.tunnels.extend(used.map(|netdev| TunnelPath {
        link: netdev.name.clone(),
        below: None,
        remotes: servers.clone(),
        unknown: None,
    }));
}

/// Public addresses with a route of their own. Private ones are the fabric's: a rail has a route to
/// each of its peers there.
fn servers(host: &Snapshot) -> impl Iterator<Item = IpAddr> {
    let is_one = |net: &IpNet| net.prefix_len() == net.max_prefix_len() && is_public(net.addr());
    // RTN_UNICAST, or not known.
    host.routes
        .iter()
        .filter(|r| r.kind <= 1)
        .map(|r| r.destination)
        .filter(is_one)
        .map(|net| net.addr())
}

/// Whether an address is none of RFC 1918, RFC 6598 and their like; of IPv6, one of those that are
/// given out (RFC 4291).
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            let shared = a == 100 && (64..128).contains(&b);
            !(v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_multicast()
                || shared
                || a == 0)
        }
        IpAddr::V6(v6) => v6.segments()[0] & 0xe000 == 0x2000,
    }
}
