//! IFLA_AF_SPEC <-> the sysctls of a link below `/proc/sys/net/ipv4/conf` and
//! `/proc/sys/net/ipv6/conf`. The library has both as structures of what it knows, and drops what a
//! later kernel appends. A value that is not reported, or from which the text of the file does not
//! follow, is nothing here: it is read from its file.

use netlink_packet_core::{DefaultNla, NLA_F_NESTED};

use crate::af_spec::{AF_INET, AF_INET6, IFINFOMSG, IFLA_AF_SPEC, find};
use crate::generic::attribute;
use crate::raw::word;

/// include/uapi/linux/if_link.h.
const IFLA_INET_CONF: u16 = 1;
const IFLA_INET6_CONF: u16 = 2;

/// IPV4_DEVCONF_* (include/uapi/linux/ip.h) from 1 on, by the names of devinet_sysctl
/// (net/ipv4/devinet.c). All are of type int, and reported as they are.
const IPV4: [&str; 33] = [
    "forwarding",
    "mc_forwarding",
    "proxy_arp",
    "accept_redirects",
    "secure_redirects",
    "send_redirects",
    "shared_media",
    "rp_filter",
    "accept_source_route",
    "bootp_relay",
    "log_martians",
    "tag",
    "arp_filter",
    "medium_id",
    "disable_xfrm",
    "disable_policy",
    "force_igmp_version",
    "arp_announce",
    "arp_ignore",
    "promote_secondaries",
    "arp_accept",
    "arp_notify",
    "accept_local",
    "src_valid_mark",
    "proxy_arp_pvlan",
    "route_localnet",
    "igmpv2_unsolicited_report_interval",
    "igmpv3_unsolicited_report_interval",
    "ignore_routes_with_linkdown",
    "drop_unicast_in_l2_multicast",
    "drop_gratuitous_arp",
    "bc_forwarding",
    "arp_evict_nocarrier",
];

/// Those of [`IPV4`] that a link message sets as their files do: devinet_conf_proc() flushes no
/// routes for them. It announces a new rp_filter (RTM_NEWNETCONF), which a link message does not.
const SETTABLE: [&str; 4] = ["arp_announce", "arp_filter", "arp_ignore", "rp_filter"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Signed,
    Unsigned,
    /// Jiffies as seconds in the file, as milliseconds in the message.
    Seconds,
    /// Jiffies as milliseconds in both.
    Millis,
}

use Form::{Millis, Seconds, Signed, Unsigned};

