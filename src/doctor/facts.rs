//! What a snapshot does not have, and the checks need.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use rdma_model::ids::{BusId, IfName};

use crate::container::userspace::Userspace;
use crate::kernel::probe::access::NodeAccess;
use crate::select::Configuring;
use crate::store::claims::BoundClaim;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    pub kernel: String,
    /// Names below /sys/module, and so those that are built in as far as they show themselves.
    pub modules: Vec<String>,
    /// Whether /sys/class/infiniband_verbs is there, which ib_uverbs makes.
    pub verbs_class: bool,
    /// By the name below /dev/infiniband: every device node that an HCA has, and `rdma_cm`.
    pub nodes: BTreeMap<String, NodeAccess>,
    /// RLIMIT_MEMLOCK (soft) in bytes; absent: unlimited.
    pub memlock: Option<u64>,
    /// Whether RLIMIT_MEMLOCK does not count, by CAP_IPC_LOCK in the first user namespace.
    pub pins_freely: bool,
    /// Whether this process cannot lift it: its hard limit is finite, too, and it has no
    /// CAP_SYS_RESOURCE.
    pub memlock_stays: bool,
    /// What lets NICs reach the memory of GPUs; absent where there is no driver of NVIDIA's.
    pub nvidia: Option<Nvidia>,
    /// Of a host with AMD's GPUs: whether RCCL finds their peer memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amdkfd: Option<bool>,
    /// Whether the host has GDRCopy's `/dev/gdrdrv`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gdrdrv: bool,
    /// ACS Control registers of bridges that have one; null where configuration space could not be
    /// read that far.
    pub acs: BTreeMap<BusId, Option<u16>>,
    /// Programs that configure links here, and which links they leave alone.
    pub managers: Vec<Managing>,
    /// How netdevs keep from losing packets, as far as their drivers tell it by DCB.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lossless: BTreeMap<IfName, Lossless>,
    /// What could not be read, or says nothing of this boot.
    pub unread: Vec<Unread>,
    pub starters: Vec<Starter>,
    /// Whether systemd runs, and our timer, which restores what no stop hook did.
    pub timer: bool,
    /// The container's sandbox, of which this host sees only the outside.
    #[serde(default)]
    pub sandbox: Option<SandboxFacts>,
    /// rdma-core as a container's loader finds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub userspace: Option<Userspace>,
    /// Ids of containers in whose `config.json` a create hook of ours finds no annotation of their
    /// pod.
    #[serde(default)]
    pub without_annotations: Vec<String>,
    /// The engines of this host, as `rdmaprep install` calls them, where none of them knows
    /// rdmaprep; absent where one does.
    #[serde(default)]
    pub unregistered: Option<Vec<String>>,
    /// What became of a container's wish for NICs; absent where none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opted_in: Option<OptedIn>,
    /// Prepared claims of Kubernetes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<BoundClaim>,
}

