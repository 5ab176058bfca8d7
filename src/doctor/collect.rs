//! What the doctor examines besides a snapshot: modules, limits, configuration space, and network
//! managers.

use rdma_model::escape::is_plain;
use rdma_model::snapshot::{CharDevice, Netdev, Snapshot};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use rdma_model::ids::{BusId, IfName};
use rdma_model::step::NicState;
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

use crate::cdi;
use crate::doctor::facts::{Lossless, Machine, Managing, Nvidia, Starter, acs_control};
use crate::kernel::counters;
use crate::kernel::netns::Netns;
use crate::kernel::probe::access::{NodeAccess, ProcessUser};
use crate::kernel::probe::devnode_probe;
use crate::kernel::process::capabilities::{has_in_first_user, is_first_user, shares_user};
use crate::kernel::process::{limits, pidfd};
use crate::link_managers::timer::Timer;
use crate::link_managers::{self, Manager, Managers};
use crate::oci::config::Config;
use crate::oci::pod::containerd_bundles;
use crate::select::Configuring;

const LIMIT: u64 = 64 << 10;

pub struct Limits {
    /// RLIMIT_MEMLOCK (soft) in bytes; absent: unlimited.
    memlock: Option<u64>,
    pins_freely: bool,
    stays: bool,
    pub user: ProcessUser,
}

/// The host, by this process.
pub fn of_host(snapshot: &Snapshot) -> Result<Machine> {
    let limits = Limits {
        memlock: getrlimit(Resource::Memlock).current,
        pins_freely: has_in_first_user(CapabilitySet::IPC_LOCK)?,
        stays: limits::memlock_ceiling()?.is_some(),
        user: ProcessUser {
            uid: 0,
            gids: Vec::new(),
            any: true,
        },
    };
    Ok(Machine {
        lossless: lossless(&Netns::current()?, snapshot),
        ..machine(snapshot, devnode_probe::here(&nodes(snapshot)), &limits)
    })
}

/// A container, by its init, with what became of its device nodes.
pub fn of_container(
    snapshot: &Snapshot,
    tried: BTreeMap<String, NodeAccess>,
    limits: &Limits,
) -> Machine {
    machine(snapshot, tried, limits)
}

/// What the drivers of its netdevs tell of PFC, where these are in that namespace.
pub fn lossless(netns: &Netns, snapshot: &Snapshot) -> BTreeMap<IfName, Lossless> {
    let names: Vec<IfName> = snapshot
        .netdevs
        .iter()
        .map(|dev| dev.name.clone())
        .collect();
    let known = counters::lossless(netns, &names).into_iter();
    let facts = known.map(|(name, known)| {
        let (priorities, by_dscp) = (known.priorities, known.by_dscp);
        (
            name,
            Lossless {
                priorities,
                by_dscp,
            },
        )
    });
    facts.collect()
}

pub fn nodes(snapshot: &Snapshot) -> Vec<CharDevice> {
    snapshot
        .hcas
        .iter()
        .filter_map(|h| h.uverbs.clone())
        .chain(snapshot.rdma_cm.clone())
        .collect()
}

fn machine(snapshot: &Snapshot, nodes: BTreeMap<String, NodeAccess>, limits: &Limits) -> Machine {
    let bridges = snapshot
        .pci
        .iter()
        .filter(|f| f.is_bridge())
        .map(|f| f.address);
    Machine {
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        modules: crate::disk::files::list(Path::new("/sys/module")).unwrap_or_default(),
        verbs_class: Path::new("/sys/class/infiniband_verbs").exists(),
        nodes,
        memlock: limits.memlock,
        pins_freely: limits.pins_freely,
        memlock_stays: limits.stays,
        nvidia: nvidia(),
        amdkfd: is_any_there(&["/sys/module/amdgpu"]).then(|| is_any_there(&AMDKFD)),
        gdrdrv: is_any_there(&["/dev/gdrdrv"]),
        acs: bridges.filter_map(|at| Some((at, acs(at)?))).collect(),
        managers: managing(snapshot),
        lossless: BTreeMap::new(),
        starters: starters(),
        timer: Path::new("/run/systemd/system").exists()
            && Timer::of(Path::new("/")) == Timer::Runs,
        sandbox: None,
        userspace: None,
        without_annotations: pods_without_annotations(),
        unread: Vec::new(),
        unregistered: None,
        opted_in: None,
        claims: Vec::new(),
    }
}

/// The program that starts jobs, which inherit its limits. Not sshd: there the limits of PAM count.
const JOBS: &str = "slurmd";
/// Programs that start containers and hand their limits on. They matter where rails are devices:
/// whatever else gives a container its rails lifts the limit, too.
const ENGINES: [&str; 3] = ["dockerd", "containerd", "crio"];

