//! The part that touches the machine; `scripts/layers.toml` lists the few modules beside it that
//! do. Everything above goes through two traits: a [`World`] is the host and one container, as far
//! as their network goes; [`Namespaces`] are the machine's, and open Worlds. Only commands name the
//! real ones, [`Kernel`] and [`ThisMachine`]; tests have small ones of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::Result;
use rdma_model::ids::{IfName, Mac};
use rdma_model::snapshot::{HostPaths, JobAddresses, Snapshot};

use rdma_model::step::{NicState, Side, Step};

mod beside;
pub mod clock;
pub mod counters;
pub mod device;
mod host_paths;
pub mod links;
mod live;
pub mod mount;
pub mod namespaces;
pub mod netns;
pub mod probe;
pub mod process;
pub mod random;
pub mod rdma;
mod routes_of;
pub mod sysctl;
pub mod sysfs;
mod this_machine;

pub use live::{Kernel, boot_id};
pub use namespaces::{Namespaces, Pin, Recipient};
pub use routes_of::{Routes, RoutesOf};
pub use this_machine::{RecipientProcess, ThisMachine};

use netns::search::Search;
use sysfs::Survey;

#[derive(Clone, Debug)]
pub struct Scope {
    pub depth: Depth,
    pub routes: Routes,
    pub sysctls: Sysctls,
    pub defaults: Defaults,
    /// Whether RDMA devices, their GIDs and PCI functions are read from sysfs as well; without it
    /// only what netlink reports.
    pub sysfs: bool,
    /// Of which NICs what can be set on the device is read as well, see
    /// [`rdma_model::snapshot::Netdev::device`].
    pub devices: Vec<IfName>,
    /// Whether other network namespaces are searched for links that sit on netdevs of the host, see
    /// [`netns::search`].
    pub elsewhere: bool,
}

/// How much of a namespace is listed. One that is foreign may have any number of routes, which cost
/// a search its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Links with the indexes of `routes`, each by a question of its own, their addresses, and
    /// rules: what else there is in a container costs next to no time.
    Nics,
    /// Without `routes` all of them.
    Links,
    /// With addresses and BPF programs.
    Netdevs,
    /// With neighbours, queueing disciplines, routes, nexthop objects and rules.
    Network,
}

/// Per-device sysctls: a NIC has some 130, most of which netlink reports.
#[derive(Clone, Debug)]
pub enum Sysctls {
    All,
    Of(Vec<IfName>),
    /// Those of each NIC that are named here, as in [`rdma_model::snapshot::Netdev::sysctls`].
    Named(BTreeMap<IfName, Vec<String>>),
}

/// Which sysctls of `default` are read, each from its file: what a new NIC of the namespace gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defaults {
    Unread,
    /// Those by which is decided what a NIC takes into a container, see
    /// [`crate::plan::sysctl_carry`].
    Carried,
    All,
}

impl Sysctls {
    /// Whether any are of a folder `neigh` of `/proc/sys/net`.
    fn concern_neigh(&self) -> bool {
        match self {
            Sysctls::All => true,
            Sysctls::Of(nics) => !nics.is_empty(),
            Sysctls::Named(keys) => keys
                .values()
                .flatten()
                .any(|key| key.split('/').any(|part| part == "neigh")),
        }
    }

    /// Of how many NICs.
    fn count(&self) -> usize {
        match self {
            Sysctls::All => usize::MAX,
            Sysctls::Of(nics) => nics.len(),
            Sysctls::Named(keys) => keys.len(),
        }
    }

    pub fn concern(&self, nic: &IfName) -> bool {
        match self {
            Sysctls::All => true,
            Sysctls::Of(nics) => nics.contains(nic),
            Sysctls::Named(keys) => keys.contains_key(nic),
        }
    }
}

impl Scope {
    /// Links, routes and rules, and of sysctls those of conf/all that combine with a NIC's.
    pub fn network() -> Scope {
        Scope::for_nics(Vec::new())
    }

    /// Less than that: what a search through foreign namespaces takes.
    pub fn only(depth: Depth) -> Scope {
        Scope {
            depth,
            ..Scope::network()
        }
    }

    /// With all sysctls and device settings of these NICs, and the defaults that say which are
    /// taken along.
    pub fn for_nics(nics: Vec<IfName>) -> Scope {
        let defaults = if nics.is_empty() {
            Defaults::Unread
        } else {
            Defaults::Carried
        };
        let (devices, sysctls) = (nics.clone(), Sysctls::Of(nics));
        Scope {
            depth: Depth::Network,
            routes: Routes::All,
            devices,
            sysctls,
            defaults,
            sysfs: false,
            elsewhere: false,
        }
    }

    /// With the sysctls that these states name: what comparing with them takes.
    pub fn against(states: &[NicState]) -> Scope {
        let mut named = BTreeMap::new();
        for netdev in states.iter().map(|state| &state.netdev) {
            let keys = netdev.sysctls.keys().cloned().collect();
            named.insert(netdev.name.clone(), keys);
        }
        Scope {
            sysctls: Sysctls::Named(named),
            ..Scope::network()
        }
    }

    pub fn with(self, routes: Routes) -> Scope {
        Scope { routes, ..self }
    }

    pub fn full() -> Scope {
        Scope {
            sysctls: Sysctls::All,
            defaults: Defaults::All,
            sysfs: true,
            elsewhere: true,
            ..Scope::network()
        }
    }
}

/// What one look at a namespace has found.
pub struct Observed {
    pub snapshot: Snapshot,
    /// Its /sys, where the scope has that.
    pub survey: Option<Survey>,
}

pub trait World {
    fn has_inside(&self) -> bool;
    fn look(&mut self, side: Side, scope: &Scope) -> Result<Observed>;
    fn observe(&mut self, side: Side, scope: &Scope) -> Result<Snapshot> {
        self.look(side, scope).map(|seen| seen.snapshot)
    }
    /// Nothing where the container's namespace has gone.
    fn observe_inside(&mut self, scope: &Scope) -> Result<Option<Snapshot>> {
        let is_there = self.has_inside();
        is_there
            .then(|| self.observe(Side::Inside, scope))
            .transpose()
    }
    /// Asks which links the host uses, now; `host` is a fresh look at it. What could not be asked
    /// is part of the answer.
    fn host_paths(&mut self, host: &Snapshot, job: &JobAddresses) -> HostPaths;
    /// Does one step; steps that wait give up at the deadline.
    fn perform(&mut self, step: &Step, deadline: Instant) -> Result<()>;
    /// Keeps the container's namespace, so that its NICs can be taken out of it when all its
    /// processes have ended.
    fn pin(&mut self, pin: Pin) -> Result<()>;
    /// Links of further namespaces, the container's first, that sit on netdevs of that side with
    /// these indices.
    fn search(&self, side: Side, on: &BTreeSet<u32>) -> Result<Search>;
    /// See [`links::RouteSocket::forwarded`], of links of the host.
    fn forwarded(&self, _on: &BTreeSet<u32>) -> Result<Vec<(u32, Mac)>> {
        Ok(Vec::new())
    }
}
