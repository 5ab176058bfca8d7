//! How rails are kept apart: the ARP profile of a moved NIC, and the range of its routing tables.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

/// Tables and priorities, unless the config file's `rail_tables` says otherwise: behind what a
/// container's own rules usually take, before the main table's (32766).
pub const TABLES: TableRange = TableRange {
    first: 29000,
    last: 29255,
};

/// Values of arp_announce, arp_ignore, arp_filter and rp_filter for a moved NIC
/// (Documentation/networking/ip-sysctl.rst).
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
    pub const STRICT: ArpProfile = ArpProfile {
        announce: 2,
        ignore: 1,
        filter: 1,
        rp_filter: 1,
    };
    pub const LOOSE: ArpProfile = ArpProfile {
        announce: 2,
        ignore: 1,
        filter: 0,
        rp_filter: 2,
    };

    /// The values under the names that [`crate::snapshot::Netdev::sysctls`] uses.
    pub fn sysctls(&self) -> [(&'static str, u8); 4] {
        [
            ("ipv4/conf/arp_announce", self.announce),
            ("ipv4/conf/arp_ignore", self.ignore),
            ("ipv4/conf/arp_filter", self.filter),
            ("ipv4/conf/rp_filter", self.rp_filter),
        ]
    }

    pub fn asks_for_routes(&self) -> bool {
        self.filter == 1 || self.rp_filter == 1
    }
}

impl fmt::Display for ArpProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}/{}/{}",
            self.announce, self.ignore, self.filter, self.rp_filter
        )
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum ArpChoice {
    /// Strict; loose where no number is left for a table.
    #[default]
    Auto,
    /// 2/1/1/1, with tables where rails need them.
    Strict,
    /// 2/1/0/2, no tables.
    Loose,
    Off,
    Exact(ArpProfile),
}

impl FromStr for ArpChoice {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        let exact = || {
            let values: Vec<u8> = s
                .split('/')
                .map(str::parse)
                .collect::<Result<_, _>>()
                .ok()?;
            let &[announce, ignore, filter, rp_filter] = values.as_slice() else {
                return None;
            };
            // The values that the kernel documents: 4 to 7 of arp_ignore are reserved.
            let known =
                announce <= 2 && matches!(ignore, 0..=3 | 8) && filter <= 1 && rp_filter <= 2;
            known.then_some(ArpChoice::Exact(ArpProfile {
                announce,
                ignore,
                filter,
                rp_filter,
            }))
        };
        match s {
            "auto" => Ok(ArpChoice::Auto),
            "strict" => Ok(ArpChoice::Strict),
            "loose" => Ok(ArpChoice::Loose),
            "off" => Ok(ArpChoice::Off),
            _ => exact().ok_or_else(|| {
                anyhow::anyhow!(
                    "{s:?} is none of auto, strict, loose, off, nor \
                    arp_announce/arp_ignore/arp_filter/rp_filter as in 2/1/1/1"
                )
            }),
        }
    }
}

impl TryFrom<String> for ArpChoice {
    type Error = anyhow::Error;
    fn try_from(s: String) -> Result<Self> {
        s.parse()
    }
}

/// A range of numbers, `FIRST-LAST`. A rail's number is that of its table and the priority of its
/// rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TableRange {
    first: u32,
    last: u32,
}

impl TableRange {
    pub fn iter(self) -> impl Iterator<Item = u32> {
        self.first..=self.last
    }
}

impl FromStr for TableRange {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        let parsed = s
            .split_once('-')
            .and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
        // RT_TABLE_DEFAULT to RT_TABLE_LOCAL are the kernel's; its rule for the main table has
        // priority 32766.
        let (first, last) = parsed
            .filter(|(a, b)| 256 <= *a && a <= b && *b < 32766)
            .unwrap_or((1, 0));
        ensure!(
            first <= last,
            "{s:?} is no range FIRST-LAST within 256 and 32765"
        );
        Ok(TableRange { first, last })
    }
}

crate::serde_as_text!(TableRange);

impl fmt::Display for TableRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}
