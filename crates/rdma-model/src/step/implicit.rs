//! What the kernel makes by itself for an address or a link, so that no step adds it.

use std::net::{IpAddr, Ipv6Addr};

use crate::snapshot::{Address, Hop, Netdev, RTA_EXPIRES, Route, TABLE_LOCAL, TABLE_MAIN, UNICAST};
use ipnet::IpNet;

use super::IFA_F_NOPREFIXROUTE;
use crate::manager::KERNEL;

/// IP6_RT_PRIO_ADDRCONF (include/net/ip6_route.h): the metric of a subnet's route where the address
/// has none.
const IP6_RT_PRIO_ADDRCONF: u32 = 256;
/// IFAPROT_KERNEL_LL (include/uapi/linux/if_addr.h): a link-local address that the kernel made.
const IFAPROT_KERNEL_LL: u8 = 3;
/// IFA_F_STABLE_PRIVACY (include/uapi/linux/if_addr.h): made by a secret; the kernel sets it alone.
const IFA_F_STABLE_PRIVACY: u32 = 0x800;

/// IN6_ADDR_GEN_MODE_EUI64 and IN6_ADDR_GEN_MODE_NONE (include/uapi/linux/if_link.h), as the sysctl
/// prints them.
const ADDR_GEN_EUI64: &str = "0";
const ADDR_GEN_NONE: &str = "1";

/// Whether the kernel makes this route by itself when the NIC's addresses are added or its link
/// goes up. The protocol alone does not tell: NetworkManager adds the subnets' routes under the
/// kernel's name, with a metric of its own, and marks the addresses NOPREFIXROUTE.
pub fn kernel_made(route: &Route, dev: &Netdev) -> bool {
    let [only] = route.hops.as_slice() else {
        return false;
    };
    let direct =
        route.protocol == KERNEL && only.gateway.is_none() && only.dev.as_ref() == Some(&dev.name);
    direct
        && (derived(route)
            || route.table == TABLE_MAIN && dev.addresses.iter().any(|a| prefix_route(route, a)))
}

/// Whether this is the route that the kernel makes to an address's subnet (fib_add_ifaddr in
/// net/ipv4/fib_frontend.c, addrconf_prefix_route in net/ipv6/addrconf.c). The one to an IPv6 peer
/// is made when duplicate address detection has ended, too late for routes through that: we add it,
/// and the kernel then finds it there.
pub fn prefix_route(route: &Route, a: &Address) -> bool {
    let far = a.peer.filter(IpAddr::is_ipv4).unwrap_or(a.address);
    let subnet = IpNet::new(far, a.prefix).map(|n| n.trunc());
    let default = if a.address.is_ipv4() {
        0
    } else {
        IP6_RT_PRIO_ADDRCONF
    };
    a.flags & IFA_F_NOPREFIXROUTE == 0
        && subnet.is_ok_and(|s| s == route.destination)
        && route.metric.unwrap_or(0) == a.metric.unwrap_or(default)
        && (route.prefsrc == Some(a.address) || a.address.is_ipv6())
}

/// Whether a route follows from an address alone, and comes and goes with it some time after the
/// call.
pub fn derived(route: &Route) -> bool {
    // NetworkManager adds fe80::/64 under the kernel's name as well, with a metric of its own.
    let link_local = match route.destination {
        IpNet::V6(net) => match (net.addr().segments(), net.prefix_len()) {
            ([0xfe80, 0, 0, 0, ..], 64) | ([0xff00, 0, 0, 0, ..], 8) => {
                route.metric == Some(IP6_RT_PRIO_ADDRCONF)
            }
            _ => false,
        },
        IpNet::V4(_) => false,
    };
    route.protocol == KERNEL && (route.table == TABLE_LOCAL || link_local)
}

/// Whether it is the route of a link-local address that the kernel made: that one's metric is the
/// route's.
pub fn of_generated(route: &Route, dev: &Netdev) -> bool {
    let mut local = dev.addresses.iter().filter(|a| is_link_local(a));
    route.protocol == KERNEL
        && local.any(|a| prefix_route(route, a) && (generated(a) || kernel_address(a, dev)))
}

