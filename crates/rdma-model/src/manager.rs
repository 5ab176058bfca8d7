//! Programs that configure links, and what they own of a NIC's state.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::ids::Hex;
use crate::snapshot::{Address, Neighbour, Nexthop, Route, Rule};

/// RTPROT_KERNEL, RTPROT_DHCP and RTPROT_RA (include/uapi/linux/rtnetlink.h).
pub const KERNEL: u8 = 2;
const DHCP: u8 = 16;
const RA: u8 = 9;
const STATIC: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Manager {
    NetworkManager,
    Networkd,
    Udev,
}

impl Manager {
    pub fn name(self) -> &'static str {
        match self {
            Manager::NetworkManager => "NetworkManager",
            Manager::Networkd => "systemd-networkd",
            Manager::Udev => "udev",
        }
    }
}

/// The program that configures a NIC, and what of the NIC's state is not that program's. It makes
/// its own again when the NIC is back, with a metric, a priority or a lease that it chooses then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Managed {
    pub by: Manager,
    /// Absent where the program could not be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign: Option<Foreign>,
    #[serde(rename = "profile", default, skip_serializing_if = "Option::is_none")]
    pub config_files: Option<ConfigFiles>,
    /// UUID of NetworkManager's profile: a restore activates it where NetworkManager does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Which of its activations configured the NIC, where it numbers them. One that it names still
    /// when the NIC is back has not noticed that the NIC was away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<String>,
}

/// By which files a program configured a NIC. Where they are others by now, what is missing of its
/// own was taken out of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigFiles {
    /// The main one of them, below the host's root.
    pub file: PathBuf,
    /// SHA-256 of all of them.
    pub digest: Hex,
    /// Whether the NIC has IPv6 by them; else it is off, or left to others.
    #[serde(default)]
    pub has_ipv6: bool,
}

/// What of a NIC's state its manager did not make.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Foreign {
    pub addresses: Vec<Address>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub neighbours: Vec<Neighbour>,
    pub routes: Vec<Route>,
    pub rules: Vec<Rule>,
}

impl Managed {
    /// Else it is not known what it made: `foreign` is absent.
    pub fn was_asked(&self) -> bool {
        self.foreign.is_some()
    }

    /// Adds a route that came to the NIC's state while the NIC was away.
    pub fn add_foreign_route(&mut self, route: &Route) {
        if let Some(foreign) = &mut self.foreign {
            foreign.routes.push(route.clone());
        }
    }

    pub fn owns_address(&self, address: &Address) -> bool {
        match &self.foreign {
            Some(foreign) => !foreign.addresses.contains(address),
            None => address.valid_lft.is_some(),
        }
    }

    pub fn owns_neighbour(&self, neighbour: &Neighbour) -> bool {
        let foreign = self.foreign.as_ref();
        foreign.is_some_and(|foreign| !foreign.neighbours.contains(neighbour))
    }

    pub fn owns_route(&self, route: &Route) -> bool {
        match &self.foreign {
            // The kernel's come and go with an address, and so with its owner. NetworkManager adds
            // those itself.
            Some(foreign) => {
                route.protocol == KERNEL && self.by == Manager::Networkd
                    || !foreign.routes.contains(route)
            }
            None => is_dynamic(route),
        }
    }

    /// Whether its manager may have made it again with another metric. Of one that could not be
    /// asked it is not known what it made.
    pub fn may_choose_route(&self, route: &Route) -> bool {
        !self.was_asked() || self.owns_route(route)
    }

    pub fn may_choose_rule(&self, rule: &Rule) -> bool {
        !self.was_asked() || self.owns_rule(rule)
    }

    /// networkd numbers the objects of learned routes by itself, at each return again.
    pub fn owns_nexthop(&self, nexthop: &Nexthop) -> bool {
        matches!(nexthop.protocol, KERNEL | DHCP | RA)
    }

    /// Whether an object comes from the manager's files; `ip` gives its own RTPROT_BOOT.
    pub fn configures_nexthop(&self, nexthop: &Nexthop) -> bool {
        self.by == Manager::Networkd && self.was_asked() && nexthop.protocol == STATIC
    }

    pub fn owns_rule(&self, rule: &Rule) -> bool {
        self.foreign
            .as_ref()
            .is_some_and(|foreign| !foreign.rules.contains(rule))
    }
}

/// Whether a route follows from an address, a lease or a router's advertisement: the owner of a
/// NIC's addresses owns these.
pub fn is_dynamic(route: &Route) -> bool {
    matches!(route.protocol, KERNEL | DHCP | RA)
}

/// Whether a routing daemon made what has this protocol: `mrt`, `zebra`, `bird`, `dnrouted`,
/// `xorp`, `ntk`, `mrouted`, `keepalived`, `babel`, `openr`, `bgp`, `isis`, `ospf`, `rip` and
/// `eigrp` of include/uapi/linux/rtnetlink.h, OVN (84), and FRR's own, its static routes among them
/// (tools/etc/iproute2/rt_protos.d/frr.conf). A daemon learns its routes again when the link is
/// back, and withdraws only those that it knows.
pub fn is_daemon(protocol: u8) -> bool {
    matches!(protocol, 10..=15 | 17 | 18 | 42 | 84 | 99 | 186..=198)
}
