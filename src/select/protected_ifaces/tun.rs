//! Tun and tap devices that the host uses: programs send on what leaves by them, over sockets of
//! their own. Those with another end are asked about as all are. Where an unconnected one sends to
//! is not to be seen; but a VPN's client has a route to its server alone, so that the tunnel's own
//! packets do not go into the tunnel.

use std::net::IpAddr;

use rdma_model::snapshot::{HostPath, HostPaths, Netdev, Purpose, Question, Snapshot, TunnelPath};

use super::asking::Asking;
use super::uplinks;

/// Those that are used, as far as the paths so far say.
pub(super) fn tunnels(host: &Snapshot, paths: &HostPaths, asking: &mut Asking) -> Vec<TunnelPath> {
    // One that no program holds has no carrier (__tun_detach() in drivers/net/tun.c), and sends
    // nothing.
    let mut used: Vec<&Netdev> = host.netdevs.iter().collect();
    used.retain(|n| n.kind.as_deref() == Some("tun") && n.running);
    if used.is_empty() {
        return Vec::new();
    }
    let asked = Snapshot {
        paths: Some(paths.clone()),
        ..host.clone()
    };
    let Ok(guarded) = uplinks(true, &asked) else {
        return Vec::new();
    };
    let remotes: Vec<HostPath> = servers(host)
        .map(|to| asking.path(Purpose::Underlay, Question::to(to)))
        .collect();
    used.retain(|n| guarded.contains_key(&n.name));
    used.iter()
        .map(|netdev| TunnelPath {
            link: netdev.name.clone(),
            below: None,
            remotes: remotes.clone(),
            unknown: None,
        })
        .collect()
}

/// Public addresses with a route of their own. Private ones are the fabric's: a rail has a route to
/// each of its peers there.
fn servers(host: &Snapshot) -> impl Iterator<Item = IpAddr> {
    // RTN_UNICAST, or not known.
    let routes = host.routes.iter().filter(|r| r.kind <= 1);
    let nets = routes.map(|r| r.destination);
    nets.filter(|net| net.prefix_len() == net.max_prefix_len() && is_public(net.addr()))
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
