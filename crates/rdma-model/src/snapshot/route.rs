//! Routes, nexthop objects and policy rules.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::ids::{Hex, IfName};

/// A route (RTM_NEWROUTE) of any table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Route {
    /// RTA_DST; a default route is `0.0.0.0/0` or `::/0`.
    pub destination: IpNet,
    /// RTA_SRC (IPv6 subtrees).
    pub source: Option<IpNet>,
    /// 254 is main, 255 local.
    pub table: u32,
    /// RTPROT_*: 2 kernel, 3 boot, 4 static, 16 DHCP.
    #[serde(default)]
    pub protocol: u8,
    #[serde(default)]
    pub scope: u8,
    /// RTN_*: 1 unicast, 2 local, 3 broadcast.
    #[serde(default)]
    pub kind: u8,
    #[serde(default)]
    pub tos: u8,
    pub metric: Option<u32>,
    pub prefsrc: Option<IpAddr>,
    /// Where it leads: one leg, or several of a multipath route; none for blackhole and the like.
    #[serde(default)]
    pub hops: Vec<Hop>,
    /// Attributes that we carry without interpreting them, by RTA_* number; [`RTA_NH_ID`] and
    /// [`RTA_EXPIRES`], too.
    #[serde(default)]
    pub other: BTreeMap<u16, Hex>,
}

impl Route {
    /// The route with just these of its legs. One that remains alone has no weight, and what it had
    /// besides is the route's.
    pub fn with(&self, mut hops: Vec<Hop>) -> Route {
        let mut other = self.other.clone();
        if let [only] = hops.as_mut_slice() {
            only.weight = 0;
            other.append(&mut only.other);
        }
        Route {
            hops,
            other,
            ..self.clone()
        }
    }

    /// Each leg as a route of its own. One with a weight keeps it, which the kernel takes of one of
    /// several alone.
    pub fn legs(&self) -> Vec<Route> {
        let one = |leg: &Hop| match leg.weight {
            0 => self.with(vec![leg.clone()]),
            _ => Route {
                hops: vec![leg.clone()],
                ..self.clone()
            },
        };
        self.hops.iter().map(one).collect()
    }

    /// Whether it is what remains of another one whose other legs have gone.
    pub fn is_part_of(&self, whole: &Route) -> bool {
        self.is_same_but_for_legs(whole)
            && self.hops.len() < whole.hops.len()
            && self.hops.iter().all(|leg| whole.has_leg(leg))
    }

    pub fn devs(&self) -> impl Iterator<Item = &IfName> {
        self.hops.iter().filter_map(|hop| hop.dev.as_ref())
    }

    pub fn has_leg(&self, leg: &Hop) -> bool {
        self.hops.iter().any(|hop| hop.is_same_leg(leg))
    }

    /// Of IPv6, legs that several protocols gave are those of one route (fib6_add_rt2node() in
    /// net/ipv6/ip6_fib.c), of which the kernel names the first one's.
    pub fn is_same_but_for_legs(&self, other: &Route) -> bool {
        (self.destination, self.source, self.tos) == (other.destination, other.source, other.tos)
            && (self.table, self.metric) == (other.table, other.metric)
            && self.nexthop() == other.nexthop()
            && (self.is_ipv6() || self.protocol == other.protocol)
    }

    pub fn is_ipv6(&self) -> bool {
        self.destination.addr().is_ipv6()
    }

    pub fn nexthop(&self) -> Option<u32> {
        let Hex(id) = self.other.get(&RTA_NH_ID)?;
        Some(u32::from_ne_bytes(id.as_slice().try_into().ok()?))
    }
}

/// The nexthop object that a route goes through; the kernel reports its legs besides.
pub const RTA_NH_ID: u16 = 30;
/// The seconds left of a route that ends.
pub const RTA_EXPIRES: u16 = 23;

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Hop {
    pub dev: Option<IfName>,
    pub gateway: Option<IpAddr>,
    /// RTNH_F_* that a user can set (onlink, pervasive).
    #[serde(default)]
    pub flags: u8,
    /// rtnh_hops: the weight less one.
    #[serde(default)]
    pub weight: u8,
    /// What one of several legs has besides (encapsulation, realms), by RTA_* number; a single leg
    /// has it in the route's.
    #[serde(default)]
    pub other: BTreeMap<u16, Hex>,
}

