//! The pod of a container, by the cgroup in which its engine puts it: the kubelet says that, no
//! annotation does.

use anyhow::Result;

use crate::oci::config::Config;

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
