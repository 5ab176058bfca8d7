//! The pod of a container, by the cgroup in which its engine puts it: the kubelet says that, no
//! annotation does.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::oci::config::Config;

/// Where containerds keep their state, below the root: one by itself, Docker's child, and those of
/// k3s (rke2's is there, too), k0s and microk8s.
pub const CONTAINERDS: [&str; 5] = [
    "run/containerd",
    "run/docker/containerd/daemon",
    "run/k3s/containerd",
    "run/k0s/containerd",
    "var/snap/microk8s/common/run/containerd",
];
/// Below a state: `NAMESPACE/ID` there is a container's bundle.
pub const TASKS: &str = "io.containerd.runtime.v2.task";
/// CRI-O's, below the root, and what of a container's folder is its bundle.
const CRIO: ([&str; 2], &str) = (
    [
        "run/containers/storage/overlay-containers",
        "var/lib/containers/storage/overlay-containers",
    ],
    "userdata",
);

/// Where containerds keep the bundles of Kubernetes' containers, below the root, by their ids.
pub fn containerd_bundles() -> impl Iterator<Item = PathBuf> {
    let states = CONTAINERDS.into_iter().map(Path::new);
    states.map(|state| state.join(TASKS).join("k8s.io"))
}

/// Where the bundle of a pod's container may be.
pub fn bundles(root: &Path, id: &str) -> impl Iterator<Item = PathBuf> {
    let (folders, name) = CRIO;
    let own = folders.map(|folder| root.join(folder).join(id).join(name));
    let others: Vec<PathBuf> = containerd_bundles()
        .map(|folder| root.join(folder).join(id))
        .collect();
    others.into_iter().chain(own)
}

/// The UID in `/kubepods/burstable/podUID/ID` or `kubepods-burstable-podU_I_D.slice:cri:ID`
/// (GetPodContainerName and escapeSystemdCgroupName in pkg/kubelet/cm of Kubernetes). The last one:
/// a node may be a pod itself.
pub fn pod_uid(config: &Config) -> Result<Option<String>> {
    let path: Option<String> = config.part(&["linux", "cgroupsPath"])?;
    Ok(path.and_then(|path| path.split(['/', ':']).filter_map(uid_in).next_back()))
}

fn uid_in(part: &str) -> Option<String> {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let uid = name.rsplit('-').find_map(|word| word.strip_prefix("pod"));
    let uid = name.strip_prefix("pod").or(uid)?.replace('_', "-");
    is_uid(&uid).then_some(uid)
}

/// As the API server makes them.
pub fn is_uid(text: &str) -> bool {
    text.len() == 36
        && text
            .bytes()
            .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::pod_uid;
    use crate::oci::config::Config;

    #[test]
    fn pod_of_a_cgroup_as_kubelets_name_it() {
        let (uid, outer) = (
            "0f1e2d3c-0123-4567-89ab-0123456789ab",
            "ffffffff-0123-4567-89ab-0123456789ab",
        );
        let escaped = uid.replace('-', "_");
        let of = |path: &str| {
            let config = serde_json::json!({"linux": {"cgroupsPath": path}}).to_string();
            pod_uid(&Config::lenient(&config)).unwrap_or(None)
        };
        for path in [
            format!("kubepods-besteffort-pod{escaped}.slice:cri-containerd:1"),
            format!("kubepods-pod{escaped}.slice:crio:1"),
            format!("/kubelet.slice/kubelet-kubepods-pod{escaped}.slice/cri-1.scope"),
            format!("/kubepods/burstable/pod{uid}/123"),
            format!("/kubepods/pod{outer}/9/kubelet/kubepods/pod{uid}/123"),
        ] {
            assert_eq!(of(&path).as_deref(), Some(uid), "{path}");
        }
        for path in [
            "machine.slice:libpod:1",
            "/kubepods/burstable",
            "",
            "/docker/pod1",
        ] {
            assert_eq!(of(path), None, "{path}");
        }
        assert_eq!(pod_uid(&Config::lenient("{}")).unwrap_or(None), None);
    }
}