impl Hop {
    /// Whether both lead to one place.
    pub fn is_same_leg(&self, other: &Hop) -> bool {
        (&self.dev, self.gateway) == (&other.dev, other.gateway)
    }
}

/// A nexthop object (RTM_NEWNEXTHOP): one leg that routes name by its number, or a group of such.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Nexthop {
    pub id: u32,
    /// 4 or 6; 0 of a group.
    #[serde(default)]
    pub family: u8,
    #[serde(default)]
    pub protocol: u8,
    /// RTNH_F_* that a user can set (onlink).
    #[serde(default)]
    pub flags: u32,
    pub dev: Option<IfName>,
    pub gateway: Option<IpAddr>,
    #[serde(default)]
    pub blackhole: bool,
    #[serde(default)]
    pub group: Vec<Member>,
    /// Attributes that we carry without interpreting them, by NHA_* number.
    #[serde(default)]
    pub other: BTreeMap<u16, Hex>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Member {
    pub id: u32,
    /// Its share, from 1.
    pub weight: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rule {
    /// 4 or 6.
    pub family: u8,
    pub priority: u32,
    /// `from`; absent: all.
    pub source: Option<IpNet>,
    pub destination: Option<IpNet>,
    pub iif: Option<String>,
    pub oif: Option<String>,
    pub table: u32,
    /// FR_ACT_*: 1 to table.
    pub action: u8,
    #[serde(default)]
    pub tos: u8,
    /// FIB_RULE_* flags that a user can set (invert).
    #[serde(default)]
    pub flags: u32,
    /// Attributes that we carry without interpreting them, by FRA_* number.
    #[serde(default)]
    pub other: BTreeMap<u16, Hex>,
}

/// default, main and local: every namespace has these, with rules of its own.
pub const KERNEL_TABLES: std::ops::RangeInclusive<u32> = 253..=255;

/// RT_TABLE_MAIN and RT_TABLE_LOCAL.
pub const TABLE_MAIN: u32 = 254;
pub const TABLE_LOCAL: u32 = 255;

/// RTN_UNICAST (include/uapi/linux/rtnetlink.h): over such a route packets can leave.
pub const UNICAST: u8 = 1;

/// MTU, initial windows and the like of a route.
pub const RTA_METRICS: u16 = 8;
/// What a router says of a route: whether another one is to be preferred.
pub const RTA_PREF: u16 = 20;

/// FR_ACT_TO_TBL and FR_ACT_GOTO (include/uapi/linux/fib_rules.h).
pub const TO_TABLE: u8 = 1;
pub const GOTO: u8 = 2;

/// FIB_RULE_INVERT: the rule is for what its selectors do not fit.
pub const INVERT: u32 = 0x02;

/// Attributes of a rule.
pub const FRA_GOTO: u16 = 4;
pub const FRA_FWMARK: u16 = 10;
pub const FRA_SUPPRESS_IFGROUP: u16 = 13;
pub const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
pub const FRA_FWMASK: u16 = 16;
pub const FRA_L3MDEV: u16 = 19;
pub const FRA_UID_RANGE: u16 = 20;
pub const FRA_PROTOCOL: u16 = 21;
pub const FRA_IP_PROTO: u16 = 22;
pub const FRA_SPORT_RANGE: u16 = 23;
pub const FRA_DPORT_RANGE: u16 = 24;
pub const FRA_DSCP: u16 = 25;
pub const FRA_SPORT_MASK: u16 = 28;
pub const FRA_DPORT_MASK: u16 = 29;
pub const FRA_DSCP_MASK: u16 = 30;

impl Rule {
    /// RTPROT_*, as a route's; 0 where it has none.
    pub fn protocol(&self) -> u8 {
        self.other
            .get(&FRA_PROTOCOL)
            .and_then(|Hex(bytes)| bytes.first().copied())
            .unwrap_or(0)
    }

    /// RTPROT_KERNEL.
    pub fn is_of_kernel(&self) -> bool {
        self.protocol() == 2
    }

    /// RTPROT_STATIC, which networkd and NetworkManager give to their own.
    pub fn is_static(&self) -> bool {
        self.protocol() == 4
    }

    /// Whether it leads to a table of its own, apart from the kernel's.
    pub fn leads_to_own_table(&self) -> bool {
        self.action == TO_TABLE && self.table > 0 && !KERNEL_TABLES.contains(&self.table)
    }
}
