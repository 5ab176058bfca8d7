//! A running container from inside its namespaces. Its content is hostile input: reads are bounded,
//! and paths are resolved below its root.

pub(super) mod sandbox;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, ensure};
use nccl_rules::explain::is_for_nccl;
use nccl_rules::settings::{FoundSettings, Settings};
use nccl_rules::version::Version;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::HcaName;
use rdma_model::snapshot::{CharDevice, Hca, Snapshot};
use rdma_model::step::Side;

use super::container_id::{self, whole_id};
use super::store;
use crate::config::host::Host;
use crate::container::budget::Budget;
use crate::container::nccl_files;
use crate::container::userspace::{self, IBVERBS_LIB, LIBRARY_PATH, Userspace};
use crate::doctor::collect;
use crate::kernel::mount::mntns::Mntns;
use crate::kernel::mount::rootfs::Root;
use crate::kernel::netns::Netns;
use crate::kernel::probe::access::{NodeAccess, ProcessUser};
use crate::kernel::probe::devnode_probe;
use crate::kernel::process::capabilities;
use crate::kernel::process::pidfd::{self, Process};
use crate::kernel::{Kernel, Namespaces, Scope, ThisMachine, World};
use crate::nccl_env::libraries::is_of_table;
use crate::record::{Hold, Record};
use crate::store::Store;
use crate::store::records::Records;
use sandbox::SandboxedContainer;

pub(super) struct Running {
    /// Its whole id, or its pid where it has no record.
    pub(super) id: String,
    pub(super) pid: i32,
    pub(super) record: Option<Record>,
    /// Of its network namespace.
    pub(super) snapshot: Snapshot,
    /// Set where gVisor runs it.
    pub(super) sandbox: Option<SandboxedContainer>,
    /// Whether it shares the host's network.
    pub(super) on_host: bool,
    process: Process,
    namespaces: ThisMachine,
}

impl Running {
    pub(super) fn find(host: &Host, asked: &str) -> Result<Running> {
        // What is read from here on is written by others.
        capabilities::shed()?;
        let namespaces = ThisMachine::new()?;
        let found = find(&namespaces, &store(host), asked)?;
        ensure!(
            found.hold().is_none(),
            ErrorClass::Usage.error(format!(
                "{:?} is `rdmaprep hold`: name a container that has joined the namespace",
                found.id
            ))
        );
        Running::open(namespaces, found)
    }

    pub(super) fn open(namespaces: ThisMachine, found: Found) -> Result<Running> {
        let Found { id, pid, record } = found;
        let process = Process::open(pid).class(ErrorClass::Usage, format!("container {id:?}"))?;
        let host = Netns::current()?;
        let inside = Netns::of_process(pid)?;
        let on_host = inside.inode() == host.inode();
        ensure!(
            !on_host || !Mntns::of_process(pid)?.is_same(&Mntns::current()?),
            ErrorClass::Refused.error(format!(
                "process {id:?} is no container: it shares the host's network and mounts; leave \
                --container out to look at that"
            ))
        );
        let mut snapshot =
            Kernel::quiet(host, Some(inside))?.observe(Side::Inside, &Scope::full())?;
        let sandbox = SandboxedContainer::find(pid, record.as_ref());
        sandbox
            .iter()
            .for_each(|sandbox| sandbox.narrow(&mut snapshot));
        Ok(Running {
            id,
            pid,
            record,
            snapshot,
            sandbox,
            on_host,
            process,
            namespaces,
        })
    }

    /// What is there without HCAs of these nodes that do not open in it, and these HCAs: libibverbs
    /// passes over them.
    pub(super) fn opened(
        &self,
        nodes: &[CharDevice],
        user: &ProcessUser,
    ) -> (Snapshot, Vec<HcaName>) {
        let tried = match &self.sandbox {
            Some(sandbox) => sandbox.nodes(nodes),
            None => devnode_probe::within(self.pid, user, nodes),
        };
        let node = |hca: &Hca| tried.get(&hca.uverbs.as_ref()?.name);
        let snapshot = self.snapshot.clone();
        let (shut, hcas): (Vec<Hca>, Vec<Hca>) = snapshot
            .hcas
            .into_iter()
            .partition(|hca| node(hca).is_some_and(NodeAccess::is_shut));
        (
            Snapshot { hcas, ..snapshot },
            shut.into_iter().map(|hca| hca.name).collect(),
        )
    }

    /// The release that its plan names.
    pub(super) fn planned(&self) -> Option<Version> {
        self.record.as_ref()?.given.as_ref()?.nccl_version
    }

    /// What NCCL finds there, or why that is unknown: of the release that is asked for, else of
    /// that of the plan.
    pub(super) fn settings(&self, asked: Option<Version>) -> Result<FoundSettings, String> {
        let version = asked.or_else(|| self.planned()).unwrap_or_default();
        match &self.sandbox {
            Some(sandbox) => sandbox.settings(),
            None => devnode_probe::settings(self.pid, version).map_err(|e| format!("{e:#}")),
        }
    }

    /// What its loader finds of rdma-core for its HCAs; nothing of a sandbox, whose root is inside.
    pub(super) fn userspace(&self, snapshot: &Snapshot) -> Result<Option<Userspace>> {
        if self.sandbox.is_some() {
            return Ok(None);
        }
        let drivers = snapshot.hcas.iter().filter_map(|hca| hca.driver.as_deref());
        let providers: BTreeSet<&str> = drivers.filter_map(userspace::provider).collect();
        let providers = Vec::from_iter(providers).join(",");
        devnode_probe::libraries(self.pid, &providers)
    }