/// DEVCONF_* (include/uapi/linux/ipv6.h) from 0 on, by the names of addrconf_sysctl, as
/// ipv6_store_devconf reports them (both net/ipv6/addrconf.c). Number 36, stable_secret, is never
/// reported.
const IPV6: [(&str, Form); 60] = [
    ("forwarding", Signed),
    ("hop_limit", Signed),
    ("mtu", Signed),
    ("accept_ra", Signed),
    ("accept_redirects", Signed),
    ("autoconf", Signed),
    ("dad_transmits", Signed),
    ("router_solicitations", Signed),
    ("router_solicitation_interval", Seconds),
    ("router_solicitation_delay", Seconds),
    ("use_tempaddr", Signed),
    ("temp_valid_lft", Signed),
    ("temp_prefered_lft", Signed),
    ("regen_max_retry", Signed),
    ("max_desync_factor", Signed),
    ("max_addresses", Signed),
    ("force_mld_version", Signed),
    ("accept_ra_defrtr", Signed),
    ("accept_ra_pinfo", Signed),
    ("accept_ra_rtr_pref", Signed),
    ("router_probe_interval", Seconds),
    ("accept_ra_rt_info_max_plen", Signed),
    ("proxy_ndp", Signed),
    ("optimistic_dad", Signed),
    ("accept_source_route", Signed),
    ("mc_forwarding", Signed),
    ("disable_ipv6", Signed),
    ("accept_dad", Signed),
    ("force_tllao", Signed),
    ("ndisc_notify", Signed),
    ("mldv1_unsolicited_report_interval", Millis),
    ("mldv2_unsolicited_report_interval", Millis),
    ("suppress_frag_ndisc", Signed),
    ("accept_ra_from_local", Signed),
    ("use_optimistic", Signed),
    ("accept_ra_mtu", Signed),
    ("", Signed),
    ("use_oif_addrs_only", Signed),
    ("accept_ra_min_hop_limit", Signed),
    ("ignore_routes_with_linkdown", Signed),
    ("drop_unicast_in_l2_multicast", Signed),
    ("drop_unsolicited_na", Signed),
    ("keep_addr_on_down", Signed),
    ("router_solicitation_max_interval", Seconds),
    ("seg6_enabled", Signed),
    ("seg6_require_hmac", Signed),
    ("enhanced_dad", Signed),
    ("addr_gen_mode", Signed),
    ("disable_policy", Signed),
    ("accept_ra_rt_info_min_plen", Signed),
    ("ndisc_tclass", Signed),
    ("rpl_seg_enabled", Signed),
    ("ra_defrtr_metric", Unsigned),
    ("ioam6_enabled", Signed),
    ("ioam6_id", Signed),
    ("ioam6_id_wide", Unsigned),
    ("ndisc_evict_nocarrier", Signed),
    ("accept_untracked_na", Signed),
    ("accept_ra_min_lft", Signed),
    ("force_forwarding", Signed),
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevConf {
    ipv4: Option<Vec<u32>>,
    ipv6: Option<Vec<u32>>,
}

impl DevConf {
    pub fn of_link(payload: &[u8]) -> DevConf {
        let families = payload
            .get(IFINFOMSG..)
            .and_then(|rest| find(rest, IFLA_AF_SPEC));
        let conf = |family, kind| Some(words(find(find(families?, family)?, kind)?));
        DevConf {
            ipv4: conf(AF_INET, IFLA_INET_CONF),
            ipv6: conf(AF_INET6, IFLA_INET6_CONF),
        }
    }

    /// Whether the link has the folder below `ipv4/conf`: not below an MTU of 68.
    pub fn has_ipv4(&self) -> bool {
        self.ipv4.is_some()
    }

    /// Whether it has the folder below `ipv6/conf`: not below an MTU of 1280.
    pub fn has_ipv6(&self) -> bool {
        self.ipv6.is_some()
    }

    /// What the file of that name below `ipv4/conf` says.
    pub fn ipv4(&self, leaf: &str) -> Option<String> {
        let place = IPV4.iter().position(|name| *name == leaf)?;
        text(*self.ipv4.as_ref()?.get(place)?, Signed)
    }

    pub fn ipv6(&self, leaf: &str) -> Option<String> {
        let place = IPV6.iter().position(|(name, _)| *name == leaf)?;
        let (_, form) = IPV6.get(place)?;
        text(*self.ipv6.as_ref()?.get(place)?, *form)
    }
}

/// A value of a file below `ipv4/conf` for [`setting`]; nothing where that does not do what a write
/// to the file does.
pub fn settable(leaf: &str, value: &str) -> Option<(u16, i32)> {
    let place = IPV4
        .iter()
        .position(|name| *name == leaf && SETTABLE.contains(name))?;
    Some((u16::try_from(place + 1).ok()?, value.parse().ok()?))
}

/// The attribute of a link message that sets these values (inet_set_link_af() in
/// net/ipv4/devinet.c).
pub fn setting(values: &[(u16, i32)]) -> DefaultNla {
    let nested = |kind: u16, value: &[u8]| attribute(kind | NLA_F_NESTED, value);
    let each: Vec<u8> = values
        .iter()
        .flat_map(|(number, value)| attribute(*number, &value.to_ne_bytes()))
        .collect();
    DefaultNla::new(
        IFLA_AF_SPEC | NLA_F_NESTED,
        nested(AF_INET, &nested(IFLA_INET_CONF, &each)),
    )
}

fn words(value: &[u8]) -> Vec<u32> {
    value.chunks_exact(4).filter_map(word).collect()
}

fn text(number: u32, form: Form) -> Option<String> {
    let signed = i32::from_ne_bytes(number.to_ne_bytes());
    match form {
        Signed => Some(signed.to_string()),
        Unsigned => Some(number.to_string()),
        // One that is too long for 32 bits is cut, and then is no whole number of seconds any more.
        Seconds if number % 1000 == 0 => Some((number / 1000).to_string()),
        Seconds => (signed % 1000 == 0).then(|| (signed / 1000).to_string()),
        // What is below zero, or takes 32 bits, is read from the file.
        Millis => (signed >= 0).then(|| number.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::{Attributes, emitted};
    use rdma_model::ids::Hex;

    /// As Linux 6.18 reports them of a veth with defaults, but for `tag` 7, `arp_announce` 2,
    /// `router_solicitation_delay` 3, `mtu` 1400 and a `stable_secret`.
    const CAPTURED: &str = include_str!("devconf/link.hex");

    fn captured() -> Vec<u8> {
        let digits: Vec<char> = CAPTURED.chars().filter(char::is_ascii_hexdigit).collect();
        let byte =
            |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    #[test]
    fn captured_link_has_the_values_of_its_files() {
        let conf = DevConf::of_link(&captured());
        for line in include_str!("devconf/files").lines() {
            let (path, value) = line.split_once(' ').unwrap();
            let (folder, leaf) = path.split_once("/conf/").unwrap();
            let found = if folder == "ipv4" {
                conf.ipv4(leaf)
            } else {
                conf.ipv6(leaf)
            };
            let unreported = [
                "ra_honor_pio_life",
                "ra_honor_pio_pflag",
                "regen_min_advance",
                "stable_secret",
            ];
            let want = Some(value.to_owned()).filter(|_| !unreported.contains(&leaf));
            assert_eq!(found, want, "{path}");
        }
        assert_eq!(
            (conf.ipv4("tag").as_deref(), conf.ipv6("mtu").as_deref()),
            (Some("7"), Some("1400"))
        );
    }

    #[test]
    fn link_without_addresses_has_no_values() {
        let conf = DevConf::of_link(&[0; IFINFOMSG]);
        assert_eq!(conf, DevConf::default());
        assert_eq!(
            (
                conf.has_ipv4(),
                conf.has_ipv6(),
                conf.ipv4("tag"),
                conf.ipv6("mtu")
            ),
            (false, false, None, None)
        );
        assert_eq!(DevConf::of_link(&[1, 2, 3]), conf, "malformed");
        for length in 0..captured().len() {
            DevConf::of_link(&captured()[..length]);
        }
    }

    /// An older kernel reports fewer, a later one more.
    #[test]
    fn short_and_long_arrays_are_read_as_far_as_they_go() {
        let family = |kind, count: u32| {
            let bytes = (0..count).flat_map(|i| i.to_ne_bytes()).collect();
            Hex(emitted(&Attributes::from([(kind, Hex(bytes))])))
        };
        let families = Attributes::from([
            (AF_INET, family(IFLA_INET_CONF, 90)),
            (AF_INET6, family(IFLA_INET6_CONF, 4)),
        ]);
        let rest = emitted(&Attributes::from([(IFLA_AF_SPEC, Hex(emitted(&families)))]));
        let conf = DevConf::of_link(&[vec![0; IFINFOMSG], rest].concat());
        assert_eq!(conf.ipv4("arp_evict_nocarrier").as_deref(), Some("32"));
        assert_eq!(
            (conf.ipv6("accept_ra").as_deref(), conf.ipv6("autoconf")),
            (Some("3"), None)
        );
        assert_eq!(
            (
                conf.ipv6(""),
                conf.ipv6("a_later_one"),
                conf.ipv4("a_later_one")
            ),
            (None, None, None)
        );
    }

    #[test]
    fn numbers_become_text_by_their_form_or_not_at_all() {
        let minus = |n: i32| u32::from_ne_bytes(n.to_ne_bytes());
        for (number, form, want) in [
            (minus(-1), Signed, Some("-1")),
            (minus(-1), Unsigned, Some("4294967295")),
            (4000, Seconds, Some("4")),
            (minus(-5000), Seconds, Some("-5")),
            (4_294_967_000, Seconds, Some("4294967")),
            // 5000000 s, cut to 32 bits.
            (5_000_000_000_u64 as u32, Seconds, None),
            (8, Millis, Some("8")),
            (minus(-8), Millis, None),
        ] {
            assert_eq!(text(number, form).as_deref(), want, "{number} {form:?}");
        }
    }
}
