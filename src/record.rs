//! The write-ahead record: everything that restoring NICs takes, written before the first of them
//! moves; one per container namespace. It is replaced as a whole, so it is valid at every instant.
//! Another schema is refused by name rather than guessed at: a field without which an older program
//! would restore otherwise makes a new one.

mod salvage;

use rdma_model::host_objects::HostObjects;
use rdma_model::moved_nic::MovedNic;
use rdma_model::nic::is_same_netdev;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, ensure};
use rdma_model::escape::shell_word;
use rdma_model::ids::IfName;
use rdma_model::snapshot::{Nexthop, Route, Rule, Snapshot};
use serde::{Deserialize, Serialize};

use crate::handle::Handle;
use crate::plan::Plan;
use crate::precedence::Precedence;

pub use salvage::{PartialRecord, salvage};

pub const SCHEMA: u32 = 2;

/// The kernel numbers namespaces by 32 bits (`ns_common.inum` in include/linux/ns_common.h).
const LAST_NETNS: u64 = u32::MAX as u64;

const PROGRAM: &str = env!("CARGO_PKG_VERSION");

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// NICs may be anywhere between the host and the container.
    #[default]
    Attaching,
    Attached,
    /// NICs may be anywhere on their way to the host.
    Restoring,
    /// All NICs are on the host, and wait for what their managers have still to do. In JSON this
    /// and [`Record::waits_for`] keep their first names: records outlive an upgrade.
    #[serde(rename = "awaiting")]
    Waiting,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub id: String,
    pub bundle: String,
    pub pid: i32,
    /// Field 22 of /proc/PID/stat: distinguishes init from a later process with its pid.
    pub start_time: u64,
    /// Whether its runtime is runsc, of which `delete` alone calls the stop hooks, and not `kill`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sandboxed: bool,
    /// Set where a CNI runtime keeps the namespace. The process is that of the plugin then, which
    /// ends with ADD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cni: Option<Attachment>,
}

/// Whether podman, CRI-O, Docker or containerd's CRI made that id.
pub fn is_of_engine(id: &str) -> bool {
    id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit())
}

/// An id as `podman ps` and `docker ps` show it. Commands take it for the whole one.
pub fn short_id(id: &str) -> &str {
    id.get(..12).filter(|_| is_of_engine(id)).unwrap_or(id)
}

/// A container's id, a network and the name of an interface identify what CNI calls an attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    pub network: String,
    pub ifname: String,
    /// Where the runtime keeps the namespace; empty in a call that does not say.
    pub netns: PathBuf,
}

/// A namespace that no container made: `rdmaprep hold`, the first member, keeps it for those that
/// join it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    pub path: PathBuf,
    pub handles: BTreeMap<String, Handle>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub schema: u32,
    /// Boot during which it was written: since the next one no NIC is away.
    pub boot_id: String,
    /// Inode of the namespace that holds the NICs.
    pub netns: u64,
    pub host_netns: u64,
    pub phase: Phase,
    pub plan: String,
    /// Containers in the namespace; the NICs return with the last.
    pub members: Vec<Member>,
    /// The plan whose NICs move: its first container's, or of all claims of the pod. What else a
    /// further container gets is its own part of it.
    pub given: Option<Box<Plan>>,
    /// UIDs of the claims of Kubernetes that its containers have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<String>,
    /// UID of their pod, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Why some did not return whole when that was last tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_back: Vec<String>,
    /// What was found and done then, which is no reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// The NICs, in the order in which they moved.
    pub held: Vec<MovedNic>,
    /// The NICs that are back, and what their managers have still to do; empty while any is away.
    #[serde(rename = "awaits", default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<String>,
    /// What of the host concerns no NIC: networkd deletes what it has not made when a link appears.
    #[serde(default, skip_serializing_if = "HostObjects::is_empty")]
    pub host_objects: HostObjects,
    /// NICs with which networkd begins when they return, and then may delete `host_objects`. If
    /// none has returned since the last try, an administrator has deleted what is gone of these.
    #[serde(rename = "due_until_back", alias = "kept_for")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep_objects_until_back: Vec<IfName>,
    /// NICs that are no hardware and were found nowhere, or maybe under another name: the one that
    /// a restore has made may have the other one beside it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub lost: BTreeSet<IfName>,
    /// Whether a restore has seen that none of the container's links are left on the NICs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub children_gone: bool,
    /// How many other namespaces of the machine were searched for its NICs when time ran out: the
    /// next try begins behind them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub searched: Option<usize>,
    /// What the kernel refuses to take back, as in [`Drift::expected`], and the seconds from the
    /// boot to the first refusal.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<String, i64>,
    /// Rules that say RTPROT_STATIC and were not networkd's as the NICs left: it may not be there
    /// to ask when they return.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub static_rules: Vec<Rule>,
    /// Rules that the host had before the NICs returned and that have the same effect as one of
    /// the NICs' own rules. Only rules that no manager makes count; absent if the NICs have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules_beside: Option<Vec<Rule>>,
    /// The order that the host's equal routes and rules had.
    #[serde(default, skip_serializing_if = "Precedence::is_empty")]
    pub precedence: Precedence,
}

