//! What makes two NICs of two nodes the same rail, and which rails all nodes have.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use rdma_model::ids::{HcaName, IfName};
use rdma_model::values::Family;
use rdma_model::verdict::DropCode;
use serde::{Deserialize, Serialize};

use super::Offer;

/// What makes two NICs the same rail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Match {
    /// The interface's name.
    #[default]
    Name,
    /// The subnet of its first address. Networks of /31 per link, or a VLAN per rail and node, have none in common.
    Subnet,
    /// Its place among the node's RDMA NICs in PCI order, kept or not. A slot that is dead shifts what comes after it.
    Index,
    /// What the operator calls it.
    Label,
}

impl FromStr for Match {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        Ok(match s {
            "name" => Match::Name,
            "subnet" => Match::Subnet,
            "index" => Match::Index,
            "label" => Match::Label,
            _ => bail!("{s:?} is none of name, subnet, index, label"),
        })
    }
}

/// What has to be the same on all nodes for their rails to be comparable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// What makes two NICs the same rail.
    #[serde(rename = "match")]
    pub by: Match,
    /// Which addresses count.
    pub family: Family,
    /// Whether it is only tried: a node that stores nothing must not make the others store.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry: bool,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.by {
            Match::Name => "name",
            Match::Subnet => "subnet",
            Match::Index => "index",
            Match::Label => "label",
        };
        let family = match self.family {
            Family::V4 => "4",
            Family::V6 => "6",
            Family::Any => "any",
        };
        write!(f, "--match {by} --family {family}{}", if self.dry { " --dry-run" } else { "" })
    }
}

/// What all nodes call a rail: 1 to 64 bytes without white space or control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RailKey(String);

impl RailKey {
    /// As it is compared.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RailKey {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        let good = (1..=64).contains(&s.len()) && !s.contains(|c: char| c.is_whitespace() || c.is_control());
        ensure!(good, "{s:?} is no rail's name (1 to 64 bytes without white space)");
        Ok(RailKey(s.to_owned()))
    }
}

impl TryFrom<String> for RailKey {
    type Error = anyhow::Error;
    fn try_from(s: String) -> Result<Self> {
        s.parse()
    }
}

impl From<RailKey> for String {
    fn from(key: RailKey) -> String {
        key.0
    }
}

impl fmt::Display for RailKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What a node has on a rail.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Device {
    /// An interface, written as its name.
    Netdev(IfName),
    /// An InfiniBand HCA without one (`--ib`).
    Bare(Bare),
}

/// An HCA by name, written as an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bare {
    /// Its name.
    pub hca: HcaName,
}

impl Device {
    /// Its name.
    pub fn as_str(&self) -> &str {
        match self {
            Device::Netdev(name) => name.as_str(),
            Device::Bare(bare) => bare.hca.as_str(),
        }
    }
}

impl FromStr for Device {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        s.parse().map(Device::Netdev)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A rail, and what a node has on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rail(pub RailKey, pub Device);

/// A rail, or what may be one, that a node cannot offer, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lack(pub RailKey, pub DropCode);

/// What all nodes have, and what they have not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Common {
    /// In rank 0's order.
    pub rails: Vec<RailKey>,
    /// What some have and others lack: a line each, `rdma3: missing on node-17: no IPv4 address`.
    pub lost: Vec<String>,
}

/// How many of the nodes that lack a rail are named.
const NAMED: usize = 8;

/// The rails that are in every offer, in the order of the first one.
pub fn common(offers: &[Offer]) -> Common {
    let mut count: HashMap<&RailKey, usize> = HashMap::new();
    offers.iter().flat_map(|o| &o.rails).for_each(|Rail(key, _)| *count.entry(key).or_default() += 1);
    let all = |key: &RailKey| count.get(key) == Some(&offers.len());
    let first = offers.first().map(|o| o.rails.as_slice()).unwrap_or_default();
    let rails = first.iter().map(|Rail(key, _)| key).filter(|key| all(key)).cloned().collect();
    // In the order in which one meets them; what strangers make up has an end.
    let mut told: HashSet<&RailKey> = HashSet::new();
    let lost = offers.iter().flat_map(|o| &o.rails).map(|Rail(key, _)| key);
    let lost = lost.filter(|key| !all(key) && told.insert(key)).take(super::MAX_RAILS);
    Common { rails, lost: lost.map(|key| lacking(key, offers, count.get(key).copied().unwrap_or(0))).collect() }
}

/// Who lacks a rail, and why.
fn lacking(key: &RailKey, offers: &[Offer], have: usize) -> String {
    let without = offers.iter().filter(|o| o.device(key).is_none());
    let mut said: Vec<String> = without.take(NAMED).map(|o| format!("{}: {}", o.host, o.lack(key))).collect();
    let more = offers.len() - have - said.len();
    if more > 0 {
        said.push(format!("{more} more nodes"));
    }
    format!("{key}: missing on {}", said.join(", on "))
}
