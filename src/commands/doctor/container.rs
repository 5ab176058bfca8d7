//! A container from inside its namespaces. Its content is hostile input: reads are bounded, and paths are resolved below its
//! root.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, ensure};
use nccl_rules::settings::{FoundSettings, Settings};
use nccl_rules::version::Version;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::IfName;
use rdma_model::snapshot::{CharDevice, Hca, Port, Snapshot};
use rdma_model::step::Side;
use rdma_model::values::Family;

use crate::config::options::SelectOptions;
use crate::config::request::{Narrowing, Request};
use crate::doctor::collect::Limits;
use crate::doctor::facts::{Machine, Unread};
use crate::doctor::{Diagnosis, Examination, collect, doctor};
use crate::journal::Record;
use crate::kernel::mount::rootfs::{self, Root};
use crate::kernel::netns::Netns;
use crate::kernel::probe::access::NodeAccess;
use crate::kernel::probe::devnode_probe;
use crate::kernel::process::capabilities;
use crate::kernel::process::pidfd::{self, Process};
use crate::kernel::records::Records;
use crate::kernel::store::Store;
use crate::kernel::{Kernel, Namespaces, Scope, ThisMachine, World};
use crate::plan::Plan;
use crate::select::without_names;

use super::sandbox::SandboxedContainer;
use super::store;

const LIMIT: u64 = 1 << 20;

/// Examines it: its own NICs, whatever is selected for others.
pub(super) fn examine(request: Request, id: &str) -> Result<Diagnosis> {
    // What is read from here on is written by others.
    capabilities::shed()?;
    let store = store(&request.host);
    let namespaces = ThisMachine::new()?;
    let (pid, record) = find(&namespaces, &store, id)?;
    let keeps = |r: &Record| {
        let keeper = r.hold.as_ref().and_then(|h| r.members.iter().find(|m| Path::new(&m.bundle) == h.path));
        keeper.is_some_and(|m| m.id == id)
    };
    let kept = || {
        ErrorClass::Usage.error(format!("{id:?} is `rdmaprep hold`: name a container that has joined the namespace"))
    };
    ensure!(!record.as_ref().is_some_and(keeps), kept());
    let process = Process::open(pid).class(ErrorClass::Usage, format!("container {id:?}"))?;
    let host = Netns::current()?;
    let (own, inside) = (host.inode(), Netns::of_process(pid)?);
    ensure!(
        inside.inode() != own,
        ErrorClass::Refused
            .error(format!("container {id:?} shares the host's network: `rdmaprep doctor` looks at that"))
    );
    let mut snapshot = Kernel::quiet(host, Some(inside))?.observe(Side::Inside, &Scope::full())?;
    let sandbox = SandboxedContainer::find(pid, record.as_ref());
    sandbox.iter().for_each(|sandbox| sandbox.narrow(&mut snapshot));
    let limits = collect::limits(pid)?;
    let plan = record.as_ref().and_then(|r| r.given_plan());
    let given = plan.as_ref();
    let mut tried = tried(pid, &snapshot, given, sandbox.as_ref(), &limits);
    // Who joined a pod may have asked for fewer devices: what it lacks it was not given.
    let joined = record.as_ref().is_some_and(|r| r.members.first().is_some_and(|m| m.id != id));
    let lacks = |nic: &rdma_model::nic::Nic| {
        joined
            && nic.uverbs.as_ref().is_some_and(|d| tried.get(&d.name).is_none_or(|node| *node == NodeAccess::Missing))
    };
    let share = given.map(|g| Plan { nics: g.nics.iter().filter(|nic| !lacks(nic)).cloned().collect(), ..g.clone() });
    if joined {
        tried.retain(|_, node| *node != NodeAccess::Missing);
    }
    let settings = || devnode_probe::settings::<FoundSettings>(pid).map_err(|e| format!("{e:#}"));
    let found = sandbox.as_ref().map_or_else(settings, SandboxedContainer::settings);
    let notes = found.as_ref().map_or(&[][..], |found| &found.notes);
    let unread = notes.iter().cloned().map(Unread::Nccl).collect();
    let machine = Machine { unread, ..collect::of_container(&snapshot, tried, &limits) };
    let machine = sandbox.iter().fold(machine, |machine, sandbox| sandbox.correct(machine));
    // The pid may have been reused meanwhile, by another process.
    let same = record.as_ref().is_none_or(|r| r.members.iter().any(|m| m.pid == pid && namespaces.is_alive(r, m)));
    ensure!(process.alive() && same, ErrorClass::Other.error(format!("container {id:?} ended during the examination")));
    let request = within(request, &snapshot, record.as_ref(), share.as_ref());
    doctor(&Examination {
        request: &request,
        snapshot: &snapshot,
        held: &[],
        machine: Some(&machine),
        traces: &[],
        plans: share.as_slice(),
        settings: found.as_ref().map(|found| &found.settings).map_err(String::as_str),
        container: Some(id),
    })
}