    /// To be called when all is read: the pid may have been reused meanwhile, by another process.
    pub(super) fn still_runs(&self) -> Result<()> {
        let same = self.record.as_ref().is_none_or(|r| {
            r.members
                .iter()
                .any(|m| m.pid == self.pid && self.namespaces.is_alive(r, m))
        });
        ensure!(
            self.process.alive() && same,
            ErrorClass::Other.error(format!(
                "container {:?} ended during the examination",
                self.id
            ))
        );
        Ok(())
    }
}

pub(super) struct Found {
    pub(super) id: String,
    pub(super) pid: i32,
    pub(super) record: Option<Record>,
}

impl Found {
    /// Set where it is `rdmaprep hold`, which is no container.
    pub(super) fn hold(&self) -> Option<(&Record, &Hold)> {
        let record = self.record.as_ref()?;
        let hold = record.hold.as_ref()?;
        let mut members = record.members.iter();
        let keeper = members.find(|m| Path::new(&m.bundle) == hold.path)?;
        (keeper.id == self.id).then_some((record, hold))
    }
}

/// A container that holds NICs, or `rdmaprep hold`; else any process by its pid.
pub(super) fn find(namespaces: &ThisMachine, store: &Store, asked: &str) -> Result<Found> {
    let records = Records::read(store, namespaces.boot_id())?;
    let pid = asked
        .parse()
        .ok()
        .filter(|pid| pidfd::start_time(*pid).is_some());
    // A pid is no beginning of an id.
    let id = if pid.is_some() {
        asked.to_owned()
    } else {
        whole_id(&records, asked)?
    };
    for record in records.readable() {
        if let Some(member) = record
            .members
            .iter()
            .find(|m| m.id == id && m.cni.is_none())
        {
            ensure!(
                namespaces.is_alive(record, member),
                ErrorClass::Usage
                    .error(format!("container {id:?} has died: see `rdmaprep status`"))
            );
            return Ok(Found {
                id,
                pid: member.pid,
                record: Some(record.clone()),
            });
        }
    }
    ensure!(
        !records
            .readable()
            .flat_map(|r| &r.members)
            .any(|m| m.id == id),
        ErrorClass::Usage.error(format!(
            "{id:?} has its NICs by CNI: name the pid of a process of the pod"
        ))
    );
    let of_engine = match pid {
        Some(_) => None,
        None => container_id::running(asked)?,
    };
    let (id, pid) = match (pid, of_engine) {
        (Some(pid), _) => (id, pid),
        (None, Some(found)) => found,
        (None, None) => {
            // Others' processes, and an engine's folders, are root's to see.
            capabilities::require()?;
            return Err(unknown(&id));
        }
    };
    Ok(Found {
        id,
        pid,
        record: None,
    })
}

fn unknown(asked: &str) -> anyhow::Error {
    ErrorClass::Usage.error(format!(
        "no running container of podman, CRI-O, Docker or containerd, and none that holds a NIC, \
        has the id or name {asked:?}, and no process has that pid: `rdmaprep status` lists who \
        holds NICs; else give the pid of the container's init"
    ))
}

fn is_setting(name: &str) -> bool {
    is_for_nccl(name) || name == "HOME" || is_of_table(name)
}

/// What a container's loader finds of rdma-core; in a process of its own, as
/// [`container_settings`].
pub(super) fn container_userspace(pid: i32, providers: &[String]) -> Result<Option<Userspace>> {
    let env = collect::environment(pid, |name| userspace::VARIABLES.contains(&name))?;
    let mut env: BTreeMap<String, String> = env.into_iter().collect();
    // A config file may have it, too.
    let found = container_settings(pid, Version::NEWEST).ok();
    let named = found
        .as_ref()
        .and_then(|found| found.settings.get(IBVERBS_LIB));
    env.extend(named.map(|name| (IBVERBS_LIB.to_owned(), name.to_owned())));
    let root = Root::open(Path::new(&format!("/proc/{pid}/root")))?;
    let providers: Vec<&str> = providers.iter().map(String::as_str).collect();
    let program = pidfd::command(pid).map(|(program, _)| program);
    Ok(userspace::look(
        &root,
        &env,
        program.as_deref().and_then(Path::to_str),
        &providers,
        &Budget::new(None),
    ))
}

/// What NCCL finds in a container: the environment of its init, and the config files below its
/// root. A container's memory and file systems can block a reader for ever, so this runs in a
/// process of its own, which doctor need not wait for.
pub(super) fn container_settings(pid: i32, version: Version) -> Result<FoundSettings> {
    let mut found = FoundSettings {
        settings: Settings::of(
            collect::environment(pid, is_setting)?,
            "the environment of its init",
        ),
        ..FoundSettings::default()
    };
    let root = Root::open(Path::new(&format!("/proc/{pid}/root")))?;
    let home = collect::own_user(pid)?.and_then(|user| nccl_files::home(&root, user));
    nccl_files::add_files(&mut found, &root, home.as_deref(), version, None);
    let folders = collect::environment(pid, |name| name == LIBRARY_PATH)?;
    let folders = folders.first().map(|(_, value)| value.as_str());
    found.plugin = nccl_files::plugin(&root, folders, &found.settings, version);
    Ok(found)
}
