//! What the kernel and the process's limits allow.

use std::collections::BTreeSet;

use super::facts::Machine;
use super::{Check, CheckContext, Finding, Severity, join};

/// RDMA drivers by the driver of the PCI function that they sit on.
const DRIVERS: [(&str, &str); 6] = [
    ("mlx5_core", "mlx5_ib"),
    ("mlx4_core", "mlx4_ib"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("hns3", "hns_roce_hw_v2"),
];

/// The RDMA driver beside a network driver.
fn rdma_driver(network: &str) -> Option<&'static str> {
    let (_, rdma) = DRIVERS.iter().find(|(driver, _)| *driver == network)?;
    Some(rdma)
}

pub(super) fn modules(context: &CheckContext, machine: &Machine) -> Vec<Finding> {
    let snapshot = context.of.snapshot;
    if snapshot.hcas.is_empty() && context.lends() {
        // In exclusive mode a host that has lent all of them sees none.
        return Vec::new();
    }
    let breaks =
        |seen: &str, why, fix| Finding::new(Check::RdmaModules, Severity::Breaks, seen, why, fix);
    let mut lacking = BTreeSet::new();
    for function in &snapshot.pci {
        // Where others do RDMA, one that is not named is for the host's own network, or cannot.
        let mut own = snapshot
            .netdevs
            .iter()
            .filter(|n| n.pci == Some(function.address));
        if snapshot.hcas.is_empty() || own.any(|n| context.asks_for(&n.name)) {
            lacking.extend(function.driver.as_deref().and_then(rdma_driver));
        }
    }
    // One that is built in is seen by its devices.
    for driver in snapshot.hcas.iter().filter_map(|h| h.driver.as_deref()) {
        lacking.remove(rdma_driver(driver).unwrap_or(driver));
    }
    lacking.retain(|m| !machine.modules.iter().any(|have| have == m));
    let mut found = Vec::new();
    if !lacking.is_empty() {
        let why = "the cards are there as network cards alone: nothing can use RDMA";
        let names = Vec::from_iter(lacking);
        let seen = format!("{} not loaded, and cards here need it", join(&names));
        let one = breaks(&seen, why, "load it, and at boot");
        found.push(one.run(format!("modprobe -a {}", names.join(" "))));
    } else if snapshot.hcas.is_empty() {
        let why = "there is nothing to give to a container, and NCCL goes by TCP";
        let fix = "look for the card (lspci), load its RDMA driver; for soft-RoCE: modprobe \
            rdma_rxe, rdma link add rxe0 type rxe netdev NIC";
        found.push(breaks("there is no RDMA device here", why, fix));
    }
    if !machine.verbs_class && !snapshot.hcas.is_empty() {
        let why = "without it there are no device nodes: libibverbs finds no device";
        let one = breaks("ib_uverbs is not loaded", why, "load it, and at boot");
        found.push(one.run("modprobe ib_uverbs"));
    }
    if snapshot.rdma_cm.is_none() && !snapshot.hcas.is_empty() {
        let why = "NCCL does without /dev/infiniband/rdma_cm, UCX and MPI do not";
        let seen = "rdma_ucm is not loaded";
        let one = breaks(seen, why, "load it, and at boot").run("modprobe rdma_ucm");
        found.push(Finding {
            severity: Severity::Warning,
            ..one
        });
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

pub(super) fn kernel(context: &CheckContext, machine: &Machine) -> Vec<Finding> {
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

/// A pod that asks in vain starts without its NICs, and no error says so.
pub(super) fn pod_annotations(_: &CheckContext, machine: &Machine) -> Vec<Finding> {
    let pods = &machine.without_annotations;
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
