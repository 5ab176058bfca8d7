//! How rails are kept apart: the ARP profile, and a routing table with its rules for each rail where one table for all will
//! not do.
//!
//! arp_filter=1 and rp_filter=1 ask the routing tables which NIC leads back to the sender (arp_filter in net/ipv4/arp.c,
//! `__fib_validate_source` in net/ipv4/fib_frontend.c). Where rails share a subnet the main table names one of them for
//! all, and the others resolve nobody. A rule `from <address>` with a table of the rail's own gives each its own answer,
//! in IPv6 as well, where all would leave by one NIC. The same holds where each has a gateway of its own to one destination;
//! and the default route of a rail, which a container's main table gets from nobody, serves in a table of its own.

mod default;
mod effective;
mod groups;
mod tables;

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;
use rdma_model::snapshot::Snapshot;
use serde::{Deserialize, Serialize};

pub use default::{carry_default, default_told, winners};
pub use effective::{ALL, Overruled, drift, effective, give_back, overrule, overruled, told};
pub use groups::{Group, Why, groups};
use rdma_model::step::NicState;
use tables::tables;

/// Numbers of tables and priorities unless the config file's `rail_tables` says otherwise: behind whatever a container's
/// own rules usually take, before the main table's (32766).
pub const NUMBERS: Numbers = Numbers { first: 29000, last: 29255 };

/// Values of arp_announce, arp_ignore, arp_filter and rp_filter for a moved NIC (Documentation/networking/ip-sysctl.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArpProfile {
    /// 2: always the best local address.
    pub announce: u8,
    /// 1: answer only for addresses of this NIC.
    pub ignore: u8,
    /// 1: answer only if the route back leaves by this NIC.
    pub filter: u8,
    /// 1 strict, 2 loose reverse path.
    pub rp_filter: u8,
}

impl ArpProfile {
    /// 2/1/1/1.
    pub const STRICT: ArpProfile = ArpProfile { announce: 2, ignore: 1, filter: 1, rp_filter: 1 };
    /// 2/1/0/2.
    pub const LOOSE: ArpProfile = ArpProfile { announce: 2, ignore: 1, filter: 0, rp_filter: 2 };

    /// The values under the names that [`Netdev::sysctls`] uses.
    pub fn sysctls(&self) -> [(&'static str, u8); 4] {
        [
            ("ipv4/conf/arp_announce", self.announce),
            ("ipv4/conf/arp_ignore", self.ignore),
            ("ipv4/conf/arp_filter", self.filter),
            ("ipv4/conf/rp_filter", self.rp_filter),
        ]
    }

    /// Whether it asks the routing tables which NIC leads back.
    fn asks_for_routes(&self) -> bool {
        self.filter == 1 || self.rp_filter == 1
    }
}

impl fmt::Display for ArpProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/{}", self.announce, self.ignore, self.filter, self.rp_filter)
    }
}

/// What was asked: `--arp-profile`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Profile {
    /// Strict; loose where no number is left for a table.
    #[default]
    Auto,
    /// 2/1/1/1, with tables where rails need them.
    Strict,
    /// 2/1/0/2, no tables.
    Loose,
    /// Nothing is written, no tables.
    Off,
    /// These values, no tables.
    Exact(ArpProfile),
}

impl FromStr for Profile {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        let exact = || {
            let values: Vec<u8> = s.split('/').map(str::parse).collect::<Result<_, _>>().ok()?;
            let &[announce, ignore, filter, rp_filter] = values.as_slice() else { return None };
            // The values that the kernel documents: 4 to 7 of arp_ignore are reserved.
            let known = announce <= 2 && matches!(ignore, 0..=3 | 8) && filter <= 1 && rp_filter <= 2;
            known.then_some(Profile::Exact(ArpProfile { announce, ignore, filter, rp_filter }))
        };
        match s {
            "auto" => Ok(Profile::Auto),
            "strict" => Ok(Profile::Strict),
            "loose" => Ok(Profile::Loose),
            "off" => Ok(Profile::Off),
            _ => exact().ok_or_else(|| {
                anyhow::anyhow!("{s:?} is none of auto, strict, loose, off, nor arp_announce/arp_ignore/arp_filter/rp_filter as in 2/1/1/1")
            }),
        }
    }
}

impl TryFrom<String> for Profile {
    type Error = anyhow::Error;
    fn try_from(s: String) -> Result<Self> {
        s.parse()
    }
}

/// A range of numbers, `FIRST-LAST`. A rail's number is that of its table and the priority of its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Numbers {
    first: u32,
    last: u32,
}

impl Numbers {
    fn iter(self) -> impl Iterator<Item = u32> {
        self.first..=self.last
    }
}

