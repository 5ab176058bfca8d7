//! Whether any engine of a host knows rdmaprep, by whatever wrote its files.

use anyhow::Result;

use super::daemon::Daemon;
use super::docker::DAEMON;
use super::{NAME, Target, with_imports};
use crate::cdi;
use crate::disk::host_tree::{Content, ReadTree};

/// Where podman and CRI-O look for definitions of hooks (oci-hooks(5)), and enroot for its own.
const HOOKS: [&str; 3] = [
    "/usr/share/containers/oci/hooks.d",
    "/etc/containers/oci/hooks.d",
    "/etc/enroot/hooks.d",
];
/// Where runtimes of Kubernetes look for pod networks.
const NETWORKS: &str = "/etc/cni/net.d";
/// Where they look for its plugins, elsewhere and in Debian. Of a network that Multus adds there is
/// no file: the API server has it.
const PLUGINS: [&str; 2] = ["/opt/cni/bin/rdmaprep", "/usr/lib/cni/rdmaprep"];
/// Where a kubelet keeps its pods.
const KUBELET: &str = "/var/lib/kubelet";

/// The engines of a host, where none of them knows rdmaprep: a container that asks them by
/// annotation starts without NICs. Nothing where one does, or containers get NICs by CDI.
/// [`ErrorClass::Usage`] where a file cannot be read, and no other one names rdmaprep.
///
/// [`ErrorClass::Usage`]: rdma_model::error_class::ErrorClass::Usage
pub fn unregistered_engines(tree: &dyn ReadTree) -> Result<Option<Vec<Target>>> {
    let found: Vec<Target> = super::found(tree)
        .into_iter()
        .map(|(target, _)| target)
        .filter(|t| t.is_engine())
        .collect();
    // Docker brings a containerd of its own, which serves others only beside a kubelet.
    let is_dockers = found.contains(&Target::Docker) && !tree.exists(KUBELET);
    let engines = found
        .into_iter()
        .filter(|t| *t != Target::Containerd || !is_dockers)
        .collect();
    let ways = [hooks, devices, runtimes, networks, containerd].map(|way| way(tree));
    if ways.iter().any(|way| matches!(way, Ok(true))) {
        return Ok(None);
    }
    ways.into_iter().try_for_each(|way| way.map(drop))?;
    Ok(Some(engines))
}

fn hooks(tree: &dyn ReadTree) -> Result<bool> {
    let names: Vec<Vec<String>> = HOOKS
        .iter()
        .map(|folder| tree.list(folder))
        .collect::<Result<_>>()?;
    Ok(names.iter().flatten().any(|name| name.contains(NAME)))
}

fn devices(tree: &dyn ReadTree) -> Result<bool> {
    Ok(tree.exists(cdi::FILE))
}

fn runtimes(tree: &dyn ReadTree) -> Result<bool> {
    says(DAEMON, tree)
}

fn networks(tree: &dyn ReadTree) -> Result<bool> {
    if PLUGINS.iter().any(|plugin| tree.exists(plugin)) {
        return Ok(true);
    }
    // The names that libcni takes (ConfFiles() in libcni/conf.go): Multus has a folder there.
    let mut says = tree
        .list(NETWORKS)?
        .into_iter()
        .filter(|name| {
            [".conf", ".conflist", ".json"]
                .iter()
                .any(|end| name.ends_with(end))
        })
        .map(|name| says(&format!("{NETWORKS}/{name}"), tree));
    says.try_fold(false, |known, one| Ok(known || one?))
}

fn containerd(tree: &dyn ReadTree) -> Result<bool> {
    for daemon in Daemon::of(tree) {
        let texts = with_imports(&daemon.config(), tree)?;
        if texts.iter().any(|text| text.contains(NAME)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn says(path: &str, tree: &dyn ReadTree) -> Result<bool> {
    Ok(match tree.content(&tree.followed(path)?)? {
        Some(Content::Text(text)) => text.contains(NAME),
        Some(Content::Link(_)) | None => false,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::disk::host_tree::HostTree;

    fn unregistered(files: &[(&str, &str)]) -> Result<Option<Vec<Target>>> {
        let root = tempfile::TempDir::new().unwrap();
        for (path, text) in files {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            match text.strip_prefix("-> ") {
                Some(target) => std::os::unix::fs::symlink(root.path().join(target), file).unwrap(),
                None => fs::write(file, text).unwrap(),
            }
        }
        unregistered_engines(&HostTree::new(root.path()).unwrap())
    }

    const ENGINES: [(&str, &str); 3] = [
        ("usr/bin/podman", ""),
        ("usr/bin/dockerd", ""),
        ("usr/bin/containerd", ""),
    ];

    #[test]
    fn any_way_to_nics_is_one() {
        let known = [
            (
                "usr/share/containers/oci/hooks.d/rdmaprep-createRuntime.json",
                "{}",
            ),
            ("etc/enroot/hooks.d/90-rdmaprep.sh", ""),
            (
                "etc/docker/daemon.json",
                r#"{"runtimes": {"rdmaprep": {}}}"#,
            ),
            ("etc/docker/daemon.json", "no JSON: rdmaprep"),
            (
                "etc/cni/net.d/10-pods.conflist",
                r#"{"plugins": [{"type": "rdmaprep"}]}"#,
            ),
            (
                "etc/containerd/config.toml",
                "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.rdmaprep]",
            ),
            ("etc/containerd/conf.d/x.toml", "[a.rdmaprep]"),
            ("opt/cni/bin/rdmaprep", ""),
            (cdi::FILE.trim_start_matches('/'), ""),
        ];
        for (path, text) in known {
            let found = unregistered(&[&ENGINES[..], &[(path, text)]].concat()).unwrap();
            assert_eq!(found, None, "{path}: {text}");
        }
        let linked = [
            ("etc/docker/daemon.json", "-> srv/docker.json"),
            ("srv/docker.json", "rdmaprep"),
        ];
        assert_eq!(
            unregistered(&[&ENGINES[..], &linked].concat()).unwrap(),
            None
        );
    }

    #[test]
    fn other_files_are_none() {
        for (path, text) in [
            ("etc/docker/daemon.json", "{}"),
            ("etc/cni/net.d/87-podman.conflist", "{}"),
            ("etc/cni/net.d/multus.d/multus.kubeconfig", ""),
        ] {
            let found = unregistered(&[&ENGINES[..], &[(path, text)]].concat()).unwrap();
            let all = [Target::Podman, Target::Docker].to_vec();
            assert_eq!(found, Some(all), "{path}: {text}");
        }
        let with_kubelet = [&ENGINES[..], &[("var/lib/kubelet/config.yaml", "")]].concat();
        assert_eq!(
            unregistered(&with_kubelet).unwrap(),
            Some(vec![Target::Podman, Target::Docker, Target::Containerd])
        );
    }

    #[test]
    fn a_file_that_cannot_be_read_is_no_answer() {
        let torn = ("etc/containerd/config.toml", "no TOML");
        unregistered(&[&ENGINES[..], &[torn]].concat()).unwrap_err();
        let known = [torn, ("etc/docker/daemon.json", "rdmaprep")];
        let found = unregistered(&[&ENGINES[..], &known].concat());
        assert_eq!(found.unwrap(), None);
    }
}
