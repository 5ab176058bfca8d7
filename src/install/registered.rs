//! Whether any engine of a host knows rdmaprep, by whatever wrote its files.

use super::containerd::CONFIG as CONTAINERD;
use super::docker::DAEMON;
use super::{NAME, Target, with_imports};
use crate::cdi;
use crate::kernel::host::host_tree::{Content, ReadTree};

/// Where podman and CRI-O look for definitions of hooks (oci-hooks(5)).
const HOOKS: [&str; 2] = ["/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"];

/// The engines of a host, where none of them knows rdmaprep: their containers start without the NICs that they ask for. None
/// where containers get NICs by CDI, or where a file cannot be read.
pub fn unregistered_engines(tree: &dyn ReadTree) -> Vec<Target> {
    let engines = super::found(tree).into_iter().map(|(target, _)| target).filter(|t| t.is_engine()).collect();
    if knows_us(tree) { Vec::new() } else { engines }
}

fn knows_us(tree: &dyn ReadTree) -> bool {
    let names = HOOKS.iter().flat_map(|folder| tree.list(folder).unwrap_or_default());
    let docker = || match tree.content(DAEMON) {
        Ok(Some(Content::Text(text))) => text.contains(NAME),
        other => !matches!(other, Ok(None)),
    };
    let containerd = || with_imports(CONTAINERD, tree).map_or(true, |files| files.iter().any(|f| f.contains(NAME)));
    names.into_iter().any(|name| name.contains(NAME)) || tree.exists(cdi::FILE) || docker() || containerd()
}
