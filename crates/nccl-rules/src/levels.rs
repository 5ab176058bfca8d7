//! The PCI tree as NCCL sees it: of the functions above a device every second one. A switch is two
//! bridges on the way up, one of its downstream ports and its upstream port: NCCL takes the second
//! and skips the first, and so it skips root ports as well. Where the function above, or the one
//! above that, is none, the processor begins (ncclTopoGetXmlFromSys() in src/graph/xml.cc of NCCL
//! 2.30.7).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use rdma_model::ids::BusId;
use rdma_model::snapshot::{PciFunction, Snapshot};

/// Switches above one another: a PCI domain has 256 buses, and each of its bridges takes one (PCI
/// Express Base Specification, Type 1 header).
const DEEPEST: usize = 128;

pub struct Levels<'s> {
    functions: BTreeMap<BusId, &'s PciFunction>,
}

/// How far two devices are from each other, in NCCL's words (`topoPathTypeStr[]` in
/// src/graph/topo.cc), the nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Distance {
    /// Under one switch.
    Pix,
    /// Through several switches.
    Pxb,
    /// Through the processor.
    Phb,
    /// From one NUMA node to another.
    Sys,
}

impl Distance {
    pub fn name(self) -> &'static str {
        match self {
            Distance::Pix => "PIX",
            Distance::Pxb => "PXB",
            Distance::Phb => "PHB",
            Distance::Sys => "SYS",
        }
    }
}

impl<'s> Levels<'s> {
    pub fn new(snapshot: &'s Snapshot) -> Levels<'s> {
        Levels {
            functions: snapshot.pci.iter().map(|f| (f.address, f)).collect(),
        }
    }

    pub fn function(&self, address: BusId) -> Option<&'s PciFunction> {
        self.functions.get(&address).copied()
    }

    fn bridge(&self, address: BusId) -> Option<BusId> {
        self.function(address)?
            .bridge
            .filter(|bridge| self.functions.contains_key(bridge))
    }

    /// The switches above a device, the nearest first, each by its upstream port; none on a root
    /// port or a root bus.
    pub fn switches(&self, device: BusId) -> Vec<BusId> {
        let mut found = Vec::new();
        let mut at = device;
        while let Some(next) = self.bridge(at).and_then(|port| self.bridge(port)) {
            // A snapshot from a file may lead in a circle, or on and on: then the device's place is
            // unknown.
            if found.len() == DEEPEST || next == device {
                return Vec::new();
            }
            found.push(next);
            at = next;
        }
        found
    }

    /// The NUMA node at which a device's way up ends; −1 where the platform does not say.
    pub fn numa(&self, device: BusId) -> i32 {
        let last = self.switches(device).pop().unwrap_or(device);
        self.function(last).and_then(|f| f.numa).unwrap_or(-1)
    }

    /// The speed of the link to the port above, verbatim, and its lanes: the lesser of what either
    /// end can do. Empty and 0 where neither end says; NCCL takes that for a third-generation link
    /// of 16 lanes.
    pub fn link(&self, device: BusId) -> (String, u32) {
        let own = self.function(device);
        let port = own.and_then(|f| self.function(f.bridge?));
        let speed = |f: &PciFunction| {
            Some((
                gigatransfers(f.max_link_speed.as_ref()?)?,
                f.max_link_speed.clone()?,
            ))
        };
        let ends = [own.and_then(speed), port.and_then(speed)]
            .into_iter()
            .flatten();
        // Of equal ones the device's own.
        let (_, speed) = ends
            .reduce(|a, b| if b.0 < a.0 { b } else { a })
            .unwrap_or_default();
        let width = |f: &PciFunction| f.max_link_width.filter(|w| *w > 0);
        let width = [own.and_then(width), port.and_then(width)]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(0);
        (speed, width)
    }

    /// Where NCCL looks for a NIC: at function 0 of its card, that of its PF for a VF
    /// (`ncclIbGetPciPath()` in src/transport/net_ib/init.cc). A function 0 that is something else,
    /// as a virtual machine may have it, is not its card.
    pub fn card(&self, nic: BusId) -> BusId {
        let physical = self
            .function(nic)
            .and_then(|f| f.physfn)
            .filter(|pf| self.functions.contains_key(pf));
        let first = BusId {
            function: 0,
            ..physical.unwrap_or(nic)
        };
        let other = |f: &PciFunction| f.is_gpu() || f.is_bridge();
        if self.function(first).is_some_and(other) {
            nic
        } else {
            first
        }
    }

    /// The way between two devices: how far it is in kind, and the number of links on it in NCCL's
    /// tree.
    pub fn between(&self, one: BusId, other: BusId) -> (Distance, usize) {
        let (above, beside) = (self.switches(one), self.switches(other));
        let shared = above
            .iter()
            .enumerate()
            .find_map(|(up, s)| Some((up + 1, beside.iter().position(|o| o == s)? + 1)));
        match shared {
            Some((1, 1)) => (Distance::Pix, 2),
            Some((up, down)) => (Distance::Pxb, up + down),
            None if self.numa(one) == self.numa(other) => {
                (Distance::Phb, above.len() + beside.len() + 2)
            }
            None => (Distance::Sys, above.len() + beside.len() + 3),
        }
    }
}

/// The number that a link speed begins with, as `sscanf("%f GT/s")` reads it; none for `Unknown`.
fn gigatransfers(speed: &str) -> Option<f64> {
    let (number, unit) = speed.split_once(' ')?;
    number.parse().ok().filter(|_| unit.starts_with("GT/s"))
}
