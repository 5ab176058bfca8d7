//! Values of options that more than one crate reads.

use crate::escape::is_plain;
use std::net::IpAddr;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::checked_text;

/// Which addresses of a NIC count: `4`, `6` or `any`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Family {
    #[default]
    #[serde(rename = "4")]
    V4,
    /// IPv6 other than link-local.
    #[serde(rename = "6")]
    V6,
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
    pub fn has(self, address: &IpAddr) -> bool {
        match self {
            Family::V4 => address.is_ipv4(),
            Family::V6 => address.is_ipv6(),
            Family::Any => true,
        }
    }

    pub fn noun(self) -> &'static str {
        match self {
            Family::V4 => "IPv4 address",
            Family::V6 => "IPv6 address other than link-local",
            Family::Any => "IPv4 or IPv6 address other than link-local",
        }
    }
}

/// How long a port that is ACTIVE may take to show its GIDs: seconds, 1 to 3600.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct GidTimeout(u32);

impl GidTimeout {
    pub fn get(self) -> u32 {
        self.0
    }
}

impl Default for GidTimeout {
    fn default() -> Self {
        GidTimeout(5)
    }
}

impl TryFrom<u32> for GidTimeout {
    type Error = anyhow::Error;
    fn try_from(seconds: u32) -> Result<Self> {
        ensure!(
            (1..=3600).contains(&seconds),
            "{seconds} is no number of seconds from 1 to 3600"
        );
        Ok(GidTimeout(seconds))
    }
}

impl FromStr for GidTimeout {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        match s.parse::<u32>() {
            Ok(seconds) => seconds.try_into(),
            Err(_) => bail!("{s:?} is no number of seconds from 1 to 3600"),
        }
    }
}

impl From<GidTimeout> for u32 {
    fn from(timeout: GidTimeout) -> u32 {
        timeout.0
    }
}

checked_text! {
    /// A plan's name: 1 to 64 letters, digits, `_`, `.`, `-`, the first no dot: its file is not a
    /// hidden one.
    PlanName(s) {
                ensure!(
            (1..=64).contains(&s.len()) && is_plain(s, b"_.-") && !s.starts_with('.'),
            "{s:?} is no plan name (1 to 64 letters, digits, '_', '.', '-', the first no dot)"
        );
    }
}

impl PlanName {
    /// No stored plan has this name: it says that each start makes a plan.
    pub const AUTO: &str = "auto";

    pub fn is_auto(&self) -> bool {
        self.as_str() == PlanName::AUTO
    }
}