impl Record {
    /// Whether a route of its NICs leads over another link as well, or is from another one's
    /// address.
    pub fn has_routes_of_others(&self) -> bool {
        let mut addresses = HashSet::new();
        for nic in &self.held {
            addresses.extend(nic.before.netdev.addresses.iter().map(|a| a.address));
        }
        let names: HashSet<&IfName> = self.names().collect();
        self.routes().any(|r| {
            r.prefsrc.is_some_and(|ip| !addresses.contains(&ip))
                || !r
                    .hops
                    .iter()
                    .flat_map(|h| &h.dev)
                    .all(|dev| names.contains(dev))
        })
    }

    /// What tries again to restore its NICs.
    pub fn restore_command(&self) -> String {
        let member = self.members.first();
        let id = member.map_or(self.netns.to_string(), |m| shell_word(&m.id));
        format!("rdmaprep restore {id}")
    }

    pub fn is_back(&self) -> bool {
        self.phase == Phase::Waiting
    }

    /// Numbers that no namespace has. The kernel may give the namespace's own to the next one,
    /// whose NICs may wait as well.
    pub fn numbers_when_back(&self) -> impl Iterator<Item = u64> {
        let netns = self.netns;
        (1..).map(move |round: u64| netns + round * (LAST_NETNS + 1))
    }

    /// The record of those of its NICs that wait for their manager, which is no namespace's any
    /// more.
    pub fn reduced_to_waiting(
        &self,
        number: u64,
        nics: &[IfName],
        waits_for: Vec<String>,
    ) -> Record {
        Record {
            netns: number,
            phase: Phase::Waiting,
            given: None,
            held_back: Vec::new(),
            notes: Vec::new(),
            hold: None,
            waits_for,
            ..self.reduced_to(nics)
        }
    }

    /// The record of these of its NICs.
    pub fn reduced_to(&self, nics: &[IfName]) -> Record {
        let mut reduced = self.clone();
        reduced.held.retain(|h| nics.contains(h.name()));
        reduced
    }

    pub fn file_name(&self) -> String {
        format!("{}.json", self.netns)
    }

    pub fn parse(text: &str) -> Result<Record> {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let record = serde_json::from_str::<Record>(text);
        let version = record.as_ref().map_or_else(
            |_| serde_json::from_str(text),
            |r| Ok(Version { schema: r.schema }),
        );
        let Version { schema } = version.map_err(|e| damage(&e))?;
        ensure!(
            schema == SCHEMA,
            "the record has schema {schema}, rdmaprep {PROGRAM} knows {SCHEMA}: use the rdmaprep \
            that wrote it"
        );
        record.map_err(|e| damage(&e))
    }

    pub fn print(&self) -> Result<String> {
        serde_json::to_string(self).context("writing the record as JSON")
    }

    pub fn has(&self, id: &str) -> bool {
        self.members.iter().any(|m| m.id == id)
    }

    /// Those of its NICs that are on the host.
    pub fn on_host(&self, host: &Snapshot) -> Vec<&IfName> {
        let all = self.held.iter().map(|h| &h.before.netdev);
        let here = all.filter(|was| {
            let now = host.netdev(&was.name);
            now.is_some_and(|now| is_same_netdev(was, now))
        });
        here.map(|was| &was.name).collect()
    }

    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        self.held.iter().flat_map(|h| &h.before.routes)
    }

    pub fn nexthops(&self) -> impl Iterator<Item = &Nexthop> {
        self.held.iter().flat_map(|h| &h.before.nexthops)
    }

    pub fn names(&self) -> impl Iterator<Item = &IfName> {
        self.held.iter().map(|h| h.name())
    }
}

fn damage(error: &serde_json::Error) -> anyhow::Error {
    anyhow!("the record is damaged: {error}")
}
