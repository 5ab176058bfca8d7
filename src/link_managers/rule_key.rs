//! What tells a policy rule from others, in one form for the kernel's and the managers' rules.

use ipnet::IpNet;
use rdma_model::snapshot::{
    FRA_DPORT_RANGE, FRA_FWMARK, FRA_FWMASK, FRA_IP_PROTO, FRA_SPORT_RANGE, FRA_SUPPRESS_PREFIXLEN,
    FRA_UID_RANGE, INVERT, Rule,
};

#[derive(Debug, Default, PartialEq, Eq)]
pub struct RuleKey {
    pub family: u8,
    pub priority: u32,
    pub source: Option<IpNet>,
    pub destination: Option<IpNet>,
    pub iif: Option<String>,
    pub oif: Option<String>,
    pub table: u32,
    pub action: u8,
    pub tos: u8,
    pub inverted: bool,
    pub mark: Mark,
    pub ip_protocol: u8,
    pub source_ports: Option<[u16; 2]>,
    pub destination_ports: Option<[u16; 2]>,
    pub users: Option<[u32; 2]>,
    pub suppressed: Option<u32>,
}

/// A firewall mark and its mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    value: u32,
    mask: u32,
}

impl Mark {
    /// The kernel takes a mark without a mask for one of all bits (fib_nl2rule() in
    /// net/core/fib_rules.c).
    pub fn new(value: u32, mask: u32) -> Mark {
        let all = value != 0 && mask == 0;
        Mark {
            value,
            mask: if all { u32::MAX } else { mask },
        }
    }
}

impl RuleKey {
    pub fn of(rule: &Rule) -> RuleKey {
        let number = |kind: u16| bytes(rule, kind).map(u32::from_ne_bytes);
        RuleKey {
            family: rule.family,
            priority: rule.priority,
            source: rule.source,
            destination: rule.destination,
            iif: rule.iif.clone(),
            oif: rule.oif.clone(),
            table: rule.table,
            action: rule.action,
            tos: rule.tos,
            inverted: rule.flags & INVERT != 0,
            mark: Mark::new(
                number(FRA_FWMARK).unwrap_or(0),
                number(FRA_FWMASK).unwrap_or(0),
            ),
            ip_protocol: bytes::<1>(rule, FRA_IP_PROTO).map_or(0, |[number]| number),
            source_ports: bytes(rule, FRA_SPORT_RANGE).map(ports),
            destination_ports: bytes(rule, FRA_DPORT_RANGE).map(ports),
            users: bytes(rule, FRA_UID_RANGE).map(users),
            // The kernel says -1 of a rule that suppresses nothing.
            suppressed: number(FRA_SUPPRESS_PREFIXLEN).filter(|length| *length != u32::MAX),
        }
    }
}

fn bytes<const N: usize>(rule: &Rule, kind: u16) -> Option<[u8; N]> {
    rule.other.get(&kind)?.0.as_slice().try_into().ok()
}

/// struct fib_rule_port_range.
fn ports([a, b, c, d]: [u8; 4]) -> [u16; 2] {
    [u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d])]
}

/// struct fib_rule_uid_range.
fn users([a, b, c, d, e, f, g, h]: [u8; 8]) -> [u32; 2] {
    [
        u32::from_ne_bytes([a, b, c, d]),
        u32::from_ne_bytes([e, f, g, h]),
    ]
}
