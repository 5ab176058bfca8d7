//! What the kernel and the process's limits allow.

use rdma_model::snapshot::{Netdev, PciFunction};

use super::facts::{Nvidia, SandboxFacts, Starter};
use super::{Check, CheckContext, Finding, Severity, join};
use crate::container::userspace::Userspace;
use crate::kernel::probe::access::NodeAccess;

/// RDMA drivers by the driver of the PCI function that they sit on.
const DRIVERS: [(&str, &str); 6] = [
    ("mlx5_core", "mlx5_ib"),
    ("mlx4_core", "mlx4_ib"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("hns3", "hns_roce_hw_v2"),
];

pub(super) fn modules(context: &CheckContext) -> Vec<Finding> {
    let Some(machine) = context.of.machine else {
        return Vec::new();
    };
    let snapshot = context.of.snapshot;
    if snapshot.hcas.is_empty() && context.lends() {
        // In exclusive mode a host that has lent all of them sees none.
        return Vec::new();
    }
    let breaks = |seen: String, why, fix: &str| {
        Finding::new(Check::RdmaModules, Severity::Breaks, seen, why, fix)
    };
    let driver = |function: &str| {
        DRIVERS
            .iter()
            .find(|(f, _)| *f == function)
            .map(|(_, rdma)| *rdma)
    };
    // Where others do RDMA, one that is not named is for the host's own network, or cannot.
    let may = |f: &&PciFunction| {
        let asked = |n: &Netdev| n.pci == Some(f.address) && context.asks_for(&n.name);
        snapshot.hcas.is_empty() || snapshot.netdevs.iter().any(asked)
    };
    let mut wanted: Vec<&str> = snapshot
        .pci
        .iter()
        .filter(may)
        .filter_map(|f| driver(f.driver.as_deref()?))
        .collect();
    wanted.sort_unstable();
    wanted.dedup();
    // One that is built in is seen by its devices.
    let at_work = |m: &str| {
        snapshot
            .hcas
            .iter()
            .any(|h| h.driver.as_deref().and_then(driver).or(h.driver.as_deref()) == Some(m))
    };
    let lacking: Vec<&str> = wanted
        .into_iter()
        .filter(|m| !machine.modules.iter().any(|have| have == m) && !at_work(m))
        .collect();
    let mut found = Vec::new();
    if !lacking.is_empty() {
        let why = "the cards are there as network cards alone: nothing can use RDMA";
        let names = lacking.join(" ");
        let one = breaks(
            format!("{} not loaded, and cards here need it", join(&lacking)),
            why,
            "load it, and at boot",
        );
        found.push(one.run(format!("modprobe -a {names}")));
    } else if snapshot.hcas.is_empty() {
        let why = "there is nothing to give to a container, and NCCL goes by TCP";
        let fix = "look for the card (lspci), load its RDMA driver; for soft-RoCE: modprobe \
            rdma_rxe, rdma link add rxe0 type rxe netdev NIC";
        found.push(breaks("there is no RDMA device here".to_owned(), why, fix));
    }
    if !machine.verbs_class && !snapshot.hcas.is_empty() {
        let why = "without it there are no device nodes: libibverbs finds no device";
        found.push(
            breaks(
                "ib_uverbs is not loaded".to_owned(),
                why,
                "load it, and at boot",
            )
            .run("modprobe ib_uverbs"),
        );
    }
    if snapshot.rdma_cm.is_none() && !snapshot.hcas.is_empty() {
        let why = "NCCL does without /dev/infiniband/rdma_cm, UCX and MPI do not";
        let seen = "rdma_ucm is not loaded";
        found.push(
            Finding::new(
                Check::RdmaModules,
                Severity::Warning,
                seen,
                why,
                "load it, and at boot",
            )
            .run("modprobe rdma_ucm"),
        );
    }
    found
}

/// What a recording shows of that.
pub(super) fn no_driver(context: &CheckContext) -> Option<Finding> {
    let seen = context
        .of
        .snapshot
        .lacks_rdma_driver()
        .filter(|_| context.of.machine.is_none())?;
    let why = "NCCL goes by TCP, and there is nothing to give to a container";
    Some(
        Finding::new(
            Check::RdmaModules,
            Severity::Warning,
            seen,
            why,
            "load it, and at boot",
        )
        .run("modprobe mlx5_ib"),
    )
}

struct Feature {
    since: (u32, u32),
    what: &'static str,
    why: &'static str,
    severity: Severity,
    of: fn(&CheckContext) -> bool,
}

/// By the kernel's version, as its sources have it; distributions may have brought one back into an
/// older kernel.
const FEATURES: [Feature; 6] = [
    Feature {
        since: (5, 3),
        what: "pidfd_open(2)",
        why: "a container's process cannot be distinguished from a later one of its pid: \
            rdmaprep's hooks fail",
        severity: Severity::Breaks,
        of: |_| true,
    },
    Feature {
        since: (5, 8),
        what: "mount numbers by statx(2), and openat2(2) and pidfd_getfd(2) before it",
        why: "without them no path in a container's image is looked at: nothing is mounted for \
            it, nor handed over in memory",
        severity: Severity::Breaks,
        of: |_| true,
    },
    Feature {
        since: (5, 12),
        what: "RDMA on dma-buf (ibv_reg_dmabuf_mr)",
        why: "NICs reach the memory of GPUs by nvidia_peermem alone",
        severity: Severity::Warning,
        of: |p| {
            p.of.machine
                .is_some_and(|m| m.nvidia.as_ref().is_some_and(|n| !n.peermem))
        },
    },
    Feature {
        since: (5, 14),
        what: "links that tell their card in every namespace (IFLA_PARENT_DEV_NAME)",
        why: "a NIC in a container is known by its permanent MAC alone",
        severity: Severity::Warning,
        of: |_| true,
    },
    Feature {
        since: (5, 16),
        what: "an RLIMIT_MEMLOCK of 8 MiB by default",
        why: "what starts without a limit of its own can pin 64 KiB, too little for a single \
            queue pair",
        severity: Severity::Warning,
        of: |p| {
            p.of.machine
                .is_some_and(|m| !m.pins_freely && m.memlock.is_some())
        },
    },
    Feature {
        since: (7, 2),
        what: "soft-RoCE inside network namespaces",
        why: "rxe's sockets stay in the first namespace: in a container its ports look well and \
            no packet passes",
        severity: Severity::Breaks,
        of: |p| p.kept().iter().any(|r| r.hca.is_rxe()),
    },
];

pub(super) fn kernel(context: &CheckContext) -> Vec<Finding> {
    let Some(machine) = context.of.machine else {
        return Vec::new();
    };
    let Some(version) = version(&machine.kernel) else {
        let seen = format!(
            "the kernel calls itself {:?}, which has no version",
            machine.kernel
        );
        return vec![Finding::new(
            Check::KernelFeatures,
            Severity::Unknown,
            seen,
            "what it lacks is unknown",
            "compare uname -r",
        )];
    };
    // Red Hat's carry features of much later ones.
    let patched = machine.kernel.contains(".el");
    let lacking = FEATURES
        .iter()
        .filter(|f| version < f.since && (f.of)(context));
    lacking
        .map(|f| {
            let (major, minor) = f.since;
            let seen = format!(
                "Linux {} is older than {major}.{minor}, which brought {}",
                machine.kernel, f.what
            );
            let severity = if patched {
                Severity::Unknown
            } else {
                f.severity
            };
            let fix = match patched {
                true => "ask the distribution whether its kernel has it".to_owned(),
                false => format!("boot Linux {major}.{minor} or later"),
            };
            Finding::new(Check::KernelFeatures, severity, seen, f.why, fix)
        })
        .collect()
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

pub(super) fn verbs_nodes(context: &CheckContext) -> Vec<Finding> {
    let Some(machine) = context.of.machine else {
        return Vec::new();
    };
    let mut found = machine.sandbox.as_ref().map(sandbox).unwrap_or_default();
    for (name, node) in &machine.nodes {
        let path = format!("/dev/infiniband/{name}");
        let (severity, seen) = match node {
            NodeAccess::Opened => continue,
            NodeAccess::Missing => (Severity::Breaks, format!("{path} is missing")),
            NodeAccess::Wrong(what) => (Severity::Breaks, format!("{path} is {what}")),
            NodeAccess::Refused(error) => (
                Severity::Breaks,
                format!("{path} cannot be opened: {error}"),
            ),
            NodeAccess::Narrow(mode) => (
                Severity::Warning,
                format!("{path} is for root alone: {mode}"),
            ),
            NodeAccess::Untried(why) => (
                Severity::Unknown,
                format!("whether {path} can be opened is not known: {why}"),
            ),
        };
        // NCCL does without this one.
        let severity = if name == "rdma_cm" {
            severity.max(Severity::Warning)
        } else {
            severity
        };
        let why = match node {
            NodeAccess::Narrow(_) => {
                "jobs of other users, here or in a container that gets the node as it is \
                (--device), do without it"
            }
            _ => "libibverbs passes the device over, and NCCL goes on without it, or by TCP",
        };
        let one = Finding::new(Check::VerbsNodes, severity, seen, why, fix(context, node));
        found.push(Finding {
            run: mknod_commands(context, name, node),
            ..one
        });
    }
    found
}

/// Of a container in gVisor this host sees the sandbox's own root and memory alone.
fn sandbox(facts: &SandboxFacts) -> Vec<Finding> {
    let outside = match &facts.unread {
        None => {
            "which files NCCL reads there, and whether its device nodes open, is unknown".to_owned()
        }
        Some(why) => format!("what it was given is unknown: {why}"),
    };
    let unknown = Finding::new(
        Check::VerbsNodes,
        Severity::Unknown,
        format!("the container is in a sandbox (gVisor): {outside}"),
        "its root, its environment and its nodes are inside; config.json is what can be read of \
        them here",
        "run ibv_devinfo in the container: a NIC that works there has a port with PORT_ACTIVE",
    );
    let blind = Finding::new(
        Check::VerbsNodes,
        Severity::Warning,
        "the container is in a sandbox (gVisor) that runs without --rdmaproxy",
        "opening a verbs node fails there with ENXIO, and NCCL goes on by TCP",
        "a runsc of August 2026 or later with --rdmaproxy: docs/gvisor.md",
    );
    if facts.proxy {
        vec![unknown]
    } else {
        vec![blind, unknown]
    }
}

fn fix(context: &CheckContext, node: &NodeAccess) -> &'static str {
    match (context.is_inside(), node) {
        (true, _) => {
            "start the container from a config.json that `rdmaprep prepare --bundle` or `spec` \
            edited, or give it the node: --device; where its mode is in the way: chmod 666 on the \
            host, or a group of the container's user"
        }
        (false, NodeAccess::Refused(_)) => {
            "see the mode of the node, the options of its mount, and the device cgroup of this \
            shell"
        }
        (false, NodeAccess::Narrow(_)) => {
            "rdma-core's udev rules give it 666, at boot as well; or give it to a group of its own"
        }
        (false, NodeAccess::Wrong(_)) => {
            "have udev make it, or make it by hand; what is mounted there, umount first"
        }
        (false, _) => "have udev make it, or make it by hand",
    }
}

fn mknod_commands(context: &CheckContext, name: &str, node: &NodeAccess) -> Vec<String> {
    let snapshot = context.of.snapshot;
    let all = snapshot
        .hcas
        .iter()
        .filter_map(|h| h.uverbs.as_ref())
        .chain(&snapshot.rdma_cm);
    let known = all
        .into_iter()
        .find(|d| d.name == name)
        .filter(|_| !context.is_inside());
    let path = format!("/dev/infiniband/{name}");
    let mknod = known.map(|d| {
        format!(
            "mkdir -p /dev/infiniband && mknod -m 666 {path} c {} {}",
            d.major, d.minor
        )
    });
    match node {
        NodeAccess::Narrow(_) => vec![format!("chmod 666 {path}")],
        NodeAccess::Missing => mknod.into_iter().collect(),
        NodeAccess::Wrong(_) => mknod
            .map(|mknod| vec![format!("rm -d {path}"), mknod])
            .unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// Less than this is used up by the first connections.
const LITTLE: u64 = 64 << 20;

const PINNED: &str = "every buffer of RDMA is pinned: registering memory fails with ENOMEM when \
    the limit is reached";

pub(super) fn memlock(context: &CheckContext) -> Vec<Finding> {
    let Some(machine) = context.of.machine else {
        return Vec::new();
    };
    let starters = machine
        .starters
        .iter()
        .filter(|_| !context.is_inside())
        .filter_map(starter);
    let Some(limit) = machine.memlock.filter(|_| !machine.pins_freely) else {
        return starters.collect();
    };
    let severity = if limit < LITTLE {
        Severity::Breaks
    } else {
        Severity::Warning
    };
    let who = if context.is_inside() {
        "the container's init"
    } else {
        "this shell"
    };
    let seen = format!(
        "RLIMIT_MEMLOCK of {who} is {} KiB, and it has no CAP_IPC_LOCK",
        limit >> 10
    );
    let found = |fix| Finding::new(Check::Memlock, severity, seen.clone(), PINNED, fix);
    let own = match (context.is_inside(), machine.memlock_stays) {
        (true, _) => found(
            "the create hook lifts it unless `lift_memlock` in the host's config file is false; \
            or --ulimit memlock=-1:-1",
        ),
        (false, true) => found(
            "it is for who started this shell to lift, as the hard limit is finite, too: in \
            /etc/security/limits.d, for a service LimitMEMLOCK=infinity",
        ),
        (false, false) => found(
            "ulimit -l unlimited; for all in /etc/security/limits.d, for a service \
                LimitMEMLOCK=infinity",
        )
        .run("ulimit -l unlimited"),
    };
    starters.chain([own]).collect()
}

/// What a program hands on, with which nothing of RDMA works; it may pin what it likes itself.
fn starter(starter: &Starter) -> Option<Finding> {
    let limit = starter.memlock.filter(|limit| *limit < LITTLE)?;
    let seen = format!(
        "RLIMIT_MEMLOCK of {} (process {}) is {} KiB",
        starter.name,
        starter.pid,
        limit >> 10
    );
    let fix = "LimitMEMLOCK=infinity for its unit, and for what it starts from now on; the create \
        hook lifts it for containers that get NICs by rdmaprep";
    let found = Finding::new(Check::Memlock, Severity::Warning, seen, PINNED, fix);
    let unit = starter.unit.as_ref().map(|unit| {
        let folder = format!("/etc/systemd/system/{unit}.d");
        format!(
            "mkdir -p {folder} && printf '[Service]\\nLimitMEMLOCK=infinity\\n' > \
            {folder}/memlock.conf && systemctl daemon-reload"
        )
    });
    let now = format!(
        "prlimit --pid {} --memlock=unlimited:unlimited",
        starter.pid
    );
    Some(Finding {
        run: unit.into_iter().chain([now]).collect(),
        ..found
    })
}

/// GPUDirect: nvidia_peermem, or dma-buf from NVIDIA's open modules; RCCL's way; GDRCopy.
pub(super) fn peer_memory(context: &CheckContext) -> Vec<Finding> {
    let Some(machine) = context.of.machine else {
        return Vec::new();
    };
    let nvidia = machine.nvidia.as_ref();
    let mut found: Vec<Finding> = nvidia
        .and_then(|nvidia| nvidia_memory(context, nvidia))
        .into_iter()
        .collect();
    if machine.amdkfd == Some(false) {
        let seen = "amdgpu is loaded, and the kernel shows no memory_peers/amdkfd";
        let fix = "amdgpu-dkms with the peer memory of MLNX_OFED or of the distribution's kernel; \
            or dma-buf: NCCL_DMABUF_ENABLE=1";
        let unknown = Severity::Unknown;
        found.push(Finding::new(Check::PeerMemory, unknown, seen, COPIES, fix));
    }
    let is_there = |found: &Userspace| found.gdrdrv;
    if machine.gdrdrv && !machine.userspace.as_ref().is_none_or(is_there) {
        let seen = "the host has /dev/gdrdrv, and the container does not";
        let why = "GDRCopy, which UCX uses, and NCCL with NCCL_GDRCOPY_ENABLE=1, is off there";
        let fix = "--device /dev/gdrdrv, where the job uses it";
        let unknown = Severity::Unknown;
        found.push(Finding::new(Check::PeerMemory, unknown, seen, why, fix));
    }
    found
}

const COPIES: &str =
    "NICs do not reach the memory of GPUs: NCCL copies everything through the host's memory";

fn nvidia_memory(context: &CheckContext, nvidia: &Nvidia) -> Option<Finding> {
    let old = context.release().filter(|version| !version.knows_peermem());
    if let Some(version) = old.filter(|_| nvidia.peermem && !nvidia.memory_peers) {
        let (severity, dma_buf) = match nvidia.open {
            Some(true) => return None,
            Some(false) => (Severity::Warning, "the driver has no dma-buf"),
            None => (
                Severity::Unknown,
                "whether the driver has dma-buf is unknown",
            ),
        };
        let seen = format!(
            "nvidia_peermem is loaded, which NCCL {version} looks for in \
            /sys/kernel/mm/memory_peers alone, and that is not here; {dma_buf}"
        );
        let fix = "NCCL 2.23.4 or later; or the kernel modules of MLNX_OFED, which have \
            memory_peers; or NVIDIA's open kernel modules";
        return Some(Finding::new(Check::PeerMemory, severity, seen, COPIES, fix));
    }
    let (severity, seen) = match (nvidia.peermem, nvidia.open) {
        (true, _) | (false, Some(true)) => return None,
        (false, Some(false)) => (
            Severity::Warning,
            "nvidia_peermem is not loaded, and the driver is not the open one, which has dma-buf",
        ),
        (false, None) => (
            Severity::Unknown,
            "nvidia_peermem is not loaded, and whether the driver has dma-buf is unknown",
        ),
    };
    let fix = "load nvidia_peermem, and at boot; or use NVIDIA's open kernel modules";
    let found = Finding::new(Check::PeerMemory, severity, seen, COPIES, fix);
    Some(found.run("modprobe nvidia_peermem"))
}

/// A pod that asks in vain starts without its NICs, and no error says so.
pub(super) fn pod_annotations(context: &CheckContext) -> Vec<Finding> {
    let pods = context
        .of
        .machine
        .map(|m| m.without_annotations.as_slice())
        .unwrap_or_default();
    let Some(first) = pods.first() else {
        return Vec::new();
    };
    let more = if pods.len() > 1 {
        format!(" and {} more", pods.len() - 1)
    } else {
        String::new()
    };
    let seen = format!(
        "container {first}{more} of containerd: rdmaprep's hook runs, and gets no annotation of \
        the pod"
    );
    let why = "containerd passes on the annotations that the runtime handler lists in \
        pod_annotations: a pod that asks by annotation starts without its NICs";
    let fix = "run the pods with the handler that `rdmaprep install --containerd` writes \
        (runtimeClassName: rdmaprep); or add pod_annotations = [\"rdmaprep.io/*\"] to their \
        handler";
    vec![Finding::new(
        Check::PodAnnotations,
        Severity::Warning,
        seen,
        why,
        fix,
    )]
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn versions_of_kernels() {
        let all = [
            "6.12.9-amd64",
            "5.14.0-427.el9.x86_64",
            "7.2-rc1",
            "",
            "x",
            "6",
        ]
        .map(version);
        assert_eq!(
            all,
            [Some((6, 12)), Some((5, 14)), Some((7, 2)), None, None, None]
        );
    }
}
