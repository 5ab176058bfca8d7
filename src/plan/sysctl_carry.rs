//! Which per-device sysctls a NIC keeps inside: those in which it differs from what the host gives
//! a new NIC, but for what says how the host itself stands in its network. What decides which IPv6
//! addresses the kernel makes is as on the host, whatever the defaults are.

use rdma_model::snapshot::{Netdev, Snapshot, SysctlValues};
use rdma_model::step::{hears_routers, makes_by_mac, makes_by_secret};

use super::rails::effective;

/// Leaves, or how they begin, that stay on the host.
const STAY: [&str; 13] = [
    // The ARP profile says what they are inside. Without one, `rp_filter` brings that one.
    "arp_announce arp_ignore arp_filter rp_filter",
    // `by_kernel` brings those of them that come along.
    "disable_ipv6 addr_gen_mode use_tempaddr accept_ra* autoconf router_* ra_*",
    // It follows from the link's, and makes a write fail that comes before it.
    "mtu",
    // A container routes for itself alone.
    "forwarding mc_forwarding bc_forwarding force_forwarding",
    // It answers for itself alone, too.
    "proxy_arp proxy_arp_pvlan proxy_ndp",
    // There are no temporary addresses inside.
    "temp_* max_desync_factor regen_*",
    // Whether it hears redirects or sends them, its own administrator decides.
    "accept_redirects secure_redirects send_redirects shared_media",
    // They open a namespace to others: its own administrator decides that as well.
    "accept_source_route bootp_relay route_localnet",
    // No container shall read the secret of which the host makes addresses.
    "stable_secret",
    // They make a router of it.
    "seg6_* rpl_seg_enabled ioam6_*",
    // The same values as those in milliseconds and bytes, in coarser units.
    "base_reachable_time retrans_time unres_qlen",
    // They are the table's of all neighbours, not a device's.
    "gc_interval gc_thresh*",
    // IPsec's policies stay on the host.
    "disable_policy disable_xfrm",
];

pub fn stays(leaf: &str) -> bool {
    STAY.iter()
        .flat_map(|leaves| leaves.split(' '))
        .any(|l| match l.strip_suffix('*') {
            Some(start) => leaf.starts_with(start),
            None => leaf == l,
        })
}

pub fn sysctls(dev: &Netdev, host: &Snapshot) -> SysctlValues {
    let mut carried = Vec::new();
    for (key, value) in dev.sysctls.iter() {
        let Some((folder, leaf)) = key.rsplit_once('/') else {
            continue;
        };
        let usual = host.sysctls.get(&format!("{folder}/default/{leaf}"));
        // Most are as usual, and need no look at the list above.
        if usual.is_some_and(|usual| usual != value) && !stays(leaf) {
            carried.push((key.clone(), value.clone()));
        }
    }
    carried
        .into_iter()
        .chain(by_kernel(dev))
        .chain(rp_filter(dev, host))
        .collect()
}

/// What is in effect on the host: by the default of its own namespace the container might drop what
/// the host accepts.
fn rp_filter(dev: &Netdev, host: &Snapshot) -> Option<(String, String)> {
    let value = effective(host, &dev.name)?.rp_filter.to_string();
    Some(("ipv4/conf/rp_filter".to_owned(), value))
}

/// What decides which IPv6 addresses and routes the kernel makes. The defaults of the container's
/// namespace may make more than the plan has. By a secret it would make others than on the host:
/// there it makes none, and those of the host come along.
fn by_kernel(dev: &Netdev) -> impl Iterator<Item = (String, String)> + '_ {
    // By a token, too, it makes other addresses of what a router says.
    let hears = hears_routers(dev) && dev.token.is_none() && !makes_by_secret(dev);
    dev.sysctls.iter().filter_map(move |(key, value)| {
        let value = match key.strip_prefix("ipv6/conf/")? {
            "disable_ipv6" => value,
            "addr_gen_mode" if makes_by_mac(dev) => value,
            "addr_gen_mode" => "1",
            "use_tempaddr" => "0",
            "accept_ra" if !hears => "0",
            // Without accept_ra none of these counts (ndisc_router_discovery() in
            // net/ipv6/ndisc.c).
            "autoconf" | "router_solicitations" | "ra_defrtr_metric" if hears => value,
            leaf if hears && leaf.starts_with("accept_ra") => value,
            _ => return None,
        };
        Some((key.clone(), value.to_owned()))
    })
}