fn starters() -> Vec<Starter> {
    let pids = crate::disk::files::list(Path::new("/proc")).unwrap_or_default();
    pids.iter()
        .filter_map(|pid| starter(pid.parse().ok()?))
        .collect()
}

fn starter(pid: i32) -> Option<Starter> {
    let name = pidfd::name(pid)?;
    let is_engine = ENGINES.contains(&name.as_str()) && Path::new(cdi::FILE).exists();
    if name != JOBS && !is_engine {
        return None;
    }
    Some(Starter {
        name,
        pid,
        unit: unit(pid),
        memlock: memlock(pid).ok()?,
    })
}

fn pods_without_annotations() -> Vec<String> {
    let folders = containerd_bundles().map(|folder| Path::new("/").join(folder));
    folders
        .flat_map(|folder| without_annotations(&folder))
        .collect()
}

fn without_annotations(bundles: &Path) -> Vec<String> {
    let mut ids = crate::disk::files::list(bundles).unwrap_or_default();
    ids.retain(|id| {
        let text = crate::disk::files::read(&bundles.join(id).join("config.json"));
        matches!(text, Ok(Some(text)) if Config::lenient(&text).lacks_pod_annotations())
    });
    ids
}

/// The systemd service that a process is of: `0::/system.slice/slurmd.service`, or in cgroup v1
/// such a line of `name=systemd`.
fn unit(pid: i32) -> Option<String> {
    let text = text(&format!("/proc/{pid}/cgroup")).ok()?;
    let mut own = text
        .lines()
        .filter(|l| l.starts_with("0::") || l.contains(":name=systemd:"));
    let parts = own.find_map(|l| l.split('/').find(|part| part.ends_with(".service")))?;
    is_plain(parts, b"-_.@").then(|| parts.to_owned())
}

fn managing(snapshot: &Snapshot) -> Vec<Managing> {
    let root = Path::new("/");
    let mut managers = Managers::of(root);
    let states = snapshot
        .netdevs
        .iter()
        .filter_map(|n| NicState::of(snapshot, &n.name));
    let managed: Vec<(IfName, Manager)> = states
        .filter_map(|s| Some((s.netdev.name.clone(), managers.managed(&s)?.by)))
        .collect();
    let links: Vec<&Netdev> = snapshot.netdevs.iter().collect();
    let at_work: Vec<(IfName, Configuring)> = links
        .iter()
        .filter_map(|n| Some((n.name.clone(), managers.at_work(n)?)))
        .collect();
    let mut rules = snapshot.rules.iter();
    let deletes_rules = managers.may_delete_rules()
        && !link_managers::networkd_config::spares_rules(root)
        && rules.any(|rule| !rule.is_of_kernel() && !rule.is_static());
    let mut found = Vec::new();
    for manager in link_managers::present(root) {
        let mut spared: Vec<&Netdev> = snapshot.netdevs.iter().collect();
        spared.retain(|n| !link_managers::manages(root, manager, n.ifindex));
        let configured = managed.iter().filter(|(_, by)| *by == manager);
        let its = at_work.iter().filter(|(_, at_work)| at_work.by == manager);
        found.push(Managing {
            manager,
            spares: spared.iter().map(|n| n.name.clone()).collect(),
            configures: configured.map(|(name, _)| name.clone()).collect(),
            at_work: its.cloned().collect(),
            deletes_rules: manager == Manager::Networkd && deletes_rules,
            unordered: match manager {
                Manager::NetworkManager => managers.unordered(&links, snapshot),
                _ => Vec::new(),
            },
        });
    }
    found
}

/// Where NCCL looks for a module that gives NICs the memory of GPUs (src/transport/net_ib/gdr.cc);
/// before 2.23.4 among memory_peers alone, by names of which each release knows two
/// (src/transport/net_ib.cc).
const PEERMEM: &str = "/sys/module/nvidia_peermem/version";
const MEMORY_PEERS: [&str; 3] = ["nv_mem", "nv_mem_nc", "nvidia-peermem"];

/// Where RCCL does (src/transport/net_ib.cc, in 2.28.3).
const AMDKFD: [&str; 3] = [
    "/sys/kernel/mm/memory_peers/amdkfd/version",
    "/sys/kernel/memory_peers/amdkfd/version",
    "/sys/memory_peers/amdkfd/version",
];

fn is_any_there(paths: &[&str]) -> bool {
    paths.iter().any(|path| Path::new(path).exists())
}

