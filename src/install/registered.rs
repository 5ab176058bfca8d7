//! Whether any engine of a host knows rdmaprep, by whatever wrote its files.

use super::containerd::CONFIG as CONTAINERD;
use super::docker::DAEMON;
use super::{NAME, Target, with_imports};
use crate::cdi;
use crate::kernel::host::host_tree::{Content, ReadTree};

/// Where podman and CRI-O look for definitions of hooks (oci-hooks(5)), and enroot for its own.
const HOOKS: [&str; 3] = ["/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d", "/etc/enroot/hooks.d"];
/// Where runtimes of Kubernetes look for pod networks.
const NETWORKS: &str = "/etc/cni/net.d";

/// The engines of a host, where none of them knows rdmaprep: their containers start without the NICs that they ask for. None
/// where containers get NICs by CDI, or where a file cannot be read.
pub fn unregistered_engines(tree: &dyn ReadTree) -> Vec<Target> {
    let engines = super::found(tree).into_iter().map(|(target, _)| target).filter(|t| t.is_engine()).collect();
    if knows_us(tree) { Vec::new() } else { engines }
}

fn knows_us(tree: &dyn ReadTree) -> bool {
    let names = HOOKS.iter().flat_map(|folder| tree.list(folder).unwrap_or_default());
    let says = |path: &str| match tree.content(path) {
        Ok(Some(Content::Text(text))) => text.contains(NAME),
        other => !matches!(other, Ok(None)),
    };
    let mut networks = tree.list(NETWORKS).unwrap_or_default().into_iter().map(|name| format!("{NETWORKS}/{name}"));
    let containerd = || with_imports(CONTAINERD, tree).map_or(true, |files| files.iter().any(|f| f.contains(NAME)));
    names.into_iter().any(|name| name.contains(NAME))
        || tree.exists(cdi::FILE)
        || says(DAEMON)
        || networks.any(|path| says(&path))
        || containerd()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::kernel::host::host_tree::HostTree;

    #[test]
    fn any_way_to_nics_is_one() {
        let known = [
            ("usr/share/containers/oci/hooks.d/rdmaprep-createRuntime.json", "{}"),
            ("etc/enroot/hooks.d/90-rdmaprep.sh", ""),
            ("etc/docker/daemon.json", r#"{"runtimes": {"rdmaprep": {}}}"#),
            ("etc/docker/daemon.json", "no JSON: rdmaprep"),
            ("etc/cni/net.d/10-pods.conflist", r#"{"plugins": [{"type": "rdmaprep"}]}"#),
            ("etc/containerd/config.toml", "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.rdmaprep]"),
            ("etc/containerd/conf.d/x.toml", "[a.rdmaprep]"),
            ("etc/containerd/config.toml", "no TOML"),
            (cdi::FILE.trim_start_matches('/'), ""),
        ];
        let unknown = [("etc/docker/daemon.json", "{}"), ("etc/cni/net.d/87-podman.conflist", "{}")];
        for (path, text) in known.iter().chain(&unknown) {
            let root = tempfile::TempDir::new().unwrap();
            for (path, text) in [("usr/bin/podman", ""), ("usr/bin/dockerd", ""), (*path, *text)] {
                let file = root.path().join(path);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            let found = unregistered_engines(&HostTree::new(root.path()).unwrap());
            let expected =
                if unknown.contains(&(*path, *text)) { vec![Target::Podman, Target::Docker] } else { vec![] };
            assert_eq!(found, expected, "{path}: {text}");
        }
    }
}
