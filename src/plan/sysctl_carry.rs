//! Which per-device sysctls a NIC keeps inside: those in which it differs from what the host gives a new NIC, but for what
//! says how the host itself stands in its network.

use rdma_model::snapshot::{Netdev, Snapshot, SysctlValues};

/// Leaves, or how they begin, that stay on the host, each with the reason.
pub const STAY: [(&str, &str); 13] = [
    (
        "arp_announce arp_ignore arp_filter rp_filter",
        "the ARP profile says what they are inside, or that none is written",
    ),
    ("disable_ipv6", "follows from the addresses that come along"),
    ("mtu", "follows from the link's, and makes a write fail that comes before it"),
    ("forwarding mc_forwarding bc_forwarding force_forwarding", "a container routes for itself alone"),
    ("proxy_arp proxy_arp_pvlan proxy_ndp", "it answers for itself alone"),
    (
        "accept_ra* autoconf router_* ra_* use_tempaddr temp_* max_desync_factor regen_*",
        "no router's word counts inside",
    ),
    ("accept_redirects secure_redirects send_redirects shared_media", "nor does a redirect"),
    (
        "accept_source_route bootp_relay route_localnet",
        "they open a namespace to others; its own administrator decides that",
    ),
    ("addr_gen_mode stable_secret", "the mode may want a secret, which stays one"),
    ("seg6_* rpl_seg_enabled ioam6_*", "they make a router of it, too"),
    (
        "base_reachable_time retrans_time unres_qlen",
        "the same values as those in milliseconds and bytes, in coarser units",
    ),
    ("gc_interval gc_thresh*", "of the table, not of a device"),
    ("disable_policy disable_xfrm", "IPsec's policies stay on the host"),
];

pub fn stays(leaf: &str) -> bool {
    STAY.iter().flat_map(|(leaves, _)| leaves.split(' ')).any(|l| match l.strip_suffix('*') {
        Some(start) => leaf.starts_with(start),
        None => leaf == l,
    })
}

pub fn sysctls(dev: &Netdev, host: &Snapshot) -> SysctlValues {
    // Most are as usual, and need no look at the list above.
    let carried = |(key, value): &(&String, &String)| {
        let Some((folder, leaf)) = key.rsplit_once('/') else { return false };
        host.sysctls.get(&format!("{folder}/default/{leaf}")).is_some_and(|usual| usual != *value) && !stays(leaf)
    };
    dev.sysctls.iter().filter(carried).map(|(key, value)| (key.clone(), value.clone())).collect()
}