impl FromStr for Numbers {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        let parsed = s.split_once('-').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
        // RT_TABLE_DEFAULT to RT_TABLE_LOCAL are the kernel's; its rule for the main table has priority 32766.
        let (first, last) = parsed.filter(|(a, b)| 256 <= *a && a <= b && *b < 32766).unwrap_or((1, 0));
        ensure!(first <= last, "{s:?} is no range FIRST-LAST within 256 and 32765");
        Ok(Numbers { first, last })
    }
}

impl TryFrom<String> for Numbers {
    type Error = anyhow::Error;
    fn try_from(s: String) -> Result<Self> {
        s.parse()
    }
}

impl From<Numbers> for String {
    fn from(n: Numbers) -> String {
        n.to_string()
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// What a plan says of its rails besides the profile. Numbers are chosen at create, when it is known which are free.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rails {
    /// Numbers for tables and rules, where rails need them; absent: none are made.
    pub tables: Option<Numbers>,
    /// Whether 2/1/0/2 without tables will do where no number is free.
    pub or_loose: bool,
    /// The profile and its reason, and what each table will hold: a line each.
    pub told: Vec<String>,
}

/// Whether an address is good on its own link alone (fe80::/10).
fn link_local(address: std::net::IpAddr) -> bool {
    matches!(address, std::net::IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// The profile for rails as they are on the host, in rail order.
pub fn decide(wish: Profile, numbers: Numbers, rails: &[NicState]) -> (Option<ArpProfile>, Rails) {
    let groups = groups(rails);
    let (arp, how, wanted) = match wish {
        Profile::Auto | Profile::Strict => (Some(ArpProfile::STRICT), "strict", true),
        Profile::Loose => (Some(ArpProfile::LOOSE), "loose", false),
        Profile::Off => (None, "off", false),
        Profile::Exact(arp) => (Some(arp), "as asked", false),
    };
    let values = arp.map_or("the kernel's own values".to_owned(), |a| a.to_string());
    let made = if wanted && !groups.is_empty() { tables(rails, &Snapshot::default()) } else { Vec::new() };
    let one_wire = groups.iter().any(|g| matches!(g.why, Why::Subnet(_)));
    let what = match (groups.is_empty(), wanted) {
        (true, _) => "no two rails share a subnet or a destination",
        (false, true) if made.is_empty() => "the rails' own rules come along",
        (false, true) => "a routing table and rules for each rail",
        (false, false) if one_wire && arp.is_some_and(|a| a.asks_for_routes()) => {
            "no routing tables: of rails that share a subnet, one can resolve its peers"
        }
        (false, false) => "no routing tables",
    };
    let mut told = vec![format!("ARP profile {values} ({how}): {what}")];
    told.extend(groups.iter().map(ToString::to_string));
    told.extend(made.iter().map(ToString::to_string));
    (arp, Rails { tables: wanted.then_some(numbers), or_loose: wish == Profile::Auto, told })
}

/// What a line of the summary has room for.
const COLUMNS: usize = 100;

/// As many of a list as `room` columns hold; their number where that is none.
fn listed(items: &[impl ToString], room: usize, noun: &str) -> String {
    let words: Vec<String> = items.iter().map(ToString::to_string).collect();
    let text = |shown: usize| match words.len() - shown {
        0 => words.join(", "),
        more => format!("{} and {more} more", words[..shown].join(", ")),
    };
    let fits = (1..=words.len()).rev().map(text).find(|t| t.len() <= room);
    fits.unwrap_or_else(|| format!("{} {noun}", words.len()))
}

/// Gives rails, as they come into the container, their profile and, where [`groups`] finds a reason, their tables and rules.
///
/// # Errors
/// [`ErrorClass::Refused`] where no number is left for a table.
pub fn lay(arp: Option<ArpProfile>, how: &Rails, rails: &mut [NicState], inside: &Snapshot) -> Result<()> {
    let mut arp = arp;
    let numbers = how.tables.filter(|_| !groups(rails).is_empty());
    if let Some(numbers) = numbers {
        let made = tables(rails, inside);
        let free = tables::free(numbers, rails, inside);
        if made.len() <= free.len() {
            made.iter().zip(free).for_each(|(table, number)| table.give(number, rails));
        } else if how.or_loose {
            arp = Some(ArpProfile::LOOSE);
        } else {
            return Err(ErrorClass::Refused.error(format!(
                "{} routing tables are needed, and of {numbers} the container's namespace leaves {}: set `rail_tables` in \
                 the host's config file, or use --arp-profile loose",
                made.len(),
                free.len()
            )));
        }
    }
    for (key, value) in arp.iter().flat_map(ArpProfile::sysctls) {
        rails.iter_mut().for_each(|s| drop(s.netdev.sysctls.insert(key.to_owned(), value.to_string())));
    }
    Ok(())
}