/// The route to fe80::/64 that the kernel made with an address of the link, and another program has
/// deleted: the kernel makes it once. A member of a bridge or a VRF has it elsewhere.
pub fn lost_link_local(dev: &Netdev, routes: &[Route]) -> Option<Route> {
    let subnet: IpNet = "fe80::/64".parse().ok()?;
    let mut local = dev.addresses.iter().filter(|a| is_link_local(a));
    let address = local.find(|a| a.prefix == 64 && a.flags & IFA_F_NOPREFIXROUTE == 0)?;
    let leads_there = |r: &Route| {
        let mut hops = r.hops.iter();
        r.destination == subnet && hops.any(|hop| hop.dev.as_ref() == Some(&dev.name))
    };
    if !dev.up || dev.master.is_some() || routes.iter().any(leads_there) {
        return None;
    }
    let leg = Hop {
        dev: Some(dev.name.clone()),
        ..Hop::default()
    };
    Some(Route {
        destination: subnet,
        source: None,
        table: TABLE_MAIN,
        protocol: KERNEL,
        scope: 0,
        kind: UNICAST,
        tos: 0,
        metric: address.metric.or(Some(IP6_RT_PRIO_ADDRCONF)),
        prefsrc: None,
        hops: vec![leg],
        other: Default::default(),
    })
}

/// RTPROT_RA (include/uapi/linux/rtnetlink.h).
const RTPROT_RA: u8 = 9;

/// Whether the kernel learned this route from a router. It asks routers again when the link goes
/// up. A route that is added by netlink is another one: it lacks RTF_ADDRCONF, so the kernel joins
/// it with its equals (rt6_qualify_for_ecmp() in include/net/ip6_fib.h), and no router renews or
/// withdraws it. A program that listens in the kernel's place turns accept_ra off.
pub fn learned_from_router(route: &Route, dev: &Netdev) -> bool {
    let [only] = route.hops.as_slice() else {
        return false;
    };
    let by_kernel =
        matches!(route.protocol, RTPROT_RA | KERNEL) && route.other.contains_key(&RTA_EXPIRES);
    let six = route.destination.addr().is_ipv6() && only.dev.as_ref() == Some(&dev.name);
    by_kernel && six && hears_routers(dev)
}

pub const DISABLE_IPV6: &str = "ipv6/conf/disable_ipv6";

/// Linux takes no leg of an IPv6 route over such a link (fib6_nh_init() in net/ipv6/route.c).
pub fn lacks_ipv6(dev: &Netdev) -> bool {
    dev.sysctls
        .get(DISABLE_IPV6)
        .is_some_and(|value| value == "1")
}

/// Whether the kernel listens to routers on this NIC: ipv6_accept_ra() in include/net/ipv6.h.
pub fn hears_routers(dev: &Netdev) -> bool {
    let value = |leaf: &str| {
        dev.sysctls
            .get(&format!("ipv6/conf/{leaf}"))
            .map(String::as_str)
    };
    let accepts = value("accept_ra").unwrap_or("1");
    if value("forwarding").is_some_and(|v| v != "0") {
        accepts == "2"
    } else {
        accepts != "0"
    }
}

/// Whether the kernel makes this address by itself when the link goes up. addr_gen_mode says how,
/// or that it makes none: so NetworkManager has it, which then makes the same address. Others that
/// it made once, by another mode, secret or link-layer address, stay until the link goes down, and
/// do not come again by themselves.
pub fn kernel_address(address: &Address, dev: &Netdev) -> bool {
    let IpAddr::V6(v6) = address.address else {
        return false;
    };
    if !is_link_local(address) || addr_gen_mode(dev) == ADDR_GEN_NONE || !dev.up {
        return false;
    }
    if makes_by_mac(dev) {
        let by_mac = dev.mac.as_ref().and_then(|m| eui64(&m.0));
        return by_mac.map_or(address.protocol == Some(IFAPROT_KERNEL_LL), |id| {
            id == v6.octets()[8..]
        });
    }
    // By a secret: of several, the last one made, which is listed first.
    let mut local = dev.addresses.iter().filter(|a| is_link_local(a));
    let by_secret = local.find(|a| a.flags & IFA_F_STABLE_PRIVACY != 0);
    by_secret.is_some_and(|a| a.address == address.address)
}

