//! Rails, by which name two nodes compare them, and which of them all nodes have.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use rdma_model::checked_text;
use rdma_model::ids::{HcaName, IfName};
use rdma_model::values::Family;
use rdma_model::verdict::DropCode;
use serde::{Deserialize, Serialize};

use super::Offer;

/// What makes two NICs the same rail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Match {
    #[default]
    Name,
    /// The subnet of its first address. Fabrics with a /31 per link, or a VLAN per rail and node,
    /// have no common subnet.
    Subnet,
    /// Its index among the node's RDMA NICs in PCI order, kept or dropped. A NIC that is missing
    /// shifts those after it.
    Index,
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

/// What must be equal on all nodes, as their rails are not comparable otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    #[serde(rename = "match")]
    pub by: Match,
    pub family: Family,
    /// A dry run: a node that will store nothing must not make the others store.
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
        write!(
            f,
            "--match {by} --family {family}{}",
            if self.dry { " --dry-run" } else { "" }
        )
    }
}

checked_text! {
    /// A rail's name on all nodes: 1 to 64 bytes without white space or control characters.
    RailKey(s) {
        let good = (1..=64).contains(&s.len())
            && !s.contains(|c: char| c.is_whitespace() || c.is_control());
        ensure!(good, "{s:?} is no rail's name (1 to 64 bytes without white space)");
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Device {
    Netdev(IfName),
    Bare(BareHca),
}

/// An HCA by name; on the wire an object, which distinguishes it from an interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BareHca {
    pub hca: HcaName,
}

impl Device {
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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rail(pub RailKey, pub Device);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedRail(pub RailKey, pub DropCode);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommonRails {
    /// Rails that all nodes have, in rank 0's order.
    pub rails: Vec<RailKey>,
    /// Rails that some nodes lack, one line each: `rdma3: missing on node-17: no IPv4 address`.
    pub lost: Vec<String>,
}

const NAMED: usize = 8;

/// Intersects all offers; the first one is rank 0's.
pub fn common_rails(offers: &[Offer]) -> CommonRails {
    let mut count: HashMap<&RailKey, usize> = HashMap::new();
    for Rail(key, _) in offers.iter().flat_map(|o| &o.rails) {
        *count.entry(key).or_default() += 1;
    }
    let all = |key: &RailKey| count.get(key) == Some(&offers.len());
    let first = offers
        .first()
        .map(|o| o.rails.as_slice())
        .unwrap_or_default();
    let rails = first
        .iter()
        .map(|Rail(key, _)| key)
        .filter(|key| all(key))
        .cloned()
        .collect();
    // In the order in which the offers have them, and not more than one node may have: the store
    // may hold anything.
    let mut seen: HashSet<&RailKey> = HashSet::new();
    let lost = offers.iter().flat_map(|o| &o.rails).map(|Rail(key, _)| key);
    let lost = lost
        .filter(|key| !all(key) && seen.insert(key))
        .take(super::MAX_RAILS);
    CommonRails {
        rails,
        lost: lost
            .map(|key| lacking(key, offers, count.get(key).copied().unwrap_or(0)))
            .collect(),
    }
}

fn lacking(key: &RailKey, offers: &[Offer], have: usize) -> String {
    let without = offers.iter().filter(|o| o.device(key).is_none());
    let mut said: Vec<String> = without
        .take(NAMED)
        .map(|o| format!("{}: {}", o.host, o.lack(key)))
        .collect();
    let more = offers.len() - have - said.len();
    if more > 0 {
        said.push(format!("{more} more nodes"));
    }
    format!("{key}: missing on {}", said.join(", on "))
}

#[cfg(test)]
mod tests {
    use rdma_model::verdict::DropCode;

    use super::*;
    use crate::Nonce;
    use crate::message::HostName;

    fn offer(rank: u8, rails: &[&str]) -> Offer {
        let host = HostName::sanitized(&format!("node-{rank}"));
        let rails = rails
            .iter()
            .map(|r| Rail(r.parse().unwrap(), r.parse().unwrap()))
            .collect();
        Offer {
            rails,
            ..Offer::new(Nonce::from_bits([rank; 16]), host, 3, Policy::default())
        }
    }

    #[test]
    fn common_rails_keep_rank_0s_order_and_others_have_a_reason() {
        let mut offers = [
            offer(0, &["r2", "r1", "r0"]),
            offer(1, &["r0", "r1", "r2"]),
            offer(2, &["r0", "r2", "r3"]),
        ];
        offers[2]
            .dropped
            .push(DroppedRail("r1".parse().unwrap(), DropCode::PortDown));
        let CommonRails { rails, lost } = common_rails(&offers);
        assert_eq!(
            rails.iter().map(RailKey::as_str).collect::<Vec<_>>(),
            ["r2", "r0"]
        );
        let first = "r3: missing on node-0: no such NIC, on node-1: no such NIC";
        assert_eq!(lost, ["r1: missing on node-2: port down", first]);
        assert_eq!(
            common_rails(&[]),
            CommonRails {
                rails: Vec::new(),
                lost: Vec::new()
            }
        );
    }

    #[test]
    fn devices_and_dropped_rails_have_one_form_on_the_wire() {
        let json = |device: &Device| serde_json::to_string(device).unwrap();
        let bare = Device::Bare(BareHca {
            hca: "mlx5_0".parse().unwrap(),
        });
        assert_eq!(
            (
                json(&"rdma0".parse().unwrap()).as_str(),
                json(&bare).as_str()
            ),
            ("\"rdma0\"", r#"{"hca":"mlx5_0"}"#)
        );
        let mut offer = offer(7, &["r0"]);
        offer
            .dropped
            .push(DroppedRail("r1".parse().unwrap(), DropCode::InfiniBand));
        let text = String::from_utf8(offer.encode().unwrap()).unwrap();
        let nonce = "07070707070707070707070707070707";
        let expected = concat!(
            r#","host":"node-7","nodes":3,"policy":{"match":"name","family":"4"},"#,
            r#""rails":[["r0","r0"]],"lacks":[["r1","infiniband"]]}"#
        );
        assert_eq!(text, format!(r#"{{"v":1,"nonce":"{nonce}"{expected}"#));
    }
}
