//! What gVisor's RDMA proxy asks of a host and of a container's HCAs. Where that is lacking, runsc
//! starts the container in most cases, and RDMA is absent from it without an error.

use std::collections::BTreeMap;

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::snapshot::Snapshot;

use super::Plan;
use crate::config::sysfs_mode::SysfsMode;

/// The node of RDMA CM: opening it in a sandbox fails with ENXIO.
pub const RDMA_CM: &str = "rdma_cm";

/// mlx5_core and efa by gVisor's g3doc/user_guide/rdma.md, the others by its
/// pkg/sentry/devices/rdmaproxy of August 2026. The proxy passes over nodes of all others with a
/// warning (runsc/boot/vfs.go).
const DRIVERS: [&str; 6] = ["mlx5_core", "efa", "ice", "i40e", "idpf", "irdma"];

/// IB_UVERBS_MAJOR in drivers/infiniband/core/uverbs.h; the proxy takes no node with another one
/// (runsc/boot/vfs.go).
const MAJOR: u32 = 231;

/// Why the plan's container would have no RDMA by the proxy.
fn faults(plan: &Plan, host: &Snapshot) -> Vec<String> {
    let mut faults = Vec::new();
    let own = plan.nics.iter().filter_map(|nic| nic.hca.as_ref());
    for name in own.chain(&plan.ib) {
        match host.hca(name).and_then(|hca| hca.driver.as_deref()) {
            Some("rxe" | "siw") => faults.push(format!(
                "{name} is software and has no PCI device: runsc refuses to create the container"
            )),
            Some(driver) if driver.ends_with(".sf") => faults.push(format!(
                "{name} is a sub-function: it is no PCI device of its own"
            )),
            Some(driver) if !DRIVERS.contains(&driver) => faults.push(format!(
                "{name} has driver {driver}, and the proxy takes {}",
                DRIVERS.join(", ")
            )),
            _ => {}
        }
    }
    for node in &plan.devices {
        if node.name.starts_with("uverbs") && node.major != MAJOR {
            faults.push(format!(
                "{} has major {}, and the proxy takes {MAJOR}",
                node.name, node.major
            ));
        }
    }
    if plan.exclusive {
        let text = "RDMA devices belong to one namespace each, and gVisor's guide asks for the \
            shared mode: rdma system set netns shared, before containers have NICs";
        faults.push(text.to_owned());
    }
    faults
}

/// Judges a plan whose container gets its RDMA by the proxy, and returns what its user should hear.
pub fn judge(plan: &Plan, host: &Snapshot) -> Result<Vec<String>> {
    if !plan.sysfs.is_proxy() {
        return Ok(Vec::new());
    }
    let mut notes = refuse_or_note(plan.sysfs, faults(plan, host))?;
    notes.push(
        "RDMA CM does not work in gVisor, so the container gets no /dev/infiniband/rdma_cm"
            .to_owned(),
    );
    Ok(notes)
}

/// [`ErrorClass::Refused`] for what leaves a container without RDMA; with `proxy=warn` a note.
pub fn refuse_or_note(sysfs: SysfsMode, faults: Vec<String>) -> Result<Vec<String>> {
    let said: Vec<String> = faults
        .into_iter()
        .map(|fault| format!("gVisor's RDMA proxy: {fault}"))
        .collect();
    if sysfs == SysfsMode::Proxy && !said.is_empty() {
        let text = format!(
            "{} (--sysfs proxy=warn makes this a warning)",
            said.join("; ")
        );
        return Err(ErrorClass::Refused.error(text));
    }
    Ok(said)
}

/// A container of a pod, and the pod's root container, by the annotations of containerd and of
/// CRI-O.
pub fn root_of_pod(annotations: &BTreeMap<String, String>) -> Option<&str> {
    let [cri, crio] = [
        [
            "io.kubernetes.cri.container-type",
            "io.kubernetes.cri.sandbox-id",
        ],
        [
            "io.kubernetes.cri-o.ContainerType",
            "io.kubernetes.cri-o.SandboxID",
        ],
    ]
    .map(|[kind, root]| {
        annotations.get(root).filter(|_| {
            annotations
                .get(kind)
                .is_some_and(|kind| kind == "container")
        })
    });
    cri.or(crio).map(String::as_str)
}