/// What became of the nodes that it was given, or that HCAs have which it may use.
fn tried(
    pid: i32,
    snapshot: &Snapshot,
    given: Option<&Plan>,
    sandbox: Option<&SandboxedContainer>,
    limits: &Limits,
) -> BTreeMap<String, NodeAccess> {
    let nodes = devices(snapshot, given);
    let mut tried = match sandbox {
        Some(sandbox) => sandbox.nodes(&nodes),
        None => devnode_probe::within(pid, &limits.user, &nodes),
    };
    if given.is_none() {
        // Of HCAs that need no netdev the node tells whose they are.
        let fabric = |name: &String| {
            snapshot.hcas.iter().any(|h| is_fabric(h) && h.uverbs.as_ref().is_some_and(|d| d.name == *name))
        };
        tried.retain(|name, node| *node != NodeAccess::Missing || !fabric(name));
    }
    tried
}

/// A container that holds NICs, by its id; else any process by its pid.
fn find(namespaces: &ThisMachine, store: &Store, id: &str) -> Result<(i32, Option<Record>)> {
    let records = Records::read(store, namespaces.boot_id())?;
    for record in records.current() {
        if let Some(member) = record.members.iter().find(|m| m.id == id && m.cni.is_none()) {
            ensure!(
                namespaces.is_alive(record, member),
                ErrorClass::Usage.error(format!("container {id:?} has died: see `rdmaprep status`"))
            );
            return Ok((member.pid, Some(record.clone())));
        }
    }
    let by_cni =
        || ErrorClass::Usage.error(format!("{id:?} has its NICs by CNI: name the pid of a process of the pod"));
    ensure!(!records.current().flat_map(|r| &r.members).any(|m| m.id == id), by_cni());
    let pid = id.parse().ok().filter(|pid| pidfd::start_time(*pid).is_some());
    let unknown = || {
        ErrorClass::Usage.error(format!(
            "no container that holds a NIC has the id {id:?}, and no process has that pid: give its whole id (`rdmaprep \
             status`), or its init's pid (`podman inspect --format '{{{{.State.Pid}}}}' NAME`)"
        ))
    };
    Ok((pid.ok_or_else(unknown)?, None))
}

/// Its own NICs are those of its record; without one, all that are there. No uplink is guarded inside.
fn within(request: Request, inside: &Snapshot, record: Option<&Record>, share: Option<&Plan>) -> Request {
    let own = |name: &IfName| share.is_none_or(|plan| plan.nics.iter().any(|nic| nic.identity.name == *name));
    let there = |name: &&IfName| inside.netdev(name).is_some() && own(name);
    let ifaces = record.iter().flat_map(|r| r.names()).filter(there).cloned().collect();
    let v6 = |r: &Record| r.held.iter().all(|h| h.nic.gid.as_ref().is_some_and(|g| g.ip().is_ipv6()));
    let family = if record.is_some_and(v6) { Family::V6 } else { request.select.family };
    let select = SelectOptions {
        ifaces,
        bootstrap_address: None,
        peer_address: None,
        allow_bootstrap_iface: true,
        freeze_lifetimes: true,
        family,
        ..without_names(request.select)
    };
    Request { select, narrowing: Narrowing::default(), ..request }
}

/// The nodes of the HCAs that it has been given; without a record, of those whose netdev is there, or that need none.
fn devices(inside: &Snapshot, given: Option<&Plan>) -> Vec<CharDevice> {
    given.map(|plan| plan.devices.clone()).unwrap_or_else(|| {
        let here = inside.hcas.iter().filter(|h| h.ports.iter().any(|p| p.netdev.is_some()) || is_fabric(h));
        here.filter_map(|h| h.uverbs.clone()).chain(inside.rdma_cm.clone()).collect()
    })
}

/// Whether it is InfiniBand without netdevs: none shows which namespace it is in.
fn is_fabric(hca: &Hca) -> bool {
    let ib = |p: &Port| p.link_layer.as_deref() == Some("InfiniBand") && p.netdev.is_none();
    !hca.ports.is_empty() && hca.ports.iter().all(ib)
}

/// What NCCL finds in a container: the environment of its init, and the config files below its root. A container's memory and
/// file systems can block a reader for ever, so this runs in a process of its own, which doctor need not wait for.
pub(super) fn container_settings(pid: i32) -> Result<FoundSettings> {
    let ours = |name: &str| name.starts_with("NCCL_") || name == "HOME";
    let settings = Settings::of(collect::environment(pid, ours)?, "the environment of its init");
    let mut found = FoundSettings { settings, notes: Vec::new() };
    let root = Root::open(Path::new(&format!("/proc/{pid}/root")))?;
    for path in found.settings.files(None, Version::NEWEST) {
        let Some(text) = path.to_str() else { continue };
        let Ok(place) = root.find(text) else { continue };
        match root.open_file(&place).and_then(|file| rootfs::read(&file, LIMIT)) {
            Ok(bytes) => found.settings.add(&path, &bytes, Version::NEWEST),
            Err(why) => found.notes.push(format!("{} in the container is not looked at: {why}", path.display())),
        }
    }
    Ok(found)
}