fn nvidia() -> Option<Nvidia> {
    let text = text("/proc/driver/nvidia/version").ok()?;
    // Its first line names the flavour: "NVIDIA UNIX Open Kernel Module for x86_64 …", "NVIDIA UNIX
    // x86_64 Kernel Module …".
    let open = text
        .contains("Kernel Module")
        .then(|| text.contains("Open Kernel Module"));
    let mut memory_peers = MEMORY_PEERS.map(str::to_owned).to_vec();
    memory_peers.retain(|name| {
        let path = format!("/sys/kernel/mm/memory_peers/{name}/version");
        is_any_there(&[&path])
    });
    Some(Nvidia {
        peermem: !memory_peers.is_empty() || is_any_there(&[PEERMEM]),
        memory_peers,
        open,
    })
}

fn acs(at: BusId) -> Option<Option<u16>> {
    let mut space = Vec::new();
    let read = File::open(format!("/sys/bus/pci/devices/{at}/config"))
        .and_then(|f| f.take(4096).read_to_end(&mut space));
    if read.is_ok() {
        acs_control(&space)
    } else {
        Some(None)
    }
}

/// The start of a file that may be of any length.
fn text(path: &str) -> Result<String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|f| f.take(LIMIT).read_to_end(&mut bytes));
    read.with_context(|| format!("reading {path}"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn line(text: &str, name: &str) -> Option<String> {
    text.lines()
        .find_map(|l| l.strip_prefix(name).map(str::to_owned))
}

/// RLIMIT_MEMLOCK (soft) of another process, in bytes; absent: unlimited.
fn memlock(pid: i32) -> Result<Option<u64>> {
    let limits = text(&format!("/proc/{pid}/limits"))?;
    let memlock = line(&limits, "Max locked memory").context("its limits have no locked memory")?;
    Ok(memlock
        .split_whitespace()
        .next()
        .and_then(|soft| soft.parse().ok()))
}

pub fn limits(pid: i32) -> Result<Limits> {
    let status = text(&format!("/proc/{pid}/status"))?;
    let caps = line(&status, "CapEff:")
        .and_then(|c| u64::from_str_radix(c.trim(), 16).ok())
        .unwrap_or(0);
    // A capability over what is not of its own user namespace counts in the first one alone.
    let has = |cap: CapabilitySet| caps & cap.bits() != 0 && is_first_user(&pid.to_string());
    // Real, effective, saved, file system.
    let user = numbers(&status, "Uid:").get(3).copied();
    let group = numbers(&status, "Gid:").get(3).copied();
    Ok(Limits {
        memlock: memlock(pid)?,
        pins_freely: has(CapabilitySet::IPC_LOCK),
        stays: false,
        user: ProcessUser {
            uid: user.context("its status has no user")?,
            gids: group
                .into_iter()
                .chain(numbers(&status, "Groups:"))
                .collect(),
            any: has(CapabilitySet::DAC_OVERRIDE),
        },
    })
}

/// The user of a process as it sees itself: by the map of its user namespace.
pub fn own_user(pid: i32) -> Result<Option<u32>> {
    let status = text(&format!("/proc/{pid}/status"))?;
    let user = numbers(&status, "Uid:").first().copied();
    // The map of our own namespace names users of the one around it.
    if shares_user(&pid.to_string()) {
        return Ok(user);
    }
    let map = text(&format!("/proc/{pid}/uid_map"))?;
    Ok(user.and_then(|user| mapped(&map, user)))
}

/// What a number of this namespace is in another one (user_namespaces(7)).
fn mapped(map: &str, number: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut words = line.split_whitespace().map(|word| word.parse::<u32>().ok());
        let (inside, outside, count) = (words.next()??, words.next()??, words.next()??);
        let at = number.checked_sub(outside)?;
        (at < count).then(|| inside.checked_add(at))?
    })
}

fn numbers(status: &str, name: &str) -> Vec<u32> {
    let found = line(status, name).unwrap_or_default();
    let words = found.split_whitespace();
    words.filter_map(|n| n.parse().ok()).collect()
}

/// The environment that a process was started with, of which a part is kept: `NAME=VALUE`.
pub fn environment(pid: i32, wanted: impl Fn(&str) -> bool) -> Result<Vec<(String, String)>> {
    let mut bytes = Vec::new();
    let path = format!("/proc/{pid}/environ");
    let read = File::open(&path).and_then(|f| f.take(1 << 20).read_to_end(&mut bytes));
    read.with_context(|| format!("reading {path}"))?;
    let mut found = Vec::new();
    for pair in bytes.split(|b| *b == 0).map(String::from_utf8_lossy) {
        if let Some((name, value)) = pair.split_once('=').filter(|(name, _)| wanted(name)) {
            found.push((name.to_owned(), value.to_owned()));
        }
    }
    Ok(found)
}