impl Machine {
    /// Who has still to configure a NIC.
    pub fn at_work(&self, name: &IfName) -> Option<&Configuring> {
        self.managers.iter().find_map(|m| m.at_work.get(name))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxFacts {
    /// Whether it runs with gVisor's RDMA proxy.
    pub proxy: bool,
    /// Why its config.json is unknown; absent where it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptedIn {
    /// A record says that it holds NICs.
    Holds,
    /// They are back on the host, by a stop or a restore.
    Returned,
    /// Its config.json asks for them, and no hook has reported.
    Unheard,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unread {
    /// The host's config file: why, with its path.
    Config(String),
    /// A stored plan: why, with its path.
    Plan(String),
    /// A stored plan of an earlier boot: its name.
    PastPlan(String),
    /// A file that NCCL reads in a container: why, with its path.
    Nccl(String),
    /// The libraries of a container: why.
    Userspace(String),
    /// A file that says whether an engine knows rdmaprep: why, with its path.
    Engines(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lossless {
    /// The priorities that pause (PFC).
    pub priorities: BTreeSet<u8>,
    /// The priority of a packet by its DSCP, where the NIC has such a table.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_dscp: BTreeMap<u8, u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Starter {
    pub name: String,
    pub pid: i32,
    pub unit: Option<String>,
    pub memlock: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nvidia {
    /// Whether nvidia_peermem, or nv_peer_mem before it, is loaded: NCCL looks for its `version`.
    pub peermem: bool,
    /// By which names the kernel shows it among memory_peers, as that of MLNX_OFED does: NCCL
    /// before 2.23.4 looks there alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory_peers: Vec<String>,
    /// Whether these are the open kernel modules, which export dma-buf; absent where
    /// /proc/driver/nvidia/version does not say.
    pub open: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Managing {
    pub manager: crate::link_managers::Manager,
    /// NICs of which the program does not say that it manages them.
    pub spares: Vec<IfName>,
    /// NICs that have their addresses from it: it gives them again to one that is back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub configures: Vec<IfName>,
    /// NICs that it has still to configure.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub at_work: BTreeMap<IfName, Configuring>,
    /// Whether it deletes rules of others when a link appears, and there are any.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deletes_rules: bool,
    /// NICs that it may prefer otherwise when they return.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unordered: Vec<crate::link_managers::Unordered>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// How sentences call it: the container, else the file.
    pub id: String,
    pub nics: Vec<String>,
    /// What is wrong with it; absent: its container lives.
    pub stale: Option<Stale>,
    pub advice: String,
    /// Routing tables in which these NICs have routes: with them away, such a table may be empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<u32>,
    /// Why some did not return whole when that was last tried; what those that are back wait for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_back: Vec<String>,
    /// Those that are on the host, whole or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub here: Vec<String>,
}

/// Why no hook will end a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stale {
    Damaged,
    /// There is none, and its namespace is pinned.
    Unrecorded,
    /// All its containers have died.
    Abandoned,
    /// They have, and a process is left in their namespace.
    Lingering,
    /// A hook began and ended before it was done: its container runs, and NICs may be anywhere on
    /// their way.
    Unfinished,
    /// A hook, or another rdmaprep that changes something, is at work at this moment.
    AtWork,
    /// They are back, and their manager has still to do its part.
    Waiting,
}

/// PCI_EXT_CAP_ID_ACS, and where its Control register is (include/uapi/linux/pci_regs.h).
const ACS: u32 = 0x0d;
const ACS_CONTROL: usize = 6;
/// Where extended capabilities begin; before PCI Express there were none.
const EXTENDED: usize = 0x100;

/// The ACS Control register in a function's configuration space. Nothing where it has none; an
/// inner nothing where less can be read than there is, as without root only 64 bytes are readable.
pub fn acs_control(space: &[u8]) -> Option<Option<u16>> {
    if space.len() < EXTENDED {
        return Some(None);
    }

    let mut at = EXTENDED;
    // Each takes eight bytes at least: a list that turns in a circle ends all the same.
    for _ in 0..(4096 - EXTENDED) / 8 {
        let header = u32::from_le_bytes(space.get(at..at + 4)?.try_into().ok()?);
        if header & 0xffff == ACS {
            let control = space.get(at + ACS_CONTROL..at + ACS_CONTROL + 2)?;
            return Some(Some(u16::from_le_bytes(control.try_into().ok()?)));
        }
        at = (header >> 20) as usize;
        if at < EXTENDED {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acs_is_found_wherever_it_is() {
        let mut space = vec![0; 4096];
        assert_eq!(acs_control(&space), None, "an empty list");
        assert_eq!(acs_control(&space[..256]), None, "no PCI Express");
        assert_eq!(acs_control(&space[..64]), Some(None), "not root");
        let header = |id: u32, next: u32| (id | 1 << 16 | next << 20).to_le_bytes();
        space[0x100..0x104].copy_from_slice(&header(1, 0x148));
        space[0x148..0x14c].copy_from_slice(&header(ACS, 0));
        space[0x14e..0x150].copy_from_slice(&0x001du16.to_le_bytes());
        assert_eq!(acs_control(&space), Some(Some(0x1d)));
        space[0x148..0x14c].copy_from_slice(&header(2, 0x100));
        assert_eq!(acs_control(&space), None, "a circle");
        space[0x148..0x14c].copy_from_slice(&header(2, 0xffc));
        space[0xffc..].copy_from_slice(&header(ACS, 0));
        assert_eq!(acs_control(&space), None, "beyond the end");
    }
}
