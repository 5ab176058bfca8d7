//! Rows of a profile against what the kernel has.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use rdma_model::snapshot::{Route, Rule, TO_TABLE};
use rustbus::wire::unmarshal::traits::Variant;

use crate::link_managers::rule_key::{Mark, RuleKey};

/// As the kernel's are written: `fd00::1`, however the profile has it.
pub(super) fn address_of(row: &HashMap<&str, Variant>) -> Option<(String, u32)> {
    let address: IpAddr = row.get("address")?.get::<&str>().ok()?.parse().ok()?;
    Some((address.to_string(), row.get("prefix")?.get().ok()?))
}

pub(super) fn is_route(row: &HashMap<&str, Variant>, route: &Route) -> bool {
    let gateway = route.hops.first().and_then(|hop| hop.gateway);
    text(row, "dest") == Some(route.destination.addr().to_string())
        && count(row, "prefix") == Some(u32::from(route.destination.prefix_len()))
        && (route.hops.len() > 1 || text(row, "next-hop") == gateway.map(|ip| ip.to_string()))
}

/// AF_INET6.
const V6: i32 = 10;

/// The keys are those of nm_ip_routing_rule_to_dbus() in libnm-core's nm-setting-ip-config.c: one
/// that a rule does not go by is absent.
pub(super) fn is_rule(row: &HashMap<&str, Variant>, rule: &Rule) -> bool {
    let family = row
        .get("family")
        .and_then(|family| family.get::<i32>().ok());
    let flag = row.get("invert").and_then(|flag| flag.get::<bool>().ok());
    let suppressed = row.get("suppress-prefixlength");
    let suppressed = suppressed.and_then(|length| length.get::<i32>().ok());
    let own = RuleKey {
        family: family.map_or(rule.family, |family| if family == V6 { 6 } else { 4 }),
        priority: count(row, "priority").unwrap_or(0),
        source: net(row, "from", "from-len"),
        destination: net(row, "to", "to-len"),
        iif: text(row, "iifname"),
        oif: text(row, "oifname"),
        table: count(row, "table").unwrap_or(rule.table),
        action: byte(row, "action").unwrap_or(TO_TABLE),
        tos: byte(row, "tos").unwrap_or(0),
        inverted: flag.unwrap_or(false),
        mark: Mark::new(
            count(row, "fwmark").unwrap_or(0),
            count(row, "fwmask").unwrap_or(0),
        ),
        ip_protocol: byte(row, "ipproto").unwrap_or(0),
        source_ports: ports(row, "sport-start", "sport-end"),
        destination_ports: ports(row, "dport-start", "dport-end"),
        users: count(row, "uid-range-start")
            .zip(count(row, "uid-range-end"))
            .map(Into::into),
        suppressed: suppressed.and_then(|length| u32::try_from(length).ok()),
    };
    own == RuleKey::of(rule)
}

pub(super) fn text(row: &HashMap<&str, Variant>, key: &str) -> Option<String> {
    Some(row.get(key)?.get::<&str>().ok()?.to_owned())
}

pub(super) fn count(row: &HashMap<&str, Variant>, key: &str) -> Option<u32> {
    row.get(key)?.get().ok()
}

fn byte(row: &HashMap<&str, Variant>, key: &str) -> Option<u8> {
    row.get(key)?.get().ok()
}

fn net(row: &HashMap<&str, Variant>, address: &str, length: &str) -> Option<IpNet> {
    let address: IpAddr = row.get(address)?.get::<&str>().ok()?.parse().ok()?;
    let length = byte(row, length).filter(|length| *length > 0)?;
    Some(IpNet::new(address, length).ok()?.trunc())
}

/// The end is absent where it is the start.
fn ports(row: &HashMap<&str, Variant>, start: &str, end: &str) -> Option<[u16; 2]> {
    let first: u16 = row.get(start)?.get().ok()?;
    let last = row.get(end).and_then(|last| last.get().ok());
    Some([first, last.unwrap_or(first)])
}