fn addr_gen_mode(dev: &Netdev) -> &str {
    dev.sysctls
        .get("ipv6/conf/addr_gen_mode")
        .map_or(ADDR_GEN_EUI64, String::as_str)
}

/// Whether the kernel makes IPv6 addresses of this NIC from its link-layer address.
pub fn makes_by_mac(dev: &Netdev) -> bool {
    addr_gen_mode(dev) == ADDR_GEN_EUI64
}

/// Whether it makes them by a secret of the namespace, or by one that it chose itself.
pub fn makes_by_secret(dev: &Netdev) -> bool {
    ![ADDR_GEN_EUI64, ADDR_GEN_NONE].contains(&addr_gen_mode(dev))
}

/// Whether the kernel made this link-local address, whatever it would make now.
pub fn generated(address: &Address) -> bool {
    let by_kernel =
        address.protocol == Some(IFAPROT_KERNEL_LL) || address.flags & IFA_F_STABLE_PRIVACY != 0;
    by_kernel && is_link_local(address)
}

/// Whether a manager made this link-local address in the kernel's place, as NetworkManager does. It
/// takes another one when this one goes for a moment (nm-l3-ipv6ll.c of 1.42).
pub fn chosen_by_manager(address: &Address, dev: &Netdev) -> bool {
    let is_subnet_free = address.flags & IFA_F_NOPREFIXROUTE != 0;
    let is_made = matches!(address.address, IpAddr::V6(v6) if is_made(v6));
    is_made && is_link_local(address) && is_subnet_free && addr_gen_mode(dev) == ADDR_GEN_NONE
}

/// Whether a program may have made the interface identifier: of a link-layer address it has ff:fe
/// in its middle (RFC 4291, appendix A), and else it is random (RFC 7217). People write `::99`.
pub fn is_made(address: Ipv6Addr) -> bool {
    address.segments()[4..6] != [0, 0]
}

fn is_link_local(address: &Address) -> bool {
    matches!(address.address, IpAddr::V6(v6) if (v6.segments()[0] & 0xffc0) == 0xfe80)
}

/// The modified EUI-64 interface identifier of an Ethernet address (RFC 4291, appendix A).
fn eui64(mac: &[u8]) -> Option<Vec<u8>> {
    let &[a, b, c, d, e, f] = mac else {
        return None;
    };
    Some(vec![a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(prefix: u8, flags: u32) -> Netdev {
        let address = serde_json::json!({"address": "fe80::1", "prefix": prefix, "scope": 253,
            "flags": flags});
        let link = serde_json::json!({"name": "r0", "ifindex": 2, "up": true,
            "addresses": [address]});
        serde_json::from_value(link).unwrap()
    }

    #[test]
    fn only_the_kernels_route_to_link_local_addresses_is_lost() {
        let dev = link(64, 0);
        let lost = lost_link_local(&dev, &[]).unwrap();
        assert!(kernel_made(&lost, &dev), "{lost:?}");
        assert_eq!(lost_link_local(&dev, std::slice::from_ref(&lost)), None);
        let of_another = lost.with(vec![Hop::default()]);
        assert!(lost_link_local(&dev, &[of_another]).is_some());
        for other in [link(128, 0), link(64, IFA_F_NOPREFIXROUTE)] {
            assert_eq!(lost_link_local(&other, &[]), None);
        }
        let down = Netdev {
            up: false,
            ..link(64, 0)
        };
        let member = Netdev {
            master: Some("br0".parse().unwrap()),
            ..link(64, 0)
        };
        for other in [down, member] {
            assert_eq!(lost_link_local(&other, &[]), None);
        }
    }
}
