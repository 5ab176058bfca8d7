//! The sandbox of the container that a create hook is about, and whether RDMA will work in it.

use std::path::{Component, Path, PathBuf};

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::snapshot::Snapshot;

use crate::config::sandbox::Sandbox;
use crate::disk::files;
use crate::oci::config::{Config, OciDevice};
use crate::oci::state::State;
use crate::plan::{Plan, rdma_proxy};

/// The plan for a container in that sandbox, and what its user should hear. [`ErrorClass::Refused`]
/// where it asks for RDMA by gVisor's proxy and would have none. `host` is absent where the NICs
/// have moved already.
pub fn plan_for_sandbox(
    plan: Plan,
    state: &State,
    sandbox: Option<Sandbox>,
    host: Option<&Snapshot>,
) -> Result<(Plan, Vec<String>)> {
    let sysfs = if sandbox == Some(Sandbox::RdmaProxy) {
        plan.sysfs.within(sandbox).0
    } else {
        plan.sysfs
    };
    if !sysfs.is_proxy() {
        return Ok((plan, Vec::new()));
    }
    let view = plan.view.clone().filter(|_| plan.sysfs.is_proxy());
    let plan = plan.with_sysfs(sysfs, view);
    let mut notes = host
        .map(|host| rdma_proxy::judge(&plan, host))
        .transpose()?
        .unwrap_or_default();
    let mut faults = Vec::new();
    if sandbox != Some(Sandbox::RdmaProxy) {
        faults.push("the container's runtime is not `runsc --rdmaproxy`".to_owned());
    }
    faults.extend(pod_fault(state)?);
    notes.extend(rdma_proxy::refuse_or_note(sysfs, faults)?);
    Ok((plan, notes))
}

/// Why a container of a pod has no RDMA: gVisor takes the devices of the pod's root container alone
/// (runsc/specutils/rdma.go, and its guide).
fn pod_fault(state: &State) -> Result<Option<String>> {
    let Some(root) = rdma_proxy::root_of_pod(&state.annotations) else {
        return Ok(None);
    };
    let rule = "a pod's sandbox has the RDMA devices of its root container alone";
    let Some(path) = root_bundle(state, root).map(|bundle| bundle.join("config.json")) else {
        return Ok(Some(format!(
            "{rule}, and where the config.json of {root} is, is unknown"
        )));
    };
    let Some(text) =
        files::read(&path).class(ErrorClass::State, "reading the root container's bundle")?
    else {
        return Ok(Some(format!(
            "{rule}, and {} does not exist",
            path.display()
        )));
    };
    let listed =
        Config::parse(&text).and_then(|config| config.list::<OciDevice>(&["linux", "devices"]));
    let devices = match listed {
        Ok(devices) => devices,
        Err(e) => {
            return Ok(Some(format!(
                "{rule}, and {} cannot be read: {e:#}",
                path.display()
            )));
        }
    };
    let has_rdma = devices
        .iter()
        .any(|device| device.path.starts_with("/dev/infiniband/uverbs"));
    Ok((!has_rdma).then(|| format!("{rule}, and {} lists none", path.display())))
}

/// Engines name the folders of bundles after the containers' ids: .../ID with containerd,
/// .../ID/userdata with CRI-O. Annotations are untrusted: a name leads to no other folder.
fn root_bundle(state: &State, root: &str) -> Option<PathBuf> {
    let mut name = Path::new(root).components();
    let is_name =
        matches!((name.next(), name.next()), (Some(Component::Normal(name)), None) if name == root);
    let bundle = Path::new(&state.bundle);
    let swap = |part: Component| {
        if part.as_os_str() == state.id.as_str() {
            root.to_owned().into()
        } else {
            part.as_os_str().to_owned()
        }
    };
    let has_id = bundle
        .components()
        .any(|part| part.as_os_str() == state.id.as_str());
    (is_name && has_id && bundle.is_absolute()).then(|| bundle.components().map(swap).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_of_a_pod_is_found_beside_its_container() {
        let find = |bundle: &str, root: &str| {
            let state = State {
                id: "app".into(),
                pid: None,
                bundle: bundle.into(),
                annotations: Default::default(),
            };
            root_bundle(&state, root)
        };
        assert_eq!(
            find("/run/k8s.io/app", "pause"),
            Some("/run/k8s.io/pause".into())
        );
        assert_eq!(
            find("/run/c/app/userdata", "pause"),
            Some("/run/c/pause/userdata".into())
        );
        for (bundle, root) in [
            ("/run/other", "pause"),
            ("app", "pause"),
            ("/run/app", ".."),
            ("/run/app", "a/b"),
            ("/run/app", "/a"),
            ("/run/app", ""),
        ] {
            assert_eq!(find(bundle, root), None, "{bundle} {root}");
        }
    }
}
