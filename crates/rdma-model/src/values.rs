//! Values of options that more than one crate reads.

use std::net::IpAddr;
use std::str::FromStr;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// Which addresses of a NIC count: `4`, `6` or `any`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Family {
    /// IPv4.
    #[default]
    #[serde(rename = "4")]
    V4,
    /// IPv6 other than link-local.
    #[serde(rename = "6")]
    V6,
    /// Either.
    #[serde(rename = "any")]
    Any,
}

impl FromStr for Family {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "4" => Ok(Family::V4),
            "6" => Ok(Family::V6),
            "any" => Ok(Family::Any),
            _ => bail!("{s:?} is none of 4, 6, any"),
        }
    }
}

impl Family {
    /// Whether an address is of this family.
    pub fn has(self, address: &IpAddr) -> bool {
        match self {
            Family::V4 => address.is_ipv4(),
            Family::V6 => address.is_ipv6(),
            Family::Any => true,
        }
    }

    /// For sentences: `IPv4 address`.
    pub fn noun(self) -> &'static str {
        match self {
            Family::V4 => "IPv4 address",
            Family::V6 => "IPv6 address other than link-local",
            Family::Any => "IPv4 or IPv6 address other than link-local",
        }
    }
}
