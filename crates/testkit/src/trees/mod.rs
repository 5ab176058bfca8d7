//! Where the captured trees are, and what is in them.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

pub mod made;

/// What the description of a tree promises: ibdevs, netdevs with data, PCI functions, GPUs.
pub const TREES: [(&str, usize, usize, usize, usize); 9] = [
    ("dgx-a100", 10, 10, 281, 8),
    ("gpud-h100-class-infiniband", 9, 0, 0, 0),
    ("hwloc-32em64t-2n8c+dax+nvme+mic+dimms", 1, 3, 137, 0),
    ("hwloc-32intel64-2p8co2t+8ve", 0, 2, 28, 0),
    ("hwloc-fakepcilocalities", 1, 5, 30, 0),
    ("nfd-pci-rootfs-1", 0, 0, 11, 0),
    ("pcp-ib-root-001", 2, 0, 0, 0),
    ("pcp-ib-root-002", 2, 0, 0, 0),
    ("procfs-fixtures", 3, 1, 3, 0),
];

/// Where captured data lie, if they do.
pub fn realdata() -> PathBuf {
    let given = std::env::var_os("RDMAPREP_REALDATA").map(PathBuf::from);
    given.unwrap_or_else(|| crate::repository("../shared/realdata"))
}

/// The folder of captured trees. Tests of it have `captured` in their names, which is how
/// scripts/test finds them.
pub fn captured() -> PathBuf {
    let trees = realdata().join("trees");
    crate::require!(
        trees.is_dir(),
        "captured trees in {} (RDMAPREP_REALDATA names another place)",
        trees.display()
    );
    trees
}

pub fn unpacked(trees: &Path, name: &str) -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let archive = trees.join(format!("{name}.tar.xz"));
    let tar = Command::new("tar")
        .arg("-xJf")
        .arg(&archive)
        .arg("-C")
        .arg(dir.path())
        .status()
        .unwrap();
    assert!(tar.success(), "unpacking {}", archive.display());
    let root = dir.path().join(name).join("sys");
    (dir, root)
}
