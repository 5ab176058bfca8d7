//! Which per-device sysctls a NIC keeps inside: those in which it differs from what the host gives
//! a new NIC, but for what says how the host itself stands in its network. What decides which IPv6
//! addresses the kernel makes is as on the host, whatever the defaults are.

use rdma_model::snapshot::{Netdev, Snapshot, SysctlValues};
use rdma_model::step::{hears_routers, makes_by_mac, makes_by_secret};

use super::rails::effective;

/// Leaves, or how they begin, that stay on the host, each with the reason.
pub const STAY: [(&str, &str); 13] = [
    (
        "arp_announce arp_ignore arp_filter rp_filter",
        "the ARP profile says what they are inside; without one rp_filter is in effect the host's",
    ),
    (
        "disable_ipv6 addr_gen_mode use_tempaddr accept_ra* autoconf router_* ra_*",
        "those of `by_kernel` come along",
    ),
    (
        "mtu",
        "follows from the link's, and makes a write fail that comes before it",
    ),
    (
        "forwarding mc_forwarding bc_forwarding force_forwarding",
        "a container routes for itself alone",
    ),
    (
        "proxy_arp proxy_arp_pvlan proxy_ndp",
        "it answers for itself alone",
    ),
    (
        "temp_* max_desync_factor regen_*",
        "there are no temporary addresses inside",
    ),
    (
        "accept_redirects secure_redirects send_redirects shared_media",
        "nor does a redirect",
    ),
    (
        "accept_source_route bootp_relay route_localnet",
        "they open a namespace to others; its own administrator decides that",
    ),
    ("stable_secret", "it stays one"),
    (
        "seg6_* rpl_seg_enabled ioam6_*",
        "they make a router of it, too",
    ),
    (
        "base_reachable_time retrans_time unres_qlen",
        "the same values as those in milliseconds and bytes, in coarser units",
    ),
    ("gc_interval gc_thresh*", "of the table, not of a device"),
    (
        "disable_policy disable_xfrm",
        "IPsec's policies stay on the host",
    ),
];

pub fn stays(leaf: &str) -> bool {
    STAY.iter()
        .flat_map(|(leaves, _)| leaves.split(' '))
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

/// What the namespace has for it, `all` too, may drop what the host accepts.
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
