//! Which NICs may ever be moved, and what a container may ask for: the host's administrator settles
//! it in the config file, and nothing else widens it. It is checked whenever NICs are chosen, and
//! again by the hook, of the NICs as they are then: a stored plan may be older than the policy.

use std::fmt;

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::BusId;
use rdma_model::snapshot::{Hca, Netdev, Snapshot};
use serde::{Deserialize, Serialize};

use crate::config::network_mode::NetworkMode;
use crate::config::pattern::Pattern;
use rdma_model::upper_lower;

#[derive(Clone, Debug, Default)]
pub struct Policy {
    pub(super) names: Lists,
    pub(super) pci: Lists,
    pub(super) drivers: Lists,
    pub(super) annotations: Option<Vec<Ask>>,
    pub(crate) max_nics: Option<usize>,
    pub(super) host_network: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    /// One has to match; empty: all do.
    pub(super) allow: Vec<Pattern>,
    pub(super) deny: Vec<Pattern>,
}

/// The annotations of ours, below `rdmaprep.io/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    /// Opts in, with the plan of that name.
    Plan,
    /// Only these of the plan's NICs.
    Ifaces,
    /// Without those that match.
    Exclude,
    /// All but the move, on the host's network.
    HostNetwork,
}

#[derive(Clone, Debug, Default)]
pub struct PolicyDevice<'a> {
    name: &'a str,
    pci: Vec<BusId>,
    drivers: Vec<&'a str>,
}

impl Ask {
    pub const ALL: [Ask; 4] = [Ask::Plan, Ask::Ifaces, Ask::Exclude, Ask::HostNetwork];

    pub fn name(self) -> &'static str {
        match self {
            Ask::Plan => "plan",
            Ask::Ifaces => "ifaces",
            Ask::Exclude => "exclude",
            Ask::HostNetwork => "host-network",
        }
    }
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl<'a> PolicyDevice<'a> {
    /// A netdev, an HCA, or both of one NIC, under the name that sentences use. What sits on
    /// another device is of that card, and a bond of those of its members.
    pub fn new(
        name: &'a str,
        netdev: Option<&'a Netdev>,
        hca: Option<&'a Hca>,
        seen: &'a Snapshot,
    ) -> PolicyDevice<'a> {
        let mut device = PolicyDevice {
            name,
            ..PolicyDevice::default()
        };
        if let Some(dev) = netdev {
            device.add(dev, seen);
        }
        if let Some(hca) = hca {
            device.add_hca(hca);
        }
        device
    }

    fn add(&mut self, netdev: &'a Netdev, seen: &'a Snapshot) {
        for dev in upper_lower::down(seen, netdev) {
            let is_bond = dev.kind.as_deref() == Some("bond");
            let members = upper_lower::members(seen, dev).filter(|_| is_bond);
            for dev in std::iter::once(dev).chain(members) {
                self.put(dev.pci, dev.driver.as_deref());
                for hca in &seen.hcas {
                    if hca
                        .ports
                        .iter()
                        .any(|p| p.netdev.as_ref() == Some(&dev.name))
                    {
                        self.add_hca(hca);
                    }
                }
            }
        }
    }

    fn add_hca(&mut self, hca: &'a Hca) {
        self.put(hca.pci, hca.driver.as_deref());
    }

    fn put(&mut self, pci: Option<BusId>, driver: Option<&'a str>) {
        self.pci.extend(pci.filter(|pci| !self.pci.contains(pci)));
        self.drivers
            .extend(driver.filter(|driver| !self.drivers.contains(driver)));
    }
}

impl Policy {
    /// Whether it needs what only /sys shows.
    pub fn asks_for_hardware(&self) -> bool {
        [&self.pci, &self.drivers]
            .iter()
            .any(|lists| !lists.allow.is_empty() || !lists.deny.is_empty())
    }

    pub fn forbids(&self, device: &PolicyDevice) -> Option<String> {
        let pci: Vec<String> = device.pci.iter().map(ToString::to_string).collect();
        let pci: Vec<&str> = pci.iter().map(String::as_str).collect();
        let name = device.name;
        self.names
            .forbid(name, &[name], ["", "allow", "deny"])
            .or_else(|| {
                self.pci
                    .forbid(name, &pci, [", PCI address", "allow_pci", "deny_pci"])
            })
            .or_else(|| {
                self.drivers.forbid(
                    name,
                    &device.drivers,
                    [", driver", "allow_drivers", "deny_drivers"],
                )
            })
    }

    /// Why it forbids a NIC of that name, whatever it is: what can be said without a look at the
    /// machine.
    pub fn forbids_name(&self, name: &str) -> Option<String> {
        self.names.forbid(name, &[name], ["", "allow", "deny"])
    }

    /// [`ErrorClass::Refused`] where containers may not have that network.
    pub fn allows_network(&self, mode: NetworkMode) -> Result<()> {
        if self.host_network || mode.is_own() {
            return Ok(());
        }
        Err(ErrorClass::Refused.error(
            "containers on the host's network get no plan here: `host_network = true` in the \
            host's config file allows it",
        ))
    }

    /// Whether an annotation counts; else [`ErrorClass::Refused`]: a request for less has to fail,
    /// not to get more.
    pub fn hears(&self, ask: Ask, annotation: &str) -> Result<()> {
        if self
            .annotations
            .as_ref()
            .is_none_or(|all| all.contains(&ask))
        {
            return Ok(());
        }
        let text = format!(
            "annotation {annotation:?} is not among `annotations` in the host's config file"
        );
        Err(ErrorClass::Refused.error(text))
    }
}

impl Lists {
    /// `words` are the property's for a sentence, and the keys of both lists in the config file.
    fn forbid(
        &self,
        name: &str,
        values: &[&str],
        [property, allow, deny]: [&str; 3],
    ) -> Option<String> {
        let called = |value: &str| {
            if property.is_empty() {
                name.to_owned()
            } else {
                format!("{name}{property} {value},")
            }
        };
        let denied = values
            .iter()
            .find_map(|v| Some((v, self.deny.iter().find(|p| p.matches(v))?)));
        if let Some((value, pattern)) = denied {
            let (what, pattern) = (called(value), pattern.as_str());
            return Some(format!(
                "{what} matches {pattern:?} of `{deny}` in the host's config file"
            ));
        }
        let mut matching = self
            .allow
            .iter()
            .filter(|p| values.iter().any(|v| p.matches(v)));
        if self.allow.is_empty() || matching.next().is_some() {
            return None;
        }
        let what = match values {
            [] => format!("{name}{property} unknown,"),
            values => called(&values.join(" ")),
        };
        Some(format!(
            "{what} matches nothing of `{allow}` in the host's config file"
        ))
    }
}
