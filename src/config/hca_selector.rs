//! How a list names RDMA devices: by name, PCI address, subnet or rate.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use ipnet::IpNet;
use rdma_model::ids::{BusId, HcaName};
use rdma_model::snapshot::Hca;
use serde::Deserialize;

/// One entry of `--hca` or `--exclude-hca`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub enum HcaSelector {
    All,
    Name(HcaName),
    /// The function that it is on.
    Pci(BusId),
    /// A GID of any port is in it. Of InfiniBand the first half is the subnet's prefix, which the
    /// subnet manager gives.
    Subnet(IpNet),
    /// That of any port, in Gb/s.
    Rate(f64),
}

impl HcaSelector {
    pub fn fits(&self, hca: &Hca) -> bool {
        let mut ports = hca.ports.iter();
        match self {
            HcaSelector::All => true,
            HcaSelector::Name(name) => hca.name == *name,
            HcaSelector::Pci(pci) => hca.pci == Some(*pci),
            HcaSelector::Subnet(net) => ports.any(|p| p.gids.iter().any(|g| net.contains(&g.ip()))),
            HcaSelector::Rate(rate) => ports.any(|p| p.gigabits() == Some(*rate)),
        }
    }

    /// Whether it selects an HCA that may be away, so that only its name is known; `None` where the
    /// name does not decide.
    pub fn fits_name(&self, name: &HcaName, seen: Option<&Hca>) -> Option<bool> {
        match (self, seen) {
            (_, Some(hca)) => Some(self.fits(hca)),
            (HcaSelector::All, None) => Some(true),
            (HcaSelector::Name(known), None) => Some(known == name),
            (_, None) => None,
        }
    }
}

impl FromStr for HcaSelector {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<HcaSelector> {
        let rate = text.strip_suffix('G').map(str::parse::<f64>);
        Ok(match text {
            "all" => HcaSelector::All,
            _ if text.contains('/') => match text.parse::<IpNet>() {
                Ok(net) => HcaSelector::Subnet(net.trunc()),
                Err(_) => bail!("{text:?} is no subnet, as fe80:0:0:1::/64"),
            },
            // As lspci prints it, without the domain.
            _ if text.contains(':') => match text.parse().or(format!("0000:{text}").parse()) {
                Ok(pci) => HcaSelector::Pci(pci),
                Err(_) => {
                    if let Some(name) = before_port(text) {
                        bail!(
                            "{text:?} names a port: write {name}, which takes each port of it \
                            that can be used"
                        );
                    }
                    bail!(
                        "{text:?} is no PCI address (0000:17:00.0), and no subnet with its length \
                        (fe80:0:0:1::/64)"
                    )
                }
            },
            _ => match rate {
                Some(Ok(rate)) if rate.is_finite() && rate > 0.0 => HcaSelector::Rate(rate),
                _ => HcaSelector::Name(text.parse()?),
            },
        })
    }
}

/// The HCA's name, where an entry has a port behind it, as in NCCL's list. What has but hexadecimal
/// digits was to be a PCI address.
fn before_port(text: &str) -> Option<HcaName> {
    let (name, port) = text.split_once(':')?;
    let is_name = name.contains(|c: char| !c.is_ascii_hexdigit());
    let is_port = port.parse::<u32>().is_ok();
    name.parse().ok().filter(|_| is_name && is_port)
}

impl TryFrom<String> for HcaSelector {
    type Error = anyhow::Error;
    fn try_from(text: String) -> Result<HcaSelector> {
        text.parse()
    }
}

impl fmt::Display for HcaSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HcaSelector::All => f.pad("all"),
            HcaSelector::Name(name) => name.fmt(f),
            HcaSelector::Pci(pci) => pci.fmt(f),
            HcaSelector::Subnet(net) => net.fmt(f),
            HcaSelector::Rate(rate) => write!(f, "{rate}G"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn entry_is_read_by_its_form() {
        let pairs = [
            ("mlx5_0", "mlx5_0"),
            ("all", "all"),
            ("0000:17:00.0", "0000:17:00.0"),
            ("17:00.0", "0000:17:00.0"),
            ("fe80:0:0:1::/64", "fe80:0:0:1::/64"),
            ("10.0.0.9/8", "10.0.0.0/8"),
            ("400G", "400G"),
            ("2.5G", "2.5G"),
            ("rocep1s0f0G", "rocep1s0f0G"),
        ];
        for (text, shown) in pairs {
            let selector: HcaSelector = text.parse().unwrap();
            assert_eq!(selector.to_string(), shown);
            assert_eq!(shown.parse::<HcaSelector>().unwrap(), selector, "{shown}");
        }
        for bad in ["fe80::1", "17:00", "x/64", "a b", "mlx5_0:1", "mlx*", ""] {
            assert!(bad.parse::<HcaSelector>().is_err(), "{bad}");
        }
        let why = |text: &str| text.parse::<HcaSelector>().unwrap_err().to_string();
        assert!(why("mlx5_0:1").contains("names a port: write mlx5_0,"));
        assert!(why("17:00").contains("is no PCI address"));
    }

    #[test]
    fn entry_fits_what_it_describes() {
        let port = json!({"number": 1, "rate": "200 Gb/sec (4X \
            HDR)", "gids": [{"index": 0, "address": "fe80:0:0:2::7"}]});
        let hca = json!({"name": "mlx5_1", "pci": "0000:17:00.0", "ports": [port]});
        let hca: Hca = serde_json::from_value(hca).unwrap();
        for (text, fits) in [
            ("mlx5_1", true),
            ("mlx5_10", false),
            ("17:00.0", true),
            ("17:00.1", false),
            ("fe80:0:0:2::/64", true),
            ("fe80::/64", false),
            ("fe80::/10", true),
            ("200G", true),
            ("20G", false),
            ("all", true),
        ] {
            assert_eq!(
                text.parse::<HcaSelector>().unwrap().fits(&hca),
                fits,
                "{text}"
            );
        }
    }
}
